"""Some seeds beside Apache Kafka, plans that found a difference once, and mistakes that are noticed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.kafka.jars import Missing
from logstore.replication import following, membership, reading
from logstore.replication.isr import PendingExpand, may_join
from logstore.replication.partition import Partition
from logstore.replication.reconcile import truncation_for
from logstore.replication.replica import RemoteReplica
from logstore.replication.waiting import WaitingRequests
from tests.judge.drawing import Plan
from tests.judge.sides import Operation
from tests.judge.trial import shrink
from tests.partition_judge.drawing import draw
from tests.partition_judge.kafka import Kafka
from tests.partition_judge.trial import run

OPERATIONS = 150
KEPT = [Plan(*json.loads(line)) for line in (Path(__file__).parent / "kept.jsonl").read_text().splitlines()]
"""Shrunk plans; each showed a defect of ours."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    try:
        started = Kafka()
    except Missing as reason:
        pytest.skip(str(reason))
    yield started
    started.end()


@pytest.mark.interop
@pytest.mark.timeout(600)
class TestBesideKafka:
    @pytest.mark.parametrize("seed", range(1, 41))
    def test_a_seed(self, kafka: Kafka, seed: int) -> None:
        seen: Counter[str] = Counter()
        assert run(draw(seed, OPERATIONS), kafka, seen) is None
        assert seen

    @pytest.mark.parametrize("plan", KEPT, ids=range(len(KEPT)))
    def test_what_differed_once(self, kafka: Kafka, plan: Plan) -> None:
        assert run(plan, kafka, Counter()) is None

    def test_a_mistake_in_the_isr_is_noticed_and_shrunk(
        self, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A new member counts for the high watermark only once the controller has confirmed it."""
        monkeypatch.setattr(PendingExpand, "maximal", property(lambda pending: pending.last.isr))

        def judged(plan: Plan) -> Any:
            return run(plan, kafka, Counter())

        brokers = {"op": "brokers", "alive": [1, 2, 3], "again": [], "stopping": []}
        elected: Operation = {"leader": 0, "by": 1, "replicas": None, "isr": [], "adding": [], "more": []}
        elect = {"op": "elect", **elected, "common": 1, "is_unclean": False}
        place = {"where": "end", "share": 0, "max": 1, "epoch": 0, "last": 0, "start": "leader", "broker": 0}
        fetch = {"op": "fetch", "replica": 1, **place, "in_session": False}
        settings = draw(1, 0).settings
        plan = Plan(settings, [brokers, elect, fetch])
        longer = Plan(settings, [brokers, {"op": "clock", "by": 1}, elect, {"op": "shrink"}, fetch])
        verdict = judged(longer)
        assert verdict is not None
        assert (verdict.number, *verdict.kind) == (4, "fetch", "maximal")
        assert shrink(longer, judged) == plan

    @pytest.mark.parametrize(
        "mistake",
        [
            *("epoch start", "caught up", "epoch end", "refusal", "bound of reads", "KIP-207"),
            *("bytes of a waiting fetch", "rack", "waiting deletion"),
        ],
    )
    def test_a_mistake_is_noticed(self, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
        """Within some seeds; the same seeds show no difference without it."""

        def plant(owner: Any, name: str, by: Any) -> None:
            monkeypatch.setattr(owner, name, by)

        match mistake:
            case "epoch start":
                plant(
                    membership,
                    "may_join",
                    lambda *args, **named: may_join(*args, **{**named, "epoch_start_offset": 0}),
                )
            case "caught up":
                fetched = RemoteReplica.fetched
                plant(
                    RemoteReplica,
                    "fetched",
                    lambda known, offset, *, now_ms, **named: replace(
                        fetched(known, offset, now_ms=now_ms, **named), caught_up_ms=now_ms
                    ),
                )
            case "epoch end":
                plant(
                    following,
                    "truncation_for",
                    lambda answer, **named: truncation_for(
                        answer, **{**named, "own_end_of": lambda _epoch: answer}
                    ),
                )
            case "refusal":
                plant(membership, "_NEVER_WRITTEN", frozenset())
            case "bound of reads":
                plant(reading, "reads_to_log_end", lambda _request: True)
            case "KIP-207":
                plant(Partition, "is_catching_up", property(lambda _partition: False))
            case "bytes of a waiting fetch":
                plant(Partition, "place_of_end", lambda *_, **__: (0, 0))
            case "waiting deletion":
                plant(WaitingRequests, "wake", lambda *_: None)
            case "rack":
                plant(reading, "_preferred_replica", lambda *_: None)
        assert any(run(draw(seed, OPERATIONS), kafka, Counter()) for seed in range(1, 41))

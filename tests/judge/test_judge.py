"""Some seeds beside Apache Kafka, plans that found a difference once, and mistakes that are noticed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.kafka.jars import Missing
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log import append, upkeep
from logstore.log.partition_log import PartitionLog
from logstore.log.retention import expired
from logstore.segment.epochs import EpochEndOffset
from logstore.segment.segment_indexes import SegmentIndexes
from tests.judge.directories import is_sound_index
from tests.judge.drawing import Plan, draw
from tests.judge.sides import Kafka
from tests.judge.trial import run, shrink

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
    @pytest.mark.parametrize("seed", range(1, 21))
    def test_a_seed(self, kafka: Kafka, seed: int) -> None:
        seen: Counter[str] = Counter()
        assert run(draw(seed, OPERATIONS), kafka, seen) is None
        assert seen

    @pytest.mark.parametrize("plan", KEPT, ids=range(len(KEPT)))
    def test_what_differed_once(self, kafka: Kafka, plan: Plan) -> None:
        assert run(plan, kafka, Counter()) is None

    def test_a_mistake_in_retention_is_noticed_and_shrunk(
        self, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A segment goes a millisecond too early."""
        monkeypatch.setattr(
            upkeep, "expired", lambda *args, now_ms, **named: expired(*args, now_ms=now_ms + 1, **named)
        )
        plan = Plan(
            {"segment.bytes": "1000", "retention.ms": "60000", "cleanup.policy": "delete"},
            [
                {"op": "append", "records": [["a", 5, 0]], "codec": 0, "producer": None},
                {"op": "high_watermark", "where": 1, "exact": True},
                {"op": "clock", "by": 60_000},
                {"op": "retain"},
            ],
        )
        longer = plan._replace(operations=[{"op": "flush"}, *plan.operations, {"op": "expire"}])
        verdict = run(longer, kafka, Counter())
        assert verdict is not None
        assert (verdict.number, *verdict.kind) == (4, "retain", "epochs", "segments", "start")
        assert shrink(longer, lambda each: run(each, kafka, Counter())) == plan

    @pytest.mark.parametrize("mistake", ["roll", "epochs", "stable offset", "last time entry"])
    def test_a_mistake_is_noticed(self, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
        """Within some seeds; the same seeds show no difference without it."""

        def replace(owner: Any, name: str, by: Any) -> None:
            monkeypatch.setattr(owner, name, by)

        match mistake:
            case "roll":
                reason = append.roll_reason
                replace(
                    append,
                    "roll_reason",
                    lambda active, incoming, *rest: reason(
                        active, incoming._replace(size=incoming.size + 9), *rest
                    ),
                )
            case "epochs":
                replace(
                    PartitionLog,
                    "end_offset_for_epoch",
                    lambda log, epoch: EpochEndOffset(epoch, log.log_end_offset),
                )
            case "stable offset":
                replace(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))
            case "last time entry":
                replace(SegmentIndexes, "finish", lambda indexes, *_: indexes.offsets.trim())
        assert any(run(draw(seed, OPERATIONS), kafka, Counter()) for seed in range(1, 21))


@pytest.mark.parametrize(
    ("name", "index", "is_sound"),
    [
        ("00000000000000000005.index", "00000001 00000000", True),
        ("00000000000000000005.index", "00000001 00000001", False),
        ("00000000000000000005.index", "00000000 00000000", False),
        ("00000000000000000005.index", "", True),
        ("00000000000000000005.timeindex", "0000000000000007 00000001", True),
        ("00000000000000000005.timeindex", "0000000000000006 00000001", False),
        ("00000000000000000005.timeindex", "", False),
    ],
)
def test_an_index_describes_batches(name: str, index: str, is_sound: bool) -> None:
    """Two records, offsets 5 and 6, are one batch with the largest time 7."""
    records = [Record(5, 7, None, b"a"), Record(6, 6, None, b"b")]
    content = {"00000000000000000005.log": encode_batch(records, base_offset=5), name: bytes.fromhex(index)}
    assert is_sound_index(name, content) == is_sound

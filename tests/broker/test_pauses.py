"""The longest pause of an event loop: since the start, in the last minute, and the turn that caused it."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from logstore.broker import runtime
from logstore.broker.health import Loading, health
from logstore.broker.metrics import Watched, page
from logstore.broker.pauses import Pauses, describe
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.effects import ClientRequest, Effect, Event
from logstore.replication.messages import CreateTopicsRequest, DeleteRecordsRequest
from tests.broker.nodes import Nodes
from tests.broker.test_observing import values


def test_the_longest_pause_is_kept_and_that_of_the_last_minute_ends() -> None:
    pauses = Pauses(bound_s=1.0)
    pauses.blocked(0.5, 10.0)
    pauses.blocked(0.2, 20.0)
    pauses.blocked(0.3, 40.0)
    assert pauses.report(40.0)[:2] == (0.5, 0.5)
    assert pauses.report(70.0)[:2] == (0.5, 0.3)
    assert pauses.report(100.0)[:2] == (0.5, 0.0)


def test_a_late_beat_counts_what_no_wake_up_has_counted() -> None:
    """The wake-up of 2 s made the beat late, which was due in it; then 0.3 s passed with something else."""
    pauses = Pauses(bound_s=1.0)
    pauses.blocked(2.0, 12.0)
    pauses.blocked(2.25, 12.3)
    report = pauses.report(13.0)
    assert report.longest_s == 2.0
    assert report.over_bound == 1
    assert pauses.report(72.1).last_minute_s == pytest.approx(0.3)


def test_a_pause_above_the_bound_is_a_state_for_a_minute_and_names_its_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pauses = Pauses(bound_s=1.0)
    event = ClientRequest(None, DeleteRecordsRequest({TopicPartition("t", n): 1 for n in range(300)}, 1000))
    pauses.turn(0.2, lambda: "a shorter one")
    pauses.turn(1.1, lambda: describe(event))
    with caplog.at_level(logging.WARNING):
        pauses.blocked(1.4, 100.0)
    (record,) = caplog.records
    assert record.getMessage() == (
        "the event loop was blocked for 1400 ms, more than event.loop.pause.warn.ms=1000; "
        "its longest turn took 1100 ms: ClientRequest DeleteRecordsRequest of 300 partitions"
    )
    loop = json.loads(health(Watched(pauses=pauses.report(101.0)), Loading([])).content)["event_loop"]
    assert loop == {
        "state": "slow",
        "longest_pause_ms": 1400,
        "longest_pause_last_minute_ms": 1400,
        "bound_ms": 1000,
        "longest_turn_ms": 1100,
        "longest_turn": "ClientRequest DeleteRecordsRequest of 300 partitions",
    }
    loop = json.loads(health(Watched(pauses=pauses.report(160.5)), Loading([])).content)["event_loop"]
    assert (loop["state"], loop["longest_pause_ms"]) == ("ok", 1400)
    seen = values(page(Watched(pauses=pauses.report(160.5))).content)
    assert seen["logstore_eventloop_pause_max_seconds"] == 1.4
    assert seen["logstore_eventloop_pause_max_last_minute_seconds"] == 0
    assert seen["logstore_eventloop_turn_max_seconds"] == 1.1
    assert seen["logstore_eventloop_pauses_over_bound_total"] == 1


def test_turns_of_a_node_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A creation that takes three seconds of a clock that only it advances."""
    now_s = 0.0
    monkeypatch.setattr(runtime, "steady_s", lambda: now_s)

    async def run() -> None:
        async with asyncio.timeout(60), Nodes(1) as nodes:
            broker = nodes.running[0]
            receive = broker.node.receive

            def slow(event: Event, now_ms: int) -> list[Effect]:
                nonlocal now_s
                if isinstance(event, ClientRequest) and isinstance(event.body, CreateTopicsRequest):
                    now_s += 3.0
                return receive(event, now_ms)

            monkeypatch.setattr(broker.node, "receive", slow)
            await nodes.create_topic("orders", (0,))
            await nodes.until(lambda: broker.pauses.report(now_s).longest_s > 0)
            report = broker.pauses.report(now_s)
            assert (report.longest_s, report.longest_turn_s, report.over_bound) == (3.0, 3.0, 1)
            assert report.longest_turn == "ClientRequest CreateTopicsRequest of 1 topics"

    asyncio.run(run())

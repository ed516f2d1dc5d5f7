"""A line of the state-change log says everything, to people, to our tools, and to Kafka's merger."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from logstore.replication.driver import InProcessCluster
from logstore.replication.messages import DeleteTopicsRequest, NewTopic
from logstore.replication.state_change import (
    Side,
    StateChange,
    format_line,
    format_time,
    parse_line,
    parse_time,
)

CHANGE = StateChange(
    time_ms=1_795_187_966_123,
    node_id=1,
    side=Side.CONTROLLER,
    controller_epoch=3,
    topic_partition=TopicPartition("orders", 0),
    change="writes a state",
    leader=2,
    leader_epoch=5,
    partition_epoch=9,
    isr=(2, 3),
    replicas=(1, 2, 3),
    reason='broker 1 is gone\n"for good"',
)


def test_a_line() -> None:
    assert format_line(CHANGE) == (
        "[2026-11-20 15:19:26,123] [orders,0] node=1 side=controller controller_epoch=3 "
        'change="writes a state" leader=2 leader_epoch=5 partition_epoch=9 isr=2,3 replicas=1,2,3 '
        'reason="broker 1 is gone\\n\\"for good\\""'
    )


def test_kafkas_merger_would_take_it() -> None:
    """It looks for a date in brackets at the start, and for `[topic,partition]`."""
    line = format_line(CHANGE)
    assert re.match(r"\[\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2},\d{3}\]", line)
    assert re.search(r"\[orders,( )*0\]", line)


_EPOCHS = st.integers(-2, 2**31 - 1)
_IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)


@settings(derandomize=True, max_examples=200)
@given(
    st.builds(
        StateChange,
        time_ms=st.integers(0, 253_402_300_799_999),
        node_id=st.integers(0, 2**31 - 1),
        side=st.sampled_from(Side),
        controller_epoch=_EPOCHS,
        topic_partition=st.builds(
            TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1)
        ),
        change=st.text(),
        leader=_EPOCHS,
        leader_epoch=_EPOCHS,
        partition_epoch=_EPOCHS,
        isr=_IDS,
        replicas=_IDS,
        reason=st.text(),
    )
)
def test_what_was_written_is_read(change: StateChange) -> None:
    line = format_line(change)
    assert len(line.splitlines()) == 1
    assert parse_line(line) == change


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[2013-09-06 10:00:00,123] TRACE Controller 1 epoch 3 changed partition [t,0] state",
        format_line(CHANGE)[:-1],
        format_line(CHANGE) + " ",
        format_line(CHANGE).replace("2026-11-20", "2026-02-31"),
        format_line(CHANGE).replace("isr=2,3", "isr=2,,3"),
        format_line(CHANGE).replace("node=1", "node=١"),
    ],
    ids=["empty", "kafka", "cut", "longer", "no such day", "lone comma", "other digits"],
)
def test_any_other_line_is_none_of_ours(line: str) -> None:
    assert parse_line(line) is None


@pytest.mark.parametrize("text", ["", "2026-11-20", "2026-11-20 15:19:26,12", "x,123", "2026-11-20,123"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="time"):
        parse_time(text)


def test_times_are_utc_and_exact() -> None:
    assert (format_time(0), parse_time("1970-01-01 00:00:00,000")) == ("1970-01-01 00:00:00,000", 0)
    assert parse_time(format_time(1_795_187_966_999)) == 1_795_187_966_999


def test_both_sides_write_down_a_life_of_a_partition() -> None:
    """Created, led, shrunk, failed over, grown, deleted: each decision is there, with its epochs."""
    heard: list[StateChange] = []
    cluster = InProcessCluster(
        [NodeConfig(node_id=number, replica_lag_time_max_ms=1000) for number in range(3)],
        disk_of=lambda _: MemoryDisk(),
        state_changes=heard.append,
    )
    cluster.start()
    cluster.run_until(lambda: any(node.controller.is_active for node in cluster.nodes.values()))
    cluster.advance(100)
    cluster.create_topic(NewTopic("t", assignment=((1, 2, 0),)))
    cluster.kill_node(1, expire_session=True)
    cluster.advance(1000)
    cluster.start_node(1)
    cluster.advance(5000)
    cluster.administer(DeleteTopicsRequest(("t",)))
    cluster.advance(5000)
    assert [change for change in heard if not change.reason] == []
    by_controller = [change.change for change in heard if change.side is Side.CONTROLLER]
    assert by_controller[:2] == ["writes the first state", "elects a leader"]
    assert "changes the ISR" in by_controller
    assert by_controller[-1] == "has deleted the topic"
    by_brokers = {(change.node_id, change.change) for change in heard if change.side is Side.BROKER}
    assert {
        (1, "becomes leader"),
        (2, "becomes follower"),
        (2, "becomes leader"),
        (2, "proposes an ISR"),
        (2, "adopts an ISR"),
        (1, "becomes follower"),
        (0, "deletes the replica"),
    } <= by_brokers
    led = {(change.leader_epoch, change.node_id) for change in heard if change.change == "becomes leader"}
    assert len({epoch for epoch, _ in led}) == len(led), "one leader an epoch"
    assert [change.time_ms for change in heard] == sorted(change.time_ms for change in heard)

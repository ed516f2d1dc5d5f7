"""Whole clusters in one process: real controller, real store, real logs, a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from logstore.config import LogConfig
from logstore.disk.copying import remove_tree
from logstore.disk.errors import ErrorCode
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.log import Log
from logstore.replication import Durability, Envelope, InProcessCluster, NodeConfig, PendingReply
from logstore.replication.driver import three_nodes
from logstore.replication.messages import (
    FetchRequest,
    FetchResponse,
    NewTopic,
    ProduceRequest,
    ProduceResponse,
)
from logstore.testing.stage import batch

TP = TopicPartition("t", 0)
BASE = NodeConfig(
    node_id=0,
    zookeeper_session_timeout_ms=6000,
    replica_lag_time_max_ms=6000,
    request_timeout_ms=5000,
    replica_fetch_backoff_ms=200,
)


def cluster(
    *,
    base: NodeConfig = BASE,
    min_insync: int = 2,
    disk_of: Callable[[int], Disk] = lambda node_id: MemoryDisk(),
) -> InProcessCluster:
    """Three nodes and a topic of one partition, led by node 0."""
    made = InProcessCluster(
        three_nodes(base=base),
        disk_of=disk_of,
        log_config=LogConfig(min_insync_replicas=min_insync),
    )
    made.start()
    made.create_topic(NewTopic("t", assignment=((0, 1, 2),)))
    return made


def error(reply: PendingReply) -> ErrorCode:
    assert isinstance(reply.body, ProduceResponse), reply
    return reply.body.partitions[TP].error


def write(made: InProcessCluster, value: bytes) -> None:
    """Write with acks=all, with retries until it is acknowledged."""
    for _ in range(100):
        reply = made.produce(TP, batch(value), timeout_ms=2000)
        made.run_until(lambda reply=reply: reply.is_done, 5000)  # type: ignore[misc]
        if reply.body is not None and error(reply) is ErrorCode.NONE:
            return
        made.advance(500)
    raise AssertionError(f"{value!r} was never acknowledged: {made.describe(TP)}")


def values(made: InProcessCluster, node_id: int) -> list[bytes | None]:
    return [record.value for record in Log(made.nodes[node_id].replicas.partitions[TP].log).read()]


def is_whole(made: InProcessCluster) -> bool:
    """Whether all replicas are in sync and all records committed."""
    leader = made.leader_of(TP)
    if leader is None or len(made.nodes) < 3:
        return False
    partitions = [node.replicas.partitions.get(TP) for node in made.nodes.values()]
    end = made.nodes[leader].replicas.partitions[TP].log.log_end_offset
    return len(made.nodes[leader].replicas.partitions[TP].isr.committed) == 3 and all(
        partition is not None and partition.log.high_watermark == partition.log.log_end_offset == end
        for partition in partitions
    )


def test_a_write_is_on_every_replica_when_it_is_acknowledged() -> None:
    made = cluster()
    write(made, b"one")
    assert [values(made, node_id) for node_id in range(3)] == [[b"one"]] * 3
    assert made.run_until(lambda: is_whole(made))
    reply = made.fetch(TP, 0)
    made.settle()
    assert isinstance(reply.body, FetchResponse)
    assert reply.body.partitions[TP].high_watermark == 1
    made.close()
    assert not made.nodes


def test_the_leader_dies_in_mid_stream_and_comes_back() -> None:
    """Five leaders lose power in turn, and no acknowledged record is lost."""
    made = cluster()
    rng = random.Random(1)
    written: list[bytes] = []
    for round_number in range(5):
        for number in range(10):
            value = b"%d-%d" % (round_number, number)
            write(made, value)
            written.append(value)
        leader = made.leader_of(TP)
        assert leader is not None
        made.produce(TP, batch(b"unacknowledged"), acks=1)
        made.step()
        made.kill_node(leader, power_cut=rng)
        write(made, b"after %d" % round_number)
        written.append(b"after %d" % round_number)
        made.start_node(leader)
        assert made.run_until(lambda: is_whole(made)), made.describe(TP)
    logs = [values(made, node_id) for node_id in range(3)]
    assert logs[0] == logs[1] == logs[2]
    assert [value for value in logs[0] if value in written] == written
    assert sum(node.replicas.counters.truncations_below_high_watermark for node in made.nodes.values()) == 0


def test_synced_durability_survives_a_power_cut_of_everybody() -> None:
    """D2: an acknowledged record is on the disk of every in-sync replica."""
    made = cluster(
        base=NodeConfig(node_id=0, durability=Durability.SYNCED, zookeeper_session_timeout_ms=6000)
    )
    for number in range(20):
        write(made, b"%d" % number)
    for node_id in range(3):
        made.kill_node(node_id, power_cut=random.Random(node_id))
    made.start()
    assert made.run_until(lambda: is_whole(made), 120_000), made.describe(TP)
    assert values(made, 0) == [b"%d" % number for number in range(20)]


def test_replicated_durability_keeps_a_lost_partition_offline() -> None:
    """R2: after a power cut of all machines no log is known to be complete: there is no leader."""
    made = cluster()
    write(made, b"promised")
    for node_id in range(3):
        made.kill_node(node_id, power_cut=random.Random(node_id))
    made.start()
    assert not made.run_until(lambda: made.leader_of(TP) is not None, 120_000)


def test_a_clean_stop_of_everybody_loses_nothing() -> None:
    made = cluster()
    for number in range(5):
        write(made, b"%d" % number)
    made.close()
    made.start()
    assert made.run_until(lambda: is_whole(made), 120_000), made.describe(TP)
    assert values(made, 2) == [b"%d" % number for number in range(5)]


def test_an_isolated_leader_hears_of_its_end_when_it_is_back() -> None:
    """S23 with real parts: the client gets NOT_LEADER_OR_FOLLOWER or a timeout, never success."""
    made = cluster()
    write(made, b"before")
    made.run_until(lambda: is_whole(made))
    made.isolate(0)
    lost = made.client(produce_request(b"lost"), 0)
    made.advance(1000)
    assert made.run_until(lambda: made.leader_of(TP) != 0, 60_000)
    write(made, b"after")
    made.heal()
    assert made.run_until(lambda: is_whole(made), 120_000), made.describe(TP)
    assert made.run_until(lambda: lost.is_done)
    assert error(lost) in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)
    assert [values(made, node_id) for node_id in range(3)] == [[b"before", b"after"]] * 3


def produce_request(value: bytes) -> ProduceRequest:
    return ProduceRequest({TP: batch(value)}, -1, 30_000)


def test_messages_can_be_held_and_released() -> None:
    """Nothing is committed while fetches are held."""
    made = cluster()
    made.run_until(lambda: is_whole(made))
    made.intercept = lambda envelope: isinstance(getattr(envelope.event, "body", None), FetchRequest)
    reply = made.produce(TP, batch(b"x"))
    made.advance(1000)
    assert not reply.is_done
    assert made.held
    made.intercept = lambda envelope: False
    made.release_all()
    assert made.run_until(lambda: reply.is_done, 10_000)
    assert error(reply) is ErrorCode.NONE


def test_a_dead_node_is_known_to_those_who_wait_for_it() -> None:
    made = cluster()
    reply = made.produce(TP, batch(b"x"))
    made.step()
    made.kill_node(0)
    assert reply.is_done
    assert reply.is_disconnected
    late = made.client(produce_request(b"y"), 0)
    made.settle()
    assert late.is_disconnected


def test_real_time_is_the_callers() -> None:
    """`poll` brings the cluster up to a time and returns when to call it again."""
    made = cluster()
    due_ms = made.poll(made.now_ms)
    assert due_ms is not None
    assert due_ms > made.now_ms
    reply = made.produce(TP, batch(b"x"))
    made.poll(made.now_ms + 1)
    assert reply.is_done
    with pytest.raises(AssertionError):
        made.poll(made.now_ms - 1)


def test_the_same_seed_gives_the_same_run() -> None:
    """Only the seed and the calls decide the run."""

    def run() -> list[str]:
        made = cluster()
        trace: list[str] = []

        def record(envelope: Envelope) -> bool:
            trace.append(f"{made.now_ms} {envelope}")
            return False

        made.intercept = record
        write(made, b"a")
        made.kill_node(0, power_cut=random.Random(3))
        write(made, b"b")
        return trace

    first = run()
    assert first == run()
    assert len(first) > 50


def test_whoever_asked_a_node_that_stops_hears_of_it() -> None:
    """A connection ends with its process, also after an orderly stop: no request waits for a timeout."""
    made = cluster()
    reply = made.produce(TP, batch(b"late"))
    made.stop_node(0)
    assert reply.is_done
    assert reply.is_disconnected
    assert made.run_until(lambda: made.leader_of(TP) is not None, 1000), "nobody sits out a request timeout"


def test_a_leader_whose_log_was_taken_away_does_not_lead_with_an_empty_one() -> None:
    """The others would truncate theirs to nothing, and nobody would say so."""
    made = cluster()
    for number in range(3):
        write(made, b"%d" % number)
    made.advance(1000)
    for node_id in range(3):
        made.stop_node(node_id)
    remove_tree(made.disk(0), "data/t-0")
    made.start()
    assert made.run_until(lambda: is_whole(made))
    assert [values(made, node_id) for node_id in range(3)] == [[b"0", b"1", b"2"]] * 3

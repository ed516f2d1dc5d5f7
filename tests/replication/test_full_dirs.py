"""A full log dir is a state: leaderships leave it where others are in sync, and it ends with free space."""

from __future__ import annotations

import errno

from logstore.disk.errors import ErrorCode
from logstore.disk.files import Room
from logstore.replication import InProcessCluster
from logstore.replication.full_dirs import ASK_AGAIN_MS, PROBE_MS, ROOM_BYTES, FullDirs, Relief
from logstore.replication.messages import ProduceResponse
from logstore.testing.disks.faulty import Fault, FaultyDisk
from logstore.testing.stage import batch
from tests.replication.test_driver import TP
from tests.replication.test_failing_disks import cluster, faulty_disks

NO_ROOM = Fault(operation="pwrite", errno=errno.ENOSPC, forever=True)


def send(made: InProcessCluster, value: bytes) -> ErrorCode:
    reply = made.produce(TP, batch(value))
    made.run_until(lambda: reply.is_done, 20_000)
    assert isinstance(reply.body, ProduceResponse)
    return reply.body.partitions[TP].error


def isr_of(made: InProcessCluster) -> frozenset[int]:
    return made.nodes[leadership(made)[0]].replicas.partitions[TP].isr.committed


def leadership(made: InProcessCluster) -> tuple[int, int]:
    """Return the leader and the leader epoch, which every election raises."""
    leader = made.leader_of(TP)
    assert leader is not None, "nobody leads"
    return leader, made.nodes[leader].replicas.partitions[TP].leader_epoch


def fill(made: InProcessCluster, disks: dict[int, FaultyDisk], node_id: int) -> None:
    disks[node_id].inject(NO_ROOM)
    assert send(made, b"refused") is ErrorCode.KAFKA_STORAGE_ERROR


def test_another_replica_in_sync_leads_until_there_is_room() -> None:
    disks = faulty_disks()
    made = cluster(disks.__getitem__)
    assert send(made, b"before") is ErrorCode.NONE
    fill(made, disks, 0)
    assert made.run_until(lambda: made.leader_of(TP) in (1, 2), 5_000)
    assert send(made, b"meanwhile") is ErrorCode.NONE
    assert isr_of(made) == {1, 2}
    full = made.nodes[0].replicas.full_dirs
    assert set(full.since_ms) == {"data"}
    made.advance(5_000)
    before = leadership(made)
    made.advance(120_000)
    assert leadership(made) == before, "it does not come and go"
    assert made.nodes[0].logs.failed_dirs == []
    disks[0].heal()
    assert made.run_until(lambda: isr_of(made) == {0, 1, 2}, 30_000), "by itself"
    assert made.run_until(lambda: not full.since_ms, 2 * PROBE_MS)
    before = leadership(made)
    made.advance(60_000)
    assert leadership(made) == before


def test_the_last_ones_in_sync_keep_their_leaderships() -> None:
    """With min.insync.replicas of 2, a leader with one follower in sync stays, and its clients retry."""
    disks = faulty_disks()
    made = cluster(disks.__getitem__)
    assert send(made, b"before") is ErrorCode.NONE
    made.kill_node(2)
    made.run_until(lambda: isr_of(made) == {0, 1}, 30_000)
    fill(made, disks, 0)
    before = leadership(made)
    made.advance(60_000)
    assert leadership(made) == before
    assert before[0] == 0
    made.start_node(2)
    assert made.run_until(lambda: made.leader_of(TP) == 1, 2 * ASK_AGAIN_MS), "as soon as others are in sync"


def test_a_follower_without_room_leaves_the_isr_and_returns() -> None:
    disks = faulty_disks()
    made = cluster(disks.__getitem__)
    assert send(made, b"before") is ErrorCode.NONE
    disks[2].inject(NO_ROOM)
    assert send(made, b"meanwhile") is ErrorCode.NONE, "once it has left the ISR"
    assert isr_of(made) == {0, 1}
    assert set(made.nodes[2].replicas.full_dirs.since_ms) == {"data"}
    disks[2].heal()
    assert made.run_until(lambda: isr_of(made) == {0, 1, 2}, 30_000)


def test_the_state_ends_with_room_for_more_than_a_batch() -> None:
    free = {"a": 0, "b": ROOM_BYTES}
    dirs = FullDirs(lambda path: Room(free[path], 2 * ROOM_BYTES))
    assert dirs.begin(0) == []
    assert dirs.deadline_ms is None
    dirs.found |= {"a", "b"}
    assert dirs.begin(10) == ["a", "b"]
    dirs.found.add("a")
    assert dirs.begin(20) == [], "it is known"
    assert dirs.probe(PROBE_MS + 9) == []
    assert dirs.probe(PROBE_MS + 10) == ["b"]
    assert dirs.since_ms == {"a": 10}
    free["a"] = ROOM_BYTES - 1
    assert dirs.probe(2 * PROBE_MS + 10) == []
    free["a"] = ROOM_BYTES
    assert dirs.probe(3 * PROBE_MS + 10) == ["a"]
    assert dirs.deadline_ms is None


def test_it_asks_once_in_a_while() -> None:
    relief, always = Relief(), lambda: True
    asked = [now_ms for now_ms in range(5, 3 * ASK_AGAIN_MS, 100) if relief.is_due(now_ms, always)]
    assert asked == [5, 5 + ASK_AGAIN_MS, 5 + 2 * ASK_AGAIN_MS]
    assert not relief.is_due(asked[-1] + 1, always)
    relief.ask_at_once()
    assert relief.is_due(asked[-1] + 1, always)


def test_it_looks_once_a_second_at_most() -> None:
    """A look at thousands of partitions, with each tick of a busy broker."""
    relief, looks = Relief(), 0

    def never() -> bool:
        nonlocal looks
        looks += 1
        return False

    assert not any(relief.is_due(now_ms, never) for now_ms in range(0, 3 * PROBE_MS, 100))
    assert looks == 3

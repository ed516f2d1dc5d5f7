"""Failure schedules of lost disks: a replica that comes back with less than it had.

The controller knows processes by the incarnation that registered; one that starts over an empty dir, or over
one that was not closed in order, cannot vouch for what its former life acknowledged.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import Durability, InProcessCluster
from logstore.replication.driver import three_nodes
from logstore.replication.messages import NO_LEADER, NewTopic, ProduceRequest
from logstore.testing.disks.faulty import Fault, FaultyDisk
from logstore.testing.stage import batch
from tests.replication.test_driver import BASE, TP, cluster, error, is_whole, values, write
from tests.replication.test_schedules_of_isrs import stored

SAID = [b"%d" % number for number in range(10)]


def with_a_new_disk(made: InProcessCluster, node_id: int) -> None:
    """The process dies, its disk is exchanged for an empty one, and it starts at once, within its session."""
    made.kill_node(node_id)
    made.replace_disk(node_id, MemoryDisk())
    made.start_node(node_id)


def led_by(made: InProcessCluster, node_id: int) -> bool:
    leader = made.leader_of(TP)
    return leader == node_id


@pytest.mark.parametrize("durability", list(Durability))
def test_s61_the_sole_member_returns_with_an_empty_disk(durability: Durability) -> None:
    """Elected, it would have its followers cut to nothing. It is marked as lost; they keep what they have.

    Also where all was synced: on the disk that is gone.
    """
    made = cluster(min_insync=1, base=replace(BASE, durability=durability))
    for value in SAID:
        write(made, value)
    for node_id in (1, 2):
        made.stop_node(node_id)
    made.advance(10_000)
    assert stored(made).isr == (0,)
    with_a_new_disk(made, 0)
    for node_id in (1, 2):
        made.start_node(node_id)
    made.advance(60_000)
    assert stored(made).leader == NO_LEADER
    assert stored(made).isr == (0,), "it alone may know what was acknowledged last"
    assert [record.value for record in made.nodes[1].logs.logs()[TP].read()] == SAID


def test_s62_a_follower_bounces_with_an_empty_disk() -> None:
    """Its session never ended, the ISR still names it: its new self leaves the ISR before it counts."""
    made = cluster(min_insync=1)
    for value in SAID:
        write(made, value)
    with_a_new_disk(made, 1)
    assert made.run_until(lambda: made.nodes[1].broker_epoch >= 0, 20_000)
    made.stop_node(2)
    made.kill_node(0)
    assert not made.run_until(lambda: led_by(made, 1), 30_000)
    made.start_node(0)
    made.start_node(2)
    assert made.run_until(lambda: is_whole(made), 60_000), made.describe(TP)
    assert values(made, 1)[:10] == SAID


def test_s63_a_leader_bounces_with_an_empty_disk() -> None:
    """Leadership is with another member before it has a role again, and it fetches everything."""
    made = cluster(min_insync=1)
    for value in SAID:
        write(made, value)
    epoch = stored(made).leader_epoch
    with_a_new_disk(made, 0)
    assert made.run_until(lambda: made.leader_of(TP) is not None, 15_000)
    assert made.leader_of(TP) in (1, 2)
    assert stored(made).leader_epoch > epoch
    assert made.run_until(lambda: is_whole(made), 60_000), made.describe(TP)
    assert values(made, 0) == SAID


@pytest.mark.parametrize("seed", range(5))
def test_s64_the_last_replica_standing_loses_its_tail(seed: int) -> None:
    """KIP-966: C left an ISR that became too small to commit; it leads, and nobody is cut to A's shorter log.

    B left while two were still enough to commit: it lacks a record, and is not waited for, nor elected.
    """
    made = InProcessCluster(three_nodes(base=BASE), disk_of=lambda _: MemoryDisk())
    made.start()
    configs = {"min.insync.replicas": "2", "retention.ms": "-1"}
    made.create_topic(NewTopic("t", assignment=((0, 1, 2),), configs=configs))
    for value in SAID:
        write(made, value)
    made.stop_node(1)
    made.advance(10_000)
    write(made, b"without B")
    made.stop_node(2)
    made.advance(10_000)
    assert (stored(made).isr, [each.replica for each in stored(made).eligible]) == ((0,), [2])
    assert produced(made, b"A alone", acks=1) is ErrorCode.NONE
    made.kill_node(0, power_cut=random.Random(seed))
    made.start_node(0)
    made.advance(20_000)
    assert stored(made).leader == NO_LEADER
    made.start_node(1)
    made.advance(20_000)
    assert stored(made).leader == NO_LEADER
    made.start_node(2)
    assert made.run_until(lambda: is_whole(made), 60_000), made.describe(TP)
    assert (stored(made).leader, stored(made).recovering, stored(made).eligible) == (2, False, ())
    for node_id in range(3):
        assert values(made, node_id) == [*SAID, b"without B"]


def test_s64_who_left_leads_at_once() -> None:
    """A, alone, is gone for good: B and C were stopped in order and are back, they serve without it."""
    made = cluster(min_insync=3)
    for value in SAID:
        write(made, value)
    for node_id in (1, 2):
        made.stop_node(node_id)
    made.advance(10_000)
    assert [each.replica for each in stored(made).eligible] == [1, 2]
    made.kill_node(0)
    for node_id in (1, 2):
        made.start_node(node_id)
    assert made.run_until(lambda: led_by(made, 1), 30_000), made.describe(TP)
    assert set(stored(made).isr) <= {1, 2}
    assert not stored(made).recovering
    assert values(made, 1) == SAID
    made.start_node(0)
    assert made.run_until(lambda: is_whole(made), 60_000), made.describe(TP)
    write(made, b"on they go")
    assert values(made, 0) == [*SAID, b"on they go"]


def test_s64_with_the_wall_off_a_leader_commits_alone_and_nobody_is_remembered() -> None:
    made = cluster(base=replace(BASE, min_insync_wall=False))
    write(made, SAID[0])
    partition = made.nodes[0].replicas.partitions[TP]
    assert partition.agreed_min_insync == 0
    assert partition.min_insync == 2, "the topic's setting stands, only the wall is off"
    for node_id in (1, 2):
        made.stop_node(node_id)
    made.advance(10_000)
    assert stored(made).eligible == ()
    assert produced(made, b"A alone", acks=1) is ErrorCode.NONE
    assert partition.log.high_watermark == 2


def test_s58_one_of_ten_logs_cannot_be_made() -> None:
    """The disk refuses it under one log dir: nine roles are taken in the other, one replica is offline."""
    disks = {node_id: FaultyDisk(MemoryDisk()) for node_id in range(3)}
    made = InProcessCluster(
        three_nodes(base=BASE), disk_of=disks.__getitem__, log_dirs_of=lambda node_id: ("one", "two")
    )
    made.start()
    made.settle()
    disks[1].inject(
        Fault(operation="open", path=lambda path: path.startswith("two/t-") and "log" in path, forever=True)
    )
    made.create_topic(NewTopic("t", assignment=tuple((0, 1, 2) for _ in range(10))))
    made.advance(20_000)
    roles = made.nodes[1].replicas
    assert len(roles.offline) == 1
    assert len(roles.partitions.keys() - roles.offline.keys()) == 9
    for number in range(10):
        partition = TopicPartition("t", number)
        expected = (0, 2) if partition in roles.offline else (0, 1, 2)
        assert made.nodes[0].replicas.partitions[partition].isr.committed == set(expected)


def produced(made: InProcessCluster, value: bytes, *, acks: int) -> ErrorCode:
    reply = made.client(ProduceRequest({TP: batch(value)}, acks, 1000), 0)
    assert made.run_until(lambda: reply.is_done)
    return error(reply)

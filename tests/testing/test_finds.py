"""What long runs found and short ones hardly ever meet again, each as a story of its own."""

from __future__ import annotations

import errno
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DiskFull
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.manager import LogManager
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.replication.effects import Respond
from logstore.replication.messages import FetchResponse
from logstore.replication.metastore.operations import Create
from logstore.testing import SimulatedCluster, disk_faults, observation
from logstore.testing.disks.faulty import Fault, FaultyDisk
from logstore.testing.histories import Committed
from logstore.testing.network import STORE, Network
from logstore.testing.rotting import Rotting
from logstore.testing.rotting_disk import Rot
from logstore.testing.stored import ReplicaView, Stored, Violation, parse_whole
from logstore.testing.swarm import draw
from logstore.testing.timeline import Timeline
from logstore.testing.world import World

TP = TopicPartition("t", 0)


def open_logs(disk: MemoryDisk) -> LogManager:
    return LogManager(["data"], disk=disk, clock=lambda: 0, random=Random(0))


def test_a_checkpointed_high_watermark_goes_down_with_the_log() -> None:
    """After an unclean election a log is cut below what was committed once. If the process dies before
    the next checkpoint, the records written since must not pass for committed (seed 5228)."""
    disk = MemoryDisk()
    logs = open_logs(disk)
    log = logs.get_or_create(TP)
    for number in range(5):
        batch = encode_batch([Record(0, 0, None, b"old")])
        append_as_leader(log.partition, batch, leader_epoch=0, now_ms=number)
    log.partition.set_high_watermark(5)
    logs.checkpoint_high_watermarks()
    log.truncate_to(2)
    for number in range(4):
        batch = encode_batch([Record(0, 0, None, b"new")])
        append_as_leader(log.partition, batch, leader_epoch=1, now_ms=number)
    logs.abandon()
    found = open_logs(disk).get(TP)
    assert found is not None
    assert found.log_end_offset == 6
    assert found.partition.high_watermark == 2


def test_a_deletion_that_a_full_disk_refuses_changes_nothing_and_works_later() -> None:
    """The refusal came after the log had gone: its replica counted as failed, for good, and what the
    checkpoints said of it stayed for a namesake (seed 573)."""
    inner = MemoryDisk()
    disk = FaultyDisk(inner)
    logs = LogManager(["data"], disk=disk, clock=lambda: 0, random=Random(0))
    log = logs.get_or_create(TP)
    append_as_leader(log.partition, encode_batch([Record(0, 0, None, b"old")]), leader_epoch=0, now_ms=0)
    log.flush()
    logs.checkpoint_recovery_points()
    log.partition.set_high_watermark(1)
    logs.checkpoint_high_watermarks()
    disk.inject(Fault(operation="pwrite", errno=errno.ENOSPC, forever=True))
    with pytest.raises(DiskFull, match="Free some space"):
        logs.delete(TP)
    assert logs.get(TP) is log
    assert not logs.offline_dirs
    disk.heal()
    logs.delete(TP)
    assert logs.get(TP) is None
    assert logs.checkpointed_high_watermark(TP) == 0


def test_a_log_that_has_no_room_to_begin_anew_stays_as_it_was() -> None:
    """The high watermark had gone down to 0 by then, below the log's start (seed 1265)."""
    disk = FaultyDisk(MemoryDisk())
    logs = LogManager(["data"], disk=disk, clock=lambda: 0, random=Random(0))
    log = logs.get_or_create(TP)
    truncate_fully_and_start_at(log.partition, 5)
    logs.checkpoint_recovery_points()
    bounds = (
        log.log_start_offset,
        log.partition.high_watermark,
        log.log_end_offset,
        log.partition.recovery_point,
    )
    assert bounds == (5, 5, 5, 5)
    disk.inject(Fault(operation="pwrite", errno=errno.ENOSPC, forever=True))
    with pytest.raises(DiskFull):
        truncate_fully_and_start_at(log.partition, 9)
    assert (
        log.log_start_offset,
        log.partition.high_watermark,
        log.log_end_offset,
        log.partition.recovery_point,
    ) == bounds
    disk.heal()
    truncate_fully_and_start_at(log.partition, 9)
    assert (log.log_start_offset, log.partition.high_watermark, log.log_end_offset) == (9, 9, 9)


def test_a_flush_of_a_new_log_on_a_full_disk() -> None:
    """A new log has its topic id written with its first sync: the simulation ended with `DiskFull` (seed
    3899). Nothing is synced, and the next flush does it; without a full disk the error is none to expect."""
    disk = FaultyDisk(MemoryDisk())
    logs = LogManager(["data"], disk=disk, clock=lambda: 0, random=Random(0))
    log = logs.get_or_begin(TP, topic_id="AAECAwQFBgcICQoLDA0ODw")
    append_as_leader(log.partition, encode_batch([Record(0, 0, None, b"new")]), leader_epoch=0, now_ms=0)
    host: Any = SimpleNamespace(node_id=1, node=SimpleNamespace(logs=logs), disk_is_dead=False)
    time: Any = SimpleNamespace(stamp=lambda _: None)
    disk.inject(Fault(operation="pwrite", errno=errno.ENOSPC, forever=True))
    host.disk_is_full = False
    with pytest.raises(DiskFull):
        disk_faults.flush(time, host, sealed_only=False)
    host.disk_is_full = True
    disk_faults.flush(time, host, sealed_only=False)
    assert log.partition.recovery_point == 0
    disk.heal()
    disk_faults.flush(time, host, sealed_only=False)
    assert log.partition.recovery_point == 1


def test_an_answer_finds_nobody_once_its_asker_has_died() -> None:
    """The next process of that node uses the same correlation ids, and took an answer to a late request of
    the former one for its own: it was fenced for good (seed 634396)."""
    heard: list[tuple[int, Any]] = []
    time, swarm = Timeline(1), draw(1)
    hosts: Any = {each: SimpleNamespace(node_id=each, life=2, outstanding={}) for each in (0, 1)}
    network = Network(time, swarm, hosts, lambda host, event: heard.append((host.node_id, event)))
    for life in (1, 2):
        network.respond(hosts[0], Respond(1, 11, FetchResponse({}), life))
        while time.step():
            pass
        assert [(node, event.correlation_id) for node, event in heard] == [(1, 11)] * (life == 2)


def test_the_bound_of_healing_knows_how_long_late_calls_are_under_way() -> None:
    """A call of a dead node keeps its session when it arrives, and messages sent later do not overtake it
    (seed 5015037)."""
    time = Timeline(1)
    arrived: list[int] = []
    network = Network(time, draw(1), {}, lambda host, event: None)
    network.unsettle(drop_rate=0.0, duplicate_rate=0.0, delay_ms=1, reordering=True)
    network.along(0, STORE, 2_300, lambda: arrived.append(time.now_ms))
    network.calm()
    network.along(0, STORE, 1, lambda: arrived.append(time.now_ms))
    late_ms = time.now_ms + 2_300
    assert network.last_arrival_ms == late_ms
    while time.step():
        pass
    assert arrived == [late_ms, late_ms]


def test_a_slow_sync_does_not_outlast_the_faults() -> None:
    """One takes up to two session timeouts, and leaders have to take their roles within little more than one
    of the last fault (seed 656014)."""
    cluster = SimulatedCluster(1, durability="synced")
    cluster.create_topic("t")
    cluster.slow_disk(0, 60_000)
    delivery = cluster.producer("t").send(b"slow")
    cluster.run_for(100)
    assert not delivery.is_acknowledged
    cluster.heal_and_check(limit_ms=1_000)
    cluster.run_until(lambda: delivery.is_acknowledged)


def test_an_empty_log_that_begins_anew_at_a_lower_offset_has_nothing_to_lose() -> None:
    """The observer kept the synced end of the earlier life, so the next power loss looked like lost records
    (seed 701580)."""
    world = World(draw(1))
    disk = MemoryDisk()
    log = open_logs(disk).get_or_create(TP).partition
    host: Any = SimpleNamespace(node_id=0, life=2, rots=[], rotten=set(), disk_is_dead=False, views={})
    truncate_fully_and_start_at(log, 5)
    world.observation._look(host, TP, log)
    view = host.views[TP]
    view.synced_before = 5
    truncate_fully_and_start_at(log, 1)
    world.observation._look(host, TP, log, may_be_cut=True)
    assert (view.log_end, view.synced_before) == (1, 1)


@pytest.mark.parametrize("epochs", [(0, 0), (0, 1), (1, 2)])
def test_only_what_another_replica_holds_may_rot(epochs: tuple[int, int]) -> None:
    """Both had synced as many records, of different leaders. An unclean election chose those that nobody else
    had, and nobody could mend them (seed 626717)."""
    world = World(draw(1))
    world.observation.expect(TP, (0, 1))
    checker: Any = world.checkers[TP]
    checker.state = SimpleNamespace(isr=(1,), broker_epoch_of=lambda _: 7)
    for epoch, host in zip(epochs, world.hosts.values(), strict=False):
        node: Any = host
        logs = open_logs(host.disk)
        log = logs.get_or_create(TP).partition
        for written in (0, epoch):
            batch = encode_batch([Record(0, 0, None, b"same size")])
            append_as_leader(log, batch, leader_epoch=written, now_ms=0)
        log.flush()
        replica = SimpleNamespace(log=log)
        node.node = SimpleNamespace(broker_epoch=7, replicas=SimpleNamespace(partitions={TP: replica}))
    rotting, own = Rotting(world), world.hosts[0]
    assert rotting._is_held(TP, 1, own), "the first record is the same in both"
    assert rotting._is_held(TP, 2, own) is (epochs[0] == epochs[1])


def test_what_rotted_waits_for_no_copy_that_an_election_has_taken() -> None:
    """Records that were never committed rotted on a stopped node. An election cut them from the others, and
    another one chose that node (seed 21855)."""
    world = World(draw(1))
    for host in list(world.hosts.values())[:2]:
        log = open_logs(host.disk).get_or_create(TP)
        for written in (0, 1):
            batch = encode_batch([Record(0, 0, None, b"same size")])
            append_as_leader(log.partition, batch, leader_epoch=written, now_ms=0)
    own, other = world.hosts[0], world.hosts[1]
    path = f"/data/{TP}/{0:020d}.log"
    data = bytes(own.disk.files()[path])
    rot = Rot(TP, path, 70, data[70:71], b"?", 0, 2, data, tuple(parse_whole(data)))
    rotting = Rotting(world)
    assert rotting._may_be_sent(own, rot)
    file = other.disk.open(path, write=True)
    file.truncate(len(data) // 2)
    assert not rotting._may_be_sent(own, rot)


def test_a_log_that_rotted_and_was_refused_counts_as_held_until_it_is_there_again() -> None:
    """Its leader may not have heard of that yet: a receipt that counts it promises nothing wrong. The next
    loss of power left nothing of a log that was not open (seed 2602)."""
    world = World(draw(1))
    host: Any = world.hosts[0]
    host.rotten.add(TP)
    refused: Any = SimpleNamespace(logs=dict, was_clean=False, damaged={TP: None})
    world.observation.restarted(host, refused)
    assert world.observation._is_on_disk(host, TP, 0, 0)
    world.observation._look(host, TP, open_logs(host.disk).get_or_create(TP).partition)
    assert not world.observation._is_on_disk(host, TP, 0, 0)


def test_a_receipt_names_no_deleted_copy_unless_its_topic_is_being_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A follower has deleted its copy, and the leader has not heard of it (seeds 980155, 980173)."""
    world = World(draw(1))
    seen = world.observation
    checker = seen.expect(TP, (0, 1))
    monkeypatch.setattr(observation, "receipt_of", lambda *given: SimpleNamespace(synced_on=2))
    log = SimpleNamespace(high_watermark=1, epoch_for_offset=lambda offset: 0)
    partition: Any = SimpleNamespace(leader_epoch=0, log=log)
    with pytest.raises(Violation, match="node 0 says that offset 0 is synced on 2 replicas; 0 disks hold"):
        seen._judge_receipt(world.hosts[0], TP, partition)
    seen.topic_written(Create("/admin/delete_topics/t"))
    assert checker.is_being_deleted
    seen._judge_receipt(world.hosts[0], TP, partition)
    del seen.checkers[TP]
    seen._judge_receipt(world.hosts[0], TP, partition)


def test_a_log_that_was_set_aside_is_gone_though_a_later_topics_has_its_place() -> None:
    """The new log waits for a flush, without a role. A loss of power then left an empty log where six records
    had been synced (seed 994205)."""
    world = World(draw(1))
    host, seen = world.hosts[0], world.observation
    logs = open_logs(host.disk)
    logs.get_or_create(TP, topic_id="AAAAAAAAAAAAAAAAAAAAAg")
    replicas = SimpleNamespace(partitions={}, offline={}, deleted={})
    node: Any = SimpleNamespace(logs=logs, replicas=replicas)
    for topic_id, is_kept in (("AAAAAAAAAAAAAAAAAAAAAg", True), ("AAAAAAAAAAAAAAAAAAAAAQ", False)):
        host.views[TP] = ReplicaView(0, topic_id=topic_id)
        seen._forget_gone(host, node)
        assert (TP in host.views) is is_kept


def test_what_lay_below_a_former_leaders_start_is_as_the_new_one_has_it() -> None:
    """Three elections from outside the ISR: the second leader began at 5, and nobody compared what was
    committed below. The third one has its history from the beginning (seed 1011350)."""

    def stored(base: int, epoch: int) -> Stored:
        return Stored(base, base + 1, epoch, encode_batch([Record(0, 0, None, b"%d in %d" % (base, epoch))]))

    committed = Committed("t-0")
    mine = [stored(base, 1) for base in range(8)]
    committed.append(stored(0, 3), ReplicaView(2, leader_epoch=3), 0)
    for batch in mine[5:]:
        committed.append(batch, ReplicaView(1, leader_epoch=6), 5)
    assert committed.cut(ReplicaView(0, leader_epoch=9, log_end=8, batches=mine)) == 8
    assert committed.batches == mine

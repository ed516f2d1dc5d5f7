"""Nodes whose disk fails, is full, or has changed bytes, in whole clusters.

One of several log dirs may fail; after the last one the process ends. A full disk is no failure. A damaged
log must not cost the partition while other replicas hold it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogDirOffline
from logstore.replication import Durability, InProcessCluster, orders
from logstore.replication.driver import three_nodes
from logstore.replication.effects import Peer, Respond
from logstore.replication.messages import (
    BEING_DELETED,
    NO_LEADER,
    DeleteTopicsRequest,
    LeaderAndIsrRequest,
    NewTopic,
    PartitionState,
    ProduceRequest,
    ProduceResponse,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
)
from logstore.replication.metastore.layout import parse_state, partition_state_path
from logstore.replication.metastore.operations import Get
from logstore.replication.node import Node
from logstore.testing.disks.faulty import Fault, FaultyDisk
from logstore.testing.stage import batch
from tests.replication.test_driver import BASE, TP, error, is_whole, values, write

OTHER = TopicPartition("other", 0)
NAMESAKE = "AQECAwQFBgcICQoLDA0ODw"
Operation = str


def cluster(
    disk_of: Callable[[int], Disk],
    *,
    dirs: tuple[str, ...] = ("data",),
    durability: Durability = Durability.REPLICATED,
    min_insync: int = 2,
) -> InProcessCluster:
    """Three nodes; two topics of one partition each, on all of them, led by node 0."""
    made = InProcessCluster(
        three_nodes(base=replace(BASE, durability=durability)),
        disk_of=disk_of,
        log_config=LogConfig(min_insync_replicas=min_insync),
        log_dirs_of=lambda node_id: dirs,
    )
    made.start()
    for topic in ("t", "other"):
        made.create_topic(NewTopic(topic, assignment=((0, 1, 2),)))
    return made


def faulty_disks() -> dict[int, FaultyDisk]:
    return {node_id: FaultyDisk(MemoryDisk()) for node_id in range(3)}


def failing(operation: Operation, directory: str = "data") -> Fault:
    """A disk that is broken for good under one directory, seen by this kind of call on logs."""
    return Fault(
        operation=operation,
        path=lambda path: path.startswith(directory) and path.endswith(".log"),
        forever=True,
    )


def home_of(made: InProcessCluster, topic_partition: TopicPartition, node_id: int = 0) -> str:
    return made.nodes[node_id].replicas.partitions[topic_partition].log.directory.partition("/")[0]


def sees_it(made: InProcessCluster, operation: Operation) -> None:
    """Make node 0 call its disk in this way."""
    if operation == "sync":
        with pytest.raises(LogDirOffline):
            made.nodes[0].replicas.partitions[TP].log.flush()
    else:
        made.produce(TP, batch(b"?"), acks=1)
        made.settle()


@pytest.mark.parametrize("operation", ["pwrite", "sync"])
def test_f2_a_leader_whose_log_dir_dies_hands_over_and_stays_up(operation: Operation) -> None:
    """It resigns, the controller learns of it from the store and elects; the other dir continues."""
    disks = faulty_disks()
    made = cluster(disks.__getitem__, dirs=("data", "more"))
    homes = home_of(made, TP), home_of(made, OTHER)
    assert homes[0] != homes[1]
    for number in range(5):
        write(made, b"%d" % number)
    epoch = made.nodes[0].broker_epoch
    disks[0].inject(failing(operation, homes[0]))
    sees_it(made, operation)
    write(made, b"5")
    leader = made.leader_of(TP)
    assert leader in (1, 2)
    assert made.run_until(lambda: made.nodes[leader].replicas.partitions[TP].isr.committed == {1, 2}, 3000), (
        "the failed replica leaves the ISR at once, not by its lag"
    )
    assert made.nodes[0].broker_epoch == epoch, "it never left the cluster"
    assert made.leader_of(OTHER) == 0
    reply = made.produce(OTHER, batch(b"x"))
    made.run_until(lambda: reply.is_done)
    assert isinstance(reply.body, ProduceResponse)
    assert reply.body.partitions[OTHER].error is ErrorCode.NONE
    assert values(made, 1)[:6] == values(made, 2)[:6] == [b"%d" % number for number in range(6)]
    made.kill_node(0)
    disks[0].heal()
    made.start_node(0)
    assert made.run_until(lambda: is_whole(made), 120_000), made.describe(TP)


@pytest.mark.parametrize("operation", ["pwrite", "sync"])
def test_f3_with_its_last_log_dir_the_node_ends(operation: Operation) -> None:
    """It closes its session first, so that an election need not wait for the timeout."""
    disks = faulty_disks()
    made = cluster(disks.__getitem__)
    write(made, b"0")
    disks[0].inject(failing(operation))
    sees_it(made, operation)
    before_ms = made.now_ms
    write(made, b"1")
    assert made.now_ms - before_ms < BASE.zookeeper_session_timeout_ms
    assert 0 not in made.nodes
    assert made.halted[0].startswith("every log dir has failed: data")
    disks[0].heal()
    made.start_node(0)
    assert not made.halted
    assert made.run_until(lambda: is_whole(made), 120_000), made.describe(TP)


def test_f3_two_dirs_one_after_the_other() -> None:
    disks = faulty_disks()
    made = cluster(disks.__getitem__, dirs=("data", "more"))
    disks[0].inject(failing("pwrite", "data"), failing("pwrite", "more"))
    write(made, b"0")
    assert 0 in made.nodes
    made.produce(OTHER, batch(b"x"))
    made.settle()
    assert 0 not in made.nodes


@pytest.mark.parametrize("durability", list(Durability))
def test_f2_what_was_in_a_dir_that_fails_at_the_start_is_not_begun_anew(durability: Durability) -> None:
    """An empty log in the other dir would pass for the lost one, and could lead."""
    disks = faulty_disks()
    made = cluster(disks.__getitem__, dirs=("data", "more"), durability=durability)
    homes = home_of(made, TP), home_of(made, OTHER)
    for number in range(5):
        write(made, b"%d" % number)
    for node_id in (1, 2):
        made.stop_node(node_id)
    made.advance(10_000)
    made.kill_node(0)
    disks[0].inject(Fault(path=lambda path: path.startswith(homes[0]), forever=True))
    made.start_node(0)
    for node_id in (1, 2):
        made.start_node(node_id)
    made.advance(20_000)
    assert made.leader_of(TP) != 0
    assert TP not in made.nodes[0].logs.logs()
    assert OTHER in made.nodes[0].logs.logs()
    assert TP in made.nodes[0].replicas.offline


def test_f2_a_deletion_waits_for_a_log_that_may_be_in_a_failed_dir() -> None:
    """It was confirmed, and the next topic of that name had its log in the other dir. With the failed dir
    repaired there were two, and nothing told which was newer."""
    disks = faulty_disks()
    made = cluster(disks.__getitem__, dirs=("data", "more"))
    home = home_of(made, TP)
    made.stop_node(0)
    made.administer(DeleteTopicsRequest(("t",)))
    disks[0].inject(Fault(path=lambda path: path.startswith(home), forever=True))
    made.start_node(0)
    made.advance(20_000)
    (controller,) = (each for each in made.nodes.values() if each.controller.is_active)
    context = controller.controller.context
    assert context is not None
    assert context.deletions["t"].blocking == {0: "KAFKA_STORAGE_ERROR"}
    made.stop_node(0)
    disks[0].heal()
    made.start_node(0)
    assert made.run_until(lambda: all("t" not in topics_of(each) for each in made.nodes.values()))
    made.create_topic(NewTopic("t", assignment=((0, 1, 2),)))
    write(made, b"new")
    made.stop_node(0)
    made.start_node(0)
    assert made.run_until(lambda: TP in made.nodes[0].replicas.partitions)
    assert not made.nodes[0].logs.damaged


def test_f2_a_deletion_in_a_dir_that_fails_is_none_of_another_dir() -> None:
    """One request deletes both. The replica in the sound dir went offline with the other, until a restart."""
    disks = faulty_disks()
    made = cluster(disks.__getitem__, dirs=("data", "more"))
    home = home_of(made, TP)
    assert home_of(made, OTHER) != home
    disks[0].inject(Fault(operation="rename", path=lambda path: path.startswith(home), forever=True))
    made.administer(DeleteTopicsRequest(("t", "other")))
    made.advance(20_000)
    assert made.nodes[0].replicas.offline.keys() == {TP}
    (topics,) = (topics_of(each) for each in made.nodes.values() if each.controller.is_active)
    assert topics == {"t"}


def topics_of(node: Node) -> set[str]:
    context = node.controller.context
    return set(context.topics) if context is not None else set()


def test_a_replica_refused_for_a_full_disk_returns_when_there_is_room() -> None:
    """Nothing was lost. The controller is asked for the role again, with growing pauses."""
    disks = faulty_disks()
    made = cluster(disks.__getitem__)
    full = Fault(operation="open", path=lambda path: "late-0" in path, forever=True, errno=errno.ENOSPC)
    disks[2].inject(full)
    made.create_topic(NewTopic("late", assignment=((0, 1, 2),)))
    late = TopicPartition("late", 0)

    def in_sync() -> set[int]:
        return set(made.nodes[0].replicas.partitions[late].isr.committed)

    made.advance(60_000)
    assert in_sync() == {0, 1}
    tries = len(disks[2].fired)
    assert 4 <= tries <= 40, "again and again, but not all the time"
    assert 2 in made.nodes
    disks[2].heal()
    assert made.run_until(lambda: in_sync() == {0, 1, 2}, 60_000)
    made.advance(60_000)
    assert len(disks[2].fired) == tries


def test_a_deletion_refused_for_a_full_disk_is_ordered_again_when_there_is_room() -> None:
    """No broker starts or stops: the broker itself must report that a retry may succeed."""
    disks = faulty_disks()
    made = cluster(disks.__getitem__)
    made.advance(10_000)  # the checkpoints name the partition, so its end has to be written
    full = Fault(operation="pwrite", path=lambda path: "checkpoint" in path, forever=True, errno=errno.ENOSPC)

    def is_there() -> bool:
        contexts = [node.controller.context for node in made.nodes.values()]
        return any(context is not None and "t" in context.topics for context in contexts)

    disks[2].inject(full)
    made.administer(DeleteTopicsRequest(("t",)))
    made.advance(60_000)
    assert TP in made.nodes[2].logs.logs()
    assert is_there()
    assert 4 <= len(disks[2].fired) <= 60, "again and again, but not all the time"
    disks[2].heal()
    assert made.run_until(lambda: not is_there(), 60_000)
    assert TP not in made.nodes[2].logs.logs()


def change_a_byte(made: InProcessCluster, node_id: int) -> None:
    """Of the second batch, which was synced."""
    directory = "data/t-0"
    disk = made.disk(node_id)
    name = next(entry.name for entry in disk.scan(directory) if entry.name.endswith(".log"))
    file = disk.open(f"{directory}/{name}", write=True)
    at = file.size() // 2
    (byte,) = file.pread(1, at)
    file.pwrite(bytes([byte ^ 0x40]), at)
    file.close()


def damaged(made: InProcessCluster, node_id: int) -> None:
    """Stop a node in order, damage its log, start it."""
    made.nodes[node_id].replicas.partitions[TP].log.flush()
    made.nodes[node_id].logs.checkpoint_recovery_points()
    made.kill_node(node_id)
    change_a_byte(made, node_id)
    made.start_node(node_id)


def stored_leader(made: InProcessCluster) -> int:
    session_id = made.store.open_session(60_000, made.now_ms)
    outcome, _ = made.store.call(session_id, Get(partition_state_path(TP)), made.now_ms)
    return parse_state(outcome.data).leader


def test_a2_a_damaged_follower_fetches_again_what_it_lost() -> None:
    """RF > 1: it leaves the ISR, keeps the bytes behind the damage in quarantine, follows, and is whole."""
    made = cluster(lambda node_id: MemoryDisk())
    for number in range(6):
        write(made, b"%d" % number)
    damaged(made, 2)
    assert list(made.nodes[2].logs.damaged) == [TP]
    assert made.run_until(lambda: is_whole(made), 120_000), made.describe(TP)
    assert values(made, 2) == [b"%d" % number for number in range(6)]
    assert not made.nodes[2].logs.damaged
    [loss] = made.nodes[2].replicas.partitions[TP].log.quarantine.losses()
    assert loss.first_offset < 6, "what was cut stands in the ledger"


def test_a2_the_last_member_is_damaged_and_another_holds_everything() -> None:
    """S64: too few were in sync to commit without the replica that left last: it leads."""
    made = cluster(lambda node_id: MemoryDisk())
    for number in range(6):
        write(made, b"%d" % number)
    for node_id in (1, 2):
        made.stop_node(node_id)
    made.advance(10_000)
    damaged(made, 0)
    for node_id in (1, 2):
        made.start_node(node_id)
    assert made.run_until(lambda: is_whole(made), 60_000), made.describe(TP)
    assert made.nodes[0].logs.logs()[TP].losses(), "it was cut, so another one led"
    assert values(made, 0) == [b"%d" % number for number in range(6)]


def test_a2_a_damaged_replica_is_deleted_with_its_topic() -> None:
    """Its records are not needed, and the deletion must not wait for a log that cannot be opened."""
    made = cluster(lambda node_id: MemoryDisk())
    for number in range(6):
        write(made, b"%d" % number)
    made.stop_node(2)
    made.administer(DeleteTopicsRequest(("t",)))
    made.advance(1_000)
    change_a_byte(made, 2)
    made.start_node(2)
    assert list(made.nodes[2].logs.damaged) == [TP]

    def is_there() -> bool:
        contexts = [node.controller.context for node in made.nodes.values()]
        return any(context is not None and "t" in context.topics for context in contexts)

    assert made.run_until(lambda: not is_there(), 60_000)
    assert not made.nodes[2].logs.damaged


def refounded(made: InProcessCluster, assigned: bool) -> None:
    """Tell node 2 that the name has another topic, or that it has no replica of it."""
    node = made.nodes[2]
    state = PartitionState(1, 0, 9, (0, 2), 9, (0, 1, 2), min_insync=1)
    body = LeaderAndIsrRequest(
        0,
        9,
        node.replicas.broker_epoch,
        {TP: state} if assigned else {},
        {"t": NAMESAKE},
        assigned={TP: NAMESAKE} if assigned else {},
    )
    orders.leader_and_isr(node.replicas, Peer(0, 1), body, made.now_ms)


@pytest.mark.parametrize("assigned", [True, False], ids=["a namesake's", "a stray"])
def test_a2_a_damaged_log_that_is_of_no_topic_any_more_is_set_aside(assigned: bool) -> None:
    """Its topic id is known, damaged or not; a replica of the new topic starts empty."""
    made = cluster(lambda node_id: MemoryDisk())
    for number in range(6):
        write(made, b"%d" % number)
    damaged(made, 2)
    node = made.nodes[2]
    orders.registered(node.replicas, 10**6, made.now_ms)
    refounded(made, assigned)
    assert not node.logs.damaged
    assert TP in node.replicas.strays
    log = node.logs.get(TP)
    assert (log is not None) == assigned
    assert log is None or (log.partition.topic_id, log.log_end_offset) == (NAMESAKE, 0)


def test_a2_a_late_order_does_not_delete_the_damaged_log_of_a_namesake() -> None:
    made = cluster(lambda node_id: MemoryDisk())
    for number in range(6):
        write(made, b"%d" % number)
    damaged(made, 2)
    order = StopReplicaRequest(0, 9, -1, {TP: StopReplicaPartition(BEING_DELETED, True)}, {"t": NAMESAKE})
    (answer,) = orders.stop_replica(made.nodes[2].replicas, Peer(0, 1), order, made.now_ms)
    assert isinstance(answer, Respond)
    assert isinstance(answer.body, StopReplicaResponse)
    assert answer.body.partitions[TP] is ErrorCode.INCONSISTENT_TOPIC_ID
    assert list(made.nodes[2].logs.damaged) == [TP]


def test_a2_a_damaged_log_that_others_count_on_is_not_cut() -> None:
    """It is outside the ISR but may be elected (S64): it stays unchanged until the store says otherwise."""
    made = cluster(lambda node_id: MemoryDisk())
    write(made, b"0")
    write(made, b"1")
    damaged(made, 2)
    node = made.nodes[2]
    state = PartitionState(1, 0, 9, (0,), 9, (0, 1, 2), min_insync=2, eligible=(1, 2))
    for said in (state, replace(state, eligible=(1,))):
        topic_ids = {"t": made.nodes[0].logs.logs()[TP].partition.topic_id or ""}
        orders.leader_and_isr(
            node.replicas, Peer(0, 1), LeaderAndIsrRequest(0, 9, -1, {TP: said}, topic_ids), made.now_ms
        )
        assert (TP in node.logs.damaged) == (2 in said.eligible)


def test_a2_a_damaged_log_never_leads_on_its_own_strength() -> None:
    """The last ISR member returns damaged: no leader and no changed byte until an operator decides."""
    made = cluster(lambda node_id: MemoryDisk(), min_insync=1)
    for number in range(6):
        write(made, b"%d" % number)
    for node_id in (1, 2):
        made.stop_node(node_id)
    made.advance(10_000)
    damaged(made, 0)
    before = made.disk(0).open("data/t-0/00000000000000000000.log").size()
    for node_id in (1, 2):
        made.start_node(node_id)
    made.advance(60_000)
    assert stored_leader(made) == NO_LEADER
    assert list(made.nodes[0].logs.damaged) == [TP]
    assert made.disk(0).open("data/t-0/00000000000000000000.log").size() == before
    reply = made.client(ProduceRequest({TP: batch(b"x")}, -1, 1000), 0)
    made.run_until(lambda: reply.is_done)
    assert error(reply) is ErrorCode.KAFKA_STORAGE_ERROR

"""Rows of what Kafka's tests pin down (6.1 to 6.6) that no other test shows; `kafka_rows.py` has all."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from logstore.checkpoint.entry_files import HIGH_WATERMARK_CHECKPOINT, read_offset_checkpoint
from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk, Profile
from logstore.disk.topic_partition import TopicPartition
from logstore.log.append import append_as_leader
from logstore.log.manager import LogManager
from logstore.replication import ControllerConfig, InProcessCluster, NodeConfig
from logstore.replication.driver import LOG_DIR, three_nodes
from logstore.replication.effects import Send
from logstore.replication.messages import (
    EpochQuery,
    FetchRequest,
    NewTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    ProduceResponse,
)
from logstore.segment.epochs import EpochEndOffset, LeaderEpochCache
from logstore.testing.stage import batch
from tests.replication.test_driver import BASE, TP, write
from tests.replication.test_replica_manager import F1, P0, Manager

Entries = list[tuple[int, int]]
THREE: Entries = [(2, 6), (3, 8), (4, 11)]

# --- 6.1: the epoch cache -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assigned", "left", "log_end_offset", "answers"),
    [
        ([(2, 10)], [(2, 10)], 11, {2: (2, 11)}),
        ([(2, 11), (2, 12)], [(2, 11)], 14, {2: (2, 14)}),
        ([(2, 11), (3, 12)], [(2, 11), (3, 12)], 13, {-1: (-1, -1)}),
        ([], [], 5, {0: (-1, -1), 7: (-1, -1)}),
        ([(2, 9), (3, 9)], [(3, 9)], 10, {}),
        ([(2, 6), (2, 10)], [(2, 6)], 11, {}),
        ([(5, 11), (6, 12), (7, 13)], [(5, 11), (6, 12), (7, 13)], 14, {4: (4, 11)}),
        ([(5, 11), (6, 12), (7, 13), (7, 12)], [(5, 11), (7, 12)], 14, {5: (5, 12), 6: (5, 12)}),
        ([(1, 11), (1, 12), (2, 13), (2, 14), (3, 15)], [(1, 11), (2, 13), (3, 15)], 17, {2: (2, 15)}),
        (
            [(0, 10), (2, 13), (4, 17)],
            [(0, 10), (2, 13), (4, 17)],
            20,
            {1: (0, 13), 2: (2, 17), 3: (2, 17)},
        ),
        ([(2, 100)], [(2, 100)], 101, {3: (-1, -1)}),
        ([(2, 6), (3, 5)], [(3, 5)], 7, {}),
        ([(1, 5), (2, 6), (1, 7)], [(1, 7)], 8, {1: (1, 8), 2: (-1, -1)}),
        ([(0, 0), (1, 0)], [(1, 0)], 0, {1: (1, 0), 0: (0, 0)}),
    ],
)
def test_6_1_assign_and_ask(
    assigned: Entries, left: Entries, log_end_offset: int, answers: dict[int, tuple[int, int]]
) -> None:
    """6.1: a list of assignments, what is left of it, and what it answers."""
    epochs = LeaderEpochCache()
    for epoch, offset in assigned:
        epochs.assign(epoch, offset)
    assert [(entry.epoch, entry.start_offset) for entry in epochs.entries] == left
    for epoch, answer in answers.items():
        assert epochs.end_offset_for(epoch, log_end_offset) == EpochEndOffset(*answer), epoch


@pytest.mark.parametrize(
    ("side", "offset", "left"),
    [
        ("end", 8, [(2, 6)]),
        ("end", 9, [(2, 6), (3, 8)]),
        ("end", -1, THREE),
        ("start", 8, [(3, 8), (4, 11)]),
        ("start", 9, [(3, 9), (4, 11)]),
        ("start", 1, THREE),
        ("start", 6, THREE),
        ("start", 11, [(4, 11)]),
        ("start", 15, [(4, 15)]),
        ("start", -1, THREE),
    ],
)
def test_6_1_cuts(side: str, offset: int, left: Entries) -> None:
    """6.1: cutting 2@6, 3@8, 4@11 at either side."""
    epochs = LeaderEpochCache(THREE)
    getattr(epochs, f"truncate_from_{side}")(offset)
    assert [(entry.epoch, entry.start_offset) for entry in epochs.entries] == left


def test_6_1_epoch_of_an_offset() -> None:
    """6.1: 0@10, 1@20, 5@30: epoch of 25, 20, 30, 50 and 5; 2@10, 4@15, 10@20 cut at 18: the last is 4."""
    epochs = LeaderEpochCache([(0, 10), (1, 20), (5, 30)])
    assert [epochs.epoch_for_offset(offset) for offset in (25, 20, 30, 50, 5)] == [1, 1, 5, 5, -1]
    epochs = LeaderEpochCache([(2, 10), (4, 15), (10, 20)])
    epochs.truncate_from_end(18)
    assert epochs.latest_epoch == 4


# --- 6.3: high watermarks on disk ---------------------------------------------------------------------


def test_6_3_the_checkpoint_of_high_watermarks() -> None:
    """6.3: HW checkpoint before any partition / two topics set to 10 and 15: reads 0 / 10 and 15."""
    disk = MemoryDisk()

    def opened() -> LogManager:
        return LogManager(["data"], disk=disk, clock=lambda: 0, random=random.Random(0))

    logs = opened()
    first, second = TopicPartition("one", 0), TopicPartition("two", 0)
    logs.checkpoint_high_watermarks()
    assert logs.checkpointed_high_watermark(first) == 0
    for topic_partition, offset in ((first, 10), (second, 15)):
        log = logs.get_or_create(topic_partition)
        for _ in range(20):
            append_as_leader(log.partition, batch(b"x"), leader_epoch=0, now_ms=0)
        log.partition.set_high_watermark(offset)
    logs.checkpoint_high_watermarks()
    logs.abandon()
    again = opened()
    assert [again.checkpointed_high_watermark(each) for each in (first, second)] == [10, 15]


def nodes(count: int = 2, *, base: NodeConfig = BASE, unclean: bool = False) -> InProcessCluster:
    """Node 0 is the controller for as long as nobody touches it; the topic is on nodes 1 to `count`."""
    made = InProcessCluster(three_nodes(base=base), disk_of=lambda node_id: Strict(), log_config=LogConfig())
    made.start()
    made.run_until(lambda: made.nodes[0].controller.is_active)
    made.create_topic(
        NewTopic(
            "t",
            assignment=(tuple(range(1, count + 1)),),
            configs={"unclean.leader.election.enable": "true"} if unclean else {},
        )
    )
    made.settle()
    return made


class Strict(MemoryDisk):
    """Without power it keeps what was synced, and not one byte more."""

    def power_cut(self, random: random.Random, profile: Profile = Profile.POSIX) -> MemoryDisk:
        return self.durable_image()


def epochs(made: InProcessCluster, node_id: int) -> Entries:
    log = made.nodes[node_id].logs.logs()[TP]
    return [(entry.epoch, entry.start_offset) for entry in log.partition.epochs]


def values(made: InProcessCluster, node_id: int) -> list[bytes | None]:
    return [record.value for record in made.nodes[node_id].logs.logs()[TP].read()]


def bounce(made: InProcessCluster, node_id: int) -> None:
    made.stop_node(node_id)
    made.advance(2000)
    made.start_node(node_id)
    assert made.run_until(lambda: in_sync(made, 2), 60_000), made.describe(TP)


def in_sync(made: InProcessCluster, count: int) -> bool:
    leader = made.leader_of(TP)
    return leader is not None and len(made.nodes[leader].replicas.partitions[TP].isr.committed) == count


def test_6_3_crash_and_restart() -> None:
    """6.3: LogRecovery: messages acknowledged, checkpointed, both brokers killed in turn: nothing is missing,
    and the checkpoint on disk is the number of them."""
    made = nodes()
    written: list[bytes] = []
    for turn in range(4):
        value = b"%d" % turn
        write(made, value)
        written.append(value)
        victim = 1 + turn % 2
        made.kill_node(victim)
        made.advance(8_000)
        made.start_node(victim)
        assert made.run_until(lambda: in_sync(made, 2), 60_000), made.describe(TP)
    made.advance(2 * BASE.replica_high_watermark_checkpoint_interval_ms)
    assert values(made, 1) == values(made, 2) == written
    for node_id in (1, 2):
        on_disk = read_offset_checkpoint(made.disk(node_id), LOG_DIR, HIGH_WATERMARK_CHECKPOINT)
        assert on_disk[TP] == len(written)


# --- 6.4: the replica manager ---------------------------------------------------------------------------


def test_6_4_a_clean_shutdown_checkpoints_every_high_watermark() -> None:
    """6.4: clean shutdown: HW of all partitions checkpointed."""
    made = nodes()
    write(made, b"x")
    made.advance(600)
    made.stop_node(2)
    assert read_offset_checkpoint(made.disk(2), LOG_DIR, HIGH_WATERMARK_CHECKPOINT)[TP] == 1


def test_6_4_who_is_about_to_stop_follows_nobody() -> None:
    """6.4: become follower during shutdown: no fetcher."""
    rig = Manager()
    rig.manager.is_departing = True
    rig.role(F1, 1)
    assert P0 not in rig.manager.followers.followed
    assert not [effect for effect in rig.effects if isinstance(effect, Send)]


def test_6_4_a_higher_epoch_of_the_same_leader_starts_the_fetcher_anew() -> None:
    """6.4: LeaderAndIsr higher LE same leader: fetcher restarted; an answer to the old fetch is dropped."""
    rig = Manager()
    rig.role(F1, 1)
    (before,) = (effect for effect in rig.effects if isinstance(effect, Send))
    rig.role(F1, 2)
    (after,) = (effect for effect in rig.effects if isinstance(effect, Send))
    assert isinstance(after.body, FetchRequest)
    assert after.correlation_id != before.correlation_id
    assert after.body.partitions[P0].current_leader_epoch == 2


# --- 6.6: epochs end to end -----------------------------------------------------------------------------


def ask(made: InProcessCluster, node_id: int, tp: TopicPartition, epoch: int) -> tuple[ErrorCode, int, int]:
    body = OffsetForLeaderEpochRequest(-1, {tp: EpochQuery(-1, epoch)})
    response = made.call(body, node_id)
    assert isinstance(response, OffsetForLeaderEpochResponse)
    answer = response.partitions[tp]
    return answer.error, answer.epoch, answer.end_offset


def test_6_6_epochs_of_a_sole_replica_that_bounces() -> None:
    """6.6: RF1 leader bounced twice with one write each: epochs 0, 2, 4, each outage takes one for leader -1;
    query 1 -> (0, 1); query 3 -> offset 2; query 5 -> undefined. OffsetsForLeaderEpoch elsewhere: errors."""
    made = nodes(1)
    for turn in range(3):
        write(made, b"%d" % turn)
        if turn < 2:
            made.stop_node(1)
            made.advance(2000)
            made.start_node(1)
            assert made.run_until(lambda: made.leader_of(TP) == 1)
    assert epochs(made, 1) == [(0, 0), (2, 1), (4, 2)]
    assert ask(made, 1, TP, 1) == (ErrorCode.NONE, 0, 1)
    assert ask(made, 1, TP, 3) == (ErrorCode.NONE, 2, 2)
    assert ask(made, 1, TP, 5) == (ErrorCode.NONE, -1, -1)
    assert ask(made, 0, TP, 1)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(made, 0, TopicPartition("nowhere", 0), 1)[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_6_6_an_epoch_is_with_a_follower_once_it_has_records() -> None:
    """6.6: follower bounced, leader keeps leading: LE 1; the leader's cache 0@0, 1@1 although nothing is
    written, the follower's 0@0 until a record arrives; then bounce leader: 2@2 on the leader only."""
    made = nodes()
    write(made, b"0")
    bounce(made, 2)
    assert made.leader_of(TP) == 1
    assert (epochs(made, 1), epochs(made, 2)) == ([(0, 0), (1, 1)], [(0, 0)])
    write(made, b"1")
    made.advance(1000)
    assert epochs(made, 2) == [(0, 0), (1, 1)]
    made.stop_node(1)
    assert made.run_until(lambda: made.leader_of(TP) == 2)
    made.start_node(1)
    assert made.run_until(lambda: in_sync(made, 2), 60_000)
    latest = epochs(made, 2)[-1]
    assert latest[1] == 2
    assert latest[0] >= 2
    assert epochs(made, 1) == [(0, 0), (1, 1)]
    write(made, b"2")
    made.advance(1000)
    assert epochs(made, 1) == epochs(made, 2)


def test_6_6_a_leader_that_lost_half_of_its_log() -> None:
    """6.6: both stopped, the leader's log loses its second half, it leads again and writes, the follower
    returns: logs equal. (Only where an operator lets it: `elect_unclean_restarted_last_member`.)"""
    trusting = ControllerConfig(elect_unclean_restarted_last_member=True)
    made = nodes(base=replace(BASE, controller=trusting))
    for number in range(5):
        write(made, b"%d" % number)
    made.nodes[1].replicas.partitions[TP].log.flush()
    for number in range(5, 10):
        write(made, b"%d" % number)
    made.kill_node(2)
    made.kill_node(1, power_cut=random.Random(0))
    made.advance(10_000)
    made.start_node(1)
    assert made.run_until(lambda: made.leader_of(TP) == 1, 30_000)
    for value in (b"x" * 5000, b"y" * 5000):
        write(made, value)
    made.start_node(2)
    assert made.run_until(lambda: in_sync(made, 2), 60_000)
    made.advance(1000)
    kept = [b"%d" % number for number in range(5)]
    assert values(made, 1) == values(made, 2) == [*kept, b"x" * 5000, b"y" * 5000]
    logs = [made.nodes[node_id].logs.logs()[TP] for node_id in (1, 2)]
    assert len({bytes(log.read_bytes(0, 1 << 20).records) for log in logs}) == 1, "byte for byte"
    assert epochs(made, 1) == epochs(made, 2)


def test_6_6_bounced_in_turn() -> None:
    """6.6: 5x (write, bounce follower, await ISR, bounce leader, await ISR): both LEO == records written."""
    made = nodes()
    for turn in range(5):
        write(made, b"%d" % turn)
        leader = made.leader_of(TP)
        assert leader is not None
        bounce(made, 3 - leader)
        leader = made.leader_of(TP)
        assert leader is not None
        bounce(made, leader)
    assert values(made, 1) == values(made, 2) == [b"%d" % turn for turn in range(5)]


def test_6_6_each_alone_in_turn() -> None:
    """6.6: acks=1, unclean on, each broker alone in turn writes different records: logs equal after each
    reunion."""
    made = nodes(unclean=True)
    for turn in range(4):
        alone = 1 + turn % 2
        for node_id in (1, 2):
            if node_id in made.nodes:
                made.stop_node(node_id)
        made.start_node(alone)
        assert made.run_until(lambda alone=alone: made.leader_of(TP) == alone, 60_000)  # type: ignore[misc]
        for number in range(turn + 1):
            body = made.call(ProduceRequest({TP: batch(b"%d-%d" % (turn, number))}, 1, 1000), alone)
            assert isinstance(body, ProduceResponse)
            assert body.partitions[TP].error is ErrorCode.NONE
        made.start_node(3 - alone)
        assert made.run_until(lambda: in_sync(made, 2), 60_000), made.describe(TP)
        made.advance(1000)
        assert values(made, 1) == values(made, 2)
        assert epochs(made, 1) == epochs(made, 2)

"""Replication throttles (KIP-73): replicas out of sync are slowed to the bound, those in sync never."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.errors import InvalidConfig
from logstore.replication import Envelope, InProcessCluster
from logstore.replication.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    NewTopic,
)
from logstore.replication.rates import SimpleRate, Windows
from logstore.replication.throttle import Throttle, covers, leader_throttle
from logstore.testing.stage import batch
from tests.replication.test_driver import BASE, TP, error, write

BOUND = 200_000
PIECE = 1 << 16
PIECES = 40


class Moving:
    """Three nodes; the partition is on 0 and 1 with 40 batches of 64 KiB, and will be on 2, too."""

    def __init__(self, leader: str = "", follower: str = "") -> None:
        config = LogConfig(
            min_insync_replicas=2,
            retention_ms=-1,
            leader_replication_throttled_replicas=leader,
            follower_replication_throttled_replicas=follower,
        )
        base = replace(BASE, replica_fetch_max_bytes=PIECE)
        self.cluster = InProcessCluster(
            [replace(base, node_id=node_id) for node_id in range(3)],
            disk_of=lambda node_id: MemoryDisk(),
            log_config=config,
        )
        self.cluster.start()
        self.cluster.create_topic(NewTopic("t", assignment=((0, 1),)))
        random = Random(1)
        for _ in range(PIECES):
            write(self.cluster, random.randbytes(PIECE - 200))

    def limit(self, leader: int | None = None, follower: int | None = None) -> None:
        for node in self.cluster.nodes.values():
            node.replicas.throttle.limit(leader)
            node.replicas.followers.throttle.limit(follower)

    def end(self, node_id: int) -> int:
        partition = self.cluster.nodes[node_id].replicas.partitions.get(TP)
        return partition.log.log_end_offset if partition is not None else 0

    def is_over(self) -> bool:
        isr = self.cluster.nodes[0].replicas.partitions[TP].isr
        return 2 in isr.committed

    def begin(self) -> None:
        answer = self.cluster.administer(AlterPartitionReassignmentsRequest({TP: (0, 1, 2)}))
        assert isinstance(answer, AlterPartitionReassignmentsResponse)
        assert not answer.partitions[TP].error

    def finish(self, limit_ms: int = 100_000) -> int:
        """Run to the end of the reassignment; return how long it took."""
        began_ms = self.cluster.now_ms
        assert self.cluster.run_until(self.is_over, limit_ms), self.cluster.describe(TP)
        return self.cluster.now_ms - began_ms


@pytest.mark.parametrize(
    ("leader", "follower", "limits"),
    [
        ("0:0,0:1", "", {"leader": BOUND}),
        ("*", "", {"leader": BOUND}),
        ("", "0:2", {"follower": BOUND}),
        ("*", "*", {"leader": BOUND, "follower": BOUND}),
    ],
)
def test_a_new_replica_is_held_to_the_bound_and_producers_are_not(
    leader: str, follower: str, limits: dict[str, int]
) -> None:
    made = Moving(leader, follower)
    made.limit(**limits)
    began_ms = made.cluster.now_ms
    made.begin()
    for number in range(5):
        made.cluster.advance(1_000)
        elapsed_s = (made.cluster.now_ms - began_ms) / 1000
        # Beyond the bound at most what one request was under way for, and the first second's worth.
        assert made.end(2) * PIECE <= BOUND * (elapsed_s + 1) + 2 * PIECE
        assert not made.is_over()
        reply = made.cluster.produce(TP, batch(b"%d" % number), timeout_ms=2_000)
        sent_ms = made.cluster.now_ms
        assert made.cluster.run_until(lambda reply=reply: reply.is_done, 5_000)  # type: ignore[misc]
        assert error(reply) is ErrorCode.NONE
        assert made.cluster.now_ms - sent_ms <= 100, "acks=all does not wait for the throttle"
    assert made.cluster.nodes[0].replicas.partitions[TP].isr.committed >= {0, 1}
    made.finish()
    took_s = (made.cluster.now_ms - began_ms) / 1000
    assert 0.8 * PIECES * PIECE / BOUND - 1 <= took_s <= 1.5 * PIECES * PIECE / BOUND


@pytest.mark.parametrize(
    ("leader", "follower", "limits"),
    [
        ("", "", {"leader": 1, "follower": 1}),
        ("0:1,1:0", "0:0,1:2", {"leader": 1, "follower": 1}),
        ("*", "*", {}),
    ],
)
def test_what_is_not_listed_or_has_no_rate_is_not_slowed(
    leader: str, follower: str, limits: dict[str, int]
) -> None:
    made = Moving(leader, follower)
    made.limit(**limits)
    made.begin()
    assert made.finish() < 1_000


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttle_of_zero_lets_one_fetch_through_in_eleven_seconds_and_its_end_all(side: str) -> None:
    """As in Kafka: the rate is above zero only while a sample has bytes."""
    made = Moving("*", "*")
    made.limit(**{side: 0})
    made.begin()
    made.cluster.advance(30_000)
    held = made.end(2)
    assert 2 <= held <= 4
    write(made.cluster, b"still acknowledged")
    made.limit()
    assert made.finish() < 3_000
    assert made.end(2) == made.end(0)


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_held_back_follower_is_neither_asked_nor_answered_in_a_busy_loop(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Moving("*", "*")
    made.limit(**{side: 0})
    made.begin()
    made.cluster.advance(5_000)
    messages: list[Envelope] = []
    deliver = made.cluster.deliver

    def counted(envelope: Envelope) -> None:
        messages.append(envelope)
        deliver(envelope)

    monkeypatch.setattr(made.cluster, "deliver", counted)
    made.cluster.advance(10_000)
    # Three followers' fetches, each held for half a second, and the sessions with the store.
    assert 10 < len(messages) < 200


def test_a_replica_in_sync_is_not_held_back_though_it_uses_the_rate_up() -> None:
    made = Moving("*", "*")
    made.limit(leader=1, follower=1)
    for number in range(20):
        sent_ms = made.cluster.now_ms
        write(made.cluster, b"%d" % number * 1_000)
        assert made.cluster.now_ms - sent_ms <= 100
    assert made.cluster.nodes[0].replicas.throttle.is_exceeded(made.cluster.now_ms)
    assert made.cluster.nodes[0].replicas.partitions[TP].isr.committed == {0, 1}


def test_a_replica_that_caught_up_without_a_throttle_is_not_held_back_by_the_next_one() -> None:
    made = Moving("*", "*")
    made.begin()
    made.finish()
    made.cluster.stop_node(2)
    for _ in range(PIECES):
        write(made.cluster, bytes(PIECE - 200))
    made.cluster.start_node(2)
    made.limit(follower=1)
    made.cluster.advance(3_000)
    assert made.end(2) < made.end(0)
    made.limit()
    made.finish()
    made.limit(follower=1)
    # As another partition's bytes would: the rate is exceeded before this one gets anything.
    made.cluster.nodes[2].replicas.followers.throttle.record(1_000_000, made.cluster.now_ms)
    made.cluster.advance(1_000)
    for number in range(5):
        sent_ms = made.cluster.now_ms
        write(made.cluster, b"%d" % number)
        assert made.cluster.now_ms - sent_ms <= 100


def test_lists() -> None:
    assert covers("*", 3, 4)
    assert covers("0:1,3:4", 3, 4)
    assert not covers("0:1,34:4,3:44", 3, 4)
    for text in ("", "*", "0:1", "0:1,12:3"):
        config = LogConfig.from_kafka({"leader.replication.throttled.replicas": text})
        assert config.leader_replication_throttled_replicas == text
    for text in ("all", "0", "0:", ":1", "0:1,", "*,0:1", "0:1, 1:2", "-1:2", "0:1;1:2", f"{'9' * 5_000}:1"):
        with pytest.raises(InvalidConfig, match=r"follower\.replication\.throttled\.replicas is .*expected"):
            LogConfig.from_kafka({"follower.replication.throttled.replicas": text})


def test_the_rate_is_kafkas_simple_rate() -> None:
    """Kafka's SimpleRate: the sum over the time since the oldest sample, at least one sample's length."""
    rate = SimpleRate(Windows(11, 1_000))
    rate.record(1_000, 0)
    assert rate.per_second(0) == rate.per_second(1_000) == 1_000
    assert rate.per_second(4_000) == 250
    rate.record(3_000, 8_000)
    assert rate.per_second(8_000) == 500
    assert rate.per_second(11_000) == 1_000, "the sample of 0 is over"


def test_a_throttle_that_begins_counts_from_then_on() -> None:
    throttle: Throttle = leader_throttle(Windows(), 0)
    throttle.limit(1_000)
    throttle.record(5_000, 0)
    assert throttle.is_exceeded(1_000)
    throttle.limit(10_000)
    assert not throttle.is_exceeded(1_000)
    throttle.limit(None)
    assert not throttle.is_exceeded(1_000)
    throttle.limit(1)
    assert not throttle.is_exceeded(1_000)

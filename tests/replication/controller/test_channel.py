"""Requests to a broker: in order, one at a time, never an old state after a newer one."""

from __future__ import annotations

from itertools import count

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.channel import Channel, Entry
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.effects import Send
from logstore.replication.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    RequestBody,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)

CONFIG = ControllerConfig(request_timeout_ms=1_000, retry_backoff_ms=100)
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def state(leader_epoch: int) -> PartitionState:
    return PartitionState(1, 1, leader_epoch, (1,), leader_epoch, (1,))


class Line:
    """A channel with its ids and its build function."""

    def __init__(self) -> None:
        self.channel = Channel(7, 70, CONFIG)
        self._ids = count(1)

    def owe(self, kind: type[LeaderAndIsrRequest | UpdateMetadataRequest], **epochs: int) -> None:
        self.channel.enqueue(
            kind, {TopicPartition(topic, 0): state(epoch) for topic, epoch in epochs.items()}
        )

    def pump(self, now_ms: int) -> Send | None:
        return self.channel.pump(now_ms, lambda: next(self._ids), self._build)

    def sent(self, now_ms: int) -> tuple[int, str, dict[str, int]]:
        """(correlation id, kind, topic → leader epoch) of the next request."""
        send = self.pump(now_ms)
        assert send is not None
        assert send.target == 7
        body = send.body
        assert isinstance(body, LeaderAndIsrRequest | UpdateMetadataRequest)
        epochs = {each.topic: value.leader_epoch for each, value in body.partitions.items()}
        return send.correlation_id, type(body).__name__[:6], epochs

    @staticmethod
    def _build(broker_id: int, broker_epoch: int, entry: Entry) -> RequestBody:
        assert (broker_id, broker_epoch) == (7, 70)
        states = {
            each: value for each, value in entry.partitions.items() if isinstance(value, PartitionState)
        }
        if entry.kind is StopReplicaRequest:
            return StopReplicaRequest(1, 1, broker_epoch, {})
        if entry.kind is LeaderAndIsrRequest:
            return LeaderAndIsrRequest(1, 1, broker_epoch, states)
        return UpdateMetadataRequest(1, 1, broker_epoch, states, ())

    def answer(self, correlation_id: int, now_ms: int, error: ErrorCode = ErrorCode.NONE) -> bool:
        """Answer the request in flight with its kind of response; return whether that ended it."""
        for body in (LeaderAndIsrResponse(error), UpdateMetadataResponse(error)):
            kind = type(body).__name__[:6]
            if kind == self.in_flight:
                return self.channel.answered(correlation_id, body, now_ms) is not None
        raise AssertionError

    @property
    def in_flight(self) -> str:
        flight = self.channel._in_flight
        return flight.entry.kind.__name__[:6] if flight else ""


def test_one_in_flight_in_order() -> None:
    line = Line()
    line.owe(UpdateMetadataRequest)
    line.owe(LeaderAndIsrRequest, a=1)
    line.owe(UpdateMetadataRequest, a=1)
    assert line.sent(0) == (1, "Update", {})
    assert line.pump(0) is None
    assert line.answer(1, 0)
    assert line.sent(0) == (2, "Leader", {"a": 1})
    assert line.answer(2, 0)
    assert line.sent(0) == (3, "Update", {"a": 1})
    assert line.answer(3, 0)
    assert line.pump(0) is None
    assert line.channel.deadline_ms is None


def test_a_newer_state_replaces_the_older_one_that_waits() -> None:
    line = Line()
    line.owe(UpdateMetadataRequest)
    assert line.sent(0)[0] == 1
    line.owe(LeaderAndIsrRequest, a=1, b=1)
    line.owe(UpdateMetadataRequest, a=1)
    line.owe(LeaderAndIsrRequest, a=2)
    assert line.answer(1, 0)
    assert line.sent(0) == (2, "Leader", {"b": 1})
    assert line.answer(2, 0)
    assert line.sent(0) == (3, "Update", {"a": 1})
    assert line.answer(3, 0)
    assert line.sent(0) == (4, "Leader", {"a": 2})


def test_a_lost_request_is_sent_again_without_what_was_superseded() -> None:
    """The reply is lost and the partition changes: its old state must not be sent after the new one."""
    line = Line()
    line.owe(LeaderAndIsrRequest, a=1, b=1)
    assert line.sent(0) == (1, "Leader", {"a": 1, "b": 1})
    line.owe(LeaderAndIsrRequest, a=2)
    line.channel.disconnected(1, 10)
    assert line.pump(50) is None, "not before the back-off"
    assert line.channel.deadline_ms == 110
    assert line.sent(110) == (2, "Leader", {"b": 1})
    assert line.channel.answered(1, LeaderAndIsrResponse(ErrorCode.NONE), 110) is None, "a late answer"
    assert line.answer(2, 110)
    assert line.sent(110) == (3, "Leader", {"a": 2})


def test_of_a_topic_that_is_gone_nothing_more_is_said() -> None:
    """A withdrawn topic is not sent again, even from the request in flight: its namesake has another id."""
    line = Line()
    line.owe(LeaderAndIsrRequest, a=1, b=1)
    assert line.sent(0) == (1, "Leader", {"a": 1, "b": 1})
    line.owe(UpdateMetadataRequest, a=1)
    line.channel.enqueue(StopReplicaRequest, {A: StopReplicaPartition(1, delete=True)})
    line.channel.withdraw("a")
    line.owe(LeaderAndIsrRequest, a=0)
    line.channel.disconnected(1, 10)
    assert line.sent(110) == (2, "Leader", {"b": 1})
    assert line.answer(2, 110)
    assert line.sent(110) == (3, "Update", {}), "who lives"
    assert line.answer(3, 110)
    assert line.sent(110) == (4, "Leader", {"a": 0})
    assert line.answer(4, 110)
    assert line.pump(110) is None


def test_silence_is_a_loss() -> None:
    line = Line()
    line.owe(LeaderAndIsrRequest, a=1)
    assert line.sent(0)[0] == 1
    assert line.channel.deadline_ms == 1_000
    assert line.pump(999) is None
    assert line.pump(1_000) is None
    assert line.sent(1_100) == (2, "Leader", {"a": 1})


def test_errors_of_the_broker_are_tried_again_but_not_a_later_controller() -> None:
    line = Line()
    line.owe(LeaderAndIsrRequest, a=1)
    line.sent(0)
    assert not line.answer(1, 0, ErrorCode.STALE_BROKER_EPOCH)
    line.sent(100)
    assert line.channel.answered(2, UpdateMetadataResponse(ErrorCode.NONE), 100) is None, (
        "not an answer to this"
    )
    line.sent(200)
    answer = line.channel.answered(3, LeaderAndIsrResponse(ErrorCode.STALE_CONTROLLER_EPOCH), 200)
    assert answer is not None
    assert answer.body.error is ErrorCode.STALE_CONTROLLER_EPOCH
    assert line.pump(10_000) is None


def test_a_dead_broker_is_owed_no_more_than_the_last_word_on_each_partition() -> None:
    """A broker that does not answer for hours must not cost memory for every change."""
    line = Line()
    line.owe(UpdateMetadataRequest)
    line.sent(0)
    for epoch in range(100):
        line.owe(LeaderAndIsrRequest, a=epoch)
        line.owe(UpdateMetadataRequest)
        line.owe(UpdateMetadataRequest, a=epoch)
        line.channel.enqueue(StopReplicaRequest, {B: StopReplicaPartition(epoch, delete=False)})
    assert len(line.channel._queue) <= 4
    assert sum(len(entry.partitions) for entry in line.channel._queue) == 3

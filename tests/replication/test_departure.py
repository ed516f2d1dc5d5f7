"""A controlled shutdown: the number of attempts, their targets, and the end."""

from __future__ import annotations

from itertools import count

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidConfig
from logstore.replication.config import NodeConfig
from logstore.replication.departure import Departure
from logstore.replication.effects import Send
from logstore.replication.messages import ControlledShutdownRequest, ControlledShutdownResponse

TP = TopicPartition("t", 0)
DONE = ControlledShutdownResponse(ErrorCode.NONE)
REMAINS = ControlledShutdownResponse(ErrorCode.NONE, (TP,))
CONFIG = NodeConfig(node_id=2, request_timeout_ms=1_000, controlled_shutdown_retry_backoff_ms=100)


class Leaving:
    def __init__(self, config: NodeConfig = CONFIG) -> None:
        self.now_ms = 0
        self.ids = count(1)
        self.departure = Departure(config, self.now_ms)

    def ask(
        self, *, controller: int = 9, broker_epoch: int = 5, after_ms: int = 0, others_stay: bool = True
    ) -> Send | None:
        self.now_ms += after_ms
        return self.departure.next_request(
            lambda: next(self.ids), controller, broker_epoch, self.now_ms, others_stay=others_stay
        )

    def answer(self, body: ControlledShutdownResponse) -> None:
        self.departure.on_response(body, self.now_ms)


def test_it_is_let_go_at_once() -> None:
    leaving = Leaving()
    assert not leaving.departure.is_over
    assert leaving.ask() == Send(9, 1, ControlledShutdownRequest(2, 5))
    assert leaving.departure.owns(1)
    assert leaving.ask() is None, "one request at a time"
    leaving.answer(DONE)
    assert leaving.departure.is_over
    assert leaving.departure.has_left
    assert leaving.departure.deadline_ms is None


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH])
def test_three_attempts_with_a_pause_between_and_none_after(error: ErrorCode) -> None:
    leaving = Leaving()
    for attempt in range(3):
        if attempt:
            assert leaving.ask(after_ms=99) is None
            assert leaving.departure.deadline_ms == leaving.now_ms + 1
        assert leaving.ask(after_ms=1) is not None
        assert not leaving.departure.is_over
        leaving.answer(ControlledShutdownResponse(error, (TP,)))
    assert leaving.departure.is_over
    assert not leaving.departure.has_left
    assert leaving.departure.remaining == (TP,)
    assert leaving.ask(after_ms=1_000) is None
    assert leaving.departure.deadline_ms is None


def test_another_controller_is_asked_next() -> None:
    leaving = Leaving()
    assert leaving.ask(controller=9) is not None
    leaving.departure.on_disconnected(leaving.now_ms)
    again = leaving.ask(controller=4, after_ms=100)
    assert again is not None
    assert again.target == 4


def test_the_successor_of_a_controller_that_left_is_asked_without_a_pause() -> None:
    """All brokers are told to stop, and the controller is the first to go."""
    leaving = Leaving()
    assert leaving.ask(controller=9) is not None
    leaving.departure.on_disconnected(leaving.now_ms)
    assert leaving.ask(controller=9) is None, "a connection that broke may be no more than that"
    again = leaving.ask(controller=4)
    assert again is not None
    assert again.target == 4
    leaving.answer(REMAINS)
    assert leaving.ask(controller=5) is None, "it has answered: another would say the same"


def test_nobody_is_asked_twice_when_no_other_broker_stays() -> None:
    """Two pauses of 5 s kept the last of a cluster that stopped, for leaderships that nobody could take."""
    leaving = Leaving()
    assert leaving.ask(others_stay=False) is not None, "a controller that knows gives it no new ones"
    assert not leaving.departure.is_over
    leaving.answer(REMAINS)
    assert leaving.ask(others_stay=False) is None
    assert leaving.departure.is_over
    assert not leaving.departure.has_left
    assert leaving.departure.remaining == (TP,)


def test_a_controller_that_does_not_answer_is_given_up() -> None:
    leaving = Leaving()
    assert leaving.ask() is not None
    assert leaving.departure.deadline_ms == 1_000
    assert leaving.ask(after_ms=1_000) is None, "the pause comes first"
    assert leaving.ask(after_ms=100) is not None
    assert not leaving.departure.owns(1)
    assert leaving.departure.owns(2)


@pytest.mark.parametrize(("controller", "broker_epoch"), [(-1, 5), (9, -1)])
def test_attempts_with_nobody_to_ask_end_too(controller: int, broker_epoch: int) -> None:
    """Brokers must be able to stop in a cluster without a controller."""
    leaving = Leaving()
    for _ in range(3):
        assert not leaving.departure.is_over
        assert leaving.ask(controller=controller, broker_epoch=broker_epoch) is None
        leaving.now_ms += 100
    assert leaving.departure.is_over


def test_it_may_be_switched_off() -> None:
    leaving = Leaving(NodeConfig(node_id=2, controlled_shutdown_enable=False))
    assert leaving.departure.is_over
    assert leaving.ask() is None


def test_settings_are_checked_under_kafkas_names() -> None:
    with pytest.raises(InvalidConfig) as refused:
        NodeConfig(node_id=0, controlled_shutdown_max_retries=0)
    assert "controlled.shutdown.max.retries" in str(refused.value)
    with pytest.raises(InvalidConfig) as refused:
        NodeConfig(node_id=0, controlled_shutdown_retry_backoff_ms=0)
    assert "controlled.shutdown.retry.backoff.ms" in str(refused.value)

"""Topics that somebody needs: asked for once at a time, and what was wrong is told to who asks again."""

from __future__ import annotations

from collections.abc import Callable

from logstore.broker.topic_creation import MOST_QUEUED, TopicCreation
from logstore.disk.errors import ErrorCode
from logstore.replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResult,
    NewTopic,
    RequestBody,
    ResponseBody,
)

WANTED = NewTopic("t", -1, -1)


class Controller:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[CreateTopicsRequest, Callable[[ResponseBody | None], None]]] = []

    def ask(self, body: RequestBody, answered: Callable[[ResponseBody | None], None]) -> None:
        assert isinstance(body, CreateTopicsRequest)
        self.asked.append((body, answered))

    def answer(self, error: ErrorCode | None) -> None:
        body, answered = self.asked.pop()
        if error is None:
            answered(None)
        else:
            answered(CreateTopicsResponse({topic.name: CreateTopicsResult(error) for topic in body.topics}))


def test_a_topic_is_asked_for_once_at_a_time() -> None:
    controller = Controller()
    creation = TopicCreation(controller.ask)
    assert [creation.want(WANTED), creation.want(WANTED)] == [ErrorCode.LEADER_NOT_AVAILABLE] * 2
    assert len(controller.asked) == 1
    controller.answer(None)
    creation.want(WANTED)
    assert len(controller.asked) == 1


def test_a_refusal_is_told_until_the_topic_can_be_made() -> None:
    controller = Controller()
    creation = TopicCreation(controller.ask)
    creation.want(WANTED)
    controller.answer(ErrorCode.INVALID_REPLICATION_FACTOR)
    assert creation.want(WANTED) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert creation.want(WANTED) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert creation.want(NewTopic("other", -1, -1)) == ErrorCode.LEADER_NOT_AVAILABLE
    controller.answer(ErrorCode.NONE)
    controller.answer(ErrorCode.NONE)
    assert creation.want(WANTED) == ErrorCode.LEADER_NOT_AVAILABLE


def test_a_controller_that_has_moved_is_no_refusal() -> None:
    controller = Controller()
    creation = TopicCreation(controller.ask)
    creation.want(WANTED)
    controller.answer(ErrorCode.NOT_CONTROLLER)
    assert creation.want(WANTED) == ErrorCode.LEADER_NOT_AVAILABLE


def names(controller: Controller) -> list[list[str]]:
    return [[topic.name for topic in body.topics] for body, _ in controller.asked]


def test_the_controller_gets_one_at_a_time_and_the_brokers_own_topic_at_once() -> None:
    """Its other work, and that of a broker which creates the logs, goes on in between. An answer may be lost,
    and groups must not wait for it."""
    controller = Controller()
    creation = TopicCreation(controller.ask)
    for number in range(3):
        creation.want(NewTopic(f"t{number}", -1, -1))
    creation.want(NewTopic("own", -1, -1), is_urgent=True)
    creation.want(NewTopic("own", -1, -1), is_urgent=True)
    assert names(controller) == [["t0"], ["own"]]
    controller.answer(None)
    assert names(controller) == [["t0"]]
    controller.answer(ErrorCode.NONE)
    assert names(controller) == [["t1"]]
    controller.answer(ErrorCode.NONE)
    assert names(controller) == [["t2"]]
    controller.answer(ErrorCode.NONE)
    assert creation.queued == 0


def test_the_queue_is_bounded_and_who_finds_no_place_asks_again() -> None:
    controller = Controller()
    creation = TopicCreation(controller.ask)
    for number in range(MOST_QUEUED + 50):
        assert creation.want(NewTopic(f"t{number}", -1, -1)) == ErrorCode.LEADER_NOT_AVAILABLE
    assert creation.queued == MOST_QUEUED
    assert len(controller.asked) == 1
    creation.want(NewTopic("own", -1, -1), is_urgent=True)
    assert (creation.queued, len(controller.asked)) == (MOST_QUEUED, 2)


def test_however_many_names_are_asked_for_few_are_kept() -> None:
    controller = Controller()
    creation = TopicCreation(controller.ask)
    for number in range(1_500):
        creation.want(NewTopic(f"t{number}", -1, -1))
        controller.answer(ErrorCode.POLICY_VIOLATION)
    assert creation.want(NewTopic("t1499", -1, -1)) == ErrorCode.POLICY_VIOLATION
    assert creation.want(NewTopic("t0", -1, -1)) == ErrorCode.LEADER_NOT_AVAILABLE

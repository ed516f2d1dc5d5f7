"""Creation of topics on demand: for a client that requests one, or for groups.

Clients repeat their request until its metadata is there. So each topic is requested once at a time, a failed
creation is requested again and its error answered, and what finds no place in the queue is asked for again.

The controller gets one topic at a time: its other work goes on between two of them. The queue is bounded, and
one request for metadata may fill only a part of it, and is answered late if it asks for more: a client that
asks for thousands of unknown topics gets them a few at a time. The broker's own topics are not queued: the
answer about another topic may be lost, and is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from logstore.disk.errors import ErrorCode
from logstore.loggers import logger_of
from logstore.replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    NewTopic,
    RequestBody,
    ResponseBody,
)

AskController: TypeAlias = Callable[[RequestBody, Callable[[ResponseBody | None], None]], None]
"""Puts a request to the controller; the function gets the answer, or None."""

MOST_QUEUED: Final = 200
"""Topics that wait for their creation."""
MOST_OF_ONE_REQUEST: Final = 100
"""Topics that one request for metadata may add to the queue."""
_NOTHING_WRONG: Final = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NOT_CONTROLLER)
_REFUSALS_KEPT: Final = 1_000
"""Clients choose the names, so their number must be limited."""

_log = logger_of(__name__)


class TopicCreation:
    """Requests topics. Belongs to one event loop."""

    def __init__(self, ask_controller: AskController) -> None:
        self._ask_controller = ask_controller
        self._queue: dict[str, NewTopic] = {}
        self._asked: set[str] = set()
        """The topics that the controller has been asked for."""
        self._has_turn = False
        """Whether one of them is from the queue."""
        self._refusals: dict[str, ErrorCode] = {}

    @property
    def queued(self) -> int:
        """The number of topics that wait for their creation."""
        return len(self._queue)

    def is_known(self, name: str) -> bool:
        """Return whether the topic is queued or requested already."""
        return name in self._queue or name in self._asked

    def want(self, topic: NewTopic, *, is_urgent: bool = False) -> ErrorCode:
        """Queue the topic, unless it is queued or requested already; if it `is_urgent`, request it at once.

        Returns the error of the last creation that failed, else LEADER_NOT_AVAILABLE (5).
        """
        refusal = self._refusals.get(topic.name, ErrorCode.LEADER_NOT_AVAILABLE)
        if self.is_known(topic.name):
            return refusal
        if is_urgent:
            self._ask(topic, lambda: None)
        elif len(self._queue) < MOST_QUEUED:
            self._queue[topic.name] = topic
            self._ask_for_next()
        return refusal

    def _ask_for_next(self) -> None:
        if self._has_turn or not self._queue:
            return

        def ended() -> None:
            self._has_turn = False
            self._ask_for_next()

        self._has_turn = True
        self._ask(self._queue.pop(next(iter(self._queue))), ended)

    def _ask(self, topic: NewTopic, then: Callable[[], None]) -> None:
        def answered(answer: ResponseBody | None) -> None:
            self._asked.discard(topic.name)
            if isinstance(answer, CreateTopicsResponse):
                self._note(answer)
            else:
                _log.info("no answer from the controller about topic %s", topic.name)
            then()

        self._asked.add(topic.name)
        self._ask_controller(CreateTopicsRequest((topic,)), answered)

    def _note(self, answer: CreateTopicsResponse) -> None:
        for name, result in answer.topics.items():
            self._refusals.pop(name, None)
            if result.error in _NOTHING_WRONG:
                continue
            self._refusals[name] = result.error
            if len(self._refusals) > _REFUSALS_KEPT:
                del self._refusals[next(iter(self._refusals))]
            _log.warning("failed to create topic %s: %s", name, result.message or result.error.name)

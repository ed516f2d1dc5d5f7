"""Creation of topics on demand: for a client that requests one, or for groups.

Clients repeat their request until its metadata is there. So each topic is requested once at a time, a failed
creation is requested again and its error answered, and what finds no place in the queue is asked for again.

The controller gets one topic at a time: its other work goes on between two of them. The queue is bounded, and
one request for metadata may fill only a part of it, and is answered late if it asks for more: a client that
asks for thousands of unknown topics gets them a few at a time. The broker's own topics go first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from logstore.disk.errors import ErrorCode
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

_log = logging.getLogger(__name__)


class TopicCreation:
    """Requests topics. Belongs to one event loop."""

    def __init__(self, ask_controller: AskController) -> None:
        self.turned_away = 0
        """Topics that found no place in the queue; their clients ask again."""
        self._ask_controller = ask_controller
        self._queue: dict[str, NewTopic] = {}
        self._under_way: str | None = None
        """The topic that the controller has been asked for."""
        self._refusals: dict[str, ErrorCode] = {}

    @property
    def queued(self) -> int:
        """The number of topics that wait for their creation."""
        return len(self._queue)

    def is_known(self, name: str) -> bool:
        """Return whether the topic is queued or requested already."""
        return name in self._queue or name == self._under_way

    def want(self, topic: NewTopic, *, is_urgent: bool = False) -> ErrorCode:
        """Queue the topic, unless it is queued or requested already; `is_urgent` puts it first.

        Returns the error of the last creation that failed, else LEADER_NOT_AVAILABLE (5).
        """
        refusal = self._refusals.get(topic.name, ErrorCode.LEADER_NOT_AVAILABLE)
        if self.is_known(topic.name):
            return refusal
        if is_urgent:
            self._queue = {topic.name: topic, **self._queue}
        elif len(self._queue) < MOST_QUEUED:
            self._queue[topic.name] = topic
        else:
            self.turned_away += 1
            return refusal
        self._request()
        return refusal

    def _request(self) -> None:
        if self._under_way is not None or not self._queue:
            return
        name = self._under_way = next(iter(self._queue))

        def answered(answer: ResponseBody | None) -> None:
            self._under_way = None
            if isinstance(answer, CreateTopicsResponse):
                self._note(answer)
            else:
                _log.info("no answer from the controller about topic %s", name)
            self._request()

        self._ask_controller(CreateTopicsRequest((self._queue.pop(name),)), answered)

    def _note(self, answer: CreateTopicsResponse) -> None:
        for name, result in answer.topics.items():
            self._refusals.pop(name, None)
            if result.error in _NOTHING_WRONG:
                continue
            self._refusals[name] = result.error
            if len(self._refusals) > _REFUSALS_KEPT:
                del self._refusals[next(iter(self._refusals))]
            _log.warning("failed to create topic %s: %s", name, result.message or result.error.name)

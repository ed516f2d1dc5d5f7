"""Creation of topics on demand: for a client that asks for one, or for groups.

The request is sent to the controller, with one request under way for each topic. Clients repeat their request
until its metadata is there, so a failed creation is requested again; they then get the error.
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

_NOTHING_WRONG: Final = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NOT_CONTROLLER)
_REFUSALS_KEPT: Final = 1_000
"""Clients choose the names, so their number must be limited."""

_log = logging.getLogger(__name__)


class TopicCreation:
    """Requests topics. Belongs to one event loop."""

    def __init__(self, ask_controller: AskController) -> None:
        self._ask_controller = ask_controller
        self._under_way: set[str] = set()
        self._refusals: dict[str, ErrorCode] = {}

    def want(self, topic: NewTopic) -> ErrorCode:
        """Request the topic, unless a request is under way.

        Returns the error of the last creation that failed, else LEADER_NOT_AVAILABLE (5).
        """
        refusal = self._refusals.get(topic.name, ErrorCode.LEADER_NOT_AVAILABLE)
        if topic.name in self._under_way:
            return refusal
        self._under_way.add(topic.name)

        def answered(answer: ResponseBody | None) -> None:
            self._under_way.discard(topic.name)
            if not isinstance(answer, CreateTopicsResponse):
                _log.info("no answer from the controller about topic %s", topic.name)
                return
            result = answer.topics[topic.name]
            self._refusals.pop(topic.name, None)
            if result.error not in _NOTHING_WRONG:
                self._refusals[topic.name] = result.error
                if len(self._refusals) > _REFUSALS_KEPT:
                    del self._refusals[next(iter(self._refusals))]
                _log.warning("failed to create topic %s: %s", topic.name, result.message or result.error.name)

        self._ask_controller(CreateTopicsRequest((topic,)), answered)
        return refusal

"""Topics that are made because somebody needs them: a client that asks for one, or the groups theirs.

The controller is asked, wherever it is, for each topic once at a time. Whoever needed it asks again until
its metadata is there, and so will ask again if nothing came of it: and is told then what was wrong.
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
"""Has the controller asked; told the answer, or None if there is none."""

_NOTHING_WRONG: Final = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NOT_CONTROLLER)
_REFUSALS_KEPT: Final = 1_000
"""Names are the clients': there may be any number of them."""

_log = logging.getLogger(__name__)


class TopicCreation:
    """Asks for topics. Belongs to one event loop."""

    def __init__(self, ask_controller: AskController) -> None:
        self._ask_controller = ask_controller
        self._under_way: set[str] = set()
        self._refusals: dict[str, ErrorCode] = {}

    def want(self, topic: NewTopic) -> ErrorCode:
        """Have the topic made, unless that has been asked for and not been answered.

        Why it could not be made the last time it was wanted; LEADER_NOT_AVAILABLE if nothing is against it.
        """
        refusal = self._refusals.get(topic.name, ErrorCode.LEADER_NOT_AVAILABLE)
        if topic.name in self._under_way:
            return refusal
        self._under_way.add(topic.name)

        def answered(answer: ResponseBody | None) -> None:
            self._under_way.discard(topic.name)
            if not isinstance(answer, CreateTopicsResponse):
                _log.info("no controller answers about topic %s", topic.name)
                return
            result = answer.topics[topic.name]
            self._refusals.pop(topic.name, None)
            if result.error not in _NOTHING_WRONG:
                self._refusals[topic.name] = result.error
                if len(self._refusals) > _REFUSALS_KEPT:
                    del self._refusals[next(iter(self._refusals))]
                _log.warning("topic %s cannot be made: %s", topic.name, result.message or result.error.name)

        self._ask_controller(CreateTopicsRequest((topic,)), answered)
        return refusal

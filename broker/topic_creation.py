"""Topics that are made because somebody needs them: a client that asks for one, or the groups theirs.

The controller is asked, wherever it is, for each topic once at a time. Whoever needed it asks again until
its metadata is there, and so will ask again if nothing came of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from checkpoint.errors import ErrorCode
from replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    NewTopic,
    RequestBody,
    ResponseBody,
)

AskController: TypeAlias = Callable[[RequestBody, Callable[[ResponseBody | None], None]], None]
"""Has the controller asked; told the answer, or None if there is none."""

_NOTHING_WRONG: Final = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NOT_CONTROLLER)

_log = logging.getLogger(__name__)


class TopicCreation:
    """Asks for topics. Belongs to one event loop."""

    def __init__(self, ask_controller: AskController) -> None:
        self._ask_controller = ask_controller
        self._under_way: set[str] = set()

    def want(self, topic: NewTopic) -> None:
        """Have the topic made, unless that has been asked for and not been answered."""
        if topic.name in self._under_way:
            return
        self._under_way.add(topic.name)

        def answered(answer: ResponseBody | None) -> None:
            self._under_way.discard(topic.name)
            if not isinstance(answer, CreateTopicsResponse):
                _log.info("no controller answers about topic %s", topic.name)
                return
            result = answer.topics[topic.name]
            if result.error not in _NOTHING_WRONG:
                _log.warning("topic %s cannot be made: %s", topic.name, result.message or result.error.name)

        self._ask_controller(CreateTopicsRequest((topic,)), answered)

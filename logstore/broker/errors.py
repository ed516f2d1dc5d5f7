"""What can go wrong between a socket and the engine.

EngineError
├── MalformedMessage   42   bytes that are no message of ours: their connection is closed
├── RequestUnanswered  13   the connection broke, or time ran out, before an answer: the fate is unknown
├── RequestRefused          a broker's refusal, as its `error` says
├── BrokerFailed       56   the broker in this process cannot go on
├── BrokerStopped      13   it was stopped, and is asked all the same
└── CorruptGroupRecord 56   a record of __consumer_offsets that cannot be read: its groups stay unserved
"""

from __future__ import annotations

from typing import Final

from logstore.disk.errors import EngineError, ErrorCode


class MalformedMessage(EngineError):
    """Bytes that do not follow the format, or a message that has no bytes in it."""

    code = ErrorCode.INVALID_REQUEST


class RequestUnanswered(EngineError):
    """No answer will come. Whether the request was served cannot be told."""

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True


PASSING: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Refusals that may be over when the leader is looked up again."""


class RequestRefused(EngineError):
    """A broker's refusal, which another try would not change; or the last one before time was up."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, error: ErrorCode, message: str = "") -> None:
        super().__init__(f"{error.name}: {message}" if message else error.name)
        self.error = error

    @property
    def is_passing(self) -> bool:
        """Whether it was tried until time was up. Of an append: its fate is unknown."""
        return self.error in PASSING


class BrokerFailed(EngineError):
    """The broker in this process cannot go on: no log dir is left, its store failed, or it has a bug.

    What was acknowledged stands as its durability level says; what waits has an unknown fate.
    """

    code = ErrorCode.KAFKA_STORAGE_ERROR


class BrokerStopped(EngineError):
    """The broker in this process was stopped, or was never started here."""

    code = ErrorCode.NETWORK_EXCEPTION


class CorruptGroupRecord(EngineError):
    """A record of `__consumer_offsets` that is malformed, or of a version that is not known here.

    To go on without it would be to forget a committed offset or a group in silence.
    """

    code = ErrorCode.KAFKA_STORAGE_ERROR

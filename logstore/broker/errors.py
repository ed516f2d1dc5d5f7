"""Errors between a socket and the engine.

EngineError
├── MalformedMessage   INVALID_REQUEST (42)      bytes that are not a valid message: the connection is closed
├── RequestUnanswered  NETWORK_EXCEPTION (13)    the connection broke, or time ran out: the outcome is unknown
│   ├── AuthenticationFailed  SASL_AUTHENTICATION_FAILED (58)  the login was refused: nothing was sent
│   └── RequestFailed         UNKNOWN_SERVER_ERROR (-1)        a retry would fail in the same way
├── RequestRefused                               a broker's refusal, with its `error`
├── BrokerFailed       KAFKA_STORAGE_ERROR (56)  the broker in this process failed
├── BrokerStopped      NETWORK_EXCEPTION (13)    the broker in this process is stopped
└── CorruptGroupRecord KAFKA_STORAGE_ERROR (56)  an unreadable record of __consumer_offsets
"""

from __future__ import annotations

from typing import Final

from logstore.disk.errors import EngineError, ErrorCode


class MalformedMessage(EngineError):
    """Bytes that do not follow the format, or a message that the format cannot express."""

    code = ErrorCode.INVALID_REQUEST


class RequestUnanswered(EngineError):
    """The request was not answered. It may or may not have been served."""

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True


class NotConnected(RequestUnanswered):
    """No connection to the broker was made: the request was not sent."""


class AuthenticationFailed(RequestUnanswered):
    """The broker refused the login, or its mechanism: the request was not sent."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED
    retriable = False


class RequestFailed(RequestUnanswered):
    """The request cannot be encoded, a broker in this process failed to serve it, the process was forked,
    or the client belongs to another event loop.

    It is not retried.
    """

    code = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable = False


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
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Errors that may pass: look up the leader and try again."""

MAY_BE_WRITTEN: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Those of them with which a produce request may have been appended."""

SEQUENCE_LOST: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
"""The leader lacks a batch before this one of its producer, and so this one too."""


class RequestRefused(EngineError):
    """A broker's refusal: permanent, or the last one before the timeout."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, error: ErrorCode, message: str = "") -> None:
        super().__init__(f"{error.name}: {message}" if message else error.name)
        self.error = error

    @property
    def is_passing(self) -> bool:
        """Whether the request was retried until the timeout. An append's outcome is then unknown."""
        return self.error in PASSING


class BrokerFailed(EngineError):
    """The broker in this process failed: no log dir is left, the metadata store failed, or it has a bug.

    Acknowledged records are as safe as their durability level promises; the outcome of waiting calls is
    unknown.
    """

    code = ErrorCode.KAFKA_STORAGE_ERROR


class BrokerStopped(EngineError):
    """The broker in this process was stopped, or was not started in this process."""

    code = ErrorCode.NETWORK_EXCEPTION


class CorruptGroupRecord(EngineError):
    """A record of `__consumer_offsets` that is malformed or has an unknown version.

    The groups of its partition are not served: skipping it would silently lose an offset or a group.
    """

    code = ErrorCode.KAFKA_STORAGE_ERROR

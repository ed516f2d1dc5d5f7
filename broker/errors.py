"""What can go wrong between a socket and the engine.

    EngineError
    ├── MalformedMessage   42   bytes that are no message of ours: their connection is closed
    ├── RequestUnanswered  13   the connection broke, or time ran out, before an answer: the fate is unknown
    └── CorruptGroupRecord 56   a record of __consumer_offsets that cannot be read: its groups stay unserved
"""

from __future__ import annotations

from checkpoint.errors import EngineError, ErrorCode


class MalformedMessage(EngineError):
    """Bytes that do not follow the format, or a message that has no bytes in it."""

    code = ErrorCode.INVALID_REQUEST


class RequestUnanswered(EngineError):
    """No answer will come. Whether the request was served cannot be told."""

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True


class CorruptGroupRecord(EngineError):
    """A record of `__consumer_offsets` that is malformed, or of a version that is not known here.

    To go on without it would be to forget a committed offset or a group in silence.
    """

    code = ErrorCode.KAFKA_STORAGE_ERROR

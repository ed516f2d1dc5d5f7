"""What can go wrong between a socket and the engine.

    EngineError
    ├── MalformedMessage   42   bytes that are no message of ours: their connection is closed
    └── RequestUnanswered  13   the connection broke, or time ran out, before an answer: the fate is unknown
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

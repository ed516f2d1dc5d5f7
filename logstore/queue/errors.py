"""The errors of a queue.

EngineError
├── QueueClosed        56   open it again
├── NotAQueue          42   the path holds something else
├── LeaseEnded         42   the message went back to the queue; it is delivered again
└── AlreadyFinished    42   the message was acknowledged before, or is a dead letter
"""

from __future__ import annotations

from logstore.disk.errors import EngineError, ErrorCode


class QueueClosed(EngineError):
    """The queue was closed; open it again."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class NotAQueue(EngineError):
    """The directory is a log, or holds other files; nothing was changed."""

    code = ErrorCode.INVALID_REQUEST


class LeaseEnded(EngineError):
    """The lease of a message ended, or the message was returned: it is delivered again, or was already."""

    code = ErrorCode.INVALID_REQUEST


class AlreadyFinished(EngineError):
    """The message was acknowledged before, or has become a dead letter."""

    code = ErrorCode.INVALID_REQUEST

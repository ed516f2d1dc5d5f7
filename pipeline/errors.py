"""What the pipeline may refuse or fail with, one line each: Spark wraps it, so the line must stand alone.

EngineError
├── InvalidOption    40   an option that is unknown, malformed, or contradicts another
├── UnknownTopic      3   nothing among the paths or brokers has that name
├── NoMatchingTime    1   `error` was asked for where no record is that young
└── DataLoss          1   offsets of a range gave no rows, and `failOnDataLoss` is true
"""

from __future__ import annotations

from checkpoint.errors import EngineError, ErrorCode


class InvalidOption(EngineError):
    """An option of a read or write; the message names it and says what to give instead."""

    code = ErrorCode.INVALID_CONFIG


class UnknownTopic(EngineError):
    """A topic or partition was asked for by name and is not there."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class NoMatchingTime(EngineError):
    """No record of a partition is as young as the time to start from."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class DataLoss(EngineError):
    """Records that were asked for are gone; the message names topic, partition, offsets and cause."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE

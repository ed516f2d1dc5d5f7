"""What the pipeline may refuse or fail with, one line each: Spark wraps it, so the line must stand alone.

EngineError
├── InvalidOption    40   an option that is unknown, malformed, or contradicts another
├── UnknownTopic      3   nothing among the paths or brokers has that name
├── NoMatchingTime    1   `error` was asked for where no record is that young
├── DataLoss          1   offsets of a range gave no rows, and `failOnDataLoss` is true
├── WriteRefused     42   a write that cannot be done as asked for: nothing of it was published
├── RowRefused       87   a row that no partition can take: nothing of its write was published
├── CorruptLedger    56   what was published before cannot be told
├── StagedFileGone   56   a staged file is not there, or not what its task wrote
└── PublicationBroken 56  a publication was begun, and is for the next commit to complete
"""

from __future__ import annotations

from logstore.disk.errors import EngineError, ErrorCode


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


class WriteRefused(EngineError):
    """A write that cannot be done as it was asked for; nothing of it was published."""

    code = ErrorCode.INVALID_REQUEST


class RowRefused(EngineError):
    """A row that no partition can take; nothing of its write was published."""

    code = ErrorCode.INVALID_RECORD


class CorruptLedger(EngineError):
    """A ledger that does not say what was published."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class StagedFileGone(EngineError):
    """A staged file is not there, or is not what its task wrote."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class PublicationBroken(EngineError):
    """A publication was begun and cannot go on; the next commit of its writer carries it out."""

    code = ErrorCode.KAFKA_STORAGE_ERROR

"""Errors of the Spark integration. Spark wraps each one, so every message is one complete line.

EngineError
├── InvalidOption    40   INVALID_CONFIG: an option is unknown, malformed, or contradicts another
├── UnknownTopic      3   UNKNOWN_TOPIC_OR_PARTITION: no path or broker has a topic of that name
├── NoMatchingTime    1   OFFSET_OUT_OF_RANGE: no record is at or after the starting time
├── DataLoss          1   OFFSET_OUT_OF_RANGE: requested records are gone and `failOnDataLoss` is true
├── WriteRefused     42   INVALID_REQUEST: the write is not possible; nothing was published
├── RowRefused       87   INVALID_RECORD: no partition accepts the row; nothing was published
├── PythonUnfit      -1   UNKNOWN_SERVER_ERROR: Spark's workers cannot run the Python that is set for them
├── CorruptLedger    56   KAFKA_STORAGE_ERROR: the ledger of published writes is unreadable
├── StagedFileGone   56   KAFKA_STORAGE_ERROR: a staged file is missing or changed
└── PublicationBroken 56  KAFKA_STORAGE_ERROR: a publication stopped halfway; the next commit completes it
"""

from __future__ import annotations

from logstore.disk.errors import EngineError, ErrorCode


class InvalidOption(EngineError):
    """An invalid option of a read or write. The message names the option and a valid value."""

    code = ErrorCode.INVALID_CONFIG


class UnknownTopic(EngineError):
    """A topic or partition that was requested by name and does not exist."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class NoMatchingTime(EngineError):
    """A starting time after the last record of a partition."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class DataLoss(EngineError):
    """Requested records are gone. The message names topic, partition, offsets and cause."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class WriteRefused(EngineError):
    """A write that is not possible as requested. Nothing was published."""

    code = ErrorCode.INVALID_REQUEST


class RowRefused(EngineError):
    """A row that no partition accepts. Nothing of its write was published."""

    code = ErrorCode.INVALID_RECORD


class PythonUnfit(EngineError):
    """A Python for Spark's workers that does not run, or lacks the package. The message names another."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class CorruptLedger(EngineError):
    """A ledger that is unreadable, so earlier publications are unknown."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class StagedFileGone(EngineError):
    """A staged file that is missing, or differs from what its task wrote."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class PublicationBroken(EngineError):
    """A publication that stopped halfway. The next commit of the same writer completes it."""

    code = ErrorCode.KAFKA_STORAGE_ERROR

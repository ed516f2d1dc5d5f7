"""What a caller of a log may have to handle. A class is a Kafka error code plus the facts of the case.

EngineError
├── OffsetOutOfRange               1   the reader resets to a bound it is told
├── CorruptBatch                   2   retriable: the sender still has the bytes
├── LogGone                        3   a reader's directory is not there (any more)
├── RecordTooLarge                10   one batch above max.message.bytes
├── RecordBatchTooLarge           18   one append above segment.bytes
├── InvalidTimestamp              32   outside the topic's window; lists the records
├── InvalidConfig                 40
├── PolicyViolation               44   deleting records of a topic that is only compacted
├── OutOfOrderSequence            45   a producer's batch before this one is missing
├── InvalidProducerEpoch          47   an older instance of the producer: fenced
├── InvalidTransactionState       48
├── TransactionCoordinatorFenced  52
├── LogDirOffline                 56   retriable: another replica has the data
├── DamagedLog                    56   synced batches are gone; another replica has the data
├── DiskFull                      56   retriable: nothing was written, make room
├── CorruptSnapshot               56   delete the file, take the next older one
├── CorruptIndex                  56   delete the file, rebuild it from the log
├── CorruptSeal                   56   counts for nothing; `logstore verify --reseal` makes a new one
├── UnsupportedCompression        76
├── InvalidRecord                 87   lists the records
├── InconsistentTopicId          103
├── OffsetsOutOfOrder             -1   a follower's batches do not rise
└── UnexpectedAppendOffset        -1   a follower's batch lies below its log end offset
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from logstore.disk.errors import EngineError, ErrorCode


class RecordError(NamedTuple):
    """Why one record of a client's batch was refused; `batch_index` counts from 0 within the batch."""

    batch_index: int
    message: str


class OffsetOutOfRange(EngineError):
    """A read outside the log; both bounds are in the message and on the error."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"offset {offset} is outside [{log_start_offset}, {log_end_offset}]; start from one of the bounds"
        )
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class CorruptBatch(EngineError):
    """The bytes of a batch are not what was written: bad size, magic or checksum."""

    code = ErrorCode.CORRUPT_MESSAGE
    retriable = True


class InvalidRecord(EngineError):
    """A batch that is intact but says something no log may hold."""

    code = ErrorCode.INVALID_RECORD

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = tuple(record_errors)


class InvalidTimestamp(EngineError):
    """A record's time lies outside the topic's window, or the batch claims the wrong timestamp type."""

    code = ErrorCode.INVALID_TIMESTAMP

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = tuple(record_errors)


class RecordTooLarge(EngineError):
    """One batch above max.message.bytes."""

    code = ErrorCode.MESSAGE_TOO_LARGE

    def __init__(self, size_bytes: int, max_message_bytes: int) -> None:
        super().__init__(
            f"batch of {size_bytes} bytes is above max.message.bytes = {max_message_bytes}: "
            "send smaller batches or raise the setting"
        )
        self.size_bytes = size_bytes
        self.max_message_bytes = max_message_bytes


class RecordBatchTooLarge(EngineError):
    """One append that no segment can hold."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE

    def __init__(self, size_bytes: int, segment_bytes: int) -> None:
        super().__init__(
            f"append of {size_bytes} bytes is above segment.bytes = {segment_bytes}: "
            "send less at once or raise the setting"
        )
        self.size_bytes = size_bytes
        self.segment_bytes = segment_bytes


class OffsetsOutOfOrder(EngineError):
    """A follower was handed batches whose offsets do not rise; nothing was written."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class UnexpectedAppendOffset(EngineError):
    """A follower was handed a batch it already has; the fetcher compares epochs and truncates."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, first_offset: int, last_offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"batches {first_offset} to {last_offset} start below the log end offset {log_end_offset}; "
            "truncate to the leader's epochs and fetch again"
        )
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.log_end_offset = log_end_offset


class OutOfOrderSequence(EngineError):
    """A producer's sequence does not continue the last one it is known for."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(EngineError):
    """A newer instance of the same producer exists."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTransactionState(EngineError):
    """A batch that does not fit the producer's transaction."""

    code = ErrorCode.INVALID_TXN_STATE


class TransactionCoordinatorFenced(EngineError):
    """A marker of a coordinator that has been replaced."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class LogDirOffline(EngineError):
    """A log dir whose disk failed; it stays so until it has been recovered by a new start."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class CannotUndo(EngineError):
    """A loss that cannot be put back; the message says why, and what can be done instead."""

    code = ErrorCode.INVALID_REQUEST


class DamageKind(StrEnum):
    """What was found where something else had been durable."""

    BAD_BATCH = "bad batch"
    EPOCH_BACK = "epoch goes back"
    HOLE = "hole"
    SEGMENT_GONE = "segment gone"
    SHORTER = "shorter than sealed"
    LONGER = "longer than sealed"
    OVERLAP = "overlap"
    END_LOST = "end lost"


class Damage(NamedTuple):
    """Where a log stops being what was durable.

    `file` is relative to the log's directory, `position` a byte of it, `offset` the first that cannot be
    served; `lost_bytes` is what lies behind and goes too if the loss is accepted.
    """

    kind: DamageKind
    file: str
    position: int
    offset: int
    text: str
    lost_bytes: int

    def __str__(self) -> str:
        return f"{self.file} at byte {self.position} (offset {self.offset}): {self.kind}: {self.text}"


class DamagedLog(EngineError):
    """Batches that were once durable are gone or changed; `damages` says where, earliest first."""

    code = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, message: str, damages: Sequence[Damage] = ()) -> None:
        super().__init__(message)
        self.damages = tuple(damages)


class DiskFull(EngineError):
    """No room for an append, or to open a log: nothing was lost, and it works again once there is room."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


def is_full(error: OSError) -> bool:
    """Whether a call failed for want of room (device, quota, size limit): it may work another time."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def bare(error: OSError) -> OSError:
    """The same error to be kept, without the frames it came through: they would keep mapped files alive."""
    return type(error)(*error.args) if error.filename is None else type(error)(*error.args, error.filename)


class LogClosed(EngineError):
    """The log was closed by its owner; open it again."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class LogGone(EngineError):
    """The directory that is to be read does not exist: its owner deleted or moved it."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class CorruptSnapshot(EngineError):
    """A producer snapshot that cannot be trusted. Derived data: delete it and use an older one."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class CorruptIndex(EngineError):
    """An index that cannot be trusted. Derived data: rebuild it from the log beside it."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class CorruptSeal(EngineError):
    """A seal that cannot be read: as if there were none."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class UnsupportedCompression(EngineError):
    """An unknown codec, or one whose library is not installed here."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class PolicyViolation(EngineError):
    """What was asked for does not go with the topic's `cleanup.policy`."""

    code = ErrorCode.POLICY_VIOLATION


class InvalidConfig(EngineError):
    """A setting that is unknown, malformed or contradicts another."""

    code = ErrorCode.INVALID_CONFIG


class InconsistentTopicId(EngineError):
    """The directory on disk belongs to another incarnation of the topic."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID

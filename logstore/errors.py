"""The errors that a log raises. Each class stands for a Kafka error code and carries the facts of the case.

EngineError
├── OffsetOutOfRange               1   the message and the error carry both bounds
│   └── LogTruncated               1   a follower's records were removed by a truncation
├── CorruptBatch                   2   retriable: the sender still has the bytes
├── LogGone                        3   a directory that is to be read has no log
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
├── OutOfResources                56   retriable: no descriptor or memory left; nothing was written
│   └── DiskFull                  56   retriable: nothing was written, make room
├── CorruptSnapshot               56   delete the file, take the next older one
├── CorruptIndex                  56   delete the file, rebuild it from the log
├── CorruptSeal                   56   ignored; `logstore verify --reseal` makes a new one
├── UnsupportedCompression        76
├── InvalidRecord                 87   lists the records
├── InconsistentTopicId          103
├── OffsetsOutOfOrder             -1   a follower's batches do not rise
└── UnexpectedAppendOffset        -1   a follower's batch lies below its log end offset
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

from logstore.disk.errors import EngineError, ErrorCode, is_shortage


class RecordError(NamedTuple):
    """The reason why one record of a batch was refused; `batch_index` counts from 0 within the batch."""

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


class LogTruncated(OffsetOutOfRange):
    """A truncation removed records after a follower had returned them.

    `log_end_offset` is the cut: the first offset that was removed. What has replaced the records begins at
    `next_offset`, which is larger if the log starts behind the cut.
    """

    def __init__(self, offset: int, log_start_offset: int, cut_at: int) -> None:
        super().__init__(offset, log_start_offset, cut_at)
        self.next_offset = max(cut_at, log_start_offset)
        self.args = (
            f"the log was truncated at offset {cut_at} after the records before {offset} were read; "
            f"seek({self.next_offset}) continues with what has replaced them",
        )


class CorruptBatch(EngineError):
    """A batch has a bad size, magic or checksum; `damage` is its place, if it lies in a log."""

    code = ErrorCode.CORRUPT_MESSAGE
    retriable = True

    def __init__(self, message: str = "", damage: Damage | None = None) -> None:
        super().__init__(message)
        self.damage = damage


class InvalidRecord(EngineError):
    """An intact batch whose content is not valid in a log."""

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
    """One append above segment.bytes: no segment can hold it."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE

    def __init__(self, size_bytes: int, segment_bytes: int) -> None:
        super().__init__(
            f"append of {size_bytes} bytes is above segment.bytes = {segment_bytes}: "
            "send less at once or raise the setting"
        )
        self.size_bytes = size_bytes
        self.segment_bytes = segment_bytes


class OffsetsOutOfOrder(EngineError):
    """The offsets of a follower's batches do not rise; nothing was written."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class UnexpectedAppendOffset(EngineError):
    """A follower's batch lies below its log end offset; the fetcher compares epochs and truncates."""

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
    """A producer's sequence does not continue its last one."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(EngineError):
    """A newer instance of the same producer exists."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTransactionState(EngineError):
    """A batch does not fit the producer's transaction."""

    code = ErrorCode.INVALID_TXN_STATE


class TransactionCoordinatorFenced(EngineError):
    """A transaction marker comes from a coordinator that has been replaced."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class LogDirOffline(EngineError):
    """The disk of a log dir failed; the dir stays offline until a restart has recovered it."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class CannotUndo(EngineError):
    """A loss cannot be restored; the message names the reason and the alternative."""

    code = ErrorCode.INVALID_REQUEST


class DamageKind(StrEnum):
    """The kinds of damage to durable data."""

    BAD_BATCH = "bad batch"
    EPOCH_BACK = "epoch goes back"
    HOLE = "hole"
    SEGMENT_GONE = "segment gone"
    SHORTER = "shorter than sealed"
    LONGER = "longer than sealed"
    OVERLAP = "overlap"
    END_LOST = "end lost"
    CHANGED = "differs from its seal"
    INDEX = "bad index of aborted transactions"
    DERIVED = "derived file differs from the log"


class Damage(NamedTuple):
    """A place where a log differs from its durable state.

    `file` is relative to the log's directory and `position` a byte in it. `offset` is the first that cannot
    be served. If the loss is accepted, the `lost_bytes` behind it go too. Sound batches begin again at byte
    `end_position` and at offset `end_offset`; -1 where that is not known.
    """

    kind: DamageKind
    file: str
    position: int
    offset: int
    text: str
    lost_bytes: int
    end_position: int = -1
    end_offset: int = -1

    def __str__(self) -> str:
        return f"{self.file} at byte {self.position} (offset {self.offset}): {self.kind}: {self.text}"


class DamagedLog(EngineError):
    """Durable batches are gone or changed; `damages` lists the places, earliest first.

    Everything below `durable_end` was durable: by a recovery point or a seal, or, where neither is known,
    because sound batches lie behind the damage.
    """

    code = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, message: str, damages: Sequence[Damage] = (), durable_end: int = 0) -> None:
        super().__init__(message)
        self.damages = tuple(damages)
        self.durable_end = durable_end


class OutOfResources(EngineError):
    """Descriptors, memory or disk space ran out: nothing was lost, and the call works again once there is
    some."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class DiskFull(OutOfResources):
    """The disk is full: nothing was lost, and the call works again once there is space."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


def is_full(error: OSError) -> bool:
    """Return whether a call failed because the device, a quota or a size limit is full; it may work later."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_refusal(error: OSError) -> bool:
    """Return whether a call was refused for want of space, descriptors or memory: the disk has not failed.

    Ask this where the call changed nothing. A failed fsync is never a refusal.
    """
    return is_full(error) or is_shortage(error)


def refusal(error: OSError, subject: str, outcome: str, then: str = "try again") -> OutOfResources:
    """Return the exception for an error that `is_refusal`; `outcome` says what has not changed."""
    if is_full(error):
        is_limited = error.errno == errno.EFBIG
        problem = "a file cannot grow further" if is_limited else "the disk is full"
        cure = "Raise the limit of file sizes (ulimit -f)" if is_limited else "Free some space"
        return DiskFull(f"{subject}: {problem} ({error.strerror}); {outcome}. {cure}, then {then}")
    return OutOfResources(
        f"{subject}: {error.strerror}; {outcome}. Raise the limits of the process (ulimit -n), then {then}"
    )


@contextmanager
def without_shortage(subject: str, outcome: str) -> Iterator[None]:
    """Raise the `refusal` of a call that ran out of descriptors or memory; other errors pass."""
    try:
        yield
    except OSError as error:
        if is_shortage(error):
            raise refusal(error, subject, outcome) from error
        raise


def bare(error: OSError) -> OSError:
    """Return the error without its traceback, whose frames would keep mapped files alive."""
    return type(error)(*error.args) if error.filename is None else type(error)(*error.args, error.filename)


class LogClosed(EngineError):
    """The log was closed by its owner; open it again."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class LogGone(EngineError):
    """The directory of a reader, or of a log opened with `create=False`, does not exist or has no log."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class CorruptSnapshot(EngineError):
    """A producer snapshot is corrupt. It is derived data: delete it and use an older one."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class CorruptIndex(EngineError):
    """An index is corrupt. It is derived data: rebuild it from the log beside it."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class CorruptSeal(EngineError):
    """A seal cannot be read; it is treated as missing. `is_unfinished`: a crash left it without content."""

    code = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, message: str, *, is_unfinished: bool = False) -> None:
        super().__init__(message)
        self.is_unfinished = is_unfinished


class UnsupportedCompression(EngineError):
    """The codec is unknown, or its library is not installed."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class PolicyViolation(EngineError):
    """The topic's `cleanup.policy` does not allow the request."""

    code = ErrorCode.POLICY_VIOLATION


class InvalidConfig(EngineError):
    """A setting is unknown, malformed, or contradicts another."""

    code = ErrorCode.INVALID_CONFIG


class InconsistentTopicId(EngineError):
    """The directory belongs to an earlier topic of the same name, with another id."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID

"""The base of the engine's errors. Each class has one Kafka error code.

    EngineError
    ├── CorruptCheckpoint     KAFKA_STORAGE_ERROR (56): a small file does not parse; its log dir goes offline
    ├── DirectoryLocked       KAFKA_STORAGE_ERROR (56): the log dir or log has another owner
    ├── InvalidTopic          INVALID_TOPIC_EXCEPTION (17): a topic or directory name is not allowed
    ├── (logstore/errors.py)       OffsetOutOfRange, CorruptBatch, LogDirOffline …
    └── (replication/errors.py)    NotLeaderOrFollower, NotEnoughReplicas, FencedLeaderEpoch …

A bug in the engine is an `AssertionError`, never one of these. A disk failure is an `OSError` until the log
that owns the file raises `LogDirOffline`.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Any, ClassVar, Final, NoReturn


class ErrorCode(IntEnum):
    """Kafka's error codes, as far as this engine returns them."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115


class EngineError(Exception):
    """Base of the engine's errors; `code` is the error code for a Kafka client."""

    code: ClassVar[ErrorCode]
    retriable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        assert hasattr(cls, "code"), f"{cls.__name__} has no Kafka error code"

    def __reduce__(self) -> tuple[Any, ...]:
        """Make a pickle without the constructor, whose arguments are not `args`: errors cross processes."""
        return _copied, (type(self), self.args), self.__dict__


def _copied(kind: type[EngineError], args: tuple[Any, ...]) -> EngineError:
    return kind.__new__(kind, *args)


class CorruptCheckpoint(EngineError):
    """A checkpoint, metadata or properties file does not follow its format."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class DirectoryLocked(EngineError):
    """The directory has another owner: in this process, another process or a JVM broker."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


def is_shortage(error: OSError) -> bool:
    """Return whether a call failed because descriptors or memory ran out; the disk is fine.

    Nothing was done then, unless the call was an fsync: its failure always counts as the disk's.
    """
    return error.errno in _SHORTAGES


def explained(error: OSError, what: str) -> OSError:
    """Return the error with a message that begins with what failed: the setting and its value."""
    return OSError(error.errno, f"{what}: {error.strerror or error}")


def dead_link(path: str) -> OSError:
    """Return the error for a symbolic link in the place of a directory, whose target does not exist."""
    return FileNotFoundError(errno.ENOENT, "it is a symbolic link to a path that does not exist", path)


def raise_unsynced(error: OSError, path: str) -> NoReturn:
    """Raise the error of an fsync: `EIO` for a shortage, after which a caller would try again."""
    if is_shortage(error):
        raise OSError(errno.EIO, f"not synced: {error.strerror}", path) from error
    error.filename = path
    raise error


_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})


class InvalidTopic(EngineError):
    """A topic name or partition directory name breaks Kafka's rules."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION

"""The errors of replication that a caller may have to handle; `logstore/errors.py` has those of the log.

    EngineError
    ├── UnknownTopicOrPartition    3   neither hosted here nor in the metadata cache
    ├── NotLeaderOrFollower        6   retriable: refresh metadata, then ask the leader
    ├── ReplicaStorageFailed      56   retriable: this replica's log dir is offline
    ├── AnotherShouldLead         56   retriable: the log here is damaged or full, and others are in sync
    ├── NotEnoughReplicas         19   retriable: nothing was appended
    ├── InvalidRequiredAcks       21   acks other than 0, 1 and -1
    ├── InvalidRequest            42   a peer broke the protocol
    ├── FencedLeaderEpoch         74   the requester has an older leader epoch
    ├── UnknownLeaderEpoch        75   retriable: the requester has a newer leader epoch
    ├── UnknownTopicId           100   retriable: the topic id is unknown here
    └── OffsetNotAvailable        78   retriable: the high watermark has not reached this leadership's start

`NOT_ENOUGH_REPLICAS_AFTER_APPEND (20)` and `REQUEST_TIMED_OUT (7)` are answers, never exceptions. The outcome
of the append is then unknown, and the record may appear in the log later.
"""

from __future__ import annotations

from logstore.disk.errors import EngineError, ErrorCode


class UnknownTopicOrPartition(EngineError):
    """The partition is unknown to this node."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    retriable = True


class NotLeaderOrFollower(EngineError):
    """This node does not lead the partition, or not until its store session is back."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True


class UnknownTopicId(EngineError):
    """The topic id is unknown: the topic was deleted, or its metadata has not arrived yet."""

    code = ErrorCode.UNKNOWN_TOPIC_ID
    retriable = True


class ReplicaStorageFailed(EngineError):
    """The log of this replica failed; it stays offline until the node restarts."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class AnotherShouldLead(EngineError):
    """This replica refuses to lead, because others in sync can."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class NotEnoughReplicas(EngineError):
    """acks=all with fewer in-sync replicas than `min.insync.replicas`. Nothing was appended."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS
    retriable = True


class InvalidRequiredAcks(EngineError):
    """acks is not 0, 1 or -1 (all)."""

    code = ErrorCode.INVALID_REQUIRED_ACKS


class InvalidRequest(EngineError):
    """A message that no correct peer sends."""

    code = ErrorCode.INVALID_REQUEST


class FencedLeaderEpoch(EngineError):
    """The requester's leader epoch is older than this broker's."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpoch(EngineError):
    """The requester's leader epoch is newer than this broker's, which lacks the controller's request."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH
    retriable = True


class OffsetNotAvailable(EngineError):
    """A new leader does not know yet where committed records end (KIP-207)."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE
    retriable = True


def code_of(error: EngineError | OSError) -> ErrorCode:
    """Return Kafka's error code of an exception; `KAFKA_STORAGE_ERROR (56)` for errors of the disk."""
    return error.code if isinstance(error, EngineError) else ErrorCode.KAFKA_STORAGE_ERROR

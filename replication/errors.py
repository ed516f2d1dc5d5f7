"""What a caller of the replication room may have to handle; `logstore/errors.py` has the log's.

    EngineError
    ├── UnknownTopicOrPartition    3   neither hosted here nor known to the metadata cache
    ├── NotLeaderOrFollower        6   retriable: ask for metadata and go to the leader it names
    ├── ReplicaStorageFailed      56   retriable: this replica's log dir is offline
    ├── NotEnoughReplicas         19   retriable: nothing was appended
    ├── InvalidRequiredAcks       21   acks other than 0, 1 and -1
    ├── InvalidRequest            42   a peer broke the protocol
    ├── FencedLeaderEpoch         74   the asker lives in an older leader epoch
    ├── UnknownLeaderEpoch        75   retriable: the asker is ahead of us
    ├── UnknownTopicId           100   retriable: no topic of that id is known here
    └── OffsetNotAvailable        78   retriable: the high watermark has not reached this leadership yet

`NOT_ENOUGH_REPLICAS_AFTER_APPEND` (20) and `REQUEST_TIMED_OUT` (7) are answers, never exceptions:
the outcome of the append is unknown to the client, which may find its record in the log later.
"""

from __future__ import annotations

from logstore.disk.errors import EngineError, ErrorCode


class UnknownTopicOrPartition(EngineError):
    """No such partition as far as this node knows."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    retriable = True


class NotLeaderOrFollower(EngineError):
    """This node does not lead the partition (any more, or until its store session is back)."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True


class UnknownTopicId(EngineError):
    """No topic of that id: it was deleted, or word of it has not come yet."""

    code = ErrorCode.UNKNOWN_TOPIC_ID
    retriable = True


class ReplicaStorageFailed(EngineError):
    """The log of this replica failed; it stays offline until the node starts anew."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class NotEnoughReplicas(EngineError):
    """acks=all with fewer in-sync replicas than `min.insync.replicas`; nothing was appended."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS
    retriable = True


class InvalidRequiredAcks(EngineError):
    """acks is 0, 1 or -1 (all)."""

    code = ErrorCode.INVALID_REQUIRED_ACKS


class InvalidRequest(EngineError):
    """A message that no correct peer sends."""

    code = ErrorCode.INVALID_REQUEST


class FencedLeaderEpoch(EngineError):
    """The asker's leader epoch is older than ours."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpoch(EngineError):
    """The asker's leader epoch is newer than ours: the controller's word has not reached us yet."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH
    retriable = True


class OffsetNotAvailable(EngineError):
    """A new leader does not say where committed records end before it knows (KIP-207)."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE
    retriable = True


def code_of(error: EngineError | OSError) -> ErrorCode:
    """The one place in this room where an exception becomes a number; a disk's errors have none."""
    return error.code if isinstance(error, EngineError) else ErrorCode.KAFKA_STORAGE_ERROR

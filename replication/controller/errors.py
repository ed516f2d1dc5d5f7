"""Why the controller refuses a request, or stops being one.

    EngineError
    ├── TopicExists                36
    ├── InvalidPartitions          37   a count of partitions that cannot be
    ├── InvalidReplicationFactor   38   a count of replicas that cannot be placed
    ├── InvalidReplicaAssignment   39   replicas listed by hand, and wrong
    ├── ReassignmentInProgress     60   wait until the replicas have moved
    ├── NoReassignmentInProgress   85  nothing to call off
    ├── ControllerFenced           11   another controller was elected: this one resigns
    └── MetadataConflict           -1   a node kept changing under us; the event is tried again

The first six are answers to a client; the last two never leave the controller.
"""

from __future__ import annotations

from logstore.disk.errors import EngineError, ErrorCode


class TopicExists(EngineError):
    """A topic with this name exists."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitions(EngineError):
    """The requested number of partitions is not possible."""

    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(EngineError):
    """The requested number of replicas cannot be placed."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(EngineError):
    """The given replica assignment is invalid."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class ReassignmentInProgress(EngineError):
    """The topic's replicas are being reassigned."""

    code = ErrorCode.REASSIGNMENT_IN_PROGRESS


class NoReassignmentInProgress(EngineError):
    """There is no reassignment to cancel."""

    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class ControllerFenced(EngineError):
    """`/controller_epoch` has moved on: whatever this controller still believes is history."""

    code = ErrorCode.STALE_CONTROLLER_EPOCH


class MetadataConflict(EngineError):
    """Conditional writes failed more often than honest races explain."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR

"""Errors of the controller.

    EngineError
    ├── TopicExists                TOPIC_ALREADY_EXISTS (36)
    ├── InvalidPartitions          INVALID_PARTITIONS (37)
    ├── InvalidReplicationFactor   INVALID_REPLICATION_FACTOR (38)
    ├── InvalidReplicaAssignment   INVALID_REPLICA_ASSIGNMENT (39)
    ├── ReassignmentInProgress     REASSIGNMENT_IN_PROGRESS (60)
    ├── NoReassignmentInProgress   NO_REASSIGNMENT_IN_PROGRESS (85)
    ├── ControllerFenced           STALE_CONTROLLER_EPOCH (11): another controller was elected, resign
    └── MetadataConflict           UNKNOWN_SERVER_ERROR (-1): a node kept changing, try the event again

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
    """`/controller_epoch` has changed: this controller's copy is outdated."""

    code = ErrorCode.STALE_CONTROLLER_EPOCH


class MetadataConflict(EngineError):
    """Conditional writes failed more often than ordinary races explain."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR

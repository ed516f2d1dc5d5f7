"""Failures of the metadata store itself; the result of an operation is an `Outcome`.

EngineError
├── CorruptMetadata      KAFKA_STORAGE_ERROR (56): a node, journal or snapshot has a wrong format
├── MetadataStoreFailed  KAFKA_STORAGE_ERROR (56): the disk failed; open the store again
└── WriteTooLarge        POLICY_VIOLATION (44): no server takes the write; nothing was sent
"""

from __future__ import annotations

from logstore.disk.errors import EngineError, ErrorCode


class CorruptMetadata(EngineError):
    """Bytes in the store (or in its files) do not follow their format."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class MetadataStoreFailed(EngineError):
    """A write or sync failed; the last operation may or may not survive."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class WriteTooLarge(EngineError):
    """A write is larger than a request to the store may be."""

    code = ErrorCode.POLICY_VIOLATION

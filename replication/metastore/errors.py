"""What can be wrong with the metadata store itself; what it answers is an `Outcome`.

    EngineError
    ├── CorruptMetadata      56   a node, a journal or a snapshot does not follow its format
    └── MetadataStoreFailed  56   the store's disk failed us; it answers nothing until reopened

Both come from a disk, so both carry the storage error's code.
"""

from __future__ import annotations

from logstore.disk.errors import EngineError, ErrorCode


class CorruptMetadata(EngineError):
    """Bytes that are in the store (or in its files) and do not follow their format."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class MetadataStoreFailed(EngineError):
    """A write or sync of the store failed; whether the last operation survives is unknown."""

    code = ErrorCode.KAFKA_STORAGE_ERROR

"""Loading: from the log of one partition of `__consumer_offsets` to its groups.

The last record of a key counts, and a null value removes the key. Offsets committed in a transaction count
once its marker commits them, as of when they were written: a later commit outside the transaction stays.
"""

from __future__ import annotations

from collections.abc import Iterator

from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.group import Group
from logstore.broker.groups.offsets import Offsets
from logstore.broker.groups.rebalance import loaded
from logstore.broker.groups.records import (
    GroupKey,
    GroupMetadata,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
)
from logstore.disk.files import Buffer
from logstore.disk.marks import mark
from logstore.format.batch import Batch, walk
from logstore.format.record import ControlRecord, ControlType, Record


class Loader:
    """Reads the log piece by piece, in order."""

    def __init__(self) -> None:
        self._metadata: dict[str, GroupMetadata] = {}
        self._offsets: dict[str, Offsets] = {}
        self._open: dict[int, dict[str, None]] = {}
        """Groups with offsets in a producer's open transaction, by producer id."""

    def feed(self, batches: Buffer) -> None:
        """Read whole batches of the log, in order.

        Raises `CorruptGroupRecord` for a record that cannot be decoded; `CorruptBatch`, `InvalidRecord` and
        `UnsupportedCompression` for a batch that cannot.
        """
        for batch in walk(batches):
            batch.check_crc()
            if batch.is_control:
                self._take_marker(batch)
            else:
                for record in batch.records():
                    self._take(batch, record)

    def groups(self, config: GroupConfig, now_ms: int) -> Iterator[tuple[Group, Offsets]]:
        """Yield the groups, once the whole log was fed; members have full sessions from now on."""
        for group_id, metadata in self._metadata.items():
            yield loaded(group_id, metadata, config, now_ms), self._offsets.get(group_id, Offsets())
        for group_id, offsets in self._offsets.items():
            if group_id not in self._metadata and not offsets.is_empty:
                yield Group(group_id, config, now_ms), offsets

    def _take(self, batch: Batch, record: Record) -> None:
        match decode_key(record.key):
            case OffsetKey() as key:
                self._take_offset(batch, key, record.value)
            case GroupKey(group_id):
                if record.value is None:
                    self._metadata.pop(group_id, None)
                else:
                    self._metadata[group_id] = decode_group(record.value)
            case None:
                mark("groups: a record of a kind of group that is not served here")

    def _take_offset(self, batch: Batch, key: OffsetKey, data: bytes | None) -> None:
        offsets = self._offsets.setdefault(key.group_id, Offsets())
        value = None if data is None else decode_offset(data)
        where = batch.base_offset
        if batch.is_transactional:
            self._open.setdefault(batch.producer_id, {})[key.group_id] = None
            offsets.put_in_transaction(batch.producer_id, key.topic_partition, value, where)
        elif value is None:
            offsets.take_tombstone(key.topic_partition, where)
        else:
            offsets.put(key.topic_partition, value, where)

    def _take_marker(self, batch: Batch) -> None:
        for record in batch.records():
            kind = ControlRecord.parse(record.key).type
            if kind in (ControlType.COMMIT, ControlType.ABORT):
                mark("groups: a transaction's marker")
                for group_id in self._open.pop(batch.producer_id, {}):
                    is_commit = kind is ControlType.COMMIT
                    self._offsets[group_id].end_transaction(batch.producer_id, is_commit=is_commit)

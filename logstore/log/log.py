"""A log as an application uses it: values in, records out.

    with Log.open("data/orders-0") as log:
        log.append(b"placed", key=b"order-17", sync=True)
        for record in log.read():
            ...

`Log` adds to the engine (`partition_log.py`) what turns objects into batches and batches into objects.
`Log.open` gives a log that stands alone in its directory, with its own lock and checkpoints; under a
`LogManager` those belong to the log dir.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType, TracebackType
from typing import Any, Self

from logstore.compact.cleaner_config import CleanerConfig
from logstore.compact.compaction_pass import PassReport, compaction_pass, run
from logstore.config import LogConfig
from logstore.disk.files import Buffer, Disk, OsDisk
from logstore.errors import CorruptBatch
from logstore.format.batch import Batch, walk
from logstore.format.compression import Codec
from logstore.format.record import NO_TIMESTAMP, ControlType, Record
from logstore.log.appends import AppendInfo, joined
from logstore.log.outgoing import (
    PLAIN,
    Appendable,
    Compression,
    MadeBatch,
    batch_of_one,
    batches_of,
    not_appendable,
)
from logstore.log.partition_log import PartitionLog
from logstore.log.read_committed import without_aborted
from logstore.log.reads import FetchedBytes, FetchIsolation, TimestampOffset
from logstore.log.recovery import Progress
from logstore.log.retention import Expired
from logstore.log.state import Clock, LogOwner
from logstore.segment.epochs import LeaderEpochCache

__all__ = [
    "AppendInfo",
    "Appendable",
    "Clock",
    "FetchIsolation",
    "FetchedBytes",
    "Log",
    "LogOwner",
    "TimestampOffset",
]

STAND_ALONE_EPOCH = 0


class Log(PartitionLog):
    """One partition's log. Offsets are absolute; every method may be called from any thread."""

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: LogConfig | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        progress: Progress | None = None,
        accept_loss: bool = False,
    ) -> Log:
        """Open the log in directory `path`, named `<topic>-<partition>`, or make it.

        Locks the directory, recovers what an unclean stop left, and returns a log that nobody else
        writes. Raises `InvalidTopic` for another name, `DirectoryLocked` if somebody has it open,
        `LogDirOffline` if the directory cannot be used, `DiskFull` if it has no room for what opening
        writes, `DamagedLog` if synced batches are gone or changed: no batch was touched then. With
        `accept_loss` the log is cut where the damage begins; `report.damages` says what that was.
        """
        from logstore.log.stand_alone import open_stand_alone

        return open_stand_alone(path, config or LogConfig(), disk or OsDisk(), clock, progress, accept_loss)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- appending ------------------------------------------------------------------------------------

    def append(
        self,
        records: Appendable | Iterable[Appendable] = None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        sync: bool = False,
    ) -> AppendInfo:
        """Append one record, many records, or ready batches.

        `records` is a value (bytes, or None for a tombstone) that goes with `key` and `headers`; or a
        `Record`, a (key, value) pair or a `Batch`; or an iterable of these. Records that follow each
        other go into one batch, compressed as `compression.type` says. Times default to
        `timestamp_ms`, else to now. With `sync` the call returns once the records survive power loss;
        callers that wait together share one fsync.

        Raises what `append_as_leader` raises; batches before a refused one stay appended. An empty
        iterable appends nothing.
        """
        now_ms = self._clock() if timestamp_ms is None else timestamp_ms
        if type(records) is bytes and key is None and not headers and timestamp_ms is None:
            result = self.append_value(records, now_ms) or self._append_first(records, now_ms)
        elif records is None or isinstance(records, bytes | bytearray | memoryview):
            result = self._append(batch_of_one(key, records, headers, now_ms, self._compression))
        else:
            if key is not None or headers:
                raise TypeError("key and headers go with a single value; give records their own")
            if not _has_items(records):
                raise not_appendable(records)
            items = [records] if isinstance(records, Record | Batch | tuple) else records
            end = self.log_end_offset
            result = AppendInfo(end, end - 1, NO_TIMESTAMP, NO_TIMESTAMP, self.log_start_offset)
            target_bytes = max(self.config.max_message_bytes // 2, 1)
            for batch in batches_of(
                items, now_ms=now_ms, compression=self._compression, target_bytes=target_bytes
            ):
                result = joined(result, self._append(batch))
        if sync:
            self.sync_up_to(result.last_offset + 1)
        return result

    def _append_first(self, value: bytes, now_ms: int) -> AppendInfo:
        """Append a value the long way, and open the short one for those that follow."""
        info = self._append(batch_of_one(None, value, (), now_ms, self._compression))
        self.begin_stretch()
        return info

    def _append(self, batch: MadeBatch | bytes) -> AppendInfo:
        if not isinstance(batch, MadeBatch):
            return self.append_batches(batch)
        with self._lock:
            return self.append_made(batch, leader_epoch=self._epoch, now_ms=self._clock())

    def append_batches(self, data: Buffer, *, sync: bool = False) -> AppendInfo:
        """Append ready batches that lie end to end in `data`, each as `append_as_leader` would.

        Raises what it raises, and `CorruptBatch` for a torn last batch; batches before a refused one
        stay appended.
        """
        with self._lock:
            info = self.append_many_as_leader(data, leader_epoch=self._epoch, now_ms=self._clock())
        if sync:
            self.sync_up_to(info.last_offset + 1)
        return info

    def append_arrow(self, rows: Any, *, timestamp_ms: int | None = None, sync: bool = False) -> AppendInfo:
        """Append the rows of a `pyarrow.Table` or `RecordBatch`.

        Their columns, and which errors they may cause, are said at `columnar.encode`; batches are made as
        `append` makes them. Times default to `timestamp_ms`, else to now, where there is no such column.
        Raises also what `append_batches` raises; batches before a refused one stay appended.
        `ImportError` without the extra `arrow`.
        """
        columnar = _columnar()
        end = self.log_end_offset
        result = AppendInfo(end, end - 1, NO_TIMESTAMP, NO_TIMESTAMP, self.log_start_offset)
        for batches in columnar.encode(
            rows,
            codec=self._compression.codec,
            level=self._compression.level,
            batch_bytes=max(self.config.max_message_bytes // 2, 1),
            timestamp_ms=self._clock() if timestamp_ms is None else timestamp_ms,
        ):
            result = joined(result, self.append_batches(batches))
        if sync:
            self.sync_up_to(result.last_offset + 1)
        return result

    def end_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> AppendInfo:
        """Commit or abort what this producer has written in transactional batches since the last end.

        Readers of committed data see all of it from then on, or none of it ever. Raises
        `InvalidProducerEpoch`, and what any append raises for want of a disk.
        """
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        with self._lock:
            return self.append_end_transaction(
                producer_id, producer_epoch, kind,
                coordinator_epoch=STAND_ALONE_EPOCH, leader_epoch=self._epoch, now_ms=self._clock(),
            )  # fmt: skip

    @property
    def _epoch(self) -> int:
        """The epoch that records get where no controller hands out epochs: the newest one known.

        Read under the lock that the append takes: an epoch assigned in between would be above it.
        """
        return max(self.latest_epoch, STAND_ALONE_EPOCH)

    @property
    def _compression(self) -> Compression:
        kind = self.config.compression_type
        if kind in ("producer", "uncompressed"):
            return PLAIN
        return Compression(Codec[kind.upper()], self.config.compression_level)

    # --- looking after it -----------------------------------------------------------------------------

    def maintain(self, now_ms: int | None = None) -> tuple[Expired, ...]:
        """Do what time asks for: let old segments go by `retention.ms`, `retention.bytes` and the log
        start offset, flush what is `flush.ms` old, forget producers that have been idle for a day, compact
        a compacted log that is dirty enough.

        A log that stands alone does none of it unless this is called, every few minutes say; a
        `LogManager` does it by itself. Deleted files stay for `file.delete.delay.ms`, until a later call,
        the close or the next open; what was cut and kept in quarantine stays for a week. `now_ms` is the
        wall clock's time, by default read from it. Returns what went, and why. Raises `DiskFull` or
        `LogDirOffline`.
        """
        now_ms = self._clock() if now_ms is None else now_ms
        self.flush_by_age(now_ms)
        self.remove_expired_producers(now_ms)
        went = self.delete_old_segments(now_ms)
        self.remove_deleted_files(now_ms)
        self.expire_losses(now_ms)
        if self.config.is_compacted and self.cleanable(now_ms).is_due(self.config):
            self.compact(now_ms)
        return went

    def compact(
        self, now_ms: int | None = None, *, settings: CleanerConfig | None = None
    ) -> tuple[PassReport, ...]:
        """Keep the last record of each key (`compaction.py`), however little that saves; what each pass did.

        What is in the active segment, too young or not decided yet stays as it is. Appends and reads go
        on meanwhile. Several passes where the keys do not fit `settings.dedupe_buffer_size`; none if
        nothing new can be compacted. A pass that was aborted (the log was truncated meanwhile) ends it.
        Raises `ValueError` unless `cleanup.policy` has compact, `CorruptBatch`, `InvalidRecord`,
        `CorruptIndex` or `UnsupportedCompression` for what cannot be read, `DiskFull`, `LogDirOffline`.
        """
        if not self.config.is_compacted:
            raise ValueError(f"{self.directory} has cleanup.policy={self.config.cleanup_policy}")
        now_ms = self._clock() if now_ms is None else now_ms
        reports: list[PassReport] = []
        while (cleanable := self.cleanable(now_ms)).cleanable_bytes:
            reports.append(run(compaction_pass(self, cleanable, settings or CleanerConfig(), now_ms=now_ms)))
            if reports[-1].is_complete or reports[-1].was_aborted:
                break
        return tuple(reports)

    # --- reading --------------------------------------------------------------------------------------

    def read_batches(
        self, start_offset: int | None = None, *, isolation: FetchIsolation = FetchIsolation.LOG_END
    ) -> Iterator[Batch]:
        """The batches from `start_offset` (default: the log start) to the end as it is when reached.

        Control batches are among them, and with TXN_COMMITTED no data of aborted transactions. Checksums
        were judged when the batches came in; `Batch.check_crc` judges again. Raises as `read_bytes`, also
        `CorruptBatch` for a batch whose offset or epoch cannot be: both lie outside its checksum.
        """
        offset = self.log_start_offset if start_offset is None else start_offset
        while True:
            history, end_offset = self._epochs, self.end_offset_for(FetchIsolation.LOG_END)
            fetched = self.read_bytes(offset, isolation=isolation)
            if not fetched.records:
                if isolation is FetchIsolation.LOG_END and offset < end_offset:
                    self._check_ended(offset)
                return
            batches = walk(fetched.records)
            if self._epochs is history:  # else a cut may have come between: the bytes are of before it
                batches = self._in_their_place(batches, history)
            yield from without_aborted(batches, fetched.aborted) if fetched.aborted else batches
            offset = fetched.next_offset

    def _check_ended(self, offset: int) -> None:
        """Nothing was found from `offset` on: right if a cut came between, or nothing was written there."""
        with self._lock:
            is_written = offset < self.end_offset_for(FetchIsolation.LOG_END) and self._segments.active.size
            if is_written and not self.read_bytes(offset).records:
                raise CorruptBatch(
                    f"{self.directory}: no batch from offset {offset} on, and the log ends at "
                    f"{self._log_end_offset}; verify the log, or fetch it from another replica"
                )

    def _in_their_place(self, batches: Iterable[Batch], history: LeaderEpochCache) -> Iterator[Batch]:
        """Let pass what its neighbours and the epoch history bear out: two numbers a batch, no more."""
        next_offset, known_until, expected = 0, -1, -1
        for batch in batches:
            base_offset, epoch = batch.base_offset, batch.leader_epoch
            if base_offset >= known_until:
                expected, known_until = history.span_of(base_offset)
            if base_offset < next_offset or (epoch != expected and epoch != -1 != expected):
                raise CorruptBatch(
                    f"{self.directory}: the batch at offset {base_offset} of epoch {epoch} does not follow "
                    "what lies before it; verify the log, or fetch it from another replica"
                )
            next_offset = batch.next_offset
            yield batch

    def read(
        self, start_offset: int | None = None, *, isolation: FetchIsolation = FetchIsolation.LOG_END
    ) -> Iterator[Record]:
        """The records from `start_offset` (default: the log start) to the end; no control records.

        With TXN_COMMITTED the end is the last stable offset, and aborted records are left out.
        Raises as `read_bytes`, and `CorruptBatch` or `InvalidRecord` where the log is damaged.
        """
        first = self.log_start_offset if start_offset is None else start_offset
        for batch in self.read_batches(first, isolation=isolation):
            if batch.is_control:
                continue
            batch.check_crc()
            if batch.base_offset >= first:
                yield from batch.records()
            else:
                yield from (record for record in batch.records() if record.offset >= first)

    def read_arrow(
        self,
        start_offset: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_records: int | None = None,
        isolation: FetchIsolation = FetchIsolation.LOG_END,
    ) -> Iterator[Any]:
        """The records that `read` gives as `pyarrow.RecordBatch`es, some megabytes of log in each.

        Columns and errors are those of `columnar.decode`; raises also as `read_bytes` does, and
        `ImportError` without the extra `arrow`.
        """
        columnar = _columnar()
        names = columnar.COLUMNS if columns is None else columns
        columnar.schema(names)  # a wrong name is told now, not at the first item
        decode = partial(columnar.decode, columns=names, max_records=max_records)
        return self._read_arrow(start_offset, isolation, columnar.PIECE_BYTES, decode)

    def _read_arrow(
        self,
        start_offset: int | None,
        isolation: FetchIsolation,
        max_bytes: int,
        decode: Callable[[FetchedBytes], Iterator[Any]],
    ) -> Iterator[Any]:
        offset = self.log_start_offset if start_offset is None else start_offset
        while (fetched := self.read_bytes(offset, max_bytes, isolation=isolation)).records:
            yield from decode(fetched)
            offset = fetched.next_offset


def _columnar() -> ModuleType:
    try:
        from logstore.columnar import columnar
    except ImportError as error:
        raise ImportError(
            "columns need libraries that are not installed: pip install 'pylogstore[arrow]'"
        ) from error
    return columnar


def _has_items(records: object) -> bool:
    # Text is not taken apart, and a mapping not for its keys alone.
    return isinstance(records, Iterable | Batch) and not isinstance(records, str | Mapping)

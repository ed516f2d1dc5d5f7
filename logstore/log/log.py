"""The log as an application uses it: values in, records out.

    with Log.open("data/orders-0") as log:
        log.append(b"placed", key=b"order-17", sync=True)
        for record in log.read():
            ...

`Log` turns values and records into batches and back. The engine is its `partition` (`partition_log.py`),
which speaks in batches, as leaders and followers do. `Log.open` returns a log that stands alone in its
directory, with its own lock and checkpoints; under a `LogManager` those belong to the log dir.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import index
from types import ModuleType, TracebackType
from typing import Any, Self

from logstore.compact.cleanable import cleanable_of
from logstore.compact.cleaner_config import CleanerConfig
from logstore.compact.compaction_pass import PassReport, compaction_pass, run
from logstore.config import MAX_LONG, LogConfig
from logstore.disk.files import Buffer, Disk, OsDisk, wall_clock_ms
from logstore.errors import OffsetOutOfRange
from logstore.format.batch import Batch
from logstore.format.compression import Codec
from logstore.format.record import ControlType, Record
from logstore.log.append import (
    AppendInfo,
    append_end_transaction,
    append_made,
    append_many_as_leader,
    append_value,
    begin_short_path,
    nothing_appended,
)
from logstore.log.loading import Progress
from logstore.log.lookup import Lookup
from logstore.log.losses import Loss
from logstore.log.outgoing import (
    PLAIN,
    Appendable,
    Compression,
    MadeBatch,
    batch_of_one,
    batches_of,
    not_appendable,
)
from logstore.log.partition_log import Clock, PartitionLog
from logstore.log.read import (
    READ_BYTES,
    FetchedBytes,
    FetchIsolation,
    TimestampOffset,
    iter_batches,
    offset_for_timestamp,
    read_bytes,
)
from logstore.log.retention import Expired
from logstore.log.scrub import Cursor, Scrubbed, scrub_for
from logstore.log.snapshot import Snapshot, snapshot_of
from logstore.log.stand_alone import open_stand_alone
from logstore.log.truncate import truncate_to
from logstore.log.upkeep import (
    delete_old_segments,
    delete_records,
    expire_losses,
    flush_by_age,
    remove_deleted_files,
    remove_expired_producers,
)

__all__ = ["AppendInfo", "Appendable", "FetchIsolation", "FetchedBytes", "Log", "TimestampOffset"]

STAND_ALONE_EPOCH = 0


class Log:
    """A log of records on disk. Offsets are absolute; every method may be called from any thread.

    `partition` is the engine below it: its bounds, segments, epochs and settings, and the state that the
    functions of `append`, `read`, `truncate` and `upkeep` work on.
    """

    __slots__ = ("_lookup", "partition")

    def __init__(self, partition: PartitionLog) -> None:
        """Wrap an open `PartitionLog`; applications call `Log.open` or ask a `LogManager`."""
        self.partition = partition
        self._lookup = Lookup(partition)

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
        """Open the log in directory `path`, named `<topic>-<partition>`, or create it.

        Locks the directory and recovers it after an unclean stop. Raises `InvalidTopic` for another name,
        `DirectoryLocked` if it is open elsewhere, `LogDirOffline` if the directory cannot be used, `DiskFull`
        if there is no space for the files that opening writes, and `DamagedLog` if synced batches are gone or
        changed: no batch was touched then. With `accept_loss` the log is cut where the damage begins, and
        `partition.report.damages` lists the damage.
        """
        return cls(
            open_stand_alone(
                path,
                config or LogConfig(),
                disk or OsDisk(),
                clock or wall_clock_ms,
                progress=progress,
                accept_loss=accept_loss,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self.partition)

    def close(self) -> None:
        """Flush, write what the next open needs, and release the directory. Closing twice is harmless.

        Raises `LogDirOffline` or `DiskFull` if something cannot be written: the next open then recovers the
        log. The directory is released in any case.
        """
        self.partition.close()

    @property
    def log_start_offset(self) -> int:
        """The first offset that is served."""
        return self.partition.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.partition.log_end_offset

    @property
    def size(self) -> int:
        """Bytes in all `.log` files."""
        return self.partition.segments.size

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

        `records` is a value (bytes, or None for a tombstone) with `key` and `headers`; or a `Record`, a
        (key, value) pair or a `Batch`; or an iterable of these. Consecutive records share a batch, compressed
        as `compression.type` says. Times default to `timestamp_ms`, else to now. With `sync` the call returns
        once the records survive power loss; concurrent callers share one fsync.

        Raises `InvalidRecord`, `InvalidTimestamp`, `RecordTooLarge`, `RecordBatchTooLarge`,
        `UnsupportedCompression`, `DiskFull` or `LogDirOffline`; batches before a refused one stay appended.
        An empty iterable appends nothing.
        """
        log = self.partition
        now_ms = log.clock() if timestamp_ms is None else timestamp_ms
        if type(records) is bytes and key is None and not headers and timestamp_ms is None:
            result = append_value(log, records, now_ms)
            if result is None:
                result = self._append(
                    batch_of_one(None, records, (), now_ms, _compression_of(log.config)), now_ms
                )
                begin_short_path(log)
        elif records is None or isinstance(records, bytes | bytearray | memoryview):
            result = self._append(
                batch_of_one(key, records, headers, now_ms, _compression_of(log.config)),
                now_ms if timestamp_ms is None else log.clock(),
            )
        else:
            if key is not None or headers:
                raise TypeError("key and headers go with a single value; give records their own")
            if not _has_items(records):
                raise not_appendable(records)
            result = nothing_appended(log)
            for batch in batches_of(
                [records] if isinstance(records, Record | Batch | tuple) else records,
                now_ms=now_ms,
                compression=_compression_of(log.config),
                target_bytes=_target_bytes(log),
            ):
                result = result.joined(self._append(batch, log.clock()))
        return _synced(log, result) if sync else result

    def _append(self, batch: MadeBatch | bytes, now_ms: int) -> AppendInfo:
        if not isinstance(batch, MadeBatch):
            return self.append_batches(batch)
        log = self.partition
        with log.lock:
            return append_made(
                log, batch, leader_epoch=max(log.latest_epoch, STAND_ALONE_EPOCH), now_ms=now_ms
            )

    def append_batches(self, data: Buffer, *, sync: bool = False) -> AppendInfo:
        """Append ready batches that lie end to end in `data`.

        Raises as `append`, and `CorruptBatch` for bytes that are no batch, a torn last batch among them;
        batches before a refused one stay appended.
        """
        log = self.partition
        with log.lock:
            epoch = max(log.latest_epoch, STAND_ALONE_EPOCH)
            result = append_many_as_leader(log, data, leader_epoch=epoch, now_ms=log.clock())
        return _synced(log, result) if sync else result

    def append_arrow(self, rows: Any, *, timestamp_ms: int | None = None, sync: bool = False) -> AppendInfo:
        """Append the rows of a `pyarrow.Table` or `RecordBatch`.

        `columnar.encode` documents their columns and errors; batches are made as `append` makes them. Times
        default to `timestamp_ms`, else to now, if there is no such column. Raises also as `append_batches`;
        batches before a refused one stay appended. `ImportError` without the extra `arrow`.
        """
        log, compression = self.partition, _compression_of(self.partition.config)
        result = nothing_appended(log)
        for batches in _columnar().encode(
            rows,
            codec=compression.codec,
            level=compression.level,
            batch_bytes=_target_bytes(log),
            timestamp_ms=log.clock() if timestamp_ms is None else timestamp_ms,
        ):
            result = result.joined(self.append_batches(batches))
        return _synced(log, result) if sync else result

    def end_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> AppendInfo:
        """Commit or abort the transactional batches of this producer since its last transaction ended.

        Readers of committed data then see all of them or none. Raises `InvalidProducerEpoch`, `DiskFull` or
        `LogDirOffline`.
        """
        log = self.partition
        with log.lock:
            return append_end_transaction(
                log,
                producer_id,
                producer_epoch,
                ControlType.COMMIT if commit else ControlType.ABORT,
                coordinator_epoch=STAND_ALONE_EPOCH,
                leader_epoch=max(log.latest_epoch, STAND_ALONE_EPOCH),
                now_ms=log.clock(),
            )

    def is_synced(self, offset: int) -> bool:
        """Return whether the record at `offset` survives power loss here. Raises `OffsetOutOfRange`.

        What replicas hold, the broker that leads the partition can tell (`Broker.durability`).
        """
        log = self.partition
        if not log.log_start_offset <= offset < log.log_end_offset:
            raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
        return offset < log.recovery_point

    # --- maintenance ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make every appended record survive power loss, then move the recovery point.

        Raises `LogDirOffline` if that fails: the log accepts no more appends until it is recovered.
        """
        self.partition.flush()

    def maintain(self, now_ms: int | None = None) -> tuple[Expired, ...]:
        """Run the work that is due: delete old segments by `retention.ms`, `retention.bytes` and the log
        start offset, flush records older than `flush.ms`, forget producers that have been idle for a day,
        compact a compacted log that is dirty enough.

        For a log that stands alone, call it every few minutes; a `LogManager` does this work itself.
        Deleted files stay for `file.delete.delay.ms`, until a later call, the close or the next open;
        quarantined bytes stay for a week. `now_ms` defaults to the wall clock. Returns the deleted segments
        and the reasons. Raises `DiskFull` or `LogDirOffline`.
        """
        log = self.partition
        now_ms = log.clock() if now_ms is None else now_ms
        flush_by_age(log, now_ms)
        remove_expired_producers(log, now_ms)
        deleted = delete_old_segments(log, now_ms)
        remove_deleted_files(log, now_ms)
        expire_losses(log, now_ms)
        if log.config.is_compacted and cleanable_of(log, now_ms).is_due(log.config):
            self.compact(now_ms)
        return deleted

    def compact(
        self, now_ms: int | None = None, *, settings: CleanerConfig | None = None
    ) -> tuple[PassReport, ...]:
        """Keep only the last record of each key, however little that saves; returns a report of each pass.

        Records in the active segment, too young or not decided yet stay. Appends and reads continue
        meanwhile. If the keys do not fit `settings.dedupe_buffer_size`, several passes run; if nothing new
        can be compacted, none. A truncation aborts the pass and ends the call. Raises `ValueError` unless
        `cleanup.policy` has compact, `CorruptBatch`, `InvalidRecord`, `CorruptIndex` or
        `UnsupportedCompression` for records that cannot be read, `DiskFull`, `LogDirOffline`.
        """
        log = self.partition
        if not log.config.is_compacted:
            raise ValueError(f"{log.directory} has cleanup.policy={log.config.cleanup_policy}")
        now_ms = log.clock() if now_ms is None else now_ms
        reports: list[PassReport] = []
        while (cleanable := cleanable_of(log, now_ms)).cleanable_bytes:
            reports.append(run(compaction_pass(log, cleanable, settings or CleanerConfig(), now_ms=now_ms)))
            if reports[-1].is_complete or reports[-1].was_aborted:
                break
        return tuple(reports)

    def scrub(self, cursor: Cursor | None = None, *, max_bytes: int = MAX_LONG) -> Scrubbed:
        """Read the log and report every stretch that differs from its seal or its checksums.

        Reads about `max_bytes` from `cursor` on (default: all of the log); pass the result's `cursor` to the
        next call to continue. Changes nothing. Raises `LogClosed`, or `OSError` if the disk cannot be read.
        """
        return scrub_for(self.partition, cursor, max_bytes)

    def delete_records(self, offset: int) -> int:
        """Stop serving records below `offset` (-1: all of them); returns the log start offset.

        Durable when it returns. Segments that hold nothing else go with the next `maintain`. Raises
        `PolicyViolation` if `cleanup.policy` lacks delete, `OffsetOutOfRange`, `DiskFull` or `LogDirOffline`.
        """
        return delete_records(self.partition, offset)

    def truncate_to(self, offset: int, *, why: str = "its owner cut it") -> bool:
        """Remove everything at or past `offset`, which becomes the log end; False if nothing was there.

        The batch that holds `offset` goes as a whole. The removed records go to quarantine (`losses`), with
        `why` in the loss ledger. Durable when it returns. Raises `ValueError` for a negative offset,
        `DiskFull` with nothing changed, and `LogDirOffline`.
        """
        return truncate_to(self.partition, offset, why=why)

    def snapshot(self, path: str | os.PathLike[str], *, end_offset: int | None = None) -> Snapshot:
        """Put the log as it is now into the new directory `path`, named like a log; appends go on meanwhile.

        A snapshot opens as a log and never changes with this one. Its sealed segments share their files by
        hard links: it costs a call a file, and no room until retention, compaction or a truncation removes
        them here. It ends at the high watermark (the log end of a log that stands alone), or before the batch
        that holds `end_offset`. Durable when it returns; a crash leaves all of it or nothing. Raises
        `InvalidTopic`, `FileExistsError`, `OffsetOutOfRange`, `DamagedLog`, `DiskFull`, `LogDirOffline`,
        `OSError`.
        """
        return snapshot_of(self.partition, os.fspath(path), end_offset)

    def losses(self) -> list[Loss]:
        """Return what truncations, restarts and recoveries removed from this log, oldest first.

        Raises `OSError`.
        """
        return self.partition.quarantine.losses()

    # --- reading --------------------------------------------------------------------------------------

    def get(self, offset: int, *, isolation: FetchIsolation = FetchIsolation.LOG_END) -> Record | None:
        """Return the record with this offset; None if it was compacted away, aborted, or a control record.

        Reads one batch. With TXN_COMMITTED the end is the last stable offset. Raises `OffsetOutOfRange`
        outside of [log start, end), and as `read` where the log is damaged.
        """
        return self._lookup.get(index(offset), isolation)

    def __getitem__(self, offset: int) -> Record:
        """Return the record with this offset. Raises as `get`, and `LookupError` if there is none."""
        if isinstance(offset, slice):
            raise TypeError("a log has no slices; use log.read(start, end)")
        record = self.get(offset)
        if record is None:
            raise LookupError(f"no record at offset {offset}: compacted away, or a control record")
        return record

    def read(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        max_records: int | None = None,
        isolation: FetchIsolation = FetchIsolation.LOG_END,
    ) -> Iterator[Record]:
        """Yield the records from `start_offset` (default: the log start) to the end, without control records.

        Stops before `end_offset` and after `max_records`. With TXN_COMMITTED the end is the last stable
        offset, and aborted records are left out. Raises as `read_bytes`, and `CorruptBatch` or
        `InvalidRecord` where the log is damaged.
        """
        first = self.partition.log_start_offset if start_offset is None else index(start_offset)
        end = MAX_LONG if end_offset is None else index(end_offset)
        return islice(_records(self.partition, first, end, isolation), max_records)

    def read_batches(
        self, start_offset: int | None = None, *, isolation: FetchIsolation = FetchIsolation.LOG_END
    ) -> Iterator[Batch]:
        """Yield the batches from `start_offset` (default: the log start) to the end as it is when reached.

        Includes control batches; with TXN_COMMITTED no records of aborted transactions. Checksums were
        checked when the batches came in; `Batch.check_crc` checks again. Raises as `read_bytes`, and
        `CorruptBatch` for an impossible offset or epoch: no checksum covers them.
        """
        first = self.partition.log_start_offset if start_offset is None else start_offset
        return iter_batches(self.partition, first, isolation)

    def read_bytes(
        self,
        start_offset: int,
        max_bytes: int = READ_BYTES,
        *,
        isolation: FetchIsolation = FetchIsolation.LOG_END,
        at_least_one: bool = True,
    ) -> FetchedBytes:
        """Return whole batches from `start_offset` as bytes, at most `max_bytes` of them.

        The first may begin below `start_offset`. With `at_least_one` it is returned even if it alone is
        larger. At or past the end for `isolation` nothing is returned. With TXN_COMMITTED the aborted
        transactions among the batches are listed. Raises `OffsetOutOfRange` outside of [log start, log end],
        `CorruptBatch` or `CorruptIndex` if the log is damaged.
        """
        return read_bytes(
            self.partition, start_offset, max_bytes, isolation=isolation, at_least_one=at_least_one
        )

    def read_arrow(
        self,
        start_offset: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_records: int | None = None,
        isolation: FetchIsolation = FetchIsolation.LOG_END,
    ) -> Iterator[Any]:
        """Yield the records of `read` as `pyarrow.RecordBatch`es, some megabytes of log in each.

        `columnar.decode` documents the columns and errors; raises also as `read_bytes`, and `ImportError`
        without the extra `arrow`.
        """
        columnar = _columnar()
        names = columnar.COLUMNS if columns is None else columns
        columnar.schema(names)  # raise for a wrong name now, not at the first item
        decode = partial(columnar.decode, columns=names, max_records=max_records)
        return _decoded(self.partition, start_offset, isolation, columnar.PIECE_BYTES, decode)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, isolation: FetchIsolation = FetchIsolation.LOG_END
    ) -> TimestampOffset | None:
        """Return the first record whose time is at or past `timestamp_ms`; None if there is none."""
        return offset_for_timestamp(self.partition, timestamp_ms, isolation=isolation)


def _synced(log: PartitionLog, result: AppendInfo) -> AppendInfo:
    log.sync_up_to(result.last_offset + 1)
    return result._replace(is_synced=True)


def _target_bytes(log: PartitionLog) -> int:
    return max(log.config.max_message_bytes // 2, 1)


def _compression_of(config: LogConfig) -> Compression:
    kind = config.compression_type
    if kind in ("producer", "uncompressed"):
        return PLAIN
    return Compression(Codec[kind.upper()], config.compression_level)


def _records(log: PartitionLog, first: int, end: int, isolation: FetchIsolation) -> Iterator[Record]:
    for batch in iter_batches(log, first, isolation, until=end):
        if batch.is_control:
            continue
        batch.check_crc()
        if batch.base_offset >= first and batch.next_offset <= end:
            yield from batch.records()
        else:
            yield from (record for record in batch.records() if first <= record.offset < end)


def _decoded(
    log: PartitionLog,
    start_offset: int | None,
    isolation: FetchIsolation,
    max_bytes: int,
    decode: Callable[[FetchedBytes], Iterator[Any]],
) -> Iterator[Any]:
    offset = log.log_start_offset if start_offset is None else start_offset
    while (fetched := read_bytes(log, offset, max_bytes, isolation=isolation)).records:
        yield from decode(fetched)
        offset = fetched.next_offset


def _columnar() -> ModuleType:
    try:
        from logstore.columnar import columnar
    except ImportError as error:
        raise ImportError("Arrow columns need the extra `arrow`: pip install 'pylogstore[arrow]'") from error
    return columnar


def _has_items(records: object) -> bool:
    # Text is not split into characters, and a mapping not read for its keys alone.
    return isinstance(records, Iterable | Batch) and not isinstance(records, str | Mapping)

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

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from logstore.arguments import Path, as_bool, as_config, as_directory, as_int, as_offset
from logstore.config import MAX_LONG, LogConfig
from logstore.disk.closing import Closing
from logstore.disk.files import Buffer, Disk, as_disk, wall_clock_ms
from logstore.errors import LogClosed, OffsetOutOfRange, without_shortage
from logstore.format.record import ControlType, Record
from logstore.log.append import AppendInfo, append_end_transaction, nothing_appended
from logstore.log.cursors import Cursor
from logstore.log.following import Follower
from logstore.log.loading import Progress
from logstore.log.lookup import Lookup
from logstore.log.losses import Loss
from logstore.log.outgoing import (
    STAND_ALONE_EPOCH,
    Appendable,
    append_ready,
    append_records,
    append_value,
    begin_short_path,
    compression_of,
    full_batch_bytes,
)
from logstore.log.partition_log import Clock, PartitionLog
from logstore.log.read import (
    READ_BYTES,
    FetchedBytes,
    FetchIsolation,
    Isolation,
    Piece,
    TimestampOffset,
    iter_pieces,
    offset_for_timestamp,
    read_bytes,
)
from logstore.log.reading import Reading, columnar_module
from logstore.log.retention import Expired
from logstore.log.serializers import Serializable, Serializer, serialized, serializer_of
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
from logstore.log.waiters import Unwatch, Waiter

if TYPE_CHECKING:
    from logstore.compact.cleaner_config import CleanerConfig
    from logstore.compact.compaction_pass import PassReport
    from logstore.log.scrub import Cursor as ScrubCursor
    from logstore.log.scrub import Scrubbed
    from logstore.log.snapshot import Snapshot
    from logstore.log.writer import Writer

__all__ = ["AppendInfo", "Appendable", "FetchIsolation", "FetchedBytes", "Log", "TimestampOffset"]


class Log(Reading, Closing):
    """A log of records on disk. Offsets are absolute; every method may be called from any thread.

    `partition` is the engine below it: its bounds, segments, epochs and settings, and the state that the
    functions of `append`, `read`, `truncate` and `upkeep` work on.
    """

    __slots__ = ("__weakref__", "_is_closing", "_lookup", "_writers", "partition", "serializer")

    def __init__(self, partition: PartitionLog, serializer: Serializer | None = None) -> None:
        """Wrap an open `PartitionLog`; applications call `Log.open` or ask a `LogManager`.

        Raises `TypeError` for anything else.
        """
        if not isinstance(partition, PartitionLog):
            raise TypeError(
                f"Log(…) wraps an open partition, not {type(partition).__name__}; use Log.open(path)"
            )
        self.partition = partition
        self.serializer = serializer
        """What turns appended values that are not bytes into bytes; None: such values are refused."""
        self._lookup: Lookup | None = None
        """The cache of `get`, made at its first call."""
        self._writers: list[Writer] = []
        self._is_closing = False

    @classmethod
    def open(
        cls,
        path: Path,
        config: LogConfig | None = None,
        *,
        serializer: Serializer | Literal["json", "msgpack"] | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        create: bool = True,
        progress: Progress | None = None,
        accept_loss: bool = False,
    ) -> Log:
        """Open the log in directory `path`, named `<topic>-<partition>`, or create it.

        With `create=False` raise `LogGone` instead of creating it: a program that expects its log learns that
        the path is wrong, or its disk not mounted.

        With a `serializer` values of other types than bytes can be appended: "json", "msgpack", or an object
        with `dumps` and `loads` (`serializers.py`). `log.serializer.loads(record.value)` returns them.

        Locks the directory and recovers it after an unclean stop. Raises `InvalidTopic` for another name,
        `DirectoryLocked` if it is open elsewhere, `LogDirOffline` if the directory cannot be used, `DiskFull`
        if there is no space for the files that opening writes, and `DamagedLog` if synced batches are gone or
        changed: no batch was touched then. With `accept_loss` the log is cut where the damage begins, or
        begins with the first segment that is left, and `partition.report.damages` lists the damage.
        """
        chosen = None if serializer is None else serializer_of(serializer)
        partition = open_stand_alone(
            as_directory(path),
            as_config(config, LogConfig, 'LogConfig.from_kafka({"segment.bytes": …}) reads a mapping'),
            as_disk(disk),
            clock or wall_clock_ms,
            create=as_bool(create, "create"),
            progress=progress,
            accept_loss=as_bool(accept_loss, "accept_loss"),
        )
        return cls(partition, chosen)

    def __repr__(self) -> str:
        return repr(self.partition)

    def close(self) -> None:
        """Close the writers, flush, write the files for the next open, and release the directory.

        Closing twice is harmless. Raises `LogDirOffline` or `DiskFull` if something cannot be written: the
        next open then recovers the log; and as `Writer.close`. The directory is released in any case.
        """
        self._is_closing = True
        with ExitStack() as stack:
            stack.callback(self.partition.close)
            while self._writers:
                stack.callback(self._writers.pop().close)

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
        records: Appendable | Iterable[Appendable] | Serializable,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        sync: bool = False,
    ) -> AppendInfo:
        """Append one record, many records, or ready batches.

        `records` is a value (bytes, or None for a tombstone) with `key` and `headers`; or a `Record`, a
        (key, value) pair or a `Batch`; or an iterable of these. A log with a serializer takes other values
        too: text, mappings, dataclasses and models are one value each, other iterables many. Consecutive
        records share a batch, compressed as `compression.type` says. Times default to `timestamp_ms`, else to
        now. With `sync` the call returns once the records survive power loss; concurrent callers share one
        fsync.

        Raises `InvalidRecord`, `InvalidTimestamp`, `RecordTooLarge`, `RecordBatchTooLarge`,
        `UnsupportedCompression`, `DiskFull` or `LogDirOffline`; batches before a refused one stay appended.
        An empty iterable appends nothing.
        """
        log = self.partition
        if type(records) is bytes and key is None and not headers and timestamp_ms is None:
            result = append_value(log, records, log.clock())
            if result is None:
                result = append_records(log, records)
                begin_short_path(log)
        else:
            ready = records if self.serializer is None else serialized(self.serializer, records)
            result = append_records(log, ready, key=key, headers=headers, timestamp_ms=timestamp_ms)
        return _synced(log, result) if sync else result

    def writer(self, *, linger_ms: float = 5, max_batch: int = 1000) -> Writer:
        """Return a writer, which packs single appends of any number of threads into batches.

        A record is written within `linger_ms` of its append, earlier if `max_batch` records or half of
        `max.message.bytes` or `segment.bytes` are together. `Writer.append` returns a `Pending`, which tells
        whether its record is written and whether it is synced. Raises `ValueError` for settings out of range,
        `LogClosed` and `LogDirOffline`.
        """
        from logstore.log.writer import Writer

        self.partition.check_writable()
        writer = Writer(self.partition, self.serializer, linger_ms=linger_ms, max_batch=max_batch)
        self._writers.append(writer)
        if self._is_closing:  # meanwhile, and perhaps without this writer
            writer.close()
            raise LogClosed(f"{self.partition.directory} was closed; open it again")
        for each in self._writers.copy():
            if each.is_closed:
                with suppress(ValueError):  # another thread has removed it
                    self._writers.remove(each)
        return writer

    def append_batches(self, data: Buffer, *, sync: bool = False) -> AppendInfo:
        """Append ready batches that lie end to end in `data`.

        Raises as `append`, and `CorruptBatch` for bytes that are no batch, a torn last batch among them;
        batches before a refused one stay appended.
        """
        result = append_ready(self.partition, data)
        return _synced(self.partition, result) if sync else result

    def append_arrow(self, rows: Any, *, timestamp_ms: int | None = None, sync: bool = False) -> AppendInfo:
        """Append the rows of a `pyarrow.Table` or `RecordBatch`.

        `columnar.encode` documents their columns and errors; batches are made as `append` makes them. Times
        default to `timestamp_ms`, else to now, if there is no such column. Raises also as `append_batches`;
        batches before a refused one stay appended. `ImportError` without the extra `arrow`.
        """
        log, compression = self.partition, compression_of(self.partition.config)
        result = nothing_appended(log)
        for batches in columnar_module().encode(
            rows,
            codec=compression.codec,
            level=compression.level,
            batch_bytes=full_batch_bytes(log.config),
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
                as_int(producer_id, "producer_id"),
                as_int(producer_epoch, "producer_epoch"),
                ControlType.COMMIT if as_bool(commit, "commit") else ControlType.ABORT,
                coordinator_epoch=STAND_ALONE_EPOCH,
                leader_epoch=max(log.latest_epoch, STAND_ALONE_EPOCH),
                now_ms=log.clock(),
            )

    def is_synced(self, offset: int) -> bool:
        """Return whether the record at `offset` survives power loss here. Raises `OffsetOutOfRange`.

        For the copies on replicas, ask the broker that leads the partition (`Broker.durability`).
        """
        log, offset = self.partition, as_offset(offset)
        if not log.log_start_offset <= offset < log.log_end_offset:
            raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
        return offset < log.recovery_point

    # --- maintenance ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make every appended record survive power loss, then move the recovery point.

        Raises `LogDirOffline` if that fails: the log accepts no more appends until it is recovered. Raises
        `LogClosed`.
        """
        self.partition.check_writable()
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
        now_ms = log.clock() if now_ms is None else as_int(now_ms, "now_ms")
        flush_by_age(log, now_ms)
        remove_expired_producers(log, now_ms)
        deleted = delete_old_segments(log, now_ms)
        remove_deleted_files(log, now_ms)
        expire_losses(log, now_ms)
        if log.config.is_compacted:
            from logstore.compact.cleanable import cleanable_of

            if cleanable_of(log, now_ms).is_due(log.config):
                self.compact(now_ms)
        return deleted

    def compact(
        self, now_ms: int | None = None, *, settings: CleanerConfig | None = None
    ) -> tuple[PassReport, ...]:
        """Keep only the last record of each key, however little this saves; returns a report of each pass.

        Records in the active segment, too young or not decided yet stay. Appends and reads continue
        meanwhile. If the keys do not fit `settings.dedupe_buffer_size`, several passes run; if nothing new
        can be compacted, none. A truncation aborts the pass and ends the call. Raises `ValueError` unless
        `cleanup.policy` has compact, `CorruptBatch`, `InvalidRecord`, `CorruptIndex` or
        `UnsupportedCompression` for records that cannot be read, `DiskFull`, `LogDirOffline`.
        """
        log = self.partition
        if not log.config.is_compacted:
            raise ValueError(
                f"{log.directory} has cleanup.policy={log.config.cleanup_policy}; it must contain compact"
            )
        from logstore.compact.cleanable import cleanable_of
        from logstore.compact.cleaner_config import CleanerConfig
        from logstore.compact.compaction_pass import compaction_pass, run

        now_ms = log.clock() if now_ms is None else as_int(now_ms, "now_ms")
        reports: list[PassReport] = []
        while (cleanable := cleanable_of(log, now_ms)).cleanable_bytes:
            reports.append(run(compaction_pass(log, cleanable, settings or CleanerConfig(), now_ms=now_ms)))
            if reports[-1].is_complete or reports[-1].was_aborted:
                break
        return tuple(reports)

    def scrub(self, cursor: ScrubCursor | None = None, *, max_bytes: int = MAX_LONG) -> Scrubbed:
        """Read the log and report every range that differs from its seal or its checksums.

        Reads about `max_bytes` from `cursor` on (default: all of the log); pass the result's `cursor` to the
        next call to continue. Records stay as they are. Index files, the epoch file, seals and producer
        snapshots that differ from the log are rebuilt and listed in the result, as are bad batches below the
        log start, which are left out and kept in quarantine. Raises `LogClosed`, `DiskFull`,
        `OutOfResources`, `LogDirOffline`, or `OSError` if the disk cannot be read.
        """
        from logstore.log.heal import leave_out_deleted
        from logstore.log.scrub import scrub_for

        log = self.partition
        if not isinstance(cursor, tuple | None):
            raise TypeError(f"cursor is the cursor of an earlier result, not {cursor!r:.100}")
        max_bytes = as_int(max_bytes, "max_bytes")
        log.check_writable()
        with without_shortage(log.directory, "the scrub did not end"):
            found = scrub_for(log, cursor, max_bytes)
            return leave_out_deleted(log, found, now_ms=log.clock()) if found.damages else found

    def delete_records(self, offset: int) -> int:
        """Stop serving records below `offset` (-1: all of them); returns the log start offset.

        Durable when it returns. Segments that hold nothing else go with the next `maintain`. Raises
        `PolicyViolation` if `cleanup.policy` lacks delete, `OffsetOutOfRange`, `DiskFull` or `LogDirOffline`.
        """
        return delete_records(self.partition, as_offset(offset))

    def truncate_to(self, offset: int, *, why: str = "its owner cut it") -> bool:
        """Remove everything at or past `offset`, which becomes the log end; False if nothing was there.

        The batch that holds `offset` goes as a whole. The removed records go to quarantine (`losses`), with
        `why` in the loss ledger. Durable when it returns. Raises `ValueError` for a negative offset,
        `DiskFull` with nothing changed, and `LogDirOffline`.
        """
        return truncate_to(self.partition, as_offset(offset), why=why)

    def snapshot(self, path: Path, *, end_offset: int | None = None) -> Snapshot:
        """Copy the log as it is now into the new directory `path`, named like a log, during appends.

        A snapshot opens as a log and never changes with this one. Its sealed segments share their files by
        hard links: it costs a call a file, and no room until retention, compaction or a truncation removes
        them here. It ends at the high watermark (the log end of a log that stands alone), or before the batch
        that holds `end_offset`. Durable when it returns; a crash leaves all of it or nothing. Raises
        `InvalidTopic`, `FileExistsError`, `OffsetOutOfRange`, `DamagedLog`, `DiskFull`, `OutOfResources`,
        `LogDirOffline`, `OSError`.
        """
        from logstore.log.snapshot import snapshot_of

        with without_shortage(self.partition.directory, "there is no snapshot"):
            return snapshot_of(self.partition, as_directory(path), end_offset)

    def losses(self) -> list[Loss]:
        """Return the data that truncations, restarts and recoveries removed from this log, oldest first.

        Raises `OutOfResources` or `OSError`.
        """
        with without_shortage(self.partition.directory, "nothing was read"):
            return self.partition.quarantine.losses()

    # --- reading --------------------------------------------------------------------------------------

    def get(self, offset: int, *, isolation: Isolation = FetchIsolation.LOG_END) -> Record | None:
        """Return the record with this offset; None if it was compacted away, aborted, or a control record.

        Reads one batch. With TXN_COMMITTED the end is the last stable offset. Raises `OffsetOutOfRange`
        outside of [log start, end), and as `read` where the log is damaged.
        """
        if type(isolation) is not FetchIsolation:
            isolation = FetchIsolation(isolation)
        if (lookup := self._lookup) is None:
            lookup = self._lookup = Lookup(self.partition)
        return lookup.get(as_offset(offset), isolation)

    def _pieces(self, first: int, end: int, isolation: Isolation) -> Iterator[Piece]:
        return iter_pieces(self.partition, first, FetchIsolation(isolation), until=end)

    def read_bytes(
        self,
        start_offset: int,
        max_bytes: int = READ_BYTES,
        *,
        end_offset: int | None = None,
        isolation: Isolation = FetchIsolation.LOG_END,
        at_least_one: bool = True,
    ) -> FetchedBytes:
        """Return whole batches from `start_offset` as bytes, at most `max_bytes` of them.

        The first may begin below `start_offset`. With `at_least_one` it is returned even if it alone is
        larger. At or past `end_offset` and the end for `isolation` nothing is returned. With TXN_COMMITTED
        the aborted transactions among the batches are listed. Raises `OffsetOutOfRange` outside of
        [log start, log end], `CorruptBatch` or `CorruptIndex` if the log is damaged.
        """
        return read_bytes(
            self.partition,
            as_offset(start_offset),
            as_int(max_bytes, "max_bytes"),
            until=MAX_LONG if end_offset is None else as_offset(end_offset),
            isolation=FetchIsolation(isolation),
            at_least_one=at_least_one,
        )

    def follow(
        self,
        offset: int | None = None,
        timeout: float | None = None,
        *,
        isolation: Isolation = FetchIsolation.LOG_END,
    ) -> Follower:
        """Yield the records from `offset` on (default: the log start), and wait for more at the end.

        Ends after `timeout` seconds without a record; None waits for ever. An append wakes the follower.
        Raises `OffsetOutOfRange` if retention passed the next offset, `LogTruncated` if records that were
        returned were cut, also if others have their offsets by now, `LogClosed` or `LogDirOffline` if no
        record can follow; otherwise as `read`.
        """
        bound = FetchIsolation(isolation)
        return Follower(
            lambda offset: self.read_batches(offset, isolation=bound),
            partial(_watch, self.partition),
            lambda: self.log_start_offset,
            self.log_start_offset if offset is None else as_offset(offset),
            timeout,
            settle=partial(_settle, self.partition),
        )

    def cursor(self, name: str, *, isolation: Isolation = FetchIsolation.LOG_END) -> Cursor:
        """Return the cursor `name`: a position that is kept with the log (`Cursor.commit`).

        It continues at the committed offset, and without one at the log start.
        """
        return Cursor(self, name, FetchIsolation(isolation))

    def cursors(self) -> dict[str, int]:
        """Return the committed offset of every cursor, by name."""
        return dict(self.partition.cursors.offsets)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, isolation: Isolation = FetchIsolation.LOG_END
    ) -> TimestampOffset | None:
        """Return the first record whose time is at or past `timestamp_ms`; None if there is none."""
        time_ms = as_offset(timestamp_ms, "timestamp_ms")
        return offset_for_timestamp(self.partition, time_ms, isolation=FetchIsolation(isolation))


def _watch(log: PartitionLog, waiter: Waiter) -> Unwatch:
    log.check_writable()  # nothing would wake it
    return log.waiters.add(waiter)


def _settle(log: PartitionLog) -> None:
    with log.lock:
        pass  # whoever truncates holds it


def _synced(log: PartitionLog, result: AppendInfo) -> AppendInfo:
    log.sync_up_to(result.last_offset + 1)
    return result._replace(is_synced=True)

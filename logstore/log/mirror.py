"""Copy a log into another directory, in pieces, while it is used.

    .log of each segment, oldest first ──▶ sync, then the files derived from it ──▶ the next segments
                     ▲                                                                  │
                     └──── segments that changed, and what was appended ◀───────────────┘

A copy has the files of the log, byte for byte, under the same names. Each is of one segment as it was at a
moment: if the log is cut, compacted or mended, the copies of segments that changed are made again, and those
of segments that went are removed. A segment's seal is copied last, when everything else of the segment is
durable. So after a restart, a copy whose seal is the segment's own is whole, and the rest is made again.

Nothing here renames a directory; `moves.py` does, once `complete` has said that the copy is the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT, format_leader_epoch_checkpoint
from logstore.checkpoint.identity import PARTITION_METADATA, format_partition_metadata
from logstore.disk.copying import remove_tree
from logstore.disk.files import Disk, publish, put_in_place, read_small_file, remove_if_exists
from logstore.disk.marks import mark
from logstore.log.cursor_file import CURSORS_FILE, CursorFile, format_cursors
from logstore.log.loading import ARRIVING
from logstore.log.losses import LEDGER, LOST_DIRECTORY, Quarantine
from logstore.log.partition_log import LogOwner, PartitionLog
from logstore.log.producer_snapshots import ProducerSnapshots
from logstore.segment.indexes import OffsetIndex, TimeIndex
from logstore.segment.seal import SEAL_SUFFIX, Seal
from logstore.segment.segment import (
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    DeletedFiles,
    Segment,
    file_name,
)
from logstore.segment.transaction_index import TRANSACTION_INDEX_SUFFIX

SYNC_BYTES: Final = 32 << 20
"""How much is copied before it is synced."""
CLOSE_BYTES: Final = 1 << 20
"""Of so little, the rest can be copied at once."""
_LAST_BYTES: Final = 8 << 20
"""What `complete` copies at most: more than what is appended during a flush."""
_SEGMENTS_A_STEP: Final = 64
_PIECE_BYTES: Final = 1 << 20
_LARGEST_SMALL_FILE: Final = 1 << 31
_DERIVED: Final = (OffsetIndex.suffix, TimeIndex.suffix, TRANSACTION_INDEX_SUFFIX)

Version: TypeAlias = tuple[int, int]
"""Changes with every cut of a log: its `cuts` and its `generation`."""


@dataclass(slots=True)
class Copy:
    """The copy of one segment, as it was at `version` of its log.

    `size` bytes of the `.log` are copied, `synced` of them durable. `seal` is the segment's at that time.
    `is_whole`: the derived files and the seal are there too, durably.
    """

    segment: Segment
    version: Version
    seal: Seal | None = None
    size: int = 0
    synced: int = 0
    is_whole: bool = False


def is_of(copy: Copy, segment: Segment, version: Version) -> bool:
    """Return whether the copied bytes are still those of the segment. Pure."""
    if copy.segment is not segment or copy.size > segment.size:
        return False
    # A cut removes the seal of the segment that it cuts, and of no other one that stays.
    return copy.version == version or (copy.seal is not None and copy.seal is segment.seal)


class CannotRead(Exception):
    """The log's own files cannot be read now, or changed meanwhile; the copy is not at fault."""


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotRead(str(error)) from error


class Left(NamedTuple):
    """The remaining work of a copy. `missing` counts bytes of `.log` files."""

    missing: int
    unfinished: int
    """Segments behind which others follow, whose copies are not whole."""


def left_of(copies: Mapping[int, Copy], segments: Iterator[Segment], active: Segment) -> Left:
    """Return what is left to do. Pure."""
    missing = unfinished = 0
    for segment in segments:
        copy = copies.get(segment.base_offset)
        missing += segment.size - (copy.size if copy is not None else 0)
        if segment is not active and (copy is None or not copy.is_whole or copy.seal is not segment.seal):
            unfinished += 1
    return Left(missing, unfinished)


class Mirror:
    """The copy of an open log in another directory, which exists and is this one's alone.

    `step` and `complete` belong to the log's writer; `sync` may run in another thread meanwhile. They raise
    `OSError` of the copy's disk and `CannotRead`, with the log as it was.
    """

    def __init__(self, log: PartitionLog, directory: str) -> None:
        """Begin, or go on with what an earlier process copied."""
        self._log, self._disk, self._directory = log, log.disk, directory
        self._copies: dict[int, Copy] = {}
        self._snapshots: set[int] = set()
        self._written: dict[str, bytes] = {}
        self._synced_version: Version | None = None
        self._has_ended = False
        self._names_lock = Lock()
        self.unsynced = 0
        """Bytes that were copied since the last `sync`."""
        self._adopt()

    # --- facts ------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The bytes of `.log` files that are copied."""
        return sum(copy.size for copy in self._copies.values())

    @property
    def left(self) -> Left:
        """Return the remaining work."""
        segments = self._log.segments
        return left_of(self._copies, iter(segments), segments.active)

    @property
    def is_close(self) -> bool:
        """Whether so little is missing that it can be copied at once."""
        return self.left.missing <= CLOSE_BYTES

    @property
    def log_end_offset(self) -> int:
        """About where the copied part ends: inside a segment, as far as its share of the bytes."""
        log = self._log
        for segment in log.segments:
            copy = self._copies.get(segment.base_offset)
            if copy is None or copy.size < segment.size:
                after = log.segments.higher(segment.base_offset)
                end_offset = log.log_end_offset if after is None else after.base_offset
                share = 0.0 if copy is None else copy.size / segment.size
                return segment.base_offset + int((end_offset - segment.base_offset) * share)
        return log.log_end_offset

    @property
    def _version(self) -> Version:
        return self._log.cuts, self._log.generation

    def _target(self, base_offset: int, suffix: str) -> str:
        return f"{self._directory}/{file_name(base_offset, suffix)}"

    # --- copying ----------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Take over the whole copies that are there; remove everything else."""
        if read_small_file(self._disk, f"{self._directory}/{ARRIVING}") is None:
            mark("mirror: the directory of a copy lacks its mark")
            publish(self._disk, self._directory, ARRIVING, b"")
        there = {entry.name: entry for entry in self._disk.scan(self._directory)}
        # The quarantine is copied again: after a power cut, a file of the right size may lack its content.
        kept = {ARRIVING} if self._log.topic_id is None else {ARRIVING, PARTITION_METADATA}
        active = self._log.segments.active
        for segment in self._log.segments:
            base_offset, seal = segment.base_offset, segment.seal
            log = there.get(file_name(base_offset, LOG_SUFFIX))
            if segment is active or seal is None or log is None or log.size != segment.size:
                continue
            if read_small_file(self._disk, self._target(base_offset, SEAL_SUFFIX)) == seal.encode():
                mark("mirror: a copy made before a restart is whole")
                size = segment.size
                copy = Copy(segment, self._version, seal, size, size, is_whole=True)
                self._copies[base_offset] = copy
                kept |= {file_name(base_offset, suffix) for suffix in SEGMENT_SUFFIXES}
        for name in there.keys() - kept:
            if there[name].is_directory:
                remove_tree(self._disk, f"{self._directory}/{name}")
            else:
                self._disk.remove(f"{self._directory}/{name}")

    def step(self, most_bytes: int) -> int:
        """Copy up to `most_bytes` of the missing data; return the number of copied bytes."""
        self._drop_what_changed()
        copied, begun, version = 0, 0, self._version
        for segment in self._log.segments:
            copy = self._copies.get(segment.base_offset)
            if copy is None:
                copy = self._copies[segment.base_offset] = self._begin(segment, version)
                begun += 1
            while copy.size < segment.size and copied < most_bytes:
                copied += self._copy_piece(copy, most_bytes - copied)
            if copied >= most_bytes or begun >= _SEGMENTS_A_STEP:
                break
        self.unsynced += copied
        return copied

    def _begin(self, segment: Segment, version: Version) -> Copy:
        with closing(self._disk.open(self._target(segment.base_offset, LOG_SUFFIX), create=True)) as file:
            file.truncate(0)
        return Copy(segment, version, segment.seal)

    def _copy_piece(self, copy: Copy, most_bytes: int) -> int:
        segment = copy.segment
        with _reading(), segment.log_for_reading() as file:
            data = file.pread(min(most_bytes, segment.size - copy.size), copy.size)
        if not data:
            raise CannotRead(f"{segment.path(LOG_SUFFIX)} ends before byte {segment.size}")
        with closing(self._disk.open(self._target(segment.base_offset, LOG_SUFFIX), write=True)) as file:
            file.pwrite(data, copy.size)
        copy.size += len(data)
        return len(data)

    def _drop_what_changed(self) -> None:
        segments, version = self._log.segments, self._version
        for base_offset, copy in list(self._copies.items()):
            segment = segments.get(base_offset)
            if segment is not None and is_of(copy, segment, version):
                copy.version = version
                continue
            mark("mirror: the copy of a segment that changed or went is dropped")
            del self._copies[base_offset]
            # The seal first: what is left by a crash must not pass for whole.
            for suffix in reversed(SEGMENT_SUFFIXES):
                remove_if_exists(self._disk, self._target(base_offset, suffix))

    # --- making it durable ------------------------------------------------------------------------

    def sync(self) -> None:
        """Sync the copied data, and copy the derived files of complete segments but the active one."""
        log, disk = self._log, self._disk
        with log.lock:
            version, active = self._version, log.segments.active
            todo = [copy for copy in self._copies.values() if self._is_to_sync(copy, active)]
            sizes = [copy.size for copy in todo]
            complete = [
                copy for copy in todo if copy.segment is not active and copy.size == copy.segment.size
            ]
            seals = [copy.segment.seal for copy in complete]
            snapshots = list(log.snapshots.offsets)
        self.unsynced = 0
        for copy, size in zip(todo, sizes, strict=True):
            if copy.synced < size:
                with closing(
                    disk.open(self._target(copy.segment.base_offset, LOG_SUFFIX), write=True)
                ) as file:
                    file.sync()
                copy.synced = size
        for copy in complete:
            for suffix in _DERIVED:
                self._copy_small(file_name(copy.segment.base_offset, suffix), is_synced=True)
        renewed = version != self._synced_version
        for offset in snapshots:
            if renewed or offset not in self._snapshots:
                self._copy_snapshot(offset)
        self._copy_losses()
        self._write_state()
        disk.sync_dir(self._directory)
        for copy, seal in zip(complete, seals, strict=True):
            if seal is not None:
                name = file_name(copy.segment.base_offset, SEAL_SUFFIX)
                put_in_place(disk, self._directory, name, seal.encode())
            copy.seal, copy.is_whole = seal, True
        disk.sync_dir(self._directory)
        self._synced_version = version

    def _sync_log(self, segment: Segment) -> None:
        with closing(self._disk.open(self._target(segment.base_offset, LOG_SUFFIX), write=True)) as file:
            file.sync()

    def _is_to_sync(self, copy: Copy, active: Segment) -> bool:
        return copy.segment is active or not copy.is_whole or copy.seal is not copy.segment.seal

    def _copy_small(self, name: str, *, is_synced: bool = False) -> bool:
        """Copy a file if it exists, else remove its copy; return whether it exists."""
        with _reading():
            data = read_small_file(self._disk, f"{self._log.directory}/{name}", limit=_LARGEST_SMALL_FILE)
        if data is None:
            remove_if_exists(self._disk, f"{self._directory}/{name}")
            return False
        with closing(self._disk.open(f"{self._directory}/{name}", create=True, write=True)) as file:
            file.truncate(0)
            file.pwrite(data, 0)
            if is_synced:
                file.sync()
        return True

    def _copy_snapshot(self, offset: int) -> None:
        if self._copy_small(file_name(offset, SNAPSHOT_SUFFIX)):
            self._snapshots.add(offset)

    def _write_state(self) -> None:
        """Write the small files that hold a part of the log's state, where they differ from it."""
        log = self._log
        wanted = {LEADER_EPOCH_CHECKPOINT: format_leader_epoch_checkpoint(log.epochs)}
        if log.topic_id is not None:
            wanted[PARTITION_METADATA] = format_partition_metadata(log.topic_id)
        if log.cursors.offsets or CURSORS_FILE in self._written:
            wanted[CURSORS_FILE] = format_cursors(log.cursors.offsets)
        for name, data in wanted.items():
            if self._written.get(name) != data:
                put_in_place(self._disk, self._directory, name, data)
                self._written[name] = data

    def _copy_losses(self) -> None:
        """Copy the loss ledger and what is in quarantine; files there never change, but for the ledger."""
        disk, source, target = self._disk, _lost(self._log.directory), _lost(self._directory)
        with _reading():
            names = _sizes(disk, source)
        for name in _sizes(disk, target).keys() - names.keys() - {LEDGER}:
            remove_tree(disk, f"{target}/{name}")
        if not names:
            return
        self._make_dir(target)
        for name in names.keys() - {LEDGER}:
            with _reading():
                sizes = _sizes(disk, f"{source}/{name}")
            self._make_dir(f"{target}/{name}")
            there = _sizes(disk, f"{target}/{name}")
            for each in (each for each, size in sizes.items() if there.get(each) != size):
                self._copy_whole(f"{source}/{name}/{each}", f"{target}/{name}/{each}")
            disk.sync_dir(f"{target}/{name}")
        if LEDGER in names:
            # Last: an entry promises bytes.
            self._copy_whole(f"{source}/{LEDGER}", f"{target}/{LEDGER}")
        disk.sync_dir(target)

    def _make_dir(self, path: str) -> None:
        with self._names_lock:
            if self._has_ended:
                raise CannotRead(f"the copy {self._directory} is given up")
            self._disk.make_dir(path)

    def end(self) -> None:
        """Stop a running `sync` from creating directories: the copy is about to be renamed."""
        with self._names_lock:
            self._has_ended = True

    def _copy_whole(self, source: str, target: str) -> None:
        at = 0
        with closing(self._disk.open(target, create=True, write=True)) as copy:
            copy.truncate(0)
            while True:
                with _reading(), closing(self._disk.open(source)) as file:
                    data = file.pread(_PIECE_BYTES, at)
                if not data:
                    break
                copy.pwrite(data, at)
                at += len(data)
            copy.sync()

    def _losses_are_copied(self) -> bool:
        with _reading():
            sizes = _sizes(self._disk, _lost(self._log.directory))
        return sizes == _sizes(self._disk, _lost(self._directory))

    # --- the end ----------------------------------------------------------------------------------

    def complete(self) -> bool:
        """Copy the rest, and return whether the directory is now the whole log, as durable as the log is.

        False if too much is missing: continue with `step` and `sync`. The caller holds the log's lock and
        `compaction_lock`, and excludes flushes.
        """
        log, disk, active = self._log, self._disk, self._log.segments.active
        self._drop_what_changed()
        if self.left.missing > _LAST_BYTES or self._synced_version != self._version:
            return False
        self.step(_LAST_BYTES + 1)
        if self.left != Left(0, 0) or not self._losses_are_copied():
            return False
        # As when the log is closed: opened at its new place, the indexes must fit their segment.
        with _reading():
            active.become_inactive()
            active.indexes.offsets.flush()
            active.indexes.times.flush()
        for suffix in _DERIVED:
            # Nothing else would reveal that the last one is missing.
            is_synced = suffix == TRANSACTION_INDEX_SUFFIX
            self._copy_small(file_name(active.base_offset, suffix), is_synced=is_synced)
        for offset in log.snapshots.offsets:
            if offset not in self._snapshots:
                self._copy_snapshot(offset)
        for offset in self._snapshots - set(log.snapshots.offsets):
            remove_if_exists(disk, self._target(offset, SNAPSHOT_SUFFIX))
            self._snapshots.remove(offset)
        self._write_state()
        copy = self._copies[active.base_offset]
        if copy.synced < copy.size and log.recovery_point > active.base_offset:
            self._sync_log(active)
            copy.synced = copy.size
        disk.sync_dir(self._directory)
        return True

    def relocate(self, directory: str, owner: LogOwner) -> None:
        """Let the log use the copy, which is now called `directory` and belongs to `owner`.

        Nothing of the log changes but its place. The caller holds what `complete` asks for.
        """
        log, disk = self._log, self._disk
        for segment in log.segments:
            with segment.lock:
                segment.directory = directory
                segment.name_is_durable = True
                segment.rest()
        active = log.segments.active
        active.synced_bytes = min(active.synced_bytes, self._copies[active.base_offset].synced)
        log.cursors.let_go()
        log.cursors = CursorFile(disk, directory, log.cursors.offsets)
        log.snapshots = ProducerSnapshots(disk, directory, log.snapshots.offsets)
        log.quarantine = Quarantine(disk, directory, due_ms=log.quarantine.due_ms)
        log.deleted_files = DeletedFiles(disk)
        log.stretch = None
        log.directory, log.owner = directory, owner


def _lost(directory: str) -> str:
    return f"{directory}/{LOST_DIRECTORY}"


def _sizes(disk: Disk, directory: str) -> dict[str, int]:
    try:
        return {entry.name: entry.size for entry in disk.scan(directory)}
    except (FileNotFoundError, NotADirectoryError):
        return {}

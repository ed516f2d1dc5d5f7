"""Copy a log as a crash leaves it, and cut the copy anywhere: for tests that truncate files.

    log.append(b"placed", sync=True)
    log.append(b"paid")                              acknowledged, not synced
    for copy in every_cut(log, tmp_path):            a copy for each telling place in the last segment
        with Log.open(copy.path) as found:
            assert found.log_end_offset == copy.log_end_offset

A killed process leaves its files as they are; a power cut takes any part of what was not synced. Both lack
the marker of a clean stop, so the copy has none, and no lock. A cut past the durable offset is a torn tail:
opening removes the batch that was cut, and nothing else. No crash cuts below it. If a checkpoint tells the
next owner so, opening raises `DamagedLog`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple

from logstore.arguments import as_offset
from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE
from logstore.checkpoint.entry_files import (
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    checkpointed_offset,
    write_offset_checkpoint,
)
from logstore.disk.copying import copy_file, remove_tree
from logstore.disk.files import LOCK_FILE, Disk, OsDisk
from logstore.disk.topic_partition import parse_directory_name
from logstore.format.batch import HEADER_BYTES, LOG_OVERHEAD
from logstore.log.loading import offset_in
from logstore.log.log import Log
from logstore.segment.scan import scan
from logstore.segment.segment import LOG_SUFFIX

_NOT_COPIED: Final = (LOCK_FILE, CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT)
_CRC_AT: Final = 17


class CopiedBatch(NamedTuple):
    """A batch of the last segment: offsets [base_offset, next_offset) in bytes [start, end) of its file."""

    base_offset: int
    next_offset: int
    start: int
    end: int


class CrashedCopy:
    """The copy of a log in `path`, without a clean stop. `file` is the last segment's `.log`.

    `batches` are those of the last segment. Everything below `durable_offset` was synced when the copy was
    made.
    """

    def __init__(self, path: str, disk: Disk, synced_to: int = 0) -> None:
        """Read the last segment of the log in `path`; its owner has synced all offsets below `synced_to`."""
        self.path = path
        self._disk = disk
        bases = {
            base: entry.name
            for entry in disk.scan(path)
            if entry.name.endswith(LOG_SUFFIX) and (base := offset_in(entry.name)) is not None
        }
        if not bases:
            raise ValueError(f"{path} holds no log: it has no .log file")
        self._base_offset, name = max(bases.items())
        self.file = f"{path}/{name}"
        self._checkpointed = checkpointed_offset(disk, path, RECOVERY_POINT_CHECKPOINT)
        self.durable_offset = max(synced_to, self._checkpointed)
        self.batches = tuple(self._batches())

    def __repr__(self) -> str:
        return f"CrashedCopy({self.path!r}, ends at {self.log_end_offset}, durable to {self.durable_offset})"

    def _batches(self) -> Iterator[CopiedBatch]:
        with closing(self._disk.open(self.file)) as file:
            for found in scan(file, 0, file.size(), base_offset=self._base_offset):
                for start, header, last in zip(
                    found.positions.tolist(), found.headers, found.last_offsets.tolist(), strict=True
                ):
                    end = start + LOG_OVERHEAD + int(header["batch_length"])
                    yield CopiedBatch(int(header["base_offset"]), last + 1, start, end)

    @property
    def log_end_offset(self) -> int:
        """The offset after the last whole batch: where the log must end when it is opened."""
        return self.batches[-1].next_offset if self.batches else self._base_offset

    @property
    def is_damaged(self) -> bool:
        """Whether a checkpoint says that missing records were synced: `Log.open` raises `DamagedLog`."""
        return self.log_end_offset < self._checkpointed

    def cut(self, at: int) -> None:
        """Cut the last segment's `.log` to its first `at` bytes; from the end if `at` is negative.

        Raises `ValueError` if it has fewer bytes.
        """
        with closing(self._disk.open(self.file, write=True)) as file:
            size = file.size()
            if not -size <= as_offset(at, "the place of a cut") <= size:
                raise ValueError(f"no cut at {at}: {self.file} has {size} bytes")
            file.truncate(at if at >= 0 else size + at)
        self.batches = tuple(self._batches())


def crashed_copy(source: Log | str | os.PathLike[str], to: str | os.PathLike[str]) -> CrashedCopy:
    """Copy the log in `source`, open or not, to the new directory `to`, named like it (`orders-0`).

    The copy is what the next process finds if this one is killed now. Nothing may write to the log meanwhile.
    The partition directory of a broker is copied with its recovery point and log start. Raises `InvalidTopic`
    for a name that no log has, `ValueError` if `source` holds no log or `to` is inside it, `FileExistsError`
    if `to` exists, and `OSError`.
    """
    disk: Disk = source.partition.disk if isinstance(source, Log) else OsDisk()
    directory = source.partition.directory if isinstance(source, Log) else os.fspath(source).rstrip("/")
    target = os.fspath(to).rstrip("/")
    partition = parse_directory_name(os.path.basename(target))
    if f"{os.path.abspath(target)}/".startswith(f"{os.path.abspath(directory)}/"):
        raise ValueError(f"{target} is in the log itself: name a directory outside {directory}")
    if not any(entry.name.endswith(LOG_SUFFIX) for entry in disk.scan(directory)):
        raise ValueError(f"{directory} holds no log: it has no .log file")
    disk.make_dir(target)
    if disk.scan(target):
        raise FileExistsError(f"{target} is not empty: name a new directory for the copy")
    for entry in disk.scan(directory):
        if not entry.is_directory and entry.name not in _NOT_COPIED:
            copy_file(disk, f"{directory}/{entry.name}", f"{target}/{entry.name}")
    for checkpoint in (RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT):
        # The owner is the log itself or the log dir above it; the copy stands alone.
        offset = checkpointed_offset(disk, directory, checkpoint)
        if offset:
            write_offset_checkpoint(disk, target, checkpoint, {partition: offset})
    return CrashedCopy(target, disk, source.partition.recovery_point if isinstance(source, Log) else 0)


def every_cut(
    source: Log | str | os.PathLike[str], into: str | os.PathLike[str], *, synced: bool = False
) -> Iterator[CrashedCopy]:
    """Yield a copy of the log for each telling place in its last segment, cut there; see `crashed_copy`.

    The places are, for each batch: before it, in and behind its header, in the middle, before its last byte,
    behind it. Only places past the durable offset, as after a power cut; with `synced` all of them.
    The copies have the name of the log, each in a new directory of `into`. A copy is removed when the next
    one is asked for, so a failed test keeps the one it failed on.
    """
    into, disk = os.fspath(into), source.partition.disk if isinstance(source, Log) else OsDisk()
    name = os.path.basename(source.partition.directory if isinstance(source, Log) else os.fspath(source))
    probe = crashed_copy(source, f"{into}/whole/{name}")
    places = {
        place
        for batch in probe.batches
        if synced or batch.next_offset > probe.durable_offset
        for place in _places_in(batch)
    }
    for number, place in enumerate(sorted(places)):
        copy = crashed_copy(source, f"{into}/cut-{number}-at-{place}/{name}")
        copy.cut(place)
        yield copy
        remove_tree(disk, os.path.dirname(copy.path))
    remove_tree(disk, f"{into}/whole")


def _places_in(batch: CopiedBatch) -> set[int]:
    start, end = batch.start, batch.end
    inner = (start + 1, start + _CRC_AT, start + HEADER_BYTES, (start + end) // 2, end - 1)
    return {start, end, *(place for place in inner if start < place < end)}

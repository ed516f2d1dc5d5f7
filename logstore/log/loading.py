"""The state of a log while it is opened, and the leftovers that an interrupted owner may have left.

    *.deleted                 removed: these files were being deleted
    *.cleaned                 removed: a rewrite that never finished
    *.swap                    all there: the rewrite is completed; otherwise removed
    N.index without N.log     removed

Every step leaves a directory that the same procedure opens: after a crash in the middle it starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from sortedcontainers import SortedDict

from logstore.config import MAX_INT, MAX_LONG, LogConfig
from logstore.disk.files import TEMPORARY_SUFFIX, DirectoryEntry, Disk, read_small_file, remove_if_exists
from logstore.errors import (
    CorruptSeal,
    Damage,
    DamagedLog,
)
from logstore.log.cursor_file import CursorFile
from logstore.log.losses import LOST_DIRECTORY, Quarantine
from logstore.log.producer_snapshots import ProducerSnapshots
from logstore.log.producer_state import ProducerState
from logstore.segment.epochs import EpochEntry, LeaderEpochCache
from logstore.segment.scan import scan
from logstore.segment.seal import SEAL_SUFFIX, decode_seal
from logstore.segment.segment import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    Segment,
    file_name,
)
from logstore.segment.segments import end_offset_of
from logstore.segment.swap import CLEANED_SUFFIX, SWAP_SUFFIX, give_names

LEAVING: Final = "leaving"
"""A file in a log's directory: a directory of the same name in another log dir is the log (`moves.py`)."""
ARRIVING: Final = "arriving"
"""A file in a copy, and in a log that it became: there may be an older directory in another log dir."""
MARKS: Final = frozenset({LEAVING, ARRIVING})


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes [from_byte, to_byte) of `file` were cut off, because of `reason`."""

    file: str
    from_byte: int
    to_byte: int
    reason: str
    loss_id: int | None = None
    """Its entry in the loss ledger; None if there was nothing in it, or no room for the entry."""


class Split(NamedTuple):
    """A segment `file`, whose offsets did not fit it, became segments at `bases`."""

    file: str
    bases: tuple[int, ...]


@dataclass(slots=True)
class RecoveryReport:
    """The report of opening a directory, with file names relative to it. `damages` were accepted.

    `met` is damage in what did not have to be read, where the replay of producers went past it. `wrong` are
    derived files of the log as a whole that contradicted the batches, and were rebuilt.
    `unrecorded` are torn ends without a sound batch that were cut on a disk too full to note it. `marks` are
    those of a move between log dirs.
    """

    damages: list[Damage] = field(default_factory=list)
    met: list[Damage] = field(default_factory=list)
    wrong: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)
    scanned_bytes: int = 0
    unrecorded: list[str] = field(default_factory=list)
    marks: frozenset[str] = frozenset()
    lost_records: int = 0
    """Sound records among the bytes that were cut."""


@dataclass(slots=True)
class LoadedLog:
    """A log as it stands on the disk."""

    segments: SortedDict[int, Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    epochs: LeaderEpochCache
    producers: ProducerState
    snapshots: ProducerSnapshots
    quarantine: Quarantine
    cursors: CursorFile
    report: RecoveryReport
    first_dirty_offset: int


Progress = Callable[[int, int], None]
"""Receives the bytes checked so far and the bytes to check in all."""


Jitter: TypeAlias = Callable[[int], int]
"""Draws milliseconds from [0, bound); 0 for a bound of 0."""


class Opening(NamedTuple):
    """The arguments of `recovery.load`; with `reads_all` every segment is read."""

    disk: Disk
    directory: str
    config: LogConfig
    now_ms: int
    high_watermark: int
    jitter_ms: Jitter
    progress: Progress
    producer_expiration_ms: int
    accept_loss: bool
    reads_all: bool = False
    is_new: bool = False
    was_killed: bool = False
    log_start_offset: int = 0
    first_dirty_offset: int = 0
    starts_by: int | None = None
    is_start_certain: bool = True
    keeps_rest: bool = False
    changed: Collection[str] = ()


class Loading:
    """The findings of a recovery so far; the functions of the three recovery modules change them."""

    def __init__(self, opening: Opening) -> None:
        """Start with nothing known."""
        self.opening = opening
        self.disk, self.directory, self.config = opening.disk, opening.directory, opening.config
        self.quarantine = Quarantine(opening.disk, opening.directory)
        self.report = RecoveryReport()
        self.segments: SortedDict[int, Segment] = SortedDict()
        self.files: dict[str, DirectoryEntry] = {}
        self.epochs = LeaderEpochCache()
        self.epochs_on_disk: tuple[EpochEntry, ...] | None = None
        self.producers = ProducerState()
        self.knows_durable_end = True
        """Whether a recovery point or a seal tells up to where the log was durable."""
        self.recovered: dict[int, bool] = {}
        """Segments that were read batch by batch → whether producers wrote in them."""

    @property
    def tail_may_be_torn(self) -> bool:
        """Whether the bytes past the durable end may be arbitrary, as after a power cut."""
        return self.knows_durable_end and not self.opening.was_killed

    @property
    def was_compacted(self) -> bool:
        """Whether a cleaner may have rewritten segments of this log."""
        first_base = next(iter(self.segments), 0)
        return was_compacted(self.config, self.opening.first_dirty_offset, first_base)


def was_compacted(config: LogConfig, first_dirty_offset: int, first_base: int) -> bool:
    """Return whether a cleaner may have rewritten segments of a log that begins at `first_base`. Pure.

    It may have done so before the topic's `cleanup.policy` changed, or before a program opened the directory
    with settings of its own. The cleaner's checkpoint, the first dirty offset, names compacted logs alone.
    """
    return config.is_compacted or first_dirty_offset > first_base


def clear_leftovers(loading: Loading) -> None:
    """Complete or undo the operations that the last owner left unfinished."""
    entries = list_files(loading)
    loading.report.marks = frozenset(MARKS & loading.files.keys())
    if lost := next((entry for entry in entries if entry.name == LOST_DIRECTORY), None):
        if not lost.is_directory:
            raise DamagedLog(
                f"{loading.quarantine.path} is a file; removed records are kept in a directory of that name. "
                "Rename the file, then open the log again. Nothing was changed"
            )
        loading.quarantine.due_ms = loading.opening.now_ms
        loading.quarantine.note_unfinished(loading.opening.now_ms)
    delete_files(
        loading, (name for name in loading.files if name.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX)))
    )
    cleaned = offsets_of(loading, CLEANED_SUFFIX)
    if undone := uncommitted_swaps(cleaned, offsets_of(loading, SWAP_SUFFIX)):
        delete_files(loading, undone)
        # Durably, before the proof goes: a `.swap` that came back alone would look committed.
        loading.disk.sync_dir(loading.directory)
    delete_files(loading, cleaned)
    _finish_swap(loading)


def uncommitted_swaps(cleaned: Mapping[str, int], swaps: Mapping[str, int]) -> list[str]:
    """Return the `.swap` files of a rewrite that was not committed; both arguments map names to offsets.

    Several new segments become `.swap` from the last one down: one that is still `.cleaned` proves that no
    swap had begun, so its later siblings are unfinished too.
    """
    return [name for name, offset in swaps.items() if cleaned and offset >= min(cleaned.values())]


def list_files(loading: Loading) -> list[DirectoryEntry]:
    """List the directory again, and keep its files in `files`."""
    entries = loading.disk.scan(loading.directory)
    loading.files = {entry.name: entry for entry in entries if not entry.is_directory}
    return entries


def _finish_swap(loading: Loading) -> None:
    swaps = offsets_of(loading, SWAP_SUFFIX)
    new_logs = {offset: name for name, offset in swaps.items() if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)}
    if new_logs:
        low = min(new_logs)
        high = max(_end_of_swap(loading, name, offset) for offset, name in new_logs.items())
        # The old segments go durably before the new ones take their names: a power cut in between must not
        # leave both (docs/durability.md, rule S8).
        delete_files(
            loading,
            (
                name
                for name in loading.files
                if name.endswith((*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)) and low <= _offset_or_none(name) < high
            ),
        )
        loading.disk.sync_dir(loading.directory)
    for base_offset in sorted(set(swaps.values())):
        give_names(loading.disk, loading.directory, base_offset)
    loading.report.renamed.extend((name, name.removesuffix(SWAP_SUFFIX)) for name in sorted(swaps))
    if swaps:
        list_files(loading)


def _end_of_swap(loading: Loading, name: str, base_offset: int) -> int:
    file = loading.disk.open(f"{loading.directory}/{name}")
    end_offset = base_offset
    try:
        for scanned in scan(file, 0, file.size(), base_offset=base_offset):
            if len(scanned.headers):
                end_offset = int(scanned.last_offsets[-1]) + 1
    finally:
        file.close()
    # Its seal knows better: the last records of what it replaces may have had no heirs.
    seal_name = file_name(base_offset, SEAL_SUFFIX) + SWAP_SUFFIX
    sealed = read_small_file(loading.disk, f"{loading.directory}/{seal_name}")
    if sealed is not None:
        try:
            end_offset = max(end_offset, decode_seal(sealed, base_offset=base_offset).successor)
        except CorruptSeal:
            pass  # as if there were none
    return end_offset


def offsets_of(loading: Loading, suffix: str) -> dict[str, int]:
    found = {name: offset_in(name) for name in loading.files if name.endswith(suffix)}
    return {name: offset for name, offset in found.items() if offset is not None}


def delete_files(loading: Loading, names: Iterable[str]) -> None:
    for name in sorted(names):
        if remove_if_exists(loading.disk, f"{loading.directory}/{name}"):
            loading.report.deleted.append(name)
        loading.files.pop(name, None)


def open_segments(loading: Loading) -> None:
    """Open every `.log` as a segment, and delete index files without one (step 6)."""
    logs = offsets_of(loading, LOG_SUFFIX)
    bases = set(logs.values())
    delete_files(
        loading,
        (
            name
            for suffix in SEGMENT_SUFFIXES
            for name, offset in offsets_of(loading, suffix).items()
            if offset not in bases
        ),
    )
    for name, base_offset in sorted(logs.items()):
        entry = loading.files[name]
        if entry.size > MAX_INT:
            raise DamagedLog(
                f"{loading.directory}/{name} has {entry.size} bytes; no segment has more than {MAX_INT}, "
                "because its indexes could not point past that. Nothing was changed"
            )
        loading.segments[base_offset] = segment_at(
            loading, base_offset, size=entry.size, modified_ms=entry.modified_ms
        )


def segment_at(
    loading: Loading, base_offset: int, *, size: int, modified_ms: int = 0, is_new: bool = False
) -> Segment:
    return Segment(
        loading.disk,
        loading.directory,
        base_offset,
        loading.config,
        size=size,
        now_ms=loading.opening.now_ms,
        jitter_ms=loading.opening.jitter_ms(loading.config.longest_jitter_ms),
        is_new=is_new,
        modified_ms=modified_ms,
    )


def log_end_of(loading: Loading) -> int:
    return end_offset_of(loading.segments.peekitem(-1)[1]) if loading.segments else 0


def bytes_in(loading: Loading, bases: Iterable[int]) -> int:
    return sum(loading.segments[base].size for base in bases)


def offset_in(name: str) -> int | None:
    """The offset a file is named for: the 20 digits before its first dot; None if there are no such."""
    digits = name.split(".", 1)[0]
    offset = int(digits) if digits.isascii() and digits.isdigit() and len(digits) == 20 else None
    return offset if offset is not None and offset <= MAX_LONG else None


def _offset_or_none(name: str) -> int:
    offset = offset_in(name)
    return -1 if offset is None else offset

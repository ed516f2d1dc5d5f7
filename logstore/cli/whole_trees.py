"""Check whole directories: every file of a log dir or a partition, by its checksums and the other files.

    batches          checksum, order of offsets and epochs, fit to the segment, across segments
    .seal            its own checksum; the size and every block of its `.log`; its successor
    indexes          by the seal's digest, or entry by entry against the log
    .txnindex        its entries; no partial entry; the seal's digest
    .snapshot, checkpoints, metadata    their checksums and formats; the clean-shutdown marker's sums
    epoch history    the epoch of every batch that is walked, of the first and the last of the others
    recovery point   not past the log end
    lost/            the ledger's lines, and the files that it lists
    anything else    listed, not touched

A seal whose digests all match proves its segment: its batches are then not walked, which saves most of the
time if they are small. Records in batches are not decoded: `dump --verify` does that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE, changed_files, read_clean_shutdown
from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    checkpointed_offset,
)
from logstore.cli.facts import facts_of
from logstore.cli.inspection import (
    FileRole,
    Kind,
    LogFile,
    index_entries,
    open_for_reading,
    read_whole,
    role_of,
    segment_offsets,
)
from logstore.cli.verification import ENTRY_SIZES, judge_tail, verify_index, verify_log
from logstore.config import MAX_LONG, LogConfig
from logstore.disk.errors import EngineError
from logstore.disk.files import DirectoryEntry, Disk, File
from logstore.disk.running import RUNNING_FILE
from logstore.errors import CorruptSeal
from logstore.format.crc import crc32c
from logstore.log.epoch_check import judged_history
from logstore.log.loading import was_compacted
from logstore.log.losses import LOST_DIRECTORY, Piece, Quarantine, Standing
from logstore.log.stand_alone import where_it_began
from logstore.segment.damage import Listed, judge_chain, was_rewritten
from logstore.segment.epochs import EpochEntry
from logstore.segment.index_faults import Columns
from logstore.segment.scan import Fault, Scanned, check_history, scan
from logstore.segment.seal import (
    BLOCK_BYTES,
    SEAL_SUFFIX,
    Seal,
    broken_blocks,
    make_seal,
    read_seal,
    seal_path,
    write_seal,
)
from logstore.segment.segment import file_name
from logstore.segment.transaction_index import ENTRY_BYTES

Progress: TypeAlias = Callable[[int], None]
"""Called with the number of bytes checked since the last call."""

# One bad epoch may make every later batch look bad, so only the first faults are listed.
_MOST: Final = 10
_OURS: Final = frozenset({CLEAN_SHUTDOWN_FILE, RUNNING_FILE})
# The lock, the place a scrub has reached, an embedded metadata store beside the log dirs, and a queue.
_OURS_TOO: Final = re.compile(
    r"\.lock|journal-[0-9]{20}|snapshot|session-secret|scrub-progress\.json"
    r"|queue\.json|reserve|[a-zA-Z0-9._-]+\.checkpoint"
)
_INDEXES: Final = {Kind.OFFSET_INDEX: "offsets_crc", Kind.TIME_INDEX: "times_crc"}


class Finding(NamedTuple):
    """A finding in `path` at byte `position`: damage or a note."""

    path: str
    position: int
    text: str
    is_damage: bool

    def __str__(self) -> str:
        return f"{'damage' if self.is_damage else 'note'}  {self.path} at byte {self.position}: {self.text}"


def holds_log(disk: Disk, directory: str) -> bool:
    """Return whether `directory` is a partition or a log dir, or holds either at any depth."""
    return _holds_log(disk, directory, disk.scan(directory))


def _holds_log(disk: Disk, directory: str, entries: list[DirectoryEntry]) -> bool:
    below = [f"{directory}/{entry.name}" for entry in entries if entry.is_directory]
    named = (entry.name for entry in entries if not entry.is_directory)
    return any(role_of(name) is not None or name in _OURS for name in named) or any(
        _holds_log(disk, path, _listed(disk, path)) for path in below
    )


def _listed(disk: Disk, directory: str) -> list[DirectoryEntry]:
    try:
        return disk.scan(directory)
    except FileNotFoundError:  # deleted by its owner since it was listed
        return []


def bytes_to_judge(disk: Disk, directory: str) -> int:
    """Return the bytes of `.log` files in `directory` and below: the total of the `Progress` calls."""
    total = 0
    for entry in disk.scan(directory):
        if entry.is_directory and entry.name != LOST_DIRECTORY:
            total += bytes_to_judge(disk, f"{directory}/{entry.name}")
        elif entry.name.endswith(".log"):
            total += entry.size
    return total


def verify_tree(disk: Disk, directory: str, progress: Progress) -> Iterator[Finding]:
    """Check a log dir with its partitions, or one partition. Raises `OSError`."""
    entries = disk.scan(directory)
    files = [entry for entry in entries if not entry.is_directory]
    yield from _small_files(disk, directory, files)
    yield from _Partition(disk, directory, progress).findings()
    for entry in entries:
        if entry.is_directory and entry.name == LOST_DIRECTORY:
            yield from _ledger(disk, directory)
        elif entry.is_directory:
            yield from verify_tree(disk, f"{directory}/{entry.name}", progress)


def judge_list(disk: Disk, directory: str, start_offset: int = 0) -> list[Finding]:
    """Return the damage to the list of a partition's segments from an offset on: gone, cut, overlapping ones.

    The owner may write meanwhile: only what is found twice is returned. Raises `OSError`.
    """
    start = max(start_offset, checkpointed_offset(disk, directory, LOG_START_OFFSET_CHECKPOINT))

    def look() -> list[Finding]:
        files = {entry.name: entry.size for entry in disk.scan(directory) if not entry.is_directory}
        roles = {name: role for name in files if (role := role_of(name)) and not role.state}
        bases = {role.base_offset: files[name] for name, role in roles.items() if role.kind is Kind.LOG}
        listed = [Listed(*each) for each in sorted(bases.items())]
        judged = _Partition(disk, directory, lambda _: None)
        found = [*judged.beginning(listed, start_offset), *judged.chain(files, listed, {}, start)]
        return [each for each in found if each.is_damage]

    found = look()
    return [each for each in look() if each in found] if found else []


# --- small files -----------------------------------------------------------------------------------


def _small_files(disk: Disk, directory: str, files: Sequence[DirectoryEntry]) -> Iterator[Finding]:
    for entry in files:
        path, role = f"{directory}/{entry.name}", role_of(entry.name)
        if role is None:
            if entry.name not in _OURS and _OURS_TOO.fullmatch(entry.name) is None:
                yield Finding(path, 0, "not a file of a log directory; ignored", False)
        elif role.state:
            yield Finding(path, 0, f"leftover ({role.state}); opening the log removes or renames it", False)
        elif role.kind not in (Kind.LOG, Kind.OFFSET_INDEX, Kind.TIME_INDEX, Kind.SEAL):
            yield from _small_file(disk, directory, entry.name, role)
    marker = read_clean_shutdown(disk, directory)
    if marker is not None:
        for name in changed_files(disk, directory, marker):
            yield Finding(f"{directory}/{name}", 0, "differs from the state at the clean shutdown", True)


def _small_file(disk: Disk, directory: str, name: str, role: FileRole) -> Iterator[Finding]:
    data = read_whole(disk, directory, name)
    if data is None:  # deleted by its owner since it was listed
        return
    if role.kind is Kind.PRODUCER_SNAPSHOT and not any(data):
        # Kafka does not write it under another name first.
        text = "a crash left it without content; the log rebuilds it"
        yield Finding(f"{directory}/{name}", 0, text, False)
        return
    try:
        for fact in facts_of(data, role):
            if line := fact.get("unreadable_line"):
                # A power cut may have taken commits that nobody synced.
                text = f"line {line} cannot be read; opening the log removes it"
                yield Finding(f"{directory}/{name}", 0, text, False)
    except EngineError as error:
        yield Finding(f"{directory}/{name}", 0, str(error), True)
    if role.kind is Kind.TRANSACTION_INDEX and len(data) % ENTRY_BYTES:
        at = len(data) - len(data) % ENTRY_BYTES
        yield Finding(f"{directory}/{name}", at, "incomplete entry", True)


def _ledger(disk: Disk, directory: str) -> Iterator[Finding]:
    quarantine = Quarantine(disk, directory)
    text = quarantine.read()
    path = f"{quarantine.path}/ledger.jsonl"
    for number in text.unreadable:
        yield Finding(path, 0, f"line {number} cannot be read", True)
    for loss in quarantine.losses(text):
        if loss.standing is Standing.MISSING:
            yield Finding(path, 0, f"the bytes of loss {loss.id} are missing", True)
        for piece in loss.pieces if loss.standing is Standing.QUARANTINED else ():
            yield from _kept(disk, quarantine.place_of(loss.id, piece.file), piece)


def _kept(disk: Disk, path: str, piece: Piece) -> Iterator[Finding]:
    """Check a copy by its checksum; a segment that was moved whole has none and is checked by batch."""
    with closing(disk.open(path)) as file:
        if piece.crc is not None:
            if crc32c(file.pread(piece.size, 0)) != piece.crc:
                yield Finding(path, 0, "the checksum in the ledger does not match", True)
            return
        # Preallocated zeros may follow.
        for found in scan(file, 0, piece.size, base_offset=int(piece.file[:20])):
            if found.fault is not None:
                yield Finding(path, found.end, found.fault.value, True)


# --- a partition -----------------------------------------------------------------------------------


class _Partition:
    def __init__(self, disk: Disk, directory: str, progress: Progress) -> None:
        self._disk = disk
        self._directory = directory
        self._progress = progress
        self._next_offset = 0
        self._leader_epoch = -1
        self._history: Sequence[EpochEntry] = ()

    def _damage(self, name: str, position: int, text: str) -> Finding:
        return Finding(f"{self._directory}/{name}", position, text, True)

    def findings(self) -> Iterator[Finding]:
        self._history, wrong = judged_history(self._disk, self._directory)
        if wrong and self._history:  # one that does not parse is reported as a small file
            yield self._damage(LEADER_EPOCH_CHECKPOINT, 0, wrong)
        sizes = {entry.name: entry.size for entry in self._disk.scan(self._directory)}
        bases = segment_offsets(self._disk, self._directory)
        listed = [Listed(base, sizes[file_name(base, ".log")]) for base in bases]
        log_start = checkpointed_offset(self._disk, self._directory, LOG_START_OFFSET_CHECKPOINT)
        yield from self.beginning(listed)
        seals: dict[int, Seal] = {}
        yield from self.chain(sizes, listed, seals, log_start)
        for number, base_offset in enumerate(bases):
            is_last = number + 1 == len(bases)
            yield from self._segment(base_offset, seals.get(base_offset), is_last)
        recovery_point = checkpointed_offset(self._disk, self._directory, RECOVERY_POINT_CHECKPOINT)
        if max(self._next_offset, log_start) < recovery_point:
            text = f"the log ends at {self._next_offset}, below its recovery point {recovery_point}"
            last = listed[-1] if listed else Listed(0, 0)
            yield self._damage(file_name(last.base_offset, ".log"), last.size, text)

    def beginning(self, listed: Sequence[Listed], start_offset: int = 0) -> Iterator[Finding]:
        """Report a log, from an offset on, that began lower when it was last in use."""
        first_base = listed[0].base_offset if listed else 0
        if first_base <= start_offset:
            return
        began_at = where_it_began(self._disk, self._directory, first_base)
        if began_at is not None and first_base > began_at:
            text = f"segment gone: the log began at or below offset {began_at} when it was last in use"
            yield self._damage(file_name(first_base, ".log"), 0, text)

    def chain(
        self, sizes: Mapping[str, int], listed: Sequence[Listed], seals: dict[int, Seal], start: int
    ) -> Iterator[Finding]:
        """Read the seals into `seals`, and compare the list of segments with them, from offset `start` on."""
        bases = [each.base_offset for each in listed]
        for name in sizes:
            role = role_of(name)
            if role is not None and role.kind is Kind.SEAL and not role.state:
                yield from self._read_seal(name, role.base_offset, bases, seals)
        cleaned = checkpointed_offset(self._disk, self._directory, CLEANER_OFFSET_CHECKPOINT)
        is_compacted = bool(bases) and was_compacted(LogConfig(), cleaned, bases[0])
        yield from self._rewritten(listed, seals, is_compacted=is_compacted)

        def is_merged(gone: int, following: int) -> bool:
            return is_compacted and (cleaned >= following or file_name(gone, SEAL_SUFFIX) in sizes)

        for each in judge_chain(listed, seals, start, is_merged).damages:
            yield self._damage(each.file, each.position, f"{each.kind}: {each.text}")

    def _rewritten(
        self, listed: Sequence[Listed], seals: dict[int, Seal], *, is_compacted: bool
    ) -> Iterator[Finding]:
        """Leave out the seals of segments that another program has rewritten, sound and in order."""
        for (base_offset, size), following in pairwise([*listed, Listed(MAX_LONG, 0)]):
            seal = seals.get(base_offset)
            if seal is None or (size > seal.size and following.base_offset == MAX_LONG):
                continue
            if size == seal.size and not is_compacted:
                continue
            name = file_name(base_offset, ".log")
            file = open_for_reading(self._disk, self._directory, name)
            if file is None:
                continue
            times = read_whole(self._disk, self._directory, file_name(base_offset, f".{Kind.TIME_INDEX}"))
            with closing(file):
                if size == seal.size and next(broken_blocks(file, seal), None) is None:
                    continue
                if was_rewritten(
                    file, size, seal, following.base_offset, is_compacted=is_compacted, times=times
                ):
                    del seals[base_offset]
                    text = "rewritten since it was sealed, and every batch is sound; its seal is void"
                    yield Finding(f"{self._directory}/{name}", 0, text, False)

    def _read_seal(
        self, name: str, base_offset: int, bases: Sequence[int], seals: dict[int, Seal]
    ) -> Iterator[Finding]:
        if base_offset not in bases:
            text = "the seal of a segment that is gone; opening the log removes it"
            yield Finding(f"{self._directory}/{name}", 0, text, False)
            return
        try:
            seal = read_seal(self._disk, self._directory, base_offset)
        except CorruptSeal as error:
            text = f"{error}; opening the log removes it" if error.is_unfinished else str(error)
            yield Finding(f"{self._directory}/{name}", 0, text, not error.is_unfinished)
            return
        if seal is not None:
            seals[base_offset] = seal

    def _segment(self, base_offset: int, seal: Seal | None, is_last: bool) -> Iterator[Finding]:
        name = file_name(base_offset, ".log")
        # Derived files first: a running writer cannot make them look ahead of the log.
        indexes = {
            kind: read_whole(self._disk, self._directory, file_name(base_offset, f".{kind}")) or b""
            for kind in (*_INDEXES, Kind.TRANSACTION_INDEX)
        }
        file = open_for_reading(self._disk, self._directory, name)
        if file is None:
            return
        with closing(file):
            size = file.size()
            if seal is not None and size >= seal.size:
                if crc32c(indexes[Kind.TRANSACTION_INDEX]) != seal.aborts_crc:
                    aborts = file_name(base_offset, f".{Kind.TRANSACTION_INDEX}")
                    yield self._damage(aborts, 0, "differs from the sealed content")
                broken = list(broken_blocks(file, seal))
                for start, end in broken:
                    yield self._damage(name, start, f"bytes to {end} differ from the sealed content")
                fits = all(crc32c(indexes[kind]) == getattr(seal, crc) for kind, crc in _INDEXES.items())
                if fits and not broken and size == seal.size:
                    yield from self._proven(file, base_offset, seal, indexes[Kind.OFFSET_INDEX])
                    self._progress(size)
                    return
            yield from self._walk(file, name, base_offset, size, is_last, indexes)

    def _proven(self, file: File, base_offset: int, seal: Seal, offsets: bytes) -> Iterator[Finding]:
        """Check a segment that matches its seal: only its first and last batches, for the epoch history."""
        entries = index_entries(offsets, Kind.OFFSET_INDEX, base_offset)
        name = file_name(base_offset, ".log")
        last = entries[-1][1] if entries else 0
        # Once each: the epochs of what was judged before are those that must not be fallen below.
        for start, end in ((0, BLOCK_BYTES), (last, seal.size)) if last > BLOCK_BYTES else ((0, seal.size),):
            for found in scan(file, start, end, base_offset=base_offset, leader_epoch=self._leader_epoch):
                yield from self._judge_history(found, name)
                break
        self._next_offset = seal.end_offset

    def _judge_history(self, found: Scanned, name: str) -> Iterator[Finding]:
        held = check_history(found, self._history, next_offset=0, durable_end=MAX_LONG, is_dense=False)
        if held.fault is Fault.HISTORY or held.fault is Fault.EPOCHS:
            yield self._damage(name, held.end, held.fault.value)
        if len(found.headers):
            self._leader_epoch = max(self._leader_epoch, int(found.headers["leader_epoch"].max()))

    def _walk(
        self,
        file: File,
        name: str,
        base_offset: int,
        size: int,
        is_last: bool,
        indexes: dict[Kind, bytes],
    ) -> Iterator[Finding]:
        first_offset = max(self._next_offset, base_offset)
        if self._next_offset > base_offset:
            yield self._damage(
                name, 0, f"the segment begins below {self._next_offset}, the end of the one before it"
            )
        columns: list[Scanned] = []
        fault, end, epoch = None, 0, self._leader_epoch
        for found in scan(
            file, 0, size, base_offset=base_offset, next_offset=first_offset, leader_epoch=epoch
        ):
            yield from self._judge_history(found, name)
            columns.append(found)
            self._progress(found.end - end)
            fault, end = found.fault, found.end
        walked = _walked(columns)
        if len(walked.lasts):
            if not is_last or base_offset == first_offset:
                yield from self._gap(walked, name, base_offset)
            self._next_offset = int(walked.lasts[-1]) + 1
        else:
            self._next_offset = first_offset
        if fault is not None or end < size:
            yield from self._bad(file, name, base_offset, first_offset, epoch, is_last)
            if fault is not Fault.TORN:  # the index checks do not know the batches behind it
                return
        for kind, entry_bytes in ENTRY_SIZES.items():
            index_name, data = file_name(base_offset, f".{kind}"), indexes[kind]
            for wrong in verify_index(index_name, kind, data, base_offset, walked, is_last=is_last):
                yield Finding(f"{self._directory}/{index_name}", wrong.position, wrong.text, wrong.is_damage)
            if rest := len(data) % entry_bytes:
                yield self._damage(index_name, len(data) - rest, "incomplete entry")

    def _gap(self, walked: Columns, name: str, base_offset: int) -> Iterator[Finding]:
        """Report gaps: compaction leaves them; elsewhere they may be a loss."""
        ends = np.concatenate(([base_offset], walked.lasts[:-1] + 1))
        gaps = (walked.bases > ends).nonzero()[0]
        if len(gaps):
            at = int(walked.positions[gaps[0]])
            text = f"offsets {ends[gaps[0]]} to {walked.bases[gaps[0]] - 1} are missing before it"
            yield Finding(f"{self._directory}/{name}", at, f"{text} ({len(gaps)} such gaps)", False)

    def _bad(
        self, file: File, name: str, base_offset: int, next_offset: int, epoch: int, is_last: bool
    ) -> Iterator[Finding]:
        """Report faults batch by batch, past the first one, too."""
        log = LogFile(file, base_offset)
        batches = log.batches(next_offset=next_offset, leader_epoch=epoch)
        faults = [(position, fault.value) for position, _, fault in batches if fault is not None]
        for position, text in faults[:_MOST]:
            yield self._damage(name, position, text)
        if len(faults) > _MOST:
            yield self._damage(name, faults[_MOST][0], f"and {len(faults) - _MOST} more bad batches")
        if tail := judge_tail(log, name, is_last=is_last):
            yield Finding(f"{self._directory}/{name}", tail.position, tail.text, tail.is_damage)


def _walked(found: Sequence[Scanned]) -> Columns:
    empty = np.empty(0, np.int64)
    return Columns(
        np.concatenate([empty, *(each.positions for each in found)]),
        np.concatenate([empty, *(each.headers["base_offset"].astype(np.int64) for each in found)]),
        np.concatenate([empty, *(each.last_offsets for each in found)]),
        np.concatenate([empty, *(each.headers["max_timestamp"].astype(np.int64) for each in found)]),
    )


# --- accepting the existing content -----------------------------------------------------------------------


def reseal(disk: Disk, directory: str) -> int:
    """Seal every complete segment of the partition as it is now; return their number.

    The caller owns the directory. Raises `OSError`, and `CorruptSeal` for a damaged segment: a seal does not
    repair it.
    """
    bases = segment_offsets(disk, directory)
    for base_offset, successor in pairwise(bases):
        name = file_name(base_offset, ".log")
        with closing(disk.open(f"{directory}/{name}", write=True)) as file:
            report = verify_log(LogFile(file, base_offset), name, is_last=False)
            if report.damage or report.last_offset >= successor:
                found = report.damage[0] if report.damage else f"it reaches offset {report.last_offset}"
                raise CorruptSeal(f"{directory}/{name} is damaged ({found}): recover the log instead")
            file.sync()
            digests = {
                kind: crc32c(read_whole(disk, directory, file_name(base_offset, f".{kind}")) or b"")
                for kind in (Kind.TRANSACTION_INDEX, Kind.OFFSET_INDEX, Kind.TIME_INDEX)
            }
            seal = make_seal(
                file,
                report.size,
                base_offset=base_offset,
                end_offset=max(report.last_offset + 1, base_offset),
                successor=successor,
                aborts_crc=digests[Kind.TRANSACTION_INDEX],
                offsets_crc=digests[Kind.OFFSET_INDEX],
                times_crc=digests[Kind.TIME_INDEX],
            )
        write_seal(disk, seal_path(directory, base_offset), seal)
    disk.sync_dir(directory)
    return max(len(bases) - 1, 0)

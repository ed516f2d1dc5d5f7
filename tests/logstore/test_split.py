"""Segments whose offsets do not fit them, as old brokers left them: opened, cut short, compacted."""

from __future__ import annotations

from itertools import pairwise

import pytest

from logstore.compact.cleanable import cleanable_of
from logstore.compact.cleaner_config import CleanerConfig
from logstore.compact.compaction_pass import compaction_pass, run
from logstore.config import MAX_INT, LogConfig
from logstore.disk.files import Disk
from logstore.errors import DamagedLog
from logstore.format.batch import encode_batch, encode_marker_batch
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.log.loading import LoadedLog, Split
from logstore.log.log import Log
from logstore.log.read import FetchIsolation
from logstore.segment.seal import SEAL_SUFFIX, decode_seal
from logstore.segment.segment import Segment, file_name
from logstore.segment.split import Run, find_runs, leaps_over, split
from logstore.segment.swap import CLEANED_SUFFIX, SWAP_SUFFIX, swap
from logstore.segment.transaction_index import TRANSACTION_INDEX_SUFFIX, AbortedTransaction
from logstore.testing.crash import CrashLab, CrashRun
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import (
    DIRECTORY,
    EVERY_BATCH,
    batch,
    content_of,
    disk_with,
    log_file,
    names,
    offsets_in,
    opened,
    put,
)

FAR = MAX_INT + 10
FARTHER = 2 * FAR
NOW_MS = 10_000
OLD = (
    batch(0, (1, 2))
    + batch(2, (3,))
    + batch(FAR, (4, 5), epoch=1)
    + batch(FAR + 7, (6,), epoch=1)
    + batch(FARTHER, (7,), epoch=2)
)
OFFSETS = [0, 1, 2, FAR, FAR + 1, FAR + 7, FARTHER]
BASES = [0, FAR, FARTHER]
LAST = batch(FARTHER + 5, (8,), epoch=2)
SEALED = {log_file(0): OLD, log_file(FARTHER + 5): LAST}
ACTIVE = {log_file(0): OLD}


def runs_of(data: bytes, base_offset: int = 0) -> list[Run]:
    return find_runs(MemoryDisk({"/log": data}).open("/log"), len(data), base_offset)


def bases_of(loaded: LoadedLog) -> list[int]:
    return list(loaded.segments)


class TestRuns:
    def test_a_run_ends_where_an_offset_does_not_fit(self) -> None:
        assert [run.base_offset for run in runs_of(OLD)] == BASES
        assert [run.end_offset for run in runs_of(OLD)] == [3, FAR + 8, FARTHER + 1]
        assert (runs_of(OLD)[0].from_byte, runs_of(OLD)[-1].to_byte) == (0, len(OLD))
        assert all(before.to_byte == after.from_byte for before, after in pairwise(runs_of(OLD)))

    @pytest.mark.parametrize(("last", "count"), [(MAX_INT, 1), (MAX_INT + 1, 2)])
    def test_the_last_offset_that_fits(self, last: int, count: int) -> None:
        assert len(runs_of(batch(0, (1,)) + batch(last, (2,)))) == count
        assert len(runs_of(batch(0, (1,)) + batch(last - 1, (2, 3)))) == count

    def test_where_offsets_or_epochs_go_back_there_are_none(self) -> None:
        """One flipped bit in the offset of a batch in the middle is not a segment that grew too long."""
        assert runs_of(batch(0, (1,)) + batch(FAR, (2,)) + batch(2, (3,))) == []
        assert runs_of(batch(0, (1,), epoch=3) + batch(FAR, (2,), epoch=2)) == []

    def test_what_is_no_batch_goes_with_the_last_run(self) -> None:
        assert runs_of(OLD + b"torn")[-1].to_byte == len(OLD) + 4

    def test_the_first_run_keeps_the_base(self) -> None:
        """Even without a batch: what stands before it names it."""
        first, _ = runs_of(batch(FAR, (1,)))
        assert (first.base_offset, first.to_byte) == (0, 0)

    def test_a_leap(self) -> None:
        runs = runs_of(OLD)
        assert leaps_over(runs, 4)
        assert leaps_over(runs, FAR)
        assert not leaps_over(runs, 3)
        assert not leaps_over(runs, FAR + 3)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("files", [SEALED, ACTIVE], ids=["sealed", "active"])
def test_row_204_a_segment_that_overflows_is_split_when_it_is_loaded(
    files: dict[str, bytes], clean: bool
) -> None:
    """Every record stays, byte for byte, nothing is a loss, and the next opening finds nothing to do."""
    disk = disk_with(files)
    end = FARTHER + (6 if files is SEALED else 1)
    loaded = opened(disk, clean=clean, recovery_point=end if clean else 0)
    bases = [*BASES, *(base for base in (FARTHER + 5,) if files is SEALED)]
    assert bases_of(loaded) == bases
    assert loaded.report.splits == [Split(log_file(0), tuple(BASES))]
    assert (loaded.log_end_offset, loaded.report.cuts, loaded.report.damages) == (end, [], [])
    assert offsets_in(loaded) == OFFSETS + ([FARTHER + 5] if files is SEALED else [])
    assert b"".join(content_of(disk, log_file(base)) for base in BASES) == OLD
    epochs = [(each.epoch, each.start_offset) for each in loaded.epochs.entries]
    assert epochs == [(0, 0), (1, FAR), (2, FARTHER)]
    for base, successor in pairwise(bases):
        seal = decode_seal(content_of(disk, file_name(base, SEAL_SUFFIX)), base_offset=base)
        assert seal.successor == successor
    assert not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, ".deleted")) for name in names(disk))
    again = opened(disk.copy(), clean=True, recovery_point=end)
    assert (bases_of(again), again.report.splits, again.report.scanned_bytes) == (bases, [], 0)


def test_row_204_splitting_what_fits_is_refused() -> None:
    disk = disk_with({log_file(0): batch(0, (1, 2))})
    segment = opened(disk).segments[0]
    runs = find_runs(segment.log_file, segment.size, 0)
    with pytest.raises(ValueError, match="nothing to split"):
        split(disk, DIRECTORY, EVERY_BATCH, segment, runs, now_ms=NOW_MS)


def test_a_segment_below_a_gap_is_read_once() -> None:
    """A successor far away makes a segment suspect; its seal, made then, says that it fits."""
    disk = disk_with({log_file(0): batch(0, (1,)), log_file(FAR): batch(FAR, (2,))})
    for base in (0, FAR):
        put(disk, file_name(base, ".index"), b"")
    end = FAR + 1
    first = opened(disk, clean=True, recovery_point=end)
    assert (first.report.scanned_bytes, first.report.splits) == (len(batch(0, (1,))), [])
    assert opened(disk, clean=True, recovery_point=end).report.scanned_bytes == 0


def test_the_old_seal_goes() -> None:
    """One that speaks of all of the old segment: each new one has its own instead."""
    disk = disk_with(SEALED)
    segment = Segment(disk, DIRECTORY, 0, EVERY_BATCH, size=len(OLD), now_ms=NOW_MS)
    put(disk, file_name(0, ".index"), b"")
    segment.sealing.make(FARTHER + 1, FARTHER + 5)
    segment.let_go()
    loaded = opened(disk, clean=True, recovery_point=FARTHER + 6)
    assert bases_of(loaded) == [*BASES, FARTHER + 5]
    seal = decode_seal(content_of(disk, file_name(0, SEAL_SUFFIX)), base_offset=0)
    assert (seal.end_offset, seal.successor) == (3, FAR)


def test_a_torn_tail_is_still_cut_and_kept() -> None:
    loaded = opened(disk_with({log_file(0): OLD + LAST[:-3]}))
    assert bases_of(loaded) == BASES
    assert offsets_in(loaded) == OFFSETS
    assert [(cut.file, cut.to_byte - cut.from_byte, cut.loss_id) for cut in loaded.report.cuts] == [
        (log_file(FARTHER), len(LAST) - 3, 1)
    ]


def test_an_offset_that_leaps_over_what_was_durable_is_damage() -> None:
    """A flipped bit in the last batch's offset must not pass for a segment that grew too long."""
    disk = disk_with({log_file(0): batch(0, (1,)) + batch(1, (2,)) + batch(2 + (1 << 40), (3,))})
    before = disk.files()
    for clean in (True, False):
        with pytest.raises(DamagedLog):
            opened(disk, clean=clean, recovery_point=3)
    assert disk.files()[f"{DIRECTORY}/{log_file(0)}"] == before[f"{DIRECTORY}/{log_file(0)}"]


# --- transactions ---------------------------------------------------------------------------------


def transactional(base_offset: int, producer: int, sequence: int) -> bytes:
    return encode_batch(
        [Record(base_offset, NOW_MS, b"k%d" % base_offset, b"v")],
        base_offset=base_offset,
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )


def marker(offset: int, producer: int, kind: ControlType) -> bytes:
    return encode_marker_batch(
        EndTransactionMarker(kind, 0),
        producer_id=producer,
        producer_epoch=0,
        timestamp_ms=NOW_MS,
        base_offset=offset,
        leader_epoch=0,
    )


ABORTS = (
    transactional(0, 7, 0)
    + transactional(1, 8, 0)
    + marker(2, 7, ControlType.ABORT)
    + transactional(FAR, 9, 0)
    + marker(FAR + 1, 8, ControlType.ABORT)
    + marker(FAR + 2, 9, ControlType.COMMIT)
)
BEHIND = transactional(FAR + 3, 7, 1) + marker(FAR + 4, 7, ControlType.COMMIT)
TRANSACTIONS = {log_file(0): ABORTS, log_file(FAR + 3): BEHIND}
ENTRIES = [AbortedTransaction(7, 0, 2, 1), AbortedTransaction(8, 1, FAR + 1, FAR)]
INDEX = b"".join(entry.encode() for entry in ENTRIES)
CONFIG = LogConfig(index_interval_bytes=60, segment_index_bytes=4096, cleanup_policy="compact")


def committed(log: Log) -> list[int]:
    return [record.offset for record in log.read(isolation=FetchIsolation.TXN_COMMITTED)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("index", [INDEX, None, b"\xff" * len(INDEX)], ids=["right", "none", "bad"])
def test_row_204_aborts_and_producers_stay_what_they_were(index: bytes | None, clean: bool) -> None:
    """Each abort is known where its marker lies; producers' sequences go on."""
    files = TRANSACTIONS | ({file_name(0, TRANSACTION_INDEX_SUFFIX): index} if index else {})
    loaded = opened(disk_with(files), clean=clean, recovery_point=FAR + 5)
    found = {base: list(each.aborts.index.entries) for base, each in loaded.segments.items()}
    assert found == {0: ENTRIES[:1], FAR: ENTRIES[1:], FAR + 3: []}
    assert {each.producer_id: each.last_sequence for each in loaded.producers} == {7: 1, 8: 0, 9: 0}
    assert loaded.producers.end_offset == FAR + 5


# --- crashes --------------------------------------------------------------------------------------


def on(disk: Disk) -> Log:
    return Log.open(DIRECTORY, CONFIG, disk=disk, clock=lambda: NOW_MS)


LONG = ABORTS + transactional(FARTHER, 8, 1) + marker(FARTHER + 1, 8, ControlType.ABORT)
LONG_ENTRIES = [*ENTRIES, AbortedTransaction(8, FARTHER, FARTHER + 1, FARTHER + 2)]
LONG_INDEX = b"".join(entry.encode() for entry in LONG_ENTRIES)
LONG_END = transactional(FARTHER + 2, 7, 1) + marker(FARTHER + 3, 7, ControlType.COMMIT)
OVERGROWN = {
    log_file(0): LONG,
    file_name(0, ".index"): b"",
    file_name(0, TRANSACTION_INDEX_SUFFIX): LONG_INDEX,
    log_file(FARTHER + 2): LONG_END,
    file_name(FARTHER + 2, ".index"): b"",
}

Found = dict[int, tuple[bytes, tuple[AbortedTransaction, ...]]]


MARK = "clean"
"""Beside the segments, while nothing has been written since they were closed in order."""


def recover(disk: Disk) -> Found:
    """Open it, whatever a crash left: each segment's batches, and the aborts it knows.

    As the owner of a log does, the mark of a clean stop is removed durably before anything is written (S9).
    """
    was_clean = any(entry.name == MARK for entry in disk.scan(DIRECTORY))
    if was_clean:
        disk.remove(f"{DIRECTORY}/{MARK}")
        disk.sync_dir(DIRECTORY)
    loaded = opened(disk, clean=was_clean, recovery_point=FARTHER + 4)
    assert (loaded.report.cuts, loaded.report.damages, loaded.log_end_offset) == ([], [], FARTHER + 4)
    for name in (entry.name for entry in disk.scan(DIRECTORY)):
        assert not name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, ".deleted")), name
    assert {each.producer_id: each.last_sequence for each in loaded.producers} == {7: 1, 8: 1, 9: 0}
    return {
        base: (each.log_file.pread(each.size, 0), each.aborts.index.entries)
        for base, each in loaded.segments.items()
    }


def judge(found: Found, _promise: None) -> None:
    assert list(found) == [0, FAR, FARTHER, FARTHER + 2]
    assert b"".join(data for data, _ in found.values()) == LONG + LONG_END
    assert [list(aborts) for _, aborts in found.values()] == [*([entry] for entry in LONG_ENTRIES), []]


@pytest.mark.parametrize(
    ("depth", "images"),
    [(1, 6), pytest.param(2, 12, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
    ids=["once", "twice"],
)
@pytest.mark.parametrize("clean", [True, False])
def test_rows_205_and_206_every_point_of_a_split(clean: bool, depth: int, images: int) -> None:
    """Opened again, it is split: undone and done anew before the commit, completed behind it.

    With a recovery point above all of it, so that what is lost of an index stays lost unless that shows.
    """

    def workload(run: CrashRun[None]) -> None:
        run.promise(None)
        recover(run.disk)

    lab: CrashLab[Found, None] = CrashLab(
        recover,
        judge,
        clock=lambda: NOW_MS,
        depth=depth,
        images=images,
        second_images=1,
        kills=depth > 1,
        stop_after=1,
    )
    files = OVERGROWN | ({MARK: b""} if clean else {})
    report = lab.explore(workload, None, disk=lambda: disk_with(files))
    assert report.is_good, str(report)
    assert report.moments > 40


def swapped_up_to(count: int) -> MemoryDisk:
    """The directory after so many renames of a swap, as a killed process leaves it."""

    class Killed(Exception):
        pass

    class Dying(MemoryDisk):
        renames = 0

        def rename(self, source: str, target: str) -> None:
            if self.renames == count:
                raise Killed
            super().rename(source, target)
            self.renames += 1

    disk = Dying()
    disk.make_dir(DIRECTORY)
    put(disk, log_file(0), OLD)
    segment = Segment(disk, DIRECTORY, 0, EVERY_BATCH, size=len(OLD), now_ms=NOW_MS)
    new = split(disk, DIRECTORY, EVERY_BATCH, segment, runs_of(OLD), now_ms=NOW_MS)
    try:
        swap(disk, DIRECTORY, new, [segment])
    except Killed:
        pass
    return disk_with({path.removeprefix(f"{DIRECTORY}/"): data for path, data in disk.files().items()})


FILES = 3
"""Each new segment has a log and two indexes; the old one is a log."""


@pytest.mark.parametrize("renames", range(3 * FILES))
def test_row_205_before_the_last_swap_file_it_is_done_anew(renames: int) -> None:
    """All `.cleaned`, or some `.swap`: they go, and the old segment is split again."""
    disk = swapped_up_to(renames)
    assert any(name.endswith(CLEANED_SUFFIX) for name in names(disk))
    loaded = opened(disk)
    assert (bases_of(loaded), offsets_in(loaded)) == (BASES, OFFSETS)
    assert loaded.report.splits == [Split(log_file(0), tuple(BASES))]


@pytest.mark.parametrize("renames", range(3 * FILES, 6 * FILES + 3))
def test_row_206_from_then_on_it_is_completed(renames: int) -> None:
    """The old one there or gone, some of the new ones in their places: nothing is split again."""
    disk = swapped_up_to(renames)
    loaded = opened(disk)
    assert (bases_of(loaded), offsets_in(loaded)) == (BASES, OFFSETS)
    assert (loaded.report.splits, loaded.report.cuts) == ([], [])


# --- compaction -----------------------------------------------------------------------------------


def grown_too_long(disk: Disk, data: bytes, entries: list[AbortedTransaction]) -> Log:
    """A log that believes of a segment of its own that it fits: the file was exchanged under it."""
    log = on(disk)
    first = log.partition.segments[0]
    with_more = Segment(disk, DIRECTORY, 0, CONFIG, size=len(data), now_ms=NOW_MS)
    put(disk, log_file(0), data)
    with_more.aborts.replace(entries)
    with_more.seal = first.seal
    log.partition.segments = log.partition.segments.replacing([first], [with_more])
    return log


def test_row_244_the_cleaner_splits_what_overflows_and_the_next_pass_works() -> None:
    """The pass that meets it ends with the split; what the log holds is the same."""
    disk = disk_with({log_file(0): batch(0, (1,)), log_file(FARTHER + 2): LONG_END})
    log = grown_too_long(disk, LONG, LONG_ENTRIES)
    settings = CleanerConfig(io_buffer_size=1024)
    first = run(compaction_pass(log.partition, cleanable_of(log.partition, NOW_MS), settings, now_ms=NOW_MS))
    assert first.was_aborted
    assert [each.base_offset for each in log.partition.segments] == [0, FAR, FARTHER, FARTHER + 2]
    assert b"".join(bytes(each.buffer) for each in log.read_batches()) == LONG + LONG_END
    assert committed(log) == [FAR, FARTHER + 2]
    for before, after in pairwise(log.partition.segments):
        assert before.seal is not None
        assert before.seal.successor == after.base_offset
    assert not any(name.endswith(CLEANED_SUFFIX) for name in names(disk))
    second = run(compaction_pass(log.partition, cleanable_of(log.partition, NOW_MS), settings, now_ms=NOW_MS))
    assert second.is_complete
    assert not second.was_aborted
    assert committed(log) == [FAR, FARTHER + 2]
    log.close()
    again = on(disk.copy())
    assert committed(again) == [FAR, FARTHER + 2]
    assert again.partition.report.splits == []


def test_an_abort_whose_marker_begins_a_new_segment_is_known_there() -> None:
    disk = disk_with({log_file(0): batch(0, (1,)), log_file(FARTHER + 2): LONG_END})
    entry = AbortedTransaction(8, 0, FAR, FAR + 1)
    log = grown_too_long(disk, transactional(0, 8, 0) + marker(FAR, 8, ControlType.ABORT), [entry])
    run(compaction_pass(log.partition, cleanable_of(log.partition, NOW_MS), CleanerConfig(), now_ms=NOW_MS))
    found = {each.base_offset: list(each.aborts.index.entries) for each in log.partition.segments}
    assert found == {0: [], FAR: [entry], FARTHER + 2: []}
    assert committed(log) == [FARTHER + 2]

"""Loading a log directory: Kafka's own loader on hand-made directories, row by row, then the worst days.

The rows are those of docs/reference/behaviours.md. docs/differences.md says where this engine is stricter.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT
from logstore.cli.whole_trees import verify_tree
from logstore.config import MAX_INT
from logstore.disk.files import DirectoryEntry
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DamagedLog
from logstore.format.batch import walk
from logstore.log.loading import LoadedLog
from logstore.log.losses import Quarantine
from logstore.log.manager import LogManager
from logstore.log.producer_state import ProducerState
from logstore.log.reader import LogReader
from logstore.segment.indexes import OffsetIndex, TimeIndex
from logstore.segment.segment import SNAPSHOT_SUFFIX, file_name
from logstore.segment.segments import find_timestamp
from logstore.testing.disks import MemoryDisk, RecordingDisk
from tests.logstore.logs import (
    BATCH_0,
    BATCH_3,
    BATCH_5,
    SINGLE_5,
    batch,
    content_of,
    disk_with,
    log_file,
    names,
    offsets_in,
    opened,
    put,
)
from tests.logstore.segments_kit import locate

A = {log_file(0): BATCH_0 + BATCH_3}
B = {log_file(5): BATCH_5}
SMALL_A = {log_file(0): BATCH_0}
SMALL_B = {log_file(3): BATCH_3}
SMALL_C = {log_file(5): SINGLE_5}
EMPTY_SNAPSHOT = ProducerState().encode_snapshot()


def closed(files: dict[str, bytes], *, without: tuple[str, ...] = ()) -> MemoryDisk:
    """The directory as a clean stop left it: indexes and snapshots built by a first load, no epoch file."""
    disk = disk_with(files)
    loaded = opened(disk)
    for segment in loaded.segments.values():
        segment.close()
    for name in (*without, LEADER_EPOCH_CHECKPOINT):
        disk.remove(f"/data/orders-0/{name}")
    return disk.copy()


def bounds(loaded: LoadedLog) -> tuple[int, int, int]:
    return loaded.log_start_offset, loaded.recovery_point, loaded.log_end_offset


def epochs(loaded: LoadedLog) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in loaded.epochs.entries]


def index_entries(loaded: LoadedLog) -> dict[int, tuple[int, int]]:
    return {
        base: (segment.indexes.offsets.entry_count, segment.indexes.times.entry_count)
        for base, segment in loaded.segments.items()
    }


def snapshots(disk: MemoryDisk) -> list[int]:
    return [int(name.split(".")[0]) for name in names(disk) if name.endswith(SNAPSHOT_SUFFIX)]


class TestKafkasRows:
    """Every row of docs/reference/behaviours.md."""

    def test_two_segments_clean(self) -> None:
        """A clean load believes what it finds and does not rebuild the epoch file."""
        disk = closed(A | B)
        loaded = opened(disk, clean=True)
        assert bounds(loaded) == (0, 7, 7)
        assert epochs(loaded) == []
        assert index_entries(loaded) == {0: (1, 1), 5: (0, 1)}
        assert snapshots(disk) == [5, 7]

    def test_two_segments_unclean(self) -> None:
        """Everything is read again; the recovery point stays where the checkpoint had it."""
        loaded = opened(disk_with(A | B))
        assert bounds(loaded) == (0, 0, 7)
        assert epochs(loaded) == [(0, 0), (1, 3)]
        assert index_entries(loaded) == {0: (1, 1), 5: (0, 1)}

    def test_two_segments_unclean_with_a_recovery_point(self) -> None:
        """Only the segment that holds the recovery point is read, and only its epochs are found."""
        loaded = opened(closed(A | B), recovery_point=7)
        assert bounds(loaded) == (0, 7, 7)
        assert epochs(loaded) == [(1, 5)]

    def test_row_199_a_missing_time_index_clean(self) -> None:
        """Kafka goes on with an empty one; ours is rebuilt at its first use, so times stay findable."""
        disk = closed(A | B, without=(file_name(0, TimeIndex.suffix),))
        loaded = opened(disk, clean=True, recovery_point=7)
        assert bounds(loaded) == (0, 7, 7)
        assert epochs(loaded) == []
        assert index_entries(loaded)[0] == (1, 1)  # stricter: Kafka has (1, 0)

    @pytest.mark.parametrize("clean", [True, False])
    def test_both_indexes_missing(self, clean: bool) -> None:
        """A segment without its offset index is read again, wherever the recovery point is.

        Unclean it comes before the segments that are read in any case: its epochs are the older ones.
        """
        gone = (file_name(0, OffsetIndex.suffix), file_name(0, TimeIndex.suffix))
        loaded = opened(closed(A | B, without=gone), clean=clean, recovery_point=7)
        assert bounds(loaded) == (0, 7, 7)
        assert epochs(loaded) == [(0, 0), (1, 3)]
        assert index_entries(loaded)[0] == (1, 1)

    @pytest.mark.parametrize("clean", [True, False])
    def test_a_transaction_index_that_cannot_be_read(self, clean: bool) -> None:
        """Of a segment without a seal, as a broker leaves it: it is made anew, and sealed as it is then."""
        disk = disk_with(A | B | {file_name(0, ".txnindex"): b"\xff" * 34})
        loaded = opened(disk, clean=clean, recovery_point=7)
        assert bounds(loaded) == (0, 7, 7)
        assert file_name(0, ".txnindex") not in names(disk)
        again = opened(disk, clean=True, recovery_point=7)
        assert again.report.scanned_bytes == 0

    def test_an_index_of_zeros_clean(self) -> None:
        """Kafka sees two entries (0, 0); ours is taken for what it is, zeros."""
        disk = closed(A | B)
        put(disk, file_name(0, OffsetIndex.suffix), bytes(16))
        loaded = opened(disk, clean=True, recovery_point=7)
        assert bounds(loaded) == (0, 7, 7)
        assert epochs(loaded) == []
        assert offsets_in(loaded) == [0, 1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize("clean", [False, True])
    def test_preallocated_indexes(self, clean: bool) -> None:
        """A zero tail is no entry: unclean it is rebuilt as in Kafka, clean it is not believed either."""
        disk = closed(A)
        for suffix, size in ((OffsetIndex.suffix, 4096), (TimeIndex.suffix, 4092)):
            name = file_name(0, suffix)
            put(disk, name, content_of(disk, name).ljust(size, b"\0"))
        loaded = opened(disk, clean=clean)
        assert bounds(loaded) == (0, 5 if clean else 0, 5)
        assert epochs(loaded) == ([] if clean else [(0, 0), (1, 3)])
        assert index_entries(loaded) == {0: (1, 1)}  # clean and stricter: Kafka has (512, 341)

    def test_a_bit_error_in_the_middle_segment(self) -> None:
        """Past the recovery point the first bad batch ends the log, and later segments go."""
        broken = bytearray(BATCH_3)
        broken[-3] ^= 1
        disk = disk_with(SMALL_A | {log_file(3): bytes(broken)} | SMALL_C)
        loaded = opened(disk)
        assert bounds(loaded) == (0, 0, 3)
        assert epochs(loaded) == [(0, 0)]
        assert [(base, segment.size) for base, segment in loaded.segments.items()] == [
            (0, len(BATCH_0)),
            (3, 0),
        ]
        assert log_file(5) not in names(disk)

    def test_the_start_is_past_the_end(self) -> None:
        """What ends below the log start has nothing left to serve."""
        disk = disk_with(SMALL_A | SMALL_B)
        loaded = opened(disk, start=9)
        assert bounds(loaded) == (9, 0, 9)
        assert epochs(loaded) == []
        assert [name for name in names(disk) if name.endswith(".log")] == [log_file(9)]

    def test_row_208_a_complete_swap_is_finished(self) -> None:
        """The new segments replace the old ones, and snapshots inside their range go with them."""
        swapped = batch(1, (1001, 1002)) + batch(4, (2001,), epoch=1)
        files = SMALL_A | SMALL_B | SMALL_C | {log_file(0) + ".swap": swapped}
        files |= {file_name(3, SNAPSHOT_SUFFIX): b"junk", file_name(5, SNAPSHOT_SUFFIX): b"junk"}
        disk = disk_with(files)
        loaded = opened(disk, clean=True, recovery_point=6)
        assert bounds(loaded) == (0, 6, 6)
        assert list(loaded.segments) == [0, 5]
        assert offsets_in(loaded) == [1, 2, 4, 5]
        assert 3 not in snapshots(disk)
        assert not [name for name in names(disk) if name.endswith(".swap")]

    def test_row_207_an_unfinished_rewrite_is_dropped(self) -> None:
        disk = closed(SMALL_A | SMALL_B)
        put(disk, log_file(0) + ".cleaned", batch(1, (1001,)))
        loaded = opened(disk, clean=True, recovery_point=5)
        assert bounds(loaded) == (0, 5, 5)
        assert offsets_in(loaded) == [0, 1, 2, 3, 4]
        assert not [name for name in names(disk) if name.endswith(".cleaned")]

    def test_row_207_a_swap_above_an_unfinished_rewrite_is_dropped(self) -> None:
        """Names go from `.cleaned` to `.swap` from the last one down: one left over undoes them all."""
        disk = closed(A)
        put(disk, log_file(0) + ".cleaned", batch(1, (1001,)))
        put(disk, log_file(3) + ".swap", batch(4, (2001,), epoch=1))
        loaded = opened(disk, clean=True, recovery_point=5)
        assert bounds(loaded) == (0, 5, 5)
        assert offsets_in(loaded) == [0, 1, 2, 3, 4]
        assert not [name for name in names(disk) if name.endswith((".cleaned", ".swap"))]

    def test_row_200_leftovers_of_deletion_go(self) -> None:
        disk = closed(SMALL_A)
        for name in (log_file(3) + ".deleted", file_name(3, ".index") + ".deleted", file_name(77, ".index")):
            put(disk, name, b"x")
        loaded = opened(disk, clean=True, recovery_point=3)
        assert bounds(loaded) == (0, 3, 3)
        assert not [
            name for name in names(disk) if name.endswith(".deleted") or name.startswith("0" * 18 + "77")
        ]

    def test_an_empty_directory(self) -> None:
        disk = disk_with({})
        loaded = opened(disk, start=42)
        assert bounds(loaded) == (42, 0, 42)
        assert [name for name in names(disk) if name.endswith(".log")] == [log_file(42)]

    def test_a_gap_and_a_start_inside_it(self) -> None:
        """Gaps are legal; the first epoch is raised to the log start."""
        disk = disk_with(SMALL_A | {log_file(10): batch(10, (5000, 5001), epoch=4)})
        loaded = opened(disk, start=5)
        assert bounds(loaded) == (5, 0, 12)
        assert epochs(loaded) == [(0, 5), (4, 10)]

    def test_a_zero_tail_after_a_clean_stop(self) -> None:
        """Kafka cannot open it. A mark that lies is not believed here: the log is recovered."""
        disk = closed(SMALL_A)
        put(disk, log_file(0), BATCH_0 + bytes(40))
        loaded = opened(disk, clean=True, recovery_point=3)
        assert loaded.log_end_offset == 3
        assert content_of(disk, log_file(0)) == BATCH_0

    def test_a_tail_of_seventeen_zeros(self) -> None:
        """The walk over a file does not even see a tail this short; recovery cuts it."""
        disk = disk_with({log_file(0): BATCH_0 + bytes(17)})
        loaded = opened(disk, recovery_point=3)
        assert bounds(loaded) == (0, 3, 3)
        assert epochs(loaded) == [(0, 0)]
        assert content_of(disk, log_file(0)) == BATCH_0


def test_loading_twice_is_loading_once() -> None:
    """What the first load settled the second finds settled."""
    disk = disk_with(A | {log_file(5): BATCH_5[:-1]})
    first = opened(disk)
    for segment in first.segments.values():
        segment.close()
    before = disk.files()
    second = opened(disk)
    assert (second.log_start_offset, second.log_end_offset) == (first.log_start_offset, first.log_end_offset)
    assert not second.report.cuts
    assert disk.files() == before


def test_a_segment_that_overlaps_its_predecessor_is_of_another_time() -> None:
    """A truncation that did not reach the disk leaves later segments: they do not follow, they go."""
    disk = disk_with(A | {log_file(3): batch(3, (9000,), epoch=2)})
    loaded = opened(disk)
    assert offsets_in(loaded) == [0, 1, 2, 3, 4]
    assert list(loaded.segments) == [0]


def test_a_stale_tail_of_an_older_epoch_is_cut() -> None:
    """Batches written before a truncation can line up with those after it; their epoch tells them apart."""
    stale = batch(3, (1500,), epoch=1)
    disk = disk_with({log_file(0): batch(0, (1000, 1001, 1002), epoch=2) + stale})
    loaded = opened(disk)
    assert offsets_in(loaded) == [0, 1, 2]
    assert [cut.reason for cut in loaded.report.cuts] == [
        "a batch of an older leader epoch than the one before it"
    ]


def test_a_log_that_ends_elsewhere_than_its_owner_left_it_was_not_closed_by_it() -> None:
    """Another program has written to it since, perhaps without a sync."""
    disk = closed(A)
    assert bounds(opened(disk, clean=True, recovery_point=3, closed_at=3)) == (0, 3, 5)
    assert bounds(opened(disk, clean=True, recovery_point=5, closed_at=5)) == (0, 5, 5)


@pytest.mark.parametrize("size", [1, 30, 42])
def test_less_than_a_header_without_times_is_no_end_of_a_clean_stop(size: int) -> None:
    indexes = {log_file(0).replace(".log", suffix): b"" for suffix in (".index", ".timeindex")}
    disk = disk_with({log_file(0): BATCH_0[:size], **indexes})
    assert bounds(opened(disk, clean=True)) == (0, 0, 0)


@pytest.mark.parametrize("name", ["0.log", "2.log", "9" * 20 + ".log", "7.index", log_file(0) + ".bak"])
def test_a_file_with_another_name_is_not_touched(name: str) -> None:
    """A segment has 20 digits. An operator may keep a copy beside it, also while a swap is finished."""
    swapped = disk_with({log_file(0): BATCH_0, log_file(0) + ".swap": BATCH_0, name: b"of an operator"})
    for disk in (disk_with({**A, **B, name: b"of an operator"}), swapped):
        expected = list(walk(BATCH_0)) if disk is swapped else [*walk(BATCH_0 + BATCH_3), *walk(BATCH_5)]
        reader = LogReader("/data/orders-0", disk=disk)
        assert [each.base_offset for each in reader.batches()] == [each.base_offset for each in expected]
        found = list(verify_tree(disk, "/data/orders-0", lambda _: None))
        assert [each.text for each in found if each.path.endswith(f"/{name}")] == [
            "not a file of a log directory; ignored"
        ]
        assert not any(each.is_damage for each in found)
        assert opened(disk).log_end_offset == expected[-1].next_offset
        assert content_of(disk, name) == b"of an operator"


def test_a_file_in_place_of_the_quarantine_is_named_and_kept() -> None:
    """Removed records could not be kept; the other partitions of its log dir open."""
    disk = disk_with({**A, **B, "lost": b"of an operator"})
    for _ in range(2):
        with pytest.raises(DamagedLog, match=r"/data/orders-0/lost is a file; .* Rename the file"):
            opened(disk)
    assert content_of(disk, "lost") == b"of an operator"
    assert Quarantine(disk, "/data/orders-0").losses() == []
    manager = LogManager(["/data"], disk=disk, clock=lambda: 0, random=random.Random(1))
    assert list(manager.damaged) == [TopicPartition("orders", 0)]
    manager.close()


def test_a_crash_while_it_cuts_leaves_no_hole() -> None:
    """A cut in an early segment takes the later ones with it: were it made first, they would come back."""
    disk = disk_with({log_file(0): BATCH_0 + BATCH_3[:-1], log_file(5): BATCH_5})
    images: list[MemoryDisk] = []
    opened(RecordingDisk(disk, before=lambda _: images.append(disk.durable_image())))
    found = [offsets_in(opened(image)) for image in images]
    assert len(found) > 5
    assert [offsets for offsets in found if offsets != [0, 1, 2]] == []


class TestDamageIsNotATornTail:
    """Below the recovery point nothing that is sound is ever cut in silence."""

    def test_a_bad_batch_before_good_ones_is_refused_and_kept(self) -> None:
        broken = bytearray(BATCH_0 + BATCH_3)
        broken[70] ^= 1
        disk = disk_with({log_file(0): bytes(broken)})
        before = disk.files()
        with pytest.raises(DamagedLog, match=r"offset 0\): bad batch"):
            opened(disk, recovery_point=5)
        assert disk.files() == before

    def test_a_bad_batch_before_a_good_segment_is_refused(self) -> None:
        broken = bytearray(BATCH_3)
        broken[-1] ^= 1
        disk = disk_with(SMALL_A | {log_file(3): bytes(broken)} | SMALL_C)
        with pytest.raises(DamagedLog):
            opened(disk, recovery_point=4)

    def test_the_same_is_given_up_when_told_so(self) -> None:
        """A recovery point of 0 says: nothing is known to be durable."""
        broken = bytearray(BATCH_0 + BATCH_3)
        broken[70] ^= 1
        loaded = opened(disk_with({log_file(0): bytes(broken)}), recovery_point=0)
        assert loaded.log_end_offset == 0

    @pytest.mark.parametrize("tail", [BATCH_3[:-1], b""])
    def test_a_log_that_ends_below_the_recovery_point(self, tail: bytes) -> None:
        """What was synced is gone: said, and cut only if that is accepted."""
        disk = disk_with({log_file(0): BATCH_0 + tail})
        before = disk.files()
        with pytest.raises(DamagedLog) as caught:
            opened(disk, recovery_point=5)
        assert [(each.position, each.offset) for each in caught.value.damages] == [(len(BATCH_0), 3)]
        assert disk.files()[f"/data/orders-0/{log_file(0)}"] == before[f"/data/orders-0/{log_file(0)}"]
        loaded = opened(disk, recovery_point=5, accept_loss=True)
        assert (loaded.log_end_offset, loaded.recovery_point) == (3, 3)
        assert loaded.report.damages == list(caught.value.damages)

    @pytest.mark.parametrize(("slot", "rotten"), [(0, 2), (1, 6), (1, 7), (2, 6)])
    def test_an_offset_that_rotted_upwards_does_not_stay(self, slot: int, rotten: int) -> None:
        """No checksum covers it, and only the batch behind contradicts it (seed 1003026: a follower kept it,
        fetched what comes after, and had another record at a committed offset for good)."""
        written = [batch(offset, range(1000 + offset, 1002 + offset)) for offset in range(0, 8, 2)]
        changed = rotten.to_bytes(8) + written[slot][8:]
        content = b"".join([*written[:slot], changed, *written[slot + 1 :]])
        disk = disk_with({log_file(0): content})
        place = len(b"".join(written[:slot])), 2 * slot
        with pytest.raises(DamagedLog) as caught:
            opened(disk, recovery_point=8)
        assert [(each.position, each.offset) for each in caught.value.damages] == [place]
        assert content_of(disk, log_file(0)) == content
        loaded = opened(disk, recovery_point=8, accept_loss=True)
        assert loaded.log_end_offset == 2 * slot
        assert content_of(disk, log_file(0)) == b"".join(written[:slot])


BATCHES = [
    batch(offset, range(1000 + offset, 1000 + offset + 2), epoch=offset // 6) for offset in range(10, 22, 2)
]
SEALED = {log_file(0): batch(0, range(1000, 1005)) + batch(5, range(1005, 1010))}


def longest_run(size: int) -> int:
    """Batches that are whole in the first `size` bytes of the active segment."""
    whole = total = 0
    for each in BATCHES:
        total += len(each)
        whole += total <= size
    return whole


@pytest.mark.parametrize("recovery_point", [0, 10, 14])
def test_row_47_any_cut_keeps_the_longest_run_of_whole_batches(recovery_point: int) -> None:
    """Power fails while the tail is written: the file may end anywhere. Exhaustive, not sampled."""
    image = b"".join(BATCHES)
    base = disk_with(SEALED | {log_file(10): b""})
    for size in range(len(image) + 1):
        disk = base.copy()
        put(disk, log_file(10), image[:size])
        loaded = opened(disk, recovery_point=recovery_point, accept_loss=True)
        whole = longest_run(size)
        assert bool(loaded.report.damages) == (10 + 2 * whole < recovery_point)
        assert loaded.log_end_offset == 10 + 2 * whole, f"cut at byte {size}"
        assert content_of(disk, log_file(10)) == b"".join(BATCHES[:whole]), f"cut at byte {size}"
        assert offsets_in(loaded) == list(range(10 + 2 * whole)), f"cut at byte {size}"


@pytest.mark.parametrize(
    "tail", [bytes(1), bytes(60), bytes(4096), b"\xff" * 300, random.Random(7).randbytes(700)]
)
def test_zeros_and_garbage_after_any_batch_are_cut(tail: bytes) -> None:
    """Sizes reach the disk before bytes do, and blocks of other files before ours."""
    for count in range(len(BATCHES) + 1):
        disk = disk_with(SEALED | {log_file(10): b"".join(BATCHES[:count]) + tail})
        loaded = opened(disk, recovery_point=10)
        assert loaded.log_end_offset == 10 + 2 * count
        assert content_of(disk, log_file(10)) == b"".join(BATCHES[:count])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("base_offset", [0, 10])
@pytest.mark.parametrize("suffix", [OffsetIndex.suffix, TimeIndex.suffix])
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\0" * 16,
        b"\0" * 24,
        b"  " * 12,
        b"\x7f" * 96,
        b"\xff" * 24,
        random.Random(3).randbytes(120),
    ],
)
def test_rows_197_and_198_any_index_deleted_or_overwritten(
    clean: bool, base_offset: int, suffix: str, content: bytes | None
) -> None:
    """An index is never evidence: every offset and every time is found whatever the file holds."""
    disk = closed(SEALED | {log_file(10): b"".join(BATCHES)})
    name = file_name(base_offset, suffix)
    if content is None:
        disk.remove(f"/data/orders-0/{name}")
    else:
        put(disk, name, content)
    loaded = opened(disk, clean=clean, recovery_point=22)
    assert loaded.log_end_offset == 22
    for offset in range(22):
        segment = loaded.segments[0 if offset < 10 else 10]
        located = locate(segment, offset)
        assert located is not None
        assert located.base_offset <= offset <= located.last_offset
        found = find_timestamp(segment, 1000 + offset, 0, 22)
        assert found is not None
        assert found.base_offset <= offset <= found.last_offset


@pytest.mark.parametrize("content", [b"0\n3\n0 0\n", b"0\n1\n0", b"\xff", b"7\n0\n"])
def test_a_torn_epoch_file_is_rebuilt_from_the_batches(content: bytes) -> None:
    """Derived data: where the file does not parse, the batches tell, from the first one on."""
    disk = closed(SEALED | {log_file(10): b"".join(BATCHES)})
    put(disk, LEADER_EPOCH_CHECKPOINT, content)
    loaded = opened(disk, recovery_point=22)
    assert epochs(loaded) == [(0, 0), (1, 10), (2, 12), (3, 18)]


def test_a_lost_epoch_of_the_tail_is_found_again() -> None:
    """The epoch file is written before the batch; a crash may leave it older, never wrong."""
    disk = disk_with(SEALED | {log_file(10): b"".join(BATCHES), LEADER_EPOCH_CHECKPOINT: b"0\n1\n0 0\n"})
    assert epochs(opened(disk, recovery_point=10)) == [(0, 0), (1, 10), (2, 12), (3, 18)]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(data=st.binary(max_size=400), count=st.integers(0, 4))
def test_recovery_never_fails_on_any_tail(data: bytes, count: int) -> None:
    """Whatever follows sound batches, the log opens with them, and opens the same way again."""
    disk = disk_with(SEALED | {log_file(10): b"".join(BATCHES[:count]) + data})
    first = opened(disk, recovery_point=10)
    assert first.log_end_offset >= 10 + 2 * count
    assert offsets_in(first)[: 10 + 2 * count] == list(range(10 + 2 * count))
    assert opened(disk, recovery_point=10).log_end_offset == first.log_end_offset


def test_row_46_a_file_larger_than_any_segment() -> None:
    """No index could point into its end: nobody wrote that as a segment, and nothing of it is cut."""

    class Large(MemoryDisk):
        def scan(self, directory: str) -> list[DirectoryEntry]:
            return [entry._replace(size=entry.size + MAX_INT) for entry in super().scan(directory)]

    disk = Large(disk_with(SMALL_A).files(), directories=["/data/orders-0"])
    with pytest.raises(DamagedLog, match="no segment has more than 2147483647"):
        opened(disk)
    assert content_of(disk, log_file(0)) == BATCH_0


def test_row_91_epochs_are_those_of_the_batches() -> None:
    """Also where the cache held some of them already."""
    batches = [batch(at, (1000, 1001), epoch=epoch) for at, epoch in ((104, 0), (106, 1), (108, 1), (110, 2))]
    for known in (b"0\n0\n", b"0\n1\n0 104\n", b"0\n3\n0 104\n1 106\n2 110\n"):
        disk = disk_with({log_file(104): b"".join(batches), LEADER_EPOCH_CHECKPOINT: known})
        assert epochs(opened(disk)) == [(0, 104), (1, 106), (2, 110)]


@pytest.mark.parametrize("noise", [b"\xff", b"\0", b"\x5a"])
def test_row_92_noise_from_the_middle_of_a_batch_on(noise: bytes) -> None:
    """Exactly the batches before it remain."""
    batches = [batch(offset, (1000 + offset,)) for offset in range(10)]
    whole = b"".join(batches)
    for number in range(10):
        middle = sum(len(each) for each in batches[:number]) + len(batches[number]) // 2
        disk = disk_with({log_file(0): whole[:middle] + noise * (len(whole) - middle)})
        loaded = opened(disk)
        assert offsets_in(loaded) == list(range(number))
        assert loaded.log_end_offset == number
        assert content_of(disk, log_file(0)) == b"".join(batches[:number])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("old", ["present", "deleted", "gone"])
@pytest.mark.parametrize("indexes", ["swap", "one", "none"])
def test_row_208_a_swap_is_finished_wherever_it_stopped(clean: bool, old: str, indexes: str) -> None:
    """Old files in place or on their way out, all or one index still to be renamed: the new content."""
    new = batch(1, (1001, 1002)) + batch(4, (2001,), epoch=1)
    files = {log_file(0) + ".swap": new} | SMALL_C
    olds = SMALL_A | SMALL_B
    if old != "gone":
        files |= {name + (".deleted" if old == "deleted" else ""): data for name, data in olds.items()}
    if indexes != "none":
        files[file_name(0, ".timeindex") + ".swap"] = bytes(12)
    if indexes == "swap":
        files[file_name(0, ".index") + ".swap"] = b""
    disk = disk_with(files)
    loaded = opened(disk, clean=clean, recovery_point=6)
    assert list(loaded.segments) == [0, 5]
    assert offsets_in(loaded) == [1, 2, 4, 5]
    assert not [name for name in names(disk) if name.endswith((".swap", ".deleted"))]


@pytest.mark.parametrize(
    "behind", [b"", batch(4, (1004,)), batch(3, (1003, 1004))], ids=["alone", "adjacent", "overlapping"]
)
def test_no_rotten_batch_holds_the_recovery_point(behind: bytes) -> None:
    """The last synced batch, of offsets 0 to 2, seems to be one of 1 to 3. A follower was cut inside of it,
    where its leader ended, and claimed to hold records that it had lost (seed 2068)."""
    rotten = bytearray(batch(0, (1000, 1001, 1002)))
    rotten[7] = 1
    disk = disk_with({log_file(0): bytes(rotten) + behind})
    before = content_of(disk, log_file(0))
    with pytest.raises(DamagedLog, match="begins past offsets that were durable"):
        opened(disk, recovery_point=3)
    assert content_of(disk, log_file(0)) == before


@pytest.mark.parametrize("recovery_point", range(10))
@pytest.mark.parametrize("start", [0, 4])
def test_a_recovery_point_inside_of_a_sound_batch_is_no_damage(recovery_point: int, start: int) -> None:
    """Kafka leaves one after a truncation inside of a batch, and an operator may give one."""
    content = b"".join(batch(base, (1000 + base,) * 3) for base in (0, 3, 6))
    disk = disk_with({log_file(0): content})
    loaded = opened(disk, recovery_point=recovery_point, start=start)
    assert (loaded.log_start_offset, loaded.log_end_offset, loaded.report.cuts) == (start, 9, [])
    assert content_of(disk, log_file(0)) == content


@pytest.mark.parametrize("rise", [1, 2])
@pytest.mark.parametrize("recovery_point", [4, 5, 6])
def test_a_batch_past_a_gap_does_not_hold_the_recovery_point(rise: int, recovery_point: int) -> None:
    """The gap tells that its base offset has rotted, wherever in it the recovery point lies."""
    rotten = bytearray(batch(3, (1003, 1004, 1005)))
    rotten[7] += rise
    disk = disk_with({log_file(0): batch(0, (1000, 1001, 1002)) + bytes(rotten)})
    with pytest.raises(DamagedLog, match="begins past offsets that were durable"):
        opened(disk, recovery_point=recovery_point)


def test_a_log_start_may_lie_inside_of_a_batch() -> None:
    """The recovery point is raised to it."""
    disk = disk_with({log_file(0): batch(0, (1000, 1001, 1002))})
    loaded = opened(disk, recovery_point=1, start=2)
    assert (loaded.log_start_offset, loaded.log_end_offset, loaded.report.cuts) == (2, 3, [])

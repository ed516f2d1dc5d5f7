"""What both indexes share: where the entries are at each moment, and what a file may do to them."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from logstore.disk.files import OsDisk
from logstore.errors import CorruptIndex
from logstore.format.crc import crc32c
from logstore.segment.indexes import WRITE_BEHIND_ENTRIES as WRITE_BEHIND
from logstore.segment.indexes import IndexFile, OffsetIndex, TimeIndex
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk, RecordingDisk

BASE = 45
LIMIT = 1 << 16
BOTH: list[type[IndexFile]] = [OffsetIndex, TimeIndex]


def disk_with(content: bytes | None = None) -> MemoryDisk:
    files = {} if content is None else {"/data/index": content}
    return MemoryDisk(files, directories=["/data"])


def offset_index(disk: MemoryDisk | FaultyDisk | RecordingDisk, limit: int = LIMIT) -> OffsetIndex:
    return OffsetIndex(disk, "/data/index", BASE, limit)


def filled(count: int, disk: MemoryDisk | None = None) -> OffsetIndex:
    index = offset_index(disk or disk_with())
    for slot in range(count):
        index.append(BASE + 2 * slot, 10 * slot)
    return index


def size_on(disk: MemoryDisk) -> int:
    return len(disk.files().get("/data/index", b""))


def test_entries_reach_the_file_late_and_together() -> None:
    """A system call an entry would cost more than the batch it points to."""
    disk = disk_with()
    recording = RecordingDisk(disk)
    index = offset_index(recording)
    for slot in range(WRITE_BEHIND):
        index.write_behind()
        index.append(BASE + slot, slot)
    assert not recording.operations, "nothing is written before hundreds have gathered"
    index.write_behind()
    assert [operation.name for operation in recording.operations] == ["create", "truncate", "pwrite"]
    index.append(BASE + WRITE_BEHIND, WRITE_BEHIND)
    index.write_behind()
    assert size_on(disk) == WRITE_BEHIND * 8
    index.flush()
    assert size_on(disk) == (WRITE_BEHIND + 1) * 8


@pytest.mark.parametrize("written", [0, 5, WRITE_BEHIND, WRITE_BEHIND + 90, 2 * WRITE_BEHIND + 6])
def test_entries_are_the_same_wherever_they_are(written: int) -> None:
    """In the file, in memory or half in each: every reader sees one sequence."""
    index = filled(written)
    index.write_behind()
    index.append(BASE + 2 * written, 10 * written)
    written += 1
    for slot in range(written):
        assert index.entry(slot) == (2 * slot, 10 * slot)
    assert index.entries() == [(2 * slot, 10 * slot) for slot in range(written)]
    with pytest.raises(IndexError, match=f"{written} entries, none numbered {written}"):
        index.entry(written)
    with pytest.raises(IndexError):
        index.entry(-1)


def test_row_56_an_entry_beyond_the_last() -> None:
    with pytest.raises(IndexError):
        filled(0).entry(0)


@pytest.mark.parametrize("kind", BOTH)
def test_row_57_append_to_a_full_index(kind: type[IndexFile]) -> None:
    """A broken promise of our own: the segment rolls before."""
    index = kind(disk_with(), "/data/index", BASE, kind.layout.size * 2)
    assert index.capacity == 2
    for slot in range(2):
        index._extend([(slot, slot)])
    with pytest.raises(AssertionError, match="full"):
        index._extend([(2, 2)])


@pytest.mark.parametrize("limit", [16, 17, 23])
def test_capacity_is_whole_entries(limit: int) -> None:
    assert offset_index(disk_with(), limit).capacity == 2


def test_row_61_reopened_after_close() -> None:
    disk = disk_with()
    index = filled(2, disk)
    index.trim()
    index.close()
    assert size_on(disk) == 16
    again = offset_index(disk)
    again.load()
    assert again.entries() == [(0, 0), (2, 10)]
    assert again.last_offset == BASE + 2
    again.append(BASE + 9, 99)
    assert again.entry_count == 3


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("spare", [1, 7, 4096])
def test_a_preallocated_tail_is_no_entry(kind: type[IndexFile], spare: int) -> None:
    """What Kafka leaves after a crash: zeros up to the largest size (pitfalls 1 and 20)."""
    entries = np.array([(5, 7), (9, 11)], kind.fields).tobytes()
    disk = disk_with(entries + bytes(spare * kind.layout.size))
    index = kind(disk, "/data/index", BASE, LIMIT)
    index.load()
    assert index.entries() == [(5, 7), (9, 11)]
    index.trim()
    assert size_on(disk) == len(entries)
    assert index.entries() == [(5, 7), (9, 11)]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("extra", range(1, 8))
def test_a_length_that_is_no_whole_number_of_entries(kind: type[IndexFile], extra: int) -> None:
    disk = disk_with(np.array([(5, 7)], kind.fields).tobytes() + b"\1" * extra)
    with pytest.raises(CorruptIndex, match="not whole entries"):
        kind(disk, "/data/index", BASE, LIMIT).load()


@pytest.mark.parametrize("kind", BOTH)
def test_row_69_another_limit_keeps_the_entries(kind: type[IndexFile]) -> None:
    """Nothing is preallocated, so nothing is resized: the limit is the next owner's."""
    disk = disk_with(np.array([(1, 1), (2, 2), (3, 3)], kind.fields).tobytes())
    for limit in (3, 3, 5, 100, 4):
        index = kind(disk, "/data/index", BASE, kind.layout.size * limit)
        index.load()
        assert (index.capacity, index.entries()) == (limit, [(1, 1), (2, 2), (3, 3)])
        index.close()


def test_leftovers_under_the_name_are_not_entries() -> None:
    """A new segment's index starts empty, whatever a crash or another program left there."""
    disk = disk_with(b"\7" * 80)
    index = offset_index(disk)
    index.append(BASE, 0)
    index.flush()
    assert size_on(disk) == 8


def test_row_62_truncate() -> None:
    """Entries 1…9: what is left, and that appending goes on after it."""
    for end, last in ((12, 9), (9, 8), (5, 4)):
        for flushed in (False, True):
            index = offset_index(disk_with())
            for offset in range(1, 10):
                index.append(BASE + offset, offset)
            if flushed:
                index.flush()
            index.truncate_to(BASE + end)
            assert index.last_offset == BASE + last
            index.append(BASE + 20, 20)
            assert index.last_offset == BASE + 20
    index = filled(9)
    index.truncate_to(BASE)
    assert index.entry_count == 0
    index.append(BASE, 0)
    assert index.entries() == [(0, 0)]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("kept", [0, 1, 600, 1200])
def test_the_digest_is_that_of_the_entries_in_the_file(kind: type[IndexFile], kept: int) -> None:
    """A seal gets it, without a reading of the file: it must be what a reading would give."""
    disk = disk_with()
    index = kind(disk, "/data/index", BASE, LIMIT)

    def is_right() -> bool:
        return index.crc == crc32c(disk.files().get("/data/index", b""))

    assert is_right()
    for start in (1, 601):
        index._extend([(slot, slot) for slot in range(start, start + 600)])
        index.write_behind()
        assert is_right()
    index._extend([(1201, 1201)])
    assert is_right()
    index.truncate_to(BASE + kept)
    assert is_right()
    index._extend([(1301, 1301)])
    index.trim()
    assert is_right()
    assert size_on(disk) == index.entry_count * kind.layout.size
    index.close()
    index = kind(disk, "/data/index", BASE, LIMIT)
    assert index.load() == index.crc
    assert is_right()
    index.replace([(7, 7)])
    assert is_right()
    index.replace([(7, 7), (8, 8)], durably=True)
    assert is_right()


@pytest.mark.parametrize("durably", [False, True])
@pytest.mark.parametrize("operation", ["truncate", "pwrite", "open", "rename"])
def test_a_replacement_that_fails_leaves_what_was_known(durably: bool, operation: str) -> None:
    """The index was empty in memory: lookups read the log from its start, and a scrub saw nothing."""
    disk = disk_with()
    filled(3, disk).close()
    fault = Fault(operation=operation, errno=errno.ENOSPC, path=lambda path: "index" in path)
    index = offset_index(FaultyDisk(disk, [fault]) if operation != "open" else disk)
    index.load()
    index.append(BASE + 9, 99)
    known, written = index.entries(), index.written
    if operation == "open":
        index._disk = FaultyDisk(disk, [fault])
    try:
        index.replace([(7, 7)], durably=durably)
    except OSError:
        assert index.entries()[1:] == known[1:]
        assert index.written == written
        index.replace([(7, 7)], durably=durably)
    assert index.entries() == [(7, 7)]
    index.close()
    assert disk.files()["/data/index"] == OffsetIndex.layout.pack(7, 7)


def test_the_file_shrinks_only_without_a_map() -> None:
    """Reading a mapped page that the file no longer has kills the process; the disk in memory asserts it."""
    disk = disk_with()
    index = filled(1000, disk)
    index.flush()
    assert index.lookup(BASE + 1500).offset == BASE + 1500
    index.truncate_to(BASE + 100)
    assert size_on(disk) == 50 * 8
    assert index.lookup(BASE + 1500).offset == BASE + 98
    index.replace([(1, 1)])
    assert size_on(disk) == 8
    assert index.entries() == [(1, 1)]
    index.replace([])
    assert index.entry_count == 0


def test_the_same_on_the_operating_system(tmp_path: object) -> None:
    """With a real map, which grows with the file and goes before it shrinks."""
    index = OffsetIndex(OsDisk(), f"{tmp_path}/index", BASE, LIMIT)
    for slot in range(1500):
        index.append(BASE + slot, slot)
    index.flush()
    assert [index.lookup(BASE + offset).position for offset in (0, 511, 512, 1499)] == [0, 511, 512, 1499]
    index.truncate_to(BASE + 3)
    assert index.entry_count == 3
    index.close()
    again = OffsetIndex(OsDisk(), f"{tmp_path}/index", BASE, LIMIT)
    again.load()
    assert again.entries() == [(0, 0), (1, 1), (2, 2)]
    again.delete()
    again.delete()


def test_row_75_delete_before_there_is_a_file() -> None:
    index = filled(3)
    index.delete()
    assert index.entry_count == 0


def test_no_room_for_entries_leaves_them_where_they_are() -> None:
    """Said before the batch is written, so that its append can be refused; nothing is lost by it."""
    disk = disk_with()
    faulty = FaultyDisk(disk, [Fault(operation="pwrite", errno=errno.ENOSPC, short=100)])
    index = offset_index(faulty)
    for slot in range(WRITE_BEHIND):
        index.append(BASE + slot, slot)
    with pytest.raises(OSError, match="No space"):
        index.write_behind()
    assert index.entries() == [(slot, slot) for slot in range(WRITE_BEHIND)]
    index.write_behind()
    assert size_on(disk) == WRITE_BEHIND * 8
    assert index.lookup(BASE + 300).position == 300


def test_a_flush_says_what_is_wrong() -> None:
    faulty = FaultyDisk(disk_with(), [Fault(operation="pwrite", errno=errno.ENOSPC)])
    index = offset_index(faulty)
    index.append(BASE, 0)
    with pytest.raises(OSError, match="No space"):
        index.sync()
    assert index.entries() == [(0, 0)]
    index.sync()
    assert size_on(faulty.inner) == 8  # type: ignore[arg-type]

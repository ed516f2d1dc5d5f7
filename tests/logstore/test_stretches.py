"""Stretches of batches, and what lies behind a damage. What holds for batches too: `test_reader.py`."""

from __future__ import annotations

import pytest

from logstore import DamagedLog
from logstore.format.batch import encode_batch, set_offsets_and_epoch
from logstore.format.compression import Codec
from logstore.format.record import Record
from logstore.log.stretches import Skipped, Stretch, StretchReader
from logstore.segment.scan import Fault, scan_buffer
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import BATCH_0, BATCH_3, BATCH_5, DIRECTORY, batch, disk_with, log_file

LONG = [batch(3 * number, (1, 2, 3), epoch=number // 10) for number in range(40)]


def read_past_damage(disk: MemoryDisk, start: int | None = None) -> tuple[list[int], list[Skipped]]:
    """Base offsets of all that can be read, and what was skipped."""
    reader = StretchReader(DIRECTORY, start_offset=start, disk=disk)
    bases: list[int] = []
    skipped: list[Skipped] = []
    while True:
        try:
            for stretch in reader.stretches():
                bases += stretch.headers["base_offset"].tolist()
            return bases, skipped
        except DamagedLog:
            found = reader.skip_damage()
            assert found is not None
            skipped.append(found)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("size", [1, 200, 1000, 4 << 20])
def test_stretches_are_the_files_bytes(size: int) -> None:
    """End to end, in order, each of about the size asked for; what they say of themselves is so."""
    data = b"".join(LONG)
    disk = disk_with({log_file(0): data})
    stretches: list[Stretch] = list(StretchReader(DIRECTORY, disk=disk, stretch_bytes=size).stretches())
    assert b"".join(bytes(each.data) for each in stretches) == data
    for each in stretches:
        assert data[each.position : each.position + len(each.data)] == each.data
        assert len(each.data) <= max(size, 2 * max(map(len, LONG)))
        assert (each.file, each.base_offset) == (log_file(0), 0)
        for slot in range(len(each.positions)):
            assert each.batch(slot).base_offset == each.headers["base_offset"][slot]
    assert stretches[-1].next_offset == 120


@pytest.mark.parametrize("start", range(120))
def test_a_stretch_begins_with_the_batch_that_holds_the_start(start: int) -> None:
    """What ends below it is left out, from the middle of a chunk too."""
    reader = StretchReader(DIRECTORY, start_offset=start, disk=disk_with({log_file(0): b"".join(LONG)}))
    first = next(reader.stretches())
    assert int(first.headers["base_offset"][0]) == start // 3 * 3
    assert bytes(first.data) == b"".join(LONG[start // 3 :])


@pytest.mark.parametrize("at", [16, 20, 60, len(BATCH_3) - 1])
def test_behind_a_damaged_batch(at: int) -> None:
    """Its length still leads to the next one: exactly its offsets are lost."""
    disk = disk_with({log_file(0): BATCH_0 + flipped(BATCH_3, at) + BATCH_5})
    bases, skipped = read_past_damage(disk)
    assert bases == [0, 5]
    assert [each[:2] for each in skipped] == [(3, 5)]


@pytest.mark.parametrize("at", [8, 9, 10, 11])
def test_behind_a_damaged_length(at: int) -> None:
    """It leads nowhere: the next batch is searched for."""
    disk = disk_with({log_file(0): BATCH_0 + flipped(BATCH_3, at) + BATCH_5 + batch(7, (1,), epoch=1)})
    bases, skipped = read_past_damage(disk)
    assert bases == [0, 5, 7]
    assert [each[:2] for each in skipped] == [(3, 5)]


def test_several_damages_in_one_segment_and_the_next() -> None:
    """Each is skipped once, and reading never goes back behind one."""
    parts = list(LONG)
    for number in (2, 3, 11, 25, 39):
        parts[number] = flipped(parts[number], 70)
    second = b"".join(parts[20:]) + batch(120, (1,))
    disk = disk_with({log_file(0): b"".join(parts[:20]), log_file(60): second})
    bases, skipped = read_past_damage(disk)
    assert bases == [3 * number for number in range(41) if number not in (2, 3, 11, 25, 39)]
    assert [each[:2] for each in skipped] == [(6, 12), (33, 36), (75, 78), (117, 120)]
    assert {each.fault for each in skipped} == {Fault.CHECKSUM}


@pytest.mark.parametrize("rest", [b"", b"\0" * 500, b"\xff" * 77])
def test_the_rest_of_a_segment_is_lost(rest: bytes) -> None:
    """Nothing behind it in its file: the next segment goes on."""
    disk = disk_with({log_file(0): BATCH_0 + BATCH_3[:-9] + rest, log_file(5): BATCH_5})
    bases, skipped = read_past_damage(disk)
    assert bases == [0, 5]
    assert [each[:2] for each in skipped] == [(3, 5)]


def test_a_batch_inside_a_record_is_no_batch() -> None:
    """A value may be a batch of another log: found by its bytes, it is not believed."""
    inner = encode_batch([Record(100, 1, None, b"somebody else's")], base_offset=100, leader_epoch=9)
    records = [Record(3, 1, None, inner), Record(4, 1, None, b"more")]
    outer = encode_batch(records, base_offset=3, leader_epoch=1)
    for at in (9, 8):  # its length is wrong, so the search goes through its records
        disk = disk_with({log_file(0): BATCH_0 + flipped(outer, at) + BATCH_5})
        bases, skipped = read_past_damage(disk)
        assert bases == [0, 5]
        assert [each[:2] for each in skipped] == [(3, 5)]


@pytest.mark.parametrize("start", [4, 5, 6])
def test_damage_below_the_start_does_not_matter(start: int) -> None:
    """Without an index the segment is walked from its first byte: what is met there says so, and goes on."""
    disk = disk_with({log_file(0): flipped(BATCH_0, 70) + BATCH_3 + BATCH_5})
    bases, skipped = read_past_damage(disk, start)
    assert bases == ([3, 5] if start == 4 else [5])
    assert [each[:2] for each in skipped] == [(0, 3)]


def test_nothing_to_skip() -> None:
    """Without a damage there is nothing behind it, and it is told once."""
    disk = disk_with({log_file(0): BATCH_0 + flipped(BATCH_3, 70) + BATCH_5})
    reader = StretchReader(DIRECTORY, disk=disk)
    assert reader.skip_damage() is None
    with pytest.raises(DamagedLog):
        list(reader.stretches())
    assert reader.skip_damage() == (3, 5, Fault.CHECKSUM)
    assert reader.skip_damage() is None


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_stretch_decodes_as_its_bytes(codec: Codec) -> None:
    """Without judging checksums twice: the same columns, of any range."""
    from logstore.columnar.columnar import table

    data = large_batches(20, codec)
    stretch = Stretch.of(data, scan_buffer(data, len(data)))
    for start, end in ((None, None), (5, 77), (79, 80)):
        assert table(stretch, start_offset=start, end_offset=end).equals(
            table(data, start_offset=start, end_offset=end)
        )


@pytest.mark.parametrize(
    ("most", "batches"), [(3_500_000, [1, 1, 3, 3, 3, 3, 3, 3]), (100_000, [*[1] * 18, 2])]
)
def test_stretches_grow(most: int, batches: list[int]) -> None:
    """A reader of a few records reads little, and a reader of a whole segment few stretches."""
    disk = disk_with({log_file(0): large_batches(20)})
    reader = StretchReader(DIRECTORY, disk=disk, stretch_bytes=most)
    assert [len(each.positions) for each in reader.stretches()] == batches


def large_batches(count: int, codec: Codec = Codec.NONE) -> bytes:
    """Batches of 800,000 bytes of records, from offset 0."""
    records = [Record(number, 1000 + number, None, bytes(200_000)) for number in range(4)]
    data = bytearray()
    for number in range(count):
        made = bytearray(encode_batch(records, codec=codec))
        set_offsets_and_epoch(made, base_offset=4 * number, leader_epoch=3)
        data += made
    return bytes(data)

"""A sweep finds every sound batch, whatever lies between, and who of them is not where it belongs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from logstore.disk.files import File
from logstore.disk.memory import MemoryDisk
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.segment.damage import Bad, misplaced, sweep
from logstore.segment.scan import Fault, header_dtype


def batch(offset: int, epoch: int = 0, value: bytes = b"x" * 50) -> bytes:
    return bytes(encode_batch([Record(offset, 1, None, value)], base_offset=offset, leader_epoch=epoch))


def file_of(data: bytes) -> File:
    disk = MemoryDisk()
    disk.make_dir("/d")
    file = disk.open("/d/log", create=True, write=True)
    file.pwrite(data, 0)
    return file


BATCHES = [batch(offset) for offset in range(6)]
SIZE = len(BATCHES[0])


def test_a_sound_file() -> None:
    found = sweep(file_of(b"".join(BATCHES)), 6 * SIZE)
    assert found.bases.tolist() == list(range(6)) == found.lasts.tolist()
    assert found.positions.tolist() == [number * SIZE for number in range(6)]
    assert found.bad == []


@pytest.mark.parametrize("byte", range(SIZE))
def test_whatever_byte_changes_only_its_batch_is_lost(byte: int) -> None:
    """Offset and epoch are outside the checksum: there the batch is sound, and misplaced if anything."""
    data = bytearray(b"".join(BATCHES))
    data[2 * SIZE + byte] ^= 0x81
    found = sweep(file_of(bytes(data)), len(data))
    odd = [each.slot for each in misplaced(found.headers) if each.is_certain]
    assert (found.bad == []) is (byte < 8 or 12 <= byte < 16)
    if found.bad:
        (bad,) = found.bad
        assert (bad.position, bad.end, bad.slot) == (2 * SIZE, 3 * SIZE, 2)
        assert found.bases.tolist() == [0, 1, 3, 4, 5]
    elif byte < 8:
        assert odd == [2]
    else:
        assert odd == ([2] if byte != 12 else [])  # a negative epoch is an unknown one


def test_two_bad_ones_side_by_side_are_one_place() -> None:
    data = bytearray(b"".join(BATCHES))
    data[2 * SIZE + 70] ^= 1
    data[3 * SIZE + 8] ^= 1  # its length
    found = sweep(file_of(bytes(data)), len(data))
    assert found.bad == [Bad(2 * SIZE, 4 * SIZE, Fault.CHECKSUM, 2)]


@pytest.mark.parametrize("cut", range(1, SIZE))
def test_a_torn_end(cut: int) -> None:
    data = b"".join(BATCHES)[: 5 * SIZE + cut]
    found = sweep(file_of(data), len(data))
    assert found.bad == [Bad(5 * SIZE, len(data), Fault.TORN, 5)]


def test_a_batch_inside_of_a_bad_one_does_not_count() -> None:
    """A record's value may be a batch; where the outer one's length can be followed, it is."""
    outer = bytearray(batch(2, value=batch(900)))
    outer[21] ^= 1
    found = sweep(file_of(BATCHES[0] + bytes(outer) + BATCHES[3]), 2 * SIZE + len(outer))
    assert found.bases.tolist() == [0, 3]


def test_windows_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that are longer than a window, and windows that end anywhere."""
    draw = random.Random(5)
    parts = [batch(offset, value=draw.randbytes(draw.randrange(400))) for offset in range(40)]
    data = b"".join(parts)
    whole = sweep(file_of(data), len(data))
    for window in (61, 100, 300, 1000):
        monkeypatch.setattr("logstore.segment.damage.SWEEP_BYTES", window)
        found = sweep(file_of(data), len(data))
        assert found.bad == []
        assert found.positions.tolist() == whole.positions.tolist()
        assert (found.headers == whole.headers).all()


def headers(*rows: tuple[int, int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.void]]:
    """Rows of base offset, last offset and epoch."""
    table = np.zeros(len(rows), header_dtype())
    for slot, (base, last, epoch) in enumerate(rows):
        table[slot]["base_offset"], table[slot]["last_offset_delta"] = base, last - base
        table[slot]["leader_epoch"] = epoch
    return table


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(0, 4, 1), (5, 9, 1), (10, 11, 3)], []),
        ([(0, 4, 1), (5, 9, -1), (20, 21, 1)], []),
        ([(0, 4, 1), (905, 909, 1), (10, 14, 1), (15, 15, 1)], [(1, Fault.OFFSETS, True)]),
        ([(10, 14, 1), (15, 19, 1), (2, 6, 1), (25, 29, 1)], [(2, Fault.OFFSETS, True)]),
        ([(0, 4, 1), (5, 9, 9), (10, 14, 1), (15, 15, 1)], [(1, Fault.EPOCHS, True)]),
        ([(0, 4, 3), (5, 9, 3), (10, 14, 1), (15, 15, 3)], [(2, Fault.EPOCHS, True)]),
        # At the edge either may be.
        ([(0, 4, 3), (5, 9, 1), (10, 14, 3)], [(1, Fault.EPOCHS, False)]),
        ([(0, 4, 3), (9, 5, 3), (10, 14, 3)], [(1, Fault.OFFSETS, True)]),
        # 4 4 5 4 6: either of the two in the middle may be the wrong one.
        ([(0, 0, 4), (1, 1, 4), (2, 2, 5), (3, 3, 4), (4, 4, 6)], [(3, Fault.EPOCHS, False)]),
    ],
)
def test_the_odd_one(rows: list[tuple[int, int, int]], expected: list[tuple[int, Fault, bool]]) -> None:
    assert list(misplaced(headers(*rows))) == expected

"""The walk over many batches at once finds what the walk in Python finds, in any bytes."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from logstore.config import MAX_LONG
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.segment import many_batches, scan, segments
from logstore.segment.many_batches import BLOCK_BYTES, walk_many
from logstore.segment.scan import Fault, Scanned, scan_buffer, use_compiled

HIGH = 1 << 40


@pytest.fixture(autouse=True)
def no_compiled_code() -> None:
    use_compiled(wanted=False)


@pytest.fixture
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_batches, "FEWEST", 2)
    monkeypatch.setattr(scan, "MANY_BYTES", 1)
    monkeypatch.setattr(segments, "_MANY_BYTES", 1)


def batch(base_offset: int, value: bytes, epoch: int = 3) -> bytes:
    return encode_batch(
        [Record(base_offset, 1_000, None, value)], base_offset=base_offset, leader_epoch=epoch
    )


def batches(rng: random.Random, count: int) -> bytes:
    """Of one size or several; values may hold batches, and all bytes of offsets may change."""
    sizes = rng.choice(((100,), (100,), (0, 1, 2, 50, 100), (60, 61, 700, 3_000)))
    offset, epoch, found = rng.choice((0, HIGH - count // 2)), 3, b""
    for _ in range(count):
        value = rng.randbytes(rng.choice(sizes))
        if len(sizes) > 1 and rng.random() < 0.02:
            value = batch(offset, b"inside", epoch)
        found += batch(offset, value, epoch)
        epoch += rng.random() < 0.02
        offset += 1
    return found


def plainly(data: bytes, size: int, monkeypatch: pytest.MonkeyPatch) -> Scanned:
    with monkeypatch.context() as patch:
        patch.setattr(scan, "walk_many", lambda _data: (b"", np.empty(0, np.uint32), 0))
        return scan_buffer(data, size)


def assert_the_same(data: bytes, size: int, monkeypatch: pytest.MonkeyPatch, note: object) -> Fault | None:
    plain, found = plainly(data, size, monkeypatch), scan_buffer(data, size)
    assert plain.headers.tobytes() == found.headers.tobytes(), note
    assert plain.positions.tolist() == found.positions.tolist(), note
    assert plain[2:] == found[2:], note
    return plain.fault


@pytest.mark.parametrize("seed", range(10))
def test_any_change_of_any_bytes(seed: int, few_are_enough: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    data = batches(rng, 40)
    faults = {assert_the_same(data, len(data), monkeypatch, seed)}
    for step in range(300):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.5:
            at = rng.choice(plainly(data, len(data), monkeypatch).positions.tolist())
            struct.pack_into(">i", changed, at + 8, rng.choice((-(2**31), -1, 0, 48, 49, 150, 2**31 - 1)))
        size = rng.choice((len(data), rng.randrange(len(data))))
        faults.add(assert_the_same(bytes(changed), size, monkeypatch, (seed, step)))
    assert {None, Fault.TORN, Fault.CHECKSUM, Fault.SIZE} <= faults


@pytest.mark.parametrize("seed", range(5))
def test_the_end_of_the_last_whole_batch(
    seed: int, few_are_enough: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    data = batches(rng, 40)
    first = int.from_bytes(data[:8])
    for _ in range(300):
        changed = bytearray(data)
        if rng.random() < 0.5:
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        limit = rng.choice((len(data), rng.randrange(len(data))))
        end_offset = rng.choice((MAX_LONG, first, first + rng.randrange(40)))
        found = segments._find_whole(bytes(changed), limit, end_offset)
        with monkeypatch.context() as patch:
            patch.setattr(segments, "_find_many", lambda *_: (0, -1))
            assert segments._find_whole(bytes(changed), limit, end_offset) == found


def test_every_single_byte_counts() -> None:
    """Every byte that a checksum covers, and every byte of a checksum."""
    data = b"".join(batch(number, b"%06d" % number) for number in range(130))
    size = len(batch(0, bytes(6)))
    headers, checksums, end = walk_many(data)
    assert (len(headers), len(checksums), end) == (130 * 61, 130, len(data))
    for at in (*range(2 * size), *range(len(data) - size, len(data))):
        changed = bytearray(data)
        changed[at] ^= 0x10
        is_outside = at % size in (*range(8), *range(12, 17))  # offset, epoch and magic; not the length
        assert (walk_many(bytes(changed))[2] == len(data)) is is_outside, at


def test_damage_of_two_batches_does_not_cancel_out() -> None:
    """The same change in two batches leaves different states: they are not equally far from the end."""
    data = b"".join(batch(number, bytes(100)) for number in range(130))
    size = len(batch(0, bytes(100)))
    for second in range(1, 130):
        for at in (17, 21, 100, size - 1):
            changed = bytearray(data)
            changed[at] ^= 1
            changed[second * size + at] ^= 1
            assert walk_many(bytes(changed))[2] == 0


@pytest.mark.parametrize("sizes", [(100,), (60, 100, 139)])
def test_more_than_a_block(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks are walked at once, and the copies of the blocks are used again."""
    rng = random.Random(1)
    data = b"".join(batch(number, rng.randbytes(sizes[number % len(sizes)])) for number in range(6_000))
    assert len(data) > 3 * BLOCK_BYTES
    assert assert_the_same(data, len(data), monkeypatch, sizes) is None
    assert assert_the_same(data, len(data) - 1, monkeypatch, sizes) is Fault.TORN
    monkeypatch.setattr(scan, "crc32c", None)  # hence no step in Python
    assert len(scan_buffer(data, len(data)).headers) == 6_000
    assert len(many_batches._spare) == 1


def test_few_or_large_batches_are_left_to_the_loop() -> None:
    for data in (b"", bytes(60), bytes(1000), batch(0, b"x") * 100, batch(0, bytes(2_000)) * 129):
        assert walk_many(data[:BLOCK_BYTES])[2] == 0

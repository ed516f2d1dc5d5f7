"""The compiled walk over batches finds what the walk in Python finds, in sound bytes and in any others."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.segment import scan
from logstore.segment.scan import Fault, scan_buffer, use_compiled


@pytest.fixture(autouse=True)
def plain_again() -> Iterator[None]:
    if not use_compiled():
        pytest.skip("no compiled walk on this processor")  # callers walk in Python, which is tested elsewhere
    yield
    use_compiled(wanted=False)


def batches(rng: random.Random, count: int) -> list[bytes]:
    found = []
    for base_offset in range(count):
        value = rng.randbytes(rng.choice((0, 1, 7, 8, 9, 100, 5_000)))
        found.append(one_batch(base_offset, value))
    return found


def one_batch(base_offset: int, value: bytes) -> bytes:
    return encode_batch([Record(base_offset, 1_000, None, value)], base_offset=base_offset)


def assert_the_same(data: bytes, size: int, note: object) -> Fault | None:
    use_compiled()
    compiled = scan_buffer(data, size)
    use_compiled(wanted=False)
    plain = scan_buffer(data, size)
    assert plain.headers.tobytes() == compiled.headers.tobytes(), note
    assert plain.positions.tolist() == compiled.positions.tolist(), note
    assert plain[2:] == compiled[2:], note
    return plain.fault


@pytest.mark.parametrize("seed", range(5))
def test_any_change_of_any_bytes(seed: int) -> None:
    rng = random.Random(seed)
    data = b"".join(batches(rng, 20))
    faults = {assert_the_same(data, len(data), seed)}
    for step in range(400):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 3))):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.5:
            at = data.rindex(struct.pack(">q", rng.randrange(20)))
            struct.pack_into(">i", changed, at + 8, rng.choice((-(2**31), -1, 0, 48, 49, 2**31 - 1)))
        size = rng.choice((len(data), rng.randrange(len(data))))
        faults.add(assert_the_same(bytes(changed), size, (seed, step)))
    assert {Fault.TORN, Fault.CHECKSUM, Fault.SIZE} <= faults


@pytest.mark.parametrize("seed", range(20))
def test_large_batches_of_equal_and_other_sizes(seed: int) -> None:
    """Three checksums are computed at a time: those of batches whose sizes differ, and of one or two left."""
    rng = random.Random(seed)
    sizes = [3_000] * 40 if seed % 2 else [rng.randrange(2_000, 20_000) for _ in range(40)]
    data = bytearray(b"".join(one_batch(slot, rng.randbytes(size)) for slot, size in enumerate(sizes)))
    end = len(data) - sum(sizes[: seed % 3])  # the last batches are cut off or torn
    assert_the_same(bytes(data), end, seed)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    assert_the_same(bytes(data), end, seed)


@pytest.mark.parametrize("counted", range(6))
def test_memory_that_changes_after_its_batches_were_counted(
    counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process writes to a mapped file: no more headers are copied than there is room for."""
    from logstore.columnar import walking

    made = batches(random.Random(counted), 4)
    data = b"".join(made)
    monkeypatch.setattr(walking, "_count", lambda array, total: counted)
    headers, checksums, end, is_bad = walking.walk_batches(data, len(data))
    known = made[: min(counted, 4)]
    assert headers == b"".join(each[:61] for each in known)
    assert [each[17:21] for each in known] == [struct.pack(">I", each) for each in checksums.tolist()]
    assert (end, is_bad) == (sum(map(len, known)), False)


@pytest.mark.parametrize("size", [0, 1, 60, 61, 62])
def test_hardly_any_bytes(size: int) -> None:
    data = encode_batch([Record(0, 1_000, None, b"")])
    assert_the_same(data, min(size, len(data)), size)
    assert_the_same(bytes(size), size, size)


def test_without_the_extra_or_the_instruction_the_walk_is_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiled(wanted=False)
    from logstore.columnar import walking

    for available in (False, True):
        monkeypatch.setattr(scan, "_Compiled", SimpleNamespace(walk=None, is_refused=False))
        monkeypatch.setattr(walking, "is_available", lambda available=available: available)
        assert use_compiled() is available
        assert use_compiled() is available

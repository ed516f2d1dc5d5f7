"""Walking a `.log`: where it stops and why, whatever the sizes of batches and chunks are."""

from __future__ import annotations

import signal
import struct
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.format.batch import encode_batch
from logstore.format.record import MAX_INT, Record
from logstore.segment import scan as scanning
from logstore.segment.damage import find_batch
from logstore.segment.scan import Fault, Scanned, scan, scan_chunks
from logstore.segment.segment_indexes import IndexEntries
from logstore.testing.disks import MemoryDisk
from tests.logstore.forge import forge, payload, values
from tests.logstore.logs import DIRECTORY, batch, disk_with

THREE = [batch(0, (5, 6), epoch=1), batch(2, (7,), epoch=1), batch(3, (9, 8, 7), epoch=2)]
STREAM = b"".join(THREE)


def walked(
    data: bytes,
    position: int = 0,
    *,
    end: int | None = None,
    base_offset: int = 0,
    next_offset: int | None = None,
    leader_epoch: int = -1,
) -> list[Scanned]:
    file = MemoryDisk({"/log": data}).open("/log")
    stop = len(data) if end is None else end
    return list(
        scan(
            file, position, stop, base_offset=base_offset, next_offset=next_offset, leader_epoch=leader_epoch
        )
    )


def outcome(items: Sequence[Scanned]) -> tuple[list[int], int, Fault | None]:
    """Base offsets, where the walk ended, and why."""
    bases = [int(offset) for item in items for offset in item.headers["base_offset"]]
    return bases, items[-1].end if items else 0, items[-1].fault if items else None


def test_sound_batches() -> None:
    items = walked(STREAM)
    assert outcome(items) == ([0, 2, 3], len(STREAM), None)
    positions = np.concatenate([item.positions for item in items]).tolist()
    assert positions == [0, len(THREE[0]), len(THREE[0]) + len(THREE[1])]
    assert np.concatenate([item.last_offsets for item in items]).tolist() == [1, 2, 5]


def test_nothing() -> None:
    assert walked(b"") == []


def test_from_and_to_a_position() -> None:
    first, second = len(THREE[0]), len(THREE[0]) + len(THREE[1])
    assert outcome(walked(STREAM, first)) == ([2, 3], len(STREAM), None)
    assert outcome(walked(STREAM, first, end=second)) == ([2], second, None)


@pytest.mark.parametrize("chunk_bytes", [61, 64, 80, 100, 150, 1 << 20])
@pytest.mark.parametrize("batches_an_item", [1, 2, 4096])
def test_chunks_of_any_size_give_the_same(
    monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, batches_an_item: int
) -> None:
    """A batch may lie across chunks or be larger than one."""
    monkeypatch.setattr(scanning, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(scanning, "_BATCHES_AN_ITEM", batches_an_item)
    for size in range(len(STREAM) + 1):
        bases, end, fault = outcome(walked(STREAM[:size]))
        whole = sum(sum(map(len, THREE[: count + 1])) <= size for count in range(3))
        assert bases == [0, 2, 3][:whole], f"cut at {size}"
        assert end == sum(map(len, THREE[:whole]))
        assert fault is (None if end == size else Fault.TORN)


def with_field(position: int, code: str, value: int, of: bytes = THREE[1]) -> bytes:
    changed = bytearray(of)
    struct.pack_into(code, changed, position, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        (bytes(100), Fault.SIZE),
        (with_field(8, ">i", -1), Fault.SIZE),
        (with_field(8, ">i", -(1 << 31)), Fault.SIZE),
        (with_field(8, ">i", 48), Fault.SIZE),
        (with_field(8, ">i", MAX_INT), Fault.TORN),
        (with_field(16, ">b", 1), Fault.MAGIC),
        (with_field(16, ">b", 3), Fault.MAGIC),
        (with_field(17, ">I", 0), Fault.CHECKSUM),
        (THREE[1][:-1] + b"\x77", Fault.CHECKSUM),
        (with_field(0, ">q", 1), Fault.OFFSETS),
        (with_field(0, ">q", -5), Fault.OFFSETS),
        (with_field(0, ">q", 1 << 31), Fault.OVERFLOW),
        (with_field(0, ">q", (1 << 63) - 1), Fault.OVERFLOW),
        (with_field(12, ">i", 0), Fault.EPOCHS),
        (forge(payload(*values(1)), base_offset=2, last_offset_delta=-1, leader_epoch=1), Fault.OFFSETS),
        (forge(payload(*values(1)), base_offset=(1 << 63) - 1, last_offset_delta=5), Fault.OFFSETS),
    ],
)
def test_what_ends_the_walk(second: bytes, fault: Fault) -> None:
    """The first batch stands, nothing behind it is looked at."""
    assert outcome(walked(THREE[0] + second + THREE[2])) == ([0], len(THREE[0]), fault)


def test_what_does_not_end_it() -> None:
    """Gaps, unknown epochs, batches that compaction emptied."""
    emptied = forge(b"", base_offset=20, last_offset_delta=3, count=0, leader_epoch=-1)
    data = THREE[0] + batch(10, (5,), epoch=1) + emptied + batch(24, (6,), epoch=1)
    assert outcome(walked(data)) == ([0, 10, 20, 24], len(data), None)


def test_it_continues_from_what_is_known() -> None:
    """A walk that begins in the middle knows what came before."""
    first = len(THREE[0])
    assert outcome(walked(STREAM, first, next_offset=3))[2] is Fault.OFFSETS
    assert outcome(walked(STREAM, first, next_offset=2, leader_epoch=3))[2] is Fault.EPOCHS
    assert outcome(walked(STREAM, base_offset=1))[2] is Fault.OFFSETS


def test_a_batch_larger_than_a_chunk() -> None:
    big = encode_batch([Record(0, 5, None, bytes(3 << 20))])
    data = big + batch(1, (6,))
    assert outcome(walked(data)) == ([0, 1], len(data), None)
    assert outcome(walked(data[: len(big) - 1])) == ([], 0, Fault.TORN)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    times=st.lists(st.integers(-1, 50), min_size=1, max_size=30),
    interval=st.integers(0, 400),
    split=st.integers(1, 30),
)
def test_index_entries_follow_the_rule(times: list[int], interval: int, split: int) -> None:
    """However the batches are handed over, the entries follow `index.interval.bytes`, counted by hand."""
    batches = [batch(offset, (time,)) for offset, time in enumerate(times)]
    found = IndexEntries(0, interval)
    for first in range(0, len(batches), split):
        start = sum(map(len, batches[:first]))
        for item in walked(
            b"".join(batches),
            start,
            end=start + sum(map(len, batches[first : first + split])),
            next_offset=first,
        ):
            found.add(item)
    found.finish()
    offset_entries, time_entries = [], []
    position, last_position, largest, holder, last_time = 0, 0, -1, 0, -1
    for offset, time in enumerate(times):
        if time > largest:
            largest, holder = time, offset
        if position - last_position > interval:
            offset_entries.append((offset, position))
            last_position = position
            if largest > last_time:
                time_entries.append((largest, holder))
                last_time = largest
        position += len(batches[offset])
    if largest > last_time:
        time_entries.append((largest, holder))
    assert found.offset_entries.tolist() == offset_entries
    assert found.time_entries.tolist() == time_entries
    assert (found.max_timestamp_ms, found.offset_of_max_timestamp) == (largest, holder)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    before=st.lists(st.sampled_from([b"\x02", b"\0", b"\x01\xff"]), max_size=120).map(b"".join),
    chunk_bytes=st.sampled_from([61, 64, 100, 1 << 20]),
    lowest_offset=st.sampled_from([None, 0, 7, 8]),
)
def test_an_intact_batch_is_found_wherever_it_lies(
    before: bytes, chunk_bytes: int, lowest_offset: int | None
) -> None:
    """Behind rubbish full of version bytes, across the borders of chunks, and not below an offset."""
    sound = encode_batch([Record(7, 1000, b"key", b"\x02" * 50)], base_offset=7)
    damaged = sound[:-1] + b"?"
    data = b"!" + before + damaged + before + sound
    disk = MemoryDisk({"/data/log": data})
    wanted = None if lowest_offset == 8 else len(data) - len(sound)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("logstore.segment.scan.CHUNK_BYTES", chunk_bytes)
        file = disk.open("/data/log")
        assert find_batch(file, 0, len(data), lowest_offset=lowest_offset) == wanted
        assert find_batch(file, len(data) - len(sound), len(data)) is None, "only behind the position"
        assert find_batch(file, 0, len(data) - 1) is None, "it must end by the end"


class TestChunks:
    """The walk that hands out the bytes too: the same batches, whatever the size of a chunk."""

    @pytest.mark.parametrize("chunk_bytes", [61, 100, 150, 1000, 1 << 20])
    def test_row_241_a_batch_longer_than_the_buffer(self, chunk_bytes: int) -> None:
        content = b"".join(batch(offset, [1000], value=b"v" * (offset % 5) * 40) for offset in range(30))
        disk = disk_with({"a.log": content})
        file = disk.open(f"{DIRECTORY}/a.log")
        found = list(scan_chunks(file, 0, len(content), base_offset=0, chunk_bytes=chunk_bytes))
        assert b"".join(chunk[: scanned.end] for chunk, scanned in found) == content
        assert all(scanned.fault is None for _, scanned in found)
        bases = np.concatenate([scanned.headers["base_offset"] for _, scanned in found])
        assert bases.tolist() == list(range(30))

    @pytest.mark.parametrize("chunk_bytes", [61, 150, 1 << 20])
    def test_it_ends_where_the_walk_of_headers_ends(self, chunk_bytes: int) -> None:
        """Cut anywhere, a bit changed anywhere: the same batches and the same fault."""
        content = b"".join(batch(offset, [1000], epoch=offset) for offset in range(3))
        for size in range(len(content)):
            self.check_same(content[:size], chunk_bytes)
        for position in range(0, len(content), 3):
            changed = bytearray(content)
            changed[position] ^= 0x20
            self.check_same(bytes(changed), chunk_bytes)

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("chunk_bytes", [61, 150, 1 << 20])
    def test_a_file_that_is_shorter_than_its_end(self, chunk_bytes: int) -> None:
        """Its size was known from elsewhere, or it was cut since: the last item says so."""
        content = b"".join(batch(offset, [1000]) for offset in range(3))
        for size in range(len(content)):
            file = disk_with({"a.log": content[:size]}).open(f"{DIRECTORY}/a.log")
            chunks = list(scan_chunks(file, 0, len(content), base_offset=0, chunk_bytes=chunk_bytes))
            (whole,) = scan(file, 0, size, base_offset=0) if size else [None]
            assert sum(scanned.end for _, scanned in chunks) == (whole.end if whole else 0)
            assert [scanned.fault for _, scanned in chunks if scanned.fault] == [Fault.TORN]
            assert chunks[-1][1].fault is Fault.TORN

    @staticmethod
    def check_same(content: bytes, chunk_bytes: int) -> None:
        file = disk_with({"a.log": content}).open(f"{DIRECTORY}/a.log")
        plain = list(scan(file, 0, len(content), base_offset=0))
        chunks = list(scan_chunks(file, 0, len(content), base_offset=0, chunk_bytes=chunk_bytes))
        assert sum(scanned.end for _, scanned in chunks) == (plain[-1].end if plain else 0)
        assert [scanned.fault for _, scanned in chunks][-1:] == [scanned.fault for scanned in plain][-1:]


def test_an_interrupt_waits_until_compiled_code_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba that was interrupted while it was imported or compiled fails at each later use."""

    class Interrupted:
        whole_batches = staticmethod(lambda *_: (0, -1))

        @staticmethod
        def is_available() -> bool:
            signal.raise_signal(signal.SIGINT)
            return True

        @staticmethod
        def walk_batches(*_: object) -> tuple[bytes, list[int], int, bool]:
            return b"", [], 0, False

    monkeypatch.setattr(scanning._Compiled, "walk", None)
    monkeypatch.setattr(scanning._Compiled, "whole", None)
    monkeypatch.setattr(scanning._Compiled, "is_refused", False)
    monkeypatch.setitem(sys.modules, "logstore.columnar.walking", Interrupted)
    monkeypatch.setattr("logstore.columnar.walking", Interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        scanning.use_compiled()
    assert scanning._Compiled.walk is not None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

"""The fast way for ready batches equals the plain one: same bytes, same indexes, same refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.config import LogConfig
from logstore.errors import CorruptBatch, InvalidRecord
from logstore.format.batch import encode_batch
from logstore.format.compression import Codec
from logstore.format.record import Record
from logstore.log.append import append_as_leader, validate_and_assign
from logstore.log.append_many import validate_plain_group
from logstore.log.log import Log
from logstore.segment.scan import scan
from logstore.segment.segment_indexes import IndexEntries
from logstore.testing.disks import MemoryDisk

T0 = 1_700_000_000_000

_batches = st.lists(
    st.builds(
        lambda times, size, codec: encode_batch(
            [Record(offset, T0 + time, b"k", b"v" * size) for offset, time in enumerate(times)], codec=codec
        ),
        times=st.lists(st.integers(-5000, 5000), min_size=1, max_size=6),
        size=st.integers(0, 300),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.NONE, Codec.GZIP]),
    ),
    min_size=1,
    max_size=24,
)


def opened(config: LogConfig) -> tuple[MemoryDisk, Log]:
    disk = MemoryDisk()
    return disk, Log.open("/data/orders-0", config, disk=disk, clock=lambda: T0)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    batches=_batches, interval=st.sampled_from([1, 300, 4096]), segment_bytes=st.sampled_from([2500, 1 << 20])
)
def test_appended_together_or_one_by_one(batches: list[bytes], interval: int, segment_bytes: int) -> None:
    """Whatever lies in `data`, the directory ends up the same to the byte."""
    config = LogConfig(index_interval_bytes=interval, segment_bytes=segment_bytes)
    together_disk, together = opened(config)
    single_disk, single = opened(config)
    info = together.append_batches(b"".join(batches))
    for batch in batches:
        append_as_leader(single.partition, batch, leader_epoch=0, now_ms=T0)
    assert (info.first_offset, info.last_offset + 1) == (0, single.log_end_offset)
    together.close()
    single.close()
    assert together_disk.files() == single_disk.files()


@settings(max_examples=150, derandomize=True, deadline=None)
@given(batches=_batches, interval=st.sampled_from([0, 1, 300, 1000]))
def test_recovery_would_make_the_same_index_entries(batches: list[bytes], interval: int) -> None:
    """One rule, applied to the few batches of an append and to the thousands of a walk."""
    disk, log = opened(LogConfig(index_interval_bytes=interval))
    log.append_batches(b"".join(batches))
    log.close()
    walked = IndexEntries(0, interval)
    file = disk.open("/data/orders-0/00000000000000000000.log")
    for found in scan(file, 0, file.size(), base_offset=0):
        walked.add(found)
    walked.finish()
    files = disk.files()
    assert files["/data/orders-0/00000000000000000000.index"] == walked.offset_entries.tobytes()
    assert files["/data/orders-0/00000000000000000000.timeindex"] == walked.time_entries.tobytes()


@settings(max_examples=150, derandomize=True, deadline=None)
@given(batches=_batches, place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_let_through(batches: list[bytes], place: int, bit: int) -> None:
    """Where the fast way accepts a batch, so does the plain one, with the same bytes."""
    data = bytearray(b"".join(batches))
    data[place % len(data)] ^= 1 << bit
    before = bytes(data)
    group = validate_plain_group(
        data, len(data), next_offset=7, leader_epoch=3, now_ms=T0, config=LogConfig()
    )
    if group is None:
        assert bytes(data) == before, "a refusal leaves the bytes alone"
        return
    position, offset = 0, 7
    for size, last_offset, max_timestamp_ms in group.extents:
        placed = validate_and_assign(
            before[position : position + size],
            next_offset=offset,
            leader_epoch=3,
            now_ms=T0,
            config=LogConfig(),
        )
        assert bytes(data[position : position + size]) == placed.data
        assert (placed.last_offset, placed.max_timestamp_ms) == (last_offset, max_timestamp_ms)
        position, offset = position + size, last_offset + 1
    assert (len(group.data), group.last_offset) == (position, offset - 1)


def test_what_precedes_a_bad_batch_stays() -> None:
    """The third of five is damaged: two are in, nothing of the rest is."""
    _, log = opened(LogConfig())
    good = encode_batch([Record(0, T0, None, b"value")])
    bad = bytearray(good)
    bad[-1] ^= 1
    with pytest.raises(CorruptBatch, match="checksum"):
        log.append_batches(good * 2 + bytes(bad) + good * 2)
    assert log.log_end_offset == 2
    log.close()


def test_a_torn_last_batch_is_refused() -> None:
    _, log = opened(LogConfig())
    good = encode_batch([Record(0, T0, None, b"value")])
    with pytest.raises(CorruptBatch):
        log.append_batches(good * 3 + good[:-1])
    assert log.log_end_offset == 3
    log.close()


def test_nothing_is_not_a_batch() -> None:
    _, log = opened(LogConfig())
    with pytest.raises((CorruptBatch, InvalidRecord)):
        log.append_batches(b"")
    assert log.log_end_offset == 0
    log.close()

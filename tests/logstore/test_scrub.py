"""The scrub: finds every changed byte, once, in bounded steps, while the log goes on."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from logstore.config import LogConfig
from logstore.errors import Damage, DamageKind, LogClosed
from logstore.log.log import Log
from logstore.log.scrub import Cursor, Scrubbed, scrub
from logstore.log.truncate import truncate_to
from logstore.segment.cutting import truncate_segment
from logstore.segment.damage import judge_segment
from logstore.segment.seal import BLOCK_BYTES
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import DIRECTORY, log_file


def opened(*, segment_bytes: int = 400, records: int = 20, size: int = 10) -> tuple[MemoryDisk, Log]:
    disk = MemoryDisk(directories=["/data"])
    log = Log.open(DIRECTORY, LogConfig(segment_bytes=segment_bytes), disk=disk, clock=lambda: 1000)
    for number in range(records):
        log.append(b"%d" % number * size)
    return disk, log


def flip(disk: MemoryDisk, base_offset: int, position: int, bit: int = 1) -> None:
    file = disk.open(f"{DIRECTORY}/{log_file(base_offset)}", write=True)
    file.pwrite(bytes([file.pread(1, position)[0] ^ bit]), position)


def whole(log: Log) -> Scrubbed:
    return log.scrub()


def test_a_sound_log_has_no_damage_and_is_read_once() -> None:
    _, log = opened()
    assert len(log.partition.segments) > 3
    assert whole(log) == Scrubbed(log.size, None)


def test_every_flipped_bit_of_a_sealed_segment_is_found_in_its_batch() -> None:
    disk, log = opened()
    segment = log.partition.segments[1]
    assert segment.seal is not None
    batches = [(batch.base_offset, batch.next_offset, batch.size) for batch in log.read_batches()]
    inside = [each for each in batches if segment.base_offset <= each[0] < segment.seal.end_offset]
    starts = [sum(size for _, _, size in inside[:number]) for number in range(len(inside))]
    for (base, end, size), start in zip(inside, starts, strict=True):
        for position in range(start, start + size):
            flip(disk, segment.base_offset, position)
            (damage,) = whole(log).damages
            assert damage.position < start + size, damage
            assert damage.end_position > start, damage
            assert damage.offset < end, damage
            assert damage.end_offset > base, damage
            flip(disk, segment.base_offset, position)
    assert whole(log).damages == ()


def test_a_checksum_in_the_active_segment() -> None:
    disk, log = opened(segment_bytes=1 << 20)
    batches = list(log.read_batches())
    third = sum(batch.size for batch in batches[:3])
    flip(disk, 0, third + 70)
    (damage,) = whole(log).damages
    assert damage.kind is DamageKind.BAD_BATCH
    assert (damage.position, damage.end_position) == (third, third + batches[3].size)
    assert (damage.offset, damage.end_offset) == (3, 4)


def test_the_last_batch_and_two_places_in_one_segment() -> None:
    disk, log = opened(segment_bytes=1 << 20)
    batches = list(log.read_batches())
    size = sum(batch.size for batch in batches)
    flip(disk, 0, 70)
    flip(disk, 0, size - 1)
    first, last = whole(log).damages
    assert (first.offset, first.end_offset) == (0, 1)
    assert (last.offset, last.end_position) == (19, size)


def test_a_field_outside_of_the_checksums_that_still_fits() -> None:
    """In a log of several epochs, a wrong one in the order: only the seal and the epoch file show it."""
    disk, log = opened()
    base_offset = log.partition.segments[1].base_offset
    flip(disk, base_offset, 15, bit=4)  # the leader epoch of its first batch: 4
    (damage,) = whole(log).damages
    assert damage.offset == base_offset


def test_a_segment_whose_file_is_missing() -> None:
    disk, log = opened()
    base_offset = log.partition.segments[2].base_offset
    disk.remove(f"{DIRECTORY}/{log_file(base_offset)}")
    (damage,) = whole(log).damages
    assert (damage.kind, damage.offset) == (DamageKind.SEGMENT_GONE, base_offset)


def test_a_file_that_became_shorter() -> None:
    disk, log = opened()
    base_offset = log.partition.segments[1].base_offset
    disk.open(f"{DIRECTORY}/{log_file(base_offset)}", write=True).truncate(100)
    found = whole(log).damages
    assert found
    assert found[0].offset > base_offset
    assert found[-1].end_offset == log.partition.segments[2].base_offset


def test_steps_are_bounded_and_resumable() -> None:
    """A scrub in pieces, each continued by its cursor alone, reads the same bytes and finds the same."""
    disk, log = opened(segment_bytes=3 << 20, records=9, size=700_000)
    assert len(log.partition.segments) >= 3
    flip(disk, log.partition.segments[1].base_offset, 1 << 20)
    steps = list(scrub(log.partition))
    assert max(step.size for step in steps) <= 4 * BLOCK_BYTES
    at_once = [damage for step in steps for damage in step.damages]
    assert len(at_once) == 1
    cursor: Cursor | None = Cursor()
    found, parts = list[Damage](), 0
    while cursor is not None:
        part = log.scrub(cursor, max_bytes=1)
        cursor, parts = part.cursor, parts + 1
        found += part.damages
    assert found == at_once
    assert parts > 4


def test_a_segment_that_is_cut_meanwhile_is_no_damage() -> None:
    disk, log = opened(segment_bytes=1 << 20)
    steps = scrub(log.partition)
    flip(disk, 0, 70)
    next(steps)
    truncate_to(log.partition, 0)
    log.append([b"new"] * 3)
    assert [damage for step in steps for damage in step.damages] == []


def test_a_closed_log_ends_it() -> None:
    _, log = opened()
    steps = scrub(log.partition)
    next(steps)
    log.close()
    with pytest.raises(LogClosed, match="was closed"):
        list(steps)


def test_bytes_that_were_bad_when_they_were_sealed() -> None:
    """Their seal agrees with them. So the first scrub of a segment reads its batches, too."""
    disk, log = opened(segment_bytes=1 << 20)
    flip(disk, 0, 70)
    log.partition.roll()
    assert log.partition.segments[0].seal is not None
    (damage,) = whole(log).damages
    assert (damage.kind, damage.offset) == (DamageKind.BAD_BATCH, 0)
    flip(disk, 0, 70)
    log.partition.segments[0].sealing.remove()
    assert whole(log).damages == ()


def test_they_are_found_in_pieces_too() -> None:
    """Row 402: a scrub that went on within the segment, or at its end, never read its batches."""
    disk, log = opened(segment_bytes=1 << 23, records=5, size=900_000)
    flip(disk, 0, 70)
    log.partition.roll()
    found, cursor = list[Damage](), Cursor()
    while (step := log.scrub(cursor, max_bytes=1)).cursor is not None:
        found += step.damages
        cursor = step.cursor
    assert [(each.kind, each.offset) for each in found] == [(DamageKind.BAD_BATCH, 0)]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_segment_that_is_compacted_during_its_scrub(is_late: bool) -> None:
    """The seal of the old segment was written over the new one's, and reported as damage."""
    disk = MemoryDisk(directories=["/data"])
    config = LogConfig(segment_bytes=400, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    log = Log.open(DIRECTORY, config, disk=disk, clock=lambda: 1000)
    for number in range(20):
        log.append(b"%d" % number * 10, key=b"%d" % (number % 2))
    log.flush()
    steps = scrub(log.partition)
    found = [next(steps), next(steps)] if is_late else [next(steps)]
    assert log.compact()
    found += steps
    assert [each for each in found if each.damages or each.rebuilt] == []
    assert log.scrub().damages == ()
    rows = [record.offset for record in log]
    log.close()
    with Log.open(DIRECTORY, config, disk=disk, clock=lambda: 1000) as again:
        assert [record.offset for record in again] == rows
        assert again.scrub().damages == ()


def test_a_scrub_that_begins_in_the_middle_of_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """It read the size before the cut and the bytes behind it, and reported a torn batch."""
    _, log = opened(segment_bytes=1 << 20)
    begun, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any, **settings: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return judge_segment(*arguments, **settings)

    def cut(*arguments: Any) -> None:
        scrubs.append(thread.submit(lambda: list(scrub(log.partition))))
        assert begun.wait(60)
        truncate_segment(*arguments)
        go_on.set()
        with suppress(TimeoutError):  # it waits for the end of the cut
            scrubs[0].result(0.1)

    scrubs: list[Future[list[Scrubbed]]] = []
    monkeypatch.setattr("logstore.log.scrub.judge_segment", slow)
    monkeypatch.setattr("logstore.log.truncate.truncate_segment", cut)
    with ThreadPoolExecutor(1) as thread:
        truncate_to(log.partition, 5)
        assert [step.damages for step in scrubs[0].result(60) if step.damages] == []

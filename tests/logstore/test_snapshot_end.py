"""Where a snapshot ends: a place that damage could move, so that records would be missing or extra."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import pairwise

import pytest

from logstore import DamagedLog, Log, LogConfig
from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE
from logstore.disk.files import Disk
from logstore.format.batch import Batch, encode_batch, walk
from logstore.format.record import Record
from logstore.log.snapshot import offset_at_time, take_snapshot
from logstore.log.snapshot_end import logs_among
from logstore.segment.seal import read_seal
from logstore.segment.segment import LOG_SUFFIX, file_name
from logstore.testing import MemoryDisk, RecordingDisk

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=0, file_delete_delay_ms=0)
SOURCE, TARGET = "/data/orders-0", "/backup/orders-0"
COUNT = 14


def filled(disk: Disk, count: int = COUNT) -> list[int]:
    """Write a log of single batches, some to a segment, and return the bases of its segments."""
    with Log.open(SOURCE, SMALL, disk=disk, clock=lambda: 0) as log:
        for number in range(count):
            log.append(b"%03d" % number + b"." * 30, timestamp_ms=1000 * number)
        return [segment.base_offset for segment in log.partition.segments]


def compacted(disk: Disk) -> list[int]:
    """Write a log of forty records and compact it; return those that are left."""
    config = LogConfig(
        segment_bytes=400, cleanup_policy="compact", file_delete_delay_ms=0, min_cleanable_dirty_ratio=0.0
    )
    with Log.open(SOURCE, config, disk=disk, clock=lambda: 10**6) as log:
        for number in range(40):
            key = b"%d" % (number if number % 7 == 0 else number % 3)
            log.append(b"%03d" % number + b"." * 30, key=key, timestamp_ms=1000 * number)
        log.compact()
        kept = [int((record.value or b"")[:3]) for record in log.read()]
    assert len(kept) < 20
    return kept


def bases_of(disk: MemoryDisk) -> list[int]:
    return sorted(logs_among(name.rpartition("/")[2] for name in disk.files()))


def path_of(base_offset: int) -> str:
    return f"{SOURCE}/{file_name(base_offset, LOG_SUFFIX)}"


def positions(disk: MemoryDisk, base_offset: int) -> dict[int, int]:
    """Where each batch of a segment begins, by its offset."""
    found, position = dict[int, int](), 0
    for batch in walk(disk.files()[path_of(base_offset)]):
        found[batch.base_offset] = position
        position += batch.size
    return found


def flip(disk: Disk, base_offset: int, at: int, mask: int) -> None:
    with closing(disk.open(path_of(base_offset), write=True)) as file:
        file.pwrite(bytes([file.pread(1, at)[0] ^ mask]), at)


def restored(disk: Disk, end_offset: int | None) -> list[int]:
    take_snapshot(disk, SOURCE, TARGET, end_offset=end_offset, config=SMALL, clock=lambda: 0)
    with Log.open(TARGET, SMALL, disk=disk, clock=lambda: 0) as log:
        return [int((record.value or b"")[:3]) for record in log.read()]


def by_offset(disk: Disk, end: int) -> list[int]:
    return restored(disk, end)


def by_time(disk: Disk, end: int) -> list[int]:
    return restored(disk, offset_at_time(disk, SOURCE, 1000 * end))


def outcome(disk: Disk, end: int, restore: Callable[[Disk, int], list[int]]) -> list[int] | None:
    """The restored log; None for a refusal, which creates nothing."""
    try:
        return restore(disk, end)
    except DamagedLog:
        assert not any(name.startswith("/backup/") for name in disk.files())  # type: ignore[attr-defined]
        return None


# --- damage below the end ---------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0x01, 0x08, 0x80])
def test_a_flipped_byte_of_a_sealed_segment_never_moves_the_time(mask: int) -> None:
    """The walk of that segment stopped, the search went on, and later records were restored too."""
    whole = MemoryDisk()
    base = filled(whole)[1]
    places = positions(whole, base)
    files = whole.files()
    for at in range(len(files[path_of(base)])):
        batch = max(offset for offset, position in places.items() if position <= at)
        for end in {batch, batch + 1, COUNT - 1}:
            disk = MemoryDisk(files)
            flip(disk, base, at, mask)
            found = outcome(disk, end, by_time)
            assert found in ((list(range(end)), None) if end <= batch else (None,)), (at, end)


@pytest.mark.parametrize("number", [1, -1])
@pytest.mark.parametrize("restore", [by_offset, by_time])
def test_a_rotten_base_offset_never_ends_a_snapshot(
    number: int, restore: Callable[[Disk, int], list[int]]
) -> None:
    """No checksum covers it: a batch with too high an offset passed for one that lies past the end."""
    whole = MemoryDisk()
    bases = filled(whole)
    base = bases[number]
    for batch, position in positions(whole, base).items():
        for bit in (*range(6), 7, 8, 15, 16, 24, 31, 32, 63):
            for end in {batch, batch + 1, min(batch + 2, COUNT)}:
                if restore is by_offset and max(each for each in bases if each <= end) != base:
                    continue  # its segment is linked, unread
                disk = MemoryDisk(whole.files())
                flip(disk, base, position + 7 - bit // 8, 1 << bit % 8)
                found = outcome(disk, end, restore)
                below = list(range(end)) if end <= batch else None
                # The time of the batch itself leads to no offset, if that is the rotten one.
                assert found == below or (found is None and restore is by_time), (batch, bit, end)


def test_a_rotten_last_offset_in_the_active_segment_is_refused_without_an_end_too() -> None:
    disk = MemoryDisk()
    base = filled(disk)[-1]
    flip(disk, base, positions(disk, base)[COUNT - 1] + 5, 1)
    with pytest.raises(DamagedLog, match=f"offset {COUNT - 1} .*, and it was durable"):
        restored(disk, None)


def test_a_sealed_segment_that_lost_its_end_is_refused() -> None:
    """Cut between two batches, it has no fault of its own; the copy was shorter and said nothing."""
    whole = MemoryDisk()
    _, base, following, *_ = filled(whole)
    disk = MemoryDisk(whole.files())
    with closing(disk.open(path_of(base), write=True)) as file:
        file.truncate(positions(whole, base)[base + 1])
    with pytest.raises(DamagedLog, match="differs from its seal"):
        by_offset(disk, following - 1)
    with pytest.raises(DamagedLog, match="differs from its seal"):
        by_time(disk, following + 1)
    assert by_offset(disk, base + 1) == [*range(base + 1)], "as the message advises"


def test_a_torn_tail_is_no_damage_to_a_time() -> None:
    disk = MemoryDisk()
    base = filled(disk)[-1]
    size = len(disk.files()[path_of(base)])
    with closing(disk.open(path_of(base), write=True)) as file:
        file.pwrite(b"torn", size)
    assert by_time(disk, COUNT + 5) == list(range(COUNT))


def test_durable_damage_at_the_end_of_the_log_is_damage_to_a_time() -> None:
    disk = MemoryDisk()
    base = filled(disk)[-1]
    flip(disk, base, len(disk.files()[path_of(base)]) - 3, 1)
    with pytest.raises(DamagedLog, match="it was durable"):
        offset_at_time(disk, SOURCE, 10**9)
    assert offset_at_time(disk, SOURCE, 2000) == 2


def test_a_directory_without_a_log_has_no_time() -> None:
    disk = MemoryDisk(directories=[SOURCE])
    assert offset_at_time(disk, SOURCE, 0) is None
    with pytest.raises(FileNotFoundError):
        offset_at_time(disk, "/data/none-0", 0)


def test_a_rotten_offset_behind_a_gap_is_told_by_the_seal() -> None:
    """The last batch of a segment with gaps: no neighbour contradicts it, and the next segment is far.

    As on a follower, whose leader has compacted. Where the log itself was, Kafka's cleaner may have rewritten
    the segment since it was sealed, and the seal proves nothing.
    """
    disk = MemoryDisk()
    kept = compacted(disk)
    disk = MemoryDisk({name: data for name, data in disk.files().items() if "cleaner" not in name})
    held = {base: sorted(positions(disk, base)) for base in bases_of(disk)}
    gaps = [
        (base, held[base][-1])
        for base, following in pairwise(held)
        if held[base] and following - held[base][-1] > 2
    ]
    base, last = gaps[0]
    rotten = MemoryDisk(disk.files())
    flip(rotten, base, positions(disk, base)[last] + 7, last ^ (last + 1))
    assert outcome(rotten, last + 1, by_offset) is None
    assert by_offset(disk, last + 1) == [number for number in kept if number <= last]


# --- what is no damage ------------------------------------------------------------------------------


@pytest.mark.parametrize("restore", [by_offset, by_time])
def test_a_compacted_log_has_gaps_and_is_restored_to_any_end(
    restore: Callable[[Disk, int], list[int]],
) -> None:
    memory = MemoryDisk()
    kept = compacted(memory)
    files = memory.files()
    for end in range(42):
        disk = MemoryDisk({name: data for name, data in files.items() if name.startswith(SOURCE)})
        assert restore(disk, end) == [number for number in kept if number < end]


def test_a_log_that_kafka_compacted_differs_from_its_seals_and_is_restored() -> None:
    disk = MemoryDisk()
    bases = filled(disk)
    path = path_of(bases[1])
    batches = list(walk(disk.files()[path]))
    content = b"".join(bytes(batch.buffer) for number, batch in enumerate(batches) if number != 1)
    with closing(disk.open(path, write=True)) as file:
        file.truncate(0)
        file.pwrite(content, 0)
    assert read_seal(disk, SOURCE, bases[1]) is not None
    expected = [number for number in range(bases[2]) if number != bases[1] + 1]
    assert by_offset(disk, bases[2] - 1) == expected[:-1]


def test_the_end_of_a_snapshot_inside_of_a_batch_leaves_the_batch_out() -> None:
    for end in range(8):
        disk = MemoryDisk()
        with Log.open(SOURCE, disk=disk, clock=lambda: 0) as log:
            log.append([b"000", b"001", b"002"])
            log.append([b"003", b"004", b"005"])
        assert restored(disk, end) == list(range(end // 3 * 3 if end < 6 else 6))


# --- below the log start ----------------------------------------------------------------------------


def started(start: int) -> MemoryDisk:
    """Return a log of ten records from offset `start` on; the one at 3 has a time far in the future."""
    disk = MemoryDisk()
    with Log.open(SOURCE, disk=disk, clock=lambda: 0) as log:
        for number in range(10):
            log.append(b"%03d" % number, timestamp_ms=10**13 if number == 3 else 1000 * number)
        log.delete_records(start)
    return disk


@pytest.mark.parametrize(
    ("time", "expected"),
    [(8000, [5, 6, 7]), (5001, [5]), (5000, []), (2000, []), (0, []), (9001, [*range(5, 10)])],
)
def test_records_below_the_log_start_have_no_time(time: int, expected: list[int]) -> None:
    disk = started(5)
    assert restored(disk, offset_at_time(disk, SOURCE, time)) == expected
    with Log.open(TARGET, disk=disk, clock=lambda: 0) as log:
        assert (log.log_start_offset, log.log_end_offset) == (5, 5 + len(expected))


def test_a_time_below_the_first_segment_left() -> None:
    disk = MemoryDisk()
    with Log.open(SOURCE, SMALL, disk=disk, clock=lambda: 0) as log:
        for number in range(COUNT):
            log.append(b"%03d" % number + b"." * 30, timestamp_ms=1000 * number)
        log.delete_records(9)
        log.maintain()
    assert restored(disk, offset_at_time(disk, SOURCE, 0)) == []
    with Log.open(TARGET, SMALL, disk=disk, clock=lambda: 0) as log:
        assert log.log_start_offset == log.log_end_offset == 9


def test_segments_below_the_log_start_are_not_read() -> None:
    """Rot there is of records that nobody can read any more."""
    disk = MemoryDisk()
    bases = filled(disk)
    names = {
        name: data
        for name, data in disk.files().items()
        if name.rpartition("/")[2] != CLEAN_SHUTDOWN_FILE and "log-start" not in name
    }
    names[f"{SOURCE}/log-start-offset-checkpoint"] = b"0\n1\norders 0 %d\n" % bases[2]
    disk = MemoryDisk(names)
    flip(disk, bases[1], 100, 1)
    recording = RecordingDisk(disk, reads=True)
    assert offset_at_time(recording, SOURCE, 1000 * bases[2] + 1000) == bases[2] + 1


# --- the owner goes on ------------------------------------------------------------------------------


class _Meanwhile(RecordingDisk):
    """Acts before operation number `at`."""

    def __init__(self, inner: Disk, at: int, act: Callable[[], object]) -> None:
        super().__init__(inner, before=self._count, reads=True)
        self._left, self._act = at, act

    def _count(self, _operation: object) -> None:
        self._left -= 1
        if self._left == 0:
            self._act()


@pytest.mark.parametrize("at", range(1, 30))
@pytest.mark.parametrize("change", ["truncate", "delete"])
def test_a_change_of_the_owner_is_no_damage(at: int, change: str) -> None:
    """A segment that is cut or removed while it is read: the search begins again."""
    memory = MemoryDisk()
    log = Log.open(SOURCE, SMALL, disk=memory, clock=lambda: 0)
    for number in range(COUNT):
        log.append(b"%03d" % number + b"." * 30, timestamp_ms=1000 * number)
    log.flush()

    def act() -> None:
        if change == "truncate":
            log.truncate_to(5)
        else:
            log.delete_records(9)
            log.maintain()

    found = offset_at_time(_Meanwhile(memory, at, act), SOURCE, 8000)
    assert found in ((8, None) if change == "truncate" else (8, 9))
    log.close()


def test_what_a_batch_is_made_of_here() -> None:
    """The rot above is of bytes that no checksum covers."""
    data = bytearray(encode_batch([Record(7, 0, None, b"x")]))
    data[7] ^= 1
    Batch(bytes(data)).check_crc()

"""Derived files that rot: every flipped bit is found, by a scrub or by the read that meets it, and mended."""

from __future__ import annotations

import pytest

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT
from logstore.config import LogConfig
from logstore.errors import CorruptIndex, DamageKind
from logstore.format.record import MAX_LONG
from logstore.log.derived import check_segment_files
from logstore.log.log import FetchIsolation, Log
from logstore.log.scrub import Scrubbed
from logstore.log.truncate import truncate_to
from logstore.segment.indexes import OffsetIndex, TimeIndex
from logstore.segment.seal import SEAL_SUFFIX
from logstore.segment.segment import SNAPSHOT_SUFFIX, Segment, file_name
from logstore.segment.transaction_index import TRANSACTION_INDEX_SUFFIX
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import content_of, names, put
from tests.logstore.producing import ABORT, COMMIT, committed, end, plain, produce
from tests.logstore.transacting import DIRECTORY, stand_alone

INDEXES = (OffsetIndex.suffix, TimeIndex.suffix, TRANSACTION_INDEX_SUFFIX)
SETTINGS = {"segment_bytes": 1500, "index_interval_bytes": 150, "segment_index_bytes": 2400}


def opened() -> tuple[MemoryDisk, Log]:
    """A log of some segments, each with aborted transactions and entries in both indexes."""
    disk = MemoryDisk(directories=["/data"])
    log = stand_alone(disk, **SETTINGS)
    for round_number in range(12):
        produce(log, 1, 2 * round_number, count=2)
        produce(log, 2, 2 * round_number, count=2)
        plain(log, 2)
        end(log, 1, ABORT)
        end(log, 2, COMMIT)
    assert len(log.partition.segments) >= 3
    return disk, log


def flipped(content: bytes, position: int, bit: int) -> bytes:
    return content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :]


def write(disk: MemoryDisk, name: str, content: bytes) -> None:
    """Change bytes of a file in place, as a disk does: whoever has it open sees them."""
    file = disk.open(f"{DIRECTORY}/{name}", write=True)
    file.pwrite(content, 0)
    file.close()


def sealed_files(log: Log) -> list[str]:
    base_offset = log.partition.segments[1].base_offset
    suffixes = (OffsetIndex.suffix, TimeIndex.suffix, TRANSACTION_INDEX_SUFFIX, SEAL_SUFFIX)
    return [file_name(base_offset, suffix) for suffix in (*suffixes, SNAPSHOT_SUFFIX)]


def test_a_sound_log_has_nothing_to_rebuild() -> None:
    _, log = opened()
    assert log.scrub() == Scrubbed(log.size, None)


def test_every_byte_of_a_sealed_segments_files_and_of_the_epoch_file() -> None:
    disk, log = opened()
    before = committed(log)
    for name in (*sealed_files(log), LEADER_EPOCH_CHECKPOINT):
        right = content_of(disk, name)
        assert len(right) > 3
        for position in range(0, len(right), 3):
            write(disk, name, flipped(right, position, 1 << position % 8))
            (rebuilt,) = log.scrub().rebuilt
            assert (rebuilt.kind, rebuilt.file) == (DamageKind.DERIVED, name)
            assert content_of(disk, name) == right, f"{name} at byte {position}"
    assert log.scrub() == Scrubbed(log.size, None)
    assert committed(log) == before


@pytest.mark.parametrize("is_rotten", [False, True])
def test_a_cut_of_a_whole_segment_whose_indexes_nobody_has_opened(is_rotten: bool) -> None:
    """They were compared with the size after the cut, and a right file was rebuilt; none of its entries was
    left, and all of them stayed in the file (seed 2000525)."""
    disk, log = opened()
    log.close()
    log = stand_alone(disk, **SETTINGS)
    segment = log.partition.segments[1]
    assert not segment.indexes.are_open
    name = file_name(segment.base_offset, OffsetIndex.suffix)
    if is_rotten:
        write(disk, name, flipped(content_of(disk, name), 1, 64))
    log.truncate_to(segment.base_offset)
    assert [each.file for each in log.partition.rebuilt] == [name] * is_rotten
    assert (segment.size, content_of(disk, name)) == (0, b"")
    log.partition.rebuilt.clear()
    assert log.scrub() == Scrubbed(log.size, None)


def test_an_index_without_an_entry_takes_the_place_of_what_its_file_has() -> None:
    disk, _ = opened()
    put(disk, "7.index", b"rotten", DIRECTORY)
    index = OffsetIndex(disk, f"{DIRECTORY}/7.index", 7, 80)
    index.replace([])
    assert content_of(disk, "7.index") == b""


def test_every_byte_of_the_active_segments_files() -> None:
    disk, log = opened()
    active = log.partition.segments.active
    active.indexes.offsets.flush()
    active.indexes.times.flush()
    active.indexes.rebuild(TimeIndex.suffix, "to have the last entry, which a rebuilding adds")
    log.scrub()
    for suffix in INDEXES:
        name = file_name(active.base_offset, suffix)
        right = content_of(disk, name)
        for position in range(len(right)):
            write(disk, name, flipped(right, position, 1 << position % 8))
            (rebuilt,) = log.scrub().rebuilt
            assert rebuilt.file == name
            assert content_of(disk, name) == right, f"{name} at byte {position}"
    assert log.scrub() == Scrubbed(log.size, None)


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("position", [30, 200, 300])
def test_batches_that_rot_between_the_two_readings_say_nothing_of_an_index(
    is_sealed: bool, position: int
) -> None:
    """Row 365: the `.log` was sound a moment before. The next scrub finds what has changed meanwhile."""
    disk, log = opened()
    segments = log.partition.segments
    segment = segments[1] if is_sealed else segments.active
    segment.indexes.offsets.flush()
    segment.indexes.times.flush()
    index, batches = (file_name(segment.base_offset, suffix) for suffix in (OffsetIndex.suffix, ".log"))
    sound = content_of(disk, batches)
    assert position < len(sound)
    # A wrong index of a sealed segment would be rebuilt from what is left of the batches.
    wrong = flipped(content_of(disk, index), 1, 0x40) if is_sealed else content_of(disk, index)
    write(disk, index, wrong)
    write(disk, batches, flipped(sound, position, 0x40))
    assert rebuilt_files(log, segment) == []
    assert content_of(disk, index) == wrong
    write(disk, batches, sound)
    assert rebuilt_files(log, segment) == ([index] if is_sealed else [])


def rebuilt_files(log: Log, segment: Segment) -> list[str]:
    """The files of a segment that the second reading rebuilds."""
    steps = check_segment_files(log.partition, segment)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return [each.file for each in stop.value]


@pytest.mark.parametrize("reopened", ["never", "before it rots", "after it has rotted"])
@pytest.mark.parametrize("suffix", INDEXES)
def test_no_seal_vouches_for_an_index_that_rotted_before_the_roll(suffix: str, reopened: str) -> None:
    """Row 400: the seal had digests of the files as the disk had them, and no scrub looked any further."""
    disk, log = opened()
    active = log.partition.segments.active
    name = file_name(active.base_offset, suffix)
    active.indexes.offsets.flush()
    active.indexes.times.flush()
    before = committed(log)
    size = len(content_of(disk, name))
    assert size >= 12
    for position in range(0, size, 1 if size < 30 else 7):
        disk, log = opened()
        active = log.partition.segments.active
        active.indexes.offsets.flush()
        active.indexes.times.flush()
        if reopened == "before it rots":
            log.close()
            log = stand_alone(disk, **SETTINGS)
        rotten = flipped(content_of(disk, name), position, 1 << position % 8)
        write(disk, name, rotten)
        if reopened == "after it has rotted":
            log.partition.abandon()  # a clean stop would write the last entries
            log = stand_alone(disk, **SETTINGS)
        log.partition.roll()
        log.partition.segments[-2].rest()
        assert committed(log) == before
        told = [each.file for each in log.scrub().rebuilt]
        is_there = content_of(disk, name) == rotten
        assert not is_there, f"{name} at byte {position}"
        if reopened != "after it has rotted":  # then the opening rebuilds it
            assert told == [name]
        assert log.scrub() == Scrubbed(log.size, None)
        log.close()


def rotten_index(disk: MemoryDisk, config: LogConfig, number: int) -> str:
    """A log of some batches, stopped in order, whose time index has a wrong entry that looks sane."""
    log = Log.open(DIRECTORY, config, disk=disk, clock=lambda: 0)
    for each in range(100):
        log.append(b"%d" % each * 20, timestamp_ms=1000 + 10 * each)
    log.close()
    name = file_name(0, TimeIndex.suffix)
    write(disk, name, flipped(content_of(disk, name), 12 * number + 7, 0x01))
    return name


@pytest.mark.parametrize("is_scrubbed_in_pieces", [False, True])
def test_the_entries_of_a_former_owner_are_judged_once_they_are_sealed(is_scrubbed_in_pieces: bool) -> None:
    """No digest tells that they rotted: this process has read them from the disk as they are."""
    disk, config = MemoryDisk(directories=["/data"]), LogConfig(index_interval_bytes=1200)
    name = rotten_index(disk, config, 2)
    log = Log.open(DIRECTORY, config, disk=disk, clock=lambda: 0)
    log.append(b"and one more")
    log.partition.roll()
    rebuilt, cursor = [], None
    while True:
        step = log.scrub(cursor, max_bytes=1) if is_scrubbed_in_pieces else log.scrub()
        rebuilt += [each.file for each in step.rebuilt]
        cursor = step.cursor
        if cursor is None:
            break
    assert rebuilt == [name]
    assert log.scrub() == Scrubbed(log.size, None)


@pytest.mark.parametrize("suffix", [OffsetIndex.suffix, TimeIndex.suffix])
def test_a_new_digest_of_an_index_vouches_for_no_other_file(suffix: str) -> None:
    """Row 401: with the index rebuilt, the seal took the digest of the rotten aborted transactions, too."""
    disk, log = opened()
    before = committed(log)
    base_offset = log.partition.segments[1].base_offset
    both = [file_name(base_offset, each) for each in (suffix, TRANSACTION_INDEX_SUFFIX)]
    right = [content_of(disk, name) for name in both]
    for name, content in zip(both, right, strict=True):
        write(disk, name, flipped(content, 10, 0x01))
    assert [each.file for each in log.scrub().rebuilt] == both
    assert [content_of(disk, name) for name in both] == right
    assert committed(log) == before


@pytest.mark.parametrize("kept", [40, 75, 95])
def test_a_wrong_time_that_a_cut_has_believed_goes_with_the_rebuilt_index(kept: int) -> None:
    """Row 403: the largest time of the segment came from the index, and stayed when that was rebuilt."""
    for number in range(4):
        disk, config = MemoryDisk(directories=["/data"]), LogConfig(index_interval_bytes=1200)
        log = Log.open(DIRECTORY, config, disk=disk, clock=lambda: 0)
        for each in range(100):
            log.append(b"%d" % each * 20, timestamp_ms=1000 + 10 * each)
        segment = log.partition.segments.active
        segment.indexes.times.flush()
        name = file_name(0, TimeIndex.suffix)
        write(disk, name, flipped(content_of(disk, name), 12 * number + 3, 0x01))
        truncate_to(log.partition, kept)
        log.scrub()
        for each in range(kept, 100):
            log.append(b"%d" % each * 20, timestamp_ms=1000 + 10 * each)
        assert segment.max_timestamp_ms == 1990, number
        assert log.scrub() == Scrubbed(log.size, None)
        log.partition.roll()
        assert log.scrub() == Scrubbed(log.size, None)
        assert log.offset_for_timestamp(1990) == log.offset_for_timestamp(1981)


def test_records_of_time_zero_are_no_reason_to_rebuild() -> None:
    """The only entry is all zeros, like the end of a preallocated file."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open(DIRECTORY, LogConfig(), disk=disk, clock=lambda: 0)
    log.append(b"x", timestamp_ms=0)
    log.partition.roll()
    assert log.scrub() == Scrubbed(log.size, None)


def test_the_largest_time_of_all() -> None:
    """Its difference to -1, the time before all others, does not fit into 64 bits: it did not ascend."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open(DIRECTORY, LogConfig(), disk=disk)
    log.append(b"x", timestamp_ms=MAX_LONG)
    log.partition.roll()
    assert log.scrub() == Scrubbed(log.size, None)
    name = file_name(0, TimeIndex.suffix)
    right = content_of(disk, name)
    write(disk, name, b"\0" * len(right))
    assert [each.file for each in log.scrub().rebuilt] == [name]
    assert content_of(disk, name) == right


def test_a_preallocated_index_that_recovery_seals() -> None:
    """Kafka leaves zeros at its end, which no digest of entries covers."""
    disk, log = opened()
    segment = log.partition.segments[1]
    names = [file_name(segment.base_offset, each) for each in (OffsetIndex.suffix, TimeIndex.suffix)]
    right = [content_of(disk, name) for name in names]
    log.partition.abandon()
    for path in list(disk.files()):
        if path.endswith((SEAL_SUFFIX, "-checkpoint")):
            disk.remove(path)
    for name, content in zip(names, right, strict=True):
        write(disk, name, content + b"\0" * 2400)
    log = stand_alone(disk, **SETTINGS)
    assert log.partition.segments[1].seal is not None
    assert [content_of(disk, name) for name in names] == right
    assert log.partition.segments[1].indexes.sizes == tuple(map(len, right))
    assert log.scrub() == Scrubbed(log.size, None)


def test_a_block_of_zeros_and_a_lost_file() -> None:
    disk, log = opened()
    for name in sealed_files(log):
        right = content_of(disk, name)
        write(disk, name, b"\0" * len(right))
        assert [each.file for each in log.scrub().rebuilt] == [name]
        assert content_of(disk, name) == right
        if not name.endswith(SNAPSHOT_SUFFIX):  # a snapshot that is missing is not needed
            disk.remove(f"{DIRECTORY}/{name}")
            assert [each.file for each in log.scrub().rebuilt] == [name]
            assert content_of(disk, name) == right


def test_a_scrub_survives_the_next_owner() -> None:
    """The seal has the digests of the rebuilt files: the next open reads no batch."""
    disk, log = opened()
    name = sealed_files(log)[2]
    write(disk, name, b"\1" * len(content_of(disk, name)))
    assert len(log.scrub().rebuilt) == 1
    log.close()
    again = stand_alone(disk, **SETTINGS)
    assert again.partition.report.scanned_bytes == 0
    assert again.scrub() == Scrubbed(again.size, None)


def test_an_index_rebuilt_after_its_interval_changed_is_as_sealed() -> None:
    """The opening rebuilds it with other entries, and the next owner reads before it scrubs."""
    disk, log = opened()
    name = sealed_files(log)[0]
    log.close()
    disk.remove(f"{DIRECTORY}/{name}")
    settings = {**SETTINGS, "index_interval_bytes": 40}
    log = stand_alone(disk, **settings)
    assert log.partition.report.rebuilt == [name]
    log.close()
    log = stand_alone(disk, **settings)
    assert log.read_bytes(log.partition.segments[1].base_offset + 5).records
    assert log.scrub() == Scrubbed(log.size, None)


def test_appends_go_on_over_a_bad_last_entry() -> None:
    """An offset past the end of the log once ended the broker with an AssertionError."""
    disk = MemoryDisk(directories=["/data"])
    config = LogConfig(index_interval_bytes=60)
    log = Log.open(DIRECTORY, config, disk=disk, clock=lambda: 0)
    for number in range(20):
        log.append(b"%d" % number * 20)
    log.close()
    name = file_name(0, OffsetIndex.suffix)
    entries = content_of(disk, name)
    for closed in (True, False):
        log = Log.open(DIRECTORY, config, disk=disk, clock=lambda: 0)
        if not closed:
            log.append(b"it is open")
            log.flush()
            log.partition.segments.active.indexes.offsets.flush()
            entries = content_of(disk, name)
        write(disk, name, flipped(entries, len(entries) - 6, 0x40))
        end_offset = log.log_end_offset
        for number in range(20):
            log.append(b"%d" % number * 20)
        assert log.log_end_offset == end_offset + 20
        assert [record.offset for record in log.read(end_offset)] == list(range(end_offset, end_offset + 20))
        log.scrub()
        assert log.scrub() == Scrubbed(log.size, None)
        log.close()


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_time_lookup_does_not_believe_a_bad_entry(is_sealed: bool) -> None:
    disk = MemoryDisk(directories=["/data"])
    log = Log.open(DIRECTORY, LogConfig(index_interval_bytes=1200), disk=disk, clock=lambda: 0)
    for number in range(100):
        log.append((b"k", b"%d" % number * 20), timestamp_ms=1000 + number)
    if is_sealed:
        log.partition.roll()
    log.partition.segments[0].indexes.times.flush()
    name = file_name(0, TimeIndex.suffix)
    right = content_of(disk, name)
    wanted = [log.offset_for_timestamp(1000 + number) for number in range(100)]
    for position in range(len(right)):
        write(disk, name, flipped(right, position, 0x04))
        log.partition.segments[0].rest()
        assert [log.offset_for_timestamp(1000 + number) for number in range(100)] == wanted, position
        log.scrub()
        assert log.scrub() == Scrubbed(log.size, None)
        right = content_of(disk, name)


def test_a_bad_index_of_aborted_transactions_is_never_believed() -> None:
    """It lies in a sealed segment that the next owner has not read yet: no aborted record is served."""
    disk, log = opened()
    before = committed(log)
    name = sealed_files(log)[2]
    right = content_of(disk, name)
    log.partition.abandon()
    log = stand_alone(disk, **SETTINGS)
    for position in range(2, len(right), 3):
        segment = log.partition.segments[1]
        segment.aborts._index = None  # as of a segment that was mended or compacted
        write(disk, name, flipped(right, position, 0x01))
        with pytest.raises(CorruptIndex):
            list(log.read(isolation=FetchIsolation.TXN_COMMITTED))
        (rebuilt,) = log.scrub().rebuilt
        assert rebuilt.file == name
        assert committed(log) == before


def test_what_a_read_rebuilds_is_told_by_the_next_scrub() -> None:
    disk, log = opened()
    name = sealed_files(log)[0]
    segment = log.partition.segments[1]
    assert names(disk)
    segment.rest()
    put(disk, name, flipped(content_of(disk, name), 2, 0x10))
    list(log.read(segment.base_offset + 3))
    assert [each.file for each in log.scrub().rebuilt] == [name]
    assert log.scrub() == Scrubbed(log.size, None)


@pytest.mark.parametrize("interval", [0, 4096])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_was_rebuilt_from_a_rotten_batch_lets_appends_go_on(interval: int, suffix: str) -> None:
    """No checksum covers its base offset, which lies past the end of the log now."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open("/data/t-0", LogConfig(index_interval_bytes=interval), disk=disk, clock=lambda: 1000)
    for number in range(5):
        log.append(b"%d" % number)
    segment = log.partition.segments.active
    file = disk.open(segment.path(".log"), write=True)
    at = 4 * file.size() // 5 + 7
    file.pwrite(bytes([file.pread(1, at)[0] ^ 64]), at)
    segment.indexes.rebuild(suffix, "a read met it")
    for number in range(5, 100):
        log.append(b"%d" % number, timestamp_ms=1000 + number)
    assert log.log_end_offset == 100
    (damage,) = log.scrub().damages
    assert (damage.offset, damage.end_offset) == (4, 5)

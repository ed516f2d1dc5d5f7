"""Reading what somebody else is writing: every call of the reader may find the files changed."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from struct import pack

import pytest

import logstore.log.reader as reader_module
from logstore import DamagedLog, Log, LogGone, LogReader, LogTruncated, OffsetOutOfRange
from logstore.checkpoint.entry_files import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint
from logstore.disk.errors import EngineError
from logstore.disk.files import DirectoryEntry, Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogDirOffline
from logstore.format.batch import Batch, encode_batch, encode_marker_batch, set_offsets_and_epoch
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.log.stretches import StretchReader
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.upkeep import advance_log_start_offset
from logstore.segment.scan import Fault
from logstore.testing import disks
from logstore.testing.disks import FaultyDisk, MemoryDisk
from tests.logstore.busy import SMALL, Appender, BusyDisk
from tests.logstore.logs import (
    BATCH_0,
    BATCH_3,
    BATCH_5,
    DIRECTORY,
    batch,
    content_of,
    disk_with,
    log_file,
    put,
)


class ByStretch(StretchReader):
    """The same batches, out of stretches."""

    stretch_bytes = 4 << 20

    def __init__(
        self, path: str | Path, *, start_offset: int | None = None, disk: Disk | None = None
    ) -> None:
        super().__init__(path, start_offset=start_offset, disk=disk, stretch_bytes=self.stretch_bytes)

    def batches(self) -> Iterator[Batch]:
        for stretch in self.stretches():
            for slot in range(len(stretch.positions)):
                yield stretch.batch(slot)


class BatchByBatch(ByStretch):
    """Stretches as short as they can be: every batch waits for its successor in the next chunk."""

    stretch_bytes = 1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    ways = [LogReader, ByStretch, BatchByBatch]
    if metafunc.function is test_a_batch_that_was_not_asked_past_comes_again:
        ways.remove(ByStretch)  # a stretch is given out whole
    metafunc.parametrize("_each_way_of_reading", ways, indirect=True)


@pytest.fixture(autouse=True)
def _each_way_of_reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that holds for batches holds for stretches of them."""
    monkeypatch.setattr(sys.modules[__name__], "LogReader", request.param)


THREE = {log_file(0): BATCH_0 + BATCH_3 + BATCH_5}


def offsets(reader: LogReader) -> list[int]:
    return [record.offset for record in reader.records()]


def read(disk: MemoryDisk, start: int | None = None) -> list[int]:
    return offsets(LogReader(DIRECTORY, start_offset=start, disk=disk))


# --- bounds ----------------------------------------------------------------------------------------


def test_from_the_start_to_the_end_and_then_what_has_come() -> None:
    """A second call gives what was appended since, and nothing twice."""
    disk = disk_with({log_file(0): BATCH_0 + BATCH_3})
    reader = LogReader(DIRECTORY, disk=disk)
    assert offsets(reader) == [0, 1, 2, 3, 4]
    assert offsets(reader) == []
    put(disk, log_file(0), BATCH_0 + BATCH_3 + BATCH_5)
    assert offsets(reader) == [5, 6]
    assert (reader.log_start_offset, reader.log_end_offset, reader.next_offset) == (0, 7, 7)
    assert reader.tail is None


@pytest.mark.parametrize("start", range(8))
def test_from_any_offset(start: int) -> None:
    """A start inside a batch leaves out what lies below it; the very end gives nothing and is no error."""
    assert read(disk_with(THREE), start) == list(range(start, 7))


def test_batches_may_begin_below_the_start() -> None:
    """Whole batches, as they lie."""
    reader = LogReader(DIRECTORY, start_offset=4, disk=disk_with(THREE))
    assert [each.base_offset for each in reader.batches()] == [3, 5]


def test_a_batch_that_was_not_asked_past_comes_again() -> None:
    """Who stops in the middle of an iteration has not read what he was given last."""
    reader = LogReader(DIRECTORY, disk=disk_with(THREE))
    batches = reader.batches()
    assert [next(batches).base_offset, next(batches).base_offset] == [0, 3]
    batches.close()  # type: ignore[attr-defined]
    assert [each.base_offset for each in reader.batches()] == [3, 5]


def test_a_loop_that_is_left_goes_on_behind_its_last_record() -> None:
    """Inside a batch, too: the next call returned its records again."""
    disk = MemoryDisk(directories=["/data"])
    with Log.open(DIRECTORY, disk=disk) as log:
        log.append([b"0", b"1", b"2"])
        log.append([b"3", b"4"])
        reader = LogReader(DIRECTORY, disk=disk)
        seen = []
        for stop in (1, 3, 9):
            for record in reader.records():
                seen.append(record.value)
                if record.offset == stop:
                    break
        assert seen == [b"0", b"1", b"2", b"3", b"4"]


def test_records_that_were_returned_and_cut_are_an_error_until_the_reader_is_moved() -> None:
    disk = MemoryDisk(directories=["/data"])
    with Log.open(DIRECTORY, disk=disk) as log:
        for number in range(6):
            log.append(b"%d" % number)
        early, reader = LogReader(DIRECTORY, start_offset=2, disk=disk), LogReader(DIRECTORY, disk=disk)
        assert next(early.records()).offset == 2
        assert len([*reader.records()]) == 6
        log.truncate_to(3)
        log.append([b"new"] * 9)
        with pytest.raises(LogTruncated):
            next(reader.records())
        with pytest.raises(LogTruncated) as caught:
            next(reader.records())
        reader.seek(caught.value.next_offset)
        assert [record.value for record in reader.records()] == [b"new"] * 9
        assert [record.offset for record in early.records()] == [*range(3, 12)], "it had read nothing of that"
        records = reader.records()
        log.append(b"12")
        assert next(records).offset == 12
        log.truncate_to(5)
        log.append([b"newer"] * 20)
        with pytest.raises(LogTruncated):
            list(records)


def test_out_of_range_on_both_sides() -> None:
    """Deleted below the start, or not there yet: the error names the bounds, and `seek` goes on from one."""
    disk = disk_with({log_file(3): BATCH_3, log_file(5): BATCH_5})
    reader = LogReader(DIRECTORY, start_offset=0, disk=disk)
    with pytest.raises(OffsetOutOfRange) as below:
        offsets(reader)
    assert (below.value.offset, below.value.log_start_offset) == (0, 3)
    reader.seek(below.value.log_start_offset)
    assert offsets(reader) == [3, 4, 5, 6]
    reader.seek(8)
    with pytest.raises(OffsetOutOfRange) as above:
        offsets(reader)
    assert (above.value.offset, above.value.log_end_offset) == (8, 7)


@pytest.mark.parametrize("place", ["/data", DIRECTORY])
def test_the_log_start_is_that_of_the_owners_checkpoint(place: str) -> None:
    """Records below it are deleted although they still lie there; a start inside a batch cuts it."""
    disk = disk_with(THREE)
    write_offset_checkpoint(disk, place, LOG_START_OFFSET_CHECKPOINT, {TopicPartition("orders", 0): 4})
    assert read(disk) == [4, 5, 6]
    with pytest.raises(OffsetOutOfRange):
        read(disk, 3)
    put(disk, LOG_START_OFFSET_CHECKPOINT, b"nonsense", place)
    assert read(disk) == list(range(7))


def test_no_directory_no_segments_no_partition_name(tmp_path: Path) -> None:
    """Nothing to read is no error while the directory stands."""
    with pytest.raises(LogGone, match="does not exist"):
        LogReader(tmp_path / "absent-0")
    empty = tmp_path / "not a partition"
    empty.mkdir()
    reader = LogReader(empty)
    assert offsets(reader) == []
    empty.rmdir()
    with pytest.raises(LogGone):
        offsets(reader)
    (tmp_path / "file-0").touch()
    with pytest.raises(LogGone):
        LogReader(tmp_path / "file-0")


def test_a_disk_that_cannot_be_read_is_named() -> None:
    """An error of the disk under the owner's files is not the reader's end of the log."""
    disk = disk_with(THREE)
    reader = LogReader(DIRECTORY, disk=disk)
    disk.power_cut(Random(1))
    with pytest.raises(LogDirOffline, match="cannot be read"):
        offsets(reader)


def test_a_reader_without_descriptors_names_the_limit() -> None:
    """It said to check the disk and its permissions."""
    disk = FaultyDisk(disk_with(THREE))
    reader = LogReader(DIRECTORY, disk=disk)
    disk.inject(disks.Fault(operation="open", errno=errno.EMFILE, forever=True))
    with pytest.raises(LogDirOffline, match=r"Raise the limits of the process \(ulimit -n\)"):
        offsets(reader)


def test_control_batches_are_batches_and_no_records() -> None:
    """A marker has an offset, and nothing for an application."""
    marker = bytearray(
        encode_marker_batch(
            EndTransactionMarker(ControlType.COMMIT, 0), producer_id=1, producer_epoch=0, timestamp_ms=5
        )
    )
    set_offsets_and_epoch(marker, base_offset=3, leader_epoch=0)
    disk = disk_with({log_file(0): BATCH_0 + bytes(marker) + batch(4, (9,), epoch=1)})
    assert read(disk) == [0, 1, 2, 4]
    assert [each.base_offset for each in LogReader(DIRECTORY, disk=disk).batches()] == [0, 3, 4]


def test_a_batch_larger_than_a_chunk() -> None:
    """What a batch says of its size is read whole, if the file has as much."""
    big = encode_batch([Record(0, 1, None, bytes(3 << 20))], leader_epoch=0)
    disk = disk_with({log_file(0): big + batch(1, (2,))})
    assert read(disk) == [0, 1]
    assert read(disk, 1) == [1]


# --- tails and damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, len(BATCH_5)))
def test_a_torn_last_batch_is_the_end(cut: int) -> None:
    """Being written, or left by a crash: read up to it, and it is read once it is whole."""
    disk = disk_with({log_file(0): BATCH_0 + BATCH_3 + BATCH_5[:-cut]})
    reader = LogReader(DIRECTORY, disk=disk)
    assert offsets(reader) == [0, 1, 2, 3, 4]
    assert reader.tail is not None
    assert reader.tail.position == len(BATCH_0 + BATCH_3)
    assert reader.tail.size == len(BATCH_5) - cut
    put(disk, log_file(0), BATCH_0 + BATCH_3 + BATCH_5)
    assert offsets(reader) == [5, 6]
    assert reader.tail is None


@pytest.mark.parametrize("tail", [bytes(40), bytes(4096), b"\xff" * 100, b"noise" * 20])
def test_zeros_and_garbage_behind_the_last_batch(tail: bytes) -> None:
    """Preallocated, lost in a power cut, or rubbish: nothing of it is given out."""
    reader = LogReader(DIRECTORY, disk=disk_with({log_file(0): BATCH_0 + tail}))
    assert offsets(reader) == [0, 1, 2]
    assert offsets(reader) == []
    assert reader.tail is not None
    assert reader.tail.size == len(tail)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("at", range(len(BATCH_3)))
def test_a_flipped_bit_in_the_middle_is_damage_or_no_wrong_record(at: int) -> None:
    """Nothing at or behind the bad batch is given out. Only an epoch that still fits cannot be told."""
    seen, error = read_until_it_fails(disk_with({log_file(0): BATCH_0 + flipped(BATCH_3, at) + BATCH_5}))
    if at == 15:
        assert (seen, error) == (list(range(7)), None)
    else:
        assert error is not None
        if at == 7:  # two batches contradict each other, and nothing tells which of them is wrong
            assert seen == []
        else:
            assert seen == [0, 1, 2]
            assert f"byte {len(BATCH_0)}" in str(error)


def read_until_it_fails(disk: MemoryDisk, start: int | None = None) -> tuple[list[int], DamagedLog | None]:
    seen: list[int] = []
    try:
        for record in LogReader(DIRECTORY, start_offset=start, disk=disk).records():
            seen.append(record.offset)
    except DamagedLog as error:
        return seen, error
    return seen, None


def test_a_start_inside_the_batch_behind_a_damage_is_not_the_end() -> None:
    """The batch that holds the start begins below it, and still lies behind."""
    seen, error = read_until_it_fails(disk_with({log_file(0): flipped(BATCH_0, 70) + BATCH_3}), 4)
    assert seen == []
    assert error is not None


def test_a_torn_segment_that_is_not_the_last_is_damage() -> None:
    """Nobody writes there any more, so nothing explains it."""
    disk = disk_with({log_file(0): BATCH_0 + BATCH_3[:-1], log_file(5): BATCH_5})
    seen, error = read_until_it_fails(disk)
    assert seen == [0, 1, 2]
    assert Fault.TORN.value in str(error)
    assert read(disk, 5) == [5, 6]


def test_gaps_are_read_over() -> None:
    """What compaction and followers leave: within a segment, between two, a segment with nothing in it."""
    disk = disk_with(
        {
            log_file(0): BATCH_0 + BATCH_5,
            log_file(20): b"",
            log_file(30): batch(33, (1,), epoch=1),
            log_file(40): b"",
        }
    )
    reader = LogReader(DIRECTORY, disk=disk)
    assert offsets(reader) == [0, 1, 2, 5, 6, 33]
    assert offsets(reader) == []
    for start, expected in ((3, 5), (7, 33), (25, 33), (34, None), (40, None)):
        assert next(iter(read(disk, start)), None) == expected


@pytest.mark.parametrize(
    "index",
    [
        b"",
        bytes(4096),
        pack(">ii", 4, len(BATCH_0)),
        pack(">ii", 1, 32),
        pack(">ii", 2, 2**31 - 1),
        b"\xff" * 20,
    ],
)
def test_an_index_is_a_hint(index: bytes) -> None:
    """Sound, empty, of zeros, pointing into a batch, past the end or nowhere: the same records."""
    for start in range(8):
        disk = disk_with({**THREE, f"{0:020d}.index": index})
        assert read(disk, start) == list(range(start, 7))


# --- an owner at work ----------------------------------------------------------------------------------


def test_a_swap_half_done_hides_nothing() -> None:
    """At each step of a compaction that merges two segments, some file holds every record."""
    merged = BATCH_0 + BATCH_3 + BATCH_5
    swap = f"{log_file(0)}.swap"
    steps: list[dict[str, bytes]] = [
        {log_file(0): BATCH_0 + BATCH_3, log_file(5): BATCH_5, f"{log_file(0)}.cleaned": merged[:50]},
        {log_file(0): BATCH_0 + BATCH_3, log_file(5): BATCH_5, swap: merged},
        {log_file(0): BATCH_0 + BATCH_3, swap: merged, f"{log_file(5)}.deleted": BATCH_5},
        {swap: merged, f"{log_file(0)}.deleted": BATCH_0 + BATCH_3},
        {log_file(5): BATCH_5, swap: merged},
        {log_file(0): merged},
    ]
    last = batch(9, (1,), epoch=1)
    for step in steps:
        for start in range(7):
            disk = disk_with({**step, log_file(9): last})
            assert read(disk, start) == [*range(start, 7), 9]


def test_a_reader_sees_each_record_of_a_growing_log_once(tmp_path: Path) -> None:
    """However reads, appends and rolls interleave: in order, nothing twice, nothing left out."""
    for every in (1, 2, 3, 7):
        directory = tmp_path / f"busy-{every}"
        with Log.open(directory, SMALL) as log:
            append = Appender(log, 200)
            reader = LogReader(directory, disk=BusyDisk(append, every))
            seen: list[bytes | None] = []
            while len(seen) < append.limit:
                seen += [record.value for record in reader.records()]
            assert seen == [b"%d" % number for number in range(append.limit)]


class Owner:
    """Appends, rolls, cuts and drops the start of a log, and remembers every value an offset has had."""

    def __init__(self, log: Log, seed: int) -> None:
        self.log = log
        self.random = Random(seed)
        self.history: dict[int, set[bytes]] = {}
        self.cuts = 0
        self.acted = 0

    def __call__(self) -> None:
        if self.acted == 600:
            return  # so that the reader catches up some time
        log, random = self.log, self.random
        self.acted += 1
        match random.choices(["append", "roll", "cut", "start", "restart"], [30, 3, 2, 2, 0.3])[0]:
            case "append":
                end = log.log_end_offset
                values = [b"%d at %d" % (self.cuts, end + number) for number in range(random.randint(1, 5))]
                for number, value in enumerate(values):
                    self.history.setdefault(end + number, set()).add(value)
                log.append(values)
            case "roll":
                log.partition.roll()
            case "cut":
                self.cuts += 1
                log.truncate_to(random.randint(log.log_start_offset, log.log_end_offset))
            case "start":
                advance_log_start_offset(
                    log.partition, random.randint(log.log_start_offset, log.log_end_offset)
                )
            case _:
                self.cuts += 1
                truncate_fully_and_start_at(log.partition, log.log_end_offset + random.randint(0, 9))


# `make reader` runs all of them.
@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 24))]
)
def test_whatever_the_owner_does_no_wrong_record(seed: int) -> None:
    """Between two calls of the reader the log is appended to, cut, restarted: what it gives out was there.

    Offsets rise within a reading; a jump is a gap that the owner made. Only the documented errors come out.
    """
    disk = MemoryDisk(directories=["/data"])
    with Log.open("/data/busy-0", SMALL, disk=disk) as log:
        owner = Owner(log, seed)
        owner()
        reader = LogReader("/data/busy-0", disk=BusyDisk(owner, every=3 + seed % 5, inner=disk))
        read_in_all = 0
        while owner.acted < 600 or not read_in_all:
            last = -1
            try:
                for record in reader.records():
                    assert record.offset > last
                    assert record.value in owner.history[record.offset]
                    last = record.offset
                    read_in_all += 1
            except OffsetOutOfRange as error:
                reader.seek(min(max(error.offset, error.log_start_offset), error.log_end_offset))
        assert owner.acted == 600
        # Left alone, the owner's log is what the reader finds.
        assert list(LogReader("/data/busy-0", disk=disk).records()) == list(log.read())


def test_a_log_that_is_cut_meanwhile_says_so(tmp_path: Path) -> None:
    """What was read was true; going on there would read something else."""
    with Log.open(tmp_path / "busy-0", SMALL) as log:
        for number in range(40):
            log.append(b"%d" % number)
        reader = LogReader(tmp_path / "busy-0")
        assert offsets(reader) == list(range(40))
        log.truncate_to(25)
        with pytest.raises(OffsetOutOfRange) as caught:
            offsets(reader)
        assert caught.value.log_end_offset == 25
        reader.seek(25)
        log.append(b"new")
        assert offsets(reader) == [25]


@pytest.mark.parametrize("act", ["remove", "rename"])
def test_a_segment_that_goes_while_it_is_read(act: str) -> None:
    """A reader in the middle of it finishes in peace, and goes on with what is there."""
    disk = disk_with({log_file(0): BATCH_0 + BATCH_3, log_file(5): BATCH_5})
    reader = LogReader(DIRECTORY, disk=disk)
    records = reader.records()
    assert next(records).offset == 0
    path = f"{DIRECTORY}/{log_file(0)}"
    if act == "remove":
        disk.remove(path)
    else:
        disk.rename(path, f"{path}.deleted")
    assert [record.offset for record in records] == [1, 2, 3, 4, 5, 6]


def test_nothing_is_written_locked_or_mapped(tmp_path: Path) -> None:
    """`BusyDisk` refuses all that; and the owner's files are as they were."""
    with Log.open(tmp_path / "busy-0", SMALL) as log:
        for number in range(30):
            log.append(b"%d" % number)
        log.flush()
        before = {path.name: path.read_bytes() for path in (tmp_path / "busy-0").iterdir()}
        reader = LogReader(tmp_path / "busy-0", start_offset=17, disk=BusyDisk(lambda: None))
        assert offsets(reader) == list(range(17, 30))
        assert {path.name: path.read_bytes() for path in (tmp_path / "busy-0").iterdir()} == before


def test_what_recovery_cuts_was_no_record() -> None:
    """The reader stops before a torn tail, so nothing that it gave out is gone after the owner's start."""
    disk = disk_with({log_file(0): BATCH_0 + BATCH_3 + BATCH_5[:-3]})
    reader = LogReader(DIRECTORY, disk=disk)
    seen = offsets(reader)
    Log.open(DIRECTORY, disk=disk).close()
    assert content_of(disk, log_file(0)) == BATCH_0 + BATCH_3
    assert offsets(reader) == []
    assert read(disk) == seen


def test_every_error_is_documented() -> None:
    """Whatever bytes lie in the files, only the errors that the docstrings name come out."""
    random = Random(7)
    whole = BATCH_0 + BATCH_3 + BATCH_5
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            data[random.randrange(len(data))] = random.randrange(256)
        index = random.randbytes(random.randint(0, 40))
        disk = disk_with({log_file(0): bytes(data), f"{0:020d}.index": index})
        reader = LogReader(DIRECTORY, start_offset=random.randint(0, 8), disk=disk)
        try:
            offsets(reader)
        except EngineError as error:
            if not isinstance(error, DamagedLog | OffsetOutOfRange):
                raise


def test_a_log_of_more_segments_than_attempts_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch ends the count of attempts, and the directory is not listed again for each segment."""
    monkeypatch.setattr(reader_module, "_ATTEMPTS", 3)
    disk = disk_with({log_file(offset): batch(offset, (1000,)) for offset in range(20)})
    reader = LogReader(DIRECTORY, disk=disk)
    listed = 0

    def scan(self: MemoryDisk, directory: str) -> list[DirectoryEntry]:
        nonlocal listed
        listed += 1
        return plain(self, directory)

    plain = MemoryDisk.scan
    monkeypatch.setattr(MemoryDisk, "scan", scan)
    assert offsets(reader) == list(range(20))
    assert listed <= 4  # at first, before the last segment, and behind it

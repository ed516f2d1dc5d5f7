"""What a log gives up: entered first, kept in quarantine, listed as it is, never in the way."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from logstore.config import MAX_LONG, LogConfig
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DamagedLog, DiskFull, LogDirOffline
from logstore.format.batch import walk
from logstore.format.crc import crc32c
from logstore.log.append import append_as_follower
from logstore.log.log import Log
from logstore.log.losses import (
    KEPT_MS,
    READ_BYTES,
    Loss,
    Piece,
    Quarantine,
    Standing,
    encode_line,
    parse_ledger,
    parse_line,
    survey,
)
from logstore.log.manager import LogManager
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.undo import put_back
from logstore.log.upkeep import expire_losses
from logstore.segment.indexes import OffsetIndex
from logstore.segment.segment import file_name
from logstore.segment.segments import end_offset_of
from logstore.testing.disks import FaultyDisk, MemoryDisk, Profile, RecordingDisk
from logstore.testing.disks.faulty import Fault
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
from tests.logstore.logs import opened as loaded_from

NOW_MS = 1_700_000_000_000
LEDGER = f"{DIRECTORY}/lost/ledger.jsonl"
SMALL = LogConfig(segment_bytes=300, index_interval_bytes=60, segment_index_bytes=240)


def opened(disk: Disk, *, now_ms: int = NOW_MS, config: LogConfig = SMALL) -> Log:
    return Log.open(DIRECTORY, config, disk=disk, clock=lambda: now_ms)


def filled(disk: Disk, batches: int = 8) -> Log:
    """Batches of two records each, three a segment."""
    log = opened(disk)
    for number in range(batches):
        append_as_follower(
            log.partition, batch(2 * number, (number, number + 1), epoch=number // 3), leader_epoch=9
        )
    log.flush()
    return log


def bytes_of(log: Log) -> bytes:
    return b"".join(bytes(each.buffer) for each in log.read_batches())


def quarantined(disk: MemoryDisk, loss: Loss) -> dict[str, bytes]:
    prefix = f"{DIRECTORY}/lost/{loss.id}/"
    return {path.removeprefix(prefix): data for path, data in disk.files().items() if path.startswith(prefix)}


def a_loss(**changes: object) -> Loss:
    facts: dict[str, object] = {
        "id": 3, "at_ms": NOW_MS, "who": "truncation", "why": "for a test", "first_offset": 4,
        "last_offset": 9, "end_offset": 4, "records": 6, "batches": None, "size": 300, "epochs": (0, 2),
        "pieces": (Piece(log_file(0), 20, 80, 7), Piece(log_file(6), 0, 220, None)),
    }  # fmt: skip
    return Loss(**(facts | changes))  # type: ignore[arg-type]


# --- what is entered --------------------------------------------------------------------------------


class TestATruncation:
    def test_keeps_what_it_cuts(self) -> None:
        """The cut end as a copy, later segments as they were; the entry says all that one may ask."""
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk)
        bases = [segment.base_offset for segment in log.partition.segments]
        assert bases == [0, 6, 12], "or the cut is not where it should be: inside the first one"
        all_bytes = bytes_of(log)
        log.truncate_to(4, why="a leader said so")
        (loss,) = log.losses()
        assert (loss.id, loss.who, loss.why, loss.at_ms) == (1, "truncation", "a leader said so", NOW_MS)
        assert (loss.first_offset, loss.last_offset, loss.end_offset, loss.records) == (4, 15, 4, 12)
        assert loss.epochs == (0, 2)
        assert loss.below_high_watermark
        assert loss.below_recovery_point
        assert loss.standing is Standing.QUARANTINED
        kept = quarantined(disk, loss)
        assert list(kept) == [log_file(0), log_file(6), log_file(12)]
        assert [piece.crc is None for piece in loss.pieces] == [False, True, True]
        assert bytes_of(log) + b"".join(kept[name] for name in sorted(kept)) == all_bytes
        assert loss.size == sum(map(len, kept.values()))

    def test_inside_one_segment_counts_batches(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk, 2)
        log.truncate_to(2)
        (loss,) = log.losses()
        assert (loss.records, loss.batches, [piece.file for piece in loss.pieces]) == (2, 1, [log_file(0)])

    def test_of_nothing_is_no_loss(self) -> None:
        """Past the end, and of a gap without a byte in it: there is no ledger afterwards."""
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk, 2)
        assert not log.truncate_to(4)
        assert not log.truncate_to(9)
        assert log.losses() == []
        assert not any("/lost" in path for path in disk.files())

    def test_ids_rise(self) -> None:
        log = filled(MemoryDisk(directories=["/data"]))
        for offset in (12, 8, 2):
            log.truncate_to(offset)
        assert [(loss.id, loss.end_offset) for loss in log.losses()] == [(1, 12), (2, 8), (3, 2)]

    def test_what_was_never_synced_is_durable_in_quarantine(self) -> None:
        """Else the entry would promise bytes that a power cut takes."""
        disk = MemoryDisk(directories=["/data"])
        log = opened(disk)
        for number in range(6):
            append_as_follower(log.partition, batch(2 * number, (1, 2)), leader_epoch=0)
        whole = bytes_of(log)
        log.truncate_to(2)
        (loss,) = log.losses()
        kept = quarantined(disk.durable_image(), loss)
        assert bytes_of(log) + b"".join(kept[name] for name in sorted(kept)) == whole


class TestARestart:
    def test_above_the_end_is_noted_only(self) -> None:
        """The leader has deleted what lies below: a replica far behind must not fill its disk with it."""
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk)
        size = log.size
        truncate_fully_and_start_at(log.partition, 40, why="the leader starts there")
        (loss,) = log.losses()
        assert (loss.who, loss.standing, loss.pieces) == ("restart", Standing.NOTED, ())
        assert (loss.first_offset, loss.last_offset, loss.records, loss.size) == (0, 15, 16, size)
        assert "below 40" in loss.not_kept

    def test_below_the_end_keeps_the_segments_that_reach_past_it(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk)
        truncate_fully_and_start_at(log.partition, 7)
        (loss,) = log.losses()
        assert sorted(quarantined(disk, loss)) == [log_file(6), log_file(12)]
        assert loss.standing is Standing.QUARANTINED

    def test_of_an_empty_log_is_no_loss(self) -> None:
        log = opened(MemoryDisk(directories=["/data"]))
        truncate_fully_and_start_at(log.partition, 7)
        assert log.losses() == []


class TestRecovery:
    def test_a_torn_tail(self) -> None:
        """Half a batch is of no use to the log, and all that is left of somebody's record."""
        disk = disk_with({log_file(0): BATCH_0 + BATCH_3[:-3]})
        loaded = loaded_from(disk)
        (loss,) = loaded.quarantine.losses()
        assert quarantined(disk, loss) == {log_file(0): BATCH_3[:-3]}
        assert (loss.who, loss.batches, loss.records, loss.end_offset) == ("recovery", 0, 0, 3)
        assert [cut.loss_id for cut in loaded.report.cuts] == [1]

    def test_sound_batches_behind_the_fault_are_counted(self) -> None:
        broken = bytearray(BATCH_3)
        broken[-1] ^= 1
        disk = disk_with({log_file(0): BATCH_0 + bytes(broken) + BATCH_5})
        (loss,) = loaded_from(disk).quarantine.losses()
        assert (loss.first_offset, loss.last_offset, loss.batches, loss.records) == (5, 6, 1, 2)
        assert loss.epochs == (1, 1)
        assert quarantined(disk, loss) == {log_file(0): bytes(broken) + BATCH_5}

    def test_zeros_are_noted_only(self) -> None:
        """Preallocated, never written: up to a gigabyte of nothing."""
        disk = disk_with({log_file(0): BATCH_0 + bytes(5000)})
        (loss,) = loaded_from(disk).quarantine.losses()
        assert (loss.standing, loss.size, loss.not_kept) == (Standing.NOTED, 5000, "nothing but zeros")

    def test_segments_behind_a_cut_go_before_it_is_made(self) -> None:
        """Newest first; a crash in between must not leave a hole, because recovery keeps holes."""
        disk = disk_with({log_file(0): BATCH_0 + b"torn", log_file(3): BATCH_3, log_file(5): BATCH_5})
        calls: list[tuple[str, str]] = []
        loaded = loaded_from(_Watched(disk, calls))
        moved = [path for name, path in calls if name == "rename" and path.endswith(".log")]
        assert moved == [f"{DIRECTORY}/{log_file(5)}", f"{DIRECTORY}/{log_file(3)}"]
        cut = calls.index(("truncate", f"{DIRECTORY}/{log_file(0)}"))
        assert cut > calls.index(("rename", moved[-1]))
        (loss,) = loaded.quarantine.losses()
        assert quarantined(disk, loss) == {log_file(0): b"torn", log_file(3): BATCH_3, log_file(5): BATCH_5}
        assert (loss.first_offset, loss.last_offset, loss.records) == (3, 6, 4)

    def test_an_overlapping_segment(self) -> None:
        disk = disk_with({log_file(0): BATCH_0 + BATCH_3, log_file(4): batch(4, (1,))})
        (loss,) = loaded_from(disk).quarantine.losses()
        assert quarantined(disk, loss) == {log_file(4): batch(4, (1,))}
        assert (loss.first_offset, loss.end_offset) == (4, 5)

    def test_a_log_that_ends_below_its_start(self) -> None:
        """All of it was deleted, says a checkpoint; if it was another log's, nothing is lost."""
        disk = disk_with({log_file(0): BATCH_0})
        loaded = loaded_from(disk, start=100)
        assert (loaded.log_start_offset, loaded.log_end_offset) == (100, 100)
        (loss,) = loaded.quarantine.losses()
        assert quarantined(disk, loss) == {log_file(0): BATCH_0}

    def test_a_second_opening_cuts_nothing(self) -> None:
        disk = disk_with({log_file(0): BATCH_0 + b"torn"})
        loaded_from(disk)
        again = loaded_from(disk)
        assert again.report.cuts == []
        assert len(again.quarantine.losses()) == 1


class _Watched(FaultyDisk):
    """Notes every call."""

    def __init__(self, inner: Disk, calls: list[tuple[str, str]]) -> None:
        super().__init__(inner)
        self._calls = calls

    def check(self, operation: str, path: str) -> Fault | None:
        self._calls.append((operation, path))
        return super().check(operation, path)


# --- a disk that has no room, or is bad ---------------------------------------------------------------


class TestNoRoom:
    @pytest.mark.parametrize("room", [0, 10, 500, 600])
    def test_a_truncation_is_refused_before_anything_changes(self, room: int) -> None:
        """Neither for the entry nor for the copy; and it works once there is room."""
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk, 3)
        before = disk.files()
        disk.capacity = disk._used + room
        with pytest.raises(DiskFull):
            log.truncate_to(0)
        after = {path: data for path, data in disk.files().items() if data or path in before}
        assert after == before, "the refused entry is taken back"
        assert log.log_end_offset == 6
        disk.capacity = None
        assert log.truncate_to(0)
        assert [loss.standing for loss in log.losses()] == [Standing.QUARANTINED]

    def test_segments_need_room_for_their_entry_only(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk)
        first = log.partition.segments[0]
        disk.capacity = disk._used + 2000
        log.truncate_to(end_offset_of(first))
        assert log.losses()[0].standing is Standing.QUARANTINED

    @pytest.mark.parametrize(("suffix", "noted"), [("", False), (".log", True)])
    def test_a_torn_tail_is_cut_all_the_same(self, suffix: str, noted: bool) -> None:
        """An unclean restart on a full disk has to be possible; the report says what is not kept."""
        torn = batch(3, range(40))[:-1]
        disk = full_for_losses(MemoryDisk({f"{DIRECTORY}/{log_file(0)}": BATCH_0 + torn}), suffix)
        loaded = loaded_from(disk)
        assert loaded.log_end_offset == 3
        losses = loaded.quarantine.losses()
        assert [loss.not_kept for loss in losses] == (["no room"] if noted else [])
        assert len(loaded.report.unrecorded) == (0 if noted else 1)

    def test_sound_batches_are_not_cut_without_being_kept(self) -> None:
        broken = bytearray(BATCH_3)
        broken[-1] ^= 1
        data = BATCH_0 + bytes(broken) + BATCH_5
        disk = MemoryDisk({f"{DIRECTORY}/{log_file(0)}": data})
        with pytest.raises(DiskFull, match="2 records from offset 5"):
            loaded_from(full_for_losses(disk))
        assert content_of(disk, log_file(0)) == data
        assert loaded_from(disk).log_end_offset == 3

    def test_a_partition_without_room_leaves_the_others_alone(self) -> None:
        """Under a manager the dir stays online: one partition waits for room."""
        broken = bytearray(BATCH_3)
        broken[-1] ^= 1
        disk = MemoryDisk(
            {
                f"{DIRECTORY}/{log_file(0)}": BATCH_0 + bytes(broken) + BATCH_5,
                f"/data/orders-1/{log_file(0)}": BATCH_0,
            }
        )
        manager = managed(full_for_losses(disk))
        assert list(manager.logs()) == [TopicPartition("orders", 1)]
        assert "no room" in str(manager.damaged[TopicPartition("orders", 0)])


def full_for_losses(inner: Disk, suffix: str = "") -> FaultyDisk:
    """No room in quarantine for files that end with `suffix`."""
    fault = Fault(
        operation="pwrite",
        path=lambda path: "/lost/" in path and path.endswith(suffix),
        errno=errno.ENOSPC,
        forever=True,
    )
    return FaultyDisk(inner, [fault])


@pytest.mark.parametrize("operation", ["pwrite", "sync", "sync_dir", "make_dir", "open", "pread"])
def test_a_bad_disk_under_the_quarantine(operation: str) -> None:
    """The log goes offline with all it has, like under any other failing write."""
    memory = MemoryDisk(directories=["/data"])
    disk = FaultyDisk(memory)
    log = filled(disk, 3)
    whole = bytes_of(log)
    everywhere = operation == "pread"  # of what is about to be copied
    disk.inject(Fault(operation=operation, path=lambda path: everywhere or "/lost" in path, forever=True))
    with pytest.raises(LogDirOffline):
        log.truncate_to(2)
    disk.heal()
    assert bytes_of(opened(memory.copy())) == whole


def managed(disk: Disk, *, now_ms: Callable[[], int] = lambda: NOW_MS) -> LogManager:
    return LogManager(["/data"], disk=disk, clock=now_ms, random=Random(1), config=SMALL)


# --- the standing, as files show it -------------------------------------------------------------------


class TestStanding:
    def test_entered_but_not_carried_out(self) -> None:
        """The stop came between the entry and the cut: the bytes are where they were."""
        disk = MemoryDisk(directories=["/data"])
        faulty = FaultyDisk(disk)
        log = filled(faulty, 3)
        log.close()
        log = opened(faulty)
        faulty.inject(Fault(operation="truncate", path=lambda path: "recovery-point" in path))
        with pytest.raises(LogDirOffline):
            log.truncate_to(2)
        again = opened(disk.durable_image())
        assert again.log_end_offset == 6
        assert [loss.standing for loss in again.losses()] == [Standing.INTENDED]

    def test_gone_from_quarantine(self) -> None:
        """Somebody removed it by hand: said, not guessed."""
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk, 3)
        log.truncate_to(2)
        disk.remove(f"{DIRECTORY}/lost/1/{log_file(0)}")
        assert log.losses()[0].standing is Standing.MISSING

    def test_expired(self) -> None:
        """After a week the bytes go, and the entry stays and says so."""
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk, 3)
        log.truncate_to(2)
        assert log.partition.quarantine.due_ms == NOW_MS + KEPT_MS
        assert expire_losses(log.partition, NOW_MS + KEPT_MS - 1) == 0
        assert expire_losses(log.partition, NOW_MS + KEPT_MS) == log.losses()[0].size
        assert [loss.standing for loss in log.losses()] == [Standing.EXPIRED]
        assert [path for path in disk.files() if "/lost/" in path] == [LEDGER]
        assert log.partition.quarantine.due_ms == MAX_LONG
        assert expire_losses(log.partition, NOW_MS + KEPT_MS) == 0

    def test_maintain_expires_after_a_restart(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk, 3)
        log.truncate_to(2)
        log.close()
        again = opened(disk, now_ms=NOW_MS + KEPT_MS)
        again.maintain()
        assert [loss.standing for loss in again.losses()] == [Standing.EXPIRED]

    def test_a_manager_expires_them_by_itself(self) -> None:
        now_ms = NOW_MS
        disk = MemoryDisk(directories=["/data"], clock=lambda: now_ms)
        manager = managed(disk, now_ms=lambda: now_ms)
        log = manager.get_or_create(TopicPartition("orders", 0))
        log.append([b"a", b"b"])
        log.truncate_to(0)
        assert [loss.id for loss in manager.losses()[TopicPartition("orders", 0)]] == [1]
        manager.tick(now_ms)
        assert manager.deadline_ms <= NOW_MS + KEPT_MS
        now_ms += KEPT_MS
        manager.tick(now_ms)
        assert log.losses()[0].standing is Standing.EXPIRED

    def test_bytes_without_a_readable_entry_go_by_their_directory(self) -> None:
        """A damaged ledger is no reason to lose the evidence early, nor to keep it for ever."""
        now_ms = NOW_MS
        disk = MemoryDisk(directories=["/data"], clock=lambda: now_ms)
        log = filled(disk, 3)
        log.truncate_to(2)
        put(disk, "ledger.jsonl", b"rubbish\n", f"{DIRECTORY}/lost")
        quarantine = Quarantine(disk, DIRECTORY)
        assert quarantine.read().unreadable == [1]
        assert quarantine.expire(NOW_MS + KEPT_MS - 1) == 0
        assert quarantine.due_ms == NOW_MS + KEPT_MS
        assert quarantine.expire(NOW_MS + KEPT_MS) > 0

    def test_an_id_is_not_given_twice(self) -> None:
        """Also if the entry that had it cannot be read any more."""
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk)
        log.truncate_to(12)
        put(disk, "ledger.jsonl", b"rubbish\n", f"{DIRECTORY}/lost")
        log.truncate_to(10)
        assert [loss.id for loss in log.losses()] == [2]


# --- the ledger's lines -------------------------------------------------------------------------------


def test_a_line_comes_back() -> None:
    loss = a_loss()
    line = encode_line(loss.facts())
    assert parse_line(line[:-1]) == loss
    assert json.loads(line)["who"] == "truncation", "any tool can read it"


def test_one_bit_is_enough() -> None:
    """Every bit of a line is under the sum, or breaks the form, or is the sum itself."""
    line = encode_line(a_loss().facts())[:-1]
    for position in range(len(line)):
        for bit in range(8):
            broken = bytearray(line)
            broken[position] ^= 1 << bit
            assert parse_line(bytes(broken)) is None, f"bit {bit} of byte {position}"


def signed(facts: object) -> bytes:
    """A line with a right sum, whatever it says."""
    body = json.dumps(facts)[:-1].encode()
    return b'%s, "crc": "%08x"}' % (body, crc32c(body))


@pytest.mark.parametrize(
    "change",
    [
        {"id": 0}, {"id": -1}, {"id": "1"}, {"id": True}, {"id": 1 << 63}, {"id": None}, {"id": 1.0},
        {"at_ms": -1}, {"who": "nobody"}, {"who": None}, {"who": []}, {"first_offset": -1}, {"bytes": -5},
        {"last_offset": -2}, {"records": "many"}, {"batches": -1}, {"epochs": [1]}, {"epochs": None},
        {"epochs": [1, 2, 3]}, {"epochs": [-2, 0]}, {"pieces": None}, {"pieces": 7}, {"pieces": [None]},
        {"pieces": [{"file": "../../etc/passwd", "from": 0, "bytes": 1, "crc": 1}]},
        {"pieces": [{"file": "00000000000000000000.log/x", "from": 0, "bytes": 1, "crc": 1}]},
        {"pieces": [{"file": log_file(0), "from": -1, "bytes": 1, "crc": 1}]},
        {"pieces": [{"file": log_file(0), "from": 0, "bytes": -1, "crc": 1}]},
        {"pieces": [{"file": log_file(0), "from": 0, "bytes": 1, "crc": -1}]},
        {"pieces": [{"file": log_file(0), "from": 0, "bytes": 1}]},
        {"mark": "unknown"}, {"mark": None}, {"mark": ["restored"]},
    ],
)  # fmt: skip
def test_a_right_sum_over_wrong_facts(change: dict[str, object]) -> None:
    """Somebody may have written the ledger by hand: no number and no name of it is believed."""
    assert parse_line(signed(a_loss().facts() | change)) is None


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"{}", b"null", b"\x00" * 100, b"\xff\xfe", b"[" * 5000, signed([]), signed({}),
     signed({"id": 1}), b'{"id": 1, "crc": "00000000"}', b'{"id": 1}'],
)  # fmt: skip
def test_no_line_at_all(line: bytes) -> None:
    assert parse_line(line) is None


LINE_1, LINE_2 = encode_line(a_loss(id=1).facts()), encode_line(a_loss(id=2).facts())
BROKEN = {
    "empty": (b"", [], []),
    "torn last line": (LINE_1 + LINE_2[:-20], [1], []),
    "last line without its end": (LINE_1 + LINE_2[:-1], [1], []),
    "zeros behind": (LINE_1 + bytes(300), [1], []),
    "damaged in the middle": (LINE_1 + b"x" + LINE_2 + encode_line(a_loss(id=3).facts()), [1, 3], [2]),
    "blank lines": (b"\n" + LINE_1 + b"\n", [1], [1, 3]),
    "only rubbish": (b"rub\nbish\n", [], [1, 2]),
    "the same id twice": (LINE_1 + encode_line(a_loss(id=1, why="again").facts()), [1], []),
    "a mark of nothing": (encode_line({"id": 9, "at_ms": 1, "mark": "purged"}), [], []),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_ledger(name: str) -> None:
    """It is read as far as it can be, and the next entry follows what was whole in it."""
    data, ids, unreadable = BROKEN[name]
    text = parse_ledger(data)
    assert (sorted(text.losses), text.unreadable) == (ids, unreadable)
    disk = MemoryDisk(directories=["/data"])
    log = filled(disk, 3)
    disk.make_dir(f"{DIRECTORY}/lost")
    put(disk, "ledger.jsonl", data, f"{DIRECTORY}/lost")
    log.losses()
    log.truncate_to(2)
    new = log.losses()[-1]
    assert new.standing is Standing.QUARANTINED
    assert new.id == max(ids, default=0) + 1
    assert [loss.id for loss in log.losses()] == [*ids, new.id]


def test_a_ledger_of_any_size_is_read_from_its_end() -> None:
    """What is read has a bound, and the first line of it may be half of one."""
    count = READ_BYTES // len(LINE_1) + 10
    data = b"".join(encode_line(a_loss(id=number).facts()) for number in range(1, count + 1))
    assert len(data) > READ_BYTES
    disk = disk_with({})
    disk.make_dir(f"{DIRECTORY}/lost")
    put(disk, "ledger.jsonl", data, f"{DIRECTORY}/lost")
    quarantine = Quarantine(disk, DIRECTORY)
    text = quarantine.read()
    assert text.skipped_bytes == len(data) - READ_BYTES
    assert text.unreadable == []
    assert max(text.losses) == count
    assert 1 not in text.losses
    assert quarantine.enter(a_loss(id=0, pieces=())).id == count + 1


def test_rubbish_longer_than_what_is_read_does_not_swallow_the_next_entry() -> None:
    disk = disk_with({})
    disk.make_dir(f"{DIRECTORY}/lost")
    put(disk, "ledger.jsonl", b"x" * (READ_BYTES + 100), f"{DIRECTORY}/lost")
    quarantine = Quarantine(disk, DIRECTORY)
    quarantine.enter(a_loss(pieces=()))
    assert len(quarantine.losses()) == 1


# --- counting -----------------------------------------------------------------------------------------


def test_a_survey_finds_what_is_sound_between_what_is_not() -> None:
    data = b"junk" + BATCH_5 + BATCH_0 + b"more junk" + BATCH_3 + BATCH_3[:20]
    disk = disk_with({"x": data})
    file = disk.open(f"{DIRECTORY}/x")
    found = survey(file, 0, len(data))
    batches = [each for part in (BATCH_5, BATCH_0, BATCH_3) for each in walk(part)]
    assert (found.batches, found.records) == (len(batches), sum(each.record_count for each in batches))
    assert (found.first_offset, found.last_offset, found.epochs) == (0, 6, (0, 1))


class TestWithOthers:
    def test_a_preallocated_segment_that_is_moved(self) -> None:
        """Its file is longer than what it holds: that is no piece missing, and it comes back."""
        disk = MemoryDisk(directories=["/data"])
        log = opened(disk, config=replace(SMALL, preallocate=True))
        for number in range(5):
            append_as_follower(log.partition, batch(2 * number, (1, 2)), leader_epoch=0)
        whole = bytes_of(log)
        log.truncate_to(0)
        (loss,) = log.losses()
        assert loss.standing is Standing.QUARANTINED
        assert len(quarantined(disk, loss)[log_file(6)]) == SMALL.segment_bytes
        put_back(log.partition, loss.id)
        assert bytes_of(log) == whole

    def test_a_seal_stays_while_its_segment_does(self) -> None:
        """Refused for want of room: the next opening has to judge by the same seal."""
        disk = MemoryDisk(directories=["/data"])
        filled(disk)
        disk = disk.durable_image()
        file = disk.open(f"{DIRECTORY}/{log_file(0)}", write=True)
        file.pwrite(b"\xff", 100)
        disk.remove(f"{DIRECTORY}/{file_name(0, OffsetIndex.suffix)}")  # or the segment would not be read
        seals = [path for path in disk.files() if path.endswith(".seal")]
        assert seals
        with pytest.raises(DiskFull):
            Log.open(DIRECTORY, SMALL, disk=full_for_losses(disk), clock=lambda: NOW_MS, accept_loss=True)
        assert [path for path in disk.files() if path.endswith(".seal")] == seals
        with pytest.raises(DamagedLog):
            opened(disk)
        again = Log.open(DIRECTORY, SMALL, disk=disk, clock=lambda: NOW_MS, accept_loss=True)
        (loss,) = again.losses()
        assert loss.below_recovery_point
        assert loss.standing is Standing.QUARANTINED
        assert loss.records > 10


def test_a_crash_while_bytes_expire() -> None:
    """The entry says it first: bytes that are missing without a word would look like damage."""
    base = MemoryDisk(directories=["/data"])
    log = filled(base)
    log.truncate_to(4)
    log.close()
    images: list[MemoryDisk] = []
    for seed in range(4):
        random, disk = Random(seed), base.copy()

        def draw(_: object, disk: MemoryDisk = disk, random: Random = random) -> None:
            images.extend(disk.image(random, profile) for profile in Profile)

        Quarantine(RecordingDisk(disk, before=draw), DIRECTORY).expire(NOW_MS + KEPT_MS)
    assert len(images) > 30
    for number, image in enumerate(images):
        quarantine = Quarantine(image, DIRECTORY)
        (loss,) = quarantine.losses()
        assert loss.standing in (Standing.QUARANTINED, Standing.EXPIRED), f"image {number}"
        quarantine.expire(NOW_MS + KEPT_MS)
        assert [loss.standing for loss in quarantine.losses()] == [Standing.EXPIRED]
        assert [entry.name for entry in image.scan(f"{DIRECTORY}/lost")] == ["ledger.jsonl"]

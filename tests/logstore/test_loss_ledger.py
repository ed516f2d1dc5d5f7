"""The loss ledger as files show it."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from logstore.config import MAX_LONG
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DamagedLog, DiskFull, LogDirOffline
from logstore.format.batch import walk
from logstore.format.crc import crc32c
from logstore.log.append_fetched import append_as_follower
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
)
from logstore.log.tails import survey
from logstore.log.undo import put_back
from logstore.log.upkeep import expire_losses
from logstore.segment.indexes import OffsetIndex
from logstore.segment.segment import file_name
from logstore.testing.disks import FaultyDisk, MemoryDisk, Profile, RecordingDisk
from logstore.testing.disks.faulty import Fault
from tests.logstore.ledgers import (
    NOW_MS,
    SMALL,
    bytes_of,
    filled,
    full_for_losses,
    managed,
    opened,
    quarantined,
)
from tests.logstore.logs import (
    BATCH_0,
    BATCH_3,
    BATCH_5,
    DIRECTORY,
    batch,
    disk_with,
    log_file,
    put,
)

LEDGER = f"{DIRECTORY}/lost/ledger.jsonl"


def a_loss(**changes: object) -> Loss:
    facts: dict[str, object] = {
        "id": 3, "at_ms": NOW_MS, "who": "truncation", "why": "for a test", "first_offset": 4,
        "last_offset": 9, "end_offset": 4, "records": 6, "batches": None, "size": 300, "epochs": (0, 2),
        "pieces": (Piece(log_file(0), 20, 80, 7), Piece(log_file(6), 0, 220, None)),
    }  # fmt: skip
    return Loss(**(facts | changes))  # type: ignore[arg-type]


# --- what is entered --------------------------------------------------------------------------------


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

"""Mending one segment: what stays, what is asked for, what is taken, what is kept aside."""

from __future__ import annotations

import pytest

from logstore.config import LogConfig
from logstore.errors import CannotUndo, DamageKind
from logstore.log.heal import CannotMend, Found, Mended, Wanted, mend
from logstore.log.log import Log
from logstore.log.read import read_bytes
from logstore.log.truncate import truncate_to
from logstore.log.undo import put_back
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import DIRECTORY, log_file

NOW_MS = 1_700_000_000_000


def opened(*, records: int = 20) -> tuple[MemoryDisk, Log]:
    disk = MemoryDisk()
    log = Log.open(DIRECTORY, disk=disk, config=LogConfig(segment_bytes=400, segment_index_bytes=512))
    for number in range(records):
        log.append(b"value %02d" % number, timestamp_ms=NOW_MS)
    log.flush()
    return disk, log


def flip(disk: MemoryDisk, base_offset: int, position: int) -> None:
    file = disk.open(f"{DIRECTORY}/{log_file(base_offset)}", write=True)
    file.pwrite(bytes([file.pread(1, position)[0] ^ 1]), position)


def run(log: Log, source: Log, base_offset: int) -> tuple[Mended, list[Wanted]]:
    """Mend a segment with what another log holds."""
    steps, asked = mend(log.partition, base_offset, now_ms=NOW_MS), list[Wanted]()
    found: Found | None = None
    while True:
        try:
            wanted = next(steps) if found is None else steps.send(found)
        except StopIteration as stop:
            return stop.value, asked
        found = None
        if wanted is not None:
            asked.append(wanted)
            assert len(asked) < 50, "it asks for ever"
            found = Found(read_bytes(source.partition, wanted.start_offset).records, "another log")


def test_only_the_damaged_batches_are_asked_for() -> None:
    disk, log = opened()
    other = opened()[1]
    before = {path: bytes(data) for path, data in disk.files().items() if path.endswith((".log", ".seal"))}
    base, end = (log.partition.segments[slot].base_offset for slot in (1, 2))
    size = log.partition.segments[1].size // (end - base)
    flip(disk, base, size + 70)
    done, asked = run(log, other, base)
    assert asked == [Wanted(base + 1, base + 2)]
    assert (done.was_damaged, done.fetched) == (True, 1)
    assert {path: bytes(disk.files()[path]) for path in before} == before
    (loss,) = log.losses()
    assert (loss.who, loss.first_offset, loss.last_offset, loss.size) == ("heal", base + 1, base + 1, size)
    assert log.scrub().damages == ()
    with pytest.raises(CannotUndo, match="damaged bytes"):
        put_back(log.partition, loss.id)


def test_the_active_segment_is_sealed_first() -> None:
    disk, log = opened(records=3)
    other = opened(records=3)[1]
    flip(disk, 0, 70)
    done, _ = run(log, other, 0)
    assert done.was_damaged
    assert len(log.partition.segments) == 2
    assert [record.value for record in log.read()] == [b"value 00", b"value 01", b"value 02"]


def test_a_sound_segment_stays() -> None:
    disk, log = opened()
    before = disk.files()
    assert run(log, log, 0) == (Mended(False), [])
    assert disk.files().keys() == before.keys()


def test_batches_of_another_history_are_not_taken() -> None:
    """The same offsets, written in another leader epoch; and a source with a hole."""
    disk, log = opened()
    flip(disk, 0, 70)
    steps = mend(log.partition, 0, now_ms=NOW_MS)
    while (wanted := next(steps)) is None:
        pass
    records = bytearray(read_bytes(opened()[1].partition, 0).records)
    records[15] ^= 1  # the epoch, which no checksum covers
    assert steps.send(Found(bytes(records), "one")) == wanted
    behind = read_bytes(opened()[1].partition, wanted.end_offset).records
    assert steps.send(Found(behind, "one that has compacted it away")) == wanted
    assert steps.send(Found(b"", "an empty one")) == wanted
    steps.close()
    assert log.losses() == []
    assert not [path for path in disk.files() if path.endswith(".cleaned")]
    assert len(log.scrub().damages) == 1, "as it was"


def test_a_log_that_is_cut_meanwhile_is_left_alone() -> None:
    disk, log = opened()
    flip(disk, 0, 70)
    steps = mend(log.partition, 0, now_ms=NOW_MS)
    while next(steps) is None:
        pass
    truncate_to(log.partition, 6)
    with pytest.raises(CannotMend, match="meanwhile"):
        steps.send(Found(read_bytes(opened()[1].partition, 0).records, "another log"))
    assert [loss.who for loss in log.losses()] == ["truncation"]


def test_damage_below_the_log_start_is_nobodys() -> None:
    disk, log = opened()
    flip(disk, 0, 70)
    log.delete_records(2)
    assert run(log, log, 0)[0] == Mended(False)


def test_old_bytes_that_are_bad_get_no_seal() -> None:
    """A seal of them would vouch for them, and a scrub would believe it."""
    disk, log = opened(records=3)
    active = log.partition.segments.active
    active.appended_from = active.size  # as if another process had written them
    flip(disk, 0, 70)
    log.partition.roll()
    assert log.partition.segments[0].seal is None
    (damage,) = log.scrub().damages
    assert (damage.kind, damage.offset) == (DamageKind.BAD_BATCH, 0)

"""Mending one segment: what stays, what is asked for, what is taken, what is kept aside."""

from __future__ import annotations

import errno

import pytest

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT
from logstore.config import LogConfig
from logstore.errors import CannotUndo, DamageKind, DiskFull, LogDirOffline
from logstore.log.heal import CannotMend, Flush, Found, Mended, Steps, Wanted, mend
from logstore.log.log import Log
from logstore.log.losses import cuts_since
from logstore.log.read import read_bytes
from logstore.log.truncate import truncate_to
from logstore.log.undo import put_back
from logstore.segment.segment import LOG_SUFFIX, Segment
from logstore.testing.disks import MemoryDisk
from logstore.testing.disks.faulty import Fault, FaultyDisk
from tests.logstore.logs import DIRECTORY, content_of, log_file
from tests.logstore.producing import COMMIT, end, plain, produce
from tests.logstore.segments_kit import locate
from tests.logstore.transacting import stand_alone

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
        if isinstance(wanted, Flush):
            log.flush()
        elif wanted is not None:
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
    assert cuts_since(disk, DIRECTORY, 0)[0] == [], "readers in other processes go on"
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


def up_to_the_flush(log: Log, source: Log) -> Steps:
    """Mend the first segment until it waits for a flush."""
    steps: Steps = mend(log.partition, 0, now_ms=NOW_MS)
    while (wanted := next(steps)) is None:
        pass
    assert isinstance(wanted, Wanted)
    found = Found(read_bytes(source.partition, wanted.start_offset).records, "another log")
    while (waits_for := steps.send(found) if wanted else next(steps)) is None:
        wanted = None
    assert isinstance(waits_for, Flush)
    return steps


def test_the_new_segment_is_synced_by_a_flush_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker flushes in a thread, and mends in that of its event loop."""
    disk, log = opened()
    flip(disk, 0, 70)
    synced = list[str]()
    sync_log = Segment.sync_log

    def noted(segment: Segment) -> None:
        synced.append(segment.path(LOG_SUFFIX))
        sync_log(segment)

    monkeypatch.setattr(Segment, "sync_log", noted)
    steps = up_to_the_flush(log, opened()[1])
    synced.clear()
    assert isinstance(next(steps), Flush), "it goes on waiting"
    assert synced == []
    log.flush()
    log.flush()
    assert synced == [f"{DIRECTORY}/{log_file(0)}.cleaned"], "once"
    assert list(steps) == [], "it ends"
    assert len(synced) == 1
    assert [loss.who for loss in log.losses()] == ["heal"]
    log.flush()
    assert log.scrub().damages == ()


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, LogDirOffline), (errno.ENOSPC, DiskFull)])
def test_the_sync_of_the_new_segment_fails(number: int, error: type[Exception]) -> None:
    """The flush succeeds, the mending fails; a full disk leaves everything as it was."""
    inner, before = opened()
    before.close()
    disk = FaultyDisk(inner)
    flip(inner, 0, 70)
    log = Log.open(DIRECTORY, disk=disk, config=LogConfig(segment_bytes=400, segment_index_bytes=512))
    steps = up_to_the_flush(log, opened()[1])
    disk.inject(Fault(operation="sync", errno=number))
    log.flush()
    with pytest.raises(error):
        next(steps)
    assert not [path for path in inner.files() if path.endswith(".cleaned")] or error is LogDirOffline
    if error is DiskFull:
        assert run(log, opened()[1], 0)[0].was_damaged


def test_batches_of_another_history_are_not_taken() -> None:
    """The same offsets, written in another leader epoch; and a source with a hole."""
    disk, log = opened()
    flip(disk, 0, 70)
    steps = mend(log.partition, 0, now_ms=NOW_MS)
    while (wanted := next(steps)) is None:
        pass
    assert isinstance(wanted, Wanted)
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


@pytest.mark.parametrize("position", [16, 70])
def test_damage_below_the_log_start_is_left_out(position: int) -> None:
    """A read at the log start walks over it; other replicas may have nothing there any more."""
    disk, log = opened()
    flip(disk, 0, position)
    log.delete_records(2)
    assert run(log, log, 0)[0] == Mended(True, 0, 1)
    assert [record.offset for record in log.read()] == list(range(2, 20))
    (loss,) = log.losses()
    assert (loss.first_offset, loss.last_offset) == (0, 0)
    assert loss.why.endswith("below the log start, left out")
    assert log.scrub().damages == ()
    assert run(log, log, 0) == (Mended(False), []), "once"


def test_damage_in_a_segment_below_the_log_start_is_nobodys() -> None:
    disk, log = opened()
    base_offset = log.partition.segments[1].base_offset
    flip(disk, 0, 70)
    log.partition.publish_log_start(base_offset)
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


def test_producers_are_known_again_after_their_last_batch_is_back() -> None:
    """An opening goes past a bad batch: its producer would be refused, or write the batch a second time."""

    def made() -> tuple[MemoryDisk, Log]:
        disk = MemoryDisk(directories=["/data"])
        log = stand_alone(disk, segment_bytes=400, segment_index_bytes=512)
        for number in range(6):
            produce(log, 1, number, transaction=False)
        produce(log, 2, 0)
        end(log, 2, COMMIT)
        for _ in range(6):
            plain(log)
        log.flush()
        return disk, log

    disk, log = made()
    known = {each.producer_id: each.last_sequence for each in log.partition.producers()}
    holder = log.partition.segments.floor(7)
    assert holder is not None
    assert holder.seal is not None
    for position in range(70, holder.size, 60):
        flip(disk, holder.base_offset, position)
    for path in [path for path in disk.files() if path.endswith(".snapshot")]:
        disk.remove(path)
    log.partition.abandon()
    log = stand_alone(disk, segment_bytes=400, segment_index_bytes=512)
    assert [damage.file for damage in log.partition.report.met][:1] == [log_file(holder.base_offset)]
    assert log.partition.last_stable_offset < log.log_end_offset or (
        {each.producer_id: each.last_sequence for each in log.partition.producers()} != known
    )
    run(log, made()[1], holder.base_offset)
    assert {each.producer_id: each.last_sequence for each in log.partition.producers()} == known
    assert log.partition.last_stable_offset == log.log_end_offset


# --- wrong epochs -----------------------------------------------------------------------------------


def with_epochs(entries: list[tuple[int, int]] | None = None) -> tuple[MemoryDisk, Log]:
    """Six batches of epochs 0, 0, 1, 2, 2, 2, and an epoch file that says `entries` of them."""
    disk = MemoryDisk()
    log = Log.open(DIRECTORY, disk=disk)
    for number, epoch in enumerate([0, 0, 1, 2, 2, 2]):
        log.append(b"value %02d" % number, timestamp_ms=NOW_MS)
        flip_epoch(disk, log, number, epoch)
    log.partition.change_epochs(lambda cache: cache.correct(entries or [(0, 0), (1, 2), (2, 3)], None))
    return disk, log


def flip_epoch(disk: MemoryDisk, log: Log, offset: int, epoch: int) -> None:
    located = locate(log.partition.segments.first, offset)
    assert located is not None
    file = disk.open(f"{DIRECTORY}/{log_file(0)}", write=True)
    file.pwrite(epoch.to_bytes(4, "big"), located.position + 12)


@pytest.mark.parametrize(
    "entries",
    [
        [(0, 0), (1, 2), (2, 4)],
        [(0, 0), (1, 1), (2, 3)],
        [(0, 0), (2, 3)],
        [(0, 0), (2, 2)],
        [(0, 0), (1, 3), (2, 4)],
        [(1, 0), (2, 3)],
        [(0, 0), (1, 2), (7, 3)],
    ],
)
def test_the_same_bytes_elsewhere_prove_that_the_epoch_file_is_wrong(entries: list[tuple[int, int]]) -> None:
    disk, log = with_epochs(entries)
    before = content_of(disk, log_file(0))
    other = with_epochs()[1]
    assert log.scrub().damages
    done, _ = run(log, other, 0)
    assert not done.was_damaged
    assert {each.file for each in done.rebuilt} == {LEADER_EPOCH_CHECKPOINT}
    assert log.partition.epochs == ((0, 0), (1, 2), (2, 3))
    assert content_of(disk, LEADER_EPOCH_CHECKPOINT) == b"0\n3\n0 0\n1 2\n2 3\n"
    assert content_of(disk, log_file(0)) == before
    assert log.losses() == []
    assert log.scrub().damages == ()


def test_a_batch_whose_epoch_rotted_is_fetched_and_the_epoch_file_stands() -> None:
    disk, log = with_epochs()
    flip_epoch(disk, log, 3, 1)
    other = with_epochs()[1]
    before = content_of(other.partition.disk, log_file(0))  # type: ignore[arg-type]
    done, _ = run(log, other, 0)
    assert (done.was_damaged, done.fetched, done.rebuilt) == (True, 1, ())
    assert content_of(disk, log_file(0)) == before
    assert log.partition.epochs == ((0, 0), (1, 2), (2, 3))

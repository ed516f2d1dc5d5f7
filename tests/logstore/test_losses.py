"""What a log gives up: entered first, kept in quarantine, listed as it is, never in the way."""

from __future__ import annotations

import pytest

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DiskFull, LogDirOffline
from logstore.log.append_fetched import append_as_follower
from logstore.log.losses import Loss, Quarantine, Standing, cuts_since
from logstore.log.truncate import truncate_fully_and_start_at, truncate_to
from logstore.segment.segments import end_offset_of
from logstore.testing.disks import FaultyDisk, MemoryDisk
from logstore.testing.disks.faulty import Fault
from tests.logstore.ledgers import NOW_MS, bytes_of, filled, full_for_losses, managed, opened, quarantined
from tests.logstore.logs import (
    BATCH_0,
    BATCH_3,
    BATCH_5,
    DIRECTORY,
    batch,
    content_of,
    disk_with,
    log_file,
)
from tests.logstore.logs import opened as loaded_from


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

    def test_of_many_megabytes_keeps_every_byte(self) -> None:
        """They are copied in pieces."""
        disk = MemoryDisk(directories=["/data"])
        log = opened(disk, config=LogConfig(segment_bytes=1 << 30))
        for number in range(6):
            log.append(bytes([number]) * 900_000)
        whole = bytes_of(log)
        log.truncate_to(1)
        (loss,) = log.losses()
        assert bytes_of(log) + quarantined(disk, loss)[log_file(0)] == whole


def test_a_cut_is_noted_on_a_disk_that_has_become_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line has left room for the second one; without it the log went offline in mid-cut."""
    disk = MemoryDisk(directories=["/data"])
    log = filled(disk)
    note_done = Quarantine.note_done

    def note_without_room(quarantine: Quarantine, loss: Loss, now_ms: int) -> None:
        disk.capacity = 0
        note_done(quarantine, loss, now_ms)
        disk.capacity = None

    monkeypatch.setattr(Quarantine, "note_done", note_without_room)
    for count, offset in enumerate((8, 6), 1):
        truncate_to(log.partition, offset)
        cuts, _ = cuts_since(disk, DIRECTORY, 0)
        assert cuts == [8, 8, 6, 6][: 2 * count]
    assert [loss.first_offset for loss in log.losses()] == [8, 6]


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
                "/data/recovery-point-offset-checkpoint": b"0\n0\n",
            }
        )
        manager = managed(full_for_losses(disk))
        assert list(manager.logs()) == [TopicPartition("orders", 1)]
        assert "no room" in str(manager.damaged[TopicPartition("orders", 0)])


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

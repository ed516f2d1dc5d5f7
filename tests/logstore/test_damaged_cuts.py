"""A cut where bytes are damaged: what is sound below it stays, and the rest is as after any cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.upkeep import advance_log_start_offset
from logstore.segment.segment import file_name
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import DIRECTORY
from tests.logstore.plain_logs import NOW_MS, SIZE, filled, new_disk, one, opened, produce, transactions
from tests.logstore.test_heal import run

COUNT = 12
LOG_PATH = f"{DIRECTORY}/{file_name(0, '.log')}"
EPOCH_STARTS = (0, 5)
"""The log has epoch 0 up to offset 4, then epoch 1."""


def two_epochs(disk: MemoryDisk, **settings: int) -> Log:
    log = opened(disk, **settings)
    for offset in range(COUNT):
        epoch = int(offset >= EPOCH_STARTS[1])
        append_as_leader(log.partition, one(time=1000 + offset), leader_epoch=epoch, now_ms=NOW_MS)
    log.flush()
    return log


def overwrite(disk: MemoryDisk, base_offset: int, position: int, data: bytes) -> None:
    file = disk.open(f"{DIRECTORY}/{file_name(base_offset, '.log')}", write=True)
    file.pwrite(data, position)
    file.sync()
    file.close()


def flip(disk: MemoryDisk, base_offset: int, position: int) -> None:
    content = disk.files()[f"{DIRECTORY}/{file_name(base_offset, '.log')}"]
    overwrite(disk, base_offset, position, bytes([content[position] ^ 0x10]))


def sound(log: Log) -> list[int]:
    """The offsets that no damage covers; every record of a sound log is compared with what was written."""
    damages = log.scrub().damages
    if not damages:
        for record in log.read():
            assert record.timestamp_ms == 1000 + record.offset, "a record in another one's place"
    bad = {offset for each in damages for offset in range(each.offset, each.end_offset)}
    return [offset for offset in range(log.log_end_offset) if offset not in bad]


DAMAGES: dict[str, tuple[range, Callable[[MemoryDisk], None]]] = {
    "a record": (range(4, 5), lambda disk: flip(disk, 0, 4 * SIZE + 65)),
    "an offset that leaps": (range(4, 5), lambda disk: flip(disk, 0, 4 * SIZE + 6)),
    "an offset that goes back": (range(4, 5), lambda disk: overwrite(disk, 0, 4 * SIZE, bytes(8))),
    "a length": (range(4, 5), lambda disk: flip(disk, 0, 4 * SIZE + 9)),
    "an epoch": (range(4, 5), lambda disk: flip(disk, 0, 4 * SIZE + 14)),
    "a block of zeros": (range(3, 7), lambda disk: overwrite(disk, 0, 3 * SIZE + 8, bytes(3 * SIZE))),
    "a block of another place": (
        range(3, 7),
        lambda disk: overwrite(disk, 0, 3 * SIZE + 8, bytes(disk.files()[LOG_PATH][: 3 * SIZE])),
    ),
    "the first block": (range(4), lambda disk: overwrite(disk, 0, 0, b"x" * (3 * SIZE + 1))),
    "the last block": (range(8, 12), lambda disk: overwrite(disk, 0, 8 * SIZE, b"x" * (4 * SIZE))),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_nothing_below_the_cut_goes_and_the_damage_is_mended(how: str) -> None:
    """For a cut at every offset, in the epochs of two leaders."""
    bad, spoil = DAMAGES[how]
    for offset in range(1, COUNT):
        disk = new_disk()
        log = two_epochs(disk)
        spoil(disk)
        assert log.truncate_to(offset), offset
        assert log.log_end_offset == offset
        below = [(bad.start, min(bad.stop, offset))] if bad.start < offset else []
        assert [(each.offset, each.end_offset) for each in log.partition.met] == below
        kept = sum(loss.records for loss in log.losses())
        assert kept >= len([each for each in range(offset, COUNT) if each not in bad]), offset

        log.append_batches(one(time=1000 + offset))
        log.flush()
        assert sound(log) == [each for each in range(offset + 1) if each not in bad or each == offset], offset
        for base_offset in {int(each.file[:20]) for each in log.partition.met}:
            assert run(log, two_epochs(new_disk()), base_offset)[0].was_damaged
        assert sound(log) == list(range(offset + 1)), offset
        log.close()
        with opened(disk) as again:
            assert sound(again) == list(range(offset + 1)), offset


def test_damage_in_front_of_a_cut_is_there_after_a_restart() -> None:
    """Whether the stop was orderly or not: no opening takes it for the end of the log."""
    for is_clean in (True, False):
        disk = new_disk()
        log = two_epochs(disk)
        overwrite(disk, 0, 3 * SIZE + 8, bytes(3 * SIZE))
        log.truncate_to(5)
        if is_clean:
            log.close()
        with opened(disk if is_clean else disk.durable_image()) as again:
            assert again.log_end_offset == 5
            assert sound(again) == [0, 1, 2]


def test_a_cut_into_a_sealed_segment() -> None:
    disk = new_disk()
    log = two_epochs(disk, segment_bytes=8 * SIZE)
    overwrite(disk, 0, 3 * SIZE + 8, bytes(3 * SIZE))
    assert log.truncate_to(5)
    assert [segment.base_offset for segment in log.partition.segments] == [0, 5]
    assert sound(log) == [0, 1, 2]
    assert not log.partition.segments.first.seal, "nothing vouches for bad bytes"
    run(log, two_epochs(new_disk()), 0)
    assert sound(log) == [0, 1, 2, 3, 4]


def test_an_index_of_aborted_transactions_that_rotted_is_rebuilt_before_the_cut() -> None:
    disk = new_disk()
    log = opened(disk)
    before = transactions(log)
    log.partition.roll()
    log.append(b"behind it")
    path = f"{DIRECTORY}/{file_name(0, '.txnindex')}"
    file = disk.open(path, write=True)
    file.pwrite(b"\xff\xff", 0)
    file.close()
    log.partition.segments.first.aborts._index = None  # as after a restart
    assert log.truncate_to(8)
    assert [damage.file for damage in log.partition.rebuilt] == [file_name(0, ".txnindex")]
    assert list(log.partition.segments.first.aborts.index.entries) == before[:1]


def test_producers_of_damaged_batches_are_known_again_once_it_is_mended() -> None:
    def produced(disk: MemoryDisk) -> Log:
        log = opened(disk)
        for sequence in range(6):
            produce(log, 7, sequence)
        log.flush()
        return log

    disk = new_disk()
    log = produced(disk)
    size = log.size // 6
    overwrite(disk, 0, 2 * size + 8, bytes(3 * size))
    assert log.truncate_to(4)
    run(log, produced(new_disk()), 0)
    assert produce(log, 7, 3).first_offset == 3, "a batch that is sent again is known"
    assert produce(log, 7, 4).first_offset == 4


def test_the_newest_epoch_below_the_log_start_is_that_of_a_sound_batch() -> None:
    """Damage right below the log start, to which all that follows is cut."""
    disk = new_disk()
    log = filled(6, disk)
    advance_log_start_offset(log.partition, 4)
    overwrite(disk, 0, 3 * SIZE, bytes(SIZE))
    log.truncate_to(4)
    assert log.partition.latest_epoch == 0
    assert (log.log_start_offset, log.log_end_offset) == (4, 4)

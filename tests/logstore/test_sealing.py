"""What a seal needs is read while the segment grows: a roll reads only the end of the file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logstore.config import LogConfig
from logstore.disk.files import read_small_file
from logstore.disk.memory import MemoryDisk
from logstore.errors import DamageKind
from logstore.log.log import Log
from logstore.log.truncate import truncate_to
from logstore.segment.seal import BLOCK_BYTES, SEAL_SUFFIX, decode_seal, make_seal
from logstore.testing.disks.recording import Operation, RecordingDisk
from tests.logstore.logs import DIRECTORY, log_file

VALUE = bytes(range(256)) * 400
"""A bit less than a tenth of a block."""


def opened(disk: MemoryDisk | RecordingDisk, *, preallocate: bool = False) -> Log:
    return Log.open(
        DIRECTORY, LogConfig(segment_bytes=1 << 24, preallocate=preallocate), disk=disk, clock=lambda: 1000
    )


def appended(log: Log, number: int) -> None:
    for _ in range(number):
        log.append(VALUE)


def flip(disk: MemoryDisk, position: int) -> None:
    file = disk.open(f"{DIRECTORY}/{log_file(0)}", write=True)
    file.pwrite(bytes([file.pread(1, position)[0] ^ 1]), position)


def is_sealed_as_it_is(disk: MemoryDisk, log: Log) -> bool:
    """Whether the seal of the first segment is the one that a reading of the whole file gives."""
    data = read_small_file(disk, log.partition.segments[0].path(SEAL_SUFFIX))
    assert data is not None
    seal = decode_seal(data, base_offset=0)
    fresh = make_seal(
        disk.open(f"{DIRECTORY}/{log_file(0)}"),
        seal.size,
        base_offset=0,
        end_offset=seal.end_offset,
        successor=seal.successor,
    )
    return seal.blocks == fresh.blocks


@pytest.mark.parametrize("preallocate", [False, True])
def test_a_roll_reads_what_was_appended_since_the_last_flush(preallocate: bool) -> None:
    memory = MemoryDisk(directories=["/data"])
    disk = RecordingDisk(memory, reads=True)
    log = opened(disk, preallocate=preallocate)
    appended(log, 55)
    log.flush()
    appended(log, 2)
    disk.operations.clear()
    log.partition.roll()
    read = [each for each in disk.operations if each.name == "pread" and each.path.endswith(log_file(0))]
    assert sum(each.length for each in read) < BLOCK_BYTES + 2 * len(VALUE)
    assert min(each.offset for each in read) == 5 * BLOCK_BYTES
    assert is_sealed_as_it_is(memory, log)


def test_the_batches_of_another_process_are_checked_in_advance_too() -> None:
    memory = MemoryDisk(directories=["/data"])
    with opened(memory) as log:
        appended(log, 55)
    disk = RecordingDisk(memory, reads=True)
    log = opened(disk)
    appended(log, 1)
    log.flush()
    disk.operations.clear()
    log.partition.roll()
    read = [each for each in disk.operations if each.name == "pread" and each.path.endswith(log_file(0))]
    assert sum(each.length for each in read) < 3 * BLOCK_BYTES
    assert is_sealed_as_it_is(memory, log)


@pytest.mark.parametrize("kept", [0, 1, 20, 54])
def test_what_is_cut_is_read_again(kept: int) -> None:
    memory = MemoryDisk(directories=["/data"])
    log = opened(memory)
    appended(log, 55)
    log.flush()
    truncate_to(log.partition, kept)
    for number in range(60):
        log.append(VALUE[::-1] + b"%d" % number)
    log.flush()
    log.partition.roll()
    assert is_sealed_as_it_is(memory, log)


@pytest.mark.parametrize("kept", [5, 25])
def test_a_cut_while_another_thread_prepares(kept: int) -> None:
    """It has read a block of the bytes before; a seal of them would call the new ones damaged."""
    memory = MemoryDisk(directories=["/data"])
    watched: list[Callable[[Operation], None]] = [lambda _: None]
    disk = RecordingDisk(memory, before=lambda each: watched[-1](each), reads=True)
    log = opened(disk)
    appended(log, 55)
    cuts: list[int] = []

    def cut(operation: Operation) -> None:
        if operation.name == "pread" and operation.offset == 2 * BLOCK_BYTES and not cuts:
            cuts.append(operation.offset)
            truncate_to(log.partition, kept)
            for number in range(60):
                log.append(VALUE[::-1] + b"%d" % number)

    log.partition.sync_segments(log.log_end_offset)
    watched.append(cut)
    log.partition.segments.active.sealing.prepare()
    assert cuts
    log.flush()
    log.partition.roll()
    assert is_sealed_as_it_is(memory, log)


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("position", [70, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 17])
def test_a_bit_that_flips_behind_the_preparation_is_no_secret(position: int, is_old: bool) -> None:
    memory = MemoryDisk(directories=["/data"])
    log = opened(memory)
    appended(log, 35)
    if is_old:
        log.close()
        log = opened(memory)
        appended(log, 1)
    log.flush()
    flip(memory, position)
    log.partition.roll()
    (damage,) = log.scrub().damages
    assert damage.kind in (DamageKind.BAD_BATCH, DamageKind.CHANGED)

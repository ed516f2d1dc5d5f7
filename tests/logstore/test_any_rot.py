"""Any rot of any segment under an open log: nothing wrong is served, and callers know every answer.

A log of several segments, a bit or a stretch of one of its files changed, then reads from random offsets, a
search by time, a scrub and an append. Each gives what was written, or an error of the engine's.
"""

from __future__ import annotations

from random import Random

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import EngineError
from logstore.errors import DamagedLog
from logstore.format.batch import HEADER_BYTES, encode_batch, walk
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.read import is_cold, read_bytes, read_checked
from logstore.testing.disks import MemoryDisk

DIRECTORY = "/data/t-0"


def a_log(random: Random) -> tuple[MemoryDisk, Log]:
    disk = MemoryDisk(directories=["/data"])
    config = LogConfig(
        segment_bytes=random.choice((2000, 20_000)),
        cleanup_policy=random.choice(("delete", "compact")),
        index_interval_bytes=random.choice((0, 100, 4096)),
    )
    log = Log.open(DIRECTORY, config, disk=disk, clock=lambda: 0)
    for number in range(random.randrange(5, 40)):
        rows = [
            Record(each, 1000 + number, b"k", random.randbytes(random.choice((0, 10, 300))))
            for each in range(random.randrange(1, 4))
        ]
        append_as_leader(log.partition, encode_batch(rows), leader_epoch=number // 10, now_ms=0)
    return disk, log


def spoil(random: Random, disk: MemoryDisk) -> None:
    """Change a bit, or put zeros, random bytes or other bytes of the file in the place of some."""
    paths = [path for path, data in disk.files().items() if path.endswith(".log") and data]
    file = disk.open(random.choice(paths), write=True)
    at = random.randrange(file.size())
    size = min(random.choice((16, 64, 512)), file.size() - at)
    rotten = random.choice(
        (
            bytes([file.pread(1, at)[0] ^ 1 << random.randrange(8)]),
            bytes(size),
            random.randbytes(size),
            file.pread(size, max(0, at - random.randrange(1, 600))),
        )
    )
    file.pwrite(rotten, at)


def check(random: Random) -> None:
    disk, log = a_log(random)
    written = {batch.base_offset: bytes(batch.buffer) for batch in log.read_batches()}
    end = log.log_end_offset
    spoil(random, disk)
    for _ in range(12):
        start, max_bytes = random.randrange(end), random.choice((0, 61, 200, 1000, 1 << 20))
        try:
            found = read_checked(log.partition, start, max_bytes, at_least_one=random.random() < 0.9)
        except DamagedLog:
            continue
        got = {batch.base_offset: bytes(batch.buffer) for batch in walk(bytes(found.records))}
        assert got.items() <= written.items()
        assert found.next_offset > start or not got
    for work in (
        lambda: log.offset_for_timestamp(1000 + random.randrange(40)),
        lambda: is_cold(log.partition, random.randrange(end), 1000),
        lambda: read_bytes(log.partition, random.randrange(end), 1000),
        lambda: log.scrub(),
        lambda: log.append(b"x", key=b"k"),
    ):
        try:
            work()
        except EngineError:
            pass


@pytest.mark.parametrize("seeds", [300, pytest.param(5000, marks=pytest.mark.slow)])
def test_nothing_wrong_is_served_and_nothing_breaks(seeds: int) -> None:
    for seed in range(seeds):
        try:
            check(Random(seed))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_batch_beyond_the_log_end_is_not_served() -> None:
    """No checksum covers a base offset, and compaction leaves gaps: only the log end tells."""
    check(Random(3315))


def test_a_reader_passes_over_no_record_in_a_segment_that_was_sealed_with_the_damage() -> None:
    """Any bit of the header of the second of three batches flips while they are in the active segment, and
    a roll seals it. A read at each offset returns the batch that was written there, or raises."""
    written = [encode_batch([Record(0, 1000, b"k", b"%d" % number)]) for number in range(4)]
    size = len(written[0])
    for bit in range(8 * HEADER_BYTES):
        disk = MemoryDisk(directories=["/data"])
        log = Log.open(DIRECTORY, disk=disk, clock=lambda: 0)
        for batch in written[:3]:
            append_as_leader(log.partition, batch, leader_epoch=0, now_ms=0)
        file = disk.open(f"{DIRECTORY}/{0:020d}.log", write=True)
        at = size + bit // 8
        file.pwrite(bytes([file.pread(1, at)[0] ^ 1 << bit % 8]), at)
        log.partition.roll()
        append_as_leader(log.partition, written[3], leader_epoch=0, now_ms=0)
        for offset in range(4):
            try:
                found = read_checked(log.partition, offset, 1)
            except DamagedLog:
                assert offset in (1, 2), f"bit {bit}, offset {offset}"
            else:
                first = next(walk(bytes(found.records)))
                values = [record.value for record in first.records()]
                assert (first.base_offset, values) == (offset, [b"%d" % offset]), (
                    f"bit {bit}, offset {offset}"
                )

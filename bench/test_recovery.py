"""Opening after a crash with much unflushed, beside reading and checksumming the same bytes.

Whole openings: the walk, the indexes, the producers' state, the sync of what was accepted. The crash is the
directory's files moved to another directory, as they lay in the page cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.material import fresh_log, ready_batch
from logstore.config import LogConfig
from logstore.format.crc import crc32c
from logstore.log.log import Log

GIB = 1 << 30
MIB = 1 << 20
APPENDS = 100


@pytest.mark.parametrize(("batch_bytes", "limit_s"), [(16384, 1.0), (200, 4.0)])
def test_recovery(beside: Callable[..., object], scratch: Path, batch_bytes: int, limit_s: float) -> None:
    size = 256 * MIB
    batch = ready_batch(batch_bytes)
    log = fresh_log(scratch)
    together = max(MIB // batch_bytes, 1)
    for _ in range(size // (batch_bytes * together)):
        log.append_batches(batch * together)
    size = log.size
    log.abandon()
    places = [scratch / "bench-0"]
    opened: list[Log] = []

    def crash() -> None:
        if opened:
            opened.pop().abandon()
        places.append(scratch / f"bench-{len(places)}")
        places[-1].mkdir()
        for name in os.listdir(places[-2]):
            if name.endswith((".log", "leader-epoch-checkpoint")):
                os.rename(places[-2] / name, places[-1] / name)

    def raw() -> None:
        descriptor = os.open(places[-1] / f"{0:020d}.log", os.O_RDONLY)
        while chunk := os.read(descriptor, MIB):
            crc32c(chunk)
        os.close(descriptor)

    def ours() -> None:
        opened.append(Log.open(places[-1]))
        assert opened[-1].report.scanned_bytes == size

    beside(
        raw=raw,
        ours=ours,
        before=crash,
        name=f"opening after a crash, unflushed batches of {batch_bytes} bytes",
        rival="read + CRC-32C, 1 MiB a call",
        units=size,
        unit="B/s",
        bar=f"≤ {limit_s:g} s/GiB",
        holds=lambda _ratio, rate: GIB / rate <= limit_s,
        rounds=5,
    )


def test_append_cost_is_flat(beside: Callable[..., object], scratch: Path) -> None:
    """The same appends, rolls among them, in a log of few segments and in one of very many.

    50 GB in segments of the default size are 47, of 16 MiB 3,200: the log of 64 KiB segments here has as
    many. What an append costs depends on how many segments there are, never on what they hold.
    """
    config = LogConfig(segment_bytes=1 << 16)
    values = [os.urandom(100) for _ in range(100)]
    small = fresh_log(scratch / "small", config)
    large = fresh_log(scratch / "large", config)
    while len(large.segments) < 3200:
        large.append(values)

    def appends(log: Log) -> Callable[[], None]:
        def work() -> None:
            for _ in range(APPENDS):
                log.append(values)

        return work

    beside(
        raw=appends(small),
        ours=appends(large),
        name="append 100 records of 100 bytes to a log of 3,200 segments",
        rival="to a log of a few",
        units=APPENDS * 100,
        unit="records/s",
        bar="0.9 to 1.1",
        holds=lambda ratio, _rate: 0.9 <= ratio <= 1.1,
        rounds=9,
    )
    small.abandon()
    large.abandon()

"""Open a log after a crash with much unflushed data, beside reading and checksumming the same bytes.

Complete openings: the scan, the indexes, the producer state, the sync. The crash moves the files to
another directory, as they are in the page cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.bars import Bar
from bench.material import fresh_log, read_raw, ready_batch
from logstore.config import LogConfig
from logstore.format.crc import crc32c
from logstore.log.log import Log

GIB = 1 << 30
MIB = 1 << 20
APPENDS = 100


@pytest.mark.parametrize(("batch_bytes", "limit_s"), [(16384, 1.0), (200, 2.0)])
def test_recovery(beside: Callable[..., object], scratch: Path, batch_bytes: int, limit_s: float) -> None:
    size = 256 * MIB
    batch = ready_batch(batch_bytes)
    log = fresh_log(scratch)
    together = max(MIB // batch_bytes, 1)
    for _ in range(size // (batch_bytes * together)):
        log.append_batches(batch * together)
    size = log.size
    log.partition.abandon()
    places = [scratch / "bench-0"]
    opened: list[Log] = []

    def crash() -> None:
        if opened:
            opened.pop().partition.abandon()
        places.append(scratch / f"bench-{len(places)}")
        places[-1].mkdir()
        for name in os.listdir(places[-2]):
            if name.endswith((".log", "leader-epoch-checkpoint")):
                os.rename(places[-2] / name, places[-1] / name)

    def ours() -> None:
        opened.append(Log.open(places[-1]))
        assert opened[-1].partition.report.scanned_bytes == size

    beside(
        raw=lambda: read_raw(places[-1] / f"{0:020d}.log", crc32c),
        ours=ours,
        before=crash,
        name=f"opening after a crash, unflushed batches of {batch_bytes} bytes",
        rival="read + CRC-32C, 1 MiB a call",
        units=size,
        unit="B/s",
        bar=Bar(f"≤ {limit_s:g} s/GiB", lambda _ratio, rate: GIB / rate <= limit_s),
        rounds=5,
    )


def test_append_cost_is_flat(beside: Callable[..., object], scratch: Path) -> None:
    """The same appends, including rolls, in a log of few segments and in one of very many.

    50 GB are 47 segments of the default size, or 3,200 of 16 MiB: the log of 64 KiB segments here has as
    many. The cost of an append may depend on the number of segments, never on their content.
    """
    config = LogConfig(segment_bytes=1 << 16)
    values = [os.urandom(100) for _ in range(100)]
    small = fresh_log(scratch / "small", config)
    large = fresh_log(scratch / "large", config)
    while len(large.partition.segments) < 3200:
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
        bar=Bar("0.9 to 1.1", lambda ratio, _rate: 0.9 <= ratio <= 1.1),
        rounds=9,
    )
    small.partition.abandon()
    large.partition.abandon()

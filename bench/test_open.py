"""Open a cleanly closed log of a thousand segments, beside listing its directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bench.bars import rate_bar
from bench.material import fresh_log, ready_batch
from logstore.config import LogConfig
from logstore.log.log import Log

SEGMENTS = 1000


def test_clean_open(beside: Callable[..., object], scratch: Path) -> None:
    batch = ready_batch(1024)
    config = LogConfig(segment_bytes=4096, index_interval_bytes=100)
    log = fresh_log(scratch, config)
    while len(log.partition.segments) < SEGMENTS:
        log.append_batches(batch * 3)
    log.close()

    def raw() -> None:
        for entry in os.scandir(scratch / "bench-0"):
            entry.stat()

    def ours() -> None:
        Log.open(scratch / "bench-0", config).close()

    beside(
        raw=raw,
        ours=ours,
        name="clean open and close of 1,000 segments",
        rival="scandir + stat",
        units=1,
        unit="opens/s",
        bar=rate_bar(2, "≤ 0.5 s"),
    )

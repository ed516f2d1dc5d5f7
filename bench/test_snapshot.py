"""The time of a snapshot of a large log while another thread appends to it.

GIB=10 pytest bench/test_snapshot.py -p no:xdist --benchmark-only
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from logstore.config import LogConfig
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.log import Log

GIB = float(os.environ.get("GIB", "1"))
MOST_S = 1.0
ROUNDS = 5
BATCH = encode_batch([Record(0, 1, None, bytes(16_000))]) * 64


def test_a_snapshot_during_appends(scratch: Path, benchmark: Any, figure: Any) -> None:
    """Segments of 1 GiB, the writer without pauses; each snapshot is opened and must end where it says."""
    with Log.open(scratch / "large-0", LogConfig(segment_bytes=1 << 30)) as log:
        while log.log_end_offset < GIB * (1 << 30) / 16_000:
            log.append_batches(BATCH)
        log.flush()
        is_over = threading.Event()
        appended = 0

        def write() -> None:
            nonlocal appended
            while not is_over.is_set():
                log.append_batches(BATCH)
                appended += 64

        writer = threading.Thread(target=write)
        writer.start()
        took_s, ends = [], []
        try:
            for number in range(ROUNDS):
                began_s = time.perf_counter()
                snapshot = log.snapshot(scratch / f"copy{number}-0")
                took_s.append(time.perf_counter() - began_s)
                ends.append(snapshot.log_end_offset)
        finally:
            is_over.set()
            writer.join()
    for number, end_offset in enumerate(ends):
        with Log.open(scratch / f"copy{number}-0") as copy:
            assert copy.log_end_offset == end_offset
    assert ends == sorted(ends)
    assert appended
    benchmark.pedantic(lambda: None, rounds=1)
    median_s, longest_s = statistics.median(took_s), max(took_s)
    rate = appended * 16_000 / sum(took_s) / (1 << 20)
    figure(
        f"a snapshot of {GIB:g} GiB during appends",
        f"{median_s:.3f} s, at most {longest_s:.3f} s; {rate:.0f} MiB/s appended meanwhile",
        f"≤ {MOST_S:g} s",
        longest_s <= MOST_S,
    )

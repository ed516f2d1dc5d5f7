"""Batches and directories that the benchmarks share."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from logstore.config import LogConfig
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log

T0 = 1_700_000_000_000
NEVER_OLD = LogConfig()
_noise = random.Random(1)


def ready_batch(size: int, records: int = 1) -> bytes:
    """Return a client's batch of exactly `size` bytes with incompressible values."""
    overhead = len(encode_batch(_records(records, 200))) - 200 * records
    value = (size - overhead) // records
    for attempt in range(value - 8, value + 1):
        batch = encode_batch(_records(records, attempt))
        rest = size - len(batch)
        if 0 <= rest < 64:
            rows = _records(records, attempt)
            rows[-1] = rows[-1]._replace(value=_noise.randbytes(attempt + rest))
            batch = encode_batch(rows)
            if len(batch) == size:
                return batch
    raise AssertionError(f"no batch of {size} bytes with {records} records")


def read_raw(path: Path, consume: Callable[[bytes], object], size: int = 1 << 20) -> None:
    """Read a file from start to end, `size` bytes per call, and pass each piece to `consume`."""
    descriptor = os.open(path, os.O_RDONLY)
    while chunk := os.read(descriptor, size):
        consume(chunk)
    os.close(descriptor)


def in_threads(count: int, work: Callable[[], object]) -> None:
    """Run `work` in `count` threads and wait for them."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _records(count: int, value_bytes: int) -> list[Record]:
    return [Record(offset, T0 + offset, None, _noise.randbytes(value_bytes)) for offset in range(count)]


def fresh_log(directory: Path, config: LogConfig = NEVER_OLD) -> Log:
    """An empty log in `directory`/bench-0, whatever was there before."""
    shutil.rmtree(directory / "bench-0", ignore_errors=True)
    return Log.open(directory / "bench-0", config)


def fill(log: Log, batch: bytes, count: int) -> None:
    """Append `batch` `count` times."""
    for _ in range(count):
        append_as_leader(log.partition, batch, leader_epoch=0, now_ms=T0)

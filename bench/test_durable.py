"""Durable appends: eight threads that share fsyncs, beside one thread that writes and syncs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.material import fresh_log
from logstore.log import Log


@pytest.mark.parametrize("threads", [1, 8])
def test_group_commit(beside: Callable[..., object], scratch: Path, threads: int) -> None:
    """1 KiB records with sync=True; the rival is one thread's write + fdatasync loop."""
    value = os.urandom(1000)
    each = 64
    logs: list[Log] = [fresh_log(scratch)]
    logs[0].append(value, sync=True)
    descriptor = os.open(scratch / "raw", os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def raw() -> None:
        # As many as all threads together, so that a round lasts as long as the device needs.
        for _ in range(each * threads):
            os.write(descriptor, value)
            os.fdatasync(descriptor)

    def writer() -> None:
        for _ in range(each):
            logs[0].append(value, sync=True)

    def ours() -> None:
        workers = [threading.Thread(target=writer) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    bar, least = ("≥ 4", 4.0) if threads == 8 else ("–", 0.0)
    beside(
        raw=raw,
        ours=ours,
        name=f"durable append by {threads} thread{'s' if threads > 1 else ''}",
        rival="write + fdatasync, 1 thread",
        units=each * threads,
        unit="appends/s",
        bar=bar,
        holds=lambda ratio, _rate: ratio >= least,
        rounds=21,
    )
    os.close(descriptor)
    logs[0].close()

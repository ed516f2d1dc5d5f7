"""The cost of a scrub for producers, and its rate without a limit.

pytest bench/test_scrub.py -p no:xdist --benchmark-only
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.bars import rate_bar
from logstore.broker import Broker, BrokerConfig
from logstore.broker.scrubbing import Pace, Scrubbing
from logstore.config import LogConfig
from logstore.disk.files import OsDisk
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.log import Log

DEFAULT = Pace(32 << 20, 5)
VALUES = [bytes(10_240)] * 1600
MIB = 1 << 20
ROUNDS = 21


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    config = BrokerConfig(log_dirs=(str(tmp_path / "data"),), settings={"log.scrub.interval.ms": "0"})
    with Broker(config) as broker:
        broker.create_topic("old")
        broker.create_topic("new")
        for _ in range(16):
            broker.append("old", VALUES)
        yield broker


def test_producers_beside_a_scrub(broker: Broker, benchmark: Any, figure: Any) -> None:
    """Rounds of 64 MiB, alternately without a scrub and with one that never rests, at its default rate.

    The medians of both are compared; rounds alternate, so that a noisy machine slows both. The first round
    of a scrub is not measured: it begins with a step, and its pauses come later. The processor's time is that
    of the whole process, the scrub's own included.
    """
    inner: Any = broker._inner
    runtime = inner._running.runtime

    async def begin() -> Scrubbing:
        scrubbing = Scrubbing(runtime, OsDisk(), interval_ms=1, pace=DEFAULT)
        scrubbing.start()
        return scrubbing

    def produce() -> tuple[float, float]:
        started_s, worked_s = time.perf_counter(), time.process_time()
        for _ in range(4):
            broker.append("new", VALUES)
        return time.perf_counter() - started_s, time.process_time() - worked_s

    produce()
    without, beside_it, read_bytes = list[tuple[float, float]](), list[tuple[float, float]](), 0
    for _ in range(ROUNDS):
        without.append(produce())
        scrubbing = broker._wait(begin())
        produce()
        read_bytes -= scrubbing.read_bytes
        beside_it.append(produce())
        read_bytes += scrubbing.read_bytes
        broker._wait(scrubbing.stop())
    benchmark.pedantic(produce, rounds=1)
    took_s, took_beside_s = (statistics.median(wall_s for wall_s, _ in each) for each in (without, beside_it))
    work_s, work_beside_s = (statistics.median(work_s for _, work_s in each) for each in (without, beside_it))
    rate = read_bytes / sum(wall_s for wall_s, _ in beside_it) / MIB
    speed = len(VALUES) * 4 * len(VALUES[0]) / MIB / took_s
    kept = took_s / took_beside_s
    text = f"{kept:.3f} (produce {speed:.0f} MiB/s, scrub {rate:.0f} MiB/s, load {os.getloadavg()[0]:.1f})"
    figure(
        "throughput of producers beside a scrub at its default, of that without one",
        text,
        "≥ 0.95",
        kept >= 0.95,
    )
    spent = work_beside_s / work_s
    text = f"{spent:.3f} ({1e6 * work_s / len(VALUES) / 4:.1f} µs a record of 10 KiB without it)"
    figure("processor time a record beside a scrub, of that without one", text, "≤ 1.05", spent <= 1.05)


def test_a_scrub_in_a_hurry(tmp_path: Path, beside: Any) -> None:
    """One core, from the page cache, segments with a seal, against reading the files."""
    config = LogConfig(segment_bytes=64 * MIB)
    with Log.open(tmp_path / "t-0", config) as log:
        batch = encode_batch([Record(0, 1, None, bytes(16_000))])
        for _ in range(256):
            log.append_batches(batch * 64)
        log.scrub()

        def read() -> None:
            for path in sorted((tmp_path / "t-0").glob("*.log")):
                with path.open("rb", buffering=0) as file:
                    while file.read(MIB):
                        pass

        beside(
            raw=read,
            ours=log.scrub,
            name="scrub of sealed segments",
            rival="read",
            bar=rate_bar(1 << 10, "≥ 1 GiB/s"),
            unit="MiB",
            units=log.size / MIB,
        )

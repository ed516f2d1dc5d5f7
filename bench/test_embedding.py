"""A broker in the same process: time until it is ready, and the cost of a call.

pytest bench/test_embedding.py -p no:xdist --benchmark-only
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from bench.material import in_threads
from logstore.broker import Broker, BrokerCluster

VALUE = bytes(100)
THREADS, CALLS = 16, 100


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("t")
        yield broker


def test_ready(benchmark: Any) -> None:
    """Start until ready, then stop: the cost of the fixture in a test."""

    def live() -> None:
        with Broker():
            pass

    benchmark.pedantic(live, rounds=30, warmup_rounds=2)


def test_ready_three(benchmark: Any) -> None:
    def live() -> None:
        with BrokerCluster(3):
            pass

    benchmark.pedantic(live, rounds=10, warmup_rounds=1)


def test_first_of_a_process(benchmark: Any) -> None:
    """With a new interpreter and all imports."""
    program = "from logstore.broker import Broker\nwith Broker(): pass"
    benchmark.pedantic(subprocess.run, ([sys.executable, "-c", program],), rounds=5, warmup_rounds=1)


def test_append(broker: Broker, benchmark: Any) -> None:
    """One value per call, from another thread than the broker's."""
    benchmark(broker.append, "t", VALUE)


def test_append_many(broker: Broker, benchmark: Any) -> None:
    values = [VALUE] * 10_000
    benchmark.pedantic(broker.append, ("t", values), rounds=10, warmup_rounds=1)


def test_append_from_threads(broker: Broker, benchmark: Any) -> None:
    """1,600 values one by one, from 16 threads."""

    def write() -> None:
        for _ in range(CALLS):
            broker.append("t", VALUE)

    benchmark.pedantic(in_threads, (THREADS, write), rounds=5, warmup_rounds=1)


def test_scan(broker: Broker, benchmark: Any) -> None:
    """10,000 records of 100 bytes."""
    broker.append("t", [VALUE] * 10_000)
    assert benchmark.pedantic(lambda: sum(1 for _ in broker.scan("t")), rounds=5, warmup_rounds=1) == 10_000

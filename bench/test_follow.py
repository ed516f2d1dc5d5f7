"""Following a log: from the append to the follower's hands, and what a hundred idle followers cost.

pytest bench/test_follow.py -p no:xdist -s
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from logstore import Follower, Log, LogReader, Record

APPENDS = 1000
PAUSE_S = 0.003
FOLLOWERS = 100
IDLE_S = 10
SAME_PROCESS_S, OTHER_PROCESS_S, IDLE_CORE = 0.001, 0.005, 0.002

WRITER = f"""
import sys, time
from logstore import Log
with Log.open(sys.argv[1]) as log:
    log.append(b"begin")
    for _ in range({APPENDS}):
        time.sleep({PAUSE_S})
        log.append(b"%d" % time.perf_counter_ns())
    log.append(b"end")
"""


@pytest.fixture(autouse=True)
def without_the_heap_of_the_test_runner() -> Iterator[None]:
    """A collection of what pytest has loaded takes 10 ms, and no program that follows a log would have it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def delays(records: Iterator[Record]) -> list[float]:
    """Seconds from before the append until the follower has the record, sorted."""
    found = []
    for record in records:
        now_ns = time.perf_counter_ns()
        if record.value == b"end":
            break
        if record.value != b"begin":
            found.append((now_ns - int(record.value or b"0")) / 1e9)
    return sorted(found)


def report(name: str, found: list[float], bar_s: float) -> None:
    median, p99 = found[len(found) // 2], found[len(found) * 99 // 100]
    print(f"\n{name}: {len(found)} records, median {median * 1e6:.0f} µs, p99 {p99 * 1e6:.0f} µs")
    assert p99 <= bar_s, f"{name}: p99 {p99 * 1e6:.0f} µs; the bar is {bar_s * 1e6:.0f} µs"


def test_same_process(tmp_path: Path) -> None:
    with Log.open(tmp_path / "follow-0") as log:
        found: list[float] = []
        thread = Thread(target=lambda: found.extend(delays(log.follow())))
        thread.start()
        for _ in range(APPENDS):
            time.sleep(PAUSE_S)
            log.append(b"%d" % time.perf_counter_ns())
        log.append(b"end")
        thread.join()
    report("same process", found, SAME_PROCESS_S)


def test_other_process(tmp_path: Path) -> None:
    """The monotonic clock is that of the machine, so the two processes read the same one."""
    Log.open(tmp_path / "follow-0").close()
    follower = LogReader(tmp_path / "follow-0").follow()
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "follow-0")]):
        found = delays(follower)
    report("other process", found, OTHER_PROCESS_S)


def idle(name: str, log: Log, followers: list[Follower]) -> None:
    threads = [Thread(target=next, args=(each, None)) for each in followers]
    for thread in threads:
        thread.start()
    time.sleep(1)
    began_s = time.process_time()
    time.sleep(IDLE_S)
    share = (time.process_time() - began_s) / IDLE_S
    log.append(b"one")
    for thread in threads:
        thread.join()
    print(f"\n{len(followers)} idle followers, {name}: {share:.3%} of a core")
    assert share <= IDLE_CORE


def test_idle_in_the_same_process(tmp_path: Path) -> None:
    with Log.open(tmp_path / "follow-0") as log:
        idle("log.follow", log, [log.follow() for _ in range(FOLLOWERS)])


def test_idle_on_a_directory(tmp_path: Path) -> None:
    """As in another process: the owner does nothing meanwhile."""
    with Log.open(tmp_path / "follow-0") as log:
        idle("LogReader.follow", log, [LogReader(log.partition.directory).follow() for _ in range(FOLLOWERS)])

"""A fork while threads of the parent hold locks: the child reads and closes its copy all the same."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from logstore import AsyncLog, Log, LogConfig
from logstore.disk import files

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")


def test_a_child_waits_for_no_lock_of_its_parents_threads(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0", LogConfig(segment_bytes=2_000, index_interval_bytes=100)) as log:
        for number in range(60):
            log.append(b"%d" % number)
        assert log[3].value == b"3"
        partition, held, free = log.partition, threading.Event(), threading.Event()
        assert log._lookup is not None
        locks: list[Any] = [partition.lock, partition.waiters._mutex, log._lookup._lock, files._spares._lock]
        for segment in partition.segments:
            locks += [segment.lock, segment.sealing._lock]
            locks += [index.lock for index in (segment.indexes.offsets, segment.indexes.times)]

        def hold() -> None:
            with ExitStack() as stack:
                for lock in locks:
                    stack.enter_context(lock)
                held.set()
                free.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        try:
            child = os.fork()
            if not child:
                signal.alarm(20)
                is_right = [record.value for record in log.read()] == [b"%d" % each for each in range(60)]
                is_right &= log[7].value == b"7" and log.offset_for_timestamp(0) is not None
                log.close()
                os._exit(0 if is_right else 1)
        finally:
            free.set()
            thread.join()
        assert os.waitpid(child, 0)[1] == 0
        assert log.append(b"60").first_offset == 60


def _compact(log: Log) -> None:
    log.compact()


def _cut(log: Log) -> None:
    log.truncate_to(41)


def _delete(log: Log) -> None:
    log.delete_records(50)
    log.maintain()


@pytest.mark.parametrize("change", [_compact, _cut, _delete])
@pytest.mark.parametrize("look", [lambda log: list(log.read()), lambda log: [log[n] for n in range(60)]])
def test_a_child_learns_that_its_parent_has_changed_the_log(
    tmp_path: Path, change: Callable[[Log], None], look: Callable[[Log], object]
) -> None:
    """It was told to recover a sound log, or to check a sound disk."""
    config = LogConfig(
        segment_bytes=2_000, cleanup_policy="compact,delete", file_delete_delay_ms=0, min_compaction_lag_ms=0
    )
    with Log.open(tmp_path / "orders-0", config) as log:
        for number in range(60):
            log.append(b"%d" % number, key=b"%d" % (number % 3))
        inside, outside = os.pipe()
        told, tells = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(20)
            os.read(inside, 1)
            try:
                look(log)
            except BaseException as error:
                os.write(tells, f"{type(error).__name__}: {error}".encode())
            os._exit(0)
        change(log)
        os.write(outside, b"x")
        os.close(tells)
        assert os.waitpid(child, 0)[1] == 0
        text = os.read(told, 4000).decode()
        for each in (inside, outside, told):
            os.close(each)
        assert "LogClosed: " in text
        assert "belongs to the parent process, which has changed it since the fork" in text
        assert "LogReader" in text
        assert log.append(b"61", key=b"1").last_offset == log.log_end_offset - 1


def test_a_child_has_threads_of_its_own_for_the_log_of_its_parents_tasks(tmp_path: Path) -> None:
    """Its calls, and `close`, waited for ever for the parent's threads."""
    with Log.open(tmp_path / "orders-0") as owned:
        log = AsyncLog(owned)
        owned.append(b"one")
        assert asyncio.run(log.losses()) == []
        while not log._threads._idle_semaphore._value:
            pass  # its thread ends the call
        child = os.fork()
        if not child:
            signal.alarm(5)
            is_right = asyncio.run(log.losses()) == []
            asyncio.run(log.close())
            os._exit(0 if is_right else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert asyncio.run(log.append(b"two", sync=True)).is_synced
        log._threads.shutdown()

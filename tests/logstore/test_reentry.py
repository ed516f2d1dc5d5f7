"""A signal handler that calls the log, at every moment of a call of its thread (`test_interrupts.py`)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from logstore import Log, LogClosed, Queue
from logstore.disk.memory import MemoryDisk
from tests.logstore.test_interrupts import durable, filled, is_moment, keyed, opened, plain, rolling


def handled(action: Callable[[], object], at: int, handler: Callable[[], object]) -> bool:
    """Do `action`, and `handler` at its moment number `at`; False if it has fewer."""
    moments = 0

    def profile(frame: FrameType, event: str, called: Any) -> None:
        nonlocal moments
        if is_moment(frame, event, called):
            moments += 1
            if moments == at:
                sys.setprofile(None)
                handler()

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return moments >= at


def contents(log: Log) -> dict[int, bytes | None]:
    found = {record.offset: record.value for record in log.read()}
    assert found.keys() == set(range(log.log_end_offset))
    return found


@pytest.mark.parametrize("action", [plain, keyed, durable])
def test_a_handler_appends_or_is_refused(action: Callable[[Log], None]) -> None:
    """Appended in the middle of an append, its record lay under the offset of the other one, and both were
    acknowledged."""
    refused, at, goes_on = 0, 0, True
    while goes_on:
        at += 1
        disk = MemoryDisk(directories=["/data"])
        log, known = filled(disk)

        def handler() -> None:
            nonlocal refused
            try:
                known[log.append(b"handler", key=b"h").first_offset] = b"handler"  # noqa: B023
            except RuntimeError as error:
                assert "a signal handler" in str(error)  # noqa: PT017
                refused += 1

        goes_on = handled(lambda: action(log), at, handler)  # noqa: B023
        known[log.append(b"after", key=b"a").first_offset] = b"after"
        for _ in range(2):
            found = contents(log)
            assert known.items() <= found.items(), f"moment {at}"
            assert list(found.values()).count(b"new") == 1, f"moment {at}"
            log.close()
            log = opened(disk)
        log.close()
    assert 3 < refused < at


@pytest.mark.parametrize("action", [plain, keyed, durable, rolling])
def test_what_a_handler_closes_has_all_that_was_acknowledged(action: Callable[[Log], None]) -> None:
    """An append that its handler has undone raises. In the middle of an entry of an index, `close` waited for
    itself."""
    undone, at, goes_on = 0, 0, True
    while goes_on:
        at += 1
        disk = MemoryDisk(directories=["/data"])
        log, known = filled(disk)
        values = list(known.values())
        try:
            goes_on = handled(lambda: action(log), at, log.close)  # noqa: B023
            values.append(b"new")
        except LogClosed:
            undone += 1
        except RuntimeError:  # in the middle of a call of `group_commit`
            assert action is durable
            values.append(b"new")
        log.close()
        log = opened(disk)
        found = list(contents(log).values())
        assert [value[:3] for value in found[: len(values)] if value] == [value[:3] for value in values]
        log.close()
    assert 3 < undone < at


def test_a_handler_is_refused_in_the_middle_of_a_call_of_a_queue(tmp_path: Path) -> None:
    """Its call waited for the lock of the call below it, for ever."""
    queue = Queue(tmp_path / "jobs")
    refused = threading.Event()

    def call() -> None:
        with queue._lock:
            for each in (lambda: queue.put(b"job"), lambda: queue.get(timeout=0), queue.stats, queue.close):
                with pytest.raises(RuntimeError, match="signal handler"):
                    each()
        refused.set()

    threading.Thread(target=call, daemon=True).start()
    assert refused.wait(10)
    queue.put(b"job")
    queue.close()


@pytest.mark.parametrize("lock", ["_lock", "_writing"])
def test_a_handler_is_refused_in_the_middle_of_a_call_of_a_writer(tmp_path: Path, lock: str) -> None:
    log = Log.open(tmp_path / "orders-0")
    writer = log.writer(linger_ms=3_600_000)
    pending = writer.append(b"first")
    refused = threading.Event()

    def call() -> None:
        with getattr(writer, lock), pytest.raises(RuntimeError, match="signal handler"):
            writer.flush()
        refused.set()

    threading.Thread(target=call, daemon=True).start()
    assert refused.wait(10)
    log.close()
    assert pending.written(0).first_offset == 0

"""Ctrl-C, or an exception of a signal's handler, at every moment of a change.

Python raises such an exception when a function begins, or when a call of C code has returned. The profiler is
called at these moments, and may raise, too. Between a lock's `__enter__` and the block of its `with` is no
such moment, but in Python 3.14 (CPython's issue 148874; docs/embed-a-log.md says so).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import logstore
from logstore import Log, LogConfig, LogDirOffline
from logstore.disk.files import OsDisk
from logstore.disk.memory import MemoryDisk
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.truncate import truncate_fully_and_start_at

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

DIRECTORY = "/data/orders-0"
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100, segment_index_bytes=240)
COMPACTED = replace(CONFIG, cleanup_policy="compact,delete")
_OURS = logstore.__file__.removesuffix("__init__.py")
_DISK = f"{_OURS}disk/memory"


class Interrupt(BaseException):
    """As `KeyboardInterrupt`, which would end the tests if it got out."""


def is_moment(frame: FrameType, event: str, called: Any) -> bool:
    path = frame.f_code.co_filename
    if path == threading.__file__:
        # A method of `Condition` may have taken its lock, and not returned. Starts of threads are Python's.
        return event in ("call", "c_return") and _entered(frame).co_name not in ("start", "join")
    if not path.startswith(_OURS):
        return False
    if not path.startswith(_DISK):
        # From Python 3.14 on, `with` calls `__enter__` as any other method.
        return event == "call" or (event == "c_return" and called.__name__ != "__enter__")
    # A call of the operating system has no moment inside.
    outer = frame.f_back
    return (
        event in ("call", "return") and outer is not None and not outer.f_code.co_filename.startswith(_DISK)
    )


def _entered(frame: FrameType) -> CodeType:
    """Return the function of `threading` that was called from elsewhere."""
    while (outer := frame.f_back) is not None and outer.f_code.co_filename == threading.__file__:
        frame = outer
    return frame.f_code


def interrupted(action: Callable[[], object], at: int, when: Callable[[], object] = lambda: True) -> bool:
    """Do `action`, with an interrupt at its moment number `at` of those `when`; False if it has fewer."""
    moments = 0

    def profile(frame: FrameType, event: str, called: Any) -> None:
        nonlocal moments
        if is_moment(frame, event, called) and when():
            moments += 1
            if moments == at:
                sys.setprofile(None)
                raise Interrupt

    sys.setprofile(profile)
    try:
        action()
    except Interrupt:
        pass
    finally:
        sys.setprofile(None)
    return moments >= at  # where an object ends, it is raised and goes nowhere


def opened(disk: MemoryDisk, config: LogConfig = CONFIG) -> Log:
    return Log.open(DIRECTORY, config, disk=disk, clock=lambda: 1_000)


def filled(disk: MemoryDisk, config: LogConfig = CONFIG) -> tuple[Log, dict[int, bytes]]:
    """A log of several segments, with producers, and what was acknowledged of it."""
    log, known = opened(disk, config), {}
    for number in range(12):
        value = b"%d" % number
        known[log.append(value, key=value).first_offset] = value
    for sequence in range(3):
        data = encode_batch(
            [Record(0, 1_000, b"p", b"p%d" % sequence)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
        )
        known[log.append_batches(data).first_offset] = b"p%d" % sequence
    return log, known


def plain(log: Log) -> None:
    log.append(b"new")


def keyed(log: Log) -> None:
    log.append(b"new", key=b"k")


def many(log: Log) -> None:
    log.append([(b"%d" % number, b"new") for number in range(20)])


def rolling(log: Log) -> None:
    log.append(b"new" * 140, key=b"k")


def durable(log: Log) -> None:
    log.append(b"new", key=b"k", sync=True)


def idempotent(log: Log) -> None:
    log.append_batches(
        encode_batch([Record(0, 1_000, b"k", b"new")], producer_id=7, producer_epoch=0, base_sequence=3)
    )


def flush(log: Log) -> None:
    log.flush()


def roll(log: Log) -> None:
    log.partition.roll()


APPENDS = [plain, keyed, many, rolling, durable, idempotent, flush, roll]


def goes_on(disk: MemoryDisk, log: Log, known: dict[int, bytes], where: str, *, is_repeated: bool) -> None:
    """Append to the log, and compare all that it has with what is known, also behind a restart."""
    for number in range(3):
        value = b"after %d" % number
        known[log.append(value, key=value, sync=number == 1).first_offset] = value
    repeated = encode_batch([Record(0, 1_000, b"p", b"p2")], producer_id=7, producer_epoch=0, base_sequence=2)
    if is_repeated:
        assert log.append_batches(repeated).is_duplicate
    for _ in range(2):
        found = {record.offset: record.value for record in log.read()}
        assert found.keys() == set(range(log.log_end_offset)), where
        assert all(found[offset] == value for offset, value in known.items()), where
        assert all(log[offset].value == value for offset, value in found.items()), where
        log.close()
        log = opened(disk)
    log.close()


@pytest.mark.parametrize("action", APPENDS)
def test_an_append_is_there_or_not_and_the_log_goes_on(action: Callable[[Log], None]) -> None:
    at = 0
    while True:
        at += 1
        disk = MemoryDisk(directories=["/data"])
        log, known = filled(disk)
        # Before a long append changes the log, there is nothing to undo.
        when = lambda: log.partition.changing or action is not many  # noqa: B023, E731
        was_interrupted = interrupted(lambda: action(log), at, when)  # noqa: B023
        goes_on(disk, log, known, f"moment {at}", is_repeated=action is not idempotent)
        if not was_interrupted:
            break
    assert at > 3


def deeper(levels: int, action: Callable[[], None]) -> None:
    if levels:
        deeper(levels - 1, action)
    else:
        action()


def depth() -> int:
    frame, count = sys._getframe().f_back, 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


@pytest.mark.parametrize("action", APPENDS)
def test_an_append_at_the_recursion_limit_is_there_or_not_and_the_log_goes_on(
    action: Callable[[Log], None],
) -> None:
    """Where the note of the interrupt met the limit, too, each later change was refused as a handler's."""
    left, was_refused = 0, True
    while was_refused:
        left += 1
        disk = MemoryDisk(directories=["/data"])
        log, known = filled(disk)
        known[log.append(b"short").first_offset] = b"short"  # the next one takes the short path
        was_refused = False
        try:
            deeper(sys.getrecursionlimit() - depth() - left, lambda: action(log))  # noqa: B023
        except RecursionError:
            was_refused = True
        goes_on(disk, log, known, f"{left} calls left", is_repeated=action is not idempotent)
    assert left > 3


def truncation(log: Log) -> None:
    log.truncate_to(9)


def restart(log: Log) -> None:
    truncate_fully_and_start_at(log.partition, 9)


def compaction(log: Log) -> None:
    log.partition.roll()
    log.compact()


def retention(log: Log) -> None:
    log.delete_records(9)
    log.maintain()


@pytest.mark.parametrize("action", [truncation, restart, compaction, retention])
def test_another_change_is_completed_or_takes_the_log_offline(action: Callable[[Log], None]) -> None:
    """The log then has its content from before or after the change, never a mixture that reads as sound."""
    at = 0
    while True:
        at += 1
        disk = MemoryDisk(directories=["/data"])
        log, known = filled(disk, COMPACTED)
        when = lambda: log.partition.changing or action is not compaction  # noqa: B023, E731
        was_interrupted = interrupted(lambda: action(log), at, when)  # noqa: B023
        after: dict[int, bytes] = {}
        try:
            for number in range(3):
                value = b"after %d" % number
                after[log.append(value, key=value).first_offset] = value
        except LogDirOffline as error:
            assert "was interrupted" in str(error)  # noqa: PT017
        log.close()
        log = opened(disk, COMPACTED)
        found = {record.offset: record.value for record in log.read()}
        gone = [offset for offset in known if offset not in after and found.get(offset) != known[offset]]
        match action.__name__:
            case "truncation":
                assert all(offset >= 9 for offset in gone), f"moment {at}"
            case "retention":
                assert all(offset < 9 for offset in gone), f"moment {at}"
            case "compaction":
                assert set(gone) <= {12, 13}, f"moment {at}"
        assert all(found[offset] == value for offset, value in after.items()), f"moment {at}"
        log.append(b"end", key=b"end")
        log.close()
        if not was_interrupted:
            break
    assert at > 20


@pytest.mark.parametrize("action", [plain, retention])
def test_a_log_opens_that_was_interrupted_and_closed(action: Callable[[Log], None]) -> None:
    """As `with Log.open(…)` does it on the interrupt's way out: nothing is damage that the log did itself."""
    at, was_interrupted = 0, True
    while was_interrupted:
        at += 1
        disk = MemoryDisk(directories=["/data"])
        log, known = filled(disk)
        was_interrupted = interrupted(lambda: action(log), at)  # noqa: B023
        with suppress(LogDirOffline):
            log.close()
        log = opened(disk)
        found = {record.offset: record.value for record in log.read()}
        gone = {offset for offset in known if found.get(offset) != known[offset]}
        assert gone <= set(range(9 if action is retention else 0)), f"moment {at}"
        assert found.keys() - known.keys() <= {15}, f"moment {at}"
        log.close()
    assert at > 20


def roll_and_cut(log: Log) -> Iterator[Callable[[], object]]:
    yield log.partition.roll
    yield lambda: log.truncate_to(log.log_end_offset - 1)


def delete_and_maintain(log: Log) -> Iterator[Callable[[], object]]:
    yield lambda: log.delete_records(9)
    yield log.maintain


@pytest.mark.parametrize("changes", [roll_and_cut, delete_and_maintain])
def test_a_log_opens_that_was_interrupted_changed_and_killed(
    changes: Callable[[Log], Iterator[Callable[[], object]]],
) -> None:
    """The files agree with the log, although an interrupt left the memory of them behind."""
    at, was_interrupted = 0, True
    while was_interrupted:
        at += 1
        disk = MemoryDisk(directories=["/data"])
        log, known = filled(disk)
        first, second = changes(log)
        was_interrupted = interrupted(first, at)
        with suppress(LogDirOffline):
            second()
        log.partition.abandon()
        log = opened(disk)
        found = {record.offset: record.value for record in log.read()}
        assert found.items() <= known.items(), f"moment {at}"
        log.close()
    assert at > 20


def test_an_exit_after_an_interrupted_start_of_a_writer_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread may not have started, and cannot be waited for."""
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    at, was_interrupted = 0, True
    while was_interrupted:
        at += 1
        log = opened(MemoryDisk(directories=["/data"]))
        was_interrupted = interrupted(log.writer, at)
        for close in at_exit:
            close()
        log.close()
    assert at > 5
    assert at_exit


def test_a_full_disk_is_freed_after_an_interrupted_deletion() -> None:
    """The log start is written again first, and needs the space of a producer snapshot."""
    at, was_interrupted = 0, True
    while was_interrupted:
        at += 1
        disk = MemoryDisk(directories=["/data"])
        log, _ = filled(disk)
        was_interrupted = interrupted(lambda: log.delete_records(9), at)  # noqa: B023
        disk.capacity = disk._used + 12  # less than the checkpoint of the log start
        log.maintain()
        log.partition.abandon()
    assert at > 20


def test_threads_that_wait_for_the_sync_of_an_interrupted_one_are_served() -> None:
    """Their records are durable when they return, although the leader's sync never ran."""
    for at in range(1, 200):
        disk = MemoryDisk(directories=["/data"])
        log, _ = filled(disk)
        log.flush()
        first = log.append(b"mine")
        ready, done = threading.Event(), threading.Event()

        def other() -> None:
            ready.set()  # noqa: B023
            log.append(b"other", key=b"o", sync=True)  # noqa: B023
            assert log.partition.recovery_point > first.first_offset + 1  # noqa: B023
            done.set()  # noqa: B023

        thread = threading.Thread(target=other)
        was_interrupted = interrupted(log.flush, at)
        thread.start()
        ready.wait()
        log.append(b"last", key=b"l", sync=True)
        thread.join(30)
        assert done.is_set(), f"moment {at}"
        log.close()
        if not was_interrupted:
            return
    raise AssertionError("a flush has more moments")


def test_a_writer_goes_on_after_an_interrupt() -> None:
    """The first record of a batch was taken, and its thread was not woken: later ones waited for a flush."""
    for at in range(1, 100):
        disk = MemoryDisk(directories=["/data"])
        log = opened(disk)
        writer = log.writer(linger_ms=0)
        while not writer._is_idle:
            pass
        was_interrupted = interrupted(lambda: writer.append(b"first", key=b"k"), at)  # noqa: B023
        assert writer.append(b"second").written(30).first_offset in (0, 1), f"moment {at}"
        writer.close()
        log.close()
        if not was_interrupted:
            return
    raise AssertionError("an append has more moments")


def done_by_another(action: Callable[[], object]) -> bool:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


def test_a_record_is_written_behind_an_interrupted_wait_for_it() -> None:
    """The lock of its event stayed taken: the writer's thread, and `close`, waited for it for ever."""
    for at in range(1, 200):
        log = opened(MemoryDisk(directories=["/data"]))
        writer = log.writer(linger_ms=3_600_000)
        pending = writer.append(b"first")

        def wait() -> None:
            with suppress(TimeoutError):
                pending.written(0)  # noqa: B023

        was_interrupted = interrupted(wait, at)
        assert done_by_another(writer.close), f"moment {at}"
        assert pending.written(0).last_offset == 0
        log.close()
        if not was_interrupted:
            return
    raise AssertionError("a wait has more moments")


def test_an_append_wakes_a_follower_that_was_interrupted() -> None:
    """The lock of its event stayed taken: the append waited for it for ever, with the lock of the log."""
    for at in range(1, 400):
        log = opened(MemoryDisk(directories=["/data"]))
        log.append(b"first")
        follower = log.follow(timeout=1e-9)
        was_interrupted = interrupted(lambda: list(follower), at)  # noqa: B023
        assert done_by_another(lambda: log.append(b"second")), f"moment {at}"  # noqa: B023
        follower.seek(0)
        assert [record.value for record in follower] == [b"first", b"second"], f"moment {at}"
        log.close()
        if not was_interrupted:
            return
    raise AssertionError("a follower has more moments")


def test_an_interrupt_that_keeps_a_waiter_from_being_woken() -> None:
    """Between the value of a flag and the call that wakes: the waiter slept on."""
    log = opened(MemoryDisk(directories=["/data"]))
    with log.writer(linger_ms=3_600_000) as writer:
        done = writer.append(b"first")._batch.done
        woken: list[bool] = []

        class Bell:
            def release(self) -> None:
                woken.append(done.is_set())
                if len(woken) == 1:
                    raise Interrupt

        done._bells.append(Bell())  # type: ignore[arg-type]
        with pytest.raises(Interrupt):
            writer.flush()
        assert woken == [True, True]
    log.close()


def test_a_record_is_told_of_an_interrupt_of_its_write() -> None:
    """No later call writes the batch: `written` waited for ever."""
    at, was_interrupted = 0, True
    while was_interrupted:
        at += 1
        log = opened(MemoryDisk(directories=["/data"]))
        writer = log.writer(linger_ms=3_600_000)
        pending = writer.append(b"first")
        was_interrupted = interrupted(writer.flush, at)
        writer.close()
        try:
            offset = pending.written(0).last_offset
        except InterruptedError:
            assert len(log) <= 1
        else:
            assert log[offset].value == b"first", f"moment {at}"
        log.close()
    assert at > 10


def test_a_directory_is_free_behind_an_interrupt_of_the_close() -> None:
    at, was_interrupted = 0, True
    while was_interrupted:
        at += 1
        disk = MemoryDisk(directories=["/data"])
        log, known = filled(disk)
        was_interrupted = interrupted(log.close, at)
        with suppress(LogDirOffline):  # its files are closed already: the next opening recovers it
            log.close()
        with opened(disk) as again:
            assert {record.offset: record.value for record in again.read()} == known, f"moment {at}"
    assert at > 20


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_directory_is_free_behind_an_interrupt_of_its_lock(tmp_path: Path) -> None:
    at, was_interrupted = 0, True
    while was_interrupted:
        at += 1
        was_interrupted = interrupted(lambda: OsDisk().lock(str(tmp_path)).release(), at)
        OsDisk().lock(str(tmp_path)).release()
    assert at > 10

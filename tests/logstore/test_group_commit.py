"""One sync for all who wait: nobody returns before a sync that began after they came has ended."""

from __future__ import annotations

import threading

import pytest

from logstore.group_commit import GroupCommit

LIMIT_S = 30


class Device:
    """A sync that can be held open; counts how many writes each sync could see."""

    def __init__(self) -> None:
        self.written = 0
        self.synced = 0
        self.syncs = 0
        self.at_once = 0
        self.gate = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.is_held = False
        self.failure: OSError | None = None

    def sync(self) -> None:
        self.at_once += 1
        assert self.at_once == 1, "two syncs at a time"
        seen = self.written
        self.begun.release()
        if self.is_held:
            assert self.gate.acquire(timeout=LIMIT_S)
        self.syncs += 1
        self.at_once -= 1
        if self.failure is not None:
            raise self.failure
        self.synced = max(self.synced, seen)


def started(target: object, *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def finish(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "somebody was never woken"


def test_who_comes_during_a_sync_waits_for_the_next_one() -> None:
    """The sync under way looked at the file before they wrote: it is not theirs."""
    device = Device()
    device.is_held = True
    commit = GroupCommit(device.sync)
    seen: list[int] = []
    lock = threading.Lock()
    ready = threading.Semaphore(0)

    def writer() -> None:
        with lock:
            device.written += 1
            mine = device.written
        ready.release()
        commit.join()
        assert device.synced >= mine
        with lock:
            seen.append(mine)

    first = started(writer)
    assert device.begun.acquire(timeout=LIMIT_S)
    assert ready.acquire(timeout=LIMIT_S)
    others = [started(writer) for _ in range(7)]
    for _ in others:
        assert ready.acquire(timeout=LIMIT_S)
    while len(commit._waiting) < 7:
        threading.Event().wait(0)
    device.gate.release()
    finish(first)
    assert seen == [1]
    assert device.begun.acquire(timeout=LIMIT_S)
    device.gate.release()
    finish(*others)
    assert sorted(seen) == list(range(1, 9))
    assert device.syncs == 2, "seven waiters, one sync"


def test_many_writers_share_syncs_and_none_returns_early() -> None:
    """Free running: counts prove the sharing, each writer proves its own durability."""
    device = Device()
    commit = GroupCommit(device.sync)
    lock = threading.Lock()
    each = 200

    def writer() -> None:
        for _ in range(each):
            with lock:
                device.written += 1
                mine = device.written
            commit.join()
            assert device.synced >= mine

    finish(*[started(writer) for _ in range(8)])
    assert device.written == 8 * each
    assert device.syncs <= device.written


def test_nobody_syncs_inside_an_exclusive_section() -> None:
    device = Device()
    commit = GroupCommit(device.sync)
    with commit.exclusive():
        waiter = started(commit.join)
        while not commit._waiting:
            threading.Event().wait(0)
        assert device.syncs == 0
    finish(waiter)
    assert device.syncs == 1


def test_an_exclusive_section_waits_for_the_sync_under_way() -> None:
    device = Device()
    device.is_held = True
    commit = GroupCommit(device.sync)
    writer = started(commit.join)
    assert device.begun.acquire(timeout=LIMIT_S)
    entered = threading.Event()

    def cutter() -> None:
        with commit.exclusive():
            assert device.at_once == 0
            entered.set()

    thread = started(cutter)
    while not commit._waiting:
        threading.Event().wait(0)
    assert not entered.is_set()
    device.gate.release()
    finish(writer, thread)
    assert entered.is_set()


def test_a_failed_sync_raises_once_and_wakes_everybody() -> None:
    """The leader hears of it; the others must look, and the place is free again."""
    device = Device()
    device.failure = OSError("gone")
    commit = GroupCommit(device.sync)
    with pytest.raises(OSError, match="gone"):
        commit.join()
    device.failure = None
    commit.join()
    assert device.syncs == 2

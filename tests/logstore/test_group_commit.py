"""One sync for all who wait: nobody returns before a sync that began after they came has ended."""

from __future__ import annotations

import sys
import threading
from types import FrameType

import pytest

from logstore.log.group_commit import GroupCommit, _Waiter

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


def test_a_sync_that_ends_just_before_another_thread_sleeps() -> None:
    """That thread is asked to gather company when it has already decided to sleep until it is woken."""
    device = Device()
    device.is_held = True
    commit = GroupCommit(device.sync)
    first = started(commit.join)
    assert device.begun.acquire(timeout=LIMIT_S)

    def at_call(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code is GroupCommit._sleep.__code__:
            sys.settrace(None)
            device.gate.release(2)
            finish(first)

    def second() -> None:
        sys.settrace(at_call)
        commit.join()

    finish(started(second))
    assert device.syncs == 2


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
    while not commit._excluding:
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


def writers_of(commit: GroupCommit, device: Device, count: int) -> list[threading.Thread]:
    """Threads that have all written and wait in `join`."""
    before = len(commit._waiting)
    threads = []
    for number in range(count):
        device.written += 1
        threads.append(started(commit.join))
        while len(commit._waiting) < before + number + 1 and threads[-1].is_alive():
            threading.Event().wait(0)
    return threads


def served_together(commit: GroupCommit, device: Device, count: int) -> None:
    """Let one sync serve `count` writers."""
    with commit.exclusive():
        threads = writers_of(commit, device, count)
    finish(*threads)


def test_the_last_of_the_company_leads_for_all() -> None:
    """Those whom one sync served are expected for the next one: no sync begins without them."""
    device = Device()
    commit = GroupCommit(device.sync, patience_s=LIMIT_S)
    served_together(commit, device, 4)
    assert device.syncs == 1
    early = writers_of(commit, device, 3)
    assert device.syncs == 1
    device.written += 1
    commit.join()
    assert (device.syncs, device.synced) == (2, 8)
    finish(*early)


def behind_a_sync(commit: GroupCommit, device: Device, count: int) -> tuple[threading.Thread, ...]:
    """Hold one writer's sync until `count` others wait behind it; `let_go` ends it."""
    device.is_held = True
    device.written += 1
    first = started(commit.join)
    assert device.begun.acquire(timeout=LIMIT_S)
    return first, *writers_of(commit, device, count)


def let_go(device: Device, *threads: threading.Thread) -> None:
    device.is_held = False
    device.gate.release()
    finish(*threads)


def test_those_who_came_meanwhile_wait_for_those_just_served() -> None:
    """Otherwise two halves of the writers would sync in turn, and each sync serve one of them."""
    device = Device()
    commit = GroupCommit(device.sync, patience_s=LIMIT_S)
    first, *others = behind_a_sync(commit, device, 3)
    let_go(device, first)
    assert device.syncs == 1
    device.written += 1
    commit.join()
    assert (device.syncs, device.synced) == (2, 5)
    finish(*others)


def test_those_just_served_may_stay_away() -> None:
    """Then the first of those who came meanwhile leads the others."""
    device = Device()
    commit = GroupCommit(device.sync, patience_s=1e-6)
    let_go(device, *behind_a_sync(commit, device, 3))
    assert (device.syncs, device.synced, commit._penalty) == (2, 4, 1)


def test_an_interrupt_of_who_waits_for_those_just_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one leads at once."""
    device = Device()
    commit = GroupCommit(device.sync, patience_s=LIMIT_S)
    threads = behind_a_sync(commit, device, 3)
    seen: list[object] = []

    class Interrupting:
        def acquire(self, timeout: float) -> bool:
            raise KeyboardInterrupt

    monkeypatch.setattr("logstore.log.group_commit._silent_bell", Interrupting)
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_type))
    let_go(device, *threads)
    assert seen == [KeyboardInterrupt]
    assert (device.syncs, device.synced) == (2, 4)


def test_company_that_does_not_come_is_not_waited_for_twice() -> None:
    device = Device()
    commit = GroupCommit(device.sync, patience_s=1e-6)
    served_together(commit, device, 4)
    commit.join()
    assert (device.syncs, commit._company, commit._penalty) == (2, 1, 1)
    commit.join()
    assert (device.syncs, commit._penalty) == (3, 1), "one who is alone does not wait"


def test_waits_in_vain_make_the_next_ones_rarer() -> None:
    """Writers at odds: whoever waits for the other waits for nothing, so soon hardly anybody does."""
    device = Device()
    commit = GroupCommit(device.sync, patience_s=1e-6)
    waits, seen = 0, 0
    for _ in range(100):
        served_together(commit, device, 2)
        commit.join()
        waits += commit._penalty != seen
        seen = commit._penalty
    assert waits < 8
    commit._company, commit._wait_after = 2, 0
    commit._patience_s = LIMIT_S
    early = writers_of(commit, device, 1)
    commit.join()
    finish(*early)
    assert commit._penalty == 0, "company that came is worth waiting for again"


def test_an_exclusive_section_does_not_wait_for_company() -> None:
    """It comes before those who gather, and they are served afterwards."""
    device = Device()
    commit = GroupCommit(device.sync, patience_s=LIMIT_S)
    served_together(commit, device, 3)
    early = writers_of(commit, device, 2)
    with commit.exclusive():
        assert device.syncs == 1
    finish(*early)
    assert device.syncs == 2


def test_exclusive_sections_come_before_those_who_wait_for_a_sync() -> None:
    device = Device()
    commit = GroupCommit(device.sync)
    order: list[str] = []

    def alone() -> None:
        with commit.exclusive():
            order.append("alone")

    def together() -> None:
        commit.join()
        order.append("together")

    with commit.exclusive():
        writer = started(together)
        while not commit._waiting:
            threading.Event().wait(0)
        cutter = started(alone)
        while not commit._excluding:
            threading.Event().wait(0)
    finish(writer, cutter)
    assert order == ["alone", "together"]


@pytest.mark.parametrize("others", [0, 2])
def test_an_interrupt_leaves_nobody_waiting_for_ever(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    """Whoever gathers company is interrupted: the next one leads, and the place is free again."""
    device = Device()
    commit = GroupCommit(device.sync, patience_s=LIMIT_S)
    served_together(commit, device, 5)
    threads: list[threading.Thread] = []

    class Interrupted(_Waiter):
        def __init__(self) -> None:
            super().__init__()
            self.bell = self  # type: ignore[assignment]

        def acquire(self, timeout: float) -> bool:
            monkeypatch.undo()
            threads.extend(writers_of(commit, device, others))
            raise KeyboardInterrupt

    monkeypatch.setattr("logstore.log.group_commit._Waiter", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        commit.join()
    finish(*threads)
    commit._patience_s = 1e-6
    commit.join()
    assert device.synced == device.written


def test_a_leader_whose_sync_fails_does_not_take_the_others_with_it() -> None:
    """All return; only the leader has the error, and nothing counts as synced."""
    device = Device()
    commit = GroupCommit(device.sync, patience_s=LIMIT_S)
    served_together(commit, device, 4)
    device.failure = OSError("gone")
    early = writers_of(commit, device, 3)
    device.written += 1
    with pytest.raises(OSError, match="gone"):
        commit.join()
    finish(*early)
    assert device.synced == 4

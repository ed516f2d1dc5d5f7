"""Locks of threads that take turns, and a turn that may end at any line of the engine."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Final
from unittest import mock

import numpy.ma  # noqa: F401 - numpy imports it late, in the middle of a line

import logstore
from logstore.checkpoint.entry_files import _sound_offsets
from logstore.disk import files
from logstore.log import following, heal, lookup, mirror, writer
from logstore.queue import waiting
from logstore.segment.scan import header_dtype
from tests.turns import Turns

ROOT: Final = str(Path(logstore.__file__).parent)
ROOMS: Final = ("log/", "segment/", "compact/", "checkpoint/", "queue/", "async_")
"""A turn may end in the modules whose paths begin so."""


class TurnLock:
    """As `threading.Lock`; with `is_shared` as `threading.RLock`. Whoever waits for it lets others go on."""

    def __init__(self, turns: Turns, *, is_again: bool = False) -> None:
        self._turns, self._is_again = turns, is_again
        self._owner: int | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = threading.get_ident()
        if self._is_again and self._owner == me:
            self._count += 1
            return True
        while self._owner is not None:
            if not blocking or not timeout:
                return False
            assert self._turns.is_mine(), "a thread outside of the schedule meets a lock"
            if not self._turns.wait_until(lambda: self._owner is None, may_end=timeout > 0):
                return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        if self._owner is None or (self._is_again and not self._is_owned()):
            raise RuntimeError("release unlocked lock")
        self._count -= 1
        if not self._count:
            self._owner = None

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # --- what `threading.Condition` asks of a lock, and `disk/reentry.py` --------------------------

    def _is_owned(self) -> bool:
        return self._owner == threading.get_ident()

    def _release_save(self) -> int:
        count, self._count, self._owner = self._count, 0, None
        return count

    def _acquire_restore(self, count: int) -> None:
        self.acquire()
        self._count = count


class TurnThread:
    """As `threading.Thread`: one more thread that takes turns."""

    def __init__(
        self, turns: Turns, lines: random.Random, share: float, target: Callable[[], object]
    ) -> None:
        self._turns, self._lines, self._share, self._target = turns, lines, share, target
        self._is_alive: Callable[[], bool] = lambda: False

    def start(self) -> None:
        self._is_alive = self._turns.add(self._work)

    def _work(self) -> None:
        with interruptible(self._turns, self._lines, self._share):
            self._target()

    def is_alive(self) -> bool:
        return self._is_alive()

    def join(self, timeout: float | None = None) -> None:
        if self._is_alive():
            self._turns.wait_until(lambda: not self._is_alive(), may_end=timeout is not None)


class Ticks:
    """A clock: each look at it is so much later."""

    def __init__(self, start: float, step: float) -> None:
        self._now, self._step = start, step

    def __call__(self) -> Any:
        self._now += self._step
        return self._now


@contextmanager
def locks_of(turns: Turns) -> Iterator[None]:
    """Let the engine make such locks, and see nothing else that differs from run to run.

    Times do: records of one millisecond have one entry in an index of times. So do collections of garbage,
    which run lines of the engine, and whatever earlier runs have left in a cache.
    """

    def plain() -> TurnLock:
        return TurnLock(turns)

    def again() -> TurnLock:
        return TurnLock(turns, is_again=True)

    with ExitStack() as patched:
        for module in (threading, heal, lookup, mirror):
            patched.enter_context(mock.patch.object(module, "Lock", plain))
        patched.enter_context(mock.patch.object(threading, "_allocate_lock", plain))
        patched.enter_context(mock.patch.object(threading, "RLock", again))
        for module in (following, waiting, writer):
            patched.enter_context(mock.patch.object(module, "steady_s", Ticks(0, 1e-6)))
        wall = SimpleNamespace(time_ns=Ticks(1_700_000_000 * 10**9, 100_000))
        patched.enter_context(mock.patch.object(files, "time", wall))
        header_dtype()
        _sound_offsets.cache_clear()
        gc.collect()
        gc.disable()
        patched.callback(gc.enable)
        yield


@contextmanager
def interruptible(turns: Turns, rng: random.Random, share: float) -> Iterator[None]:
    """Let the turn of the calling thread end at this share of the engine's lines."""
    rooms = tuple(f"{ROOT}/{room}" for room in ROOMS)
    cache: dict[str, bool] = {}

    def at_line(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "line" and rng.random() < share:
            turns.pass_on()
        return at_line

    def at_call(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if name not in cache:
            cache[name] = name.startswith(rooms)
        return at_line if cache[name] else None

    sys.settrace(at_call)
    try:
        yield
    finally:
        sys.settrace(None)

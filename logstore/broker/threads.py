"""Work in threads: waits for a disk must not block the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

T = TypeVar("T")

_LOG_THREADS: Final = 8
"""More threads than processors: they wait for fsyncs, and the disk takes several at a time."""


def run_all(actions: Sequence[Callable[[], None]]) -> None:
    """Run the actions in several threads until all have ended. Raises the first one's error."""
    with ThreadPoolExecutor(min(_LOG_THREADS, len(actions) or 1), thread_name_prefix="logs") as pool:
        running = [pool.submit(act) for act in actions]
    for each in running:
        each.result()


async def unwaited(act: Callable[[], T]) -> T:
    """Run `act` in a thread whose end a stop of the loop does not wait for; returns its result, or raises."""
    found: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    threading.Thread(target=_find, args=(act, found), daemon=True).start()
    try:
        return await found
    finally:
        del found  # or an error would keep itself, by the frames of its traceback


def _find(act: Callable[[], T], found: asyncio.Future[T]) -> None:
    end: Callable[[], None]
    try:
        end = partial(found.set_result, act())
    except Exception as error:
        end = partial(found.set_exception, error.with_traceback(None))

    def tell() -> None:
        if not found.done():
            end()

    with suppress(RuntimeError):  # the loop is closed
        found.get_loop().call_soon_threadsafe(tell)


def alone(calls: dict[None, object], act: Callable[[], T], refuse: Callable[[], T]) -> T:
    """Run `act`, or `refuse` during another call; returns its result.

    `calls` holds the call in progress. It is no lock, which an interrupt might leave taken.
    """
    mine = object()
    try:
        if calls.setdefault(None, mine) is not mine:
            return refuse()
        return act()
    finally:
        if calls == {None: mine}:  # not by a method: an interrupt could come behind it
            del calls[None]


def check_is_no_greenlet(starter: int) -> None:
    """Raise `RuntimeError` if the calling thread runs in the one that started it, of that native id."""
    if threading.get_native_id() == starter:
        raise RuntimeError(
            "an event loop needs a thread of its own, and gevent or eventlet has made greenlets of threads"
        )


def be_last() -> None:
    """Give the calling thread the lowest priority, where the system has priorities of threads."""
    if hasattr(os, "setpriority") and hasattr(threading, "get_native_id"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)

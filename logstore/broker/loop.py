"""What a process of its own runs on: uvloop and compiled checks where they are installed; its heap."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import signal
from collections.abc import Callable
from typing import Final

_YOUNG_OBJECTS: Final = 50_000
"""Half of that is a thousand requests that wait, and none of it is garbage."""

_log = logging.getLogger("broker")


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The maker of uvloop's loop, as `asyncio.Runner` takes it; None for the platform's own."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ModuleNotFoundError:
        return None
    maker: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return maker


def survive_broken_pipes() -> None:
    """Have a write to a client that has left fail, as it does by default; a command line may have it kill."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def settle_heap() -> None:
    """Let Python look for cycles among the objects of requests alone, and seldom, once a broker has started.

    Requests leave no cycles behind; looking through all that the process has loaded, time and again, took a
    quarter of what a thousand clients cost that wait for records. For the whole process, so not for a
    broker that is somebody's guest.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)


def compile_checks() -> None:
    """Have leaders check records with compiled code where numba is installed (decision 019).

    Takes the time of an import, and seconds where nothing was compiled yet: before anybody is served. For the
    whole process, so not for a broker that is somebody's guest.
    """
    try:
        kernels = importlib.import_module("logstore.columnar.kernels")
    except ImportError as error:  # numba also refuses a numpy that it does not know
        _log.info("records are checked by plain code: %s", error)
        return
    kernels.warm_up()

"""Set-up of a broker's own process: uvloop and compiled checks if installed, signals, garbage collection."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import signal
import sys
from collections.abc import Callable
from typing import Final

from logstore.disk.clocks import steady_s
from logstore.disk.descriptors import hold_standard
from logstore.loggers import logger_of
from logstore.segment.scan import use_compiled

_YOUNG_OBJECTS: Final = 50_000
"""Half of that is a thousand waiting requests, none of which is garbage."""

_log = logger_of(__name__)


if sys.platform == "win32":  # pragma: no cover
    _PlatformLoop = asyncio.ProactorEventLoop
else:
    _PlatformLoop = asyncio.SelectorEventLoop


class SteadyLoop(_PlatformLoop):
    """The platform's loop, whose timers go on where a test freezes time."""

    time = staticmethod(steady_s)


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's factory for `asyncio.Runner`, or that of `SteadyLoop`; hold the standard streams."""
    hold_standard()
    try:
        import uvloop
    except ModuleNotFoundError:
        return SteadyLoop
    return uvloop.new_event_loop


def survive_broken_pipes() -> None:
    """Ignore SIGPIPE, so that a write to a closed connection fails instead of ending the process."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def heed_stop_signals(told: Callable[[signal.Signals], None]) -> None:
    """Have the running loop call `told` on SIGTERM, SIGINT and SIGHUP: as in Kafka, all three stop in order.

    A SIGHUP that is ignored stays so: `nohup` asks for that.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, told, number)


def settle_heap() -> None:
    """Exclude the objects loaded so far from garbage collection, and collect less often.

    Requests leave no cycles behind. Collecting over everything that is loaded took a quarter of the time that
    a thousand waiting clients cost. It affects the whole process, so embedded brokers do not call it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)


# Parameters of glibc's `mallopt`.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 << 20
_MAPPED_FROM_BYTES: Final = 8 << 20


def keep_freed_memory() -> None:
    """Have glibc keep up to 64 MiB of freed memory at the end of the heap, instead of 128 KiB to some MiB.

    A fetch of 1 MiB allocates and frees its bytes. By default the kernel gets them back each time and has to
    clear 256 pages for the next fetch, which is half of its processor time. It affects the whole process, so
    embedded brokers do not call it. Without glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):  # pragma: no cover
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        # Setting one of them ends the other's adjustment by glibc itself.
        libc.mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def compile_checks() -> None:
    """Check records and walk over small batches with compiled code if numba is installed (decision 019).

    Call it before serving: it takes the time of an import, or seconds if nothing is compiled yet. It affects
    the whole process, so embedded brokers do not call it.
    """
    try:
        kernels = importlib.import_module("logstore.columnar.kernels")
    except ImportError as error:  # numba also refuses unknown versions of numpy
        _log.info("checking records without compiled code: %s", error)
        return
    kernels.warm_up()
    use_compiled()

"""What a process of its own runs on: uvloop where it is installed, else asyncio's loop; and its signals."""

from __future__ import annotations

import asyncio
import importlib
import signal
from collections.abc import Callable


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

"""Which event loop a process of its own runs on: uvloop where it is installed, asyncio's otherwise."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The maker of uvloop's loop, as `asyncio.Runner` takes it; None for the platform's own."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ModuleNotFoundError:
        return None
    maker: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return maker

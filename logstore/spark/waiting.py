"""How a process of the pipeline waits for another one."""

from __future__ import annotations

import time

PAUSE_S = 0.05


def pause() -> None:
    """Let a twentieth of a second go by."""
    time.sleep(PAUSE_S)

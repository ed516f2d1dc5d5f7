"""Counts what a test holds open, whatever the other threads of its process do meanwhile."""

from __future__ import annotations

import os
from pathlib import Path


def open_below(directory: str | os.PathLike[str]) -> int:
    """Descriptors of this process that lead to files below `directory`, removed ones among them."""
    root = f"{os.path.realpath(directory)}/"
    return sum(_target(entry).startswith(root) for entry in Path("/proc/self/fd").iterdir())


def _target(entry: Path) -> str:
    try:
        return os.readlink(entry)
    except FileNotFoundError:
        return ""  # another thread closed it since it was listed

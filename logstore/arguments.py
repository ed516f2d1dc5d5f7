"""Checks of arguments at the public interface: the error names the argument and its valid values."""

from __future__ import annotations

import os
from operator import index
from typing import TypeAlias, TypeVar

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

T = TypeVar("T")


def as_offset(offset: object, what: str = "an offset") -> int:
    """Return an offset as int. Raises `TypeError` for what is no integer."""
    try:
        return index(offset)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} is an int, not {type(offset).__name__} ({offset!r:.100})") from None


def as_count(count: object, what: str) -> int:
    """Return the most of something. Raises `TypeError`, and `ValueError` below 0."""
    most = as_offset(count, what)
    if most < 0:
        raise ValueError(f"{what} is {most}; give 0 or more, or None for no limit")
    return most


def as_int(value: object, what: str, least: int = 0) -> int:
    """Return an int. Raises `TypeError`, and `ValueError` below `least`."""
    number = as_offset(value, what)
    if number < least:
        raise ValueError(f"{what} is {number}; it must be at least {least}")
    return number


def as_str(value: object, what: str) -> str:
    """Return a str. Raises `TypeError` for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {type(value).__name__} ({value!r:.100})")
    return value


def is_number(value: object) -> bool:
    """Return whether a value that should be a number is one."""
    return isinstance(value, int | float)


def as_directory(path: Path) -> str:
    """Return the path of a directory as text, from the root: the process may change its own directory later.

    Raises `TypeError` for what is no path, and `ValueError` for an empty one.
    """
    text = os.fsdecode(path)
    if not text:
        raise ValueError("the path of the directory is empty; name one, such as data/orders-0")
    if not os.path.isabs(text):
        text = os.path.join(os.getcwd(), text)
    return text.rstrip("/") or "/"


def as_config(config: T | None, kind: type[T], advice: str = "") -> T:
    """Return `config`, by default one without settings. Raises `TypeError` for another type."""
    if config is None:
        return kind()
    if not isinstance(config, kind):
        name = kind.__name__
        raise TypeError(f"config is a {name}, not {type(config).__name__}; {advice or f'pass {name}(…)'}")
    return config

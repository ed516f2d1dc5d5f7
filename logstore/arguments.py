"""Checks of arguments at the public interface: the error names the argument and its valid values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from math import inf
from operator import index
from typing import Final, ParamSpec, TypeAlias, TypeVar

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_S: Final = 1e9
"""31 years, the longest wait: clocks and event loops compute with times as far ahead as this."""
EMPTY_PATH: Final = "the path is empty; write . for the current directory"
_MOST_DIGITS: Final = 99


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


def as_bool(value: object, what: str) -> bool:
    """Return a bool, also for one of numpy. Raises `TypeError` for a text: "no" would be true."""
    if value not in (True, False):
        raise TypeError(f"{what} is True or False, not {value!r:.100}")
    return bool(value)


def as_str(value: object, what: str) -> str:
    """Return a str. Raises `TypeError` for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {type(value).__name__} ({value!r:.100})")
    return value


def as_callback(value: Callable[P, T], what: str = "a callback") -> Callable[P, T]:
    """Return a function to call later. Raises `TypeError` for what cannot be called."""
    if not callable(value):
        raise TypeError(f"{what} is a function, not {type(value).__name__} ({value!r:.100})")
    return value


def as_seconds(value: object, what: str, *, instead: str = "") -> float:
    """Return a time to wait in seconds, `LONGEST_S` for anything longer.

    Raises `TypeError` for what is no number, and `ValueError` below 0.
    """
    if not isinstance(value, int | float):
        kind = f"{type(value).__name__} ({value!r:.100})"
        raise TypeError(f"{what} is a number of seconds{instead}, not {kind}")
    if not value >= 0:
        raise ValueError(f"{what} is {value!r} seconds; give 0 or more{instead}")
    return min(value, LONGEST_S)


def as_timeout(value: object) -> float | None:
    """Return the longest time to wait; None is for ever. Raises as `as_seconds`."""
    return None if value is None else as_seconds(value, "timeout", instead=", or None to wait for ever")


def is_number(value: object) -> bool:
    """Return whether a value that should be a number is one."""
    return isinstance(value, int | float)


def as_directory(path: Path) -> str:
    """Return the path of a directory as text, from the root: the process may change its own directory later.

    Raises `TypeError` for what is no path, `ValueError` for an empty one, and `FileNotFoundError` for one
    below a current directory that was deleted.
    """
    text = os.fsdecode(path)
    if not text:
        raise ValueError("the path of the directory is empty; name one, such as data/orders-0")
    if not os.path.isabs(text):
        try:
            text = os.path.join(os.getcwd(), text)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                error.errno, "the current directory was deleted; give a path from the root", text
            ) from None
    while text.endswith(("/", "/.")):
        text = text.removesuffix(".").rstrip("/")
    return text or "/"


def names_path(metavar: object) -> bool:
    """Return whether the value of a command line's argument is a path, by the name that its help shows."""
    return any(word in str(metavar) for word in ("DIR", "FILE", "PATH"))


def as_config(config: T | None, kind: type[T], advice: str = "", what: str = "config") -> T:
    """Return `config`, by default one without settings. Raises `TypeError` for another type."""
    if config is None:
        return kind()
    if not isinstance(config, kind):
        name = kind.__name__
        raise TypeError(f"{what} is a {name}, not {type(config).__name__}; {advice or f'pass {name}(…)'}")
    return config


def whole_number(text: str, least: float = -inf, most: float = inf) -> int | None:
    """Return the number of ASCII digits, with a minus sign if `least` is negative.

    Returns None for other text, and for numbers out of range.
    """
    digits = text.removeprefix("-") if least < 0 else text
    # Python refuses to read more than some thousand.
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > _MOST_DIGITS:
        return None
    number = int(text)
    return number if least <= number <= most else None


def whole_numbers(texts: Iterable[str]) -> list[int] | None:
    """Return numbers of 0 or more, which may have blanks around them; None if one is something else."""
    found = [whole_number(text.strip(), 0) for text in texts]
    return None if None in found else [each for each in found if each is not None]


def epoch_ms(text: str) -> int:
    """Return the time that a text of ISO 8601 names, in epoch milliseconds; UTC if it names no zone.

    Raises `ValueError`.
    """
    import re
    from datetime import UTC, datetime, timedelta

    # Python takes any character between date and time: 2026-11-20+01:00 would be one o'clock.
    if not re.fullmatch(r"\d{4}-?(?:\d\d-?\d\d|[Ww]\d\d(?:-?\d)?)(?:[Tt ].*)?", text):
        raise ValueError(f"{text!r} is not a date, or a date and a time with T between them")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)

"""Checks of the arguments of a client's calls, in the thread that makes the call.

    @checked
    async def read(self, topic: str, partition: int = 0, offset: int | None = None, *, wait: float = 0.5): ...

A parameter is checked by its name: a name has one meaning in all calls. None is allowed where it is the
default. The call itself runs on the event loop of the client, which may be the thread of a broker: an error
there would be far from its cause.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import iscoroutinefunction, signature
from typing import Final, ParamSpec, TypeAlias, TypeVar

from logstore.arguments import as_count, as_offset, as_seconds, as_str
from logstore.config import MAX_INT, MAX_LONG, SettingValue
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.durability import Durability

if sys.version_info >= (3, 12):
    from inspect import markcoroutinefunction

P = ParamSpec("P")
T = TypeVar("T")

_Check: TypeAlias = Callable[[object, str], object]


def _up_to(largest: int) -> _Check:
    def check(value: object, what: str) -> None:
        number = as_offset(value, what)
        if not ~largest <= number <= largest:
            raise ValueError(f"{what} is {number}; the largest one is {largest}")

    return check


_number, _offset = _up_to(MAX_INT), _up_to(MAX_LONG)


def as_group_offset(value: object, what: str) -> int:
    """Return an offset that a group may commit. Raises `TypeError`, and `ValueError` out of range."""
    offset = as_offset(value, what)
    if not 0 <= offset <= MAX_LONG:
        raise ValueError(f"{what} is {offset}; a committed offset is 0 to {MAX_LONG}")
    return offset


def _settings(value: object, what: str) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f'{what} are a mapping such as {{"retention.ms": "1"}}, not {type(value).__name__}')
    for name, setting in value.items():
        as_str(name, f"a name in {what}")
        if not isinstance(setting, SettingValue):
            raise TypeError(f"{what}: {name} is text or a number, not {type(setting).__name__}")


def check_partitions(value: object, what: str) -> None:
    """Raise `TypeError` unless these are partitions: pairs of a topic and a number."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise TypeError(f"{what} are several TopicPartitions, not {type(value).__name__} ({value!r:.100})")
    for each in value:
        match each:
            case (str(), int()):
                continue
        raise TypeError(f"each of {what} is a TopicPartition, not {type(each).__name__} ({each!r:.100})")


def _by_partition(check: _Check) -> _Check:
    def check_each(value: object, what: str) -> None:
        if not isinstance(value, Mapping):
            raise TypeError(
                f"{what} map TopicPartitions to ints, not {type(value).__name__} ({value!r:.100})"
            )
        check_partitions(value, what)
        for where, each in value.items():
            check(each, f"{what}[{where[0]}-{where[1]}]")

    return check_each


def _topics(value: object, what: str) -> None:
    if not isinstance(value, tuple | list):
        raise TypeError(f"{what} is a tuple of names, not {type(value).__name__} ({value!r:.100})")
    for each in value:
        as_str(each, f"a name in {what}")


def _one_of(kind: type[object] | tuple[type[object], ...], said: str) -> _Check:
    def check(value: object, what: str) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"{what} is {said}, not {type(value).__name__} ({value!r:.100})")

    return check


_CHECKS: Final[Mapping[str, _Check]] = {
    "topic": as_str,
    "topics": _topics,
    "group": as_str,
    "topic_partition": _one_of(TopicPartition, "a TopicPartition"),
    "partition": _number,
    "partitions": _number,
    "replication_factor": _number,
    "copies": _number,
    "offset": _offset,
    "before_offset": _offset,
    "offsets": _by_partition(as_group_offset),
    "times": _by_partition(_offset),
    "timestamp": _offset,
    "max_bytes": as_count,
    "max_wait_ms": as_count,
    "wait": as_seconds,
    "timeout": as_seconds,
    "settings": _settings,
    "level": _one_of(Durability, "a Durability"),
    "batch": _one_of((bytes, bytearray, memoryview), "bytes"),
    "path": _one_of((str, os.PathLike), "a str or os.PathLike"),
}


def checked(call: Callable[P, T]) -> Callable[P, T]:
    """Let a call check its arguments before it begins, with `TypeError` or `ValueError`."""
    parameters = signature(call).parameters.values()
    checks = {
        each.name: (_CHECKS[each.name], each.default is None) for each in parameters if each.name in _CHECKS
    }
    names = [each.name for each in parameters]

    @wraps(call)
    def checking(*args: P.args, **kwargs: P.kwargs) -> T:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name in checks:
                check, may_be_none = checks[name]
                if value is not None or not may_be_none:
                    check(value, name)
        return call(*args, **kwargs)

    return awaited(checking) if iscoroutinefunction(call) else checking


def awaited(call: Callable[P, T]) -> Callable[P, T]:
    """Let schedulers and web frameworks see that what `call` returns is to be awaited.

    They call a plain function in a thread, and drop the coroutine that it returns.
    """
    if sys.version_info >= (3, 12):
        return markcoroutinefunction(call)
    call._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return call

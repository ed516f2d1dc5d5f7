"""Checks of what callers pass to a queue: the error names the argument and its valid values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeVar

from logstore.arguments import as_str
from logstore.disk.errors import InvalidTopic
from logstore.disk.topic_partition import check_topic_name
from logstore.queue.directory import LONGEST_TOPIC

T = TypeVar("T")

LONGEST_S: Final = 1e15
"""The longest lease or delay, 30 million years: its end still fits the 8 bytes that a time has on disk."""


def check_topic(topic: object, most: int = LONGEST_TOPIC) -> None:
    """Raise `TypeError` or `InvalidTopic` unless a queue can have this topic, of `most` characters."""
    name = as_str(topic, "a topic")
    check_topic_name(name)
    if name.startswith("__"):
        raise InvalidTopic(f"topic name {name!r} is reserved: names with two underscores are the queue's")
    if len(name) > most:
        raise InvalidTopic(
            f"topic name {name!r} has {len(name)} characters; a topic of this queue has {most} at most"
        )


def as_bytes(value: object, what: str) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    hint = "; encode text, as in 'text'.encode()" if isinstance(value, str) else ""
    raise TypeError(f"{what} is bytes, not {type(value).__name__}{hint}")


def as_pairs(values: Iterable[object]) -> list[tuple[bytes | None, bytes]]:
    """Return what `put_many` is given as (key, value) pairs. Raises `TypeError`."""
    if isinstance(values, bytes | bytearray | memoryview | str):
        raise TypeError(f"put_many wants several values, not one {type(values).__name__}; use put")
    if not isinstance(values, Iterable):
        raise TypeError(f"put_many wants several values, not {type(values).__name__} ({values!r:.100})")
    if isinstance(values, Mapping):
        raise TypeError("put_many wants (key, value) pairs, not a mapping; pass its items()")
    return [_as_pair(value) for value in values]


def _as_pair(item: object) -> tuple[bytes | None, bytes]:
    if type(item) is bytes:
        return None, item
    if isinstance(item, tuple) and len(item) == 2:
        key, value = item
        return None if key is None else as_bytes(key, "a key"), as_bytes(value, "a value")
    return None, as_bytes(item, "a value")


def as_messages(messages: Iterable[T]) -> list[T]:
    """Return the messages that `ack_many` is given. Raises `TypeError`."""
    if not isinstance(messages, Iterable):
        raise TypeError(f"ack_many wants several messages, not {type(messages).__name__}; use ack")
    return list(messages)


def as_milliseconds(seconds: object, what: str, least: int = 0) -> int:
    """Return a duration in ms. Raises `ValueError` below `least` ms and above `LONGEST_S`."""
    if not (isinstance(seconds, int | float) and least / 1000 <= seconds <= LONGEST_S):
        raise ValueError(
            f"{what} is {seconds!r}; it is a number of seconds, at least {least / 1000:g} and at most "
            f"{LONGEST_S:g}"
        )
    return round(seconds * 1000)


def as_topics(topics: object) -> Collection[str] | None:
    """Return the topics that a call names; an iterator is read once.

    Raises `TypeError`, and `ValueError` if there are none.
    """
    if topics is None:
        return None
    if isinstance(topics, str):
        return (topics,)
    found = tuple(topics) if isinstance(topics, Iterable) else (topics,)
    for topic in found:
        if not isinstance(topic, str):
            raise TypeError(f"topics are one str or several, not {type(topics).__name__} ({topics!r:.100})")
    if not found:
        raise ValueError("topics is empty; pass None for messages of every topic")
    return found


def check_reason(reason: object) -> None:
    """Raise `TypeError` or `ValueError` unless a dead letter can have this reason."""
    text = as_str(reason, "a reason")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the reason {text!r:.100} is not valid Unicode: {error.reason}") from error

"""Messages as workers see them, and as records.

record of a topic       value, key and headers as they were put; the time of the put;
                        header logstore.not-before    (ms) if it was put with a delay
record of dead letters  value, key and headers of the message; the time of its end;
                        headers logstore.topic, .offset, .timestamp (ms, of the put), .deliveries, .reason
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from logstore.config import MAX_LONG
from logstore.errors import InvalidRecord
from logstore.format.record import Header, Record, headers_of

_OURS: Final = "logstore."
_NOT_BEFORE: Final = "logstore.not-before"
_TOPIC, _OFFSET, _TIMESTAMP, _DELIVERIES, _REASON = (
    f"{_OURS}{name}" for name in ("topic", "offset", "timestamp", "deliveries", "reason")
)


class Message(NamedTuple):
    """A message leased to a worker. `offset` is its number within `topic`.

    `timestamp_ms` is when it was put. `deliveries` counts this delivery and those before.
    """

    topic: str
    offset: int
    value: bytes
    key: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int
    deliveries: int


class DeadLetter(NamedTuple):
    """A message that was given up, with the reason and the time of that."""

    message: Message
    reason: str
    timestamp_ms: int


def message_of(record: Record, topic: str, deliveries: int) -> Message:
    """Return the message that a record of `topic` holds."""
    offset, timestamp_ms, key, value, headers, _ = record
    if headers:
        headers = _without_ours(headers)
    return Message(topic, offset, value or b"", key, headers, timestamp_ms, deliveries)


def record_of(
    value: bytes,
    key: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    now_ms: int,
    not_before_ms: int = 0,
) -> Record:
    """Return the record of a new message. Raises `ValueError` for headers with a reserved name."""
    made = headers_of(headers)
    if any(name.startswith(_OURS) for name, _ in made):
        raise ValueError(f"headers must not begin with {_OURS!r}: the queue keeps its own facts there")
    if not_before_ms:
        made = (*made, _number(_NOT_BEFORE, not_before_ms))
    return Record(0, now_ms, key, value, made)


def not_before_ms(headers: Sequence[Header]) -> int:
    """Return the time before which a record must not be delivered; 0 for none."""
    due_ms = next((int(value or b"0") for name, value in headers if name == _NOT_BEFORE), 0)
    return min(due_ms, MAX_LONG)  # earlier versions stored delays of any length


def dead_record(message: Message, reason: str, now_ms: int) -> Record:
    """Return the record of a dead letter."""
    ours = (
        Header(_TOPIC, message.topic.encode()),
        _number(_OFFSET, message.offset),
        _number(_TIMESTAMP, message.timestamp_ms),
        _number(_DELIVERIES, message.deliveries),
        Header(_REASON, reason.encode()),
    )
    return Record(0, now_ms, message.key, message.value, (*message.headers, *ours))


def dead_letter_of(record: Record) -> DeadLetter:
    """Decode a dead letter written by `dead_record`. Raises `InvalidRecord` for another record."""
    facts = {name: value or b"" for name, value in record.headers if name.startswith(_OURS)}
    try:
        message = Message(
            facts[_TOPIC].decode(),
            int(facts[_OFFSET]),
            record.value or b"",
            record.key,
            _without_ours(record.headers),
            int(facts.get(_TIMESTAMP, record.timestamp_ms)),  # letters from before 0.2.0 lack it
            int(facts[_DELIVERIES]),
        )
        return DeadLetter(message, facts[_REASON].decode(), record.timestamp_ms)
    except (KeyError, ValueError) as error:
        raise InvalidRecord(f"the record at offset {record.offset} is not a dead letter: {error}") from error


def _number(name: str, number: int) -> Header:
    return Header(name, b"%d" % number)


def _without_ours(headers: Iterable[Header]) -> tuple[Header, ...]:
    return tuple(header for header in headers if not header.name.startswith(_OURS))

"""Messages as bytes, as their declarations in `replication/messages.py` have it: nothing is listed twice.

    message             kind u8 (its place in `RequestBody` or `ResponseBody`), then its fields in order
    int                 i64                     bool          u8, 0 or 1
    str, bytes          size u32, bytes         enum          u8, the member's place
    X | None            u8, then X if 1         dataclass     its fields, nothing between
    tuple[X, ...]       count u32, each X       Mapping[K, V] count u32, each K and V, no K twice

Big endian. There are no versions: `FINGERPRINT` is a digest of all declarations, every frame carries it
(`transport.py`), and nodes whose declarations differ do not talk. Nothing is trusted for its size: a count
or a size is held against the bytes that are there before anything is made of it. Large byte fields are
neither copied going out (`encode` returns them as they are, between the rest) nor coming in (views of the
frame).
"""

from __future__ import annotations

import struct
import types
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from broker.errors import MalformedMessage
from checkpoint.disk import Buffer
from checkpoint.errors import InvalidTopic
from checkpoint.topic_partition import TopicPartition, check_topic_name
from replication.messages import RequestBody, ResponseBody

WORTH_ITS_OWN_CHUNK = 2048
"""Byte fields from this size on are handed over as they are; below, a copy costs less than a piece more."""

_LONG, _COUNT = struct.Struct(">q"), struct.Struct(">I")
_BYTES_LIKE = frozenset({bytes, bytearray, memoryview})


class _Writer:
    """Collects a message as few pieces."""

    def __init__(self) -> None:
        self.chunks: list[Buffer] = []
        self.tail = bytearray()

    def put_bytes(self, data: Buffer) -> None:
        self.tail += _COUNT.pack(len(data))
        if len(data) < WORTH_ITS_OWN_CHUNK:
            self.tail += data
        else:
            self.chunks += (self.tail, data)
            self.tail = bytearray()


class _Reader:
    """The one cursor: whoever wants n bytes gets n bytes or `MalformedMessage`."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data).toreadonly()
        self._at = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= self.remaining:
            raise MalformedMessage(f"{size} bytes are to follow, {self.remaining} do")
        start, self._at = self._at, self._at + size
        return self._data[start : self._at]

    def byte(self, below: int) -> int:
        value = self.take(1)[0]
        if value >= below:
            raise MalformedMessage(f"a byte is {value} where {below - 1} is the most")
        return value

    def long(self) -> int:
        value: int = _LONG.unpack(self.take(8))[0]
        return value

    def count(self, least_bytes: int) -> int:
        """How many things follow that take `least_bytes` each at least."""
        value: int = _COUNT.unpack(self.take(4))[0]
        if value * least_bytes > self.remaining:
            raise MalformedMessage(f"{value} things are to follow in {self.remaining} bytes")
        return value

    def text(self) -> str:
        data = self.take(self.count(1))
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"a text is not UTF-8: {error}") from error


class _Format(NamedTuple):
    """How values of one type are written and read; `text` describes it, for the fingerprint."""

    write: Callable[[_Writer, Any], None]
    read: Callable[[_Reader], Any]
    least_bytes: int
    text: str


# --- formats of types -------------------------------------------------------------------------


def _write_long(writer: _Writer, value: int) -> None:
    writer.tail += _LONG.pack(value)


def _write_truth(writer: _Writer, value: bool) -> None:
    writer.tail.append(value)


def _write_text(writer: _Writer, value: str) -> None:
    writer.put_bytes(value.encode())


_PLAIN: Final[Mapping[object, _Format]] = {
    int: _Format(_write_long, _Reader.long, 8, "int"),
    bool: _Format(_write_truth, lambda reader: bool(reader.byte(2)), 1, "bool"),
    str: _Format(_write_text, _Reader.text, 4, "str"),
}
_BYTES: Final = _Format(_Writer.put_bytes, lambda reader: reader.take(reader.count(1)), 4, "bytes")


@cache
def _format_of(declared: Any) -> _Format:
    """The format that a type's declaration gives. A kind of type that has none is a bug: `TypeError`."""
    if declared in _PLAIN:
        return _PLAIN[declared]
    origin, arguments = get_origin(declared), get_args(declared)
    if declared in _BYTES_LIKE or _BYTES_LIKE.issuperset(arguments or (None,)):
        return _BYTES
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        (wanted,) = (each for each in arguments if each is not type(None))
        return _optional(_format_of(wanted))
    if origin is tuple and arguments[1:] == (...,):
        return _sequence(_format_of(arguments[0]))
    if origin is Mapping:
        return _mapping(_format_of(arguments[0]), _format_of(arguments[1]))
    if isinstance(declared, type) and issubclass(declared, Enum):
        return _enum(declared)
    if declared is TopicPartition:
        return _topic_partition()
    if isinstance(declared, type) and (is_dataclass(declared) or hasattr(declared, "_fields")):
        return _structure(declared)
    raise TypeError(f"{declared!r} has no format in bytes")


def _optional(wanted: _Format) -> _Format:
    def write(writer: _Writer, value: Any) -> None:
        writer.tail.append(value is not None)
        if value is not None:
            wanted.write(writer, value)

    def read(reader: _Reader) -> Any:
        return wanted.read(reader) if reader.byte(2) else None

    return _Format(write, read, 1, f"({wanted.text})?")


def _sequence(each: _Format) -> _Format:
    def write(writer: _Writer, values: tuple[Any, ...]) -> None:
        writer.tail += _COUNT.pack(len(values))
        for value in values:
            each.write(writer, value)

    def read(reader: _Reader) -> tuple[Any, ...]:
        return tuple([each.read(reader) for _ in range(reader.count(each.least_bytes))])

    return _Format(write, read, 4, f"[{each.text}]")


def _mapping(key: _Format, value: _Format) -> _Format:
    least_bytes = key.least_bytes + value.least_bytes

    def write(writer: _Writer, mapping: Mapping[Any, Any]) -> None:
        writer.tail += _COUNT.pack(len(mapping))
        for name, each in mapping.items():
            key.write(writer, name)
            value.write(writer, each)

    def read(reader: _Reader) -> dict[Any, Any]:
        count = reader.count(least_bytes)
        mapping = {key.read(reader): value.read(reader) for _ in range(count)}
        if len(mapping) != count:
            raise MalformedMessage("a mapping has a key twice")
        return mapping

    return _Format(write, read, 4, f"{{{key.text}: {value.text}}}")


def _enum(kind: type[Enum]) -> _Format:
    members = list(kind)
    places = {member: place for place, member in enumerate(members)}
    assert len(members) <= 256, f"{kind.__name__} has more members than a byte has values"

    def write(writer: _Writer, value: Enum) -> None:
        writer.tail.append(places[value])

    def read(reader: _Reader) -> Enum:
        return members[reader.byte(len(members))]

    return _Format(write, read, 1, f"{kind.__name__}({' '.join(member.name for member in members)})")


def _structure(kind: type[Any]) -> _Format:
    hints = get_type_hints(kind)
    names: list[str] = [each.name for each in fields(kind)] if is_dataclass(kind) else list(kind._fields)
    formats = [(name, _format_of(hints[name])) for name in names]

    def write(writer: _Writer, value: Any) -> None:
        for name, each in formats:
            each.write(writer, getattr(value, name))

    def read(reader: _Reader) -> Any:
        return kind(*[each.read(reader) for _, each in formats])

    return _Format(
        write,
        read,
        sum(each.least_bytes for _, each in formats),
        f"{kind.__name__}({', '.join(f'{name} {each.text}' for name, each in formats)})",
    )


def _topic_partition() -> _Format:
    """One that may become a directory's name: it is checked here, before anybody else sees it."""
    plain = _structure(TopicPartition)

    def read(reader: _Reader) -> TopicPartition:
        found: TopicPartition = plain.read(reader)
        try:
            check_topic_name(found.topic)
        except InvalidTopic as error:
            raise MalformedMessage(str(error)) from error
        if not 0 <= found.partition < 2**31:
            raise MalformedMessage(f"{found.partition} is no number of a partition")
        return found

    return plain._replace(read=read)


# --- messages ---------------------------------------------------------------------------------

_REQUESTS: Final[tuple[type[Any], ...]] = get_args(RequestBody)
_RESPONSES: Final[tuple[type[Any], ...]] = get_args(ResponseBody)
_KINDS: Final[Mapping[Any, int]] = {
    kind: place for kinds in (_REQUESTS, _RESPONSES) for place, kind in enumerate(kinds)
}
_FORMATS: Final[Mapping[Any, _Format]] = {kind: _format_of(kind) for kind in _KINDS}
assert len(_REQUESTS) <= 256, "a byte tells the kind of a message"

FINGERPRINT: Final = zlib.crc32(" ".join(each.text for each in _FORMATS.values()).encode())
"""Says which declarations a node was built from."""

RESPONSE_OF: Final[Mapping[type[Any], type[Any]]] = dict(zip(_REQUESTS, _RESPONSES, strict=True))
"""Request → the kind of its answer: both are declared in the same order."""


def encode(body: RequestBody | ResponseBody) -> list[Buffer]:
    """The message in pieces; byte fields of some size are pieces of their own, not copied.

    Raises `MalformedMessage` for values that have no bytes: a number beyond 64 bits, a text that is no
    Unicode, more than 2^32 of anything.
    """
    writer = _Writer()
    kind: Any = type(body)
    writer.tail.append(_KINDS[kind])
    try:
        _FORMATS[kind].write(writer, body)
    except (struct.error, UnicodeEncodeError) as error:
        raise MalformedMessage(f"{kind.__name__} cannot be sent: {error}") from error
    return [*writer.chunks, writer.tail] if writer.tail else writer.chunks


def decode_request(data: Buffer) -> RequestBody:
    """The request that fills `data`, whose bytes must not change: byte fields are views of them.

    Raises `MalformedMessage`, and nothing else, for anything that is not one whole request.
    """
    body: RequestBody = _decode(data, _REQUESTS)
    return body


def decode_response(data: Buffer) -> ResponseBody:
    """The response that fills `data`; otherwise as `decode_request`."""
    body: ResponseBody = _decode(data, _RESPONSES)
    return body


def _decode(data: Buffer, kinds: tuple[type[Any], ...]) -> Any:
    reader = _Reader(data)
    body = _FORMATS[kinds[reader.byte(len(kinds))]].read(reader)
    if reader.remaining:
        raise MalformedMessage(f"{reader.remaining} bytes follow the end of a {type(body).__name__}")
    return body

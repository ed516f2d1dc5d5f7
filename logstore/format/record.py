"""Records, the content of a batch, and how they are encoded.

    ┌────────┬────────────┬────────────────┬─────────────┬──────────────┬────────────────┬─────────┐
    │ length │ attributes │ timestampDelta │ offsetDelta │ key length   │ value length   │ headers │
    │ varint │ i8, unused │ varlong        │ varint      │ varint, key  │ varint, value  │ varint… │
    └────────┴────────────┴────────────────┴─────────────┴──────────────┴────────────────┴─────────┘

A length of -1 is null, which is not empty. Deltas are relative to the batch's header. A header is a name,
never null, and a value, which may be null. Whole batches travel between socket, disk and follower; work per
record happens only at the edges. Reading is in `record_parser.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cache, lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from logstore.errors import InvalidRecord
from logstore.format.varint import encode_varint, encode_varlong
from logstore.lazily import np

if TYPE_CHECKING:
    import numpy.typing as npt

    from logstore.disk.files import Buffer

NO_TIMESTAMP: Final = -1
NO_SEQUENCE: Final = -1
MAX_INT: Final = (1 << 31) - 1
MAX_LONG: Final = (1 << 63) - 1


class Header(NamedTuple):
    """A record header: a name and a value. Names may repeat, order is kept.

    Kafka does not check that a name is UTF-8. Other bytes are decoded as lone surrogates, which encode to
    the same bytes again.
    """

    name: str
    value: bytes | None


def headers_of(headers: Iterable[tuple[str, bytes | None]]) -> tuple[Header, ...]:
    """Return (name, value) pairs as headers. Raises `TypeError`."""
    if isinstance(headers, Mapping):
        raise TypeError("headers are (name, value) pairs: pass list(headers.items()), not a mapping")
    try:
        pairs: list[tuple[Any, Any]] = [(name, value) for name, value in headers]
    except (TypeError, ValueError):
        raise TypeError(f"headers are (name, value) pairs, not {headers!r:.100}") from None
    for name, value in pairs:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header is a str, not {type(name).__name__} ({name!r:.100})")
        if not isinstance(value, bytes | bytearray | memoryview | None):
            raise TypeError(f"header {name!r} is bytes or None, not {type(value).__name__}; encode it")
    return tuple(
        Header(name, bytes(value) if isinstance(value, memoryview) else value) for name, value in pairs
    )


def data_of(part: object) -> bytes | None:
    """Return a key or a value as bytes: the `len` of another buffer may not be its size.

    Raises `TypeError` for what is neither a buffer of bytes nor None.
    """
    if part is None or type(part) is bytes:
        return part
    if isinstance(part, bytes | bytearray | memoryview):
        return bytes(part)
    kind = type(part).__name__
    raise TypeError(f"keys, values and header values must be bytes or None, not {kind}; encode them")


class Record(NamedTuple):
    """One key and value with its offset. `timestamp_ms` and `sequence` are -1 for none."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    sequence: int = NO_SEQUENCE


class ControlType(IntEnum):
    """Types of control records; readers ignore unknown numbers."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class ControlRecord(NamedTuple):
    """The key of a control record: `i16 version, i16 type`. Newer versions are read as version 0."""

    version: int
    type_number: int

    @property
    def type(self) -> ControlType | None:
        """The type; None if it is unknown."""
        return ControlType(self.type_number) if self.type_number in _CONTROL_TYPES else None

    @classmethod
    def parse(cls, key: bytes | None) -> ControlRecord:
        """Parse the key. Raises `InvalidRecord` if it is short or its version is negative."""
        if key is None or len(key) < 4:
            raise InvalidRecord("the key of a control record has fewer than 4 bytes")
        control = cls(*_CONTROL_KEY.unpack_from(key))
        if control.version < 0:
            raise InvalidRecord(f"invalid control record version {control.version}")
        return control

    def encode(self) -> bytes:
        return _CONTROL_KEY.pack(*self)


class EndTransactionMarker(NamedTuple):
    """An ABORT or COMMIT record, which ends a transaction. Value: `i16 version, i32 coordinatorEpoch`."""

    type: ControlType
    coordinator_epoch: int

    @classmethod
    def parse(cls, record: Record) -> EndTransactionMarker:
        """Parse a marker. Raises `InvalidRecord` for other control records and malformed values."""
        control = ControlRecord.parse(record.key)
        if control.type not in (ControlType.ABORT, ControlType.COMMIT):
            raise InvalidRecord(f"control record type {control.type_number} does not end a transaction")
        if record.value is None or len(record.value) < 6:
            raise InvalidRecord("the value of an end-transaction marker has fewer than 6 bytes")
        version, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
        if version < 0:
            raise InvalidRecord(f"invalid end-transaction marker version {version}")
        return cls(control.type, coordinator_epoch)

    def record(self, offset: int, timestamp_ms: int) -> Record:
        """Return the control record of the marker."""
        key = ControlRecord(0, self.type).encode()
        return Record(offset, timestamp_ms, key, _MARKER_VALUE.pack(0, self.coordinator_epoch))


_CONTROL_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")
_CONTROL_TYPES: Final = frozenset(ControlType)


# Sequence numbers: 0 to 2**31 - 1, then 0 again.


def add_sequence(sequence: int, delta: int) -> int:
    """Return the sequence number `delta` after `sequence`, wrapping."""
    return (sequence + delta) & MAX_INT


def subtract_sequence(sequence: int, delta: int) -> int:
    """Return the sequence number `delta` before `sequence`, wrapping."""
    return (sequence - delta) & MAX_INT


def wrap_long(value: int) -> int:
    """Wrap `value` to a signed 64-bit integer, as Kafka's arithmetic does."""
    return (value + (1 << 63) & (1 << 64) - 1) - (1 << 63)


# Encoding


class _Table(dict[int, bytes]):
    """Encodings by number, each made when it is first looked up."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> bytes:
        made = self[number] = self._make(number)
        return made


class _Deltas:
    """What encodes the offset deltas 0, 1, 2…, made up to the largest count that was asked for."""

    def __init__(self, after: bytes) -> None:
        self._after = after
        self._known: tuple[bytes, ...] = ()

    def up_to(self, count: int) -> tuple[bytes, ...]:
        """Return at least so many, by delta: attributes, a timestamp delta of zero, and the offset delta."""
        known = self._known
        if count > len(known):
            more = _SMALL[len(known) : max(count, 2 * len(known))]
            # Replaced as a whole: another thread may do the same.
            known = self._known = (*known, *(b"\0\0" + small + self._after for small in more))
        return known


# Encodings of the integers 0 to 8191: lengths and deltas are nearly always among them. Of those with two
# bytes, the first has the low seven bits of the zigzag number.
_LOW: Final = [bytes((0x80 | low,)) for low in range(0, 0x80, 2)]
_SMALL: Final = (
    *map(encode_varint, range(64)),
    *(low + high for high in map(bytes, zip(range(1, 0x80))) for low in _LOW),
)
_SMALL_END: Final = len(_SMALL)
_PREFIXES: Final = _Deltas(b"")

# Records with a value only, with deltas of one or two bytes. By offset delta: the bytes between a record's
# length and its value's length. By value length: the end of the record before (no headers), and the length of
# this one.
_PLACES: Final = _Deltas(b"\x01")
_ONE_BYTE_DELTAS: Final = 64
MAX_PLAIN_VALUES: Final = _SMALL_END
MAX_PLAIN_BYTES: Final = _SMALL_END - 16


def _length_of(size: int, delta_bytes: int) -> bytes:
    return _SMALL[4 + delta_bytes + len(_SMALL[size]) + size]


class _Lengths:
    """`_length_of` behind the end of a record, by value length, made up to the largest that was asked for."""

    def __init__(self, delta_bytes: int) -> None:
        self._delta_bytes = delta_bytes
        self._known: tuple[bytes, ...] = ()

    def of(self, sizes: Sequence[int]) -> Sequence[bytes]:
        """Return one for each size. Raises `IndexError` if one is not below `MAX_PLAIN_BYTES`."""
        try:
            return _at(self._known, sizes)
        except IndexError:
            largest = max(sizes)
            if largest >= MAX_PLAIN_BYTES:
                raise
            up_to = min(2 * largest + 1, MAX_PLAIN_BYTES)
            known = tuple(b"\0" + _length_of(size, self._delta_bytes) for size in range(up_to))
            self._known = known  # as a whole: another thread may do the same
            return _at(known, sizes)


def _at(table: Sequence[bytes], numbers: Sequence[int]) -> Sequence[bytes]:
    """Return `[table[number] for number in numbers]`."""
    # For a single number an itemgetter returns no tuple.
    return itemgetter(*numbers)(table) if len(numbers) > 1 else [table[number] for number in numbers]


_LENGTHS: Final = (_Lengths(1), _Lengths(2))

FIRST_PREFIXES: Final[Mapping[int, bytes]] = _Table(
    lambda size: _length_of(size, 1) + _PLACES.up_to(1)[0] + _SMALL[size]
)
"""By value length: the bytes before the value of a record without a key at offset delta 0, with the batch's
base timestamp. A zero byte follows the value."""


def encode_records(
    records: Iterable[Record], *, base_offset: int, base_timestamp_ms: int
) -> tuple[list[bytes], int, int, int]:
    """Encode records; return the bytes in pieces, the count, last offset and largest timestamp (-1: none).

    Deltas are relative to the two bases. Raises `ValueError` for offsets that do not rise, or times below -1.
    """
    parts: list[bytes] = []
    extend = parts.extend
    small, end = _SMALL, _SMALL_END
    count = 0
    last_offset = base_offset - 1
    max_timestamp_ms = seen_timestamp_ms = NO_TIMESTAMP
    time = b"\0" + encode_varlong(wrap_long(NO_TIMESTAMP - base_timestamp_ms))
    for offset, timestamp_ms, key, value, headers, _sequence in records:
        if offset <= last_offset:
            raise ValueError(f"offset {offset} does not follow {last_offset}: offsets rise within a batch")
        if timestamp_ms != seen_timestamp_ms:
            if timestamp_ms < NO_TIMESTAMP:
                raise ValueError(f"timestamp {timestamp_ms} ms: -1 means none, others are not negative")
            seen_timestamp_ms = timestamp_ms
            time = b"\0" + encode_varlong(wrap_long(timestamp_ms - base_timestamp_ms))
            if timestamp_ms > max_timestamp_ms:
                max_timestamp_ms = timestamp_ms
        delta = offset - base_offset
        place = time + (small[delta] if delta < end else encode_varint(delta))
        if key is None:
            key, key_length, key_bytes = b"", b"\x01", 0
        else:
            key_bytes = len(key)
            key_length = small[key_bytes] if key_bytes < end else encode_varint(key_bytes)
        if value is None:
            value, value_length, value_bytes = b"", b"\x01", 0
        else:
            value_bytes = len(value)
            value_length = small[value_bytes] if value_bytes < end else encode_varint(value_bytes)
        tail = _encode_headers(headers) if headers else b"\0"
        length = len(place) + len(key_length) + key_bytes + len(value_length) + value_bytes + len(tail)
        record_length = small[length] if length < end else encode_varint(length)
        extend((record_length, place, key_length, key, value_length, value, tail))
        last_offset = offset
        count += 1
    return parts, count, last_offset, max_timestamp_ms


def _encode_headers(headers: tuple[Header, ...]) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        parts += (encode_varint(len(encoded)), encoded)
        parts += (b"\x01",) if value is None else (encode_varint(len(value)), value)
    return b"".join(parts)


def encode_pairs(pairs: Sequence[tuple[bytes | None, bytes | None]]) -> tuple[list[bytes], int]:
    """Encode (key, value) records at offset deltas 0, 1, 2…; return the bytes in pieces, and the count.

    All have the batch's base timestamp. Nearly everything that applications append has this shape, so there
    is no object and no call per record.
    """
    parts: list[bytes] = []
    extend = parts.extend
    small, prefixes, end = _SMALL, _PREFIXES.up_to(len(pairs)), _SMALL_END
    count = 0
    for key, value in pairs:
        prefix = prefixes[count] if count < end else b"\0\0" + encode_varint(count)
        if key is None:
            key, key_length, key_bytes = b"", b"\x01", 0
        else:
            key_bytes = len(key)
            key_length = small[key_bytes] if key_bytes < end else encode_varint(key_bytes)
        if value is None:
            value, value_length, value_bytes = b"", b"\x01", 0
        else:
            value_bytes = len(value)
            value_length = small[value_bytes] if value_bytes < end else encode_varint(value_bytes)
        length = len(prefix) + len(key_length) + key_bytes + len(value_length) + value_bytes + 1
        record_length = small[length] if length < end else encode_varint(length)
        extend((record_length, prefix, key_length, key, value_length, value, b"\0"))
        count += 1
    return parts, count


def encode_values(values: Sequence[bytes], sizes: Sequence[int]) -> list[Buffer]:
    """Encode values without keys, given with their sizes, as `encode_pairs` does; return the pieces.

    At least one and at most `MAX_PLAIN_VALUES`, each below `MAX_PLAIN_BYTES`; raises `IndexError` for a
    larger one. There is no Python step per record: common parts are made once, the others come from tables.
    """
    short, long = _LENGTHS
    parts: list[Buffer] = [b"\0"] * (4 * len(values) + 1)
    parts[0:-1:4] = [*short.of(sizes[:_ONE_BYTE_DELTAS]), *long.of(sizes[_ONE_BYTE_DELTAS:])]
    parts[1:-1:4] = _PLACES.up_to(len(values))[: len(values)]
    parts[2:-1:4] = _at(_SMALL, sizes)
    parts[3:-1:4] = values
    parts[0] = parts[0][1:]  # no record before the first
    return parts


def encode_equal_values(values: Sequence[bytes], size: int) -> list[Buffer]:
    """`encode_values` for values of one size above 0.

    The records are rows of a table that differ only in delta and value.
    """
    tables: list[Buffer] = []
    columns = np.frombuffer(b"".join(values), f"V{size}")
    start = 0
    for stop, row, deltas in zip((_ONE_BYTE_DELTAS, len(values)), _rows_of(size), _deltas(), strict=True):
        some = columns[start:stop]
        if not len(some):
            break
        rows = bytearray(row.tobytes()) * len(some)
        table = np.frombuffer(rows, row.dtype)
        table["delta"] = deltas[: len(some)]
        table["value"] = some
        tables.append(rows)
        start = stop
    return tables


CompiledEncoder: TypeAlias = "Callable[[list[Any], int], tuple[bytearray, int] | None]"


class _Installed:
    encode: CompiledEncoder | None = None


def use_compiled_encoder(encode: CompiledEncoder | None) -> None:
    """Install a compiled `encode_rows` for the whole process; None: none."""
    _Installed.encode = encode


def encode_rows(rows: list[Any], room: int) -> tuple[bytearray, int] | None:
    """Encode values, or pairs, as `encode_pairs` does, in compiled code and one piece behind `room` zeros.

    Also returns how many have no key. Values, and the parts of pairs, are bytes or None: other buffers would
    be taken for bytes. None: no compiled code is installed (`columnar.warm_up`), or it refuses a row.
    """
    return None if _Installed.encode is None else _Installed.encode(rows, room)


@cache
def _deltas() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The encoded offset deltas of one byte, and those of two as little-endian numbers."""
    short, long = _SMALL[:_ONE_BYTE_DELTAS], _SMALL[_ONE_BYTE_DELTAS:]
    return np.frombuffer(b"".join(short), "u1"), np.frombuffer(b"".join(long), "<u2")


@lru_cache(maxsize=16)
def _rows_of(size: int) -> list[npt.NDArray[np.void]]:
    """Two rows with a value of `size` zeros: with a delta of one byte, and of two."""
    rows = []
    for deltas in _deltas():
        before = _length_of(size, deltas.itemsize) + b"\0\0"
        between = b"\x01" + _SMALL[size]
        row = np.zeros(
            (),
            [
                ("before", f"V{len(before)}"),
                ("delta", deltas.dtype),
                ("between", f"V{len(between)}"),
                ("value", f"V{size}"),
                ("no headers", "V1"),
            ],
        )
        row["before"], row["between"] = np.void(before), np.void(between)
        rows.append(row)
    return rows

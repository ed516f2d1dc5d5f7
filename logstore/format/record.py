"""Records: what a batch holds, one after another.

    ┌────────┬────────────┬────────────────┬─────────────┬──────────────┬────────────────┬─────────┐
    │ length │ attributes │ timestampDelta │ offsetDelta │ key length   │ value length   │ headers │
    │ varint │ i8, unused │ varlong        │ varint      │ varint, key  │ varint, value  │ varint… │
    └────────┴────────────┴────────────────┴─────────────┴──────────────┴────────────────┴─────────┘

A length of -1 is null, which is not empty. Deltas are relative to the batch's header. A header is a name,
never null, and a value that may be. Per-record work is for the edges: what travels between socket, disk
and follower is whole batches. The loops below are written out by hand for that reason: a call for every
integer would cost more than everything else they do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from logstore.errors import InvalidRecord
from logstore.format.varint import decode_varint, decode_varlong, encode_varint, encode_varlong

if TYPE_CHECKING:
    from logstore.disk.files import Buffer

NO_TIMESTAMP: Final = -1
NO_SEQUENCE: Final = -1
MAX_INT: Final = (1 << 31) - 1
MAX_LONG: Final = (1 << 63) - 1


class Header(NamedTuple):
    """A name and a value beside a record's own; names may repeat, order is kept.

    Kafka does not check that a name is UTF-8: bytes that are not come back as lone surrogates, and
    encode to the same bytes again.
    """

    name: str
    value: bytes | None


class Record(NamedTuple):
    """One key and value with its offset. `timestamp_ms` and `sequence` are -1 for none."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    sequence: int = NO_SEQUENCE


RecordsSummary: TypeAlias = tuple[int, int, int]
"""What a check of records learned on the way: the smallest and the largest timestamp delta, in ms from the
batch's base timestamp, and how many records have no key."""


class ControlType(IntEnum):
    """Kinds of control record; a number that is not here must be ignored by readers."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class ControlRecord(NamedTuple):
    """The key of a control record: `i16 version, i16 type`. A newer version is read as version 0."""

    version: int
    type_number: int

    @property
    def type(self) -> ControlType | None:
        """None for a type we do not know."""
        return ControlType(self.type_number) if self.type_number in _CONTROL_TYPES else None

    @classmethod
    def parse(cls, key: bytes | None) -> ControlRecord:
        """Read a control record's key; `InvalidRecord` if it is short or its version negative."""
        if key is None or len(key) < 4:
            raise InvalidRecord("a control record's key has 4 bytes, this one fewer")
        control = cls(*_CONTROL_KEY.unpack_from(key))
        if control.version < 0:
            raise InvalidRecord(f"control record version {control.version}")
        return control

    def encode(self) -> bytes:
        return _CONTROL_KEY.pack(*self)


class EndTransactionMarker(NamedTuple):
    """An ABORT or COMMIT: the last thing a transaction writes. Value: `i16 version, i32 coordinatorEpoch`."""

    type: ControlType
    coordinator_epoch: int

    @classmethod
    def parse(cls, record: Record) -> EndTransactionMarker:
        """Read a marker; `InvalidRecord` if it is another control record or its value is malformed."""
        control = ControlRecord.parse(record.key)
        if control.type not in (ControlType.ABORT, ControlType.COMMIT):
            raise InvalidRecord(f"control record type {control.type_number} does not end a transaction")
        if record.value is None or len(record.value) < 6:
            raise InvalidRecord("an end-transaction marker has 6 bytes, this one fewer")
        version, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
        if version < 0:
            raise InvalidRecord(f"end-transaction marker version {version}")
        return cls(control.type, coordinator_epoch)

    def record(self, offset: int, timestamp_ms: int) -> Record:
        """The control record that says so."""
        key = ControlRecord(0, self.type).encode()
        return Record(offset, timestamp_ms, key, _MARKER_VALUE.pack(0, self.coordinator_epoch))


_CONTROL_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")
_CONTROL_TYPES: Final = frozenset(ControlType)


# Sequence numbers: 0 to 2**31 - 1, then 0 again.


def add_sequence(sequence: int, delta: int) -> int:
    """`delta` steps after `sequence`, wrapping."""
    return (sequence + delta) & MAX_INT


def subtract_sequence(sequence: int, delta: int) -> int:
    """`delta` steps before `sequence`, wrapping."""
    return (sequence - delta) & MAX_INT


def wrap_long(value: int) -> int:
    """`value` as a signed 64-bit integer, as Kafka's arithmetic leaves it."""
    return (value + (1 << 63) & (1 << 64) - 1) - (1 << 63)


# Encoding

# Encodings of the integers 0 to 8191: lengths and deltas are nearly always among them.
_SMALL: Final[tuple[bytes, ...]] = tuple(encode_varint(n) for n in range(8192))
_SMALL_END: Final = len(_SMALL)
# Attributes, a timestamp delta of zero, and the offset delta.
_PREFIX: Final[tuple[bytes, ...]] = tuple(b"\0\0" + small for small in _SMALL)

# For records that are a value and nothing else, whose deltas take one byte or two: by offset delta, what
# lies between a record's length and its value's; by the value's length, the end of the record before (no
# headers) and the length of this one.
_PLACE: Final[tuple[bytes, ...]] = tuple(prefix + b"\x01" for prefix in _PREFIX)
_ONE_BYTE_DELTAS: Final = 64
MAX_PLAIN_VALUES: Final = _SMALL_END
_DELTAS: Final = (
    np.array([small[0] for small in _SMALL[:_ONE_BYTE_DELTAS]], "u1"),
    # Low bits first: two bytes of varint, read as little-endian.
    np.array([int.from_bytes(small, "little") for small in _SMALL], "<u2"),
)
MAX_PLAIN_BYTES: Final = _SMALL_END - 16
_LENGTHS: Final[tuple[tuple[bytes, ...], ...]] = tuple(
    tuple(b"\0" + _SMALL[4 + delta_bytes + len(_SMALL[size]) + size] for size in range(MAX_PLAIN_BYTES))
    for delta_bytes in (1, 2)
)

_FIRST_LENGTHS: Final[tuple[bytes, ...]] = tuple(length[1:] for length in _LENGTHS[0])


def encode_records(
    records: Iterable[Record], *, base_offset: int, base_timestamp_ms: int
) -> tuple[list[bytes], int, int, int]:
    """The records' bytes in pieces, their count, last offset and largest timestamp (-1: none has one).

    Offsets must rise and timestamps be -1 or more (`ValueError`); deltas are taken from the two bases.
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


def encode_pairs(pairs: Iterable[tuple[bytes | None, bytes | None]]) -> tuple[list[bytes], int]:
    """The bytes, in pieces, of records that are a key and a value at offset deltas 0, 1, 2…, and their count.

    All have the batch's base timestamp. The shape of nearly everything an application appends, so made
    without an object or a call per record.
    """
    parts: list[bytes] = []
    extend = parts.extend
    small, prefixes, end = _SMALL, _PREFIX, _SMALL_END
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


def encode_value(value: bytes) -> bytes:
    """A record that is a value and nothing else, at offset delta 0, of the batch's base timestamp.

    For less than `MAX_PLAIN_BYTES`.
    """
    size = len(value)
    return b"%b%b%b%b\0" % (_FIRST_LENGTHS[size], _PLACE[0], _SMALL[size], value)


def encode_values(values: Sequence[bytes], sizes: Sequence[int]) -> list[Buffer]:
    """As `encode_pairs` for values without keys, given with their sizes: the pieces, without the count.

    At least one and at most `MAX_PLAIN_VALUES`, each below `MAX_PLAIN_BYTES`. No step of Python for a
    record: what records have in common is made once, the rest comes out of tables.
    """
    parts: list[Buffer] = [b"\0"] * (4 * len(values) + 1)
    short, long = _LENGTHS
    parts[0:-1:4] = [
        *map(short.__getitem__, sizes[:_ONE_BYTE_DELTAS]),
        *map(long.__getitem__, sizes[_ONE_BYTE_DELTAS:]),
    ]
    parts[1:-1:4] = _PLACE[: len(values)]
    parts[2:-1:4] = map(_SMALL.__getitem__, sizes)
    parts[3:-1:4] = values
    parts[0] = parts[0][1:]  # no record before the first
    return parts


def encode_equal_values(values: Sequence[bytes], size: int) -> list[Buffer]:
    """`encode_values` for values of one size, above 0.

    The records are rows of a table, the same all over but for the delta and the value.
    """
    tables: list[Buffer] = []
    columns = np.frombuffer(b"".join(values), f"V{size}")
    start = 0
    for stop, row, deltas in zip((_ONE_BYTE_DELTAS, len(values)), _rows_of(size), _DELTAS, strict=True):
        some = columns[start:stop]
        if not len(some):
            break
        rows = bytearray(row.tobytes()) * len(some)
        table = np.frombuffer(rows, row.dtype)
        table["delta"] = deltas[start : start + len(some)]
        table["value"] = some
        tables.append(rows)
        start = stop
    return tables


@lru_cache(maxsize=16)
def _rows_of(size: int) -> list[npt.NDArray[np.void]]:
    """A record with a value of `size` zeros at offset delta 0, its delta in one byte and in two."""
    rows = []
    for lengths, deltas in zip(_LENGTHS, _DELTAS, strict=True):
        before = lengths[size][1:] + b"\0\0"
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


# Decoding


def decode_records(
    data: bytes,
    count: int,
    *,
    base_offset: int,
    base_timestamp_ms: int,
    log_append_time_ms: int | None,
    base_sequence: int,
) -> Iterator[Record]:
    """The `count` records that `data` holds, and nothing else; `InvalidRecord` where it breaks a rule.

    With `log_append_time_ms` every record has that time and its own is ignored.
    """
    position = 0
    end = len(data)
    new = tuple.__new__
    offset = base_offset
    try:
        for _ in range(count):
            start = position
            length = data[position]
            position += 1
            if length < 0x80:
                length = length >> 1 ^ -(length & 1)
            elif (high := data[position]) < 0x80:
                position += 1
                length = length & 0x7F | high << 7
                length = length >> 1 ^ -(length & 1)
            else:
                length, position = decode_varint(data, start)
            record_end = position + length
            if not position <= record_end <= end:
                raise InvalidRecord(f"record at byte {start}: {length} bytes long, {end - position} are left")
            position += 1  # attributes, unused
            delta = data[position]
            if delta < 0x80:
                position += 1
                delta = delta >> 1 ^ -(delta & 1)
            elif (high := data[position + 1]) < 0x80:
                position += 2
                delta = delta & 0x7F | high << 7
                delta = delta >> 1 ^ -(delta & 1)
            else:
                delta, position = decode_varlong(data, position)
            timestamp_ms = base_timestamp_ms + delta if log_append_time_ms is None else log_append_time_ms
            if not -MAX_LONG <= timestamp_ms <= MAX_LONG:
                timestamp_ms = wrap_long(timestamp_ms)
            delta = data[position]
            if delta < 0x80:
                position += 1
                delta = delta >> 1 ^ -(delta & 1)
            elif (high := data[position + 1]) < 0x80:
                position += 2
                delta = delta & 0x7F | high << 7
                delta = delta >> 1 ^ -(delta & 1)
            else:
                delta, position = decode_varint(data, position)
            offset = base_offset + delta
            sequence = base_sequence if base_sequence < 0 else (base_sequence + delta) & MAX_INT
            key = value = None
            size = data[position]
            if size < 0x80:
                position += 1
                size = size >> 1 if not size & 1 else -1
            else:
                size, position = decode_varint(data, position)
            if size >= 0:
                field_end = position + size
                if field_end > record_end:
                    raise InvalidRecord(f"record at byte {start}: its key passes its end")
                key = data[position:field_end]
                position = field_end
            size = data[position]
            if size < 0x80:
                position += 1
                size = size >> 1 if not size & 1 else -1
            elif (high := data[position + 1]) < 0x80:
                position += 2
                size = size & 0x7F | high << 7
                size = size >> 1 if not size & 1 else -1
            else:
                size, position = decode_varint(data, position)
            if size >= 0:
                field_end = position + size
                if field_end > record_end:
                    raise InvalidRecord(f"record at byte {start}: its value passes its end")
                value = data[position:field_end]
                position = field_end
            headers: tuple[Header, ...] = ()
            if data[position] == 0:
                position += 1
            else:
                headers, position = decode_headers(data, position, record_end)
            if position != record_end:
                raise InvalidRecord(
                    f"record at byte {start}: ends at {record_end} by its length, at {position} by its fields"
                )
            yield new(Record, (offset, timestamp_ms, key, value, headers, sequence))
    except IndexError:
        raise InvalidRecord(f"the records end at byte {end}, before the last of {count}") from None
    if position != end:
        raise InvalidRecord(f"{end - position} bytes remain after the last of {count} records")


def decode_headers(data: bytes, position: int, record_end: int) -> tuple[tuple[Header, ...], int]:
    """The headers at `position` and the position after them; `InvalidRecord` if they are malformed."""
    start = position
    count, position = decode_varint(data, position)
    if not 0 <= count <= record_end - position:
        raise InvalidRecord(f"{count} headers at byte {start}, {record_end - position} bytes are left")
    headers: list[Header] = []
    for _ in range(count):
        size, position = decode_varint(data, position)
        if not 0 <= size <= record_end - position:
            raise InvalidRecord(f"a header's name of {size} bytes at byte {position}")
        name = data[position : position + size].decode("utf-8", "surrogateescape")
        position += size
        size, position = decode_varint(data, position)
        if size > record_end - position:
            raise InvalidRecord(f"a header's value of {size} bytes at byte {position}")
        value = None
        if size >= 0:
            value = data[position : position + size]
            position += size
        headers.append(Header(name, value))
    return tuple(headers), position


def check_records(
    data: bytes | bytearray, count: int, position: int = 0, end: int | None = None
) -> RecordsSummary:
    """Check that `data[position:end]` is `count` well-formed records at offset deltas 0, 1, 2…

    Raises `InvalidRecord` unless it is exactly that.

    The rules of `decode_records` and one more, that offsets are dense, without making a single object for
    a record: this runs on every batch that a client sends.
    """
    end = len(data) if end is None else end
    min_delta, max_delta = MAX_LONG, -MAX_LONG - 1
    keyless = 0
    try:
        for expected in range(count):
            start = position
            length = data[position]
            position += 1
            if length < 0x80:
                length = length >> 1 ^ -(length & 1)
            elif (high := data[position]) < 0x80:
                position += 1
                length = length & 0x7F | high << 7
                length = length >> 1 ^ -(length & 1)
            elif (top := data[position + 1]) < 0x80:
                position += 2
                length = length & 0x7F | (high & 0x7F) << 7 | top << 14
                length = length >> 1 ^ -(length & 1)
            else:
                length, position = decode_varint(data, start)
            record_end = position + length
            if not position <= record_end <= end:
                raise InvalidRecord(f"record {expected}: {length} bytes long, {end - position} are left")
            position += 1  # attributes, unused
            delta = data[position]
            if delta < 0x80:
                position += 1
                delta = delta >> 1 ^ -(delta & 1)
            elif (high := data[position + 1]) < 0x80:
                position += 2
                delta = delta & 0x7F | high << 7
                delta = delta >> 1 ^ -(delta & 1)
            else:
                delta, position = decode_varlong(data, position)
            if delta < min_delta:
                min_delta = delta
            if delta > max_delta:
                max_delta = delta
            delta = data[position]
            if delta < 0x80:
                position += 1
                delta = delta >> 1 ^ -(delta & 1)
            elif (high := data[position + 1]) < 0x80:
                position += 2
                delta = delta & 0x7F | high << 7
                delta = delta >> 1 ^ -(delta & 1)
            else:
                delta, position = decode_varint(data, position)
            if delta != expected:
                raise InvalidRecord(f"record {expected} has offset delta {delta}, not {expected}")
            size = data[position]
            if size < 0x80:
                position += 1
                size = size >> 1 if not size & 1 else -1
            else:
                size, position = decode_varint(data, position)
            if size < 0:
                keyless += 1
            else:
                position += size
                if position > record_end:
                    raise InvalidRecord(f"record {expected}: its key passes its end")
            size = data[position]
            if size < 0x80:
                position += 1
                size = size >> 1 if not size & 1 else -1
            elif (high := data[position + 1]) < 0x80:
                position += 2
                size = size & 0x7F | high << 7
                size = size >> 1 if not size & 1 else -1
            elif (top := data[position + 2]) < 0x80:
                position += 3
                size = size & 0x7F | (high & 0x7F) << 7 | top << 14
                size = size >> 1 if not size & 1 else -1
            else:
                size, position = decode_varint(data, position)
            if size > 0:
                position += size
            if position >= record_end:
                raise InvalidRecord(f"record {expected}: its value passes its end")
            if data[position] == 0:
                position += 1
            else:
                position = _check_headers(data, position, record_end)
            if position != record_end:
                raise InvalidRecord(
                    f"record {expected}: it ends at {record_end} by its length, at {position} by its fields"
                )
    except IndexError:
        raise InvalidRecord(f"the records end at byte {end}, before the last of {count}") from None
    if position != end:
        raise InvalidRecord(f"{end - position} bytes remain after the last of {count} records")
    return min_delta, max_delta, keyless


def _check_headers(data: bytes | bytearray, position: int, record_end: int) -> int:
    start = position
    count, position = decode_varint(data, position)
    if not 0 <= count <= record_end - position:
        raise InvalidRecord(f"{count} headers at byte {start}, {record_end - position} bytes are left")
    for _ in range(count):
        size, position = decode_varint(data, position)
        if not 0 <= size <= record_end - position:
            raise InvalidRecord(f"a header's name of {size} bytes at byte {position}")
        position += size
        size, position = decode_varint(data, position)
        if size > record_end - position:
            raise InvalidRecord(f"a header's value of {size} bytes at byte {position}")
        position += max(size, 0)
    return position

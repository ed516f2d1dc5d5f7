"""Parse a record's headers: a count, then names and nullable values, each behind its length."""

from __future__ import annotations

from logstore.errors import InvalidRecord
from logstore.format.record import Header
from logstore.format.varint import decode_varint


def decode_headers(data: bytes, position: int, record_end: int) -> tuple[tuple[Header, ...], int]:
    """Return the headers at `position` and the position after them. Raises `InvalidRecord`."""
    headers: list[Header] = []
    position = parse_headers(data, position, record_end, headers)
    return tuple(headers), position


def parse_headers(
    data: bytes | bytearray, position: int, record_end: int, headers: list[Header] | None = None
) -> int:
    """Return the position after the headers at `position`, and add them to `headers` if it is given.

    Raises `InvalidRecord` for headers that break a rule.
    """
    start = position
    count, position = decode_varint(data, position)
    if not 0 <= count <= record_end - position:
        raise InvalidRecord(f"{count} headers at byte {start}, {record_end - position} bytes are left")
    for _ in range(count):
        name_size, name_at = decode_varint(data, position)
        if not 0 <= name_size <= record_end - name_at:
            raise InvalidRecord(
                f"the header name at byte {name_at} has {name_size} bytes and passes the record's end"
            )
        size, value_at = decode_varint(data, name_at + name_size)
        if size > record_end - value_at:
            raise InvalidRecord(
                f"the header value at byte {value_at} has {size} bytes and passes the record's end"
            )
        position = value_at + max(size, 0)
        if headers is not None:
            name = data[name_at : name_at + name_size].decode("utf-8", "surrogateescape")
            headers.append(Header(name, bytes(data[value_at:position]) if size >= 0 else None))
    return position

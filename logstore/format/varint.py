"""Variable-length integers of records: zigzag, then base 128, least significant group first.

     0 → 00    -1 → 01    1 → 02    63 → 7e    64 → 80 01
                                               │  └ high bit clear: the last group
                                               └ high bit set: more follow

A varint holds 32 bits in at most 5 bytes, a varlong 64 bits in at most 10. Needlessly long encodings
within that limit are legal, and bits past the width are dropped, both as in Kafka's reader.
"""

from __future__ import annotations

from logstore.errors import InvalidRecord

MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10


def encode_varlong(value: int) -> bytes:
    """Encode a signed 64-bit integer in 1 to 10 bytes. A 32-bit one gives the bytes of a varint."""
    assert -(1 << 63) <= value < 1 << 63, f"{value} does not fit 64 bits"
    zigzag = value << 1 if value >= 0 else ~(value << 1)
    if zigzag < 0x80:
        return bytes((zigzag,))
    groups = bytearray()
    while zigzag >= 0x80:
        groups.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    groups.append(zigzag)
    return bytes(groups)


def encode_varint(value: int) -> bytes:
    """Encode a signed 32-bit integer in 1 to 5 bytes."""
    assert -(1 << 31) <= value < 1 << 31, f"{value} does not fit 32 bits"
    return encode_varlong(value)


def decode_varint(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """Return the varint at `position` and the position after it. Raises `InvalidRecord`."""
    return _decode(data, position, MAX_VARINT_BYTES, 0xFFFF_FFFF)


def decode_varlong(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """Return the varlong at `position` and the position after it. Raises `InvalidRecord`."""
    return _decode(data, position, MAX_VARLONG_BYTES, 0xFFFF_FFFF_FFFF_FFFF)


def _decode(data: bytes | bytearray, position: int, max_bytes: int, mask: int) -> tuple[int, int]:
    zigzag = shift = 0
    start = position
    try:
        for _ in range(max_bytes):
            byte = data[position]
            position += 1
            zigzag |= (byte & 0x7F) << shift
            if byte < 0x80:
                zigzag &= mask
                return (zigzag >> 1) ^ -(zigzag & 1), position
            shift += 7
    except IndexError:
        raise InvalidRecord(f"the data ends inside the integer at byte {start}") from None
    raise InvalidRecord(f"the integer at byte {start} has more than {max_bytes} bytes")

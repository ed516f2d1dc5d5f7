"""Java's `String.hashCode()` and Kafka's `Utils.abs`, for places that Kafka chooses by the hash of a name."""

from __future__ import annotations

import struct


def java_hash(text: str) -> int:
    """Return the hash of `text` as an unsigned 32-bit integer, over its UTF-16 code units."""
    data = text.encode("utf-16-le", "surrogatepass")
    key = 0
    for unit in struct.unpack(f"<{len(data) // 2}H", data):
        key = (31 * key + unit) & 0xFFFFFFFF
    return key


def absolute(key: int) -> int:
    """Return the absolute value of a hash, read as signed; 0 for the smallest integer, which has none."""
    return min(key, (1 << 32) - key) % (1 << 31)

"""The keys of a topic's messages within the deduplication window. Pure: time is an argument."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator

_ENTRY = struct.Struct(">qqI")


class RecentKeys:
    """Remembers, for `window_ms`, which message first had a key."""

    __slots__ = ("_known", "window_ms")

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """Offset and time of a key's message, oldest first: a dict would look through those it has lost."""

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: bytes, now_ms: int) -> int | None:
        """Return the offset of the message that had `key` within the window; None if there is none."""
        self._expire(now_ms)
        found = self._known.get(key)
        return found[0] if found is not None and self._is_recent(found[1], now_ms) else None

    def last(self, key: bytes) -> int | None:
        """Return the offset of the last message that had `key`, as far as it is remembered."""
        found = self._known.get(key)
        return None if found is None else found[0]

    def _is_recent(self, at_ms: int, now_ms: int) -> bool:
        # Either way: a clock that was ahead would make a key known for as long as it was.
        return abs(now_ms - at_ms) < self.window_ms

    def remember(self, key: bytes, offset: int, now_ms: int) -> None:
        """Remember `key`, unless it is known with a newer message."""
        self._known.pop(key, None)
        self._known[key] = offset, now_ms

    def _expire(self, now_ms: int) -> None:
        known = self._known
        while known:
            key = next(iter(known))
            if self._is_recent(known[key][1], now_ms):
                break
            del known[key]

    def end(self) -> int:
        """Return the offset past the last message that is remembered; 0 without any."""
        return max((offset + 1 for offset, _ in self._known.values()), default=0)

    def forget_from(self, end_offset: int) -> None:
        """Forget messages at or past `end_offset`, which a power cut removed."""
        for key in [key for key, found in self._known.items() if found[0] >= end_offset]:
            del self._known[key]

    # --- in a checkpoint ------------------------------------------------------------------------

    def encode(self, now_ms: int) -> bytes:
        """Return the keys that are still in the window: offset, time, length, key; one after the other."""
        self._expire(now_ms)
        return b"".join(
            _ENTRY.pack(offset, at_ms, len(key)) + key for key, (offset, at_ms) in self._known.items()
        )

    def add_encoded(self, data: bytes) -> None:
        """Remember the keys that `encode` returned."""
        for key, offset, at_ms in _entries(data):
            self.remember(key, offset, at_ms)


def _entries(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    position = 0
    while position < len(data):
        offset, at_ms, size = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        yield data[position : position + size], offset, at_ms
        position += size

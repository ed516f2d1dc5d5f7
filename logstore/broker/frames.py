"""A stream cut into Kafka's frames, for either end of a connection.

    frame    size int32, big endian │ that many bytes

Bytes arrive in a scratch buffer that all connections of one loop share: selectors and libuv fill it and hand
it over in one go, so an idle connection owns no buffer at all. Frames found in it are copied out, a
microsecond for the largest, and a piece of one waits with its connection. A frame larger than half of the
scratch gets room of its own, which the socket fills without another copy; that room grows as bytes come, and
memory that nobody has written to yet is only an address: 100 MiB that are announced and never sent cost
nothing.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from abc import ABC, abstractmethod
from typing import Final, cast

import numpy as np

SCRATCH_BYTES: Final = 1 << 16
_LARGE_BYTES: Final = SCRATCH_BYTES // 2
_FIRST_ROOM_BYTES: Final = 1 << 21
_SIZE: Final = struct.Struct(">i")


def shared_scratch(loop: asyncio.AbstractEventLoop) -> memoryview | None:
    """A buffer for all connections of `loop`; None where each needs its own (Windows reads ahead)."""
    if sys.platform == "win32" and isinstance(loop, asyncio.ProactorEventLoop):  # pragma: no cover
        return None
    return memoryview(bytearray(SCRATCH_BYTES))


def _room(size: int) -> memoryview:
    """Memory that is not touched before bytes come; `bytearray` would write zeros all over it."""
    return np.empty(size, np.uint8).data


class Frames(asyncio.BufferedProtocol, ABC):
    """Cuts what comes into frames and hands over one after the other, while `takes_frames`."""

    def __init__(self, max_bytes: int, scratch: memoryview | None) -> None:
        """Frames of 1 to `max_bytes` are taken; others end the connection."""
        self.transport: asyncio.Transport | None = None
        self._max_bytes = max_bytes
        self._scratch = scratch if scratch is not None else memoryview(bytearray(SCRATCH_BYTES))
        self._rest = b""
        """What came and was not handed over yet."""
        self._large: memoryview | None = None
        """Room of a large frame that is on its way, of `_wanted` bytes in the end, `_filled` by now."""
        self._wanted = self._filled = 0

    @property
    @abstractmethod
    def takes_frames(self) -> bool:
        """Whether the next frame may be handed over."""

    @abstractmethod
    def frame_received(self, frame: memoryview) -> None:
        """A whole frame, without its size; read-only, and it stays as it is."""

    @abstractmethod
    def frames_cut(self) -> None:
        """What could be handed over of this wake-up has been."""

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """End the connection: what came breaks the protocol."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    @property
    def has_rest(self) -> bool:
        """Whether bytes wait here that were not handed over; a large frame counts once it is whole."""
        return bool(self._rest) or (self._large is not None and self._filled == self._wanted)

    def drop_rest(self) -> None:
        self._rest, self._large = b"", None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            if self._filled == len(self._large):
                larger = _room(min(2 * self._filled, self._wanted))
                larger[: self._filled] = self._large
                self._large = larger
            return self._large[self._filled :]
        held = len(self._rest)
        assert held < SCRATCH_BYTES, "reading was paused before there was that much"
        self._scratch[:held] = self._rest
        return self._scratch[held:]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is None:
            held = len(self._rest) + nbytes
            self._rest = b""
            self._cut(self._scratch[:held])
        else:
            self._filled += nbytes
            self._take_large()
        self.frames_cut()

    def cut_rest(self) -> None:
        """Hand over what waited for `takes_frames`; `frames_cut` is the caller's to do."""
        if self._large is not None:
            self._take_large()
        else:
            rest, self._rest = self._rest, b""
            self._cut(memoryview(rest))

    def _take_large(self) -> None:
        if self._large is not None and self._filled == self._wanted and self.takes_frames:
            frame, self._large = self._large.toreadonly(), None
            self.frame_received(frame)

    def _cut(self, data: memoryview) -> None:
        at, end = 0, len(data)
        while self.takes_frames and end - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(data, at)
            if not 0 < size <= self._max_bytes:
                self.refuse(f"a frame of {size} bytes; 1 to {self._max_bytes} are taken")
                return
            start = at + _SIZE.size
            if end - start >= size:
                at = start + size
                self.frame_received(memoryview(data[start:at].tobytes()))
            elif size > _LARGE_BYTES:
                self._large = _room(min(size, _FIRST_ROOM_BYTES))
                self._wanted, self._filled = size, end - start
                self._large[: self._filled] = data[start:]
                return
            else:
                break
        self._rest = data[at:].tobytes()

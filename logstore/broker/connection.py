"""One connection that a client made: frames in, one request in hand, answers out in order.

    socket ─▶ frame ─▶ on_frame ─▶ … answer(pieces) ─▶ what one wake-up brought goes out in one write
                ▲                        │
                └── the next one ◀───────┘ unless the answer lingers in the write buffer, or a throttle runs

While a request is in hand the next bytes wait here, one buffer of them at most, and then in the socket: a
peer that floods fills its own window. Reading goes on until there is something to keep, so that a client that
leaves while its request waits is noticed. An answer that is not taken stops the next request: one answer is
all that a slow reader makes us hold, and it is cut off if it takes nothing for `connections.max.idle.ms`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from logstore.broker.frames import Frames
from logstore.disk.files import Buffer

if TYPE_CHECKING:
    from logstore.broker.server import Server

_OWN_WRITE_BYTES: Final = 1 << 16
"""Pieces from this size on are written as they are; joining smaller ones costs less than a write."""

_log = logging.getLogger(__name__)


class Connection(Frames):
    """A client's, from accept to close. Belongs to the event loop's thread."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.limits.socket_request_max_bytes, server.scratch)
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.peer = ""
        """The client's address, as far as the transport knows it."""
        self.software = ""
        """Name and version of the client's software, once it has told them (ApiVersions 3)."""
        self._is_busy = False
        self._is_clogged = False
        self._is_closing = False
        self._is_cutting = False
        self._is_paused = False
        self._mute: asyncio.TimerHandle | None = None
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._active_at = self._loop.time()
        self._left_bytes = 0

    # --- what the loop tells ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        self.peer = name[0] if isinstance(name, tuple) else ""
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self.drop_rest()
        self._out.clear()
        if self._mute is not None:
            self._mute.cancel()
        self._server.closed(self)

    def buffer_updated(self, nbytes: int) -> None:
        self._active_at = self._loop.time()
        self._is_cutting = True
        try:
            super().buffer_updated(nbytes)
        finally:
            self._is_cutting = False

    @property
    def takes_frames(self) -> bool:
        return not (self._is_busy or self._is_clogged or self._is_closing or self._mute is not None)

    def frame_received(self, frame: memoryview) -> None:
        self._is_busy = True
        self._server.on_frame(self, frame)

    def frames_cut(self) -> None:
        self._flush()
        assert self.transport is not None, "connected"
        if self.has_rest and not self.takes_frames and not self._is_paused and not self._is_closing:
            self._is_paused = True
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self._is_clogged = True

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._active_at = self._loop.time()
        self._go_on()

    # --- answers ------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a request is in hand."""
        return self._is_busy

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    def answer(self, pieces: Iterable[Buffer], *, throttle_ms: int = 0) -> None:
        """Answer the request in hand with a whole frame, or with nothing at all, and go on to the next.

        A throttled client has its answer at once, and is not listened to for that long.
        """
        if self._is_closing:
            return
        assert self._is_busy, "one request has one answer"
        self._is_busy = False
        for piece in pieces:
            self._out.append(piece)
            self._out_bytes += len(piece)
        if throttle_ms > 0:
            self._mute = self._loop.call_later(throttle_ms / 1000, self._unmute)
        if self._server.is_draining:
            self._flush()
            self.close()
        elif self._is_cutting:
            if self._out_bytes >= _OWN_WRITE_BYTES:
                self._flush()  # now, to know before the next request whether it is taken
        else:
            self._active_at = self._loop.time()
            self._flush()
            if self._is_paused or self.has_rest:
                # Not now: whoever answers late is in the middle of something, mostly a turn of the engine.
                self._loop.call_soon(self._go_on)

    def _unmute(self) -> None:
        self._mute = None
        self._go_on()

    def _go_on(self) -> None:
        """Serve what has come meanwhile, and read on."""
        if self._is_cutting or self._is_closing:
            return
        self._flush()
        if self.has_rest and self.takes_frames:
            self._is_cutting = True
            try:
                self.cut_rest()
            finally:
                self._is_cutting = False
            self._flush()
        assert self.transport is not None, "connected"
        if self._is_paused and not self.transport.is_closing() and (self.takes_frames or not self.has_rest):
            self._is_paused = False
            self.transport.resume_reading()

    def _flush(self) -> None:
        if not self._out:
            return
        assert self.transport is not None, "connected"
        out, self._out, self._out_bytes = self._out, [], 0
        small: list[Buffer] = []
        for piece in out:
            if len(piece) < _OWN_WRITE_BYTES:
                small.append(piece)
                continue
            if small:
                self.transport.write(b"".join(small))
                small.clear()
            self.transport.write(piece)
        if small:
            self.transport.write(b"".join(small))

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Close once what was written has gone out."""
        if not self._is_closing and self.transport is not None:
            self._flush()
            self._is_closing = True
            self.transport.close()

    def refuse(self, reason: str) -> None:
        """Cut the connection, now: its client breaks the protocol, or is not wanted.

        What was answered before goes out as far as the socket takes it: it was done.
        """
        if not self._is_closing and self.transport is not None:
            self._flush()
            _log.warning("cutting off %s%s: %s", self.peer, self.software and f" ({self.software})", reason)
            self.abort()

    def abort(self) -> None:
        """Cut the connection, now, with what has not gone out."""
        self._is_closing = True
        self._out.clear()
        if self.transport is not None:
            self.transport.abort()

    def close_if_idle(self, now_s: float, idle_s: float) -> None:
        """Close it if nothing was asked, and nothing taken of what is to go out, for that long."""
        assert self.transport is not None, "connected"
        left_bytes = self.transport.get_write_buffer_size()
        if left_bytes < self._left_bytes:
            self._active_at = now_s
        self._left_bytes = left_bytes
        if self._is_busy or now_s - self._active_at < idle_s:
            return
        if left_bytes:
            self.refuse(f"it has taken nothing of its answer for {idle_s} s")
        else:
            self.close()

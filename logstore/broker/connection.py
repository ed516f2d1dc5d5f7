"""Connections: a stream cut into Kafka's frames, and their handling on the server's side.

    frame    size int32, big endian │ that many bytes

`Frames` serves both ends of a connection. Bytes arrive in a scratch buffer that all connections of one loop
share: selectors and libuv fill it and hand it over in one go, so an idle connection owns no buffer. Complete
frames are copied out, which takes a microsecond for the largest; a partial frame stays with its connection. A
frame larger than half of the scratch buffer gets a buffer of its own, which the socket fills without another
copy. That buffer grows as bytes arrive, and untouched memory is only an address: 100 MiB that are announced
and never sent cost nothing.

`Connection` is the server's end: frames in, one request in hand, answers out in order.

    socket ─▶ frame ─▶ on_frame ─▶ … answer(pieces) ─▶ the answers of one wake-up go out in one write
                ▲                        │
                └── the next one ◀───────┘ unless the write buffer is full, or the connection is muted

While a request is in hand, the next bytes wait here, one buffer at most, and then in the socket: a flooding
client fills its own window. Reading continues until there is something to keep, so that a client that leaves
during its request is noticed. The next request waits until the answer has been written: a slow reader makes
the broker hold one answer, and is disconnected if it reads nothing for `connections.max.idle.ms`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from logstore.broker.security.login import Login
from logstore.broker.security.principals import ANONYMOUS, principal_of
from logstore.broker.wire.headers import JOINED_BELOW, joined
from logstore.disk.files import Buffer
from logstore.loggers import logger_of

if TYPE_CHECKING:
    from logstore.broker.security.door import Door
    from logstore.broker.server import Server

SCRATCH_BYTES: Final = 1 << 16
_LARGE_BYTES: Final = SCRATCH_BYTES // 2
_FIRST_ROOM_BYTES: Final = 1 << 21
REQUESTS_A_TURN: Final = 5
"""Pipelined produce requests of one connection that are served before other connections have their turn. A
producer has no more in flight. A request of another kind ends the turn: it may cost more than all these."""
MOST_IN_HAND: Final = 5
"""Produce requests of one connection that wait for their acks at the same time."""
LARGEST_BEFORE_NEXT: Final = 1 << 20
"""Behind a larger request none is taken in: its bytes stay in memory until it is answered."""
_PRODUCE: Final = b"\0\0"
"""The API key with which a frame begins."""
_SIZE: Final = struct.Struct(">i")
_OTHER_PROTOCOLS: Final = {
    b"\x16\x03": "a TLS handshake on a connection without TLS (security.protocol)",
    b"\x15\x03": "a TLS alert on a connection without TLS (security.protocol)",
    b"HTTP": "an answer of an HTTP server",
    **dict.fromkeys((b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"CONN"), "an HTTP request"),
    b"SSH-": "an SSH server or client",
}
"""By their first bytes. Each is more than a frame may have: the most is 100 MiB by default."""
_MOST_PIECES: Final = 16
"""Every system takes so many pieces in one write."""

_log = logger_of(__name__)


def shared_scratch(loop: asyncio.AbstractEventLoop) -> memoryview | None:
    """Return a buffer for all connections of `loop`; None if each needs its own (Windows reads ahead)."""
    if sys.platform == "win32" and isinstance(loop, asyncio.ProactorEventLoop):  # pragma: no cover
        return None
    return memoryview(bytearray(SCRATCH_BYTES))


def _room(size: int) -> memoryview:
    """Allocate memory without touching it; `bytearray` would fill it with zeros."""
    return np.empty(size, np.uint8).data


def _out_of_range(size: int, max_bytes: int) -> str:
    """Say which other protocol the four bytes of the size begin, if they do."""
    start = _SIZE.pack(size)
    found = next((f": {name}" for first, name in _OTHER_PROTOCOLS.items() if start.startswith(first)), "")
    return f"frame size {size} out of range (1 to {max_bytes}){found}"


def _is_produce(frame: memoryview) -> bool:
    return frame[:2].tobytes() == _PRODUCE


class Frames(asyncio.BufferedProtocol, ABC):
    """Cuts a stream into frames and delivers them one by one while `takes_frames`."""

    def __init__(self, max_bytes: int, scratch: memoryview | None) -> None:
        """A frame of less than 1 or more than `max_bytes` bytes ends the connection."""
        self.transport: asyncio.Transport | None = None
        self._max_bytes = max_bytes
        self._scratch = scratch if scratch is not None else memoryview(bytearray(SCRATCH_BYTES))
        self._rest = b""
        """Bytes that have arrived and were not handed over yet."""
        self._large: memoryview | None = None
        """The buffer of a large frame: `_filled` of `_wanted` bytes have arrived."""
        self._wanted = self._filled = 0

    @property
    @abstractmethod
    def takes_frames(self) -> bool:
        """Return whether the next frame may be delivered."""

    def takes(self, frame: memoryview) -> bool:
        """Return whether this complete frame may be delivered now; if not, it stays in the buffer."""
        return True

    @abstractmethod
    def frame_received(self, frame: memoryview) -> None:
        """Handle a complete frame, without its size. It is read-only and is not reused."""

    @abstractmethod
    def frames_cut(self) -> None:
        """Called when the frames of a wake-up have been delivered."""

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """End the connection because of a protocol error."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    @property
    def has_rest(self) -> bool:
        """Return whether bytes wait to be delivered; a large frame counts once it is complete."""
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
        assert held < SCRATCH_BYTES, "reading is paused before the buffer is full"
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
        """Hand over the bytes that waited for `takes_frames`. Does not call `frames_cut`."""
        if self._large is not None:
            self._take_large()
        else:
            rest, self._rest = self._rest, b""
            self._cut(memoryview(rest))

    def _take_large(self) -> None:
        large = self._large
        if large is not None and self._filled == self._wanted and self.takes_frames and self.takes(large):
            self._large = None
            self.frame_received(large.toreadonly())

    def _cut(self, data: memoryview) -> None:
        at, end = 0, len(data)
        while self.takes_frames and end - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(data, at)
            if not 0 < size <= self._max_bytes:
                self.refuse(_out_of_range(size, self._max_bytes))
                return
            start = at + _SIZE.size
            if end - start >= size:
                if not self.takes(data[start:]):
                    break
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


class Connection(Frames):
    """A client's connection, from accept to close. Belongs to the event loop's thread."""

    def __init__(self, server: Server, door: Door | None = None, *, is_protected: bool = False) -> None:
        super().__init__(server.limits.socket_request_max_bytes, server.scratch)
        self._server = server
        self.login: Login | None = None
        """How the client logs in, and as whom; None if the listener asks for no login."""
        self._principal = ANONYMOUS
        self.door = door
        """The listener through which the client came; None for the only one, which is plain."""
        self.is_protected = is_protected
        """Whether that is a listener used only by brokers."""
        self._loop = asyncio.get_running_loop()
        self.peer = ""
        """The client's address, if the transport knows it."""
        self.software = ""
        """Name and version of the client's software, if it has sent them (ApiVersions 3)."""
        self._turn_left = REQUESTS_A_TURN
        self._descriptor = -1
        """The socket's, for writing past the transport; -1 if that is not possible."""
        self._taken = 0
        """How many requests have been taken in; the last one has this number."""
        self._answered = 0
        """How many of them, from the first on, have been answered."""
        self._early: dict[int, tuple[Iterable[Buffer], int]] = {}
        """Answers that wait for the answer of an earlier request: pieces and throttle time."""
        self._is_open = False
        """Whether a produce request may follow before the last request is answered."""
        self._last_bytes = 0
        """The size of the last request."""
        self._is_held_up = False
        """Whether the next request is of another kind, and waits for all answers."""
        self._is_clogged = False
        self._is_closing = False
        self._is_cutting = False
        self._is_paused = False
        self._mute: asyncio.TimerHandle | None = None
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._active_at = self._loop.time()
        self._left_bytes = 0
        self.when_lost: dict[int, Callable[[], None]] = {}
        """By number of a request in hand: gives it up when the connection has closed."""

    # --- called by the loop -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        self.peer = name[0] if isinstance(name, tuple) else ""
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(os, "writev") and transport.get_extra_info("sslcontext") is None:
                self._descriptor = raw.fileno()
        self._server.opened(self)
        if self.door is not None and not self._is_closing:
            self._identify(self.door, transport)

    @property
    def principal(self) -> str:
        """Return who the client is: by its login, else by its certificate."""
        return self.login.principal if self.login is not None else self._principal

    def _identify(self, door: Door, transport: asyncio.BaseTransport) -> None:
        """Begin a login, or take the principal from the certificate."""
        if door.sasl is not None:
            self.login = Login(self, door.sasl)
            self._max_bytes = door.sasl.max_receive_bytes
        elif door.tls is not None:
            certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            principal = principal_of(certificate, door.rules)
            if principal is None:
                reason = "no rule of ssl.principal.mapping.rules matches the certificate"
                self._server.audit("login failed", host=self.peer, mechanism="TLS", reason=reason)
                self.refuse(reason)
            self._principal = principal or ANONYMOUS
            if self._principal != ANONYMOUS:
                self._server.audit("login", principal=principal, host=self.peer, mechanism="TLS")

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._descriptor = -1  # the number may be another connection's from now on
        self.drop_rest()
        self._out.clear()
        self._early.clear()
        if self._mute is not None:
            self._mute.cancel()
        if self.login is not None:
            self.login.end()
        self._server.closed(self)
        when_lost, self.when_lost = self.when_lost, {}
        for give_up in when_lost.values():
            give_up()

    def buffer_updated(self, nbytes: int) -> None:
        self._active_at = self._loop.time()
        self._is_cutting = True
        self._turn_left = REQUESTS_A_TURN
        try:
            super().buffer_updated(nbytes)
        finally:
            self._is_cutting = False

    @property
    def takes_frames(self) -> bool:
        if self._is_clogged or self._is_closing or self._mute is not None:
            return False
        return self._turn_left > 0 and self._has_place

    @property
    def _has_place(self) -> bool:
        """Whether another request may be accepted beside those in progress."""
        in_hand = self._taken - self._answered
        return not in_hand or (self._is_open and not self._is_held_up and in_hand < MOST_IN_HAND)

    def takes(self, frame: memoryview) -> bool:
        self._is_held_up = self.is_busy and not _is_produce(frame)
        return not self._is_held_up

    def frame_received(self, frame: memoryview) -> None:
        self._taken += 1
        self._is_open, self._last_bytes = False, len(frame)
        self._turn_left = self._turn_left - 1 if _is_produce(frame) else 0
        self._server.on_frame(self, frame)

    def frames_cut(self) -> None:
        self._flush()
        assert self.transport is not None, "connected"
        if self.has_rest and not self.takes_frames and not self._is_paused and not self._is_closing:
            self._is_paused = True
            self.transport.pause_reading()
        self._yield_turn()

    def _yield_turn(self) -> None:
        """When the turn is over, let other connections have theirs before the next request."""
        if self._turn_left == 0 and self.has_rest and self._has_place:
            self._loop.call_soon(self._go_on)

    def pause_writing(self) -> None:
        self._is_clogged = True

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._active_at = self._loop.time()
        self._go_on()

    # --- answers ------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Return whether a request is in progress."""
        return self._taken != self._answered

    @property
    def number(self) -> int:
        """The number of the last request taken in."""
        return self._taken

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    def take_next(self) -> None:
        """Take in a produce request before the last one is answered: that one has its place in the log.

        A producer's requests then reach followers together, and not one a round trip. Others still wait.
        """
        self._is_open = self._last_bytes <= LARGEST_BEFORE_NEXT
        if not self._is_cutting and (self._is_paused or self.has_rest):
            self._loop.call_soon(self._go_on)

    def answer(self, pieces: Iterable[Buffer], *, throttle_ms: int = 0, number: int | None = None) -> None:
        """Answer a request in progress with a complete frame, or with nothing, and continue with the next.

        `number` is the request's; None for the oldest. Answers leave in the order of requests. A throttled
        client gets its answer at once; its connection is then muted for `throttle_ms`.
        """
        if self._is_closing:
            return
        first = self._answered + 1
        number = first if number is None else number
        is_due = first <= number <= self._taken and number not in self._early
        assert is_due, "one request has one answer"
        self._early[number] = pieces, throttle_ms
        if number != first:
            return
        while (early := self._early.pop(self._answered + 1, None)) is not None:
            self._answered += 1
            self.when_lost.pop(self._answered, None)
            for piece in early[0]:
                self._out.append(piece)
                self._out_bytes += len(piece)
            if early[1] > 0:
                self._mute_for(early[1])
        if self._server.is_draining:
            self._flush()
            if not self.is_busy:
                self.close()
        elif self._is_cutting:
            if self._out_bytes >= JOINED_BELOW:
                self._flush()  # now, to know before the next request whether the client reads
        else:
            self._active_at = self._loop.time()
            self._flush()
            if self._is_paused or self.has_rest:
                # Not now: a late answer comes from the middle of other work, mostly a turn of the engine.
                self._loop.call_soon(self._go_on)

    def _mute_for(self, throttle_ms: int) -> None:
        if self._mute is not None:
            if self._mute.when() >= self._loop.time() + throttle_ms / 1000:
                return  # until the end of the longest
            self._mute.cancel()
        self._mute = self._loop.call_later(throttle_ms / 1000, self._unmute)

    def _unmute(self) -> None:
        self._mute = None
        self._go_on()

    def _go_on(self) -> None:
        """Serve the bytes that have arrived meanwhile, and resume reading."""
        if self._is_cutting or self._is_closing:
            return
        self._flush()
        self._turn_left = REQUESTS_A_TURN
        if self.has_rest and self.takes_frames:
            self._is_cutting = True
            try:
                self.cut_rest()
            finally:
                self._is_cutting = False
            self._flush()
            self._yield_turn()
        assert self.transport is not None, "connected"
        if self._is_paused and not self.transport.is_closing() and (self.takes_frames or not self.has_rest):
            self._is_paused = False
            self.transport.resume_reading()

    def _flush(self) -> None:
        if not self._out:
            return
        transport = self.transport
        assert transport is not None, "connected"
        out = list(joined(self._out))
        self._out, self._out_bytes = [], 0
        if self._descriptor >= 0 and not transport.get_write_buffer_size() and not transport.is_closing():
            out = self._write_now(out)
        for piece in out:
            transport.write(piece)

    def _write_now(self, out: list[Buffer]) -> list[Buffer]:
        """Write what the socket takes at once, in one call and without a copy; return the rest.

        The transport must hold nothing back. An error is left to its own write, which ends the connection.
        """
        try:
            sent = os.writev(self._descriptor, out[:_MOST_PIECES])
        except OSError:
            return out
        for number, piece in enumerate(out):
            if sent < len(piece):
                rest = memoryview(piece)[sent:] if sent else piece
                return [rest, *out[number + 1 :]]
            sent -= len(piece)
        return []

    # --- logging in ---------------------------------------------------------------------------

    def logged_in(self) -> None:
        """From now on requests may be as large as any."""
        self._max_bytes = self._server.limits.socket_request_max_bytes

    def fail_late(self, answer: Callable[[], None], delay_s: float) -> None:
        """Answer the current request after a delay, if at all, and close. No other is accepted meanwhile."""

        def fail() -> None:
            answer()
            self.close()

        self._loop.call_later(delay_s, fail)

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection once everything written has been sent."""
        if not self._is_closing and self.transport is not None:
            self._flush()
            self._is_closing = True
            self.transport.close()

    def refuse(self, reason: str) -> None:
        """Disconnect now: the client breaks the protocol, or is one too many.

        Earlier answers are sent as far as the socket accepts them. A client may come back at once, hundreds
        of times a second: the same reason is logged once in a while, with the number of connections.
        """
        if not self._is_closing and self.transport is not None:
            self._flush()
            if self.login is not None:
                self.login.cut(reason)
            count = self._server.to_report(reason)
            level = logging.WARNING if count else logging.DEBUG
            name = self.software and f" ({self.software})"
            many = f" ({count} connections)" if count > 1 else ""
            _log.log(level, "disconnecting %s%s: %s%s", self.peer, name, reason, many)
            self.abort()

    def abort(self) -> None:
        """Disconnect now, and drop unsent answers."""
        self._is_closing = True
        self._out.clear()
        if self.transport is not None:
            self.transport.abort()

    def close_if_idle(self, now_s: float, idle_s: float) -> None:
        """Close the connection after `idle_s` seconds without a request or progress of a write."""
        assert self.transport is not None, "connected"
        left_bytes = self.transport.get_write_buffer_size()
        if left_bytes < self._left_bytes:
            self._active_at = now_s
        self._left_bytes = left_bytes
        if self.is_busy or now_s - self._active_at < idle_s:
            return
        if left_bytes:
            self.refuse(f"write stalled for {idle_s} s")
        else:
            self.close()

"""TLS between a socket's transport and a protocol, over `ssl.MemoryBIO`.

    socket ─▶ transport ─bytes─▶ TlsStream ─plain bytes─▶ protocol (buffered)
    socket ◀─ transport ◀─────── TlsStream ◀───write──── protocol, to which it is the transport

asyncio's own TLS tells nobody of a failed handshake, and takes 256 KiB for each connection. Here the protocol
gets `connection_made` once the handshake is over, and a `Watcher` follows handshakes. OpenSSL hands over one
record a call, and librdkafka makes records of some kilobytes: the protocol's buffer is filled with as many as
have arrived before the protocol hears of it. A peer
whose first byte is not TLS's is disconnected without an alert: a Kafka client without TLS reads an alert as
the size of a huge response, and runs out of memory.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from logstore.disk.files import Buffer

HANDSHAKE_S: Final = 10.0
"""The longest handshake, unless a listener's limits say otherwise."""
_HANDSHAKE: Final = 0x16
"""The type of the first record of a TLS connection."""
_PIECE: Final = 1 << 18
"""So much is encrypted at once while the socket takes it."""
_RECEIVED: Final = 1 << 18
"""So much is received at once."""
_FED: Final = 15_000
"""OpenSSL gets so much at once: its buffers keep their largest size, for each connection."""
_RECORD: Final = 1 << 14
"""The bytes of the largest record."""
NOT_TRUSTED: Final = "TLS handshake failed"
"""Begins the reason when the peer's certificate is refused."""
_NO_SIGNER: Final = "; no certificate in ssl.truststore.location has signed it"
_OTHER_NAME: Final = "; connect to a name or address that the certificate has"
_ADVICE: Final = dict.fromkeys((18, 19, 20, 21), _NO_SIGNER) | dict.fromkeys((62, 64), _OTHER_NAME)
"""By OpenSSL's `X509_V_ERR_…` codes."""


class Watcher(Protocol):
    """Follows the handshakes of streams."""

    def began(self, stream: TlsStream) -> None:
        """Called when the socket is connected; it may abort the stream."""

    def ended(self, stream: TlsStream, reason: str) -> None:
        """Called once, when the handshake is over; `reason` says why it failed, empty if it did not."""


_NOTHING: Final = memoryview(b"")


class _OfThread(threading.local):
    """What the streams of a thread share: a buffer that is filled and emptied in one go."""

    def __init__(self) -> None:
        self.received = memoryview(bytearray(_RECEIVED))


_shared: Final = _OfThread()


class TlsStream(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a socket, and the transport of `inner`. Belongs to the event loop's thread."""

    def __init__(
        self,
        inner: asyncio.BufferedProtocol,
        context: ssl.SSLContext,
        *,
        host: str | None = None,
        watcher: Watcher,
        patience_s: float = HANDSHAKE_S,
    ) -> None:
        """`host` is the server's name for a client; None on the server's side."""
        super().__init__()
        self.inner, self._watcher, self._patience_s = inner, watcher, patience_s
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host is None, server_hostname=host
        )
        self._is_server, self._has_news = host is None, False
        self._raw: asyncio.Transport
        self._is_connected = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = self._has_ended = self._is_reading_paused = self._is_closing = False
        self._is_clogged = self._is_told_to_pause = False
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0
        self._received = _shared.received
        if sys.platform == "win32":  # pragma: no cover  # which reads ahead
            self._received = memoryview(bytearray(_FED))
        self._unfed = _NOTHING
        """The part of it that OpenSSL has not got yet."""
        self._fault: ssl.SSLError | None = None
        """Met behind bytes that were handed over first."""

    # --- the socket's protocol ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw, self._is_connected = cast(asyncio.Transport, transport), True
        loop = asyncio.get_running_loop()
        late = f"no TLS handshake in {self._patience_s:g} s"
        self._timer = loop.call_later(self._patience_s, self._fail, late)
        self._watcher.began(self)
        if not self._is_server:
            self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    @property
    def _is_over(self) -> bool:
        return self._has_ended or self._is_closing

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_over:
            return
        if self._is_server and not self._has_news and self._received[0] != _HANDSHAKE:
            self._fail("its first bytes are not TLS; does it use security.protocol=SSL?")
            return
        self._has_news = True
        self._unfed = self._received[:nbytes]
        while self._unfed and not self._is_open and not self._is_over:
            self._feed()
            self._shake_hands()
        if self._is_open:
            self._read()
        if self._unfed:
            self._incoming.write(self._unfed)  # nobody wants it now
            self._unfed = _NOTHING

    def _feed(self) -> None:
        """Give OpenSSL some of what has been received."""
        self._incoming.write(self._unfed[:_FED])
        self._unfed = self._unfed[_FED:]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pending.clear()
        why = f": {exc}" if exc else "" if self._is_server else "; the other side may have no TLS"
        self._tell_end(exc, f"the connection ended in the TLS handshake{why}")

    def _tell_end(self, error: Exception | None, reason: str) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._is_open:
            self._is_open = False
            self.inner.connection_lost(error)
        else:
            self._watcher.ended(self, reason)

    def pause_writing(self) -> None:
        self._is_clogged = True
        self._tell_inner()

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._send_pending()

    # --- handshake and decryption -------------------------------------------------------------

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._send()  # the alert, which tells the peer why
            self._fail(_reason(error))
            return
        self._send()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_open = True
        self._watcher.ended(self, "")
        self.inner.connection_made(self)

    def _fail(self, reason: str) -> None:
        # An alert that the socket has taken is sent still; a peer that takes none must not hold us.
        if self._raw.get_write_buffer_size():
            self._raw.abort()
        else:
            self._raw.close()
        self._tell_end(ssl.SSLError(ssl.SSL_ERROR_SSL, reason), reason)

    def _read(self) -> None:
        """Hand over what is decrypted, as far as the protocol wants it."""
        is_more = True
        while is_more and self._is_open and not self._is_reading_paused and not self._raw.is_closing():
            buffer = cast(memoryview, self.inner.get_buffer(-1))
            size = len(buffer)
            count = self._decrypt(buffer)
            is_more = count == size
            if count:
                self.inner.buffer_updated(count)
        if self._fault is not None and self._is_open and not self._is_reading_paused:
            self._end_by(self._fault)
            return
        self._send()  # answers to key updates

    def _decrypt(self, buffer: memoryview) -> int:
        """Fill the buffer with what has arrived; return how many bytes. What ends the stream is kept."""
        count, size = 0, len(buffer)
        read = cast("Callable[[int, memoryview], int]", self._tls.read)
        while count < size and self._fault is None:
            try:
                while got := read(size - count, buffer[count:]):
                    count += got
                    if count == size:
                        return count
                self._fault = ssl.SSLZeroReturnError()
            except ssl.SSLWantReadError:
                if not self._unfed:
                    break
                self._feed()
            except ssl.SSLError as error:
                self._fault = error
        return count

    def _end_by(self, fault: ssl.SSLError) -> None:
        if isinstance(fault, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            self.close()  # the peer has said that it ends
        else:
            self._fail(_reason(fault))

    def _send(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    # --- the protocol's transport -------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return self._raw.get_extra_info(name, default)

    def write(self, data: Buffer) -> None:
        if self._is_closing or self._raw.is_closing() or not len(data):
            return
        piece = memoryview(data).cast("B")
        self._pending.append(piece)
        self._pending_bytes += len(piece)
        self._send_pending()

    def _send_pending(self) -> None:
        while self._pending and not self._is_clogged and not self._raw.is_closing():
            piece = self._pending.popleft()
            if len(piece) > _PIECE:
                self._pending.appendleft(piece[_PIECE:])
                piece = piece[:_PIECE]
            self._pending_bytes -= len(piece)
            sealed = []
            try:
                for at in range(0, len(piece), _RECORD):
                    self._tls.write(piece[at : at + _RECORD])
                    sealed.append(self._outgoing.read())
            except ssl.SSLError as error:
                self._fail(_reason(error))
                return
            self._raw.write(b"".join(sealed))
        self._tell_inner()
        if self._is_closing and not self._pending:
            self._end()

    def _tell_inner(self) -> None:
        """Pause or resume the protocol's writing."""
        is_full = self._is_clogged or bool(self._pending)
        if self._is_open and is_full != self._is_told_to_pause:
            self._is_told_to_pause = is_full
            (self.inner.pause_writing if is_full else self.inner.resume_writing)()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size() + self._pending_bytes

    def is_closing(self) -> bool:
        return self._is_closing or self._raw.is_closing()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._pending:
                self._end()

    def _end(self) -> None:
        """Tell the peer that the stream ends here, and close."""
        if self._raw.is_closing():
            return
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # it wants the peer's farewell, for which nobody waits
        self._send()
        self._raw.close()

    def abort(self) -> None:
        self._is_closing = True
        self._pending.clear()
        if self._is_connected:
            self._raw.abort()

    def pause_reading(self) -> None:
        self._is_reading_paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        if not self._raw.is_closing():
            self._raw.resume_reading()
            # Decrypted bytes may wait here, for which the socket has no event any more.
            asyncio.get_running_loop().call_soon(self._read)

    def is_reading(self) -> bool:
        return not self._is_reading_paused


_NOT_LIKED: Final = ": the other side does not trust this side's certificate; check ssl.keystore.location"
_ALERTS: Final = {
    "alert certificate required": ": the other side requires a certificate; set ssl.keystore.location",
    **dict.fromkeys(("alert unknown ca", "alert bad certificate", "alert certificate unknown"), _NOT_LIKED),
}
"""Advice for TLS alerts from the peer."""


def _reason(error: Exception) -> str:
    """Return what failed, in OpenSSL's words without their source line, and what to check."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = (error.verify_message or str(error)).rstrip(".")
        return f"{NOT_TRUSTED}: {text}{_ADVICE.get(error.verify_code, '')}"
    text = (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
    return f"TLS failed: {text}{next((advice for alert, advice in _ALERTS.items() if alert in text), '')}"

"""TLS between socket and protocol: bytes through it, handshakes that fail, peers that stop."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from logstore.broker.connection import Connection
from logstore.broker.limits import Address, Limits
from logstore.broker.loop import fastest_loop
from logstore.broker.security.config import tls_config
from logstore.broker.security.door import Door
from logstore.broker.security.tls import Renewed, client_context, now, server_context
from logstore.broker.security.tls_stream import TlsStream
from logstore.broker.server import Server
from tests.broker.security.authority import stores

LOOPS = {"asyncio": asyncio.new_event_loop, "fastest": fastest_loop()}


@pytest.fixture(params=[each for each in LOOPS if LOOPS[each] is not None])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    def run(test: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(bounded())

    return run


class Bench:
    """A server behind TLS that repeats every frame."""

    def __init__(self, directory: Path, limits: Limits | None = None, **tls: str) -> None:
        self.settings = stores(directory)
        self.server = Server(self.on_frame, limits)
        self._tls = {**self.settings, **{name.replace("_", "."): value for name, value in tls.items()}}
        self.address = Address("", 0)
        self.connections: list[Connection] = []
        self._writers: list[asyncio.StreamWriter] = []

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        self.connections.append(connection)
        connection.answer((struct.pack(">i", len(frame)), frame))

    async def __aenter__(self) -> Bench:
        door = Door("SSL", tls=Renewed(tls_config(self._tls)))
        self.address = await self.server.listen(Address("127.0.0.1", 0), door)
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        self.server.close()
        for _turn in range(10):
            await asyncio.sleep(0)

    async def plain(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        self._writers.append(writer)
        return reader, writer

    async def connect(self, **tls: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        trust = {"ssl.truststore.location": self.settings["ssl.truststore.location"], **tls}
        context = client_context(tls_config(trust), now())
        reader, writer = await asyncio.open_connection(
            *self.address, ssl=context, server_hostname="localhost", limit=1 << 16
        )
        self._writers.append(writer)
        return reader, writer

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await asyncio.sleep(0.001)


async def is_cut_off(reader: asyncio.StreamReader) -> bool:
    """Whether the connection ends without another byte."""
    try:
        return await reader.read() == b""
    except (ssl.SSLError, ConnectionError):
        return True


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def test_frames_of_all_sizes_come_back(run: Callable[..., None], tmp_path: Path) -> None:
    async def test() -> None:
        async with Bench(tmp_path) as bench:
            reader, writer = await bench.connect()
            for size in (1, 100, 16_384, 70_000, 5_000_000):
                sent = framed(bytes(range(256)) * (size // 256) + bytes(size % 256))
                writer.write(sent)
                assert await reader.readexactly(len(sent)) == sent
            writer.write(framed(b"a") + framed(b"b") * 9)
            assert await reader.readexactly(50) == framed(b"a") + framed(b"b") * 9
            assert not bench.server.failed_handshakes
            (connection,) = set(bench.connections)
            assert connection.peer == "127.0.0.1"

    run(test)


def test_a_slow_reader_holds_its_own_answers(run: Callable[..., None], tmp_path: Path) -> None:
    """What is not taken is not encrypted, and counts as unsent."""

    async def test() -> None:
        async with Bench(tmp_path) as bench:
            reader, writer = await bench.connect()
            sent = framed(bytes(8 << 20))
            writer.write(sent)
            await bench.until(lambda: bool(bench.connections))
            transport = bench.connections[0].transport
            assert transport is not None
            assert transport.get_write_buffer_size() > 1 << 20
            writer.write(framed(b"next"))
            assert await reader.readexactly(len(sent)) == sent
            assert await reader.readexactly(8) == framed(b"next")
            assert transport.get_write_buffer_size() == 0

    run(test)


def test_the_end_is_said(run: Callable[..., None], tmp_path: Path) -> None:
    """A close of the server's is a TLS farewell, not a cut; one of the client's ends the connection."""

    async def test() -> None:
        async with Bench(tmp_path) as bench:
            reader, writer = await bench.connect()
            writer.write(framed(b"x"))
            await reader.readexactly(5)
            bench.connections[0].close()
            assert await reader.read() == b""
            _, writer = await bench.connect()
            await bench.until(lambda: len(bench.server.connections) == 1)
            writer.close()
            await bench.until(lambda: not bench.server.connections)

    run(test)


HELLO = bytes.fromhex("160301")
"""How a TLS connection begins."""
HOSTILE = {
    "Kafka without TLS": framed(b"\x00\x12\x00\x00" + bytes(8)),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": bytes(100),
    "an alert": bytes.fromhex("15030300020100"),
    "a huge record": HELLO + b"\xff\xff" + bytes(70_000),
    "noise in a handshake": HELLO + b"\x00\x20" + bytes(range(32)),
    "SSL 3": bytes.fromhex("16030000350100003103000000") + bytes(47),
    "an empty handshake": HELLO + b"\x00\x00",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_not_tls_is_cut_and_counted(run: Callable[..., None], tmp_path: Path, case: str) -> None:
    async def test() -> None:
        async with Bench(tmp_path) as bench:
            reader, writer = await bench.plain()
            writer.write(HOSTILE[case])
            if not HOSTILE[case].startswith(HELLO[:1]):
                # A client without TLS would take an alert for the size of a response.
                assert await reader.read() == b""
            else:
                writer.write_eof()
                await asyncio.gather(reader.read(), return_exceptions=True)
            await bench.until(lambda: bench.server.failed_handshakes == 1)
            assert not bench.server.connections
            reader, writer = await bench.connect()
            writer.write(framed(b"x"))
            assert await reader.readexactly(5) == framed(b"x")

    run(test)


def test_a_truncated_handshake(run: Callable[..., None], tmp_path: Path) -> None:
    """At every byte of a client's first flight."""

    async def test() -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with pytest.raises(ssl.SSLWantReadError):
            context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
        hello = outgoing.read()
        async with Bench(tmp_path) as bench:
            cuts = range(0, len(hello), 16)
            for cut in cuts:
                _, writer = await bench.plain()
                writer.write(hello[:cut])
                writer.close()
            await bench.until(lambda: bench.server.failed_handshakes == len(cuts))
            assert not bench.server.connections

    run(test)


def test_a_silent_peer_is_cut_after_a_while(run: Callable[..., None], tmp_path: Path) -> None:
    async def test() -> None:
        async with Bench(tmp_path, Limits(ssl_handshake_timeout_ms=20)) as bench:
            reader, _ = await bench.plain()
            assert await reader.read() == b""
            assert bench.server.failed_handshakes == 1

    run(test)


def test_handshakes_count_as_connections(run: Callable[..., None], tmp_path: Path) -> None:
    async def test() -> None:
        async with Bench(tmp_path, Limits(max_connections=2)) as bench:
            silent = [await bench.plain() for _ in range(2)]
            await bench.until(lambda: bench.server.handshakes == 2)
            reader, _ = await bench.plain()
            assert await is_cut_off(reader)
            assert bench.server.refused == 1
            for _, writer in silent:
                writer.close()
            await bench.until(lambda: not bench.server.handshakes)
            await bench.connect()

    run(test)


def test_an_old_version_of_tls_is_refused(run: Callable[..., None], tmp_path: Path) -> None:
    async def test() -> None:
        async with Bench(tmp_path, ssl_enabled_protocols="TLSv1.3") as bench:
            with pytest.raises(ssl.SSLError):
                await bench.connect(**{"ssl.enabled.protocols": "TLSv1.2"})
            await bench.until(lambda: bench.server.failed_handshakes == 1)
            await bench.connect()

    run(test)


def test_a_certificate_may_be_required(run: Callable[..., None], tmp_path: Path) -> None:
    async def test() -> None:
        async with Bench(tmp_path, ssl_client_auth="required") as bench:
            reader, writer = await bench.connect()  # TLS 1.3: the refusal comes behind the handshake
            writer.write(framed(b"x"))
            assert await is_cut_off(reader)
            await bench.until(lambda: bench.server.failed_handshakes == 1)
            mine = stores(tmp_path, "client")["ssl.keystore.location"]
            reader, writer = await bench.connect(**{"ssl.keystore.location": mine})
            writer.write(framed(b"x"))
            assert await reader.readexactly(5) == framed(b"x")

    run(test)


def test_garbage_behind_the_handshake_ends_the_connection(run: Callable[..., None], tmp_path: Path) -> None:
    async def test() -> None:
        async with Bench(tmp_path) as bench:
            _, writer = await bench.connect()
            await bench.until(lambda: len(bench.server.connections) == 1)
            raw = writer.get_extra_info("socket")
            assert isinstance(raw.family, socket.AddressFamily)
            with socket.socket(fileno=socket.dup(raw.fileno())) as wire:
                wire.send(b"no TLS record at all" * 10)
            await bench.until(lambda: not bench.server.connections)
            assert not bench.connections

    run(test)


class Wire(asyncio.Transport):
    """The transport of a stream, without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Taker(asyncio.BufferedProtocol):
    """A protocol that keeps what it gets; it may stop reading after each piece."""

    def __init__(self, size: int, *, pauses: bool) -> None:
        self.room, self.pauses = memoryview(bytearray(size)), pauses
        self.pieces: list[bytes] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        self.pieces.append(bytes(self.room[:nbytes]))
        if self.pauses:
            self.transport.pause_reading()


class Ended:
    """Watches a stream."""

    def began(self, stream: TlsStream) -> None: ...

    def ended(self, stream: TlsStream, reason: str) -> None: ...


class Pair:
    """A client that writes into memory, and a stream that gets its bytes when it is told."""

    def __init__(self, directory: Path, taker: Taker) -> None:
        settings = tls_config(stores(directory))
        self.wire, self.taker = Wire(), taker
        self.stream = TlsStream(taker, server_context(settings, now()), watcher=Ended())
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client_context(settings, now()).wrap_bio(
            self._incoming, self._outgoing, server_hostname="localhost"
        )
        self.stream.connection_made(self.wire)
        for _ in range(3):
            with suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            self.deliver(self._outgoing.read())
            self._incoming.write(self.wire.sent)
            self.wire.sent = b""

    def records(self, *contents: bytes) -> bytes:
        """The bytes of a record for each."""
        for each in contents:
            self.client.write(each)
        return self._outgoing.read()

    def farewell(self) -> bytes:
        with suppress(ssl.SSLError):
            self.client.unwrap()
        return self._outgoing.read()

    def deliver(self, data: bytes) -> None:
        while data:
            room = self.stream.get_buffer(-1)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            self.stream.buffer_updated(size)


def test_records_that_arrive_together_are_handed_over_together(
    run: Callable[..., None], tmp_path: Path
) -> None:
    """A protocol is not called for each record; a small buffer is filled again and again."""

    async def test() -> None:
        for size, pieces in ((1 << 16, 1), (7, 72)):
            pair = Pair(tmp_path, Taker(size, pauses=False))
            contents = [bytes([number]) * 10 for number in range(50)]
            pair.deliver(pair.records(*contents))
            assert b"".join(pair.taker.pieces) == b"".join(contents)
            assert len(pair.taker.pieces) == pieces
            large = bytes(range(256)) * 4096
            pair.deliver(pair.records(*(large[at : at + 5_000] for at in range(0, len(large), 5_000))))
            assert b"".join(pair.taker.pieces[pieces:]) == large

    run(test)


@pytest.mark.parametrize("pauses", [False, True])
@pytest.mark.parametrize("end", ["farewell", "garbage"])
def test_what_arrived_before_the_end_is_handed_over(
    run: Callable[..., None], tmp_path: Path, end: str, pauses: bool
) -> None:
    """Also to a protocol that wants to read later; then the connection ends."""

    async def test() -> None:
        pair = Pair(tmp_path, Taker(100, pauses=pauses))
        data = pair.records(b"one", b"two")
        data += pair.farewell() if end == "farewell" else b"\x17\x03\x03\0\x20" + bytes(32)
        pair.deliver(data)
        assert pair.taker.pieces == [b"onetwo"]
        assert pair.wire.is_closed is not pauses
        pair.stream.resume_reading()
        await asyncio.sleep(0)
        assert pair.wire.is_closed
        assert pair.taker.pieces == [b"onetwo"]

    run(test)

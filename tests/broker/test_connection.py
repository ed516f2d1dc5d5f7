"""Frames over sockets: answered in order, one in hand, and a stranger can only hurt itself."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import struct
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import pytest

from logstore.broker.acceptor import Acceptor, SeldomEach
from logstore.broker.connection import REQUESTS_A_TURN, Connection
from logstore.broker.limits import Address, Limits
from logstore.broker.loop import fastest_loop
from logstore.broker.server import LONGEST_PAUSE_S, Server
from logstore.disk.descriptors import descriptor_limit
from logstore.disk.files import Buffer

Run: TypeAlias = Callable[[Callable[[], Awaitable[None]]], None]

LOOPBACK = Address("127.0.0.1", 0)
LARGE = 300_000
PRODUCE = b"\0\0"
"""The API key with which a produce request begins."""

LOOPS = {"asyncio": None, "fastest": fastest_loop()}


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Run:
    """On each loop there is: they hand over what comes in ways of their own."""

    def run(test: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await test()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded())

    return run


def framed(*contents: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(content)) + content for content in contents)


class Bench:
    """A server that repeats every frame; one that begins with `wait` is answered when the test says so."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.seen: list[bytes] = []
        self.waiting: list[tuple[Connection, memoryview]] = []
        self.throttle_ms = 0
        self.server = Server(self.on_frame, limits)
        self.address = LOOPBACK
        self._writers: list[asyncio.StreamWriter] = []

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        self.seen.append(bytes(frame))
        if bytes(frame[:4]) == b"wait":
            self.waiting.append((connection, frame))
        elif bytes(frame[:4]) == b"none":
            connection.answer(())
        else:
            self.answer(connection, frame)

    def answer(self, connection: Connection, frame: memoryview) -> None:
        connection.answer((struct.pack(">i", len(frame)), frame), throttle_ms=self.throttle_ms)

    def go_on(self) -> None:
        self.answer(*self.waiting.pop(0))

    async def __aenter__(self) -> Bench:
        self.address = await self.server.listen(LOOPBACK)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for writer in self._writers:
            writer.close()
        for _turn in range(5):
            await asyncio.sleep(0)

    async def connect(self, *, receive_buffer: int = 0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raw = socket.socket()
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(raw, self.address)
        except OSError:
            raw.close()
            raise
        reader, writer = await asyncio.open_connection(sock=raw, limit=1 << 16)
        self._writers.append(writer)
        return reader, writer

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await asyncio.sleep(0.001)

    async def is_cut_off(self, data: bytes) -> bool:
        """Whether a stranger who says this is hung up on, without a word."""
        reader, writer = await self.connect()
        writer.write(data)
        try:
            return await reader.read(1) == b""
        except ConnectionResetError:
            return True


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


@pytest.mark.parametrize("size", [1, 100, 32_767, 32_768, 32_769, 65_532, 65_533, 70_000, 5_000_000])
def test_frames_of_any_size_arrive_whole_with_others_around_them(run: Run, size: int) -> None:
    """Small ones share a buffer, large ones have their own: the border is crossed in every order."""
    content = bytes(range(251)) * (size // 251 + 1)
    contents = [b"a", content[:size], b"b", content[:size], content[:size], b"c"]

    async def test() -> None:
        async with Bench() as bench:
            reader, writer = await bench.connect()
            writer.write(framed(*contents))
            assert [await answer_of(reader) for _ in contents] == contents

    run(test)


def test_a_frame_may_come_byte_by_byte(run: Run) -> None:
    async def test() -> None:
        async with Bench() as bench:
            reader, writer = await bench.connect()
            for byte in framed(b"slow", b"er"):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert [await answer_of(reader) for _ in range(2)] == [b"slow", b"er"]

    run(test)


def test_rule_1_one_request_of_a_connection_is_in_hand_and_answers_come_in_order(run: Run) -> None:
    async def test() -> None:
        async with Bench() as bench:
            reader, writer = await bench.connect()
            writer.write(framed(b"wait1", b"x" * 50_000, b"wait2", b"y"))
            await bench.until(lambda: len(bench.waiting) == 1)
            writer.write(framed(b"z" * 100_000))
            other = await bench.connect()
            other[1].write(framed(b"other"))
            assert await answer_of(other[0]) == b"other", "only that connection is held up"
            assert len(bench.seen) == 2, "nothing behind the one that waits was looked at"
            bench.go_on()
            await bench.until(lambda: len(bench.waiting) == 1)
            bench.go_on()
            answers = [await answer_of(reader) for _ in range(5)]
            assert [len(each) for each in answers] == [5, 50_000, 5, 1, 100_000]

    run(test)


def test_what_comes_while_a_request_waits_stays_in_the_socket_but_for_one_buffer(run: Run) -> None:
    """A flood fills the sender's window, not our memory."""

    async def test() -> None:
        async with Bench() as bench:
            _, writer = await bench.connect()
            writer.write(framed(b"wait") + framed(b"x" * 1000) * 10_000)
            await bench.until(lambda: bool(bench.waiting))
            for _ in range(50):
                await asyncio.sleep(0)
            (connection,) = bench.server.connections
            assert len(connection._rest) <= 1 << 16
            assert connection._is_paused

    run(test)


def test_rule_4_a_request_may_have_no_answer(run: Run) -> None:
    async def test() -> None:
        async with Bench() as bench:
            reader, writer = await bench.connect()
            writer.write(framed(b"none", b"none", b"x"))
            assert await answer_of(reader) == b"x"

    run(test)


def test_rule_7_answers_of_one_wake_up_go_out_in_one_write(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with Bench() as bench:
            reader, writer = await bench.connect()
            writer.write(framed(b"hello"))
            await answer_of(reader)
            (connection,) = bench.server.connections
            assert connection.transport is not None
            raw = connection.transport.get_extra_info("socket")
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            calls: list[list[int]] = []
            monkeypatch.setattr(os, "writev", _counted(calls))
            connection.buffer_updated(_fill(connection, framed(*[PRODUCE + b"x" * 8] * REQUESTS_A_TURN)))
            assert calls == [[14 * REQUESTS_A_TURN]]
            calls.clear()
            connection.buffer_updated(_fill(connection, framed(PRODUCE + b"x" * 98) * 3))
            connection._out += [b"head", bytes(LARGE), b"tail"]
            connection._flush()
            assert calls == [[312], [4, LARGE, 4]], "large pieces go as they are"

    run(test)


@pytest.mark.parametrize(("one_frame", "in_a_turn"), [(PRODUCE + b"one", REQUESTS_A_TURN), (b"one", 1)])
def test_pipelined_requests_take_turns_with_those_of_others(
    run: Run, one_frame: bytes, in_a_turn: int
) -> None:
    """Fifty clients with thousands of small requests in their buffers kept another waiting for 51 seconds."""

    async def test() -> None:
        async with Bench() as bench:
            first, second = await bench.connect(), await bench.connect()
            for _, writer in (first, second):
                writer.write(framed(b"hello"))
            for reader, _ in (first, second):
                await answer_of(reader)
            bench.seen.clear()
            one, other = bench.server.connections
            many = REQUESTS_A_TURN * 4
            one.buffer_updated(_fill(one, framed(*[one_frame] * many)))
            assert len(bench.seen) == in_a_turn
            other.buffer_updated(_fill(other, framed(b"other")))
            assert bench.seen[-1] == b"other"
            for _ in range(many):
                assert await answer_of(first[0]) == one_frame
            assert await answer_of(second[0]) == b"other"
            first[1].write(framed(b"again"))
            assert await answer_of(first[0]) == b"again"

    run(test)


def _counted(calls: list[list[int]]) -> Callable[[int, list[bytes]], int]:
    """Return `os.writev`, which notes the sizes of the pieces of each call."""
    writev = os.writev

    def write(descriptor: int, pieces: list[bytes]) -> int:
        calls.append([len(piece) for piece in pieces])
        return writev(descriptor, pieces)

    return write


@pytest.mark.parametrize("takes", [0, 1, 3, 4, 5, 4 + 2 * LARGE, 7 + 2 * LARGE, 8 + 2 * LARGE])
def test_what_the_socket_does_not_take_at_once_follows_in_order(
    run: Run, monkeypatch: pytest.MonkeyPatch, takes: int
) -> None:
    """The first write ends anywhere: before, in and after each piece."""
    answer: list[Buffer] = [b"head", b"a" * LARGE, memoryview(b"b" * LARGE), b"tail"]

    def short(descriptor: int, pieces: list[bytes]) -> int:
        if not takes:
            raise BlockingIOError
        return os.write(descriptor, b"".join(pieces)[:takes])

    async def test() -> None:
        async with Bench() as bench:
            reader, writer = await bench.connect()
            writer.write(framed(b"hello"))
            await answer_of(reader)
            (connection,) = bench.server.connections
            monkeypatch.setattr(os, "writev", short)
            connection._out += answer
            connection._flush()
            assert await reader.readexactly(8 + 2 * LARGE) == b"".join(answer)

    run(test)


def test_a_lost_connection_forgets_its_descriptor(run: Run) -> None:
    """The number belongs to another connection afterwards."""

    async def test() -> None:
        async with Bench() as bench:
            _, writer = await bench.connect()
            writer.write(framed(b"none"))
            await bench.until(lambda: bench.seen == [b"none"])
            (connection,) = bench.server.connections
            assert connection._descriptor >= 0
            connection.abort()
            await bench.until(lambda: not bench.server.connections)
            assert connection._descriptor == -1

    run(test)


def _fill(connection: Connection, data: bytes) -> int:
    connection.get_buffer(-1)[: len(data)] = data
    return len(data)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 0),
        struct.pack(">i", -1),
        struct.pack(">i", 101),
        struct.pack(">i", 2**31 - 1),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_rule_2_a_size_that_lies_ends_its_connection_and_no_other(run: Run, data: bytes) -> None:
    async def test() -> None:
        async with Bench(Limits(socket_request_max_bytes=100)) as bench:
            reader, writer = await bench.connect()
            assert await bench.is_cut_off(data)
            writer.write(framed(b"x" * 100))
            assert await answer_of(reader) == b"x" * 100

    run(test)


def test_a_client_that_comes_back_again_and_again_does_not_fill_the_log(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """kafka-replica-verification does, 470 times a second: it speaks a version that is not served."""

    async def test() -> None:
        async with Bench(Limits(socket_request_max_bytes=100)) as bench:
            for _ in range(30):
                assert await bench.is_cut_off(struct.pack(">i", 0))
            assert await bench.is_cut_off(struct.pack(">i", 101))

    with caplog.at_level("WARNING", "logstore.broker.connection"):
        run(test)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "disconnecting 127.0.0.1: frame size 0 out of range (1 to 100)",
        "disconnecting 127.0.0.1: frame size 101 out of range (1 to 100)",
    ]


def test_events_are_reported_by_kind_and_few_kinds_are_kept() -> None:
    seldom = SeldomEach()
    assert [seldom("a", 0.0), seldom("a", 1.0), seldom("b", 1.0), seldom("a", 2.0)] == [1, 0, 1, 0]
    assert seldom("a", 10.0) == 3, "with those that were not reported"
    assert sum(seldom(str(number), 11.0) for number in range(1_000)) == 64, "63 kinds, and one for the others"
    assert seldom("1000", 12.0) == 0, "one of the others"
    assert seldom("1001", 40.0) == 1, "there is room again"


def test_what_was_answered_before_garbage_goes_out(run: Run) -> None:
    """It was done, and its client is to know: the answers of one wake-up wait for each other."""

    async def test() -> None:
        async with Bench() as bench:
            reader, writer = await bench.connect()
            writer.write(framed(b"x", b"y") + struct.pack(">i", -1))
            assert [await answer_of(reader) for _ in range(2)] == [b"x", b"y"]
            assert await reader.read() == b""

    run(test)


def test_a_size_that_is_announced_and_not_sent_takes_no_memory(run: Run) -> None:
    """P2: fifty connections that each announce 100 MiB cost what they send."""

    async def test() -> None:
        async with Bench() as bench:
            writers = [(await bench.connect())[1] for _ in range(50)]
            await bench.until(lambda: len(bench.server.connections) == 50)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for writer in writers:
                writer.write(struct.pack(">i", 100 << 20) + bytes(40_000))
            await bench.until(lambda: all(each._filled >= 40_000 for each in bench.server.connections))
            grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown_kib < 30_000, "50 times 40 kB, as stream and as room"
            rooms = [each._large for each in bench.server.connections]
            assert all(room is not None and len(room) <= 2 << 20 for room in rooms)

    run(test)


def test_an_idle_connection_has_no_buffer(run: Run) -> None:
    """Two thousand of them cost little: all share the one that bytes arrive in."""

    async def test() -> None:
        async with Bench() as bench:
            for _ in range(3):
                reader, writer = await bench.connect()
                writer.write(framed(b"x" * 1000))
                await answer_of(reader)
            scratches = {id(each._scratch.obj) for each in bench.server.connections}
            assert len(scratches) == 1
            assert all(not each._rest and each._large is None for each in bench.server.connections)

    run(test)


@pytest.mark.parametrize("limits", [Limits(max_connections=1), Limits(max_connections_per_ip=1)])
def test_more_connections_than_allowed_are_refused(run: Run, limits: Limits) -> None:
    async def test() -> None:
        async with Bench(limits) as bench:
            reader, writer = await bench.connect()
            writer.write(framed(b"x"))
            await answer_of(reader)
            assert bench.server.refused == 0
            assert await bench.is_cut_off(b"")
            assert bench.server.refused == 1
            writer.close()
            await bench.until(lambda: not bench.server.connections)
            reader, writer = await bench.connect()
            writer.write(framed(b"x"))
            assert await answer_of(reader) == b"x", "there is room again"

    run(test)


def test_connections_beyond_the_rate_wait(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """As Kafka counts: ten may come at once, then each waits for a second."""

    async def test() -> None:
        async with Bench(Limits(max_connection_creation_rate=1)) as bench:
            bench.server._now_ms = lambda: 0  # type: ignore[method-assign]
            pace_s = partial(bench.server._pace_s, [bench.server._of_all])
            assert [pace_s() for _ in range(10)] == [0.0] * 10
            assert pace_s() == LONGEST_PAUSE_S
            assert bench.server.slowed == 1
        assert "max.connection.creation.rate=1 exceeded: new connections wait (1)" in caplog.text

    run(test)


def test_an_acceptor_waits_between_connections(run: Run) -> None:
    async def test() -> None:
        made: list[asyncio.Protocol] = []

        def protocol() -> asyncio.Protocol:
            made.append(asyncio.Protocol())
            return made[-1]

        paces = iter((0.0, 0.0, 3_600.0))
        acceptor = Acceptor(protocol, descriptor_limit(), lambda: next(paces))
        address = await acceptor.listen(LOOPBACK)
        writers = [(await asyncio.open_connection(*address))[1] for _ in range(4)]
        while len(made) < 3:
            await asyncio.sleep(0.001)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(made) == 3, "the third is followed by a pause, and the fourth waits in the backlog"
        acceptor.close()
        for writer in writers:
            writer.close()

    run(test)


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_is_accepted_while_the_acceptor_closes_is_closed(run: Run, turns: int) -> None:
    async def test() -> None:
        acceptor = Acceptor(asyncio.Protocol, descriptor_limit())
        address = await acceptor.listen(LOOPBACK)
        await asyncio.sleep(0)
        with socket.create_connection(address):
            for _ in range(turns):
                await asyncio.sleep(0)
            acceptor.close()
            del acceptor
            for _ in range(6):
                await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always")
        run(test)
        gc.collect()
    assert [str(each.message) for each in left_open] == []


def test_rule_5_an_idle_connection_is_closed_but_not_one_that_waits(run: Run) -> None:
    async def test() -> None:
        limits = Limits(connections_max_idle_ms=20, connection_failed_authentication_delay_ms=0)
        async with Bench(limits) as bench:
            reader, writer = await bench.connect()
            writer.write(framed(b"wait"))
            await bench.until(lambda: bool(bench.waiting))
            assert await bench.is_cut_off(b""), "the sweep passes by"
            bench.go_on()
            assert await answer_of(reader) == b"wait"
            assert await reader.read() == b"", "and now it is idle"
        async with Bench(Limits(connections_max_idle_ms=-1)) as bench:  # no limit, as in Kafka
            reader, writer = await bench.connect()
            writer.write(framed(b"one"))
            assert await answer_of(reader) == b"one"

    run(test)


def test_rule_6_a_throttled_client_is_answered_at_once_and_left_unread(run: Run) -> None:
    async def test() -> None:
        async with Bench() as bench:
            reader, writer = await bench.connect()
            bench.throttle_ms = 60_000
            writer.write(framed(b"x", b"y"))
            assert await answer_of(reader) == b"x"
            assert bench.seen == [b"x"]
            bench.throttle_ms = 0
            (connection,) = bench.server.connections
            assert connection._mute is not None
            connection._mute.cancel()
            connection._unmute()
            assert await answer_of(reader) == b"y"

    run(test)


def test_rule_5_who_does_not_take_its_answers_is_not_served_the_next(run: Run) -> None:
    """One answer is all that a slow reader makes us keep."""
    large = b"x" * (8 << 20)

    async def test() -> None:
        async with Bench() as bench:
            reader, writer = await bench.connect(receive_buffer=1 << 14)
            writer.write(framed(large, b"y" * 100_000, b"z"))
            await bench.until(lambda: bool(bench.seen))
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(bench.seen) == 1, "not the second request"
            assert [len(await answer_of(reader)) for _ in range(3)] == [len(large), 100_000, 1]

    run(test)


def test_who_never_takes_its_answer_is_cut_off_in_the_end(run: Run) -> None:
    async def test() -> None:
        async with Bench(Limits(connections_max_idle_ms=101)) as bench:
            _, writer = await bench.connect(receive_buffer=1 << 14)
            writer.write(framed(b"x" * (8 << 20)))
            await bench.until(lambda: bool(bench.seen))
            await bench.until(lambda: not bench.server.connections)

    run(test)


def test_a_client_that_leaves_while_its_request_waits_is_noticed(run: Run) -> None:
    """Its answer is nobody's any more: harmless, however late."""

    async def test() -> None:
        async with Bench() as bench:
            _, writer = await bench.connect()
            writer.write(framed(b"wait"))
            await bench.until(lambda: bool(bench.waiting))
            writer.close()
            await bench.until(lambda: not bench.server.connections)
            bench.go_on()

    run(test)


def test_a_drain_answers_what_is_in_hand_and_takes_nothing_more(run: Run) -> None:
    async def test() -> None:
        async with Bench() as bench:
            reader, writer = await bench.connect()
            idle, _ = await bench.connect()
            writer.write(framed(b"wait", b"behind"))
            await bench.until(lambda: bool(bench.waiting))
            draining = asyncio.create_task(bench.server.drain())
            assert await idle.read() == b""
            assert not draining.done()
            bench.go_on()
            assert await answer_of(reader) == b"wait"
            assert await reader.read() == b""
            await draining
            assert bench.seen == [b"wait"]
            with pytest.raises(ConnectionError):
                await bench.connect()

    run(test)


def test_a_drain_does_not_wait_for_ever(run: Run) -> None:
    async def test() -> None:
        async with Bench(Limits(shutdown_grace_ms=20)) as bench:
            reader, writer = await bench.connect()
            writer.write(framed(b"wait"))
            await bench.until(lambda: bool(bench.waiting))
            await bench.server.drain()
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)

    run(test)

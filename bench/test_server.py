"""A broker beside an echo of the same frames over sockets, each in its own process, in alternating rounds.

    pytest bench/test_server.py -p no:xdist

The echo only splits the frames and writes them back. A broker also reads the request, checks the batch and
every record's frame, appends it, and answers. The client keeps the next block of frames in the socket, so
the server never waits. Do not use `--cpu` here: it counts the client's processor time.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from bench.bars import ratio_bar
from bench.kafka.usage import cpu_s, resident_bytes
from logstore.broker.loop import fastest_loop
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import request_frame
from logstore.format.batch import encode_batch
from logstore.format.record import Record

TOPIC = "orders"
PRODUCE, FETCH = 9, 12


class Peer:
    """A connection to one of the servers."""

    def __init__(self, port: int, pid: int) -> None:
        self.port, self.pid = port, pid
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._room = memoryview(bytearray(1 << 20))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def take(self, size: int) -> None:
        while size:
            size -= self._socket.recv_into(self._room[: min(size, len(self._room))])

    def ask(self, frame: bytes) -> int:
        """Send a frame; return the size of the response frame."""
        self.send(frame)
        head = self._socket.recv(4, socket.MSG_WAITALL)
        (size,) = struct.unpack(">i", head)
        self.take(size)
        return int(size) + 4

    def close(self) -> None:
        self._socket.close()


def frame(request: Struct, version: int) -> bytes:
    return b"".join(request_frame(request, version, 7, "bench"))


def producing(value_bytes: int, records: int = 1) -> bytes:
    value = os.urandom(value_bytes)
    batch = encode_batch([Record(number, 1, None, value) for number in range(records)])
    part = t.ProduceRequestPartitionProduceData(index=0, records=batch)
    topic = t.ProduceRequestTopicProduceData(name=TOPIC, partition_data=[part])
    return frame(t.ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[topic]), PRODUCE)


def fetching(max_bytes: int, max_wait_ms: int = 0) -> bytes:
    part = t.FetchRequestFetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    topic = t.FetchRequestFetchTopic(topic=TOPIC, partitions=[part])
    request = t.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=max_bytes, topics=[topic])
    return frame(request, FETCH)


@pytest.fixture
def serve(scratch: Path) -> Iterator[Callable[[str], Peer]]:
    """Start a server by name and connect to it."""
    processes: list[subprocess.Popen[str]] = []
    peers: list[Peer] = []

    def serve(kind: str) -> Peer:
        command = [sys.executable, "-m", "bench.serving", kind, str(scratch)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        peer = Peer(int(process.stdout.readline()), process.pid)
        peers.append(peer)
        if kind == "broker":
            name = t.MetadataRequestTopic(name=TOPIC)
            asked = frame(t.MetadataRequest(topics=[name]), 12)
            while peer.ask(asked) < 120:  # until the topic exists with its partition
                pass
        return peer

    yield serve
    for peer in peers:
        peer.close()
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def pipelined(peer: Peer, block: bytes, answer_bytes: int, blocks: int) -> Callable[[], None]:
    """Send blocks of frames, one block ahead of the responses."""

    def work() -> None:
        peer.send(block)
        for _ in range(blocks - 1):
            peer.send(block)
            peer.take(answer_bytes)
        peer.take(answer_bytes)

    return work


@pytest.mark.parametrize(
    ("name", "value_bytes", "records", "frames", "blocks", "least"),
    [
        ("produce, 100 bytes", 100, 1, 100, 30, 0.5),
        ("produce, 16 records of 1 KiB", 1024, 16, 4, 60, 0.5),
        ("produce, 1 MB", 1_000_000, 1, 1, 40, 0.4),
    ],
)
def test_pipelined_produce(
    beside: Callable[..., Any],
    serve: Callable[[str], Peer],
    name: str,
    value_bytes: int,
    records: int,
    frames: int,
    blocks: int,
    least: float,
) -> None:
    one = producing(value_bytes, records)
    echo, broker = serve("echo"), serve("broker")
    answer_bytes = broker.ask(one)
    beside(
        raw=pipelined(echo, one * frames, len(one) * frames, blocks),
        ours=pipelined(broker, one * frames, answer_bytes * frames, blocks),
        name=f"{name}, pipelined, acks=1",
        rival="echo of the frames",
        units=frames * blocks,
        unit="requests/s",
        bar=ratio_bar(least),
    )


def test_fetch(beside: Callable[..., Any], serve: Callable[[str], Peer]) -> None:
    """1 MB responses. The echo moves them in both directions; a fetch request has only a few bytes."""
    broker, echo = serve("broker"), serve("echo")
    broker.ask(producing(1_000_000))
    one = fetching(1 << 20)
    answer_bytes = broker.ask(one)
    assert answer_bytes > 1_000_000
    mirrored = struct.pack(">i", answer_bytes - 4) + bytes(answer_bytes - 4)
    beside(
        raw=pipelined(echo, mirrored, answer_bytes, 40),
        ours=pipelined(broker, one, answer_bytes, 40),
        name="fetch, 1 MB",
        rival="echo of the frames",
        units=40,
        unit="requests/s",
        bar=ratio_bar(0.6),
    )


# --- what has no rival -----------------------------------------------------------------------------


class Held(NamedTuple):
    """The server's share of a core, requests per second, CPU seconds per request, growth in bytes."""

    share: float
    rate: float
    each_s: float
    grown_bytes: int


class Poller(asyncio.Protocol):
    """Send a request after every response, with a pause in between."""

    def __init__(self, request: bytes, pause_s: float, answered: list[int]) -> None:
        self._request, self._pause_s, self._answered = request, pause_s, answered
        self._come = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self) -> None:
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._come += data
        if len(self._come) >= 4 and len(self._come) == 4 + struct.unpack_from(">i", self._come)[0]:
            self._come = b""
            self._answered[0] += 1
            if self._pause_s:
                asyncio.get_running_loop().call_later(self._pause_s, self.ask)
            else:
                self.ask()


async def hold(peer: Peer, request: bytes, clients: int, pause_s: float, seconds: float) -> Held:
    """Measure the cost of `clients` connections that ask about twice a second."""
    loop, answered = asyncio.get_running_loop(), [0]
    before_bytes = resident_bytes([peer.pid])
    pollers: list[Poller] = []
    for _ in range(clients):
        made = await loop.create_connection(
            lambda: Poller(request, pause_s, answered), "127.0.0.1", peer.port
        )
        pollers.append(made[1])
    for number, poller in enumerate(pollers):
        loop.call_later(number / clients / 2, poller.ask)
    await asyncio.sleep(2)
    started_s, before_s, before = time.monotonic(), cpu_s([peer.pid]), answered[0]
    await asyncio.sleep(seconds)
    took_s, used_s, served = time.monotonic() - started_s, cpu_s([peer.pid]) - before_s, answered[0] - before
    grown_bytes = resident_bytes([peer.pid]) - before_bytes
    for poller in pollers:
        poller.transport.abort()
    return Held(used_s / took_s, served / took_s, used_s / served, grown_bytes)


def held(peer: Peer, request: bytes, pause_s: float = 0.0) -> Held:
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(hold(peer, request, 1_000, pause_s, 10))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_idle_long_polls(serve: Callable[[str], Peer], figure: Callable[[str, str, str, bool], None]) -> None:
    """1,000 consumers at the end of a partition that get an empty response twice a second.

    The rival echoes as many frames over as many connections: the cost of the sockets alone.
    """
    broker, echo = serve("broker"), serve("echo")
    poll = fetching(1 << 20, max_wait_ms=500)
    floor, ours = held(echo, poll, pause_s=0.5), held(broker, poll)
    figure(
        "1,000 connections that long-poll, half a second each",
        f"{ours.share:.1%} of a core, {ours.each_s * 1e6:.0f} µs a request at {ours.rate:.0f}/s "
        f"(echo: {floor.share:.1%}, {floor.each_s * 1e6:.0f} µs at {floor.rate:.0f}/s)",
        "< 5 %",
        ours.share < 0.05,
    )
    figure(
        "memory of 1,000 connections with a request in hand each",
        f"{ours.grown_bytes / 1e6:.1f} MB",
        "< 100 MB",
        ours.grown_bytes < 100e6,
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("value_bytes", "records", "requests", "frames", "most_us"),
    [(100, 1, 5_000, 100, 25), (1024, 16, 5_000, 4, math.inf), (100, 5_000, 200, 1, math.inf)],
)
def test_processor_time_of_a_produce(
    serve: Callable[[str], Peer],
    figure: Callable[[str, str, str, bool], None],
    value_bytes: int,
    records: int,
    requests: int,
    frames: int,
    most_us: float,
) -> None:
    """CPU seconds including system calls: more telling on a busy machine than the clock."""
    one, broker = producing(value_bytes, records), serve("broker")
    answer_bytes, rounds = broker.ask(one), []
    for _ in range(10):
        before_s = cpu_s([broker.pid])
        pipelined(broker, one * frames, answer_bytes * frames, requests // frames)()
        rounds.append((cpu_s([broker.pid]) - before_s) / requests)
    figure(
        f"processor time of a produce of {records} × {value_bytes} bytes, pipelined",
        f"{min(rounds) * 1e6:.0f} µs, the best of 10 rounds",
        f"≤ {most_us} µs" if most_us < math.inf else "–",
        min(rounds) * 1e6 <= most_us,
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_librdkafka(serve: Callable[[str], Peer], figure: Callable[[str, str, str, bool], None]) -> None:
    """As many messages of 1 KiB as librdkafka sends with default settings, and the broker's load."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    broker = serve("broker")
    messages = 300_000
    producer = confluent_kafka.Producer({"bootstrap.servers": f"127.0.0.1:{broker.port}", "acks": 1})
    value, failures = os.urandom(1024), []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    def send(count: int) -> None:
        for _ in range(count):
            while True:
                try:
                    producer.produce(TOPIC, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.01)
            producer.poll(0)
        producer.flush()

    send(10_000)
    started_s, broker_s, client_s = time.monotonic(), cpu_s([broker.pid]), time.process_time()
    send(messages)
    took_s = time.monotonic() - started_s
    broker_s, client_s = cpu_s([broker.pid]) - broker_s, time.process_time() - client_s
    assert not failures
    figure(
        "librdkafka's own throughput, messages of 1 KiB",
        f"{messages / took_s / 1e3:.0f} k messages/s; broker {broker_s / took_s:.0%} of a core, "
        f"client {client_s / took_s:.0%}",
        "broker < 60 %",
        broker_s / took_s < 0.6,
    )

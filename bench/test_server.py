"""A broker beside an echo of the same frames over sockets, each in its process, in turn (issue's ceiling).

    pytest bench/test_server.py -p no:xdist

The echo does nothing but cut the frames and write them back. What a broker does besides: read the request,
check the batch and every record's frame, append it, answer. The client keeps the next block of frames in the
socket, so that the server never waits. `--cpu` would count the client's processor time: not for these.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.wire import types as t
from broker.wire.declarations import Struct
from broker.wire.headers import request_frame
from logstore.batch import encode_batch
from logstore.record import Record

TOPIC = "orders"
PRODUCE, FETCH = 9, 12


class Peer:
    """A connection to one of the servers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._room = memoryview(bytearray(1 << 20))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def take(self, size: int) -> None:
        while size:
            size -= self._socket.recv_into(self._room[: min(size, len(self._room))])

    def ask(self, frame: bytes) -> int:
        """The size of the answer's frame."""
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


def fetching(max_bytes: int) -> bytes:
    part = t.FetchRequestFetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    topic = t.FetchRequestFetchTopic(topic=TOPIC, partitions=[part])
    return frame(t.FetchRequest(min_bytes=1, max_bytes=max_bytes, topics=[topic]), FETCH)


@pytest.fixture
def serve(scratch: Path) -> Iterator[Callable[[str], Peer]]:
    """Starts the named server and connects to it."""
    processes: list[subprocess.Popen[str]] = []
    peers: list[Peer] = []

    def serve(kind: str) -> Peer:
        command = [sys.executable, "-m", "bench.serving", kind, str(scratch)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        peer = Peer(int(process.stdout.readline()))
        peers.append(peer)
        if kind == "broker":
            name = t.MetadataRequestTopic(name=TOPIC)
            asked = frame(t.MetadataRequest(topics=[name]), 12)
            while peer.ask(asked) < 120:  # until the topic is there, with its partition
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
    """Sends blocks of frames, one ahead of the answers that it takes."""

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
        bar=f"ratio ≥ {least}",
        holds=lambda ratio, _: ratio >= least,
    )


def test_fetch(beside: Callable[..., Any], serve: Callable[[str], Peer]) -> None:
    """1 MB answers; the echo moves them both ways, which a fetch does not: it is asked with a few bytes."""
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
        bar="ratio ≥ 0.6",
        holds=lambda ratio, _: ratio >= 0.6,
    )

"""What is fuzzed. A target takes any bytes, and raises when a promise is broken; refusing them keeps it.

    frames     a stream cut into frames, in any pieces: the same frames as a plain cutter finds
    headers    a header: refused as malformed, or within the frame
    requests   every request and response in every version: refused as malformed, or read, written and read
               again as the same message
    served     every request, to a whole broker in memory: answered, refused or kept waiting, and no more

The first two bytes of what `requests` and `served` take choose the message and the version, so that no
luck is needed to find them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Callable, Iterable
from typing import Final

import pytest

from logstore.broker.connection import Connection, Frames
from logstore.broker.errors import MalformedMessage
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import APIS
from logstore.broker.wire.codec import decode, encode
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import decode_request_header
from logstore.disk.files import Buffer
from logstore.replication.controller import assignment
from tests.broker.nodes import Nodes
from tests.broker.wire.samples import Generator

LARGEST_FRAME: Final = 1 << 20
_LIVES: Final = 1000
"""Inputs that one broker gets before it is replaced: what they leave behind must not pile up."""
_LOGGERS: Final = ("logstore.broker", "asyncio")
"""Who tells of handlers and of callbacks that failed."""
_API_LIST: Final = tuple(APIS.values())
_KINDS: Final = tuple(kind for api in _API_LIST for kind in (api.request, api.response))


# --- frames -----------------------------------------------------------------------------------


class _Cutting(Frames):
    def __init__(self) -> None:
        super().__init__(LARGEST_FRAME, None)
        self.found: list[bytes] = []
        self.is_refused = False

    @property
    def takes_frames(self) -> bool:
        return not self.is_refused

    def frame_received(self, frame: memoryview) -> None:
        self.found.append(bytes(frame))

    def frames_cut(self) -> None:
        pass

    def refuse(self, reason: str) -> None:
        self.is_refused = True


def _cut_plainly(data: bytes) -> tuple[list[bytes], bool]:
    found: list[bytes] = []
    at = 0
    while len(data) - at >= 4:
        (size,) = struct.unpack_from(">i", data, at)
        if not 0 < size <= LARGEST_FRAME:
            return found, True
        if len(data) - at - 4 < size:
            break
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found, False


def frames(data: bytes) -> None:
    """The first four bytes say in what pieces the rest arrives."""
    pieces, stream = data[:4] or b"\0", data[4:]
    cutting, at, turn = _Cutting(), 0, 0
    while at < len(stream) and not cutting.is_refused:
        room = cutting.get_buffer(-1)
        assert len(room) > 0
        piece = stream[at : at + min(1 + pieces[turn % len(pieces)] ** 2, len(room))]
        room[: len(piece)] = piece
        cutting.buffer_updated(len(piece))
        at, turn = at + len(piece), turn + 1
    assert (cutting.found, cutting.is_refused) == _cut_plainly(stream)


# --- headers and messages ---------------------------------------------------------------------


def headers(data: bytes) -> None:
    try:
        header = decode_request_header(memoryview(data))
    except MalformedMessage:
        return
    assert 0 < header.size <= len(data)


def requests(data: bytes) -> None:
    if len(data) < 2:
        return
    kind = _KINDS[data[0] % len(_KINDS)]
    version = kind.VERSIONS[data[1] % len(kind.VERSIONS)]
    try:
        message, used = decode(kind, version, memoryview(data)[2:])
    except MalformedMessage:
        return
    assert 0 <= used <= len(data) - 2
    written = b"".join(encode(message, version))
    assert decode(kind, version, memoryview(written)) == (message, len(written)), (kind, version)


def seeds_of_requests() -> Iterable[bytes]:
    """Messages that say something, of every kind in every version."""
    for index, kind in enumerate(_KINDS):
        for place, version in enumerate(kind.VERSIONS):
            yield bytes((index, place)) + _sample(kind, version)


def _sample(kind: type[Struct], version: int) -> bytes:
    made = Generator(f"{kind.__name__} {version}", ours=True, small=True).message(kind, version)
    return b"".join(encode(made, version))


# --- a whole broker ---------------------------------------------------------------------------


class _Stranger:
    """A connection without a socket."""

    peer = "192.0.2.1"
    principal = "User:ANONYMOUS"
    software = ""
    is_closing = False
    number = 0
    door = login = None

    def __init__(self) -> None:
        self.when_lost: dict[int, Callable[[], None]] = {}

    def take_next(self) -> None: ...

    def answer(self, pieces: Iterable[Buffer], *, throttle_ms: int = 0, number: int | None = None) -> None:
        data = b"".join(pieces)
        assert not data or len(data) == 4 + struct.unpack_from(">i", data)[0]

    def refuse(self, reason: str) -> None:
        assert reason


class _Bugs(logging.Handler):
    """Handlers that failed: a client loses its connection then, and the log tells why."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))


class Served:
    """The target `served`: a broker of one node, made anew every so many inputs."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._nodes: Nodes | None = None
        self._lives = 0
        self._bugs = _Bugs()
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self._bugs)
            logging.getLogger(name).propagate = False

    def __call__(self, data: bytes) -> None:
        if len(data) < 2:
            return
        api = _API_LIST[data[0] % len(_API_LIST)]
        version = api.served[data[1] % len(api.served)]
        tags = b"\0" if version in api.flexible else b""
        self._runner.run(self._serve(struct.pack(">hhih", api.key, version, 1, -1) + tags + data[2:]))

    async def _serve(self, frame: bytes) -> None:
        if self._nodes is None or self._lives >= _LIVES:
            await self._stop()
            self._nodes, self._lives = await self._start(), 0
        self._lives += 1
        broker = self._nodes.brokers[0]
        stranger: Connection = _Stranger()  # type: ignore[assignment]
        broker.server.on_frame(stranger, memoryview(frame))
        for _ in range(4):
            await asyncio.sleep(0)
        assert not self._bugs.seen, self._bugs.seen
        assert not broker.runtime.ended.done(), broker.runtime.ended

    @staticmethod
    async def _start() -> Nodes:
        nodes = await Nodes(1).__aenter__()
        await nodes.create_topic("t", (0,))
        return nodes

    async def _stop(self) -> None:
        if self._nodes is not None:
            await self._nodes.client.close()
            await self._nodes.kill(0)
            self._nodes = None

    def close(self) -> None:
        self._runner.run(self._stop())
        self._runner.close()
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self._bugs)
            logging.getLogger(name).propagate = True


def with_few_partitions(patch: pytest.MonkeyPatch) -> None:
    """Ten thousand partitions are a legal wish, and seconds of work each time."""
    patch.setattr(assignment, "MOST_NEW_PARTITIONS", 5)


def seeds_of_served() -> Iterable[bytes]:
    for index, api in enumerate(_API_LIST):
        for place, version in enumerate(api.served):
            yield bytes((index, place)) + _sample(api.request, version)
    produce = t.ProduceRequest(acks=1, topic_data=[])
    yield bytes((0, 0)) + b"".join(encode(produce, 3))


def seeds_of_frames() -> Iterable[bytes]:
    draw = random.Random(0)
    for sizes in ([1], [5, 300], [1, 2, 3], [40_000, 7], [70_000], [3, 0]):
        yield draw.randbytes(4) + b"".join(struct.pack(">i", size) + bytes(size) for size in sizes)


def seeds_of_headers() -> Iterable[bytes]:
    for api in _API_LIST:
        yield struct.pack(">hhih", api.key, api.latest, 7, 2) + b"me" + b"\0"


SEEDS: Final[dict[str, Callable[[], Iterable[bytes]]]] = {
    "frames": seeds_of_frames,
    "headers": seeds_of_headers,
    "requests": seeds_of_requests,
    "served": seeds_of_served,
}

"""What the served store does that a client of ZooKeeper's never asks for (the rest: test_zookeeper.py)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Awaitable, Callable

import pytest
from kazoo.protocol.serialization import CheckVersion, Connect, Create2, Delete, Exists, Sync
from kazoo.security import OPEN_ACL_UNSAFE

from logstore.broker.limits import Address
from logstore.broker.metadata import jute
from logstore.broker.metadata.server import MetadataServer, session_secret
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.replication.metastore.operations import Create, Get
from logstore.testing.disks import Fault, FaultyDisk, Operation, RecordingDisk

TIMEOUT_MS = 5_000
NO_NODE, UNIMPLEMENTED, BAD_ARGUMENTS, QUOTA_EXCEEDED = -101, -6, -8, -125


class Rig:
    """A server, and the clock that it goes by."""

    def __init__(self, disk: Disk) -> None:
        self.now_ms = 1_000_000
        self.store = EmbeddedStore("/meta", disk=disk, sessions_from_ms=self.now_ms)
        secret = session_secret("/meta", disk=disk, random=random.Random(0))
        self.server = MetadataServer(self.store, clock=lambda: self.now_ms, secret=secret)
        self.address = Address("", 0)
        self._peers: list[Peer] = []

    async def connect(self) -> Peer:
        self._peers.append(Peer(*await asyncio.open_connection(*self.address)))
        return self._peers[-1]

    async def close(self) -> None:
        self.server.close()
        for peer in self._peers:
            await peer.close()
        self.store.close()


def framed(xid: int, request: object) -> bytes:
    """A request as it arrives."""
    body = request.serialize()  # type: ignore[attr-defined]
    kind = request.type  # type: ignore[attr-defined]
    return struct.pack(">iii", len(body) + 8, xid, kind) + bytes(body)


class Peer:
    """Speaks in frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer

    def send(self, payload: bytes) -> None:
        self._writer.write(struct.pack(">i", len(payload)) + payload)

    async def receive(self) -> bytes:
        async with asyncio.timeout(30):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def greet(self, session_id: int = 0, password: bytes = bytes(16)) -> tuple[int, bytes]:
        """The session's id and password."""
        self.send(bytes(Connect(0, 0, TIMEOUT_MS, session_id, password, False).serialize()))
        _, _, found, _, secret = struct.unpack_from(">iiqi16s", await self.receive())
        return found, secret

    def ask(self, xid: int, request: object) -> None:
        self._writer.write(framed(xid, request))

    async def error(self) -> tuple[int, int]:
        """The next reply's xid and error."""
        xid, _, error = struct.unpack_from(">iqi", await self.receive())
        return xid, error

    async def is_cut_off(self) -> bool:
        async with asyncio.timeout(30):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def running(scenario: Callable[[Rig], Awaitable[None]], disk: Disk | None = None) -> None:
    async def run() -> None:
        rig = Rig(disk or MemoryDisk())
        rig.address = await rig.server.listen(Address("127.0.0.1", 0))
        try:
            await scenario(rig)
        finally:
            await rig.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "bytes_sent",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">iiqiqi", 28, 0, 0, 5000, 0, 1000),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["negative", "empty", "huge", "short hello", "long password", "another protocol"],
)
def test_who_makes_no_sense_is_hung_up_on_and_nobody_else_notices(bytes_sent: bytes) -> None:
    async def scenario(rig: Rig) -> None:
        other, stranger = await rig.connect(), await rig.connect()
        await other.greet()
        stranger._writer.write(bytes_sent)
        assert await stranger.is_cut_off()
        other.ask(1, Sync("/"))
        assert await other.error() == (1, 0)

    running(scenario)


def test_what_is_not_served_is_refused_in_its_turn() -> None:
    """Kazoo loses its place if answers change their order."""

    async def scenario(rig: Rig) -> None:
        peer = await rig.connect()
        await peer.greet()
        asked = [
            (Exists("/absent", None), NO_NODE),
            (Exists("/a//b", None), BAD_ARGUMENTS),
            (Exists("no/root", None), BAD_ARGUMENTS),
            (Delete("/", -1), BAD_ARGUMENTS),
            (Create2("/", b"", OPEN_ACL_UNSAFE, 0), BAD_ARGUMENTS),
            (Create2("/container", b"", OPEN_ACL_UNSAFE, 4), UNIMPLEMENTED),
            (Create2("/..", b"", OPEN_ACL_UNSAFE, 0), BAD_ARGUMENTS),
            (Sync("/"), 0),
        ]
        for xid, (request, _) in enumerate(asked, 1):
            peer.ask(xid, request)
        peer.send(struct.pack(">ii", 99, 107))
        for xid, (_, error) in enumerate(asked, 1):
            assert await peer.error() == (xid, error)
        assert await peer.error() == (99, UNIMPLEMENTED)

    running(scenario)


def test_a_session_belongs_to_who_knows_its_password() -> None:
    async def scenario(rig: Rig) -> None:
        peer, thief, heir = await rig.connect(), await rig.connect(), await rig.connect()
        session_id, password = await peer.greet()
        assert await thief.greet(session_id, bytes(16)) == (0, bytes(16))
        assert await thief.is_cut_off()
        assert await heir.greet(session_id, password) == (session_id, password)
        assert await peer.is_cut_off(), "a session has one connection"

    running(scenario)


def test_what_a_replaced_connection_asked_before_is_not_carried_out() -> None:
    """Its session goes on elsewhere: the client counted the request as lost, and may have repeated it."""

    async def scenario(rig: Rig) -> None:
        peer = await rig.connect()
        session_id, password = await peer.greet()
        server = rig.server
        former = server._by_session[session_id]
        await rig.connect()
        while len(server._connections) < 2:
            await asyncio.sleep(0)
        (following,) = server._connections - {former}
        # Both within one turn of the loop: the request waits for its end.
        former.receive(framed(5, Create2("/late", b"", OPEN_ACL_UNSAFE, 0)))
        server.greet(following, jute.Hello(TIMEOUT_MS, session_id, password))
        assert await peer.is_cut_off()
        assert not server._waiting, "it had its turn"
        assert rig.store.tree.node("/late") is None

    running(scenario)


def test_all_that_comes_in_one_turn_shares_a_sync() -> None:
    syncs = []

    def before(operation: Operation) -> None:
        if operation.name == "sync" and "journal" in operation.path:
            syncs.append(operation.path)

    async def scenario(rig: Rig) -> None:
        peer = await rig.connect()
        await peer.greet()
        syncs.clear()
        count = 50
        peer._writer.writelines(
            struct.pack(">iii", 8 + len(body), number, Create2.type) + body
            for number in range(1, count + 1)
            for body in [Create2(f"/n{number}", b"", OPEN_ACL_UNSAFE, 0).serialize()]
        )
        for number in range(1, count + 1):
            assert await peer.error() == (number, 0)
        assert 1 <= len(syncs) < count / 2

    running(scenario, RecordingDisk(MemoryDisk(), before=before))


def test_a_disk_that_fails_answers_nobody_any_more() -> None:
    disk = FaultyDisk(MemoryDisk())

    async def scenario(rig: Rig) -> None:
        peer = await rig.connect()
        await peer.greet()
        disk.inject(Fault(operation="sync"))
        peer.ask(1, Create2("/n", b"", OPEN_ACL_UNSAFE, 0))
        assert await peer.is_cut_off()
        assert rig.server.failed.exception() is not None

    running(scenario, disk)


@pytest.mark.parametrize("stood_still", [True, False])
def test_who_stood_still_gives_every_session_its_time_again(stood_still: bool) -> None:
    """After SIGCONT the clients' signs of life are in the sockets, and the clock is far ahead."""

    async def scenario(rig: Rig) -> None:
        peer = await rig.connect()
        session_id, _ = await peer.greet()
        deadline_ms = rig.store.deadline_ms
        assert deadline_ms == rig.now_ms + TIMEOUT_MS
        rig.now_ms = deadline_ms + (60_000 if stood_still else 1)
        rig.server._tick(deadline_ms)
        assert (session_id in rig.store.tree.sessions) is stood_still
        if not stood_still:
            assert await peer.is_cut_off()

    running(scenario)


def test_it_says_that_it_is_well() -> None:
    async def scenario(rig: Rig) -> None:
        peer = await rig.connect()
        peer._writer.write(b"ruok")
        assert await peer.reader.read() == b"imok"

    running(scenario)


def test_sessions_go_on_over_a_crash_and_every_node_looks_changed() -> None:
    """Watches are gone: whoever compares what it saw with what is there must not miss a change."""
    disk = MemoryDisk()
    store = EmbeddedStore("/meta", disk=disk, sessions_from_ms=0)
    session = store.open_session(TIMEOUT_MS, 0)
    store.call(session, Create("/e", b"1", ephemeral=True), 0)
    with EmbeddedStore("/meta", disk=disk.durable_image(), sessions_from_ms=70) as again:
        assert again.deadline_ms == 70 + TIMEOUT_MS
        found, _ = again.call(session, Get("/e"), 71)
        assert found.stat is not None
        assert found.stat.ephemeral_owner == session
        node, root = again.tree.node("/e"), again.tree.node("/")
        assert node is not None
        assert root is not None
        assert node.changed_txid == root.children_changed_txid == again.tree.last_txid
        assert again.open_session(TIMEOUT_MS, 72) > session
    with EmbeddedStore("/meta", disk=disk.durable_image()) as over:
        assert not over.tree.sessions
        assert over.tree.node("/e") is None


def test_checks_stand_alone_too() -> None:
    async def scenario(rig: Rig) -> None:
        peer = await rig.connect()
        await peer.greet()
        peer.ask(1, CheckVersion("/", 7))
        assert await peer.error() == (1, -103)

    running(scenario)

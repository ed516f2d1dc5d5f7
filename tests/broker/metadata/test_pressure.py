"""What a stranger may take of the served store: connections, memory, its turn; and what is left to others."""

from __future__ import annotations

import struct

import pytest
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    GetData,
    Ping,
    SetData,
    Transaction,
)
from kazoo.security import OPEN_ACL_UNSAFE

from logstore.broker.metadata import server as served
from logstore.disk.memory import MemoryDisk
from logstore.replication.metastore import operations
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.testing.disks import RecordingDisk
from tests.broker.metadata.test_server import TIMEOUT_MS, Peer, Rig, running

KIB = 1 << 10
BAD_ARGUMENTS, QUOTA_EXCEEDED = -8, -125


def create(path: str, size: int) -> object:
    return Create(path, bytes(size), OPEN_ACL_UNSAFE, 0)


async def settled(rig: Rig) -> None:
    """The server has read and served whatever it could: a later connection is answered."""
    for _ in range(3):
        peer = await rig.connect()
        await peer.greet()
        for xid in range(5):
            peer.ask(xid, Ping)
            await peer.error()


def test_whoever_takes_no_answers_is_served_no_more_and_held_to_a_few_requests() -> None:
    """3,000 reads of 50 kB that nobody took raised a store from 187 to 349 MiB."""

    async def scenario(rig: Rig) -> None:
        peer, other = await rig.connect(), await rig.connect()
        await peer.greet()
        await other.greet()
        peer.ask(1, create("/large", 50 * KIB))
        assert await peer.error() == (1, 0)
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for xid in range(3_000):
            peer.ask(xid, GetData("/large", None))
        await settled(rig)
        (connection,) = (each for each in rig.server._connections if each._is_clogged)
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 2 * served.BYTES_A_TURN
        assert len(connection._requests) <= served.REQUESTS_A_TURN
        assert len(connection._received) <= 2 * served.BYTES_A_TURN
        other.ask(2, GetData("/large", None))
        assert await other.error() == (2, 0)
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for xid in range(3_000):
            assert await peer.error() == (xid, 0)

    running(scenario)


def test_many_large_writes_take_turns_with_others() -> None:
    """107 nodes of 500 kB in one go delayed everybody's pings past their sessions."""
    disk = RecordingDisk(MemoryDisk())

    async def scenario(rig: Rig) -> None:
        stranger, broker = await rig.connect(), await rig.connect()
        await stranger.greet()
        await broker.greet()
        for number in range(40):
            stranger.ask(number, create(f"/{number}", 500_000))
        await settled(rig)
        broker.ask(7, Ping)
        assert await broker.error() == (7, 0)
        stored = len(rig.store.tree.node("/").children)  # type: ignore[union-attr]
        assert stored <= 40
        for number in range(40):
            assert await stranger.error() == (number, 0)

    running(scenario, disk)
    largest = max(
        len(each.data) for each in disk.operations if each.name == "pwrite" and "journal" in each.path
    )
    assert largest < 2 * 500_000, "each write of the stranger had a sync of its own"


def test_a_session_is_renewed_by_what_arrives_not_by_what_is_served() -> None:
    async def scenario(rig: Rig) -> None:
        peer = await rig.connect()
        session_id, _ = await peer.greet()
        connection = rig.server._by_session[session_id]
        connection._is_clogged = True  # nothing of it is served
        for _ in range(4):
            rig.now_ms += TIMEOUT_MS // 2
            peer.ask(1, Ping)
            await settled(rig)
        assert session_id in rig.store.tree.sessions
        expired, _ = rig.store.tick(rig.now_ms)
        assert session_id not in expired

    running(scenario)


def test_a_node_has_a_largest_size() -> None:
    async def scenario(rig: Rig) -> None:
        peer, other = await rig.connect(), await rig.connect()
        await peer.greet()
        await other.greet()
        peer.ask(1, create("/fits", served.LARGEST_REQUEST - KIB))
        assert await peer.error() == (1, 0)
        peer.ask(2, create("/large", served.LARGEST_REQUEST))
        assert await peer.is_cut_off()
        other.ask(3, GetData("/fits", None))
        assert await other.error() == (3, 0)

    running(scenario)


def test_the_tree_has_a_largest_size_and_whoever_deletes_may_write_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served, "MOST_TREE_BYTES", 100 * KIB)

    async def scenario(rig: Rig) -> None:
        peer = await rig.connect()
        await peer.greet()
        errors = []
        for number in range(10):
            peer.ask(number, create(f"/{number}", 15 * KIB))
            errors.append((await peer.error())[1])
        assert errors == [0] * 6 + [QUOTA_EXCEEDED] * 4
        peer.ask(20, SetData("/0", bytes(40 * KIB), -1))
        assert await peer.error() == (20, QUOTA_EXCEEDED)
        peer.ask(21, Delete("/1", -1))
        assert await peer.error() == (21, 0)
        peer.ask(22, create("/again", 15 * KIB))
        assert await peer.error() == (22, 0)

    running(scenario)


def test_a_tree_of_the_largest_size_takes_what_replaces_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaders are elected by such writes."""
    monkeypatch.setattr(served, "MOST_TREE_BYTES", 8 * KIB)

    async def scenario(rig: Rig) -> None:
        peer = await rig.connect()
        await peer.greet()
        errors = []
        for xid, request in enumerate(
            [
                create("/state", 7 * KIB),
                SetData("/state", bytes(7 * KIB), -1),
                Transaction([CheckVersion("/state", 1), SetData("/state", bytes(7 * KIB), 1)]),
                SetData("/state", bytes(8 * KIB), -1),
            ]
        ):
            peer.ask(xid, request)
            errors.append((await peer.error())[1])
        assert errors == [0, 0, 0, QUOTA_EXCEEDED]

    running(scenario)


def test_a_refused_write_is_answered_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    # ZooKeeper's clients close a connection whose answers come out of order.
    monkeypatch.setattr(served, "MOST_TREE_BYTES", 8 * KIB)

    async def scenario(rig: Rig) -> None:
        peer = await rig.connect()
        await peer.greet()
        peer.ask(1, create("/fits", KIB))
        peer.ask(2, create("/large", 10 * KIB))
        peer.ask(3, create("/small", KIB))
        assert [await peer.error() for _ in range(3)] == [(1, 0), (2, QUOTA_EXCEEDED), (3, 0)]

    running(scenario)


def test_a_path_has_a_longest_size() -> None:
    # The journal holds the length of a path in two bytes.
    async def scenario(rig: Rig) -> None:
        peer = await rig.connect()
        await peer.greet()
        peer.ask(1, create("/" + "x" * 0xFFFF, KIB))
        assert await peer.error() == (1, BAD_ARGUMENTS)
        peer.ask(2, Create("/" + "ü" * 0x7FFB, b"", OPEN_ACL_UNSAFE, 2))
        assert await peer.error() == (2, BAD_ARGUMENTS)
        peer.ask(3, create("/after", KIB))
        assert await peer.error() == (3, 0)

    running(scenario)


def test_connections_and_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "MOST_CONNECTIONS", 5)
    monkeypatch.setattr(served, "MOST_SESSIONS", 3)

    async def scenario(rig: Rig) -> None:
        peers: list[Peer] = [await rig.connect() for _ in range(4)]
        for peer in peers[:3]:
            assert (await peer.greet())[0]
        peers[3].send(struct.pack(">iqiqi", 0, 0, TIMEOUT_MS, 0, 16) + bytes(17))
        assert await peers[3].is_cut_off()
        more = [await rig.connect() for _ in range(3)]
        assert await more[2].is_cut_off()
        peers[0].ask(1, Ping)
        assert await peers[0].error() == (1, 0)

    running(scenario)


def test_the_size_of_the_tree_follows_every_change() -> None:
    disk = MemoryDisk()
    rig_store = EmbeddedStore("/m", disk=disk, sessions_from_ms=0)
    session = rig_store.open_session(TIMEOUT_MS, 0)

    def call(operation: operations.Operation) -> None:
        rig_store.call(session, operation, 0)

    call(operations.Create("/a", b"12345"))
    one = rig_store.tree.size
    call(operations.Create("/b", b"12345", ephemeral=True))
    assert rig_store.tree.size == 2 * one
    call(operations.Set("/a", b"1234567", -1))
    assert rig_store.tree.size == 2 * one + 2
    failing = operations.Multi((operations.Set("/a", b"", -1), operations.Delete("/none", -1)))
    call(failing)
    assert rig_store.tree.size == 2 * one + 2
    rig_store.close_session(session)
    assert rig_store.tree.size == one + 2
    rig_store.close()
    again = EmbeddedStore("/m", disk=disk, sessions_from_ms=0)
    assert again.tree.size == one + 2
    again.close()

"""The embedded store in its users' process: events in order, sessions that last, a disk that fails."""

from __future__ import annotations

import errno
from queue import SimpleQueue

import pytest

from logstore.broker.metadata.local import LocalStore, SharedStore
from logstore.broker.metadata.opening import open_store
from logstore.disk.memory import MemoryDisk
from logstore.replication.effects import (
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreEvent,
    StoreReply,
    WatchFired,
)
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.replication.metastore.operations import Create, Get, Operation, Outcome, StoreError, WatchKind
from logstore.testing.disks import Fault, FaultyDisk

DEADLINE_S = 30.0


class User:
    def __init__(self, shared: SharedStore) -> None:
        self._inbox: SimpleQueue[StoreEvent] = SimpleQueue()
        self.store: LocalStore = shared.client(self._inbox.put)
        self.store.open_session(1_000)
        opened = self.next()
        assert isinstance(opened, SessionOpened)
        self.session_id = opened.session_id
        self._calls = 0

    def next(self) -> StoreEvent:
        return self._inbox.get(timeout=DEADLINE_S)

    def call(self, operation: Operation) -> Outcome:
        self._calls += 1
        self.store.submit(StoreCall(self.session_id, self._calls, operation))
        reply = self.next()
        assert isinstance(reply, StoreReply)
        assert reply.call_id == self._calls
        return reply.outcome


def test_brokers_of_one_process_share_a_store() -> None:
    disk = MemoryDisk()
    with SharedStore(EmbeddedStore("/meta", disk=disk), clock=lambda: 0) as shared:
        one, two = User(shared), User(shared)
        assert two.call(Get("/e", watch=True)).error is StoreError.NO_NODE
        assert one.call(Create("/e", b"1", ephemeral=True)).error is None
        assert two.next() == WatchFired(two.session_id, "/e", WatchKind.CREATED)
        assert two.call(Get("/e", watch=True)).data == b"1"
        one.store.close()
        assert two.next() == WatchFired(two.session_id, "/e", WatchKind.DELETED)
        assert one.call(Get("/")).error is StoreError.SESSION_EXPIRED
        assert two.call(Create("/stays", b"2")).error is None
    with EmbeddedStore("/meta", disk=disk.durable_image()) as again:
        node = again.tree.node("/stays")
        assert node is not None
        assert node.data == b"2"


def test_a_disk_that_fails_is_told_with_every_call() -> None:
    disk = FaultyDisk(MemoryDisk())
    with SharedStore(EmbeddedStore("/meta", disk=disk), clock=lambda: 0) as shared:
        user = User(shared)
        disk.inject(Fault(operation="sync"))
        for path in ("/a", "/b"):
            assert user.call(Create(path)).error is StoreError.CONNECTION_LOSS
        assert shared.failure is not None
        user.store.close()


def test_a_store_on_a_full_disk_works_again_once_there_is_room() -> None:
    """It stayed dead until its process was started again, long after there was room."""
    disk = FaultyDisk(MemoryDisk())
    with open_store("/meta", disk=disk) as shared:
        user = User(shared)
        assert user.call(Create("/before", b"1")).error is None
        disk.inject(Fault(operation="pwrite", forever=True, errno=errno.ENOSPC))
        assert user.call(Create("/full")).error is StoreError.CONNECTION_LOSS
        user.store.open_session(1_000)
        assert user.call(Get("/before")).error is StoreError.CONNECTION_LOSS
        assert shared.failure is not None
        disk.heal()
        shared._open_again_ms = 0  # it waits a second between two attempts
        user.store.submit(StoreCall(user.session_id, 0, Get("/before")))
        assert user.next() == SessionExpired(user.session_id)
        opened = user.next()
        assert isinstance(opened, SessionOpened), "the session that was asked for meanwhile"
        assert user.next() == StoreReply(0, Outcome(StoreError.SESSION_EXPIRED))
        user.session_id = opened.session_id
        assert shared.failure is None
        assert user.call(Get("/before")).data == b"1"
        assert user.call(Create("/after")).error is None


def test_a_stop_on_a_full_disk_is_in_order(caplog: pytest.LogCaptureFixture) -> None:
    """The snapshot at the end has no room, which ended the store's thread with a traceback."""
    disk = MemoryDisk()
    faulty = FaultyDisk(disk)
    with SharedStore(EmbeddedStore("/meta", disk=faulty), clock=lambda: 0) as shared:
        assert User(shared).call(Create("/kept", b"1")).error is None
        faulty.inject(Fault(operation="pwrite", forever=True, errno=errno.ENOSPC))
    assert "ends without a snapshot: " in caplog.text
    assert "Nothing is lost" in caplog.text
    with EmbeddedStore("/meta", disk=disk) as again:
        kept = again.tree.node("/kept")
        assert kept is not None
        assert kept.data == b"1"


def test_closing_does_what_was_asked_before() -> None:
    disk = MemoryDisk()
    shared = SharedStore(EmbeddedStore("/meta", disk=disk), clock=lambda: 0)
    user = User(shared)
    for number in range(20):
        user.store.submit(StoreCall(user.session_id, number, Create(f"/n{number}")))
    shared.close()
    replies = [user.next() for _ in range(20)]
    assert all(isinstance(each, StoreReply) and each.outcome.error is None for each in replies)
    user.store.close_session(user.session_id)
    user.store.close()

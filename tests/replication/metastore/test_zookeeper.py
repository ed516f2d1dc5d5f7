"""A real ZooKeeper server: answers, their order, and changes during broken connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from logstore.replication.effects import SessionExpired, SessionOpened, StoreCall, StoreReply, WatchFired
from logstore.replication.metastore.operations import (
    ANY_VERSION,
    Children,
    Create,
    Delete,
    Get,
    Operation,
    Outcome,
    Set,
    StoreError,
    WatchKind,
)
from logstore.replication.metastore.zookeeper import BlockingZooKeeperStore
from tests import zookeeper
from tests.metadata_server import StoreProcess
from tests.zookeeper import Client, Proxy, ZooKeeperServer, eventually

Server: TypeAlias = ZooKeeperServer | StoreProcess


@pytest.fixture(params=["zookeeper_port", "served_store_port"])
def port(request: pytest.FixtureRequest) -> int:
    """ZooKeeper's own server and ours: a client cannot tell them apart."""
    found: int = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(port: int) -> Iterator[Proxy]:
    with Proxy(port) as proxy:
        yield proxy


@pytest.fixture
def url(port: int, chroots: Iterator[int]) -> str:
    """A part of the server's tree that is this test's own."""
    return f"zookeeper://127.0.0.1:{port}/test-{next(chroots)}"


@pytest.fixture
def chroot(url: str) -> str:
    return "/" + url.rpartition("/")[2]


@pytest.fixture
def client(proxy: Proxy, chroot: str) -> Iterator[Client]:
    """Behind the proxy."""
    with Client(proxy.url + chroot) as client:
        yield client


@pytest.fixture
def other(url: str) -> Iterator[Client]:
    """A client that does not go through the proxy."""
    with Client(url) as other:
        yield other


# --- order ------------------------------------------------------------------------------------


def test_a_watch_comes_before_any_outcome_that_shows_its_change(client: Client, other: Client) -> None:
    """Hundreds of reads race with hundreds of writes; kazoo's own two threads would let some overtake.

    Rarely, though: hence a look at the threads, too.
    """
    client.call(Create("/x"))
    watching = {client.submit(Get("/x", watch=True))}
    writer = threading.Thread(target=lambda: [other.call(Set("/x", b"", ANY_VERSION)) for _ in range(150)])
    writer.start()
    armed_at: int | None = None
    fired = 0
    while writer.is_alive() or fired < 20:
        if not writer.is_alive():
            other.call(Set("/x", b"", ANY_VERSION))
        for _ in range(5):
            client.submit(Get("/x"))
        watching.add(last := client.submit(Get("/x", watch=True)))
        while True:
            event = client.next()
            if isinstance(event, WatchFired):
                armed_at = None
                fired += 1
                continue
            assert isinstance(event, StoreReply)
            assert event.outcome.stat is not None
            version = event.outcome.stat.version
            assert armed_at in (None, version), "the change was read before its watch came"
            if event.call_id in watching:
                armed_at = version
            if event.call_id == last:
                break
    writer.join()
    assert len(client.threads) == 1


def test_outcomes_come_in_the_order_of_the_calls(client: Client) -> None:
    """Those of several round trips, too; and more at once than kazoo's pipe to its thread holds."""
    operations: list[Operation] = []
    for number in range(50):
        operations += [
            Create(f"/a/{number}/b", make_parents=True),
            Get(f"/a/{number}/b", watch=True),
            Get(f"/a/{number}/c", watch=True),
            Delete(f"/a/{number}/b"),
        ]
    calls = [client.submit(operation) for operation in operations]
    replies: list[StoreReply] = []
    while len(replies) < len(calls):
        event = client.next()
        if isinstance(event, StoreReply):
            replies.append(event)
    assert [reply.call_id for reply in replies] == calls
    assert [reply.outcome.error for reply in replies] == [None, None, StoreError.NO_NODE, None] * 50
    assert client.events[0] == SessionOpened(client.session_id)


# --- a connection breaks ----------------------------------------------------------------------


def test_a_write_whose_reply_is_lost_is_applied_once_and_not_repeated(proxy: Proxy, client: Client) -> None:
    client.call(Create("/x", b"0"))
    proxy.lose_reply()
    assert client.call(Set("/x", b"1", ANY_VERSION)) == Outcome(StoreError.CONNECTION_LOSS)
    assert proxy.lost.is_set()
    outcome = client.call(Get("/x"))
    assert outcome.stat is not None
    assert (outcome.data, outcome.stat.version) == (b"1", 1)
    assert client.call(Create("/e", ephemeral=True)).error is None, "the session goes on"
    outcome = client.call(Get("/e"))
    assert outcome.stat is not None
    assert outcome.stat.ephemeral_owner == client.session_id


MISSED: dict[str, tuple[list[Operation], Operation, list[Operation], WatchKind | None]] = {
    "created": ([], Get("/x", watch=True), [Create("/x")], WatchKind.CREATED),
    "changed": ([Create("/x")], Get("/x", watch=True), [Set("/x", b"1", 0)], WatchKind.CHANGED),
    "deleted": ([Create("/x")], Get("/x", watch=True), [Delete("/x")], WatchKind.DELETED),
    "deleted and made again": (
        [Create("/x")],
        Get("/x", watch=True),
        [Delete("/x"), Create("/x")],
        WatchKind.DELETED,
    ),
    "made and deleted again": ([], Get("/x", watch=True), [Create("/x"), Delete("/x")], None),
    "child made": ([Create("/x")], Children("/x", watch=True), [Create("/x/1")], WatchKind.CHILDREN),
    "child came and went": (
        [Create("/x")],
        Children("/x", watch=True),
        [Create("/x/1"), Delete("/x/1")],
        WatchKind.CHILDREN,
    ),
    "parent deleted": ([Create("/x")], Children("/x", watch=True), [Delete("/x")], WatchKind.DELETED),
    "something else": ([Create("/x")], Get("/x", watch=True), [Create("/x/1")], None),
    "something else below": ([Create("/x")], Children("/x", watch=True), [Set("/x", b"1", 0)], None),
}


@pytest.mark.parametrize("case", MISSED)
def test_no_change_is_missed_while_the_connection_is_down(
    proxy: Proxy, client: Client, other: Client, case: str
) -> None:
    """kazoo forgets its watches at a break. They are set again, and what they missed fires them first."""
    before, watch, meanwhile, kind = MISSED[case]
    for operation in before:
        other.call(operation)
    client.call(watch)
    proxy.cut()
    for operation in meanwhile:
        assert other.call(operation).error is None
    client.submit(Children("/"))
    proxy.mend()
    told: list[WatchFired] = []
    while not isinstance(event := client.next(), StoreReply) or event.outcome.error is not None:
        if isinstance(event, WatchFired):
            told.append(event)
        else:  # it was sent as the connection broke
            client.submit(Children("/"))
    assert [(fired.path, fired.kind) for fired in told] == ([("/x", kind)] if kind else [])
    # One that missed nothing is set still; one that fired is not.
    for operation in (Delete("/x/1"), Delete("/x"), Create("/x")):
        other.call(operation)
    client.call(Get("/"))
    again = [watch for watch in client.watches if watch.path == "/x"]
    assert len(again) == 1


def test_a_thousand_watches_are_set_again(proxy: Proxy, client: Client, other: Client) -> None:
    """More than kazoo takes at once; the one change among them is found."""
    for number in range(1000):
        client.submit(Get(f"/n{number}", watch=True))
    client.call(Get("/"))
    proxy.cut()
    other.call(Create("/n777"))
    proxy.mend()
    assert client.next_watch() == WatchFired(client.session_id, "/n777", WatchKind.CREATED)
    other.call(Create("/n3"))
    assert client.next_watch().path == "/n3"


def test_several_breaks_in_a_row(proxy: Proxy, client: Client, other: Client) -> None:
    for number in range(5):
        client.call(Get(f"/n{number}", watch=True))
        proxy.cut()
        proxy.mend()
    other.call(Create("/n0"))
    assert client.next_watch().path == "/n0"
    assert client.call(Get("/n0")).error is None
    assert not any(isinstance(event, SessionExpired) for event in client.events)


# --- a session ends ---------------------------------------------------------------------------


def test_a_session_runs_out_by_the_servers_clock(proxy: Proxy, chroot: str, other: Client) -> None:
    """Its ephemeral nodes go at once. Its client hears when it is back: first what waited, then the end."""
    with Client(proxy.url + chroot, session_ms=1_000) as client:
        client.call(Create("/e", ephemeral=True))
        client.call(Get("/other", watch=True))
        other.call(Get("/e", watch=True))
        proxy.cut()
        call = client.submit(Get("/e"))
        assert other.next_watch() == WatchFired(other.session_id, "/e", WatchKind.DELETED)
        other.call(Create("/other"))
        proxy.mend()
        client.wait_for_end()
        *_, reply, end = client.events
        assert end == SessionExpired(client.session_id)
        assert isinstance(reply, StoreReply)
        assert reply.call_id == call
        # The one if it was sent as the connection broke, the other if it waited.
        assert reply.outcome.error in (StoreError.CONNECTION_LOSS, StoreError.SESSION_EXPIRED)
        assert not client.watches, "a session that is over is told nothing"
        assert client.call(Get("/")) == Outcome(StoreError.SESSION_EXPIRED)
        client.store.open_session(1_000)
        opened = client.next()
        assert isinstance(opened, SessionOpened)
        assert opened.session_id != client.session_id


def test_an_expired_session_is_not_replaced_unasked(proxy: Proxy, client: Client, other: Client) -> None:
    client.call(Create("/e", ephemeral=True))
    proxy.end_session(client.session_id)
    client.wait_for_end()
    client.store.close()
    assert other.call(Children("/")).children == ()
    assert sum(isinstance(event, SessionOpened) for event in client.events) == 1


def test_a_closed_session_leaves_nothing(client: Client, other: Client) -> None:
    client.call(Create("/e", ephemeral=True))
    other.call(Get("/e", watch=True))
    client.store.close_session(client.session_id)
    client.store.close_session(client.session_id)
    assert other.next_watch() == WatchFired(other.session_id, "/e", WatchKind.DELETED)
    assert client.call(Get("/e")) == Outcome(StoreError.SESSION_EXPIRED)
    assert not any(isinstance(event, SessionExpired) for event in client.events), "it was asked for"


def test_a_call_in_no_session_is_answered(client: Client) -> None:
    client.store.submit(StoreCall(12345, 99, Get("/")))
    assert client.next() == StoreReply(99, Outcome(StoreError.SESSION_EXPIRED))


# --- the server ends --------------------------------------------------------------------------


@pytest.fixture(params=[ZooKeeperServer, StoreProcess])
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    server: Server = request.param(tmp_path / "store")
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.parametrize(("how", "session_ms"), [("stop", 2_000), ("kill", 10_000)])
def test_sessions_outlive_the_server(own_server: Server, how: str, session_ms: int) -> None:
    """The server that returns gives every session its whole timeout again, however long it was away."""
    url = own_server.url
    with Client(url, session_ms=session_ms) as client, Client(url, session_ms=session_ms) as other:
        client.call(Create("/e", ephemeral=True))
        client.call(Get("/x", watch=True))
        getattr(own_server, how)()
        if how == "stop":
            back_at = time.monotonic() + 1.1 * session_ms / 1000
            eventually(lambda: time.monotonic() >= back_at, "an absence longer than the sessions")
        own_server.start()
        outcome = client.call(Get("/e"))
        assert outcome.stat is not None
        assert outcome.stat.ephemeral_owner == client.session_id
        assert other.call(Create("/x")).error is None
        assert client.next_watch() == WatchFired(client.session_id, "/x", WatchKind.CREATED)


def test_a_client_that_dies_with_the_server_is_given_up_after_it_returns(
    own_server: Server,
) -> None:
    with Proxy(own_server.port) as proxy, Client(own_server.url) as other:
        client = Client(proxy.url, session_ms=1_000)
        client.call(Create("/e", ephemeral=True))
        proxy.cut()
        own_server.kill()
        own_server.start()
        eventually(lambda: other.call(Get("/e")).error is StoreError.NO_NODE, "the end of the dead session")
        proxy.mend()
        client.wait_for_end()
        client.close()


def test_a_server_that_stands_still_for_a_moment_costs_nothing(own_server: Server) -> None:
    with Client(own_server.url) as client:
        client.call(Create("/e", ephemeral=True))
        own_server.pause()
        call = client.submit(Get("/e"))
        own_server.resume()
        reply = client.next()
        assert isinstance(reply, StoreReply)
        assert (reply.call_id, reply.outcome.error) == (call, None)


def test_a_session_can_be_asked_for_before_there_is_a_server(own_server: Server) -> None:
    own_server.stop()
    client = Client(own_server.url, session_ms=2_000, wait=False)
    own_server.start()
    client.wait_for_session()
    assert client.call(Get("/")).error is None
    client.close()


def test_closing_does_not_need_a_server(own_server: Server) -> None:
    client = Client(own_server.url)
    own_server.kill()
    client.close()
    assert client.call(Get("/")) == Outcome(StoreError.SESSION_EXPIRED)


def test_what_is_missing_is_named_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "JAR", tmp_path / "none.jar")
    with pytest.raises(AssertionError, match="apt-get install -y zookeeper"):
        ZooKeeperServer(tmp_path)


def test_many_nodes_are_read_at_a_time(proxy: Proxy, chroot: str) -> None:
    """Reads that a server does not answer are lost after one wait, not after one for each node."""
    with BlockingZooKeeperStore(proxy.url + chroot) as store:
        session = store.open_session(10_000, 0)
        for number in range(0, 100, 2):
            store.call(session, Create(f"/n{number}", b"%d" % number), 0)
        reads = [Get(f"/n{number}") for number in range(100)]
        found = store.read_many(session, reads)
        assert [each.data for each in found[::2]] == [b"%d" % number for number in range(0, 100, 2)]
        assert {each.error for each in found[1::2]} == {StoreError.NO_NODE}
        proxy.cut()
        store._patience_s = 0.05
        assert {each.error for each in store.read_many(session, reads)} == {StoreError.CONNECTION_LOSS}
        proxy.mend()

"""One session of the ZooKeeper store in rare situations: the test plays kazoo."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooState
from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError, UnimplementedError
from kazoo.protocol.states import EventType, WatchedEvent, ZnodeStat

from logstore.replication.effects import (
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreEvent,
    StoreReply,
    WatchFired,
)
from logstore.replication.metastore import zookeeper_session
from logstore.replication.metastore.operations import (
    Children,
    Create,
    Get,
    Operation,
    Outcome,
    StoreError,
    WatchKind,
)
from logstore.replication.metastore.zookeeper import ZooKeeperStore
from logstore.replication.metastore.zookeeper_access import OPEN


class Sent(NamedTuple):
    """A request given to kazoo, and the receiver of its result."""

    request: Any
    result: Any

    @property
    def kind(self) -> str:
        return type(self.request).__name__


class ScriptedClient:
    """A stand-in for kazoo's client: it keeps its requests, and the test answers them."""

    client_state = "CONNECTED"

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.handler = self
        self.connected = False
        self.client_id = (77, b"password")
        self.last_zxid = 0
        self.sent: deque[Sent] = deque()
        self.is_stopped = False

    def add_listener(self, listener: Any) -> None:
        self._listener = listener

    def start_async(self) -> None:
        pass

    def stop(self) -> None:
        self.is_stopped = True

    def close(self) -> None:
        pass

    def spawn(self, function: Any) -> None:
        function()

    def _call(self, request: Any, result: Any) -> None:
        self.sent.append(Sent(request, result))

    # --- the test's side ----------------------------------------------------------------------

    def connect(self) -> None:
        self.connected = True
        self._listener(KazooState.CONNECTED)

    def disconnect(self, *, stragglers: int = 0) -> None:
        """Break the connection as kazoo does: fail pending requests, add `stragglers`, report the state."""
        self.connected = False
        under_way = len(self.sent) - stragglers
        for _ in range(under_way):
            self.sent.popleft().result.set_exception(ConnectionLoss())
        self._listener(KazooState.SUSPENDED)

    def expire(self) -> None:
        self.connected = False
        self._listener(KazooState.LOST)

    def answer(self, *results: Any) -> None:
        """Answer the oldest requests, in order."""
        for result in results:
            sent = self.sent.popleft()
            if isinstance(result, Exception):
                sent.result.set_exception(result)
            else:
                sent.result.set(result)

    @property
    def kinds(self) -> list[str]:
        return [sent.kind for sent in self.sent]


def stat(txid: int, *, made_at: int = 1) -> ZnodeStat:
    """A node that was made at `made_at` and last changed, itself and below, at `txid`."""
    return ZnodeStat(made_at, txid, 0, 0, 0, 0, 0, 0, 0, 0, txid)


class Rig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[StoreEvent] = []
        self.clients = clients = list[ScriptedClient]()

        def make(**options: Any) -> ScriptedClient:
            clients.append(ScriptedClient(**options))
            return clients[-1]

        monkeypatch.setattr(zookeeper_session, "KazooClient", make)
        self.store = ZooKeeperStore("zookeeper://one", self.events.append)
        self.store.open_session(4_000)
        (self.client,) = clients
        self.client.connect()
        assert self.take() == [SessionOpened(77)]
        self._calls = 0

    def submit(self, operation: Operation) -> int:
        self._calls += 1
        self.store.submit(StoreCall(77, self._calls, operation))
        return self._calls

    def take(self) -> list[StoreEvent]:
        """The events since the last time."""
        events, self.events[:] = list(self.events), []
        return events

    def watch(self, path: str = "/x", txid: int = 5) -> None:
        """Set a watch on a node that was last changed at `txid`."""
        call = self.submit(Get(path, watch=True))
        self.client.answer((b"", stat(txid)), stat(txid))
        (reply,) = self.take()
        assert isinstance(reply, StoreReply)
        assert (reply.call_id, reply.outcome.error) == (call, None)

    def fire(self, kind: str, path: str = "/x") -> None:
        self.client_on_watch(WatchedEvent(kind, "CONNECTED", path))

    @property
    def client_on_watch(self) -> Any:
        (session,) = self.store._sessions
        return session._on_watch


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


FIRED = WatchFired(77, "/x", WatchKind.CHANGED)


def test_attempts_to_connect_fit_into_the_session(rig: Rig) -> None:
    options = rig.client.options
    assert options["hosts"] == "one,one,one,one", "each is given a fourth of the timeout"
    assert options["connection_retry"].max_delay == 0.5


def test_a_node_made_between_the_two_requests_of_a_get(rig: Rig) -> None:
    """It was read as absent; the watch on its absence goes off, behind the outcome."""
    call = rig.submit(Get("/x", watch=True))
    assert rig.client.kinds == ["GetData", "Exists"]
    rig.client.answer(NoNodeError(), stat(9, made_at=9))
    assert rig.take() == [
        StoreReply(call, Outcome(StoreError.NO_NODE)),
        WatchFired(77, "/x", WatchKind.CREATED),
    ]
    rig.fire(EventType.CHANGED)
    assert rig.take() == [], "the server has a watch, nobody here does"


def test_a_node_deleted_between_the_two_requests_of_a_get(rig: Rig) -> None:
    call = rig.submit(Get("/x", watch=True))
    rig.client.answer((b"", stat(5)))
    rig.fire(EventType.DELETED)
    rig.client.answer(None)
    reply, fired = rig.take()
    assert isinstance(reply, StoreReply)
    assert reply.call_id == call
    assert fired == WatchFired(77, "/x", WatchKind.DELETED)
    rig.fire(EventType.CREATED)
    assert rig.take() == []


def test_calls_wait_for_the_watches_to_be_set_again(rig: Rig) -> None:
    rig.watch()
    rig.client.disconnect()
    call = rig.submit(Get("/y"))
    assert not rig.client.sent
    rig.client.connect()
    assert rig.client.kinds == ["Exists"]
    rig.client.answer(stat(6))
    assert rig.take() == [FIRED]
    rig.client.answer((b"", stat(1)))
    (reply,) = rig.take()
    assert isinstance(reply, StoreReply)
    assert reply.call_id == call


def test_a_call_that_slipped_in_at_the_break_does_not_overtake_a_watch(rig: Rig) -> None:
    """kazoo sends it first when the connection is back. What it saw may be what the watch is about."""
    rig.watch()
    straggler = rig.submit(Get("/x"))
    rig.client.disconnect(stragglers=1)
    rig.client.connect()
    assert rig.client.kinds == ["GetData", "Exists"]
    rig.client.answer((b"", stat(6)))
    assert rig.take() == []
    rig.client.answer(stat(6))
    fired, reply = rig.take()
    assert fired == FIRED
    assert isinstance(reply, StoreReply)
    assert reply.call_id == straggler


def test_a_straggler_that_sets_the_watch_anew_keeps_it(rig: Rig) -> None:
    rig.watch()
    straggler = rig.submit(Get("/x", watch=True))
    rig.client.disconnect(stragglers=2)
    rig.client.connect()
    assert rig.client.kinds == ["GetData", "Exists", "Exists"]
    rig.client.answer((b"", stat(6)), stat(6), stat(6))
    fired, reply = rig.take()
    assert fired == FIRED, "the one that was set before"
    assert isinstance(reply, StoreReply)
    assert reply.call_id == straggler
    rig.fire(EventType.CHANGED)
    assert rig.take() == [FIRED], "the one that it set"


def test_what_is_held_back_survives_another_break(rig: Rig) -> None:
    rig.watch()
    straggler = rig.submit(Get("/x"))
    rig.client.disconnect(stragglers=1)
    rig.client.connect()
    rig.client.answer((b"", stat(6)))
    rig.client.disconnect()
    rig.client.connect()
    assert rig.take() == []
    rig.client.answer(stat(6))
    fired, reply = rig.take()
    assert fired == FIRED
    assert isinstance(reply, StoreReply)
    assert reply.call_id == straggler


def test_what_is_held_back_is_told_before_the_end(rig: Rig) -> None:
    rig.watch()
    straggler = rig.submit(Get("/y"))
    rig.client.disconnect(stragglers=1)
    rig.client.connect()
    rig.client.answer(NoNodeError())
    waiting = rig.submit(Get("/z"))
    rig.client.disconnect()
    rig.client.expire()
    assert rig.take() == [
        StoreReply(straggler, Outcome(StoreError.NO_NODE)),
        StoreReply(waiting, Outcome(StoreError.SESSION_EXPIRED)),
        SessionExpired(77),
    ]
    assert rig.client.is_stopped


def test_a_call_that_was_half_lost_is_not_gone_on_with(rig: Rig) -> None:
    """Of its three looks at parents only the last slipped through: the write behind them is not sent."""
    call = rig.submit(Create("/a/b/c/d", make_parents=True))
    assert rig.client.kinds == ["Exists"] * 3
    rig.client.disconnect(stragglers=1)
    assert rig.take() == [StoreReply(call, Outcome(StoreError.CONNECTION_LOSS))]
    rig.client.connect()
    rig.client.answer(stat(1))
    assert not rig.client.sent
    assert rig.take() == []
    rig.submit(Get("/"))
    assert rig.client.kinds == ["GetData"], "nor does it hold up what follows"


def test_a_reply_that_says_expired_waits_for_the_end(rig: Rig) -> None:
    """The server may refuse a call before the connection learns why; every call is answered once."""
    call = rig.submit(Get("/y"))
    rig.client.answer(SessionExpiredError())
    assert rig.take() == []
    rig.client.expire()
    assert rig.take() == [StoreReply(call, Outcome(StoreError.SESSION_EXPIRED)), SessionExpired(77)]
    rig.client.connect()
    assert rig.take() == [], "the session that kazoo opens before it is stopped is nobody's"


def test_a_refusal_nobody_knows_counts_as_lost_and_is_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    call = rig.submit(Create("/x"))
    rig.client.answer(UnimplementedError())
    assert rig.take() == [StoreReply(call, Outcome(StoreError.CONNECTION_LOSS))]
    assert "UnimplementedError" in caplog.text


def test_a_deletion_seen_after_a_break_by_both_kinds_of_watch(rig: Rig) -> None:
    """Made and deleted again meanwhile: another node, hence the old one's deletion."""
    rig.watch()
    rig.submit(Children("/x", watch=True))
    rig.client.answer(([], stat(5)))
    rig.take()
    rig.client.disconnect()
    rig.client.connect()
    assert sorted(rig.client.kinds) == ["Exists", "GetChildren2"]
    for _ in range(2):
        recreated = stat(9, made_at=9)
        rig.client.answer(([], recreated) if rig.client.kinds[0] == "GetChildren2" else recreated)
    assert set(rig.take()) == {WatchFired(77, "/x", WatchKind.DELETED)}


def test_a_store_that_was_closed_first_opens_no_session(rig: Rig) -> None:
    rig.store.open_session(4_000)
    rig.store.close()
    assert rig.clients[1].is_stopped
    rig.clients[1].connect()
    assert rig.take() == []


def test_few_calls_are_given_to_kazoo_at_once(rig: Rig) -> None:
    """It takes a byte in a pipe for each, which the thread that fills it may be the one to empty."""
    calls = [rig.submit(Get(f"/{number}", watch=True)) for number in range(200)]
    assert len(rig.client.sent) == 2 * 64
    while rig.client.sent:
        rig.client.answer((b"", stat(1)), stat(1))
        assert len(rig.client.sent) <= 2 * 64
    assert [event.call_id for event in rig.take() if isinstance(event, StoreReply)] == calls
    rig.client.disconnect()
    rig.client.connect()
    while rig.client.sent:
        assert len(rig.client.sent) <= 64
        rig.client.answer(stat(1))
    assert rig.take() == []


def test_a_thread_of_kazoo_that_dies_ends_its_session_and_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody noticed: the node went on as the owner of a session that nobody kept alive."""
    rig = Rig(monkeypatch)
    call = rig.submit(Get("/x"))

    def fails() -> None:
        raise KeyError("a bug")

    rig.client.options["handler"].spawn(fails).join(30)
    assert rig.take() == [StoreReply(call, Outcome(StoreError.SESSION_EXPIRED)), SessionExpired(77)]
    assert rig.client.is_stopped
    (record,) = (each for each in caplog.records if each.levelname == "CRITICAL")
    assert "a thread of the ZooKeeper client failed" in record.getMessage()


# --- TLS --------------------------------------------------------------------------------------


class Decrypted:
    """A connection with nothing more to read from its socket, and an answer that is decrypted already."""

    def __init__(self, silent: socket.socket, waiting: int) -> None:
        self.fileno, self._waiting = silent.fileno, waiting

    def pending(self) -> int:
        return self._waiting


def test_answers_that_share_a_tls_record_are_all_read() -> None:
    """kazoo waits for the socket, which has nothing to read for the second answer of a record."""
    handler = zookeeper_session._InOrder(1.0, lambda: None, OPEN)
    silent, other = socket.socketpair()
    woken, waker = socket.socketpair()
    with silent, other, woken, waker:
        decrypted = Decrypted(silent, 5)
        assert handler.select([decrypted, woken], [], [], 60)[0] == [decrypted]
        waker.send(b"x")
        assert handler.select([decrypted, woken], [], [], 60)[0] == [decrypted, woken]
        assert handler.select([Decrypted(silent, 0), woken], [], [], 60)[0] == [woken]

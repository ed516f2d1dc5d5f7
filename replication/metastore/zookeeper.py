"""The metadata store that Kafka used: Apache ZooKeeper, 3.5 or later, through kazoo.

    owner's thread                     a session's connection thread (kazoo's)
    ──────────────                     ───────────────────────────────────────
    open_session ─────────────────────▶ connect ───────────▶ on_event(SessionOpened)
    submit(StoreCall) ─▶ queue ───────▶ send, read ────────▶ on_event(StoreReply)
                                        read a watch ──────▶ on_event(WatchFired)
    close_session ────────────────────▶ close               (nothing more of this session)
                                        server gave up ────▶ on_event(SessionExpired)

Give `ZooKeeperStore` a URL and a function that puts events into a queue of yours:

    inbox: queue.SimpleQueue[StoreEvent] = queue.SimpleQueue()
    store = ZooKeeperStore("zookeeper://one:2181,two:2181/cluster", inbox.put)
    store.open_session(6_000)              # SessionOpened comes when a server has answered
    store.submit(StoreCall(session_id, 1, Get("/controller", watch=True)))

Each session is a client of its own, with a connection and a thread. Its events come from that thread, one at
a time, in the server's order. Operations take effect in the order submitted, each gets one `StoreReply`, and
a watch comes before any outcome that shows its change. `SessionOpened` is the first event.

The connection breaks: pending calls end in CONNECTION_LOSS; they may have been applied, and are not repeated
here. Calls submitted meanwhile wait. If the connection is back within the session's timeout, the watches are
set again, and each node is compared with its state when its watch was set. A change in between fires the
watch now, before the outcome of any waiting call.

The session expires: unanswered calls end in SESSION_EXPIRED, then comes `SessionExpired`. No new session is
opened unasked. Only a server can end a session: a client without a connection learns it later. The server
bounds the timeout (by default to between 2 and 20 of its ticks of 2 s).

Connections are plain and nodes are open to all clients (world:anyone), unless an `Access` says
otherwise (`zookeeper_access.py`). An error that `StoreError` does not have (quota, size, access)
is logged and reported as CONNECTION_LOSS.

`BlockingZooKeeperStore` is for a caller that waits for each answer: `InProcessCluster`, tools and scripts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue

from logstore.disk.closing import Closing
from logstore.replication.effects import (
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreEvent,
    StoreReply,
    WatchFired,
)
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.metastore.operations import Get, Operation, Outcome, StoreError
from logstore.replication.metastore.tree import ROOT
from logstore.replication.metastore.zookeeper_access import OPEN, Access
from logstore.replication.metastore.zookeeper_requests import Address  # names the missing extra, if any
from logstore.replication.metastore.zookeeper_session import Session

__all__ = ["BlockingZooKeeperStore", "StoreEvent", "ZooKeeperStore"]

DEFAULT_PATIENCE_S = 30.0


class ZooKeeperStore:
    """Sessions with ZooKeeper, for an owner that takes events. Any thread may call."""

    def __init__(self, url: str, on_event: Callable[[StoreEvent], None], access: Access = OPEN) -> None:
        """`url` is `zookeeper://host:port,host:port/chroot`; the chroot is created if it is missing.

        `on_event` is called on the threads of the sessions and sometimes within `submit`; it must only
        pass the event on. Raises `InvalidConfig`. Nothing is connected until `open_session`.
        """
        self._access = access
        self.name = url
        self._address = Address.parse(url)._replace(has_acls=self._access.has_acls)
        self._on_event = on_event
        self._lock = threading.Lock()
        self._sessions: list[Session] = []

    def open_session(self, timeout_ms: int) -> None:
        """Begin a session; `SessionOpened` brings its id. Tries until a server answers, or `close`."""
        session = Session(self._address, timeout_ms, self._on_event, self._access)
        with self._lock:
            self._sessions = [each for each in self._sessions if not each.is_gone]
            self._sessions.append(session)
        session.start()

    def submit(self, call: StoreCall) -> None:
        """Carry out an operation; its `StoreReply` follows, SESSION_EXPIRED for an unknown session."""
        session = self._find(call.session_id)
        if session is None or not session.submit(call):
            self._on_event(StoreReply(call.call_id, Outcome(StoreError.SESSION_EXPIRED)))

    def close_session(self, session_id: int) -> None:
        """End a session and wait for the server, unless unreachable; its ephemeral nodes are removed.

        Unanswered calls end in SESSION_EXPIRED. Does nothing if the session is over. Must not be called from
        `on_event`, whose thread it waits for.
        """
        session = self._find(session_id)
        if session is not None:
            session.close()

    def close(self) -> None:
        """End every session, as `close_session` does."""
        with self._lock:
            sessions, self._sessions = self._sessions, []
        for session in sessions:
            session.close()

    def _find(self, session_id: int) -> Session | None:
        with self._lock:
            return next((each for each in self._sessions if each.session_id == session_id), None)


class BlockingZooKeeperStore(Closing):
    """A `MetadataStore` over ZooKeeper. One thread at a time; the servers keep the time, not `now_ms`.

    A caller gets all earlier watches of this store's other sessions, as the protocol wants: after each
    operation every session makes one round trip, and nothing older can arrive after it.
    """

    def __init__(
        self,
        url: str,
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
        opening_s: float = DEFAULT_PATIENCE_S,
        access: Access = OPEN,
    ) -> None:
        """`url` and `access` as for `ZooKeeperStore`. An answer later than `patience_s` seconds is lost.

        A session is opened within `opening_s` seconds.
        """
        self._inbox: SimpleQueue[StoreEvent] = SimpleQueue()
        self._store = ZooKeeperStore(url, self._inbox.put, access)
        self._url, self._patience_s, self._opening_s = url, patience_s, opening_s
        self._calls = 0
        self._open: dict[int, None] = {}
        self._expired: list[int] = []
        self._fired: list[WatchFired] = []
        self._replies: dict[int, Outcome | None] = {}
        """pending calls"""

    # --- MetadataStore ------------------------------------------------------------------------

    def open_session(self, timeout_ms: int, now_ms: int) -> int:
        """Raises `MetadataStoreFailed` if no server answers in time."""
        self._store.open_session(timeout_ms)
        while not isinstance(event := self._take_event(self._opening_s), SessionOpened):
            if event is None:
                raise MetadataStoreFailed(f"no server of {self._url} answered within {self._opening_s:g} s")
        return event.session_id

    def heartbeat(self, session_id: int, now_ms: int) -> bool:
        """Return whether the session is open; kazoo keeps it alive."""
        return self._answer(session_id, Get(ROOT)).error is not StoreError.SESSION_EXPIRED

    def close_session(self, session_id: int) -> list[WatchFired]:
        self._open.pop(session_id, None)
        self._store.close_session(session_id)
        return self._catch_up()

    def tick(self, now_ms: int) -> tuple[list[int], list[WatchFired]]:
        fired = self._catch_up()
        expired, self._expired = self._expired, []
        return expired, fired

    @property
    def deadline_ms(self) -> int | None:
        return None

    def call(self, session_id: int, operation: Operation, now_ms: int) -> tuple[Outcome, list[WatchFired]]:
        outcome = self._answer(session_id, operation)
        return outcome, self._catch_up(but=session_id)

    # --- beyond the protocol ------------------------------------------------------------------

    def read_many(self, session_id: int, reads: Sequence[Get]) -> list[Outcome]:
        """Read nodes, many at a time; what a silent server leaves open is lost."""
        return self._wait([self._submit(session_id, each) for each in reads])

    def close(self) -> None:
        """End all sessions."""
        self._store.close()

    # --- waiting ------------------------------------------------------------------------------

    def _submit(self, session_id: int, operation: Operation) -> int:
        self._calls += 1
        self._replies[self._calls] = None
        self._store.submit(StoreCall(session_id, self._calls, operation))
        return self._calls

    def _wait(self, call_ids: Iterable[int]) -> list[Outcome]:
        outcomes, is_silent = [], False
        for call_id in call_ids:
            while self._replies[call_id] is None and not is_silent:
                is_silent = self._take_event(self._patience_s) is None
            outcomes.append(self._replies.pop(call_id) or Outcome(StoreError.CONNECTION_LOSS))
        return outcomes

    def _answer(self, session_id: int, operation: Operation) -> Outcome:
        return self._wait([self._submit(session_id, operation)])[0]

    def _catch_up(self, but: int = 0) -> list[WatchFired]:
        """Take in all that the servers have sent; return the watches of open sessions."""
        self._wait([self._submit(session, Get(ROOT)) for session in self._open if session != but])
        fired, self._fired = [watch for watch in self._fired if watch.session_id in self._open], []
        return fired

    def _take_event(self, within_s: float) -> StoreEvent | None:
        """Take in one event; None if none came in time."""
        try:
            event = self._inbox.get(timeout=within_s)
        except Empty:
            return None
        match event:
            case SessionOpened(session_id):
                self._open[session_id] = None
            case SessionExpired(session_id):
                if self._open.pop(session_id, 0) is None:
                    self._expired.append(session_id)
            case WatchFired():
                self._fired.append(event)
            case StoreReply(call_id, outcome):
                if call_id in self._replies:
                    self._replies[call_id] = outcome
        return event

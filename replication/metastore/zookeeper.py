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

Each session is a client of its own, a connection and a thread. Its events come from that thread, one at
a time, in the server's order: operations take effect in the order submitted, each gets one `StoreReply`,
and a watch comes before any outcome in which its change can be seen. `SessionOpened` is the first of all.

The connection breaks: calls under way end in CONNECTION_LOSS, may have been applied, and are not
repeated here. Calls submitted meanwhile wait. Back within the session's timeout, the watches are set
again and what they were for is compared with what was seen when they were set: a change in between
fires them now, before the outcome of any call that waited.

The session expires: what was not answered ends in SESSION_EXPIRED, then comes `SessionExpired`. No
session replaces it unasked. That a session is over is known only when a server says so: a client
that cannot reach any hears of it when it can. The server bounds the timeout (by default to
between 2 and 20 of its ticks of 2 s).

Nodes are open to everybody (world:anyone). What the server refuses for another reason than those in
`StoreError` (quota, size, access) is logged and counts as CONNECTION_LOSS: nothing is known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from logstore.replication.effects import StoreCall, StoreEvent, StoreReply
from logstore.replication.metastore.operations import Outcome, StoreError
from logstore.replication.metastore.zookeeper_requests import Address  # says what to install, if need be
from logstore.replication.metastore.zookeeper_session import Session

__all__ = ["StoreEvent", "ZooKeeperStore"]


class ZooKeeperStore:
    """Sessions with ZooKeeper, for an owner that takes events. Any thread may call."""

    def __init__(self, url: str, on_event: Callable[[StoreEvent], None]) -> None:
        """`url` is `zookeeper://host:port,host:port/chroot`; the chroot is made if it is missing.

        `on_event` is called on the threads of the sessions and sometimes within `submit`; it must only
        pass the event on. Raises `InvalidConfig`. Nothing is connected to until `open_session`.
        """
        self._address = Address.parse(url)
        self._on_event = on_event
        self._lock = threading.Lock()
        self._sessions: list[Session] = []

    def open_session(self, timeout_ms: int) -> None:
        """Begin a session; `SessionOpened` tells its id. Tries until a server answers, or `close`."""
        session = Session(self._address, timeout_ms, self._on_event)
        with self._lock:
            self._sessions = [each for each in self._sessions if not each.is_gone]
            self._sessions.append(session)
        session.start()

    def submit(self, call: StoreCall) -> None:
        """Carry out an operation; its `StoreReply` follows, SESSION_EXPIRED if there is no such session."""
        session = self._find(call.session_id)
        if session is None or not session.submit(call):
            self._on_event(StoreReply(call.call_id, Outcome(StoreError.SESSION_EXPIRED)))

    def close_session(self, session_id: int) -> None:
        """End a session and wait until the server knows, or cannot be reached: its ephemeral nodes go.

        Calls not yet answered end in SESSION_EXPIRED. Harmless if it is over already. Not to be called
        from `on_event`, whose thread it would wait for.
        """
        session = self._find(session_id)
        if session is not None:
            session.close()

    def close(self) -> None:
        """End every session; as with `close_session`."""
        with self._lock:
            sessions, self._sessions = self._sessions, []
        for session in sessions:
            session.close()

    def _find(self, session_id: int) -> Session | None:
        with self._lock:
            return next((each for each in self._sessions if each.session_id == session_id), None)

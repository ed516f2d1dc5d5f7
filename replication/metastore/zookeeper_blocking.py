"""ZooKeeper for a caller who waits: `ZooKeeperStore` as a `MetadataStore`.

For `InProcessCluster`, tools and scripts. Whoever asks gets what other sessions of this store were told
before, as the protocol wants: after each operation every session makes one round trip, behind which
nothing older can come from the server it is connected to. A node of a real cluster takes events from
`ZooKeeperStore` instead.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue

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
from logstore.replication.metastore.zookeeper import ZooKeeperStore

DEFAULT_PATIENCE_S = 30.0


class BlockingZooKeeperStore:
    """A `MetadataStore` over ZooKeeper. One thread at a time; the servers keep the time, not `now_ms`."""

    def __init__(self, url: str, *, patience_s: float = DEFAULT_PATIENCE_S) -> None:
        """`url` as for `ZooKeeperStore`. An answer that takes longer than `patience_s` counts as lost."""
        self._inbox: SimpleQueue[StoreEvent] = SimpleQueue()
        self._store = ZooKeeperStore(url, self._inbox.put)
        self._url, self._patience_s = url, patience_s
        self._calls = 0
        self._open: dict[int, None] = {}
        self._expired: list[int] = []
        self._fired: list[WatchFired] = []
        self._replies: dict[int, Outcome | None] = {}
        """calls that are waited for"""

    # --- MetadataStore ------------------------------------------------------------------------

    def open_session(self, timeout_ms: int, now_ms: int) -> int:
        """Raises `MetadataStoreFailed` if no server answers in time."""
        self._store.open_session(timeout_ms)
        while not isinstance(event := self._take_event(), SessionOpened):
            if event is None:
                raise MetadataStoreFailed(f"no server of {self._url} answered for {self._patience_s} s")
        return event.session_id

    def heartbeat(self, session_id: int, now_ms: int) -> bool:
        """Sessions are kept alive underneath; this asks whether one still is."""
        return self._answer(session_id, Get(ROOT)).error is not StoreError.SESSION_EXPIRED

    def close_session(self, session_id: int) -> list[WatchFired]:
        self._open.pop(session_id, None)
        self._store.close_session(session_id)
        self._catch_up()
        return self._take_fired()

    def tick(self, now_ms: int) -> tuple[list[int], list[WatchFired]]:
        self._catch_up()
        expired, self._expired = self._expired, []
        return expired, self._take_fired()

    @property
    def deadline_ms(self) -> int | None:
        return None

    def call(self, session_id: int, operation: Operation, now_ms: int) -> tuple[Outcome, list[WatchFired]]:
        outcome = self._answer(session_id, operation)
        self._catch_up(but=session_id)
        return outcome, self._take_fired()

    # --- beyond the protocol ------------------------------------------------------------------

    def close(self) -> None:
        """End all sessions."""
        self._store.close()

    def __enter__(self) -> BlockingZooKeeperStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- waiting ------------------------------------------------------------------------------

    def _submit(self, session_id: int, operation: Operation) -> int:
        self._calls += 1
        self._replies[self._calls] = None
        self._store.submit(StoreCall(session_id, self._calls, operation))
        return self._calls

    def _wait(self, call_id: int) -> Outcome:
        while (outcome := self._replies[call_id]) is None:
            if self._take_event() is None:
                outcome = Outcome(StoreError.CONNECTION_LOSS)
                break
        del self._replies[call_id]
        return outcome

    def _answer(self, session_id: int, operation: Operation) -> Outcome:
        return self._wait(self._submit(session_id, operation))

    def _catch_up(self, but: int = 0) -> None:
        """Hear all that the servers have sent so far."""
        for call_id in [self._submit(session, Get(ROOT)) for session in self._open if session != but]:
            self._wait(call_id)

    def _take_event(self) -> StoreEvent | None:
        """Take in one event; None if none came in time."""
        try:
            event = self._inbox.get(timeout=self._patience_s)
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

    def _take_fired(self) -> list[WatchFired]:
        # A watch for a session that is over has nobody to go to.
        fired, self._fired = [watch for watch in self._fired if watch.session_id in self._open], []
        return fired

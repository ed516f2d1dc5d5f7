"""The embedded metadata store in the brokers' own process: one thread, shared by all brokers.

    with SharedStore(EmbeddedStore(directory, disk=disk), clock=clock) as shared:
        runtime = Runtime(node, store_of=shared.client, …)

    broker's loop ──submit──▶ queue ──▶ the store's thread ──call_many, one sync──▶ on_event

The event loop never waits for a sync. A session lasts until it is closed: nothing can separate it from its
own process, and a stalled process stalls all its brokers. After a disk failure every call returns
CONNECTION_LOSS, and `failure` has the reason. That is final, unless the disk was only full: then the store is
opened again as soon as that succeeds, which reads what the disk kept, and every session is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from logstore.disk.closing import Closing
from logstore.disk.errors import EngineError
from logstore.errors import is_refusal
from logstore.loggers import logger_of
from logstore.replication.effects import (
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreEvent,
    StoreReply,
    WatchFired,
)
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.metastore.operations import Operation, Outcome, StoreError

OnEvent: TypeAlias = Callable[[StoreEvent], None]
_OPEN_AGAIN_MS: Final = 1_000

_log = logger_of(__name__)


class SharedStore(Closing):
    """Runs one `EmbeddedStore` for any number of clients. Any thread may call."""

    def __init__(
        self,
        store: EmbeddedStore,
        *,
        clock: Callable[[], int],
        open_store: Callable[[], EmbeddedStore] | None = None,
    ) -> None:
        """Take over `store`, which `close` closes; `clock` returns epoch milliseconds.

        `open_store` opens it again after a full disk.
        """
        self.failure: MetadataStoreFailed | None = None
        self._store, self._clock, self._open_store = store, clock, open_store
        self._open_again_ms = 0
        self._postponed: list[Callable[[], None]] = []
        """The openings and ends of sessions that the failed store could not write."""
        self._inbox: SimpleQueue[Callable[[], None] | tuple[OnEvent, StoreCall] | None] = SimpleQueue()
        self._owners: dict[int, OnEvent] = {}
        self._thread = threading.Thread(target=self._run, name="metadata-store", daemon=True)
        self._thread.start()

    def client(self, on_event: OnEvent) -> LocalStore:
        """Return a client for one broker; its events arrive on the store's thread."""
        return LocalStore(self, on_event)

    def close(self) -> None:
        """Finish the calls made so far, then close the store; later calls are not answered."""
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()

    # --- for the clients ----------------------------------------------------------------------

    def begin(self, timeout_ms: int, on_event: OnEvent) -> None:
        """Open a session whose events go to `on_event`."""

        def open_session() -> None:
            session_id = self._store.open_session(timeout_ms, self._clock())
            self._owners[session_id] = on_event
            on_event(SessionOpened(session_id))

        self._inbox.put(open_session)

    def submit(self, on_event: OnEvent, call: StoreCall) -> None:
        """Carry out one operation of a session."""
        self._inbox.put((on_event, call))

    def end(self, session_id: int) -> None:
        """Close a session and wait until that is durable, or the store has failed or is closed."""
        done = threading.Event()

        def close_session() -> None:
            try:
                self._owners.pop(session_id, None)
                self._tell(self._store.close_session(session_id))
            finally:
                done.set()

        self._inbox.put(close_session)
        while not done.wait(0.1) and self._thread.is_alive():
            pass

    # --- the store's thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            try:
                self._store.close()
            except MetadataStoreFailed as error:
                _log.warning("%s", error)

    def _turn(self) -> bool:
        """Carry out all that waits, in order, with one sync for each run of calls; False at the end."""
        waiting = [self._inbox.get()]
        try:
            while True:
                waiting.append(self._inbox.get_nowait())
        except Empty:
            pass
        if self.failure is not None and self._open_store is not None:
            self._open_again(self.failure, self._open_store)
        calls: list[tuple[OnEvent, StoreCall]] = []
        for item in waiting:
            if isinstance(item, tuple):
                calls.append(item)
                continue
            self._carry_out(calls)
            calls = []
            if item is None:
                return False
            self._begin_or_end(item)
        self._carry_out(calls)
        return True

    def _begin_or_end(self, act: Callable[[], None]) -> None:
        try:
            act()
        except MetadataStoreFailed as error:
            self._fail(error)
            self._postponed.append(act)

    def _open_again(self, failure: MetadataStoreFailed, open_store: Callable[[], EmbeddedStore]) -> None:
        """Open the store again if its disk was only full, once a second. The sessions are over then."""
        cause, now_ms = failure.__cause__, self._clock()
        if not isinstance(cause, OSError) or not is_refusal(cause) or now_ms < self._open_again_ms:
            return
        self._open_again_ms = now_ms + _OPEN_AGAIN_MS
        try:
            self._store.close()
            self._store = open_store()
        except (EngineError, OSError) as error:
            _log.info("the metadata store cannot be opened again yet: %s", error)
            return
        _log.warning("the metadata store works again; every session with it is over")
        self.failure = None
        owners, self._owners = self._owners, {}
        for session_id, owner in owners.items():
            owner(SessionExpired(session_id))
        postponed, self._postponed = self._postponed, []
        for act in postponed:
            self._begin_or_end(act)

    def _carry_out(self, calls: list[tuple[OnEvent, StoreCall]]) -> None:
        if not calls:
            return
        asked: list[tuple[int, Operation]] = [(call.session_id, call.operation) for _, call in calls]
        try:
            answers = self._store.call_many(asked, self._clock())
        except MetadataStoreFailed as error:
            self._fail(error)
            answers = [(Outcome(StoreError.CONNECTION_LOSS), []) for _ in calls]
        for (on_event, call), (outcome, fired) in zip(calls, answers, strict=True):
            self._tell(fired)
            on_event(StoreReply(call.call_id, outcome))

    def _tell(self, fired: list[WatchFired]) -> None:
        for watch in fired:
            if (owner := self._owners.get(watch.session_id)) is not None:
                owner(watch)

    def _fail(self, error: MetadataStoreFailed) -> None:
        if self.failure is None:
            _log.critical("the metadata store failed: %s", error)
            self.failure = error


class LocalStore:
    """One broker's client of a `SharedStore`; the store of a `Runtime`."""

    name = "in this process"

    def __init__(self, shared: SharedStore, on_event: OnEvent) -> None:
        self._shared, self._on_event = shared, on_event
        self._sessions: list[int] = []

    def open_session(self, timeout_ms: int) -> None:
        """Open a session; the event `SessionOpened` has its id."""
        self._shared.begin(timeout_ms, self._take)

    def submit(self, call: StoreCall) -> None:
        """Carry out an operation; a `StoreReply` follows, SESSION_EXPIRED without such a session."""
        self._shared.submit(self._on_event, call)

    def close_session(self, session_id: int) -> None:
        """Close a session and wait until its ephemeral nodes are gone."""
        self._shared.end(session_id)

    def close(self) -> None:
        """Close all sessions."""
        sessions, self._sessions = self._sessions, []
        for session_id in sessions:
            self._shared.end(session_id)

    def _take(self, event: StoreEvent) -> None:
        if isinstance(event, SessionOpened):
            self._sessions.append(event.session_id)
        self._on_event(event)

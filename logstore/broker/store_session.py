"""Requests to the metadata store besides the engine's: `await session.ask(Get(…))`.

The broker room reads and writes cluster id, blocks of producer ids and settings in a session of its own,
which holds no ephemeral nodes; watches are for `watchers`. If it expires, the next question opens another.
The engine has its own session (`runtime.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol, TypeAlias

from logstore.disk.closing import AsyncClosing
from logstore.replication.effects import (
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreEvent,
    StoreReply,
    WatchFired,
)
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.metastore.operations import (
    Create,
    Multi,
    Operation,
    Outcome,
    Set,
    StoreError,
    check_size,
)

_MOST_UNANSWERED: Final = 3


class StoreClient(Protocol):
    """A client of the metadata store that does not block: the outcome of a call is an event.

    Events come in order, from any thread, through a function that was given to its constructor.
    `close_session` and `close` may wait for the store. `name` is the store's address, for messages.
    """

    name: str

    def open_session(self, timeout_ms: int) -> None: ...

    def submit(self, call: StoreCall) -> None: ...

    def close_session(self, session_id: int) -> None: ...

    def close(self) -> None: ...


StoreOf: TypeAlias = Callable[[Callable[[StoreEvent], None]], StoreClient]
"""Makes a client of the metadata store from the callback for its events."""


class StoreSession(AsyncClosing):
    """Sends operations to the store. Belongs to one event loop."""

    def __init__(
        self,
        store_of: StoreOf,
        *,
        session_timeout_ms: int = 18_000,
        patience_s: float = 30.0,
        opening_s: float = 30.0,
    ) -> None:
        """`store_of` as for `Runtime`. An operation that takes longer than `patience_s` counts as lost.

        A session is opened within `opening_s` seconds.
        """
        self._loop = asyncio.get_running_loop()
        self._store = store_of(self._from_any_thread)
        self._timeout_ms, self._patience_s, self._opening_s = session_timeout_ms, patience_s, opening_s
        self._calls = count(1)
        self._answers: dict[int, asyncio.Future[Outcome]] = {}
        self._opened: asyncio.Future[int] | None = None
        self._unanswered = 0
        """Sessions in a row that ended before they answered anything."""
        self.watchers: dict[str, Callable[[], None]] = {}
        """By path: called when a watch of it fires, or the session ends and the watch is gone."""

    async def ask(self, operation: Operation) -> Outcome:
        """Return the operation's outcome; after CONNECTION_LOSS it may have been applied.

        Raises `WriteTooLarge`, and `MetadataStoreFailed` if no session could be opened in time, or each one
        ends at once.
        """
        match operation:
            case Multi(writes):
                check_size(*writes)
            case Create() | Set():
                check_size(operation)
        if self._unanswered >= _MOST_UNANSWERED:
            ended, self._unanswered = self._unanswered, 0
            raise MetadataStoreFailed(
                f"the metadata store ({self._store.name}) ended {ended} sessions without an answer; check "
                "its login (zookeeper.sasl.jaas.config, zookeeper.ssl.keystore.location), and its log"
            )
        try:
            async with asyncio.timeout(self._opening_s):
                session_id = await self._session()
        except TimeoutError:
            raise MetadataStoreFailed(
                f"the metadata store ({self._store.name}) did not answer for {self._opening_s:g} s; check "
                "that it runs and that this is its address"
            ) from None
        call_id = next(self._calls)
        answer = self._answers[call_id] = self._loop.create_future()
        self._store.submit(StoreCall(session_id, call_id, operation))
        try:
            async with asyncio.timeout(self._patience_s):
                outcome: Outcome = await answer
        except TimeoutError:
            return Outcome(StoreError.CONNECTION_LOSS)
        finally:
            del self._answers[call_id]
        if outcome.error is StoreError.SESSION_EXPIRED:
            self._forget(session_id)
        else:
            self._unanswered = 0
        return outcome

    async def close(self) -> None:
        """End the session; operations under way count as lost."""
        await self._loop.run_in_executor(None, self._store.close)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(Outcome(StoreError.CONNECTION_LOSS))

    @property
    def session_id(self) -> int | None:
        """The session in use; None before the first, and between two."""
        return self._opened.result() if self._opened is not None and self._opened.done() else None

    async def _session(self) -> int:
        if self._opened is None:
            self._opened = self._loop.create_future()
            self._store.open_session(self._timeout_ms)
        return await asyncio.shield(self._opened)

    def _forget(self, session_id: int) -> None:
        """Open another session for the next question, unless that was done since this one ended."""
        if self.session_id == session_id:
            self._opened = None
            self._unanswered += 1

    def _from_any_thread(self, event: StoreEvent) -> None:
        try:
            self._loop.call_soon_threadsafe(self._take, event)
        except RuntimeError:
            return  # the loop is closed

    def _take(self, event: StoreEvent) -> None:
        match event:
            case SessionOpened(session_id):
                if self._opened is not None and not self._opened.done():
                    self._opened.set_result(session_id)
            case SessionExpired(session_id):
                self._forget(session_id)
                for changed in self.watchers.values():
                    changed()
            case WatchFired(_, path) if path in self.watchers:
                self.watchers[path]()
            case StoreReply(call_id, outcome):
                answer = self._answers.get(call_id)
                if answer is not None and not answer.done():
                    answer.set_result(outcome)

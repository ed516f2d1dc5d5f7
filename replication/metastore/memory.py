"""The metadata store in memory: the tree, plus a clock for each session.

For clusters in one process and for simulation: the driver hands each outcome and each fired watch
to the node it is for, and may lose a reply (answering `CONNECTION_LOSS`) or a heartbeat on the way.
A session lives while heartbeats come; `tick` ends those that were silent for their timeout. There
is nothing on disk, so nothing survives the process.
"""

from __future__ import annotations

from typing import Protocol

from logstore.replication.effects import WatchFired
from logstore.replication.metastore.operations import Operation, Outcome
from logstore.replication.metastore.tree import Tree


class MetadataStore(Protocol):
    """What every implementation offers to a driver; `tests/contracts/test_metastore.py` holds them to it.

    Watches in an answer are to be delivered before the outcome beside them, and before any later one.
    """

    def open_session(self, timeout_ms: int, now_ms: int) -> int:
        """A new session, never the id of an older one."""

    def heartbeat(self, session_id: int, now_ms: int) -> bool:
        """Keep the session alive; False when it is over."""

    def close_session(self, session_id: int) -> list[WatchFired]:
        """End the session now; its ephemeral nodes go. Harmless if it is over already."""

    def tick(self, now_ms: int) -> tuple[list[int], list[WatchFired]]:
        """End the sessions that were silent too long: their ids, and the watches of others that fired."""

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` will next have something to do; None while no session is open."""

    def call(self, session_id: int, operation: Operation, now_ms: int) -> tuple[Outcome, list[WatchFired]]:
        """Carry out one operation. It counts as a sign of life of its session."""


class SessionClocks:
    """When each session was last heard of; decides which ones are over."""

    def __init__(self) -> None:
        self._timeout_ms: dict[int, int] = {}
        self._deadline_ms: dict[int, int] = {}

    def start(self, session_id: int, timeout_ms: int, now_ms: int) -> None:
        self._timeout_ms[session_id] = timeout_ms
        self._deadline_ms[session_id] = now_ms + timeout_ms

    def heard(self, session_id: int, now_ms: int) -> bool:
        """A sign of life; False when the session is not open."""
        if session_id not in self._timeout_ms:
            return False
        self._deadline_ms[session_id] = now_ms + self._timeout_ms[session_id]
        return True

    def stop(self, session_id: int) -> None:
        self._timeout_ms.pop(session_id, None)
        self._deadline_ms.pop(session_id, None)

    def overdue(self, now_ms: int) -> list[int]:
        return sorted(session for session, at in self._deadline_ms.items() if at <= now_ms)

    @property
    def deadline_ms(self) -> int | None:
        return min(self._deadline_ms.values(), default=None)


class MemoryStore:
    """A `MetadataStore` that lives and dies with its process."""

    def __init__(self) -> None:
        self.tree = Tree()
        self._clocks = SessionClocks()

    def open_session(self, timeout_ms: int, now_ms: int) -> int:
        session_id = self.tree.open_session(timeout_ms)
        self._clocks.start(session_id, timeout_ms, now_ms)
        return session_id

    def heartbeat(self, session_id: int, now_ms: int) -> bool:
        return self._clocks.heard(session_id, now_ms)

    def close_session(self, session_id: int) -> list[WatchFired]:
        self._clocks.stop(session_id)
        return self.tree.close_session(session_id)

    def tick(self, now_ms: int) -> tuple[list[int], list[WatchFired]]:
        expired = self._clocks.overdue(now_ms)
        fired: list[WatchFired] = []
        for session_id in expired:
            fired += self.close_session(session_id)
        # A session that ends here may have been told of by one that ended just before it.
        return expired, [watch for watch in fired if watch.session_id in self.tree.sessions]

    @property
    def deadline_ms(self) -> int | None:
        return self._clocks.deadline_ms

    def call(self, session_id: int, operation: Operation, now_ms: int) -> tuple[Outcome, list[WatchFired]]:
        self._clocks.heard(session_id, now_ms)
        return self.tree.apply(session_id, operation)

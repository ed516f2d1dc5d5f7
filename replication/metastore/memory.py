"""The metadata store in memory: the tree, and a deadline for each session.

For clusters in one process and for simulation: the driver hands each outcome and each fired watch to its
node, and may lose a reply (answering `CONNECTION_LOSS`) or a heartbeat on the way. A session lives while
heartbeats come; `tick` ends those that were silent for their timeout. Nothing survives the process.
"""

from __future__ import annotations

from typing import Protocol

from logstore.replication.effects import WatchFired
from logstore.replication.metastore.operations import Operation, Outcome
from logstore.replication.metastore.tree import Tree


class MetadataStore(Protocol):
    """The interface of every store; `tests/contracts/test_metastore.py` tests them all against it.

    Watches in an answer must be delivered before the outcome beside them, and before any later one.
    """

    def open_session(self, timeout_ms: int, now_ms: int) -> int:
        """Return the id of a new session; ids are never used twice."""

    def heartbeat(self, session_id: int, now_ms: int) -> bool:
        """Keep the session alive; False if it is over."""

    def close_session(self, session_id: int) -> list[WatchFired]:
        """End the session now; its ephemeral nodes are removed. Does nothing if it is over already."""

    def tick(self, now_ms: int) -> tuple[list[int], list[WatchFired]]:
        """End the sessions that timed out: return their ids, and the watches of others that fired."""

    @property
    def deadline_ms(self) -> int | None:
        """The time at which `tick` is next needed; None while no session is open."""

    def call(self, session_id: int, operation: Operation, now_ms: int) -> tuple[Outcome, list[WatchFired]]:
        """Carry out one operation, which also counts as a heartbeat of its session."""


class MemoryStore:
    """A `MetadataStore` that ends with its process."""

    def __init__(self, tree: Tree | None = None) -> None:
        self.tree = tree or Tree()
        self._deadline_ms: dict[int, int] = {}

    def open_session(self, timeout_ms: int, now_ms: int) -> int:
        session_id = self.tree.open_session(timeout_ms)
        self.heartbeat(session_id, now_ms)
        return session_id

    def heartbeat(self, session_id: int, now_ms: int) -> bool:
        timeout_ms = self.tree.sessions.get(session_id)
        if timeout_ms is None:
            return False
        self._deadline_ms[session_id] = now_ms + timeout_ms
        return True

    def close_session(self, session_id: int) -> list[WatchFired]:
        self._deadline_ms.pop(session_id, None)
        return self.tree.close_session(session_id)

    def overdue(self, now_ms: int) -> list[int]:
        """Return the sessions that timed out and are still open."""
        return sorted(session for session, at in self._deadline_ms.items() if at <= now_ms)

    def to_the_living(self, fired: list[WatchFired]) -> list[WatchFired]:
        """Return the watches of open sessions; sessions that end together may have watched each other."""
        return [watch for watch in fired if watch.session_id in self.tree.sessions]

    def tick(self, now_ms: int) -> tuple[list[int], list[WatchFired]]:
        expired = self.overdue(now_ms)
        return expired, self.to_the_living([watch for each in expired for watch in self.close_session(each)])

    @property
    def deadline_ms(self) -> int | None:
        return min(self._deadline_ms.values(), default=None)

    def call(self, session_id: int, operation: Operation, now_ms: int) -> tuple[Outcome, list[WatchFired]]:
        self.heartbeat(session_id, now_ms)
        return self.tree.apply(session_id, operation)

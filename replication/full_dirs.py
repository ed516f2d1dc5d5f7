"""Full log dirs: a state of the node, found by an append and ended by free space.

    an append finds no room ──▶ full ──every second: is there room again?──▶ ended
                                 │
                                 └─▶ the leaderships there go to other replicas, while enough are in sync

A full log dir is no failed one: it serves what it has, and its replicas stay. The node asks for its roles by
the report that a failed log dir makes too (`Node`), and refuses what others in the ISR can lead
(`orders.py`). The controller elects one of them, and the replica here follows. Without room it stays out
of the ISR, so no leadership returns; with room it catches up and joins by itself.
"""

from __future__ import annotations

from collections.abc import Callable

from logstore.disk.files import Room

ROOM_BYTES = 8 << 20
"""Free space that ends the state: enough for more than the next few batches."""
PROBE_MS = 1_000
ASK_AGAIN_MS = 30_000


class Relief:
    """Limits how often a node looks for leaderships to move, and how often it requests that."""

    def __init__(self) -> None:
        self._due_ms = 0

    def ask_at_once(self) -> None:
        """Make the next look due: there is a new reason."""
        self._due_ms = 0

    def is_due(self, now_ms: int, is_wanted: Callable[[], bool]) -> bool:
        """Return whether to ask now; the next request is due in a while then.

        `is_wanted` looks at all partitions: not with each tick of a busy node.
        """
        if now_ms < self._due_ms:
            return False
        found = is_wanted()
        self._due_ms = now_ms + (ASK_AGAIN_MS if found else PROBE_MS)
        return found


class FullDirs:
    """The full log dirs of a node. `room` returns the free bytes and all bytes of a log dir."""

    def __init__(self, room: Callable[[str], Room]) -> None:
        self.since_ms: dict[str, int] = {}
        """Each full log dir, and when its state began; for reading."""
        self.deadline_ms: int | None = None
        """The time of the next probe; None without a full log dir."""
        self.found: set[str] = set()
        """Log dirs in which an append of this turn found no room."""
        self._room = room

    def begin(self, now_ms: int) -> list[str]:
        """Begin the state for the dirs that were found full in this turn; return those that are new."""
        new = sorted(self.found - self.since_ms.keys())
        self.found.clear()
        if new:
            self.since_ms.update(dict.fromkeys(new, now_ms))
            self.deadline_ms = now_ms + PROBE_MS if self.deadline_ms is None else self.deadline_ms
        return new

    def probe(self, now_ms: int) -> list[str]:
        """Check for free space if that is due; end the state where there is space, and return those dirs."""
        if self.deadline_ms is None or now_ms < self.deadline_ms:
            return []
        ended = [path for path in self.since_ms if self._room(path).free >= ROOM_BYTES]
        for path in ended:
            del self.since_ms[path]
        self.deadline_ms = now_ms + PROBE_MS if self.since_ms else None
        return ended

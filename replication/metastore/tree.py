"""The metadata store's state machine: a tree of versioned nodes, sessions, one-shot watches. Pure.

    /                      root: always there, never written
    └── controller         data · version (writes since creation) · created_txid · ephemeral owner

Every change of the tree takes one transaction id: a successful write (a whole `Multi` is one), the opening
and the end of a session. Reads and refused writes take none, so the same calls give the same tree, ids
included. A session's id is the transaction that opened it, hence never used twice.

Watches are ZooKeeper's. `Get` leaves one on the node's data (or on its absence), `Children` one on the set of
names (not if the node is absent). A watch fires once, and two of one session on one node report its deletion
once. A driver must deliver a fired watch to its session before any later answer, including the answer to the
operation that fired it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from logstore.replication.effects import WatchFired
from logstore.replication.metastore.operations import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    Get,
    Multi,
    Operation,
    Outcome,
    Set,
    Stat,
    StoreError,
    WatchKind,
    Write,
)

ROOT = "/"
_NODE_BYTES = 300
_SEQUENCE_DIGITS = 10


@dataclass(slots=True)
class Node:
    """One node; `next_sequence` numbers its sequential children and never goes back.

    `changed_txid` and `children_changed_txid` are the last changes of its data and of its children's names
    since the tree was made or restored; they are not kept on disk.
    """

    data: bytes
    version: int
    created_txid: int
    ephemeral_owner: int = 0
    next_sequence: int = 0
    children: set[str] = field(default_factory=set)
    changed_txid: int = 0
    children_changed_txid: int = 0

    @property
    def stat(self) -> Stat:
        return Stat(self.version, self.created_txid, self.ephemeral_owner)


def parent_of(path: str) -> str:
    """Return the path one level up; the root is its own parent."""
    return path[: path.rfind("/")] or ROOT


def ancestors_of(path: str) -> list[str]:
    """Return the nodes between `path` and the root, both left out; the nearest first."""
    found = []
    while (path := parent_of(path)) != ROOT:
        found.append(path)
    return found


def size_of(path: str, data: bytes) -> int:
    """Return about how many bytes a node takes in memory."""
    return _NODE_BYTES + 2 * len(path) + len(data)


def _check_path(path: str) -> None:
    # `layout.py` makes the paths from validated names: a bad one is a bug of ours.
    names = path.split("/")[1:]
    assert path == ROOT or (path.startswith("/") and names and "\0" not in path), f"bad path {path!r}"
    assert path == ROOT or not any(name in ("", ".", "..") for name in names), f"bad path {path!r}"


class _Change(NamedTuple):
    """One change of a transaction that may have to be undone."""

    path: str
    kind: WatchKind
    undo: Callable[[], None]


class Tree:
    """All nodes, sessions and watches. `last_txid` is the id of the latest change."""

    def __init__(self) -> None:
        self.last_txid = 0
        self.size = 0
        """About how many bytes the nodes take in memory."""
        self._nodes: dict[str, Node] = {ROOT: Node(b"", 0, 0)}
        self._sessions: dict[int, int] = {}
        self._ephemeral: defaultdict[int, set[str]] = defaultdict(set)
        """The ephemeral nodes of each session."""
        # Insertion order is the order of firing: a dict is a set that remembers it.
        self._data_watches: dict[str, dict[int, None]] = {}
        self._child_watches: dict[str, dict[int, None]] = {}

    @classmethod
    def restore(cls, last_txid: int, sessions: Mapping[int, int], nodes: Mapping[str, Node]) -> Tree:
        """Return the tree saved as its txid, `sessions` and `nodes()`; watches are not kept."""
        tree = cls()
        tree.last_txid = last_txid
        tree._sessions = dict(sessions)
        for path, node in sorted(nodes.items()):
            if path != ROOT:
                tree._insert(path, node)
            else:
                tree._nodes[path] = node
        return tree

    @property
    def sessions(self) -> Mapping[int, int]:
        """Open sessions and their timeouts in milliseconds."""
        return MappingProxyType(self._sessions)

    def mark_all_changed(self) -> None:
        """Mark every node as changed now, because the times of changes are not saved."""
        for node in self._nodes.values():
            node.changed_txid = node.children_changed_txid = self.last_txid

    def node(self, path: str) -> Node | None:
        """Return one node, read-only."""
        return self._nodes.get(path)

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """Iterate over every node, the root included, in path order."""
        return iter(sorted(self._nodes.items()))

    # --- sessions -----------------------------------------------------------------------------

    def open_session(self, timeout_ms: int) -> int:
        """Return a new session's id; the tree keeps the timeout, the store the deadline."""
        self.last_txid += 1
        self._sessions[self.last_txid] = timeout_ms
        return self.last_txid

    def close_session(self, session_id: int) -> list[WatchFired]:
        """End a closed or expired session; remove its watches and its ephemeral nodes."""
        if self._sessions.pop(session_id, None) is None:
            return []
        self.last_txid += 1
        for watches in (self._data_watches, self._child_watches):
            for path in [path for path, owners in watches.items() if session_id in owners]:
                del watches[path][session_id]
                if not watches[path]:
                    del watches[path]
        fired: list[WatchFired] = []
        for path in sorted(self._ephemeral.pop(session_id, ())):
            self._remove(path)
            self._stamp(path, WatchKind.DELETED)
            fired += self._fire(path, WatchKind.DELETED)
        return fired

    # --- operations ---------------------------------------------------------------------------

    def apply(self, session_id: int, operation: Operation) -> tuple[Outcome, list[WatchFired]]:
        """Carry out one operation, wholly or not at all; return its outcome and the fired watches."""
        if session_id not in self._sessions:
            return Outcome(StoreError.SESSION_EXPIRED), []
        match operation:
            case Get(path, watch):
                return self._get(session_id, path, watch), []
            case Children(path, watch):
                return self._list(session_id, path, watch), []
            case Check(path, version):
                return Outcome(self._check(path, version)), []
            case Multi(writes):
                return self._transact(session_id, writes, is_multi=True)
        return self._transact(session_id, (operation,), is_multi=False)

    def _get(self, session_id: int, path: str, watch: bool) -> Outcome:
        _check_path(path)
        if watch:
            self._data_watches.setdefault(path, {})[session_id] = None
        node = self._nodes.get(path)
        if node is None:
            return Outcome(StoreError.NO_NODE)
        return Outcome(data=node.data, stat=node.stat)

    def _list(self, session_id: int, path: str, watch: bool) -> Outcome:
        _check_path(path)
        node = self._nodes.get(path)
        if node is None:
            return Outcome(StoreError.NO_NODE)
        if watch:
            self._child_watches.setdefault(path, {})[session_id] = None
        return Outcome(children=tuple(sorted(node.children)), stat=node.stat)

    def _check(self, path: str, version: int) -> StoreError | None:
        _check_path(path)
        node = self._nodes.get(path)
        if node is None:
            return StoreError.NO_NODE
        return None if version in (ANY_VERSION, node.version) else StoreError.BAD_VERSION

    def _transact(
        self, session_id: int, writes: tuple[Write, ...], *, is_multi: bool
    ) -> tuple[Outcome, list[WatchFired]]:
        changes: list[_Change] = []
        results: list[Outcome] = []
        for index, write in enumerate(writes):
            outcome = self._write(session_id, write, changes)
            if outcome.error is not None:
                for change in reversed(changes):
                    change.undo()
                return (Outcome(outcome.error, failed_index=index) if is_multi else outcome), []
            results.append(outcome)
        if changes:
            self.last_txid += 1
        # Only now: a later write of the same Multi might have undone the change.
        for change in changes:
            self._stamp(change.path, change.kind)
        fired = [watch for change in changes for watch in self._fire(change.path, change.kind)]
        return (Outcome(results=tuple(results)) if is_multi else results[0]), fired

    def _write(self, session_id: int, write: Write, changes: list[_Change]) -> Outcome:
        if isinstance(write, Create):
            return self._create(session_id, write, changes)
        error = self._check(write.path, write.version)
        if error is not None or isinstance(write, Check):
            return Outcome(error)
        node = self._nodes[write.path]
        if isinstance(write, Set):
            old_data, old_version = node.data, node.version

            def restore() -> None:
                self.size += len(old_data) - len(node.data)
                node.data, node.version = old_data, old_version

            self.size += len(write.data) - len(old_data)
            node.data, node.version = bytes(write.data), old_version + 1
            changes.append(_Change(write.path, WatchKind.CHANGED, restore))
            return Outcome(stat=node.stat)
        assert write.path != ROOT, "the root cannot be deleted"
        if node.children:
            return Outcome(StoreError.NOT_EMPTY)
        self._remove(write.path)
        changes.append(_Change(write.path, WatchKind.DELETED, partial(self._insert, write.path, node)))
        return Outcome()

    def _create(self, session_id: int, create: Create, changes: list[_Change]) -> Outcome:
        _check_path(create.path)
        txid, path = self.last_txid + 1, create.path
        missing = [above for above in ancestors_of(path) if above not in self._nodes]
        if missing and not create.make_parents:
            return Outcome(StoreError.NO_NODE)
        existing = self._nodes[parent_of(missing[-1] if missing else path)]
        if existing.ephemeral_owner:
            return Outcome(StoreError.EPHEMERAL_PARENT)
        if create.sequential:
            path = f"{path}{0 if missing else existing.next_sequence:0{_SEQUENCE_DIGITS}d}"
        if path in self._nodes:
            return Outcome(StoreError.NODE_EXISTS)
        for above in reversed(missing):
            self._insert(above, Node(b"", 0, txid))
            changes.append(_Change(above, WatchKind.CREATED, partial(self._remove, above)))
        node = Node(bytes(create.data), 0, txid, session_id if create.ephemeral else 0)
        parent = self._nodes[parent_of(path)]
        self._insert(path, node)
        parent.next_sequence += create.sequential

        def take_back() -> None:
            self._remove(path)
            parent.next_sequence -= create.sequential

        changes.append(_Change(path, WatchKind.CREATED, take_back))
        return Outcome(stat=node.stat, path=path)

    # --- nodes and watches --------------------------------------------------------------------

    def _insert(self, path: str, node: Node) -> None:
        self._nodes[path] = node
        if node.ephemeral_owner:
            self._ephemeral[node.ephemeral_owner].add(path)
        self._nodes[parent_of(path)].children.add(path.rpartition("/")[2])
        self.size += size_of(path, node.data)

    def _remove(self, path: str) -> None:
        node = self._nodes.pop(path)
        self.size -= size_of(path, node.data)
        if node.ephemeral_owner in self._ephemeral:
            self._ephemeral[node.ephemeral_owner].discard(path)
        self._nodes[parent_of(path)].children.discard(path.rpartition("/")[2])

    def _stamp(self, path: str, kind: WatchKind) -> None:
        if kind is not WatchKind.DELETED and (node := self._nodes.get(path)) is not None:
            node.changed_txid = self.last_txid
        if kind is not WatchKind.CHANGED and (parent := self._nodes.get(parent_of(path))) is not None:
            parent.children_changed_txid = self.last_txid

    def _fire(self, path: str, kind: WatchKind) -> list[WatchFired]:
        owners = self._data_watches.pop(path, {})
        if kind is WatchKind.DELETED:
            owners = owners | self._child_watches.pop(path, {})
        fired = [WatchFired(owner, path, kind) for owner in owners]
        if kind is not WatchKind.CHANGED:
            parent = parent_of(path)
            watchers = self._child_watches.pop(parent, {})
            fired += [WatchFired(owner, parent, WatchKind.CHILDREN) for owner in watchers]
        return fired

"""The metadata store's vocabulary: ZooKeeper's operations on a tree of versioned nodes.

A node holds bytes, a version that counts its writes, and the transaction id of its creation (the
broker epoch of an ephemeral registration). Writes may be conditional on a version; `Multi` applies
all of its writes or none. A watch is one-shot and is delivered before any later read of its session
can see the change.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

ANY_VERSION = -1


class StoreError(Enum):
    """Why an operation did not succeed."""

    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    BAD_VERSION = "bad version"
    NOT_EMPTY = "not empty"
    EPHEMERAL_PARENT = "ephemeral nodes have no children"
    SESSION_EXPIRED = "session expired"
    CONNECTION_LOSS = "connection loss"


class WatchKind(Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


@dataclass(frozen=True, slots=True)
class Stat:
    """`version` counts writes from 0; `created_txid` is unique per creation and only grows."""

    version: int
    created_txid: int
    ephemeral_owner: int = 0


@dataclass(frozen=True, slots=True)
class Get:
    """The node's data; `watch` fires on its next write, deletion or (if absent) creation."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Children:
    """Names of the children, sorted; `watch` fires when the set changes."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """A new node; parents must exist unless `make_parents`. `sequential` appends 10 digits."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    make_parents: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace a node's data while it has `version` (`ANY_VERSION`: whatever it has)."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node that has no children."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Succeeds only while the node has this version; meant for `Multi`."""

    path: str
    version: int


Write: TypeAlias = Create | Set | Delete | Check


@dataclass(frozen=True, slots=True)
class Multi:
    """All of these writes, in order, or none of them."""

    writes: tuple[Write, ...]


Operation: TypeAlias = Get | Children | Write | Multi


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an operation gave: an error, or what its kind gives.

    `data` and `stat` for Get; `stat` for Create and Set; `path` (with the number appended) for
    Create; `children` and `stat` for Children; `results` for Multi, one each. A Multi that failed names
    the write at fault in `failed_index`.
    """

    error: StoreError | None = None
    data: bytes = b""
    stat: Stat | None = None
    path: str = ""
    children: tuple[str, ...] = ()
    results: tuple[Outcome, ...] = ()
    failed_index: int = -1

"""The operations of the metadata store: ZooKeeper's, on a tree of versioned nodes.

A node holds bytes, a version that counts its writes, and the transaction id of its creation (the
broker epoch of an ephemeral registration). Writes may be conditional on a version; `Multi` applies
all of its writes or none. A watch is one-shot and is delivered before any later read of its session
can see the change.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from logstore.replication.metastore.errors import WriteTooLarge

ANY_VERSION = -1
LARGEST_WRITE: Final = 1_000_000
"""Bytes of a write, or of all writes of a `Multi`: a request of 1 MiB (`jute.maxbuffer`) and its headers."""
_HEADER_BYTES = 100


class StoreError(Enum):
    """The error of an operation."""

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
    """The names of the children, sorted; `watch` fires when the set changes."""

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
    """Replace a node's data if it has `version` (`ANY_VERSION`: any)."""

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
    """Succeed only if the node has this version; meant for `Multi`."""

    path: str
    version: int


Write: TypeAlias = Create | Set | Delete | Check


def put(path: str, data: bytes, version: int | None) -> Create | Set:
    """Return the write of a node that was read at this version; None: it was not there."""
    return Create(path, data, make_parents=True) if version is None else Set(path, data, version)


@dataclass(frozen=True, slots=True)
class Multi:
    """All of these writes, in order, or none of them."""

    writes: tuple[Write, ...]


Operation: TypeAlias = Get | Children | Write | Multi


def check_size(*writes: Write) -> None:
    """Raise `WriteTooLarge` if these writes do not fit into a request.

    A server would close the connection without an answer, which looks like any lost reply: the writer would
    repeat the write.
    """
    size = sum(
        _HEADER_BYTES + len(each.path) + (len(each.data) if isinstance(each, Create | Set) else 0)
        for each in writes
    )
    if size > LARGEST_WRITE:
        raise WriteTooLarge(
            f"this needs a write of {size} bytes to the metadata store, which takes {LARGEST_WRITE}: use "
            "shorter settings or fewer partitions"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an operation: an error, or the fields of its kind.

    `data` and `stat` for Get; `stat` for Create and Set; `path` (with the number appended) for
    Create; `children` and `stat` for Children; `results` for Multi, one a write. A failed Multi names
    the first failed write in `failed_index`.
    """

    error: StoreError | None = None
    data: bytes = b""
    stat: Stat | None = None
    path: str = ""
    children: tuple[str, ...] = ()
    results: tuple[Outcome, ...] = ()
    failed_index: int = -1

    @property
    def version(self) -> int | None:
        """The version of a node that was read; None if there is none."""
        return None if self.stat is None else self.stat.version

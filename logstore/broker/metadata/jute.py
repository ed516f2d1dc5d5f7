"""ZooKeeper's wire format, server side: requests to operations, outcomes to replies. Pure.

    frame      size i32 │ payload
    connect    protocol i32 │ last zxid i64 │ timeout ms i32 │ session i64 │ password buffer │ (read-only u8)
    welcome    protocol i32 │ timeout ms i32 │ session i64 │ password buffer │ read-only u8
    request    xid i32 │ type i32 │ body                  reply   xid i32 │ zxid i64 │ error i32 │ body
    event      xid -1 │ zxid -1 │ 0 │ type i32 │ state i32 │ path
    multi      (type i32 │ done u8 │ error i32 │ body)*, closed by type -1, done 1, error -1

    string, buffer    size i32 (-1: none), bytes
    stat              created, changed txid i64 │ created, changed ms i64 │ version, children's version,
                      acl version i32 │ owner i64 │ data size, number of children i32 │ children's txid i64

Served requests are those of a broker's client (`zookeeper_requests.py`): create, delete, exists, getData,
setData, getChildren, check, multi, ping, close. Nodes are open to all clients; other access lists are
refused. Times and the children's
version are not kept; they are zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from logstore.broker.errors import MalformedMessage
from logstore.replication.effects import WatchFired
from logstore.replication.metastore.operations import (
    Check,
    Children,
    Create,
    Delete,
    Get,
    Multi,
    Operation,
    Outcome,
    Set,
    StoreError,
    WatchKind,
    Write,
)
from logstore.replication.metastore.tree import ROOT, Node

PASSWORD_BYTES: Final = 16
SIZE: Final = struct.Struct(">i")

_WATCH_XID = -1

ROLLED_BACK, INCONSISTENT, UNIMPLEMENTED, BAD_ARGUMENTS, QUOTA_EXCEEDED = 0, -2, -6, -8, -125
INVALID_ACL = -114
_ERRORS: Final = {
    StoreError.NO_NODE: -101,
    StoreError.BAD_VERSION: -103,
    StoreError.EPHEMERAL_PARENT: -108,
    StoreError.NODE_EXISTS: -110,
    StoreError.NOT_EMPTY: -111,
    StoreError.SESSION_EXPIRED: -112,
}
_EVENTS: Final = {
    WatchKind.CREATED: 1,
    WatchKind.DELETED: 2,
    WatchKind.CHANGED: 3,
    WatchKind.CHILDREN: 4,
}
_CONNECTED = 3
_EPHEMERAL, _SEQUENTIAL = 1, 2
_FOR_ALL = 31, b"world", b"anyone"
_MOST_ITEMS = 1 << 16
LONGEST_PATH: Final = (1 << 16) - 1 - len("0000000000")
"""Bytes of a path without its sequence number: the journal keeps the length in two bytes."""

_CONNECT, _WELCOME = struct.Struct(">iqiq"), struct.Struct(">iiq")
_REQUEST, _REPLY, _EVENT = struct.Struct(">ii"), struct.Struct(">iqi"), struct.Struct(">ii")
_MULTI = struct.Struct(">i?i")
_STAT = struct.Struct(">qqqqiiiqiiq")


class Kind(IntEnum):
    """Request types."""

    CLOSE = -11
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN_2 = 12
    CHECK = 13
    MULTI = 14
    CREATE_2 = 15


class Hello(NamedTuple):
    """The first message of a connection; `session_id` 0 asks for a new session."""

    timeout_ms: int
    session_id: int
    password: bytes


class Asked(NamedTuple):
    """A request. `operation` is None for ping, close, sync (which has a `path`), and for a refused request,
    which has an `error`.
    """

    xid: int
    kind: int
    operation: Operation | None
    path: str = ""
    error: int = 0


class _Refused(Exception):
    """A well-formed request that is not served; `error` is the code for the reply."""

    def __init__(self, error: int) -> None:
        super().__init__(f"error {error}")
        self.error = error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise MalformedMessage(f"{size} bytes announced, {len(self._data) - self._at} left")
        start, self._at = self._at, self._at + size
        return self._data[start : self._at]

    def fields(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))

    def integer(self) -> int:
        return int(self.fields(SIZE)[0])

    def truth(self) -> bool:
        return self.take(1) != b"\0"

    def buffer(self) -> bytes:
        size = self.integer()
        return b"" if size == -1 else self.take(size)

    def text(self) -> str:
        try:
            return self.buffer().decode()
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"text is not UTF-8: {error}") from error

    def check_access_list(self) -> None:
        """Raise `_Refused` unless the list opens the node to everyone: others would not be kept."""
        count = self.integer()
        if count > _MOST_ITEMS:
            raise MalformedMessage(f"access list with {count} entries")
        for _ in range(count):
            if (self.integer(), self.buffer(), self.buffer()) != _FOR_ALL:
                raise _Refused(INVALID_ACL)


# --- requests ---------------------------------------------------------------------------------


def read_hello(payload: bytes) -> Hello:
    """Decode the first message. Raises `MalformedMessage`."""
    reader = _Reader(payload)
    _, _, timeout_ms, session_id = reader.fields(_CONNECT)
    return Hello(timeout_ms, session_id, reader.buffer())


def read_request(payload: bytes) -> Asked:
    """Decode a request; one that is not served has the error to reply. Raises `MalformedMessage`."""
    reader = _Reader(payload)
    xid, kind = reader.fields(_REQUEST)
    try:
        return _read(reader, xid, kind)
    except _Refused as refused:
        return Asked(xid, kind, None, error=refused.error)


def _read(reader: _Reader, xid: int, kind: int) -> Asked:
    match kind:
        case Kind.PING | Kind.CLOSE:
            return Asked(xid, kind, None)
        case Kind.SYNC:
            return Asked(xid, kind, None, reader.text())
        case Kind.EXISTS | Kind.GET_DATA:
            return Asked(xid, kind, Get(_path(reader), watch=reader.truth()))
        case Kind.GET_CHILDREN | Kind.GET_CHILDREN_2:
            return Asked(xid, kind, Children(_path(reader), watch=reader.truth()))
        case Kind.MULTI:
            return Asked(xid, kind, Multi(tuple(_writes(reader))))
    return Asked(xid, kind, _write(reader, kind))


def _path(reader: _Reader, *, is_prefix: bool = False) -> str:
    path = reader.text()
    names = path.split("/")[1:]
    if is_prefix and names[-1:] == [""] and path != ROOT:
        names[-1] = "0"  # the sequence number is the whole name
    if path != ROOT and (
        not path.startswith("/") or "\0" in path or any(name in ("", ".", "..") for name in names)
    ):
        raise _Refused(BAD_ARGUMENTS)
    if len(path.encode()) > LONGEST_PATH:
        raise _Refused(BAD_ARGUMENTS)
    return path


def _write(reader: _Reader, kind: int) -> Write:
    match kind:
        case Kind.CREATE | Kind.CREATE_2:
            path, data = _path(reader, is_prefix=True), reader.buffer()
            reader.check_access_list()
            flags = reader.integer()
            if flags & ~(_EPHEMERAL | _SEQUENTIAL):
                raise _Refused(UNIMPLEMENTED)
            is_sequential = bool(flags & _SEQUENTIAL)
            if path == ROOT or (path.endswith("/") and not is_sequential):
                raise _Refused(BAD_ARGUMENTS)
            return Create(path, data, ephemeral=bool(flags & _EPHEMERAL), sequential=is_sequential)
        case Kind.DELETE:
            path, version = _path(reader), reader.integer()
            if path == ROOT:
                raise _Refused(BAD_ARGUMENTS)
            return Delete(path, version)
        case Kind.SET_DATA:
            return Set(_path(reader), reader.buffer(), reader.integer())
        case Kind.CHECK:
            return Check(_path(reader), reader.integer())
    raise _Refused(UNIMPLEMENTED)


def _writes(reader: _Reader) -> Sequence[Write]:
    writes: list[Write] = []
    while True:
        kind, is_done, _ = reader.fields(_MULTI)
        if is_done:
            return writes
        writes.append(_write(reader, kind))


# --- replies ----------------------------------------------------------------------------------


def _frame(*parts: bytes) -> bytes:
    payload = b"".join(parts)
    return SIZE.pack(len(payload)) + payload


def _buffer(data: bytes) -> bytes:
    return SIZE.pack(len(data)) + data


def welcome(session_id: int, timeout_ms: int, password: bytes) -> bytes:
    """Encode the answer to a `Hello`; all zeros for an expired session."""
    return _frame(_WELCOME.pack(0, timeout_ms, session_id), _buffer(password), b"\0")


def reply(xid: int, zxid: int, error: int = 0, body: bytes = b"") -> bytes:
    return _frame(_REPLY.pack(xid, zxid, error), body)


def echo(asked: Asked) -> bytes:
    """Encode the body of the reply to a ping (none) or a sync (its path)."""
    return _buffer(asked.path.encode()) if asked.kind == Kind.SYNC else b""


def event(fired: WatchFired) -> bytes:
    path = _buffer(fired.path.encode())
    return _frame(_REPLY.pack(_WATCH_XID, -1, 0), _EVENT.pack(_EVENTS[fired.kind], _CONNECTED), path)


Stats: TypeAlias = Mapping[str, bytes]
"""Encoded stats by path, as of right after an operation."""


def stat_of(node: Node) -> bytes:
    return _STAT.pack(
        node.created_txid, node.changed_txid or node.created_txid, 0, 0, node.version, 0, 0,
        node.ephemeral_owner, len(node.data), len(node.children),
        node.children_changed_txid or node.created_txid,
    )  # fmt: skip


def paths_in(operation: Operation, result: Outcome) -> list[str]:
    """Return the nodes whose stats the reply contains."""
    match operation:
        case Get(path) | Children(path) | Set(path):
            return [path]
        case Create():
            return [result.path]
        case Multi(writes):
            return [write.path for write in writes if isinstance(write, Set)]
    return []


def outcome(asked: Asked, result: Outcome, zxid: int, stats: Stats) -> bytes:
    """Encode the reply to `asked`; `stats` are those of `paths_in`."""
    operation = asked.operation
    if isinstance(operation, Multi):
        return reply(asked.xid, _transaction(result, zxid), 0, _multi_body(operation.writes, result, stats))
    if result.error is not None:
        return reply(asked.xid, zxid, _ERRORS[result.error])
    return reply(asked.xid, zxid, 0, _body(asked, result, stats))


def _body(asked: Asked, result: Outcome, stats: Stats) -> bytes:
    match asked.operation:
        case Get(path):
            stat = stats[path]
            return stat if asked.kind == Kind.EXISTS else _buffer(result.data) + stat
        case Children(path):
            names = b"".join(_buffer(name.encode()) for name in result.children)
            stat = b"" if asked.kind == Kind.GET_CHILDREN else stats[path]
            return SIZE.pack(len(result.children)) + names + stat
        case Create():
            made = _buffer(result.path.encode())
            return made if asked.kind == Kind.CREATE else made + stats[result.path]
        case Set(path):
            return stats[path]
    return b""


_TYPES: Final[dict[type[Write], int]] = {
    Create: Kind.CREATE,
    Delete: Kind.DELETE,
    Set: Kind.SET_DATA,
    Check: Kind.CHECK,
}


def _multi_body(writes: Sequence[Write], result: Outcome, stats: Stats) -> bytes:
    parts = []
    for index, write in enumerate(writes):
        if result.error is not None:
            at = result.failed_index
            error = ROLLED_BACK if index < at else _ERRORS[result.error] if index == at else INCONSISTENT
            parts.append(_MULTI.pack(-1, False, error) + SIZE.pack(error))
            continue
        parts.append(_MULTI.pack(_TYPES[type(write)], False, 0))
        if isinstance(write, Create):
            parts.append(_buffer(result.results[index].path.encode()))
        elif isinstance(write, Set):
            parts.append(stats[write.path])
    return b"".join([*parts, _MULTI.pack(-1, True, -1)])


def _transaction(result: Outcome, zxid: int) -> int:
    """Return the transaction id of a multi: that of the nodes it created."""
    return max((each.stat.created_txid for each in result.results if each.path and each.stat), default=zxid)

"""The embedded metadata store's bytes: frames, the transactions in them, and the snapshot.

    snapshot                                     metadata as of one transaction
    journal-<20 digits>                          later transactions; named by the first of them

    both files are frames, one after the other; integers big-endian
    ┌───────────┬──────────┬───────────┬──────────────┬───────────────────┐
    │ magic     │ length   │ CRC-32C   │ first txid   │ payload           │
    │ 4 × "LSMJ"│ uint32   │ uint32    │ uint64       │ `length` bytes    │
    └───────────┴──────────┴───────────┴──────────────┴───────────────────┘
                                        └── what the CRC covers ─────────┘

    a journal frame's payload: transactions with the ids `first txid`, +1, +2 …
      1  open session    uint32 timeout_ms                      the session's id is the txid
      2  close session   uint64 session
      3  write           uint64 session · write
    a write
      1  create   path · data · uint8 flags (1 ephemeral, 2 sequential, 4 make parents)
      2  set      path · data · int32 version                   a path is uint16 length + UTF-8,
      3  delete   path · int32 version                          data uint32 length + bytes
      4  check    path · int32 version
      5  multi    uint32 count · that many writes of kinds 1 to 4

    the snapshot is one frame; its txid is the last transaction that it contains; its payload:
      uint32 sessions · (uint64 id · uint32 timeout_ms)* ·
      uint32 nodes · (path · data · int32 version · uint64 created txid · uint64 owner · uint32 next number)*

A frame is written with one `pwrite`, and synced before the next one is written and before any of its
transactions is answered. So after a crash only the last frame may be torn, and a whole frame proves that all
frames before it were whole once: a bad frame before a whole one is damage, not a torn tail.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from logstore.format.crc import crc32c
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Check, Create, Delete, Multi, Set, Write
from logstore.replication.metastore.tree import ROOT, Node, Tree

SNAPSHOT_FILE = "snapshot"
JOURNAL_PREFIX = "journal-"
TORN_SUFFIX = ".torn"

MAGIC = b"LSMJ"
_HEADER = struct.Struct(">4sIIQ")
_CRC_START = 12
_U8, _U16, _U32, _U64, _I32 = (struct.Struct(">" + code) for code in "BHIQi")

_OPEN_SESSION, _CLOSE_SESSION, _WRITE = 1, 2, 3
_CREATE, _SET, _DELETE, _CHECK, _MULTI = 1, 2, 3, 4, 5
_FLAGS = (1, 2, 4)
"""ephemeral, sequential, make_parents: in the order of `Create`"""


def journal_name(first_txid: int) -> str:
    return f"{JOURNAL_PREFIX}{first_txid:020d}"


# --- transactions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionOpened:
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class SessionClosed:
    session_id: int


@dataclass(frozen=True, slots=True)
class Written:
    session_id: int
    operation: Create | Set | Delete | Multi


Transaction: TypeAlias = SessionOpened | SessionClosed | Written


def _text(text: str) -> bytes:
    data = text.encode()
    return _U16.pack(len(data)) + data


def _blob(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def _encode_write(write: Write) -> bytes:
    match write:
        case Create(path, data):
            options = (write.ephemeral, write.sequential, write.make_parents)
            flags = sum(flag * option for flag, option in zip(_FLAGS, options, strict=True))
            return _U8.pack(_CREATE) + _text(path) + _blob(data) + _U8.pack(flags)
        case Set(path, data, version):
            return _U8.pack(_SET) + _text(path) + _blob(data) + _I32.pack(version)
        case Delete(path, version):
            return _U8.pack(_DELETE) + _text(path) + _I32.pack(version)
        case Check(path, version):
            return _U8.pack(_CHECK) + _text(path) + _I32.pack(version)


def encode_transaction(transaction: Transaction) -> bytes:
    match transaction:
        case SessionOpened(timeout_ms):
            return _U8.pack(_OPEN_SESSION) + _U32.pack(timeout_ms)
        case SessionClosed(session_id):
            return _U8.pack(_CLOSE_SESSION) + _U64.pack(session_id)
        case Written(session_id, Multi(writes)):
            head = _U8.pack(_WRITE) + _U64.pack(session_id) + _U8.pack(_MULTI) + _U32.pack(len(writes))
            return head + b"".join(map(_encode_write, writes))
        case Written(session_id, operation):
            assert not isinstance(operation, Multi)
            return _U8.pack(_WRITE) + _U64.pack(session_id) + _encode_write(operation)


class _Cursor:
    """Reads a payload from front to back; every declared length is checked before it is used."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def __bool__(self) -> bool:
        return self._position < len(self._data)

    def take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise CorruptMetadata("a frame of the metadata store ends inside a value")
        piece, self._position = self._data[self._position : end], end
        return piece

    def integer(self, format: struct.Struct) -> int:
        (value,) = format.unpack(self.take(format.size))
        assert isinstance(value, int)
        return value

    def text(self) -> str:
        try:
            return self.take(self.integer(_U16)).decode()
        except UnicodeDecodeError as error:
            raise CorruptMetadata(f"a path in the metadata store is not UTF-8: {error}") from error

    def blob(self) -> bytes:
        return self.take(self.integer(_U32))

    def write(self, kind: int) -> Write:
        match kind:
            case 1:
                path, data, flags = self.text(), self.blob(), self.integer(_U8)
                return Create(path, data, *(bool(flags & each) for each in _FLAGS))
            case 2:
                return Set(self.text(), self.blob(), self.integer(_I32))
            case 3:
                return Delete(self.text(), self.integer(_I32))
            case 4:
                return Check(self.text(), self.integer(_I32))
        raise CorruptMetadata(f"unknown kind of write {kind} in the metadata store's journal")

    def transaction(self) -> Transaction:
        match kind := self.integer(_U8):
            case 1:
                return SessionOpened(self.integer(_U32))
            case 2:
                return SessionClosed(self.integer(_U64))
            case 3:
                session_id, write_kind = self.integer(_U64), self.integer(_U8)
                if write_kind == _MULTI:
                    count = self.integer(_U32)
                    writes = tuple(self.write(self.integer(_U8)) for _ in range(count))
                    return Written(session_id, Multi(writes))
                operation = self.write(write_kind)
                if isinstance(operation, Check):
                    raise CorruptMetadata("the metadata store's journal holds a check outside a multi")
                return Written(session_id, operation)
        raise CorruptMetadata(f"unknown kind of transaction {kind} in the metadata store's journal")


def decode_transactions(payload: bytes) -> Iterator[Transaction]:
    cursor = _Cursor(payload)
    while cursor:
        yield cursor.transaction()


# --- frames -----------------------------------------------------------------------------------


class Frame(NamedTuple):
    first_txid: int
    payload: bytes
    end: int
    """Position after the frame."""


def encode_frame(first_txid: int, payload: bytes) -> bytes:
    covered = _U64.pack(first_txid) + payload
    return MAGIC + _U32.pack(len(payload)) + _U32.pack(crc32c(covered)) + covered


def frame_at(data: bytes, position: int) -> Frame | None:
    """Return the complete, intact frame that starts at `position`, or None."""
    if position + _HEADER.size > len(data):
        return None
    magic, length, crc, first_txid = _HEADER.unpack_from(data, position)
    end = position + _HEADER.size + length
    if magic != MAGIC or end > len(data):
        return None
    if crc32c(memoryview(data)[position + _CRC_START : end]) != crc:
        return None
    return Frame(first_txid, data[position + _HEADER.size : end], end)


def read_journal(data: bytes, name: str) -> tuple[list[Frame], int]:
    """Return the frames of a journal, and the position of their end; the rest is a torn tail.

    Raises `CorruptMetadata` if a sound frame follows a bad one: the bad one had been synced.
    """
    frames: list[Frame] = []
    position = 0
    while (frame := frame_at(data, position)) is not None:
        frames.append(frame)
        position = frame.end
    later = data.find(MAGIC, position + 1)
    while later >= 0:
        if frame_at(data, later) is not None:
            raise CorruptMetadata(
                f"{name} is damaged at byte {position}: a sound frame follows at byte {later}; "
                "restore the metadata store's directory from a copy"
            )
        later = data.find(MAGIC, later + 1)
    return frames, position


# --- the snapshot -----------------------------------------------------------------------------


def encode_snapshot(tree: Tree) -> bytes:
    sessions = sorted(tree.sessions.items())
    nodes = list(tree.nodes())
    pieces = [_U32.pack(len(sessions))]
    pieces += [_U64.pack(session) + _U32.pack(timeout_ms) for session, timeout_ms in sessions]
    pieces.append(_U32.pack(len(nodes)))
    for path, node in nodes:
        pieces += [_text(path), _blob(node.data), _I32.pack(node.version), _U64.pack(node.created_txid)]
        pieces += [_U64.pack(node.ephemeral_owner), _U32.pack(node.next_sequence)]
    return encode_frame(tree.last_txid, b"".join(pieces))


def decode_snapshot(data: bytes) -> Tree:
    frame = frame_at(data, 0)
    if frame is None or frame.end != len(data):
        raise CorruptMetadata(
            f"{SNAPSHOT_FILE} of the metadata store is damaged; restore its directory from a copy"
        )
    cursor = _Cursor(frame.payload)
    sessions = {cursor.integer(_U64): cursor.integer(_U32) for _ in range(cursor.integer(_U32))}
    nodes: dict[str, Node] = {}
    for _ in range(cursor.integer(_U32)):
        path, content = cursor.text(), cursor.blob()
        nodes[path] = Node(
            content, cursor.integer(_I32), cursor.integer(_U64), cursor.integer(_U64), cursor.integer(_U32)
        )
    if cursor or ROOT not in nodes:
        raise CorruptMetadata(f"{SNAPSHOT_FILE} of the metadata store has no root node, or excess bytes")
    return Tree.restore(frame.first_txid, sessions, nodes)


def join(transactions: Iterable[Transaction]) -> bytes:
    """Return the payload of one frame."""
    return b"".join(map(encode_transaction, transactions))

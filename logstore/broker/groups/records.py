"""Records of `__consumer_offsets`: the formats of keys and values.

    key    i16 0 or 1 │ group │ topic │ i32 partition       how far a group has come in a partition
    value  i16 0      │ i64 offset │ metadata │ i64 commit time
           i16 1      │ i64 offset │ metadata │ i64 commit time │ i64 expire time
           i16 2      │ i64 offset │ metadata │ i64 commit time
           i16 3, 4   │ i64 offset │ i32 leader epoch │ metadata │ i64 commit time

    key    i16 2      │ group                               a group's members and their assignment
    value  i16 0 to 4 │ protocol type │ i32 generation │ protocol? │ leader?
                      │ i64 time of the state (2+) │ i32 count, of members:
                          member id │ instance id? (3+) │ client id │ client host
                          │ i32 rebalance timeout (1+) │ i32 session timeout │ subscription │ assignment

Big-endian. Texts are UTF-8 behind an i16 length, bytes behind an i32; `?` may be null, -1. Value version 4
of both is flexible: lengths are unsigned varints of length + 1, structs end with tagged fields, which are
skipped. A null value is a tombstone: the offset or the group was deleted. Times are epoch milliseconds, -1
for none. A key of a higher version belongs to a group type that is not supported, and is skipped.

Written are key versions 1 and 2, value version 3, and for an offset with an end of its own value version 1,
all as Kafka 2.8 to 3.x does. The topic is compacted, so the last record of a key is valid; a crash leaves
the committed records.

The subscription of a member of protocol type `consumer` begins, in all its versions, with

    i16 version │ i32 count, of topics
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from logstore.broker.errors import CorruptGroupRecord
from logstore.disk.topic_partition import TopicPartition

MAX_TEXT_BYTES: Final = 32_767
"""The longest text that a record can hold, in bytes."""

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2
_FLEXIBLE_VALUES: Final = 4
_NEWEST_VALUE: Final = 4


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group_id: str
    topic_partition: TopicPartition


class GroupKey(NamedTuple):
    """The key of a group's metadata."""

    group_id: str


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: the next offset to read. Times are epoch milliseconds, -1 for none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """One member of a generation. Timeouts are milliseconds."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """One generation of a group; without members the group is empty since `state_timestamp_ms`."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]


# --- writing ----------------------------------------------------------------------------------


def encode_offset_key(group_id: str, topic_partition: TopicPartition) -> bytes:
    return b"".join(
        (
            _I16.pack(_OFFSET_KEY_VERSION),
            _text(group_id),
            _text(topic_partition.topic),
            _I32.pack(topic_partition.partition),
        )
    )


def encode_group_key(group_id: str) -> bytes:
    return _I16.pack(_GROUP_KEY_VERSION) + _text(group_id)


def encode_offset(value: OffsetAndMetadata) -> bytes:
    """Encode in version 3, or in version 1 with an expiry time, which later versions lack."""
    metadata, committed = _text(value.metadata), _I64.pack(value.commit_timestamp_ms)
    if value.expire_timestamp_ms >= 0:
        expires = _I64.pack(value.expire_timestamp_ms)
        return b"".join((_I16.pack(1), _I64.pack(value.offset), metadata, committed, expires))
    epoch = _I32.pack(value.leader_epoch)
    return b"".join((_I16.pack(3), _I64.pack(value.offset), epoch, metadata, committed))


def encode_group(value: GroupMetadata) -> bytes:
    """Encode in version 3."""
    parts = [
        _I16.pack(3),
        _text(value.protocol_type),
        _I32.pack(value.generation),
        _nullable_text(value.protocol),
        _nullable_text(value.leader),
        _I64.pack(value.state_timestamp_ms),
        _I32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            _text(member.member_id),
            _nullable_text(member.group_instance_id),
            _text(member.client_id),
            _text(member.client_host),
            _I32.pack(member.rebalance_timeout_ms),
            _I32.pack(member.session_timeout_ms),
            _blob(member.subscription),
            _blob(member.assignment),
        )
    return b"".join(parts)


def fits(text: str | None, *, spare_bytes: int = 0) -> bool:
    """Return whether a record can hold `text` and `spare_bytes` more."""
    if text is None:
        return True
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return False
    return size + spare_bytes <= MAX_TEXT_BYTES


def _text(text: str) -> bytes:
    data = text.encode()
    assert len(data) <= MAX_TEXT_BYTES, f"a text of {len(data)} bytes: the coordinator refuses those"
    return _I16.pack(len(data)) + data


def _nullable_text(text: str | None) -> bytes:
    return _I16.pack(-1) if text is None else _text(text)


def _blob(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


# --- reading ----------------------------------------------------------------------------------

T = TypeVar("T")


def decode_key(key: bytes | None) -> OffsetKey | GroupKey | None:
    """Decode a key; None for a kind other than classic groups. Raises `CorruptGroupRecord`."""
    if key is None:
        raise CorruptGroupRecord("a record without a key in __consumer_offsets")
    version, reader = _opened(key, "key")
    if version in (0, 1):
        return _whole(lambda: OffsetKey(reader.text(), TopicPartition(reader.text(), reader.i32())), "key")
    if version == _GROUP_KEY_VERSION:
        return _whole(lambda: GroupKey(reader.text()), "key")
    if version < 0:
        raise CorruptGroupRecord(f"key version {version}")
    return None


def decode_offset(value: bytes) -> OffsetAndMetadata:
    """Decode a committed offset of any version. Raises `CorruptGroupRecord`."""
    version, reader = _opened(value, "offset")
    return _whole(lambda: _offset(reader, version), "offset")


def decode_group(value: bytes) -> GroupMetadata:
    """Decode a generation of any version. Raises `CorruptGroupRecord`."""
    version, reader = _opened(value, "group")
    return _whole(lambda: _group(reader, version), "group")


def decode_topics(subscription: bytes) -> frozenset[str]:
    """Decode the topics of a consumer's subscription. Raises `CorruptGroupRecord`."""
    reader = _Reader(subscription, _I16.size)
    return _whole(lambda: frozenset([reader.text() for _ in range(reader.count())]), "subscription")


def _offset(reader: _Reader, version: int) -> OffsetAndMetadata:
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else -1
    metadata, committed_ms = reader.text(), reader.i64()
    expires_ms = reader.i64() if version == 1 else -1
    return OffsetAndMetadata(offset, leader_epoch, metadata, committed_ms, expires_ms)


def _group(reader: _Reader, version: int) -> GroupMetadata:
    protocol_type, generation = reader.text(), reader.i32()
    protocol, leader = reader.nullable_text(), reader.nullable_text()
    state_ms = reader.i64() if version >= 2 else -1
    members = tuple(_member(reader, version) for _ in range(reader.count()))
    return GroupMetadata(protocol_type, generation, protocol, leader, state_ms, members)


def _member(reader: _Reader, version: int) -> MemberMetadata:
    member_id = reader.text()
    instance_id = reader.nullable_text() if version >= 3 else None
    client_id, client_host = reader.text(), reader.text()
    rebalance_ms = reader.i32() if version >= 1 else -1
    session_ms = reader.i32()
    subscription, assignment = reader.blob(), reader.blob()
    reader.end_struct()
    # Version 0 knew one timeout for both.
    rebalance_ms = session_ms if version == 0 else rebalance_ms
    return MemberMetadata(
        member_id, instance_id, client_id, client_host, rebalance_ms, session_ms, subscription, assignment
    )


def _opened(data: bytes, what: str) -> tuple[int, _Reader]:
    """Return the version at the start of `data`, and a reader of the rest."""
    if len(data) < _I16.size:
        raise CorruptGroupRecord(f"{what} of {len(data)} bytes in __consumer_offsets")
    (version,) = _I16.unpack_from(data)
    if what == "key":
        return version, _Reader(data, _I16.size)
    if not 0 <= version <= _NEWEST_VALUE:
        raise CorruptGroupRecord(f"{what} version {version}; versions 0 to {_NEWEST_VALUE} can be read")
    kind = _FlexibleReader if version >= _FLEXIBLE_VALUES else _Reader
    return version, kind(data, _I16.size)


def _whole(read: Callable[[], T], what: str) -> T:
    try:
        return read()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptGroupRecord(f"{what} in __consumer_offsets is cut or malformed: {error}") from error


class _Reader:
    """Reads values in order; raises `struct.error` or `IndexError` if the data is too short."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    def i32(self) -> int:
        return self._number(_I32)

    def i64(self) -> int:
        return self._number(_I64)

    def text(self) -> str:
        text = self.nullable_text()
        if text is None:
            raise IndexError("null where a string is required")
        return text

    def nullable_text(self) -> str | None:
        size = self._number(_I16)
        return None if size < 0 else str(self._take(size), "utf-8")

    def blob(self) -> bytes:
        return self._take(self._number(_I32))

    def count(self) -> int:
        """Read an array length; each element takes at least a byte."""
        return self._at_most_what_is_left(self._number(_I32))

    def end_struct(self) -> None:
        """Skip tagged fields, in versions that have them."""

    def _number(self, layout: struct.Struct) -> int:
        (number,) = layout.unpack_from(self._data, self._position)
        self._position += layout.size
        return int(number)

    def _take(self, size: int) -> bytes:
        start = self._position
        self._position += self._at_most_what_is_left(size)
        return self._data[start : self._position]

    def _at_most_what_is_left(self, number: int) -> int:
        left = len(self._data) - self._position
        if not 0 <= number <= left:
            raise IndexError(f"{number} announced, {left} bytes left")
        return number


class _FlexibleReader(_Reader):
    """A reader of flexible versions."""

    def nullable_text(self) -> str | None:
        size = self._varint() - 1
        return None if size < 0 else str(self._take(size), "utf-8")

    def blob(self) -> bytes:
        return self._take(self._varint() - 1)

    def count(self) -> int:
        return self._at_most_what_is_left(self._varint() - 1)

    def end_struct(self) -> None:
        for _ in range(self._at_most_what_is_left(self._varint())):
            self._varint()
            self._take(self._varint())

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 35, 7):
            byte = self._data[self._position]
            self._position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise IndexError("a varint of more than 5 bytes")

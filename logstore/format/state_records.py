"""Records of Kafka's internal topics as plain facts: groups, transactions, share groups, KRaft metadata.

    __consumer_offsets, __transaction_state, __share_group_state
        key      i16 type │ fields                              never flexible
        value    i16 version │ fields                           a null value is a tombstone
    __cluster_metadata
        value    varint 1 │ varint type │ varint version │ fields   keys are null
    control records
        key      i16 version │ i16 type
        value    fields, of which the first is the i16 version

Fields are declared below, one line a type: the type's number, the name that Kafka gives it, the first
flexible version, then `name:kind@versions#tag`. A list is `[kind]`, a struct `{fields}`. Names are those that
Kafka's own dump tool prints. Uuids and bytes become the texts that it prints: URL-safe base64 without
padding, and base64. A tagged field that is absent is left out.

Decoding is for people who look at a log and for tools that take over a directory. The group coordinator has
its own code for the records that it writes (`logstore/broker/groups/records.py`).
"""

from __future__ import annotations

import re
import struct
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from logstore.errors import InvalidRecord

Facts: TypeAlias = dict[str, Any]

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
SHARE_GROUP_STATE: Final = "__share_group_state"
CLUSTER_METADATA: Final = "__cluster_metadata"
STATE_TOPICS: Final = (CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE, CLUSTER_METADATA)
"""Topics whose records can be decoded."""

_NEVER: Final = 1 << 15
_FRAME_VERSION: Final = 1
_MAX_VARINT_BYTES: Final = 5

_COORDINATED: Final = {
    CONSUMER_OFFSETS: """
0 OffsetCommit 4 = group:str topic:str partition:i32
    = offset:i64 leaderEpoch:i32@3+ metadata:str commitTimestamp:i64 expireTimestamp:i64@1
1 OffsetCommit 4 = group:str topic:str partition:i32
    = offset:i64 leaderEpoch:i32@3+ metadata:str commitTimestamp:i64 expireTimestamp:i64@1
2 GroupMetadata 4 = group:str
    = protocolType:str generation:i32 protocol:str leader:str currentStateTimestamp:i64@2+
    members:[{memberId:str groupInstanceId:str@3+ clientId:str clientHost:str rebalanceTimeout:i32@1+
    sessionTimeout:i32 subscription:bytes assignment:bytes}]
3 ConsumerGroupMetadata 0 = groupId:str = epoch:i32
4 ConsumerGroupPartitionMetadata 0 = groupId:str
    = topics:[{topicId:uuid topicName:str numPartitions:i32
    partitionMetadata:[{partition:i32 racks:[str]}]}]
5 ConsumerGroupMemberMetadata 0 = groupId:str memberId:str
    = instanceId:str rackId:str clientId:str clientHost:str subscribedTopicNames:[str]
    subscribedTopicRegex:str rebalanceTimeoutMs:i32 serverAssignor:str
    classicMemberMetadata:?{sessionTimeoutMs:i32 supportedProtocols:[{name:str metadata:bytes}]}#0
6 ConsumerGroupTargetAssignmentMetadata 0 = groupId:str = assignmentEpoch:i32
7 ConsumerGroupTargetAssignmentMember 0 = groupId:str memberId:str
    = topicPartitions:[{topicId:uuid partitions:[i32]}]
8 ConsumerGroupCurrentMemberAssignment 0 = groupId:str memberId:str
    = memberEpoch:i32 previousMemberEpoch:i32 state:i8 assignedPartitions:[{topicId:uuid partitions:[i32]}]
    partitionsPendingRevocation:[{topicId:uuid partitions:[i32]}]
9 ShareGroupPartitionMetadata 0 = groupId:str
    = topics:[{topicId:uuid topicName:str numPartitions:i32
    partitionMetadata:[{partition:i32 racks:[str]}]}]
10 ShareGroupMemberMetadata 0 = groupId:str memberId:str
    = rackId:str clientId:str clientHost:str subscribedTopicNames:[str]
11 ShareGroupMetadata 0 = groupId:str = epoch:i32
12 ShareGroupTargetAssignmentMetadata 0 = groupId:str = assignmentEpoch:i32
13 ShareGroupTargetAssignmentMember 0 = groupId:str memberId:str
    = topicPartitions:[{topicId:uuid partitions:[i32]}]
14 ShareGroupCurrentMemberAssignment 0 = groupId:str memberId:str
    = memberEpoch:i32 previousMemberEpoch:i32 state:i8 assignedPartitions:[{topicId:uuid partitions:[i32]}]
15 ShareGroupStatePartitionMetadata 0 = groupId:str
    = initializedTopics:[{topicId:uuid topicName:str partitions:[i32]}]
    deletingTopics:[{topicId:uuid topicName:str}]
16 ConsumerGroupRegularExpression 0 = groupId:str regularExpression:str
    = topics:[str] version:i64 timestamp:i64
""",
    TRANSACTION_STATE: """
0 TransactionLog 1 = transactionalId:str
    = producerId:i64 previousProducerId:i64@1+#0 nextProducerId:i64@1+#1 producerEpoch:i16
    transactionTimeoutMs:i32 transactionStatus:i8 transactionPartitions:[{topic:str partitionIds:[i32]}]
    transactionLastUpdateTimestampMs:i64 transactionStartTimestampMs:i64 clientTransactionVersion:i16@1+#2
""",
    SHARE_GROUP_STATE: """
0 ShareSnapshot 0 = groupId:str topicId:uuid partition:i32
    = snapshotEpoch:u16 stateEpoch:i32 leaderEpoch:i32 startOffset:i64
    stateBatches:[{firstOffset:i64 lastOffset:i64 deliveryState:i8 deliveryCount:i16}]
1 ShareUpdate 0 = groupId:str topicId:uuid partition:i32
    = snapshotEpoch:u16 leaderEpoch:i32 startOffset:i64
    stateBatches:[{firstOffset:i64 lastOffset:i64 deliveryState:i8 deliveryCount:i16}]
""",
}

_METADATA: Final = """
0 RegisterBrokerRecord 0 = brokerId:i32 isMigratingZkBroker:bool@2+ incarnationId:uuid brokerEpoch:i64
    endPoints:[{name:str host:str port:u16 securityProtocol:i16}]
    features:[{name:str minSupportedVersion:i16 maxSupportedVersion:i16}] rack:str fenced:bool
    inControlledShutdown:bool@1+ logDirs:[uuid]@3+#0
1 UnregisterBrokerRecord 0 = brokerId:i32 brokerEpoch:i64
2 TopicRecord 0 = name:str topicId:uuid
3 PartitionRecord 0 = partitionId:i32 topicId:uuid replicas:[i32] isr:[i32] removingReplicas:[i32]
    addingReplicas:[i32] leader:i32 leaderRecoveryState:i8#0 leaderEpoch:i32 partitionEpoch:i32
    directories:[uuid]@1+ eligibleLeaderReplicas:[i32]@2+#1 lastKnownElr:[i32]@2+#2
4 ConfigRecord 0 = resourceType:i8 resourceName:str name:str value:str
5 PartitionChangeRecord 0 = partitionId:i32 topicId:uuid isr:[i32]#0 leader:i32#1 replicas:[i32]#2
    removingReplicas:[i32]#3 addingReplicas:[i32]#4 leaderRecoveryState:i8#5 directories:[uuid]@1+#8
    eligibleLeaderReplicas:[i32]@2+#6 lastKnownElr:[i32]@2+#7
7 FenceBrokerRecord 0 = id:i32 epoch:i64
8 UnfenceBrokerRecord 0 = id:i32 epoch:i64
9 RemoveTopicRecord 0 = topicId:uuid
10 DelegationTokenRecord 0 = owner:str requester:str renewers:[str] issueTimestamp:i64 maxTimestamp:i64
    expirationTimestamp:i64 tokenId:str
11 UserScramCredentialRecord 0 = name:str mechanism:i8 salt:bytes storedKey:bytes serverKey:bytes
    iterations:i32
12 FeatureLevelRecord 0 = name:str featureLevel:i16
14 ClientQuotaRecord 0 = entity:[{entityType:str entityName:str}] key:str value:f64 remove:bool
15 ProducerIdsRecord 0 = brokerId:i32 brokerEpoch:i64 nextProducerId:i64
17 BrokerRegistrationChangeRecord 0 = brokerId:i32 brokerEpoch:i64 fenced:i8#0
    inControlledShutdown:i8@1+#1 logDirs:[uuid]@2+#2
18 AccessControlEntryRecord 0 = id:uuid resourceType:i8 resourceName:str patternType:i8 principal:str
    host:str operation:i8 permissionType:i8
19 RemoveAccessControlEntryRecord 0 = id:uuid
20 NoOpRecord 0 =
21 ZkMigrationStateRecord 0 = zkMigrationState:i8
22 RemoveUserScramCredentialRecord 0 = name:str mechanism:i8
23 BeginTransactionRecord 0 = name:str#0
24 EndTransactionRecord 0 =
25 AbortTransactionRecord 0 = reason:str#0
26 RemoveDelegationTokenRecord 0 = tokenId:str
27 RegisterControllerRecord 0 = controllerId:i32 incarnationId:uuid zkMigrationReady:bool
    endPoints:[{name:str host:str port:u16 securityProtocol:i16}]
    features:[{name:str minSupportedVersion:i16 maxSupportedVersion:i16}]
28 ClearElrRecord 0 = topicName:str
"""

_CONTROL: Final = f"""
0 Abort {_NEVER} = version:i16 coordinatorEpoch:i32
1 Commit {_NEVER} = version:i16 coordinatorEpoch:i32
2 LeaderChange 0 = version:i16 leaderId:i32 voters:[{{voterId:i32 voterDirectoryId:uuid@1+}}]
    grantingVoters:[{{voterId:i32 voterDirectoryId:uuid@1+}}]
3 SnapshotHeader 0 = version:i16 lastContainedLogTimestamp:i64
4 SnapshotFooter 0 = version:i16
5 KRaftVersion 0 = version:i16 kRaftVersion:i16
6 KRaftVoters 0 = version:i16 voters:[{{voterId:i32 voterDirectoryId:uuid
    endpoints:[{{name:str host:str port:u16}}]
    kRaftVersionFeature:{{minSupportedVersion:i16 maxSupportedVersion:i16}}}}]
"""

_CONSUMER_PROTOCOL: Final = {
    "subscription": """topics:[str] userData:bytes ownedPartitions:[{topic:str partitions:[i32]}]@1+
        generationId:i32@2+ rackId:str@3+""",
    "assignment": "assignedPartitions:[{topic:str partitions:[i32]}] userData:bytes",
}
_NEWEST_CONSUMER_PROTOCOL: Final = 3


class Decoded(NamedTuple):
    """A key or a value: its type's number and name, its version, its fields by Kafka's names.

    `version` and `data` are None for a tombstone; a key's version is its type.
    """

    type: int
    name: str
    version: int | None
    data: Facts | None


def decode_state_record(topic: str, key: bytes | None, value: bytes | None) -> tuple[Decoded | None, Decoded]:
    """Decode a record of one of the four internal topics; the key is None for `__cluster_metadata`.

    Raises `InvalidRecord` for an unknown type and for malformed bytes.
    """
    if topic == CLUSTER_METADATA:
        return None, decode_metadata(value)
    known = _keyed(topic)
    if key is None:
        raise InvalidRecord(f"a record of {topic} without a key")
    reader = _Reader(key, flexible=False)
    number = reader.called(reader.i16)
    if number not in known:
        raise InvalidRecord(f"unknown record type {number} in {topic}")
    name, flexible_from, key_fields, value_fields = known[number]
    decoded = Decoded(number, name, number, reader.called(lambda: reader.fields(key_fields, number)))
    if value is None:
        return decoded, Decoded(number, name, None, None)
    version, data = _versioned(value, value_fields, flexible_from)
    if name == "GroupMetadata" and data["protocolType"] == "consumer":
        for member in data["members"]:
            for part in _CONSUMER_PROTOCOL:
                member[part] = _consumer_protocol(part, member[part])
    return decoded, Decoded(number, name, version, data)


def decode_metadata(value: bytes | None) -> Decoded:
    """Decode a record of `__cluster_metadata` or of one of its snapshots.

    Raises `InvalidRecord` for an unknown type and for malformed bytes.
    """
    if value is None:
        raise InvalidRecord(f"a record of {CLUSTER_METADATA} without a value")
    reader = _Reader(value, flexible=True)
    frame, number, version = (reader.called(reader.varint) for _ in range(3))
    if frame != _FRAME_VERSION:
        raise InvalidRecord(
            f"frame version {frame} in {CLUSTER_METADATA}, only version {_FRAME_VERSION} is known"
        )
    if number not in _metadata():
        raise InvalidRecord(f"unknown record type {number} in {CLUSTER_METADATA}")
    name, _, fields, _ = _metadata()[number]
    return Decoded(number, name, version, reader.called(lambda: reader.fields(fields, version)))


def decode_control(key: bytes | None, value: bytes | None) -> Decoded:
    """Decode a control record: a transaction's end, or a mark of KRaft. An unknown type has no data.

    Raises `InvalidRecord` for malformed bytes.
    """
    reader = _Reader(key or b"", flexible=False)
    _, number = reader.called(reader.i16), reader.called(reader.i16)
    if number not in _control() or value is None:
        return Decoded(number, f"control type {number}", None, None)
    name, flexible_from, fields, _ = _control()[number]
    (version,) = struct.unpack(">h", value[:2].rjust(2, b"\0"))
    reader = _Reader(value, flexible=version >= flexible_from)
    return Decoded(number, name, version, reader.called(lambda: reader.fields(fields, version)))


def _versioned(data: bytes, fields: tuple[_Field, ...], flexible_from: int) -> tuple[int, Facts]:
    reader = _Reader(data, flexible=False)
    version = reader.called(reader.i16)
    reader.is_flexible = version >= flexible_from
    return version, reader.called(lambda: reader.fields(fields, version))


def _consumer_protocol(part: str, encoded: str) -> object:
    """Decode a member's subscription or assignment; bytes of another protocol stay as they are."""
    reader = _Reader(b64decode(encoded), flexible=False)
    try:
        version = min(reader.called(reader.i16), _NEWEST_CONSUMER_PROTOCOL)
        return reader.called(lambda: reader.fields(_parsed(_CONSUMER_PROTOCOL[part]), version))
    except InvalidRecord:
        return encoded


# --- declarations ---------------------------------------------------------------------------------


class _Field(NamedTuple):
    """A declared field. `kind` is a simple kind's name, or the fields of a struct."""

    name: str
    kind: str | tuple[_Field, ...]
    is_array: bool
    may_be_absent: bool
    versions: range
    tag: int | None


class _Record(NamedTuple):
    name: str
    flexible_from: int
    first: tuple[_Field, ...]
    second: tuple[_Field, ...]


@cache
def _keyed(topic: str) -> dict[int, _Record]:
    return dict(_declared(_COORDINATED[topic]))


@cache
def _metadata() -> dict[int, _Record]:
    return dict(_declared(_METADATA))


@cache
def _control() -> dict[int, _Record]:
    return dict(_declared(_CONTROL))


def _declared(text: str) -> Iterator[tuple[int, _Record]]:
    for entry in re.split(r"\n(?=\d)", text.strip()):
        head, *parts = entry.split("=")
        number, name, flexible_from = head.split()
        first, second = (*map(_parsed, parts), ())[:2]
        yield int(number), _Record(name, int(flexible_from), first, second)


@cache
def _parsed(text: str) -> tuple[_Field, ...]:
    tokens = re.findall(r"[][{}?]|[@#:]|[\w+-]+", text)[::-1]
    return tuple(_fields_of(tokens))


def _fields_of(tokens: list[str]) -> Iterator[_Field]:
    """Parse fields up to the end, or to the bracket that closes their struct; `tokens` is a stack."""
    while tokens and tokens[-1] != "}":
        name = tokens.pop()
        colon = tokens.pop()
        assert colon == ":", name
        marks = set()
        while tokens[-1] in "?[{":
            marks.add(tokens.pop())
        if "{" in marks:
            kind: str | tuple[_Field, ...] = tuple(_fields_of(tokens))
            tokens.pop()
        else:
            kind = tokens.pop()
        if "[" in marks:
            tokens.pop()
        versions, tag = range(_NEVER), None
        while tokens and tokens[-1] in "@#":
            if tokens.pop() == "@":
                first = tokens.pop()
                versions = range(int(first.rstrip("+")), _NEVER if first.endswith("+") else int(first) + 1)
            else:
                tag = int(tokens.pop())
        yield _Field(name, kind, "[" in marks, "?" in marks, versions, tag)


# --- reading --------------------------------------------------------------------------------------


class _Reader:
    """Reads values in order; raises `struct.error`, `IndexError` or `ValueError` for malformed data."""

    def __init__(self, data: bytes, *, flexible: bool) -> None:
        self._data = data
        self._at = 0
        self.is_flexible = flexible

    def called(self, read: Callable[[], Any]) -> Any:
        """Call `read`. Raises `InvalidRecord` for malformed data."""
        try:
            return read()
        except (struct.error, IndexError, ValueError) as error:
            raise InvalidRecord(f"a state record is cut or malformed at byte {self._at}: {error}") from error

    def fields(self, fields: tuple[_Field, ...], version: int) -> Facts:
        """Read a struct, and its tag section in flexible versions."""
        found = {
            field.name: self._field(field, version)
            for field in fields
            if field.tag is None and version in field.versions
        }
        if not self.is_flexible:
            return found
        tagged = {field.tag: field for field in fields if version in field.versions}
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            end = self._at + size
            if tag in tagged:
                found[tagged[tag].name] = self._field(tagged[tag], version)
            self._at = end
        return found

    def _field(self, field: _Field, version: int) -> object:
        if not field.is_array:
            return self._one(field, version)
        count = self._size("i")
        if count > len(self._data) - self._at:
            raise IndexError(f"{count} elements announced, {len(self._data) - self._at} bytes left")
        return None if count < 0 else [self._one(field, version) for _ in range(count)]

    def _one(self, field: _Field, version: int) -> object:
        kind = field.kind
        if not isinstance(kind, str):
            if field.may_be_absent and self._number("b") < 0:
                return None
            return self.fields(kind, version)
        match kind:
            case "str":
                text = self._sized("h")
                return None if text is None else text.decode()
            case "bytes":
                data = self._sized("i")
                return None if data is None else b64encode(data).decode()
            case "uuid":
                return urlsafe_b64encode(self._take(16)).decode().rstrip("=")
            case _:
                return self._number(_NUMBERS[kind])

    def i16(self) -> int:
        return int(self._number("h"))

    def varint(self) -> int:
        number = 0
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ValueError("a varint of more than 5 bytes")

    def _size(self, layout: str) -> int:
        return self.varint() - 1 if self.is_flexible else int(self._number(layout))

    def _sized(self, layout: str) -> bytes | None:
        size = self._size(layout)
        return None if size < 0 else self._take(size)

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise IndexError(f"{size} bytes announced, {len(self._data) - start} left")
        return self._data[start : self._at]

    def _number(self, layout: str) -> Any:
        (number,) = struct.unpack_from(">" + layout, self._data, self._at)
        self._at += struct.calcsize(">" + layout)
        return number


_NUMBERS: Final = {"bool": "?", "i8": "b", "i16": "h", "u16": "H", "i32": "i", "i64": "q", "f64": "d"}

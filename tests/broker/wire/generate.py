"""Writes `types.py` from kio's declarations: `python -m tests.broker.wire.generate`.

It is a tool of development: kio is not installed with a broker. kio has a module for every message and
version; here they become one class a struct with the fields of all served versions (`versions.py`). Two
things are added: the fields that Kafka silently omits where a version lacks them, and the fields that only
our brokers send each other.
"""

from __future__ import annotations

import dataclasses
import pathlib
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from logstore.broker.wire import types as wire_types
from logstore.broker.wire.declarations import parse_versions
from logstore.broker.wire.versions import TABLE

NOT_IN_KIO: Final = frozenset({4, 5, 6, 7})
"""Declared by hand, in `interbroker.py`."""

_KINDS: Final = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}
_PYTHON: Final = {
    "bool": "bool",
    "string": "str",
    "uuid": "bytes",
    "float64": "float",
    "bytes": "bytes",
    "records": "bytes | memoryview",
}
_ZEROS: Final[dict[str, Any]] = {"bool": False, "string": "", "uuid": bytes(16), "bytes": b"", "records": b""}

_REQUESTER: Final = "token_requester_principal_type token_requester_principal_name"
_IGNORABLE: Final = {
    "ProduceResponsePartitionProduceResponse": "log_start_offset record_errors error_message",
    "FetchRequest": "cluster_id session_id session_epoch rack_id",
    "FetchRequestFetchTopic": "topic topic_id",
    "FetchRequestFetchPartition": "current_leader_epoch log_start_offset replica_directory_id",
    "FetchRequestForgottenTopic": "topic topic_id",
    "FetchResponse": "error_code",
    "FetchResponseFetchableTopicResponse": "topic topic_id",
    "FetchResponsePartitionData": "log_start_offset",
    "ListOffsetsRequestListOffsetsPartition": "current_leader_epoch",
    "ListOffsetsResponse": "throttle_time_ms",
    "CreateDelegationTokenResponse": _REQUESTER,
    "DescribeDelegationTokenResponseDescribedDelegationToken": _REQUESTER,
    "MetadataRequestTopic": "topic_id",
    "MetadataResponse": "throttle_time_ms cluster_id controller_id",
    "MetadataResponseBroker": "rack",
    "MetadataResponseTopic": "topic_id is_internal",
    "MetadataResponsePartition": "leader_epoch offline_replicas",
    "OffsetCommitRequest": "retention_time_ms",
    "OffsetCommitRequestPartition": "committed_leader_epoch",
    "OffsetCommitResponse": "throttle_time_ms",
    "OffsetFetchRequestGroup": "member_id member_epoch",
    "OffsetFetchResponse": "throttle_time_ms error_code",
    "OffsetFetchResponsePartition": "committed_leader_epoch",
    "FindCoordinatorResponse": "throttle_time_ms error_message",
    "JoinGroupRequest": "rebalance_timeout_ms reason",
    "JoinGroupResponse": "throttle_time_ms protocol_type",
    "JoinGroupResponseMember": "group_instance_id",
    "HeartbeatResponse": "throttle_time_ms",
    "LeaveGroupRequestMemberIdentity": "reason",
    "LeaveGroupResponse": "throttle_time_ms",
    "SyncGroupRequest": "protocol_type protocol_name",
    "SyncGroupResponse": "throttle_time_ms protocol_type protocol_name",
    "DescribeGroupsResponse": "throttle_time_ms",
    "DescribeGroupsResponseDescribedGroupMember": "group_instance_id",
    "ListGroupsResponse": "throttle_time_ms",
    "ListGroupsResponseListedGroup": "group_state group_type",
    "ApiVersionsRequest": "client_software_name client_software_version",
    "ApiVersionsResponse": (
        "throttle_time_ms supported_features finalized_features_epoch finalized_features zk_migration_ready"
    ),
    "CreateTopicsResponseCreatableTopicResult": (
        "topic_id topic_config_error_code num_partitions replication_factor configs"
    ),
    "DeleteTopicsRequest": "topic_names",
    "DeleteTopicsResponseDeletableTopicResult": "topic_id error_message",
    "OffsetForLeaderEpochRequest": "replica_id",
    "DescribeConfigsResponseDescribeConfigsResourceResult": "config_type documentation",
    "DescribeLogDirsResponse": "error_code",
    "DescribeLogDirsResponseDescribeLogDirsResult": "total_bytes usable_bytes",
    "SaslAuthenticateResponse": "session_lifetime_ms",
}
"""Fields that some versions lack, and that Kafka omits there whatever their value."""

_OURS: Final = {
    "ProduceRequest": ['asks_level: bool = wire("bool", versions="9+", tag=10000, ignorable=True)'],
    "ProduceResponsePartitionProduceResponse": [
        'level: int = wire("int8", versions="9+", tag=10000, default=-1)'
    ],
    "FetchRequest": [
        'has_rack: bool = wire("bool", versions="12+", tag=10000, ignorable=True, default=True)'
    ],
    "FetchRequestFetchTopic": ['topic_name: str = wire("string", versions="13+", tag=10000)'],
    "FetchRequestForgottenTopic": ['topic_name: str = wire("string", versions="13+", tag=10000)'],
    "FetchRequestFetchPartition": ['is_synced: bool = wire("bool", versions="12+", tag=10000)'],
    "FetchResponseFetchableTopicResponse": ['topic_name: str = wire("string", versions="13+", tag=10000)'],
    "ListOffsetsRequestListOffsetsPartition": [
        'receipt_offset: int = wire("int64", versions="6+", tag=10000, ignorable=True, default=-1)',
        'receipt_level: int = wire("int8", versions="6+", tag=10001, ignorable=True)',
        'receipt_copies: int = wire("int32", versions="6+", tag=10002, ignorable=True)',
        'receipt_wait_ms: int = wire("int32", versions="6+", tag=10003, ignorable=True)',
    ],
    "ListOffsetsResponseListOffsetsPartitionResponse": [
        'receipt_replicas: int = wire("int32", versions="6+", tag=10000)',
        'receipt_written_on: int = wire("int32", versions="6+", tag=10001)',
        'receipt_synced_on: int = wire("int32", versions="6+", tag=10002)',
        'receipt_is_committed: bool = wire("bool", versions="6+", tag=10003)',
        'receipt_message: str = wire("string", versions="6+", tag=10004)',
    ],
    "ListPartitionReassignmentsResponse": ["deletions: list[TopicDeletion] = wire(tag=10000)"],
    "DescribeGroupsResponseDescribedGroupMember": [
        'is_awaited: bool = wire("bool", versions="5+", tag=10000, ignorable=True)'
    ],
    "DescribeGroupsResponseDescribedGroup": [
        'state_since_ms: int = wire("int64", versions="5+", tag=10000, ignorable=True, default=-1)',
        'round_ends_ms: int = wire("int64", versions="5+", tag=10001, ignorable=True, default=-1)',
    ],
    "DescribeLogDirsResponseDescribeLogDirsTopic": [
        'end_offsets: list[int] = wire(["int64"], versions="2+", tag=10000, ignorable=True)'
    ],
    "DescribeLogDirsResponseDescribeLogDirsResult": [
        'problem: str = wire("string", versions="2+", tag=10000, ignorable=True)',
        'hanging: list[DamagedReplica] = wire(versions="2+", tag=10001, ignorable=True)',
    ],
    "DescribeLogDirsResponse": [
        'damaged: list[DamagedReplica] = wire(versions="2+", tag=10000, ignorable=True)',
        'since: list[SinceWhen] = wire(versions="2+", tag=10001, ignorable=True)',
        'departures: list[Departures] = wire(versions="2+", tag=10002, ignorable=True)',
        'now_ms: int = wire("int64", versions="2+", tag=10003, ignorable=True, default=-1)',
        'transactions: list[SinceWhen] = wire(versions="2+", tag=10004, ignorable=True)',
    ],
    "DescribeClusterResponseDescribeClusterBroker": ['is_stopping: bool = wire("bool", tag=10000)'],
    "AlterPartitionRequestTopicData": ['topic_name: str = wire("string", tag=10000)'],
    "AlterPartitionRequestPartitionData": ['all_synced: bool = wire("bool", tag=10000)'],
    "AlterPartitionResponseTopicData": ['topic_name: str = wire("string", tag=10000)'],
    "AlterPartitionResponsePartitionData": ['min_insync: int = wire("int32", tag=10000)'],
}
"""Fields that our brokers add to Kafka's, in tags that Kafka will not use."""

_OUR_PARTS: Final = [
    'class TopicDeletion(Struct):\n    name: str = wire("string")\n    waits_for: str = wire("string")',
    'class DamagedReplica(Struct):\n    name: str = wire("string")\n    problem: str = wire("string")',
    'class SinceWhen(Struct):\n    name: str = wire("string")\n    since_ms: int = wire("int64")\n'
    '    reason: str = wire("string")',
    'class Departures(Struct):\n    broker: int = wire("int32")\n    times_ms: list[int] = wire(["int64"])',
]
"""Structs of these fields."""


@dataclass
class _Field:
    name: str
    kind: str
    is_array: bool
    default: Any
    tag: int | None
    versions: list[int] = field(default_factory=list)
    nullable: list[int] = field(default_factory=list)


@dataclass
class _Struct:
    name: str
    versions: list[int] = field(default_factory=list)
    flexible: list[int] = field(default_factory=list)
    fields: dict[str, _Field] = field(default_factory=dict)


def source() -> str:
    """Return the text of `types.py`."""
    structs = list(_OUR_PARTS)
    for row in TABLE:
        if row.key in NOT_IN_KIO:
            continue
        for message in _messages(row.key, parse_versions(row.served)):
            structs += [_text_of(each, row.key) for each in message]
    return "\n\n\n".join([_HEAD, *structs]) + "\n"


_HEAD = '''"""The served messages and their parts. Generated by `python -m tests.broker.wire.generate`.

`declarations.py` explains the notation. Names are kio's, a part's with its message's in front. Tags
from 10000 on are ours, between brokers.
"""

from __future__ import annotations

from logstore.broker.wire.declarations import Struct, wire'''


def _messages(key: int, versions: range) -> Iterable[list[_Struct]]:
    """Yield the structs of an API's request, then of its response, each after its parts."""
    from kio.index import load_request_schema, load_response_schema

    for load in (load_request_schema, load_response_schema):
        structs: dict[str, _Struct] = {}
        for version in reversed(versions):  # the newest has most fields, and their order
            _collect(load(key, version), load(key, version).__name__, structs, version)
        yield _parts_first(load(key, versions[-1]).__name__, structs)


def _parts_first(name: str, structs: dict[str, _Struct]) -> list[_Struct]:
    struct = structs.pop(name)
    parts = [each.kind for each in struct.fields.values()]
    return [*(each for part in parts if part in structs for each in _parts_first(part, structs)), struct]


def _collect(entity: Any, message: str, structs: dict[str, _Struct], version: int) -> str:
    name: str = entity.__name__ if entity.__name__.startswith(message) else message + entity.__name__
    declared = dataclasses.fields(entity)
    kinds = [_kind_of(each, message, structs, version) for each in declared]
    struct = structs.setdefault(name, _Struct(name))
    struct.versions.append(version)
    if entity.__flexible__:
        struct.flexible.append(version)
    before = list(struct.fields)
    at = 0
    for each, (kind, is_array, is_nullable) in zip(declared, kinds, strict=True):
        field_name = each.name + "_ms" if "time" in each.metadata.get("kafka_type", "") else each.name
        known = struct.fields.get(field_name)
        if known is None:
            known = _Field(field_name, kind, is_array, _default_of(each, kind), each.metadata.get("tag"))
            before.insert(at, field_name)
            struct.fields[field_name] = known
            at += 1
        else:
            at = before.index(field_name) + 1
        assert (known.kind, known.is_array, known.tag) == (kind, is_array, each.metadata.get("tag")), (
            f"{name}.{field_name} differs between version {version} and later ones"
        )
        known.versions.append(version)
        if is_nullable:
            known.nullable.append(version)
    struct.fields = {each: struct.fields[each] for each in before}
    return name


def _kind_of(
    declared: Any, message: str, structs: dict[str, _Struct], version: int
) -> tuple[str, bool, bool]:
    """Return a field's kind, whether it is an array, and whether it may be None."""
    kafka_type = declared.metadata.get("kafka_type", "")
    kind = declared.type
    is_nullable = False
    if isinstance(kind, types.UnionType):
        (kind,) = (each for each in typing.get_args(kind) if each is not type(None))
        # kio shows the zero uuid and the time -1 as None; they are sent as they are.
        is_nullable = kafka_type not in ("uuid", "datetime_i64")
    is_array = typing.get_origin(kind) is tuple
    if is_array:
        kind = typing.get_args(kind)[0]
    if dataclasses.is_dataclass(kind):
        return _collect(kind, message, structs, version), is_array, is_nullable
    return _KINDS.get(kafka_type, kafka_type), is_array, is_nullable


def _default_of(declared: Any, kind: str) -> Any:
    """Return an int, text or bytes; None for a struct and for a null default."""
    default = declared.default
    kafka_type = declared.metadata.get("kafka_type", "")
    if kafka_type == "datetime_i64":
        return -1
    if default is dataclasses.MISSING and declared.name == "error_message":
        return None  # it may be null in all of Kafka's messages, and is without an error
    if default is dataclasses.MISSING:
        return _ZEROS.get(kafka_type, 0) if kafka_type else None
    if default is None and kafka_type == "uuid":
        return _ZEROS["uuid"]
    if default is None or dataclasses.is_dataclass(default):
        return None
    if kafka_type.startswith("timedelta"):
        return round(default.total_seconds() * 1000)
    if kafka_type in _ZEROS:
        return type(_ZEROS[kafka_type])(default)
    return int(default) if kafka_type and not isinstance(default, tuple) else default


def _span(versions: list[int]) -> str:
    first, last = min(versions), max(versions)
    assert sorted(versions) == list(range(first, last + 1)), "versions without a gap"
    return str(first) if first == last else f"{first}-{last}"


def _open(versions: list[int], all_versions: list[int]) -> str:
    """Return `3+` instead of `3-7` if the struct ends at 7 too; an empty text for all its versions."""
    if sorted(versions) == sorted(all_versions):
        return ""
    return f"{min(versions)}+" if max(versions) == max(all_versions) else _span(versions)


def _text_of(struct: _Struct, key: int) -> str:
    is_message = struct.name.endswith(("Request", "Response")) and _is_whole(struct.name)
    about = "Struct"
    if is_message:
        flexible = f', flexible="{min(struct.flexible)}+"' if struct.flexible else ""
        about += f', key={key}, versions="{_span(struct.versions)}"{flexible}'
    lines = [f"class {struct.name}({about}):"]
    ignorable = _IGNORABLE.get(struct.name, "").split()
    for each in struct.fields.values():
        lines += _field_lines(each, struct, ignore=each.name in ignorable)
    lines += [f"    {line}" for line in _OURS.get(struct.name, ())]
    return "\n".join(lines if len(lines) > 1 else [*lines, "    pass"])


def _is_whole(name: str) -> bool:
    return any(name in (f"{row.name}Request", f"{row.name}Response") for row in TABLE)


def _field_lines(each: _Field, struct: _Struct, *, ignore: bool) -> list[str]:
    is_struct = each.kind[0].isupper()
    python = each.kind if is_struct else _PYTHON.get(each.kind, "int")
    if each.is_array:
        python = f"list[{python}]"
    default_is_none = not each.is_array and each.default is None
    if each.nullable or default_is_none:
        python += " | None"
    words = []
    if not is_struct:
        words.append(f'["{each.kind}"]' if each.is_array else f'"{each.kind}"')
    if versions := _open(each.versions, struct.versions):
        words.append(f'versions="{versions}"')
    if each.nullable and each.tag is None:
        words.append(f'nullable="{_open(each.nullable, struct.versions) or "0+"}"')
    elif each.nullable:
        words.append('nullable="0+"')
    if each.tag is not None:
        words.append(f"tag={each.tag}")
    if ignore:
        words.append("ignorable=True")
    if default := _default_text(each):
        words.append(default)
    line = f"    {each.name}: {python} = wire({', '.join(words)})"
    if len(line) <= 110:
        return [line]
    inner = [f"        {', '.join(words)}"]
    if len(inner[0]) > 110:
        inner = [f"        {word}," for word in words]
    return [f"    {each.name}: {python} = wire(", *inner, "    )"]


def _default_text(each: _Field) -> str:
    """Return the default, unless it is that of the kind."""
    if each.is_array:
        return "default=None" if each.default == "null" else ""
    zero: Any = None if each.kind[0].isupper() else _ZEROS.get(each.kind, 0)
    return "" if each.default == zero else f"default={each.default!r}".replace("'", '"')


if __name__ == "__main__":
    pathlib.Path(wire_types.__file__).write_text(source())

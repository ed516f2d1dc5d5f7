"""The documented differences that the judge meets, by a name; docs/differences.md tells the reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode as Code

_BROKER, _DEFAULT = 4, 5
"""The type of a broker, as a resource with settings; the source of a setting that nobody gave."""
UNKNOWN_ID: Final = b"0123456789abcdef"


class Met(NamedTuple):
    """One difference, to be recognised."""

    request: Any
    version: int
    path: str
    kafka: Any
    ours: Any

    @property
    def field(self) -> str:
        return self.path.rpartition(".")[2]

    def codes(self, kafka: int, *ours: int) -> bool:
        return self.field == "error_code" and self.kafka == kafka and self.ours in ours

    def is_of(self, *kinds: type[Struct]) -> bool:
        return isinstance(self.request, kinds)

    @property
    def breaks(self) -> set[str]:
        """How the batches of a produce request are broken."""
        if not self.is_of(t.ProduceRequest):
            return set()
        parts = (each for topic in self.request.topic_data for each in topic.partition_data)
        return {how for each in parts if (how := getattr(each.records, "how", ""))}


def _strict(met: Met, kafka: int, code: int, *hows: str) -> bool:
    is_unanswered = not met.path and kafka == 0 and (met.kafka, met.ours) == ("silent", "closed")
    return (is_unanswered or met.codes(kafka, code)) and bool(met.breaks & set(hows))


def _refused(met: Met, how: str) -> bool:
    """Return whether ours alone refuses such a batch; Kafka may refuse its time."""
    return any(_strict(met, code, Code.INVALID_RECORD, how) for code in (0, Code.INVALID_TIMESTAMP))


_ABOUT_CONFIGS: Final = (t.DescribeConfigsRequest, t.AlterConfigsRequest, t.IncrementalAlterConfigsRequest)
_ABOUT_RULES: Final = (t.DescribeAclsRequest, t.CreateAclsRequest, t.DeleteAclsRequest)


def _without_default(synonyms: Any) -> Any:
    """Return a setting's synonyms, by source, but for the default."""
    is_whole = isinstance(synonyms, dict)
    return (
        {source: each for source, each in synonyms.items() if source != str(_DEFAULT)}
        if is_whole
        else synonyms
    )


def _has_no_partitions(entry: Any) -> bool:
    """Return whether an entry of a response names no partition; it may have topics without any."""
    if not isinstance(entry, dict):
        return False
    lists = [value for value in entry.values() if isinstance(value, list)]
    return all(_has_no_partitions(each) for found in lists for each in found) and "error_code" not in entry


KNOWN: Final[dict[str, Callable[[Met], bool]]] = {
    "a setting of ours alone": lambda met: (
        met.kafka is None and met.path.endswith(("configs[durability.level]", "configs[retain.for.cursors]"))
    ),
    "a text where Kafka has none": lambda met: met.field == "error_message" and met.ours is True,
    "null for no aborted transactions beside an error": lambda met: (
        met.field == "aborted_transactions" and met.kafka == [] and met.ours is None
    ),
    "no log start offset beside an error": lambda met: (
        met.is_of(t.ProduceRequest) and met.field == "log_start_offset" and met.ours == -1
    ),
    "an unknown partition and another error": lambda met: (
        met.is_of(t.ProduceRequest)
        and met.codes(
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            Code.INVALID_REQUIRED_ACKS,
            Code.UNSUPPORTED_COMPRESSION_TYPE,
            Code.INVALID_TXN_STATE,
        )
    ),
    "several errors in one request": lambda met: (
        (
            met.is_of(t.CreateTopicsRequest)
            and met.codes(
                Code.TOPIC_ALREADY_EXISTS,
                Code.INVALID_PARTITIONS,
                Code.INVALID_REPLICATION_FACTOR,
                Code.INVALID_REPLICA_ASSIGNMENT,
                Code.INVALID_CONFIG,
                Code.INVALID_REQUEST,
            )
        )
        or (
            met.is_of(t.AlterConfigsRequest, t.IncrementalAlterConfigsRequest)
            and met.codes(Code.INVALID_REQUEST, Code.INVALID_CONFIG)
            and any(len(each.configs) > 1 for each in met.request.resources)
        )
        or (
            met.is_of(t.IncrementalAlterConfigsRequest, t.AlterConfigsRequest)
            and met.ours == Code.UNKNOWN_TOPIC_OR_PARTITION
            and met.kafka in (Code.INVALID_CONFIG, Code.INVALID_REQUEST)
        )
        or (
            met.is_of(*_ABOUT_CONFIGS)
            and met.kafka in (Code.INVALID_REQUEST, Code.INVALID_CONFIG)
            and met.ours in (Code.CLUSTER_AUTHORIZATION_FAILED, Code.TOPIC_AUTHORIZATION_FAILED)
        )
        or (
            met.is_of(t.SyncGroupRequest)
            and met.codes(Code.INCONSISTENT_GROUP_PROTOCOL, Code.GROUP_AUTHORIZATION_FAILED)
        )
        or (
            (met.is_of(t.ProduceRequest) and bool(met.breaks))
            and (
                met.ours in (Code.INVALID_REQUIRED_ACKS, Code.UNSUPPORTED_COMPRESSION_TYPE)
                or met.codes(
                    Code.CORRUPT_MESSAGE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNSUPPORTED_COMPRESSION_TYPE
                )
                or (met.kafka == Code.CORRUPT_MESSAGE and len(met.request.topic_data) > 1)
                or met.codes(Code.CORRUPT_MESSAGE, Code.TOPIC_AUTHORIZATION_FAILED)
            )
        )
    ),
    "no session with an unknown topic id": lambda met: (
        met.is_of(t.FetchRequest)
        and met.version >= 13
        and any(
            topic.topic_id in (UNKNOWN_ID, bytes(16))
            for topic in met.request.topics + met.request.forgotten_topics_data
        )
        and (
            met.field == "session_id"
            or met.codes(Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH)
            or met.codes(0, Code.INVALID_FETCH_SESSION_EPOCH)
        )
    ),
    "a client's record time below -1": lambda met: (
        _strict(met, 0, Code.INVALID_TIMESTAMP, "base timestamp -1", "base timestamp -9")
        or _strict(met, Code.INVALID_RECORD, Code.INVALID_TIMESTAMP, "base timestamp -1", "base timestamp -9")
        or (met.field == "record_errors" and bool(met.breaks & {"base timestamp -1", "base timestamp -9"}))
    ),
    "no message where there is no error": lambda met: (
        met.is_of(
            *(t.FindCoordinatorRequest, t.DescribeConfigsRequest, t.DescribeClientQuotasRequest),
            *(t.DescribeUserScramCredentialsRequest, t.CreateAclsRequest, t.DescribeAclsRequest),
            t.AlterPartitionReassignmentsRequest,
        )
        and met.field == "error_message"
        and met.ours is False
    ),
    "a topic that Metadata creates has no leader yet": lambda met: (
        met.is_of(t.MetadataRequest) and met.codes(Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE)
    ),
    "a topic's name and id in one deletion": lambda met: (
        met.is_of(t.DeleteTopicsRequest) and met.field == "topic_id" and met.ours == bytes(16)
    ),
    "a broker's setting that is fixed here, or unknown": lambda met: (
        (
            met.is_of(t.IncrementalAlterConfigsRequest, t.AlterConfigsRequest)
            and met.request.resources[0].resource_type == _BROKER
            and (
                met.codes(0, Code.INVALID_REQUEST, Code.INVALID_CONFIG)
                or met.codes(Code.INVALID_CONFIG, Code.INVALID_REQUEST)
                or met.codes(Code.UNKNOWN_SERVER_ERROR, Code.INVALID_CONFIG)
            )
        )
        or (
            met.is_of(t.DescribeConfigsRequest)
            and met.request.resources[0].resource_type == _BROKER
            and (met.field == "read_only" or met.ours is None)
        )
    ),
    "a broker's setting with a wrong value": lambda met: (
        met.is_of(t.IncrementalAlterConfigsRequest, t.AlterConfigsRequest)
        and met.codes(Code.INVALID_REQUEST, Code.INVALID_CONFIG)
        and met.request.resources[0].resource_type == _BROKER
    ),
    "the default among the synonyms": lambda met: (
        met.is_of(t.DescribeConfigsRequest)
        and ".synonyms" in met.path
        and (f".{_DEFAULT}." in met.path or _without_default(met.kafka) == _without_default(met.ours))
    ),
    "a group that no member could join": lambda met: (
        (met.is_of(t.DescribeGroupsRequest) and (met.kafka, met.ours) == ("Empty", "Dead"))
        or (
            met.is_of(t.OffsetDeleteRequest, t.DeleteGroupsRequest, t.OffsetFetchRequest)
            and met.codes(0, Code.GROUP_ID_NOT_FOUND)
        )
        or (
            met.is_of(t.ListGroupsRequest)
            and met.ours is None
            and met.kafka.get("group_state", "Empty") == "Empty"
        )
        or (met.is_of(t.OffsetCommitRequest) and met.codes(Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION))
    ),
    "a value with spaces or capitals": lambda met: (
        met.is_of(t.CreateTopicsRequest)
        and met.field == "value"
        and isinstance(met.kafka, str)
        and met.kafka.strip().lower() == met.ours
    ),
    "a name that no topic can have, in a move between log dirs": lambda met: (
        met.is_of(t.AlterReplicaLogDirsRequest)
        and met.codes(met.kafka, Code.INVALID_TOPIC_EXCEPTION)
        and met.kafka in (Code.LOG_DIR_NOT_FOUND, Code.UNKNOWN_TOPIC_OR_PARTITION)
    ),
    "an empty group whose last offset was deleted": lambda met: (
        (met.is_of(t.OffsetDeleteRequest, t.DeleteGroupsRequest) and met.codes(Code.GROUP_ID_NOT_FOUND, 0))
        or (met.is_of(t.OffsetCommitRequest) and met.codes(Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID))
        or (met.field == "group_state" and (met.kafka, met.ours) == ("Dead", "Empty"))
        or (met.field == "generation_id" and met.kafka == 1 < met.ours)
        or (
            met.is_of(t.ListGroupsRequest)
            and met.kafka is None
            and met.ours.get("group_state", "Empty") == "Empty"
        )
        or (
            met.is_of(t.LeaveGroupRequest, t.JoinGroupRequest)
            # A member that joins without a protocol is refused here for that.
            and met.codes(Code.UNKNOWN_MEMBER_ID, met.ours)
            and met.ours in (0, Code.INCONSISTENT_GROUP_PROTOCOL)
            and bool(met.request.member_id or getattr(met.request, "members", None))
        )
    ),
    "a static member in the place of one that is pending": lambda met: (
        met.is_of(t.JoinGroupRequest) and met.codes(-1, Code.UNKNOWN_MEMBER_ID)
    ),
    "bytes that do not unpack": lambda met: (
        met.codes(-1, Code.INVALID_RECORD, Code.UNSUPPORTED_COMPRESSION_TYPE, Code.CORRUPT_MESSAGE)
        and bool(met.breaks)
    ),
    "a batch that is cut short": lambda met: _strict(
        met, Code.INVALID_RECORD, Code.CORRUPT_MESSAGE, "no magic", "half a header", "a byte short"
    ),
    "a client's batch with append time": lambda met: (
        _strict(met, 0, Code.INVALID_TIMESTAMP, "append time")
        or _strict(met, Code.INVALID_TIMESTAMP, 0, "append time")
    ),
    "no append time of a duplicate on a CreateTime topic": lambda met: (
        met.field == "log_append_time_ms" and met.ours == -1
    ),
    "bytes after a client's batch": lambda met: _refused(met, "bytes behind it"),
    "a client's delete horizon": lambda met: _refused(met, "delete horizon"),
    "a producer id without an epoch": lambda met: _refused(met, "id without epoch"),
    "no transactions": lambda met: (
        (met.codes(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Code.INVALID_TXN_STATE) and bool(met.breaks))
        or (met.is_of(t.DescribeTransactionsRequest) and met.field == "transaction_start_time_ms")
        or (
            met.is_of(t.InitProducerIdRequest)
            and met.request.transactional_id is not None
            and met.field == "error_code"
            and met.ours == Code.INVALID_REQUEST
        )
        or (
            met.is_of(t.FindCoordinatorRequest)
            and met.request.key_type == 1
            and met.codes(0, Code.INVALID_REQUEST, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        )
    ),
    "an entity that can have no quotas": lambda met: (
        met.is_of(t.DescribeClientQuotasRequest, t.AlterClientQuotasRequest)
        and (met.codes(Code.UNSUPPORTED_VERSION, Code.INVALID_REQUEST) or met.codes(0, Code.INVALID_REQUEST))
    ),
    "a quota of 0": lambda met: (
        met.is_of(t.AlterClientQuotasRequest)
        and met.codes(Code.INVALID_REQUEST, 0)
        and any(each.value == 0 for entry in met.request.entries for each in entry.ops)
    ),
    "a credential that is deleted and set at once": lambda met: (
        met.is_of(t.AlterUserScramCredentialsRequest)
        and met.codes(Code.RESOURCE_NOT_FOUND, Code.DUPLICATE_RESOURCE)
    ),
    "a credential without a salt or a password": lambda met: (
        met.is_of(t.AlterUserScramCredentialsRequest)
        and (met.codes(0, Code.UNACCEPTABLE_CREDENTIAL) or met.codes(-1, Code.UNACCEPTABLE_CREDENTIAL))
    ),
    "a rule or a filter of an unknown kind": lambda met: (
        met.is_of(*_ABOUT_RULES)
        and (
            (not met.path and met.kafka == "closed")
            or (met.field == "error_code" and met.kafka == Code.UNKNOWN_SERVER_ERROR)
            or met.codes(0, Code.INVALID_REQUEST)
        )
    ),
    "no entries beside an error of the whole request": lambda met: (
        met.is_of(
            *(t.AlterPartitionReassignmentsRequest, t.ListPartitionReassignmentsRequest),
            t.DescribeUserScramCredentialsRequest,
        )
        and met.path.startswith(("responses", "topics", "results"))
        and met.ours in (None, [])
    ),
    "no protocol beside a denial": lambda met: (
        met.is_of(t.JoinGroupRequest) and met.field == "protocol_name" and (met.kafka, met.ours) == (None, "")
    ),
    "an empty name of a topic": lambda met: (
        met.is_of(t.CreatePartitionsRequest, t.MetadataRequest, t.CreateTopicsRequest)
        and met.codes(
            Code.TOPIC_AUTHORIZATION_FAILED, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_TOPIC_EXCEPTION
        )
    ),
    "the permission to delete a topic": lambda met: (
        met.is_of(t.DeleteTopicsRequest)
        and (
            met.codes(0, Code.TOPIC_AUTHORIZATION_FAILED)
            or met.codes(Code.UNKNOWN_TOPIC_OR_PARTITION, Code.TOPIC_AUTHORIZATION_FAILED)
            or met.codes(Code.TOPIC_AUTHORIZATION_FAILED, 0)
        )
    ),
    "offsets of a denied group in OffsetFetch 1": lambda met: (
        met.is_of(t.OffsetFetchRequest) and met.version == 1 and met.kafka is None
    ),
    "the time of a token that is refused": lambda met: (
        met.is_of(t.RenewDelegationTokenRequest, t.ExpireDelegationTokenRequest)
        and met.field == "expiry_timestamp_ms"
        and (met.kafka, met.ours) == (0, -1)
    ),
    "an owner of a token that is no user": lambda met: (
        met.is_of(t.CreateDelegationTokenRequest) and met.codes(0, Code.INVALID_PRINCIPAL_TYPE)
    ),
    "a transactional id beside a plain batch": lambda met: (
        met.is_of(t.ProduceRequest)
        and met.request.transactional_id is not None
        and met.field == "error_code"
        and met.ours == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    ),
    "another request in the middle of a login": lambda met: (
        not met.path and met.ours == "closed" and isinstance(met.kafka, dict)
    ),
    "an entry that asks for nothing": lambda met: (
        (
            met.is_of(t.FetchRequest, t.WriteTxnMarkersRequest)
            and met.kafka is None
            and _has_no_partitions(met.ours)
        )
        or (met.is_of(t.OffsetFetchRequest) and met.kafka == "parked" and not met.request.groups)
    ),
    "a partition that a fetch session names": lambda met: (
        met.is_of(t.FetchRequest)
        and met.request.session_epoch > 0
        and bool(met.request.topics)
        and met.path.startswith("responses")
        and met.kafka is None
    ),
    "a time among deleted records": lambda met: (
        met.is_of(t.ListOffsetsRequest)
        and met.field in ("offset", "timestamp", "leader_epoch")
        and met.kafka == -1
        and met.ours != -1
        and any(each.timestamp >= 0 for topic in met.request.topics for each in topic.partitions)
    ),
}


def known_difference(request: Struct, version: int, path: str, kafka: Any, ours: Any) -> str:
    """Return the name of the documented difference that this one is, or nothing."""
    met = Met(request, version, path, kafka, ours)
    return next((name for name, is_it in KNOWN.items() if is_it(met)), "")

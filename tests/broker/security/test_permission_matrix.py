"""Every API × every permission that it needs, missing or denied, × the ways to write a rule.

Without one permission, and with all others, a request gets Kafka's error, and the handler does not see what
is refused. With just these permissions it sees everything, so a need without a row here is noticed. The
errors are those of Kafka's KafkaApis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest

from logstore.broker.dispatch import Call
from logstore.broker.security.acls import CLUSTER_NAME, Acl, Operation, Pattern, Permission, Resource, Rules
from logstore.broker.security.audit import Audit
from logstore.broker.security.authorizer import Authorizer
from logstore.broker.security.door import Door
from logstore.broker.security.login import SaslDoor
from logstore.broker.wire.apis import APIS
from logstore.broker.wire.codec import decode
from logstore.broker.wire.declarations import Struct, parse_versions
from logstore.broker.wire.headers import decode_response_header
from logstore.disk.ids import id_to_text
from logstore.replication.metadata_cache import MetadataCache
from tests.broker.security.test_limiter import Line
from tests.broker.security.test_permissions import asked, codes, made

O, R = Operation, Resource  # noqa: E741  # as they stand in the table
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, TOKEN = 29, 30, 31, 53, 65
OURS, THEIRS = "ours", "theirs"
IDS: Final = {OURS: bytes(15) + b"\1", THEIRS: bytes(15) + b"\2"}
Right = tuple[Operation, Resource, str]


class Need(NamedTuple):
    """Any one of these rights is enough; without all of them the answer has the error, if it has a place."""

    error: int
    rights: tuple[Right, ...]
    is_whole: bool = False
    """Whether the handler is not called at all."""


class Asked(NamedTuple):
    api: str
    values: dict[str, Any]
    needs: tuple[Need, ...]
    versions: str = "0+"
    answer: Mapping[str, Any] = MappingProxyType({})
    """What the handler answers. A need without an error hides what it may not tell."""


def on_theirs(operation: Operation, resource: Resource = R.TOPIC, error: int = TOPIC) -> Need:
    return Need(error, ((operation, resource, THEIRS),))


def whole(operation: Operation, resource: Resource, error: int) -> Need:
    return Need(error, ((operation, resource, THEIRS),), is_whole=True)


def cluster(operation: Operation, error: int = CLUSTER) -> Need:
    return Need(error, ((operation, R.CLUSTER, CLUSTER_NAME),), is_whole=True)


def both(field: str, more: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return [{field: name, **(more or {})} for name in (OURS, THEIRS)]


ONE: dict[str, Any] = {"partitions": [{}]}
IDS_ALONE = [{"topic_id": each} for each in IDS.values()]
BY_ID = [{"topic_id": IDS[each], "partitions": [{"partition": 0}]} for each in (OURS, THEIRS)]
BY_TAG = [{"topic_name": each, "topic_id": IDS[OURS], "partitions": [{"partition": 0}]} for each in IDS]
BY_BOTH = [{"name": OURS, "topic_id": each} for each in IDS.values()]
RULE = {
    "resource_type": 2,
    "resource_name": "t",
    "principal": "User:x",
    "host": "*",
    "operation": 2,
    "permission_type": 3,
}
RULES: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
QUOTA = {"entity": [{"entity_type": "user", "entity_name": "x"}], "ops": []}
BROKER = [{"resource_type": 4, "resource_name": "1"}]
TOPICS = [{"resource_type": 2, "resource_name": each} for each in (OURS, THEIRS)]
CREATES = ((O.CREATE, R.CLUSTER, CLUSTER_NAME), (O.CREATE, R.TOPIC, THEIRS))
DATA = {"partition_data": [{"index": 0, "records": b"x"}]}
FOLLOWING = cluster(O.CLUSTER_ACTION, error=TOPIC)
TOKENS = {
    OURS: {"principal_type": "User", "principal_name": "bob"},
    THEIRS: {"principal_type": "User", "principal_name": "eve"},
}
READ_GROUP = whole(O.READ, R.GROUP, GROUP)
DESCRIBE = on_theirs(O.DESCRIBE)

MATRIX: tuple[Asked, ...] = (
    Asked("Produce", {"acks": 1, "topic_data": both("name", DATA)}, (on_theirs(O.WRITE),)),
    Asked(
        "Produce",
        {"acks": -1, "transactional_id": "x", "topic_data": both("name", DATA)},
        (
            Need(TRANSACTIONAL_ID, ((O.WRITE, R.TRANSACTIONAL_ID, "x"),), is_whole=True),
            on_theirs(O.WRITE),
        ),
    ),
    Asked("Fetch", {"replica_id": -1, "topics": both("topic", ONE)}, (on_theirs(O.READ),), "4-12"),
    Asked("Fetch", {"replica_id": -1, "topics": BY_ID}, (on_theirs(O.READ),), "13+"),
    Asked("Fetch", {"replica_id": -1, "topics": BY_TAG}, (on_theirs(O.READ),), "13+"),
    Asked("Fetch", {"replica_id": 2, "topics": both("topic", ONE)}, (FOLLOWING,), "4-12"),
    Asked("Fetch", {"replica_id": 2, "topics": BY_ID}, (FOLLOWING,), "13-14"),
    Asked("Fetch", {"replica_state": {"replica_id": 2}, "topics": BY_ID}, (FOLLOWING,), "15+"),
    Asked("ListOffsets", {"topics": both("name", ONE)}, (DESCRIBE,)),
    Asked("Metadata", {"topics": both("name"), "allow_auto_topic_creation": False}, (DESCRIBE,), "4+"),
    Asked("Metadata", {"topics": [{"name": None, **each} for each in IDS_ALONE]}, (DESCRIBE,), "10+"),
    Asked("Metadata", {"topics": BY_BOTH, "allow_auto_topic_creation": False}, (DESCRIBE,), "10+"),
    Asked(
        "Metadata",
        {"topics": [{"name": "new"}], "allow_auto_topic_creation": True},
        (
            Need(TOPIC, ((O.DESCRIBE, R.TOPIC, "new"),)),
            Need(TOPIC, ((O.CREATE, R.CLUSTER, CLUSTER_NAME), (O.CREATE, R.TOPIC, "new"))),
        ),
    ),
    Asked("Metadata", {"topics": None}, (DESCRIBE._replace(error=0),), "1+", {"topics": both("name")}),
    *(
        Asked(each, {}, (cluster(O.CLUSTER_ACTION),))
        for each in ("LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition")
    ),
    Asked(
        "OffsetCommit",
        {"group_id": "g", "topics": both("name", ONE)},
        (Need(GROUP, ((O.READ, R.GROUP, "g"),), is_whole=True), on_theirs(O.READ)),
    ),
    Asked(
        "OffsetFetch",
        {"group_id": "g", "topics": both("name", {"partition_indexes": [0]})},
        (Need(GROUP, ((O.DESCRIBE, R.GROUP, "g"),), is_whole=True), DESCRIBE),
        "1-7",
    ),
    Asked(
        "OffsetFetch",
        {"groups": [{"group_id": "g", "topics": both("name", {"partition_indexes": [0]})}]},
        (Need(GROUP, ((O.DESCRIBE, R.GROUP, "g"),), is_whole=True), DESCRIBE),
        "8+",
        {"groups": [{"group_id": "g"}]},
    ),
    Asked(
        "OffsetFetch",
        {"groups": [{"group_id": each, "topics": []} for each in (OURS, THEIRS)]},
        (on_theirs(O.DESCRIBE, R.GROUP, GROUP),),
        "8+",
        {"groups": [{"group_id": OURS}]},
    ),
    Asked("FindCoordinator", {"key": THEIRS}, (whole(O.DESCRIBE, R.GROUP, GROUP),), "0-3"),
    Asked(
        "FindCoordinator",
        {"coordinator_keys": [OURS, THEIRS], "key_type": 1},
        (on_theirs(O.DESCRIBE, R.TRANSACTIONAL_ID, TRANSACTIONAL_ID),),
        "4+",
    ),
    Asked(
        "FindCoordinator",
        {"coordinator_keys": [OURS, THEIRS]},
        (on_theirs(O.DESCRIBE, R.GROUP, GROUP),),
        "4+",
    ),
    Asked(
        "FindCoordinator",
        {"key": THEIRS, "key_type": 1},
        (whole(O.DESCRIBE, R.TRANSACTIONAL_ID, TRANSACTIONAL_ID),),
        "1-3",
    ),
    Asked("JoinGroup", {"group_id": THEIRS}, (READ_GROUP,)),
    Asked("Heartbeat", {"group_id": THEIRS}, (READ_GROUP,)),
    Asked("LeaveGroup", {"group_id": THEIRS}, (READ_GROUP,)),
    Asked("SyncGroup", {"group_id": THEIRS}, (READ_GROUP,)),
    Asked("ConsumerGroupHeartbeat", {"group_id": THEIRS}, (READ_GROUP,)),
    Asked("DescribeGroups", {"groups": [OURS, THEIRS]}, (on_theirs(O.DESCRIBE, R.GROUP, GROUP),)),
    Asked(
        "ListGroups",
        {},
        (Need(0, ((O.DESCRIBE, R.CLUSTER, CLUSTER_NAME), (O.DESCRIBE, R.GROUP, THEIRS))),),
        answer={"groups": both("group_id")},
    ),
    Asked("DeleteGroups", {"groups_names": [OURS, THEIRS]}, (on_theirs(O.DELETE, R.GROUP, GROUP),)),
    Asked("CreateTopics", {"topics": both("name")}, (Need(TOPIC, CREATES),)),
    Asked("DeleteTopics", {"topic_names": [OURS, THEIRS]}, (on_theirs(O.DELETE),), "1-5"),
    Asked("DeleteTopics", {"topics": both("name")}, (on_theirs(O.DELETE),), "6+"),
    Asked(
        "DeleteTopics",
        {"topics": [{"name": None, **each} for each in IDS_ALONE]},
        (on_theirs(O.DELETE), DESCRIBE),
        "6+",
    ),
    Asked("DeleteRecords", {"topics": both("name", ONE)}, (on_theirs(O.DELETE),)),
    Asked(
        "InitProducerId",
        {"transactional_id": None},
        (
            Need(
                CLUSTER,
                ((O.IDEMPOTENT_WRITE, R.CLUSTER, CLUSTER_NAME), (O.WRITE, R.TOPIC, "*")),
                is_whole=True,
            ),
        ),
    ),
    Asked(
        "InitProducerId",
        {"transactional_id": THEIRS},
        (whole(O.WRITE, R.TRANSACTIONAL_ID, TRANSACTIONAL_ID),),
    ),
    Asked(
        "OffsetForLeaderEpoch",
        {"topics": both("topic", ONE)},
        (Need(TOPIC, ((O.CLUSTER_ACTION, R.CLUSTER, CLUSTER_NAME), (O.DESCRIBE, R.TOPIC, THEIRS))),),
    ),
    Asked("DescribeProducers", {"topics": both("name", {"partition_indexes": [0]})}, (on_theirs(O.READ),)),
    Asked(
        "WriteTxnMarkers",
        {"markers": [{"topics": both("name", {"partition_indexes": [0]})}]},
        (
            Need(
                CLUSTER,
                ((O.ALTER, R.CLUSTER, CLUSTER_NAME), (O.CLUSTER_ACTION, R.CLUSTER, CLUSTER_NAME)),
                is_whole=True,
            ),
        ),
    ),
    Asked(
        "DescribeTransactions",
        {"transactional_ids": [OURS, THEIRS]},
        (Need(TRANSACTIONAL_ID, ((O.DESCRIBE, R.TRANSACTIONAL_ID, THEIRS),)),),
    ),
    Asked("DescribeAcls", RULES, (cluster(O.DESCRIBE),)),
    Asked("CreateAcls", {"creations": [RULE, RULE]}, (cluster(O.ALTER),)),
    Asked("DeleteAcls", {"filters": [RULES]}, (cluster(O.ALTER),)),
    *(
        Asked(name, {"resources": resources}, (need,))
        for name, operation in (
            ("DescribeConfigs", O.DESCRIBE_CONFIGS),
            ("AlterConfigs", O.ALTER_CONFIGS),
            ("IncrementalAlterConfigs", O.ALTER_CONFIGS),
        )
        for resources, need in ((TOPICS, on_theirs(operation)), (BROKER, cluster(operation)))
    ),
    Asked(
        "AlterReplicaLogDirs",
        {"dirs": [{"path": "data", "topics": both("name", {"partitions": [0]})}]},
        (cluster(O.ALTER),),
    ),
    Asked("DescribeLogDirs", {"topics": None}, (cluster(O.DESCRIBE, error=0),), "1-2"),
    Asked("DescribeLogDirs", {"topics": None}, (cluster(O.DESCRIBE),), "3+"),
    Asked("CreatePartitions", {"topics": both("name", {"count": 9})}, (on_theirs(O.ALTER),)),
    Asked("ElectLeaders", {"topic_partitions": [{"topic": OURS, "partitions": [0]}]}, (cluster(O.ALTER),)),
    Asked("ElectLeaders", {"topic_partitions": None}, (cluster(O.ALTER, error=0),), "0"),
    Asked("ElectLeaders", {"topic_partitions": None}, (cluster(O.ALTER),), "1+"),
    Asked("AlterPartitionReassignments", {}, (cluster(O.ALTER),)),
    Asked("ListPartitionReassignments", {"topics": None}, (cluster(O.DESCRIBE),)),
    Asked(
        "OffsetDelete",
        {"group_id": "g", "topics": both("name", ONE)},
        (Need(GROUP, ((O.DELETE, R.GROUP, "g"),), is_whole=True), on_theirs(O.READ)),
    ),
    Asked(
        "CreateDelegationToken",
        {"owner_principal_type": "User", "owner_principal_name": THEIRS},
        (Need(TOKEN, ((O.CREATE_TOKENS, R.USER, f"User:{THEIRS}"),), is_whole=True),),
        "3",
    ),
    Asked("CreateDelegationToken", {}, (), "1-2"),
    Asked(
        "DescribeDelegationToken",
        {"owners": None},
        (Need(0, ((O.DESCRIBE_TOKENS, R.USER, "User:eve"), (O.DESCRIBE, R.DELEGATION_TOKEN, THEIRS))),),
        answer={"tokens": [{"token_id": each, **owner} for each, owner in TOKENS.items()]},
    ),
    Asked("DescribeClientQuotas", {"components": []}, (cluster(O.DESCRIBE_CONFIGS),)),
    Asked("AlterClientQuotas", {"entries": [QUOTA]}, (cluster(O.ALTER_CONFIGS),)),
    Asked("DescribeUserScramCredentials", {"users": None}, (cluster(O.DESCRIBE),)),
    Asked("AlterUserScramCredentials", {"deletions": [{"name": "x", "mechanism": 1}]}, (cluster(O.ALTER),)),
)
NEEDS_NOTHING = {
    "ApiVersions",
    "SaslHandshake",
    "SaslAuthenticate",
    "DescribeCluster",
    "ListTransactions",
    "RenewDelegationToken",
    "ExpireDelegationToken",
}
"""DescribeCluster tells everyone the brokers, and only its bit field depends on rights. Tokens are changed by
their owners and renewers. ListTransactions has none to list."""
SHAPES: Final = [
    (api, row, version)
    for row in MATRIX
    for api in APIS.values()
    if api.name == row.api
    for version in api.served
    if version in parse_versions(row.versions)
]
CASES: Final = [
    pytest.param(*each, id=f"{each[1].api} {each[2]} {number}") for number, each in enumerate(SHAPES)
]


def metadata() -> MetadataCache:
    found = MetadataCache()
    for name, topic_id in IDS.items():
        found.topic_ids[name] = id_to_text(topic_id)
        found.topic_names[id_to_text(topic_id)] = name
    return found


class Gate:
    """An authorizer without a store, and a handler that keeps what it gets."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self.authorizer = Authorizer(Rules(acls), None, metadata(), Audit(), int)  # type: ignore[arg-type]
        self.handled: Struct | None = None

    def serve(self, row: Asked, api: Any, version: int) -> Any:
        line = Line("User:bob", Door("CLIENTS", is_for_brokers=False, sasl=SaslDoor({})))
        call, body = Call(line, api, version, 1, "test"), asked(row.api, **row.values)
        if self.authorizer.admits(call, body):
            self.handled = body
            call.answer(made(api.response, **row.answer))
        ((data, _),) = line.sent
        frame = memoryview(data)[4:]
        _, used = decode_response_header(frame, api, version)
        return decode(api.response, version, frame[used:])[0]


def texts(message: Any) -> set[Any]:
    """Every name and id in a message."""
    if isinstance(message, list):
        return set().union(*map(texts, message))
    if isinstance(message, Struct):
        return set().union(*(texts(getattr(message, name)) for name in message.FIELDS))
    return {message} if isinstance(message, str | bytes) else set()


def allow(right: Right, pattern: Pattern, name: str | None = None) -> Acl:
    operation, resource, of = right
    return Acl(resource, pattern, name or of, "User:bob", "*", operation, Permission.ALLOW)


def everything() -> Iterator[Acl]:
    """All operations on every resource, by wildcard."""
    for resource in Resource:
        yield allow((O.ALL, resource, "*"), Pattern.LITERAL)


def others(row: Asked, need: Need, pattern: str) -> list[Acl]:
    """Rules for all other rights of the request, on both topics, written in that way."""
    rights = {right for each in row.needs if each is not need for right in each.rights}
    ours = {(operation, resource, OURS) for each in row.needs for operation, resource, _ in each.rights}
    ours = {(each, resource, name) for each, resource, name in ours if resource is not R.CLUSTER}
    if any(right[2] == "*" for right in need.rights):
        ours = set()
    if pattern == "prefixed":
        # A prefix that is nobody else's: `our…` for ours, the whole name for others.
        return [allow(each, Pattern.PREFIXED, each[2][:3]) for each in ours] + [
            allow(each, Pattern.PREFIXED) for each in rights
        ]
    if pattern == "wildcard":
        missing = {right[:2] for right in need.rights}
        wide = [allow(each, Pattern.LITERAL, "*") for each in rights if each[:2] not in missing]
        return wide + [allow(each, Pattern.LITERAL) for each in ours]
    return [allow(each, Pattern.LITERAL) for each in rights | ours]


def denials(need: Need, pattern: str) -> list[Acl]:
    """A rule of everything, and one against each right."""
    found = []
    for right in need.rights:
        kind, name = Pattern.LITERAL, right[2]
        if pattern == "wildcard":
            name = "*"
        elif pattern == "prefixed" and name != "*":
            kind = Pattern.PREFIXED
        found.append(allow(right, kind, name)._replace(permission=Permission.DENY))
    return [*everything(), *found]


def test_every_api_is_in_the_matrix() -> None:
    assert {row.api for row in MATRIX} | NEEDS_NOTHING == {api.name for api in APIS.values()}
    covered = {(row.api, version) for _, row, version in SHAPES}
    served = {(api.name, version) for api in APIS.values() for version in api.served}
    assert {each for each in served - covered if each[0] not in NEEDS_NOTHING} == set()


@pytest.mark.parametrize(("api", "row", "version"), CASES)
def test_one_permission_missing(api: Any, row: Asked, version: int) -> None:
    async def test() -> None:
        for need in row.needs:
            for pattern in ("literal", "prefixed", "wildcard"):
                check(api, row, version, need, others(row, need, pattern))
                check(api, row, version, need, denials(need, pattern))

    asyncio.run(test())


def check(api: Any, row: Asked, version: int, need: Need, acls: list[Acl]) -> None:
    rules = Rules(acls)
    if any(right[2] != "*" and rules.allows("User:bob", "127.0.0.1", *right) for right in need.rights):
        assert need is DESCRIBE, f"{row.api} {version}: not missing"
        return  # Delete implies it: it can only be denied
    gate = Gate(acls)
    answer = gate.serve(row, api, version)
    told = (row.api, version, need, acls, answer)
    expected = {need.error} if need.error else set()
    assert codes(answer) - {0} == expected, told
    if need.is_whole:
        assert gate.handled is None, told
        return
    refused = {right[2] for right in need.rights if right[1] is not R.CLUSTER}
    secret = refused | {IDS[each] for each in refused if each in IDS}
    if need.error:
        assert gate.handled is None or not texts(gate.handled) & secret, told
        assert texts(answer) & secret, told
    else:
        assert not texts(answer) & secret, told


@pytest.mark.parametrize(("api", "row", "version"), CASES)
def test_the_rights_of_the_matrix_are_enough_and_all_that_is_asked(
    api: Any, row: Asked, version: int
) -> None:
    """Any one right of each need, and no more: the handler sees the whole request."""

    async def test() -> None:
        mine = {
            (operation, resource, OURS if name == THEIRS else name)
            for need in row.needs
            for operation, resource, name in need.rights
        }
        for chosen in product(*(need.rights for need in row.needs)):
            gate = Gate([allow(each, Pattern.LITERAL) for each in {*chosen, *mine}])
            answer = gate.serve(row, api, version)
            assert codes(answer) - {0} == set(), (row.api, version, chosen, answer)
            assert gate.handled is not None
            wanted = texts(asked(row.api, **row.values)) - {""}
            assert texts(gate.handled) >= wanted - {bytes(16)}, (row.api, version)

    asyncio.run(test())


@pytest.mark.parametrize("version", [5, 7])
def test_settings_of_a_new_topic_need_describe_configs(version: int) -> None:
    """The topic is created, and its settings are not told."""

    async def test() -> None:
        new = {"configs": [{"name": "x"}], "num_partitions": 7, "replication_factor": 1}
        row = Asked("CreateTopics", {"topics": both("name")}, (), answer={"topics": both("name", new)})
        api = next(each for each in APIS.values() if each.name == row.api)
        create = allow((O.CREATE, R.CLUSTER, CLUSTER_NAME), Pattern.LITERAL)
        gate = Gate([create, allow((O.DESCRIBE_CONFIGS, R.TOPIC, OURS), Pattern.LITERAL)])
        told = {each.name: each for each in gate.serve(row, api, version).topics}
        assert gate.handled is not None
        assert {each.error_code for each in told.values()} == {0}
        assert [told[OURS].topic_config_error_code, told[OURS].num_partitions] == [0, 7]
        hidden = told[THEIRS]
        assert [hidden.topic_config_error_code, hidden.num_partitions, hidden.configs] == [TOPIC, -1, []]

    asyncio.run(test())

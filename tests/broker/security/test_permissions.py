"""Who may do what, over the wire: every API without permission, single permissions, and changes of rules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from logstore.broker import Client
from logstore.broker.errors import RequestRefused
from logstore.broker.handlers import HANDLERS
from logstore.broker.security.acls import Acl, Operation, Pattern, Permission, Resource
from logstore.broker.security.permissions import PERMISSIONS
from logstore.broker.translation import id_to_wire
from logstore.broker.wire import interbroker as w
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import APIS
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode
from logstore.errors import InvalidConfig
from tests.broker.asking import Asker
from tests.broker.security.authority import broker, stores, trusting
from tests.broker.security.test_login import Bench, by

O, R = Operation, Resource  # noqa: E741
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, NO_TOKEN, TOKEN = 29, 30, 31, 53, 62, 65
ACLS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS;User:ann",
    "delegation.token.secret.key": "a secret of all brokers",
    "offsets.topic.replication.factor": "1",
}


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


class Town(Bench):
    """A broker with rules: ann may do everything, bob what the rules say. The topic `orders` exists."""

    def __init__(self, *rules: Acl, **settings: str) -> None:
        super().__init__(**ACLS, **settings)
        self._rules = rules

    async def __aenter__(self) -> Town:
        await super().__aenter__()
        await self.broker.create_topic("orders", 1)
        await self.broker.append("orders", b"a")
        authorizer = self.broker._running.services.authorizer
        assert authorizer is not None
        self.authorizer = authorizer
        await authorizer.change(add=self._rules)
        return self

    async def bob(self, asker: Asker) -> Asker:
        await asker.ask(t.SaslHandshakeRequest(mechanism="PLAIN"), 1)
        answer = await asker.ask(t.SaslAuthenticateRequest(auth_bytes=b"\0bob\0bob-secret"), 2)
        assert not answer.error_code
        return asker

    async def asks(self, request: Struct, version: int | None = None) -> Any:
        """What bob gets."""
        latest = next(api.latest for api in APIS.values() if api.request is type(request))
        async with self.asker() as asker:
            await self.bob(asker)
            return await asker.ask(request, latest if version is None else version)


def rule(
    operation: Operation,
    resource: Resource = R.TOPIC,
    name: str = "orders",
    permission: Permission = Permission.ALLOW,
    pattern: Pattern = Pattern.LITERAL,
) -> Acl:
    return Acl(resource, pattern, name, "User:bob", "*", operation, permission)


def test_every_api_is_in_the_table() -> None:
    assert PERMISSIONS.keys() == HANDLERS.keys()


def made(kind: Any, **values: Any) -> Any:
    """A message, whose lists of structs are given as dicts."""
    built = {}
    for name, value in values.items():
        element = kind.FIELDS[name].element
        if isinstance(value, list) and not isinstance(element, str):
            value = [made(element, **each) for each in value]
        elif isinstance(value, dict):
            value = made(element, **value)
        built[name] = value
    return kind(**built)


def asked(name: str, **values: Any) -> Any:
    return made(next(api.request for api in APIS.values() if api.name == name), **values)


EVERY_RULE: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
NEW_RULE: dict[str, Any] = {
    "resource_type": 2,
    "resource_name": "orders",
    "resource_pattern_type": 3,
    "principal": "User:bob",
    "host": "*",
    "operation": 2,
    "permission_type": 3,
}
ORDERS: dict[str, Any] = {"resource_type": 2, "resource_name": "orders"}
REQUESTS: dict[str, tuple[dict[str, Any], int]] = {
    "Produce": (
        {"acks": 1, "topic_data": [{"name": "orders", "partition_data": [{"index": 0, "records": b"x"}]}]},
        TOPIC,
    ),
    "Fetch": ({"replica_id": -1, "topics": [{"topic": "orders", "partitions": [{"partition": 0}]}]}, TOPIC),
    "ListOffsets": ({"topics": [{"name": "orders", "partitions": [{"timestamp": -1}]}]}, TOPIC),
    "Metadata": ({"topics": [{"name": "orders"}]}, TOPIC),
    "OffsetCommit": ({"group_id": "g", "topics": [{"name": "orders", "partitions": [{}]}]}, GROUP),
    "OffsetFetch": ({"groups": [{"group_id": "g"}]}, GROUP),
    "FindCoordinator": ({"coordinator_keys": ["g"]}, GROUP),
    "JoinGroup": ({"group_id": "g", "session_timeout_ms": 10_000}, GROUP),
    "Heartbeat": ({"group_id": "g"}, GROUP),
    "LeaveGroup": ({"group_id": "g"}, GROUP),
    "SyncGroup": ({"group_id": "g"}, GROUP),
    "DescribeGroups": ({"groups": ["g"]}, GROUP),
    "ConsumerGroupHeartbeat": ({"group_id": "g"}, GROUP),
    "CreateTopics": ({"topics": [{"name": "new", "num_partitions": 1}]}, TOPIC),
    "DeleteTopics": ({"topics": [{"name": "orders"}]}, TOPIC),
    "DeleteRecords": ({"topics": [{"name": "orders", "partitions": [{"offset": 1}]}]}, TOPIC),
    "InitProducerId": ({"transactional_id": None}, CLUSTER),
    "OffsetForLeaderEpoch": ({"topics": [{"topic": "orders", "partitions": [{"partition": 0}]}]}, TOPIC),
    "DescribeProducers": ({"topics": [{"name": "orders", "partition_indexes": [0]}]}, TOPIC),
    "WriteTxnMarkers": (
        {"markers": [{"producer_id": 7, "topics": [{"name": "orders", "partition_indexes": [0, 1]}]}]},
        CLUSTER,
    ),
    "DescribeTransactions": ({"transactional_ids": ["x"]}, TRANSACTIONAL_ID),
    "DescribeAcls": ({"pattern_type_filter": 1, **EVERY_RULE}, CLUSTER),
    "CreateAcls": ({"creations": [NEW_RULE]}, CLUSTER),
    "DeleteAcls": ({"filters": [{"pattern_type_filter": 1, **EVERY_RULE}]}, CLUSTER),
    "DescribeConfigs": ({"resources": [{"resource_type": 4, "resource_name": "1"}]}, CLUSTER),
    "AlterConfigs": ({"resources": [ORDERS]}, TOPIC),
    "IncrementalAlterConfigs": ({"resources": [ORDERS]}, TOPIC),
    "AlterReplicaLogDirs": (
        {"dirs": [{"path": "data", "topics": [{"name": "orders", "partitions": [0]}]}]},
        CLUSTER,
    ),
    "DescribeLogDirs": ({"topics": None}, CLUSTER),
    "CreatePartitions": ({"topics": [{"name": "orders", "count": 9}]}, TOPIC),
    "DeleteGroups": ({"groups_names": ["g"]}, GROUP),
    "ElectLeaders": ({"topic_partitions": None}, CLUSTER),
    "AlterPartitionReassignments": ({}, CLUSTER),
    "ListPartitionReassignments": ({"topics": None}, CLUSTER),
    "OffsetDelete": ({"group_id": "g"}, GROUP),
    "CreateDelegationToken": ({"owner_principal_type": "User", "owner_principal_name": "eve"}, TOKEN),
    "RenewDelegationToken": ({"hmac": b"x"}, NO_TOKEN),
    "ExpireDelegationToken": ({"hmac": b"x"}, NO_TOKEN),
    "DescribeClientQuotas": ({"components": []}, CLUSTER),
    "AlterClientQuotas": (
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "bob"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
                }
            ]
        },
        CLUSTER,
    ),
    "DescribeUserScramCredentials": ({"users": None}, CLUSTER),
    "AlterUserScramCredentials": ({"deletions": [{"name": "ann", "mechanism": 1}]}, CLUSTER),
}
"""A request of each API that needs a permission, and the error for those who lack it."""
OLD_OFFSETS = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}
OTHER_SHAPES: dict[tuple[str, int], dict[str, Any]] = {
    **{("OffsetFetch", version): OLD_OFFSETS for version in range(1, 8)},
    **{("FindCoordinator", version): {"key": "g"} for version in range(4)},
    **{("DeleteTopics", version): {"topic_names": ["orders"]} for version in range(1, 6)},
    # Before version 3 everyone makes tokens of their own only.
    **{
        ("CreateDelegationToken", version): {"renewers": [{"principal_type": "Group", "principal_name": "x"}]}
        for version in (1, 2)
    },
}
"""Of older versions."""
OTHER_CODES = {("CreateDelegationToken", 1): 67, ("CreateDelegationToken", 2): 67}
NO_PLACE = {("ElectLeaders", 0), ("DescribeLogDirs", 1), ("DescribeLogDirs", 2)}
"""Versions without a field for the error: the answer is empty."""
WITHOUT_ERROR = {
    "ListGroups",
    "ListTransactions",
    "DescribeCluster",
    "DescribeDelegationToken",
    "ApiVersions",
    "SaslHandshake",
    "SaslAuthenticate",
}
AMONG_BROKERS = {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition"}


def codes(answer: Any) -> set[int]:
    """Every error in an answer."""
    found = set()
    for name in type(answer).FIELDS:
        value = getattr(answer, name)
        if name == "error_code":
            found.add(value)
        for each in value if isinstance(value, list) else ():
            if isinstance(each, Struct):
                found |= codes(each)
    return found


def texts(answer: Any) -> list[str | None]:
    """Return the text beside each error in an answer."""
    found = []
    if getattr(answer, "error_code", 0) and hasattr(answer, "error_message"):
        found.append(answer.error_message)
    for name in type(answer).FIELDS:
        value = getattr(answer, name)
        for each in value if isinstance(value, list) else ():
            found += texts(each) if isinstance(each, Struct) else []
    return found


def test_a_denial_says_so() -> None:
    async def test() -> None:
        async with Town() as town, town.asker() as asker:
            await town.bob(asker)
            for name, (values, _) in REQUESTS.items():
                if "Token" in name or name == "ConsumerGroupHeartbeat":
                    continue
                api = next(each for each in APIS.values() if each.name == name)
                answer = await asker.ask(asked(name, **values), api.served[-1])
                assert None not in texts(answer), name
            new = t.CreateTopicsRequestCreatableTopic(name="new", num_partitions=3, replication_factor=1)
            refused = (await asker.ask(t.CreateTopicsRequest(topics=[new]), 7)).topics[0]
            assert (refused.error_code, refused.num_partitions, refused.replication_factor) == (TOPIC, -1, -1)

    run(test)


def test_the_requests_are_of_all_apis() -> None:
    assert REQUESTS.keys() | WITHOUT_ERROR | AMONG_BROKERS == {api.name for api in APIS.values()}


def test_who_may_do_nothing_gets_nothing() -> None:
    """Kafka's error, in every version, and nothing is done."""

    async def test() -> None:
        async with Town() as town, town.asker() as asker:
            await town.bob(asker)
            assert (await asker.ask(t.DescribeDelegationTokenRequest(owners=None), 3)).tokens == []
            topic_id = id_to_wire(town.broker._running.services.metadata.topic_ids["orders"])
            for name, (values, code) in REQUESTS.items():
                api = next(each for each in APIS.values() if each.name == name)
                for version in api.served:
                    request = asked(name, **values)
                    if name == "Fetch":
                        request.topics[0].topic_id = topic_id
                    if (name, version) in OTHER_SHAPES:
                        request = asked(name, **OTHER_SHAPES[name, version])
                    answer = await asker.ask(request, version)
                    expected = set() if (name, version) in NO_PLACE else {code}
                    if (name, version) in OTHER_CODES:
                        expected = {OTHER_CODES[name, version]}
                    assert codes(answer) - {0} == expected, (name, version, answer)
            assert (await asker.ask(t.ListGroupsRequest(), 4)).groups == []
            cluster = await asker.ask(t.DescribeClusterRequest(include_cluster_authorized_operations=True), 0)
            assert cluster.cluster_authorized_operations == 0
            everything = await asker.ask(t.MetadataRequest(topics=None), 12)
            assert (everything.topics, len(everything.brokers)) == ([], 1)
            metadata = await town.broker.metadata()
            assert {each.topic for each in metadata.partitions} - {"__consumer_offsets"} == {"orders"}
            assert not town.authorizer.rules.acls
            assert [each.value for each in await town.broker.read("orders", 0, 0)] == [b"a"]

    run(test)


def test_messages_of_brokers_need_cluster_action() -> None:
    async def test() -> None:
        one = {"listeners": "INTERNAL://127.0.0.1:0", "super.users": "User:ann"}
        running = broker({**ACLS, **one, "listener.security.protocol.map": "INTERNAL:PLAINTEXT"})
        allow = rule(O.CLUSTER_ACTION, R.CLUSTER, "kafka-cluster")._replace(principal="User:ANONYMOUS")
        async with running:
            (address,) = running.listeners.values()
            async with Asker(address) as asker:
                answer = await asker.ask(w.ControlledShutdownRequest(broker_id=9), 3)
                assert answer.error_code == CLUSTER
                follower = asked(
                    "Fetch",
                    replica_id=2,
                    topics=[{"topic": "orders", "partitions": [{"partition": 0}]}],
                )
                assert codes(await asker.ask(follower, 4)) - {0} == {TOPIC}
                authorizer = running._running.services.authorizer
                assert authorizer is not None
                await authorizer.change(add=[allow])
                assert (await asker.ask(w.ControlledShutdownRequest(broker_id=9), 3)).error_code != CLUSTER

    run(test)


def names(answer: t.MetadataResponse) -> dict[str | None, int]:
    return {each.name: each.error_code for each in answer.topics}


def test_existence_is_not_told() -> None:
    async def test() -> None:
        async with Town(rule(O.DESCRIBE, name="mine-", pattern=Pattern.PREFIXED)) as town:
            await town.broker.create_topic("mine-1", 1)
            wanted = [t.MetadataRequestTopic(name=each) for each in ("orders", "missing", "mine-1", "mine-2")]
            for version in (1, 9, 12):
                request = t.MetadataRequest(topics=wanted, allow_auto_topic_creation=version < 4)
                found = names(await town.asks(request, version))
                # Before version 4 every request may create, which bob may not.
                absent = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version >= 4 else TOPIC
                assert found == {"orders": TOPIC, "missing": TOPIC, "mine-1": 0, "mine-2": absent}
            assert names(await town.asks(t.MetadataRequest(topics=None))) == {"mine-1": 0}
            first = t.MetadataRequest(topics=[t.MetadataRequestTopic(name="orders")])
            assert names(await town.asks(first, 0)) == {"orders": TOPIC}

    run(test)


def test_a_mixed_request_is_served_in_part() -> None:
    async def test() -> None:
        async with Town(rule(O.READ), rule(O.READ, R.GROUP, "g"), rule(O.CREATE, name="new")) as town:
            offset = [{"committed_offset": 1}]
            commit = asked(
                "OffsetCommit",
                group_id="g",
                generation_id_or_member_epoch=-1,
                topics=[{"name": each, "partitions": offset} for each in ("orders", "secret")],
            )
            async with asyncio.timeout(20):
                while True:
                    answer = await town.asks(commit)
                    told = {each.name: each.partitions[0].error_code for each in answer.topics}
                    if told["orders"] not in (14, 15, 16):
                        break
                    await town.asks(t.FindCoordinatorRequest(coordinator_keys=["g"]))
            assert told == {"orders": 0, "secret": TOPIC}
            topics = [{"name": each, "partition_indexes": [0]} for each in ("orders", "secret")]
            groups: list[dict[str, Any]] = [{"group_id": "g", "topics": topics}, {"group_id": "h"}]
            answer = await town.asks(asked("OffsetFetch", groups=groups))
            mine, other = answer.groups
            assert (mine.error_code, other.group_id, other.error_code) == (0, "h", GROUP)
            assert {each.name: each.partitions[0].error_code for each in mine.topics} == told
            groups[0]["topics"] = None
            answer = await town.asks(asked("OffsetFetch", groups=groups[:1]))
            assert [each.name for each in answer.groups[0].topics] == ["orders"]
            new = {"num_partitions": 1, "replication_factor": 1}
            creations = [{"name": each, **new} for each in ("new", "other")]
            creation = asked("CreateTopics", topics=creations, timeout_ms=5_000)
            answer = await town.asks(creation)
            assert {each.name: each.error_code for each in answer.topics} == {"new": 0, "other": TOPIC}
            assert {each.group_id for each in (await town.asks(t.ListGroupsRequest())).groups} == {"g"}

    run(test)


def test_a_client_with_just_enough() -> None:
    async def test() -> None:
        rules = [rule(O.WRITE), rule(O.READ), rule(O.WRITE, name="orders", permission=Permission.DENY)]
        async with Town(*rules[:2]) as town, town.client(by("PLAIN", "bob"), timeout_s=5) as client:
            placed = await client.append("orders", b"b")
            assert [each.value for each in await client.read("orders", 0, placed.offset)] == [b"b"]
            with pytest.raises(RequestRefused):
                await client.create_topic("more")
            # A rule counts from the next request on, on open connections too.
            await town.authorizer.change(add=rules[2:])
            with pytest.raises(RequestRefused, match="TOPIC_AUTHORIZATION_FAILED"):
                await client.append("orders", b"c")
            await town.authorizer.change(remove=[rules[1]])
            with pytest.raises(RequestRefused, match="TOPIC_AUTHORIZATION_FAILED"):
                await client.read("orders", 0, placed.offset)

    run(test)


def test_produce_without_acks_is_cut() -> None:
    async def test() -> None:
        async with Town() as town, town.asker() as asker:
            await town.bob(asker)
            values, _ = REQUESTS["Produce"]
            asker.send(asked("Produce", **{**values, "acks": 0}), 9)
            assert await asker.is_cut_off()

    run(test)


def test_rules_by_requests() -> None:
    async def test() -> None:
        cluster = rule(O.ALL, R.CLUSTER, "kafka-cluster")
        async with Town(cluster) as town, town.asker() as asker:
            await town.bob(asker)
            good = {**NEW_RULE, "resource_pattern_type": 4, "resource_name": "app-", "principal": "User:x"}
            wanted = [
                good,
                {**good, "resource_name": ""},
                {**good, "resource_name": "a/b"},
                {**good, "principal": "x"},
                {**good, "resource_type": 4},
                {**good, "operation": 1},
                {**good, "resource_pattern_type": 2},
            ]
            answer = await asker.ask(asked("CreateAcls", creations=wanted), 3)
            assert [each.error_code for each in answer.results] == [0, 42, 42, 42, 42, 42, 42]
            of_app = {**EVERY_RULE, "pattern_type_filter": 2, "resource_name_filter": "app-1"}
            match = asked("DescribeAcls", **of_app)
            found = await asker.ask(match, 3)
            assert [(each.resource_name, each.pattern_type) for each in found.resources] == [("app-", 4)]
            wrong = asked("DescribeAcls", pattern_type_filter=9, **EVERY_RULE)
            assert (await asker.ask(wrong, 3)).error_code == 42
            of_x = {**EVERY_RULE, "pattern_type_filter": 1, "principal_filter": "User:x"}
            gone = await asker.ask(asked("DeleteAcls", filters=[of_x, of_x]), 3)
            assert [len(each.matching_acls) for each in gone.filter_results] == [1, 0]
            assert town.authorizer.rules.acls == {cluster}

    run(test)


def test_a_certificate_is_a_principal(tmp_path: Path) -> None:
    """Mutual TLS: the name in the certificate, shortened by a rule, is whom the rules name."""

    async def test() -> None:
        settings = {
            "listeners": "INTERNAL://127.0.0.1:0,CLIENTS://localhost:0",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:SSL",
            "inter.broker.listener.name": "INTERNAL",
            "ssl.client.auth": "requested",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/L",
        }
        async with broker({**ACLS, **settings, **stores(tmp_path)}) as running:
            await running.create_topic("orders", 1)
            authorizer = running._running.services.authorizer
            assert authorizer is not None
            await authorizer.change(add=[rule(O.WRITE), rule(O.READ)])
            mine = {"ssl.keystore.location": stores(tmp_path, "BOB")["ssl.keystore.location"]}
            address = running.listeners["CLIENTS"]
            async with Client([address], security=trusting(tmp_path, **mine), timeout_s=20) as client:
                placed = await client.append("orders", b"b")
                assert [each.value for each in await client.read("orders", 0, placed.offset)] == [b"b"]
            eve = {"ssl.keystore.location": stores(tmp_path, "eve")["ssl.keystore.location"]}
            async with Client([address], security=trusting(tmp_path, **eve), timeout_s=1) as client:
                with pytest.raises(RequestRefused):
                    await client.append("orders", b"e")

    run(test)


def test_other_brokers_follow_the_rules() -> None:
    """A change on one broker reaches the others by their watch."""

    async def test() -> None:
        async with Town() as town:
            settings = {**ACLS, "listeners": "INTERNAL://127.0.0.1:0"}
            settings["listener.security.protocol.map"] = "INTERNAL:PLAINTEXT"
            async with broker(settings, 2, metadata=town.store) as other:
                authorizer = other._running.services.authorizer
                assert authorizer is not None
                for _ in range(3):
                    await town.authorizer.change(add=[rule(O.READ)])
                    while rule(O.READ) not in authorizer.rules.acls:
                        await asyncio.sleep(0.001)
                    await town.authorizer.change(remove=[rule(O.READ)])
                    while authorizer.rules.acls:
                        await asyncio.sleep(0.001)

    run(test)


@pytest.mark.parametrize("operation", [O.ALTER, O.CLUSTER_ACTION])
def test_either_right_on_the_cluster_ends_transactions(operation: Operation) -> None:
    async def test() -> None:
        async with Town(rule(operation, R.CLUSTER, "kafka-cluster")) as town:
            topic = t.WriteTxnMarkersRequestWritableTxnMarkerTopic(name="orders", partition_indexes=[0])
            marker = t.WriteTxnMarkersRequestWritableTxnMarker(producer_id=7, topics=[topic])
            answer = await town.asks(t.WriteTxnMarkersRequest(markers=[marker]))
            assert codes(answer) == {0}

    run(test)


def test_denials_are_audited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "logstore.audit")

    async def test() -> None:
        async with Town() as town:
            forged = 'x"\n{"event": "denied"}'
            await town.asks(t.MetadataRequest(topics=[t.MetadataRequestTopic(name=forged)]))

    run(test)
    lines = [each.getMessage() for each in caplog.records if each.name == "logstore.audit"]
    assert lines
    assert all("\n" not in line for line in lines)
    assert '"principal": "User:bob"' in lines[-1]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"authorizer.class.name": "com.example.Mine"}, "supported are kafka.security"),
        ({"super.users": "User:ann"}, "no effect without authorizer.class.name"),
        ({**ACLS, "super.users": "ann"}, "expected User:name"),
        ({**ACLS, "allow.everyone.if.no.acl.found": "maybe"}, "expected true or false"),
    ],
)
def test_what_the_authorizer_refuses(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        broker({"listeners": "PLAINTEXT://127.0.0.1:0", **settings})


def test_a_program_may_use_its_own_broker() -> None:
    async def test() -> None:
        async with Town() as town:
            assert await town.broker.append("orders", b"b")
            async with Client([town.broker.address], timeout_s=20) as client:
                assert await client.append("orders", b"c")

    run(test)

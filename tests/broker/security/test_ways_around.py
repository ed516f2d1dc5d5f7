"""Ways around a permission, and what the checks say of requests that they let through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest

from logstore.broker.dispatch import Call
from logstore.broker.security.acls import CLUSTER_NAME, Acl, Operation, Pattern, Resource, Rules
from logstore.broker.security.audit import Audit
from logstore.broker.security.authorizer import Authorizer
from logstore.broker.security.quotas import Kind, Quotas
from logstore.broker.translation import id_to_wire
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import API_OF, APIS
from logstore.broker.wire.codec import encode
from logstore.broker.wire.declarations import Kind as WireKind
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode
from logstore.replication.metadata_cache import MetadataCache
from tests.broker.asking import Asker
from tests.broker.security.test_limiter import Line
from tests.broker.security.test_permission_matrix import IDS, OURS, THEIRS, allow, metadata
from tests.broker.security.test_permissions import Town, asked, rule, run
from tests.broker.wire.samples import Generator

O, R = Operation, Resource  # noqa: E741
READ = Operation.READ


class Audited(Audit):
    """Keeps the events."""

    def __init__(self) -> None:
        super().__init__()
        self.denied: list[tuple[str, str]] = []

    def __call__(self, event: str, **facts: Any) -> None:
        assert event == "denied"
        self.denied.append((facts.get("operation", ""), facts.get("resource", f"{facts.get('more')} more")))


class Gate:
    """An authorizer before a handler that answers later."""

    def __init__(self, *acls: Acl, known: MetadataCache | None = None, **settings: bool) -> None:
        self.audit = Audited()
        found = known or metadata()
        self.authorizer = Authorizer(Rules(acls), None, found, self.audit, int, **settings)  # type: ignore[arg-type]

    def passes(self, body: Struct, version: int) -> tuple[bool, Callable[[Any], Any]]:
        """Whether the handler sees it, and what makes its answer the one that is sent."""
        call = Call(Line("User:bob"), API_OF[type(body)], version, 1, "test")
        is_admitted = self.authorizer.admits(call, body)

        def amended(answer: Any) -> Any:
            if call.amend is not None:
                call.amend(answer)
            return answer

        return is_admitted, amended


def on(resource: Resource, name: str, *operations: Operation) -> list[Acl]:
    return [allow((each, resource, name), Pattern.LITERAL) for each in operations]


def in_loop(test: Callable[[], None]) -> None:
    async def go() -> None:
        test()

    asyncio.run(go())


def test_records_are_not_read_by_the_name_in_a_tag() -> None:
    """Fetch names topics by id; our followers add the name in a tag, and the handler reads by it."""

    async def test() -> None:
        async with Town(rule(O.READ, name="mine")) as town:
            await town.broker.create_topic("mine", 1)
            part = t.FetchRequestFetchPartition(partition_max_bytes=1 << 20, current_leader_epoch=-1)
            for topic_id in (bytes(16), bytes(15) + b"\1"):
                topic = t.FetchRequestFetchTopic(topic_name="orders", topic_id=topic_id, partitions=[part])
                answer = await town.asks(t.FetchRequest(replica_id=-1, topics=[topic]), 13)
                (found,) = answer.responses[0].partitions
                assert (found.error_code, bytes(found.records or b"")) == (29, b"")

    run(test)


def test_a_topic_that_becomes_known_before_the_answer_is_hidden() -> None:
    """A broker that has just started answers Metadata once the controller has sent it the topics."""

    def test() -> None:
        gate = Gate(known=MetadataCache())
        entry = t.MetadataRequestTopic(name=None, topic_id=IDS[THEIRS])
        is_admitted, amended = gate.passes(t.MetadataRequest(topics=[entry]), 12)
        assert is_admitted
        told = t.MetadataResponseTopic(name=THEIRS, topic_id=IDS[THEIRS], partitions=[])
        answer = amended(t.MetadataResponse(topics=[told]))
        (topic,) = answer.topics
        assert (topic.error_code, topic.name, topic.topic_id) == (29, None, IDS[THEIRS])

    in_loop(test)


def test_an_unknown_id_is_not_passed_on_to_the_controller() -> None:
    """It may know the topic, and deletes what another broker forwards."""

    async def test() -> None:
        async with Town() as town:
            entry = t.DeleteTopicsRequestDeleteTopicState(name=None, topic_id=bytes(15) + b"\1")
            answer = await town.asks(t.DeleteTopicsRequest(topics=[entry], timeout_ms=1_000))
            assert [each.error_code for each in answer.responses] == [ErrorCode.UNKNOWN_TOPIC_ID]

    run(test)

    def unit() -> None:
        gate = Gate(known=MetadataCache())
        entry = t.DeleteTopicsRequestDeleteTopicState(name=None, topic_id=IDS[THEIRS])
        assert not gate.passes(t.DeleteTopicsRequest(topics=[entry]), 6)[0]

    in_loop(unit)


def test_bits_of_groups_are_those_of_the_client() -> None:
    def test() -> None:
        gate = Gate(*on(R.GROUP, OURS, O.READ), *on(R.GROUP, THEIRS, O.DESCRIBE, O.DELETE))
        request = t.DescribeGroupsRequest(groups=[OURS, THEIRS], include_authorized_operations=True)
        _, amended = gate.passes(request, 5)
        group = t.DescribeGroupsResponseDescribedGroup
        all_of_them = sum(1 << each for each in (O.READ, O.DELETE, O.DESCRIBE))
        answer = amended(
            t.DescribeGroupsResponse(
                groups=[group(group_id=each, authorized_operations=all_of_them) for each in (OURS, THEIRS)]
            )
        )
        bits = [each.authorized_operations for each in answer.groups]
        assert bits == [1 << O.READ | 1 << O.DESCRIBE, 1 << O.DELETE | 1 << O.DESCRIBE]
        assert not gate.audit.denied

    in_loop(test)


@pytest.mark.parametrize(
    ("acls", "request_", "version", "answer"),
    [
        ((), t.MetadataRequest(topics=None), 12, t.MetadataResponse),
        ((), t.ListGroupsRequest(), 4, t.ListGroupsResponse),
        (on(R.TOPIC, OURS, O.CREATE), asked("CreateTopics", topics=[{"name": OURS}]), 7, None),
        (on(R.TOPIC, OURS, O.WRITE), t.InitProducerIdRequest(transactional_id=None), 4, None),
        (on(R.CLUSTER, CLUSTER_NAME, O.CLUSTER_ACTION), t.WriteTxnMarkersRequest(markers=[]), 1, None),
        (
            on(R.TOPIC, "new", O.DESCRIBE, O.CREATE),
            t.MetadataRequest(topics=[t.MetadataRequestTopic(name="new")]),
            4,
            t.MetadataResponse,
        ),
        (
            on(R.TOPIC, OURS, O.READ),
            t.MetadataRequest(
                topics=[t.MetadataRequestTopic(name=OURS)], include_topic_authorized_operations=True
            ),
            8,
            t.MetadataResponse,
        ),
    ],
)
def test_what_is_allowed_is_not_audited_as_denied(
    acls: Iterable[Acl], request_: Struct, version: int, answer: type[Any] | None
) -> None:
    """Kafka logs none of these either: another right is enough, or an entry is left out."""

    def test() -> None:
        gate = Gate(*acls)
        is_admitted, amended = gate.passes(request_, version)
        assert is_admitted
        if answer is t.MetadataResponse:
            told = [t.MetadataResponseTopic(name=each, topic_authorized_operations=3576) for each in IDS]
            amended(t.MetadataResponse(topics=told))
        elif answer is t.ListGroupsResponse:
            amended(t.ListGroupsResponse(groups=[t.ListGroupsResponseListedGroup(group_id=THEIRS)]))
        assert gate.audit.denied == []

    in_loop(test)


@pytest.mark.parametrize(("creates_topics", "code"), [(True, [29]), (False, [])])
def test_without_automatic_creation_an_unknown_topic_needs_describe_alone(
    creates_topics: bool, code: list[int]
) -> None:
    """UNKNOWN_TOPIC_OR_PARTITION (3) of the handler: consumers ask again, and stop at 29."""

    def test() -> None:
        gate = Gate(*on(R.TOPIC, "new", O.DESCRIBE), creates_topics=creates_topics)
        request = t.MetadataRequest(
            topics=[t.MetadataRequestTopic(name="new")], allow_auto_topic_creation=True
        )
        _, amended = gate.passes(request, 9)
        assert [each.error_code for each in amended(t.MetadataResponse(topics=[])).topics] == code

    in_loop(test)


def test_groups_and_topics_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may list a quarter of a million of them."""

    def compared(*_: object) -> bool:
        raise AssertionError("takes the square of their number")

    def test() -> None:
        gate = Gate(*on(R.GROUP, "g7", O.DESCRIBE))
        topics = [t.OffsetFetchRequestTopics(name=f"t{each}") for each in range(20)]
        groups = [t.OffsetFetchRequestGroup(group_id=f"g{each}", topics=topics) for each in range(20)]
        request = t.OffsetFetchRequest(groups=groups)
        monkeypatch.setattr(Struct, "__eq__", compared)
        is_admitted, amended = gate.passes(request, 8)
        assert is_admitted
        answer = amended(t.OffsetFetchResponse(groups=[t.OffsetFetchResponseGroup(group_id="g7")]))
        assert [len(each.topics) for each in answer.groups] == [20] + [0] * 19

    in_loop(test)


def test_a_denied_request_counts_against_its_clients_quota() -> None:
    """Kafka throttles it, too: else a client without rights sends as much as it likes."""

    async def test() -> None:
        async with Town() as town, town.asker() as asker:
            await town.bob(asker)
            town.broker._running.services.limiter.replace(Quotas({(("user", "bob"),): {Kind.PRODUCE: 100.0}}))
            part = t.ProduceRequestPartitionProduceData(records=bytes(2_000))
            topic = t.ProduceRequestTopicProduceData(name="orders", partition_data=[part])
            answer = await asker.ask(t.ProduceRequest(acks=1, topic_data=[topic]), 9)
            assert answer.responses[0].partition_responses[0].error_code == 29
            assert answer.throttle_time_ms > 5_000

    run(test)


def test_one_request_does_not_fill_the_audit_log() -> None:
    """Three with a quarter of a million topics each replaced all that was in it."""

    def test() -> None:
        gate = Gate()
        topics = [t.ListOffsetsRequestListOffsetsTopic(name=f"t{each}") for each in range(1_000)]
        assert not gate.passes(t.ListOffsetsRequest(topics=topics), 8)[0]
        assert gate.audit.denied[0] == ("DESCRIBE", "TOPIC:t0")
        assert gate.audit.denied[-1] == ("", "980 more")
        assert len(gate.audit.denied) == 21

    in_loop(test)


class Prying(Generator):
    """Draws requests about topics, groups and ids that exist, in every field that may name one."""

    def __init__(self, seed: str, topic_ids: list[bytes]) -> None:
        super().__init__(seed, ours=True, small=True)
        self._topic_ids = topic_ids

    def _value(self, name: str, kind: WireKind, version: int) -> Any:
        draw = self._random
        match kind:
            case "string":
                return draw.choice(["orders", "mine-1", "new", "g", "other", "User:bob", "retention.ms"])
            case "uuid":
                return draw.choice(self._topic_ids)
            case "int8" | "int16" | "int32" | "int64":
                if name.endswith("max_bytes"):
                    return 1 << 20
                return 0 if name.endswith("_ms") else draw.choice([-1, 0, 0, 1])
        return super()._value(name, kind, version)


@pytest.mark.parametrize("seed", range(2))
def test_requests_at_random_tell_and_change_nothing_of_others(seed: int) -> None:
    """Every API and version, our own tags too, by a client with rights on topics `mine-…` and the group g."""
    waiting = {"JoinGroup", "SyncGroup", "SaslHandshake", "SaslAuthenticate"}
    apis = [api for api in APIS.values() if api.advertised and api.name not in waiting]
    apis += 8 * [api for api in apis if api.name in ("Fetch", "Metadata")]

    async def test() -> None:
        rules = [rule(O.ALL, name="mine-", pattern=Pattern.PREFIXED), rule(O.ALL, R.GROUP, "g")]
        async with Town(*rules) as town, AsyncExitStack() as stack:
            await town.broker.create_topic("mine-1", 1)
            await town.broker.append("orders", b"of others")
            ids = [id_to_wire(each) for each in town.broker._running.services.metadata.topic_ids.values()]
            prying, draw = Prying(f"{seed}", [bytes(16), bytes(15) + b"\1", *ids]), Random(seed)
            asker: Asker | None = None
            for _ in range(1_500):
                asker = asker or await town.bob(await stack.enter_async_context(town.asker()))
                api = draw.choice(apis)
                version = draw.choice([each for each in api.served if each in api.advertised])
                request = prying.message(api.request, version)
                if getattr(request, "acks", 1) == 0:
                    asker.send(request, version)  # is not answered
                    continue
                try:
                    answer = await asker.ask(request, version)
                except (asyncio.IncompleteReadError, ConnectionResetError):
                    asker = None  # no client sends this
                    continue
                assert b"of others" not in b"".join(map(bytes, encode(answer, version))), answer
                for topic in answer.topics if isinstance(answer, t.MetadataResponse) else ():
                    assert topic.name != "orders" or (topic.error_code, topic.partitions) == (29, []), answer
            found = [each.value for each in await town.broker.read("orders", 0, 0)]
            assert found == [b"a", b"of others"]
            assert town.authorizer.rules.acls == {*rules}

    run(test)

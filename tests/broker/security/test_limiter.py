"""What quotas do to requests, by calls without a broker and a clock of the test's own; and over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import pytest

from logstore.broker.dispatch import Call
from logstore.broker.metrics import Watched, page
from logstore.broker.security import limiter as limiter_module
from logstore.broker.security.config import IN_PROCESS
from logstore.broker.security.door import Door
from logstore.broker.security.limiter import Limiter
from logstore.broker.security.login import Login
from logstore.broker.security.quotas import CLIENT, IP, USER, Entity, Kind, Quotas
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import APIS
from logstore.broker.wire.codec import decode
from logstore.broker.wire.headers import decode_response_header
from logstore.disk.errors import ErrorCode
from logstore.disk.files import Buffer
from logstore.disk.ids import id_to_text
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import PartitionState
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.metastore.operations import Create, Get, Set
from logstore.replication.rates import Windows
from tests.broker.asking import Asker
from tests.broker.nodes import Nodes
from tests.broker.security.test_permissions import made

PRODUCE, FETCH, METADATA, CREATE, DELETE, GROW = 0, 1, 3, 19, 20, 37
EVERY_USER: Entity = ((USER, None),)
ANN: Entity = ((USER, "ann"),)


class Line:
    """A connection that keeps what it is told to send."""

    software = peer = ""
    number = 1
    is_closing = False
    login: Login | None = None

    def __init__(self, principal: str, door: Door | None = None) -> None:
        self.principal, self.door = principal, door
        self.sent: list[tuple[bytes, int]] = []

    def take_next(self) -> None: ...

    def answer(self, pieces: Iterable[Buffer], *, throttle_ms: int = 0, number: int | None = None) -> None:
        self.sent.append((b"".join(pieces), throttle_ms))

    def refuse(self, reason: str) -> None:
        raise AssertionError(reason)


class Bench:
    """A limiter with a clock; `topics` by their numbers of partitions."""

    def __init__(self, quotas: Mapping[Entity, Mapping[Kind, float]], **topics: int) -> None:
        self.now_ms = 0
        metadata = MetadataCache()
        for name, count in topics.items():
            metadata.topic_ids[name] = id_to_text(bytes(15) + b"\1")
            metadata.topic_names[metadata.topic_ids[name]] = name
            state = PartitionState(1, 1, 1, (1,), 1, (1,))
            metadata.partitions |= {TopicPartition(name, each): state for each in range(count)}
            metadata.topics[name] = dict.fromkeys(range(count), state)
        self.limiter = Limiter(
            lambda: self.now_ms,
            metadata,
            Windows(),
            Windows(),
            default_partitions=3,
            take_back=lambda session_id: session_id + 1,
        )
        self.limiter.replace(Quotas(quotas))

    def call(self, key: int, version: int | None = None, **who: Any) -> Call:
        api = APIS[key]
        line = Line(who.get("principal", "User:ann"), who.get("door"))
        call = Call(line, api, api.latest if version is None else version, 1, who.get("client", "app"))
        call.size = who.get("size", 0)
        return call

    def admits(self, call: Call, body: Any) -> bool:
        self.limiter.measure(call, body)
        return call.meter is None or self.limiter.admits(call, body)

    def serve(self, call: Call, body: Any, answer: Any = None) -> tuple[Any, int]:
        """What is answered, and how long the connection is mute."""
        if self.admits(call, body):
            call.answer(answer or call.api.response())
        line = call.connection
        assert isinstance(line, Line)
        ((data, mute_ms),) = line.sent
        frame = memoryview(data)[4:]
        _, used = decode_response_header(frame, call.api, call.version)
        answered: Any = decode(call.api.response, call.version, frame[used:])[0]
        assert answered.throttle_time_ms == mute_ms
        return answered, mute_ms

    def produce(self, size: int, **who: Any) -> int:
        return self.serve(self.call(PRODUCE, size=size, **who), t.ProduceRequest())[1]


# --- bytes --------------------------------------------------------------------------------------


def test_a_producer_waits_as_kafka_computes_it() -> None:
    bench = Bench({EVERY_USER: {Kind.PRODUCE: 1000}})
    assert bench.produce(20_000) == 10_000
    assert bench.produce(1, principal="User:bob") == 0, "a default user's budget is each user's own"
    bench.now_ms = 10_000
    assert bench.produce(1) == 10_001, "every connection of ann, before the time is over"
    bench.now_ms = 11_000
    assert bench.produce(1) == 0
    assert (bench.limiter.throttled, bench.limiter.throttled_ms) == (
        {Kind.PRODUCE: 2},
        {Kind.PRODUCE: 20_001},
    )


def test_a_producer_without_acks_waits_too() -> None:
    bench = Bench({EVERY_USER: {Kind.PRODUCE: 1000, Kind.REQUEST: 0}})
    call = bench.call(PRODUCE, size=20_000)
    assert bench.admits(call, t.ProduceRequest(acks=0))
    call.end()
    assert isinstance(call.connection, Line)
    assert call.connection.sent == [(b"", 10_000)]


def test_client_ids_of_a_user_have_their_own_budgets_or_share_one() -> None:
    own = Bench({((USER, "ann"), (CLIENT, None)): {Kind.PRODUCE: 1000}})
    assert [own.produce(20_000, client=each) for each in ("a", "b")] == [10_000, 10_000]
    assert own.produce(1, principal="User:bob") == 0
    shared = Bench({ANN: {Kind.PRODUCE: 1000}})
    assert [shared.produce(8_000, client=each) for each in ("a", "b", None)] == [0, 6_000, 14_000]


def fetched(size: int) -> t.FetchResponse:
    partition = t.FetchResponsePartitionData(partition_index=0, high_watermark=1, records=bytes(size))
    topic = t.FetchResponseFetchableTopicResponse(topic="orders", partitions=[partition])
    return t.FetchResponse(session_id=7, responses=[topic])


def test_a_throttled_fetch_has_no_records_and_does_not_count() -> None:
    bench = Bench({ANN: {Kind.FETCH: 1000}})
    request = t.FetchRequest(max_bytes=1 << 20, min_bytes=50_000)
    answer, mute_ms = bench.serve(bench.call(FETCH, 12), request, fetched(9_000))
    assert (answer.responses[0].topic, mute_ms) == ("orders", 0)
    assert (request.max_bytes, request.min_bytes) == (10_000, 10_000), "what ten seconds allow"
    answer, mute_ms = bench.serve(bench.call(FETCH, 12), request, fetched(9_000))
    assert (answer.responses, answer.session_id) == ([], 8), "its session takes the answer back"
    assert 8_000 < mute_ms < 8_300
    bench.now_ms = 1_000
    _, mute_ms = bench.serve(bench.call(FETCH, 12), request, fetched(500))
    assert mute_ms == 0, "the second fetch was taken back"


def test_other_requests_do_not_count_bytes() -> None:
    bench = Bench({ANN: {Kind.PRODUCE: 1, Kind.FETCH: 1}})
    assert bench.serve(bench.call(METADATA, size=90_000), t.MetadataRequest())[1] == 0


# --- time ---------------------------------------------------------------------------------------


def test_the_time_of_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's vector: 150 % s within a second at 10 % are 15 %, throttled for one window at most."""
    bench, now_s = Bench({ANN: {Kind.REQUEST: 10, Kind.PRODUCE: 1000}}), [0.0]
    monkeypatch.setattr(limiter_module, "steady_s", lambda: now_s[0])

    def used(seconds: float, key: int = METADATA, size: int = 0) -> int:
        call = bench.call(key, size=size)
        assert bench.admits(call, call.api.request())
        now_s[0] += seconds
        call.answer(call.api.response())
        assert isinstance(call.connection, Line)
        return call.connection.sent[0][1]

    assert used(0.5) == 0
    assert used(1.0) == 1_000
    assert used(0, PRODUCE, size=20_000) == 10_000, "the longer time counts"
    bench.now_ms = 12_000
    waiting = bench.call(METADATA)
    assert bench.admits(waiting, t.MetadataRequest())
    assert waiting.meter is not None
    waiting.meter.handled()
    now_s[0] += 60
    waiting.answer(t.MetadataResponse())
    assert isinstance(waiting.connection, Line)
    assert waiting.connection.sent[0][1] == 0, "a request that waits uses nothing"


# --- partitions made and deleted ----------------------------------------------------------------


def creation(*names: str, count: int = 1, **more: Any) -> Any:
    return made(
        t.CreateTopicsRequest, topics=[{"name": each, "num_partitions": count} for each in names], **more
    )


def codes(answer: Any, where: str) -> dict[str | None, int]:
    return {each.name: each.error_code for each in getattr(answer, where)}


def test_topics_beyond_the_rate_are_refused() -> None:
    bench = Bench({ANN: {Kind.MUTATION: 5}}, there=1)
    kept = creation("a", "b", "there", count=60)
    answer, mute_ms = bench.serve(bench.call(CREATE), kept)
    assert [each.name for each in kept.topics] == ["a", "there"], "55 tokens: below zero at once"
    assert (codes(answer, "topics"), mute_ms) == ({"b": ErrorCode.THROTTLING_QUOTA_EXCEEDED}, 1_000)
    assert answer.topics[0].error_message == "The throttling quota has been exceeded."
    answer, mute_ms = bench.serve(bench.call(CREATE), creation("c"))
    assert (codes(answer, "topics"), mute_ms) == ({"c": 89}, 1_000), "the handler does not see it"
    assert bench.serve(bench.call(CREATE), creation("c", validate_only=True))[1] == 0
    bench.now_ms = 1_000
    answer, mute_ms = bench.serve(bench.call(CREATE), creation("c", count=-1))
    assert (answer.topics, mute_ms) == ([], 0), "the answer is the handler's"
    assert [each[2] for each in bench.limiter.measured()] == [-3], "the broker's default is three"


def test_older_requests_are_served_and_wait() -> None:
    bench = Bench({ANN: {Kind.MUTATION: 5}}, there=60)
    assert bench.serve(bench.call(CREATE, 5), creation("a", count=100))[1] == 9_000
    request = t.DeleteTopicsRequest(topic_names=["there", "absent"])
    assert bench.serve(bench.call(DELETE, 4), request)[1] == 21_000
    assert request.topic_names == ["there", "absent"]


def test_deletions_and_new_partitions_count() -> None:
    bench = Bench({ANN: {Kind.MUTATION: 1}}, there=20)
    topic_id = bytes(15) + b"\1"
    request: Any = made(t.DeleteTopicsRequest, topics=[{"topic_id": topic_id, "name": None}])
    assert bench.serve(bench.call(DELETE), request) == (t.DeleteTopicsResponse(), 0)
    request = made(t.DeleteTopicsRequest, topics=[{"name": "there"}, {"name": "absent"}])
    answer, mute_ms = bench.serve(bench.call(DELETE), request)
    assert (codes(answer, "responses"), mute_ms) == ({"there": 89}, 9_000)
    topics = [{"name": "there", "count": 22}, {"name": "absent", "count": 9}, {"name": "there", "count": 3}]
    request = made(t.CreatePartitionsRequest, topics=topics)
    answer, _ = bench.serve(bench.call(GROW), request)
    assert codes(answer, "results") == {"there": 89}
    assert [each.count for each in request.topics] == [9, 3], "the handler refuses these itself"


# --- who is limited -----------------------------------------------------------------------------


def test_the_program_itself_is_not_limited() -> None:
    assert Bench({EVERY_USER: {Kind.PRODUCE: 1}}).produce(90_000, principal=IN_PROCESS) == 0


@pytest.mark.parametrize("door", [None, Door("INTERNAL")], ids=["the only listener", "the brokers'"])
@pytest.mark.parametrize("version", [12, 15])
def test_followers_and_brokers_that_forward_are_not_limited(door: Door | None, version: int) -> None:
    bench = Bench({EVERY_USER: {Kind.FETCH: 1, Kind.REQUEST: 0}})
    request = t.FetchRequest(replica_id=2)
    if version == 15:
        request = t.FetchRequest(replica_state=t.FetchRequestReplicaState(replica_id=2, replica_epoch=1))
    fetch = bench.call(FETCH, version, client="broker-2", door=door)
    assert bench.serve(fetch, request, fetched(9_000))[1] == 0
    assert bench.serve(bench.call(CREATE, client="broker-2", door=door), t.CreateTopicsRequest())[1] == 0


def test_who_merely_calls_himself_a_broker_is_limited() -> None:
    """Brokers send each other neither records nor a consumer's fetch, whatever their client id."""
    bench = Bench({EVERY_USER: {Kind.PRODUCE: 1000, Kind.FETCH: 1000}})
    assert bench.produce(20_000, client="broker-2") == 10_000
    assert bench.serve(bench.call(FETCH, client="broker-2"), t.FetchRequest(), fetched(20_000))[1] > 9_000

    class Nobody:
        def is_broker(self, call: Call) -> bool:
            return False

    for door, authorizer in ((Door("CLIENTS", is_for_brokers=False), None), (None, Nobody())):
        bench = Bench({EVERY_USER: {Kind.FETCH: 1}})
        bench.limiter.authorizer = authorizer  # type: ignore[assignment]
        fetch = bench.call(FETCH, 12, client="broker-2", door=door)
        assert bench.serve(fetch, t.FetchRequest(replica_id=2), fetched(9_000))[1] > 0


def test_changed_quotas_count_at_once_and_what_was_used_stays() -> None:
    bench = Bench({ANN: {Kind.PRODUCE: 1000}})
    assert bench.produce(20_000) == 10_000
    bench.limiter.replace(Quotas({ANN: {Kind.PRODUCE: 10_000}}))
    assert bench.produce(1) == 0
    bench.limiter.replace(Quotas({((USER, "bob"),): {Kind.PRODUCE: 1}}))
    assert bench.produce(90_000) == 0
    assert list(bench.limiter.measured()) == []
    bench.limiter.replace(Quotas())
    assert not bench.limiter.is_on


def test_any_number_of_client_ids_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter_module, "_MOST_KNOWN", 50)
    bench = Bench({((CLIENT, None),): {Kind.PRODUCE: 1000}})
    bench.limiter._next_look = 50
    for number in range(500):
        bench.now_ms += 500
        bench.produce(1, client=f"client-{number}")
        assert len(bench.limiter._known) <= 50
        assert len(list(bench.limiter.measured())) <= 100


def test_long_client_ids_are_not_remembered_as_a_whole() -> None:
    """Each has a budget of its own all the same, also if a quota names it."""
    named, other = "x" * 30_000, "x" * 29_999 + "y"
    quotas: dict[Entity, dict[Kind, float]] = {
        ((CLIENT, None),): {Kind.PRODUCE: 1000.0},
        ((CLIENT, named),): {Kind.PRODUCE: 2000.0},
    }
    bench = Bench(quotas)
    assert [bench.produce(40_000, client=each) for each in (named, other)] == [10_000, 30_000]
    assert bench.produce(20_000, client=named) == 20_000
    assert max(len(key.client or "") for _, key, _ in bench.limiter.measured()) < 400
    assert max(len(client) for _, client in bench.limiter._known) < 400


def test_metrics() -> None:
    bench = Bench({ANN: {Kind.PRODUCE: 1000, Kind.MUTATION: 5}})
    bench.produce(20_000)
    text = page(Watched(limiter=bench.limiter)).content.decode()
    assert 'kafka_server_produce_byte_rate{client_id="",user="ann"} 2000.0' in text
    assert 'kafka_server_controllermutation_tokens{client_id="",user="ann"} 55.0' in text
    assert 'kafka_server_quotas_throttled_total{quota="producer_byte_rate"} 1.0' in text
    assert 'kafka_server_quotas_throttle_seconds_total{quota="producer_byte_rate"} 10.0' in text


# --- over the wire ------------------------------------------------------------------------------


def run(test: Callable[[Nodes, Asker], Awaitable[None]], count: int = 1) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60), Nodes(count) as nodes, Asker(nodes.addresses[0]) as asker:
            await test(nodes, asker)

    asyncio.run(bounded())


async def altered(asker: Asker, *changes: tuple[Any, str, float | None], **more: Any) -> list[int]:
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None}],
        }
        for entity, key, value in changes
    ]
    answer = await asker.ask(made(t.AlterClientQuotasRequest, entries=entries, **more), 1)
    assert [[(e.entity_type, e.entity_name) for e in each.entity] for each in answer.entries] == [
        list(entity) for entity, _, _ in changes
    ]
    return [each.error_code for each in answer.entries]


async def described(asker: Asker, *parts: tuple[str, int, str | None], strict: bool = False) -> Any:
    components = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in parts]
    answer = await asker.ask(made(t.DescribeClientQuotasRequest, components=components, strict=strict), 1)
    if answer.error_code:
        return answer.error_code
    return {
        tuple((e.entity_type, e.entity_name) for e in each.entity): {
            one.key: one.value for one in each.values
        }
        for each in answer.entries
    }


BOTH = ((USER, "bob"), (CLIENT, None))
BOB = ((USER, "bob"),)
APP = ((CLIENT, "my app/1"),)


def test_quotas_are_kept_where_kafka_keeps_them_and_found_again() -> None:
    async def test(nodes: Nodes, asker: Asker) -> None:
        tree = nodes.shared.store.tree
        session = nodes.shared.store.open_session(10_000, 0)

        def stored(path: str) -> bytes:
            outcome, _ = nodes.shared.store.call(session, Get(f"/config/{path}"), 0)
            return outcome.data

        assert tree is not None
        credential = b'{"version":1,"config":{"SCRAM-SHA-256":"salt=x"}}'
        nodes.shared.store.call(session, Create("/config/users/bob", credential, make_parents=True), 0)
        rates = ((BOTH, "request_percentage", 12.5), (BOB, "producer_byte_rate", 1024.0))
        assert await altered(asker, *rates, (APP, "consumer_byte_rate", 7.0)) == [0, 0, 0]
        assert await altered(asker, (BOB, "producer_byte_rate", 9.0), validate_only=True) == [0]
        assert (
            stored("users/bob/clients/<default>") == b'{"version":1,"config":{"request_percentage":"12.5"}}'
        )
        assert (
            stored("users/bob")
            == b'{"version":1,"config":{"SCRAM-SHA-256":"salt=x","producer_byte_rate":"1024"}}'
        )
        assert stored("clients/my%20app%2F1") == b'{"version":1,"config":{"consumer_byte_rate":"7"}}'
        bob = {BOTH: {"request_percentage": 12.5}, BOB: {"producer_byte_rate": 1024}}
        assert await described(asker) == {**bob, APP: {"consumer_byte_rate": 7}}
        assert await described(asker, (USER, 0, "bob")) == bob
        assert await described(asker, (USER, 0, "bob"), strict=True) == {BOB: bob[BOB]}
        assert await described(asker, (USER, 2, None), (CLIENT, 1, None)) == {BOTH: bob[BOTH]}
        assert await described(asker, (CLIENT, 1, None), strict=True) == {}
        assert await altered(asker, (BOB, "producer_byte_rate", None)) == [0]
        assert stored("users/bob") == credential
        assert await described(asker, (USER, 0, "bob"), strict=True) == {}

    run(test)


def test_addresses_have_connection_rates() -> None:
    """In Kafka's form, with every spelling of an address; requests are not measured for them."""

    async def test(nodes: Nodes, asker: Asker) -> None:
        ones, every = ((IP, "127.0.0.1"),), ((IP, None),)
        rates = [(ones, "connection_creation_rate", 7.0), (every, "connection_creation_rate", 50.0)]
        assert await altered(asker, *rates) == [0, 0]
        session = nodes.shared.store.open_session(10_000, 0)
        outcome, _ = nodes.shared.store.call(session, Get("/config/ips/127.0.0.1"), 0)
        assert outcome.data == b'{"version":1,"config":{"connection_creation_rate":"7"}}'
        found = {ones: {"connection_creation_rate": 7}, every: {"connection_creation_rate": 50}}
        assert await described(asker) == found
        assert await described(asker, (IP, 0, "127.0.0.1")) == {ones: found[ones]}
        assert await described(asker, (USER, 2, None)) == {}
        limiter = nodes.brokers[0].services.limiter
        assert not limiter.is_on
        assert [limiter.connections.held_ms("127.0.0.1", 0) for _ in range(70)] == [0] * 70
        assert limiter.connections.held_ms("127.0.0.1", 0) > 0
        assert limiter.throttled[Kind.CONNECTION] == 1
        assert (
            b'quotas_throttled_total{quota="connection_creation_rate"} 1.0'
            in page(Watched(limiter=limiter)).content
        )

    run(test)


def test_what_is_refused_changes_nothing() -> None:
    async def test(_: Nodes, asker: Asker) -> None:
        wrong = [
            (BOB, "unknown_rate", 1.0),
            (BOB, "producer_byte_rate", -1.0),
            (BOB, "producer_byte_rate", 1.5),
            (BOB, "request_percentage", float("nan")),
            (BOB, "connection_creation_rate", 1.0),
            ((), "request_percentage", 1.0),
            (((USER, ""),), "request_percentage", 1.0),
            (((IP, "127.0.0.1"),), "request_percentage", 1.0),
            (((IP, "127.0.0.1"),), "connection_creation_rate", 0.5),
            (((IP, "localhost"),), "connection_creation_rate", 1.0),
            (((USER, "bob"), (IP, "127.0.0.1")), "connection_creation_rate", 1.0),
            (((USER, "a"), (USER, "b")), "request_percentage", 1.0),
        ]
        assert set(await altered(asker, *wrong)) == {ErrorCode.INVALID_REQUEST}
        twice = made(
            t.AlterClientQuotasRequest,
            entries=[
                {
                    "entity": [{"entity_type": USER, "entity_name": "bob"}],
                    "ops": [{"key": "request_percentage", "value": each} for each in (1.0, 2.0)],
                }
            ],
        )
        assert (await asker.ask(twice, 1)).entries[0].error_code == ErrorCode.INVALID_REQUEST
        assert await described(asker) == {}
        for parts in (
            [(IP, 0, "::1"), (USER, 2, None)],
            [(USER, 3, None)],
            [(USER, 0, None)],
            [(USER, 2, None)] * 2,
        ):
            assert await described(asker, *parts) == ErrorCode.INVALID_REQUEST

    run(test)


def test_a_change_counts_everywhere_and_after_a_restart() -> None:
    async def test(nodes: Nodes, asker: Asker) -> None:
        assert await altered(asker, (((USER, "ANONYMOUS"),), "producer_byte_rate", 1000.0)) == [0]
        assert nodes.brokers[0].services.limiter.is_on
        await nodes.until(lambda: nodes.brokers[1].services.limiter.is_on)
        await nodes.stop(1)
        await nodes.start(1)
        assert nodes.brokers[1].services.limiter.is_on, "before the first client"
        session = nodes.shared.store.open_session(10_000, 0)
        broken = Set("/config/users/ANONYMOUS", b'{"version":1,"config":{"producer_byte_rate":"x"}}', 0)
        nodes.shared.store.call(session, broken, 0)
        assert await altered(asker, (APP, "request_percentage", 50.0)) == [0]
        await nodes.until(lambda: len(nodes.brokers[1].services.limiter.quotas.values) == 2)

    run(test, count=2)


def test_a_connection_is_answered_at_once_and_then_mute() -> None:
    async def test(nodes: Nodes, asker: Asker) -> None:
        assert await altered(asker, (((CLIENT, "test"),), "request_percentage", 0.0)) == [0]
        nodes.brokers[0].services.limiter.windows = Windows(11, 40_000)
        answer = await asker.ask(t.MetadataRequest(topics=[]), 9)
        assert answer.throttle_time_ms == 40_000
        (connection,) = [each for each in nodes.brokers[0].server.connections if each._mute is not None]
        assert not connection.takes_frames
        until_s = connection._mute.when()  # type: ignore[union-attr]
        connection._mute_for(10)
        assert connection._mute is not None
        assert connection._mute.when() == until_s, "a shorter time does not end a longer one"
        asker.send(t.MetadataRequest(topics=[]), 9)
        connection._mute.cancel()
        connection._unmute()
        assert await asker.answer_bytes(), "requests that came meanwhile are served afterwards"

    run(test)

"""The client: what passes is tried again where the leader is by then, what does not is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

import pytest

from logstore.broker.client import Client
from logstore.broker.connection import Connection
from logstore.broker.dispatch import Call, Dispatch
from logstore.broker.errors import RequestFailed, RequestRefused, RequestUnanswered
from logstore.broker.in_process import InProcess
from logstore.broker.limits import Address
from logstore.broker.producing import Producer
from logstore.broker.retrying import TryAgain
from logstore.broker.server import Server
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import APIS, api_versions
from logstore.broker.wire.codec import decode
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import decode_request_header, response_frame
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch, encode_batch
from logstore.format.record import Record
from logstore.replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResult,
    MetadataRequest,
    NewTopic,
)

TP = TopicPartition("t", 0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


class Script:
    """Two nodes, of which `leader` leads and controls; answers come from the test's list."""

    def __init__(self, *answers: Struct | None) -> None:
        self.answers = list(answers)
        self.leader = 1
        self.partitions = 1
        self.versions = self.versions_after = api_versions()
        """what is served, and what after somebody hung up"""
        self.asked: list[tuple[int, Struct]] = []
        self.questions = 0
        """about metadata"""
        self.in_full = 0
        """questions about all topics"""
        self.controllers: dict[int, int] = {}
        """whom a broker names, if not the leader"""
        self.in_versions: list[int] = []
        self.servers: dict[int, Server] = {}
        self.addresses: dict[int, Address] = {}
        self.client = Client([])

    async def __aenter__(self) -> Script:
        for node_id in (1, 2):
            self.servers[node_id] = Server(partial(self.answer, node_id))
            self.addresses[node_id] = await self.servers[node_id].listen(Address("127.0.0.1", 0))
        self.client = Client([self.addresses[1]], timeout_s=10)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        for server in self.servers.values():
            server.close()
        for _turn in range(5):
            await asyncio.sleep(0)

    def answer(self, node_id: int, connection: Connection, frame: memoryview) -> None:
        """None hangs up. Whoever leads changes with each answer."""
        header = decode_request_header(frame)
        assert header.api is not None
        request, _ = decode(header.api.request, header.version, frame[header.size :])
        answer: Struct | None
        if isinstance(request, t.ApiVersionsRequest):
            assert header.version == 0, "what every broker understands"
            answer = self.versions
        elif isinstance(request, t.MetadataRequest):
            self.questions += 1
            answer = self.metadata()
            answer.controller_id = self.controllers.get(node_id, self.leader)
            if request.topics is not None:
                answer.topics = []
            self.in_full += request.topics is None
        else:
            self.asked.append((node_id, request))
            self.in_versions.append(header.version)
            self.leader = 3 - self.leader
            answer = self.answers.pop(0)
        if answer is None:
            self.versions = self.versions_after
            connection.refuse("as the test says")
        else:
            connection.answer(response_frame(answer, header.version, header.correlation_id))

    def metadata(self) -> t.MetadataResponse:
        partitions = [
            t.MetadataResponsePartition(
                partition_index=number,
                leader_id=self.leader,
                leader_epoch=self.leader,
                replica_nodes=[1, 2],
                isr_nodes=[1, 2],
            )
            for number in range(self.partitions)
        ]
        return t.MetadataResponse(
            brokers=[
                t.MetadataResponseBroker(node_id=each, host=host, port=port)
                for each, (host, port) in self.addresses.items()
            ],
            controller_id=self.leader,
            topics=[t.MetadataResponseTopic(name="t", partitions=partitions)],
        )


def produced(error: ErrorCode, base_offset: int = -1) -> t.ProduceResponse:
    partition = t.ProduceResponsePartitionProduceResponse(error_code=error, base_offset=base_offset)
    topic = t.ProduceResponseTopicProduceResponse(name="t", partition_responses=[partition])
    return t.ProduceResponse(responses=[topic])


def fetched(error: ErrorCode) -> t.FetchResponse:
    partition = t.FetchResponsePartitionData(error_code=error)
    topic = t.FetchResponseFetchableTopicResponse(topic="t", partitions=[partition])
    return t.FetchResponse(responses=[topic])


def created(error: ErrorCode) -> t.CreateTopicsResponse:
    result = t.CreateTopicsResponseCreatableTopicResult(name="t", error_code=error)
    return t.CreateTopicsResponse(topics=[result])


def test_a_refusal_that_passes_is_tried_again_at_the_new_leader() -> None:
    """The same bytes each time: by their sequence numbers the log knows them."""

    async def test() -> None:
        moved = produced(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        async with Script(moved, None, produced(ErrorCode.NONE, 7), produced(ErrorCode.NONE, 9)) as script:
            producer = Producer(script.client, TP, producer_id=5)
            assert await producer.send([b"a", b"b"]) == 7
            assert [node_id for node_id, _ in script.asked] == [1, 2, 1]
            bodies = [body for _, body in script.asked]
            assert bodies[0] == bodies[1] == bodies[2]
            assert await producer.send([b"c"]) == 9
            last = script.asked[-1][1]
            assert isinstance(last, t.ProduceRequest)
            records = last.topic_data[0].partition_data[0].records
            assert records is not None
            assert Batch(records).base_sequence == 2, "after the two before"

    run(test)


def test_metadata_of_some_topics_leaves_what_is_known_of_others() -> None:
    async def test() -> None:
        async with Script(produced(ErrorCode.NONE, 7)) as script:
            await script.client.metadata()
            assert not (await script.client.metadata(("other",))).partitions
            before = script.questions
            batch = encode_batch([Record(0, 0, None, b"v")])
            assert (await script.client.produce(TP, batch)).base_offset == 7
            assert script.questions == before

    run(test)


def test_a_refusal_that_does_not_pass_is_told_at_once() -> None:
    async def test() -> None:
        async with Script(produced(ErrorCode.RECORD_LIST_TOO_LARGE)) as script:
            with pytest.raises(RequestRefused, match="RECORD_LIST_TOO_LARGE"):
                await script.client.produce(TP, b"x")
            assert len(script.asked) == 1

    run(test)


def test_a_fetch_waits_no_longer_than_its_call() -> None:
    """Nor as long as the connection waits for an answer: to wait for records is no failure."""

    async def test() -> None:
        async with Script(*[fetched(ErrorCode.NONE)] * 3) as script:
            await script.client.fetch(TP, 0, max_wait_ms=60_000, timeout=2)
            await script.client.fetch(TP, 0, max_wait_ms=60_000, timeout=120)
            await script.client.fetch(TP, 0, max_wait_ms=60, timeout=2)
            waits = [body.max_wait_ms for _, body in script.asked if isinstance(body, t.FetchRequest)]
            assert 0 < waits[0] <= 1_800
            assert waits[1:] == [15_000, 60]

    run(test)


def test_a_read_waits_as_long_as_it_says() -> None:
    async def test() -> None:
        late = fetched(ErrorCode.NONE)
        late.responses[0].partitions[0].records = encode_batch([Record(0, 0, None, b"a")])
        async with Script(fetched(ErrorCode.NONE), fetched(ErrorCode.NONE), late) as script:
            found = await script.client.read("t", 0, 0, wait=60, timeout=2)
            assert [record.value for record in found] == [b"a"]

    run(test)


@pytest.mark.parametrize(
    "before",
    [
        None,
        produced(ErrorCode.REQUEST_TIMED_OUT),
        produced(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        produced(ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_a_refusal_after_an_unknown_outcome_tells_nothing(before: t.ProduceResponse | None) -> None:
    """The batch may be in the log. With its numbers the next batch would count as the same one."""

    async def test() -> None:
        too_old = produced(ErrorCode.INVALID_TIMESTAMP)
        given = (t.InitProducerIdResponse(producer_id=each) for each in (5, 6))
        first, second = given
        async with Script(first, before, too_old, second, produced(ErrorCode.NONE, 9)) as script:
            with pytest.raises(RequestUnanswered, match="INVALID_TIMESTAMP"):
                await script.client.append("t", b"a")
            assert (await script.client.append("t", b"b")).offset == 9
            last = script.asked[-1][1]
            assert isinstance(last, t.ProduceRequest)
            records = last.topic_data[0].partition_data[0].records
            assert records is not None
            assert (Batch(records).producer_id, Batch(records).base_sequence) == (6, 0)

    run(test)


def test_a_refusal_after_one_that_wrote_nothing_counts() -> None:
    async def test() -> None:
        few, large = produced(ErrorCode.NOT_ENOUGH_REPLICAS), produced(ErrorCode.MESSAGE_TOO_LARGE)
        async with Script(few, large) as script:
            with pytest.raises(RequestRefused, match="MESSAGE_TOO_LARGE"):
                await script.client.produce(TP, b"x")

    run(test)


@pytest.mark.parametrize("error", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_a_lost_sequence_is_told_also_after_an_unknown_outcome(error: ErrorCode) -> None:
    """A leader that had the batch would know it."""

    async def test() -> None:
        async with Script(None, produced(error)) as script:
            with pytest.raises(RequestRefused, match=error.name):
                await script.client.produce(TP, b"x")

    run(test)


def test_a_refusal_without_a_message_names_the_partition_and_the_offset() -> None:
    async def test() -> None:
        async with Script(fetched(ErrorCode.CORRUPT_MESSAGE)) as script:
            with pytest.raises(RequestRefused, match=f"^CORRUPT_MESSAGE: {TP}, offset 6$"):
                await script.client.fetch(TP, 6)

    run(test)


def test_the_last_refusal_is_told_when_time_is_up() -> None:
    async def test() -> None:
        moved = fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        async with Script(*[moved] * 99) as script:
            script.client._timeout_s = 0.2
            with pytest.raises(RequestRefused, match="NOT_LEADER"):
                await script.client.fetch(TP, 0)
            assert len(script.asked) > 1
            assert all(isinstance(body, t.FetchRequest) for _, body in script.asked)

    run(test)


def test_a_partition_without_a_leader_is_told_with_what_to_do() -> None:
    """Its only replica is in a log dir that failed, for instance; the next step is not at the client."""

    async def test() -> None:
        async with Script() as script:
            script.leader = -1
            with pytest.raises(TryAgain) as caught:
                await script.client._cluster.leader(TP, 0)
            assert str(caught.value.reason) == (
                "t-0 has no leader: none of the brokers in its ISR (1, 2) is up with a working log dir; "
                "start them, and first repair a disk that has failed"
            )

    run(test)


def test_the_controller_is_found_without_the_metadata_of_all_topics() -> None:
    """They may be thousands. They are asked for if the brokers do not agree: they tell who knows better."""

    async def test() -> None:
        async with Script(created(ErrorCode.NONE), created(ErrorCode.NONE)) as script:
            request = CreateTopicsRequest((NewTopic("t"),))
            await script.client.of_controller(request)
            assert script.in_full == 0
            script.controllers = {1: script.leader, 2: 9}
            await script.client.of_controller(request)
            assert script.in_full > 0

    run(test)


def test_the_controller_is_looked_for_and_asked_once() -> None:
    """NOT_CONTROLLER, for the whole or for each item, has done nothing; no answer may have done all."""

    async def test() -> None:
        refused = created(ErrorCode.NOT_CONTROLLER)
        async with Script(refused, created(ErrorCode.NONE), refused, None) as script:
            request = CreateTopicsRequest((NewTopic("t"),))
            answer = await script.client.of_controller(request)
            assert answer == CreateTopicsResponse({"t": CreateTopicsResult(ErrorCode.NONE)})
            with pytest.raises(RequestUnanswered):
                await script.client.of_controller(request)
            assert [node_id for node_id, _ in script.asked] == [1, 2, 1, 2]

    run(test)


class Answers:
    """The way into node 1 of a script without a connection; it answers requests for metadata only."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def serve(self, call: Call, body: Struct) -> None:
        assert isinstance(body, t.MetadataRequest)
        call.answer(self.script.metadata())


@pytest.mark.parametrize("in_process", [False, True])
def test_what_cannot_be_encoded_is_not_tried_again(in_process: bool) -> None:
    async def test() -> None:
        async with Script() as script:
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: script.client.of_controller(CreateTopicsRequest((NewTopic(None),))),  # type: ignore[arg-type]
                lambda: script.client.ask(script.addresses[1], MetadataRequest((5,))),  # type: ignore[arg-type]
            ]
            if in_process:
                way = InProcess(cast(Dispatch, Answers(script)), script.addresses[1], client_id="me")
                script.client._connections.reach(script.addresses[1], way)
            for call in calls:
                with pytest.raises(RequestFailed, match="cannot be encoded"):
                    await call()
            assert script.asked == []

    run(test)


def test_nobody_there_is_told() -> None:
    async def test() -> None:
        async with Script() as script:
            address = script.addresses[1]
        client = Client([address], timeout_s=0.2)
        who_and_why = f"no broker answers: failed to connect to {address}: .*Connect call failed"
        with pytest.raises(RequestUnanswered, match=who_and_why):
            await client.metadata()
        with pytest.raises(RequestUnanswered, match=who_and_why):
            await client.fetch(TP, 0)
        with pytest.raises(RequestUnanswered, match=who_and_why):
            await client.create_topic("u")
        await client.close()

    run(test)


def serving(**newest: int) -> t.ApiVersionsResponse:
    """What a broker says that serves these up to a version, and no other APIs."""
    apis = {api.name: api for api in APIS.values()}
    return t.ApiVersionsResponse(
        api_keys=[
            t.ApiVersionsResponseApiVersion(api_key=apis[name].key, min_version=0, max_version=version)
            for name, version in {"Metadata": 5, **newest}.items()
        ]
    )


def listed(**errors: int) -> t.ListOffsetsResponse:
    """The end of each partition of `t`, or the error that it has if that is negative."""
    partitions = [
        t.ListOffsetsResponseListOffsetsPartitionResponse(
            partition_index=int(name[1:]), error_code=max(-value, 0), offset=value
        )
        for name, value in errors.items()
    ]
    return t.ListOffsetsResponse(
        topics=[t.ListOffsetsResponseListOffsetsTopicResponse(name="t", partitions=partitions)]
    )


def test_a_broker_is_asked_in_a_version_that_it_serves() -> None:
    """Kafka 1.0, say: older than tags, leader epochs in fetches, and the durability level."""

    async def test() -> None:
        answers = [fetched(ErrorCode.NONE), produced(ErrorCode.NONE, 4), listed(p0=9)]
        async with Script(*answers) as script:
            script.versions = serving(Fetch=6, Produce=5, ListOffsets=2)
            await script.client.fetch(TP, 0, committed_only=True)
            assert (await script.client.produce(TP, b"x")).base_offset == 4
            assert await script.client.offset(TP, -1) == 9
            assert script.in_versions == [6, 5, 2]
            asked = script.asked[0][1]
            assert isinstance(asked, t.FetchRequest)
            assert (asked.topics[0].topic, asked.isolation_level) == ("t", 1)

    run(test)


def test_topics_are_fetched_by_name_from_a_broker_that_knows_newer_ways() -> None:
    async def test() -> None:
        async with Script(fetched(ErrorCode.NONE)) as script:
            script.versions = serving(Fetch=18)
            await script.client.fetch(TP, 0)
            assert script.in_versions == [12]

    run(test)


def test_a_broker_too_old_or_too_new_is_named() -> None:
    async def test() -> None:
        async with Script() as script:
            script.versions = serving(Fetch=3)
            with pytest.raises(RequestRefused, match="versions 0 to 3 of Fetch; this client knows 4 to 12"):
                await script.client.fetch(TP, 0)
            with pytest.raises(RequestRefused, match=r"^UNSUPPORTED_VERSION.* does not serve ListOffsets$"):
                await script.client.offset(TP, -1)

    run(test)


def test_versions_are_asked_for_again_after_a_connection_broke() -> None:
    """The broker that comes back may be another one."""

    async def test() -> None:
        async with Script(None, fetched(ErrorCode.NONE)) as script:
            script.versions, script.versions_after = serving(Fetch=6), serving(Fetch=11)
            await script.client.metadata()
            await script.client.fetch(TP, 0)
            assert [node_id for node_id, _ in script.asked] == [1, 2], "the first hung up"
            moved = fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            script.answers = [moved, moved, fetched(ErrorCode.NONE)]
            await script.client.fetch(TP, 0)
            assert [node_id for node_id, _ in script.asked[2:]] == [2, 2, 1]
            assert script.in_versions[0] == 6
            assert script.in_versions[-1] == 11

    run(test)


def test_a_reader_says_which_leadership_it_knows() -> None:
    """Who was deposed and does not know it must not answer for the partition."""

    async def test() -> None:
        async with Script(fetched(ErrorCode.FENCED_LEADER_EPOCH), fetched(ErrorCode.NONE)) as script:
            await script.client.fetch(TP, 0)
            epochs = [
                body.topics[0].partitions[0].current_leader_epoch
                for _, body in script.asked
                if isinstance(body, t.FetchRequest)
            ]
            assert epochs == [1, 2], "it learned of the new one"

    run(test)


def test_offsets_of_many_are_asked_for_until_all_are_known() -> None:
    """What one answer has is not asked for again; only what is refused for the moment is."""

    async def test() -> None:
        not_yet = -ErrorCode.OFFSET_NOT_AVAILABLE
        async with Script(listed(p0=5, p1=not_yet), None, listed(p1=7)) as script:
            script.partitions = 2
            wanted = {TopicPartition("t", 0): -1, TopicPartition("t", 1): -1}
            found = await script.client.offsets(wanted, committed_only=True)
            assert found == {TopicPartition("t", 0): 5, TopicPartition("t", 1): 7}
            bodies = [body for _, body in script.asked if isinstance(body, t.ListOffsetsRequest)]
            asked = [[each.partition_index for each in body.topics[0].partitions] for body in bodies]
            assert asked == [[0, 1], [1], [1]]
            assert {body.isolation_level for body in bodies} == {1}

    run(test)


def test_an_offset_that_is_being_changed_is_asked_for_again() -> None:
    async def test() -> None:
        def committed(error: ErrorCode, offset: int = -1) -> t.OffsetFetchResponse:
            partition = t.OffsetFetchResponsePartition(error_code=error, committed_offset=offset)
            return t.OffsetFetchResponse(
                topics=[t.OffsetFetchResponseTopic(name="t", partitions=[partition])]
            )

        async with Script() as script:
            host, port = script.addresses[1]
            found = t.FindCoordinatorResponse(node_id=1, host=host, port=port)
            unstable = committed(ErrorCode.UNSTABLE_OFFSET_COMMIT)
            script.answers = [found, unstable, found, committed(ErrorCode.NONE, 8)]
            assert await script.client.committed("readers", [TP]) == {TP: 8}

    run(test)


def test_a_groups_progress_is_told_to_its_coordinator() -> None:
    async def test() -> None:
        def found(node_id: int) -> t.FindCoordinatorResponse:
            host, port = script.addresses[node_id]
            return t.FindCoordinatorResponse(node_id=node_id, host=host, port=port)

        def committed(error: ErrorCode) -> t.OffsetCommitResponse:
            partitions = [t.OffsetCommitResponsePartition(error_code=error)]
            topics = [t.OffsetCommitResponseTopic(name="t", partitions=partitions)]
            return t.OffsetCommitResponse(topics=topics)

        async with Script() as script:
            script.answers = [
                t.FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE),
                found(1),
                committed(ErrorCode.NOT_COORDINATOR),
                found(2),
                committed(ErrorCode.NONE),
            ]
            await script.client.commit("readers", {TP: 8})
            node_id, body = script.asked[-1]
            assert isinstance(body, t.OffsetCommitRequest)
            assert (node_id, body.group_id, body.generation_id_or_member_epoch) == (2, "readers", -1)
            assert body.topics[0].partitions[0].committed_offset == 8
            script.answers = [found(1), committed(ErrorCode.UNKNOWN_MEMBER_ID)]
            with pytest.raises(RequestRefused, match=r"UNKNOWN_MEMBER_ID: offset of group readers for t-0"):
                await script.client.commit("readers", {TP: 9})

    run(test)


def test_a_partition_that_is_not_there_is_told_soon() -> None:
    """It may have been made a moment ago; but no client waits until its time is up."""

    async def test() -> None:
        async with Script() as script:
            other = TopicPartition("u", 0)
            works = (
                script.client.fetch(other, 0, timeout=60),
                script.client.offset(other, -1, timeout=60),
                script.client.durability(*other, 0, timeout=60),
                script.client.wait_for(*other, 0, timeout=60),
            )
            for told in await asyncio.gather(*works, return_exceptions=True):
                assert isinstance(told, RequestRefused)
                assert "partition u-0 does not exist" in str(told)

    run(test)


def test_who_has_just_started_is_not_believed() -> None:
    """It knows of no brokers and no topics yet; that is no news of a cluster that has lost them."""

    async def test() -> None:
        async with Script() as script:
            addresses, script.addresses = script.addresses, {}
            with pytest.raises(RequestUnanswered, match=r"no broker answers: .* gave no metadata in time"):
                await script.client.metadata()
            script.addresses = addresses
            assert TP in (await script.client.metadata()).partitions

    run(test)

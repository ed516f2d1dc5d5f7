"""Nodes over sockets and timers: what the engine asks for is carried out, and what a pause hides is asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from logstore.broker.blocking import BlockingClient
from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.broker.limits import Limits
from logstore.broker.node_messages import to_wire
from logstore.broker.producing import Producer
from logstore.broker.runtime import Asked
from logstore.broker.topic_creation import MOST_QUEUED
from logstore.broker.wire import interbroker as w
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch, walk
from logstore.format.record import Record
from logstore.log.partition_log import PartitionLog
from logstore.replication.config import NodeConfig
from logstore.replication.durability import Durability
from logstore.replication.effects import Effect, Halt
from logstore.replication.messages import (
    BEING_DELETED,
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderAndIsrRequest,
    NewTopic,
    ProduceRequest,
    ProduceResponse,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from logstore.replication.node import Node
from logstore.testing.disks.faulty import Fault, FaultyDisk
from tests.broker.asking import Asker
from tests.broker.nodes import Nodes

SESSION_MS = 6_000


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(bounded())


def batch(*values: bytes) -> bytes:
    return encode_batch([Record(number, 0, None, value) for number, value in enumerate(values)])


async def values(nodes: Nodes, topic_partition: TopicPartition) -> list[bytes | None]:
    """Everything that a consumer can read."""
    found: list[bytes | None] = []
    while True:
        result = await nodes.client.fetch(topic_partition, len(found), max_wait_ms=0)
        if not len(result.records):
            return found
        found += [record.value for each in walk(result.records) for record in each.records()]


def test_three_nodes_elect_replicate_and_survive_their_leader() -> None:
    """All of it once: registration, controller, topic, produce, fetches, a death, a return."""

    async def test() -> None:
        async with Nodes() as nodes:
            tp = await nodes.create_topic("t", (1, 2, 0))
            producer = Producer(nodes.client, tp, producer_id=1)
            assert await producer.send([b"a", b"b"]) == 0
            await nodes.kill(1)
            assert await producer.send([b"c"]) == 2
            assert nodes.leader(tp) == 2
            await nodes.start(1)
            await nodes.until(lambda: nodes.isr(tp) == {0, 1, 2})
            assert await producer.send([b"d"]) == 3
            assert await values(nodes, tp) == [b"a", b"b", b"c", b"d"]
            await nodes.until(lambda: set(nodes.ends(tp).values()) == {4})

    run(test)


def test_synced_acks_follow_the_syncs_of_threads() -> None:
    """SYNCED durability: Sync goes to a thread and comes back as SyncDone; nothing else waits for it."""

    async def test() -> None:
        base = NodeConfig(node_id=0, durability=Durability.SYNCED, replica_fetch_wait_max_ms=50)
        async with Nodes(base=base) as nodes:
            tp = await nodes.create_topic("t", (0, 1, 2))
            for number in range(5):
                assert (await nodes.client.produce(tp, batch(b"x"))).base_offset == number
            log = nodes.running[0].node.replicas.partitions[tp].log
            assert log.recovery_point == 5

    run(test)


@pytest.mark.parametrize("acks", [0, 1])
def test_acks_0_and_1(acks: int) -> None:
    async def test() -> None:
        async with Nodes() as nodes:
            tp = await nodes.create_topic("t", (0, 1, 2))
            await nodes.client.produce(tp, batch(b"x"), acks=acks)
            await nodes.until(lambda: set(nodes.ends(tp).values()) == {1})

    run(test)


def test_a_refusal_that_does_not_pass_is_told() -> None:
    async def test() -> None:
        async with Nodes(1) as nodes:
            tp = await nodes.create_topic("t", (0,))
            with pytest.raises(RequestRefused) as caught:
                await nodes.client.produce(tp, batch(b"x")[:-1])
            assert caught.value.error is ErrorCode.CORRUPT_MESSAGE

    run(test)


@pytest.mark.parametrize(
    "body",
    [
        w.LeaderAndIsrRequest(controller_id=-1, controller_epoch=99),
        w.UpdateMetadataRequest(controller_id=5, controller_epoch=99, receiver_id=1),
        w.StopReplicaRequest(controller_id=5, controller_epoch=99, receiver_id=1),
        w.ControlledShutdownRequest(broker_id=-1),
        t.AlterPartitionRequest(broker_id=-7),
    ],
    ids=lambda body: type(body).__name__,
)
def test_a_request_that_comes_the_wrong_way_ends_its_connection(body: Struct) -> None:
    """P6. From nobody, or for another broker; the node is none the worse for being told what to do."""

    async def test() -> None:
        async with Nodes(1) as nodes, Asker(nodes.addresses[0]) as stranger:
            tp = await nodes.create_topic("t", (0,))
            stranger.send(body, API_OF[type(body)].latest)
            assert await stranger.is_cut_off()
            assert (await nodes.client.produce(tp, batch(b"x"))).base_offset == 0

    run(test)


@pytest.mark.parametrize(
    "wrong",
    [
        {"controller_epoch": 2**31 - 1, "broker_epoch": -1, "topic_ids": {}},
        {"controller_epoch": 2**31 - 1},
        {"broker_epoch": -1},
        {"topic_ids": {}},
    ],
    ids=lambda wrong: "+".join(wrong),
)
def test_a_forged_deletion_deletes_nothing(wrong: dict[str, Any]) -> None:
    """Sent to every broker by whoever reaches its port, with nothing right, or all but one thing."""

    async def test() -> None:
        async with Nodes(3) as nodes:
            tp = await nodes.create_topic("t", (0, 1, 2))
            await nodes.client.produce(tp, batch(b"x"))
            await nodes.until(lambda: set(nodes.ends(tp).values()) == {1})
            for node_id, runtime in nodes.running.items():
                replicas = runtime.node.replicas
                order = {tp: StopReplicaPartition(BEING_DELETED, delete=True)}
                ids = {"t": replicas.logs.topic_id(tp) or ""}
                honest = StopReplicaRequest(5, replicas.controller_epoch, replicas.broker_epoch, order, ids)
                forged: Any = to_wire(replace(honest, **wrong))
                forged.receiver_id = node_id
                async with Asker(nodes.addresses[node_id]) as stranger:
                    answer = await stranger.ask(forged, API_OF[type(forged)].latest)
                assert 0 not in [each.error_code for each in answer.partition_errors]
            assert nodes.ends(tp) == {0: 1, 1: 1, 2: 1}
            assert (await nodes.client.produce(tp, batch(b"y"))).base_offset == 1

    run(test)


def test_orders_of_the_controller_keep_their_numbers() -> None:
    """By which a late one is known: a correlation id has 31 bits, and a node uses them up in weeks."""

    async def test() -> None:
        async with Nodes(2) as nodes:
            controller = nodes.controller()
            node = nodes.running[controller].node
            node._ids = count(2**40)
            await nodes.create_topic("t", (0, 1))
            other = nodes.running[1 - controller].node.replicas
            await nodes.until(lambda: other.newest_orders.get(UpdateMetadataRequest, (-1, -1))[1] > 2**40)
            assert other.newest_orders[LeaderAndIsrRequest][1] > 2**40

    run(test)


def test_a_clean_stop_leaves_its_mark_and_an_abandoned_node_none() -> None:
    async def test() -> None:
        async with Nodes(1) as nodes:
            await nodes.create_topic("t", (0,))
            await nodes.stop(0)
            assert (await nodes.start(0)).node.logs.was_clean
            await nodes.kill(0)
            assert not (await nodes.start(0)).node.logs.was_clean

    run(test)


def test_a_stop_that_is_hurried_waits_for_no_controller_and_is_clean() -> None:
    """Without the store no leadership moves: the departure alone would take minutes."""

    async def test() -> None:
        async with Nodes(2) as nodes:
            await nodes.create_topic("t", (0, 1))
            controller = nodes.controller()
            other = 1 - controller
            nodes.shared.is_up = False
            runtime = nodes.running[other]
            stopping = asyncio.ensure_future(nodes.stop(other))
            await nodes.until(lambda: runtime.node.departure is not None)
            assert not stopping.done()
            runtime.hurry()
            async with asyncio.timeout(30):
                await stopping
            nodes.shared.return_()
            assert (await nodes.start(other)).node.logs.was_clean

    run(test)


@pytest.mark.parametrize("loses_power", [False, True])
def test_the_only_broker_leads_again_after_a_kill_but_not_after_a_power_cut(loses_power: bool) -> None:
    """What it had written is in the page cache of a machine that goes on. Else it may have lost what it alone
    had, and somebody has to say that this is accepted."""

    async def test() -> None:
        nodes = Nodes(1)
        nodes.boot_id = "one"
        async with nodes:
            topic_partition = await nodes.create_topic("t", (0,))
            await nodes.kill(0)
            if loses_power:
                nodes.boot_id = "two"
            runtime = await nodes.start(0)
            assert runtime.node.logs.was_clean is not loses_power
            known = runtime.node.replicas.metadata
            await nodes.until(lambda: topic_partition in known.partitions)
            assert known.partitions[topic_partition].leader == (-1 if loses_power else 0)

    run(test)


def test_a_bug_in_the_last_turn_leaves_no_mark_of_a_clean_stop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a turn was carried out: nobody can say what the logs hold of it."""

    async def test() -> None:
        nodes = Nodes(1)
        nodes.boot_id = "one"
        async with nodes:
            await nodes.create_topic("t", (0,))
            runtime = nodes.running[0]

            def bug(now_ms: int) -> list[object]:
                raise AssertionError("a promise of ours")

            monkeypatch.setattr(runtime.node, "stop", bug)
            await runtime.stop()
            with pytest.raises(AssertionError, match="a promise of ours"):
                await runtime.ended
            await nodes.kill(0)
            assert not (await nodes.start(0)).node.logs.was_clean

    with caplog.at_level(logging.CRITICAL):
        run(test)


def test_a_stop_lets_the_store_and_the_clients_know() -> None:
    async def test() -> None:
        async with Nodes(2) as nodes:
            tp = await nodes.create_topic("t", (1, 0))
            wait = FetchRequest(-1, 60_000, 1, 1, {tp: FetchPartition(0, 1)})
            waiting = asyncio.create_task(nodes.client.ask(nodes.addresses[1], wait))
            fetches = nodes.running[1].node.replicas.waiting.fetches
            await nodes.until(lambda: fetches.deadline_ms is not None)
            await nodes.stop(1)
            # Answered that it does not lead any more, or cut off: not left waiting.
            try:
                answer = await waiting
            except RequestUnanswered:
                pass
            else:
                assert isinstance(answer, FetchResponse)
                assert answer.partitions[tp].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            await nodes.until(lambda: nodes.leader(tp) == 0)

    run(test)


def test_halt_and_bugs_end_the_node(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing that comes after a broken promise of our own may be answered."""

    async def test() -> None:
        async with Nodes(2) as nodes:
            runtime = nodes.running[0]
            runtime._turn(lambda now_ms: [Halt("no disk is left")])
            assert await runtime.ended == "no disk is left"
            await nodes.kill(0)
            runtime = nodes.running[1]

            def bug(now_ms: int) -> list[object]:
                raise AssertionError("a promise of ours")

            runtime._turn(bug)  # type: ignore[arg-type]
            with pytest.raises(AssertionError, match="a promise of ours"):
                await runtime.ended
            await nodes.kill(1)

    with caplog.at_level(logging.CRITICAL):
        run(test)


def test_a_sync_that_fails_is_never_acknowledged() -> None:
    """The error of another thread comes back as an event; with its only log dir gone the node halts."""

    async def test() -> None:
        base = NodeConfig(node_id=0, durability=Durability.SYNCED)
        nodes = Nodes(1, base=base, limits=Limits(request_timeout_ms=1_000))
        disk = FaultyDisk(MemoryDisk())
        nodes.disks[0] = disk
        async with nodes:
            tp = await nodes.create_topic("t", (0,))
            disk.inject(Fault(operation="sync", path=lambda path: "t-0" in path))
            waiting = asyncio.create_task(
                nodes.client.ask(nodes.addresses[0], ProduceRequest({tp: batch(b"x")}, -1, 1_000))
            )
            assert "data" in await nodes.running[0].ended
            await nodes.kill(0)
            try:
                answer = await waiting
            except RequestUnanswered:
                pass
            else:
                assert isinstance(answer, ProduceResponse)
                assert answer.partitions[tp].error is ErrorCode.KAFKA_STORAGE_ERROR

    run(test)


def test_a_sync_that_fails_as_no_disk_does_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug on a thread is a bug: left there, the partition would wait for its sync for ever."""

    async def test() -> None:
        base = NodeConfig(node_id=0, durability=Durability.SYNCED)
        async with Nodes(1, base=base) as nodes:
            tp = await nodes.create_topic("t", (0,))

            def bug(log: PartitionLog, up_to: int) -> None:
                raise AssertionError("a promise of ours")

            monkeypatch.setattr(PartitionLog, "flush", bug)
            waiting = asyncio.create_task(nodes.client.produce(tp, batch(b"x")))
            with pytest.raises(AssertionError, match="a promise of ours"):
                await nodes.running[0].ended
            waiting.cancel()
            await nodes.kill(0)

    run(test)


def test_a_busy_node_looks_for_its_next_deadline_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding it after each wake-up took a tenth of a produce; and no deadline is forgotten meanwhile."""
    found: list[int | None] = []
    find: property = vars(Node)["deadline_ms"]

    def counted(node: Node) -> int | None:
        found.append(find.__get__(node))
        return found[-1]

    async def test() -> None:
        async with Nodes(1) as nodes:
            tp = await nodes.create_topic("t", (0,))
            monkeypatch.setattr(Node, "deadline_ms", property(counted))
            began_ms = nodes.clocks[0]()
            for _ in range(500):
                await nodes.client.produce(tp, batch(b"x"))
            most = (nodes.clocks[0]() - began_ms) // 5 + 1
            assert 0 < len(found) <= most
            # A fetch that has to wait comes in the middle of such a while, and still ends in time.
            for _ in range(5):
                await nodes.client.produce(tp, batch(b"x"))
                result = await nodes.client.fetch(tp, nodes.ends(tp)[0], max_wait_ms=7)
                assert not result.records

    run(test)


def test_a_request_that_is_not_wanted_any_more_when_its_turn_comes_is_refused() -> None:
    """What it goes by has changed while it stood in line; what goes by the engine's word stands there too."""

    async def test() -> None:
        async with Nodes(1) as nodes:
            tp = await nodes.create_topic("t", (0,))
            runtime, told = nodes.running[0], list[object]()

            def ask(data: bytes, *, is_wanted: bool) -> None:
                asked = Asked(lambda answer: told.append(data), told.append, lambda: is_wanted)
                runtime.ask(ProduceRequest({tp: batch(data)}, 1, 1_000), asked)

            def in_turn(now_ms: int) -> list[Effect]:
                ask(b"a", is_wanted=True)
                runtime.in_line(lambda: told.append("in line"), told.append)
                ask(b"b", is_wanted=False)
                ask(b"c", is_wanted=True)
                return []

            runtime._turn(in_turn)
            assert not told
            await nodes.until(lambda: len(told) == 4)
            assert told == [b"a", "in line", "the request is no longer wanted", b"c"]
            assert await values(nodes, tp) == [b"a", b"c"]

    run(test)


def test_what_stands_in_line_when_the_node_stops_is_refused() -> None:
    async def test() -> None:
        async with Nodes(1) as nodes:
            runtime, told = nodes.running[0], list[str]()

            def in_turn(now_ms: int) -> list[Effect]:
                runtime.in_line(lambda: told.append("done"), told.append)
                return []

            runtime._turn(in_turn)
            await nodes.kill(0)
            runtime.in_line(lambda: told.append("done"), told.append)
            assert told == ["this broker is stopping"] * 2

    run(test)


def test_a_stop_with_many_topics_waiting_for_their_creation_is_clean() -> None:
    """Each of them is asked for when the one before it got no answer: not from within that."""

    async def test() -> None:
        async with Nodes(1) as nodes:
            await nodes.create_topic("t", (0,))
            creation = nodes.brokers[0].services.topic_creation
            for number in range(MOST_QUEUED):
                creation.want(NewTopic(f"t{number}", 1, 1))
            assert creation.queued > 0.9 * MOST_QUEUED
            await nodes.stop(0)
            assert (await nodes.start(0)).node.logs.was_clean

    run(test)


class TestAPause:
    """SIGSTOP, then SIGCONT: the session may be over, and the sockets hold requests (R7, C11)."""

    @staticmethod
    async def paused(nodes: Nodes, node_id: int, acks: int) -> tuple[TopicPartition, asyncio.Task[object]]:
        """A leader that wakes after three sessions' time with a produce in its socket, the store silent."""
        tp = await nodes.create_topic("t", (node_id, *(each for each in nodes.running if each != node_id)))
        nodes.shared.is_up = False
        nodes.clocks[node_id].jumped_ms += 3 * SESSION_MS
        body = ProduceRequest({tp: batch(b"late")}, acks, 1_000)
        task: asyncio.Task[object] = asyncio.create_task(nodes.client.ask(nodes.addresses[node_id], body))
        runtime = nodes.running[node_id]
        await nodes.until(lambda: runtime._is_in_doubt and bool(runtime._inbox))
        assert not task.done(), "nothing is answered before the store has spoken"
        assert nodes.running[node_id].node.replicas.partitions[tp].log.log_end_offset == 0
        return tp, task

    @pytest.mark.parametrize("acks", [1, -1])
    def test_r7_a_session_that_is_over_is_the_first_thing_it_learns(self, acks: int) -> None:
        """Others lead by then: what waited is refused, and not a byte of it written."""

        async def test() -> None:
            base = NodeConfig(node_id=0, zookeeper_session_timeout_ms=SESSION_MS)
            async with Nodes(base=base) as nodes:
                tp, task = await self.paused(nodes, 1, acks)
                session_id = nodes.running[1].node.session_id
                assert session_id is not None
                owner = nodes.shared.end(session_id)
                assert owner is not None
                nodes.shared.return_()
                await nodes.until(lambda: nodes.leader(tp) in (0, 2))
                assert not task.done(), "the store's refusal of the question is not yet the word of the end"
                nodes.shared.ends[session_id] = owner
                nodes.shared.expire(session_id)
                answer = await task
                assert isinstance(answer, ProduceResponse)
                assert answer.partitions[tp].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert await values(nodes, tp) == []

        run(test)

    def test_a_session_that_lives_lets_it_go_on(self) -> None:
        """The store was asked a question that only a live session gets answered."""

        async def test() -> None:
            base = NodeConfig(node_id=0, zookeeper_session_timeout_ms=SESSION_MS)
            async with Nodes(base=base) as nodes:
                tp, task = await self.paused(nodes, 0, -1)
                nodes.shared.return_()
                answer = await task
                assert isinstance(answer, ProduceResponse)
                assert answer.partitions[tp].error is ErrorCode.NONE

        run(test)

    def test_a_question_that_got_lost_is_asked_again(self) -> None:
        async def test() -> None:
            base = NodeConfig(node_id=0, zookeeper_session_timeout_ms=SESSION_MS)
            async with Nodes(1, base=base) as nodes:
                tp = await nodes.create_topic("t", (0,))
                session_id = nodes.running[0].node.session_id
                assert session_id is not None
                nodes.shared.ends[session_id].lose_replies = 2
                nodes.clocks[0].jumped_ms += SESSION_MS
                assert (await nodes.client.produce(tp, batch(b"x"))).base_offset == 0
                assert nodes.shared.ends[session_id].lose_replies == 0

        run(test)

    def test_a_store_that_is_gone_stops_no_node_that_runs(self) -> None:
        """Sessions cannot run out where nobody counts; Kafka's brokers go on as well."""

        async def test() -> None:
            base = NodeConfig(node_id=0, zookeeper_session_timeout_ms=SESSION_MS)
            async with Nodes(base=base) as nodes:
                tp = await nodes.create_topic("t", (0, 1, 2))
                nodes.shared.is_up = False
                for number in range(3):
                    assert (await nodes.client.produce(tp, batch(b"x"))).base_offset == number
                nodes.shared.return_()

        run(test)


def test_a_session_that_expires_ends_leaderships_and_begins_anew() -> None:
    async def test() -> None:
        async with Nodes() as nodes:
            tp = await nodes.create_topic("t", (2, 0, 1))
            before = nodes.running[2].node.broker_epoch
            session_id = nodes.running[2].node.session_id
            assert session_id is not None
            nodes.shared.expire(session_id)
            await nodes.until(lambda: nodes.running[2].node.broker_epoch > before)
            assert (await nodes.client.produce(tp, batch(b"x"))).base_offset == 0
            await nodes.until(lambda: nodes.isr(tp) == {0, 1, 2})

    run(test)


def test_a_program_without_a_loop_has_a_client_that_waits() -> None:
    async def test() -> None:
        async with Nodes() as nodes:
            tp = await nodes.create_topic("t", (0, 1, 2))

            def program() -> list[bytes | None]:
                with BlockingClient(list(nodes.addresses.values())) as client:
                    assert client.metadata(("t",)).partitions.keys() == {tp}
                    assert client.produce(tp, batch(b"a")).base_offset == 0
                    answer = client.of_controller(CreateTopicsRequest((NewTopic("t"),)))
                    assert isinstance(answer, CreateTopicsResponse)
                    assert answer.topics["t"].error is ErrorCode.TOPIC_ALREADY_EXISTS
                    records = client.fetch(tp, 0).records
                    return [record.value for each in walk(records) for record in each.records()]

            assert await asyncio.to_thread(program) == [b"a"]

    run(test)


def test_one_disk_is_one_nodes() -> None:
    """The helper's disks are apart, or the tests above would show nothing."""
    disks: list[Disk] = list(Nodes().disks.values())
    assert len({id(disk) for disk in disks}) == 3

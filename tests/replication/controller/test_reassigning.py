"""Reassignment by the controller: valid requests, writes and announcements; brokers only answer."""

from __future__ import annotations

import json

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.effects import Client
from logstore.replication.messages import (
    AdminResult,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    LeaderAndIsrRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    RequestBody,
    ResponseBody,
    StopReplicaRequest,
    StopReplicaResponse,
)
from logstore.replication.metastore import layout, operations
from logstore.replication.metastore.operations import Create, Delete, Get, Set
from tests.replication.controller.world import World, topic

TP = TopicPartition("t", 0)


def world(*replicas: tuple[int, ...], brokers: int = 6) -> World:
    made = World(brokers)
    made.create(topic(*(replicas or ((1, 2, 3),))))
    return made


def reassign(made: World, target: tuple[int, ...] | None, each: TopicPartition = TP) -> ErrorCode:
    body = made.ask(AlterPartitionReassignmentsRequest({each: target}))
    assert isinstance(body, AlterPartitionReassignmentsResponse)
    assert body.error is ErrorCode.NONE
    return body.partitions[each].error


def ongoing(made: World) -> dict[TopicPartition, OngoingReassignment]:
    body = made.ask(ListPartitionReassignmentsRequest())
    assert isinstance(body, ListPartitionReassignmentsResponse)
    return dict(body.partitions)


def node(made: World, name: str = "t") -> layout.TopicAssignment:
    return layout.parse_topic(made.admin(Get(layout.topic_path(name))).data)


def write_requests(made: World, text: str | bytes) -> None:
    data = text.encode() if isinstance(text, str) else text
    path = layout.REASSIGNMENT_PATH
    stat = made.admin(Get(path)).stat
    made.admin(Set(path, data, stat.version) if stat else Create(path, data, make_parents=True))
    made.run()


def requests(made: World) -> list[tuple[int, list[int]]] | None:
    read = made.admin(Get(layout.REASSIGNMENT_PATH))
    if read.stat is None:
        return None
    return [(each["partition"], each["replicas"]) for each in json.loads(read.data)["partitions"]]


def entry(partition: int, *replicas: int, name: str = "t") -> str:
    return json.dumps({"topic": name, "partition": partition, "replicas": list(replicas)})


def listing(*entries: str) -> str:
    return f'{{"version":1,"partitions":[{",".join(entries)}]}}'


def stopped(made: World, broker_id: int) -> list[tuple[int, bool]]:
    """(leader epoch, delete) of each StopReplica that the broker has received for our partition."""
    received = made.members[broker_id].broker.received
    orders = [body.partitions[TP] for body in received if isinstance(body, StopReplicaRequest)]
    return [(order.leader_epoch, order.delete) for order in orders]


class TestWholeCourse:
    def test_begin_wait_end_leave(self) -> None:
        made = world()
        assert reassign(made, (4, 5, 6)) is ErrorCode.NONE
        assert ongoing(made) == {TP: OngoingReassignment((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))}
        assert made.view() == (1, 1, (1, 2, 3))
        for broker_id in range(1, 7):
            told = made.members[broker_id].broker.states[TP]
            assert (told.replicas, told.adding_replicas, told.removing_replicas) == (
                (4, 5, 6, 1, 2, 3),
                (4, 5, 6),
                (1, 2, 3),
            )
        made.alter(1, (1, 2, 3, 4, 5))
        assert TP in ongoing(made)
        made.alter(1, (1, 2, 3, 4, 5, 6))
        assert made.view() == (4, 2, (4, 5, 6))
        assert node(made) == layout.TopicAssignment(node(made).topic_id, {0: (4, 5, 6)})
        assert ongoing(made) == {}
        for broker_id in (1, 2, 3):
            assert stopped(made, broker_id) == [(2, True)]
            assert TP not in made.members[broker_id].broker.states
        for broker_id in (4, 5, 6):
            assert made.members[broker_id].broker.states[TP].replicas == (4, 5, 6)
            assert stopped(made, broker_id) == []
            assert made.members[broker_id].broker.metadata[TP].leader == 4

    def test_one_replica_moves(self) -> None:
        """reassign {c} -> {o}, both live: ends AR {o}; two epochs here, Kafka takes three."""
        made = world((1,), brokers=2)
        reassign(made, (2,))
        made.alter(1, (1, 2))
        assert made.view() == (2, 2, (2,))
        assert node(made).partitions == {0: (2,)}

    def test_a_dead_target(self) -> None:
        """reassign to a dead broker: the request stays; continues when it starts."""
        made = world((1,), brokers=3)
        made.stop(3)
        made.run()
        write_requests(made, listing(entry(0, 3)))
        assert made.view() == (1, 1, (1,))
        assert requests(made) == [(0, [3])]
        made.start(3)
        made.run()
        assert made.members[3].broker.states[TP].replicas == (3, 1)
        made.alter(1, (1, 3))
        assert made.view() == (3, 2, (3,))
        assert requests(made) is None

    def test_another_order(self) -> None:
        """same-set reassignment, other order: AR order updated, used by preferred election"""
        made = world()
        assert reassign(made, (3, 1, 2)) is ErrorCode.NONE
        assert node(made).partitions == {0: (3, 1, 2)}
        assert ongoing(made) == {}
        assert made.view() == (1, 0, (1, 2, 3))
        context = made.active.controller.context
        assert context is not None
        assert context.replicas[TP] == (3, 1, 2)
        assert made.members[5].broker.metadata[TP].replicas == (3, 1, 2)

    def test_more_replicas(self) -> None:
        made = world((1,))
        reassign(made, (1, 2, 3))
        made.alter(1, (1, 2))
        assert TP in ongoing(made)
        made.alter(1, (1, 2, 3))
        assert node(made).partitions == {0: (1, 2, 3)}
        assert made.view() == (1, 2, (1, 2, 3))
        assert not any(stopped(made, broker_id) for broker_id in range(1, 7))

    def test_fewer_replicas(self) -> None:
        made = world()
        reassign(made, (2,))
        assert made.view() == (2, 1, (2,))
        assert node(made).partitions == {0: (2,)}
        assert [bool(stopped(made, broker_id)) for broker_id in (1, 2, 3)] == [True, False, True]

    def test_nothing_to_do(self) -> None:
        made = world()
        before = made.admin(Get(layout.topic_path("t")))
        assert reassign(made, (1, 2, 3)) is ErrorCode.NONE
        assert made.admin(Get(layout.topic_path("t"))) == before

    def test_a_partition_without_a_state(self) -> None:
        """None of its replicas was ever alive: the new ones begin."""
        made = World(3)
        made.stop(3)
        made.run()
        made.create_by_tool(topic((3,)))
        assert made.state() is None
        assert reassign(made, (1, 2)) is ErrorCode.NONE
        assert made.view() == (1, 1, (1, 2))
        assert node(made).leaving_replicas == {0: (3,)}
        made.start(3)
        made.run()
        assert node(made).leaving_replicas == {}

    def test_a_failed_election_waits_for_a_living_target(self) -> None:
        """The whole target is in the ISR and dead: the first of it to start ends the reassignment."""
        made = world((1, 2), brokers=4)
        reassign(made, (3,))
        made.kill(3)
        made.alter(1, (1, 2, 3))  # its session lives
        assert made.view() == (3, 2, (3,))
        made.expire(3)
        made.run()
        assert made.view() == (-1, 3, (3,))

    def test_a_broker_start_may_end_it(self) -> None:
        """All were in sync when all died; the target returns, is elected, and that is the end."""
        made = world((2,), brokers=3)
        reassign(made, (3,))
        epochs = tuple(made.members[each].broker.epoch for each in (2, 3))
        for each in (2, 3):
            made.stop(each)
        made.run()
        state = layout.LeaderAndIsr(-1, 5, (2, 3), controller_epoch=1, isr_broker_epochs=epochs)
        made.admin(Set(layout.partition_state_path(TP), layout.encode_state(state), -1))
        made.admin(Delete(layout.CONTROLLER_PATH))
        made.run()
        assert made.view() == (-1, 5, (2, 3))
        made.start(3)
        made.run()
        assert made.view() == (3, 7, (3,))
        assert ongoing(made) == {}
        assert node(made).leaving_replicas == {0: (2,)}


class TestRefusals:
    @pytest.mark.parametrize(
        ("target", "error"),
        [
            ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ((1, -2), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ((1, 77), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ((1, 6), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ],
        ids=["empty", "duplicate", "negative", "unknown broker", "dead broker", "nothing to call off"],
    )
    def test_what_makes_no_sense(self, target: tuple[int, ...] | None, error: ErrorCode) -> None:
        made = world()
        made.stop(6)
        made.run()
        before = made.admin(Get(layout.topic_path("t")))
        assert reassign(made, target) is error
        assert made.admin(Get(layout.topic_path("t"))) == before

    def test_unknown_partitions(self) -> None:
        made = world()
        assert reassign(made, (4,), TopicPartition("t", 7)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert reassign(made, None, TopicPartition("u", 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_s67_of_a_topic_that_is_to_be_deleted(self) -> None:
        """The deletion waits for the reassignment; a new one is refused, calling it off lets the topic go."""
        made = world()
        reassign(made, (4, 5, 6))
        made.ask(DeleteTopicsRequest(("t",)))
        assert reassign(made, (1, 2)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        write_requests(made, listing(entry(0, 1, 2)))
        assert requests(made) is None
        assert TP in ongoing(made)
        assert reassign(made, None) is ErrorCode.NONE
        assert made.admin(Get(layout.topic_path("t"))).stat is None
        assert reassign(made, None) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not any(TP in member.broker.states for member in made.members.values())

    def test_a_dead_member_that_stays_is_no_objection(self) -> None:
        made = world()
        made.stop(3)
        made.run()
        assert reassign(made, (1, 3, 4)) is ErrorCode.NONE

    def test_asked_again_a_target_must_be_alive_again(self) -> None:
        made = world()
        reassign(made, (4, 2, 3))
        made.stop(4)
        made.run()
        assert reassign(made, (4, 2, 3)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert TP in ongoing(made)

    @pytest.mark.parametrize("path", [layout.topic_path("t"), layout.partition_state_path(TP)])
    def test_nodes_that_cannot_be_read(self, path: str) -> None:
        """They are left as they are; a request in the store waits until they can be."""
        made = world()
        good = made.admin(Get(path))
        made.admin(Set(path, b"?", -1))
        assert reassign(made, (4, 5, 6)) is ErrorCode.UNKNOWN_SERVER_ERROR
        write_requests(made, listing(entry(0, 4, 5, 6)))
        assert requests(made) == [(0, [4, 5, 6])]
        assert made.admin(Get(path)).data == b"?"
        made.admin(Set(path, good.data, -1))
        made.admin(Delete(layout.CONTROLLER_PATH))
        made.run()
        assert ongoing(made)[TP].adding_replicas == (4, 5, 6)

    def test_each_partition_alone(self) -> None:
        made = world((1, 2), (2, 3))
        other = TopicPartition("t", 1)
        body = made.ask(AlterPartitionReassignmentsRequest({TP: (1, 1), other: (3, 2)}))
        assert isinstance(body, AlterPartitionReassignmentsResponse)
        assert body.partitions[TP].error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert body.partitions[other] == AdminResult(ErrorCode.NONE)
        assert node(made).partitions == {0: (1, 2), 1: (3, 2)}

    def test_only_the_controller_is_asked(self) -> None:
        made = world()
        via = next(each for each in made.members if each != made.controller_id)
        body = made.ask(AlterPartitionReassignmentsRequest({TP: (4,)}), via)
        assert isinstance(body, AlterPartitionReassignmentsResponse)
        assert body.error is body.partitions[TP].error is ErrorCode.NOT_CONTROLLER
        listed = made.ask(ListPartitionReassignmentsRequest(), via)
        assert isinstance(listed, ListPartitionReassignmentsResponse)
        assert listed.error is ErrorCode.NOT_CONTROLLER

    def test_a_zombie_resigns(self) -> None:
        """controller epoch check on reassign: zombie resigns."""
        made = world()
        zombie = made.active
        epoch = layout.encode_controller_epoch(99)
        made.admin(Set(layout.CONTROLLER_EPOCH_PATH, epoch, -1))
        token = made.ask(AlterPartitionReassignmentsRequest({TP: (4, 5, 6)}), zombie.broker.broker_id)
        assert isinstance(token, AlterPartitionReassignmentsResponse)
        assert token.error is ErrorCode.NOT_CONTROLLER
        assert node(made).partitions == {0: (1, 2, 3)}
        assert zombie.controller.resigned_because == "another controller has been elected"


class TestRequestNode:
    def test_entries_go_as_they_complete(self) -> None:
        made = world((1,), (2,))
        write_requests(made, listing(entry(0, 3), entry(1, 4)))
        assert requests(made) == [(0, [3]), (1, [4])]
        made.alter(2, (2, 4), partition=1)
        assert requests(made) == [(0, [3])]
        made.alter(1, (1, 3))
        assert requests(made) is None
        assert node(made).partitions == {0: (3,), 1: (4,)}

    def test_entries_that_make_no_sense_go_at_once(self) -> None:
        """non-existing: unknown entry removed; already finished: request removed"""
        made = world((1,), (2,))
        nonsense = [entry(0), entry(1, 2, 2), entry(0, -1, name="u"), entry(9, 1), entry(0, 1, name="u")]
        write_requests(made, listing(*nonsense))
        assert requests(made) is None
        write_requests(made, listing(entry(0, 1)))
        assert requests(made) is None
        write_requests(made, listing())
        assert requests(made) is None
        assert node(made).partitions == {0: (1,), 1: (2,)}

    @pytest.mark.parametrize(
        "text", [b"\xff", "[]", '{"partitions":7}', listing('{"topic":"t"}'), listing("3")]
    )
    def test_what_cannot_be_read_is_left_and_reported(self, text: str | bytes) -> None:
        made = world()
        write_requests(made, text)
        context = made.active.controller.context
        assert context is not None
        assert layout.REASSIGNMENT_PATH in context.unreadable
        assert made.admin(Get(layout.REASSIGNMENT_PATH)).stat is not None
        write_requests(made, listing(entry(0, 3, 2, 1)))
        assert node(made).partitions == {0: (3, 2, 1)}
        assert layout.REASSIGNMENT_PATH not in context.unreadable
        assert requests(made) is None

    def test_what_no_node_can_hold_is_struck_and_ends_no_term(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = world((1,), (1,))
        epoch = made.controller_epoch
        monkeypatch.setattr(operations, "LARGEST_WRITE", 1_000)
        write_requests(made, listing(entry(0, *range(2, 200)), entry(1, 2)))
        assert requests(made) == [(1, [2])]
        assert ongoing(made).keys() == {TopicPartition("t", 1)}
        assert made.controller_epoch == epoch

    def test_the_latest_request_counts(self) -> None:
        made = world((1,))
        write_requests(made, listing(entry(0, 2)))
        assert reassign(made, (3,)) is ErrorCode.NONE
        assert requests(made) is None, "or the next controller would follow the node again"
        assert ongoing(made)[TP].adding_replicas == (3,)
        write_requests(made, listing(entry(0, 4)))
        assert ongoing(made)[TP].adding_replicas == (4,)
        assert reassign(made, None) is ErrorCode.NONE
        assert requests(made) is None
        assert ongoing(made) == {}
        assert node(made).partitions == {0: (1,)}

    def test_a_request_that_was_rewritten_while_the_old_one_ends(self) -> None:
        made = world((1,))
        write_requests(made, listing(entry(0, 2)))
        stat = made.admin(Get(layout.REASSIGNMENT_PATH)).stat
        assert stat is not None
        made.admin(Set(layout.REASSIGNMENT_PATH, listing(entry(0, 3)).encode(), stat.version))
        made.alter(1, (1, 2))
        assert requests(made) == [(0, [3])]
        assert ongoing(made)[TP].adding_replicas == (3,)

    def test_one_that_is_done_when_a_controller_starts(self) -> None:
        """0.8 reassign: already finished when controller starts: request removed."""
        made = world((1,), (2,))
        data = listing(entry(0, 1)).encode()
        made.admin(Create(layout.REASSIGNMENT_PATH, data, make_parents=True))
        made.admin(Delete(layout.CONTROLLER_PATH))
        made.run()
        assert requests(made) is None
        assert node(made).partitions == {0: (1,), 1: (2,)}

    def test_a_request_made_while_nobody_is_controller(self) -> None:
        made = world((1,))
        path = layout.REASSIGNMENT_PATH
        made.admin(Create(path, listing(entry(0, 2)).encode(), make_parents=True))
        made.admin(Delete(layout.CONTROLLER_PATH))
        made.run()
        assert ongoing(made)[TP].adding_replicas == (2,)


class TestLeaving:
    def test_a_lost_order_is_repeated(self) -> None:
        made = world((1, 2), brokers=4)
        made.members[2].running = False  # hangs: its session lives
        reassign(made, (1,))
        assert node(made).leaving_replicas == {0: (2,)}
        made.expire(2)
        made.start(2)
        made.run()
        assert node(made).leaving_replicas == {}
        assert stopped(made, 2) == [(1, True)]

    def test_the_next_controller_repeats_it(self) -> None:
        made = world((1, 2), brokers=4)
        made.members[2].running = False
        reassign(made, (1,))
        made.admin(Delete(layout.CONTROLLER_PATH))
        made.run()
        assert node(made).leaving_replicas == {0: (2,)}
        made.members[2].running = True
        made.run()
        assert node(made).leaving_replicas == {}

    def test_who_leaves_is_told_nothing_else(self) -> None:
        """A removed replica that starts is not told to follow anybody."""
        made = world((1, 2), brokers=4)
        made.stop(2)
        made.run()
        reassign(made, (1,))
        made.start(2)
        made.run()
        received = made.members[2].broker.received
        assert not any(isinstance(body, LeaderAndIsrRequest) and body.partitions for body in received)
        assert stopped(made, 2)

    def test_a_zombie_does_not_delete_who_was_brought_back(self) -> None:
        """Broker 2 starts under a deposed controller; the next controller has assigned it again."""
        made = world((1, 2), brokers=4)
        made.stop(2)
        made.run()
        reassign(made, (1,))
        again = layout.TopicAssignment(node(made).topic_id, {0: (1, 2)})
        made.admin(Set(layout.topic_path("t"), layout.encode_topic(again), -1))
        made.admin(Set(layout.CONTROLLER_EPOCH_PATH, layout.encode_controller_epoch(9), -1))
        made.start(2)
        made.run()
        assert made.active.controller.resigned_because == "another controller has been elected"
        assert stopped(made, 2) == []

    def test_a_log_dir_that_returns(self) -> None:
        """A broker that could not delete reports in the store that it can: it gets the order again."""
        made = world((1, 2), brokers=4)
        broker = made.members[2].broker
        serve, refused = broker.serve, []

        def fails(body: RequestBody) -> ResponseBody:
            if isinstance(body, StopReplicaRequest):
                refused.append(body)
                failed = dict.fromkeys(body.partitions, ErrorCode.KAFKA_STORAGE_ERROR)
                return StopReplicaResponse(ErrorCode.NONE, failed)
            return serve(body)

        broker.serve = fails  # type: ignore[method-assign]
        reassign(made, (1,))
        assert len(refused) == 1
        assert node(made).leaving_replicas == {0: (2,)}
        broker.serve = serve  # type: ignore[method-assign]
        event = layout.encode_log_dir_event(2)
        made.admin(Create(layout.LOG_DIR_EVENT_PREFIX, event, sequential=True))
        made.run()
        assert node(made).leaving_replicas == {}

    def test_the_order_names_the_topics_id(self) -> None:
        made = world((1, 2))
        reassign(made, (1,))
        (order,) = [body for body in made.members[2].broker.received if isinstance(body, StopReplicaRequest)]
        assert order.topic_ids == {"t": node(made).topic_id}

    def test_an_answer_to_an_earlier_order_confirms_nothing(self) -> None:
        """Broker 2 leaves, returns, leaves again; the first answer does not confirm the second order."""
        made = world((1, 2), brokers=3)
        member = made.members[made.controller_id]
        request = AlterPartitionReassignmentsRequest({TP: (1,)})
        made.perform(member, member.controller.on_request(Client("x"), request, made.now_ms))
        made.run(until=lambda: any(isinstance(send.body, StopReplicaRequest) for send in member.requests))
        (order,) = [send for send in member.requests if isinstance(send.body, StopReplicaRequest)]
        member.requests.remove(order)  # on its way, for long
        for target in ((1, 2), (1,)):
            again = AlterPartitionReassignmentsRequest({TP: target})
            made.perform(member, member.controller.on_request(Client("y"), again, made.now_ms))
            made.run(for_ms=0)
        assert node(made).leaving_replicas == {0: (2,)}
        answer = made.members[2].broker.serve(order.body)
        made.perform(member, member.controller.on_response(2, order.correlation_id, answer, made.now_ms))
        made.members[2].running = False  # the second order does not reach it yet
        made.run(for_ms=500)
        assert node(made).leaving_replicas == {0: (2,)}
        made.members[2].running = True
        made.run()
        assert node(made).leaving_replicas == {}


def test_kafka_9672_who_left_is_not_admitted_again() -> None:
    """The old leader is fenced, the new one has a list without them, and the controller refuses both."""
    made = world()
    reassign(made, (4, 5, 6))
    made.alter(1, (1, 2, 3, 4, 5, 6))
    answer = made.alter(1, (1, 2, 3, 4, 5, 6), leader_epoch=1)
    assert answer.partitions[TP].error is ErrorCode.FENCED_LEADER_EPOCH
    answer = made.alter(4, (4, 5, 6, 1))
    assert answer.partitions[TP].error is ErrorCode.INVALID_REQUEST
    assert made.view() == (4, 2, (4, 5, 6))


def test_kafka_1097_who_leaves_at_once_is_not_admitted_again() -> None:
    """Broker 5 was an earlier target and catches up too late; its leader does not know yet that it leaves."""
    made = world()
    reassign(made, (4, 5, 6))
    made.alter(1, (1, 2, 3, 4))
    told = made.members[1].broker.metadata[TP]
    reassign(made, (4, 2, 3))
    epoch, version = told.leader_epoch, told.partition_epoch
    answer = made.alter(1, (1, 2, 3, 4, 5), leader_epoch=epoch, partition_epoch=version)
    assert answer.partitions[TP].error is ErrorCode.FENCED_LEADER_EPOCH
    assert TP not in made.members[5].broker.states


def test_kafka_9212_everybody_hears_of_each_epoch() -> None:
    """Store, copy and announcements change together: no client gets a leader of an old epoch."""
    made = world()

    def check() -> None:
        state, version = made.state(), made.version()
        assert state is not None
        for member in made.members.values():
            told = member.broker.metadata[TP]
            assert (told.leader, told.leader_epoch, told.partition_epoch) == (
                state.leader,
                state.leader_epoch,
                version,
            )

    reassign(made, (4, 5, 6))
    check()
    made.alter(1, (1, 2, 3, 4, 5))
    check()
    made.alter(1, (1, 2, 3, 4, 5, 6))
    check()


def test_new_topics_and_reassignments_share_the_node() -> None:
    """The watch on the topic node fires at our own writes, without effect."""
    made = world((1,), (2,))
    reassign(made, (3,))
    before = len(made.history)
    made.run(for_ms=10_000)
    writes = [call for _, call, _ in made.history[before:] if not isinstance(call.operation, Get)]
    assert writes == []
    body = made.ask(CreateTopicsRequest((topic((1,), name="u"),)))
    assert body is not None

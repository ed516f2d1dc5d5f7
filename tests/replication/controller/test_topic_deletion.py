"""Deleting topics: the waits, and one final state after every crash of the controller.

S numbers are those of the failure schedules, I17 is the invariant: only the incarnation that was asked for
goes, and after the end no node of it remains.
"""

from __future__ import annotations

from itertools import count, product
from random import Random

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.ids import new_id
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller import deletion as topic_deletion
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.deletion import LEGAL, Deletion, Replica, ReplicaState
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.effects import StoreCall
from logstore.replication.messages import (
    BEING_DELETED,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    LeaderAndIsrRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import ANY_VERSION, Children, Create, Delete, Get, Multi, Set
from tests.replication.controller.world import World, topic, writes_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
REQUEST = layout.delete_topic_path("t")


def context_of(world: World) -> Context:
    context = world.active.controller.context
    assert context is not None
    return context


def request(world: World, name: str = "t") -> None:
    """Request the deletion as a tool does."""
    world.admin(Create(layout.delete_topic_path(name), make_parents=True))


def nodes(world: World) -> list[str]:
    """Every node that has to do with topic t, the longest path first."""
    return sorted(
        (path for path, _ in world.store.tree.nodes() if "/t/" in f"{path}/"), key=len, reverse=True
    )


def assert_gone(world: World) -> None:
    assert nodes(world) == []
    assert "t" not in context_of(world).deletions
    assert "t" not in context_of(world).topics
    for member in world.members.values():
        if member.running:
            assert not [each for each in member.broker.states if each.topic == "t"]


def made(*, brokers: int = 4, config: ControllerConfig | None = None) -> World:
    """Broker 1 is the controller and has no replica; topic t is on 2 and 3, topic other on all."""
    world = World(brokers, config=config)
    world.create(
        topic((2, 3), (3, 2), segment_bytes="65536"), topic(tuple(range(2, brokers + 1)), name="other")
    )
    return world


# --- the states of replicas -------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), list(product(ReplicaState, ReplicaState)))
def test_every_illegal_transition_is_refused_and_changes_nothing(
    before: ReplicaState, after: ReplicaState
) -> None:
    """every illegal transition pair | rejected, state unchanged"""
    replica = Replica(T0, 2)
    deletion = Deletion("id", [replica])
    deletion.states[replica] = before
    assert deletion.move(replica, after, "why") is (after in LEGAL[before])
    assert deletion.states[replica] is (after if after in LEGAL[before] else before)
    assert not deletion.move(Replica(T1, 9), after), "of a replica that is not concerned"


def test_states_of_a_deletion_with_an_obstacle() -> None:
    """broker fails after Started | its replicas Ineligible, the rest Started; resume clears the mark"""
    deletion = Deletion("id", [Replica(T0, 2), Replica(T0, 3), Replica(T1, 3)])
    dead = {3}

    def obstacle(replica: Replica) -> str:
        return "not alive" if replica.broker_id in dead else ""

    assert deletion.start(obstacle) == {2: [T0]}
    assert deletion.blocking == {3: "not alive"}
    assert deletion.awaited == "broker 3 (not alive) for t-0, t-1"
    dead.clear()
    deletion.broker_gone(2)
    assert set(deletion.blocking) == {2, 3}
    deletion.retry(obstacle)
    assert deletion.start(obstacle) == {2: [T0], 3: [T0, T1]}
    assert deletion.awaited == "the answer of broker 2 for t-0; the answer of broker 3 for t-0, t-1"
    assert deletion.move(Replica(T1, 3), ReplicaState.INELIGIBLE, "KAFKA_STORAGE_ERROR")
    assert deletion.awaited == "broker 3 (KAFKA_STORAGE_ERROR) for t-1"
    for replica in list(deletion.states):
        assert deletion.move(replica, ReplicaState.SUCCESSFUL)
    deletion.broker_gone(3)
    assert deletion.is_complete is True, "what was confirmed stays confirmed"
    assert deletion.awaited == ""
    assert Deletion("id", waits_for="a reassignment").awaited == "a reassignment"


def test_what_a_large_topic_waits_for_is_told_in_a_few_words() -> None:
    """With all names the text was too long for an answer: no reassignments could be listed meanwhile."""
    replicas = [Replica(TopicPartition("t", number), 2) for number in range(6_000)]
    deletion = Deletion("id", replicas)
    deletion.broker_gone(2)
    assert deletion.awaited.endswith("t-18, t-19 and 5980 more")
    assert len(deletion.awaited) < 500


def test_what_a_deletion_waits_for_is_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a pass for each replica, a question for 9,000 replicas stopped the controller for seconds."""
    deletion = Deletion("id", [Replica(TopicPartition("t", number), 2) for number in range(50)])
    passes: list[Deletion] = []
    monkeypatch.setattr(Deletion, "blocking", property(lambda self: passes.append(self)))
    assert deletion.awaited
    assert len(passes) == 1


# --- the way of a deletion --------------------------------------------------------------------


def test_deletion_with_all_up() -> None:
    """deletion basic | after acks all context and nodes gone; the other topic is untouched"""
    world = made()
    told = {broker_id: len(member.broker.received) for broker_id, member in world.members.items()}
    response = world.ask(DeleteTopicsRequest(("t", "unknown")))
    assert isinstance(response, DeleteTopicsResponse)
    assert response.topics["t"].error is ErrorCode.NONE
    assert response.topics["unknown"].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert_gone(world)
    assert world.view(topic="other") == (2, 0, (2, 3, 4))
    for broker_id, member in world.members.items():
        since = member.broker.received[told[broker_id] :]
        assert not [body for body in since if isinstance(body, LeaderAndIsrRequest)]
        (update,) = [body for body in since if isinstance(body, UpdateMetadataRequest)]
        assert {state.leader for state in update.partitions.values()} == {BEING_DELETED}
        stops = [body for body in since if isinstance(body, StopReplicaRequest)]
        assert len(stops) == (broker_id in (2, 3))
        for stop in stops:
            assert stop.topic_ids["t"]
            assert {(order.leader_epoch, order.delete) for order in stop.partitions.values()} == {(-2, True)}
    world.create(topic((3, 2)))
    assert world.view() == (3, 0, (3, 2)), "the name is free, the epochs begin anew"


def test_the_request_goes_last() -> None:
    """The request is removed last: a controller that dies earlier must leave it for the next one."""
    world = made()
    since = len(world.history)
    request(world)
    world.run()
    gone: list[str] = []
    for _, call, outcome in world.history[since:]:
        if outcome.error is None and isinstance(call.operation, Multi):
            gone += [write.path for write in call.operation.writes if isinstance(write, Delete)]
    assert gone[-3:] == [layout.topic_path("t"), layout.topic_config_path("t"), REQUEST]
    assert gone.count(REQUEST) == 1


def test_s65_a_dead_replica_is_waited_for_and_named() -> None:
    """deletion with an offline broker, then its return | others go on; on return it is asked and done"""
    world = made()
    world.stop(3)
    world.run()
    request(world)
    world.run()
    context = context_of(world)
    assert context.deletions["t"].blocking == {3: "not alive"}
    listed = world.ask(ListPartitionReassignmentsRequest())
    assert isinstance(listed, ListPartitionReassignmentsResponse)
    assert listed.deletions == {"t": "broker 3 (not alive) for t-0, t-1"}
    assert world.members[2].broker.states.keys() == {TopicPartition("other", 0)}, "who lives goes ahead"
    assert world.admin(Get(layout.topic_path("t"))).stat is not None
    world.create(topic((2,), name="third"))
    request(world, "third")
    world.run()
    assert "third" not in context.topics, "other topics do not wait"
    refused = world.create(topic((2, 4))).topics["t"]
    assert refused.error is ErrorCode.TOPIC_ALREADY_EXISTS
    assert "being deleted" in refused.message
    world.start(3)
    world.run()
    assert_gone(world)
    first = next(
        body for body in world.members[3].broker.received if not isinstance(body, UpdateMetadataRequest)
    )
    assert isinstance(first, LeaderAndIsrRequest)
    assert first.partitions.keys() == {TopicPartition("other", 0)}, "no role for what is to go"
    assert first.assigned is not None
    assert T0 in first.assigned, "nor is it a stray: an order of its own is on the way"


def test_a_broker_that_bounces_while_it_deletes_is_asked_again() -> None:
    world = made()
    request(world)
    run_until_told(world)
    world.start(3)
    world.run()
    assert_gone(world)


def test_a_broker_that_cannot_delete_is_asked_again_when_it_returns() -> None:
    """StopReplica error | the replica is ineligible, named with the error, retried on its return"""
    world = made()
    world.members[3].broker.failing.add(T1)
    request(world)
    world.run()
    assert context_of(world).deletions["t"].blocking == {3: "KAFKA_STORAGE_ERROR"}
    world.start(3)
    world.run()
    assert_gone(world)


def test_a_broker_that_has_room_again_is_asked_though_its_refusal_comes_after() -> None:
    """It reports only once that it can delete; its slower refusal is from before."""
    world = made()
    world.members[3].broker.failing.add(T1)
    member = world.active
    request(world)
    world.run(
        until=lambda: any(s.target == 3 and isinstance(s.body, StopReplicaRequest) for s in member.requests)
    )
    world.admin(Create(layout.LOG_DIR_EVENT_PREFIX, layout.encode_log_dir_event(3), sequential=True))
    while member.inbox or member.store_calls:
        world.read_inbox(1) if member.inbox else world.apply_call(1)
    assert not world.admin(Children(layout.LOG_DIR_EVENTS_PATH)).children
    while not isinstance((sent := world.send_request(1)).body, StopReplicaRequest) or sent.target != 3:
        pass
    world.members[3].broker.failing.clear()
    world.run()
    assert_gone(world)


def test_a_second_order_to_delete_does_not_reach_a_new_topic_of_the_name() -> None:
    """It was queued when the first one's answer ended the deletion; its id is filled in when it is sent."""
    world = made()
    context = context_of(world)
    request(world)
    world.run(until=lambda: "t" in context.deletions and context.deletions["t"].is_complete)
    old_id, channel = context.topics["t"].topic_id, context.channels[3]
    channel._not_before_ms = world.now_ms + 1_000
    channel.enqueue(
        StopReplicaRequest, dict.fromkeys((T0, T1), StopReplicaPartition(BEING_DELETED, delete=True))
    )
    world.run(until=lambda: "t" not in context.deletions)
    world.create(topic((2, 3), (3, 4)))
    world.run()
    assert context.topics["t"].topic_id != old_id
    sent = [each for each in world.members[3].broker.received if isinstance(each, StopReplicaRequest)]
    assert {each.topic_ids["t"] for each in sent} == {old_id}
    assert {T0, T1} <= world.members[3].broker.states.keys()


def test_the_answer_to_a_former_order_confirms_nothing() -> None:
    """A broker still had to answer an order to stop a replica without deleting it when the deletion began."""
    world = made()
    member, context = world.active, context_of(world)
    context.channels[3].enqueue(StopReplicaRequest, {T0: StopReplicaPartition(9, delete=False)})
    world.perform(member, member.controller.tick(world.now_ms))
    request(world)
    while member.inbox or member.store_calls:
        world.read_inbox(1) if member.inbox else world.apply_call(1)
    deletion = context.deletions["t"]
    assert deletion.states[Replica(T0, 3)] is ReplicaState.STARTED
    sent = world.send_request(1)
    assert isinstance(sent.body, StopReplicaRequest)
    assert not sent.body.partitions[T0].delete
    assert deletion.states[Replica(T0, 3)] is ReplicaState.STARTED
    world.run()
    assert_gone(world)


def test_no_election_for_what_is_being_deleted() -> None:
    """And no ISR change either: its states stay as they are until they go."""
    world = made()
    world.stop(4)
    world.create(topic((2, 3, 4)), topic((2, 3, 4), name="x"))
    world.stop(3)
    world.run()
    request(world)
    world.run()
    before = world.version()
    world.stop(2)
    world.run()
    world.start(2)
    world.run()
    assert world.version() == before
    world.stop(world.controller_id)
    world.run()
    assert world.version() == before, "nor by a controller that takes over"
    answered = world.alter(2, (2, 3))
    assert answered.partitions[T0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_what_is_unknown_or_switched_off_only_loses_its_request() -> None:
    """delete non-existing; delete disabled | request node removed; topic untouched"""
    world = made()
    request(world, "nobody")
    world.admin(Create(layout.topic_config_path("nobody"), b"{}"))
    world.run()
    assert world.admin(Children(layout.DELETE_TOPICS_PATH)).children == ()
    assert world.admin(Get(layout.topic_config_path("nobody"))).stat is None, "what a crash had left"
    off = made(config=ControllerConfig(request_timeout_ms=1_000, delete_topic_enable=False))
    request(off)
    off.run()
    assert off.admin(Children(layout.DELETE_TOPICS_PATH)).children == ()
    assert off.view() == (2, 0, (2, 3))
    response = off.ask(DeleteTopicsRequest(("t",)))
    assert isinstance(response, DeleteTopicsResponse)
    assert response.topics["t"].error is ErrorCode.TOPIC_DELETION_DISABLED


@pytest.mark.parametrize("is_old_form", [False, True])
@pytest.mark.parametrize("is_applied", [False, True])
def test_a_refused_request_goes_though_the_connection_breaks(is_applied: bool, is_old_form: bool) -> None:
    """Otherwise the request stays until the next one, or the next controller (seed 1025316)."""
    off = made(config=ControllerConfig(request_timeout_ms=1_000, delete_topic_enable=False))
    deliver = World.apply_call
    lost: list[StoreCall] = []

    def apply(broker_id: int) -> StoreCall:
        call = off.members[broker_id].store_calls[0]
        paths = [getattr(write, "path", "") for write in writes_of(call.operation)]
        if lost or not any(path.startswith(layout.DELETE_TOPICS_PATH) for path in paths):
            return deliver(off, broker_id)
        lost.append(call)
        return deliver(off, broker_id, lose_call=not is_applied, lose_reply=is_applied)

    off.apply_call = apply  # type: ignore[method-assign, assignment]
    request(off)
    if is_old_form:
        listed = b'{"version": 1, "topics": ["t"]}'
        assert off.admin(Set(layout.DELETE_TOPICS_PATH, listed, ANY_VERSION)).error is None
    off.run()
    assert lost
    assert off.admin(Children(layout.DELETE_TOPICS_PATH)).children == ()
    assert not off.admin(Get(layout.DELETE_TOPICS_PATH)).data
    assert off.view() == (2, 0, (2, 3))


def test_an_id_names_no_later_topic() -> None:
    """A client repeats a deletion by id, and another one has created the topic again meanwhile."""
    world = made()
    topic_id = context_of(world).topics["t"].topic_id
    response = world.ask(DeleteTopicsRequest(("t",), {"t": new_id(Random(1))}))
    assert isinstance(response, DeleteTopicsResponse)
    assert response.topics["t"].error is ErrorCode.UNKNOWN_TOPIC_ID
    world.run()
    assert world.view() == (2, 0, (2, 3))
    response = world.ask(DeleteTopicsRequest(("t",), {"t": topic_id}))
    assert isinstance(response, DeleteTopicsResponse)
    assert response.topics["t"].error is ErrorCode.NONE
    world.run()
    assert_gone(world)


def test_the_old_form_of_a_request() -> None:
    """A list in the node itself; an unreadable one is reported and left."""
    world = made()
    world.admin(Set(layout.DELETE_TOPICS_PATH, b"{]", ANY_VERSION))
    world.run()
    assert layout.DELETE_TOPICS_PATH in context_of(world).unreadable
    world.admin(Set(layout.DELETE_TOPICS_PATH, b'{"version":1,"topics":["t","nobody"]}', ANY_VERSION))
    world.run()
    assert_gone(world)
    assert world.admin(Get(layout.DELETE_TOPICS_PATH)).data == b""
    assert layout.DELETE_TOPICS_PATH not in context_of(world).unreadable


def test_s67_a_reassignment_ends_first() -> None:
    """delete while reassigning | after reassign; and no new one begins"""
    world = made()
    reassign = AlterPartitionReassignmentsRequest({T0: (4, 2)})
    world.ask(reassign)
    request(world)
    world.run()
    assert "reassignment" in context_of(world).deletions["t"].waits_for
    assert world.members[2].broker.states[T0].leader == 2, "until then it lives"
    world.stop(3)
    world.run()
    assert world.view(1)[0] == 2, "and is taken care of"
    refused = world.ask(AlterPartitionReassignmentsRequest({T1: (4, 2)}))
    assert isinstance(refused, AlterPartitionReassignmentsResponse)
    assert refused.partitions[T1].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.start(3)
    world.run()
    world.alter(world.view()[0], (2, 3, 4) if 3 in world.view()[2] else (2, 4))
    world.run()
    assert_gone(world)


def test_partitions_that_are_added_meanwhile_are_taken_back() -> None:
    """partitions added to a topic under deletion | the old assignment is written back"""
    world = made()
    world.stop(3)
    world.run()
    request(world)
    world.run()
    read = world.admin(Get(layout.topic_path("t")))
    node = layout.parse_topic(read.data)
    more = layout.TopicAssignment(node.topic_id, {**node.partitions, 2: (2,)})
    world.admin(Set(layout.topic_path("t"), layout.encode_topic(more), ANY_VERSION))
    world.run()
    assert world.admin(Get(layout.topic_path("t"))).data == read.data
    assert world.state(2) is None
    world.start(3)
    world.run()
    assert_gone(world)


def test_a_topic_that_was_replaced_behind_our_back_is_deleted_as_what_it_is() -> None:
    world = made()
    world.stop(3)
    world.run()
    request(world)
    world.run()
    for path in nodes(world):
        if path.startswith(layout.TOPICS_PATH):
            world.admin(Delete(path))
    other = layout.TopicAssignment("AAAAAAAAAAAAAAAAAAAAAQ", {0: (4,)})
    world.admin(Create(layout.topic_path("t"), layout.encode_topic(other)))
    world.start(3)
    world.run()
    assert_gone(world)


def replace(world: World, *, keeps_request: bool) -> layout.TopicAssignment:
    """Somebody removes topic t from the store, with or without the request, and makes another one.

    That topics come and go is heard of before what became of this one.
    """
    passing = layout.TopicAssignment("AAAAAAAAAAAAAAAAAAAAAA", {0: (4,)})
    world.admin(Create(layout.topic_path("passing"), layout.encode_topic(passing)))
    world.admin(Delete(layout.topic_path("passing")))
    for path in nodes(world):
        if path.startswith(layout.TOPICS_PATH) or not keeps_request:
            world.admin(Delete(path))
    other = layout.TopicAssignment("AAAAAAAAAAAAAAAAAAAAAQ", {0: (3, 4), 1: (4, 3), 2: (3, 2)})
    world.admin(Create(layout.topic_path("t"), layout.encode_topic(other)))
    return other


def run_until_told(world: World) -> None:
    """Until orders to delete are on their way."""

    def is_told() -> bool:
        return any(
            isinstance(send.body, StopReplicaRequest)
            for member in world.members.values()
            for send in member.requests
        )

    world.run(until=is_told, for_ms=10_000)


@pytest.mark.parametrize("keeps_request", [True, False])
@pytest.mark.parametrize("is_taken_over", [True, False])
def test_a_topic_that_was_replaced_while_its_replicas_go_does_not_wait_for_them(
    is_taken_over: bool, keeps_request: bool
) -> None:
    """Brokers were told to delete the old one, and nobody listens to their answers: they are not about the
    new one. That goes too if its name is still asked for, else it lives as it was made."""
    world = made()
    request(world)
    if is_taken_over:
        world.stop(1)  # whoever takes a deletion over knows no states of what is to go
    run_until_told(world)
    other = replace(world, keeps_request=keeps_request)
    world.run()
    if keeps_request:
        assert_gone(world)
        return
    assert layout.parse_topic(world.admin(Get(layout.topic_path("t"))).data).partitions == other.partitions
    assert [world.view(partition)[0] for partition in other.partitions] == [3, 4, 3]
    assert "t" not in context_of(world).deletions
    told = [
        body.partitions[T0]
        for body in world.members[4].broker.received
        if isinstance(body, LeaderAndIsrRequest) and body.topic_ids.get("t") == other.topic_id
    ]
    assert [state.leader for state in told] == [3]


def test_whether_a_namesake_goes_too_is_asked_until_there_is_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The list of requests kept changing, and the event starts again: it finds the new topic known."""
    world = made()
    request(world)
    world.stop(1)
    run_until_told(world)
    replace(world, keeps_request=True)
    real = topic_deletion.learn_requests
    failures: list[Context] = []

    def learn_requests(context: Context) -> Steps[None]:
        if not failures:
            failures.append(context)
            raise MetadataConflict("somebody keeps writing")
        yield from real(context)

    monkeypatch.setattr(topic_deletion, "learn_requests", learn_requests)
    world.changes.clear()
    world.run()
    assert failures
    assert_gone(world)
    assert "writes the first state" not in [each.change for each in world.changes]


# --- S66: the controller dies -----------------------------------------------------------------


def settle_and_check(world: World) -> None:
    world.run()
    assert_gone(world)
    assert world.view(topic="other")[0] in (2, 3, 4)
    assert world.admin(Children(layout.TOPICS_PATH)).children == ("other",)
    world.create(topic((3, 2)))
    assert world.view() == (3, 0, (3, 2))


def test_s66_the_controller_dies_at_every_step_of_a_deletion() -> None:
    """delete: controller fails | resumes: whatever was written, asked or answered, one final state"""
    for steps in count():
        world = made(brokers=3)
        request(world)
        for _ in range(steps):
            if not world._one_step():
                break
        else:
            world.stop(1)
            settle_and_check(world)
            continue
        assert_gone(world)
        assert steps > 40, "the enumeration ended before the deletion did"
        return


@pytest.mark.parametrize("applied", [True, False])
def test_s66_every_reply_of_the_store_is_lost_once(applied: bool) -> None:
    """A lost reply at any step, the write applied or not: the nodes are read again."""
    for lost in count():
        world = made(brokers=3)
        request(world)
        calls = 0
        while not (member := world.members[1]).store_calls or calls < lost:
            calls += bool(member.store_calls) and not member.inbox
            if not world._one_step():
                break
        else:
            world.apply_call(1, lose_reply=applied, lose_call=not applied)
            settle_and_check(world)
            assert world.controller_id == 1
            continue
        assert lost > 15
        return


@pytest.mark.parametrize("left", ["request", "topic and request", "config and request"])
def test_s66_what_another_controller_may_leave(left: str) -> None:
    """(c) Kafka removes the nodes one by one: the rest is removed, and nothing else."""
    world = made(brokers=3)
    for member in world.members.values():
        for each in (T0, T1):
            member.broker.states.pop(each, None)  # the replicas are gone: their answers came first
    if left != "topic and request":
        for path in nodes(world):
            if not (path == layout.topic_config_path("t") and left.startswith("config")):
                world.admin(Delete(path))
    request(world)
    world.stop(1)
    settle_and_check(world)

"""Topics: created by clients and tools, refused, placed over live brokers."""

from __future__ import annotations

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller import topics
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.effects import Client
from logstore.replication.messages import (
    NO_EPOCH,
    NO_LEADER,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    LeaderAndIsrRequest,
    NewPartitions,
    NewTopic,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import (
    Create,
    Multi,
    Set,
)
from tests.replication.controller.world import World, topic

T0 = TopicPartition("t", 0)


def test_new_topic_has_leaders_when_the_client_hears_of_it() -> None:
    world = World(3)
    response = world.create(topic((1, 2, 3), (2, 3, 1), min_insync_replicas="2"))
    result = response.topics["t"]
    assert result.error is ErrorCode.NONE
    assert world.view(0) == (1, 0, (1, 2, 3))
    assert world.view(1) == (2, 0, (2, 3, 1))
    for member in world.members.values():
        assert member.broker.states[T0].leader == 1
        assert member.broker.metadata[T0].isr == (1, 2, 3)
        first = next(
            body
            for body in member.broker.received
            if isinstance(body, LeaderAndIsrRequest) and body.partitions
        )
        assert first.configs == {"t": {"min.insync.replicas": "2"}}
        assert first.topic_ids == {"t": result.topic_id}
        assert first.partitions[T0].is_new
        assert {leader.broker_id for leader in first.live_leaders} == {1, 2}


def test_names_that_are_known_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing of all topics is read at each creation; with 5,000 this took longer than the rest."""
    world = World(3)
    world.create(*(topic((1,), name=f"old{number}") for number in range(20)))
    checked: list[str] = []
    monkeypatch.setattr(topics, "check_topic_name", checked.append)
    assert world.create(topic((1,), name="new")).topics["new"].error is ErrorCode.NONE
    assert set(checked) == {"new"}


def test_new_topic_with_a_dead_replica_starts_without_it() -> None:
    world = World(3)
    world.stop(1)
    world.run()
    world.create_by_tool(topic((1, 2, 3)))
    assert world.view() == (2, 0, (2, 3))
    world.start(1)
    world.run()
    assert world.view() == (2, 0, (2, 3)), "it joins by catching up, not by being there"
    assert world.members[1].broker.states[T0].leader == 2


def test_new_topic_without_a_live_replica_waits_for_one() -> None:
    world = World(2)
    world.create_by_tool(topic((7, 8)))
    assert world.state() is None
    world.start(7)
    world.run()
    assert world.view() == (7, 0, (7,))


def test_a_partition_that_never_had_a_leader_is_known_to_every_broker() -> None:
    """A hole in the partition numbers makes clients lose sends."""
    world = World(2)
    world.create_by_tool(topic((1,), (7,), (2,)))
    for member in world.members.values():
        hidden = member.broker.metadata[TopicPartition("t", 1)]
        assert (hidden.leader, hidden.leader_epoch, hidden.replicas) == (NO_LEADER, NO_EPOCH, (7,))
    world.start(3)
    world.run()
    assert world.members[3].broker.metadata[TopicPartition("t", 1)].leader == NO_LEADER, "newcomers too"
    world.stop(world.controller_id)
    world.run()
    world.start(7)
    world.run()
    for broker_id in (3, 7):
        assert world.members[broker_id].broker.metadata[TopicPartition("t", 1)].leader == 7


def test_replicas_on_brokers_that_are_not_registered_are_refused() -> None:
    world = World(2)
    made = world.create(NewTopic("t", assignment=((1,), (99,)))).topics["t"]
    assert made.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "[99]" in made.message
    assert world.create(topic((1,))).topics["t"].error is ErrorCode.NONE
    for assignment in (((99,), (1,)), ((1,), (99,))):
        wanted = NewPartitions(3, assignment)
        grown = world.ask(CreatePartitionsRequest({"t": wanted}))
        assert isinstance(grown, CreatePartitionsResponse)
        assert grown.topics["t"].error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert world.partitions() == [T0]


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (NewTopic("bad name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a.b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("t"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (NewTopic("x", partitions=0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("x", replication_factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("x", assignment=((1, 1),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("x", spread="by feel"), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("x", configs={"no.such.thing": "1"}), ErrorCode.INVALID_CONFIG),
    ],
)
def test_refused_topics_leave_no_trace(wanted: NewTopic, error: ErrorCode) -> None:
    world = World(3)
    world.create(topic((1,)), topic((1,), name="a_b"))
    before = world.partitions()
    result = world.create(wanted).topics[wanted.name]
    assert result.error is error
    assert result.message
    assert world.partitions() == before


def test_duplicates_in_one_request_are_refused_and_the_rest_is_made() -> None:
    world = World(3)
    results = world.create(NewTopic("x"), NewTopic("x"), NewTopic("y", -1, -1)).topics
    assert results["x"].error is ErrorCode.INVALID_REQUEST
    assert results["y"].error is ErrorCode.NONE


@pytest.mark.parametrize("formula", ["kafka", "round-robin"])
def test_formulas_place_over_live_brokers(formula: str) -> None:
    world = World(3)
    world.stop(2)
    world.run()
    world.create(NewTopic("t", 4, 2, spread=formula))
    leaders = [world.view(partition)[0] for partition in range(4)]
    assert sorted(leaders) == [1, 1, 3, 3]


def test_counts_that_a_topic_does_not_say_are_the_controllers() -> None:
    """1.20: `num.partitions` and `default.replication.factor`, where -1 is asked for."""
    world = World(3, config=ControllerConfig(num_partitions=4, default_replication_factor=3))
    world.create(NewTopic("t", -1, -1), NewTopic("u", 1, -1), NewTopic("v", -1, 1))
    found = {each: world.state(each.partition, each.topic) for each in world.partitions()}
    sizes = {each: len(state.isr) for each, state in found.items() if state is not None}
    assert [sizes[TopicPartition("t", number)] for number in range(4)] == [3] * 4
    assert sizes[TopicPartition("u", 0)] == 3
    assert [sizes[TopicPartition("v", number)] for number in range(4)] == [1] * 4
    assert len(sizes) == 9


def test_a_request_for_more_partitions_than_can_be_planned_creates_those_that_fit() -> None:
    """All topics of a request count together; what does not fit is refused, and may be asked for again."""
    world = World(3)
    asked = [NewTopic("a", 2, 1), NewTopic("b", 2**31 - 1, 1), NewTopic("c", 10_000, 1), NewTopic("d", 1, 1)]
    response = world.create(*asked)
    codes = {name: result.error for name, result in response.topics.items()}
    refused = ErrorCode.INVALID_PARTITIONS
    assert codes == {"a": ErrorCode.NONE, "b": refused, "c": refused, "d": ErrorCode.NONE}


def test_lost_reply_of_a_creation_is_success() -> None:
    """The topic id in the node is the one we drew: nobody else made it."""
    world = World(3)
    member = world.active
    effects = member.controller.on_request(Client("me"), CreateTopicsRequest((topic((1, 2)),)), world.now_ms)
    world.perform(member, effects)
    call = world.apply_call(1, lose_reply=True)
    assert isinstance(call.operation, Multi)
    world.run()
    response = world.replies["me"]
    assert isinstance(response, CreateTopicsResponse)
    assert response.topics["t"].error is ErrorCode.NONE
    assert world.view() == (1, 0, (1, 2))


def test_topic_that_a_tool_wrote_into_the_store_gets_its_leaders() -> None:
    world = World(3)
    node = layout.encode_topic(layout.TopicAssignment("id", {0: (2, 1)}))
    world.admin(Create(layout.topic_path("t"), node))
    world.run()
    assert world.view() == (2, 0, (2, 1))
    more = layout.encode_topic(layout.TopicAssignment("id", {0: (2, 1), 1: (3,)}))
    world.admin(Set(layout.topic_path("t"), more, 0))
    world.run()
    assert world.view(0) == (2, 0, (2, 1))
    assert world.view(1) == (3, 0, (3,))


def test_requests_to_a_broker_that_is_not_the_controller() -> None:
    world = World(3)
    assert world.create(topic((1,)), via=2).topics["t"].error is ErrorCode.NOT_CONTROLLER
    world.create(topic((1, 2)))
    assert world.alter(1, (1,), via=3).error is ErrorCode.NOT_CONTROLLER

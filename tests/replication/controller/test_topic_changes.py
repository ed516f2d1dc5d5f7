"""Partitions added, settings altered, racks: changes of a topic in use."""

from __future__ import annotations

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.topics import CHANGE_EXPIRATION_MS
from logstore.replication.effects import Client
from logstore.replication.messages import (
    AdminResult,
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    LeaderAndIsrRequest,
    NewPartitions,
    NewTopic,
)
from logstore.replication.metastore import layout, operations
from logstore.replication.metastore.operations import (
    ANY_VERSION,
    Children,
    Create,
    Get,
    Set,
)
from tests.replication.controller.world import World, topic

T0 = TopicPartition("t", 0)
CONFIG = layout.topic_config_path("t")


def add(world: World, total: int, *lists: tuple[int, ...], name: str = "t") -> AdminResult:
    response = world.ask(CreatePartitionsRequest({name: NewPartitions(total, lists)}))
    assert isinstance(response, CreatePartitionsResponse)
    return response.topics[name]


def alter(world: World, name: str = "t", **changes: str | None) -> AdminResult:
    settings = {key.replace("_", "."): value for key, value in changes.items()}
    response = world.ask(AlterConfigsRequest({name: settings}))
    assert isinstance(response, AlterConfigsResponse)
    return response.topics[name]


def settings(world: World) -> dict[str, str]:
    return layout.parse_topic_config(world.admin(Get(CONFIG)).data)


# --- partitions -------------------------------------------------------------------------------


def test_partitions_are_added_and_the_old_ones_stay() -> None:
    world = World(3)
    world.create(topic((1, 2), (2, 3)))
    before = world.view(0), world.view(1)
    assert add(world, 4).error is ErrorCode.NONE
    assert (world.view(0), world.view(1)) == before
    for partition in (2, 3):
        leader, epoch, isr = world.view(partition)
        assert (epoch, len(isr)) == (0, 2)
        assert world.members[leader].broker.states[TopicPartition("t", partition)].is_new
    assert add(world, 6, (3, 1), (1, 3)).error is ErrorCode.NONE
    assert world.view(4) == (3, 0, (3, 1))
    assert world.view(5) == (1, 0, (1, 3))


@pytest.mark.parametrize(
    ("total", "lists", "error"),
    [
        (2, (), ErrorCode.INVALID_PARTITIONS),
        (1, (), ErrorCode.INVALID_PARTITIONS),
        (1, ((1, 2),), ErrorCode.INVALID_PARTITIONS),
        (3, ((1, 2, 3),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((1, 1),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((1, 2), (2, 3)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (4, ((1, 2),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_additions_that_are_refused(total: int, lists: tuple[tuple[int, ...], ...], error: ErrorCode) -> None:
    """add partitions: RF mismatch, wrong first id, shrinking | refused"""
    world = World(3)
    world.create(topic((1, 2), (2, 3)))
    before = world.admin(Get(layout.topic_path("t"))).data
    refused = add(world, total, *lists)
    assert refused.error is error
    assert refused.message
    assert world.admin(Get(layout.topic_path("t"))).data == before


def test_no_additions_to_what_is_in_motion_or_going_or_not_there() -> None:
    world = World(3)
    world.create(topic((1, 2)), topic((1, 2), name="moving"))
    world.ask(AlterPartitionReassignmentsRequest({TopicPartition("moving", 0): (1, 3)}))
    world.stop(2)
    world.run()
    world.admin(Create(layout.delete_topic_path("t")))
    world.run()
    assert add(world, 2).error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert alter(world, retention_ms="1").error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert add(world, 2, name="moving").error is ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert add(world, 2, name="nobody").error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(world, "nobody").error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_what_is_only_to_be_validated_changes_nothing() -> None:
    """CreateTopics, CreatePartitions and AlterConfigs validate without writing."""
    world = World(3)
    world.create(topic((1, 2)))
    before = world.admin(Get(layout.topic_path("t"))).data, settings(world)
    wanted = NewTopic("new", 2, 2), NewTopic("t"), NewTopic("wide", 1, 9)
    made = world.ask(CreateTopicsRequest(wanted, validate_only=True))
    assert isinstance(made, CreateTopicsResponse)
    assert {name: result.error for name, result in made.topics.items()} == {
        "new": ErrorCode.NONE,
        "t": ErrorCode.TOPIC_ALREADY_EXISTS,
        "wide": ErrorCode.INVALID_REPLICATION_FACTOR,
    }
    assert [len(replicas) for replicas in made.topics["new"].replicas] == [2, 2]
    assert world.admin(Get(layout.topic_path("new"))).stat is None
    both = {"t": NewPartitions(2), "no": NewPartitions(2)}
    more = world.ask(CreatePartitionsRequest(both, validate_only=True))
    assert isinstance(more, CreatePartitionsResponse)
    assert [more.topics[name].error for name in ("t", "no")] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    for value, error in (("100", ErrorCode.NONE), ("soon", ErrorCode.INVALID_CONFIG)):
        altered = world.ask(AlterConfigsRequest({"t": {"retention.ms": value}}, validate_only=True))
        assert isinstance(altered, AlterConfigsResponse)
        assert altered.topics["t"].error is error
    assert (world.admin(Get(layout.topic_path("t"))).data, settings(world)) == before


@pytest.mark.parametrize("applied", [True, False])
def test_an_addition_whose_reply_is_lost_is_made_once(applied: bool) -> None:
    world = World(3)
    world.create(topic((1, 2)))
    member = world.active
    token = object()
    body = CreatePartitionsRequest({"t": NewPartitions(3)})
    world.perform(member, member.controller.on_request(Client(token), body, world.now_ms))
    world.apply_call(1)
    world.read_inbox(1)
    world.apply_call(1, lose_reply=applied, lose_call=not applied)
    world.run()
    response = world.replies[token]
    assert isinstance(response, CreatePartitionsResponse)
    assert response.topics["t"].error is ErrorCode.NONE
    assert len(world.partitions()) == 3
    assert world.view(2)[1] == 0


# --- settings ---------------------------------------------------------------------------------


def test_settings_are_altered_one_by_one_and_reach_the_replicas() -> None:
    world = World(3)
    world.create(topic((1, 2), min_insync_replicas="2", retention_ms="5"))
    assert alter(world, retention_ms=None, segment_bytes="65536").error is ErrorCode.NONE
    assert settings(world) == {"min.insync.replicas": "2", "segment.bytes": "65536"}
    for broker_id in (1, 2):
        told = [b for b in world.members[broker_id].broker.received if isinstance(b, LeaderAndIsrRequest)]
        assert told[-1].configs == {"t": settings(world)}
    (name,) = world.admin(Children(layout.CONFIG_CHANGES_PATH)).children
    notice = world.admin(Get(f"{layout.CONFIG_CHANGES_PATH}/{name}")).data
    assert notice == b'{"version":2,"entity_path":"topics/t"}'
    version = world.admin(Get(CONFIG)).stat
    assert alter(world, segment_bytes="65536").error is ErrorCode.NONE
    assert world.admin(Get(CONFIG)).stat == version, "what is so already is not written"


@pytest.mark.parametrize("changes", [{"no_such_thing": "1"}, {"segment_bytes": "few"}])
def test_settings_that_make_no_sense_are_refused_before_anything_is_written(changes: dict[str, str]) -> None:
    """Unknown key or bad value -> refused before anything is written"""
    world = World(1)
    world.create(topic((1,), retention_ms="5"))
    refused = alter(world, **changes, retention_bytes="10")
    assert refused.error is ErrorCode.INVALID_CONFIG
    assert settings(world) == {"retention.ms": "5"}
    assert world.admin(Children(layout.CONFIG_CHANGES_PATH)).children == ()
    world.admin(Set(CONFIG, b"{]", ANY_VERSION))
    assert alter(world, retention_ms="6").error is not ErrorCode.NONE
    assert world.admin(Get(CONFIG)).data == b"{]", "what cannot be read is not written over"


@pytest.mark.parametrize(
    ("data", "is_heard"),
    [
        (b"t", True),
        (b'"t"', True),
        (b'{"version":1,"entity_type":"topics","entity_name":"t"}', True),
        (b'{"version":2,"entity_path":"topics/t"}', True),
        (b'{"version":2,"entity_path":"brokers/1"}', False),
        (b'{"version":2}', False),
    ],
)
def test_notifications_of_every_age_are_heard(data: bytes, is_heard: bool) -> None:
    """A notification leads to a new reading even if no watch has fired."""
    world = World(1)
    world.create(topic((1,)))
    told = len(world.members[1].broker.received)
    world.admin(Create(layout.CONFIG_CHANGE_PREFIX, data, sequential=True))
    world.run()
    assert (len(world.members[1].broker.received) > told) is is_heard
    context = world.active.controller.context
    assert context is not None
    assert any(path.startswith(layout.CONFIG_CHANGES_PATH) for path in context.unreadable) is (
        data == b'{"version":2}'
    )


def test_old_notifications_are_removed_when_a_new_one_comes() -> None:
    """They expire 15 minutes after this controller first saw them."""
    world = World(2)
    world.create(topic((1, 2)))
    alter(world, retention_ms="1")
    world.stop(1)
    world.run()
    world.run(for_ms=CHANGE_EXPIRATION_MS + 1_000)
    assert len(world.admin(Children(layout.CONFIG_CHANGES_PATH)).children) == 1
    alter(world, retention_ms="2")
    assert world.admin(Children(layout.CONFIG_CHANGES_PATH)).children == ("config_change_0000000001",)
    context = world.active.controller.context
    assert context is not None
    assert list(context.config_changes) == [f"{layout.CONFIG_CHANGE_PREFIX}0000000001"]


def test_settings_that_a_former_topic_left_do_not_stand_in_the_way() -> None:
    world = World(1)
    world.admin(Create(CONFIG, layout.encode_topic_config({"retention.ms": "1"}), make_parents=True))
    assert world.create(topic((1,), segment_bytes="65536")).topics["t"].error is ErrorCode.NONE
    assert settings(world) == {"segment.bytes": "65536"}


LONG = ",".join(["0:1"] * 300_000)


def test_what_no_request_to_the_store_can_hold_is_refused_and_ends_no_term() -> None:
    """A server closes the connection without an answer: repeated, it ended the term of each controller."""
    world = World(1)
    world.create(topic((1,)))
    epoch = world.controller_epoch
    assert alter(world, leader_replication_throttled_replicas=LONG).error is ErrorCode.POLICY_VIOLATION
    assert settings(world) == {}
    made = world.create(
        topic((1,), name="u", leader_replication_throttled_replicas=LONG), topic((1,), name="v")
    ).topics
    assert (made["u"].error, made["v"].error) == (ErrorCode.POLICY_VIOLATION, ErrorCode.NONE)
    assert world.admin(Get(layout.topic_path("u"))).stat is None
    assert world.controller_epoch == epoch


def test_partitions_that_no_node_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1)
    world.create(topic((1,)))
    epoch = world.controller_epoch
    monkeypatch.setattr(operations, "LARGEST_WRITE", 1_000)
    assert add(world, 1_000).error is ErrorCode.POLICY_VIOLATION
    assert add(world, 10).error is ErrorCode.NONE
    assert world.controller_epoch == epoch


# --- racks ------------------------------------------------------------------------------------


def test_replicas_are_spread_over_racks() -> None:
    """each partition spans min(rf, racks) racks; the added ones too"""
    world = World(0)
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    for broker_id, rack in racks.items():
        world.racks[broker_id] = rack
        world.start(broker_id)
        world.run()
    world.create(NewTopic("t", 4, 2))
    assert add(world, 8).error is ErrorCode.NONE
    for partition in range(8):
        assert {racks[member] for member in world.view(partition)[2]} == {"a", "b"}


def test_some_racks_and_no_others_are_refused() -> None:
    world = World(2)
    world.racks[3] = "a"
    world.start(3)
    world.run()
    refused = world.create(NewTopic("t", 1, 2)).topics["t"]
    assert refused.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "rack" in refused.message


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "t/partitions", "a\0b"])
def test_a_name_that_is_no_topics_is_no_path_in_the_store_either(name: str) -> None:
    """A client may send any name; an invalid path must not reach the store."""
    world = World(1)
    world.create(topic((1,)))
    response = world.ask(CreatePartitionsRequest({name: NewPartitions(2)}))
    assert isinstance(response, CreatePartitionsResponse)
    assert response.topics[name].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.view() == (1, 0, (1,))

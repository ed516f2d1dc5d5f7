"""The controller's terms: claims, lost replies of the store, sessions that end, events that fail.

S numbers are those of the failure schedules in docs/replication.md.
"""

from __future__ import annotations

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.effects import Client
from logstore.replication.messages import (
    NO_LEADER,
    CreateTopicsRequest,
    CreateTopicsResponse,
    NewTopic,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import (
    ANY_VERSION,
    Create,
    Delete,
    Get,
    Multi,
    Set,
    StoreError,
)
from tests.replication.controller.world import World, state_writes, topic

T0 = TopicPartition("t", 0)


def test_exactly_one_controller_whose_epoch_only_grows() -> None:
    world = World(3)
    for expected in range(1, 5):
        assert world.controller_epoch() == expected
        active = world.controller_id
        world.stop(active)
        world.run()
        world.start(active)
        world.run()


def test_s50_manual_deletion_makes_the_old_one_resign_first() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    world.admin(Delete(layout.CONTROLLER_PATH))
    world.run()
    assert world.controller_epoch() == 2
    assert world.members[1].controller.resigned_because
    assert world.create(topic((1,), name="x")).topics["x"].error is ErrorCode.NONE


def test_overwriting_the_node_forces_a_new_election() -> None:
    """An unreadable node names nobody; it is ours, so we may remove it."""
    world = World(2)
    world.admin(Set(layout.CONTROLLER_PATH, b"nobody", ANY_VERSION))
    world.run()
    assert world.controller_epoch() == 2
    assert layout.parse_controller(world.admin(Get(layout.CONTROLLER_PATH)).data) == world.controller_id


@pytest.mark.parametrize("applied", [True, False])
def test_s49_lost_reply_of_the_claim(applied: bool) -> None:
    world = World(1)
    world.stop(1)
    world.start(1)
    while not isinstance(world.members[1].store_calls[0].operation, Multi):
        world.apply_call(1)
        while world.members[1].inbox:
            world.read_inbox(1)
    world.apply_call(1, lose_reply=applied, lose_call=not applied)
    world.run()
    assert world.controller_id == 1
    assert world.controller_epoch() == 2, "claimed once, whether or not the reply came"


def test_own_node_of_a_former_session_is_not_ours() -> None:
    """ZOOKEEPER-2985: the node vanishes with the former session, and the claim with it."""
    world = World(2)
    world.kill(1)
    old = world.members[1].session_id
    path = layout.broker_path(1)
    world.admin(Delete(path))
    world.start(1)
    world.run()
    assert not world.members[1].controller.is_active
    world._deliver(world.store.close_session(old))
    world.run()
    assert world.controller_epoch() == 2


def test_s42_paused_controller_writes_nothing_more() -> None:
    """X reads and decides, Y is elected and decides; X's write fails at the fence, and X resigns."""
    world = World(4)
    world.create(topic((2, 3, 4)))
    paused = world.members[1]
    world.stop(2)
    while not (paused.store_calls and isinstance(paused.store_calls[0].operation, Multi)):
        if paused.inbox:
            world.read_inbox(1)
        else:
            world.apply_call(1)
    paused.paused = True
    requests_before = len(paused.requests)
    world.admin(Delete(layout.CONTROLLER_PATH))
    world.run(until=lambda: any(world.members[each].controller.is_active for each in (3, 4)))
    world.run(for_ms=500)
    by_new = world.view()
    assert by_new == (3, 1, (3, 4))
    paused.paused = False
    world.apply_call(1)
    assert world.history[-1][2].error is StoreError.BAD_VERSION
    assert world.history[-1][2].failed_index == 0
    while paused.inbox:
        world.read_inbox(1)
    assert not paused.controller.is_active
    assert len(paused.requests) == requests_before, "not a word about what it had decided"
    world.run()
    assert world.view() == by_new


def test_s43_broker_that_knows_a_later_controller_unseats_the_old_one() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    world.members[3].broker.controller_epoch = 9
    world.stop(2)
    world.run(for_ms=20_000)
    assert world.controller_epoch() >= 9, "terms are given up until ours is the latest again"
    assert world.members[3].broker.states[T0].isr == (1, 3)


def test_s47_session_ends_between_the_writes_and_the_word() -> None:
    """Some elections are persisted but not announced; the next controller announces them."""
    world = World(4)
    world.create(topic(*[(2, 3, 4)] * 10))
    old = world.members[1]
    world.stop(2)
    while not (len(old.store_calls) > 1 and isinstance(old.store_calls[0].operation, Multi)):
        if old.inbox:
            world.read_inbox(1)
        else:
            world.apply_call(1)
    for _ in range(5):
        world.apply_call(1)
    old.paused = True
    world.expire(1)
    world.run(until=lambda: any(world.members[each].controller.is_active for each in (3, 4)))
    world.run()
    for partition in range(10):
        assert world.view(partition)[0] == 3
        told = world.members[4].broker.states[TopicPartition("t", partition)]
        assert (told.leader, told.leader_epoch) == world.view(partition)[:2]
    old.paused = False
    world.run()
    assert not old.controller.is_active
    epochs = [written.controller_epoch for _, _, written in state_writes(world)]
    assert epochs == sorted(epochs)


@pytest.mark.parametrize("applied", [True, False])
def test_s48_lost_reply_of_an_election(applied: bool) -> None:
    world = World(3)
    world.create(topic((2, 3)))
    controller = world.members[1]
    world.stop(2)
    while not (controller.store_calls and isinstance(controller.store_calls[0].operation, Multi)):
        if controller.inbox:
            world.read_inbox(1)
        else:
            world.apply_call(1)
    world.apply_call(1, lose_reply=applied, lose_call=not applied)
    world.run()
    assert world.view() == (3, 1, (3,)), "adopted, not repeated on top"
    assert world.members[3].broker.states[T0].leader == 3, "and told"


def test_lost_replies_of_reads_only_cost_time() -> None:
    world = World(3)
    world.create(topic((2, 3)))
    world.stop(2)
    lost = 0
    for _ in range(200):
        member = world.members[1]
        if member.inbox:
            world.read_inbox(1)
        elif member.store_calls:
            lose = lost < 5 and isinstance(member.store_calls[0].operation, Get)
            lost += lose
            world.apply_call(1, lose_reply=lose)
        else:
            world.pass_time(50)
    world.run()
    assert lost == 5
    assert world.view() == (3, 1, (3,))


def test_a_store_that_never_answers_is_waited_for_and_then_asked_again() -> None:
    world = World(2)
    world.create(topic((2,)))
    world.stop(2)
    while world.members[1].inbox:
        world.read_inbox(1)
    world.members[1].store_calls.clear()
    world.run(for_ms=5_000)
    assert world.view() == (NO_LEADER, 1, (2,))


def test_waiting_clients_are_told_when_the_session_is_lost() -> None:
    world = World(2)
    world.create(topic((1, 2)))
    member = world.members[1]
    for token in ("a", "b"):
        request = CreateTopicsRequest((NewTopic(token),))
        world.perform(member, member.controller.on_request(Client(token), request, world.now_ms))
    world.perform(member, member.controller.on_session_lost(world.now_ms))
    for token in ("a", "b"):
        response = world.replies[token]
        assert isinstance(response, CreateTopicsResponse)
        assert response.topics[token].error is ErrorCode.NOT_CONTROLLER
    assert not member.controller.is_active
    assert member.controller.deadline_ms is None


def test_store_that_says_expired_ends_the_term_before_the_node_hears() -> None:
    world = World(2)
    world.create(topic((1, 2)))
    world._deliver(world.store.close_session(world.members[1].session_id))
    member = world.members[1]
    request = CreateTopicsRequest((NewTopic("x"),))
    world.perform(member, member.controller.on_request(Client("x"), request, world.now_ms))
    world.apply_call(1)
    world.read_inbox(1)
    assert not member.controller.is_active
    response = world.replies["x"]
    assert isinstance(response, CreateTopicsResponse)
    assert response.topics["x"].error is ErrorCode.NOT_CONTROLLER
    assert not member.store_calls, "nothing more in a session that is over"
    world.run()
    world.register(1)
    world.run()
    assert world.controller_id == 2


def test_s57_failed_event_is_tried_again_and_then_ends_the_term() -> None:
    """The directory of brokers is gone: retries fail, and a new term creates it again."""
    world = World(1)
    epoch = world.controller_epoch()
    world.admin(Create("/brokers/ids/0"))
    world.run()
    for child in ("0", "1"):
        world.admin(Delete(f"/brokers/ids/{child}"))
    world.admin(Delete("/brokers/ids"))
    world.run(for_ms=3_000)
    assert "failed" in world.members[1].controller.resigned_because
    assert world.controller_epoch() > epoch
    assert world.admin(Get("/brokers/ids")).error is None


def test_nodes_that_make_no_sense_are_left_alone_and_reported() -> None:
    """One bad node must neither stop the controller nor be overwritten."""
    world = World(3)
    world.create(topic((2, 3), (2, 3)))
    path = layout.partition_state_path(T0)
    world.admin(Set(path, b"{]", ANY_VERSION))
    world.admin(Create(layout.topic_path("broken"), b"?"))
    world.admin(Create(layout.topic_path("bad name"), b"?"))
    world.admin(Create(layout.broker_path(8), b"?"))
    world.admin(Create(layout.BROKER_IDS_PATH + "/nine", b"?"))
    world.stop(2)
    world.run()
    assert world.admin(Get(path)).data == b"{]"
    assert world.view(1) == (3, 1, (3,))
    context = world.active.controller.context
    assert context is not None
    assert set(context.unreadable) == {
        path,
        layout.topic_path("broken"),
        layout.topic_path("bad name"),
        layout.broker_path(8),
    }
    assert world.admin(Get(layout.topic_path("broken"))).data == b"?"


def test_unreadable_controller_epoch_is_waited_out() -> None:
    """Without a readable epoch there is no fence and no controller, until an operator repairs the node."""
    world = World(1)
    data = world.admin(Get(layout.CONTROLLER_EPOCH_PATH)).data
    world.admin(Set(layout.CONTROLLER_EPOCH_PATH, b"?", ANY_VERSION))
    world.stop(1)
    world.start(1)
    world.run()
    assert not world.members[1].controller.is_active
    world.admin(Set(layout.CONTROLLER_EPOCH_PATH, data, ANY_VERSION))
    world.run()
    assert world.controller_id == 1


def test_retries_to_a_silent_broker_end_with_its_registration() -> None:
    world = World(2)
    world.create(topic((1, 2)))
    world.kill(2)
    world.run(for_ms=20_000)
    assert world.view() == (1, 1, (1,))
    world.run()
    assert not world.members[1].requests
    assert world.members[1].controller.deadline_ms is None, "nothing left to do, nothing to wait for"


def test_who_registers_with_a_damaged_log_is_not_elected() -> None:
    """It would refuse its role and be alone in the ISR: the complete replicas could never lead again."""
    world = World(3)
    controller = world.controller_id
    first, second = (broker_id for broker_id in world.members if broker_id != controller)
    world.create(topic((first, second)))
    world.kill(first)
    world.kill(second)
    world.expire(first)
    world.expire(second)
    world.run()
    world.start(second, damaged=(T0,))
    world.members[second].broker.failing.add(T0)
    world.run()
    state = world.state()
    assert state is not None
    assert (state.leader, state.isr) == (NO_LEADER, (first,))
    world.members[second].broker.failing.clear()  # when others hold it: the log is cut, to follow
    world.start(first)
    world.run()
    assert (world.view()[0], world.view()[2]) == (first, (first,))
    assert world.alter(first, (first, second)).partitions[T0].error is ErrorCode.NONE
    version = world.version()
    world.kill(controller)
    world.expire(controller)
    world.run()
    assert world.version() == version, "the next controller reads the same registration, and knows better"


def test_what_a_broker_says_of_a_former_topic_does_not_keep_a_new_one_waiting() -> None:
    world = World(2)
    world.start(2, damaged=(T0,))
    world.run()
    world.create(topic((2,)))
    assert world.view() == (2, 0, (2,))

"""Requested elections: by a client's request, by a tool's node, by rebalancing.

S and I numbers are those of the failure schedules and invariants in docs/replication.md.
"""

from __future__ import annotations

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.assignment import Assignment
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.controller.deletion import Deletion
from logstore.replication.messages import (
    NO_LEADER,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    LeaderAndIsrRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import ANY_VERSION, Create, Delete, Get, Multi, Set
from tests.replication.controller.world import World, state_writes, topic

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))


def strayed(*, brokers: int = 4, config: ControllerConfig | None = None) -> World:
    """Broker 2 was away: it follows and is in sync again, others lead what it should."""
    world = World(brokers, config=config)
    world.create(topic((2, 3, 1), (2, 1, 3), (3, 2, 1)))
    world.stop(2)
    world.run()
    world.start(2)
    world.run()
    for partition in range(3):
        leader, _, isr = world.view(partition)
        assert (
            world.alter(leader, (*isr, 2), partition).partitions[TopicPartition("t", partition)].error
            is ErrorCode.NONE
        )
    assert [world.view(partition)[:2] for partition in range(3)] == [(3, 1), (1, 1), (3, 1)]
    return world


def ask_in_store(world: World, *partitions: TopicPartition) -> None:
    data = layout.encode_partitions(partitions)
    world.admin(Create(layout.PREFERRED_ELECTION_PATH, data, make_parents=True))


def is_cleared(world: World) -> bool:
    return world.admin(Get(layout.PREFERRED_ELECTION_PATH)).stat is None


def next_write(world: World, broker_id: int) -> None:
    """Let this controller run until it is about to write."""
    member = world.members[broker_id]
    while not (member.store_calls and isinstance(member.store_calls[0].operation, Multi)):
        if member.inbox:
            world.read_inbox(broker_id)
        else:
            world.apply_call(broker_id)


# --- by request -------------------------------------------------------------------------------


def test_the_preferred_replica_leads_again() -> None:
    """Preferred election: leader back, LE +1 per move, the ISR as it was."""
    world = strayed()
    assert world.elect(T0, T2) == {T0: ErrorCode.NONE, T2: ErrorCode.ELECTION_NOT_NEEDED}
    assert world.view(0) == (2, 2, (3, 1, 2))
    assert world.view(1)[:2] == (1, 1), "nobody asked for this one"
    for broker in (1, 2, 3):
        assert world.members[broker].broker.states[T0].leader == 2
    assert world.members[4].broker.metadata[T0].leader == 2
    assert world.elect(T0) == {T0: ErrorCode.ELECTION_NOT_NEEDED}
    assert world.view(0)[1] == 2, "no epoch is spent on what is so already"


def test_all_partitions_names_only_those_that_needed_it() -> None:
    world = strayed()
    world.create_by_tool(topic((9,), name="u"))
    unled = TopicPartition("u", 0)
    wanted = {T0: ErrorCode.NONE, T1: ErrorCode.NONE, unled: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert world.elect() == wanted


def test_a_preferred_replica_out_of_sync_or_dead_is_never_elected() -> None:
    """No data loss: a replica that lacks records does not lead."""
    world = strayed()
    assert world.alter(3, (3, 1)).partitions[T0].error is ErrorCode.NONE
    assert world.elect(T0) == {T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    world.stop(2)
    world.run()
    assert world.elect(T1) == {T1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert [world.view(partition)[0] for partition in (0, 1)] == [3, 1]


def test_a_member_that_was_replaced_by_its_successor_is_not_elected() -> None:
    """The state names an incarnation; a later one may have lost everything."""
    world = strayed()
    state = world.state(0)
    assert state is not None
    older = layout.LeaderAndIsr(
        state.leader, state.leader_epoch, state.isr, state.controller_epoch, (*state.isr_broker_epochs[:2], 1)
    )
    world.admin(Set(layout.partition_state_path(T0), layout.encode_state(older), ANY_VERSION))
    assert world.elect(T0) == {T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}


def test_unknown_unreadable_and_vanishing_partitions() -> None:
    world = strayed()
    context = world.active.controller.context
    assert context is not None
    context.deletions["t"] = Deletion("id", waits_for="a test")
    unknown = TopicPartition("nowhere", 0)
    assert world.elect(T0, unknown) == {
        T0: ErrorCode.INVALID_TOPIC_EXCEPTION,
        unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert world.elect() == {}
    context.deletions.clear()
    world.admin(Set(layout.partition_state_path(T1), b"?", ANY_VERSION))
    assert world.elect(T0, T1) == {T0: ErrorCode.NONE, T1: ErrorCode.UNKNOWN_SERVER_ERROR}


def test_an_unclean_election_is_for_those_without_a_leader() -> None:
    """UNCLEAN by request (KIP-460): only leaderless partitions, whatever the settings forbid otherwise."""
    world = World(4)
    world.create(topic((2, 3), (3, 4), (2, 4)))
    for broker in (2, 3):
        world.stop(broker)
        world.run()
    world.start(2)
    world.run()
    assert world.view(0) == (NO_LEADER, 2, (3,))
    unclean = ElectionType.UNCLEAN
    assert world.elect(T0, T1, T2, election_type=unclean) == {
        T0: ErrorCode.NONE,
        T1: ErrorCode.ELECTION_NOT_NEEDED,
        T2: ErrorCode.ELECTION_NOT_NEEDED,
    }
    assert world.view(0) == (2, 3, (2,))
    state = world.state(0)
    assert state is not None
    assert state.recovering
    change = [each for each in world.changes if each.topic_partition == T0][-1]
    told = ("elects a leader outside the ISR", "an unclean election was asked for")
    assert (change.change, change.reason) == told
    for broker in (2, 4):
        world.stop(broker)
        world.run()
    assert world.elect(T1, election_type=unclean) == {T1: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


def test_requests_that_outlive_a_term_tell_what_is_certain() -> None:
    """One partition was elected before the session ended: its result stands, the other may try elsewhere."""
    world = strayed()
    token = world.post(ElectLeadersRequest(ElectionType.PREFERRED, (T0, T1)))
    next_write(world, 1)
    world.apply_call(1)
    world.apply_call(1, lose_reply=True)
    while world.members[1].inbox:
        world.read_inbox(1)
    member = world.members[1]
    world.perform(member, member.controller.on_session_lost(world.now_ms))
    body = world.replies[token]
    assert isinstance(body, ElectLeadersResponse)
    assert body.error is ErrorCode.NOT_CONTROLLER
    told = [result.error for result in body.partitions.values()]
    assert told == [ErrorCode.NONE, ErrorCode.NOT_CONTROLLER]


def test_a_broker_that_is_not_the_controller_elects_nobody() -> None:
    world = strayed()
    body = world.ask(ElectLeadersRequest(ElectionType.PREFERRED, (T0,)), via=3)
    assert isinstance(body, ElectLeadersResponse)
    assert body.error is ErrorCode.NOT_CONTROLLER
    assert body.partitions[T0].error is ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize("reply_is_lost", [True, False])
def test_a_decision_is_in_the_state_change_log_with_its_reason(reply_is_lost: bool) -> None:
    """Also one whose write is only recognised at the next reading, for want of an answer."""
    world = strayed()
    world.changes.clear()
    world.post(ElectLeadersRequest(ElectionType.PREFERRED, (T0,)))
    next_write(world, 1)
    world.apply_call(1, lose_reply=reply_is_lost)
    world.run()
    (change,) = [each for each in world.changes if each.topic_partition == T0]
    assert (change.change, change.reason) == ("elects a leader", "asked for")
    assert (change.leader, change.leader_epoch, change.partition_epoch) == (2, 2, world.version())
    world.changes.clear()
    world.shut_down(2)
    told = {each.topic_partition: each.reason for each in world.changes}
    assert told == dict.fromkeys((T0, T1, T2), "broker 2 shuts down")


# --- schedule 55 ------------------------------------------------------------------------------


def test_s55_a_preferred_election_against_a_shrink() -> None:
    """The controller has read {1,2}; leader 2 drops 1 first: refused, read again, nobody is elected."""
    world = World(3)
    world.create(topic((1, 2), name="t"))
    world.admin(Delete(layout.partition_state_path(T0)))
    epochs = tuple(world.members[each].broker.epoch for each in (1, 2))
    led_by_two = layout.LeaderAndIsr(2, 5, (1, 2), 1, epochs)
    world.admin(Create(layout.partition_state_path(T0), layout.encode_state(led_by_two)))
    token = world.post(ElectLeadersRequest(ElectionType.PREFERRED, (T0,)))
    next_write(world, 1)
    shrunk = layout.LeaderAndIsr(2, 5, (2,), 1, epochs[1:])
    world.admin(Set(layout.partition_state_path(T0), layout.encode_state(shrunk), 0))
    world.run()
    assert world.view() == (2, 5, (2,))
    body = world.replies[token]
    assert isinstance(body, ElectLeadersResponse)
    assert body.partitions[T0].error is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_s55_the_other_way_round_the_shrink_is_refused() -> None:
    """1 leads in a new epoch: what 2 proposes as leader of the old one is fenced."""
    world = strayed()
    before = world.version(0)
    assert world.elect(T0) == {T0: ErrorCode.NONE}
    late = world.alter(3, (3, 1), leader_epoch=1, partition_epoch=before)
    assert late.partitions[T0].error is ErrorCode.FENCED_LEADER_EPOCH
    assert world.view(0) == (2, 2, (3, 1, 2))


# --- by the node ------------------------------------------------------------------------------


def test_a_tool_asks_in_the_store() -> None:
    world = strayed()
    ask_in_store(world, T0, T2, TopicPartition("nowhere", 7))
    world.run()
    assert is_cleared(world)
    assert world.view(0)[0] == 2
    assert world.view(1)[0] == 1
    ask_in_store(world, T1)
    world.run()
    assert is_cleared(world), "the watch was set again"
    assert world.view(1)[0] == 2


def test_the_node_goes_also_when_nobody_can_be_elected() -> None:
    """Node removed also if the preferred one is offline."""
    world = strayed()
    world.stop(2)
    world.run()
    ask_in_store(world, T0)
    world.run()
    assert is_cleared(world)
    assert world.view(0)[0] == 3


def test_a_node_that_makes_no_sense_is_removed_and_reported() -> None:
    world = strayed()
    world.admin(Create(layout.PREFERRED_ELECTION_PATH, b"{]", make_parents=True))
    world.run()
    assert is_cleared(world)
    context = world.active.controller.context
    assert context is not None
    assert layout.PREFERRED_ELECTION_PATH in context.unreadable


def test_a_node_that_was_left_behind_is_served_by_the_next_controller() -> None:
    world = strayed()
    world.kill(world.controller_id)
    ask_in_store(world, T0)
    world.run(for_ms=15_000)
    assert is_cleared(world)
    assert world.view(0)[0] == 2


def test_the_node_goes_when_its_partition_cannot_be_written() -> None:
    """The state changes under every try: the elections are given up, the tool is not left waiting."""
    world = strayed()
    ask_in_store(world, T0)
    member = world.members[1]
    path = layout.partition_state_path(T0)
    for _ in range(1_000):
        if member.inbox:
            world.read_inbox(1)
        elif member.store_calls:
            operation = member.store_calls[0].operation
            if isinstance(operation, Multi) and any(write.path == path for write in operation.writes):
                world.admin(Set(path, world.admin(Get(path)).data, ANY_VERSION))
            world.apply_call(1)
        elif is_cleared(world):
            break
    assert is_cleared(world)
    world.run()
    assert member.controller.is_active, "no reason to resign"
    assert world.view(0)[0] == 3


@pytest.mark.parametrize("applied", [True, False])
def test_the_answer_to_the_removal_is_lost(applied: bool) -> None:
    """After the removal, a node at that path is a new request, and is not removed unread."""
    world = strayed()
    ask_in_store(world, T0)
    member = world.members[1]
    while not (
        member.store_calls
        and isinstance(member.store_calls[0].operation, Multi)
        and member.store_calls[0].operation.writes[-1].path == layout.PREFERRED_ELECTION_PATH
    ):
        if member.inbox:
            world.read_inbox(1)
        else:
            world.apply_call(1)
    world.apply_call(1, lose_reply=applied, lose_call=not applied)
    if applied:
        ask_in_store(world, T1)
    world.run()
    assert is_cleared(world)
    assert world.view(0)[0] == 2
    assert world.view(1)[0] == (2 if applied else 1)


# --- by the balance ---------------------------------------------------------------------------

BALANCED = ControllerConfig(
    request_timeout_ms=1_000,
    retry_backoff_ms=100,
    leader_imbalance_check_interval_seconds=60,
    leader_imbalance_per_broker_percentage=10,
)


def test_leaderships_go_home_by_themselves() -> None:
    """Auto rebalance: the first check after 5 s of a term, then every interval."""
    world = World(4, config=BALANCED)
    world.create(topic((2, 3, 1), (2, 1, 3)))
    world.run(for_ms=6_000)
    world.stop(2)
    world.run()
    world.start(2)
    world.run()
    for partition in (0, 1):
        leader, _, isr = world.view(partition)
        world.alter(leader, (*isr, 2), partition)
    world.run(for_ms=20_000)
    assert [world.view(partition)[0] for partition in (0, 1)] == [3, 1], "not before the interval"
    world.run(for_ms=60_000)
    assert [world.view(partition)[0] for partition in (0, 1)] == [2, 2]
    context = world.active.controller.context
    assert context is not None
    assert len(context.imbalances[2].astray) == context.imbalances[2].total, "as it was found"
    world.run(for_ms=60_000)
    assert not context.imbalances[2].astray


def test_the_first_check_of_a_term_comes_soon() -> None:
    world = strayed(config=BALANCED)
    world.stop(world.controller_id)
    world.run(for_ms=4_000)
    assert world.view(0)[0] == 3
    world.run(for_ms=4_000)
    assert world.view(0)[0] == 2


def test_what_cannot_or_must_not_go_home_stays() -> None:
    """Dead, out of sync, being reassigned, being deleted: the filter, one by one."""
    config = ControllerConfig(
        request_timeout_ms=1_000, retry_backoff_ms=100, leader_imbalance_check_interval_seconds=30
    )
    world = strayed(config=config)
    context = world.active.controller.context
    assert context is not None
    context.assignments[T0] = Assignment((2, 3, 1, 4), adding=(4,))
    world.alter(world.view(1)[0], (1, 3), partition=1)
    writes = len(state_writes(world))
    world.run(for_ms=35_000)
    assert len(state_writes(world)) == writes
    assert context.imbalances[2].astray == (T0, T1)
    assert context.imbalances[2].electable == ()
    context.assignments.clear()
    context.deletions["t"] = Deletion("id", waits_for="a test")
    world.run(for_ms=35_000)
    assert len(state_writes(world)) == writes
    assert context.imbalances == {}
    context.deletions.clear()
    world.run(for_ms=35_000)
    assert world.view(0)[0] == 2
    assert world.view(1)[0] == 1


def test_a_little_imbalance_is_left_alone() -> None:
    """Ten per cent is not more than ten per cent."""
    config = ControllerConfig(
        request_timeout_ms=1_000,
        retry_backoff_ms=100,
        leader_imbalance_check_interval_seconds=10,
        leader_imbalance_per_broker_percentage=50,
    )
    world = World(3, config=config)
    world.create(topic((2, 3), (2, 3)))
    moved = world.state(0)
    assert moved is not None
    other = layout.LeaderAndIsr(3, 1, moved.isr, 1, moved.isr_broker_epochs)
    world.admin(Set(layout.partition_state_path(T0), layout.encode_state(other), ANY_VERSION))
    world.admin(Create(layout.ISR_NOTIFICATION_PREFIX, layout.encode_partitions([T0]), sequential=True))
    world.run(for_ms=25_000)
    assert world.view(0)[0] == 3


def test_rebalancing_can_be_switched_off() -> None:
    world = strayed()
    assert not world.config.auto_leader_rebalance_enable
    world.run(for_ms=400_000)
    assert world.view(0)[0] == 3


# --- batches ----------------------------------------------------------------------------------


def test_many_elections_are_one_request_a_broker() -> None:
    """All roles of one event go to a broker in one request."""
    world = World(3)
    world.create(topic(*[(2, 3, 1)] * 40))
    for member in world.members.values():
        member.broker.received.clear()
    world.stop(2)
    world.run()
    for broker in (1, 3):
        roles = [
            body for body in world.members[broker].broker.received if isinstance(body, LeaderAndIsrRequest)
        ]
        assert [len(body.partitions) for body in roles] == [40]

"""The controller in its world: failures of brokers, of the store's replies, of the controller itself.

S and I numbers are those of the failure schedules and invariants in the replication reference.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.effects import Client, Peer
from logstore.replication.messages import (
    BEING_DELETED,
    NO_LEADER,
    AlterPartitionRequest,
    AlterPartitionResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    IsrProposal,
    LeaderAndIsrRequest,
    NewTopic,
    UpdateMetadataRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LOST_BROKER_EPOCH
from logstore.replication.metastore.operations import (
    ANY_VERSION,
    Children,
    Create,
    Delete,
    Get,
    Multi,
    Set,
    StoreError,
)
from tests.replication.controller.world import World, state_writes, topic

T0 = TopicPartition("t", 0)


# --- topics -----------------------------------------------------------------------------------


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


def test_new_topic_with_a_dead_replica_starts_without_it() -> None:
    world = World(3)
    world.stop(1)
    world.run()
    world.create(topic((1, 2, 3)))
    assert world.view() == (2, 0, (2, 3))
    world.start(1)
    world.run()
    assert world.view() == (2, 0, (2, 3)), "it joins by catching up, not by being there"
    assert world.members[1].broker.states[T0].leader == 2


def test_new_topic_without_a_live_replica_waits_for_one() -> None:
    world = World(2)
    world.create(topic((7, 8)))
    assert world.state() is None
    world.start(7)
    world.run()
    assert world.view() == (7, 0, (7,))


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


# --- brokers that fail ------------------------------------------------------------------------


def test_leader_dies_under_a_surviving_controller() -> None:
    """One write, one leader epoch: the election itself takes the dead out of the ISR."""
    world = World(3)
    world.create(topic((2, 3, 1)))
    world.stop(2)
    world.run()
    assert world.view() == (3, 1, (3, 1))
    assert world.members[3].broker.states[T0].leader_epoch == 1
    assert world.members[1].broker.metadata[T0].leader == 3
    assert world.members[1].broker.live == (1, 3)


def test_follower_dies() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    world.stop(3)
    world.run()
    assert world.view() == (1, 1, (1, 2))


def test_controller_and_leader_die_together() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    world.stop(1)
    world.run()
    assert world.controller_id == 2
    assert world.controller_epoch() == 2
    leader, leader_epoch, isr = world.view()
    assert (leader, isr) == (2, (2, 3))
    assert leader_epoch >= 1
    assert world.members[3].broker.states[T0].leader == 2


def test_sole_replica_goes_and_comes() -> None:
    """-1 is a state of its own, with its own leader epoch: 0 → 1 (nobody) → 2."""
    world = World(2)
    world.create(topic((2,)))
    world.stop(2)
    world.run()
    assert world.view() == (NO_LEADER, 1, (2,))
    assert world.members[1].broker.metadata[T0].leader == NO_LEADER
    world.start(2)
    world.run()
    assert world.view() == (2, 2, (2,))


def test_s52_no_leader_until_an_isr_member_returns() -> None:
    world = World(4)
    world.create(topic((2, 3)))
    world.stop(2)
    world.run()
    world.stop(3)
    world.run()
    assert world.view() == (NO_LEADER, 2, (3,))
    world.start(2)
    world.run()
    assert world.view() == (NO_LEADER, 2, (3,)), "it may lack committed records"
    world.start(3)
    world.run()
    assert world.view() == (3, 3, (3,))
    assert world.members[2].broker.states[T0].leader == 3


def test_s52_unclean_election_where_it_is_allowed() -> None:
    """The topic's word beats the broker's, either way."""
    allowed = topic((2, 3), unclean_leader_election_enable="true")
    forbidden = topic((2, 3), name="u", unclean_leader_election_enable="false")
    for default in (False, True):
        config = ControllerConfig(
            request_timeout_ms=1_000, retry_backoff_ms=100, unclean_leader_election_enable=default
        )
        world = World(4, config=config)
        world.create(allowed, forbidden)
        for broker in (2, 3):
            world.stop(broker)
            world.run()
        world.start(2)
        world.run()
        assert world.view() == (2, 3, (2,))
        state = world.state()
        assert state is not None
        assert state.recovering
        assert world.view(0, "u")[0] == NO_LEADER
        assert world.alter(2, (2,)).partitions[T0].error is ErrorCode.NONE
        recovered = world.state()
        assert recovered is not None
        assert not recovered.recovering


def test_unclean_election_that_is_allowed_later_elects_at_once() -> None:
    world = World(3)
    world.create(topic((2, 3)))
    for broker in (2, 3):
        world.stop(broker)
        world.run()
    world.start(2)
    world.run()
    assert world.view()[0] == NO_LEADER
    config = layout.encode_topic_config({"unclean.leader.election.enable": "true"})
    world.admin(Set(layout.topic_config_path("t"), config, ANY_VERSION))
    world.run()
    assert world.view() == (2, 3, (2,))


def test_changed_settings_reach_the_replicas() -> None:
    world = World(2)
    world.create(topic((1, 2)))
    config = layout.encode_topic_config({"retention.ms": "5"})
    world.admin(Set(layout.topic_config_path("t"), config, ANY_VERSION))
    world.run()
    last = [body for body in world.members[2].broker.received if isinstance(body, LeaderAndIsrRequest)][-1]
    assert last.configs == {"t": {"retention.ms": "5"}}


def test_a_setting_that_makes_no_sense_takes_no_leader_away() -> None:
    """A broker refuses a role with a setting that it does not know: what a tool wrote is sifted here."""
    world = World(2)
    world.create(topic((1, 2), min_insync_replicas="2"))
    path = layout.topic_config_path("t")
    settings = {"min.insync.replicas": "2", "no.such.setting": "1", "retention.ms": "soon"}
    world.admin(Set(path, layout.encode_topic_config(settings), ANY_VERSION))
    world.run()
    context = world.active.controller.context
    assert context is not None
    assert context.topics["t"].config == {"min.insync.replicas": "2"}
    assert "retention.ms" in context.unreadable[path]
    world.admin(Set(path, b"{]", ANY_VERSION))
    world.run()
    assert context.topics["t"].config == {"min.insync.replicas": "2"}, "unreadable: nothing changes"
    world.admin(Set(path, layout.encode_topic_config({"retention.ms": "5"}), ANY_VERSION))
    world.run()
    last = [body for body in world.members[2].broker.received if isinstance(body, LeaderAndIsrRequest)][-1]
    assert last.configs == {"t": {"retention.ms": "5"}}
    assert path not in context.unreadable


def test_s51_bounce_that_nobody_saw_is_a_failure_and_a_start() -> None:
    """The registration changes hands between two readings: only the transaction id tells."""
    world = World(3)
    world.create(topic((2, 3)), topic((3, 2), name="u"), topic((2,), name="solo"))
    world.start(2)
    world.run()
    assert world.view() == (3, 1, (3,))
    assert world.view(0, "u") == (3, 1, (3,))
    assert world.view(0, "solo") == (2, 2, (2,)), "gone (1), then back (2)"
    assert world.members[2].broker.states[T0].leader == 3


def test_bounce_during_the_change_of_controller() -> None:
    """The new controller never saw the old incarnation: the state node remembers it."""
    world = World(3)
    world.create(topic((2, 3)))
    world.stop(1)
    world.kill(2)
    world.kill(3)
    world.start(2)
    world.run()
    assert world.view() == (3, 1, (3,)), "3 is still registered, and the 2 that lives is not the 2 that led"
    world.run(for_ms=8_000)
    assert world.view() == (NO_LEADER, 2, (3,))


@pytest.mark.parametrize("trusted", [False, True])
def test_r2_last_member_that_lost_records_is_not_elected(trusted: bool) -> None:
    config = ControllerConfig(
        request_timeout_ms=1_000, retry_backoff_ms=100, elect_unclean_restarted_last_member=trusted
    )
    world = World(3, config=config)
    world.create(topic((2, 3)))
    world.stop(3)
    world.run()
    world.start(3)
    world.stop(2)
    world.run()
    assert world.view()[2] == (2,)
    world.start(2, clean=False)
    world.run()
    if trusted:
        assert world.view()[0] == 2
        return
    state = world.state()
    assert state is not None
    assert (state.leader, state.isr, state.isr_broker_epochs) == (NO_LEADER, (2,), (LOST_BROKER_EPOCH,))
    world.stop(2)
    world.run()
    world.start(2, clean=True)
    world.run()
    assert world.view()[0] == NO_LEADER, "a clean stop afterwards brings nothing back"
    config_node = layout.encode_topic_config({"unclean.leader.election.enable": "true"})
    world.admin(Set(layout.topic_config_path("t"), config_node, ANY_VERSION))
    world.run()
    assert world.view()[0] in (2, 3), "the operator accepts the loss"


def test_r2_a_broker_is_given_a_role_only_when_its_loss_is_on_record() -> None:
    """From its first role on, it takes a clean stop for a clean slate: a controller may die in between."""
    world = World(2)
    world.create(topic((2,)))
    world.start(2, clean=False)
    broker = world.members[2].broker
    while T0 not in broker.states:
        assert world._one_step()
    state = world.state()
    assert state is not None
    assert state.isr_broker_epochs == (LOST_BROKER_EPOCH,)


def test_r1_restarted_member_leaves_the_isr_first() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    for clean in (True, False):
        world.start(3, clean=clean)
        world.run()
        leader, leader_epoch, isr = world.view()
        assert (leader, isr) == (1, (1, 2))
        assert world.alter(1, (1, 2, 3)).error is ErrorCode.NONE
        assert world.view() == (1, leader_epoch, (1, 2, 3))


def test_r3_no_incarnation_leads_in_a_former_ones_epoch() -> None:
    world = World(2)
    world.create(topic((2,)))
    owners = {0: world.members[2].broker.epoch}
    for clean in (True, True):
        world.start(2, clean=clean)
        world.run()
        leader, leader_epoch, _ = world.view()
        assert leader == 2
        assert leader_epoch not in owners
        owners[leader_epoch] = world.members[2].broker.epoch


def test_s58_failed_log_dir_takes_only_its_replicas_offline() -> None:
    world = World(3)
    world.create(topic((2, 3, 1), (2, 3, 1)))
    world.members[2].broker.failing.add(T0)
    world.stop(3)
    world.run()
    assert world.view(0) == (1, 2, (1,)), "3 died (1), then 2 could not open the log (2)"
    assert world.view(1) == (2, 1, (2, 1))


def test_a_broker_that_tells_of_a_failed_log_dir_is_asked_again() -> None:
    """F2: it is alive and answers; only the log is gone. What it left in the store is removed."""
    world = World(3)
    world.create(topic((2, 3, 1), (2, 3, 1)))
    world.members[2].broker.failing.add(T0)
    for data in (layout.encode_log_dir_event(2), b"?"):
        world.admin(Create(layout.LOG_DIR_EVENT_PREFIX, data, sequential=True))
    world.run()
    assert world.view(0) == (3, 1, (3, 1))
    assert world.view(1) == (2, 0, (2, 3, 1))
    listing = world.admin(Children(layout.LOG_DIR_EVENTS_PATH))
    assert listing.children == ()
    context = world.active.controller.context
    assert context is not None
    assert layout.LOG_DIR_EVENTS_PATH in context.unreadable, "the one that made no sense is reported"
    refused = world.alter(3, (2, 3, 1)).partitions[T0]
    assert refused.error is ErrorCode.INELIGIBLE_REPLICA, "until it has started anew"


def test_a_failed_log_dir_that_nobody_heard_of_is_met_by_the_next_controller() -> None:
    world = World(3)
    world.create(topic((2, 3, 1)))
    world.members[2].broker.failing.add(T0)
    world.stop(world.controller_id)
    world.admin(Create(layout.LOG_DIR_EVENT_PREFIX, layout.encode_log_dir_event(2), sequential=True))
    world.run()
    assert world.view() == (3, 2, (3,))
    assert world.admin(Children(layout.LOG_DIR_EVENTS_PATH)).children == ()


def test_a_role_that_is_taken_before_its_refusal_was_seen_to() -> None:
    """The controller waits for the store: refusal and acceptance are in its queue, in this order. It went by
    what it had written off so far, and kept the replica out of every ISR for good (seed 3140)."""
    world = World(3)
    world.create(topic((3, 1, 2)))
    world.alter(3, (3, 1))
    world.members[2].broker.failing.add(T0)
    member, number = world.active, world.controller_id

    def say_that_a_log_changed() -> None:
        path, data = layout.LOG_DIR_EVENT_PREFIX, layout.encode_log_dir_event(2)
        world.admin(Create(path, data, sequential=True, make_parents=True))

    def go_on() -> bool:
        """Requests overtake what goes to the store."""
        if not member.requests:
            return world._one_step()
        world.send_request(number)
        return True

    say_that_a_log_changed()
    while not member.requests:
        assert world._one_step()
    say_that_a_log_changed()  # while the controller still reads about the first time
    while member.inbox:
        world.read_inbox(number)
    while member.requests:
        world.send_request(number)
    world.members[2].broker.failing.clear()
    context = member.controller.context
    assert context is not None
    assert (context.failed(T0), context.refusing) == ([], {2: {T0}}), "it was heard, and nothing done yet"
    while go_on():
        pass
    assert world.alter(3, (3, 1, 2)).partitions[T0].error is ErrorCode.NONE
    assert not any(context.refusing.values())


def test_a_refusal_of_what_was_overtaken_is_answered_by_what_is() -> None:
    """A damaged log is not cut while the role says that it is in sync. The leader had put it out meanwhile:
    nothing was left to write, and nobody told it (seed 5072)."""
    world = World(3)
    world.create(topic((3, 1, 2)))
    member, broker = world.active, world.members[2].broker
    broker.failing.add(T0)
    world.admin(Create(layout.LOG_DIR_EVENT_PREFIX, layout.encode_log_dir_event(2), sequential=True))
    while not any(each.target == 2 for each in member.requests):
        assert world._one_step()
    world.alter(3, (3, 1))
    roles = [body.partitions for body in broker.received if isinstance(body, LeaderAndIsrRequest)]
    told = [partitions[T0] for partitions in roles if T0 in partitions]
    assert (told[-2].isr, told[-2].partition_epoch) == ((3, 1, 2), 0)
    assert (told[-1].isr, told[-1].partition_epoch) == ((3, 1), 1)
    broker.received.clear()
    world.admin(Create(layout.LOG_DIR_EVENT_PREFIX, layout.encode_log_dir_event(2), sequential=True))
    world.run()
    assert sum(isinstance(body, LeaderAndIsrRequest) for body in broker.received) == 1, "once is enough"


def test_newly_met_broker_learns_addresses_before_roles() -> None:
    """A follower that is told of a leader it cannot find would need yet another message."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    world.start(3)
    world.run()
    kinds = [type(body) for body in world.members[3].broker.received]
    assert kinds[0] is UpdateMetadataRequest
    assert LeaderAndIsrRequest in kinds


# --- ISR changes ------------------------------------------------------------------------------


def test_alter_partition_moves_the_version_not_the_epoch() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    result = world.alter(1, (1, 3)).partitions[T0]
    assert (result.error, result.leader, result.leader_epoch) == (ErrorCode.NONE, 1, 0)
    assert (result.isr, result.partition_epoch) == ((1, 3), 1)
    assert world.members[2].broker.metadata[T0].isr == (1, 3)
    again = world.alter(1, (1, 3), partition_epoch=0).partitions[T0]
    assert (again.error, again.partition_epoch) == (ErrorCode.NONE, 1), "a repeat hears success"
    stale = world.alter(1, (1, 2, 3), partition_epoch=0).partitions[T0]
    assert stale.error is ErrorCode.INVALID_UPDATE_VERSION


def test_stale_broker_epoch_is_refused_whole() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    epoch = world.members[1].broker.epoch
    assert world.alter(1, (1,), broker_epoch=epoch - 1).error is ErrorCode.STALE_BROKER_EPOCH
    assert world.alter(1, (1,), broker_epoch=epoch + 1).error is ErrorCode.STALE_BROKER_EPOCH
    assert world.view() == (1, 0, (1, 2, 3))


def test_expansion_by_a_dead_broker_or_a_former_incarnation_is_refused() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    old = world.members[3].broker.epoch
    world.stop(3)
    world.run()
    assert world.alter(1, (1, 2, 3)).partitions[T0].error is ErrorCode.INELIGIBLE_REPLICA
    world.start(3)
    world.run()
    epochs = (world.members[1].broker.epoch, world.members[2].broker.epoch)
    refused = world.alter(1, (1, 2, 3), broker_epochs=(*epochs, old))
    assert refused.partitions[T0].error is ErrorCode.INELIGIBLE_REPLICA
    new = world.members[3].broker.epoch
    assert world.alter(1, (1, 2, 3), broker_epochs=(*epochs, new)).partitions[T0].error is ErrorCode.NONE


def test_s25_proposal_against_a_controllers_own_removal() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    world.stop(2)
    world.run()
    assert world.view() == (1, 1, (1, 3))
    refused = world.alter(1, (1, 2), leader_epoch=0, partition_epoch=0).partitions[T0]
    assert refused.error is ErrorCode.FENCED_LEADER_EPOCH
    assert world.view() == (1, 1, (1, 3))


def test_a_leader_that_was_overtaken_is_told_by_what() -> None:
    """7.2: it waits for the controller's word with the larger ISR, and the word may have been lost."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    world.stop(2)
    world.run()
    told = world.members[1].broker.received
    told.clear()
    refused = world.alter(1, (1,), leader_epoch=0, partition_epoch=0).partitions[T0]
    assert refused.error is ErrorCode.FENCED_LEADER_EPOCH
    [word] = [body for body in told if isinstance(body, LeaderAndIsrRequest)]
    assert (word.partitions[T0].leader_epoch, word.partitions[T0].isr) == (1, (1, 3))
    assert not [body for body in world.members[3].broker.received[-1:] if body is word], "only the asker"


def test_a_proposal_over_a_node_that_somebody_else_wrote() -> None:
    """The copy was behind: refused, read again, and the leader is told what is there now."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    state = world.state()
    assert state is not None
    by_hand = layout.encode_state(replace(state, leader_epoch=4, isr=(1, 2), isr_broker_epochs=()))
    world.admin(Set(layout.partition_state_path(T0), by_hand, ANY_VERSION))
    refused = world.alter(1, (1, 3), leader_epoch=0, partition_epoch=0).partitions[T0]
    assert refused.error is ErrorCode.INVALID_UPDATE_VERSION
    assert world.view() == (1, 4, (1, 2))
    assert world.members[1].broker.states[T0].leader_epoch == 4


def test_a_proposal_for_a_partition_that_nobody_knows() -> None:
    world = World(1)
    world.create(topic((1,)))
    world.admin(Delete(layout.partition_state_path(T0)))
    proposal = IsrProposal(0, 0, (1,))
    member = world.members[1]
    for number, partition in enumerate((TopicPartition("nowhere", 0), T0)):
        request = AlterPartitionRequest(1, member.broker.epoch, {partition: proposal})
        world.perform(member, member.controller.on_request(Peer(1, 900 + number), request, world.now_ms))
        world.run()
    unknown, known = (world.responses[900 + number] for number in range(2))
    assert isinstance(unknown, AlterPartitionResponse)
    assert unknown.partitions[TopicPartition("nowhere", 0)].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert isinstance(known, AlterPartitionResponse)
    assert known.partitions[T0].error is ErrorCode.NONE, "as the copy has it: nothing was to be written"


def test_a_topic_that_vanished_is_forgotten() -> None:
    """A tool removed its node: no election writes a state for it any more."""
    world = World(2)
    world.create(topic((1, 2)), topic((2, 1), name="gone"))
    for node in ("partitions/0/state", "partitions/0", "partitions"):
        world.admin(Delete(f"{layout.topic_path('gone')}/{node}"))
    world.admin(Delete(layout.topic_path("gone")))
    world.run()
    context = world.active.controller.context
    assert context is not None
    assert list(context.topics) == ["t"]
    for member in world.members.values():
        assert member.broker.metadata[TopicPartition("gone", 0)].leader == BEING_DELETED
        roles = [body for body in member.broker.received if isinstance(body, LeaderAndIsrRequest)]
        assert roles[-1].assigned is not None, "its logs are strays, and nobody starts anew to hear of it"
        assert roles[-1].assigned.keys() == {T0}
    world.stop(2)
    world.run()
    assert world.view() == (1, 1, (1,))
    assert world.admin(Children(layout.TOPICS_PATH)).children == ("t",)


@pytest.mark.parametrize("applied", [True, False])
def test_s26_lost_reply_of_an_isr_write(applied: bool) -> None:
    """Applied or not, the leader hears the truth, and the version it hears is the node's."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    calls = world.members[1].store_calls
    request = AlterPartitionRequest(1, world.members[1].broker.epoch, {T0: IsrProposal(0, 0, (1, 2))})
    controller = world.members[1].controller
    world.perform(world.members[1], controller.on_request(Peer(1, 999), request, world.now_ms))
    assert len(calls) == 1
    world.apply_call(1, lose_reply=applied, lose_call=not applied)
    world.run()
    response = world.responses[999]
    assert isinstance(response, AlterPartitionResponse)
    assert response.partitions[T0].error is ErrorCode.NONE
    assert response.partitions[T0].partition_epoch == world.version() == 1
    assert world.alter(1, (1, 2, 3)).partitions[T0].error is ErrorCode.NONE, "and the next one works"


def test_s27_zombie_controller_says_that_it_is_not_the_controller() -> None:
    """Its cache is behind the asking leader: neither success nor FENCED may be said."""
    world = World(3)
    world.create(topic((2, 3, 1)))
    world.members[1].paused = True
    world.admin(Delete(layout.CONTROLLER_PATH))
    world.run(until=lambda: any(world.members[each].controller.is_active for each in (2, 3)))
    world.run()
    world.start(2)
    world.run()
    assert world.view()[:2] == (3, 1)
    zombie = world.members[1]
    assert zombie.controller.is_active
    zombie.paused = False
    zombie.inbox.clear()
    response = world.alter(3, (3,), via=1, broker_epoch=world.members[3].broker.epoch)
    assert response.partitions[T0].error is ErrorCode.NOT_CONTROLLER


def test_s55_controller_and_leader_write_at_once() -> None:
    """The leader's shrink lands between the controller's reading and its write: decide again."""
    world = World(3)
    world.create(topic((2, 3, 1)))
    controller = world.members[1]
    world.stop(2)
    while not (controller.store_calls and isinstance(controller.store_calls[0].operation, Multi)):
        if controller.inbox:
            world.read_inbox(1)
        else:
            world.apply_call(1)
    state = world.state()
    assert state is not None
    smaller = layout.LeaderAndIsr(2, 0, (2, 1), state.controller_epoch, state.isr_broker_epochs[::2])
    world.admin(Set(layout.partition_state_path(T0), layout.encode_state(smaller), 0))
    world.run()
    assert world.view() == (1, 1, (1,)), "3, elected on the old reading, had left the ISR"


# --- the controller itself --------------------------------------------------------------------


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
    """Garbage counts as nobody, and the node it sits in is ours to remove."""
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
    """ZOOKEEPER-2985: it vanishes with that session, and its controller with it."""
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
    """X has read and decided; Y is elected and decides; X's write meets the fence, and X knows."""
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
    """Some elections are persisted, nobody was told; the next controller tells, the old one is deaf."""
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
    """The directory of brokers is gone: no retry helps, a new term makes it again."""
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
    """Nobody can fence, so nobody leads; once an operator has mended it, somebody does."""
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
    """It would refuse, and be alone in the ISR by then: whoever has everything could never lead again."""
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

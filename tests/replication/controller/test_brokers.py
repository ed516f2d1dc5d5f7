"""Brokers that die, restart, lose records or log dirs, and the leaders elected afterwards.

S and R numbers are those of the failure schedules in docs/replication.md.
"""

from __future__ import annotations

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.messages import (
    NO_LEADER,
    LeaderAndIsrRequest,
    UpdateMetadataRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LOST_BROKER_EPOCH
from logstore.replication.metastore.operations import (
    ANY_VERSION,
    Children,
    Create,
    Set,
)
from tests.replication.controller.world import World, topic

T0 = TopicPartition("t", 0)


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
    """The topic's setting takes precedence over the broker's."""
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
    """A broker refuses a role with an unknown setting, so the controller filters a tool's settings."""
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
    """A broker re-registers between two readings: only the transaction id shows it."""
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
    """After its first role a clean stop counts as clean, so the loss must be recorded before."""
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
    """F2: the broker is alive, and only the log is gone. Its notice is removed from the store."""
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
        """A request may overtake a write to the store."""
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
    """A follower must know its leader's address before its role."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    world.start(3)
    world.run()
    kinds = [type(body) for body in world.members[3].broker.received]
    assert kinds[0] is UpdateMetadataRequest
    assert LeaderAndIsrRequest in kinds

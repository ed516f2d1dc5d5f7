"""The controller's side of a controlled shutdown: moved leaderships, the remaining ones, the requests sent.

S and I numbers are those of the failure schedules and invariants in docs/replication.md.
"""

from __future__ import annotations

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.deletion import Deletion
from logstore.replication.messages import (
    NO_LEADER,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    LeaderAndIsrRequest,
    NewPartitions,
    NewTopic,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Get, Set
from tests.replication.controller.world import World, state_reads, state_writes, topic

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))


def test_leaderships_move_and_the_isr_shrinks() -> None:
    """Its leaderships go to the next in-sync replica in assignment order; the other ISRs lose it."""
    world = World(4)
    world.create(topic((2, 3, 1), (3, 2, 1), (1, 3, 4)))
    world.create(topic((2,), name="alone"))
    assert world.shut_down(2) == ControlledShutdownResponse(ErrorCode.NONE)
    assert world.view(0) == (3, 1, (3, 1))
    assert world.view(1) == (3, 1, (3, 1))
    assert world.view(2) == (1, 0, (1, 3, 4)), "no business of broker 2"
    assert world.view(0, "alone") == (2, 0, (2,)), "closes with its broker, and is not counted"
    assert world.members[3].broker.states[T0].leader == 3
    assert world.members[4].broker.metadata[T1].isr == (3, 1)


def test_a_new_topic_names_the_brokers_that_get_no_replica() -> None:
    """It said "0 brokers are alive; start more brokers" while all of them were drained."""
    world = World(3)
    world.create(topic((1, 2)))

    def refusal(factor: int) -> str:
        made = world.create(NewTopic("new", 1, factor)).topics["new"]
        assert made.error is ErrorCode.INVALID_REPLICATION_FACTOR
        return made.message

    world.shut_down(3)
    assert refusal(3).startswith(
        "replication factor 3 is larger than the number of brokers that can get a replica (2): 1 of 3 live "
        "brokers shut down or are drained (3). Restart those"
    )
    world.shut_down(2)
    world.shut_down(1)
    assert "can get a replica (0): 3 of 3 live brokers" in refusal(1)
    assert "at least 1 is needed" in refusal(-2)
    grown = world.ask(CreatePartitionsRequest({"t": NewPartitions(2)}))
    assert isinstance(grown, CreatePartitionsResponse)
    assert "brokers that can get a replica (0)" in grown.topics["t"].message


def test_the_departing_broker_stops_following_and_learns_what_it_lost() -> None:
    """KAFKA-7482: LeaderAndIsr goes to it as well; KAFKA-705: no StopReplica for what it still leads."""
    world = World(3)
    world.create(topic((2, 3, 1), (3, 2, 1)))
    departing = world.members[2].broker
    departing.received.clear()
    world.shut_down(2)
    stops = [body for body in departing.received if isinstance(body, StopReplicaRequest)]
    assert [set(body.partitions) for body in stops] == [{T1}]
    assert not stops[0].partitions[T1].delete
    assert departing.states[T0].leader == 3
    kinds = [type(body) for body in departing.received]
    assert kinds.index(StopReplicaRequest) < kinds.index(LeaderAndIsrRequest)


def test_nobody_is_let_go_while_a_topic_cannot_be_read() -> None:
    """A new controller cannot read one partition's leader; it moves the leaderships that it knows."""
    world = World(3)
    world.create(topic((2, 3)))
    world.create(topic((2, 1), name="spoilt"))
    node = world.admin(Get(layout.topic_path("spoilt")))
    assert node.stat is not None
    world.admin(Set(layout.topic_path("spoilt"), b"?", node.stat.version))
    world.stop(world.controller_id)
    world.run()
    assert world.shut_down(2) == ControlledShutdownResponse(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert world.view() == (3, 1, (3,))
    world.admin(Set(layout.topic_path("spoilt"), node.data, node.stat.version + 1))
    world.run()
    assert world.shut_down(2).error is ErrorCode.NONE


def test_everybody_hears_first_that_it_shuts_down() -> None:
    """The mark is sent with the list of live brokers, so that no leader waits for it."""
    world = World(3)
    world.create(topic((2, 3, 1)))
    third = world.members[3].broker
    third.received.clear()
    world.shut_down(2)
    first = third.received[0]
    assert isinstance(first, UpdateMetadataRequest)
    assert first.shutting_down == (2,)
    assert {broker.broker_id for broker in first.live_brokers} == {1, 2, 3}


def test_s53_controlled_shutdown_of_every_replica() -> None:
    """The first two: nothing remains, ISR 3 -> 2 -> 1. The third keeps its partition and reports it."""
    world = World(4)
    world.stop(4)
    world.run()
    world.start(4)
    world.run()
    world.create(topic((1, 2, 3)))
    assert world.shut_down(1).remaining == ()
    assert world.view() == (2, 1, (2, 3))
    assert world.shut_down(2).remaining == ()
    assert world.view() == (3, 2, (3,))
    for _ in range(3):
        assert world.shut_down(3) == ControlledShutdownResponse(ErrorCode.NONE, (T0,))
    assert world.view() == (3, 2, (3,))
    for broker in (1, 2, 3):
        world.stop(broker)
        world.run()
    assert world.view() == (NO_LEADER, 3, (3,))
    world.start(1)
    world.run()
    assert world.view() == (NO_LEADER, 3, (3,))
    world.start(3)
    world.run()
    assert world.view() == (3, 4, (3,))
    assert world.alter(3, (3, 1)).partitions[T0].error is ErrorCode.NONE


def test_no_state_is_read_that_the_controller_has_written() -> None:
    """A call of the store for each of a thousand partitions was half of a broker's stop."""
    world = World(3)
    begun = len(world.history)
    world.create(topic((2, 3, 1), (3, 2, 1), (1, 2, 3)))
    assert state_reads(world, since=begun) == 0, "a new topic has no states"
    world.shut_down(2)
    world.stop(3)
    world.run()
    assert world.view(0) == (1, 2, (1,))
    assert state_reads(world, since=begun) == 0


def test_a_second_request_finds_nothing_to_do() -> None:
    world = World(3)
    world.create(topic((2, 3, 1), (3, 2, 1)))
    world.shut_down(2)
    writes = len(state_writes(world))
    assert world.shut_down(2) == ControlledShutdownResponse(ErrorCode.NONE)
    assert len(state_writes(world)) == writes


def test_s54_a_late_fetch_does_not_bring_it_back() -> None:
    """The leader proposes it again because of an earlier fetch: refused."""
    world = World(3)
    world.create(topic((3, 2, 1)))
    world.shut_down(2)
    assert world.view() == (3, 1, (3, 1))
    back = world.alter(3, (3, 1, 2))
    assert back.partitions[T0].error is ErrorCode.INELIGIBLE_REPLICA
    world.stop(2)
    world.run()
    world.start(2)
    world.run()
    assert world.alter(3, (3, 1, 2)).partitions[T0].error is ErrorCode.NONE, "the mark went with its life"


def test_nothing_is_given_to_a_broker_that_shuts_down() -> None:
    """It gets no new partitions and wins no election, but keeps its replicas."""
    world = World(4)
    world.create(topic((2, 3), unclean_leader_election_enable="true"))
    world.shut_down(2)
    world.create(topic((2, 3), (2, 4), name="u"))
    assert world.view(0, "u") == (3, 0, (3,))
    assert world.view(1, "u") == (4, 0, (4,))
    assert world.elect(T0) == {T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    world.stop(3)
    world.run()
    assert world.view() == (NO_LEADER, 2, (3,)), "rather nobody than one that lacks records and leaves"


@pytest.mark.parametrize("offset", [-1, 1])
def test_an_incarnation_that_is_not_ours_is_refused(offset: int) -> None:
    """A former broker epoch moves nothing; a later one waits for its registration."""
    world = World(3)
    world.create(topic((2, 3, 1)))
    response = world.shut_down(2, broker_epoch=world.members[2].broker.epoch + offset)
    expected = ErrorCode.STALE_BROKER_EPOCH if offset < 0 else ErrorCode.BROKER_NOT_AVAILABLE
    assert response.error is expected
    assert world.view() == (2, 0, (2, 3, 1))


def test_an_unknown_broker_is_refused() -> None:
    world = World(2)
    body = world.ask(ControlledShutdownRequest(9, 77))
    assert body == ControlledShutdownResponse(ErrorCode.BROKER_NOT_AVAILABLE)


def test_only_the_controller_serves() -> None:
    world = World(2)
    body = world.ask(ControlledShutdownRequest(2, world.members[2].broker.epoch), via=2)
    assert body == ControlledShutdownResponse(ErrorCode.NOT_CONTROLLER)


def test_topics_on_their_way_out_are_not_moved() -> None:
    world = World(3)
    world.create(topic((2, 3, 1)), topic((2, 3, 1), name="u"))
    context = world.active.controller.context
    assert context is not None
    context.deletions["t"] = Deletion("id")
    assert world.shut_down(2).remaining == ()
    assert world.view()[0] == 2
    assert world.view(0, "u")[0] == 3


def test_a_successor_of_the_member_on_record_does_not_take_over() -> None:
    """Broker 3 restarted and its registration has not been read: it may have lost everything."""
    world = World(3)
    world.create(topic((2, 3)))
    context = world.active.controller.context
    assert context is not None
    known = context.brokers[3]
    context.brokers[3] = known._replace(endpoint=known.endpoint.__class__(3, "", 0, known.endpoint.epoch + 1))
    assert world.shut_down(2).remaining == (T0,)


def test_a_departing_controller_serves_itself() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    assert world.controller_id == 1
    assert world.shut_down(1).remaining == ()
    assert world.view()[0] == 2
    world.stop(1)
    world.run()
    assert world.controller_id == 2
    assert world.view() == (2, 1, (2, 3)), "nothing was left to do"


def test_the_next_controller_knows_nothing_of_it_and_is_asked_again() -> None:
    world = World(4)
    world.create(topic((2, 3, 4)))
    world.shut_down(2)
    world.stop(world.controller_id)
    world.run()
    context = world.active.controller.context
    assert context is not None
    assert not context.shutting_down
    assert world.shut_down(2) == ControlledShutdownResponse(ErrorCode.NONE)
    assert context.shutting_down == {2}


def test_a_partition_that_nobody_leads_stays_as_it_is() -> None:
    world = World(3)
    world.create(topic((2, 3)))
    world.stop(2)
    world.run()
    world.stop(3)
    world.run()
    world.start(2)
    world.run()
    assert world.view() == (NO_LEADER, 2, (3,))
    assert world.shut_down(2).remaining == ()
    assert world.view() == (NO_LEADER, 2, (3,))

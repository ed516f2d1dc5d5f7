"""Procedures that interfere: the state that one leaves in memory must not break the next."""

from __future__ import annotations

from collections.abc import Callable

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.channel import Entry
from logstore.replication.controller.election import at_level
from logstore.replication.durability import Durability
from logstore.replication.effects import Client, Send, StoreCall
from logstore.replication.messages import (
    BEING_DELETED,
    NO_LEADER,
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    LeaderAndIsrRequest,
    StopReplicaRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.metastore.operations import ANY_VERSION, Children, Create, Delete, Get, Set
from tests.replication.controller.world import World, topic, writes_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def lose(world: World, which: Callable[[StoreCall], bool]) -> None:
    """Lose these store calls from now on."""
    deliver = World.apply_call

    def apply(broker_id: int) -> StoreCall:
        call = world.members[broker_id].store_calls[0]
        return deliver(world, broker_id, lose_call=which(call))

    world.apply_call = apply  # type: ignore[method-assign, assignment]


def writes_state_of(call: StoreCall, *partitions: TopicPartition) -> bool:
    paths = {layout.partition_state_path(each) for each in partitions}
    return any(getattr(write, "path", "") in paths for write in writes_of(call.operation))


def test_a_state_that_somebody_else_wrote_is_told_when_it_is_met() -> None:
    """Nothing is left to write, but brokers with an older partition epoch would be refused for ever."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    path = layout.partition_state_path(T0)
    state = world.state()
    assert state is not None
    shrunk = LeaderAndIsr(1, state.leader_epoch, (1, 2), state.controller_epoch, state.isr_broker_epochs[:2])
    assert world.admin(Set(path, layout.encode_state(shrunk), ANY_VERSION)).error is None
    assert world.elect(T0) == {T0: ErrorCode.ELECTION_NOT_NEEDED}
    for member in world.members.values():
        assert member.broker.metadata[T0].isr == (1, 2)
        assert member.broker.states[T0].partition_epoch == world.version()


def test_a_newcomer_is_told_nothing_before_every_state_accounts_for_it() -> None:
    """Its first role lets it stop as clean: told of one partition while the loss of another is not on record,
    it would come back as somebody who has everything."""
    world = World(3)
    world.create(topic((3, 1), (3, 2)))
    world.stop(1)
    world.stop(2)
    world.start(1)
    world.run()
    world.stop(3)
    world.run()
    assert world.view(1)[2] == (3,)
    lose(world, lambda call: writes_state_of(call, T1))
    world.start(3, clean=False)
    world.run(for_ms=300)
    assert world.view(1)[2] == (3,)
    told = [body for body in world.members[3].broker.received if isinstance(body, LeaderAndIsrRequest)]
    assert not told


def test_leaving_replicas_of_a_topic_that_goes_have_one_order() -> None:
    """A log dir that fails has the controller ask again for all that leaves: not in the place of the
    order that the deletion waits to hear of."""
    world = World(4)
    world.create(topic((2, 3)))
    world.ask(AlterPartitionReassignmentsRequest({T0: (3, 4)}))
    world.members[2].broker.failing.add(T0)
    world.alter(2, (2, 3, 4))
    assert world.view()[2] == (3, 4)
    deliver, is_cut_off = world.send_request, True

    def send(broker_id: int) -> Send:
        return deliver(broker_id, lose=is_cut_off and world.members[broker_id].requests[0].target == 2)

    world.send_request = send  # type: ignore[method-assign, assignment]
    world.ask(DeleteTopicsRequest(("t",)))
    world.members[2].broker.failing.clear()
    event = Create(
        layout.LOG_DIR_EVENT_PREFIX, layout.encode_log_dir_event(2), sequential=True, make_parents=True
    )
    world.admin(event)
    world.run()
    assert world.admin(Children(layout.DELETE_TOPICS_PATH)).children == ("t",)
    is_cut_off = False
    world.run()
    orders = [body for body in world.members[2].broker.received if isinstance(body, StopReplicaRequest)]
    assert orders[-1].partitions[T0].leader_epoch == BEING_DELETED
    assert world.admin(Children(layout.DELETE_TOPICS_PATH)).children == ()


def test_a_deletion_goes_on_when_a_broker_has_room_again() -> None:
    """A role refused earlier does not mean that the broker cannot delete now."""
    world = World(3)
    world.create(topic((2, 3)))
    world.members[3].broker.failing.add(T0)
    world.members[3].broker.states.pop(T0)
    event = Create(
        layout.LOG_DIR_EVENT_PREFIX, layout.encode_log_dir_event(3), sequential=True, make_parents=True
    )
    world.admin(event)
    world.run()
    world.ask(DeleteTopicsRequest(("t",)))
    assert world.partitions() == [T0]
    world.members[3].broker.failing.clear()
    world.admin(event)
    world.run()
    assert world.partitions() == []


def test_whoever_takes_a_deletion_over_says_so_to_all() -> None:
    """It has not read the states of the deleted topic; brokers that know the topic must forget it."""
    world = World(3)
    world.create(topic((2, 3)))
    world.stop(3)
    world.run()
    controller = world.controller_id
    world.kill(controller)
    world.admin(Create(layout.delete_topic_path("t"), make_parents=True))
    world.expire(controller)
    world.run(for_ms=8_000)
    assert world.members[2].broker.metadata[T0].leader == BEING_DELETED


def test_a_topic_replaced_behind_our_back_starts_anew() -> None:
    """A tool removed its nodes and wrote others before we looked: the old states say nothing of the new."""
    world = World(3)
    world.create(topic((1, 2)))
    node = layout.parse_topic(world.admin(Get(layout.topic_path("t"))).data)
    for path in (
        layout.partition_state_path(T0),
        f"{layout.topic_path('t')}/partitions/0",
        f"{layout.topic_path('t')}/partitions",
        layout.topic_path("t"),
    ):
        assert world.admin(Delete(path)).error is None
    fresh = layout.TopicAssignment("A" * len(node.topic_id), {0: (3, 2)})
    world.admin(Create(layout.topic_path("t"), layout.encode_topic(fresh)))
    world.run()
    assert world.view() == (3, 0, (3, 2))
    assert world.members[3].broker.states[T0].leader == 3
    for broker_id, member in world.members.items():
        roles = [body for body in member.broker.received if isinstance(body, LeaderAndIsrRequest)]
        named = [body.assigned for body in roles if body.assigned is not None][-1]
        assert named == ({T0: fresh.topic_id} if broker_id in (3, 2) else {}), "or it keeps the old log"
        first = next((each for each in roles if each.topic_ids.get("t") == fresh.topic_id), None)
        assert first is None or first.assigned is not None, "the old log goes before the new role comes"


def test_a_name_that_is_none_keeps_logs_from_counting_as_strays_only_while_it_is_there() -> None:
    """With an unreadable topic no log is set aside, until an operator removes the node. A broker that came
    meanwhile gets its full list then: until then what its start may have lost is not on record."""
    world = World(2)
    world.create(topic((1, 2)))
    context = world.active.controller.context
    assert context is not None
    world.admin(Create(layout.topic_path("no name"), b"?"))
    world.run()
    newcomer = next(each for each in (1, 2) if world.members[each] is not world.active)
    world.stop(newcomer)
    world.start(newcomer, clean=False)
    world.run()
    assert [body.assigned for body in roles_of(world, newcomer)] == [None]
    world.admin(Delete(layout.topic_path("no name")))
    world.run()
    assert [list(body.assigned or ()) for body in roles_of(world, newcomer)] == [[], [T0]]
    context.unreadable[layout.partition_state_path(T0)] = "not JSON"
    full = context.build(1, 1, Entry(LeaderAndIsrRequest, is_full=True))
    assert isinstance(full, LeaderAndIsrRequest)
    assert full.assigned is None, "a loss cannot be recorded there"


def roles_of(world: World, broker_id: int) -> list[LeaderAndIsrRequest]:
    received = world.members[broker_id].broker.received
    return [body for body in received if isinstance(body, LeaderAndIsrRequest)]


def test_a_topic_gets_its_leaders_though_their_event_starts_again() -> None:
    """The second try finds the topic created and known; its partitions still lack their states."""
    world = World(2)
    lost = 0

    def which(call: StoreCall) -> bool:
        nonlocal lost
        lost += writes_state_of(call, T0)
        return writes_state_of(call, T0) and lost <= 10

    lose(world, which)
    token, member = object(), world.active
    request = CreateTopicsRequest((topic((1, 2)),))
    world.perform(member, member.controller.on_request(Client(token), request, world.now_ms))
    world.run(until=lambda: token in world.replies)
    answer = world.replies[token]
    assert isinstance(answer, CreateTopicsResponse)
    assert answer.topics["t"].error is ErrorCode.NONE
    assert lost > 10
    assert world.view() == (1, 0, (1, 2))


def test_a_reassignment_ends_though_the_event_of_its_last_isr_starts_again() -> None:
    """The ISR was written by the first try, which then could not end the reassignment."""
    world = World(3)
    world.create(topic((1, 2)))
    world.ask(AlterPartitionReassignmentsRequest({T0: (1, 3)}))
    path = layout.topic_path("t")
    lost = 0

    def which(call: StoreCall) -> bool:
        nonlocal lost
        is_it = any(isinstance(write, Set) and write.path == path for write in writes_of(call.operation))
        lost += is_it
        return is_it and lost <= 10

    lose(world, which)
    world.alter(1, (1, 2, 3))
    assert lost > 10
    assert world.view()[2] == (1, 3)


def test_a_change_of_level_is_signed_by_who_makes_it() -> None:
    """Or a write of a later term would carry the epoch of an earlier one."""
    state = LeaderAndIsr(NO_LEADER, 4, (1,), 5, (9,))
    assert at_level(state, Durability.SYNCED, 7).controller_epoch == 7

"""Random histories of brokers, sessions, lost replies and rival controllers; the invariants at each step.

I2   a leader epoch of a partition belongs to one incarnation of one broker
I11  leader in ISR or none, ISR never empty and inside the assignment, versions without gaps, leader
     epochs never back and a new one whenever the leader changes
I12  no write of an older controller epoch after one of a later
R2   nobody who lost records leads by a clean election
I22  when the faults stop: one controller, leaders wherever one can be, and everybody told
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import observed
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.controller.election import Standing, standing
from logstore.replication.effects import Peer
from logstore.replication.messages import (
    NO_LEADER,
    AlterPartitionRequest,
    ControlledShutdownRequest,
    CreateTopicsRequest,
    ElectionType,
    ElectLeadersRequest,
    IsrProposal,
    LeaderAndIsrRequest,
    PartitionState,
    RequestBody,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.metastore.operations import Children, Create, Delete, Get
from tests.replication.controller.world import World, state_writes, topic, version_of

BROKERS = 4
ASSIGNMENT = {
    "three": ((1, 2, 3), (2, 3, 4), (4, 1, 2)),
    "two": ((4, 1), (2, 3)),
    "one": ((3,), (1,)),
}
MOVES = 250


def replicas_of(each: TopicPartition) -> tuple[int, ...]:
    return ASSIGNMENT[each.topic][each.partition] if each.topic in ASSIGNMENT else (1, 2)


class Swarm:
    """A world, a seed, and the checks so far."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        config = ControllerConfig(
            request_timeout_ms=1_000,
            retry_backoff_ms=100,
            leader_imbalance_check_interval_seconds=2,
            partitions_per_request=1 + seed % 3,
            partitions_per_transaction=(50, 1, 3)[seed // 3 % 3],
        )
        self.world = World(BROKERS, seed=seed, config=config)
        made = self.world.create(*(topic(*lists, name=name) for name, lists in ASSIGNMENT.items()))
        assert all(result.error is ErrorCode.NONE for result in made.topics.values())
        self.owners: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
        self.tainted: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        """members that came back having lost records, until they have left the ISR"""
        self.in_doubt: set[int] = set()
        """brokers that started unclean and have not heard since that the controller accounts for it"""
        self.checked_calls = 0
        self.latest: dict[TopicPartition, tuple[int, LeaderAndIsr]] = {}
        self.controller_epoch = 0
        self.note_writes()
        for member in self.world.members.values():
            self.note_roles(member.broker.broker_id, {})
        self.world.on_delivery = self.note_delivery

    # --- the rules ----------------------------------------------------------------------------

    def note_writes(self) -> None:
        """Check every state that was written since we last looked (I11, I12)."""
        written = state_writes(self.world, since=self.checked_calls)
        self.checked_calls = len(self.world.history)
        for version, each, state in written:
            assert state.isr
            assert set(state.isr) <= set(replicas_of(each))
            assert len(set(state.isr)) == len(state.isr) == len(state.isr_broker_epochs)
            assert state.leader == NO_LEADER or state.leader in state.isr
            assert state.controller_epoch >= self.controller_epoch
            self.controller_epoch = state.controller_epoch
            if each in self.latest:
                last_version, last = self.latest[each]
                assert version == last_version + 1
                assert state.leader_epoch >= last.leader_epoch
                if state.leader != last.leader:
                    assert state.leader_epoch > last.leader_epoch
            else:
                assert version == 0
            self.latest[each] = version, state
            self.tainted[each] &= set(state.isr)

    def note_delivery(
        self, broker_id: int, before: Mapping[TopicPartition, PartitionState], received: list[RequestBody]
    ) -> None:
        """Take note of what a broker has just taken in."""
        self.note_writes()
        self.note_roles(broker_id, before)
        told = self.world.members[broker_id].broker.states
        if all(each in told for each, tainted in self.tainted.items() if broker_id in tainted):
            self.in_doubt.discard(broker_id)

    def note_roles(self, broker_id: int, before: Mapping[TopicPartition, PartitionState]) -> None:
        """Check what a broker has just accepted (I2, R2, and that it was persisted)."""
        broker = self.world.members[broker_id].broker
        for each, state in broker.states.items():
            if before.get(each) == state:
                continue
            _, last = self.latest[each]
            assert state.leader_epoch <= last.leader_epoch, "told before it was written"
            if state.leader != broker_id:
                continue
            owner = self.owners.setdefault((each, state.leader_epoch), (broker_id, broker.epoch))
            assert owner == (broker_id, broker.epoch), "two incarnations in one leader epoch"
            assert broker_id not in self.tainted[each], "elected although it lost records"

    # --- the moves ----------------------------------------------------------------------------

    def move(self) -> None:
        moves: list[tuple[int, Callable[[], None]]] = [
            (40, self.deliver_some),
            (4, self.restart),
            (2, self.kill),
            (2, self.expire),
            (4, self.renew_session),
            (10, self.propose),
            (1, self.depose),
            (8, self.wait),
            (1, self.create),
            (1, self.elect_preferred),
            (1, self.ask_for_preferred_in_store),
            (1, self.shut_down),
            (1, self.notify),
        ]
        (chosen,) = self.chance.choices([move for _, move in moves], [weight for weight, _ in moves])
        chosen()
        self.note_writes()

    def deliver_some(self) -> None:
        for _ in range(self.chance.randrange(1, 60)):
            self.deliver_one()
            self.note_writes()

    def deliver_one(self) -> None:
        world = self.world
        ready: list[Callable[[], None]] = []
        for broker_id, member in world.members.items():
            if not member.running:
                continue
            if member.inbox:
                ready.append(lambda broker_id=broker_id: world.read_inbox(broker_id))  # type: ignore[misc]
            if member.store_calls:
                ready.append(lambda broker_id=broker_id: self.call_store(broker_id))  # type: ignore[misc]
            if member.requests:
                ready.append(lambda broker_id=broker_id: self.send(broker_id))  # type: ignore[misc]
        if ready:
            self.chance.choice(ready)()

    def call_store(self, broker_id: int) -> None:
        fate = self.chance.random()
        self.world.apply_call(broker_id, lose_reply=fate < 0.05, lose_call=0.05 <= fate < 0.08)

    def send(self, broker_id: int) -> None:
        fate = self.chance.random()
        self.world.send_request(broker_id, lose=fate < 0.1, lose_answer=0.1 <= fate < 0.2)

    def some_broker(self) -> int:
        return self.chance.randrange(1, BROKERS + 1)

    def restart(self) -> None:
        broker_id = self.some_broker()
        stopped_cleanly = self.chance.random() < 0.5
        if not stopped_cleanly:
            self.in_doubt.add(broker_id)
            for each, (_, state) in self.latest.items():
                if broker_id in state.isr:
                    self.tainted[each].add(broker_id)
        # A clean stop does not make good what an unclean one lost before.
        self.world.start(broker_id, clean=broker_id not in self.in_doubt)

    def kill(self) -> None:
        self.world.kill(self.some_broker())

    def expire(self) -> None:
        self.world.expire(self.some_broker())

    def renew_session(self) -> None:
        """A running process whose session expired registers again: it lost nothing."""
        broker_id = self.some_broker()
        member = self.world.members[broker_id]
        if member.running:
            self.world.expire(broker_id)
            self.world.perform(member, member.controller.on_session_lost(self.world.now_ms))
            self.world.register(broker_id, clean=broker_id not in self.in_doubt)

    def propose(self) -> None:
        """A broker that believes to lead asks some controller for some ISR, on epochs that may be old."""
        world = self.world
        sender = self.some_broker()
        broker = world.members[sender].broker
        led = [each for each, state in broker.states.items() if state.leader == sender]
        if not world.members[sender].running or not led:
            return
        each = self.chance.choice(sorted(led))
        state = broker.metadata.get(each, broker.states[each])
        others = [replica for replica in replicas_of(each) if replica != sender]
        isr = (sender, *(replica for replica in others if self.chance.random() < 0.6))
        # A real leader admits only whom it saw catch up in this very incarnation (KIP-903).
        epochs = tuple(world.members[member].broker.epoch for member in isr)
        proposal = IsrProposal(
            state.leader_epoch, state.partition_epoch - (self.chance.random() < 0.1), isr, epochs
        )
        request = AlterPartitionRequest(sender, broker.epoch, {each: proposal})
        member = world.members[self.some_broker()]
        if member.running:
            world.perform(member, member.controller.on_request(Peer(sender, -1), request, world.now_ms))

    def propose_of(self, sender: int, likely: float) -> None:
        """Whom a real leader knows: the list that it was told; `likely` each of it is in sync."""
        world = self.world
        broker = world.members[sender].broker
        led = [each for each, state in sorted(broker.states.items()) if state.leader == sender]
        if not world.members[sender].running or not led:
            return
        proposals = {}
        for each in led if likely == 1 else [self.chance.choice(led)]:
            told = max(broker.states[each], broker.metadata.get(each, broker.states[each]), key=version_of)
            others = [replica for replica in told.replicas if replica != sender]
            isr = (sender, *(replica for replica in others if self.chance.random() < likely))
            epochs = tuple(world.members[member].broker.epoch for member in isr)
            proposals[each] = IsrProposal(told.leader_epoch, told.partition_epoch, isr, epochs)
        request = AlterPartitionRequest(sender, broker.epoch, proposals)
        for member in world.members.values():
            if member.running and member.controller.is_active:
                world.perform(member, member.controller.on_request(Peer(sender, -1), request, world.now_ms))

    def ask(self, request: RequestBody) -> None:
        """A client sends a request to a node that believes to be the controller, if there is one."""
        believers = [each for each in self.world.members.values() if each.controller.is_active]
        if believers and (member := self.chance.choice(believers)).running:
            self.world.post(request, member)

    def depose(self) -> None:
        self.world.admin(Delete(layout.CONTROLLER_PATH))

    def wait(self) -> None:
        self.world.pass_time(self.chance.choice((0, 50, 150, 1_100, 6_500)))

    def create(self) -> None:
        member = self.world.members[self.some_broker()]
        if member.running:
            request = CreateTopicsRequest((topic((1, 2), name=f"n{self.chance.randrange(3)}"),))
            self.world.post(request, member)

    def elect_preferred(self) -> None:
        member = self.world.members[self.some_broker()]
        if member.running:
            self.world.post(ElectLeadersRequest(ElectionType.PREFERRED), member)

    def ask_for_preferred_in_store(self) -> None:
        wanted = self.chance.sample(self.world.partitions(), 2)
        path = layout.PREFERRED_ELECTION_PATH
        self.world.admin(Create(path, layout.encode_partitions(wanted), make_parents=True))

    def shut_down(self) -> None:
        """A broker requests its controlled shutdown, with its own or a former epoch; it may stop or stay."""
        world = self.world
        broker = world.members[self.some_broker()].broker
        members = [member for member in world.members.values() if member.running]
        for member in members:
            if not member.controller.is_active:
                continue
            request = ControlledShutdownRequest(broker.broker_id, broker.epoch - (self.chance.random() < 0.1))
            world.perform(
                member, member.controller.on_request(Peer(broker.broker_id, -1), request, world.now_ms)
            )

    def notify(self) -> None:
        listed = layout.encode_partitions(self.chance.sample(self.world.partitions(), 3))
        data = listed if self.chance.random() < 0.7 else b"?"
        self.world.admin(Create(layout.ISR_NOTIFICATION_PREFIX, data, sequential=True, make_parents=True))

    # --- the end ------------------------------------------------------------------------------

    def heal(self) -> None:
        """Faults stop; each process that is up has a session again (a real node sees to that)."""
        world = self.world
        for broker_id, member in world.members.items():
            session_is_over = not world.store.heartbeat(member.session_id, world.now_ms)
            if member.running and session_is_over:
                world.perform(member, member.controller.on_session_lost(world.now_ms))
                world.register(broker_id, clean=broker_id not in self.in_doubt)
        world.run(for_ms=15_000)
        self.note_writes()

    def arrive(self) -> None:
        """Start all brokers and let them catch up."""
        world = self.world
        for broker_id, member in world.members.items():
            if not member.running:
                world.start(broker_id, clean=broker_id not in self.in_doubt)
        self.heal()
        context = world.active.controller.context
        assert context is not None
        for broker_id in sorted(context.shutting_down):
            # It asked to be let go, so it joins nothing: it does stop in the end, and comes back.
            world.start(broker_id, clean=broker_id not in self.in_doubt)
        world.run(for_ms=5_000)
        for _ in range(4):
            for broker_id in world.members:
                self.propose_of(broker_id, likely=1)
            world.run(for_ms=5_000)
            self.note_writes()

    def check_healed(self) -> None:
        world = self.world
        running = [member for member in world.members.values() if member.running]
        if not running:
            return
        context = world.active.controller.context
        assert context is not None
        live = {member.broker.broker_id for member in running}
        assert set(context.brokers) == live
        assert world.admin(Get(layout.PREFERRED_ELECTION_PATH)).stat is None
        assert world.admin(Children(layout.ISR_NOTIFICATIONS_PATH)).children == ()
        for each in world.partitions():
            read = world.admin(Get(layout.partition_state_path(each)))
            if read.stat is None:
                assert not set(context.replicas[each]) & live
                continue
            state = layout.parse_state(read.data)
            standings = {
                member: standing(state.broker_epoch_of(member), context.live(each).get(member))
                for member in state.isr
            }
            if state.leader == NO_LEADER:
                assert all(value in (Standing.DEAD, Standing.LOST) for value in standings.values())
            else:
                assert set(standings.values()) == {Standing.INTACT}
            for member in running:
                broker = member.broker
                assert broker.metadata[each].leader == state.leader
                assert broker.metadata[each].isr == state.isr
                assert broker.metadata[each].partition_epoch == read.stat.version
                assert set(broker.shutting_down) == context.shutting_down
                if broker.broker_id in context.replicas[each]:
                    assert broker.states[each].leader == state.leader
                    assert broker.states[each].leader_epoch == state.leader_epoch


@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_invariants_hold_whatever_happens(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        swarm = Swarm(seed)
        try:
            for _ in range(MOVES):
                swarm.move()
            swarm.heal()
            swarm.check_healed()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_one_seed_is_one_history() -> None:
    def history() -> list[object]:
        swarm = Swarm(4)
        for _ in range(MOVES):
            swarm.move()
        return [(broker, call.operation, outcome.error) for broker, call, outcome in swarm.world.history]

    assert history() == history()


def test_the_swarm_reaches_what_it_is_for() -> None:
    """Without rivals, refused writes and lost members, the invariants above would be cheap."""
    fenced = lost = unled = roles = 0
    for seed in range(6):
        swarm = Swarm(seed)
        for _ in range(MOVES):
            swarm.move()
        swarm.heal()
        fenced += sum(outcome.failed_index == 0 for _, _, outcome in swarm.world.history)
        written = [state for _, _, state in state_writes(swarm.world)]
        lost += sum(layout.LOST_BROKER_EPOCH in state.isr_broker_epochs for state in written)
        unled += sum(state.leader == NO_LEADER for state in written)
        roles += sum(
            isinstance(body, LeaderAndIsrRequest)
            for member in swarm.world.members.values()
            for body in member.broker.received
        )
    assert min(fenced, lost, unled, roles) > 5, (fenced, lost, unled, roles)


def test_the_swarm_takes_the_rare_branches_of_elections() -> None:
    """Requested elections and shutdowns meet every rare case within 60 seeds."""
    wanted = {
        "controlled shutdown: requested by a broker that is not known yet",
        "controlled shutdown: no other replica can lead a partition",
        "elect leaders: the preferred replica may not lead",
        "isr notifications: one is unreadable",
        "isr notifications: states are read again",
        "notices: the reply to a removal was lost, but the notice is gone",
        "rebalancing: a broker can take back none of its partitions",
    }
    seen: set[str] = set()
    with observed(seen.add):
        for seed in range(60):
            swarm = Swarm(seed)
            for _ in range(MOVES):
                swarm.move()
            if seen >= wanted:
                break
    assert seen >= wanted

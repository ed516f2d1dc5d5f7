"""Reassignments in random histories: begun, changed, cancelled while brokers and controllers come and go.

I11  the ISR lies inside the stored list at every write, the leader inside the ISR
I16  a broker is struck off only when it has no log; the original replicas stay until the target is in sync
I22  when the faults stop, every partition has what was last asked for and nobody is left to confirm
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.assignment import Assignment, assignment_in
from logstore.replication.messages import (
    NO_LEADER,
    AlterPartitionReassignmentsRequest,
    LeaderAndIsrRequest,
    PartitionState,
    RequestBody,
    StopReplicaRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Create, Get, Set
from tests.replication.controller.test_swarm import ASSIGNMENT, BROKERS, MOVES, Swarm
from tests.replication.controller.world import is_state, is_topic, state_of, writes_of

PARTITIONS = [TopicPartition(name, number) for name in ASSIGNMENT for number in range(len(ASSIGNMENT[name]))]


class Movers(Swarm):
    """A swarm whose partitions move."""

    def __init__(self, seed: int) -> None:
        self.lists = {each: Assignment(ASSIGNMENT[each.topic][each.partition]) for each in PARTITIONS}
        self.logs: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        self.ended = self.begun = 0
        super().__init__(seed)
        for each in PARTITIONS:
            self.logs[each] |= set(self.lists[each].replicas)

    # --- the rules ----------------------------------------------------------------------------

    def note_writes(self) -> None:
        history = self.world.history[self.checked_calls :]
        self.checked_calls = len(self.world.history)
        for _, call, outcome in history:
            if outcome.error is not None:
                continue
            states = {}
            for write in writes_of(call.operation):
                if not isinstance(write, Create | Set):
                    continue
                if is_state(write):
                    version, each, state = state_of(write)
                    states[each] = version, state
                elif is_topic(write):
                    self.note_lists(write.path.rpartition("/")[2], layout.parse_topic(write.data))
            for each, (version, state) in states.items():
                self.note_state(each, version, state)

    def note_lists(self, topic: str, node: layout.TopicAssignment) -> None:
        for number in node.partitions:
            each = TopicPartition(topic, number)
            if each not in self.lists:
                continue
            before, after = self.lists[each], assignment_in(node, number)
            struck = {*before.replicas, *before.leaving} - {*after.replicas, *after.leaving}
            assert not struck & self.logs[each], f"{each} {struck} struck off with a log"
            assert not set(after.replicas) & set(after.leaving)
            self.begun += after.is_reassigning and not before.is_reassigning
            self.ended += before.is_reassigning and not after.is_reassigning
            self.lists[each] = after

    def note_state(self, each: TopicPartition, version: int, state: layout.LeaderAndIsr) -> None:
        if each in self.lists:
            assert set(state.isr) <= set(self.lists[each].replicas), f"{each} {state} {self.lists[each]}"
        assert state.leader == NO_LEADER or state.leader in state.isr
        assert state.controller_epoch >= self.controller_epoch
        self.controller_epoch = state.controller_epoch
        if each in self.latest:
            last_version, last = self.latest[each]
            assert version == last_version + 1
            assert state.leader_epoch > last.leader_epoch or (
                state.leader_epoch == last.leader_epoch and state.leader == last.leader
            )
        self.latest[each] = version, state
        self.tainted[each] &= set(state.isr)

    def note_delivery(
        self, broker_id: int, before: Mapping[TopicPartition, PartitionState], received: list[RequestBody]
    ) -> None:
        super().note_delivery(broker_id, before, received)
        for body in received:
            self.note_logs(broker_id, body)

    def note_logs(self, broker_id: int, body: RequestBody) -> None:
        if isinstance(body, LeaderAndIsrRequest | StopReplicaRequest):
            for each in body.partitions:
                if each in self.world.members[broker_id].broker.states:
                    self.logs[each].add(broker_id)
                elif isinstance(body, StopReplicaRequest) and body.partitions[each].delete:
                    self.logs[each].discard(broker_id)

    # --- the moves ----------------------------------------------------------------------------

    def move(self) -> None:
        moves: list[tuple[int, Callable[[], None]]] = [
            (20, super().move),
            (40, self.deliver_some),
            (20, self.propose),
            (4, self.reassign),
            (1, self.list),
        ]
        (chosen,) = self.chance.choices([move for _, move in moves], [weight for weight, _ in moves])
        chosen()
        self.note_writes()

    def some_target(self) -> tuple[int, ...]:
        brokers = range(1, BROKERS + 1)
        return tuple(self.chance.sample(brokers, self.chance.randrange(1, BROKERS)))

    def reassign(self) -> None:
        target = self.some_target() if self.chance.random() < 0.8 else None
        self.ask(AlterPartitionReassignmentsRequest({self.chance.choice(PARTITIONS): target}))

    def list(self) -> None:
        """An operator writes the request node, over whatever is in it."""
        data = layout.encode_reassignment(
            {each: self.some_target() for each in self.chance.sample(PARTITIONS, 2)}
        )
        self.world.overwrite(layout.REASSIGNMENT_PATH, data)

    def propose(self) -> None:
        """As the other swarm's, but whom a real leader knows: the list that it was told."""
        self.propose_of(self.some_broker(), likely=0.9)

    # --- the end ------------------------------------------------------------------------------

    def check_arrived(self) -> None:
        read = self.world.admin(Get(layout.REASSIGNMENT_PATH))
        asked = layout.parse_reassignment(read.data) if read.stat else {}
        for each in PARTITIONS:
            state = self.world.state(each.partition, each.topic)
            if state is not None and state.leader == NO_LEADER:
                asked.pop(each, None)
                continue  # all who could lead it lost something: the loss is loud, and nothing moves
            assert self.lists[each] == Assignment(self.lists[each].replicas), f"{each} {state}"
        assert not asked


@pytest.mark.parametrize("first_seed", range(0, 60, 20))
def test_every_partition_arrives(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        swarm = Movers(seed)
        try:
            for _ in range(MOVES):
                swarm.move()
            swarm.arrive()
            swarm.check_arrived()
            swarm.check_healed()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_swarm_moves_partitions() -> None:
    """Reassignments that end, and more that are changed or called off on the way."""
    ended = begun = 0
    for seed in range(12):
        swarm = Movers(seed)
        for _ in range(MOVES):
            swarm.move()
        ended, begun = ended + swarm.ended, begun + swarm.begun
    assert ended > 8
    assert begun > ended + 4

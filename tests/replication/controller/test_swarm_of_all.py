"""Every procedure of the controller in one history: they must work together.

Topics are created, deleted, extended, moved and configured while brokers stop, bounce, die, lose log dirs and
return, elections are asked for, replies are lost and controllers are deposed at any call of the store.

I2   a leader epoch of an incarnation of a topic belongs to one incarnation of one broker
I11  the ISR lies inside the stored list, the leader inside the ISR; versions and epochs without a step back
I12  no write of an older controller epoch after one of a later
I16  a broker is struck off only when it has no log
I17  nodes of a topic go when no broker has a log of it, and no log of a topic that lives is set aside
R2   a broker that says that its loss is on record is right: nobody who lost records leads, if not allowed to
I22  when the faults stop, all that was asked for is done or refused, and everybody is told what is
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from logstore.disk.marks import observed
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.assignment import Assignment, assignment_in
from logstore.replication.messages import (
    NO_LEADER,
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectionType,
    ElectLeadersRequest,
    LeaderAndIsrRequest,
    NewPartitions,
    PartitionState,
    RequestBody,
    StopReplicaRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Children, Create, Delete, Get, Operation, Set
from tests.replication.controller.test_swarm import BROKERS, Swarm
from tests.replication.controller.world import is_state, is_topic, partition_of, state_of, topic, writes_of

MOVES = 600
NAMES = ("one", "two", "three", "n0", "n1")
_SETTINGS: tuple[dict[str, str | None], ...] = (
    {"durability.level": "synced"},
    {"durability.level": "replicated"},
    {"durability.level": None},
    {"unclean.leader.election.enable": "true"},
    {"unclean.leader.election.enable": None},
    {"segment.bytes": "1048576"},
)


class Everything(Swarm):
    """A swarm in which everything happens."""

    def __init__(self, seed: int) -> None:
        self.ids: dict[str, str] = {}
        """topic → id, as the store has it"""
        self.lists: dict[TopicPartition, Assignment] = {}
        self.logs: dict[tuple[int, TopicPartition], str] = {}
        """the logs on the brokers' disks, which outlive processes: the id of the topic that each is of"""
        self.set_aside = 0
        super().__init__(seed)
        for broker_id, member in self.world.members.items():
            for body in member.broker.received:
                self.note_received(broker_id, body)

    # --- the rules ----------------------------------------------------------------------------

    def note_writes(self) -> None:
        history = self.world.history[self.checked_calls :]
        self.checked_calls = len(self.world.history)
        for _, call, outcome in history:
            if outcome.error is None:
                # Lists before states: one Multi may write both.
                for write in sorted(writes_of(call.operation), key=is_state):
                    self.note_write(write)

    def note_write(self, write: Operation) -> None:
        if isinstance(write, Create | Set) and is_state(write):
            version, each, state = state_of(write)
            self.note_state(each, version, state)
        elif isinstance(write, Create | Set) and is_topic(write):
            self.note_lists(write.path.rpartition("/")[2], layout.parse_topic(write.data))
        elif isinstance(write, Delete) and is_state(write):
            self.forget(partition_of(write.path))
        elif isinstance(write, Delete) and is_topic(write):
            name = write.path.rpartition("/")[2]
            left = [held for held, topic_id in self.logs.items() if topic_id == self.ids[name]]
            assert not left, f"the nodes of {name} went before its logs {left}"
            del self.ids[name]
            for each in [each for each in self.lists if each.topic == name]:
                del self.lists[each]

    def forget(self, each: TopicPartition) -> None:
        self.latest.pop(each, None)
        self.tainted.pop(each, None)
        self.owners = {key: owner for key, owner in self.owners.items() if key[0] != each}

    def note_lists(self, name: str, node: layout.TopicAssignment) -> None:
        assert self.ids.setdefault(name, node.topic_id) == node.topic_id
        for number in node.partitions:
            each, after = TopicPartition(name, number), assignment_in(node, number)
            before = self.lists.get(each, after)
            struck = {*before.replicas, *before.leaving} - {*after.replicas, *after.leaving}
            for broker_id in struck:
                held = self.logs.get((broker_id, each))
                assert held != node.topic_id, f"{broker_id} is struck off {each} with a log"
            assert not set(after.replicas) & set(after.leaving)
            self.lists[each] = after

    def note_state(self, each: TopicPartition, version: int, state: layout.LeaderAndIsr) -> None:
        assert set(state.isr) <= set(self.lists[each].replicas), f"{each} {state} {self.lists[each]}"
        assert state.isr
        assert len(set(state.isr)) == len(state.isr) == len(state.isr_broker_epochs)
        assert state.leader == NO_LEADER or state.leader in state.isr
        assert state.controller_epoch >= self.controller_epoch
        self.controller_epoch = state.controller_epoch
        last_version, last = self.latest.get(each, (-1, state))
        assert version == last_version + 1, f"{each}: version {last_version}, then {version}"
        assert (state.leader_epoch, state.leader) == (last.leader_epoch, last.leader) or (
            state.leader_epoch > last.leader_epoch
        )
        self.latest[each] = version, state
        self.tainted[each] &= set() if state.recovering else set(state.isr)

    def note_delivery(
        self, broker_id: int, before: Mapping[TopicPartition, PartitionState], received: list[RequestBody]
    ) -> None:
        self.note_writes()
        for body in received:
            self.note_received(broker_id, body)
        self.note_roles(broker_id, before)

    def note_received(self, broker_id: int, body: RequestBody) -> None:
        broker = self.world.members[broker_id].broker
        if isinstance(body, LeaderAndIsrRequest):
            # This world delivers nothing late.
            if body.broker_epoch == broker.epoch and body.assigned is not None:
                self.in_doubt.discard(broker_id)  # as `ReplicaManager.is_on_record` has it
                self.note_strays(broker_id, body.assigned)
            for each in body.partitions:
                if each in broker.states:
                    self.logs[broker_id, each] = body.topic_ids[each.topic]
        elif isinstance(body, StopReplicaRequest):
            for each, order in body.partitions.items():
                held = self.logs.get((broker_id, each))
                is_gone = order.delete and each not in broker.states and each not in broker.failing
                if is_gone and held == body.topic_ids.get(each.topic):
                    self.logs.pop((broker_id, each), None)

    def note_strays(self, broker_id: int, assigned: object) -> None:
        assert isinstance(assigned, dict)
        for (holder, each), topic_id in list(self.logs.items()):
            if holder != broker_id or assigned.get(each) == topic_id:
                continue
            if self.ids.get(each.topic) == topic_id and each in self.lists:
                members = {*self.lists[each].replicas, *self.lists[each].leaving}
                assert broker_id not in members, f"{broker_id} takes its {each} for a stray"
            self.set_aside += 1
            del self.logs[holder, each]

    # --- the moves ----------------------------------------------------------------------------

    def move(self) -> None:
        moves: list[tuple[int, Callable[[], None]]] = [
            (12, super().move),
            (4, self.wait),
            (60, self.deliver_some),
            (16, self.catch_up),
            (6, self.make),
            (2, self.delete),
            (1, self.delete_in_store),
            (2, self.extend),
            (4, self.reassign),
            (1, self.list_reassignments),
            (3, self.configure),
            (2, self.elect_unclean),
            (2, self.fail_dir),
            (2, self.mend_dir),
        ]
        (chosen,) = self.chance.choices([move for _, move in moves], [weight for weight, _ in moves])
        chosen()
        self.note_writes()

    def call_store(self, broker_id: int) -> None:
        if self.chance.random() < 0.004:
            self.depose()
        super().call_store(broker_id)

    def propose(self) -> None:
        self.catch_up()

    def create(self) -> None:
        self.make()

    def catch_up(self) -> None:
        self.propose_of(self.some_broker(), likely=0.9)

    def some_topic(self) -> str:
        return self.chance.choice(NAMES)

    def some_partition(self) -> TopicPartition:
        return self.chance.choice(sorted(self.lists) or [TopicPartition("gone", 0)])

    def some_replicas(self, count: int | None = None) -> tuple[int, ...]:
        return tuple(self.chance.sample(range(1, BROKERS + 1), count or self.chance.randrange(1, BROKERS)))

    def make(self) -> None:
        count = self.chance.randrange(1, 4)
        lists = [self.some_replicas(count) for _ in range(self.chance.randrange(1, 3))]
        self.ask(CreateTopicsRequest((topic(*lists, name=self.some_topic()),)))

    def delete(self) -> None:
        self.ask(DeleteTopicsRequest((self.some_topic(),)))

    def delete_in_store(self) -> None:
        self.world.admin(Create(layout.delete_topic_path(self.some_topic()), make_parents=True))

    def extend(self) -> None:
        name = self.some_topic()
        count = sum(each.topic == name for each in self.lists)
        self.ask(CreatePartitionsRequest({name: NewPartitions(count + 1)}))

    def reassign(self) -> None:
        target = self.some_replicas() if self.chance.random() < 0.8 else None
        self.ask(AlterPartitionReassignmentsRequest({self.some_partition(): target}))

    def list_reassignments(self) -> None:
        wanted = {self.some_partition(): self.some_replicas() for _ in range(2)}
        self.world.overwrite(layout.REASSIGNMENT_PATH, layout.encode_reassignment(wanted))

    def configure(self) -> None:
        self.ask(AlterConfigsRequest({self.some_topic(): self.chance.choice(_SETTINGS)}))

    def elect_unclean(self) -> None:
        self.ask(ElectLeadersRequest(ElectionType.UNCLEAN, (self.some_partition(),)))

    def ask_for_preferred_in_store(self) -> None:
        data = layout.encode_partitions([self.some_partition()])
        self.world.admin(Create(layout.PREFERRED_ELECTION_PATH, data, make_parents=True))

    def notify(self) -> None:
        data = layout.encode_partitions([self.some_partition()])
        self.world.admin(Create(layout.ISR_NOTIFICATION_PREFIX, data, sequential=True, make_parents=True))

    def restart(self) -> None:
        before = {each: set(members) for each, members in self.tainted.items()}
        super().restart()
        for each, (_, state) in self.latest.items():
            if state.all_synced:  # an unclean stop cost it nothing
                self.tainted[each] = before.get(each, set())

    def fail_dir(self) -> None:
        broker_id = self.some_broker()
        broker = self.world.members[broker_id].broker
        for holder, each in self.logs:
            if holder == broker_id and self.chance.random() < 0.5:
                broker.failing.add(each)
                broker.states.pop(each, None)
        self.tell_of_dirs(broker_id)

    def mend_dir(self) -> None:
        """There is room again, say: the broker asks for the roles that it had to refuse."""
        broker_id = self.some_broker()
        if self.world.members[broker_id].broker.failing:
            self.world.members[broker_id].broker.failing.clear()
            self.tell_of_dirs(broker_id)

    def tell_of_dirs(self, broker_id: int) -> None:
        data = layout.encode_log_dir_event(broker_id)
        self.world.admin(Create(layout.LOG_DIR_EVENT_PREFIX, data, sequential=True, make_parents=True))

    # --- the end ------------------------------------------------------------------------------

    def arrive(self) -> None:
        """As in the other swarms, and every dir works."""
        for broker_id, member in self.world.members.items():
            if member.broker.failing:
                member.broker.failing.clear()
                self.tell_of_dirs(broker_id)
        super().arrive()

    def check_arrived(self) -> None:
        world = self.world
        context = world.active.controller.context
        assert context is not None
        stuck = {
            each for each, (_, state) in self.latest.items() if state.leader == NO_LEADER
        }  # all who could lead it lost something: the loss is loud, and nothing moves
        held_up = {each.topic for each in stuck if self.lists[each].is_reassigning}
        names = world.admin(Children(layout.DELETE_TOPICS_PATH)).children
        assert set(names) <= held_up, f"not deleted: {names} {context.deletions}"
        assert set(context.deletions) <= held_up
        assert not context.newcomers
        assert not context.unreadable
        assert set(context.topics) == set(self.ids)
        assert context.replicas.keys() == self.lists.keys() == self.latest.keys() == context.states.keys()
        assert all(not failed for failed in context.offline_replicas.values()), context.offline_replicas
        asked = world.admin(Get(layout.REASSIGNMENT_PATH))
        left = layout.parse_reassignment(asked.data) if asked.stat else {}
        assert left.keys() <= stuck
        for each, assignment in self.lists.items():
            known = context.states[each]
            assert (known.partition_epoch, known.state) == self.latest[each]
            assert context.assignment_of(each) == assignment
            assert known.state.durability is context.durability(each.topic)
            holders = {holder for holder, held in self.logs if held == each}
            assert holders <= {*assignment.replicas, *assignment.leaving}
            if each in stuck:
                continue
            assert assignment == Assignment(assignment.replicas), f"{each} {known.state}"
            assert set(known.state.isr) == set(assignment.replicas)
            for broker_id in assignment.replicas:
                told = world.members[broker_id].broker.states[each]
                assert told.durability is known.state.durability, f"{broker_id} was not told of {each}"
                # Another order, or who is to leave, is news to the metadata alone: no epoch goes with it.
                assert set(told.replicas) == set(assignment.replicas)
                assert not told.adding_replicas
        for broker_id, member in world.members.items():
            assert {each for each in member.broker.states if each not in self.lists} == set(), broker_id
        assert {topic_id for topic_id in self.logs.values()} <= set(self.ids.values())


def run(seed: int) -> Everything:
    swarm = Everything(seed)
    try:
        for _ in range(MOVES):
            swarm.move()
        swarm.arrive()
        swarm.check_healed()
        swarm.check_arrived()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return swarm


@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_all_procedures_hold_together(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        run(seed)


def test_the_swarm_does_everything() -> None:
    """Without topics that went, partitions that moved and logs that were strays, the above would be cheap."""
    wanted = {
        "deletion: waits for a reassignment",
        "deletion: waits for a broker",
        "deletion: a broker cannot delete its replica",
        "reassignment: cancelled",
        "reassignment: the answer to an earlier deletion",
        "election: unclean",
        "controller: an unusable replica is usable again",
    }
    seen: set[str] = set()
    with observed(seen.add):
        for seed in range(40):
            run(seed)
            if seen >= wanted:
                break
    assert seen >= wanted

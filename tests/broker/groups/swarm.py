"""A seeded world of groups: nodes that come and go, members that crash, time out, and ask again.

The log of each partition of __consumer_offsets is a list of batches: those below `committed` are in every
replica, an election may cut any of the others. What reaches a client, and what does not, is the seed's.

What must hold:

    one assignment     all that a generation's members were ever given is of one proposal of its leader,
                       each was given what that has for it, and the log never says otherwise
    in the log         whoever is let into a stable group is in the log before it is told so
    one self           once a static member's newest self was given an assignment, no earlier self is served
    no offset back     a coordinator that leads never tells an offset older than one that was acknowledged,
                       unless a tombstone was written, nor one of before a deletion that was acknowledged
    log and memory     what the log says of a stable group is what its coordinator says
    nobody waits       when nothing fails any more, everybody is answered, and all groups are stable
"""

from __future__ import annotations

import random
from collections.abc import Hashable

from logstore.broker.groups.answers import Answer
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.coordinator import Coordinator
from logstore.broker.groups.records import (
    GroupKey,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
)
from logstore.broker.groups.requests import (
    JoinGroupResponse,
)
from logstore.broker.groups.served import Append, Effect, partition_for
from logstore.disk.errors import ErrorCode
from logstore.format.batch import Batch, set_offsets_and_epoch
from tests.broker.groups import swarm_checks
from tests.broker.groups.desk import START_MS
from tests.broker.groups.swarm_parts import (
    GROUPS,
    PARTITIONS,
    QUIET_MS,
    Asked,
    Client,
    Entry,
    Key,
    Node,
    Operator,
    Partition,
    Violation,
)


class World:
    def __init__(self, seed: int, *, nodes: int = 3) -> None:
        self.rng = random.Random(seed)
        self.now_ms = START_MS
        self.is_quiet = False
        self.config = GroupConfig(
            group_initial_rebalance_delay_ms=500,
            offsets_topic_num_partitions=PARTITIONS,
            offsets_retention_check_interval_ms=20_000,
            offsets_retention_minutes=1,
            group_max_size=self.rng.choice([3, 5, 1_000, 1_000, 1_000]),
        )
        self.partitions = [Partition() for _ in range(PARTITIONS)]
        self.nodes = [Node(number) for number in range(nodes)]
        self.asked: dict[Hashable, Asked] = {}
        self._number = 0
        self.proposals: dict[int, dict[str, bytes]] = {}
        self.given: dict[tuple[str, int], int] = {}
        """The proposal of each generation, as soon as somebody was given something of it."""
        self.selves: dict[str, list[str]] = {}
        """Of each static member its selves, in the order in which they were let in."""
        self.newest: dict[str, int] = {}
        """Which of them was the newest that was given an assignment."""
        self.written: dict[int, int] = {}
        """Every committed offset is a number of its own: where its record lies."""
        self.floor: dict[Key, int] = {}
        """The place in the log of the newest offset that was acknowledged."""
        self.tombstones: dict[Key, int] = {}
        """The place of the newest tombstone that was written."""
        self.ceiling: dict[Key, int] = {}
        """The same, of one that was acknowledged: nothing of before is ever told again."""
        self.stable_rounds = 0
        for node in self.nodes:
            self._start(node)
        for number in range(PARTITIONS):
            self._elect(number, 0)
            self._load(self.nodes[0], number)
        self.operator = Operator("operator", GROUPS[0], None, self)
        self.clients = [
            Client(f"{group}{number}", group, f"i{number}" if number < 2 else None, self)
            for group in GROUPS
            for number in range(4)
        ]

    # --- nodes and log ------------------------------------------------------------------------

    def _start(self, node: Node) -> None:
        rng = random.Random(self.rng.getrandbits(64))
        node.coordinator = Coordinator(self.config, rng=rng, now_ms=self.now_ms)
        node.loading, node.resigned, node.late = {}, {}, []

    def crash(self, node: Node) -> None:
        """Its memory is gone, its connections are broken; others lead."""
        for token, asked in list(self.asked.items()):
            if asked.node == node.number:
                del self.asked[token]
                asked.client.waits_for = None if asked.client.waits_for == token else asked.client.waits_for
        for partition in self.partitions:
            for entry in partition.entries:
                entry.token = entry.token if partition.leader != node.number else None
        self._start(node)
        for number, partition in enumerate(self.partitions):
            if partition.leader == node.number:
                others = [each.number for each in self.nodes if each is not node]
                self._elect(number, self.rng.choice(others))

    def _elect(self, number: int, leader: int) -> None:
        """Whatever was not committed may be cut; the node that led hears of it later."""
        partition = self.partitions[number]
        earlier = self.nodes[partition.leader]
        earlier.late += [each.token for each in partition.entries if each.token is not None]
        kept = self.rng.randint(partition.committed, len(partition.entries))
        del partition.entries[kept:]
        partition.committed = kept
        partition.next_offset = sum(Batch(each.batch).record_count for each in partition.entries)
        for entry in partition.entries:
            entry.token = None
        partition.epoch += 1
        if leader != partition.leader:
            partition.leader = leader
            earlier.resigned[number] = partition.epoch
        elif partition.epoch > 1:
            # Elected again: it never ceased to lead, and has cut nothing.
            raise AssertionError("a leader is not elected against itself here")
        new = self.nodes[leader]
        if number in new.resigned:
            self._resign(new)
        loader = new.coordinator.begin_load(number, partition.epoch)
        assert loader is not None
        new.loading[number] = partition.epoch, loader

    def _load(self, node: Node, number: int) -> None:
        epoch, loader = node.loading.pop(number)
        loader.feed(b"".join(each.batch for each in self.partitions[number].entries))
        self.run(node, node.coordinator.end_load(number, epoch, self.now_ms))

    def fail_over(self) -> None:
        number = self.rng.randrange(PARTITIONS)
        others = [each.number for each in self.nodes if each.number != self.partitions[number].leader]
        self._elect(number, self.rng.choice(others))

    def tell_of_elections(self) -> None:
        """Some node hears that it leads no more, or has read a log to its end."""
        node = self.rng.choice(self.nodes)
        self._hear_of_elections(node)

    def _hear_of_elections(self, node: Node) -> None:
        for number in list(node.loading):
            self._load(node, number)
        self._resign(node)

    def _resign(self, node: Node) -> None:
        """Word of other leaders and the end of its own appends come in either order."""
        is_told_first = self.rng.random() < 0.5
        for what in (0, 1) if is_told_first else (1, 0):
            if what == 0:
                for number, epoch in list(node.resigned.items()):
                    del node.resigned[number]
                    self.run(node, node.coordinator.unload(number, epoch, self.now_ms))
            else:
                late, node.late = node.late, []
                for token in late:
                    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    self.run(node, node.coordinator.appended(token, error, -1, self.now_ms))

    def leads(self, node: Node, group_id: str) -> bool:
        number = partition_for(group_id, PARTITIONS)
        return self.partitions[number].leader == node.number and number not in node.loading

    def commit_log(self) -> None:
        """The in-sync replicas have some more of a log."""
        partition = self.rng.choice(self.partitions)
        until = self.rng.randint(partition.committed, len(partition.entries))
        for entry in partition.entries[partition.committed : until]:
            partition.committed += 1
            self._tell(partition, entry, ErrorCode.NONE)

    def time_out_append(self) -> None:
        """The log has it and will commit it, but not in time for whoever waits."""
        partition = self.rng.choice(self.partitions)
        for entry in partition.entries[partition.committed :]:
            if entry.token is not None:
                self._tell(partition, entry, ErrorCode.REQUEST_TIMED_OUT)
                return

    def _tell(self, partition: Partition, entry: Entry, error: ErrorCode) -> None:
        token, entry.token = entry.token, None
        if token is not None:
            node = self.nodes[partition.leader]
            self.run(node, node.coordinator.appended(token, error, entry.base_offset, self.now_ms))

    def run(self, node: Node, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                self._answered(node, effect)
            else:
                self._append(node, effect)

    def _append(self, node: Node, effect: Append) -> None:
        partition = self.partitions[effect.partition]
        if partition.leader != node.number or effect.leader_epoch != partition.epoch:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif not self.is_quiet and self.rng.random() < 0.05:
            error = self.rng.choice([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR])
        else:
            batch = bytearray(effect.batch)
            set_offsets_and_epoch(batch, base_offset=partition.next_offset, leader_epoch=partition.epoch)
            entry = Entry(bytes(batch), partition.next_offset, effect.token)
            for record in Batch(entry.batch).records():
                key = decode_key(record.key)
                if isinstance(key, GroupKey) and record.value is not None:
                    earlier = swarm_checks.newest_generation(self, key.group_id, partition.entries)
                    swarm_checks.check_generation(self, key.group_id, decode_group(record.value), earlier)
                if isinstance(key, OffsetKey) and record.value is not None:
                    self.written[decode_offset(record.value).offset] = record.offset
                elif isinstance(key, OffsetKey):
                    self.floor.pop((key.group_id, key.topic_partition), None)
                    self.tombstones[key.group_id, key.topic_partition] = record.offset
                elif isinstance(key, GroupKey) and record.value is None:
                    self._begin_anew(key.group_id)
            partition.entries.append(entry)
            partition.next_offset += Batch(entry.batch).record_count
            return
        self.run(node, node.coordinator.appended(effect.token, error, -1, self.now_ms))

    def _begin_anew(self, group_id: str) -> None:
        """Nothing was left of the group; another one of its name begins with generation 1."""
        self.given = {each: number for each, number in self.given.items() if each[0] != group_id}

    # --- clients ------------------------------------------------------------------------------

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def proposal(self, client: Client, joined: JoinGroupResponse) -> dict[str, bytes]:
        """What the leader assigns: another proposal each time, though it may be the same request again."""
        if joined.leader != client.member_id or joined.skip_assignment:
            return {}
        number = self.next_number()
        self.proposals[number] = {
            each.member_id: b"%d:%s" % (number, each.member_id.encode()) for each in joined.members
        }
        return self.proposals[number]

    def ask(self, client: Client) -> None:
        number = partition_for(client.group_id, PARTITIONS)
        node = self.nodes[self.partitions[number].leader]
        if not self.is_quiet and self.rng.random() < 0.1:
            node = self.rng.choice(self.nodes)  # it has not heard of the election
        request = client.next_request()
        token = (client.name, self.next_number())
        client.waits_for = token
        if not self.is_quiet and self.rng.random() < 0.05:
            return  # lost on its way
        newest = self.newest.get(f"{client.group_id}/{client.instance_id}", -1)
        told = (dict(self.floor), dict(self.ceiling), dict(self.tombstones))
        self.asked[token] = Asked(client, request, node.number, *told, newest)
        self.run(node, node.coordinator.handle(request, token, self.now_ms))

    def _answered(self, node: Node, answer: Answer) -> None:
        asked = self.asked.pop(answer.token, None)
        if asked is None:
            raise Violation(f"{answer.token} is answered twice")
        swarm_checks.check(self, node, asked, answer.response)
        client = asked.client
        if client.waits_for == answer.token and (self.is_quiet or self.rng.random() > 0.05):
            client.waits_for = None
            client.hear(answer.response)

    # --- what must hold -----------------------------------------------------------------------

    # --- the course of things -----------------------------------------------------------------

    def step(self) -> None:
        client = self.rng.choice(self.clients)
        what = self.rng.random()
        if what < 0.55:
            self._let_act(client)
        elif what < 0.75:
            self.commit_log()
        elif what < 0.90:
            self.pass_ms(self.rng.choice([10, 200, 1_000, 3_000]))
        elif what < 0.93:
            self.tell_of_elections()
        elif what < 0.945:
            self.time_out_append()
        elif what < 0.965:
            client.start()  # its process ends and another one begins
            client.is_gone = False
        elif what < 0.98 and client.instance_id is not None:
            # Somebody starts the same instance a second time.
            twin = Client(f"{client.name}'{self.next_number()}", client.group_id, client.instance_id, self)
            self.clients.append(twin)
        elif what < 0.99:
            self.fail_over()
        elif what < 0.993:
            self.crash(self.rng.choice(self.nodes))
        else:
            self.operator.group_id = self.rng.choice(GROUPS)
            self.ask(self.operator)

    def _let_act(self, client: Client) -> None:
        if client.is_gone:
            return
        if client.waits_for is None:
            self.ask(client)
        elif self.rng.random() < 0.1:
            client.waits_for = None  # it gives up, and asks again

    def pass_ms(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while True:
            due = min(self.nodes, key=lambda each: each.coordinator.deadline_ms)
            if due.coordinator.deadline_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, due.coordinator.deadline_ms)
            self.run(due, due.coordinator.tick(self.now_ms))
            if due.coordinator.deadline_ms <= self.now_ms:
                raise Violation("something is due that a tick does not do")
        self.now_ms = end_ms

    def settle(self) -> None:
        """Nothing fails any more: all has to become well, and be what the log says."""
        self.is_quiet = True
        for client in self.clients:
            if client.waits_for not in self.asked:
                client.waits_for = None
        end_ms = self.now_ms + QUIET_MS
        while not swarm_checks.is_well(self):
            if self.now_ms > end_ms:
                raise Violation(f"not well again: {swarm_checks.unwell(self)}")
            for node in self.nodes:
                self._hear_of_elections(node)
            for client in self.clients:
                if not client.is_gone and client.waits_for is None:
                    self.ask(client)
            for _ in range(4):
                self.commit_log()
            self.pass_ms(500)
        swarm_checks.check_log(self)


def run(seed: int, steps: int = 800) -> World:
    """One world; raises `Violation`, or whatever the coordinator raises."""
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.settle()
    return world

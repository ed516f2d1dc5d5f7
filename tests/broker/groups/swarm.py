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
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from logstore.broker.groups.answers import Answer
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.coordinator import Coordinator
from logstore.broker.groups.loading import Loader
from logstore.broker.groups.records import (
    GroupKey,
    GroupMetadata,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
)
from logstore.broker.groups.requests import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    Protocol,
    SyncGroupRequest,
    SyncGroupResponse,
)
from logstore.broker.groups.served import Append, Effect, partition_for
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch, set_offsets_and_epoch
from tests.broker.groups.desk import START_MS, subscription

GROUPS = ("g", "h")
PARTITIONS = 2
WHERE = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0))
"""Everybody reads t, nobody u."""
SESSIONS_MS = (6_000, 20_000)
REBALANCE_MS = 8_000
QUIET_MS = 1_000_000
"""Within which all has to be well again: a new member may wait for five minutes."""


class Violation(AssertionError):
    """What must hold does not."""


@dataclass
class Entry:
    """One batch in a partition's log; `token` is to be told when it is committed, None if nobody waits."""

    batch: bytes
    base_offset: int
    token: int | None


@dataclass
class Partition:
    entries: list[Entry] = field(default_factory=list)
    committed: int = 0
    epoch: int = 0
    leader: int = 0
    next_offset: int = 0


class Node:
    """One coordinator, and what it has not heard of yet."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.coordinator: Coordinator
        self.loading: dict[int, tuple[int, Loader]] = {}
        self.resigned: dict[int, int] = {}
        """Partitions that others lead, and the epochs of it that this node has not heard of."""
        self.late: list[int] = []
        """Its appends that ended with its leadership."""


class Client:
    """One process of an application, which follows the protocol as clients do."""

    def __init__(self, name: str, group_id: str, instance_id: str | None, world: World) -> None:
        self.name = name
        self.group_id = group_id
        self.instance_id = instance_id
        self.world = world
        self.is_new = world.rng.random() < 0.7
        """Whether it knows the newer versions."""
        self.session_ms = world.rng.choice(SESSIONS_MS)
        self.is_gone = False
        self.start()

    def start(self) -> None:
        """A process without a past."""
        self.member_id = ""
        self.joined: JoinGroupResponse | None = None
        self.has_assignment = False
        self.waits_for: Hashable | None = None

    def next_request(self) -> GroupRequest:
        rng = self.world.rng
        if self.joined is None:
            protocols = (Protocol("range", subscription("t")),)
            return JoinGroupRequest(
                group_id=self.group_id,
                session_timeout_ms=self.session_ms,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocol_type="consumer",
                protocols=protocols,
                client_id=self.name,
                require_known_member_id=self.is_new and self.instance_id is None,
                support_skipping_assignment=self.is_new,
            )
        who: dict[str, Any] = {
            "group_id": self.group_id,
            "generation_id": self.joined.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }
        if not self.has_assignment:
            return SyncGroupRequest(**who, assignments=self.world.proposal(self, self.joined))
        action = rng.random()
        if action < 0.35 and not self.world.is_quiet:
            some = rng.sample(WHERE, rng.randint(1, len(WHERE)))
            values = {each: OffsetCommitPartition(committed_offset=self.world.next_number()) for each in some}
            return OffsetCommitRequest(**who, partitions=values)
        if action < 0.45:
            return OffsetFetchRequest((OffsetFetchGroup(self.group_id),), rng.random() < 0.3)
        if action < 0.48 and not self.world.is_quiet:
            return LeaveGroupRequest(
                group_id=self.group_id,
                members=(MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id),),
            )
        if action < 0.53 and not self.world.is_quiet:
            self.join_again()
            return self.next_request()
        return HeartbeatRequest(**who)

    def join_again(self) -> None:
        self.joined, self.has_assignment = None, False

    def hear(self, response: Any) -> None:
        match response:
            case JoinGroupResponse(error_code=ErrorCode.NONE):
                self.member_id, self.joined, self.has_assignment = response.member_id, response, False
            case JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED):
                self.member_id = response.member_id
            case SyncGroupResponse(error_code=ErrorCode.NONE):
                self.has_assignment = True
            case LeaveGroupResponse():
                self.start()
            case OffsetCommitResponse(errors):
                for error in errors.values():
                    self._hear_error(error)
            case OffsetFetchResponse():
                pass
            case _:
                self._hear_error(response.error_code)

    def _hear_error(self, error: ErrorCode) -> None:
        match error:
            case ErrorCode.UNKNOWN_MEMBER_ID:
                self.start()
            case ErrorCode.ILLEGAL_GENERATION | ErrorCode.REBALANCE_IN_PROGRESS:
                self.join_again()
            case ErrorCode.FENCED_INSTANCE_ID | ErrorCode.GROUP_MAX_SIZE_REACHED:
                self.is_gone = True
            case ErrorCode.NONE | ErrorCode.NOT_COORDINATOR | ErrorCode.COORDINATOR_NOT_AVAILABLE:
                pass
            case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                pass
            case _:
                raise Violation(f"{self.name} is told {error!r}")


class Operator(Client):
    """Deletes what it may not, commits for others, removes members: and never looks back."""

    def next_request(self) -> GroupRequest:
        rng, group_id = self.world.rng, self.group_id
        match rng.randrange(4):
            case 0:
                return DeleteGroupsRequest((group_id,))
            case 1:
                return OffsetDeleteRequest(group_id, tuple(rng.sample(WHERE, 2)))
            case 2:
                member = MemberIdentity(group_instance_id=f"i{rng.randrange(2)}")
                return LeaveGroupRequest(group_id=group_id, members=(member,))
        value = OffsetCommitPartition(committed_offset=self.world.next_number())
        return OffsetCommitRequest(group_id=group_id, partitions={rng.choice(WHERE): value})

    def hear(self, response: Any) -> None:
        """Whatever it was."""


Key: TypeAlias = tuple[str, TopicPartition]


@dataclass
class Asked:
    """A request on its way: who asked whom, and what had been acknowledged and removed then."""

    client: Client
    request: GroupRequest
    node: int
    floor: dict[Key, int]
    ceiling: dict[Key, int]
    tombstones: dict[Key, int]
    newest: int


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
                    earlier = self._newest_generation(key.group_id, partition.entries)
                    self._check_generation(key.group_id, decode_group(record.value), earlier)
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
        self._check(node, asked, answer.response)
        client = asked.client
        if client.waits_for == answer.token and (self.is_quiet or self.rng.random() > 0.05):
            client.waits_for = None
            client.hear(answer.response)

    # --- what must hold -----------------------------------------------------------------------

    def _check(self, node: Node, asked: Asked, response: Any) -> None:
        request: Any = asked.request
        if isinstance(response, OffsetFetchResponse):
            self._check_fetch(node, asked, response)
        elif isinstance(response, OffsetCommitResponse):
            for where, error in response.partitions.items():
                if error is ErrorCode.NONE:
                    key = (request.group_id, where)
                    place = self.written.get(request.partitions[where].committed_offset)
                    if place is None:
                        raise Violation(f"{key} is acknowledged and was never written")
                    if place > self.tombstones.get(key, -1):
                        self.floor[key] = max(place, self.floor.get(key, -1))
            if ErrorCode.NONE in response.partitions.values():
                self._check_self(node, asked)
        elif isinstance(response, DeleteGroupsResponse):
            for group_id, error in response.results.items():
                if error is ErrorCode.NONE:
                    self._removed(asked, [(group_id, where) for where in WHERE])
        elif response.error_code is ErrorCode.NONE:
            match response:
                case OffsetDeleteResponse():
                    done = [each for each, error in response.partitions.items() if error is ErrorCode.NONE]
                    self._removed(asked, [(request.group_id, where) for where in done])
                case JoinGroupResponse():
                    self._check_join(node, asked, response)
                case SyncGroupResponse():
                    self._check_self(node, asked)
                    self._check_sync(request, response)
                case HeartbeatResponse():
                    if self.leads(node, request.group_id):
                        self._check_self(node, asked)

    def _removed(self, asked: Asked, keys: list[Key]) -> None:
        """Of what was removed, all that was written before the request was made is gone for good."""
        for key in keys:
            if self.tombstones.get(key, -1) > asked.tombstones.get(key, -1):
                self.ceiling[key] = max(self.tombstones[key], self.ceiling.get(key, -1))

    def _check_fetch(self, node: Node, asked: Asked, response: OffsetFetchResponse) -> None:
        (group,) = response.groups
        if group.error_code is not ErrorCode.NONE or not self.leads(node, group.group_id):
            return
        for where in WHERE:
            key = (group.group_id, where)
            floor, ceiling = asked.floor.get(key, -1), asked.ceiling.get(key, -1)
            found = group.partitions.get(where)
            if found is not None and found.error_code is not ErrorCode.NONE:
                continue
            offset = found.committed_offset if found is not None else -1
            place = self.written[offset] if offset >= 0 else -1
            if place < floor and self.tombstones.get(key) == asked.tombstones.get(key):
                raise Violation(f"{key}: told {offset} at {place}, acknowledged {floor}")
            if 0 <= place < ceiling:
                raise Violation(f"{key}: told {offset} at {place}, removed up to {ceiling}")

    def _check_join(self, node: Node, asked: Asked, response: JoinGroupResponse) -> None:
        group_id = asked.client.group_id
        if (group_id, response.generation_id) in self.given and self.leads(node, group_id):
            partition = self.partitions[partition_for(group_id, PARTITIONS)]
            known = self._newest_generation(group_id, partition.entries[: partition.committed])
            if known is None or response.member_id not in {each.member_id for each in known.members}:
                raise Violation(f"{response.member_id} is let into a stable group, but not in its log")
        instance = asked.client.instance_id
        if instance is not None:
            selves = self.selves.setdefault(f"{asked.client.group_id}/{instance}", [])
            if response.member_id not in selves:
                selves.append(response.member_id)

    def _newest_generation(self, group_id: str, entries: list[Entry]) -> GroupMetadata | None:
        """What these batches say of the group in the end."""
        for entry in reversed(entries):
            for record in Batch(entry.batch).records():
                if decode_key(record.key) == GroupKey(group_id):
                    return None if record.value is None else decode_group(record.value)
        return None

    def _check_generation(self, group_id: str, new: GroupMetadata, earlier: GroupMetadata | None) -> None:
        """Who is in it may change by a static member's return; what is assigned may not."""
        if earlier is not None and earlier.generation == new.generation:
            assigned = [sorted(member.assignment for member in each.members) for each in (earlier, new)]
            if assigned[0] != assigned[1]:
                raise Violation(f"{group_id}: generation {new.generation} is written as {assigned}")

    def _check_self(self, node: Node, asked: Asked) -> None:
        """An earlier self is served no more from when a later one was given its assignment."""
        request: Any = asked.request
        if request.group_instance_id is None or not self.leads(node, request.group_id):
            return
        instance = f"{request.group_id}/{request.group_instance_id}"
        rank = self.selves[instance].index(request.member_id)
        if rank < asked.newest:
            raise Violation(f"{instance}: self {rank} is served, self {asked.newest} has an assignment")
        if isinstance(request, SyncGroupRequest):
            self.newest[instance] = max(rank, self.newest.get(instance, -1))

    def _check_sync(self, request: SyncGroupRequest, response: SyncGroupResponse) -> None:
        generation = (request.group_id, request.generation_id)
        if not response.assignment:
            raise Violation(f"{request.member_id} is given nothing in {generation}")
        number, _, member_id = response.assignment.decode().partition(":")
        if self.given.setdefault(generation, int(number)) != int(number):
            raise Violation(f"{generation} has proposals {self.given[generation]} and {number}")
        instance = request.group_instance_id
        is_own = member_id == request.member_id or member_id.startswith(f"{instance}-")
        if not is_own or self.proposals[int(number)][member_id] != response.assignment:
            raise Violation(f"{request.member_id} is given what {member_id} was assigned")

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
        while not self._is_well():
            if self.now_ms > end_ms:
                raise Violation(f"not well again: {self._unwell()}")
            for node in self.nodes:
                self._hear_of_elections(node)
            for client in self.clients:
                if not client.is_gone and client.waits_for is None:
                    self.ask(client)
            for _ in range(4):
                self.commit_log()
            self.pass_ms(500)
        self._check_log()

    def _unwell(self) -> str:
        waiting = sorted(map(str, self.asked))
        return f"waiting {waiting}; {[(each.name, each.has_assignment) for each in self.clients]}"

    def _is_well(self) -> bool:
        alive = [each for each in self.clients if not each.is_gone]
        is_done = all(each.has_assignment and each.waits_for is None for each in alive) and not self.asked
        if not is_done or any(each.committed < len(each.entries) for each in self.partitions):
            return False
        generations = {(each.group_id, each.joined and each.joined.generation_id) for each in alive}
        return len(generations) == len({each.group_id for each in alive})

    def _check_log(self) -> None:
        for number, partition in enumerate(self.partitions):
            loader = Loader()
            loader.feed(b"".join(each.batch for each in partition.entries))
            groups = [group for group, _ in loader.groups(GroupConfig(), self.now_ms)]
            loaded = {group.group_id: group.describe() for group in groups}
            coordinator = self.nodes[partition.leader].coordinator
            for group_id in (each for each in GROUPS if partition_for(each, PARTITIONS) == number):
                (answer,) = coordinator.handle(DescribeGroupsRequest((group_id,)), "check", self.now_ms)
                assert isinstance(answer, Answer)
                assert isinstance(answer.response, DescribeGroupsResponse)
                (described,) = answer.response.groups
                if described.group_state == "Stable" and sorted(
                    loaded[group_id].members, key=lambda each: each.member_id
                ) != sorted(described.members, key=lambda each: each.member_id):
                    raise Violation(f"{group_id}: the log says {loaded[group_id]}, memory {described}")
                self.stable_rounds += described.group_state == "Stable"


def run(seed: int, steps: int = 800) -> World:
    """One world; raises `Violation`, or whatever the coordinator raises."""
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.settle()
    return world

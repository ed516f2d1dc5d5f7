"""The group coordinator of one node: the groups of those partitions of `__consumer_offsets` that it leads.

    requests ──▶ handle ─────────────┐                          ┌─▶ Answer   to the request with that token
    time ──────▶ tick ───────────────┤    ┌─────────────────┐   │
    the log ───▶ appended ───────────┼──▶ │ group, offsets  │ ──┴─▶ Append   a batch to __consumer_offsets,
    elections ─▶ begin_load,         │    │ by partition    │               acks=all; then `appended`
                 end_load, unload ───┘    └─────────────────┘

Every method is a function of its arguments and the time, and returns effects for the caller to carry out in
order. Each Append ends in one call of `appended`, in the order of the partition's log; each request ends in
one Answer. A hash of the group id selects the partition, so every node can compute a group's partition. The
partition's leader is its coordinator.

    not led ──begin_load──▶ loading ──end_load──▶ served, in a leader epoch ──unload──▶ not led
    NOT_COORDINATOR (16)    COORDINATOR_LOAD_IN_PROGRESS (14)       waiting requests: NOT_COORDINATOR (16)

A change takes effect once its append is committed: only then are offsets served, assignments sent and groups
removed. Only offsets of deleted topics go at once. The next leader of the partition therefore has every
committed offset and every stable group, with its members and subscriptions, and gives each member a full
session to find it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from heapq import heappop
from typing import Final, assert_never
from uuid import UUID

from logstore.broker.groups import joining, offset_requests, sessions, syncing
from logstore.broker.groups.answers import Decision, Persist
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.group import State
from logstore.broker.groups.loading import Loader
from logstore.broker.groups.members import size_of
from logstore.broker.groups.offset_requests import GENERATION_ERRORS
from logstore.broker.groups.offsets import Offsets
from logstore.broker.groups.records import encode_group, encode_group_key, fits
from logstore.broker.groups.requests import (
    NO_MEMBER_ID,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from logstore.broker.groups.served import (
    Commit,
    Effect,
    Entry,
    Generation,
    LedPartition,
    Served,
    Tombstones,
    Write,
    partition_for,
)
from logstore.config import MAX_LONG
from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.format.compression import compress

UNDELIVERED_MS: Final = 10_000
"""The session of a member whose connection closed before its join was answered."""
_ID_SUFFIX_BYTES: Final = 37
"""A hyphen and a UUID."""


class Coordinator:
    """The group coordinator of one node. Tokens are the caller's; they are opaque and never None."""

    def __init__(self, config: GroupConfig, *, rng: random.Random, now_ms: int) -> None:
        """`rng` makes member ids; seed it differently on every start of every node.

        Raises `UnsupportedCompression` if the library for `offsets.topic.compression.codec` is missing.
        """
        compress(config.codec, b"")
        self._served = Served(config)
        self._rng = rng
        self.refused_joins = 0
        """Joins refused because the memory of all groups was used up."""
        self.misplaced: list[str] = []
        """Groups in the partition that was loaded last that clients look for in another one."""
        self._epochs: dict[int, int] = {}
        """The highest leader epoch known, by partition: notices of an older one are stale."""
        self._next_check_ms = now_ms + config.offsets_retention_check_interval_ms

    @property
    def partition_count(self) -> int:
        """The partition count of `__consumer_offsets`; to be set as soon as the topic exists."""
        return self._served.partition_count

    @partition_count.setter
    def partition_count(self, count: int) -> None:
        self._served.partition_count = count

    # --- elections ----------------------------------------------------------------------------

    def begin_load(self, partition: int, epoch: int) -> Loader | None:
        """Begin to serve a partition that this node leads in `epoch`; return the loader for its log.

        Feed the log to the loader, on any thread, then call `end_load`. If feeding raises, do not call it:
        the partition stays in the loading state until the next epoch. A missing coordinator is better than
        one that has lost data. Loaded offsets are given to clients, so read only what is committed: wait
        until the high watermark reaches the end that the log had at the election.

        Returns None for a stale notice, and if this node led the partition before and still has its groups.
        """
        if epoch < self._epochs.get(partition, epoch):
            mark("groups: late word of an election")
            return None
        self._epochs[partition] = epoch
        known = self._served.partitions.get(partition)
        if known is not None and (known.loader is None or known.epoch == epoch):
            known.epoch = epoch
            return None
        loader = Loader()
        self._served.partitions[partition] = LedPartition(epoch, loader)
        return loader

    def end_load(self, partition: int, epoch: int, now_ms: int) -> list[Effect]:
        """Serve the groups of a partition: its whole log was fed to the loader.

        Groups that clients look for in another partition are not served from here: `misplaced` names them.
        """
        loading = self._loading(partition, epoch)
        if loading is not None and loading.loader is not None:
            loader, loading.loader = loading.loader, None
            self.misplaced = []
            for group, offsets in loader.groups(self._served.config, now_ms):
                if self.partition_of(group.group_id) != partition:
                    self.misplaced.append(group.group_id)
                    continue
                entry = Entry(group, offsets, partition)
                self._served.entries[group.group_id] = entry
                self._served.schedule(entry)
        return self._served.take()

    def unload(self, partition: int, epoch: int | None, now_ms: int) -> list[Effect]:
        """Stop serving a partition: another node leads it in `epoch`, or none does (None)."""
        if epoch is not None:
            if epoch < self._epochs.get(partition, epoch):
                mark("groups: late word of a resignation")
                return []
            self._epochs[partition] = epoch
        self._served.partitions.pop(partition, None)
        for entry in [each for each in self._served.entries.values() if each.partition == partition]:
            self._served.drop(entry)
            self._carry_out(entry, sessions.unload(entry.group), now_ms)
        for token in [
            each for each, write in self._served.writes.items() if write.entry.partition == partition
        ]:
            write = self._served.writes.pop(token)
            if not isinstance(write, Generation):
                mark("groups: somebody waits for an append when the coordinator moves")
                self._finish(write, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, now_ms)
        return self._served.take()

    def _loading(self, partition: int, epoch: int) -> LedPartition | None:
        found = self._served.partitions.get(partition)
        return found if found is not None and found.epoch == epoch else None

    # --- time ---------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int:
        """The time at which `tick` must be called; an earlier call is harmless."""
        return (
            min(self._served.wakes[0][0], self._next_check_ms) if self._served.wakes else self._next_check_ms
        )

    def tick(self, now_ms: int) -> list[Effect]:
        """Expire sessions and offsets, and end join phases that are due."""
        due = []
        while self._served.wakes and self._served.wakes[0][0] <= now_ms:
            wake_ms, _, entry = heappop(self._served.wakes)
            if entry.wake_ms == wake_ms and self._served.serves(entry):
                due.append(entry)
        for entry in due:
            entry.wake_ms = None
            self._carry_out(entry, sessions.tick(entry.group, now_ms), now_ms)
            self._served.schedule(entry)
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + self._served.config.offsets_retention_check_interval_ms
            for entry in list(self._served.entries.values()):
                offset_requests.clean(self._served, entry, now_ms)
        return self._served.take()

    # --- appends ------------------------------------------------------------------------------

    def appended(self, token: int, error: ErrorCode, base_offset: int, now_ms: int) -> list[Effect]:
        """Report the outcome of an `Append`; with NONE, all in-sync replicas have it at `base_offset`."""
        write = self._served.writes.pop(token, None)
        if write is None:
            mark("groups: an append ends after its partition was unloaded")
            return []
        self._finish(write, error, base_offset, now_ms)
        return self._served.take()

    def _finish(self, write: Write, error: ErrorCode, base_offset: int, now_ms: int) -> None:
        match write:
            case Commit():
                offset_requests.finish_commit(self._served, write, error, base_offset)
            case Generation(entry, ticket):
                told = GENERATION_ERRORS.get(error, error)
                self._carry_out(entry, syncing.persisted(entry.group, ticket, told, now_ms), now_ms)
                self._served.schedule(entry)
            case Tombstones():
                offset_requests.finish_tombstones(self._served, write, error, base_offset)
            case _:
                assert_never(write)

    def _carry_out(self, entry: Entry, decisions: list[Decision], now_ms: int) -> None:
        for decision in decisions:
            if isinstance(decision, Persist):
                record = (encode_group_key(entry.group.group_id), encode_group(decision.metadata))
                self._served.append([record], Generation(entry, decision.ticket), now_ms)
            else:
                self._served.answer(decision.token, decision.response)

    # --- requests -----------------------------------------------------------------------------

    def handle(self, request: GroupRequest, token: Hashable, now_ms: int) -> list[Effect]:
        """Handle a request; its Answer is among these effects or those of a later call."""
        match request:
            case HeartbeatRequest():
                self._heartbeat(request, token, now_ms)
            case OffsetCommitRequest():
                offset_requests.commit(self._served, request, token, now_ms)
            case OffsetFetchRequest():
                groups = tuple(
                    offset_requests.fetch(self._served, each, request.require_stable)
                    for each in request.groups
                )
                self._served.answer(token, OffsetFetchResponse(groups))
            case JoinGroupRequest():
                self._join(request, token, now_ms)
            case SyncGroupRequest():
                self._sync(request, token, now_ms)
            case LeaveGroupRequest():
                self._leave(request, token, now_ms)
            case DescribeGroupsRequest():
                described = tuple(self._describe(each) for each in request.groups)
                self._served.answer(token, DescribeGroupsResponse(described))
            case ListGroupsRequest():
                self._served.answer(token, self._list(request))
            case DeleteGroupsRequest():
                offset_requests.delete_groups(self._served, request, token, now_ms)
            case OffsetDeleteRequest():
                offset_requests.delete_offsets(self._served, request, token, now_ms)
            case _:
                assert_never(request)
        return self._served.take()

    def topic_partitions_deleted(
        self, topic_partitions: Iterable[TopicPartition], now_ms: int
    ) -> list[Effect]:
        """Remove the offsets of deleted partitions: a new topic of that name must not inherit them.

        They are gone at once. If the tombstones cannot be written, that is tried again later.
        """
        gone = frozenset(topic_partitions)
        for entry in list(self._served.entries.values()):
            if found := [each for each in entry.offsets.partitions if each in gone]:
                entry.offsets.remove(found, MAX_LONG)
                offset_requests.remove(self._served, entry, found, None, now_ms)
        return self._served.take()

    def _join(self, request: JoinGroupRequest, token: Hashable, now_ms: int) -> None:
        error, entry = self._served.find(request.group_id)
        error = error or self._join_error(request) or self._memory_error(request, entry)
        if not error and entry is None and request.member_id != NO_MEMBER_ID:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error:
            self._served.answer(token, JoinGroupResponse(error_code=error, member_id=request.member_id))
            return
        entry = entry or self._served.make(request.group_id, now_ms)
        suffix = str(UUID(int=self._rng.getrandbits(128), version=4))
        self._carry_out(entry, joining.join(entry.group, request, token, now_ms, id_suffix=suffix), now_ms)
        if entry.group.generation == 0 and entry.group.is_vacant and entry.offsets.is_empty:
            self._served.drop(entry)
        else:
            soonest_ms = min(request.session_timeout_ms, joining.NEW_MEMBER_JOIN_TIMEOUT_MS)
            self._served.reschedule(entry, now_ms + soonest_ms)

    def _memory_error(self, request: JoinGroupRequest, entry: Entry | None) -> ErrorCode:
        """Return the error of a member for which there is no memory; one that is known may stay as it is."""
        config, grows = self._served.config, size_of(request.protocols, request.client_id)
        if entry is not None:
            members = entry.group.members
            member = members.get(members.identified(request.member_id, request.group_instance_id))
            grows -= member.size - len(member.assignment) if member is not None else 0
        if grows <= 0:
            return ErrorCode.NONE
        if (entry.bytes if entry is not None else 0) + grows > config.group_max_bytes:
            mark("groups: a member finds no memory left in its group")
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if self._served.bytes + grows > config.group_coordinator_max_bytes:
            mark("groups: a member finds no memory left for any group")
            self.refused_joins += 1
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE

    def undelivered(self, group_id: str, member_id: str, now_ms: int) -> None:
        """Report that a member's connection had closed before its join was answered.

        A client that lives joins again at once; until it shows itself, its session is short.
        """
        entry = self._served.entries.get(group_id)
        member = entry.group.members.get(member_id) if entry is not None else None
        if entry is not None and member is not None:
            mark("groups: a join is answered to a closed connection")
            member.deadline_ms = min(member.deadline_ms, now_ms + UNDELIVERED_MS)
            self._served.reschedule(entry, member.deadline_ms)

    @property
    def memory(self) -> int:
        """About how many bytes the members of all groups take."""
        return self._served.bytes

    def _join_error(self, request: JoinGroupRequest) -> ErrorCode:
        shortest_ms = self._served.config.group_min_session_timeout_ms
        if not shortest_ms <= request.session_timeout_ms <= self._served.config.group_max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        names = (request.group_instance_id, request.client_id)
        texts = (request.client_host, request.protocol_type, *(each.name for each in request.protocols))
        if all(fits(each, spare_bytes=_ID_SUFFIX_BYTES) for each in names) and all(map(fits, texts)):
            return ErrorCode.NONE
        return ErrorCode.INVALID_REQUEST

    def _sync(self, request: SyncGroupRequest, token: Hashable, now_ms: int) -> None:
        error, entry = self._served.find(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The rebalance was lost with the previous coordinator; older clients understand this error only.
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error or entry is None:
            error = error or ErrorCode.UNKNOWN_MEMBER_ID
            self._served.answer(token, SyncGroupResponse(error_code=error))
            return
        self._carry_out(entry, syncing.sync(entry.group, request, token, now_ms), now_ms)
        self._served.weigh(entry)

    def _heartbeat(self, request: HeartbeatRequest, token: Hashable, now_ms: int) -> None:
        error, entry = self._served.find(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # Every member has a full session once loading ends; older clients do not expect
            # COORDINATOR_LOAD_IN_PROGRESS (14) here.
            self._served.answer(token, HeartbeatResponse())
        elif error or entry is None:
            self._served.answer(token, HeartbeatResponse(error or ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            self._carry_out(entry, sessions.heartbeat(entry.group, request, token, now_ms), now_ms)

    def _leave(self, request: LeaveGroupRequest, token: Hashable, now_ms: int) -> None:
        error, entry = self._served.find(request.group_id)
        if error:
            self._served.answer(token, LeaveGroupResponse(error_code=error))
        elif entry is None:
            unknown = tuple(
                MemberResponse(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=ErrorCode.UNKNOWN_MEMBER_ID,
                )
                for each in request.members
            )
            self._served.answer(token, LeaveGroupResponse(members=unknown))
        else:
            self._carry_out(entry, sessions.leave(entry.group, request, token, now_ms), now_ms)
            self._served.reschedule(entry)

    # --- views ------------------------------------------------------------------------------------

    def _describe(self, group_id: str) -> DescribedGroup:
        error, entry = self._served.find(group_id, or_empty=True)
        if error:
            return DescribedGroup(group_id=group_id, error_code=error)
        if entry is None:
            return DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
        return entry.group.describe()

    def _list(self, request: ListGroupsRequest) -> ListGroupsResponse:
        states = {each.lower() for each in request.states_filter}
        types = {each.lower() for each in request.types_filter}
        listed = (entry.group.listed() for entry in self._served.entries.values())
        groups = tuple(
            each
            for each in listed
            if (not states or each.group_state.lower() in states) and (not types or each.group_type in types)
        )
        is_loading = any(each.loader is not None for each in self._served.partitions.values())
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE
        return ListGroupsResponse(error_code=error, groups=groups)

    @property
    def states(self) -> Counter[State]:
        """The number of groups in each state."""
        return Counter(entry.group.state for entry in self._served.entries.values())

    @property
    def committed_offsets(self) -> int:
        """The number of committed offsets: partitions, counted for each group."""
        return sum(len(entry.offsets.partitions) for entry in self._served.entries.values())

    def groups(self) -> Iterator[tuple[str, int, Offsets]]:
        """Yield each group that is served: its id, its number of members, its offsets."""
        for group_id, entry in self._served.entries.items():
            yield group_id, len(entry.group.members), entry.offsets

    @property
    def loading(self) -> int:
        """The number of partitions of `__consumer_offsets` that are led here and still loading."""
        return sum(each.loader is not None for each in self._served.partitions.values())

    def partition_of(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that holds the group."""
        return partition_for(group_id, self.partition_count)

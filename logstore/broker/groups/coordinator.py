"""The group coordinator of one node: the groups of those partitions of `__consumer_offsets` that it leads.

    requests ──▶ handle ─────────────┐                          ┌─▶ Answer   to the request with that token
    time ──────▶ tick ───────────────┤    ┌─────────────────┐   │
    the log ───▶ appended ───────────┼──▶ │ group, offsets  │ ──┴─▶ Append   a batch to __consumer_offsets,
    elections ─▶ begin_load,         │    │ by partition    │               acks=all; then `appended`
                 end_load, unload ───┘    └─────────────────┘

Every method is a plain function of what it is given and the time, and returns effects for the caller to
carry out in order. Each Append ends in one call of `appended`, in the order of the partition's log; each
request ends in one Answer. A group belongs to the partition that its name's hash says, so any node can tell
where it is, and the partition's leader is its coordinator.

    not ours ──begin_load──▶ loading ──end_load──▶ ours, in a leader epoch ──unload──▶ not ours
       16                    14, and no promise                                  whoever waits: 16

Nothing counts before the log has it: offsets are served, assignments given and groups gone once the append
is committed. So whoever leads the partition next has every committed offset and every stable group, with
its members and what each of them reads, and gives each member a whole session to find it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final, TypeAlias, assert_never
from uuid import UUID

from logstore.broker.groups import joining, sessions, syncing
from logstore.broker.groups.answers import Answer, Decision, Persist
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.group import CONSUMER, Group, State
from logstore.broker.groups.loading import Loader
from logstore.broker.groups.offsets import Offsets
from logstore.broker.groups.records import (
    OffsetAndMetadata,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
    fits,
)
from logstore.broker.groups.requests import (
    NO_MEMBER_ID,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupRequest,
    GroupResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch_of_pairs
from logstore.format.compression import compress
from logstore.replication.java_hash import java_hash

OFFSETS_TOPIC: Final = "__consumer_offsets"
_ID_SUFFIX_BYTES: Final = 37
"""A hyphen and a UUID."""
_MAX_TOPIC_CHARACTERS: Final = 249

_COMMIT_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.LEADER_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
"""What a client is told of an append that failed; an error that is not here as it is."""

_GENERATION_ERRORS: Final = _COMMIT_ERRORS | {
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The same where it was a generation that was written."""


def partition_for(group_id: str, partition_count: int) -> int:
    """Which partition of `__consumer_offsets` a group belongs to: `FindCoordinator`'s hash."""
    return (java_hash(group_id) & 0x7FFF_FFFF) % partition_count


@dataclass(frozen=True, slots=True)
class Append:
    """Append `batch` to a partition of `__consumer_offsets` that we lead in this epoch.

    With acks=all and `offsets.commit.timeout.ms`; then call `appended` with the token, once and in any case:
    an outcome that nobody knows is REQUEST_TIMED_OUT.
    """

    partition: int
    leader_epoch: int
    batch: bytes
    token: int


Effect: TypeAlias = Answer | Append


@dataclass(slots=True, eq=False)
class _Entry:
    """One group with its offsets. `wake_ms` is the earliest time at which the heap has it."""

    group: Group
    offsets: Offsets
    partition: int
    wake_ms: int | None = None


@dataclass(slots=True)
class _Partition:
    """`loader` while its log is being read, None once it is served."""

    epoch: int
    loader: Loader | None


@dataclass(slots=True)
class _DeletionAsked:
    """A DeleteGroups request, answered when the last of its groups is decided, `undecided` of them so far."""

    token: Hashable
    undecided: int
    results: dict[str, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _RemovalAsked:
    """An OffsetDelete request."""

    token: Hashable
    errors: dict[TopicPartition, ErrorCode]


# What an append is for.


@dataclass(frozen=True, slots=True)
class _Commit:
    """`errors` are those of partitions that were refused."""

    entry: _Entry
    token: Hashable
    values: dict[TopicPartition, OffsetAndMetadata]
    errors: dict[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class _Generation:
    entry: _Entry
    ticket: int


@dataclass(frozen=True, slots=True)
class _Removal:
    """Tombstones, of the whole group if `is_deletion`; `asked` None: nobody did, they have expired."""

    entry: _Entry
    partitions: list[TopicPartition]
    is_deletion: bool
    asked: _DeletionAsked | _RemovalAsked | None


_Write: TypeAlias = _Commit | _Generation | _Removal


class Coordinator:
    """One node's. Tokens are the caller's: never looked into, never None."""

    def __init__(self, config: GroupConfig, *, rng: random.Random, now_ms: int) -> None:
        """`rng` makes the ids of members: seeded differently in every life of every node.

        Raises `UnsupportedCompression` if the library of `offsets.topic.compression.codec` is missing.
        """
        compress(config.codec, b"")
        self.partition_count = config.offsets_topic_num_partitions
        """To be set to what the topic really has as soon as it exists."""
        self._config = config
        self._rng = rng
        self._partitions: dict[int, _Partition] = {}
        self._entries: dict[str, _Entry] = {}
        """The groups that are served."""
        self._epochs: dict[int, int] = {}
        """The highest leader epoch heard of: word of an older one comes late."""
        self._writes: dict[int, _Write] = {}
        self._append_tokens = count(1)
        self._wakes: list[tuple[int, int, _Entry]] = []
        self._wake_order = count()
        self._next_check_ms = now_ms + config.offsets_retention_check_interval_ms
        self._effects: list[Effect] = []

    # --- elections ----------------------------------------------------------------------------

    def begin_load(self, partition: int, epoch: int) -> Loader | None:
        """We lead this partition in `epoch`: feed its log to the loader, on any thread, then `end_load`.

        If feeding raises, do no such thing: the partition stays as it is, loading, until another epoch.
        Better no coordinator than one that has forgotten something. What is loaded is told to clients: it
        must be committed, so reading waits until the high watermark is where the log ended when we were
        elected.

        None: the word is late, or the groups are here already, as this node never ceased to lead (if it
        did, `unload` comes first).
        """
        if epoch < self._epochs.get(partition, epoch):
            mark("groups: late word of an election")
            return None
        self._epochs[partition] = epoch
        known = self._partitions.get(partition)
        if known is not None and (known.loader is None or known.epoch == epoch):
            known.epoch = epoch
            return None
        loader = Loader()
        self._partitions[partition] = _Partition(epoch, loader)
        return loader

    def end_load(self, partition: int, epoch: int, now_ms: int) -> list[Effect]:
        """All of the log was given: its groups are served from now on."""
        loading = self._loading(partition, epoch)
        if loading is not None and loading.loader is not None:
            loader, loading.loader = loading.loader, None
            for group, offsets in loader.groups(self._config, now_ms):
                entry = _Entry(group, offsets, partition)
                self._entries[group.group_id] = entry
                self._schedule(entry)
        return self._taken()

    def unload(self, partition: int, epoch: int | None, now_ms: int) -> list[Effect]:
        """Another node leads it in `epoch`, or nobody does any more (None): whoever waits is told."""
        if epoch is not None:
            if epoch < self._epochs.get(partition, epoch):
                mark("groups: late word of a resignation")
                return []
            self._epochs[partition] = epoch
        self._partitions.pop(partition, None)
        for entry in [each for each in self._entries.values() if each.partition == partition]:
            del self._entries[entry.group.group_id]
            self._carry_out(entry, sessions.unload(entry.group), now_ms)
        for token in [each for each, write in self._writes.items() if write.entry.partition == partition]:
            write = self._writes.pop(token)
            if not isinstance(write, _Generation):
                mark("groups: somebody waits for an append when the coordinator moves")
                self._finish(write, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, now_ms)
        return self._taken()

    def _loading(self, partition: int, epoch: int) -> _Partition | None:
        found = self._partitions.get(partition)
        return found if found is not None and found.epoch == epoch else None

    # --- time ---------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int:
        """When `tick` has something to do; calling it earlier is harmless."""
        return min(self._wakes[0][0], self._next_check_ms) if self._wakes else self._next_check_ms

    def tick(self, now_ms: int) -> list[Effect]:
        """Sessions, rounds and offsets whose time is up."""
        due = []
        while self._wakes and self._wakes[0][0] <= now_ms:
            wake_ms, _, entry = heappop(self._wakes)
            if entry.wake_ms == wake_ms and self._serves(entry):
                due.append(entry)
        for entry in due:
            entry.wake_ms = None
            self._carry_out(entry, sessions.tick(entry.group, now_ms), now_ms)
            self._schedule(entry)
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + self._config.offsets_retention_check_interval_ms
            for entry in list(self._entries.values()):
                self._clean(entry, now_ms)
        return self._taken()

    def _schedule(self, entry: _Entry) -> None:
        """See that the group is woken in time; too early is harmless, and renewed sessions are not noted."""
        deadline_ms = entry.group.deadline_ms
        if deadline_ms is not None and (entry.wake_ms is None or deadline_ms < entry.wake_ms):
            entry.wake_ms = deadline_ms
            heappush(self._wakes, (deadline_ms, next(self._wake_order), entry))

    def _clean(self, entry: _Entry, now_ms: int) -> None:
        """Drop what has expired, and the group if nothing is left of it."""
        if entry.group.state is State.DEAD:
            return
        expired = entry.offsets.expired(entry.group, now_ms, self._config.offsets_retention_ms)
        is_deletion = entry.group.is_vacant and len(expired) == len(entry.offsets.partitions)
        if is_deletion:
            mark("groups: nothing is left of a group")
        elif expired:
            mark("groups: some offsets of a group expire")
        if is_deletion or expired:
            self._remove(entry, expired, None, now_ms, is_deletion=is_deletion)

    # --- appends ------------------------------------------------------------------------------

    def appended(self, token: int, error: ErrorCode, base_offset: int, now_ms: int) -> list[Effect]:
        """How an `Append` ended: NONE once every in-sync replica has it, then `base_offset` is where."""
        write = self._writes.pop(token, None)
        if write is None:
            mark("groups: an append ends after its partition was unloaded")
            return []
        self._finish(write, error, base_offset, now_ms)
        return self._taken()

    def _append(self, records: Iterable[tuple[bytes, bytes | None]], write: _Write, now_ms: int) -> None:
        partition = write.entry.partition
        token = next(self._append_tokens)
        batch = encode_batch_of_pairs(records, timestamp_ms=now_ms, codec=self._config.codec)
        self._writes[token] = write
        self._effects.append(Append(partition, self._partitions[partition].epoch, batch, token))

    def _finish(self, write: _Write, error: ErrorCode, base_offset: int, now_ms: int) -> None:
        match write:
            case _Commit():
                self._finish_commit(write, error, base_offset)
            case _Generation(entry, ticket):
                told = _GENERATION_ERRORS.get(error, error)
                self._carry_out(entry, syncing.persisted(entry.group, ticket, told, now_ms), now_ms)
                self._schedule(entry)
            case _Removal():
                self._finish_removal(write, error, base_offset)
            case _:
                assert_never(write)

    def _carry_out(self, entry: _Entry, decisions: list[Decision], now_ms: int) -> None:
        for decision in decisions:
            if isinstance(decision, Persist):
                record = (encode_group_key(entry.group.group_id), encode_group(decision.metadata))
                self._append([record], _Generation(entry, decision.ticket), now_ms)
            else:
                self._effects.append(decision)

    # --- requests -----------------------------------------------------------------------------

    def handle(self, request: GroupRequest, token: Hashable, now_ms: int) -> list[Effect]:
        """Take a request in; its Answer is among the effects, or among those of a later call."""
        match request:
            case HeartbeatRequest():
                self._heartbeat(request, token, now_ms)
            case OffsetCommitRequest():
                self._commit(request, token, now_ms)
            case OffsetFetchRequest():
                groups = tuple(self._fetch(each, request.require_stable) for each in request.groups)
                self._answer(token, OffsetFetchResponse(groups))
            case JoinGroupRequest():
                self._join(request, token, now_ms)
            case SyncGroupRequest():
                self._sync(request, token, now_ms)
            case LeaveGroupRequest():
                self._leave(request, token, now_ms)
            case DescribeGroupsRequest():
                described = tuple(self._describe(each) for each in request.groups)
                self._answer(token, DescribeGroupsResponse(described))
            case ListGroupsRequest():
                self._answer(token, self._list(request))
            case DeleteGroupsRequest():
                self._delete(request, token, now_ms)
            case OffsetDeleteRequest():
                self._delete_offsets(request, token, now_ms)
            case _:
                assert_never(request)
        return self._taken()

    def topic_partitions_deleted(
        self, topic_partitions: Iterable[TopicPartition], now_ms: int
    ) -> list[Effect]:
        """These exist no more: nobody is to find an offset of theirs in a topic of the same name."""
        gone = frozenset(topic_partitions)
        for entry in list(self._entries.values()):
            if found := [each for each in entry.offsets.partitions if each in gone]:
                self._remove(entry, found, None, now_ms)
        return self._taken()

    def _join(self, request: JoinGroupRequest, token: Hashable, now_ms: int) -> None:
        error, entry = self._find(request.group_id)
        error = error or self._join_error(request)
        if not error and entry is None and request.member_id != NO_MEMBER_ID:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error:
            self._answer(token, JoinGroupResponse(error_code=error, member_id=request.member_id))
            return
        entry = entry or self._made(request.group_id, now_ms)
        suffix = str(UUID(int=self._rng.getrandbits(128), version=4))
        self._carry_out(entry, joining.join(entry.group, request, token, now_ms, id_suffix=suffix), now_ms)
        if entry.group.generation == 0 and entry.group.is_vacant and entry.offsets.is_empty:
            self._drop(entry)
        else:
            self._schedule(entry)

    def _join_error(self, request: JoinGroupRequest) -> ErrorCode:
        shortest_ms = self._config.group_min_session_timeout_ms
        if not shortest_ms <= request.session_timeout_ms <= self._config.group_max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        names = (request.group_instance_id, request.client_id)
        texts = (request.client_host, request.protocol_type, *(each.name for each in request.protocols))
        if all(fits(each, spare_bytes=_ID_SUFFIX_BYTES) for each in names) and all(map(fits, texts)):
            return ErrorCode.NONE
        return ErrorCode.INVALID_REQUEST

    def _sync(self, request: SyncGroupRequest, token: Hashable, now_ms: int) -> None:
        error, entry = self._find(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The round was lost with the coordinator before; older clients know no other word for it.
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error or entry is None:
            error = error or ErrorCode.UNKNOWN_MEMBER_ID
            self._answer(token, SyncGroupResponse(error_code=error))
            return
        self._carry_out(entry, syncing.sync(entry.group, request, token, now_ms), now_ms)

    def _heartbeat(self, request: HeartbeatRequest, token: Hashable, now_ms: int) -> None:
        error, entry = self._find(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # Whoever it is has a whole session from the end of loading on; older clients know no 14 here.
            self._answer(token, HeartbeatResponse())
        elif error or entry is None:
            self._answer(token, HeartbeatResponse(error or ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            self._carry_out(entry, sessions.heartbeat(entry.group, request, token, now_ms), now_ms)

    def _leave(self, request: LeaveGroupRequest, token: Hashable, now_ms: int) -> None:
        error, entry = self._find(request.group_id)
        if error:
            self._answer(token, LeaveGroupResponse(error_code=error))
        elif entry is None:
            unknown = tuple(
                MemberResponse(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=ErrorCode.UNKNOWN_MEMBER_ID,
                )
                for each in request.members
            )
            self._answer(token, LeaveGroupResponse(members=unknown))
        else:
            self._carry_out(entry, sessions.leave(entry.group, request, token, now_ms), now_ms)
            self._schedule(entry)

    # --- offsets ------------------------------------------------------------------------------

    def _commit(self, request: OffsetCommitRequest, token: Hashable, now_ms: int) -> None:
        error, entry = self._find(request.group_id, or_empty=True)
        if not error and entry is not None:
            error = entry.group.commit_error(request, now_ms)
        elif not error and request.generation_id >= 0:
            error = ErrorCode.ILLEGAL_GENERATION
        errors = {
            each: error or self._offset_error(each, value) for each, value in request.partitions.items()
        }
        values = {
            each: _as_recorded(value, request.retention_time_ms, now_ms)
            for each, value in request.partitions.items()
            if not errors[each]
        }
        if not values:
            self._answer(token, OffsetCommitResponse(errors))
            return
        entry = entry or self._made(request.group_id, now_ms)
        entry.offsets.stage(values)
        records = [
            (encode_offset_key(request.group_id, each), encode_offset(value))
            for each, value in values.items()
        ]
        self._append(records, _Commit(entry, token, values, errors), now_ms)

    def _offset_error(self, topic_partition: TopicPartition, value: OffsetCommitPartition) -> ErrorCode:
        metadata = value.committed_metadata or ""
        if len(topic_partition.topic) > _MAX_TOPIC_CHARACTERS or not fits(topic_partition.topic):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if not fits(metadata) or _utf16_units(metadata) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _finish_commit(self, write: _Commit, error: ErrorCode, base_offset: int) -> None:
        if error:
            mark("groups: a commit could not be written")
            write.entry.offsets.fail(write.values)
        else:
            write.entry.offsets.complete(write.values, base_offset)
        told = dict.fromkeys(write.values, _COMMIT_ERRORS.get(error, error))
        self._answer(write.token, OffsetCommitResponse(write.errors | told))

    def _fetch(self, asked: OffsetFetchGroup, require_stable: bool) -> OffsetFetchGroupResponse:
        error, entry = self._find(asked.group_id, or_empty=True)
        if error:
            return OffsetFetchGroupResponse(group_id=asked.group_id, error_code=error)
        if entry is None:
            found = dict.fromkeys(asked.partitions or (), OffsetFetchPartition())
        else:
            found = entry.offsets.fetch(asked.partitions, require_stable=require_stable)
        return OffsetFetchGroupResponse(group_id=asked.group_id, partitions=found)

    def _delete_offsets(self, request: OffsetDeleteRequest, token: Hashable, now_ms: int) -> None:
        error, entry = self._find(request.group_id)
        if not error and entry is not None:
            error = _offset_deletion_error(entry.group)
        if error or entry is None:
            self._answer(token, OffsetDeleteResponse(error_code=error or ErrorCode.GROUP_ID_NOT_FOUND))
            return
        group, known = entry.group, entry.offsets.partitions
        errors = {
            each: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if group.state is not State.EMPTY and group.reads(each.topic)
            else ErrorCode.NONE
            for each in request.partitions
        }
        removable = [each for each, error in errors.items() if not error and each in known]
        if removable:
            self._remove(entry, removable, _RemovalAsked(token, errors), now_ms)
        else:
            self._answer(token, OffsetDeleteResponse(partitions=errors))

    # --- removal ------------------------------------------------------------------------------

    def _delete(self, request: DeleteGroupsRequest, token: Hashable, now_ms: int) -> None:
        group_ids = tuple(dict.fromkeys(request.groups_names))
        if not group_ids:
            self._answer(token, DeleteGroupsResponse({}))
        asked = _DeletionAsked(token, len(group_ids))
        for group_id in group_ids:
            error, entry = self._find(group_id, or_empty=True)
            if error or entry is None:
                self._decide(asked, group_id, error or ErrorCode.GROUP_ID_NOT_FOUND)
            elif error := _deletion_error(entry.group):
                self._decide(asked, group_id, error)
            else:
                self._remove(entry, entry.offsets.partitions, asked, now_ms, is_deletion=True)

    def _decide(self, asked: _DeletionAsked, group_id: str, result: ErrorCode) -> None:
        asked.results[group_id] = result
        asked.undecided -= 1
        if not asked.undecided:
            self._answer(asked.token, DeleteGroupsResponse(asked.results))

    def _remove(
        self,
        entry: _Entry,
        partitions: list[TopicPartition],
        asked: _DeletionAsked | _RemovalAsked | None,
        now_ms: int,
        *,
        is_deletion: bool = False,
    ) -> None:
        """Write tombstones: one batch, so that a group goes whole or not at all."""
        group_id = entry.group.group_id
        records: list[tuple[bytes, bytes | None]] = [
            (encode_offset_key(group_id, each), None) for each in partitions
        ]
        if is_deletion:
            sessions.set_deleting(entry.group, True)
            if entry.group.generation > 0:
                # Of a group that only ever kept offsets the log has no metadata.
                records.append((encode_group_key(group_id), None))
        write = _Removal(entry, partitions, is_deletion, asked)
        if records:
            self._append(records, write, now_ms)
        else:
            self._finish_removal(write, ErrorCode.NONE, -1)

    def _finish_removal(self, write: _Removal, error: ErrorCode, base_offset: int) -> None:
        if error:
            mark("groups: tombstones could not be written")
            if write.is_deletion:
                sessions.set_deleting(write.entry.group, False)
                self._schedule(write.entry)
        else:
            write.entry.offsets.remove(write.partitions, base_offset)
            if write.is_deletion:
                self._drop(write.entry)
        told = _COMMIT_ERRORS.get(error, error)
        match write.asked:
            case _RemovalAsked(token, errors):
                self._answer(
                    token, OffsetDeleteResponse(partitions=errors | dict.fromkeys(write.partitions, told))
                )
            case _DeletionAsked() as asked:
                self._decide(asked, write.entry.group.group_id, told)

    # --- telling ------------------------------------------------------------------------------

    def _describe(self, group_id: str) -> DescribedGroup:
        error, entry = self._find(group_id, or_empty=True)
        if error:
            return DescribedGroup(group_id=group_id, error_code=error)
        if entry is None:
            return DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
        return entry.group.describe()

    def _list(self, request: ListGroupsRequest) -> ListGroupsResponse:
        wanted = {each.lower() for each in request.states_filter}
        listed = (entry.group.listed() for entry in self._entries.values())
        groups = tuple(each for each in listed if not wanted or each.group_state.lower() in wanted)
        is_loading = any(each.loader is not None for each in self._partitions.values())
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE
        return ListGroupsResponse(error_code=error, groups=groups)

    @property
    def states(self) -> Counter[State]:
        """How many groups there are here in each state."""
        return Counter(entry.group.state for entry in self._entries.values())

    @property
    def committed_offsets(self) -> int:
        """For how many partitions, group by group."""
        return sum(len(entry.offsets.partitions) for entry in self._entries.values())

    @property
    def loading(self) -> int:
        """How many partitions of `__consumer_offsets` are led here and not served yet."""
        return sum(each.loader is not None for each in self._partitions.values())

    # --- who is where -------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """Which partition of `__consumer_offsets` the group belongs to."""
        return partition_for(group_id, self.partition_count)

    def _find(self, group_id: str, *, or_empty: bool = False) -> tuple[ErrorCode, _Entry | None]:
        """The group, if there is one; or why nothing can be said of it here.

        `or_empty`: the empty name will do, which can keep offsets and nothing else.
        """
        entry = self._entries.get(group_id) if group_id or or_empty else None
        if entry is not None:
            return ErrorCode.NONE, entry
        if not (group_id or or_empty) or not fits(group_id):
            return ErrorCode.INVALID_GROUP_ID, None
        partition = self._partitions.get(self.partition_of(group_id))
        if partition is None:
            return ErrorCode.NOT_COORDINATOR, None
        is_loading = partition.loader is not None
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE, None

    def _made(self, group_id: str, now_ms: int) -> _Entry:
        entry = _Entry(Group(group_id, self._config, now_ms), Offsets(), self.partition_of(group_id))
        self._entries[group_id] = entry
        return entry

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry.group.group_id]

    def _serves(self, entry: _Entry) -> bool:
        return self._entries.get(entry.group.group_id) is entry

    def _answer(self, token: Hashable, response: GroupResponse) -> None:
        self._effects.append(Answer(token, response))

    def _taken(self) -> list[Effect]:
        taken, self._effects = self._effects, []
        return taken


def _as_recorded(asked: OffsetCommitPartition, retention_ms: int, now_ms: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(
        asked.committed_offset,
        asked.committed_leader_epoch,
        asked.committed_metadata or "",
        asked.commit_timestamp_ms if asked.commit_timestamp_ms >= 0 else now_ms,
        now_ms + retention_ms if retention_ms >= 0 else -1,
    )


def _offset_deletion_error(group: Group) -> ErrorCode:
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def _deletion_error(group: Group) -> ErrorCode:
    if group.state is State.DEAD:
        # Somebody else deletes it, and may yet fail.
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE if group.state is State.EMPTY else ErrorCode.NON_EMPTY_GROUP


def _utf16_units(text: str) -> int:
    """What Kafka takes for a text's length."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2

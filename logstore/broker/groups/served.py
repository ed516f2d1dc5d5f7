"""A coordinator's state: the groups of the partitions that its node leads, and the appends in progress."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heappush
from itertools import count
from typing import Final, TypeAlias

from logstore.broker.groups.answers import Answer
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.group import Group, State
from logstore.broker.groups.loading import Loader
from logstore.broker.groups.offsets import Offsets
from logstore.broker.groups.records import OffsetAndMetadata, fits
from logstore.broker.groups.requests import GroupResponse
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch_of_pairs
from logstore.replication.java_hash import absolute, java_hash

OFFSETS_TOPIC: Final = "__consumer_offsets"


def partition_for(group_id: str, partition_count: int) -> int:
    """Return the partition of `__consumer_offsets` that holds a group, as Kafka's `partitionFor` does."""
    return absolute(java_hash(group_id)) % partition_count


@dataclass(frozen=True, slots=True)
class Append:
    """Append `batch` to a partition of `__consumer_offsets` that we lead in this epoch.

    Use acks=all and `offsets.commit.timeout.ms`, then call `appended` with the token, exactly once. An
    unknown outcome is REQUEST_TIMED_OUT (7).
    """

    partition: int
    leader_epoch: int
    batch: bytes
    token: int


Effect: TypeAlias = Answer | Append


@dataclass(slots=True, eq=False)
class Entry:
    """One group with its offsets; `wake_ms` is its earliest entry in the heap of wake-ups."""

    group: Group
    offsets: Offsets
    partition: int
    to_bury: set[TopicPartition] = field(default_factory=set)
    """Partitions of deleted topics whose tombstones could not be written yet."""
    bytes: int = 0
    """The last result of `Served.weigh`."""
    wake_ms: int | None = None
    phase: tuple[State, int] | None = None
    """The phase of the group when `wake_ms` was exact."""


@dataclass(slots=True)
class LedPartition:
    """A partition of `__consumer_offsets` that this node leads; `loader` is None once it is served."""

    epoch: int
    loader: Loader | None


@dataclass(slots=True)
class GroupDeletion:
    """A DeleteGroups request, answered once `undecided` groups is down to 0."""

    token: Hashable
    undecided: int
    results: dict[str, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetDeletion:
    """An OffsetDelete request."""

    token: Hashable
    errors: dict[TopicPartition, ErrorCode]


# Why an append was made.


@dataclass(frozen=True, slots=True)
class Commit:
    """An OffsetCommit; `errors` are those of the refused partitions."""

    entry: Entry
    token: Hashable
    values: dict[TopicPartition, OffsetAndMetadata]
    errors: dict[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of a group; `ticket` identifies it for `syncing.persisted`."""

    entry: Entry
    ticket: int


@dataclass(slots=True)
class Removal:
    """A removal of offsets, of the whole group if `is_deletion`; `asked` is None for expired offsets.

    It ends once `undecided` pieces is down to 0.
    """

    is_deletion: bool
    asked: GroupDeletion | OffsetDeletion | None
    undecided: int
    error: ErrorCode = ErrorCode.NONE
    """The first error of a piece."""
    results: dict[TopicPartition, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tombstones:
    """One piece of a removal: the tombstones of these partitions, and of the group if it is the last one."""

    entry: Entry
    partitions: list[TopicPartition]
    removal: Removal


Write: TypeAlias = Commit | Generation | Tombstones


class Served:
    """The groups of the partitions that this node leads, appends under way, and effects to carry out."""

    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.partition_count = config.offsets_topic_num_partitions
        """The partition count of the topic; set to the actual one as soon as the topic exists."""
        self.partitions: dict[int, LedPartition] = {}
        self.entries: dict[str, Entry] = {}
        """The groups that are served, by group id."""
        self.writes: dict[int, Write] = {}
        self.bytes = 0
        """About how much memory the members of all groups take."""
        self.wakes: list[tuple[int, int, Entry]] = []
        self._wake_order = count()
        self._append_tokens = count(1)
        self._effects: list[Effect] = []

    def find(self, group_id: str, *, or_empty: bool = False) -> tuple[ErrorCode, Entry | None]:
        """Return the group, or None without an error if it does not exist; else an error.

        With `or_empty` the empty group id is valid; it can hold offsets but no members.
        """
        entry = self.entries.get(group_id) if group_id or or_empty else None
        if entry is not None:
            return ErrorCode.NONE, entry
        if not (group_id or or_empty) or not fits(group_id):
            return ErrorCode.INVALID_GROUP_ID, None
        partition = self.partitions.get(partition_for(group_id, self.partition_count))
        if partition is None:
            return ErrorCode.NOT_COORDINATOR, None
        is_loading = partition.loader is not None
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE, None

    def make(self, group_id: str, now_ms: int) -> Entry:
        """Create an empty group."""
        entry = Entry(
            Group(group_id, self.config, now_ms), Offsets(), partition_for(group_id, self.partition_count)
        )
        self.entries[group_id] = entry
        return entry

    def drop(self, entry: Entry) -> None:
        """Remove a group from memory."""
        del self.entries[entry.group.group_id]
        self.weigh(entry)

    def weigh(self, entry: Entry) -> None:
        """Recount the memory of a group after a change of its members."""
        size = entry.group.members.size if self.serves(entry) else 0
        self.bytes += size - entry.bytes
        entry.bytes = size

    def serves(self, entry: Entry) -> bool:
        """Return whether this is still the group of that id."""
        return self.entries.get(entry.group.group_id) is entry

    def answer(self, token: Hashable, response: GroupResponse) -> None:
        self._effects.append(Answer(token, response))

    def take(self) -> list[Effect]:
        """Return the effects since the last call."""
        taken, self._effects = self._effects, []
        return taken

    def schedule(self, entry: Entry) -> None:
        """Wake the group at its deadline. A renewed session leaves the earlier wake-up, which is harmless."""
        self.weigh(entry)
        entry.phase = entry.group.phase
        self._wake(entry, entry.group.deadline_ms)

    def reschedule(self, entry: Entry, deadline_ms: int | None = None) -> None:
        """As `schedule`, after a request that brought no deadline before `deadline_ms`.

        While the phase goes on, without a look at all members: a thousand of them ask one after the other.
        """
        if entry.phase != entry.group.phase:
            self.schedule(entry)
            return
        self.weigh(entry)
        self._wake(entry, deadline_ms)

    def _wake(self, entry: Entry, deadline_ms: int | None) -> None:
        if deadline_ms is not None and (entry.wake_ms is None or deadline_ms < entry.wake_ms):
            entry.wake_ms = deadline_ms
            heappush(self.wakes, (deadline_ms, next(self._wake_order), entry))

    def append(self, records: Iterable[tuple[bytes, bytes | None]], write: Write, now_ms: int) -> None:
        """Decide to append these (key, value) records as one batch."""
        partition = write.entry.partition
        token = next(self._append_tokens)
        batch = encode_batch_of_pairs(records, timestamp_ms=now_ms, codec=self.config.codec)
        self.writes[token] = write
        self._effects.append(Append(partition, self.partitions[partition].epoch, batch, token))

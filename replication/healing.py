"""Replicas with damage in their logs: a state of the node, from the discovery until the repair.

    found by a read, a fetch, a compaction, a scrub ──▶ damaged ──▶ asks the other replicas ──▶ mended
                                                           │  no copy to be had     ▲
                                                           └──────▶ failed ─────────┘ asks again, with pauses

A damaged replica serves what lies before the damage. If it leads, and enough others are in sync, the
controller elects one of those, by the report that a full log dir makes too (`full_dirs.py`); while it is
damaged it refuses to lead what others in the ISR can lead. It stays in the ISR: its log keeps its end, and
its new records are sound. Whatever its role, it asks the other replicas for the damaged offsets, the leader
first, with fetches that count for nobody's high watermark, and `logstore/log/heal.py` puts their batches in
place. `failed` means that every other replica was asked and none has the offsets sound. Only then does a
reader get `CORRUPT_MESSAGE (2)`; before, it gets `KAFKA_STORAGE_ERROR (56)`, which clients retry.

Nothing of this is on the disk: after a restart the damage is found again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import Damage, DiskFull, LogDirOffline, OutOfResources
from logstore.log.heal import CannotMend, Flush, Found, Mended, Steps, Wanted, mend
from logstore.replication.effects import Send
from logstore.replication.messages import (
    DEBUGGING_REPLICA_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from logstore.replication.partition import Partition

if TYPE_CHECKING:
    from logstore.replication.replica_manager import ReplicaManager

FETCH_BYTES: Final = 1 << 20
LONGEST_PAUSE_MS: Final = 60_000


@dataclass(slots=True)
class DamagedReplica:
    """The damage of one replica, and the progress of its repair."""

    since_ms: int
    damages: dict[int, Damage] = field(default_factory=dict)
    """The first damage found in each segment, by the segment's base offset."""
    failed: str = ""
    """Why no other replica could help; empty while one may."""
    base_offset: int = -1
    """The segment that is being mended."""
    steps: Steps | None = None
    wanted: Wanted | None = None
    sources: list[int] = field(default_factory=list)
    """The replicas that are still to be asked for what is wanted."""
    refusals: dict[int, str] = field(default_factory=dict)
    is_out_of_reach: bool = False
    """Whether a replica could not be asked in this round."""
    correlation_id: int = -1
    asked: int = -1
    """The replica that was asked last."""
    due_ms: int | None = 0
    """When to continue; None while a flush is under way, whose end is told."""
    pause_ms: int = 0

    def stop(self) -> None:
        """Stop the repair in progress; the log is unchanged.

        If its file cannot be removed, the log goes offline: the node looks into its log dir for that.
        """
        steps, self.steps = self.steps, None
        self.wanted, self.correlation_id = None, -1
        if steps is not None:
            with suppress(LogDirOffline, DiskFull, OutOfResources):
                steps.close()


class DamagedReplicas:
    """The damaged replicas of a node; `known` is for reading."""

    def __init__(self) -> None:
        self.known: dict[TopicPartition, DamagedReplica] = {}
        self.found: list[tuple[TopicPartition, Damage]] = []
        """Damage found in this turn."""
        self.rebuilt: list[tuple[TopicPartition, Damage]] = []
        """Derived files that differed from the log, and were rebuilt in this turn."""
        self.rebuilt_total = 0
        self.found_total = 0
        self.healed_total = 0
        """Segments that were mended."""

    @property
    def deadline_ms(self) -> int | None:
        """The time at which `pump` is next needed."""
        due = (each.due_ms for each in self.known.values())
        return min((each for each in due if each is not None), default=None)

    @property
    def failed(self) -> dict[TopicPartition, str]:
        """The replicas that no other replica could repair, and why."""
        return {known: each.failed for known, each in self.known.items() if each.failed}

    def may_lead(self, topic_partition: TopicPartition) -> bool:
        """Whether the replica is intact, or not worse than the others."""
        known = self.known.get(topic_partition)
        return known is None or bool(known.failed)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Drop a replica whose log is gone."""
        known = self.known.pop(topic_partition, None)
        if known is not None:
            known.stop()


# --- found damage --------------------------------------------------------------------------------


def begin(manager: ReplicaManager, now_ms: int) -> None:
    """Record the damage found in this turn."""
    damaged = manager.damaged
    rebuilt, damaged.rebuilt = damaged.rebuilt, []
    for topic_partition, damage in rebuilt:
        mark("heal: a derived file was rebuilt")
        damaged.rebuilt_total += 1
        manager.note(topic_partition, "rebuilds a file", now_ms, reason=str(damage))
    found, damaged.found = damaged.found, []
    for topic_partition, damage in found:
        base_offset = int(damage.file[:20])
        known = damaged.known.get(topic_partition)
        partition = manager.partitions.get(topic_partition)
        if partition is None or (known and base_offset in known.damages):
            continue
        successor = partition.log.segments.higher(base_offset)
        if successor is not None and successor.base_offset <= partition.log.log_start_offset:
            continue  # all of its segment was deleted, and goes soon
        mark("heal: damage is found")
        if known is None:
            known = damaged.known[topic_partition] = DamagedReplica(now_ms, due_ms=now_ms)
        known.damages[base_offset] = damage
        known.failed, known.pause_ms = "", 0
        known.due_ms = now_ms if known.steps is None else known.due_ms
        damaged.found_total += 1
        manager.relief.ask_at_once()
        manager.note(topic_partition, "finds damage", now_ms, reason=str(damage))


def take_note(manager: ReplicaManager, topic_partition: TopicPartition, damages: Iterable[Damage]) -> None:
    """Note damage that a read, a compaction or a scrub has found."""
    manager.damaged.found += [(topic_partition, damage) for damage in damages]


def take_note_of_rebuilt(
    manager: ReplicaManager, topic_partition: TopicPartition, rebuilt: Iterable[Damage]
) -> None:
    """Record derived files that a read, a scrub or a repair has rebuilt."""
    manager.damaged.rebuilt += [(topic_partition, damage) for damage in rebuilt]


def after_read(manager: ReplicaManager, partition: Partition) -> None:
    """Note the indexes that reads of this log have rebuilt since the last call."""
    if met := partition.log.rebuilt:
        take_note_of_rebuilt(manager, partition.topic_partition, met)
        met.clear()


def after_progress(manager: ReplicaManager, topic_partition: TopicPartition) -> None:
    """Check requests that wait for a followed log, and record damage found by its truncations."""
    partition = manager.partitions.get(topic_partition)
    if partition is not None and (met := partition.log.met):
        take_note(manager, topic_partition, met)
        met.clear()
    manager.waiting.wake(topic_partition)


def after_compaction(manager: ReplicaManager) -> None:
    """Note the damage that the cleaner has found since the last call."""
    met = manager.logs.cleaner.damages
    for topic_partition, damage in met:
        take_note(manager, topic_partition, (damage,))
    met.clear()


def damaged_partitions(manager: ReplicaManager) -> dict[str, list[str]]:
    """Return each partition with damage here, and its places: file, byte, offset."""
    found = {str(known): [str(error)] for known, error in manager.logs.damaged.items()}
    for known, replica in manager.damaged.known.items():
        found[str(known)] = [str(damage) for _, damage in sorted(replica.damages.items())]
    return dict(sorted(found.items()))


def failed_partitions(manager: ReplicaManager) -> dict[TopicPartition, str]:
    """Return the replicas that cannot follow their leader, or that no other replica can repair, and why."""
    followers = manager.followers
    return {**followers.stuck, **followers.failed, **manager.damaged.failed}


# --- mending ------------------------------------------------------------------------------------


def pump(manager: ReplicaManager, now_ms: int) -> None:
    """Do one piece of work for each damaged replica that is due."""
    for topic_partition, known in list(manager.damaged.known.items()):
        if known.due_ms is not None and known.due_ms <= now_ms:
            if known.correlation_id >= 0:
                _refused(known, "no answer", now_ms, is_out_of_reach=True)
            _advance(manager, topic_partition, known, None, now_ms)


def _advance(
    manager: ReplicaManager,
    topic_partition: TopicPartition,
    known: DamagedReplica,
    found: Found | None,
    now_ms: int,
) -> None:
    """Continue the mending, with what another replica sent; then ask the next replica, or end it."""
    partition = manager.partitions.get(topic_partition)
    if partition is None:
        manager.damaged.forget(topic_partition)
        return
    try:
        if known.steps is None:
            known.base_offset = min(known.damages)
            judged = partial(_judged, manager, topic_partition, known)
            known.steps = mend(partition.log, known.base_offset, now_ms=now_ms, on_judged=judged)
            known.wanted, found = None, None
        if known.wanted is None or found is not None:
            wanted = known.steps.send(found) if found is not None else next(known.steps)
            if wanted is None:
                known.wanted, known.due_ms = None, now_ms + 1
                return
            if isinstance(wanted, Flush):
                known.wanted, known.due_ms = None, None
                manager.flushes.demand(topic_partition, partition.log.log_end_offset)
                return
            if wanted != known.wanted:
                known.wanted, known.sources = wanted, _sources(partition)
                known.refusals, known.is_out_of_reach = {}, False
            elif found is not None:
                known.refusals[known.asked] = "its batches are not the ones that were here"
    except StopIteration as stop:
        _mended(manager, topic_partition, known, stop.value, now_ms)
    except CannotMend:
        known.stop()
        segment = partition.log.segments.get(known.base_offset)
        if segment is None or not segment.size:  # a truncation has taken the bad bytes along
            _mended(manager, topic_partition, known, Mended(False), now_ms)
        else:
            _pause(manager, known, now_ms)
    except (LogDirOffline, OSError) as error:
        known.stop()
        manager.take_offline(topic_partition, error)
    except EngineError as error:
        known.stop()
        if isinstance(error, DiskFull):
            manager.found_full(topic_partition)
        elif not isinstance(error, OutOfResources):
            known.failed = str(error)
        _pause(manager, known, now_ms)
    else:
        _ask_next(manager, partition, known, now_ms)


def _judged(
    manager: ReplicaManager, topic_partition: TopicPartition, known: DamagedReplica, damage: Damage
) -> None:
    """Take over where the damage begins: a read knows only the offset that it asked for."""
    found = known.damages.get(known.base_offset)
    if found is not None and (found.position, found.offset) != (damage.position, damage.offset):
        known.damages[known.base_offset] = damage
        manager.note(topic_partition, "locates damage", manager.now_ms, reason=str(damage))


def _sources(partition: Partition) -> list[int]:
    """Return the other replicas in the order in which they are asked: the leader, the ISR, the others."""
    others = [each for each in partition.replicas if each != partition.config.node_id]
    in_sync = partition.isr.committed
    return sorted(others, key=lambda each: (each != partition.leader_id, each not in in_sync, each))


def _ask_next(manager: ReplicaManager, partition: Partition, known: DamagedReplica, now_ms: int) -> None:
    wanted, log = known.wanted, partition.log
    assert wanted is not None, "nothing is wanted"
    while known.sources:
        known.asked = known.sources.pop(0)
        if not manager.metadata.is_alive(known.asked):
            known.refusals[known.asked], known.is_out_of_reach = "it does not run", True
            continue
        known.correlation_id = manager.next_id()
        known.due_ms = now_ms + manager.config.request_timeout_ms
        want = FetchPartition(
            wanted.start_offset,
            FETCH_BYTES,
            current_leader_epoch=partition.leader_epoch,
            topic_id=log.topic_id or "",
        )
        body = FetchRequest(
            DEBUGGING_REPLICA_ID, 0, 1, FETCH_BYTES, {partition.topic_partition: want}, uses_ids=True
        )
        manager.effects.append(Send(known.asked, known.correlation_id, body))
        return
    texts = "; ".join(f"broker {each}: {text}" for each, text in sorted(known.refusals.items()))
    known.stop()
    if not known.is_out_of_reach and not known.failed:
        mark("heal: no other replica has a sound copy")
        known.failed = (
            f"{known.damages[known.base_offset]}; no other replica has offsets {wanted.start_offset} to "
            f"{wanted.end_offset - 1} sound ({texts or 'there is none'})"
        )
        manager.note(partition.topic_partition, "stays damaged", now_ms, reason=known.failed)
    _pause(manager, known, now_ms)


def _pause(manager: ReplicaManager, known: DamagedReplica, now_ms: int) -> None:
    known.pause_ms = min(max(2 * known.pause_ms, manager.config.replica_fetch_backoff_ms), LONGEST_PAUSE_MS)
    known.due_ms = now_ms + known.pause_ms


def _refused(known: DamagedReplica, why: str, now_ms: int, *, is_out_of_reach: bool) -> None:
    known.correlation_id = -1
    known.refusals[known.asked] = why
    known.is_out_of_reach |= is_out_of_reach
    known.due_ms = now_ms


def _mended(
    manager: ReplicaManager, topic_partition: TopicPartition, known: DamagedReplica, done: Mended, now_ms: int
) -> None:
    known.stop()
    known.damages.pop(known.base_offset, None)
    known.failed, known.pause_ms, known.due_ms = "", 0, now_ms
    take_note_of_rebuilt(manager, topic_partition, done.rebuilt)
    if done.was_damaged:
        mark("heal: a segment is mended")
        manager.damaged.healed_total += 1
        kept = f", the bad bytes are in quarantine as loss {done.loss_id}" if done.loss_id else ""
        text = f"{known.base_offset:020d}.log: {done.fetched} batches from other replicas{kept}"
        manager.note(topic_partition, "mends its log", now_ms, reason=text)
    elif done.rebuilt:
        mark("heal: only derived files were damaged")
        begin(manager, now_ms)
    else:
        mark("heal: nothing was wrong with the segment, or it is gone")
        text = f"{known.base_offset:020d}.log is sound, or was deleted"
        manager.note(topic_partition, "finds no damage", now_ms, reason=text)
    if not known.damages:
        del manager.damaged.known[topic_partition]
    manager.waiting.wake(topic_partition)


# --- answers ------------------------------------------------------------------------------------

_OUT_OF_REACH: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Answers of a replica that has another role or epoch at the moment: it may have the offsets."""


def owner_of(manager: ReplicaManager, correlation_id: int) -> TopicPartition | None:
    """Return the damaged replica that waits for this answer."""
    for topic_partition, known in manager.damaged.known.items():
        if known.correlation_id == correlation_id:
            return topic_partition
    return None


def on_flushed(manager: ReplicaManager, topic_partition: TopicPartition, now_ms: int) -> None:
    """Continue a repair that waits for the end of a flush."""
    known = manager.damaged.known.get(topic_partition)
    if known is not None and known.steps is not None and known.wanted is None:
        known.due_ms = now_ms


def on_disconnected(manager: ReplicaManager, topic_partition: TopicPartition, now_ms: int) -> None:
    """Ask the next replica, because this one broke the connection."""
    known = manager.damaged.known[topic_partition]
    _refused(known, "it broke the connection", now_ms, is_out_of_reach=True)


def on_response(
    manager: ReplicaManager, topic_partition: TopicPartition, body: FetchResponse, now_ms: int
) -> None:
    """Take the batches of another replica, or ask the next one."""
    known = manager.damaged.known[topic_partition]
    result = body.partitions.get(topic_partition)
    if result is None or result.error is not ErrorCode.NONE:
        error = body.error if result is None else result.error
        is_out_of_reach = result is None or error in _OUT_OF_REACH
        _refused(known, f"{error.name} ({error.value})", now_ms, is_out_of_reach=is_out_of_reach)
        return
    known.correlation_id = -1
    found = Found(result.records, f"broker {known.asked}")
    _advance(manager, topic_partition, known, found, now_ms)

"""Moves of replicas between the log dirs of this node, in pieces between requests (KIP-113).

    AlterReplicaLogDirs ──▶ copy a piece ──▶ … ──▶ flush ──▶ complete? ──▶ swap
                              ▲   a few milliseconds apart     │ no
                              └────────────────────────────────┘

One log is copied at a time, the first by name; the others wait, as in Kafka. A move that cannot go on (no
room, a log dir that is offline) keeps its reason and is tried again, and others take its turn. The role of
the replica does not matter, and does not change: leader and followers go on with the same log, which from one
turn to the next lies in another directory. What the disk sees is in `logstore/log/moves.py`.

A broker's `replica.alter.log.dirs.io.max.bytes.per.second` bounds the bytes that are copied. Nothing waits
before it is exceeded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.log.mirror import SYNC_BYTES, CannotRead, Mirror
from logstore.log.moves import Move, NoSuchReplica
from logstore.log.partition_log import PartitionLog
from logstore.replication.effects import Address, Effect, answer
from logstore.replication.errors import ReplicaStorageFailed
from logstore.replication.full_dirs import ROOM_BYTES
from logstore.replication.log_dir_messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from logstore.replication.rates import LimitedRate, Windows

if TYPE_CHECKING:
    from logstore.replication.replica_manager import ReplicaManager

PIECE_BYTES: Final = 512 << 10
PAUSE_MS: Final = 4
"""Between two pieces: 128 MB a second, and most of the time is left for clients."""
RETRY_MS: Final = 100
LEAST_ROOM_BYTES: Final = 2 * ROOM_BYTES
"""A copy leaves this much of its log dir free: a full one would move leaderships away."""


@dataclass(slots=True)
class Turn:
    """When a move continues; None while it waits for a flush."""

    move: Move
    due_ms: int | None
    log: PartitionLog | None = None
    """What is flushed; its `compaction_lock` is held meanwhile."""
    begun: Lock = field(default_factory=Lock)
    """Taken by the flush that syncs the copy."""
    is_flushed: bool = False
    error: CannotRead | OSError | None = None


class LogMoves(LimitedRate):
    """The moves of a node that are under way, as its event loop sees them."""

    def __init__(self, windows: Windows) -> None:
        super().__init__(windows)
        self.copied_bytes = 0
        self.turns: dict[TopicPartition, Turn] = {}

    def record(self, size: int, now_ms: int) -> None:
        """Count bytes that were copied."""
        self.copied_bytes += size
        super().record(size, now_ms)

    def next_turn(self) -> Turn | None:
        """Return the next turn: the first that can continue, or an earlier one whose pause ends first."""
        found: Turn | None = None
        for _, turn in sorted(self.turns.items()):
            if turn.due_ms is None:
                continue
            if found is None or found.due_ms is None or turn.due_ms < found.due_ms:
                found = turn
            if not turn.move.problem:
                break
        return found

    @property
    def deadline_ms(self) -> int | None:
        """The time at which `pump` is next needed."""
        turn = self.next_turn()
        return turn.due_ms if turn is not None else None


def alter_log_dirs(
    manager: ReplicaManager, address: Address, body: AlterReplicaLogDirsRequest, now_ms: int
) -> list[Effect]:
    """Let replicas move between the log dirs of this node; each succeeds or fails alone."""
    codes = {each: _alter(manager, each, path, now_ms) for each, path in body.dirs.items()}
    manager.effects.append(answer(address, AlterReplicaLogDirsResponse(codes)))
    return manager.end_turn(now_ms)


def _alter(manager: ReplicaManager, topic_partition: TopicPartition, path: str, now_ms: int) -> ErrorCode:
    """Let a replica move to the log dir `path`, or end its move, and return the answer to that.

    LOG_DIR_NOT_FOUND (57), KAFKA_STORAGE_ERROR (56), INVALID_TOPIC_EXCEPTION (17) for a name that is too
    long; REPLICA_NOT_AVAILABLE (9) for a replica that is not here, UNKNOWN_TOPIC_OR_PARTITION (3) for one of
    a partition that the cluster does not have: if it comes, its log is made in `path`.
    """
    moves = manager.logs.moves
    before = moves.under_way.get(topic_partition)
    try:
        check_topic_name(topic_partition.topic)
        moves.check_dir(path)
        if topic_partition in manager.offline or topic_partition in manager.logs.damaged:
            raise ReplicaStorageFailed(f"{topic_partition} is offline or damaged on this broker")
        moves.begin(topic_partition, path)
    except EngineError as error:
        manager.note(topic_partition, "does not move", now_ms, reason=str(error))
        code = error.code
        if isinstance(error, NoSuchReplica) and topic_partition not in manager.metadata.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        code = ErrorCode.NONE
    move = moves.under_way.get(topic_partition)
    if before is not None and move is not before:
        manager.note(topic_partition, "ends a move", now_ms, reason=f"to {before.target.path}")
    if move is not None and move is not before:
        reason = f"from {move.source.path} to {move.target.path}"
        manager.note(topic_partition, "begins to move", now_ms, reason=reason)
    return code


def pump(manager: ReplicaManager, now_ms: int) -> None:
    """Do one piece of work for the first move that can continue."""
    turns, under_way = manager.moves.turns, manager.logs.moves.under_way
    for topic_partition, turn in list(turns.items()):
        if turn.due_ms is not None and under_way.get(topic_partition) is not turn.move:
            del turns[topic_partition]
    for topic_partition, move in under_way.items():
        if topic_partition in manager.partitions and topic_partition not in turns:
            turns[topic_partition] = Turn(move, now_ms)
    next_turn = manager.moves.next_turn()
    if next_turn is None or next_turn.due_ms is None or next_turn.due_ms > now_ms:
        return
    if next_turn.move.topic_partition in manager.partitions:
        _carefully(manager, next_turn, now_ms, _go_on)
    else:
        del turns[next_turn.move.topic_partition]


def _carefully(
    manager: ReplicaManager, turn: Turn, now_ms: int, act: Callable[[ReplicaManager, Turn, int], str]
) -> None:
    """Do something for a move. If that fails, it keeps the reason, and the log is where it was."""
    move = turn.move
    try:
        problem = act(manager, turn, now_ms)
    except (CannotRead, EngineError) as error:
        mark("log moves: one cannot go on")
        problem = str(error)
    if problem:
        turn.due_ms = now_ms + manager.config.replica_fetch_backoff_ms
        if problem != move.problem:
            manager.note(move.topic_partition, "cannot move on", now_ms, reason=problem)
    move.problem = problem


def _go_on(manager: ReplicaManager, turn: Turn, now_ms: int) -> str:
    """Copy a piece, or have the copy flushed; return what is in the way, if something is."""
    logs, moves, move = manager.logs, manager.moves, turn.move
    if logs.offline_dirs:
        return f"{', '.join(logs.offline_dirs)} is offline: nothing moves until it is repaired"
    room = logs.room(move.target.path)
    if 0 <= room.free < LEAST_ROOM_BYTES:
        return f"{move.target.path} is full: {room.free} bytes are free, a move leaves {LEAST_ROOM_BYTES}"
    if moves.is_exceeded(now_ms):
        turn.due_ms = now_ms + RETRY_MS
        return ""
    turn.due_ms = now_ms + PAUSE_MS
    try:
        mirror = move.copying()
        moves.record(mirror.step(PIECE_BYTES), now_ms)
    except OSError as error:
        raise logs.moves.failed(move, error) from error
    log = move.log.partition
    if mirror.unsynced < SYNC_BYTES and not mirror.is_close:
        return ""
    # Held until the flush is done: whoever mends a segment has one thing flushed first, too.
    if log.compaction_lock.acquire(blocking=False):
        turn.due_ms, turn.log, turn.begun, turn.is_flushed, turn.error = None, log, Lock(), False, None
        log.flushed_first = partial(_sync, turn, mirror, log)
        manager.flushes.demand(move.topic_partition, log.log_end_offset)
    return ""


def _sync(turn: Turn, mirror: Mirror, log: PartitionLog) -> None:
    """Sync the copy, in a thread that flushes the log; an error is for the next turn."""
    if not turn.begun.acquire(blocking=False):
        return  # another flush does it
    try:
        mirror.sync()
        turn.move.target.checkpoints.expect(log)
    except (CannotRead, OSError) as error:
        turn.error = error
    turn.is_flushed = True


def on_flushed(manager: ReplicaManager, topic_partition: TopicPartition, now_ms: int) -> None:
    """Swap the directories if the copy is complete; otherwise continue copying."""
    turn = manager.moves.turns.get(topic_partition)
    if turn is None or turn.due_ms is not None:
        return
    log = turn.log
    assert log is not None, "a flush of no log"
    is_current = (
        manager.logs.moves.under_way.get(topic_partition) is turn.move
        and topic_partition in manager.partitions
    )
    if is_current and not turn.is_flushed:  # it was a flush that had begun before
        manager.flushes.demand(topic_partition, log.log_end_offset)
        return
    turn.due_ms, log.flushed_first = now_ms + PAUSE_MS, None
    try:
        if is_current:
            _carefully(manager, turn, now_ms, _end)
    finally:
        log.compaction_lock.release()


def _end(manager: ReplicaManager, turn: Turn, now_ms: int) -> str:
    move, moves = turn.move, manager.logs.moves
    if isinstance(turn.error, OSError):
        move.mirror = None  # of what was not synced, nobody knows
        raise moves.failed(move, turn.error)
    if turn.error is not None:
        raise turn.error
    if moves.swap(move):
        mark("log moves: one is done")
        del manager.moves.turns[move.topic_partition]
        reason = f"from {move.source.path} to {move.target.path}"
        manager.note(move.topic_partition, "has moved", now_ms, reason=reason)
    return ""

"""Move logs between the log dirs of a node (KIP-113): copy, then swap two directories.

    a/orders-0                                 b/orders-0.<32 hex>-future     copied while the log is used
    a/orders-0/leaving           ◀── 1         the copy is complete and as durable as the log
                                               b/orders-0                ◀── 2   renamed, synced: done
    a/orders-0.<32 hex>-delete   ◀── 3         renamed, synced
                                               b/orders-0/arriving       ◀── 4   removed

The file `arriving` is in a copy from its beginning. All of 1 to 4 happens in one turn, under the log's locks,
so both directories hold the same records when there are two of one name. What a start finds, and does:

    -future beside a log          the copy goes on; one of another topic id is deleted
    -future alone                 kept until the controller says that the log is not to be here
    `leaving`, no other           the swap had not come to 2: the mark is removed, the copy goes on
    `leaving` and another         the other one is the log; this one is deleted
    `arriving` and another        unless the other is leaving: the swap was given up; this one is deleted
    `arriving`, no other          the mark is removed

While a log dir is offline, another directory may be in it. Then marks stay, and a log that is `leaving` is
not opened: its records may be older than those in the dir that is offline. If 2 fails, `leaving` is removed
before the log goes on; if that fails, too, both dirs are offline.

No move begins, and none ends, while a log dir of the node is offline.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from logstore.checkpoint.identity import read_partition_metadata
from logstore.disk.copying import is_there
from logstore.disk.errors import CorruptCheckpoint, EngineError, ErrorCode
from logstore.disk.files import Disk, publish, read_small_file, remove_if_exists
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition, future_name
from logstore.errors import DamagedLog, LogDirOffline, OutOfResources, is_refusal, refusal
from logstore.log.loading import ARRIVING, LEAVING, MARKS
from logstore.log.log import Log
from logstore.log.log_dir import Leaving, LogDir
from logstore.log.mirror import SYNC_BYTES, CannotRead, Mirror


class LogDirNotFound(EngineError):
    """A log dir is not one of the node's."""

    code = ErrorCode.LOG_DIR_NOT_FOUND


class NoSuchReplica(EngineError):
    """The node has no such log yet; a log dir that was named for it is used when the log is made."""

    code = ErrorCode.REPLICA_NOT_AVAILABLE


# --- what a start finds ---------------------------------------------------------------------------


class Found(NamedTuple):
    """A directory of one partition, in the log dir `path`, and the marks in it."""

    path: str
    is_leaving: bool
    is_arriving: bool


def the_log_among(found: Sequence[Found]) -> Found | None:
    """Return which of several directories of one partition is its log; None if undecidable. Pure."""
    staying = [each for each in found if not each.is_leaving]
    # All leave: one of them had come from another before.
    candidates = staying or [each for each in found if each.is_arriving]
    if len(candidates) > 1:
        candidates = [each for each in candidates if not each.is_arriving]
    return candidates[0] if len(candidates) == 1 else None


# --- moves ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Move:
    """A log on its way from one log dir to another; `directory` is its copy."""

    topic_partition: TopicPartition
    source: LogDir
    target: LogDir
    directory: str
    mirror: Mirror | None = None
    """None before the first step of this process."""
    problem: str = ""
    """Why it does not go on; empty if it does."""

    @property
    def log(self) -> Log:
        """The log that moves."""
        return self.source.logs[self.topic_partition]

    @property
    def lag(self) -> int:
        """The records that are missing in the copy."""
        if self.mirror is None:
            return self.log.log_end_offset - self.log.log_start_offset
        return self.log.log_end_offset - self.mirror.log_end_offset

    @property
    def size(self) -> int:
        """The bytes of batches in the copy."""
        return 0 if self.mirror is None else self.mirror.size

    def copying(self) -> Mirror:
        """Return the copy; the first call reads the progress of an earlier process. Raises `OSError`."""
        if self.mirror is None:
            self.mirror = Mirror(self.log.partition, self.directory)
        return self.mirror


class Moves:
    """The moves of one node between its log dirs."""

    def __init__(self, dirs: Sequence[LogDir], disk: Disk, random: random.Random) -> None:
        """`dirs` is the node's own list."""
        self._dirs, self._disk, self._random = dirs, disk, random
        self.under_way: dict[TopicPartition, Move] = {}
        """For reading."""
        self.preferred: dict[TopicPartition, str] = {}
        """Log dirs that were named for logs that do not exist yet."""
        self.in_doubt: set[TopicPartition] = set()
        """Logs whose newer directory may be in a log dir that is offline."""

    @property
    def _has_offline(self) -> bool:
        return any(log_dir.failure is not None for log_dir in self._dirs)

    def _online(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs if log_dir.failure is None]

    def _leaving(self, topic_partition: TopicPartition, delay_ms: int = 0) -> Leaving:
        return Leaving(topic_partition, f"{self._random.getrandbits(128):032x}", delay_ms)

    def home_of(self, topic_partition: TopicPartition) -> LogDir | None:
        """Return the log dir of a log that is open; None if there is none."""
        return next((each for each in self._online() if topic_partition in each.logs), None)

    # --- at the start -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Complete or undo the last process's swaps. Call this once all dirs are open, before any use."""
        homes: dict[TopicPartition, list[LogDir]] = {}
        for log_dir in self._online():
            for topic_partition in (*log_dir.logs, *log_dir.damaged):
                homes.setdefault(topic_partition, []).append(log_dir)
        for topic_partition, held_by in sorted(homes.items()):
            found = [_found(self._disk, home, topic_partition) for home in held_by]
            if len(found) > 1 or found[0].is_leaving or found[0].is_arriving:
                self._settle(topic_partition, held_by, found)
        for log_dir in self._online():
            for topic_partition, name in list(log_dir.futures.items()):
                self._go_on(topic_partition, log_dir, f"{log_dir.path}/{name}")

    def _settle(self, topic_partition: TopicPartition, homes: list[LogDir], found: list[Found]) -> None:
        log = the_log_among(found) if len(found) > 1 else found[0]
        if log is None:
            mark("moves: directories of one name, and nothing tells which is the log")
            places = " and ".join(home.directory_of(topic_partition) for home in homes)
            text = (
                f"{topic_partition} is in {places}, and nothing tells which is newer: move one of them away"
            )
            for home in homes[1:]:
                _let_go(home, topic_partition)
            self._doubt(topic_partition, homes[0], text)
            return
        (home,) = (home for home, each in zip(homes, found, strict=True) if each is log)
        # The older one may have what is damaged in the newer.
        fate = "stray" if topic_partition in home.damaged else "delete"
        for other in homes:
            if other is not home:
                mark("moves: the directory that a log has left goes")
                try:
                    other.rename_away([self._leaving(topic_partition)], fate)
                except LogDirOffline:
                    pass  # nothing in it is used
                except OutOfResources:
                    _let_go(other, topic_partition)  # the next start tries again
        if not self._has_offline:
            mark("moves: the marks of an interrupted swap go")
            home.guarded(lambda: self._unmark(home.directory_of(topic_partition)))
        elif log.is_leaving:
            mark("moves: a log whose newer directory may be in a dir that is offline")
            paths = ", ".join(each.path for each in self._dirs if each.failure is not None)
            text = (
                f"{topic_partition} was moving out of {home.path} when the broker stopped. A newer copy may "
                f"be in {paths}, which is offline: repair it and restart the broker"
            )
            self._doubt(topic_partition, home, text)

    def _doubt(self, topic_partition: TopicPartition, home: LogDir, text: str) -> None:
        _let_go(home, topic_partition)
        home.known.add(topic_partition)
        home.damaged[topic_partition] = DamagedLog(text)
        self.in_doubt.add(topic_partition)

    def _unmark(self, directory: str) -> None:
        removed = [remove_if_exists(self._disk, f"{directory}/{name}") for name in (LEAVING, ARRIVING)]
        if any(removed):
            self._disk.sync_dir(directory)

    def _go_on(self, topic_partition: TopicPartition, target: LogDir, directory: str) -> None:
        source = self.home_of(topic_partition)
        if source is None:
            return  # of a log that is damaged or in a dir that is offline, or what another program has left
        is_useless = source is target or topic_partition in self.under_way
        if is_useless or self._is_of_another_topic(source.logs[topic_partition], target, directory):
            self._retire_copy(topic_partition, target)
            return
        mark("moves: one goes on after a restart")
        self.under_way[topic_partition] = Move(topic_partition, source, target, directory)

    def _is_of_another_topic(self, log: Log, target: LogDir, directory: str) -> bool:
        """Return whether the topic was deleted, and created again, while the copy's log dir was offline."""
        try:
            topic_id = read_partition_metadata(self._disk, directory)
        except CorruptCheckpoint:
            return False
        except OSError as error:
            target.take_offline(error)
            return False
        return None not in (topic_id, log.partition.topic_id) and topic_id != log.partition.topic_id

    def resume(self, topic_partition: TopicPartition) -> None:
        """Continue the move of a log that could not be opened at the start, and is open now."""
        for log_dir in self._online():
            if topic_partition in log_dir.futures:
                self._go_on(topic_partition, log_dir, f"{log_dir.path}/{log_dir.futures[topic_partition]}")

    def forget_copies(self, topic_partition: TopicPartition) -> None:
        """Remove the copies of a log that is deleted or newly created: none of them can become the log."""
        for log_dir in self._online():
            if topic_partition in log_dir.futures and topic_partition not in self.under_way:
                self._retire_copy(topic_partition, log_dir)

    def _retire_copy(self, topic_partition: TopicPartition, target: LogDir) -> None:
        mark("moves: a copy without a use goes")
        directory = f"{target.path}/{target.futures.pop(topic_partition)}"
        if topic_partition not in target.known:
            _forget_entries(topic_partition, target)
        with suppress(LogDirOffline):
            target.retire(directory, self._leaving(topic_partition))

    def forget_all_but(self, assigned: Collection[TopicPartition]) -> None:
        """Remove copies that a former process left of logs that this node is not to have.

        Their topics were deleted while the copy's log dir was offline.
        """
        for log_dir in self._online():
            for topic_partition in sorted(log_dir.futures.keys() - self.under_way.keys() - set(assigned)):
                self._retire_copy(topic_partition, log_dir)

    def check_doubt(self, topic_partition: TopicPartition) -> None:
        """Raise `DamagedLog` if a newer directory of the log may be elsewhere."""
        if topic_partition in self.in_doubt:
            (error,) = (
                each.damaged[topic_partition] for each in self._dirs if topic_partition in each.damaged
            )
            raise DamagedLog(str(error))

    def decide_for(self, topic_partition: TopicPartition, home: LogDir) -> None:
        """Use the log in `home`: other replicas have any records that it lacks."""
        if topic_partition in self.in_doubt:
            self.in_doubt.remove(topic_partition)
            home.guarded(lambda: self._unmark(home.directory_of(topic_partition)))

    # --- beginning and ending ---------------------------------------------------------------------

    def begin(self, topic_partition: TopicPartition, path: str) -> bool:
        """Start moving a log to the log dir `path`; return whether anything changed.

        A move to another dir that is under way ends; one to the dir in which the log is just ends that.
        Raises `LogDirNotFound`, `InvalidTopic`, `LogDirOffline`, `DiskFull`, and `NoSuchReplica`: then the
        log will be made there.
        """
        name = future_name(topic_partition, f"{self._random.getrandbits(128):032x}")
        target = self.check_dir(path)
        source = self.home_of(topic_partition)
        move = self.under_way.get(topic_partition)
        if move is not None and move.target is target:
            return False
        has_changed = self.cancel(topic_partition)
        if source is None:
            self.preferred[topic_partition] = target.path
            raise NoSuchReplica(f"{topic_partition} is not on this broker; it will be made in {path}")
        if source is target:
            return has_changed
        if self._has_offline:
            raise LogDirOffline(
                f"{topic_partition} stays in {source.path}: a log dir is offline; repair it first"
            )
        target.make_future(topic_partition, name, source.logs[topic_partition].partition.topic_id)
        move = Move(topic_partition, source, target, f"{target.path}/{name}")
        self.under_way[topic_partition] = move
        return True

    def check_dir(self, path: str) -> LogDir:
        """Return the log dir `path`. Raises `LogDirNotFound`, and `LogDirOffline` if it has failed."""
        wanted = posixpath.abspath(path)
        found = next((each for each in self._dirs if posixpath.abspath(each.path) == wanted), None)
        if found is None:
            known = ", ".join(each.path for each in self._dirs)
            raise LogDirNotFound(f"{path} is not a log dir of this broker, which has {known}")
        if found.failure is not None:
            raise LogDirOffline(f"{path} is offline: {found.failure}")
        return found

    def cancel(self, topic_partition: TopicPartition) -> bool:
        """End a move, if there is one, with the log where it is; return whether there was one.

        Raises `LogDirOffline`.
        """
        move = self.under_way.get(topic_partition)
        if move is None:
            return False
        mark("moves: one is ended before its copy is complete")
        if move.mirror is not None:
            move.mirror.end()
        if move.target.failure is None:
            _forget_entries(topic_partition, move.target)
            move.target.retire(move.directory, self._leaving(topic_partition))
        move.target.futures.pop(topic_partition, None)
        del self.under_way[topic_partition]
        return True

    def failed(self, move: Move, error: OSError) -> EngineError:
        """Return the message for a failed write to the copy; a failed disk ends the move."""
        if is_refusal(error):
            outcome = f"{move.topic_partition} stays in {move.source.path}"
            return refusal(error, move.target.path, outcome, "wait")
        mark("moves: the disk of a copy fails")
        self.under_way.pop(move.topic_partition, None)
        move.target.take_offline(error)
        return LogDirOffline(
            f"{move.target.path} went offline while {move.topic_partition} was copied to it: {error}. "
            f"The log stays in {move.source.path}"
        )

    # --- the swap ---------------------------------------------------------------------------------

    def swap(self, move: Move) -> bool:
        """Let the copy become the log; False if it is not complete, or while a log dir is offline.

        The caller holds the log's `compaction_lock`. Raises `CannotRead`, `DiskFull` and `LogDirOffline`; the
        log is where it was then.
        """
        log, mirror = move.log.partition, move.copying()
        with log.group_commit.exclusive(), log.lock:
            log.check_writable()
            try:
                if self._has_offline or not mirror.complete():
                    return False
                place = move.target.directory_of(move.topic_partition)
                if is_there(self._disk, place):
                    raise CannotRead(f"{place} exists, and is not of this broker: move it away")
                move.target.checkpoints.expect(log)
            except OSError as error:
                raise self.failed(move, error) from error
            self._announce(move)
            self._rename(move)
            mirror.relocate(place, move.target.checkpoints)
            _hand_over(move)
            move.target.futures.pop(move.topic_partition, None)
            del self.under_way[move.topic_partition]
            if move.target.failure is None:  # else a start may have to use the older directory
                self._clear_up(move, log.config.file_delete_delay_ms)
        return True

    def _announce(self, move: Move) -> None:
        directory = move.source.directory_of(move.topic_partition)
        try:
            publish(self._disk, directory, LEAVING, f"{move.target.path}\n".encode())
        except OSError as error:
            if is_refusal(error):
                outcome = f"{move.topic_partition} stays there"
                raise refusal(error, move.source.path, outcome, "wait") from error
            move.source.take_offline(error)
            raise LogDirOffline(f"{move.source.path} went offline: {error}") from error

    def _rename(self, move: Move) -> None:
        target, directory = move.target, move.source.directory_of(move.topic_partition)
        try:
            self._disk.rename(move.directory, target.directory_of(move.topic_partition))
            self._disk.sync_dir(target.path)
            if target.failure is not None:  # a thread noticed the failure through another log
                raise target.failure
        except OSError as error:
            mark("moves: the swap fails, and the log stays")
            self.under_way.pop(move.topic_partition, None)
            target.take_offline(error)
            try:
                # Durably, before the log goes on: the other directory may have got its name.
                self._disk.remove(f"{directory}/{LEAVING}")
                self._disk.sync_dir(directory)
            except OSError as another:
                move.source.take_offline(another)
            raise LogDirOffline(
                f"{target.path} went offline when {move.topic_partition} was to be renamed in it: {error}"
            ) from error

    def _clear_up(self, move: Move, delay_ms: int) -> None:
        topic_partition, target = move.topic_partition, move.target
        try:
            leaving = self._leaving(topic_partition, delay_ms)
            move.source.retire(move.source.directory_of(topic_partition), leaving)
        except LogDirOffline:
            mark("moves: the disk that a log has left fails")
            return  # `arriving` tells the next start which directory is the log
        arriving = f"{target.directory_of(topic_partition)}/{ARRIVING}"
        target.guarded(lambda: self._disk.remove(arriving))

    def carry_out(self, topic_partition: TopicPartition) -> None:
        """Carry out a whole move at once, for programs without an event loop. Raises what `swap` raises."""
        move = self.under_way[topic_partition]
        with move.log.partition.compaction_lock:
            is_done = False
            while not is_done:
                try:
                    while move.copying().step(SYNC_BYTES):
                        pass
                    move.copying().sync()
                except OSError as error:
                    raise self.failed(move, error) from error
                is_done = self.swap(move)


def _found(disk: Disk, home: LogDir, topic_partition: TopicPartition) -> Found:
    log = home.logs.get(topic_partition)
    if log is not None:
        marks = log.partition.report.marks
    else:
        directory, marks = home.directory_of(topic_partition), frozenset()
        try:
            marks = frozenset(
                name for name in MARKS if read_small_file(disk, f"{directory}/{name}") is not None
            )
        except OSError as error:
            home.take_offline(error)
    return Found(home.path, LEAVING in marks, ARRIVING in marks)


def _hand_over(move: Move) -> None:
    """Let the target have the log, whose files are there by now."""
    source, target, topic_partition = move.source, move.target, move.topic_partition
    log = target.logs[topic_partition] = source.logs.pop(topic_partition)
    source.known.discard(topic_partition)
    target.known.add(topic_partition)
    if target.failure is not None:  # a thread found that a moment ago, and knew nothing of this log
        log.partition.take_offline(target.failure)
    # Another move may bring it back; until then the entry in the file is a bound that is too low.
    source.checkpoints.high_watermarks.offsets.pop(topic_partition, None)
    target.heed(log.partition)


def _forget_entries(topic_partition: TopicPartition, target: LogDir) -> None:
    """Remove a copy's checkpoint entries before the copy: a start would report a missing log."""
    target.guarded(lambda: target.checkpoints.forget([topic_partition]))


def _let_go(home: LogDir, topic_partition: TopicPartition) -> None:
    """Leave a directory as it is, unused."""
    log = home.logs.pop(topic_partition, None)
    if log is not None:
        log.partition.abandon()
    home.damaged.pop(topic_partition, None)
    home.known.discard(topic_partition)

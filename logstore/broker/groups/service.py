"""Runs the group coordinator: feeds it elections, time and outcomes of appends, and carries out its effects.

    a turn of the engine ─▶ after_change ─▶ leadership gained: read the log on a thread, piece by piece
                                            leadership lost: unload   topic deleted: remove its offsets
    requests ─▶ ask ─┐
    a timer ─────────┴─▶ the engine's queue ─▶ Coordinator ─▶ Answer, Append (acks=all)

Leadership is read from the engine after each turn that changed roles, so a notice of it is never stale
here. A log is read once its high watermark has reached the end that the log had when this node became
leader; everything after that is written by the coordinator itself. The partition count is read from the
metadata store once for each topic id: metadata may announce only some partitions at first, and a group
would be looked up in the wrong one.

Damage in the log is reported to the engine, which has another replica lead or repairs it from there. Reading
goes on every second until either has happened.

A node that stalled answers no request until the store confirms its session: requests, timers and the end of
the session share the engine's queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from logstore.broker.groups.answers import Answer
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.coordinator import Coordinator
from logstore.broker.groups.loading import Loader
from logstore.broker.groups.requests import GroupRequest, GroupResponse, OffsetCommitRequest
from logstore.broker.groups.served import OFFSETS_TOPIC, Append, Effect
from logstore.broker.identity import AskStore
from logstore.broker.runtime import Asked, Runtime
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DamagedLog, LogDirOffline, OutOfResources, is_refusal
from logstore.log.log import FetchIsolation
from logstore.log.partition_log import PartitionLog
from logstore.log.read import read_checked
from logstore.loggers import logger_of
from logstore.replication.effects import DamageFound
from logstore.replication.messages import ProduceRequest, ProduceResponse, ResponseBody
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Get
from logstore.replication.partition import ACKS_ALL

_STORE_AGAIN_S: Final = 0.1
_READ_AGAIN_S: Final = 1.0
_MOST_GONE: Final = 20_000
"""Deleted partitions that are remembered for the next load."""

_log = logger_of(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """The token of a request: the callback for its answer."""

    answered: Callable[[GroupResponse], None]


@dataclass(slots=True, eq=False)
class _Load:
    """The load of one partition: [offset, end_offset) of its log is still to be read."""

    partition: int
    epoch: int
    log: PartitionLog
    loader: Loader
    offset: int
    end_offset: int
    deletions: int
    """How many deletions were known when it began."""
    failed: str = ""
    """Why the last read failed that did; its message is not repeated."""
    is_paused: bool = False
    """Whether it failed just now, and is to be tried again."""

    @property
    def is_due(self) -> bool:
        return not self.is_paused and self.log.high_watermark >= self.end_offset

    @property
    def is_over(self) -> bool:
        return self.offset >= self.end_offset

    def read_piece(self, max_bytes: int) -> None:
        """Read and feed one piece, on a thread. Raises what the log and `Loader.feed` raise."""
        offset = max(self.offset, self.log.log_start_offset)
        if offset < self.end_offset:
            found = read_checked(self.log, offset, max_bytes, isolation=FetchIsolation.HIGH_WATERMARK)
            if self.log.is_offline:
                raise LogDirOffline("the log went offline while it was read")  # it shows less than it has
            self.loader.feed(found.records)
            offset = found.next_offset if found.records else self.end_offset
        self.offset = offset


class GroupService:
    """The group service of one broker. All methods belong to the event loop's thread."""

    def __init__(self, runtime: Runtime, config: GroupConfig, *, ask_store: AskStore, random: Random) -> None:
        """`runtime` must call `after_change`. Raises as `Coordinator`."""
        self._runtime, self._config = runtime, config
        self._ask_store, self._random = ask_store, random
        self._replicas = runtime.node.replicas
        self._loop = asyncio.get_running_loop()
        self.coordinator = self._new_coordinator()
        self._topic_id: str | None = None
        """The id of the topic that `coordinator` serves."""
        self._partitions: tuple[TopicPartition, ...] = ()
        """All partitions of the topic; empty until their number is known."""
        self._led: dict[int, int] = {}
        """The leader epoch that the coordinator knows, by partition."""
        self._loads: dict[int, _Load] = {}
        self._reading: _Load | None = None
        self._role_changes = 0
        self._deleted = self._replicas.metadata.deleted
        self._deletions = 0
        self._gone: dict[TopicPartition, int] = {}
        """Deleted partitions, the latest last, with the number of their deletion."""
        self._effects: deque[Effect] = deque()
        self._is_carrying_out = False
        self._learning: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_closed = False

    def _new_coordinator(self) -> Coordinator:
        return Coordinator(self._config, rng=self._random, now_ms=self._runtime.now_ms())

    def close(self) -> None:
        """Stop. Waiting requests were answered when the engine stopped, or their connections are closed."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._learning is not None:
            self._learning.cancel()

    # --- requests -----------------------------------------------------------------------------

    def ask(
        self,
        request: GroupRequest,
        answered: Callable[[GroupResponse], None],
        refused: Callable[[str], None],
    ) -> None:
        """Hand a request to the coordinator; exactly one of the callbacks is called, now or later.

        A commit is served without the partitions that do not exist, and its answer lacks them.
        """

        def take() -> None:
            waiting = _Waiting(answered)
            try:
                effects = self.coordinator.handle(self._of_known(request), waiting, self._runtime.now_ms())
            except Exception:
                _log.exception("the group coordinator failed over %s", request)
                refused("the group coordinator failed")
            else:
                self._carry_out(effects)

        self._runtime.in_line(take, refused)

    def _of_known(self, request: GroupRequest) -> GroupRequest:
        """Leave unknown partitions out of a commit: it may have waited behind the deletion of its topic."""
        if not isinstance(request, OffsetCommitRequest):
            return request
        known = self._replicas.metadata.partitions
        return replace(
            request,
            partitions={each: request.partitions[each] for each in request.partitions if each in known},
        )

    def undelivered(self, group_id: str, member_id: str) -> None:
        """Report that a join was answered to a closed connection. Called while effects are carried out."""
        self.coordinator.undelivered(group_id, member_id, self._runtime.now_ms())

    def home_of(self, group_id: str) -> TopicPartition | None:
        """Return the partition whose leader coordinates the group; None while it is unknown."""
        if not self._partitions or self._partitions[0] not in self._replicas.metadata.partitions:
            return None
        return self._partitions[self.coordinator.partition_of(group_id)]

    # --- effects ------------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> None:
        """Carry out effects in order. An answered client may send its next request from the callback."""
        self._effects.extend(effects)
        if self._is_carrying_out:
            return
        self._is_carrying_out = True
        try:
            while self._effects:
                effect = self._effects.popleft()
                if isinstance(effect, Answer):
                    assert isinstance(effect.token, _Waiting), "tokens are given out here"
                    effect.token.answered(effect.response)
                else:
                    self._append(effect)
        finally:
            self._is_carrying_out = False
        self._set_timer()

    def _append(self, append: Append) -> None:
        topic_partition = self._partitions[append.partition]
        coordinator = self.coordinator

        def leads() -> bool:
            replica = self._replicas.partitions.get(topic_partition)
            return replica is not None and replica.is_leader and replica.leader_epoch == append.leader_epoch

        def ended(error: ErrorCode, base_offset: int = -1) -> None:
            now_ms = self._runtime.now_ms()
            self._carry_out(coordinator.appended(append.token, error, base_offset, now_ms))

        def answered(answer: ResponseBody | None) -> None:
            assert isinstance(answer, ProduceResponse), "acks=all has an answer"
            result = answer.partitions[topic_partition]
            ended(result.error, result.base_offset)

        def refused(reason: str) -> None:
            # Not appended: this node is stopping, or no longer leads in this epoch.
            ended(ErrorCode.NOT_LEADER_OR_FOLLOWER)

        timeout_ms = self._config.offsets_commit_timeout_ms
        request = ProduceRequest({topic_partition: append.batch}, ACKS_ALL, timeout_ms)
        self._runtime.ask(request, Asked(answered, refused, leads))

    # --- time ---------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        deadline_ms = self.coordinator.deadline_ms
        if self._is_closed or (self._timer is not None and self._timer_ms <= deadline_ms):
            return  # too early is harmless
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(deadline_ms - self._runtime.now_ms(), 0) / 1000 + 0.001
        self._timer, self._timer_ms = self._loop.call_later(delay_s, self._time_is_up), deadline_ms

    def _time_is_up(self) -> None:
        self._timer = None
        self._runtime.in_line(self._tick, lambda reason: None)

    def _tick(self) -> None:
        self._carry_out(self.coordinator.tick(self._runtime.now_ms()))

    # --- elections ----------------------------------------------------------------------------

    def after_change(self) -> None:
        """Follow the engine: changed roles, deleted topics, logs that can be read further."""
        metadata = self._replicas.metadata
        effects: list[Effect] = []
        if (topic_id := metadata.topic_ids.get(OFFSETS_TOPIC)) != self._topic_id:
            effects += self._meet(topic_id)
        if (changes := self._replicas.counters.role_changes) != self._role_changes:
            self._role_changes = changes
            effects += self._look()
        if metadata.deleted is not self._deleted:
            self._note_deleted(metadata.deleted)
            effects += self.coordinator.topic_partitions_deleted(self._deleted, self._runtime.now_ms())
        if self._loads:
            self._read_on()
        if effects:
            self._carry_out(effects)

    def _note_deleted(self, deleted: tuple[TopicPartition, ...]) -> None:
        self._deleted, self._deletions = deleted, self._deletions + 1
        for each in deleted:
            self._gone.pop(each, None)
            self._gone[each] = self._deletions
        while len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def _gone_since(self, load: _Load) -> list[TopicPartition]:
        """Return the partitions whose offsets, as loaded, are of a topic that is no more.

        They were deleted during the load, or before it and are not there again: the coordinator of that time
        may have failed before it wrote the tombstones.
        """
        known = self._replicas.metadata.partitions
        return [each for each, number in self._gone.items() if number > load.deletions or each not in known]

    def _meet(self, topic_id: str | None) -> list[Effect]:
        """Start over: the topic was created anew, or deleted."""
        effects = [effect for number in list(self._led) for effect in self._unload(number)]
        self._topic_id, self._partitions = topic_id, ()
        self.coordinator = self._new_coordinator()
        if self._learning is not None:
            self._learning.cancel()
        if topic_id is not None:
            self._learning = self._loop.create_task(self._learn(topic_id))
        return effects

    async def _learn(self, topic_id: str) -> None:
        """Ask the store for the partition count of the topic; it never grows.

        Until it is known: a server of ZooKeeper may not have heard yet of the topic that metadata announces.
        """
        while True:
            try:
                found = await self._ask_store(Get(layout.topic_path(OFFSETS_TOPIC)))
                if found.stat is not None:
                    topic = layout.parse_topic(found.data)
                    if topic.topic_id == topic_id:
                        self._begin(len(topic.partitions))
                        return
            except EngineError as error:
                _log.warning("cannot read the partition count of %s: %s", OFFSETS_TOPIC, error)
            await asyncio.sleep(_STORE_AGAIN_S)

    def _begin(self, partition_count: int) -> None:
        self.coordinator.partition_count = partition_count
        self._partitions = tuple(TopicPartition(OFFSETS_TOPIC, number) for number in range(partition_count))
        self._carry_out(self._look())
        self._read_on()

    def _look(self) -> list[Effect]:
        """Load the partitions that this node leads now, unload those that it no longer leads."""
        effects: list[Effect] = []
        for number, topic_partition in enumerate(self._partitions):
            replica = self._replicas.partitions.get(topic_partition)
            if replica is None or not replica.is_leader:
                if number in self._led:
                    effects += self._unload(number)
                continue
            epoch, log = replica.leader_epoch, replica.log
            if self._led.get(number) == epoch:
                continue
            self._led[number] = epoch
            loader = self.coordinator.begin_load(number, epoch)
            if loader is not None:
                self._loads[number] = _Load(
                    number, epoch, log, loader, log.log_start_offset, log.log_end_offset, self._deletions
                )
                self._runtime.after_turn[self._read_on] = None
        return effects

    def load_again(self, number: int) -> None:
        """Load a partition from its log again, if this node leads it.

        A marker was written there, which ends offset commits of a transaction; it counts once it is
        committed, as all that is loaded.
        """

        def start() -> None:
            if number in self._led:
                self._carry_out([*self._unload(number), *self._look()])
                self._read_on()

        self._runtime.in_line(start, lambda reason: None)

    def _unload(self, number: int) -> list[Effect]:
        del self._led[number]
        self._loads.pop(number, None)
        return self.coordinator.unload(number, None, self._runtime.now_ms())

    def _read_on(self) -> None:
        """Read the next piece of a log, on a thread; one piece at a time.

        Each turn calls it as long as a load waits for the high watermark of its log.
        """
        if not self._loads:
            self._runtime.after_turn.pop(self._read_on, None)
        load = next((each for each in self._loads.values() if each.is_due), None)
        if load is None or self._reading is not None:
            return
        self._reading = load
        reading = self._runtime.in_thread(partial(load.read_piece, self._config.offsets_load_buffer_size))
        reading.add_done_callback(partial(self._has_read, load))

    def _has_read(self, load: _Load, reading: asyncio.Future[None]) -> None:
        self._reading = None
        if self._is_closed or reading.cancelled():
            return
        if self._loads.get(load.partition) is not load:
            pass  # unloaded, or loading in a later epoch
        elif (error := reading.exception()) is not None:
            self._has_failed(load, error)
        elif load.is_over:
            del self._loads[load.partition]
            now_ms = self._runtime.now_ms()
            effects = self.coordinator.end_load(load.partition, load.epoch, now_ms)
            if misplaced := self.coordinator.misplaced:
                _log.warning(
                    "%s holds %d groups that belong to other partitions, %s for one; offsets committed there "
                    "do not count: earlier versions placed groups otherwise, see docs/consumer-groups.md",
                    self._partitions[load.partition],
                    len(misplaced),
                    misplaced[0],
                )
            self._carry_out(
                [*effects, *self.coordinator.topic_partitions_deleted(self._gone_since(load), now_ms)]
            )
        self._read_on()

    def _has_failed(self, load: _Load, error: BaseException) -> None:
        """Read on after a pause if that may help: damage is repaired, and a shortage passes."""
        topic_partition = self._partitions[load.partition]
        if isinstance(error, DamagedLog):
            self._runtime.deliver(DamageFound(topic_partition, error.damages, ()))
        elif not isinstance(error, OutOfResources) and not (isinstance(error, OSError) and is_refusal(error)):
            _log.error(
                "cannot load %s; its groups are not served until the next election",
                topic_partition,
                exc_info=error,
            )
            del self._loads[load.partition]
            return
        if load.failed != str(error):
            _log.warning("cannot load %s yet, and tries again: %s", topic_partition, error)
        load.failed, load.is_paused = str(error), True
        self._loop.call_later(_READ_AGAIN_S, self._read_again, load)

    def _read_again(self, load: _Load) -> None:
        load.is_paused = False
        if not self._is_closed:
            self._read_on()

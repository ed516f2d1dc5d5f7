"""All partitions that a node follows: its fetchers, and the effect of their answers on the logs.

`fetcher.py` decides the requests. This module applies an answer to the partition's log (`following.py`) and
puts the partition into its next state. A partition has exactly one fetcher, or has failed, or has no leader.

A failed partition (fenced, or with a failed disk) is not fetched until the controller assigns another role.
Watch `failed`: nothing else repairs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import CorruptBatch, DiskFull, InvalidRecord, LogDirOffline, OutOfResources
from logstore.replication import following
from logstore.replication.config import NodeConfig
from logstore.replication.effects import Effect, Send
from logstore.replication.errors import InvalidRequest
from logstore.replication.fetcher import (
    Fetcher,
    FetchState,
    FollowerRequest,
    InFlight,
    LogFacts,
    Phase,
    fetcher_number,
)
from logstore.replication.messages import (
    FIRST_SESSION_EPOCH,
    NO_EPOCH,
    NO_SESSION,
    EpochAnswer,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from logstore.replication.partition import Partition
from logstore.replication.throttle import follower_throttle, replication_windows
from logstore.segment.epochs import EpochEndOffset

FollowerResponse = FetchResponse | OffsetForLeaderEpochResponse | ListOffsetsResponse
_RESPONSES: dict[type[FollowerRequest], type[FollowerResponse]] = {
    FetchRequest: FetchResponse,
    OffsetForLeaderEpochRequest: OffsetForLeaderEpochResponse,
    ListOffsetsRequest: ListOffsetsResponse,
}


class Followers:
    """All partitions that this node follows.

    `on_storage_failure` is called when a partition's log fails, and removes it here; `on_disk_full` when an
    append finds no room; `on_stuck` when a leader sends damaged batches, or has none to send, once until they
    are sound; `on_progress` when a log or its bounds may have moved. `may_fetch` holds a fetch back until the
    log is flushed up to the fetch offset (`synced` durability), and requests that flush.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        next_id: Callable[[], int],
        may_fetch: Callable[[Partition, int], bool],
        on_storage_failure: Callable[[TopicPartition, Exception], None],
        on_disk_full: Callable[[TopicPartition], None],
        on_stuck: Callable[[TopicPartition, str], None],
        on_progress: Callable[[TopicPartition], None],
    ) -> None:
        self._config = config
        self._next_id = next_id
        self._may_fetch = may_fetch
        self._on_storage_failure = on_storage_failure
        self._on_disk_full = on_disk_full
        self._on_stuck = on_stuck
        self._on_progress = on_progress
        self._count = config.num_replica_fetchers
        self.fetchers: dict[tuple[int, int], Fetcher] = {}
        """By leader and number; without any, there is nothing to `pump`. For reading."""
        self._partitions: dict[TopicPartition, tuple[Partition, Fetcher]] = {}
        self.throttle = follower_throttle(replication_windows(config), config.node_id)
        self._behind: dict[TopicPartition, None] = {}
        """Throttled partitions that lag behind their leader's high watermark."""
        self.failed: dict[TopicPartition, str] = {}
        self.stuck: dict[TopicPartition, str] = {}
        """Partitions whose leader has no sound batch at our log end, and why; they are asked for again."""

    @property
    def followed(self) -> Mapping[TopicPartition, FetchState]:
        """The fetch state of each partition."""
        return {
            topic_partition: fetcher.states[topic_partition]
            for topic_partition, (_, fetcher) in self._partitions.items()
        }

    def add(self, partition: Partition) -> None:
        """Follow the partition's leader from the end of the local log on.

        Call it after `remove`: the end is read here, and no append of an older epoch can follow. The log is
        truncated to its high watermark only if it has no epochs at all.
        """
        topic_partition = partition.topic_partition
        assert topic_partition not in self._partitions, "remove it first"
        fetcher = self._fetcher_for(partition.leader_id, topic_partition)
        log = partition.log
        if log.latest_epoch == NO_EPOCH and log.log_end_offset > log.high_watermark:
            why = "the epochs of the records past the high watermark are unknown"
            following.truncate_to(partition, log.high_watermark, why=why)
        phase = (
            Phase.FETCHING
            if self._config.truncate_on_fetch or log.latest_epoch == NO_EPOCH
            else Phase.TRUNCATING
        )
        state = FetchState(partition.leader_epoch, log.log_end_offset, log.latest_epoch, phase)
        self._partitions[topic_partition] = partition, fetcher
        fetcher.put(topic_partition, state)

    def _fetcher_for(self, leader_id: int, topic_partition: TopicPartition) -> Fetcher:
        key = leader_id, fetcher_number(topic_partition, self._count)
        if key not in self.fetchers:
            self.fetchers[key] = Fetcher(leader_id, self._config)
        return self.fetchers[key]

    def resize(self, count: int) -> None:
        """Use `count` fetchers for each leader. Partitions keep their state, failed ones stay failed.

        Answers to requests in flight are ignored, and the requests repeated at the next turn.
        """
        if count == self._count:
            return
        self._count = count
        moved, self.fetchers = self._partitions, {}
        self._partitions = {}
        for topic_partition, (partition, former) in moved.items():
            fetcher = self._fetcher_for(former.leader_id, topic_partition)
            fetcher.put(topic_partition, former.states[topic_partition])
            self._partitions[topic_partition] = partition, fetcher

    def remove(self, topic_partition: TopicPartition) -> None:
        """Stop following; a late answer is ignored. Also clears a failure."""
        self.failed.pop(topic_partition, None)
        self.stuck.pop(topic_partition, None)
        self._behind.pop(topic_partition, None)
        entry = self._partitions.pop(topic_partition, None)
        if entry is not None:
            entry[1].remove(topic_partition)

    def drop_idle(self) -> None:
        """Drop fetchers without partitions. Call it at the end of a change of roles, not earlier."""
        self.fetchers = {key: fetcher for key, fetcher in self.fetchers.items() if fetcher.states}

    # --- requests -----------------------------------------------------------------------------

    def pump(self, broker_epoch: int, now_ms: int) -> list[Effect]:
        """Return every request that is due."""
        effects: list[Effect] = []
        held = self._held_back(now_ms) if self._behind else ()
        for fetcher in self.fetchers.values():
            fetcher.expire(now_ms)
            for topic_partition in held:
                fetcher.hold_back(topic_partition, now_ms)
            in_flight = fetcher.next_request(
                self._next_id, broker_epoch, now_ms, may_fetch=self._is_flushed, describe=self._describe
            )
            if in_flight is not None:
                effects.append(Send(fetcher.leader_id, in_flight.correlation_id, in_flight.body))
        return effects

    def _held_back(self, now_ms: int) -> list[TopicPartition]:
        """Return the partitions that must not be fetched now because of the throttle."""
        if self.throttle.bound is None:
            # Nothing is noted without a bound, and they catch up before the next one.
            self._behind.clear()
            return []
        self._behind = {
            known: None for known in self._behind if self.throttle.lists(self._partitions[known][0])
        }
        return list(self._behind) if self.throttle.is_exceeded(now_ms) else []

    def _note(self, partition: Partition, result: FetchResult, now_ms: int) -> None:
        """Count what a throttled partition got, and note whether it lags still."""
        if not self.throttle.lists(partition):
            return
        self.throttle.record(len(result.records), now_ms)
        if result.high_watermark > partition.log.log_end_offset:
            self._behind[partition.topic_partition] = None
        else:
            self._behind.pop(partition.topic_partition, None)

    def _is_flushed(self, topic_partition: TopicPartition, state: FetchState) -> bool:
        return self._may_fetch(self._partitions[topic_partition][0], state.fetch_offset)

    def _describe(self, topic_partition: TopicPartition) -> LogFacts:
        partition = self._partitions[topic_partition][0]
        log = partition.log
        return LogFacts(log.log_start_offset, log.topic_id or "", partition.is_synced)

    def touch(self, topic_partition: TopicPartition) -> None:
        """Tell the leader, with the next fetch, of a new log start offset, topic id or durability level."""
        entry = self._partitions.get(topic_partition)
        if entry is not None:
            entry[1].touch(topic_partition)

    @property
    def deadline_ms(self) -> int | None:
        """The time at which a fetcher next needs `pump`; None if no time is set."""
        deadlines = (fetcher.deadline_ms for fetcher in self.fetchers.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def _find(self, correlation_id: int) -> tuple[Fetcher, InFlight] | None:
        for fetcher in self.fetchers.values():
            if fetcher.in_flight is not None and fetcher.in_flight.correlation_id == correlation_id:
                return fetcher, fetcher.in_flight
        return None

    # --- answers ------------------------------------------------------------------------------

    def on_disconnected(self, correlation_id: int, now_ms: int) -> bool:
        """Pause all partitions of a request without an answer. False if another component sent it."""
        found = self._find(correlation_id)
        if found is None:
            return False
        mark("follower: the connection to its leader broke")
        fetcher, in_flight = found
        fetcher.give_up(in_flight, now_ms)
        return True

    def on_response(self, correlation_id: int, body: FollowerResponse, now_ms: int) -> None:
        """Take an answer; late answers are dropped.

        Raises `InvalidRequest` if it names partitions that are not in the request, or is of another kind.
        Everything in the request then pauses.
        """
        found = self._find(correlation_id)
        if found is None:
            mark("follower: an answer that nobody waits for any more")
            return
        fetcher, in_flight = found
        answers, sent = body.partitions, in_flight.sent
        is_foreign = not isinstance(body, _RESPONSES[type(in_flight.body)])
        if is_foreign or not all(known in sent for known in answers):
            fetcher.give_up(in_flight, now_ms)
            raise InvalidRequest(f"broker {fetcher.leader_id} sent an answer that does not match the request")
        is_incremental = False
        if isinstance(body, FetchResponse) and isinstance(in_flight.body, FetchRequest):
            is_incremental = in_flight.body.session_epoch != FIRST_SESSION_EPOCH
            if body.error is not ErrorCode.NONE:
                self._on_session_error(fetcher, in_flight, body.error, now_ms)
                return
            fetcher.joined(body.session_id)
        fetcher.finish(in_flight)
        # The order of the request. In a session, a partition without an answer has not moved.
        expected = answers if is_incremental else sent
        for topic_partition in list(expected):
            state = fetcher.state_of(in_flight, topic_partition)
            if state is None:
                fetcher.ask_again(topic_partition)
                continue
            answer = answers.get(topic_partition)
            if answer is None:
                fetcher.delay(topic_partition, now_ms)
                continue
            self._take(fetcher, topic_partition, state, answer, now_ms)

    def _on_session_error(self, fetcher: Fetcher, in_flight: InFlight, error: ErrorCode, now_ms: int) -> None:
        """Fetch in full: the leader has restarted, has dropped the session, or has lost a request of it."""
        mark("follower: its fetch session is over")
        assert isinstance(in_flight.body, FetchRequest)
        if in_flight.body.session_epoch == FIRST_SESSION_EPOCH:
            fetcher.give_up(in_flight, now_ms)  # not about a session: do not repeat it at once
            return
        fetcher.finish(in_flight)
        is_gone = error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        fetcher.restart_session(NO_SESSION if is_gone else in_flight.body.session_id)

    def _take(
        self,
        fetcher: Fetcher,
        topic_partition: TopicPartition,
        state: FetchState,
        answer: FetchResult | EpochAnswer | ListOffsetsResult,
        now_ms: int,
    ) -> None:
        partition = self._partitions[topic_partition][0]
        assert partition.leader_epoch == state.leader_epoch, "a new epoch replaces the fetch state"
        if answer.error is ErrorCode.FENCED_LEADER_EPOCH:
            # The leader has a newer epoch: the controller's request is on its way.
            mark("follower: fenced by its leader, it waits for the controller")
            self._fail(topic_partition, f"fenced at leader epoch {state.leader_epoch}")
            return
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE and isinstance(answer, FetchResult):
            mark("follower: out of the leader's range")
            fetcher.put(topic_partition, state.asking(Phase.ASKING_END))
            return
        if answer.error is not ErrorCode.NONE:
            match answer.error:
                case ErrorCode.UNKNOWN_LEADER_EPOCH:
                    mark("follower: its leader has not heard of the epoch yet")
                case ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    mark("follower: its leader does not lead")
                case ErrorCode.KAFKA_STORAGE_ERROR:
                    mark("follower: its leader's log failed")
                case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    mark("follower: its leader has no such partition")
                case ErrorCode.CORRUPT_MESSAGE:
                    mark("follower: its leader's log is damaged there")
                    self._is_stuck(
                        partition, "its log is damaged there, and no other replica could repair it"
                    )
            fetcher.delay(topic_partition, now_ms)
            return
        next_state: FetchState | None
        try:
            if isinstance(answer, FetchResult):
                next_state = self._on_fetched(partition, state, answer)
            elif isinstance(answer, EpochAnswer):
                next_state = self._on_epoch_end(partition, state, answer)
            else:
                next_state = self._on_bound(partition, state, answer)
        except (CorruptBatch, InvalidRecord, OutOfResources) as error:
            # The leader still has the bytes. A full disk may stop an append between two segments, or before
            # the log start offset is written: the log keeps what was appended.
            mark("follower: an append failed half-way and is tried again")
            if state.phase is Phase.FETCHING:
                fetcher.put(
                    topic_partition, state.at(partition.log.log_end_offset, partition.log.latest_epoch)
                )
            fetcher.delay(topic_partition, now_ms)
            if not isinstance(error, OutOfResources):
                self._is_stuck(partition, str(error))
            if isinstance(error, OutOfResources):
                # Clients of a former leader may learn now what became of their batches.
                self._on_progress(topic_partition)
            if isinstance(error, DiskFull):
                self._on_disk_full(topic_partition)
        except (LogDirOffline, OSError) as error:
            mark("follower: its disk failed under an append")
            self._on_storage_failure(topic_partition, error)
        except EngineError as error:
            self._fail(topic_partition, str(error))
        else:
            if next_state is None:
                fetcher.delay(topic_partition, now_ms)
                return
            fetcher.put(topic_partition, next_state)
            self._on_progress(topic_partition)
            if isinstance(answer, FetchResult) and answer.records:
                self.stuck.pop(topic_partition, None)
                fetcher.move_to_back(topic_partition)
                if self.throttle.bound is not None:
                    self._note(partition, answer, now_ms)

    def _is_stuck(self, partition: Partition, reason: str) -> None:
        topic_partition, offset = partition.topic_partition, partition.log.log_end_offset
        text = f"leader {partition.leader_id} has no sound batch at offset {offset}: {reason}"
        if topic_partition not in self.stuck:
            self._on_stuck(topic_partition, text)
        self.stuck[topic_partition] = text

    def _fail(self, topic_partition: TopicPartition, reason: str) -> None:
        self.remove(topic_partition)
        self.failed[topic_partition] = reason

    def _on_fetched(self, partition: Partition, state: FetchState, result: FetchResult) -> FetchState | None:
        log = partition.log
        if result.diverging_epoch is not None:
            # High watermark, log start and records of a diverging answer belong to the other history.
            mark("follower: a fetch finds that logs diverge")
            return self._reconcile(partition, state, result.diverging_epoch)
        assert state.fetch_offset == log.log_end_offset, "only its fetcher appends to a follower's log"
        if result.log_start_offset > log.log_start_offset:
            mark("follower: the leader's log begins later now")
        is_news = result.records or result.log_start_offset > log.log_start_offset
        if not is_news and result.high_watermark == log.high_watermark:
            following.agree(partition)
            return state
        following.append_fetched(
            partition,
            result.records,
            high_watermark=result.high_watermark,
            log_start_offset=result.log_start_offset,
        )
        following.agree(partition)
        # Without new records the epoch stays: an empty answer proves nothing new.
        return state.at(log.log_end_offset, log.latest_epoch if result.records else state.last_fetched_epoch)

    def _on_epoch_end(
        self, partition: Partition, state: FetchState, answer: EpochAnswer
    ) -> FetchState | None:
        return self._reconcile(partition, state, EpochEndOffset(answer.epoch, answer.end_offset))

    def _reconcile(
        self, partition: Partition, state: FetchState, answer: EpochEndOffset
    ) -> FetchState | None:
        log = partition.log
        before = log.log_end_offset, log.latest_epoch
        is_final = following.reconcile(partition, answer).is_final
        after = log.log_end_offset, log.latest_epoch
        next_state = state.at(*after)
        is_empty = log.log_start_offset == log.log_end_offset
        if state.phase is Phase.TRUNCATING:
            # An empty log is left with the epoch of deleted records, about which nothing is known yet.
            is_settled = is_final and not (is_empty and after != before)
            return (
                next_state
                if is_settled or log.latest_epoch == NO_EPOCH
                else next_state.asking(Phase.TRUNCATING)
            )
        if after == before and is_empty:
            # The log is empty, and the leader does not know its epochs below the log start. An unclean
            # election discarded that history, and batches of an older epoch could not follow it.
            following.restart_at(partition, log.log_end_offset, why="what was deleted is of another history")
            after = log.log_end_offset, log.latest_epoch
            next_state = state.at(*after)
        # The next fetch detects further divergence. Without progress it would detect the same at once: pause.
        return next_state if after != before else None

    def _on_bound(
        self, partition: Partition, state: FetchState, answer: ListOffsetsResult
    ) -> FetchState | None:
        log = partition.log
        end_offset = log.log_end_offset
        if state.phase is Phase.ASKING_END:
            if answer.offset >= end_offset:
                mark("follower: the leader ends where we do, or later: our end is below its start")
                return state.asking(Phase.ASKING_START)
            mark("follower: cut to the end of a shorter leader")
            why = f"the log of leader {partition.leader_id} of epoch {partition.leader_epoch} ends there"
            following.truncate_to(partition, answer.offset, why=why)
        elif answer.offset > end_offset:
            mark("follower: begins anew where its leader's log does")
            following.restart_at(partition, answer.offset)
        else:
            # It is probably in range now. Pause, or two nodes could repeat this for ever.
            fetching = state.at(log.log_end_offset, log.latest_epoch)
            self._partitions[partition.topic_partition][1].put(partition.topic_partition, fetching)
            return None
        return state.at(log.log_end_offset, log.latest_epoch)

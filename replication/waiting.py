"""Waiting requests: acks=all for the high watermark, fetches for bytes, DeleteRecords for all replicas.

Each watches its partitions (`delayed.py`; a fetch through its session, `fetch_sessions.py`), looks again at
the one that moves, and answers once. How a partition stands, and the answer's way out, are callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from logstore.replication.delayed import DelayedOperation, Purgatory
from logstore.replication.fetch_sessions import FetchSession, FetchSessions, Place
from logstore.replication.messages import DeleteRecordsResult, FetchResult, ProduceResult

R = TypeVar("R")


@dataclass(slots=True)
class Status(Generic[R]):
    """One partition of a request that waits for `offset`.

    The promise holds for one `tenure` of the leader: afterwards the offset may hold another record. `result`
    is the answer once nothing is pending.
    """

    result: R
    offset: int = -1
    tenure: int = -1
    is_pending: bool = field(default=False, kw_only=True)


class DelayedByPartition(DelayedOperation, Generic[R]):
    """Waits until every partition is decided; at the deadline the undecided ones have timed out.

    acks=all waits for high watermarks, DeleteRecords for the log start offset of every live replica.
    """

    __slots__ = ("_pending", "_progress", "_reply", "_statuses", "_timed_out")

    def __init__(
        self,
        statuses: dict[TopicPartition, Status[R]],
        deadline_ms: int,
        *,
        address: Hashable = None,
        progress: Callable[[TopicPartition, Status[R]], R | None],
        timed_out: Callable[[Status[R]], R],
        reply: Callable[[dict[TopicPartition, R]], None],
    ) -> None:
        """`progress` returns the result of a partition, None while it is pending."""
        super().__init__(deadline_ms, address)
        self._statuses = statuses
        self._pending = sum(status.is_pending for status in statuses.values())
        self._progress = progress
        self._timed_out = timed_out
        self._reply = reply

    def is_ready(self, now_ms: int) -> bool:
        for topic_partition in self._statuses:
            self._look(topic_partition)
        return not self._pending

    def is_ready_after(self, key: TopicPartition, now_ms: int) -> bool:
        self._look(key)
        return not self._pending

    def _look(self, topic_partition: TopicPartition) -> None:
        status = self._statuses[topic_partition]
        if status.is_pending and (result := self._progress(topic_partition, status)) is not None:
            status.result, status.is_pending = result, False
            self._pending -= 1

    def on_complete(self, now_ms: int) -> None:
        self._reply(
            {
                topic_partition: self._timed_out(status) if status.is_pending else status.result
                for topic_partition, status in self._statuses.items()
            }
        )


class Amount(NamedTuple):
    """How much a fetch could get of one partition, and whether the rest of the fetch should wait for more."""

    bytes: int
    is_final: bool = False


class DelayedFetch(DelayedOperation):
    """A fetch with too few bytes. Its answer is read when it is complete; until then it keeps sizes only.

    `results` are those of its first look that still hold, without records.
    """

    __slots__ = (
        "_amount_of",
        "_amounts",
        "_end",
        "_is_final",
        "_needed",
        "_watch",
        "is_overtaken",
        "results",
        "total",
    )

    def __init__(
        self,
        needed: int,
        deadline_ms: int,
        *,
        address: Hashable = None,
        results: dict[TopicPartition, FetchResult],
        amount_of: Callable[[TopicPartition], Amount],
        watch: Callable[[TopicPartition], None],
        end: Callable[[bool], None],
    ) -> None:
        """`needed` bytes complete it. `results` are those of its first look; their records are dropped.

        `watch` has it look when the partition moves the next time. `end` gets whether there is somebody to
        answer.
        """
        super().__init__(deadline_ms, address)
        amounts = {known: len(result.records) for known, result in results.items() if len(result.records)}
        self.results = {known: result for known, result in results.items() if known not in amounts}
        self.is_overtaken = False
        """Whether the session's next request came before the answer to this one."""
        self.total = sum(amounts.values())
        self._amounts = amounts
        self._needed = needed
        self._is_final = False
        self._amount_of = amount_of
        self._watch = watch
        self._end = end

    def is_ready(self, now_ms: int) -> bool:
        return self._is_final or self.total >= self._needed

    def is_ready_after(self, key: TopicPartition, now_ms: int) -> bool:
        self.results.pop(key, None)
        if not self._is_final:
            amount, self._is_final = self._amount_of(key)
            self.total += amount - self._amounts.get(key, 0)
            self._amounts[key] = amount
        if self.is_ready(now_ms):
            return True
        self._watch(key)
        return False

    def on_complete(self, now_ms: int) -> None:
        self._end(True)

    def on_cancel(self) -> None:
        self._end(False)


Produces: TypeAlias = Purgatory[TopicPartition, DelayedByPartition[ProduceResult]]
Fetches: TypeAlias = Purgatory[TopicPartition, DelayedFetch]
Deletions: TypeAlias = Purgatory[TopicPartition, DelayedByPartition[DeleteRecordsResult]]


class WaitingRequests:
    """The waiting requests of a node, and the partitions to check at the end of the turn."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        settle: Callable[[TopicPartition, FetchSession], None],
        place_of: Callable[[TopicPartition], Place | None],
    ) -> None:
        """`settle` and `place_of` as for `FetchSessions`."""
        produce_interval = config.producer_purgatory_purge_interval_requests
        fetch_interval = config.fetch_purgatory_purge_interval_requests
        self.produces: Produces = Purgatory(purge_interval_requests=produce_interval)
        self.fetches: Fetches = Purgatory(purge_interval_requests=fetch_interval)
        """Fetches watch no key here: their sessions watch the partitions."""
        self.deletions: Deletions = Purgatory(purge_interval_requests=produce_interval)
        self.sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots, settle=settle, place_of=place_of
        )
        self._all: tuple[Purgatory[TopicPartition, Any], ...] = (self.produces, self.fetches, self.deletions)
        self._woken: dict[TopicPartition, None] = {}
        self.defers_fetches = False
        """Whether waiting fetches look at what moved in `look`, and not at the end of each turn.

        Then several appends of one wake-up are fetched at once. Whoever sets it calls `look` soon after each
        turn that left `has_to_look` set.
        """
        self._looks: list[tuple[DelayedFetch, TopicPartition]] = []

    @property
    def has_to_look(self) -> bool:
        """Whether a waiting fetch has not checked a partition that changed."""
        return bool(self._looks)

    @property
    def count(self) -> int:
        """How many requests wait."""
        return sum(purgatory.delayed for purgatory in self._all)

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the next request expires; None if none waits."""
        deadlines = (self.produces.deadline_ms, self.fetches.deadline_ms, self.deletions.deadline_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def wake(self, topic_partition: TopicPartition) -> None:
        """Have the requests that watch a partition checked at the end of this turn.

        Call it after every change that a waiting request or a fetch session may depend on: log end, high
        watermark, log start, role, ISR.
        """
        self._woken[topic_partition] = None

    def check_woken(self, now_ms: int) -> None:
        """Complete the requests that became ready; completing one may wake others."""
        sessions = self.sessions
        while self._woken:
            woken, self._woken = self._woken, {}
            for topic_partition in woken:
                for purgatory in (self.produces, self.deletions):
                    if topic_partition in purgatory.watchers:
                        purgatory.check(topic_partition, now_ms)
                if topic_partition in sessions.watchers or topic_partition in sessions.byte_watchers:
                    self._looks += [(each, topic_partition) for each in sessions.moved(topic_partition)]
            if not self.defers_fetches:
                self.look(now_ms)

    def look(self, now_ms: int) -> None:
        """Complete the fetches that changed partitions made ready; that may wake other requests."""
        looks, self._looks = self._looks, []
        ready = {
            fetch: None
            for fetch, topic_partition in looks
            if not fetch.is_completed and fetch.is_ready_after(topic_partition, now_ms)
        }
        # When all have looked: an answer then has the bytes of every partition that moved.
        for fetch in ready:
            self.fetches.complete(fetch, now_ms)

    def expire(self, now_ms: int) -> None:
        """Complete the requests whose deadline has passed."""
        for purgatory in self._all:
            purgatory.expire(now_ms)

    def abandon(self, address: Hashable) -> None:
        """Forget the requests of an address whose connection has closed."""
        for purgatory in self._all:
            purgatory.cancel(address)

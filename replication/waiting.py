"""The requests that wait: acks=all until it is committed or cannot be, a fetch until it has enough,
DeleteRecords until every live replica has deleted.

All look again when a partition they watch has moved (`delayed.py`) and answer once. How things stand,
and where the answer goes, the replica manager tells them by callbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from checkpoint.errors import ErrorCode
from checkpoint.marks import mark
from checkpoint.topic_partition import TopicPartition
from replication.delayed import DelayedOperation
from replication.messages import (
    DeleteRecordsResponse,
    DeleteRecordsResult,
    FetchResponse,
    FetchResult,
    ProduceResponse,
    ProduceResult,
)


@dataclass(slots=True)
class ProduceStatus:
    """One partition of a produce request; `required_offset` is where the high watermark must get to.

    What was promised holds for one `tenure` of the leader: after it the offset may hold another record.
    """

    result: ProduceResult
    required_offset: int = -1
    tenure: int = -1
    is_pending: bool = field(default=False, kw_only=True)


class DelayedProduce(DelayedOperation):
    """acks=all: answered when every partition is decided; at the deadline the undecided have timed out."""

    __slots__ = ("_progress", "_reply", "_statuses")

    def __init__(
        self,
        statuses: dict[TopicPartition, ProduceStatus],
        deadline_ms: int,
        *,
        progress: Callable[[TopicPartition, ProduceStatus], ErrorCode | None],
        reply: Callable[[ProduceResponse], None],
    ) -> None:
        """`progress` says how an append stands, None while it is undecided."""
        super().__init__(deadline_ms)
        self._statuses = statuses
        self._progress = progress
        self._reply = reply

    def is_ready(self, now_ms: int) -> bool:
        for topic_partition, status in self._statuses.items():
            if status.is_pending:
                code = self._progress(topic_partition, status)
                if code is not None:
                    status.is_pending = False
                    if code is not ErrorCode.NONE:
                        mark("produce: refused after it was appended")
                        status.result = ProduceResult(code)
        return not any(status.is_pending for status in self._statuses.values())

    def on_complete(self, now_ms: int) -> None:
        timed_out = ProduceResult(ErrorCode.REQUEST_TIMED_OUT)
        if any(status.is_pending for status in self._statuses.values()):
            mark("produce: not committed in time")
        self._reply(
            ProduceResponse(
                {
                    topic_partition: timed_out if status.is_pending else status.result
                    for topic_partition, status in self._statuses.items()
                }
            )
        )


@dataclass(slots=True)
class DeletionStatus:
    """One partition of a DeleteRecords request; `target` is where every live replica's log must start."""

    result: DeleteRecordsResult
    target: int = -1
    tenure: int = -1
    is_pending: bool = field(default=False, kw_only=True)


class DelayedDeleteRecords(DelayedOperation):
    """Answered when every live replica serves nothing below the targets any more, or at the deadline."""

    __slots__ = ("_progress", "_reply", "_statuses")

    def __init__(
        self,
        statuses: dict[TopicPartition, DeletionStatus],
        deadline_ms: int,
        *,
        progress: Callable[[TopicPartition, DeletionStatus], DeleteRecordsResult | None],
        reply: Callable[[DeleteRecordsResponse], None],
    ) -> None:
        """`progress` says how a deletion ended, None while it is under way."""
        super().__init__(deadline_ms)
        self._statuses = statuses
        self._progress = progress
        self._reply = reply

    def is_ready(self, now_ms: int) -> bool:
        for topic_partition, status in self._statuses.items():
            if status.is_pending and (result := self._progress(topic_partition, status)) is not None:
                status.result, status.is_pending = result, False
        return not any(status.is_pending for status in self._statuses.values())

    def on_complete(self, now_ms: int) -> None:
        if any(status.is_pending for status in self._statuses.values()):
            mark("delete records: a follower did not follow in time")
        # What is undecided has the result that it began with: timed out.
        results = {topic_partition: status.result for topic_partition, status in self._statuses.items()}
        self._reply(DeleteRecordsResponse(results))


class DelayedFetch(DelayedOperation):
    """A fetch with too little to say: answered from a second reading, which counts for nothing else."""

    __slots__ = ("_min_bytes", "_read", "_reply", "_results")

    def __init__(
        self,
        min_bytes: int,
        deadline_ms: int,
        *,
        read: Callable[[], tuple[dict[TopicPartition, FetchResult], bool]],
        reply: Callable[[FetchResponse], None],
    ) -> None:
        """`read` gives what there is, and whether some of it cannot wait."""
        super().__init__(deadline_ms)
        self._min_bytes = min_bytes
        self._read = read
        self._reply = reply
        self._results: dict[TopicPartition, FetchResult] | None = None

    def is_ready(self, now_ms: int) -> bool:
        results, is_final = self._read()
        if not is_final and sum(len(result.records) for result in results.values()) < self._min_bytes:
            return False
        self._results = results
        return True

    def on_complete(self, now_ms: int) -> None:
        self._reply(FetchResponse(self._results if self._results is not None else self._read()[0]))

"""Plan a stream's micro-batches: when each is due, where it starts and ends. Without Spark.

    Spark keeps        offsets/0   offsets/1   offsets/2         the end of each batch, before it is read
    batch              ├─── 0 ───┤├─── 1 ───┤├─── 2 ───┤         commits/N once its rows are written
                    initial                          latest

Spark stores only ends. A repeated batch therefore has its old start and end, except the first one: Spark asks
for its start again. If that start could differ (`startingOffsets=latest`), the first batch ends where it
starts and has no rows. Then both bounds of every batch with rows are stored.

    minOffsetsPerTrigger   wait for N offsets, at most maxTriggerDelay after the last batch
    maxOffsetsPerTrigger   read about N, shared out in proportion to the lag

    lag       ████████████████████ 2000      ████ 400      ▏ 3          maxOffsetsPerTrigger=600
    read      █████ 499                      ▉ 99          ▏ 1

The rules are those of Spark's Kafka source, in whole numbers. Partitions are listed again every
`metadataIntervalMs` at most, because an idle stream asks ninety times a second. New partitions are read from
their log start. A partition is a loss if it is gone, ends below the offsets already read, or has another
topic id than when the query started; `failOnDataLoss` says what follows. Topic ids are compared before each
batch with rows. The checkpoint does not have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.errors import DataLoss, InvalidOption, UnknownTopic
from logstore.spark.logs import LOGGER, Bounds, Cause, Logs, Missing, OffsetRange, describe, raise_on_loss
from logstore.spark.offsets import (
    ANOTHER_QUERY,
    LATEST,
    AtOffsets,
    AtTime,
    AtTimes,
    Latest,
    Offsets,
    starting,
    times_of,
)
from logstore.spark.read_options import ReadOptions
from logstore.spark.reading import cut


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of a trigger, in offsets; None for no limit. `max_delay_ms` belongs to `min_offsets`."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 0

    def is_due(self, start: Offsets, end: Offsets, waited_ms: int | None) -> bool:
        """Return whether to make a batch now, `waited_ms` after the last one (None: there was none)."""
        if self.min_offsets is None or waited_ms is None or waited_ms >= self.max_delay_ms:
            return True
        return sum(lags(start, end).values()) >= self.min_offsets

    def admitted(self, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
        """Return the end of a batch from `start`, not past `end`."""
        return dict(end) if self.max_offsets is None else within(self.max_offsets, start, end)


_EVERYTHING: Final = Admission()


def lags(start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """Return how many offsets each partition of `end` is ahead of `start`; 0 if `start` is past it."""
    return {each: max(offset - start[each], 0) for each, offset in end.items()}


def within(limit: int, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """Return ends about `limit` offsets after `start`, in proportion to each partition's lag.

    Every partition with a lag gets at least one offset, so that large partitions cannot starve a small one.
    The total can exceed a `limit` that is smaller than the number of partitions.
    """
    behind = lags(start, end)
    total = sum(behind.values())
    if total <= limit:
        return dict(end)
    return {
        each: start[each] + max(limit * lag // total, 1) if lag else end[each] for each, lag in behind.items()
    }


class MicroBatches:
    """The batches of one stream while its query runs. Raises `DataLoss`, and the logs' `EngineError`s."""

    def __init__(
        self,
        options: ReadOptions,
        logs: Logs,
        *,
        clock_ms: Callable[[], int],
        pause_s: Callable[[float], None],
    ) -> None:
        """`pause_s` waits before an end that went backwards is read again."""
        self._options, self._logs = options, logs
        self._clock_ms, self._pause_s = clock_ms, pause_s
        self._partitions: list[TopicPartition] = []
        self._listed_ms: int | None = None
        self._fixed: Mapping[TopicPartition, Bounds] | None = None
        self._initial: dict[TopicPartition, int] | None = None
        self._is_pinned = False
        self._last_batch_ms: int | None = None
        self._topic_ids: dict[str, str] | None = None
        self.seen: Offsets | None = None
        """the ends of the logs when they were last read"""

    # --- start ----------------------------------------------------------------------------------------------

    def initial(self) -> dict[TopicPartition, int]:
        """Return where a new stream starts; the same on every call."""
        if self._initial is None:
            options = self._options
            options.selection.check(self._logs.partitions(), options.source)
            bounds = self._bounds()
            times_ms = times_of(options.starting, bounds)
            found = self._logs.offsets_by_time(times_ms) if times_ms else {}
            self._initial = starting(
                options.starting, bounds, found, latest_if_none=options.latest_if_no_time
            )
        return self._initial

    def _must_pin(self) -> bool:
        """Return True once, if a later call of `initial` in another process could differ."""
        if self._is_pinned:
            return False
        self._is_pinned = True
        match self._options.starting:
            case Latest():
                return True
            case AtOffsets(offsets):
                return LATEST in offsets.values()
            case AtTime(time_ms):
                return time_ms == LATEST or self._options.latest_if_no_time
            case AtTimes(times_ms):
                return LATEST in times_ms.values() or self._options.latest_if_no_time
        return False

    # --- end ------------------------------------------------------------------------------------------------

    def fix_end(self) -> None:
        """Exclude records that arrive from now on from this run of the query (`availableNow`)."""
        self._fixed = self._bounds_now()

    def latest(self, start: Offsets, limits: Admission | None) -> dict[TopicPartition, int]:
        """Return the end of the batch from `start`; `start` itself if no batch is due.

        Without `limits` the batch takes everything, regardless of the options: it is the query's only batch.
        """
        if limits is not None and start == self._initial and self._must_pin():
            return dict(start)
        bounds = self._sound_bounds(start)
        ends = {each: bound.end_offset for each, bound in bounds.items()}
        self.seen = ends
        begins = {each: start.get(each, bound.start_offset) for each, bound in bounds.items()}
        limits = limits or _EVERYTHING
        now_ms = self._clock_ms()
        waited_ms = None if self._last_batch_ms is None else now_ms - self._last_batch_ms
        # A query with a fixed end never waits for more records.
        is_due = self._fixed is not None or limits.is_due(begins, ends, waited_ms)
        admitted = limits.admitted(begins, ends) if is_due else dict(start)
        if admitted != start:
            self._last_batch_ms = now_ms
        if admitted != start or self._topic_ids is None:
            self._check_topics(start, ends)
        return admitted

    def _check_topics(self, start: Offsets, partitions: Iterable[TopicPartition]) -> None:
        """Compare topic ids with those known: offsets already read may be those of a deleted topic."""
        known = self._topic_ids or {}
        found = self._logs.topic_ids(list(partitions))
        for each, topic_id in sorted(found.items()):
            if known.get(each.topic, topic_id) == topic_id or not start.get(each, 0):
                continue
            text = (
                f"topic {each.topic} has topic id {topic_id}, but offsets before {start[each]} of {each} "
                f"were read from {known[each.topic]}: it was recreated"
            )
            if self._options.fail_on_data_loss:
                raise DataLoss(
                    f"{text}. Start a query with a new checkpoint, or set failOnDataLoss to false to "
                    "continue at the former topic's offsets"
                )
            LOGGER.warning("%s; the stream continues at the former topic's offsets", text)
        self._topic_ids = {**known, **{each.topic: topic_id for each, topic_id in found.items()}}

    def _sound_bounds(self, start: Offsets) -> Mapping[TopicPartition, Bounds]:
        """Return the bounds now; ends below `start` are read again before they count as a loss."""
        bounds = self._bounds()
        for _ in range(self._options.fetch_retries):
            if all(start.get(each, 0) <= bound.end_offset for each, bound in bounds.items()):
                break
            self._pause_s(self._options.fetch_retry_interval_ms / 1000)
            bounds = self._bounds()
        gone = sorted(start.keys() - bounds.keys())
        if gone:
            self._lose_partitions(gone, start)
        for each, bound in sorted(bounds.items()):
            if bound.end_offset < start.get(each, 0):
                detail = "or the topic was recreated"
                self._lose(Missing(*each, bound.end_offset, start[each], Cause.TRUNCATED, detail))
        return bounds

    def _lose_partitions(self, gone: Sequence[TopicPartition], start: Offsets) -> None:
        names = ", ".join(f"{each} (read up to offset {start[each]})" for each in gone)
        if self._options.fail_on_data_loss and not self._options.selection.choose(gone):
            raise InvalidOption(
                f"the checkpoint has {names}, which the options do not select: {ANOTHER_QUERY}, or select "
                "them, or set failOnDataLoss to false to continue without them"
            )
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"partitions no longer exist: {names}. If they are only offline, start the query again when "
                "they are back; set failOnDataLoss to false to continue without them"
            )
        LOGGER.warning("partitions no longer exist; the stream continues without them: %s", names)

    def _lose(self, lost: Missing) -> None:
        if self._options.fail_on_data_loss:
            raise_on_loss([lost])
        LOGGER.warning("%s", describe(lost))

    def _bounds(self) -> Mapping[TopicPartition, Bounds]:
        return self._bounds_now() if self._fixed is None else self._fixed

    def _bounds_now(self) -> Mapping[TopicPartition, Bounds]:
        try:
            return self._logs.bounds(self._listed())
        except UnknownTopic:
            self._listed_ms = None  # a partition was deleted since they were listed
            return self._logs.bounds(self._listed())

    def _listed(self) -> list[TopicPartition]:
        now_ms = self._clock_ms()
        if self._listed_ms is None or now_ms - self._listed_ms >= self._options.metadata_interval_ms:
            self._partitions = self._options.selection.choose(self._logs.partitions())
            self._listed_ms = now_ms
        return self._partitions

    # --- tasks ----------------------------------------------------------------------------------------------

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """Return the tasks of a batch; none for a partition whose start is past its end."""
        self._is_pinned = True  # if this is a first batch that runs again, its end is in the checkpoint
        begins = {each: start[each] if each in start else self._log_start(each, end[each]) for each in end}
        ranges = [OffsetRange(*each, begins[each], end[each]) for each in sorted(end)]
        options = self._options
        return cut(
            ranges,
            self._logs.cut_points,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )

    def _log_start(self, new: TopicPartition, end: int) -> int:
        """Return where a partition starts that the last batch did not have."""
        try:
            first = min(self._logs.bounds([new])[new].start_offset, end)
        except UnknownTopic:
            first = end
        if first:
            self._lose(Missing(*new, 0, first, Cause.EXPIRED, "a new partition"))
        return first

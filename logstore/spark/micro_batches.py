"""A stream's micro-batches: from where to where each goes. What Spark asks, without Spark.

    Spark keeps        offsets/0   offsets/1   offsets/2         the end of each batch, before it is read
    batch              ├─── 0 ───┤├─── 1 ───┤├─── 2 ───┤         commits/N once its rows are out
                    initial                          latest

Only ends are kept, so a batch that is run again has the start and end that it had, except the first: its
start is asked for anew. Where that need not be what it was (`startingOffsets=latest`), the first batch is
made to end where it starts, with no rows: then every row is in a batch whose bounds are both written down.

Partitions are listed anew every `metadataIntervalMs` at most; an idle stream asks ninety times a second. New
ones are read from their log start. One that is gone, and one whose end went back below what was read, is a
loss: `failOnDataLoss` says what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.admission import Admission
from logstore.spark.errors import DataLoss, UnknownTopic
from logstore.spark.logs import Bounds, Cause, Logs, Missing, OffsetRange
from logstore.spark.losses import LOGGER, describe, raise_on_loss
from logstore.spark.offsets import LATEST, AtOffsets, AtTime, AtTimes, Latest, Offsets, starting, times_of
from logstore.spark.ranges import cut
from logstore.spark.read_options import ReadOptions

_EVERYTHING: Final = Admission()


class MicroBatches:
    """The batches of one stream while its query runs. Raises `DataLoss`, and `EngineError`s of the logs."""

    def __init__(
        self,
        options: ReadOptions,
        logs: Logs,
        *,
        clock_ms: Callable[[], int],
        pause_s: Callable[[float], None],
    ) -> None:
        """`pause_s` waits, before an end that cannot be is asked for again."""
        self._options, self._logs = options, logs
        self._clock_ms, self._pause_s = clock_ms, pause_s
        self._partitions: list[TopicPartition] = []
        self._listed_ms: int | None = None
        self._fixed: Mapping[TopicPartition, Bounds] | None = None
        self._initial: dict[TopicPartition, int] | None = None
        self._is_pinned = False
        self._last_batch_ms: int | None = None
        self.seen: Offsets | None = None
        """the ends as last seen"""

    # --- where to begin -------------------------------------------------------------------------------------

    def initial(self) -> dict[TopicPartition, int]:
        """Where a new stream begins; the same each time it is asked."""
        if self._initial is None:
            options = self._options
            where = options.bootstrap_servers or ", ".join(options.paths)
            options.selection.check(self._logs.partitions(), where)
            bounds = self._bounds()
            times_ms = times_of(options.starting, bounds)
            found = self._logs.offsets_by_time(times_ms) if times_ms else {}
            self._initial = starting(
                options.starting, bounds, found, latest_if_none=options.latest_if_no_time
            )
        return self._initial

    def _must_pin(self) -> bool:
        """Whether the start would be another one if it were asked for later; once."""
        if self._is_pinned:
            return False
        self._is_pinned = True
        match self._options.starting:
            case Latest():
                return True
            case AtOffsets(offsets):
                return LATEST in offsets.values()
            case AtTime() | AtTimes():
                return self._options.latest_if_no_time
        return False

    # --- where to end ---------------------------------------------------------------------------------------

    def fix_end(self) -> None:
        """Nothing that comes from now on belongs to this run of the query (`availableNow`)."""
        self._fixed = self._bounds_now()

    def latest(self, start: Offsets, limits: Admission | None) -> dict[TopicPartition, int]:
        """The end of the batch from `start`; `start` itself if there is to be none.

        Without `limits` it takes all there is, whatever the options say: it is the only batch.
        """
        if limits is not None and start == self._initial and self._must_pin():
            return dict(start)
        bounds = self._sound_bounds(start)
        ends = {each: bound.end_offset for each, bound in bounds.items()}
        self.seen = ends
        begins = {each: start.get(each, bound.start_offset) for each, bound in bounds.items()}
        taken = self._admitted(limits or _EVERYTHING, begins, ends)
        if taken is None:
            return dict(start)
        if taken != start:
            self._last_batch_ms = self._clock_ms()
        return taken

    def _admitted(
        self, limits: Admission, begins: Offsets, ends: Offsets
    ) -> dict[TopicPartition, int] | None:
        waited_ms = None if self._last_batch_ms is None else self._clock_ms() - self._last_batch_ms
        # Who only takes what is there now must not wait for more.
        if self._fixed is None and not limits.is_due(begins, ends, waited_ms):
            return None
        return limits.admitted(begins, ends)

    def _sound_bounds(self, start: Offsets) -> Mapping[TopicPartition, Bounds]:
        """The bounds by now; ends below `start` are asked for again before they are believed."""
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
                self._lose(each, bound.end_offset, start[each], Cause.TRUNCATED, "or the topic was made anew")
        return bounds

    def _lose_partitions(self, gone: Sequence[TopicPartition], start: Offsets) -> None:
        said = ", ".join(f"{each} (read up to offset {start[each]})" for each in gone)
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"partitions are not there any more: {said}. If they are only away for now, start the query "
                "again when they are back; set failOnDataLoss to false to go on without them"
            )
        LOGGER.warning("partitions are not there any more, the stream goes on without them: %s", said)

    def _lose(self, where: TopicPartition, first: int, until: int, cause: Cause, detail: str = "") -> None:
        lost = Missing(*where, first, until, cause, detail)
        if self._options.fail_on_data_loss:
            raise_on_loss([lost])
        LOGGER.warning("%s", describe(lost))

    def _bounds(self) -> Mapping[TopicPartition, Bounds]:
        return self._bounds_now() if self._fixed is None else self._fixed

    def _bounds_now(self) -> Mapping[TopicPartition, Bounds]:
        try:
            return self._logs.bounds(self._listed())
        except UnknownTopic:
            self._listed_ms = None  # it went since they were listed
            return self._logs.bounds(self._listed())

    def _listed(self) -> list[TopicPartition]:
        now_ms = self._clock_ms()
        if self._listed_ms is None or now_ms - self._listed_ms >= self._options.metadata_interval_ms:
            self._partitions = self._options.selection.choose(self._logs.partitions())
            self._listed_ms = now_ms
        return self._partitions

    # --- what to read ---------------------------------------------------------------------------------------

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """The tasks of a batch. Nothing of a partition whose start is past its end: that batch had none."""
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
        """Where a partition begins that was not there before."""
        try:
            first = min(self._logs.bounds([new])[new].start_offset, end)
        except UnknownTopic:
            first = end
        if first:
            self._lose(new, 0, first, Cause.EXPIRED, "a new partition")
        return first

"""Plan a batch read and read its ranges, without Spark: from options to offset ranges, to rows.

    [0 ────────────────── 900)  orders-0        maxRecordsPerPartition: even pieces of at most N offsets
    [0 ── 100)                  orders-1        minPartitions: large ranges are cut until there are about N
         ▲      ▲      ▲
         cut by bytes, where an index or a segment shows that a batch begins

There is one task per partition by default. `minPartitions` is shared out by the rule of
Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import Any

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.columns import RowMaker, read_columns
from logstore.spark.logs import (
    LOGGER,
    Bounds,
    Headers,
    Logs,
    Missing,
    OffsetRange,
    describe,
    raise_on_loss,
    report,
)
from logstore.spark.offsets import AtOffsets, check_order, ending, starting, times_of
from logstore.spark.read_options import Isolation, ReadOptions

CutPoints = Callable[[OffsetRange, int], Sequence[int]]
"""`Logs.cut_points`."""


def open_logs(options: ReadOptions, on_batches: Callable[[Headers], None] | None = None) -> Logs:
    """Open the directories or brokers that `options` name; close the result. Raises `EngineError`.

    `on_batches` receives the headers of every batch that is read; a batch may extend past the range.
    """
    live: Logs
    if options.paths:
        from logstore.spark.directory_logs import DirectoryLogs

        live = DirectoryLogs(options.paths, isolation=options.isolation, on_batches=on_batches)
    else:
        from logstore.spark.broker_logs import BrokerLogs

        live = BrokerLogs(options, on_batches)
    if options.tier is None:
        return live
    from logstore.spark.tier import Tier, TieredLogs

    committed_only = options.isolation is Isolation.READ_COMMITTED
    return TieredLogs(live, Tier(options.tier), committed_only=committed_only, on_batches=on_batches)


def selected_bounds(options: ReadOptions, logs: Logs) -> Mapping[TopicPartition, Bounds]:
    """Return the readable bounds of the selected partitions. Raises `EngineError`."""
    available = logs.partitions()
    options.selection.check(available, options.source)
    return logs.bounds(options.selection.choose(available))


def topic_ids_now(options: ReadOptions, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str]:
    """Return `Logs.topic_ids`, read anew. Raises `EngineError`."""
    with closing(open_logs(options)) as logs:
        return logs.topic_ids(partitions)


def plan_batch(
    options: ReadOptions, logs: Logs, bounds: Mapping[TopicPartition, Bounds] | None = None
) -> list[OffsetRange]:
    """Return the offsets that a batch reads, one range per partition; of negative size where all is lost.

    Raises `DataLoss` for bounds past the readable end if the options ask for it, and `EngineError`.
    `bounds` are those of `selected_bounds`, if the caller has them already.
    """
    if bounds is None:
        bounds = selected_bounds(options, logs)
    found = [
        logs.offsets_by_time(times) if (times := times_of(position, bounds)) else {}
        for position in (options.starting, options.ending)
    ]
    starts = starting(options.starting, bounds, found[0], latest_if_none=options.latest_if_no_time)
    ends = ending(options.ending, bounds, found[1])
    for lost in check_order(options.starting, options.ending, bounds, starts, ends):
        if options.fail_on_data_loss:
            raise_on_loss([lost])
        LOGGER.warning("%s", describe(lost))
    if isinstance(options.ending, AtOffsets):
        ends = {each: min(end, bounds[each].end_offset) for each, end in ends.items()}
    return [OffsetRange(*each, starts[each], ends[each]) for each in sorted(bounds)]


def planned(options: ReadOptions, *, max_records: int | None = None) -> list[OffsetRange]:
    """Return what there is to read now, in order, in ranges of at most `max_records` offsets.

    Raises `EngineError`.
    """
    with closing(open_logs(options)) as logs:
        return cut(plan_batch(options, logs), logs.cut_points, max_records=max_records)


def read_range(options: ReadOptions, wanted: OffsetRange) -> Iterator[Any]:
    """Yield the rows of a range as Spark's record batches, in offset order.

    Raises `DataLoss` for lost records if the options ask for it, and `EngineError`.
    """
    maker = RowMaker(wanted.topic, wanted.partition, options.columns)
    missing: list[Missing] = []
    rows = checked = 0
    with closing(open_logs(options)) as logs:
        for batch in logs.read(wanted, read_columns(options.columns), missing):
            rows += batch.num_rows
            yield maker.rows(batch)
            if options.fail_on_data_loss:
                raise_on_loss(missing[checked:])
            checked = len(missing)
        if options.fail_on_data_loss:
            raise_on_loss(missing[checked:])
    report(wanted, rows, missing)


# --- cutting ranges into tasks ------------------------------------------------------------------------------


def cut(
    ranges: Iterable[OffsetRange],
    cut_points: CutPoints,
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """Cut ranges into pieces, in order; empty ranges are dropped.

    No piece has more than `max_records` offsets, and there are no more pieces than that needs, unless
    `min_partitions` asks for about that many.
    """
    ranges = [each for each in ranges if each.size > 0]
    if max_records is not None:
        ranges = [piece for each in ranges for piece in _even(each, -(-each.size // max_records))]
    if min_partitions is not None and len(ranges) < min_partitions:
        shares = share_out([each.size for each in ranges], min_partitions)
        ranges = [
            piece
            for each, pieces in zip(ranges, shares, strict=True)
            for piece in _divided(each, pieces, cut_points)
        ]
    return ranges


def share_out(sizes: Sequence[int], pieces: int) -> list[int]:
    """Return the pieces of each range, about `pieces` in total: small ranges stay whole, others by size."""
    total = sum(sizes)
    small = {slot for slot, size in enumerate(sizes) if _share(size, total, pieces) == 1}
    left = total - sum(sizes[slot] for slot in small)
    wanted = max(pieces - len(small), 1)
    return [1 if slot in small else _share(size, left, wanted) for slot, size in enumerate(sizes)]


def _share(size: int, total: int, pieces: int) -> int:
    return max((2 * size * pieces + total) // (2 * total), 1)


def _divided(wanted: OffsetRange, pieces: int, cut_points: CutPoints) -> list[OffsetRange]:
    """Cut into about equal pieces at `cut_points`, or by offsets if there are too few of them."""
    pieces = min(pieces, wanted.size)
    if pieces < 2:
        return [wanted]
    cuts = [each for each in cut_points(wanted, pieces) if wanted.start_offset < each < wanted.end_offset]
    return _at(wanted, cuts) if len(cuts) == pieces - 1 else _even(wanted, pieces)


def _even(wanted: OffsetRange, pieces: int) -> list[OffsetRange]:
    """Cut into equal pieces by offsets. A piece that begins inside a batch reads that one batch twice."""
    size, larger = divmod(wanted.size, pieces)  # the last pieces are larger, as in Spark's Kafka source
    cuts = (piece * size + max(piece + larger - pieces, 0) for piece in range(1, pieces))
    return _at(wanted, [wanted.start_offset + each for each in cuts])


def _at(wanted: OffsetRange, cuts: Iterable[int]) -> list[OffsetRange]:
    bounds = [wanted.start_offset, *cuts, wanted.end_offset]
    return [
        replace(wanted, start_offset=start, end_offset=end) for start, end in pairwise(bounds) if start < end
    ]

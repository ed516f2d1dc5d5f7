"""Offsets as options state them, their resolution against a partition's bounds and times, and a query's lag.

    {"orders":{"0":23,"1":-2}}      offsets; -1 latest, -2 earliest      written sorted, one past the last
    {"orders":{"0":1700000000000}}  times in epoch milliseconds          record, as Spark's Kafka source does

A time may also be -1, the latest offset, or -2, the earliest: Spark's source passes a time on to the brokers,
where these numbers mean that.

Pure functions. As in Spark's Kafka source, an option that names partitions must name all of them.

Spark's Python sources cannot report metrics of their own, so `lags` computes them from the progress that
Spark reports for every query: the end of the batch, and the end of the log.

    class Lag(StreamingQueryListener):
        def onQueryProgress(self, event):
            for behind in lags(event.progress):
                gauge.set(behind.total)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from logstore.arguments import whole_number
from logstore.config import MAX_INT, MAX_LONG
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.errors import InvalidOption, NoMatchingTime
from logstore.spark.logs import Bounds, Cause, Missing

T = TypeVar("T")

LATEST: Final = -1
EARLIEST: Final = -2

Offsets: TypeAlias = Mapping[TopicPartition, int]
Times: TypeAlias = Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True)
class Earliest:
    """The log start."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the log, when it is resolved."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Given offsets; `LATEST` and `EARLIEST` may be among them."""

    offsets: Offsets
    option: str


@dataclass(frozen=True, slots=True)
class AtTime:
    """In every partition, the first record at or after one time; epoch milliseconds."""

    timestamp_ms: int
    option: str


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The same with one time per partition."""

    times_ms: Offsets
    option: str


Position: TypeAlias = Earliest | Latest | AtOffsets | AtTime | AtTimes


# --- JSON ---------------------------------------------------------------------------------------------------


def nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return `{"topic": {"0": offset}}`, with topics and partitions sorted."""
    made: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        made.setdefault(topic, {})[str(partition)] = offset
    return made


ANOTHER_QUERY: Final = (
    "it is that of another query. Set checkpointLocation to a directory of this query's own"
)


def flat(offsets: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Return the offsets by partition: the inverse of `nested`."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }


def of_checkpoint(offsets: Any) -> dict[TopicPartition, int]:
    """Return the offsets by partition. Raises `InvalidOption` if a checkpoint's are not of that form."""
    try:
        return flat(offsets)
    except (AttributeError, TypeError, ValueError):
        raise InvalidOption(
            f"the checkpoint has {offsets!r} instead of offsets by partition: {ANOTHER_QUERY}"
        ) from None


def format_offsets(offsets: Offsets) -> str:
    """Return `nested` as JSON without spaces."""
    return json.dumps(nested(offsets), separators=(",", ":"))


def parse_offsets(text: str, option: str) -> dict[TopicPartition, int]:
    """Parse a user's JSON of offsets or times. Raises `InvalidOption`."""
    found: dict[TopicPartition, int] = {}
    example = '{"topic":{"0":23,"1":42}}'
    for topic, partitions in _object(text, option, example).items():
        if not isinstance(partitions, dict):
            raise InvalidOption(
                f"option {option}: topic {topic!r} has {partitions!r}; write it like {example}"
            )
        for partition, number in partitions.items():
            where = whole_number(partition, 0, MAX_INT)
            if where is None or isinstance(number, bool) or not isinstance(number, int):
                raise InvalidOption(
                    f"option {option}: partition {partition!r} of {topic!r} has {number!r}; both must be "
                    f"whole numbers, like {example}"
                )
            if number > MAX_LONG:
                raise InvalidOption(f"option {option}: {topic}-{where} has {number}, more than {MAX_LONG}")
            if TopicPartition(topic, where) in found:
                raise InvalidOption(f"option {option} names {topic}-{where} twice")
            found[TopicPartition(topic, where)] = number
    return found


def parse_partitions(text: str, option: str) -> tuple[TopicPartition, ...]:
    """Parse `{"topic":[0,1]}` into sorted partitions. Raises `InvalidOption`."""
    example = '{"topic":[0,1]}'
    found: set[TopicPartition] = set()
    for topic, partitions in _object(text, option, example).items():
        if not isinstance(partitions, list) or not all(
            type(each) is int and 0 <= each <= MAX_INT for each in partitions
        ):
            raise InvalidOption(
                f"option {option}: topic {topic!r} has {partitions!r}; write it like {example}"
            )
        found.update(TopicPartition(topic, partition) for partition in partitions)
    if not found:
        raise InvalidOption(f"option {option} names no partition; write it like {example}")
    return tuple(sorted(found))


def _object(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_with_each_name_once)
    except _NamedTwice as error:
        raise InvalidOption(f"option {option} is {text!r}: {error}") from error
    except ValueError as error:
        raise InvalidOption(
            f"option {option} is {text!r}, not JSON ({error}); write it like {example}"
        ) from error
    if not isinstance(value, dict):
        raise InvalidOption(f"option {option} is {text!r}; write it like {example}")
    return value


class _NamedTwice(ValueError):
    pass


def _with_each_name_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise _NamedTwice(f"{name!r} is named twice")
    return dict(pairs)


# --- positions to offsets -----------------------------------------------------------------------------------


def times_of(position: Position, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the times to look up before `starting` or `ending` is called. Raises `InvalidOption`."""
    partitions = list(partitions)
    match position:
        case AtTime(timestamp_ms, _):
            times_ms: Offsets = dict.fromkeys(partitions, timestamp_ms)
        case AtTimes(times_ms, option):
            _check_all_named(times_ms, partitions, option)
        case _:
            times_ms = {}
    return {each: times_ms[each] for each in partitions if times_ms.get(each, LATEST) >= 0}


def starting(
    position: Position, bounds: Mapping[TopicPartition, Bounds], found: Times, *, latest_if_none: bool
) -> dict[TopicPartition, int]:
    """Return the first offset to read in each partition of `bounds`.

    `found` has the offsets for `times_of`; without one, reading starts at the end if `latest_if_none`. Raises
    `NoMatchingTime`, or `InvalidOption` for partitions that are not named.
    """
    offsets: dict[TopicPartition, int] = {}
    for partition, offset in _resolved(position, bounds, found).items():
        if offset is None and not latest_if_none:
            assert isinstance(position, AtTime | AtTimes), "only times may have no offset"
            raise NoMatchingTime(
                f"{partition} has no record at or after {times_of(position, bounds)[partition]} ms (option "
                f"{position.option}); give an earlier time, or set startingOffsetsByTimestampStrategy to "
                "latest to start at the end of that partition"
            )
        offsets[partition] = bounds[partition].end_offset if offset is None else offset
    return offsets


def ending(
    position: Position, bounds: Mapping[TopicPartition, Bounds], found: Times
) -> dict[TopicPartition, int]:
    """Return the end, exclusive, of each partition of `bounds`; the log's end if no record is late enough."""
    resolved = _resolved(position, bounds, found)
    return {
        partition: bounds[partition].end_offset if offset is None else offset
        for partition, offset in resolved.items()
    }


def _resolved(
    position: Position, bounds: Mapping[TopicPartition, Bounds], found: Times
) -> dict[TopicPartition, int | None]:
    """Return an offset for each partition; None if no record is at or after the time."""
    times_ms: Offsets = {}
    match position:
        case Earliest():
            return {partition: bound.start_offset for partition, bound in bounds.items()}
        case Latest():
            return {partition: bound.end_offset for partition, bound in bounds.items()}
        case AtOffsets(offsets, option):
            _check_all_named(offsets, bounds, option)
            return {each: _named(bound, offsets[each], offsets[each]) for each, bound in bounds.items()}
        case AtTimes(times_ms, option):
            _check_all_named(times_ms, bounds, option)
        case AtTime(timestamp_ms):
            times_ms = dict.fromkeys(bounds, timestamp_ms)
    return {each: _named(bound, times_ms[each], found.get(each)) for each, bound in bounds.items()}


def _named(bound: Bounds, number: int, other: T) -> int | T:
    """Return the offset that -1 or -2 means, `other` for any other number."""
    return {LATEST: bound.end_offset, EARLIEST: bound.start_offset}.get(number, other)


def _check_all_named(named: Offsets, partitions: Iterable[TopicPartition], option: str) -> None:
    wanted = set(partitions)
    if named.keys() != wanted:
        missing = ", ".join(map(str, sorted(wanted - named.keys()))) or "none"
        unknown = ", ".join(map(str, sorted(named.keys() - wanted))) or "none"
        raise InvalidOption(
            f"option {option} must name exactly the partitions that are read (missing: {missing}; not read: "
            f"{unknown}); for offsets, -2 is earliest and -1 latest"
        )


def check_order(
    first: Position,
    last: Position,
    bounds: Mapping[TopicPartition, Bounds],
    starts: Offsets,
    ends: Offsets,
) -> Iterator[Missing]:
    """Yield the losses in a batch from `first` to `last`: bounds past each other or past the readable end.

    Raises `InvalidOption` if the options contradict each other.
    """
    for where in sorted(starts):
        start, end, bound = starts[where], ends[where], bounds[where]
        if start > bound.end_offset and isinstance(first, AtOffsets):
            yield Missing(*where, bound.end_offset, start, Cause.TRUNCATED, "or the topic was recreated")
        elif start > bound.end_offset:
            continue  # a time that was looked up later: a record came after the bounds were taken
        elif start > end and isinstance(first, Earliest):
            yield Missing(*where, end, start, Cause.EXPIRED, f"the batch was to end at {end}")
        elif start > end:
            raise InvalidOption(
                f"{where}: the batch would start at offset {start}, past its end at {end}; correct the "
                "starting or the ending option"
            )
        elif end > bound.end_offset and isinstance(last, AtOffsets):
            detail = f"it is readable up to offset {bound.end_offset} now"
            yield Missing(*where, bound.end_offset, end, Cause.TRUNCATED, detail)


# --- lag ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Behind:
    """The lag of one source of a query: the offsets of each partition that no batch has read yet."""

    partitions: Mapping[TopicPartition, int]

    @property
    def total(self) -> int:
        """The lag of all partitions together, in offsets."""
        return sum(self.partitions.values())

    @property
    def largest(self) -> int:
        """The lag of the partition that is furthest behind, in offsets."""
        return max(self.partitions.values(), default=0)

    def metrics(self) -> dict[str, str]:
        """Return the lag under the names, and in the form, of Spark's Kafka source."""
        sizes = list(self.partitions.values()) or [0]
        return {
            "minOffsetsBehindLatest": str(min(sizes)),
            "maxOffsetsBehindLatest": str(max(sizes)),
            "avgOffsetsBehindLatest": str(sum(sizes) / len(sizes)),
        }


def lags(progress: Mapping[str, Any] | None) -> list[Behind]:
    """Return the lag of each source of a query, in order, from `query.lastProgress` or a listener's event.

    Sources of other formats have no partitions here, whatever their offsets look like. Before the first
    batch of a query its progress is None, and nothing is known. Raises `TypeError` for anything else.
    """
    if progress is None:
        return []
    if not isinstance(progress, Mapping):
        raise TypeError(f"pass query.lastProgress, not {progress!r:.100}")
    return [_behind(source) for source in progress.get("sources", ())]


def _behind(source: Mapping[str, Any]) -> Behind:
    end, latest = (_reported(source.get(name)) for name in ("endOffset", "latestOffset"))
    return Behind({each: max(offset - end.get(each, 0), 0) for each, offset in sorted(latest.items())})


def _reported(offsets: Any) -> dict[TopicPartition, int]:
    try:
        return flat(json.loads(offsets) if isinstance(offsets, str) else offsets)
    except (AttributeError, TypeError, ValueError):
        return {}

"""Offsets as options say them, and what they come to once the partitions' bounds and times are known.

    {"orders":{"0":23,"1":-2}}      offsets; -1 latest, -2 earliest      written: sorted, one past the last
    {"orders":{"0":1700000000000}}  times in epoch milliseconds          record, as Spark's own source does

Pure. Every partition that is read must be named where any is, as there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.errors import InvalidOption, NoMatchingTime
from logstore.spark.logs import Bounds

LATEST: Final = -1
EARLIEST: Final = -2

Offsets: TypeAlias = Mapping[TopicPartition, int]
Times: TypeAlias = Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True)
class Earliest:
    """From the log start."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end, as it is when asked."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Given offsets, `LATEST` and `EARLIEST` among them."""

    offsets: Offsets
    option: str


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that is at least so young, in every partition; epoch milliseconds."""

    timestamp_ms: int
    option: str


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The same, a time a partition."""

    times_ms: Offsets
    option: str


Position: TypeAlias = Earliest | Latest | AtOffsets | AtTime | AtTimes


# --- JSON ---------------------------------------------------------------------------------------------------


def nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    """`{"topic": {"0": offset}}`, topics and partitions sorted."""
    made: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        made.setdefault(topic, {})[str(partition)] = offset
    return made


def flat(offsets: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """The other way."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }


def format_offsets(offsets: Offsets) -> str:
    """The JSON of `nested`, without blanks."""
    return json.dumps(nested(offsets), separators=(",", ":"))


def parse_offsets(text: str, option: str) -> dict[TopicPartition, int]:
    """The other way, of JSON that a user wrote. Raises `InvalidOption`."""
    found: dict[TopicPartition, int] = {}
    example = '{"topic":{"0":23,"1":42}}'
    for topic, partitions in _object(text, option, example).items():
        if not isinstance(partitions, dict):
            raise InvalidOption(f"option {option}: {topic!r} has {partitions!r}; write it like {example}")
        for partition, number in partitions.items():
            if not partition.isdecimal() or isinstance(number, bool) or not isinstance(number, int):
                raise InvalidOption(
                    f"option {option}: partition {partition!r} of {topic!r} has {number!r}; both are whole "
                    f"numbers, like {example}"
                )
            found[TopicPartition(topic, int(partition))] = number
    return found


def parse_partitions(text: str, option: str) -> tuple[TopicPartition, ...]:
    """`{"topic":[0,1]}`, sorted. Raises `InvalidOption`."""
    example = '{"topic":[0,1]}'
    found: set[TopicPartition] = set()
    for topic, partitions in _object(text, option, example).items():
        if not isinstance(partitions, list) or not all(
            isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in partitions
        ):
            raise InvalidOption(f"option {option}: {topic!r} has {partitions!r}; write it like {example}")
        found.update(TopicPartition(topic, partition) for partition in partitions)
    if not found:
        raise InvalidOption(f"option {option} names no partition; write it like {example}")
    return tuple(sorted(found))


def _object(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidOption(
            f"option {option} is {text!r}, no JSON ({error}); write it like {example}"
        ) from error
    if not isinstance(value, dict):
        raise InvalidOption(f"option {option} is {text!r}; write it like {example}")
    return value


# --- positions to offsets -----------------------------------------------------------------------------------


def times_of(position: Position, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The times that must be looked up before `starting` or `ending` can be asked. Raises `InvalidOption`."""
    match position:
        case AtTime(timestamp_ms, _):
            return dict.fromkeys(partitions, timestamp_ms)
        case AtTimes(times_ms, option):
            partitions = list(partitions)
            _check_all_named(times_ms, partitions, option)
            return {partition: times_ms[partition] for partition in partitions}
    return {}


def starting(
    position: Position, bounds: Mapping[TopicPartition, Bounds], found: Times, *, latest_if_none: bool
) -> dict[TopicPartition, int]:
    """Where to begin in each partition of `bounds`.

    `found` is what was looked up for `times_of`; where nothing was, the end if `latest_if_none`. Raises
    `NoMatchingTime`, or `InvalidOption` for partitions that are not named.
    """
    offsets: dict[TopicPartition, int] = {}
    match position:
        case Earliest():
            offsets = {partition: bound.start_offset for partition, bound in bounds.items()}
        case Latest():
            offsets = {partition: bound.end_offset for partition, bound in bounds.items()}
        case AtOffsets():
            offsets = _at_offsets(position, bounds)
        case AtTime() | AtTimes():
            times_ms = times_of(position, bounds)
            for partition, bound in bounds.items():
                offset = found.get(partition)
                if offset is None and not latest_if_none:
                    raise NoMatchingTime(
                        f"no record of {partition} is as young as {times_ms[partition]} ms, which "
                        f"{position.option} asks for; give an earlier time, or set "
                        "startingOffsetsByTimestampStrategy to latest to begin at the end there"
                    )
                offsets[partition] = bound.end_offset if offset is None else offset
    return offsets


def ending(
    position: Position, bounds: Mapping[TopicPartition, Bounds], found: Times
) -> dict[TopicPartition, int]:
    """Where to end in each partition of `bounds`, exclusive; the end where no record is that young."""
    match position:
        case AtOffsets():
            return _at_offsets(position, bounds)
        case AtTime() | AtTimes():
            times_of(position, bounds)  # every partition is named
            ends: dict[TopicPartition, int] = {}
            for partition, bound in bounds.items():
                offset = found.get(partition)
                ends[partition] = bound.end_offset if offset is None else offset
            return ends
    return {partition: bound.end_offset for partition, bound in bounds.items()}


def _at_offsets(position: AtOffsets, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, int]:
    _check_all_named(position.offsets, bounds, position.option)
    special = {
        partition: {LATEST: bound.end_offset, EARLIEST: bound.start_offset}
        for partition, bound in bounds.items()
    }
    return {
        partition: special[partition].get(position.offsets[partition], position.offsets[partition])
        for partition in bounds
    }


def _check_all_named(named: Offsets, partitions: Iterable[TopicPartition], option: str) -> None:
    wanted = set(partitions)
    if named.keys() != wanted:
        missing = ", ".join(map(str, sorted(wanted - named.keys()))) or "none"
        strange = ", ".join(map(str, sorted(named.keys() - wanted))) or "none"
        raise InvalidOption(
            f"option {option} must name the partitions that are read, all and only those (missing: "
            f"{missing}; not among them: {strange}); for offsets, -2 is earliest and -1 latest"
        )

"""Every option of a read, parsed once: names in any letter case, as in Spark's own source for Kafka.

What it refuses is refused here, before anything is opened; a name that nobody knows is refused too, for a
misspelt `maxRecordsPerPartition` would otherwise be no cap at all. Options of writes are passed over, so
that one set of options can serve both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, TypeVar

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.columns import SEGMENT, parse_columns
from logstore.spark.errors import InvalidOption, UnknownTopic
from logstore.spark.offsets import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTime,
    AtTimes,
    Earliest,
    Latest,
    Position,
    parse_offsets,
    parse_partitions,
)

T = TypeVar("T")

KAFKA: Final = "kafka."
BOOTSTRAP_SERVERS: Final = "kafka.bootstrap.servers"
_PATHS: Final = "paths"
"""Where Spark puts the list of `load([a, b])`, as JSON."""

SOURCE_OPTIONS: Final = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "path",
    _PATHS,
    "columns",
    "pushdown",
    "isolation",
    "commitGroup",
    "metadataIntervalMs",
)
SINK_OPTIONS: Final = (
    "topic",
    "partitions",
    "includeTimestamp",
    "txnAppId",
    "txnVersion",
    "stagingPath",
    "checkpointLocation",
    "queryName",
)
_STRATEGIES: Final = ("assign", "subscribe", "subscribePattern")
_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "metadataIntervalMs",
    "commitGroup",
)
_ENDINGS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")

_REFUSED: Final = {
    "kafka.auto.offset.reset": "set startingOffsets to say where to begin; it is Spark that keeps the place",
    "kafka.key.deserializer": "keys are bytes; use Spark's functions to read them",
    "kafka.value.deserializer": "values are bytes; use Spark's functions to read them",
    "kafka.enable.auto.commit": "a read commits nothing; leave it out",
    "kafka.interceptor.classes": "nothing may change the records on their way; leave it out",
}
INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state")
"""A pattern does not find them; by name they can be read."""

_DURATION = re.compile(r"([0-9]+)\s*([a-z]*)", re.IGNORECASE)
_UNITS_MS: Final = {
    "ms": 1, "millis": 1, "millisecond": 1, "milliseconds": 1,
    "": 1000, "s": 1000, "sec": 1000, "secs": 1000, "second": 1000, "seconds": 1000,
    "m": 60_000, "min": 60_000, "mins": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hr": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip


class Isolation(StrEnum):
    """Whether records of undecided and aborted transactions are read."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which partitions are read: those in `partitions`, of `topics`, or of topics that `pattern` matches."""

    partitions: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    pattern: str = ""

    def choose(self, available: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of `available` that are meant, sorted. None of them need be there."""
        if self.pattern:
            match = re.compile(self.pattern).fullmatch
            return sorted(
                each for each in available if each.topic not in INTERNAL_TOPICS and match(each.topic)
            )
        named = frozenset((*self.partitions, *self.topics))
        return sorted(each for each in available if each in named or each.topic in named)

    def check(self, available: Sequence[TopicPartition], where: str) -> None:
        """Raise `UnknownTopic` for what is named and not `available`."""
        topics = {each.topic for each in available}
        missing = [topic for topic in self.topics if topic not in topics]
        missing += [str(each) for each in self.partitions if each not in available]
        if missing:
            there = ", ".join(sorted(topics)[:20]) or "none"
            raise UnknownTopic(f"{where} has no {', '.join(missing)}; topics there: {there}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one read; times in milliseconds, None where nothing was said.

    Either `paths` or `bootstrap_servers` is empty. `kafka` holds the other `kafka.*` options, without
    that prefix and in lower case.
    """

    paths: tuple[str, ...] = ()
    bootstrap_servers: str = ""
    selection: Selection
    starting: Position
    ending: Position
    latest_if_no_time: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    metadata_interval_ms: int = 1_000
    poll_timeout_ms: int = 120_000
    fetch_retries: int = 3
    fetch_retry_interval_ms: int = 10
    group_id_prefix: str = "spark-kafka-source"
    group_id: str | None = None
    commit_group: str | None = None
    columns: tuple[str, ...]
    pushdown: bool = False
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    kafka: Mapping[str, str]
    ignored: tuple[str, ...] = ()
    """Options of streams that a batch was given: they do nothing there."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
        """Read Spark's options; None for `streaming`: it is not known yet. Raises `InvalidOption`."""
        given = Given(options)
        given.check_names(_REFUSED)
        if streaming:
            for name in _ENDINGS:
                if given.has(name):
                    raise InvalidOption(
                        f"option {name} is for batch reads: a stream has no end; leave it out"
                    )
        paths = _paths(given)
        servers = given.text(BOOTSTRAP_SERVERS, "")
        if bool(paths) == bool(servers):
            said = "both are given" if paths else "neither is given"
            raise InvalidOption(
                f"a read is from directories (option path) or from brokers (option {BOOTSTRAP_SERVERS}), and "
                f"{said}; give one of the two"
            )
        if paths and given.has("commitGroup"):
            raise InvalidOption("option commitGroup: groups are kept by brokers, and this reads directories")
        starting = _position(given, "starting", Latest() if streaming else Earliest())
        ending = _position(given, "ending", Latest())
        if streaming is False:
            _check_batch_bounds(starting, ending)
        columns = parse_columns(
            given.text("columns", None), include_headers=given.flag("includeHeaders", False)
        )
        if servers and SEGMENT in columns:
            raise InvalidOption(
                "column segment says which file a record is in, which no broker tells; read by path"
            )
        strategy = given.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        return cls(
            paths=paths,
            bootstrap_servers=servers,
            selection=_selection(given),
            starting=starting,
            ending=ending,
            latest_if_no_time=strategy == "latest",
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            min_partitions=given.number("minPartitions", None),
            max_records_per_partition=given.number("maxRecordsPerPartition", None),
            max_offsets_per_trigger=given.number("maxOffsetsPerTrigger", None),
            min_offsets_per_trigger=given.number("minOffsetsPerTrigger", None, low=0),
            max_trigger_delay_ms=given.parsed("maxTriggerDelay", _duration_ms, 15 * 60_000),
            metadata_interval_ms=given.number("metadataIntervalMs", 1_000, low=0),
            poll_timeout_ms=given.number("kafkaConsumer.pollTimeoutMs", 120_000),
            fetch_retries=given.number("fetchOffset.numRetries", 3, low=0),
            fetch_retry_interval_ms=given.number("fetchOffset.retryIntervalMs", 10, low=0),
            group_id_prefix=given.text("groupIdPrefix", "spark-kafka-source"),
            group_id=given.text("kafka.group.id", None),
            commit_group=given.text("commitGroup", None),
            columns=columns,
            pushdown=given.flag("pushdown", False),
            isolation=_isolation(given),
            kafka=given.kafka(),
            ignored=() if streaming else tuple(name for name in _STREAM_ONLY if given.has(name)),
        )


class Given:
    """What was given, by name; a value that is no such thing is an `InvalidOption`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def check_names(self, refused: Mapping[str, str]) -> None:
        """Raise `InvalidOption` for a name that nobody knows, and for one of `refused`, which says why."""
        known = {name.lower(): name for name in (*SOURCE_OPTIONS, *SINK_OPTIONS)}
        for name in sorted(self._values):
            if name in refused:
                raise InvalidOption(f"option {name} is not supported: {refused[name]}")
            if name not in known and not name.startswith(KAFKA):
                close = get_close_matches(name, known, 1)
                hint = f"did you mean {known[close[0]]}?" if close else "docs/spark.md has them all"
                raise InvalidOption(f"there is no option {name}: {hint}")

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str, default: T) -> str | T:
        return self._values.get(name.lower(), default)

    def parsed(self, name: str, parse: Callable[[str, str], T], default: T) -> T:
        return parse(name, self._values[name.lower()]) if self.has(name) else default

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def choice(self, name: str, values: Sequence[str], default: str) -> str:
        value = self.text(name, default).strip().lower()
        if value not in values:
            raise InvalidOption(f"option {name} is {value!r}; it takes {' or '.join(values)}")
        return value

    def number(self, name: str, default: T, *, low: int = 1) -> int | T:
        return whole_number(name, self._values[name.lower()], low=low) if self.has(name) else default

    def kafka(self) -> dict[str, str]:
        return {
            name.removeprefix(KAFKA): value
            for name, value in sorted(self._values.items())
            if name.startswith(KAFKA) and name != BOOTSTRAP_SERVERS
        }


def whole_number(name: str, text: str, *, low: int = 1) -> int:
    """The value of option `name`. Raises `InvalidOption` below `low` or past 64 bits."""
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value < 2**63:
        raise InvalidOption(f"option {name} is {text!r}; it takes a whole number from {low} on")
    return value


def _duration_ms(name: str, text: str) -> int:
    match = _DURATION.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS_MS:
        raise InvalidOption(f"option {name} is {text!r}; it takes a duration like 90s, 15m or 1h")
    return int(match[1]) * _UNITS_MS[match[2].lower()]


def _paths(given: Given) -> tuple[str, ...]:
    paths = [given.text("path", "")] if given.has("path") else []
    if given.has(_PATHS):
        text = given.text(_PATHS, "")
        try:
            listed = json.loads(text)
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise InvalidOption(f"option {_PATHS} is {text!r}; give the list to load([...])")
        paths += listed
    if any(not path.strip() for path in paths):
        raise InvalidOption("option path is empty; give a log dir or a partition's directory")
    return tuple(paths)


def _selection(given: Given) -> Selection:
    named = [name for name in _STRATEGIES if given.has(name)]
    if len(named) != 1:
        said = f"{' and '.join(named)} are given" if named else "none is given"
        raise InvalidOption(
            f"exactly one of the options {', '.join(_STRATEGIES)} says what to read, and {said}"
        )
    name = named[0]
    text = given.text(name, "")
    match name:
        case "assign":
            return Selection(partitions=parse_partitions(text, name))
        case "subscribe":
            topics = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
            if not topics:
                raise InvalidOption("option subscribe names no topic; write it like a,b")
            return Selection(topics=topics)
    pattern = text.strip()
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidOption(f"option {name} is {text!r}, no regular expression: {error}") from error
    if not pattern:
        raise InvalidOption("option subscribePattern is empty; .* is every topic")
    return Selection(pattern=pattern)


def _position(given: Given, word: str, default: Position) -> Position:
    """Where to start or end; the options by time go first, as there."""
    option = f"{word}Timestamp"
    if given.has(option):
        return AtTime(given.number(option, 0, low=0), option)
    option = f"{word}OffsetsByTimestamp"
    if given.has(option):
        times_ms = parse_offsets(given.text(option, ""), option)
        if any(time < 0 for time in times_ms.values()):
            raise InvalidOption(f"option {option} has a negative time; times are epoch milliseconds")
        return AtTimes(times_ms, option)
    option = f"{word}Offsets"
    if not given.has(option):
        return default
    text = given.text(option, "").strip()
    match text.lower():
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
    offsets = parse_offsets(text, option)
    if any(offset < EARLIEST for offset in offsets.values()):
        raise InvalidOption(f"option {option} has an offset below -2; -2 is earliest, -1 latest")
    return AtOffsets(offsets, option)


def _check_batch_bounds(starting: Position, ending: Position) -> None:
    late = "a batch cannot start at latest: it would be empty; give earliest, offsets or a time"
    early = "a batch cannot end at earliest: it would be empty; give latest, offsets or a time"
    match starting:
        case Latest():
            raise InvalidOption(f"option startingOffsets: {late}")
        case AtOffsets(offsets, option) if LATEST in offsets.values():
            raise InvalidOption(f"option {option}: {late}")
    match ending:
        case Earliest():
            raise InvalidOption(f"option endingOffsets: {early}")
        case AtOffsets(offsets, option) if EARLIEST in offsets.values():
            raise InvalidOption(f"option {option}: {early}")


def _isolation(given: Given) -> Isolation:
    names = ("isolation", "kafka.isolation.level")
    values = {given.choice(name, tuple(Isolation), "") for name in names if given.has(name)}
    if len(values) > 1:
        raise InvalidOption(f"options {' and '.join(names)} contradict each other; give one")
    return Isolation(values.pop()) if values else Isolation.READ_UNCOMMITTED

"""Parse the options of a read. As in Spark's Kafka source, letter case of names makes no difference.

Invalid options fail here, before anything is opened. So do unknown names: a misspelt `maxRecordsPerPartition`
would otherwise set no limit. Options of writes are ignored, so one set of options can serve both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from logstore.arguments import whole_number
from logstore.config import MAX_LONG
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.columns import SEGMENT, parse_columns
from logstore.spark.errors import InvalidOption, UnknownTopic
from logstore.spark.java_patterns import finder
from logstore.spark.logs import LOGGER
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
"""Spark passes the list of `load([a, b])` in it, as JSON."""

SOURCE_OPTIONS: Final = (
    "assign", "subscribe", "subscribePattern", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsets", "startingOffsetsByTimestampStrategy", "endingTimestamp", "endingOffsetsByTimestamp",
    "endingOffsets", "failOnDataLoss", "minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "includeHeaders", "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix", "path", _PATHS, "columns",
    "pushdown", "isolation", "commitGroup", "metadataIntervalMs", "tier",
)  # fmt: skip
SINK_OPTIONS: Final = (
    "topic", "partitions", "delivery", "includeTimestamp", "txnAppId", "txnVersion", "txnSameRows",
    "stagingPath", "checkpointLocation", "queryName",
)  # fmt: skip
_STRATEGIES: Final = ("assign", "subscribe", "subscribePattern")
_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "metadataIntervalMs", "commitGroup",
)  # fmt: skip
_ENDINGS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")

_REFUSED: Final = {
    "kafka.auto.offset.reset": "set startingOffsets instead; Spark stores the position",
    "kafka.key.deserializer": "keys are bytes; decode them with Spark's functions",
    "kafka.value.deserializer": "values are bytes; decode them with Spark's functions",
    "kafka.enable.auto.commit": "a read commits nothing; remove the option",
    "kafka.interceptor.classes": "records are read unchanged; remove the option",
}
INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state")
"""A pattern does not match them; by name they are readable."""

_WHERE_LOGS_ARE: Final = (
    "name a log dir, whose directories are called TOPIC-PARTITION, or brokers with such a topic"
)
_DURATION = re.compile(r"([0-9]+)\s*([a-z]*)", re.IGNORECASE)
_UNITS_MS: Final = {
    "ms": 1, "millis": 1, "millisecond": 1, "milliseconds": 1,
    "": 1000, "s": 1000, "sec": 1000, "secs": 1000, "second": 1000, "seconds": 1000,
    "m": 60_000, "min": 60_000, "mins": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hr": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip


class Isolation(StrEnum):
    """Whether to read records of open and aborted transactions."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class Selection:
    """The partitions to read: those in `partitions`, of `topics`, or of topics in whose names Java would find
    `pattern`.
    """

    partitions: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    pattern: str = ""

    def choose(self, available: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the selected ones of `available`, sorted; selected partitions may be missing."""
        if self.pattern:
            is_found = finder(self.pattern)
            return sorted(
                each for each in available if each.topic not in INTERNAL_TOPICS and is_found(each.topic)
            )
        named = frozenset((*self.partitions, *self.topics))
        return sorted(each for each in available if each in named or each.topic in named)

    def check(self, available: Sequence[TopicPartition], where: str) -> None:
        """Raise `UnknownTopic` if a named topic or partition is not `available` in `where`.

        A pattern that matches no topic is a warning, because topics may come later.
        """
        topics = {each.topic for each in available}
        missing = [topic for topic in self.topics if topic not in topics]
        missing += [str(each) for each in self.partitions if each not in available]
        existing = ", ".join(sorted(topics)[:20]) or "none"
        if self.pattern and not self.choose(available):
            LOGGER.warning(
                "option subscribePattern: %r matches no topic; the topics of %s: %s",
                self.pattern,
                where,
                existing,
            )
        if missing and not available:
            raise UnknownTopic(f"{where} has no {', '.join(missing)}, and no other topic; {_WHERE_LOGS_ARE}")
        if missing:
            close = [
                each for name in self.topics if name in missing for each in get_close_matches(name, topics, 1)
            ]
            hint = f"did you mean {', '.join(close)}? Its topics" if close else "its topics"
            raise UnknownTopic(f"{where} has no {', '.join(missing)}; {hint}: {existing}")


class Given:
    """The given options by name. Each method raises `InvalidOption` for a value of the wrong kind."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def check_names(self, refused: Mapping[str, str]) -> None:
        """Raise `InvalidOption` for unknown names, and for `refused` ones with the reason given there."""
        known = {name.lower(): name for name in (*SOURCE_OPTIONS, *SINK_OPTIONS)}
        for name in sorted(self._values):
            if name in refused:
                raise InvalidOption(f"option {name} is not supported: {refused[name]}")
            if name not in known and not name.startswith(KAFKA):
                close = get_close_matches(name, known, 1)
                hint = f"did you mean {known[close[0]]}?" if close else "docs/spark.md lists them all"
                raise InvalidOption(f"unknown option {name}: {hint}")

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
            raise InvalidOption(f"option {name} is {value!r}; use {' or '.join(values)}")
        return value

    def number(self, name: str, default: T, *, low: int = 1) -> int | T:
        return number_option(name, self._values[name.lower()], low=low) if self.has(name) else default

    def count(self, name: str, default: T) -> int | T:
        return self.number(name, default, low=0)

    def duration_ms(self, name: str, default: int) -> int:
        return self.parsed(name, _duration_ms, default)

    def kafka(self) -> dict[str, str]:
        return {
            name.removeprefix(KAFKA): value
            for name, value in sorted(self._values.items())
            if name.startswith(KAFKA) and name != BOOTSTRAP_SERVERS
        }


def _option(name: str, read: Callable[[Given, str, Any], Any], default: Any) -> Any:
    """Return a field that `read` reads from option `name`."""
    return field(default=default, metadata={"option": name, "read": read})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one read; times in milliseconds, None for options that were not given.

    Either `paths` or `bootstrap_servers` is empty. `kafka` has the other `kafka.*` options, without that
    prefix and in lower case.
    """

    paths: tuple[str, ...] = ()
    bootstrap_servers: str = ""
    selection: Selection
    starting: Position
    ending: Position
    latest_if_no_time: bool = False
    fail_on_data_loss: bool = _option("failOnDataLoss", Given.flag, True)
    min_partitions: int | None = _option("minPartitions", Given.number, None)
    max_records_per_partition: int | None = _option("maxRecordsPerPartition", Given.number, None)
    max_offsets_per_trigger: int | None = _option("maxOffsetsPerTrigger", Given.number, None)
    min_offsets_per_trigger: int | None = _option("minOffsetsPerTrigger", Given.count, None)
    max_trigger_delay_ms: int = _option("maxTriggerDelay", Given.duration_ms, 15 * 60_000)
    metadata_interval_ms: int = _option("metadataIntervalMs", Given.count, 1_000)
    poll_timeout_ms: int = _option("kafkaConsumer.pollTimeoutMs", Given.number, 120_000)
    fetch_retries: int = _option("fetchOffset.numRetries", Given.count, 3)
    fetch_retry_interval_ms: int = _option("fetchOffset.retryIntervalMs", Given.count, 10)
    group_id_prefix: str = _option("groupIdPrefix", Given.text, "spark-kafka-source")
    group_id: str | None = _option("kafka.group.id", Given.text, None)
    commit_group: str | None = _option("commitGroup", Given.text, None)
    tier: str | None = _option("tier", Given.text, None)
    columns: tuple[str, ...]
    pushdown: bool = False
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    kafka: Mapping[str, str]
    ignored: tuple[str, ...] = ()
    """stream options given to a batch, where they have no effect"""

    @property
    def source(self) -> str:
        """The source of a read, for messages: the directories or the brokers."""
        return self.bootstrap_servers or ", ".join(self.paths)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
        """Read Spark's options; `streaming` is None while it is not known. Raises `InvalidOption`."""
        given = Given(options)
        given.check_names(_REFUSED)
        if streaming:
            for name in _ENDINGS:
                if given.has(name):
                    raise InvalidOption(
                        f"option {name} is for batch reads only: a stream has no end; remove it"
                    )
        paths = _paths(given)
        servers = given.text(BOOTSTRAP_SERVERS, "")
        check_one_place("a read takes directories", paths, servers)
        if paths and given.has("commitGroup"):
            raise InvalidOption("option commitGroup needs brokers; directories have no groups")
        starting = _position(given, "starting", Latest() if streaming else Earliest())
        ending = _position(given, "ending", Latest())
        if streaming is False:
            _check_batch_bounds(starting, ending)
        columns = parse_columns(
            given.text("columns", None), include_headers=given.flag("includeHeaders", False)
        )
        if servers and SEGMENT in columns:
            raise InvalidOption("column segment needs option path: brokers do not report a record's file")
        least, most = (
            given.number(f"{each}OffsetsPerTrigger", None, low=low) for each, low in (("min", 0), ("max", 1))
        )
        if least is not None and most is not None and least > most:
            raise InvalidOption(
                f"option minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, which is {most}"
            )
        strategy = given.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        return cls(
            paths=paths,
            bootstrap_servers=servers,
            selection=_selection(given),
            starting=starting,
            ending=ending,
            latest_if_no_time=strategy == "latest",
            columns=columns,
            pushdown=_pushdown(given),
            isolation=_isolation(given),
            kafka=given.kafka(),
            ignored=() if streaming else tuple(name for name in _STREAM_ONLY if given.has(name)),
            **{
                each.name: each.metadata["read"](given, each.metadata["option"], each.default)
                for each in fields(cls)
                if each.metadata
            },
        )


def number_option(name: str, text: str, *, low: int = 1) -> int:
    """Return the value of option `name`. Raises `InvalidOption` below `low` or above 64 bits."""
    if (value := whole_number(text, low, MAX_LONG)) is None:
        raise InvalidOption(f"option {name} is {text!r}; it must be a whole number, {low} or more")
    return value


def check_one_place(what: str, paths: Sized, servers: str) -> None:
    """Raise `InvalidOption` unless exactly one of paths and brokers is given; `what` begins the message."""
    if bool(paths) == bool(servers):
        given = "both are given" if servers else "neither is given"
        raise InvalidOption(
            f"{what} (option path) or brokers (option {BOOTSTRAP_SERVERS}): {given}; give one of the two"
        )


def local_path(text: str) -> str | None:
    """Return the directory of a path or `file:` URI, without a trailing slash; None for anything else."""
    try:
        parts = urlsplit(text.replace("#", "%23").replace("?", "%3F"))
    except ValueError:  # a malformed host, such as `file://[x`
        return None
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        text = unquote(parts.path)
    elif len(parts.scheme) > 1 and text[len(parts.scheme) :].startswith(":/"):
        return None
    return text.rstrip("/") or "/"


def _duration_ms(name: str, text: str) -> int:
    match = _DURATION.fullmatch(text.strip())
    count = whole_number(match[1], 0) if match is not None else None
    if match is None or count is None or match[2].lower() not in _UNITS_MS:
        raise InvalidOption(f"option {name} is {text!r}; use a duration like 90s, 15m or 1h")
    return count * _UNITS_MS[match[2].lower()]


def _paths(given: Given) -> tuple[str, ...]:
    paths = [given.text("path", "")] if given.has("path") else []
    if given.has(_PATHS):
        text = given.text(_PATHS, "")
        try:
            listed = json.loads(text)
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise InvalidOption(f"option {_PATHS} is {text!r}; pass the list to load([...])")
        paths += listed
    if any(not path.strip() for path in paths):
        raise InvalidOption("option path is empty; name a log dir or a partition's directory")
    return tuple(paths)


def _selection(given: Given) -> Selection:
    named = [name for name in _STRATEGIES if given.has(name)]
    if len(named) != 1:
        found = " and ".join(named) or "none"
        raise InvalidOption(f"give exactly one of the options {', '.join(_STRATEGIES)} (given: {found})")
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
    if not pattern:
        raise InvalidOption("option subscribePattern is empty; use .* for every topic")
    finder(pattern)
    return Selection(pattern=pattern)


def _position(given: Given, word: str, default: Position) -> Position:
    """Return the start or end; as in Spark's Kafka source, options by time take precedence."""
    option = f"{word}Timestamp"
    if given.has(option):
        return AtTime(given.number(option, 0, low=EARLIEST), option)
    option = f"{word}OffsetsByTimestamp"
    if given.has(option):
        times_ms = parse_offsets(given.text(option, ""), option)
        if any(time < EARLIEST for time in times_ms.values()):
            raise InvalidOption(
                f"option {option} has a time below -2; give epoch milliseconds, -1 (latest) or -2 (earliest)"
            )
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
        raise InvalidOption(f"option {option} has an offset below -2; -2 means earliest, -1 latest")
    return AtOffsets(offsets, option)


def _check_batch_bounds(starting: Position, ending: Position) -> None:
    late = "a batch that starts at latest is empty; use earliest, offsets or a time"
    early = "a batch that ends at earliest is empty; use latest, offsets or a time"
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


def _pushdown(given: Given) -> bool:
    """Return whether to take Spark's filters. Raises `InvalidOption`."""
    if given.text("pushdown", "").strip().lower() == "true":
        raise InvalidOption(
            "option pushdown is 'true': Spark keeps the ranges of the last filters for all queries of a "
            "load(), so other queries, and other branches of a union or join, would miss rows. Set it to "
            "one_query and load again for each filter; or read less with assign, startingOffsets, "
            "startingTimestamp and their kin"
        )
    return given.choice("pushdown", ("false", "one_query"), "false") == "one_query"


def _isolation(given: Given) -> Isolation:
    names = ("isolation", "kafka.isolation.level")
    values = {given.choice(name, tuple(Isolation), "") for name in names if given.has(name)}
    if len(values) > 1:
        raise InvalidOption(f"options {' and '.join(names)} contradict each other; give one")
    return Isolation(values.pop()) if values else Isolation.READ_UNCOMMITTED

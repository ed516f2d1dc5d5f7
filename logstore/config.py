"""Settings of one log, under Kafka's topic names; frozen, checked once, unknown names refused.

The field `segment_bytes` is Kafka's `segment.bytes`, and so on. `LogConfig.from_kafka` reads the
text form that topic configurations have in the metadata store and on a command line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final

from logstore.errors import InvalidConfig

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
SMALLEST_BATCH: Final = 14
OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12

CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"
COMPRESSION_TYPES: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer")
CLEANUP_POLICIES: Final = ("delete", "compact")


def setting(
    default: Any,
    help_text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    broker: tuple[str, ...] = (),
    at: str,
    only: str = "",
    no_effect: str = "",
) -> Any:
    """A field that is a setting.

    `broker` are the names under which a broker sets its default, the one that wins first; `at` is where it
    has its effect. `only` says why no other value than the default is taken, `no_effect` why none matters.
    """
    return field(
        default=default,
        metadata={
            "help": help_text,
            "low": low,
            "high": high,
            "choices": choices,
            "broker": broker,
            "at": at,
            "only": only,
            "no_effect": no_effect,
        },
    )


_TIERED = "no tiered storage here: all of a log is local"
_THROTTLED = "replication is not throttled here"


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Settings of one log. Sizes are bytes, times milliseconds; -1 means no limit where allowed.

    Raises `InvalidConfig` for a value outside its range and for settings that contradict each other.
    """

    segment_bytes: int = setting(
        1 << 30,
        "a segment rolls before it would exceed this",
        low=14,
        high=MAX_INT,
        broker=("log.segment.bytes",),
        at="append",
    )
    segment_ms: int = setting(
        7 * 86_400_000,
        "a segment rolls when its records span more than this",
        low=1,
        broker=("log.roll.ms", "log.roll.hours"),
        at="append",
    )
    segment_jitter_ms: int = setting(
        0,
        "random part of segment.ms that each segment waits less",
        low=0,
        broker=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        at="new segments",
    )
    segment_index_bytes: int = setting(
        10 << 20,
        "largest size of an index file; a segment with a full one rolls",
        low=12,
        high=MAX_INT,
        broker=("log.index.size.max.bytes",),
        at="new segments",
    )
    index_interval_bytes: int = setting(
        4096,
        "bytes of log between two index entries",
        low=0,
        high=MAX_INT,
        broker=("log.index.interval.bytes",),
        at="new segments",
    )
    flush_messages: int = setting(
        MAX_LONG,
        "records after which a flush is forced",
        low=1,
        broker=("log.flush.interval.messages",),
        at="append",
    )
    flush_ms: int = setting(
        MAX_LONG,
        "age at which unflushed records are flushed",
        low=0,
        broker=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        at="`LogManager.tick`, `Log.maintain`",
    )
    retention_bytes: int = setting(
        -1,
        "oldest segments go while the log keeps at least this without them",
        low=-1,
        broker=("log.retention.bytes",),
        at="retention",
    )
    retention_ms: int = setting(
        7 * 86_400_000,
        "segments whose newest record is older than this go",
        low=-1,
        broker=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        at="retention",
    )
    max_message_bytes: int = setting(
        1_048_588,
        "largest record batch accepted",
        low=0,
        high=MAX_INT,
        broker=("message.max.bytes",),
        at="append",
    )
    delete_retention_ms: int = setting(
        86_400_000,
        "how long a tombstone outlives its first cleaning",
        low=0,
        broker=("log.cleaner.delete.retention.ms",),
        at="cleaner",
    )
    min_compaction_lag_ms: int = setting(
        0,
        "records younger than this are not compacted",
        low=0,
        broker=("log.cleaner.min.compaction.lag.ms",),
        at="cleaner",
    )
    max_compaction_lag_ms: int = setting(
        MAX_LONG,
        "records older than this are compacted; their segment rolls in time",
        low=1,
        broker=("log.cleaner.max.compaction.lag.ms",),
        at="append, cleaner",
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "share of dirty bytes that starts a cleaning",
        low=0,
        high=1,
        broker=("log.cleaner.min.cleanable.ratio",),
        at="cleaner",
    )
    cleanup_policy: str = setting(
        "delete",
        "delete, compact, or both separated by a comma",
        broker=("log.cleanup.policy",),
        at="append, retention, cleaner",
    )
    file_delete_delay_ms: int = setting(
        60_000,
        "how long a deleted file stays for its readers",
        low=0,
        broker=("log.segment.delete.delay.ms",),
        at="retention, deletion of a partition",
    )
    compression_type: str = setting(
        "producer",
        "codec batches are stored with; producer keeps theirs",
        choices=COMPRESSION_TYPES,
        broker=("compression.type",),
        at="append",
    )
    compression_gzip_level: int = setting(
        -1,
        "gzip level, -1 for the library's own",
        low=-1,
        high=9,
        broker=("compression.gzip.level",),
        at="append",
    )
    compression_lz4_level: int = setting(
        9, "lz4 level", low=1, high=17, broker=("compression.lz4.level",), at="append"
    )
    compression_zstd_level: int = setting(
        3, "zstd level", low=-131_072, high=22, broker=("compression.zstd.level",), at="append"
    )
    preallocate: bool = setting(
        False,
        "give a new segment its full size at once; it is cut to its batches when it is sealed or closed",
        broker=("log.preallocate",),
        at="new segments",
    )
    message_timestamp_type: str = setting(
        CREATE_TIME,
        "whose clock stamps records",
        choices=(CREATE_TIME, LOG_APPEND_TIME),
        broker=("log.message.timestamp.type",),
        at="append",
    )
    message_timestamp_before_max_ms: int = setting(
        MAX_LONG,
        "how far in the past a record may lie",
        low=0,
        broker=("log.message.timestamp.before.max.ms",),
        at="append",
    )
    message_timestamp_after_max_ms: int = setting(
        MAX_LONG,
        "how far in the future a record may lie",
        low=0,
        broker=("log.message.timestamp.after.max.ms",),
        at="append",
    )
    message_timestamp_difference_max_ms: int = setting(
        MAX_LONG,
        "deprecated: stands for each of the two before that is not set",
        low=0,
        broker=("log.message.timestamp.difference.max.ms",),
        at="append",
    )
    message_format_version: str = setting(
        "3.0-IV1",
        "the record format of long ago",
        broker=("log.message.format.version",),
        at="nowhere",
        no_effect="ignored, as by Kafka since 3.0: format v2 is the only one",
    )
    message_downconversion_enable: bool = setting(
        True,
        "whether batches are converted for consumers of before 0.11",
        broker=("log.message.downconversion.enable",),
        at="nowhere",
        no_effect="ignored, and gone from Kafka 4.0: nobody can ask for another format than v2",
    )
    min_insync_replicas: int = setting(
        1,
        "in-sync replicas that acks=all needs",
        low=1,
        high=MAX_INT,
        broker=("min.insync.replicas",),
        at="replication",
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "whether a replica outside the ISR may lead",
        broker=("unclean.leader.election.enable",),
        at="controller",
    )
    durability_level: str = setting(
        "replicated",
        "what each in-sync replica has done with a record that acks=all acknowledges",
        choices=("replicated", "synced"),
        at="controller",
    )
    leader_replication_throttled_replicas: str = setting(
        "", "replicas whose leader sends no faster than a limit", at="nowhere", only=_THROTTLED
    )
    follower_replication_throttled_replicas: str = setting(
        "", "replicas that fetch no faster than a limit", at="nowhere", only=_THROTTLED
    )
    remote_storage_enable: bool = setting(
        False, "whether sealed segments move to remote storage", at="nowhere", only=_TIERED
    )
    local_retention_ms: int = setting(
        -2,
        "age at which segments that are in remote storage go from the disk",
        broker=("log.local.retention.ms",),
        at="nowhere",
        only=_TIERED,
    )
    local_retention_bytes: int = setting(
        -2,
        "size beyond which segments that are in remote storage go from the disk",
        broker=("log.local.retention.bytes",),
        at="nowhere",
        only=_TIERED,
    )
    remote_log_copy_disable: bool = setting(
        False, "whether nothing more is copied to remote storage", at="nowhere", only=_TIERED
    )
    remote_log_delete_on_disable: bool = setting(
        False, "whether remote segments go when remote storage is switched off", at="nowhere", only=_TIERED
    )

    def __post_init__(self) -> None:
        check_settings(self)
        policies = [policy.strip() for policy in self.cleanup_policy.split(",")]
        if sorted(set(policies)) != sorted(policies) or not set(policies) <= set(CLEANUP_POLICIES):
            raise InvalidConfig(
                f"cleanup.policy is {self.cleanup_policy!r}; it takes delete, compact or delete,compact"
            )
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) is above "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms}); lower the first or raise the second"
            )
        if self.compression_gzip_level == 0:
            raise InvalidConfig("compression.gzip.level is 0; it takes -1 or 1 to 9")

    @cached_property
    def is_compacted(self) -> bool:
        """Whether `cleanup.policy` contains compact: records then need keys."""
        return "compact" in self.cleanup_policy

    @cached_property
    def is_deleted(self) -> bool:
        """Whether `cleanup.policy` contains delete: old segments go by size and by time."""
        return "delete" in self.cleanup_policy

    @cached_property
    def longest_segment_ms(self) -> int:
        """`segment.ms`, held down by `max.compaction.lag.ms` for a compacted log."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @cached_property
    def longest_jitter_ms(self) -> int:
        """`segment.jitter.ms`, as far as `segment.ms` leaves room for it."""
        return min(self.segment_jitter_ms, self.segment_ms)

    @cached_property
    def oldest_allowed_ms(self) -> int:
        """How far behind the clock a record may lie."""
        own = self.message_timestamp_before_max_ms
        return self.message_timestamp_difference_max_ms if own == MAX_LONG else own

    @cached_property
    def newest_allowed_ms(self) -> int:
        """How far ahead of the clock a record may lie."""
        own = self.message_timestamp_after_max_ms
        return self.message_timestamp_difference_max_ms if own == MAX_LONG else own

    @cached_property
    def compression_level(self) -> int | None:
        """The level of `compression.type`; None for a codec without levels and for the producers' own."""
        level: int | None = getattr(self, f"compression_{self.compression_type}_level", None)
        return level

    @classmethod
    def from_kafka(cls, settings: Mapping[str, str], *, base: LogConfig | None = None) -> LogConfig:
        """Read `{"segment.bytes": "1048576"}` on top of `base` (default: the defaults).

        Raises `InvalidConfig` for a name that is not a setting, for text that is not of the
        setting's type, and for values that the constructor refuses.
        """
        known = {kafka_name(each.name): each for each in fields(cls)}
        refuse_unknown(settings.keys() - known.keys(), known, BROKER_NAMES)
        values = {known[name].name: parsed(known[name], name, text) for name, text in settings.items()}
        return replace(base if base is not None else cls(), **values)

    def to_kafka(self) -> dict[str, str]:
        """Every setting as text; `from_kafka` reads it back."""
        return {kafka_name(each.name): formatted(getattr(self, each.name)) for each in fields(self)}


def kafka_name(field_name: str) -> str:
    """`segment_bytes` → `segment.bytes`."""
    return field_name.replace("_", ".")


BROKER_NAMES: Final = {
    name: kafka_name(each.name) for each in fields(LogConfig) for name in each.metadata["broker"]
}
"""A broker's name for the default of a topic setting → the topic setting."""


def check_settings(config: Any) -> None:
    """Type and range of every field that is a `setting`. Raises `InvalidConfig` with the setting's name."""
    for each in fields(config):
        if "help" in each.metadata:
            name, value = kafka_name(each.name), getattr(config, each.name)
            _check_type(name, value, each.default)
            if each.metadata["only"] and value != each.default:
                raise InvalidConfig(f"{name} is {formatted(value)!r}: {each.metadata['only']}; leave it out")
            _check_range(name, value, each.metadata)


def refuse_unknown(unknown: Collection[str], known: Collection[str], others: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for names that are no settings, with what was probably meant.

    `others` are the names that the same settings have elsewhere.
    """
    if not unknown:
        return
    hints = []
    for name in sorted(unknown):
        meant = [others[name]] if name in others else get_close_matches(name, sorted(known), n=1)
        hints.append(f"{name} (did you mean {meant[0]}?)" if meant and meant[0] in known else name)
    raise InvalidConfig(f"unknown settings: {', '.join(hints)}; docs/configuration.md has them all")


def parsed(setting: Field[Any], name: str, text: str) -> Any:
    """`text` as a value of the setting's type. Raises `InvalidConfig`, which names the setting `name`."""
    return _PARSERS[type(setting.default)](name, text)


def _check_type(name: str, value: object, default: object) -> None:
    kinds = (int, float) if isinstance(default, float) else (type(default),)
    if not isinstance(value, kinds) or (isinstance(value, bool) and not isinstance(default, bool)):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidConfig(f"{name} is {value!r}; it takes a value of type {wanted}")


def _check_range(name: str, value: object, limits: Mapping[str, Any]) -> None:
    if limits["choices"]:
        if value not in limits["choices"]:
            raise InvalidConfig(f"{name} is {value!r}; it takes one of {', '.join(limits['choices'])}")
        return
    if limits["low"] is None or not isinstance(value, int | float):
        return
    low, high = limits["low"], limits["high"] if limits["high"] is not None else MAX_LONG
    if not low <= value <= high:
        raise InvalidConfig(f"{name} is {value}; it takes {low} to {high}")


def _parse_int(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.removeprefix("-").isdigit()):
        raise InvalidConfig(f"{name} is {text!r}, which is not an integer")
    return int(digits)


def _parse_float(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidConfig(f"{name} is {text!r}, which is not a number") from error


def _parse_bool(name: str, text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise InvalidConfig(f"{name} is {text!r}; it takes true or false")


def _parse_text(_name: str, text: str) -> str:
    return text.strip()


_PARSERS: Final[dict[type, Callable[[str, str], object]]] = {
    int: _parse_int,
    float: _parse_float,
    bool: _parse_bool,
    str: _parse_text,
}


def formatted(value: object) -> str:
    """A value as Kafka's text."""
    return str(value).lower() if isinstance(value, bool) else str(value)

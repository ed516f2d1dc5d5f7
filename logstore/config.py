"""The settings of one log, under Kafka's topic names: immutable and checked on creation.

The field `segment_bytes` is Kafka's `segment.bytes`, and so on. `LogConfig.from_kafka` parses the text form
that the metadata store and the command line use. Unknown names are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

from logstore.arguments import whole_number
from logstore.errors import InvalidConfig

SettingValue: TypeAlias = str | int | float
"""A setting as text, or in its own type; a bool is an int."""

MAX_SHORT: Final = 2**15 - 1
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1

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
    at: str = "start",
    only: str = "",
    no_effect: str = "",
) -> Any:
    """Return a dataclass field for a setting.

    `broker` lists the broker settings that give its default, in order of precedence. `at` names the place
    where it takes effect. `only` is the reason for accepting the default alone, `no_effect` the reason for
    ignoring the value.
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


_TIERED = "there is no tiered storage here; a log is entirely local"
_FORMAT_VERSION: Final = re.compile(
    r"(?:0\.(?:8\.[0-2]|9\.0|10\.[0-2]|11\.0)|1\.[01]|2\.[0-8]|3\.\d)(?:\..*|-IV\d)?", re.ASCII
)
_THROTTLED_REPLICAS: Final = re.compile(r"(?:\*|\d{1,10}:\d{1,10}(?:,\d{1,10}:\d{1,10})*)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Hold the settings of one log. Sizes are bytes, times milliseconds; -1 means no limit where allowed.

    Raises `InvalidConfig` for a value out of range and for settings that contradict each other.
    """

    segment_bytes: int = setting(
        1 << 30,
        "The maximum size of a segment. The log rolls before an append would exceed it.",
        low=14,
        high=MAX_INT,
        broker=("log.segment.bytes",),
        at="append",
    )
    segment_ms: int = setting(
        7 * 86_400_000,
        "The maximum time from the first to the last record of a segment before the log rolls.",
        low=1,
        broker=("log.roll.ms", "log.roll.hours"),
        at="append",
    )
    segment_jitter_ms: int = setting(
        0,
        "The maximum random time subtracted from segment.ms, so that segments do not roll together.",
        low=0,
        broker=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        at="new segments",
    )
    segment_index_bytes: int = setting(
        10 << 20,
        "The maximum size of an index file. The log rolls when an index is full.",
        low=12,
        high=MAX_INT,
        broker=("log.index.size.max.bytes",),
        at="new segments",
    )
    index_interval_bytes: int = setting(
        4096,
        "The number of log bytes between two index entries.",
        low=0,
        high=MAX_INT,
        broker=("log.index.interval.bytes",),
        at="new segments",
    )
    flush_messages: int = setting(
        MAX_LONG,
        "The number of records after which the log is flushed.",
        low=1,
        broker=("log.flush.interval.messages",),
        at="append",
    )
    flush_ms: int = setting(
        MAX_LONG,
        "The maximum age of unflushed records before the log is flushed.",
        low=0,
        broker=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        at="`LogManager.tick`, `Log.maintain`",
    )
    retention_bytes: int = setting(
        -1,
        "The maximum size of the log before old segments are deleted; at least this size is kept.",
        low=-1,
        broker=("log.retention.bytes",),
        at="retention",
    )
    retention_ms: int = setting(
        7 * 86_400_000,
        "The maximum age of the newest record of a segment before the segment is deleted.",
        low=-1,
        broker=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        at="retention",
    )
    max_message_bytes: int = setting(
        1_048_588,
        "The largest record batch that is accepted (after compression).",
        low=0,
        high=MAX_INT,
        broker=("message.max.bytes",),
        at="append",
    )
    delete_retention_ms: int = setting(
        86_400_000,
        "The time that a tombstone is kept after its first cleaning.",
        low=0,
        broker=("log.cleaner.delete.retention.ms",),
        at="cleaner",
    )
    min_compaction_lag_ms: int = setting(
        0,
        "The minimum time that a record stays uncompacted.",
        low=0,
        broker=("log.cleaner.min.compaction.lag.ms",),
        at="cleaner",
    )
    max_compaction_lag_ms: int = setting(
        MAX_LONG,
        "The maximum time that a record stays ineligible for compaction. Its segment rolls in time.",
        low=1,
        broker=("log.cleaner.max.compaction.lag.ms",),
        at="append, cleaner",
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "The minimum share of dirty bytes in a log that is eligible for cleaning.",
        low=0,
        high=1,
        broker=("log.cleaner.min.cleanable.ratio",),
        at="cleaner",
    )
    cleanup_policy: str = setting(
        "delete",
        "The retention policy: delete, compact, or both, separated by a comma; empty keeps everything.",
        broker=("log.cleanup.policy",),
        at="append, retention, cleaner",
    )
    file_delete_delay_ms: int = setting(
        60_000,
        "The time to wait before a deleted file is removed from the disk.",
        low=0,
        broker=("log.segment.delete.delay.ms",),
        at="retention, deletion of a partition",
    )
    compression_type: str = setting(
        "producer",
        "The compression codec of stored batches. The value producer keeps the producer's codec.",
        choices=COMPRESSION_TYPES,
        broker=("compression.type",),
        at="append",
    )
    compression_gzip_level: int = setting(
        -1,
        "The gzip compression level; -1 is the default level of the library.",
        low=-1,
        high=9,
        broker=("compression.gzip.level",),
        at="append",
    )
    compression_lz4_level: int = setting(
        9, "The lz4 compression level.", low=1, high=17, broker=("compression.lz4.level",), at="append"
    )
    compression_zstd_level: int = setting(
        3,
        "The zstd compression level.",
        low=-131_072,
        high=22,
        broker=("compression.zstd.level",),
        at="append",
    )
    preallocate: bool = setting(
        False,
        "Whether to preallocate new segment files; sealing and closing truncate them to their batches.",
        broker=("log.preallocate",),
        at="new segments",
    )
    message_timestamp_type: str = setting(
        CREATE_TIME,
        "Whether records carry their creation time or the time of the append.",
        choices=(CREATE_TIME, LOG_APPEND_TIME),
        broker=("log.message.timestamp.type",),
        at="append",
    )
    message_timestamp_before_max_ms: int = setting(
        MAX_LONG,
        "The maximum time by which a record's timestamp may lie before the broker's clock.",
        low=0,
        broker=("log.message.timestamp.before.max.ms",),
        at="append",
    )
    message_timestamp_after_max_ms: int = setting(
        MAX_LONG,
        "The maximum time by which a record's timestamp may lie after the broker's clock.",
        low=0,
        broker=("log.message.timestamp.after.max.ms",),
        at="append",
    )
    message_timestamp_difference_max_ms: int = setting(
        MAX_LONG,
        "Deprecated: the default of message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
        low=0,
        broker=("log.message.timestamp.difference.max.ms",),
        at="append",
    )
    message_format_version: str = setting(
        "3.0-IV1",
        "Deprecated: the version of the record format.",
        broker=("log.message.format.version",),
        at="nowhere",
        no_effect="ignored, as in Kafka since 3.0: v2 is the only format",
    )
    message_downconversion_enable: bool = setting(
        True,
        "Deprecated: whether batches are down-converted for consumers older than 0.11.",
        broker=("log.message.downconversion.enable",),
        at="nowhere",
        no_effect="ignored, and removed in Kafka 4.0: clients cannot request another format than v2",
    )
    min_insync_replicas: int = setting(
        1,
        "The minimum number of in-sync replicas for a produce request with acks=all.",
        low=1,
        high=MAX_INT,
        broker=("min.insync.replicas",),
        at="replication",
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "Whether a replica outside the ISR may become leader as a last resort, with data loss.",
        broker=("unclean.leader.election.enable",),
        at="controller",
    )
    durability_level: str = setting(
        "replicated",
        "Whether acks=all needs a write (replicated) or a flush (synced) on each in-sync replica.",
        choices=("replicated", "synced"),
        at="controller",
    )
    retain_for_cursors: bool = setting(
        False,
        "Whether retention by size and time keeps what the slowest cursor of the log has not read.",
        at="retention",
    )
    leader_replication_throttled_replicas: str = setting(
        "",
        "The replicas whose replication is throttled on the leader: partition:broker,… or * for all.",
        at="replication",
    )
    follower_replication_throttled_replicas: str = setting(
        "",
        "The replicas whose replication is throttled on the follower: partition:broker,… or * for all.",
        at="replication",
    )
    remote_storage_enable: bool = setting(
        False, "Whether tiered storage is enabled.", at="nowhere", only=_TIERED
    )
    local_retention_ms: int = setting(
        -2,
        "The time to keep a local segment that is in remote storage.",
        broker=("log.local.retention.ms",),
        at="nowhere",
        only=_TIERED,
    )
    local_retention_bytes: int = setting(
        -2,
        "The maximum local size before segments in remote storage are deleted locally.",
        broker=("log.local.retention.bytes",),
        at="nowhere",
        only=_TIERED,
    )
    remote_log_copy_disable: bool = setting(
        False, "Whether copying to remote storage is stopped.", at="nowhere", only=_TIERED
    )
    remote_log_delete_on_disable: bool = setting(
        False,
        "Whether remote segments are deleted when tiered storage is disabled.",
        at="nowhere",
        only=_TIERED,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        listed = self.cleanup_policy.split(",") if self.cleanup_policy.strip() else []
        policies = [policy.strip() for policy in listed]
        if sorted(set(policies)) != sorted(policies) or not set(policies) <= set(CLEANUP_POLICIES):
            raise InvalidConfig(
                f"cleanup.policy is {self.cleanup_policy!r}; "
                "it must be delete, compact, delete,compact or empty"
            )
        for name in ("leader", "follower"):
            listed = getattr(self, f"{name}_replication_throttled_replicas")
            if not _THROTTLED_REPLICAS.fullmatch(listed):
                raise InvalidConfig(
                    f"{name}.replication.throttled.replicas is {listed!r}; expected partition:broker,… or *"
                )
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) is above "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms}); lower the first or raise the second"
            )
        if not _FORMAT_VERSION.fullmatch(self.message_format_version.strip()):
            # It has no effect, but Kafka's brokers on the same store would not start with it.
            raise InvalidConfig(
                f"message.format.version is {self.message_format_version!r}; expected one of Kafka, to 3.9"
            )
        if self.compression_gzip_level == 0:
            raise InvalidConfig("compression.gzip.level is 0; it must be -1 or 1 to 9")

    @cached_property
    def is_compacted(self) -> bool:
        """Whether `cleanup.policy` contains compact; records then need keys."""
        return "compact" in self.cleanup_policy

    @cached_property
    def is_deleted(self) -> bool:
        """Whether `cleanup.policy` contains delete: old segments are deleted by size and by age."""
        return "delete" in self.cleanup_policy

    @cached_property
    def longest_segment_ms(self) -> int:
        """`segment.ms`, limited by `max.compaction.lag.ms` in a compacted log."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @cached_property
    def longest_jitter_ms(self) -> int:
        """`segment.jitter.ms`, limited by `segment.ms`."""
        return min(self.segment_jitter_ms, self.segment_ms)

    @cached_property
    def oldest_allowed_ms(self) -> int:
        """The maximum time by which a record may lie behind the clock."""
        own = self.message_timestamp_before_max_ms
        return self.message_timestamp_difference_max_ms if own == MAX_LONG else own

    @cached_property
    def newest_allowed_ms(self) -> int:
        """The maximum time by which a record may lie ahead of the clock."""
        own = self.message_timestamp_after_max_ms
        return self.message_timestamp_difference_max_ms if own == MAX_LONG else own

    @cached_property
    def compression_level(self) -> int | None:
        """The level of `compression.type`; None for `producer` and for a codec without levels."""
        level: int | None = getattr(self, f"compression_{self.compression_type}_level", None)
        return level

    @classmethod
    def from_kafka(cls, settings: Mapping[str, SettingValue], *, base: LogConfig | None = None) -> LogConfig:
        """Read `{"segment.bytes": "1048576"}` on top of `base` (default: the defaults).

        Values are text as in Kafka, or of the setting's type. Raises `InvalidConfig` for an unknown name, for
        a value of the wrong type, and for values that the constructor refuses.
        """
        check_mapping(settings)
        known = {kafka_name(each.name): each for each in fields(cls)}
        refuse_unknown(settings.keys() - known.keys(), known, BROKER_NAMES)
        values = {known[name].name: parsed(known[name], name, text) for name, text in settings.items()}
        return replace(base if base is not None else cls(), **values)

    def to_kafka(self) -> dict[str, str]:
        """Return every setting as text, for `from_kafka`."""
        return {kafka_name(each.name): formatted(getattr(self, each.name)) for each in fields(self)}


def kafka_name(field_name: str) -> str:
    """Return Kafka's name of a field: `segment.bytes` for `segment_bytes`."""
    return field_name.replace("_", ".")


BROKER_NAMES: Final = {
    name: kafka_name(each.name) for each in fields(LogConfig) for name in each.metadata["broker"]
}
"""The topic setting for each broker setting that gives its default."""


def check_settings(config: Any) -> None:
    """Check the type and range of every setting. Raises `InvalidConfig`."""
    for each in fields(config):
        if "help" in each.metadata:
            name, value = kafka_name(each.name), getattr(config, each.name)
            _check_type(name, value, each.default)
            if each.metadata["only"] and value != each.default:
                raise InvalidConfig(
                    f"{name} is {formatted(value)!r}: {each.metadata['only']}; remove the setting"
                )
            _check_range(name, value, each.metadata)


def refuse_unknown(unknown: Collection[str], known: Collection[str], others: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for unknown names, with the most similar known ones.

    `others` maps other names of the same settings to the known ones.
    """
    if not unknown:
        return
    from difflib import get_close_matches

    hints = []
    for name in sorted(unknown):
        meant = [others[name]] if name in others else get_close_matches(name, sorted(known), n=1)
        hints.append(f"{name} (did you mean {meant[0]}?)" if meant and meant[0] in known else name)
    raise InvalidConfig(f"unknown settings: {', '.join(hints)}; see docs/configuration.md")


def check_mapping(settings: object) -> None:
    """Raise `InvalidConfig` unless the settings are a mapping of names."""
    if not isinstance(settings, Mapping):
        raise InvalidConfig(
            f'settings are a mapping such as {{"segment.bytes": "1048576"}}, not {type(settings).__name__}'
        )


def parsed(setting: Field[Any], name: str, given: SettingValue) -> Any:
    """Parse text as the setting's type. Raises `InvalidConfig` with the setting's `name`."""
    if not isinstance(given, str):
        _check_type(name, given, setting.default)
        return given
    return _PARSERS[type(setting.default)](name, given)


def _check_type(name: str, value: object, default: object) -> None:
    kinds = (int, float) if isinstance(default, float) else (type(default),)
    if not isinstance(value, kinds) or (isinstance(value, bool) and not isinstance(default, bool)):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidConfig(f"{name} is {value!r}; it must be of type {wanted}")


def _check_range(name: str, value: object, limits: Mapping[str, Any]) -> None:
    if limits["choices"]:
        if value not in limits["choices"]:
            raise InvalidConfig(f"{name} is {value!r}; it must be one of {', '.join(limits['choices'])}")
        return
    if not isinstance(value, int | float):
        return
    low = limits["low"] if limits["low"] is not None else -MAX_LONG - 1
    high = limits["high"] if limits["high"] is not None else MAX_LONG
    if not low <= value <= high:
        raise InvalidConfig(f"{name} is {value}; it must be {low} to {high}")


def _parse_int(name: str, text: str) -> int:
    if (number := whole_number(text.strip())) is None:
        raise InvalidConfig(f"{name} is {text!r}, which is not an integer")
    return number


def _parse_float(name: str, text: str) -> float:
    try:
        if "_" not in text and text.isascii():  # Python reads 1_000 and ٣, too
            return float(text)
    except ValueError:
        pass
    raise InvalidConfig(f"{name} is {text!r}, which is not a number")


def _parse_bool(name: str, text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise InvalidConfig(f"{name} is {text!r}; it must be true or false")


def _parse_text(_name: str, text: str) -> str:
    return text.strip()


_PARSERS: Final[dict[type, Callable[[str, str], object]]] = {
    int: _parse_int,
    float: _parse_float,
    bool: _parse_bool,
    str: _parse_text,
}


def formatted(value: object) -> str:
    """Return a value in Kafka's text form."""
    return str(value).lower() if isinstance(value, bool) else str(value)

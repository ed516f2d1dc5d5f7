"""Settings of one log, under Kafka's topic names; frozen, checked once, unknown names refused.

The field `segment_bytes` is Kafka's `segment.bytes`, and so on. `LogConfig.from_kafka` reads the
text form that topic configurations have in the metadata store and on a command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
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


def _setting(
    default: Any,
    help_text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    return field(default=default, metadata={"help": help_text, "low": low, "high": high, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one log. Sizes are bytes, times milliseconds; -1 means no limit where allowed.

    Raises `InvalidConfig` for a value outside its range and for settings that contradict each other.
    """

    segment_bytes: int = _setting(
        1 << 30, "a segment rolls before it would exceed this", low=14, high=MAX_INT
    )
    segment_ms: int = _setting(7 * 86_400_000, "a segment rolls when its records span more than this", low=1)
    segment_jitter_ms: int = _setting(0, "random part of segment.ms that each segment waits less", low=0)
    segment_index_bytes: int = _setting(10 << 20, "largest size of an index file", low=12, high=MAX_INT)
    index_interval_bytes: int = _setting(4096, "bytes of log between two index entries", low=0, high=MAX_INT)
    flush_messages: int = _setting(MAX_LONG, "records after which a flush is forced", low=1)
    flush_ms: int = _setting(MAX_LONG, "age at which unflushed records are flushed", low=0)
    retention_bytes: int = _setting(-1, "oldest segments go while the log is larger than this", low=-1)
    retention_ms: int = _setting(7 * 86_400_000, "segments older than this go", low=-1)
    max_message_bytes: int = _setting(1_048_588, "largest record batch accepted", low=0, high=MAX_INT)
    delete_retention_ms: int = _setting(86_400_000, "how long a tombstone outlives its first cleaning", low=0)
    min_compaction_lag_ms: int = _setting(0, "records younger than this are not compacted", low=0)
    max_compaction_lag_ms: int = _setting(MAX_LONG, "records older than this are compacted", low=1)
    min_cleanable_dirty_ratio: float = _setting(
        0.5, "share of dirty bytes that starts a cleaning", low=0, high=1
    )
    cleanup_policy: str = _setting("delete", "delete, compact, or both separated by a comma")
    file_delete_delay_ms: int = _setting(60_000, "how long a deleted file stays for its readers", low=0)
    compression_type: str = _setting(
        "producer", "codec batches are stored with; producer keeps theirs", choices=COMPRESSION_TYPES
    )
    compression_gzip_level: int = _setting(-1, "gzip level, -1 for the library's own", low=-1, high=9)
    compression_lz4_level: int = _setting(9, "lz4 level", low=1, high=17)
    compression_zstd_level: int = _setting(3, "zstd level", low=-131_072, high=22)
    preallocate: bool = _setting(False, "give a new segment its full size at once")
    message_timestamp_type: str = _setting(
        CREATE_TIME, "whose clock stamps records", choices=(CREATE_TIME, LOG_APPEND_TIME)
    )
    message_timestamp_before_max_ms: int = _setting(MAX_LONG, "how far in the past a record may lie", low=0)
    message_timestamp_after_max_ms: int = _setting(MAX_LONG, "how far in the future a record may lie", low=0)
    min_insync_replicas: int = _setting(1, "in-sync replicas that acks=all needs", low=1, high=MAX_INT)
    unclean_leader_election_enable: bool = _setting(False, "whether a replica outside the ISR may lead")

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            _check_type(kafka_name(setting.name), value, setting.default)
            _check_range(kafka_name(setting.name), value, setting.metadata)
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

    @property
    def is_compacted(self) -> bool:
        """Whether `cleanup.policy` contains compact: records then need keys."""
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether `cleanup.policy` contains delete: old segments go by size and by time."""
        return "delete" in self.cleanup_policy

    @property
    def longest_segment_ms(self) -> int:
        """`segment.ms`, held down by `max.compaction.lag.ms` for a compacted log."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @classmethod
    def from_kafka(cls, settings: Mapping[str, str], *, base: LogConfig | None = None) -> LogConfig:
        """Read `{"segment.bytes": "1048576"}` on top of `base` (default: the defaults).

        Raises `InvalidConfig` for a name that is not a setting, for text that is not of the
        setting's type, and for values that the constructor refuses.
        """
        known = {kafka_name(setting.name): setting for setting in fields(cls)}
        if unknown := sorted(settings.keys() - known.keys()):
            raise InvalidConfig(
                f"unknown settings: {', '.join(unknown)}; known are {', '.join(sorted(known))}"
            )
        values: dict[str, Any] = {
            known[name].name: _PARSERS[type(known[name].default)](name, text)
            for name, text in settings.items()
        }
        return replace(base if base is not None else cls(), **values)

    def to_kafka(self) -> dict[str, str]:
        """Every setting as text; `from_kafka` reads it back."""
        return {kafka_name(setting.name): _format(getattr(self, setting.name)) for setting in fields(self)}


def kafka_name(field_name: str) -> str:
    """`segment_bytes` → `segment.bytes`."""
    return field_name.replace("_", ".")


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


def _format(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""The settings of a node's logs, under Kafka's broker names.

`LogManagerConfig.from_kafka` reads a broker's properties. Names of topic defaults (`log.retention.hours`)
become part of `topic_defaults`. If a setting is given in several units, the finest unit wins, in any order.
The other names are fields here.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from math import inf
from typing import Any, Final

from logstore.config import (
    MAX_INT,
    MAX_LONG,
    LogConfig,
    SettingValue,
    check_mapping,
    check_settings,
    kafka_name,
    parsed,
    refuse_unknown,
    setting,
)
from logstore.errors import InvalidConfig
from logstore.log.producer_state import ProducerStateConfig

_UNITS_MS: Final = {".hours": 3_600_000, ".minutes": 60_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerConfig:
    """Hold the settings of a `LogManager`. Sizes are bytes, times milliseconds.

    Raises `InvalidConfig` for a value out of range.
    """

    topic_defaults: LogConfig = field(default_factory=LogConfig)
    """The settings of topics without their own."""
    producers: ProducerStateConfig = field(default_factory=ProducerStateConfig)
    """The settings for the state of producers."""

    log_dirs: str = setting(
        "",
        "The directories of the logs, separated by commas. Defaults to log.dir.",
        broker=("log.dirs", "log.dir"),
        at="start",
    )
    log_retention_check_interval_ms: int = setting(
        300_000, "The interval of the checks for segments to delete.", low=1, at="`LogManager.tick`"
    )
    log_flush_scheduler_interval_ms: int = setting(
        MAX_LONG,
        "The interval of the checks for logs to flush by age. If not set, they follow flush.ms.",
        low=1,
        at="`LogManager.tick`",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, "The interval of recovery point checkpoints.", low=1, high=MAX_INT, at="`LogManager.tick`"
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        60_000, "The interval of log start offset checkpoints.", low=1, high=MAX_INT, at="`LogManager.tick`"
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5000,
        "The interval of high watermark checkpoints.",
        low=1,
        at="replication, as `NodeConfig.replica_high_watermark_checkpoint_interval_ms`",
    )
    log_initial_task_delay_ms: int = setting(
        30_000, "The delay of the first periodic tasks, if their interval is longer.", low=0, at="start"
    )
    num_recovery_threads_per_data_dir: int = setting(
        1,
        "The number of threads for recovery per log directory.",
        low=1,
        high=MAX_INT,
        at="nowhere",
        no_effect="partitions are opened one after another, because the engine starts no threads",
    )
    log_dir_failure_timeout_ms: int = setting(
        30_000,
        "The maximum time before a failed log directory must be known to the controller.",
        low=1,
        at="nowhere",
        no_effect="as in Kafka without KRaft, the controller is notified at once",
    )
    log_cleaner_enable: bool = setting(True, "Whether the log cleaner is enabled.", at="cleaner")
    log_cleaner_threads: int = setting(
        1,
        "The number of threads for log cleaning.",
        low=1,
        high=MAX_INT,
        at="nowhere",
        no_effect=(
            "one log is cleaned at a time, because the engine starts no threads; 0 is refused, "
            "`log.cleaner.enable` turns the cleaner off"
        ),
    )
    log_cleaner_backoff_ms: int = setting(
        15_000,
        "The time to sleep when there is no log to clean. It doubles after each failure.",
        low=0,
        at="cleaner",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        128 << 20,
        "The maximum size of the offset map, 24 bytes per key; other keys wait for another pass.",
        low=1,
        at="cleaner",
    )
    log_cleaner_io_buffer_size: int = setting(
        512 << 10,
        "The bytes per read, at least 1024. A larger batch is read whole.",
        low=0,
        high=MAX_INT,
        at="cleaner",
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        0.9,
        "The maximum load factor of the offset map; 0 is refused at the start.",
        low=0,
        high=1,
        at="cleaner",
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        sys.float_info.max,
        "The maximum rate of the cleaner's reads and writes together, at least 1.",
        low=0,
        high=inf,
        at="cleaner",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def directories(self) -> tuple[str, ...]:
        """The log dirs as a tuple. Raises `InvalidConfig` if there is none."""
        named = tuple(each.strip() for each in self.log_dirs.split(",") if each.strip())
        if not named:
            # Kafka's default is a temporary directory, which the next boot may empty.
            raise InvalidConfig("log.dirs is empty; name at least one directory")
        return named

    @classmethod
    def from_kafka(
        cls, settings: Mapping[str, SettingValue], *, base: LogManagerConfig | None = None
    ) -> LogManagerConfig:
        """Read a broker's properties on top of `base` (default: the defaults).

        Raises `InvalidConfig` for an unknown name, for a value of the wrong type, and for values out of
        range.
        """
        check_mapping(settings)
        base = base if base is not None else cls()
        check_names(settings)
        parts = {
            part: replace(getattr(base, part), **_given(config, settings)) for part, config in PARTS.items()
        }
        return replace(base, **parts, **_given(cls, settings))


PARTS: Final[dict[str, type]] = {"topic_defaults": LogConfig, "producers": ProducerStateConfig}
"""The fields of `LogManagerConfig` that hold settings themselves."""


def check_names(settings: Collection[str], others: Collection[str] = ()) -> None:
    """Raise `InvalidConfig` for names that are not the log manager's; it may suggest one of `others`."""
    known = {name for each in _all_fields() for name in broker_names(each)}
    by_topics = {kafka_name(each.name): broker_names(each) for each in fields(LogConfig)}
    of_topics = {name: names[0] for name, names in by_topics.items() if names}
    refuse_unknown(set(settings) - known, known.union(others), of_topics)


def _all_fields() -> list[Field[Any]]:
    return [each for config in (LogManagerConfig, *PARTS.values()) for each in settings_of(config)]


def settings_of(config: type) -> list[Field[Any]]:
    """Return the fields of a class that are settings, in order."""
    return [each for each in fields(config) if "help" in each.metadata]


def broker_names(each: Field[Any]) -> tuple[str, ...]:
    """Return the broker's names of the setting, in order of precedence."""
    names: tuple[str, ...] = each.metadata["broker"]
    return names or (() if each.name in _OF_TOPICS_ALONE else (kafka_name(each.name),))


_OF_TOPICS_ALONE: Final = {each.name for each in fields(LogConfig) if not each.metadata["broker"]}


def _given(config: type, settings: Mapping[str, SettingValue]) -> dict[str, Any]:
    """Return the given values of the class's fields; among several names of one, the first present wins."""
    found = {}
    for each in settings_of(config):
        name = next((name for name in broker_names(each) if name in settings), None)
        if name is not None:
            found[each.name] = _in_milliseconds(name, each.name, parsed(each, name, settings[name]))
    return found


def _in_milliseconds(name: str, field_name: str, value: Any) -> Any:
    if field_name == "retention_ms" and value == 0:
        raise InvalidConfig(f"{name} is 0; it must be -1 (no limit) or at least 1")
    for unit, length_ms in _UNITS_MS.items():
        if name.endswith(unit):
            return value * length_ms if value > 0 else value
    return value

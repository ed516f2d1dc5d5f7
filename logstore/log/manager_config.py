"""Settings of a node's logs, under Kafka's broker names: its own, and the defaults of its topics.

`LogManagerConfig.from_kafka` reads a broker's properties. Names that set a topic's default
(`log.retention.hours`) become part of `topic_defaults`; where several stand for one setting, the finest
unit wins, whatever their order. The other names are fields here, as `logstore.config` has them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from math import inf
from typing import Any, Final

from logstore.config import (
    MAX_INT,
    MAX_LONG,
    LogConfig,
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
    """What a `LogManager` goes by. Sizes are bytes, times milliseconds.

    Raises `InvalidConfig` for a value outside its range.
    """

    topic_defaults: LogConfig = field(default_factory=LogConfig)
    """Settings of topics that have none of their own."""
    producers: ProducerStateConfig = field(default_factory=ProducerStateConfig)
    """What is remembered of producers, and for how long."""

    log_dirs: str = setting(
        "",
        "where the logs are: one directory or several, separated by commas; `log.dir` if there is one",
        broker=("log.dirs", "log.dir"),
        at="start",
    )
    log_retention_check_interval_ms: int = setting(
        300_000, "how often old segments are looked for", low=1, at="`LogManager.tick`"
    )
    log_flush_scheduler_interval_ms: int = setting(
        MAX_LONG,
        "how often the age of unflushed records is looked at; unset: as soon as flush.ms asks for it",
        low=1,
        at="`LogManager.tick`",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, "how often recovery points are written", low=1, at="`LogManager.tick`"
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        60_000, "how often log start offsets are written", low=1, at="`LogManager.tick`"
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5000,
        "how often high watermarks are written",
        low=1,
        at="replication, as `NodeConfig.replica_high_watermark_checkpoint_interval_ms`",
    )
    log_initial_task_delay_ms: int = setting(
        30_000, "when each of these is done for the first time, if its interval is longer", low=0, at="start"
    )
    num_recovery_threads_per_data_dir: int = setting(
        1,
        "threads that open a log dir's partitions",
        low=1,
        at="nowhere",
        no_effect="partitions are opened one after another: the engine starts no threads",
    )
    log_dir_failure_timeout_ms: int = setting(
        30_000,
        "how long a failed log dir may stay unknown to the controller",
        low=1,
        at="nowhere",
        no_effect="as in Kafka without KRaft: the controller is told at once",
    )
    log_cleaner_enable: bool = setting(True, "whether compacted logs are cleaned", at="cleaner")
    log_cleaner_threads: int = setting(
        1,
        "threads that clean",
        low=1,
        at="nowhere",
        no_effect=(
            "one log is cleaned at a time, whatever the number, because the engine starts no threads; "
            "0 is refused: `log.cleaner.enable` says whether anything is cleaned"
        ),
    )
    log_cleaner_backoff_ms: int = setting(
        15_000,
        "how long the cleaner sleeps when nothing is to be cleaned; after failures doubled each time",
        low=0,
        at="cleaner",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        128 << 20,
        "most bytes for the offset map, 24 a key; what does not fit waits for another pass",
        low=1,
        at="cleaner",
    )
    log_cleaner_io_buffer_size: int = setting(
        512 << 10,
        "bytes read at a time, 1024 at the least; a larger batch is read whole",
        low=0,
        high=MAX_INT,
        at="cleaner",
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        0.9,
        "how full the offset map gets, despite the name; 0 is refused at the start",
        low=0,
        high=1,
        at="cleaner",
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        sys.float_info.max,
        "limit on what the cleaner reads and writes, together; 1 at the least",
        low=0,
        high=inf,
        at="cleaner",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def directories(self) -> tuple[str, ...]:
        """`log.dirs`, apart. Raises `InvalidConfig` if there is none."""
        named = tuple(each.strip() for each in self.log_dirs.split(",") if each.strip())
        if not named:
            # Kafka's default is a temporary directory, which the next boot may empty.
            raise InvalidConfig("log.dirs is empty: name one directory or more")
        return named

    @classmethod
    def from_kafka(
        cls, settings: Mapping[str, str], *, base: LogManagerConfig | None = None
    ) -> LogManagerConfig:
        """Read a broker's properties on top of `base` (default: the defaults).

        Raises `InvalidConfig` for a name that is no broker's setting of logs, for text that is not of the
        setting's type, and for values out of range.
        """
        base = base if base is not None else cls()
        known = {name for each in _all_fields() for name in broker_names(each)}
        by_topics = {kafka_name(each.name): broker_names(each) for each in fields(LogConfig)}
        others = {name: names[0] for name, names in by_topics.items() if names}
        refuse_unknown(settings.keys() - known, known, others)
        parts = {
            part: replace(getattr(base, part), **_given(config, settings)) for part, config in PARTS.items()
        }
        return replace(base, **parts, **_given(cls, settings))


PARTS: Final[dict[str, type]] = {"topic_defaults": LogConfig, "producers": ProducerStateConfig}
"""The fields of `LogManagerConfig` that hold settings themselves."""


def _all_fields() -> list[Field[Any]]:
    return [each for config in (LogManagerConfig, *PARTS.values()) for each in settings_of(config)]


def settings_of(config: type) -> list[Field[Any]]:
    """The fields of a class that are settings, in order."""
    return [each for each in fields(config) if "help" in each.metadata]


def broker_names(each: Field[Any]) -> tuple[str, ...]:
    """Under which names a broker has the setting, the one that wins first."""
    names: tuple[str, ...] = each.metadata["broker"]
    return names or (() if each.name in _OF_TOPICS_ALONE else (kafka_name(each.name),))


_OF_TOPICS_ALONE: Final = {each.name for each in fields(LogConfig) if not each.metadata["broker"]}


def _given(config: type, settings: Mapping[str, str]) -> dict[str, Any]:
    """What `settings` say of the class's fields; of several names for one, the first that is there."""
    found = {}
    for each in settings_of(config):
        name = next((name for name in broker_names(each) if name in settings), None)
        if name is not None:
            found[each.name] = _in_milliseconds(name, each.name, parsed(each, name, settings[name]))
    return found


def _in_milliseconds(name: str, field_name: str, value: Any) -> Any:
    if field_name == "retention_ms" and value == 0:
        raise InvalidConfig(f"{name} is 0; it takes -1 for no limit, or 1 and more")
    for unit, length_ms in _UNITS_MS.items():
        if name.endswith(unit):
            return value * length_ms if value > 0 else value
    return value

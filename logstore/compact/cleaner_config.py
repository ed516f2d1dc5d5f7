"""The settings of a node's cleaner, under Kafka's names without `log.cleaner.`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from logstore.compact.offset_map import SLOT_BYTES
from logstore.errors import InvalidConfig
from logstore.log.manager_config import LogManagerConfig

SMALLEST_BUFFER: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """The settings of a `Cleaner`. Sizes are bytes, times milliseconds.

    Raises `InvalidConfig` for a value out of range.
    """

    enable: bool = True
    backoff_ms: int = 15_000
    """The wait if there is nothing to clean, and after an error; it doubles with each further error."""
    dedupe_buffer_size: int = 128 << 20
    """The largest size of the offset map; it is smaller if the dirty part has fewer records."""
    io_buffer_load_factor: float = 0.9
    """The largest share of the offset map's slots that is used."""
    io_buffer_size: int = 512 << 10
    """Bytes per read; a larger batch is read whole."""
    io_max_bytes_per_second: float = float("inf")
    """The limit for reads and writes together."""

    @classmethod
    def of(cls, settings: LogManagerConfig) -> CleanerConfig:
        """Return the cleaner's part of a node's settings; `log.cleaner.threads` is ignored."""
        return cls(
            enable=settings.log_cleaner_enable,
            backoff_ms=max(settings.log_cleaner_backoff_ms, 1),
            dedupe_buffer_size=settings.log_cleaner_dedupe_buffer_size,
            io_buffer_load_factor=settings.log_cleaner_io_buffer_load_factor,
            io_buffer_size=max(settings.log_cleaner_io_buffer_size, SMALLEST_BUFFER),
            io_max_bytes_per_second=max(settings.log_cleaner_io_max_bytes_per_second, 1.0),
        )

    def __post_init__(self) -> None:
        if not 0 < self.io_buffer_load_factor <= 1:
            raise InvalidConfig(
                f"log.cleaner.io.buffer.load.factor is {self.io_buffer_load_factor}; it must be 0 < x <= 1"
            )
        if int(self.dedupe_buffer_size / SLOT_BYTES * self.io_buffer_load_factor) < 2:
            raise InvalidConfig(
                f"log.cleaner.dedupe.buffer.size is {self.dedupe_buffer_size}, too small for a key"
            )
        for name, value, low in (
            ("backoff.ms", self.backoff_ms, 1),
            ("io.buffer.size", self.io_buffer_size, SMALLEST_BUFFER),
            ("io.max.bytes.per.second", self.io_max_bytes_per_second, 1),
        ):
            if value < low:
                raise InvalidConfig(f"log.cleaner.{name} is {value}; it must be at least {low}")

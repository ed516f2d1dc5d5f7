"""What is counted of a partition, batch of rows by batch of rows, task by task, and put together in order.

    records, bytes        how many, how large their keys and values are
    keys                  how many different ones, about (distinct.py)
    gaps                  offsets between two records that no record has: compacted, aborted, control
    times                 first, last; of each day; the longest silence; records that came late

A record is late if one before it in its partition is younger; by how much is its lateness. What lies before
a task's range is another task's, so each is told the latest time of all that lies before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from logstore.columnar.kernels import Bytes
from logstore.format.batch import CODEC_MASK
from logstore.format.compression import Codec
from logstore.spark.jobs.dated_files import DAY_MS, date_of
from logstore.spark.jobs.distinct import add_keys, estimate, joined, no_keys

COLUMNS: Final = ("offset", "timestamp", "key", "value")
LATENESS_MS: Final = (1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000)
LATENESS_NAMES: Final = ("< 1 s", "< 10 s", "< 1 min", "< 10 min", "< 1 h", "< 1 day", "more")
NEVER: Final = -(1 << 62)
"""A time before all others."""


@dataclass(slots=True)
class Measures:
    """The counts of consecutive records; times are epoch milliseconds, `NEVER` where there are none."""

    latest_before_ms: int = NEVER
    """of all that lies before these records"""
    records: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    null_keys: int = 0
    null_values: int = 0
    largest_value_bytes: int = 0
    registers: Bytes = field(default_factory=no_keys)
    first_offset: int = -1
    last_offset: int = -1
    gaps: int = 0
    gap_offsets: int = 0
    largest_gap: int = 0
    untimed: int = 0
    earliest_ms: int = -NEVER
    latest_ms: int = NEVER
    silence_ms: int = 0
    silence_until_ms: int = NEVER
    """when the longest silence ended"""
    late: int = 0
    most_late_ms: int = 0
    lateness: list[int] = field(default_factory=lambda: [0] * len(LATENESS_NAMES))
    days: Counter[int] = field(default_factory=Counter)
    batches: int = 0
    batch_bytes: int = 0
    largest_batch_bytes: int = 0
    codecs: Counter[str] = field(default_factory=Counter)

    def add(self, rows: Any) -> None:
        """Count what `Logs.read` gave of `COLUMNS`: one or more rows that follow those before."""
        keys, values = rows.column("key"), rows.column("value")
        self.records += rows.num_rows
        self.null_keys += keys.null_count
        self.null_values += values.null_count
        self.key_bytes += int(_sizes(keys).sum())
        sizes = _sizes(values)
        self.value_bytes += int(sizes.sum())
        self.largest_value_bytes = max(self.largest_value_bytes, int(sizes.max()))
        add_keys(self.registers, keys)
        self._add_offsets(rows.column("offset").to_numpy())
        self._add_times(rows.column("timestamp"))

    def _add_offsets(self, offsets: npt.NDArray[np.int64]) -> None:
        if self.first_offset < 0:
            self.first_offset = int(offsets[0])
        else:
            self._add_gaps(np.array([int(offsets[0]) - self.last_offset - 1]))
        self._add_gaps(np.diff(offsets) - 1)
        self.last_offset = int(offsets[-1])

    def _add_gaps(self, sizes: npt.NDArray[np.int64]) -> None:
        self.gaps += int(np.count_nonzero(sizes))
        self.gap_offsets += int(sizes.sum())
        self.largest_gap = max(self.largest_gap, int(sizes.max(initial=0)))

    def _add_times(self, column: Any) -> None:
        self.untimed += column.null_count
        times = column.drop_null().cast("int64").to_numpy()
        if not len(times):
            return
        before = max(self.latest_before_ms, self.latest_ms)
        peaks = np.maximum.accumulate(np.concatenate(([before], times)))
        behind = peaks[:-1] - times  # above 0: late; below: so long nothing came
        if before == NEVER:
            behind[0] = 0
        late = behind[behind > 0]
        self.late += len(late)
        if len(late):
            self.most_late_ms = max(self.most_late_ms, int(late.max()))
            found = np.bincount(np.searchsorted(LATENESS_MS, late, "right"), minlength=len(self.lateness))
            self.lateness = [old + new for old, new in zip(self.lateness, found.tolist(), strict=True)]
        quiet = int(behind.argmin())
        if -int(behind[quiet]) > self.silence_ms:
            self.silence_ms, self.silence_until_ms = -int(behind[quiet]), int(times[quiet])
        self.earliest_ms = min(self.earliest_ms, int(times.min()))
        self.latest_ms = max(self.latest_ms, int(peaks[-1]))
        days, counts = np.unique(times // DAY_MS, return_counts=True)
        self.days.update(dict(zip(days.tolist(), counts.tolist(), strict=True)))

    def add_batches(self, headers: npt.NDArray[np.void]) -> None:
        """Count batches, by their headers."""
        sizes = headers["batch_length"].astype(np.int64) + 12
        self.batches += len(headers)
        self.batch_bytes += int(sizes.sum())
        self.largest_batch_bytes = max(self.largest_batch_bytes, int(sizes.max(initial=0)))
        codecs, counts = np.unique(headers["attributes"] & CODEC_MASK, return_counts=True)
        for codec, count in zip(codecs.tolist(), counts.tolist(), strict=True):
            self.codecs[_codec_name(codec)] += count

    def follow(self, later: Measures) -> None:
        """Take in the counts of what follows, which was told the latest time of these."""
        if later.first_offset >= 0:
            if self.last_offset >= 0:
                self._add_gaps(np.array([later.first_offset - self.last_offset - 1]))
            else:
                self.first_offset = later.first_offset
            self.last_offset = later.last_offset
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for name in _LARGEST:
            setattr(self, name, max(getattr(self, name), getattr(later, name)))
        self.earliest_ms = min(self.earliest_ms, later.earliest_ms)
        if later.silence_ms > self.silence_ms:
            self.silence_ms, self.silence_until_ms = later.silence_ms, later.silence_until_ms
        self.lateness = [old + new for old, new in zip(self.lateness, later.lateness, strict=True)]
        self.registers = joined(self.registers, later.registers)
        self.days.update(later.days)
        self.codecs.update(later.codecs)

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        return self.key_bytes + self.value_bytes

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        timed = self.latest_ms != NEVER
        facts: dict[str, Any] = {
            "records": self.records,
            "bytes": self.bytes,
            "key_bytes": self.key_bytes,
            "value_bytes": self.value_bytes,
            "largest_value_bytes": self.largest_value_bytes,
            "distinct_keys": estimate(self.registers),
            "null_keys": self.null_keys,
            "null_values": self.null_values,
            "gaps": {"count": self.gaps, "offsets": self.gap_offsets, "largest": self.largest_gap},
            "times": {
                "earliest_ms": self.earliest_ms if timed else None,
                "latest_ms": self.latest_ms if timed else None,
                "without": self.untimed,
                "longest_silence_ms": self.silence_ms,
                "longest_silence_until_ms": self.silence_until_ms if self.silence_ms else None,
                "late": self.late,
                "most_late_ms": self.most_late_ms,
                "lateness": dict(zip(LATENESS_NAMES, self.lateness, strict=True)),
            },
            "days": {date_of(day): count for day, count in sorted(self.days.items())},
        }
        if self.batches:
            facts["batches"] = {
                "count": self.batches,
                "bytes": self.batch_bytes,
                "largest_bytes": self.largest_batch_bytes,
                "codecs": dict(sorted(self.codecs.items())),
            }
        return facts


_SUMS: Final = (
    *("records", "key_bytes", "value_bytes", "null_keys", "null_values", "gaps", "gap_offsets"),
    *("untimed", "late", "batches", "batch_bytes"),
)
_LARGEST: Final = ("largest_value_bytes", "largest_gap", "latest_ms", "most_late_ms", "largest_batch_bytes")


def _sizes(column: Any) -> npt.NDArray[np.int32]:
    """Bytes of each row; 0 for null."""
    bounds = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return np.diff(bounds)


def _codec_name(codec: int) -> str:
    try:
        return Codec(codec).name.lower()
    except ValueError:
        return str(codec)

"""The rows of the comparison and their bars: our figure divided by Kafka's."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

SIZES: Final[Mapping[str, int]] = {"100": 100, "1k": 1024, "10k": 10 * 1024}
FACTORS: Final = (1, 3)


class Figure(NamedTuple):
    """One figure of both; `is_rate`: more is better."""

    name: str
    unit: str
    ours: Sequence[float]
    kafka: Sequence[float]
    bar: float
    load: float
    is_rate: bool = False
    note: str = ""

    @property
    def ratio(self) -> float:
        """Our median divided by Kafka's."""
        kafka = statistics.median(self.kafka)
        return statistics.median(self.ours) / kafka if kafka else float("inf")

    @property
    def holds(self) -> bool:
        return self.ratio >= self.bar if self.is_rate else self.ratio <= self.bar

    def facts(self) -> dict[str, object]:
        """The figure for `--json`."""
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": list(self.ours),
            "kafka": list(self.kafka),
            "ratio": round(self.ratio, 3),
            "bar": f"{'≥' if self.is_rate else '≤'} {self.bar:g}",
            "holds": self.holds,
            "load": round(self.load, 1),
            "note": self.note,
        }

    def row(self) -> str:
        facts = self.facts()
        ours, kafka = (_human(statistics.median(each)) for each in (self.ours, self.kafka))
        return (
            f"{self.name:34} {ours:>10} {kafka:>10} {self.unit:10} {self.ratio:7.2f} {facts['bar']:>7} "
            f"{'yes' if self.holds else 'NO':4} {self.load:5.1f}  {self.note}"
        )


HEAD: Final = (
    f"{'what':34} {'ours':>10} {'Kafka':>10} {'unit':10} {'ratio':>7} {'bar':>7} {'held':4} {'load':>5}"
)


def all_rows() -> list[str]:
    """Return the names of all rows, in the order in which they run."""
    traffic = [
        f"{kind}-{size}-rf{factor}" for factor in FACTORS for size in SIZES for kind in ("produce", "consume")
    ]
    return [*traffic, "start", "restart", "partitions", "failover"]


def chosen(patterns: str) -> list[str]:
    """Return the rows whose names begin with one of the comma-separated patterns; all without any.

    Raises `ValueError` for a pattern without a row.
    """
    wanted = [each.strip() for each in patterns.split(",") if each.strip()]
    for each in wanted:
        if not any(row.startswith(each) for row in all_rows()):
            raise ValueError(f"no row begins with {each!r}; rows are {', '.join(all_rows())}")
    return [row for row in all_rows() if not wanted or row.startswith(tuple(wanted))]


def _human(value: float) -> str:
    for limit, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.2f} {suffix}"
    return f"{value:.2f}"

"""Families of metrics, as in Prometheus' client library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

Row: TypeAlias = tuple[str, str, float]
"""Name without its prefix, help text, value."""


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(name, text, value=value)


def gauges(prefix: str, *rows: Row) -> Iterator[Metric]:
    """Return gauges without labels, whose names begin alike."""
    return (gauge(prefix + name, text, value) for name, text, value in rows)


def counters(prefix: str, *rows: Row) -> Iterator[Metric]:
    """Return counters without labels, whose names begin alike; `_total` follows each name."""
    return (CounterMetricFamily(prefix + name, text, value=value) for name, text, value in rows)

"""How many different keys: near the truth for any number, and the same however the work is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from logstore.spark.jobs.measures import add_keys, estimate, joined, no_keys


def keys(first: int, count: int) -> Any:
    return pa.array([f"customer-{n}".encode() for n in range(first, first + count)], pa.binary())


def counted(*columns: Any) -> Any:
    registers = no_keys()
    for column in columns:
        add_keys(registers, column)
    return registers


@pytest.mark.parametrize("count", [0, 1, 2, 10, 1000, 16_384, 40_000, 82_000, 300_000])
def test_it_is_near_the_truth(count: int) -> None:
    """Within three standard deviations, in the middle range too, where the plain estimator is off by 3 %."""
    assert abs(estimate(counted(keys(0, count))) - count) <= 3 * 0.0082 * count


def test_a_key_counts_once_wherever_it_is_met() -> None:
    once = counted(keys(0, 5000))
    assert np.array_equal(once, counted(keys(0, 5000), keys(100, 300), keys(0, 5000)))
    assert np.array_equal(once, joined(counted(keys(0, 3000)), counted(keys(1000, 4000))))


def test_null_is_no_key_and_empty_is_one() -> None:
    assert estimate(counted(pa.array([None, None], pa.binary()))) == 0
    assert estimate(counted(pa.array([None, b"", b""], pa.binary()))) == 1


def test_a_part_of_a_column_is_a_part() -> None:
    """Arrow's slices share their buffers: what lies outside is not counted."""
    assert np.array_equal(counted(keys(0, 100).slice(20, 30)), counted(keys(20, 30)))

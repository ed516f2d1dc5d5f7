"""The clock of a running node: somebody who sets the time moves nobody's deadline."""

from __future__ import annotations

import pytest

from logstore.disk.files import SteadyClock


def test_it_starts_at_the_wall_clock_and_goes_on_by_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """M4: durations come from the monotonic clock, whatever happens to the other."""
    wall_ms, monotonic_ns = [1_700_000_000_000], [55_000_000]
    monkeypatch.setattr("logstore.disk.files.wall_clock_ms", lambda: wall_ms[0])
    monkeypatch.setattr("logstore.disk.files.steady_ns", lambda: monotonic_ns[0])
    clock = SteadyClock()
    assert clock() == 1_700_000_000_000
    wall_ms[0] -= 3_600_000
    assert clock() == 1_700_000_000_000
    monotonic_ns[0] += 7_000_000
    assert clock() == 1_700_000_000_007

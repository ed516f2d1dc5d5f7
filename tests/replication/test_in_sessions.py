"""The failure schedules once more, with followers that fetch in sessions: the same transcripts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from logstore.testing.stage import Stage
from tests.replication import test_schedules, test_schedules_of_isrs, test_schedules_of_logs

Schedule = Callable[[], None]

ELSEWISE = {
    "test_s5_a_fetch_from_the_future",  # one round more: the follower forgets the partition while it waits
}


def schedules() -> list[Schedule]:
    """Return the schedules that need nothing but a stage."""
    return [
        function
        for module in (test_schedules, test_schedules_of_logs, test_schedules_of_isrs)
        for name, function in vars(module).items()
        if re.match(r"test_s\d", name) and name not in ELSEWISE and not inspect.signature(function).parameters
    ]


@pytest.mark.parametrize("schedule", schedules(), ids=lambda schedule: schedule.__name__)
def test_it_goes_the_same_way(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "fetch_sessions", 1000)
    schedule()


def test_there_are_many() -> None:
    assert len(schedules()) >= 25

"""Which fault met whom: a campaign is as good as the cells it has been to."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest

from logstore.testing.atlas import STATES, table
from logstore.testing.by_hand import BY_HAND
from logstore.testing.faults import FAULTS
from logstore.testing.operator import COMMANDS
from logstore.testing.runner import run
from logstore.testing.swarm import (
    COMMAND_NAMES,
    FAULT_NAMES,
    HAND_NAMES,
    THEMED_COMMAND_NAMES,
    THEMED_HAND_NAMES,
)

EVENTS = 2000
SEEDS = range(1, 31)
FEWEST_CELLS = 150


def test_every_fault_and_every_command_has_a_rate() -> None:
    assert FAULTS.keys() == set(FAULT_NAMES)
    assert COMMANDS.keys() == {*COMMAND_NAMES, *THEMED_COMMAND_NAMES}
    assert BY_HAND.keys() == {*HAND_NAMES, *THEMED_HAND_NAMES}


def test_the_table_shows_what_was_hit() -> None:
    text = table({("kill", "leader"): 3, ("depose", "cluster"): 1}, ["kill", "depose"])
    lines = text.splitlines()
    assert lines[0].split()[0] == "leader"
    assert lines[1].split()[:2] == ["kill", "3"]
    assert lines[2].split().count("·") == len(STATES) - 1
    assert lines[-1] == "2 cells hit"


@pytest.mark.simulation
def test_thirty_seeds_fill_the_atlas() -> None:
    """Faults meet leaders, followers, controllers, the paused, the cut off, …; and all of them do happen."""
    reports = [run(seed, EVENTS) for seed in SEEDS]
    atlas = Counter[tuple[str, str]]()
    for report in reports:
        atlas.update(report.atlas)
    assert len(atlas) >= FEWEST_CELLS, table(atlas, FAULTS)
    assert {fault for fault, _ in atlas} == set(FAULTS)
    assert {state for _, state in atlas} >= set(STATES) - {"being deleted"}
    total: Counter[str] = Counter()
    for report in reports:
        assert report.tally.events >= EVENTS
        total.update(asdict(report.tally))
    missing = [name for name, count in total.items() if not count and name != "operator_elections"]
    assert not missing, f"never seen in {len(SEEDS)} seeds: {missing}"
    assert total["acked"] > 500
    assert total["elections"] > 100
    assert max(report.in_sync_in_ms for report in reports) < 30_000

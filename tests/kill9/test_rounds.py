"""Five rounds of what `make kill9` does a hundred times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kill9.campaign import SESSION_MS, Round, run


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_five_rounds(tmp_path: Path) -> None:
    """No acknowledged message is lost, moved or doubled, none is skipped by the group."""
    told: list[Round] = []
    faults = ["leader", "controller", "follower", "two", "pause"]
    outcome = run(tmp_path / "cluster", faults, tell_of=told.append)
    assert outcome.violations == []
    assert len(told) == 5
    assert outcome.acknowledged > 500
    assert outcome.consumed >= outcome.acknowledged
    # The bar of two seconds more than a session is for `make kill9`: here others share the machine.
    assert max(each.without_leader_s for each in told) < SESSION_MS / 1000 + 60

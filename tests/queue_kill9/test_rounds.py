"""A few rounds of what the campaign does, and the faults that it must see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLANTS = ("late-acks", "lost-events", "skipped-message")


def campaign(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it with its queue below `home`: after a violation it is kept."""
    command = [sys.executable, "-m", "tests.queue_kill9", *options]
    environment = {**os.environ, "TMPDIR": str(home)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=110
    )


def test_a_killed_worker_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    told = campaign(tmp_path, "--messages", "20000", "--leased", "2000", "--rounds", "6")
    assert told.returncode == 0, told.stdout + told.stderr
    assert " 0 violations" in told.stdout


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_seen(tmp_path: Path, plant: str) -> None:
    told = campaign(tmp_path, "--messages", "5000", "--leased", "500", "--rounds", "12", "--plant", plant)
    assert told.returncode == 1, told.stdout + told.stderr
    assert "new again" in told.stdout or "lost" in told.stdout, told.stdout

"""A few rounds of what the campaign does, and the faults that it must see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared_kill9.worker import PLANTS

ROOT = Path(__file__).parents[2]


def campaign(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it with its files below `home`: after a violation they are kept."""
    command = [sys.executable, "-m", "tests.shared_kill9", *options]
    environment = {**os.environ, "TMPDIR": str(home)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=110
    )


def test_killed_processes_lose_nothing_and_store_no_key_twice(tmp_path: Path) -> None:
    told = campaign(tmp_path, "--rounds", "5", "--pause", "0.5")
    assert told.returncode == 0, told.stdout + told.stderr
    assert " 0 violations" in told.stdout


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_a_planted_fault_is_seen(tmp_path: Path, plant: str) -> None:
    told = campaign(tmp_path, "--rounds", "12", "--plant", plant)
    assert told.returncode == 1, told.stdout + told.stderr
    assert "twice" in told.stdout or "again" in told.stdout, told.stdout

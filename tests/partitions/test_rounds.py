"""Two rounds of `make partitions`, and a planted mistake, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_S = 400

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(LONGEST_S + 60),
    pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's"),
]


def campaign(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.partitions", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S, check=False)


@pytest.mark.parametrize("more", [(), ("--secured",)], ids=["plain", "secured"])
def test_two_rounds(more: tuple[str, ...]) -> None:
    """Nothing acknowledged is lost, doubled or out of order, and others lead while the victim is cut off."""
    done = campaign("--rounds", "2", "--kinds", "stall,cluster", *more)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert ", 0 violations" in done.stdout


def test_acknowledgements_of_a_leader_that_is_cut_off_are_found_out() -> None:
    """With acks=1 the former leader takes records until it is cut back, and answers for them."""
    done = campaign("--rounds", "1", "--kinds", "cluster", "--plant", "acks-1")
    assert done.returncode == 1, done.stdout[-4000:] + done.stderr[-4000:]
    assert "was acknowledged, " in done.stdout

"""A round or two of what `make kill9` does a hundred times, in a process of its own: clients leak sockets."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kill9.campaign import FAULTS

ROOT = Path(__file__).parents[2]
LONGEST_S = 540


@pytest.mark.timeout(LONGEST_S + 60)
@pytest.mark.parametrize("rounds", [1, 2])
def test_rounds(rounds: int) -> None:
    """No acknowledged message is lost, moved or doubled, and none is skipped by the group."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.kill9", "--rounds", str(rounds)]
    with subprocess.Popen(
        [*command, "--store", "embedded"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            told, _ = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends the brokers that it started
            told, _ = process.communicate(timeout=50)
            pytest.fail(f"{rounds} rounds took longer than {LONGEST_S} s:\n{told[-4000:]}")
    assert process.returncode == 0, told[-4000:]
    assert [line.split()[2] for line in told.splitlines() if "  embedded  " in line] == [*FAULTS[:rounds]]
    assert " 0 violations" in told

"""A round of `make disk-full`, in a process of its own: clients leak sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_S = 540


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="mounting a small file system needs root on Linux"
)
@pytest.mark.timeout(LONGEST_S + 60)
def test_one_round() -> None:
    """Nothing acknowledged is lost, doubled or out of order, and the broker recovers by itself."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.disk_full", "--minutes", "0.05"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "round 1: led 2, full after" in done.stdout
    assert "; 0 violations" in done.stdout

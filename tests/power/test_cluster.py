"""Power cuts of a cluster, in a process of its own (`make power-cuts`, root), and a planted bug."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
NO_SYNC = """
from logstore.disk.files import OsFile

sync = OsFile.sync


def sync_all_but_segments(file, *, data_only=False):
    if not file._path.endswith(".log"):
        sync(file, data_only=data_only)


OsFile.sync = sync_all_but_segments
"""


def campaign(*options: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run it with the settings of a short test, and `path` among the modules."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.power.cluster", "--kinds", "ext4", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{path}:{ROOT}" if path else str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_no_promise_is_broken() -> None:
    done = campaign("--cuts", "3", "--seed", "1")
    assert (done.returncode, done.stdout[-13:]) == (0, "0 violations\n"), done.stdout + done.stderr


def test_syncs_of_segments_that_do_nothing_are_noticed(tmp_path: Path) -> None:
    """In the brokers: Python imports `sitecustomize` before anything else."""
    (tmp_path / "sitecustomize.py").write_text(NO_SYNC)
    done = campaign("--cuts", "2", "--seed", "1", path=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "was acknowledged" in done.stdout

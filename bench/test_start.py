"""Start a program that appends one durable record to a new log, beside one that imports numpy."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.bars import ratio_bar

pytestmark = pytest.mark.peers

PROGRAM = "import sys, logstore\nwith logstore.Log.open(sys.argv[1]) as log: log.append(b'x', sync=True)"


def test_start_to_the_first_record(beside: Callable[..., object], scratch: Path) -> None:
    """With cached bytecode; the log is closed in order, so twelve syncs are part of it."""
    numbers = itertools.count()
    beside(
        raw=lambda: subprocess.run([sys.executable, "-c", "import numpy"], check=True),
        ours=lambda: subprocess.run(
            [sys.executable, "-c", PROGRAM, scratch / f"start-{next(numbers)}"], check=True
        ),
        name="a program from its start to one durable record in a new log",
        rival="interpreter with numpy",
        units=1,
        unit="starts/s",
        bar=ratio_bar(1 / 1.3),
        rounds=15,
    )

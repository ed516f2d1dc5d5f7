"""Rounds of `make rot`, with a kind of file each, and a planted mistake, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.access import Access
from tests.rot.campaign import misread
from tests.rot.rotting import KILLED, KINDS
from tests.rot.workload import Reader

ROOT = Path(__file__).parents[2]
LONGEST_S = 400

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="O_DIRECT is Linux's")


def campaign(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.rot", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S, check=False)


@pytest.mark.parametrize("rounds", [1, 2, len(KINDS)])
@pytest.mark.timeout(LONGEST_S + 60)
def test_a_round_of_each_kind(rounds: int) -> None:
    """Found and mended by themselves; nothing wrong is served, nothing is lost."""
    done = campaign("--rounds", str(rounds))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[1] for row in rows if row[:1] and row[0].isdigit() and row[1] in KINDS] == [*KINDS[:rounds]]
    assert ", 0 violations" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S + 60)
def test_an_epoch_file_that_rots_while_its_broker_is_down() -> None:
    """It parses, and is made anew at the start: named, counted, and nothing else was touched."""
    done = campaign("--rounds", "3", "--only", KILLED)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert ", 0 violations" in done.stdout


@pytest.mark.timeout(LONGEST_S + 60)
def test_a_broker_that_never_scrubs_is_found_out() -> None:
    done = campaign("--rounds", "1", "--only", "snapshot", "--plant", "no-scrub", "--patience", "5")
    assert done.returncode == 1, done.stdout[-4000:] + done.stderr[-4000:]
    assert "is not mended in 5 s" in done.stdout
    assert "changed, and no counter rose" in done.stdout


def test_a_wrong_record_is_a_violation() -> None:
    reader = Reader(Access("", {}), 1)
    reader.take(0, 7, b"seven")
    reader.take(0, 7, b"seven")
    reader.take(0, 8, b"eight")
    assert misread(reader, {0: {7: b"seven", 8: b"eight"}}) == []
    reader.take(0, 7, b"rotten")
    first, second = misread(reader, {0: {7: b"seven", 8: b"other"}})
    assert first == "partition 0, offset 7: read b'rotten', before b'seven'"
    assert second == "the reader got b'eight' at partition 0, offset 8; the log has b'other'"

"""The campaigns of `make job-kills`, short; and planted mistakes, each of which they must notice.

A job is killed at each of its steps, and the same command is run again: each row is there once, in order.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logstore.disk.files import OsDisk
from logstore.spark.ledger import Ledger
from logstore.testing.disks import Operation
from tests.spark.conftest import ROOT
from tests.spark.job_kills.campaign import Campaign, Killed, Start, in_session
from tests.spark.job_kills.cases import CASES
from tests.spark.job_kills.mistakes import MISTAKES
from tests.spark.job_kills.strikes import (
    AMID,
    BEFORE,
    COPIED,
    COPYING,
    DECIDED,
    MANIFEST,
    OBJECT,
    PLACED,
    RENAMED,
    STAGING,
    STARTING,
    SWEEPING,
    WRITTEN,
    LedgerSteps,
    repair_step,
    tier_step,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("fsspec", reason="needs the extra `tier`")


def kills(*arguments: str, restarts: int = 8) -> subprocess.CompletedProcess[str]:
    """Campaigns without Spark, in a process without threads: it forks."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "tests.spark.job_kills", "--restarts", str(restarts), *arguments),
            *("--session", "0", "--killed", "0", "--brokers", "0"),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "names",
    [
        ("tier", "stream"),
        # No Spark, but too slow for the others.
        pytest.param(("export", "ingest", "replay"), marks=pytest.mark.spark),
        pytest.param(("compact", "compact-segments", "repair"), marks=pytest.mark.spark),
    ],
)
def test_a_job_that_is_killed_at_each_step(names: tuple[str, ...]) -> None:
    """At each step once, in a process of its own."""
    done = kills(*(each for name in names for each in ("--only", name)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("seed 1\n")
    totals = dict(re.findall(r"^(\S+) +\d+ starts +8 faults +(\d+) rows$", done.stdout, re.MULTILINE))
    assert sorted(totals) == sorted(names)
    assert all(int(rows) > 0 for rows in totals.values())


@pytest.mark.spark  # it needs none, but is too slow for the others
def test_a_mistake_in_each_job_is_noticed() -> None:
    done = kills("--mistaken")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("NotOnce: ") == len(MISTAKES), done.stdout
    assert f"\n{len(MISTAKES)} violations" in done.stdout


# --- steps --------------------------------------------------------------------------------------------------


def test_the_steps_of_a_ledger(tmp_path: Path) -> None:
    """By what is about to be done, and by the ledger on the disk."""
    place = str(tmp_path / "ledger")
    steps = LedgerSteps(f"{tmp_path}/led*")
    staged, log = Operation("pwrite", f"{place}/staged/0/x"), Operation("pwrite", f"{tmp_path}/t-0/0.log")
    mark = Operation("rename", f"{place}/ledger.tmp")
    with Ledger(OsDisk(), place) as held:
        assert [steps(each) for each in (log, staged, mark)] == [STARTING, STAGING, BEFORE]
        held.decide(0, {})
        assert [steps(each) for each in (log, log, mark)] == [DECIDED, AMID, PLACED]
        held.finish()
        assert steps(Operation("remove", f"{place}/staged/0/x")) == SWEEPING


@pytest.mark.parametrize(
    ("operation", "step"),
    [
        (Operation("pwrite", "/out.unfinished/t-0.7-Xq/0.log"), COPYING),
        (Operation("rename", "/out.unfinished/t-0.7-Xq", target="/out.unfinished/t-0"), COPIED),
        (Operation("pwrite", "/out.unfinished/repair.json.tmp"), RENAMED),
        (Operation("rename", "/out.unfinished/repair.json.tmp"), RENAMED),
    ],
)
def test_the_steps_of_a_repair(operation: Operation, step: str) -> None:
    assert repair_step(operation) == step


def test_the_steps_of_a_tier() -> None:
    names = ("/t-0/0-7.log", "/t-0/manifest.json.new", "/t-0/manifest.json.new")
    calls = [Operation(name, path) for name, path in zip(("pwrite", "create", "rename"), names, strict=True)]
    assert [tier_step(each) for each in calls] == [OBJECT, WRITTEN, MANIFEST]


# --- on Spark -----------------------------------------------------------------------------------------------


def campaign_of(name: str, home: Path, start: Start) -> Campaign:
    home.mkdir()
    return Campaign(CASES[name](home), start, home / "plan.json")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("name", ["stream", "compact", "compact-segments"])
def test_a_driver_that_is_lost(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Its calls fail from the chosen one on; what Spark does is Spark's."""
    campaign = campaign_of(name, tmp_path / "home", in_session)
    campaign.run(2, [(AMID if name == "stream" else DECIDED, "lost"), (PLACED, "lost")])
    assert campaign.rows > 0


@pytest.mark.slow
@pytest.mark.spark
def test_all_processes_are_killed(tmp_path: Path) -> None:
    """Java's start, three times, is what `make test` has time for."""
    campaign = campaign_of("export", tmp_path / "home", Killed(tmp_path / "process", 1))
    campaign.run(1, [(AMID, "session")])
    assert campaign.rows > 0

"""docs/spark-hour.md: every command as it stands, on real processes, beside what the page shows.

Delta needs an older Spark than the other tests use: `build/delta` has an environment of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.cli.cluster_file import FILE
from logstore.cli.local_cluster import stop
from tests.deploy.serving import ROOT
from tests.deploy.transcripts import Shell, is_as_shown, steps_of

PAGE = ROOT / "docs" / "spark-hour.md"
INSTALL = "pip install 'pylogstore[delta,zookeeper]'"


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of an environment with what the page installs; made once."""
    folder = ROOT / "build" / "delta"
    complete = folder / "complete"
    if not complete.exists() or complete.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = ["-m", "pip", "install", "-qq", "--no-input", "--editable", f"{ROOT}[delta,zookeeper]"]
        subprocess.run([str(folder / "bin" / "python"), *install], check=True)
        complete.touch()
    return str(folder / "bin" / "python")


@pytest.fixture
def shell(tmp_path: Path, python: str) -> Iterator[Shell]:
    opened = Shell(tmp_path, [ROOT], python)
    yield opened
    opened.close()
    if (tmp_path / "demo" / FILE).exists():
        stop(tmp_path / "demo", patience_s=0)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_a_data_engineers_first_hour(shell: Shell) -> None:
    """Each row is in the table once, and each command prints what the page shows."""
    for step in steps_of(PAGE):
        code, printed = shell.run(step.command)
        assert code == step.code, f"{step.command}: exit code {code}\n{printed}"
        said = f"{step.command} printed:\n{printed}instead of:\n{step.shown}"
        assert is_as_shown(step.shown, printed), said


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_a_batch_is_in_a_delta_table_once(python: str, tmp_path: Path) -> None:
    """Whichever step of its publication ends the job."""
    command = [python, "-m", "tests.deploy.delta_repeats", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)


def test_the_page_has_all_that_the_hour_is_made_of() -> None:
    commands = "\n".join(step.command for step in steps_of(PAGE))
    wanted = (
        "cluster start",
        "look.py",
        "--table-format delta",
        "lake.py",
        "--follow",
        "timeout -s KILL",
        "pipeline replay",
        "logstore verify copies",
        "pipeline repair",
        "salvage",
    )
    places = [commands.index(each) for each in wanted]
    assert places == sorted(places)


@pytest.mark.parametrize("page", ["spark-hour.md", "operators-hour.md"])
def test_the_page_installs_what_a_cluster_of_several_brokers_needs(page: str) -> None:
    """Their metadata store speaks ZooKeeper's protocol, with a library of its own extra."""
    text = (ROOT / "docs" / page).read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("pip install 'pylogstore[")]
    assert "zookeeper" in line
    assert page != PAGE.name or line == INSTALL

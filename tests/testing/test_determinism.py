"""One seed, one run: on any hash seed, in any process, as often as one likes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.testing.__main__ import main
from logstore.testing.runner import run

ROOT = Path(__file__).parents[2]


def output_of(arguments: list[str], hash_seed: str) -> list[str]:
    found = subprocess.run(
        [sys.executable, "-m", "logstore.testing", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout.splitlines()


@pytest.mark.simulation
def test_two_processes_with_other_hash_seeds_agree() -> None:
    """Python's hashes of text differ between processes; nothing that happens may depend on them."""
    one, other = (output_of(["--seeds", "1..12", "--events", "1000"], seed) for seed in ("1", "77"))
    assert one == other
    assert one[-1].startswith("trace ")


@pytest.mark.simulation
def test_a_run_can_be_repeated_in_one_process() -> None:
    """No state is left behind from one run to the next."""
    first, second, third = run(5, 800), run(6, 800), run(5, 800)
    assert first == third
    assert first.trace_hash != second.trace_hash


@pytest.mark.simulation
def test_watching_changes_nothing() -> None:
    """A trace is printed of the very run that happens without it."""
    lines: list[str] = []
    assert run(9, 500, trace=lines.append) == run(9, 500)
    assert len(lines) > 200


def test_the_command_prints_the_seed_first_and_the_hash_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--events", "300"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "seed 3"
    assert lines[-1] == f"trace {run(3, 300).trace_hash}"


def test_a_violation_is_explained_and_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--events", "300", "--plant", "acknowledged-too-early"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "seed 3"
    assert any(line.startswith("VIOLATION") and "C4" in line for line in lines)
    assert any("ProduceRequest" in line for line in lines), "the last events are there"
    assert lines[-1].startswith("trace ")


def test_json_is_one_object_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3..4", "--events", "200", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["seed"] for row in rows] == [3, 4]
    assert all(row["ok"] and row["trace_hash"] for row in rows)


@pytest.mark.parametrize(
    "arguments", [[], ["--seed", "1", "--seeds", "1..2"], ["--seeds", "5..1"], ["--seeds", "x"]]
)
def test_bad_usage_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--plants"], ["--seed", "1", "--plant", "x"], ["--index-marks", "1..2"]]
)
def test_plants_need_a_checkout(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed package has no tests/: the command says so instead of an ImportError."""
    monkeypatch.setattr("logstore.testing.__main__._CHECKOUT", tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "need a checkout" in capsys.readouterr().err

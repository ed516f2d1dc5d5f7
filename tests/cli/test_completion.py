"""Completion in shells: the script of each shell, and what it gets when it asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """`logstore` as an installation puts it on the path."""
    program = tmp_path / "bin" / "logstore"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m logstore.cli.main "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def test_bash_completes_verbs_and_options(
    command: Command, environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "logstore.bash"
    script.write_text(command("completion", "bash").out)

    def completed(*words: str) -> set[str]:
        asks = f"""
            source {script}
            COMP_WORDS=({" ".join(words)}) COMP_CWORD={len(words) - 1}
            $(complete -p logstore | sed 's/.*-F \\([^ ]*\\) .*/\\1/') logstore
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(
            ["bash", "--norc", "-c", asks], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return set(done.stdout.split())

    assert {"topics", "timeline"} <= completed("logstore", "t")
    assert {"create", "list"} <= completed("logstore", "topics", "''")
    assert "--json" in completed("logstore", "topics", "list", "--j")


@pytest.mark.parametrize(
    ("shell", "asked"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "logstore top"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "logstore top", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_other_shells_ask_and_are_answered(
    command: Command, environment: dict[str, str], shell: str, asked: dict[str, str], tmp_path: Path
) -> None:
    script = command("completion", shell).out
    assert f"_LOGSTORE_COMPLETE=complete_{shell}" in script
    if (program := shutil.which(shell)) is not None:
        (tmp_path / "script").write_text(script)
        subprocess.run([program, "-n", str(tmp_path / "script")], check=True)
    done = subprocess.run(
        ["logstore"],
        env={**environment, **asked, "_LOGSTORE_COMPLETE": f"complete_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "topics" in done.stdout
    assert done.stderr == ""


def test_another_shell_is_refused(command: Command) -> None:
    outcome = command("completion", "csh")
    assert outcome.code == 2
    assert "bash" in outcome.err

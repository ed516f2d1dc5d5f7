"""The command's outside: exit codes, one-line errors, and a help page that imports nothing heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore.cli.main
from logstore import Record, encode_batch
from logstore.version import VERSION
from tests.cli.conftest import SEGMENT_0, Outcome, write_files

Command = Callable[..., Outcome]


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-verb"],
        ["dump"],
        ["dump", "--no-such-option", "."],
        ["dump", "--encoding", "rot13", "."],
        ["dump", "no/such/path"],
        ["dump", __file__],
        ["cat", "no/such/path"],
        ["cat", ".", "--from", "-1"],
        ["recover", "no/such/path"],
        ["recover", ".", "--recovery-point", "many"],
        ["demo", "--kill", "-1"],
        ["demo", "--replicas", "0"],
        ["demo", "no/such/file"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_2_and_one_line(command: Command, arguments: list[str]) -> None:
    """Scripts read the code, people read the line: it names what is wrong."""
    outcome = command(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("logstore: ")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["dump", "--help"], ["demo", "--help"]])
def test_help_is_exit_0_on_stdout(command: Command, arguments: list[str]) -> None:
    outcome = command(*arguments)
    assert outcome.code == 0
    assert outcome.out.startswith("Usage: logstore")
    assert outcome.err == ""


def test_version(command: Command) -> None:
    assert command("--version").out == f"logstore {VERSION}\n"


def test_an_operating_system_error_is_exit_1_and_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback for a full or failing disk: the message is the operating system's."""

    def failing(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "orders-0")

    monkeypatch.setattr(logstore.cli.main, "app", failing)
    outcome = command("append", "orders-0")
    assert outcome.code == 1
    assert outcome.err == "logstore: [Errno 28] No space left on device: 'orders-0'\n"


def test_help_imports_nothing_heavy() -> None:
    """The price of a help page is typer's import; the engine's and rich's would triple it."""
    heavy = [
        "numpy",
        "rich",
        "asyncio",
        "logstore.format.batch",
        "logstore.disk.files",
        "logstore.replication.node",
        "json",
    ]
    code = (
        "import sys\nfrom logstore.cli.main import run\nassert run(['--help']) == 0\n"
        f"sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_any_text_reaches_any_terminal(tmp_path: Path) -> None:
    """A record's letters, or a file name's bytes, that the terminal's encoding lacks are escaped."""
    name = os.fsdecode(b"\xff-0")
    data = encode_batch([Record(0, 1, None, "ünï".encode())])
    write_files(tmp_path / name, {f"{SEGMENT_0}.log": data})
    done = subprocess.run(
        [sys.executable, "-m", "logstore.cli.main", "dump", "--records", str(tmp_path / name)],
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"value \\xfcn\\xef" in done.stdout


def test_refuses_to_run_without_asserts() -> None:
    """`python -O` removes the assertions that protect the files, so the command refuses to run."""
    done = subprocess.run(
        [sys.executable, "-O", "-m", "logstore.cli.main", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("logstore: refuses to run under python -O")


def test_simulate_hands_its_arguments_on(command: Command, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The seed is the first line, the trace hash the last, and the help page names the verb."""
    outcome = command("simulate", "--seed", "3", "--events", "200")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "seed 3"
    assert lines[-1].startswith("trace ")
    with pytest.raises(SystemExit) as ended:
        command("simulate", "--help")
    assert ended.value.code == 0
    assert capfdbinary.readouterr().out.startswith(b"usage: logstore simulate ")

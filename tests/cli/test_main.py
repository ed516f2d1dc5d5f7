"""The command's outside: exit codes, one-line errors, and a help page that imports nothing heavy."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore.broker.security
import logstore.cli.main
from logstore import Record, encode_batch
from logstore.disk.extras import EXTRAS
from logstore.version import VERSION
from tests.cli.conftest import SEGMENT_0, Outcome, write_files

Command = Callable[..., Outcome]
ROOT = Path(__file__).parent.parent.parent


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


def test_a_wrong_choice_is_answered_in_plain_words(command: Command, tmp_path: Path) -> None:
    said = command("compat", tmp_path, "--with", "kafka-5").err
    assert said.startswith("logstore: Invalid value for '--with': 'kafka-5' is not one of 'kafka-3.9'")


def test_a_log_dir_in_the_place_of_a_partition_is_answered_with_one(command: Command, tmp_path: Path) -> None:
    for name in ("orders-1", "orders-0"):
        (tmp_path / name).mkdir()
    for verb in (["cat", tmp_path], ["diff", tmp_path, tmp_path]):
        assert f"name one of its partitions, such as {tmp_path}/orders-0 " in command(*verb).err


def test_a_usage_error_names_the_help_of_its_verb(command: Command) -> None:
    assert command("topics", "create").err.endswith("(see logstore topics create --help)\n")
    assert command("no-such-verb").err.endswith("(see logstore --help)\n")


def test_a_missing_package_is_named_with_its_extra(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    # Undone, the package is again the one whose modules the other tests have.
    monkeypatch.setattr(logstore.broker, "security", logstore.broker.security)
    for name in [
        each for each in sys.modules if each.startswith(("cryptography", "logstore.broker.security"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "logstore.cli.development_certificates", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    outcome = command("certs", "made")
    assert outcome.code == 1
    assert outcome.err == "logstore: cryptography is not installed: pip install 'pylogstore[security]'\n"


def test_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS.values()) <= set(extras)


def test_every_option_has_a_help_text() -> None:
    """An option without one is a name that explains itself to its author only."""
    import typer.main

    def silent(command: Any, path: str) -> Iterator[str]:
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.help and not parameter.hidden:
                yield f"{path} {parameter.opts[0]}"
        for name, each in getattr(command, "commands", {}).items():
            yield from silent(each, f"{path} {name}")

    assert list(silent(typer.main.get_command(logstore.cli.main.app), "logstore")) == []


def test_every_verb_answers_a_program_too() -> None:
    """But those that run until they are stopped, make files, or hand on to a parser of their own."""
    import typer.main

    def without(command: Any, path: str) -> Iterator[str]:
        for name, each in getattr(command, "commands", {}).items():
            yield from without(each, f"{path} {name}".strip())
        if not hasattr(command, "commands") and not any("--json" in each.opts for each in command.params):
            yield path

    others = {"serve", "metadata-store", "cluster supervise", "certs", "completion", "pipeline", "simulate"}
    assert set(without(typer.main.get_command(logstore.cli.main.app), "")) == others


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["dump", "--help"], ["demo", "--help"]])
def test_help_is_exit_0_on_stdout(command: Command, arguments: list[str]) -> None:
    outcome = command(*arguments)
    assert outcome.code == 0
    assert outcome.out.startswith("Usage: logstore")
    assert outcome.err == ""


def test_a_group_of_verbs_without_a_verb_is_answered_with_its_page(command: Command) -> None:
    """It was one line, "logstore: Usage: …", of all verbs and their texts."""
    outcome = command("topics")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.strip() == command("topics", "--help").out.strip()


def test_version(command: Command) -> None:
    assert command("--version").out == f"logstore {VERSION}\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_an_operating_system_error_is_exit_1_and_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """No traceback for a full or failing disk: the message is the operating system's."""

    def failing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "orders-0")

    monkeypatch.setattr(logstore.cli.main, "_command_line", lambda _: failing)
    outcome = command("append", "orders-0")
    assert outcome.code == 1
    assert outcome.err == (
        f"logstore: [Errno {number}] {os.strerror(number)}: 'orders-0'; free some space, then run it again\n"
    )


def test_a_verb_is_built_alone() -> None:
    """To build all took 70 ms of the 240 that a command took."""
    built = logstore.cli.main._command_line
    assert list(built("verify").commands) == ["verify"]
    assert list(built("topics").commands) == ["topics"]
    assert list(built("elect-preferred").commands) == ["elect-preferred"]
    assert built("--help").commands.keys() == built("verfy").commands.keys() > {"verify", "topics"}


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

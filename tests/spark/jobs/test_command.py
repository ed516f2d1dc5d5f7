"""The command of the jobs: exit codes, one-line errors, answers in two forms, and a help page at once."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from logstore.cli.main import run
from logstore.disk.errors import CorruptCheckpoint
from logstore.spark.brief_errors import reason_of_spark
from logstore.spark.jobs.command import main
from logstore.spark.jobs.job import Answer, BadUsage
from logstore.spark.jobs.signals import first_signal
from logstore.spark.jobs.work import Workers
from tests.spark.jobs.conftest import NOON_MS, append

ROOT = Path(__file__).parents[3]


class Count:
    """A job that needs no Spark: it counts to a number."""

    HELP: ClassVar[str] = "count to a number"

    def __init__(self, failure: BaseException | None = None) -> None:
        self._failure = failure

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("number", type=int)

    def prepare(self, options: argparse.Namespace) -> Counting:
        if options.number < 0:
            raise BadUsage(f"{options.number}: nobody\ncounts to that")
        return Counting(options.number, self._failure)


class Counting:
    def __init__(self, number: int, failure: BaseException | None) -> None:
        self._number, self._failure = number, failure

    def plan(self) -> Answer:
        return Answer({"would_count": self._number}, [f"would count to {self._number}"])

    def run(self, workers: Workers) -> Answer:
        if self._failure is not None:
            raise self._failure
        return Answer({"counted": self._number}, ["counted:", str(self._number)], self._number != 13)


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: str, failure: BaseException | None = None) -> tuple[int, str, str]:
        code = main(arguments, "jobs", {"count": Count(failure)})
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_an_answer_is_lines_or_one_object(command: Command) -> None:
    assert command("count", "3") == (0, "counted:\n3\n", "")
    assert command("count", "3", "--json") == (0, '{"counted": 3}\n', "")


def test_a_plan_does_nothing(command: Command) -> None:
    assert command("count", "3", "--plan", failure=AssertionError("it ran"))[1] == "would count to 3\n"
    assert json.loads(command("count", "3", "--plan", "--json")[1]) == {"would_count": 3}


def test_no_is_exit_1_with_the_answer(command: Command) -> None:
    assert command("count", "13") == (1, "counted:\n13\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-job"],
        ["count"],
        ["count", "x"],
        ["count", "1", "2"],
        ["count", "--", "-1"],
        ["count", "1", "--conf", "novalue"],
        ["count", "1", "--master", "local[1]", "--master", "local[2]"],
        ["count", "1", "--no-such-option"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_2_and_one_line(command: Command, arguments: list[str]) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("logstore: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("failure", "code"),
    [(CorruptCheckpoint("no\nnumber"), 1), (OSError(28, "No space left"), 1), (KeyboardInterrupt(), 130)],
)
def test_what_fails_is_one_line(command: Command, failure: BaseException, code: int) -> None:
    outcome = command("count", "1", failure=failure)
    assert outcome[:2] == (code, "")
    assert outcome[2].count("\n") == 1


def test_signals_of_a_job(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM ends it as Ctrl-C does. SIGPIPE does not, though the command leaves it to the system."""

    def ended(self: Counting, workers: Workers) -> Answer:
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the job goes on")

    monkeypatch.setattr(Counting, "run", ended)
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        assert command("count", "3") == (130, "", "logstore: interrupted\n")
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGPIPE, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_interrupts(number: signal.Signals) -> None:
    with first_signal() as asked:
        assert not asked.is_set()
        signal.raise_signal(number)
        assert asked.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("of_spark", "said"),
    [
        (
            "Query terminated with exception:\nTraceback (most recent call last):\n"
            "logstore.disk.errors.DirectoryLocked: /logs is in use\n\tat org.apache.spark.Task.run",
            "logstore: /logs is in use\n",
        ),
        (
            "Job aborted:\nSparkException: Python worker exited unexpectedly (crashed)\n\tat org.apache",
            "logstore: a Python process of Spark has died, perhaps for lack of memory: run the same command "
            "again\n",
        ),
        (
            "An error occurred while calling o55.load.\n: java.nio.file.AccessDeniedException: /in/b: "
            "Permission denied\n\tat org.apache.hadoop.fs.FileUtil.list(FileUtil.java:1621)",
            "logstore: Spark failed at a file: AccessDeniedException: /in/b: Permission denied\n",
        ),
        (
            "No session:\n\tat x\nCaused by: org.E: [INVALID_CONF_VALUE.TYPE] The value 'x' is none.",
            "logstore: [INVALID_CONF_VALUE.TYPE] The value 'x' is none\n",
        ),
    ],
)
def test_what_fails_in_spark_is_one_line(command: Command, of_spark: str, said: str) -> None:
    """Spark's error has hundreds of lines; one that nobody here can explain keeps them."""
    for module in ("pyspark.errors.exceptions.captured", "py4j.protocol"):
        kind = type("OfSpark", (Exception,), {"__module__": module})
        assert command("count", "1", failure=kind(of_spark)) == (1, "", said)
        with pytest.raises(kind):
            command("count", "1", failure=kind("something else"))


@pytest.mark.parametrize(
    ("of_spark", "said"),
    [
        ("\n[PARSE_ERROR] Syntax error.\n\n== SQL ==\nid +\n", "[PARSE_ERROR] Syntax error"),
        ("[UNRESOLVED] no `x`; line 1;\n'Project [x]\n+- Rows", "[UNRESOLVED] no `x`; line 1"),
        ("An error occurred while calling None.C.\n: java.lang.E: It stopped.\n\tat x", "E: It stopped"),
        ("No:\n\tat x\nCaused by: java.E: outer\n\tat y\nCaused by: org.S$E: [BAD] 'x'.\n", "[BAD] 'x'"),
    ],
)
def test_the_reason_is_one_line_of_what_spark_says(of_spark: str, said: str) -> None:
    assert reason_of_spark(Exception(of_spark)) == said


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (["--master", "nonsense"], "its JVM ended, with the message above"),
        (["--conf", "spark.serializer=no.Such"], "ClassNotFoundException: no.Such. Check --master"),
    ],
)
def test_a_session_that_does_not_start(tmp_path: Path, setting: list[str], said: str) -> None:
    """It was a trace of fifty lines."""
    append(tmp_path / "t-0", [(NOON_MS, "k", "v")])
    job = [sys.executable, "-m", "logstore.spark", "profile", str(tmp_path), *setting]
    done = subprocess.run(job, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("logstore: Spark did not start: ")
    assert said in last
    assert "Traceback" not in done.stderr


def test_a_missing_extra_is_named(command: Command) -> None:
    """And the missing module of somebody else is not taken for it."""
    code, out, err = command("count", "1", failure=ModuleNotFoundError("no pyspark", name="pyspark"))
    assert (code, out) == (1, "")
    assert err == "logstore: pyspark is not installed: pip install 'pylogstore[spark]'\n"
    with pytest.raises(ModuleNotFoundError):
        command("count", "1", failure=ModuleNotFoundError("no such module", name="pipelin"))


def test_a_defect_of_ours_shows_its_trace(command: Command) -> None:
    """Only what a caller can do something about is made short."""
    with pytest.raises(ZeroDivisionError):
        command("count", "1", failure=ZeroDivisionError())


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["count", "--help"], ["count", "-h", "1"]])
def test_help_is_exit_0_on_stdout(command: Command, arguments: list[str]) -> None:
    code, out, err = command(*arguments)
    assert (code, err) == (0, "")
    assert out.startswith("usage: jobs")


def test_the_verb_hands_everything_on(capsys: pytest.CaptureFixture[str]) -> None:
    """`logstore pipeline` knows no option of its own, `--help` no more than any."""
    assert run(["pipeline", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: logstore pipeline")
    assert run(["pipeline", "no-such-job", "--json"]) == 2
    assert "no-such-job" in capsys.readouterr().err


@pytest.mark.parametrize(
    "way",
    [["-m", "logstore.spark"], ["logstore/spark/__main__.py"], ["-m", "logstore.cli.main", "pipeline"]],
    ids=" ".join,
)
def test_three_ways_in_one_command(way: list[str]) -> None:
    """As a file, too: that is what spark-submit is given."""
    done = subprocess.run(
        [sys.executable, *way, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "JOB" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    heavy = ["numpy", "pyarrow", "pyspark", "asyncio", "numba", "logstore.format.batch"]
    code = (
        "import sys\nfrom logstore.spark.jobs.command import main\nassert main(['--help']) == 0\n"
        f"sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

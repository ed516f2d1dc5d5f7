"""A campaign: a job is started again and again, each time with a fault, and each row must be there once.

Three ways to start, and what counts as a restart (`Start`):

    forked     the command in a process forked from this one, its tasks in the same process, without Spark.
               SIGKILL of that process: 0.1 s a restart, every call to the disk can be hit
    session    the command in this process, on Spark with two executors and speculation. The driver is `lost`
               (its calls fail from then on), a Python worker that publishes is killed, a task's worker or
               executor is killed, a task raises or waits, a broker is killed
    killed     the command in a process of its own, as a user runs it: SIGKILL of driver, JVM and workers, at
               a step or at any moment

The next start is the same command. At the end one is left in peace.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from logstore.spark.brief_errors import is_sparks
from logstore.spark.jobs import command
from tests.spark.conftest import ROOT, SETTINGS
from tests.spark.job_kills.cases import Case, demand, run_line
from tests.spark.job_kills.small_driver import without_spark
from tests.spark.job_kills.strikes import (
    AFTER,
    COPYING,
    HAS_DIED,
    OBJECT,
    PLAN_VARIABLE,
    STAGING,
    STARTING,
    TASK,
    Fault,
    Watch,
    again_path,
    fired_path,
    install,
    kill_session,
)
from tests.spark.jobs.in_process import InProcess
from tests.spark.spark_home import linked_home, quick_environment

if TYPE_CHECKING:
    from tests.spark.job_kills.nodes import Nodes

_LOOK_EVERY: Final = 10
_LIMIT_S: Final = 600.0
_HANGS_S: Final = 120
MOMENT: Final = "any moment"
WATCHED_PATH: Final = f"{Path(__file__).parent / 'hooks'}:{ROOT}"
"""PYTHONPATH of Spark's processes."""
PEACE: Final = Fault("none", how="none")

Start = Callable[[Case, Path], int]
"""Starts the command under the plan in a file; returns its exit code, or `HAS_DIED`."""


@dataclass
class Campaign:
    """`plan`: the file that the job's processes look at."""

    case: Case
    start: Start
    plan: Path
    seed: int = 1
    nodes: Nodes | None = None
    struck: Counter[tuple[str, str]] = field(default_factory=Counter)
    starts: int = 0
    second_attempts: int = 0
    rows: int = 0

    def run(self, restarts: int, kinds: Sequence[tuple[str, str]]) -> None:
        """Restart the job until so many faults have struck, then leave it in peace. Raises `NotOnce`."""
        draw = random.Random(self.seed)
        self.restart(PEACE)
        turn = 0
        while self.struck.total() < restarts:
            demand(turn < 4 * restarts + 40, f"the faults do not strike: {self.struck}")
            step, how = kinds[turn % len(kinds)]
            nth = draw.choice([0, 0, 0, 1, 2, 3, 5, 8, 13]) if step != AFTER else 0
            self.restart(Fault(step, nth, how, self.case.steps))
            turn += 1
            if turn % _LOOK_EVERY == 0:
                self.case.check(whole=False)
        self.restart(PEACE)
        self.rows = self.case.check(whole=True)

    def restart(self, fault: Fault) -> None:
        """One start; only a fault may end it early."""
        self.case.grow()
        if self.nodes is not None:
            fault = replace(fault, pids=(self.nodes.any_pid(),))
        fault.write(self.plan)
        self.starts += 1
        code = self.start(self.case, self.plan)
        if self.nodes is not None:
            self.nodes.mend()
        has_fired = fired_path(self.plan).exists()
        self.struck[fault.step, fault.how] += has_fired
        self.second_attempts += again_path(self.plan).exists()
        if self.case.is_well(code):
            self.case.ended()
        else:
            demand(has_fired, f"a start without a fault ended with {code}, under {fault}")

    def report(self) -> str:
        """A table of what struck, and the figures."""
        steps = dict.fromkeys(step for step, _ in self.struck)
        hows = sorted({how for (_, how), count in self.struck.items() if count})
        lines = [
            f"  {step:30}" + "".join(f"  {how} {self.struck[step, how]:3}" for how in hows)
            for step in steps
            if any(self.struck[step, how] for how in hows)
        ]
        lines.append(
            f"  {self.starts} starts, {self.struck.total()} faults, "
            f"{self.second_attempts} with a task's second attempt; {self.rows} rows compared"
        )
        return "\n".join(lines)


# --- without Spark ------------------------------------------------------------------------------------------


def forked(case: Case, plan: Path, *, mistake: Callable[[pytest.MonkeyPatch], None] | None = None) -> int:
    """Start the command in a forked process, its tasks one after the other."""
    errors = case.home / "stderr"
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            faulthandler.register(signal.SIGALRM, errors.with_suffix(".hangs").open("w"), chain=True)
            signal.alarm(_HANGS_S)
            patch = pytest.MonkeyPatch()  # never undone: the process ends
            patch.setattr(command, "Workers", lambda *_, **__: InProcess())
            without_spark(patch)
            if mistake is not None:
                mistake(patch)
            watch = Watch(plan, frozenset({"kill"}))
            install(watch)
            _announce_commits(patch, watch)
            with errors.open("w") as file, redirect_stderr(file):
                code = case.start()
        except BaseException:
            errors.write_text(traceback.format_exc())
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            demand(False, f"it hangs: {errors.with_suffix('.hangs').read_text()[:4000]}")
        return HAS_DIED
    code = os.WEXITSTATUS(status)
    demand(case.is_well(code), f"exit {code}: {errors.read_text()[-2000:]}")
    return code


# --- in a session -------------------------------------------------------------------------------------------

CLUSTER: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "300ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.task.duration.threshold": "800ms",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "768m",
    "spark.executorEnv.PYTHONPATH": WATCHED_PATH,
}


@contextmanager
def cluster_session(home: Path) -> Iterator[Path]:
    """A session with two executors, in processes of their own, and speculation; the file of its plans."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"], os.environ["PYTHONPATH"] = sys.executable, WATCHED_PATH
    home.mkdir(parents=True)
    plan = home / "plan.json"
    PEACE.write(plan)
    os.environ[PLAN_VARIABLE] = str(plan)
    os.environ.setdefault("SPARK_HOME", str(linked_home(home / "spark-home")))
    builder = SparkSession.builder.master("local-cluster[2,1,512]").appName("job-kills")
    settings = {**SETTINGS, **CLUSTER, "spark.sql.warehouse.dir": f"{home}/warehouse"}
    settings[f"spark.executorEnv.{PLAN_VARIABLE}"] = str(plan)
    for key, value in settings.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    try:
        yield plan
    finally:
        made.stop()


def in_session(case: Case, plan: Path) -> int:
    """Start the command in this process, on the active session, whose workers look at the same plan."""
    watch = Watch(plan, frozenset({"lost", "others"}))
    undo = install(watch)
    errors = io.StringIO()
    patch = pytest.MonkeyPatch()
    _announce_commits(patch, watch)
    try:
        with redirect_stderr(errors):
            code = case.start()
    except Exception as error:
        if not (is_sparks(error) and fired_path(plan).exists()):
            raise
        code = 1
    finally:
        patch.undo()
        undo()
    if not case.is_well(code) and not fired_path(plan).exists():
        print(errors.getvalue()[-3000:], file=sys.stderr)
    return code


def _announce_commits(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """After a batch of a stream is published, and before Spark's checkpoint says so."""
    from logstore.spark.jobs.ingest import Ingest
    from logstore.spark.jobs.stream import Stream

    def announced(publish: Any) -> Any:
        def call(*arguments: Any) -> Any:
            publish(*arguments)
            watch.reached(AFTER)

        return call

    patch.setattr(Stream, "_publish", announced(Stream._publish))
    patch.setattr(Ingest, "_write", announced(Ingest._write))


def _driver_steps(case: Case) -> list[str]:
    return [step for step in case.names if step not in (STARTING, STAGING, COPYING, OBJECT)]


def _after(case: Case) -> list[str]:
    """Between the job's commit and Spark's."""
    return [AFTER] if case.name in ("stream", "ingest") else []


def session_kinds(case: Case) -> list[tuple[str, str]]:
    """Steps and faults in turn; an executor takes seconds to come back."""
    how = "kill" if case.commits_in_worker else "lost"
    steps = [(step, how) for step in _driver_steps(case)]
    after = [(step, "lost") for step in _after(case)]
    return [*steps, (TASK, "kill"), (TASK, "raise"), *steps, *after, (TASK, "slow"), (TASK, "executor")]


def broker_kinds(case: Case) -> list[tuple[str, str]]:
    """A broker dies at each step, and in a task; now and then the job does, too."""
    how = "kill" if case.commits_in_worker else "lost"
    steps = _driver_steps(case)
    brokers = [(step, "others") for step in (TASK, *steps)]
    return [*brokers, (steps[1], how), (TASK, "kill"), (steps[2], how)]


def forked_kinds(case: Case) -> list[tuple[str, str]]:
    return [(step, "kill") for step in (*case.names, *_after(case))]


# --- in processes of their own ------------------------------------------------------------------------------


class Killed:
    """A `Start`: the command as a user starts it, in a session (setsid) of its own, which is killed."""

    def __init__(self, home: Path, seed: int) -> None:
        self._home, self._draw = home, random.Random(seed)
        self._took_s = 20.0
        self._environment = quick_environment(home / "quick")

    def __call__(self, case: Case, plan: Path) -> int:
        (self._home / "line.json").write_text(json.dumps(case.line()))
        line = [sys.executable, "-m", "tests.spark.job_kills", "--start", str(self._home / "line.json")]
        more = {"PYTHONPATH": WATCHED_PATH, PLAN_VARIABLE: str(plan)}
        at_any_moment = Fault.read(plan).step == MOMENT
        limit_s = self._took_s * self._draw.uniform(0.2, 1.0) if at_any_moment else _LIMIT_S
        began_s = time.monotonic()
        with (self._home / "stderr").open("w") as errors:
            process = subprocess.Popen(
                line, start_new_session=True, env={**os.environ, **self._environment, **more}, cwd=ROOT,
                stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
        try:
            code = process.wait(limit_s)
            self._took_s = time.monotonic() - began_s
        except subprocess.TimeoutExpired:
            demand(at_any_moment, f"it hangs: {self._errors()}")
            fired_path(plan).touch()
            code = HAS_DIED
        finally:
            kill_session(process.pid)
            process.wait()
        demand(code == HAS_DIED or case.is_well(code), f"exit {code}: {self._errors()}")
        return code

    def _errors(self) -> str:
        return (self._home / "stderr").read_text()[-2000:]


def start_line(path: Path) -> int:
    """Run the command of a file in this process, under the plan that the environment names."""
    install(Watch(Path(os.environ[PLAN_VARIABLE]), frozenset({"session"})))
    return run_line(json.loads(path.read_text()), "local[2]", {"spark.driver.memory": "512m"})


def killed_kinds(case: Case) -> list[tuple[str, str]]:
    """Half of them at a step, half at any moment."""
    return [
        each for step in (*_driver_steps(case), TASK) for each in ((step, "session"), (MOMENT, "session"))
    ]

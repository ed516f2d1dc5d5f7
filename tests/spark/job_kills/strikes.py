"""Faults in the processes of a job: a plan in a file says at which step one of them fails, once, and how.

    step       of a publication, by what the process is about to do to its disk, and by the ledger: `Steps`
    how        raise      the call fails
               lost       this call of the process and all later ones fail, as those of a dead process do
               kill       SIGKILL of the process
               session    SIGKILL of all processes of its session: driver, JVM, executors, workers
               executor   SIGKILL of the executor that runs the task, and of its workers
               slow       the task waits, so that speculation starts it a second time
               others     SIGKILL of the processes that the plan names, such as a broker

`install` puts a `Watch` before every call of the process to its disk; `hooks/sitecustomize.py` does so in the
Python workers of Spark.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any, Final, NoReturn

from logstore.disk.files import OsDisk
from logstore.spark.ledger import LEDGER_FILE, read_ledger
from logstore.testing.disks import Operation, RecordingDisk
from logstore.testing.disks.recording import READS

PLAN_VARIABLE: Final = "LOGSTORE_JOB_KILLS_PLAN"
WORKERS: Final = frozenset({"raise", "kill", "session", "executor", "slow", "others"})
"""What Spark's Python workers carry out."""

TASK: Final = "task"
STARTING, STAGING, BEFORE, DECIDED, AMID, PLACED, SWEEPING, AFTER = (
    "starting",
    "staging",
    "staged, not decided",
    "decided, nothing placed",
    "between placings",
    "all placed, not marked",
    "sweeping",
    "after the commit",
)
LEDGER_STEPS: Final = (STARTING, STAGING, BEFORE, DECIDED, AMID, PLACED, SWEEPING)
COPYING, COPIED, RENAMED, NOTED = (
    "copying a partition",
    "copied, not in its place",
    "in its place, not noted",
    "all noted, output not renamed",
)
REPAIR_STEPS: Final = (COPYING, COPIED, RENAMED, NOTED)
OBJECT, WRITTEN, MANIFEST = "writing an object", "object written, not named", "manifest not in its place"
TIER_STEPS: Final = (OBJECT, WRITTEN, MANIFEST)

HAS_DIED: Final = -9
_PATIENCE_S: Final = 5.0


class Struck(OSError):
    """The fault."""


@dataclass(frozen=True)
class Fault:
    """At the `nth` call to the disk within the step. `steps` is for `steps_of`, `pids` for `others`."""

    step: str
    nth: int = 0
    how: str = "kill"
    steps: str = ""
    pids: tuple[int, ...] = ()

    def write(self, path: Path) -> None:
        """Make this the plan, which has not struck yet."""
        for mark in (fired_path(path), again_path(path)):
            mark.unlink(missing_ok=True)
        path.with_suffix(".new").write_text(json.dumps(asdict(self)))
        path.with_suffix(".new").rename(path)

    @classmethod
    def read(cls, path: Path) -> Fault:
        return cls(**json.loads(path.read_text()))


def fired_path(path: Path) -> Path:
    """Exists once the fault of this plan has struck."""
    return path.with_suffix(".fired")


def again_path(path: Path) -> Path:
    """Exists once a second attempt of a task has begun while the plan was in force."""
    return path.with_suffix(".again")


# --- steps --------------------------------------------------------------------------------------------------

Steps = Callable[[Operation], str]
"""The step that a call belongs to."""


def steps_of(text: str) -> Steps:
    """`ledger:PATTERN` of the ledger's directory, `repair` or `tier`."""
    kind, _, pattern = text.partition(":")
    return {"repair": repair_step, "tier": tier_step}.get(kind) or LedgerSteps(pattern)


class LedgerSteps:
    """The steps of a publication through a ledger."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._number, self._placed = -1, 0

    def __call__(self, operation: Operation) -> str:
        directory = next(iter(glob(self._pattern)), self._pattern)
        is_of_ledger = operation.path.startswith(f"{directory}/{LEDGER_FILE}")
        intent = read_ledger(object.__new__(OsDisk), directory).intent
        if intent is None:
            if is_of_ledger:
                return BEFORE
            if not operation.path.startswith(f"{directory}/staged"):
                return STARTING
            return SWEEPING if operation.name in ("remove", "remove_dir") else STAGING
        if intent.number != self._number:
            self._number, self._placed = intent.number, 0
        if is_of_ledger:
            return PLACED
        is_log = operation.name == "pwrite" and operation.path.endswith(".log")
        self._placed += is_log or operation.name == "rename"
        return AMID if self._placed > 1 else DECIDED


def repair_step(operation: Operation) -> str:
    """`UNFINISHED/t-0.3-Xq/…` is a copy, `UNFINISHED/t-0` its place; notes; then the output's own name."""
    name = operation.path.partition(".unfinished/")[2]
    if operation.name == "rename" and not name.startswith("repair.json"):
        return COPIED if name else NOTED
    return COPYING if "." in name.partition("/")[0] and not name.startswith("repair.json") else RENAMED


def tier_step(operation: Operation) -> str:
    if operation.path.endswith(".log"):
        return OBJECT
    return MANIFEST if operation.name in ("rename", "pwrite") else WRITTEN


# --- striking -----------------------------------------------------------------------------------------------


class Watch:
    """Looks at each call of this process to its disk, and strikes at the one that the plan chose.

    `hows`: those that this process carries out. `is_task` says whether it is an executor's worker just now.
    """

    def __init__(self, plan: Path, hows: frozenset[str], is_task: Callable[[], bool] = lambda: False) -> None:
        self._plan, self._hows, self._is_task = plan, hows, is_task
        self._read: tuple[int, int] | None = None

    def _reload(self) -> None:
        status = self._plan.stat()
        if self._read != (read := (status.st_ino, status.st_mtime_ns)):
            self._read = read
            self._fault = Fault.read(self._plan)
            self._steps = steps_of(self._fault.steps)
            self._calls, self._is_lost = 0, False

    def before(self, operation: Operation) -> None:
        """Called ahead of a call."""
        self._reload()
        if self._is_lost:
            raise Struck("the process is lost")
        if self._is_task():
            self.reached(TASK)
        elif operation.name not in READS:
            self.reached(self._steps(operation))

    def reached(self, step: str) -> None:
        """Strike if the plan says so."""
        self._reload()
        if step != self._fault.step or self._fault.how not in self._hows:
            return
        self._calls += 1
        if self._calls <= self._fault.nth:
            return
        try:
            fired_path(self._plan).open("x").close()
        except FileExistsError:
            return
        self._strike()

    def _strike(self) -> None:
        match self._fault.how:
            case "raise":
                raise Struck(self._fault.step)
            case "lost":
                self._is_lost = True
                raise Struck(self._fault.step)
            case "slow":
                self._wait_for_another()
            case "others":
                for pid in self._fault.pids:
                    os.kill(pid, signal.SIGKILL)
            case "executor":
                kill_executor()
            case "session":
                kill_session(os.getsid(0), spared=os.getpid())
                die()
            case _:
                die()

    def _wait_for_another(self) -> None:
        """Until the task has begun a second time, and a little longer by chance of that."""
        deadline = time.monotonic() + _PATIENCE_S
        while not again_path(self._plan).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.1 * (self._fault.nth % 8))


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def kill_executor() -> NoReturn:
    """SIGKILL to the executor of this worker, whose parent is a daemon, whose parent is the executor."""
    executor = _fields(os.getppid())[1]
    command = Path(f"/proc/{executor}/cmdline").read_bytes()
    assert b"CoarseGrainedExecutorBackend" in command, "the driver runs this task itself"
    os.kill(int(executor), signal.SIGKILL)
    die()


def kill_session(session: int, *, spared: int = 0) -> None:
    """SIGKILL to every process of the session until none is left: Spark's workers have their own group."""
    while members := [pid for pid in _processes() if pid != spared and _session_of(pid) == session]:
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.005)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _fields(pid: int) -> list[str]:
    """State, parent, group, session, …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _session_of(pid: int) -> int:
    """0 for one that is gone, or dead and not yet waited for."""
    try:
        state, _, _, session, *_ = _fields(pid)
    except OSError:
        return 0
    return 0 if state in ("Z", "X") else int(session)


# --- putting it into a process ------------------------------------------------------------------------------


def install(watch: Watch) -> Callable[[], None]:
    """Put the watch before every call of this process to its disk and to brokers; return what undoes it."""
    import pytest

    patch = pytest.MonkeyPatch()

    def watched(cls: type) -> Any:
        return RecordingDisk(object.__new__(cls), before=watch.before, reads=True)

    patch.setattr(OsDisk, "__new__", watched)
    _watch_objects(patch, watch)
    _watch_brokers(patch, watch)
    return patch.undo


def _watch_objects(patch: Any, watch: Watch) -> None:
    from fsspec.implementations.local import LocalFileOpener, LocalFileSystem

    def announced(function: Callable[..., Any], name: str, path: Callable[..., str]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            watch.before(Operation(name, path(*arguments)))
            return function(*arguments, **named)

        return call

    write, move = LocalFileOpener.write, LocalFileSystem.mv
    patch.setattr(LocalFileOpener, "write", announced(write, "pwrite", lambda file, *_: str(file.path)))
    patch.setattr(LocalFileSystem, "mv", announced(move, "rename", lambda _, source, *__: str(source)))
    opened = LocalFileSystem._open

    def opens(system: Any, path: str, mode: str = "rb", **named: Any) -> Any:
        watch.before(Operation("create" if "w" in mode else "open", path))
        return opened(system, path, mode, **named)

    patch.setattr(LocalFileSystem, "_open", opens)


def _watch_brokers(patch: Any, watch: Watch) -> None:
    """A produce is the append of a publication, before and after it."""
    from logstore.spark import sink

    open_target = sink.open_target

    def opened(*arguments: Any) -> Any:
        target: Any = open_target(*arguments)
        if (client := getattr(target, "_client", None)) is not None:
            client.produce = partial(produced, client.produce)
        return target

    async def produced(produce: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        watch.before(Operation("pwrite", "brokers.log"))
        answer = await produce(*arguments, **named)
        watch.before(Operation("sync", "brokers.log"))
        return answer

    patch.setattr(sink, "open_target", opened)

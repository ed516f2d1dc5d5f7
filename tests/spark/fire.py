"""The sink with a fault in it: a plan in a file says where one process of Spark's fails, once, and how.

    task stages      before its rows · staged, not told · two attempts' files · every attempt fails
    commit stages    as its ledger and its appends say: see `COMMIT_STAGES`
    how              raise · kill (SIGKILL of the Python process) · driver (of the JVM and its program too)

A data source of its own, so that nothing of this is in the product.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from pyspark.sql.datasource import WriterCommitMessage

from logstore.disk.files import Disk, OsDisk
from logstore.spark.data_source import LogstoreDataSource
from logstore.spark.ledger import LEDGER_FILE, Entry, Ledger, read_ledger
from logstore.spark.publishing import Target
from logstore.spark.sink import Sink, open_target
from logstore.spark.write_options import WriteOptions
from logstore.spark.writers import StreamWriter
from logstore.testing.disks import Operation, RecordingDisk

PLAN: Final = "faultplan"
CONTROL: Final = "control"

BEFORE, DECIDED, AMID, APPENDED, MARKED, AFTER = (
    "before the intent",
    "decided, nothing appended",
    "between appends",
    "all appended, not marked",
    "marked, not swept",
    "after the commit",
)
COMMIT_STAGES: Final = (BEFORE, DECIDED, AMID, APPENDED, MARKED, AFTER)
UNSTAGED, STAGED, TWICE, EVERY = (
    "task, before its rows",
    "task, staged and not told",
    "task, files of two attempts",
    "task, every attempt",
)
TASK_STAGES: Final = (UNSTAGED, STAGED, TWICE, EVERY)


@dataclass(frozen=True)
class Fault:
    """At the `nth` call to the disk within the stage, or the first later one. A task's: `nth` is which."""

    stage: str
    nth: int = 0
    how: str = "raise"
    driver: tuple[int, ...] = ()

    @property
    def fails_the_query(self) -> bool:
        return self.stage in COMMIT_STAGES or self.stage == EVERY

    def write(self, path: Path) -> None:
        fired_path(path).unlink(missing_ok=True)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Fault:
        return cls(**json.loads(path.read_text()))


def fired_path(path: Path) -> Path:
    """Exists once the fault of this plan has struck, and says at which stage."""
    return path.with_suffix(".fired")


class Struck(Exception):
    """The fault."""


class Striker:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.fault = Fault.read(path)

    def strike(self, stage: str) -> None:
        """Fail as the plan says, unless somebody did."""
        try:
            with fired_path(self._path).open("x") as file:
                file.write(stage)
        except FileExistsError:
            return
        self.fail(stage)

    def fail(self, stage: str) -> NoReturn:
        if self.fault.how == "raise":
            raise Struck(stage)
        for pid in self.fault.driver if self.fault.how == "driver" else ():
            os.kill(int(pid), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")


class CommitUnderFire:
    """Watches a commit's calls, and strikes where the plan says."""

    def __init__(self, striker: Striker, ledger: str, number: int) -> None:
        self._striker, self._ledger, self._number = striker, ledger, number
        self._appends = 0
        self._calls = 0
        self._wanted = COMMIT_STAGES.index(striker.fault.stage)

    def before(self, operation: Operation) -> None:
        if operation.name == "pwrite" and operation.path.endswith(".log"):
            self.appending()
        self._reached(self._stage(operation.path.startswith(f"{self._ledger}/{LEDGER_FILE}")))

    def appending(self) -> None:
        self._appends += 1

    def producing(self) -> None:
        """Around a produce, which is no call to the disk."""
        self._reached(self._stage(False))

    def _stage(self, is_of_ledger: bool) -> str:
        entry = read_ledger(OsDisk(), self._ledger)
        if entry.intent is not None:
            return APPENDED if is_of_ledger else AMID if self._appends > 1 else DECIDED
        return MARKED if entry.done >= self._number else BEFORE

    def _reached(self, stage: str) -> None:
        place = COMMIT_STAGES.index(stage)
        if place >= self._wanted:
            self._calls += place == self._wanted
            if self._calls > self._striker.fault.nth or place > self._wanted:
                self._striker.strike(stage)

    def done(self) -> None:
        self._striker.strike(AFTER)


class WriterUnderFire(StreamWriter):
    def __init__(self, options: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._plan = Path(given.pop(PLAN))
        self._control = bool(given.pop(CONTROL, ""))
        super().__init__(WriteOptions.parse(given, streaming=True))
        self._watch: CommitUnderFire | None = None

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        with without_ledger(self._control):
            return self._write(iterator)

    def _write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        striker = Striker(self._plan)
        fault, context = striker.fault, TaskContext.get()
        assert context is not None
        if fault.stage not in TASK_STAGES or context.partitionId() != fault.nth:
            return super().write(iterator)
        if fault.stage == UNSTAGED:
            striker.strike(UNSTAGED)
        batches = list(iterator)
        message = super().write(iter(batches))
        if fault.stage == STAGED:
            striker.strike(STAGED)
        if fault.stage == EVERY:
            fired_path(self._plan).write_text(EVERY)
            striker.fail(EVERY)
        if fault.stage == TWICE and not fired_path(self._plan).exists():
            fired_path(self._plan).write_text(TWICE)
            return super().write(iter(batches))
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        with without_ledger(self._control):
            self._commit(messages, batchId)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        striker = Striker(self._plan)
        if striker.fault.stage not in COMMIT_STAGES or fired_path(self._plan).exists():
            super().commit(messages, batchId)
            return
        ledger = next(each.message.ledger for each in messages)  # type: ignore[union-attr]
        self._watch = CommitUnderFire(striker, ledger, batchId)
        super().commit(messages, batchId)
        self._watch.done()

    def _sink(self) -> Sink:
        if self._watch is None:
            return super()._sink()
        watch = self._watch

        def opened(options: WriteOptions, disk: Disk) -> Target:
            return _watched(open_target(options, disk), watch)

        return Sink(self._options, RecordingDisk(OsDisk(), before=watch.before), opened)


def _watched(target: Target, watch: CommitUnderFire) -> Target:
    """With its produces watched, where it has brokers."""
    client: Any = getattr(target, "_client", None)
    if client is not None:
        produce: Callable[..., Any] = client.produce

        async def produced(*arguments: Any, **named: Any) -> Any:
            watch.producing()
            watch.appending()
            answer = await produce(*arguments, **named)
            watch.producing()
            return answer

        client.produce = produced
    return target


@contextmanager
def without_ledger(is_wanted: bool) -> Iterator[None]:
    """The control: a commit publishes whatever it is given. Put back, for processes are used again."""
    if not is_wanted:
        yield
        return
    import pytest

    def publish(
        ledger: Ledger, number: int, plan: Callable[[], Any], carry_out: Callable[[Any], Any]
    ) -> bool:
        ledger._entry = Entry(number - 1, ledger.state, None)
        ledger.finish(carry_out(ledger.decide(number, plan())))
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("logstore.spark.sink.publish_once", publish)
        patch.setattr("logstore.spark.sink.read_ledger", lambda disk, directory: Entry())
        yield


class LogstoreUnderFire(LogstoreDataSource):
    @classmethod
    def name(cls) -> str:
        return "logstore_under_fire"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return WriterUnderFire(self.options, schema, overwrite)

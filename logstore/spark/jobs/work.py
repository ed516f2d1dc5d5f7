"""Work on Spark: a list of items, a function, and the reports as the items finish.

    driver     items ──► one Spark task an item ──► function(item) on some executor
               reports ◄── accumulator ◄─────────── its report, sent with the task's end

Spark does the rest: where a task runs, how often it is tried (`spark.task.maxFailures`; once if the master is
`local[…]`), whether it is run twice in a race. The report of one try of each item arrives, that of the try
that counts; what the other tries left behind (a file, say) is the function's to make harmless. Why this way
and not as a data source: docs/decisions/038-pipeline-jobs.md.

The function and the items are pickled: the function stands in a module, and modules are installed wherever
executors run.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, cast

from logstore.disk.errors import EngineError, ErrorCode
from logstore.spark.jobs.progress import Progress

if TYPE_CHECKING:
    from pyspark import RDD, Accumulator, AccumulatorParam
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Report = TypeVar("Report")

_FAILED: Final = "logstore: work item failed: "
_FAILURE: Final = re.compile(re.escape(_FAILED) + r"(\{.*\})")

QUIET: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",  # 45 ms a task become 18 ms
    "spark.sql.session.timeZone": "UTC",
}
"""What a session of our own is started with; of a submitted one nothing is changed."""


_LOGGING: Final = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


class WorkFailed(EngineError):
    """An item could not be done, as often as Spark tried; the message names it and says why."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class Workers:
    """A Spark session, started when it is first needed, and the progress of what is done there.

    A context manager: leaving it stops the session if it was started here. A session that is there already,
    or that `spark-submit` brought, is used as it is. Raises `JavaMissing` before Spark would begin.
    """

    def __init__(
        self, progress: Progress, *, master: str | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        """`master`: `local[*]` where nothing else says it; `settings`: `spark.…` for a new session."""
        self.progress = progress
        self._master, self._settings = master, dict(settings or {})
        self._session: SparkSession | None = None
        self._is_ours = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.end()
        if self._session is not None and self._is_ours:
            self._session.stop()
        self._session = None

    @property
    def session(self) -> SparkSession:
        """The session; takes seconds the first time."""
        if self._session is None:
            self._session = self._open()
        return self._session

    def _open(self) -> SparkSession:
        from pyspark.sql import SparkSession

        if (active := SparkSession.getActiveSession()) is not None:
            return active
        builder = SparkSession.builder.appName("logstore pipeline")
        if "PYSPARK_GATEWAY_PORT" in os.environ:  # under spark-submit: its JVM, its master
            settings: Mapping[str, str] = self._settings
        else:
            from logstore.spark.java import check_java

            check_java()
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            builder = builder.master(self._master or "local[*]")
            settings = {**QUIET, "spark.driver.extraJavaOptions": _LOGGING, **self._settings}
        for name, value in settings.items():
            builder = builder.config(name, value)
        self._is_ours = True
        return builder.getOrCreate()

    def reports(
        self, items: Sequence[Item], function: Callable[[Item], Report]
    ) -> Iterator[tuple[Item, Report]]:
        """Each item with what `function` returned for it, as they finish: in any order, each once.

        Items are begun in their order. An iterator that is not read to its end gives up the rest. Raises
        `WorkFailed` for an item whose function raised an `EngineError` or `OSError`; Spark's own exception,
        with a note that names the item, for anything else.
        """
        if not items:
            return
        context = self.session.sparkContext
        arrived: SimpleQueue[tuple[int, Report] | _End] = SimpleQueue()
        nothing: list[Any] = []
        channel = context.accumulator(nothing, cast("AccumulatorParam[list[Any]]", _Channel(arrived)))
        work = context.parallelize(list(enumerate(items)), len(items))
        seen: set[int] = set()
        with _Submitted(work, _Task(function, channel), arrived):
            while not isinstance(event := arrived.get(), _End):
                index, report = event
                if index not in seen:
                    seen.add(index)
                    yield items[index], report
        if event.error is not None:
            raise _told(event.error, items)
        assert len(seen) == len(items), "Spark ended a job of which tasks are missing"


def attempt_id() -> int:
    """In a function that works on an item: the number of this try, which no other try of any item has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return -1 if context is None else context.taskAttemptId()


class _End:
    """All that arrives has arrived."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Channel:
    """An accumulator that keeps nothing: in the driver, what is added goes to a queue.

    Spark adds what a task added when that task has succeeded, once for each item, however often it ran, and
    before the job ends. Duck-typed as `pyspark.accumulators.AccumulatorParam`: its module is not imported
    by who only asks for help.
    """

    def __init__(self, arrived: SimpleQueue[Any] | None = None) -> None:
        self._arrived = arrived

    def __reduce__(self) -> tuple[Any, ...]:
        return _Channel, ()

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, kept: list[Any], added: list[Any]) -> list[Any]:
        if self._arrived is None:
            return kept + added
        for event in added:
            self._arrived.put(event)
        return kept


class _Task(Generic[Item, Report]):
    """What an executor calls."""

    def __init__(self, function: Callable[[Item], Report], channel: Accumulator[Any]) -> None:
        self._function, self._channel = function, channel

    def __call__(self, numbered: tuple[int, Item]) -> None:
        index, item = numbered
        try:
            report = self._function(item)
        except Exception as error:
            expected = isinstance(error, EngineError | OSError)
            facts = {"item": index, "error": str(error) or repr(error), "expected": expected}
            # Only text comes through Spark, amid traces of two languages: one line that can be found again.
            raise RuntimeError(_FAILED + json.dumps(facts)) from error
        self._channel.add([(index, report)])


class _Submitted:
    """The Spark job, in a thread, because whoever submits one waits for its end; cancelled if left early."""

    def __init__(self, work: RDD[Any], task: _Task[Any, Any], arrived: SimpleQueue[Any]) -> None:
        from pyspark import InheritableThread

        self._work, self._task, self._arrived = work, task, arrived
        self._group = f"logstore-{work.id()}"
        self._thread = InheritableThread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._work.context.cancelJobGroup(self._group)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._work.context.setJobGroup(self._group, "logstore pipeline", interruptOnCancel=True)
            self._work.foreach(self._task)
        except BaseException as error:  # handed to the thread that asked
            self._arrived.put(_End(error))
        else:
            self._arrived.put(_End(None))


def _told(error: BaseException, items: Sequence[Any]) -> BaseException:
    """What to raise for it."""
    found = _FAILURE.search(str(error))
    if found is None:
        return error
    facts = json.loads(found[1])
    if facts["expected"]:
        told = WorkFailed(f"{items[facts['item']]}: {facts['error']}")
        told.__cause__ = error
        return told
    error.add_note(f"while working on {items[facts['item']]}")
    return error

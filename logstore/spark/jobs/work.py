"""Run work on Spark: a list of items, a function, reports as the items finish, and a line of progress.

    driver     items ──► one Spark task per item ──► function(item) on an executor
               reports ◄── accumulator ◄──────────── its report, sent when the task ends

Spark decides where a task runs, how often it is retried (`spark.task.maxFailures`; never if the master is
`local[…]`), and whether it runs twice in a race. One report of each item arrives: that of the attempt that
counts. The function itself makes leftovers of other attempts, such as files, harmless.
docs/decisions/038-pipeline-jobs.md explains why this is not a data source.

Function and items are pickled, so the function must be in a module that is installed on every executor.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TextIO, TypeVar, cast

from logstore.disk.errors import EngineError, ErrorCode
from logstore.spark.brief_errors import is_sparks, reason_of_spark
from logstore.spark.local_session import session
from logstore.wording import noun_of

if TYPE_CHECKING:
    from pyspark import RDD, Accumulator, AccumulatorParam
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Report = TypeVar("Report")

REPAINT_S: Final = 0.2
LINE_S: Final = 10.0


class Progress:
    """Shows progress on stderr: one line that is rewritten on a terminal, a line every 10 s elsewhere.

    Work of less than a second shows nothing. `tick` shows it while nothing advances; any thread may call it.
    `clock` is monotonic seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream, self._clock = stream, clock
        self._terminal = stream.isatty()
        self._what, self._unit = "", ""
        self._total = self._done = 0
        self._began_s = self._shown_s = 0.0
        self._painted = False
        self._lock = Lock()

    def begin(self, what: str, total: int = 0, unit: str = "") -> None:
        """Start a phase of `total` units (records, bytes, items); without a total, only its time is shown."""
        with self._lock:
            self._what, self._total, self._unit, self._done = what, total, unit, 0
            self._began_s = self._clock()
            self._shown_s = self._began_s + (1.0 - REPAINT_S if self._terminal else 1.0 - LINE_S)

    def advance(self, amount: int) -> None:
        """Add finished units."""
        with self._lock:
            self._done += amount
        self.tick()

    def tick(self, done: int | None = None, total: int | None = None) -> None:
        """Show the progress if it is time; `done` and `total` replace the counts."""
        with self._lock:
            if done is not None and total is not None:
                self._done, self._total = done, total
            now_s = self._clock()
            if self._what and now_s - self._shown_s >= (REPAINT_S if self._terminal else LINE_S):
                self._shown_s = now_s
                self._show(self.line(now_s))

    def end(self) -> None:
        """End the phase and clear the terminal's line."""
        with self._lock:
            self._what = ""
            if self._painted:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
                self._painted = False

    def line(self, now_s: float) -> str:
        """Return `export: 3.1 M of 10 M records, 31 %, 1.02 M/s, 7 s left`."""
        passed_s = max(now_s - self._began_s, 1e-9)
        if not self._total:
            return f"{self._what}: {duration(passed_s)}"
        rate = self._done / passed_s
        text = f"{self._what}: {amount(self._done)} of {amount(self._total)} {self._unit}"
        text += f", {100 * self._done // self._total} %"
        text += f", {amount(rate)}/s"
        if rate and self._done < self._total:
            text += f", {duration((self._total - self._done) / rate)} left"
        return text

    def _show(self, text: str) -> None:
        self._stream.write(f"\r{text}\x1b[K" if self._terminal else f"{text}\n")
        self._painted = self._terminal
        self._stream.flush()


def amount(number: float) -> str:
    """Return `999`, `12.3 k`, `4.56 M`, `7.89 G`."""
    for scale, sign in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= scale:
            return f"{number / scale:.3g}{sign}"
    return f"{number:.3g}"


def amounts(count: int, noun: str) -> str:
    """Return `1 record`, `12.3 k records`."""
    return f"{amount(count)} {noun_of(count, noun)}"


def in_bytes(count: float) -> str:
    """Return `21 B`, `1.45 kB`."""
    return f"{amount(count)}{' ' if count < 1000 else ''}B"


def duration(seconds: float) -> str:
    """Return `42 s`, `3 min`, `5.2 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# --- the session --------------------------------------------------------------------------------------------

_NO_JVM: Final = "its JVM ended, with the message above"
_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
_FAILED: Final = "logstore: work item failed: "
_FAILURE: Final = re.compile(re.escape(_FAILED) + r"(\{.*\})")

QUIET: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
"""The settings of a session of our own; a submitted session is not changed."""

_LOGGING: Final = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


class WorkFailed(EngineError):
    """An item failed as often as Spark retries. The message names the item and the error."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class Workers:
    """A Spark session, started when it is first needed, and the progress of its work.

    A context manager: leaving it stops the session if it was started here. An active session, or that of
    `spark-submit`, is used as it is. Raises `JavaMissing` before it starts Spark.
    """

    def __init__(
        self, progress: Progress, *, master: str | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        """`master` defaults to `local[*]`; `settings` are `spark.…` settings of a new session."""
        self.progress = progress
        self._master, self._settings = master, dict(settings or {})
        self._session: SparkSession | None = None
        self._is_ours = False
        self._left = Event()
        self._is_watched = False

    def __enter__(self) -> Self:
        self._ticker = Thread(target=self._tick, daemon=True)
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._ticker.join()
        self.progress.end()
        if self._session is not None and self._is_ours:
            self._session.stop()
        self._session = None

    @property
    def session(self) -> SparkSession:
        """The session; the first access takes seconds. Raises `WorkFailed` if Spark does not start."""
        if self._session is None:
            self.progress.begin("starting Spark")
            try:
                self._session = self._open()
            except Exception as error:
                if not is_sparks(error):
                    raise
                why = _NO_JVM if "JAVA_GATEWAY_EXITED" in str(error) else reason_of_spark(error)
                raise WorkFailed(f"Spark did not start: {why}. Check --master and --conf") from error
            self.progress.end()
        return self._session

    def prefer(self, settings: Mapping[str, str]) -> None:
        """Start the session with these settings, where it has no other value for them."""
        self._settings = {**settings, **self._settings}

    @property
    def is_to_start(self) -> bool:
        """Whether the first access to the session starts one: none is active or submitted."""
        from pyspark.sql import SparkSession

        return SparkSession.getActiveSession() is None and _GATEWAY not in os.environ

    def has_setting(self, name: str) -> bool:
        """Return whether a setting was given."""
        return name in self._settings

    @property
    def cores(self) -> int:
        """The number of tasks that run at a time."""
        return self.session.sparkContext.defaultParallelism

    @contextmanager
    def watched(self, what: str) -> Iterator[None]:
        """Show the progress of Spark's own tasks while the block runs."""
        self.session  # noqa: B018 - its start is a phase of its own
        self.progress.begin(what, unit="tasks of this stage")
        self._is_watched = True
        try:
            yield
        finally:
            self._is_watched = False
            self.progress.end()

    def _tick(self) -> None:
        while not self._left.wait(REPAINT_S):
            counts = self._running() if self._is_watched else None
            self.progress.tick(*counts or ())

    def _running(self) -> tuple[int, int] | None:
        """Return the finished tasks and all tasks of the newest stage that runs."""
        assert self._session is not None, "only a session's work is watched"
        tracker = self._session.sparkContext.statusTracker()
        stages = tracker.getActiveStageIds()
        found = tracker.getStageInfo(max(stages)) if stages else None
        return None if found is None else (found.numCompletedTasks, found.numTasks)

    def _open(self) -> SparkSession:
        from pyspark.sql import SparkSession

        if (active := SparkSession.getActiveSession()) is not None:
            return active
        self._is_ours = True
        if _GATEWAY not in os.environ:
            settings = {**QUIET, "spark.driver.extraJavaOptions": _LOGGING, **self._settings}
            return session("logstore pipeline", master=self._master or "local[*]", settings=settings)
        builder = SparkSession.builder.appName("logstore pipeline")  # under spark-submit: its JVM, its master
        for name, value in self._settings.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

    def followed(
        self,
        what: str,
        unit: str,
        items: Sequence[Item],
        function: Callable[[Item], Report],
        size: Callable[[Item], int],
    ) -> Iterator[tuple[Item, Report]]:
        """Yield as `reports` does, and show progress: the `size` of each finished item, in `unit`."""
        if items:
            self.session  # noqa: B018 - its start is a phase of its own
        self.progress.begin(what, sum(map(size, items)), unit)
        for item, report in self.reports(items, function):
            yield item, report
            self.progress.advance(size(item))
        self.progress.end()

    def reports(
        self, items: Sequence[Item], function: Callable[[Item], Report]
    ) -> Iterator[tuple[Item, Report]]:
        """Yield each item once, with the result of `function`, as the items finish: in any order.

        Items start in their order. Closing the iterator early cancels the rest. Raises `WorkFailed` if the
        function raised an `EngineError` or `OSError`; for other errors, Spark's own exception with a note
        that names the item.
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
            raise _with_item(event.error, items)
        assert len(seen) == len(items), "Spark ended a job without the reports of all tasks"


def attempt_id() -> int:
    """Return the number of this attempt, unique among all attempts of all items; -1 outside a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return -1 if context is None else context.taskAttemptId()


class _End:
    """The last event in the queue of a Spark job."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Channel:
    """An accumulator that stores nothing: in the driver it puts what is added into a queue.

    Spark adds a task's values when that task has succeeded, once per item, however often it ran, and before
    the job ends. Duck-typed as `pyspark.accumulators.AccumulatorParam`, so that `--help` does not import it.
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
    """The function that an executor calls."""

    def __init__(self, function: Callable[[Item], Report], channel: Accumulator[Any]) -> None:
        self._function, self._channel = function, channel

    def __call__(self, numbered: tuple[int, Item]) -> None:
        index, item = numbered
        try:
            report = self._function(item)
        except Exception as error:
            expected = isinstance(error, EngineError | OSError)
            facts = {"item": index, "error": str(error) or repr(error), "expected": expected}
            # Spark passes on only text, between stack traces of two languages: use one line that a regular
            # expression can find again.
            raise RuntimeError(_FAILED + json.dumps(facts)) from error
        self._channel.add([(index, report)])


class _Submitted:
    """A Spark job in a thread, because submitting one blocks until its end; cancelled if left early."""

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
        error: BaseException | None = None
        try:
            self._work.context.setJobGroup(self._group, "logstore pipeline", interruptOnCancel=True)
            self._work.foreach(self._task)
        except BaseException as raised:  # handed to the thread that waits
            error = raised
        self._arrived.put(_End(error))


def _with_item(error: BaseException, items: Sequence[Any]) -> BaseException:
    """Return the exception to raise for a failed Spark job, with the failed item."""
    found = _FAILURE.search(str(error))
    if found is None:
        return error
    facts = json.loads(found[1])
    if facts["expected"]:
        failed = WorkFailed(f"{items[facts['item']]}: {facts['error']}")
        failed.__cause__ = error
        return failed
    error.add_note(f"while working on {items[facts['item']]}")
    return error

"""Scrub the logs of a running broker: read all of them once per interval, slowly, in a separate thread.

    log.scrub.interval.ms                    how often each log is read as a whole; 0 turns the scrub off
    log.scrub.io.max.bytes.per.second        how fast
    log.scrub.max.busy.percent               how much of the time it may work

`log/scrub.py` reads a few megabytes a step; what it finds goes to the node as an event. Between two steps the
thread is idle for as long as both limits ask: while a step runs, it may hold up the event loop, other reads
and whatever else needs the processor, so a step that takes long is followed by a long pause. The progress is
in `scrub-progress.json` in the first log dir that is online, and a restarted broker continues there. With an
unreadable file it starts over.

An unexpected error ends the scrub of its partition, and the next one follows: `failed` names the partition
until a later scrub of it ends, in `/healthz` and in a metric.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from logstore.broker.runtime import Runtime
from logstore.broker.threads import be_last
from logstore.disk.clocks import steady_s
from logstore.disk.files import Disk, publish, read_small_file
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogClosed, LogDirOffline, OutOfResources
from logstore.log.scrub import Cursor, Scrubbed, scrub
from logstore.loggers import logger_of
from logstore.replication.effects import DamageFound

PROGRESS: Final = "scrub-progress.json"
_SAVE_AFTER_BYTES: Final = 1 << 30
_LONGEST_SLEEP_S: Final = 3600.0
_AFTER_FAILURE_S: Final = 60.0

T = TypeVar("T")

_log = logger_of(__name__)


class Progress(NamedTuple):
    """Progress of a scrub: the partition that it reads, and the position in it; None between two scrubs.

    `began_ms` is the start of the last scrub, in epoch milliseconds; 0 for none.
    """

    began_ms: int = 0
    partition: TopicPartition | None = None
    cursor: Cursor = Cursor()

    def encode(self) -> bytes:
        """Return the content of the file."""
        facts = {"began_ms": self.began_ms, "partition": self.partition, "cursor": self.cursor}
        return json.dumps(facts).encode() + b"\n"


def decode_progress(data: bytes | None) -> Progress:
    """Return the progress in the file's content; that of a new broker if it cannot be read."""
    try:
        facts = json.loads(data or b"")
        partition = facts["partition"]
        known = None if partition is None else TopicPartition(str(partition[0]), int(partition[1]))
        return Progress(int(facts["began_ms"]), known, Cursor(*map(int, facts["cursor"])))
    except (ValueError, KeyError, TypeError, IndexError):
        return Progress()


class ScrubReport(NamedTuple):
    """`passes`: scrubs of all logs that ended; `failures`: unexpected errors; both since the start.

    `failed`: the partitions whose last scrub ended with such an error, and the error.
    """

    passes: int = 0
    failures: int = 0
    failed: Mapping[str, str] = MappingProxyType({})


class Pace(NamedTuple):
    """Limits of a scrub's speed: bytes per second, and percent of time that it may work."""

    bytes_per_second: int
    busy_percent: int

    def pause_s(self, size: int, took_s: float) -> float:
        """Return the seconds without work after a step that read `size` bytes in `took_s` seconds."""
        by_rate = size / self.bytes_per_second
        by_share = took_s * 100 / self.busy_percent
        return max(by_rate, by_share) - took_s


class Scrubbing:
    """The scrub of one broker. All methods belong to the event loop's thread."""

    def __init__(self, runtime: Runtime, disk: Disk, *, interval_ms: int, pace: Pace) -> None:
        self._runtime, self._disk = runtime, disk
        self._interval_ms, self._pace = interval_ms, pace
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scrub", initializer=be_last)
        self.read_bytes = 0
        """Bytes read since the start."""
        self.passes = 0
        """Scrubs of all logs that ended since the start."""
        self.failures = 0
        """Unexpected errors since the start."""
        self.failed: dict[str, str] = {}
        """The partitions whose last scrub ended with one, and the error; "" for the scrub as a whole."""
        self.progress = Progress()

    @property
    def report(self) -> ScrubReport:
        """The state, for `/healthz` and the metrics."""
        return ScrubReport(self.passes, self.failures, dict(sorted(self.failed.items())))

    def start(self) -> None:
        """Begin, or continue where the last process was."""
        if self._interval_ms > 0:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop after the step under way; its progress is kept."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def _run(self) -> None:
        await self._runtime.joined.wait()
        is_loaded = False
        while True:
            try:
                if not is_loaded:
                    self.progress = decode_progress(await self._in_thread(self._load))
                    is_loaded = True
                await self._next_pass()
                self.failed.pop("", None)
            except Exception as error:
                self._note_failure("", "the scrub", error)
                await asyncio.sleep(_AFTER_FAILURE_S)

    async def _next_pass(self) -> None:
        """Wait until a scrub of all logs is due, and do it, or the rest of it."""
        while self.progress.partition is None:
            due_ms = self.progress.began_ms + self._interval_ms - self._runtime.now_ms()
            # A clock that was set back must not mean a long wait.
            if 0 < due_ms <= self._interval_ms:
                await asyncio.sleep(min(due_ms / 1000, _LONGEST_SLEEP_S))
                continue
            self.progress = Progress(self._runtime.now_ms(), TopicPartition("", 0))
        await self._scrub_all()
        self.passes += 1
        self.progress = Progress(self.progress.began_ms)
        await self._in_thread(self._save)

    def _note_failure(self, name: str, what: str, error: Exception) -> None:
        self.failures += 1
        text = f"{type(error).__name__}: {error}"
        if self.failed.get(name) != text:
            _log.error(
                "%s failed unexpectedly, and is tried again: %s; please report this",
                what,
                text,
                exc_info=error,
            )
        self.failed[name] = text

    async def _scrub_all(self) -> None:
        logs = self._runtime.node.logs
        while True:
            first = self.progress.partition
            assert first is not None, "a scrub is under way"
            topic_partition = min((each for each in logs.logs() if each >= first), default=None)
            if topic_partition is None:
                here = {str(each) for each in logs.logs()}
                self.failed = {name: text for name, text in self.failed.items() if name in here}
                return
            cursor = self.progress.cursor if topic_partition == first else Cursor()
            try:
                await self._scrub_one(topic_partition, cursor)
            except Exception as error:
                self._note_failure(str(topic_partition), f"{topic_partition}: its scrub", error)
            else:
                self.failed.pop(str(topic_partition), None)
            behind = TopicPartition(topic_partition.topic, topic_partition.partition + 1)
            self.progress = self.progress._replace(partition=behind, cursor=Cursor())

    async def _scrub_one(self, topic_partition: TopicPartition, cursor: Cursor) -> None:
        log = self._runtime.node.logs.logs()[topic_partition].partition
        steps = scrub(log, cursor)
        unsaved = 0
        while True:
            try:
                step, took_s = await self._in_thread(partial(_timed_step, steps))
            except (LogClosed, LogDirOffline):
                return
            except (OSError, OutOfResources) as error:
                _log.warning("%s cannot be scrubbed: %s", log.directory, error)
                return
            if step is None:
                return
            if step.damages or step.rebuilt:
                self._runtime.deliver(DamageFound(topic_partition, step.damages, step.rebuilt))
            self.read_bytes += step.size
            unsaved += step.size
            if step.cursor is not None:
                self.progress = self.progress._replace(partition=topic_partition, cursor=step.cursor)
                if unsaved >= _SAVE_AFTER_BYTES:
                    unsaved = 0
                    await self._in_thread(self._save)
            await asyncio.sleep(self._pace.pause_s(step.size, took_s))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # --- the file, in the thread --------------------------------------------------------------------

    def _directory(self) -> str | None:
        logs = self._runtime.node.logs
        return next((path for path in logs.log_dirs if path not in logs.offline_dirs), None)

    def _load(self) -> bytes | None:
        directory = self._directory()
        return None if directory is None else read_small_file(self._disk, f"{directory}/{PROGRESS}")

    def _save(self) -> None:
        directory = self._directory()
        if directory is not None:
            try:
                publish(self._disk, directory, PROGRESS, self.progress.encode())
            except OSError as error:
                _log.warning("%s/%s cannot be written: %s", directory, PROGRESS, error)


def _timed_step(steps: Iterator[Scrubbed]) -> tuple[Scrubbed | None, float]:
    """Run a step; return it, None at the end, and the seconds it took."""
    began_s = steady_s()
    step = next(steps, None)
    return step, steady_s() - began_s

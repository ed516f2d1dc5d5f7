"""The cleaner of a node: choose the next log to compact, throttle its pass, retry after errors.

    look      measure every log with cleanup.policy compact; the dirtiest one that is due is next
    step      continue its pass (`compaction_pass.py`) for as many bytes as the elapsed time allows
    error     a warning; the partition waits, twice as long after each failure; the others continue

There is no thread: `tick` does a bounded piece of work, one pass at a time, and `deadline_ms` is the time of
the next call. The cleaner has no files of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from logstore.compact.cleanable import Cleanable, cleanable_of
from logstore.compact.cleaner_config import CleanerConfig
from logstore.compact.compaction_pass import PassReport, Steps, compaction_pass
from logstore.config import MAX_LONG
from logstore.disk.errors import EngineError
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import CorruptBatch, Damage
from logstore.log.partition_log import PartitionLog
from logstore.log.upkeep import delete_old_segments
from logstore.loggers import logger_of

BYTES_A_TICK: Final = 16 << 20
"""The most that one tick reads and writes, whatever the rate limit: the node has other work."""
LONGEST_WAIT_MS: Final = 3_600_000

_log = logger_of(__name__)


class CleaningState(Enum):
    """The state of a partition's compaction."""

    WAITING = "nothing to do yet"
    IN_PROGRESS = "a pass is under way"
    FAILED = "the last pass failed; it is tried again"


@dataclass(slots=True)
class PartitionCleaning:
    """The cleaner's record of one partition, as of its last look. Times are epoch milliseconds.

    `next_retry_ms` is None unless the last pass failed; `bytes_cleaned` counts bytes read and written.
    """

    state: CleaningState = CleaningState.WAITING
    error: Exception | None = None
    failures: int = 0
    next_retry_ms: int | None = None
    first_dirty_offset: int = 0
    dirty_ratio: float = 0.0
    bytes_cleaned: int = 0
    passes: int = 0
    last_pass: PassReport | None = None


class _Current(NamedTuple):
    topic_partition: TopicPartition
    steps: Steps


class Cleaner:
    """Compacts the logs of one node. Not thread-safe; `partitions` may be read from any thread."""

    def __init__(
        self,
        logs: Callable[[], Mapping[TopicPartition, PartitionLog]],
        config: CleanerConfig,
        *,
        now_ms: int,
    ) -> None:
        """`logs` returns the node's current logs."""
        self._logs = logs
        self.config = config
        self.partitions: dict[TopicPartition, PartitionCleaning] = {}
        """The record of each compacted partition."""
        self.damages: list[tuple[TopicPartition, Damage]] = []
        """Damage that passes met; whoever takes note of it clears the list."""
        self._current: _Current | None = None
        self._next_look_ms = now_ms + config.backoff_ms
        self._last_tick_ms = now_ms
        self._allowance = 0.0

    @property
    def failed(self) -> dict[TopicPartition, str]:
        """The partitions whose last pass failed, and why."""
        found = sorted(self.partitions.items())
        return {each: str(cleaning.error) for each, cleaning in found if cleaning.error is not None}

    @property
    def deadline_ms(self) -> int:
        """The time of the next `tick`."""
        if not self.config.enable:
            return MAX_LONG
        if self._current is None:
            return self._next_look_ms
        missing = max(1 - self._allowance, 0)
        return self._last_tick_ms + 1 + int(missing * 1000 / self.config.io_max_bytes_per_second)

    def tick(self, now_ms: int) -> None:
        """Do the work that is due. Errors are kept in `partitions`."""
        if not self.config.enable:
            return
        elapsed_ms = now_ms - self._last_tick_ms
        self._last_tick_ms = now_ms
        self._allow(elapsed_ms)
        if self._current is None:
            if now_ms < self._next_look_ms and elapsed_ms >= 0:  # a clock set back must not mean a long wait
                return
            self._look(now_ms)
        while self._current is not None and self._allowance > 0:
            self._step(now_ms)

    def close(self) -> None:
        """Drop the pass in progress and its files. Call this before the logs are closed."""
        current, self._current = self._current, None
        if current is not None:
            current.steps.close()
            self.partitions[current.topic_partition].state = CleaningState.WAITING

    # --- one step -----------------------------------------------------------------------------------

    def _allow(self, elapsed_ms: int) -> None:
        rate = self.config.io_max_bytes_per_second
        if rate == float("inf"):
            self._allowance = BYTES_A_TICK
        else:
            # Of an unused allowance, one second's worth is kept.
            more = rate * max(elapsed_ms, 0) / 1000
            self._allowance = min(self._allowance + more, rate, BYTES_A_TICK)

    def _step(self, now_ms: int) -> None:
        assert self._current is not None, "a step of no pass"
        topic_partition, steps = self._current
        cleaning = self.partitions[topic_partition]
        try:
            done = next(steps)
        except StopIteration as stop:
            self._finished(cleaning, stop.value, now_ms)
            self._look(now_ms)
        except EngineError as error:
            self._failed(topic_partition, cleaning, error, now_ms)
            if isinstance(error, CorruptBatch) and error.damage is not None:
                self.damages = [each for each in self.damages if each[0] != topic_partition]
                self.damages.append((topic_partition, error.damage))
            self._look(now_ms)
        except BaseException:
            self._current = None
            raise
        else:
            cleaning.bytes_cleaned += done
            self._allowance -= done

    def _finished(self, cleaning: PartitionCleaning, report: PassReport, now_ms: int) -> None:
        cleaning.state = CleaningState.WAITING
        cleaning.error, cleaning.failures = None, 0
        cleaning.passes += 1
        cleaning.last_pass = report
        cleaning.next_retry_ms = now_ms + self.config.backoff_ms if report.was_aborted else None

    def _failed(
        self, topic_partition: TopicPartition, cleaning: PartitionCleaning, error: EngineError, now_ms: int
    ) -> None:
        cleaning.state = CleaningState.FAILED
        cleaning.error = error
        wait_ms = self.config.backoff_ms << min(cleaning.failures, 30)
        cleaning.failures += 1
        wait_ms = min(wait_ms, LONGEST_WAIT_MS)
        cleaning.next_retry_ms = now_ms + wait_ms
        _log.warning(
            "%s: compaction failed and is retried in %d s: %s", topic_partition, wait_ms // 1000, error
        )

    # --- what is next -------------------------------------------------------------------------------

    def _look(self, now_ms: int) -> None:
        """Start a pass over the dirtiest log that is due; run retention if the policy includes delete."""
        self._current = None
        logs = {tp: log for tp, log in self._logs().items() if log.config.is_compacted}
        self.partitions = {tp: self.partitions.get(tp) or PartitionCleaning() for tp in logs}
        chosen: tuple[float, TopicPartition, Cleanable] | None = None
        for topic_partition, log in logs.items():
            cleaning = self.partitions[topic_partition]
            if _is_waiting(cleaning, now_ms):
                continue
            try:
                delete_old_segments(log, now_ms)
                cleanable = cleanable_of(log, now_ms)
            except EngineError as error:
                self._failed(topic_partition, cleaning, error, now_ms)
                continue
            cleaning.first_dirty_offset = cleanable.first_dirty_offset
            cleaning.dirty_ratio = cleanable.dirty_ratio
            if cleanable.is_due(log.config) and (chosen is None or cleanable.dirty_ratio > chosen[0]):
                chosen = cleanable.dirty_ratio, topic_partition, cleanable
        if chosen is None:
            self._next_look_ms = now_ms + self.config.backoff_ms
            return
        _, topic_partition, cleanable = chosen
        steps = compaction_pass(logs[topic_partition], cleanable, self.config, now_ms=now_ms)
        self._current = _Current(topic_partition, steps)
        self.partitions[topic_partition].state = CleaningState.IN_PROGRESS


def _is_waiting(cleaning: PartitionCleaning, now_ms: int) -> bool:
    due_ms = cleaning.next_retry_ms
    # Further away than the longest wait: the clock was set back.
    return due_ms is not None and now_ms < due_ms <= now_ms + LONGEST_WAIT_MS

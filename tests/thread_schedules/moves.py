"""Logs that move between the log dirs of a node, while its threads use them."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from logstore.disk.topic_partition import TopicPartition
from logstore.replication import log_moves
from logstore.replication.log_moves import LogMoves, on_flushed, pump
from logstore.replication.rates import Windows
from tests.thread_schedules.nodes import CALLS, Judge, Loop, run_with

DIRS: Final = ("/data", "/other")
OTHERS: Final = ("scrubs", "reads", "flushes")
_LITTLE: Final = 150
"""Bytes that one step of a move copies."""


class MovingLoop(Loop):
    """The thread that changes the logs, and moves them between requests."""

    def __init__(self, seed: int, judge: Judge) -> None:
        super().__init__(seed, judge)
        self._wanted: set[TopicPartition] = set()
        self._node: Any = SimpleNamespace(
            moves=LogMoves(Windows()),
            flushes=SimpleNamespace(demand=lambda partition, end: self._wanted.add(partition)),
            config=SimpleNamespace(replica_fetch_backoff_ms=1),
            note=lambda *_, **__: None,
        )
        self.others += [self._begin, *[self._go_on] * 12]
        self.calls = 2 * CALLS

    def live(self) -> None:
        super().live()
        self._tell_all()

    def _begin(self) -> None:
        if (found := self._log()) is not None:
            self._judge.logs.moves.begin(found[0], self._rng.choice(DIRS))

    def _go_on(self) -> None:
        judge = self._judge
        judge.now_ms += log_moves.PAUSE_MS
        self._node.logs, self._node.partitions = judge.logs, judge.rows
        self._tell_all()
        pump(self._node, judge.now_ms)

    def _tell_all(self) -> None:
        """Tell of flushes that were asked for, and have ended."""
        for partition in sorted(filter(self._has_ended, self._wanted)):
            self._wanted.discard(partition)
            self._judge.flushed.discard(partition)
            on_flushed(self._node, partition, self._judge.now_ms)

    def _has_ended(self, partition: TopicPartition) -> bool:
        log = self._node.moves.turns[partition].log
        return partition in self._judge.flushed or log.is_closed


def run(seed: int) -> int:
    """Run the schedule of a seed; return the number of appended records. Raises what is wrong."""
    rng = random.Random(f"{seed} moves")
    judge, share = Judge(DIRS), rng.choice([0.02, 0.1, 0.4])
    workers = ["flushes", "pictures", rng.choice(OTHERS)]
    with mock.patch.object(log_moves, "PIECE_BYTES", _LITTLE):
        return run_with(seed, rng, judge, share, MovingLoop(seed, judge), workers)

"""A few schedules of threads, and the faults that they must show."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Final

import pytest

from logstore.async_following import _LoopBell
from logstore.async_log import AsyncLog
from logstore.log.cursor_file import CursorFile
from logstore.log.group_commit import GroupCommit
from logstore.log.log_dir_checkpoints import LogDirCheckpoints
from logstore.log.mirror import Mirror
from logstore.log.partition_log import PartitionLog
from logstore.log.waiters import Waiters
from logstore.log.writer import _Batch
from logstore.queue import waiting
from tests.thread_schedules import job_tasks, jobs, life, moves, nodes, tasks, writing
from tests.thread_schedules.locks import ROOT
from tests.turns import Turns

SOURCE: Final = """
def late_sleep(self, me, bell, patience_s=-1):
    bell = me.bell
    return bell.acquire(timeout=patience_s)

def early_finish(self, outcomes):
    self.done.set()
    self.outcomes = outcomes
    self.rows = []

def generous_sync(self, end_offset):
    sync_segments(self, end_offset)
    self.recovery_point = self.log_end_offset
"""
"""The bell is taken when it is decided how long to wait; a record is told before its place is known; a sync
counts for what came meanwhile."""


def planted(name: str) -> Callable[..., Any]:
    """Return a function at whose lines other threads may run, as at those of the engine."""
    functions: dict[str, Callable[..., Any]] = {"sync_segments": PartitionLog.sync_segments}
    exec(compile(SOURCE, f"{ROOT}/log/planted.py", "exec"), functions)
    return functions[name]


SYNCS: Final = partial(life.run, flavour="syncs")
PLANTS: Final[dict[str, tuple[object, str, Callable[..., Any], Callable[[int], int], int]]] = {
    "the end of a sync is missed": (GroupCommit, "_sleep", planted("late_sleep"), SYNCS, 1293),
    "an append wakes nobody": (Waiters, "wake", lambda self: None, life.run, 5),
    "a record is told too early": (_Batch, "finish", planted("early_finish"), writing.run, 13),
    "an append is silent to tasks": (_LoopBell, "set", lambda self: None, tasks.run, 16),
    "a cancelled append is forgotten": (AsyncLog, "appended", lambda error: None, tasks.run, 1),
    "a commit is never synced": (CursorFile, "sync", lambda self: None, tasks.run, 9),
    "logs are listed bit by bit": (LogDirCheckpoints, "_now", lambda self: self._logs.items(), nodes.run, 25),
    "a sync claims too much": (PartitionLog, "sync_segments", planted("generous_sync"), nodes.run, 172),
    "a copy keeps what was cut": (Mirror, "_drop_what_changed", lambda self: None, moves.run, 22),
    "a copy is not synced": (Mirror, "_sync_log", lambda self, segment: None, moves.run, 19),
    "a put wakes no task": (waiting.Waiters, "ring", lambda self, topic, count: None, job_tasks.run, 58),
    "a put wakes nobody": (waiting.Waiters, "ring", lambda self, topic, count: None, jobs.run, 7),
}
"""The planted faults, each with the first seed that shows it today."""


@pytest.mark.parametrize("seed", range(1, 16))
def test_threads_at_a_log(seed: int) -> None:
    assert life.run(seed)


@pytest.mark.parametrize("seed", range(1, 13))
def test_threads_at_a_writer(seed: int) -> None:
    assert writing.run(seed)


@pytest.mark.parametrize("seed", range(1, 13))
def test_tasks_at_a_log(seed: int) -> None:
    assert tasks.run(seed)


@pytest.mark.parametrize("seed", range(1, 16))
def test_threads_at_the_logs_of_a_node(seed: int) -> None:
    assert nodes.run(seed)


@pytest.mark.parametrize("seed", range(1, 9))
def test_threads_at_logs_that_move(seed: int) -> None:
    assert moves.run(seed)


@pytest.mark.parametrize("seed", range(1, 9))
def test_threads_at_a_queue(seed: int) -> None:
    assert jobs.run(seed)


@pytest.mark.parametrize("seed", range(1, 9))
def test_tasks_at_a_queue(seed: int) -> None:
    assert job_tasks.run(seed)


@pytest.mark.parametrize("judge", [life, tasks, writing, jobs, job_tasks, nodes, moves])
def test_a_seed_is_one_schedule(judge: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not depend on earlier runs in this process, nor on the time of day."""
    turns = [list[int](), list[int]()]
    pass_on = Turns._next
    for taken in turns:

        def next_turn(self: Turns, taken: list[int] = taken) -> None:
            taken.append(self._running)  # not after it: then another thread may run at the same time
            pass_on(self)

        monkeypatch.setattr(Turns, "_next", next_turn)
        judge.run(1)
    assert len(turns[0]) > 20
    assert turns[0] == turns[1]


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the first seeds are those of Python 3.11's lines"
)
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_seen(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, instead, run, first = PLANTS[plant]
    monkeypatch.setattr(where, name, instead)
    for seed in range(first, first + 400):
        try:
            run(seed)
        except Exception as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail("not seen")

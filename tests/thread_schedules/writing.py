"""Threads of one program at one writer, which has a thread of its own."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from logstore import Log, LogConfig
from logstore.errors import LogClosed
from logstore.log import writer as module
from logstore.log.writer import Pending, Writer
from logstore.testing.disks import MemoryDisk
from tests.thread_schedules.locks import Ticks, TurnThread, interruptible, locks_of
from tests.turns import Turns

DIRECTORY: Final = "/data/orders-0"
THREADS: Final = 3
CALLS: Final = 8


@dataclass
class Judge:
    """The results of all calls so far. No lock: one thread runs at a time."""

    log: Log | None = None
    writer: Writer | None = None
    taken: dict[bytes, Pending] = field(default_factory=dict)
    perhaps: set[bytes] = field(default_factory=set)
    """Values whose append did not return."""
    working: int = THREADS


class Hand:
    """One thread of the program."""

    def __init__(self, number: int, seed: int, judge: Judge, share: float) -> None:
        self._number, self._judge, self._share = number, judge, share
        self._rng, self._lines = random.Random(f"{seed} {number}"), random.Random(f"{seed} lines {number}")
        self.turns: Turns | None = None

    def live(self) -> None:
        judge, rng = self._judge, self._rng
        assert self.turns is not None
        assert judge.writer is not None
        assert judge.log is not None
        with interruptible(self.turns, self._lines, self._share), suppress(LogClosed):
            for number in range(CALLS):
                value = b"%d-%d" % (self._number, number)
                judge.perhaps.add(value)
                pending = judge.writer.append([value] if rng.random() < 0.1 else value)
                judge.perhaps.discard(value)
                judge.taken[value] = pending
                if rng.random() < 0.3:
                    judge.writer.flush()
                    assert pending.is_synced, f"{value!r} was flushed"
                elif rng.random() < 0.3:
                    info = pending.synced() if rng.random() < 0.5 else pending.written()
                    assert judge.log[info.first_offset].value == value, f"{value!r} is not at {info}"
            judge.working -= 1
            if not judge.working or rng.random() < 0.1:
                judge.writer.close()


def run(seed: int) -> int:
    """Run the schedule of a seed; return the number of records. Raises what is wrong."""
    rng, judge = random.Random(seed), Judge()
    share = rng.choice([0.02, 0.1, 0.3])
    hands = [Hand(each, seed, judge, share) for each in range(THREADS)]
    turns = Turns(rng, [hand.live for hand in hands])
    lines = random.Random(f"{seed} lines")

    def thread(*, target: Any, **_: object) -> TurnThread:
        return TurnThread(turns, lines, share, target)

    disk = MemoryDisk()
    config = LogConfig(segment_bytes=rng.choice([300, 1 << 20]), index_interval_bytes=0)
    with (
        locks_of(turns),
        mock.patch.object(module, "steady_s", Ticks(0, 0.001)),
        mock.patch.object(module, "atexit"),
        mock.patch.object(module, "threading", SimpleNamespace(**{**vars(threading), "Thread": thread})),
    ):
        judge.log = log = Log.open(DIRECTORY, config, disk=disk)
        judge.writer = log.writer(linger_ms=rng.choice([0, 5, 1000]), max_batch=rng.choice([2, 5]))
        for hand in hands:
            hand.turns = turns
        turns.run()
        log.close()
    with Log.open(DIRECTORY, config, disk=disk) as log:
        found = [record.value for record in log]
    assert len(set(found)) == len(found), f"twice: {found}"
    assert set(judge.taken) <= set(found) <= set(judge.taken) | judge.perhaps, f"lost or invented: {found}"
    for number in range(THREADS):
        mine = [each for each in found if each is not None and each.startswith(b"%d-" % number)]
        assert mine == sorted(mine), f"out of order: {mine}"
    for value, pending in judge.taken.items():
        assert found[pending.written().first_offset] == value
    return len(found)

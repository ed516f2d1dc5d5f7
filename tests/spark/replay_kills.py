"""A replay whose driver is killed at any call to the disk, again and again: each record once, in order.

    python -m tests.spark.replay_kills --restarts 200 --seed 1       (make job-kills)

Before each start the source grows. A start is a process of its own, forked from this one, which does the
whole job (tasks run in it, one after the other) and is killed by SIGKILL ahead of a call that the seed
chooses. The steps are those of its ledger. At the end the replay runs in peace, and the target must hold what
the source holds.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest

from logstore import Log
from logstore.columnar import kernels
from logstore.disk.files import OsDisk
from logstore.log.reader import LogReader
from logstore.spark import sink
from logstore.spark.jobs import replay
from logstore.spark.ledger import Entry, Ledger, read_ledger
from logstore.spark.sink import Sink, open_target
from logstore.testing.disks import Operation, RecordingDisk
from tests.spark.jobs.in_process import InProcess

PARTITIONS: Final = 2
GROWTH: Final = 12
STEPS: Final = ("staging", "deciding", "publishing", "sweeping")


class Driver:
    def __init__(self, home: Path, seed: int, *, is_control: bool = False) -> None:
        self._home, self._random = home, Random(seed)
        self._source, self._target = home / "source", home / "target"
        self._checkpoint, self._stage_file = home / "checkpoint", home / "step"
        self._operations = 0
        self._is_control = is_control
        self.struck: Counter[str] = Counter()
        self.completed = 0

    def grow(self) -> None:
        for partition in range(PARTITIONS):
            with Log.open(self._source / f"t-{partition}") as log:
                for _ in range(3):
                    first = log.log_end_offset
                    log.append([b"%d" % value for value in range(first, first + GROWTH // 3)])

    def restart(self) -> None:
        """One start that is killed; one that ends before is not counted."""
        before = read_ledger(OsDisk(), str(self._checkpoint))
        self._in_child(self._random.randrange(max(self._operations, 1)))
        if before.intent is not None:
            self.completed += 1

    def finish(self) -> bool:
        """Run in peace; whether the process ended well. Learn how many calls a run has."""
        return self._in_child(None)

    def _in_child(self, nth: int | None) -> bool:
        self._stage_file.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._run(nth)
                code = 0
            except BaseException as error:
                print(f"the replay failed: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            self.struck[self._stage_file.read_text()] += 1
            return False
        assert os.WEXITSTATUS(status) == 0, "see above"
        if nth is None:
            self._operations = int(self._stage_file.read_text())
        return True

    def _run(self, nth: int | None) -> None:
        calls = 0

        def before(operation: Operation) -> None:
            nonlocal calls
            if calls == nth:
                self._stage_file.write_text(self._step(operation))
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1

        disk = RecordingDisk(OsDisk(), before=before)
        patch = pytest.MonkeyPatch()  # never undone: the process ends
        # The tasks' calls are counted, too.
        patch.setattr(sink, "os_sink", lambda options: Sink(options, disk, open_target))
        if self._is_control:
            patch.setattr(replay, "complete", forget)
        parser = argparse.ArgumentParser()
        replay.arguments(parser)
        line = [self._source, "--to", self._target, "--checkpoint", self._checkpoint]
        options = parser.parse_args([*map(str, line), "--task-records", "5", "--publish-tasks", "3"])
        job = replay.prepare(options)
        make: Callable[..., replay.Replay] = type(job)
        make(*(getattr(job, name) for name in job.__slots__ if name != "disk"), disk=disk).run(InProcess())
        self._stage_file.write_text(str(calls))

    def _step(self, operation: Operation) -> str:
        """Return the step that the call belongs to."""
        entry = read_ledger(OsDisk(), str(self._checkpoint))
        if entry.intent is not None:
            return "publishing"
        if operation.name in ("remove", "remove_dir"):
            return "sweeping"
        return "staging" if "/staged/" in operation.path else "deciding"

    def check(self) -> int:
        """Compare source and target, record by record. Raises `AssertionError`."""
        total = 0
        for partition in range(PARTITIONS):
            copied, original = (
                [record.value for record in LogReader(home / f"t-{partition}").records()]
                for home in (self._target, self._source)
            )
            assert copied == original, f"partition {partition}: records are not as they were: {copied}"
            total += len(copied)
        return total


def forget(ledger: Ledger, _: Any) -> None:
    """The control: start an open publication anew, with another producer."""
    kept = {name: value for name, value in ledger.state.items() if name == "kept"}
    ledger._entry = Entry(ledger.done, kept, None)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.replay_kills", description=__doc__)
    parser.add_argument("--restarts", type=int, default=200, help="%(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--control", action="store_true", help="without the ledger's intents")
    options = parser.parse_args(arguments)
    kernels.warm_up()
    pa.array([""])  # the first array imports pandas: here, not in every child
    with tempfile.TemporaryDirectory(prefix="replay-kills-") as home:
        driver = Driver(Path(home), options.seed, is_control=options.control)
        driver.grow()
        driver.finish()
        while driver.struck.total() < options.restarts:
            driver.grow()
            driver.restart()
        driver.grow()
        driver.finish()
        total = driver.check()
    for step in STEPS:
        print(f"{step:12} {driver.struck[step]:4}")
    print(
        f"{driver.struck.total()} killed, {driver.completed} left a publication open, {total} records: "
        "each once, in order"
    )
    return 0 if set(driver.struck) >= set(STEPS[:3]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

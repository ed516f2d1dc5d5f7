"""`python -m tests.spark.kills`: the sink under the faults of `fire.py`, with a small driver for Spark.

It does what Spark does with sinks: a task that fails runs again, a commit that fails is followed by an abort
if its process is alive, and a batch that is not known to be committed runs again, in other tasks. Every task
and commit is a process of its own, forked from this one, so that hundreds of restarts take a minute.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from logstore.columnar import kernels
from logstore.disk.files import OsDisk
from logstore.spark.publishing import Message
from logstore.spark.sink import Sink, open_target, os_sink
from logstore.spark.write_options import WriteOptions
from logstore.testing.disks import RecordingDisk
from tests.spark.fire import (
    COMMIT_STAGES,
    STAGED,
    TASK_STAGES,
    TWICE,
    CommitUnderFire,
    Fault,
    Striker,
    fired_path,
    without_ledger,
)
from tests.spark.restarts import (
    PARTITIONS,
    ROWS,
    SPARK_PARTITIONS,
    TOPIC,
    check_rows,
    faults,
    read_directory,
)

_ATTEMPTS = 3


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a process of its own; None if it raised or was killed."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, pickle.dumps((work(),)))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(data) if data else None


class Driver:
    def __init__(self, home: Path) -> None:
        options = {
            "path": str(home / "logs"),
            "topic": TOPIC,
            "partitions": str(PARTITIONS),
            "kafka.batch.size": "600",
        }
        self._options = WriteOptions.parse(options, streaming=True)
        self._home, self._plan, self._ledger = home, home / "plan.json", str(home / "ledger")
        self._attempts = 0
        self.committed = 0
        self.struck: Counter[tuple[str, str]] = Counter()

    def restart(self, fault: Fault) -> None:
        """One start of the query: the batch that is not known to be committed, to its end or its failure."""
        fault.write(self._plan)
        number = self.committed
        tasks = [self._task(fault, number, each) for each in range(SPARK_PARTITIONS)]
        messages = [each for each in tasks if each is not None]
        if len(messages) == SPARK_PARTITIONS and in_child(lambda: self._commit(messages, number)):
            self.committed += 1
        elif fault.how == "raise":
            in_child(lambda: os_sink(self._options).abort(messages, self._ledger, number))
        if fired_path(self._plan).exists():
            self.struck[fired_path(self._plan).read_text(), fault.how] += 1

    def _task(self, fault: Fault, number: int, task: int) -> Message | None:
        is_struck = fault.stage in TASK_STAGES and fault.nth == task
        for attempt in range(_ATTEMPTS):
            self._attempts += 1
            found = in_child(lambda: self._stage(fault, number, task, is_struck=is_struck))
            if found is not None:
                if is_struck and fault.stage == TWICE and attempt == 0:
                    fired_path(self._plan).write_text(TWICE)
                    continue
                return found[0]  # type: ignore[no-any-return]
        return None

    def _stage(self, fault: Fault, number: int, task: int, *, is_struck: bool) -> Message:
        striker = Striker(self._plan)
        if is_struck and fault.stage not in (STAGED, TWICE):
            if fault.stage in TASK_STAGES[-1:]:  # every attempt
                fired_path(self._plan).write_text(fault.stage)
                striker.fail(fault.stage)
            striker.strike(fault.stage)
        values = range(number * ROWS + task, (number + 1) * ROWS, SPARK_PARTITIONS)
        columns = {"key": [str(each) for each in values], "value": [f"{each} {task}" for each in values]}
        rows = pa.RecordBatch.from_pydict(columns)
        message = os_sink(self._options).stage(
            [rows.slice(0, 25), rows.slice(25)],
            self._ledger,
            number,
            spark_partition=task,
            attempt=self._attempts,
            random=random.Random(self._attempts),
        )
        if is_struck and fault.stage == STAGED:
            striker.strike(STAGED)
        return message

    def _commit(self, messages: list[Message], number: int) -> bool:
        striker = Striker(self._plan)
        if striker.fault.stage not in COMMIT_STAGES:
            os_sink(self._options).commit(messages, self._ledger, number)
            return True
        watch = CommitUnderFire(striker, self._ledger, number)
        sink = Sink(self._options, RecordingDisk(OsDisk(), before=watch.before), open_target)
        sink.commit(messages, self._ledger, number)
        watch.done()
        return True

    def check(self) -> int:
        """Raise `NotOnce` unless all rows of committed batches are there, once and in order."""
        total = check_rows(read_directory(self._home / "logs"), range(self.committed))
        assert total == ROWS * self.committed
        return total


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__)
    parser.add_argument("--restarts", type=int, default=200, help="%(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--control", action="store_true", help="with a sink that has no ledger")
    options = parser.parse_args(arguments)
    kernels.warm_up()
    pa.array([""])  # the first array imports pandas: here, not in every child
    with tempfile.TemporaryDirectory(prefix="kills-") as home, without_ledger(options.control):
        driver = Driver(Path(home))
        for fault in faults(options.restarts, options.seed):
            driver.restart(fault)
        driver.restart(Fault(TWICE, nth=-1))
        total = driver.check()
    for stage in (*TASK_STAGES, *COMMIT_STAGES):
        print(f"{stage:28} raise {driver.struck[stage, 'raise']:4}  kill {driver.struck[stage, 'kill']:4}")
    print(f"{options.restarts + 1} starts, {driver.committed} batches, {total} rows: each once, in order")
    struck = {stage for stage, _ in driver.struck}
    return 0 if struck >= {*COMMIT_STAGES, *TASK_STAGES} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

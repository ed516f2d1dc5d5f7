"""`python -m tests.spark.restarts`: a streaming query that fails again and again, and each row once.

Every round starts the query anew over its checkpoint, for one batch; a fault of `fire.py` strikes in it. At
the end, and every some rounds, each partition must hold the rows of all batches, once and in order. A table.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logstore.broker.placement import partition_of_key
from logstore.disk.clocks import steady_s
from logstore.disk.files import OsDisk
from logstore.log.log import Log
from tests.spark.conftest import ROOT, SETTINGS
from tests.spark.fire import (
    AFTER,
    AMID,
    APPENDED,
    BEFORE,
    COMMIT_STAGES,
    CONTROL,
    DECIDED,
    EVERY,
    MARKED,
    PLAN,
    STAGED,
    TASK_STAGES,
    TWICE,
    UNSTAGED,
    Fault,
    LogstoreUnderFire,
    fired_path,
)
from tests.spark.spark_home import linked_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "rounds"
PARTITIONS: Final = 3
SPARK_PARTITIONS: Final = 2
ROWS: Final = 120
"""Of each batch."""
_LOOK_EVERY: Final = 20
# `TWICE` lets a batch be committed: what follows a failure is often its replay, which has fewer stages left.
_STAGES: Final = (
    *(UNSTAGED, BEFORE, DECIDED, AMID, TWICE, AMID, APPENDED, TWICE, DECIDED, MARKED, TWICE),
    *(STAGED, AMID, AMID, TWICE, EVERY, AFTER, TWICE, APPENDED, MARKED, AFTER, TWICE),
)


class NotOnce(AssertionError):
    """A row is missing, is there twice, or is not in its place."""


@dataclass
class Campaign:
    """A query into `home`, or to brokers; `control`: with a sink that has no ledger."""

    spark: SparkSession
    home: Path
    brokers: str = ""
    control: bool = False
    struck: Counter[tuple[str, str]] = field(default_factory=Counter)
    rounds: int = 0
    batches: int = 0
    starts: int = 0

    @property
    def plan(self) -> Path:
        return self.home / "plan.json"

    def restart(self, fault: Fault | None) -> None:
        """One start of the query, for one batch, with the fault in it; none: it must go well."""
        self.rounds += 1
        (fault or Fault(TWICE, nth=-1)).write(self.plan)
        rows = counted_rows(self.spark)
        failed = run_query(rows, self.home, self.plan, brokers=self.brokers, control=self.control)
        if fault is None:
            assert failed is None, failed
            return
        assert fired_path(self.plan).exists(), f"{fault} did not strike"
        self.struck[fired_path(self.plan).read_text(), fault.how] += 1
        assert (failed is not None) == fault.fails_the_query, f"{fault}: {failed}"

    def check(self) -> int:
        """Raise `NotOnce` unless all rows are there as they must be; how many there are."""
        found = read_brokers(self.brokers) if self.brokers else read_directory(self.home / "logs")
        return check_rows(found, self.committed_batches())

    def committed_batches(self) -> range:
        """Batches that must be there, and the one that may be."""
        done = [int(each.name) for each in (self.home / "checkpoint/commits").glob("[0-9]*")]
        return range(max(done, default=-1) + 1)


def counted_rows(spark: SparkSession) -> DataFrame:
    """A batch of `ROWS` at each start: a number, and the task that it is of."""
    return (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=ROWS, numPartitions=SPARK_PARTITIONS)
        .load()
        .selectExpr(
            "cast(value as string) as key",
            "concat(value, ' ', spark_partition_id()) as value",
        )
    )


def run_query(
    rows: DataFrame, home: Path, plan: Path, *, brokers: str = "", control: bool = False
) -> BaseException | None:
    """Start the query over its checkpoint and wait for its end; what it failed with."""
    from pyspark.errors import StreamingQueryException

    writer = (
        rows.writeStream.format(LogstoreUnderFire.name())
        .option("topic", TOPIC)
        .option("partitions", str(PARTITIONS))
        .option("kafka.batch.size", "600")
        .option("checkpointLocation", str(home / "checkpoint"))
        .option(PLAN, str(plan))
        .trigger(availableNow=True)
    )
    if control:
        writer = writer.option(CONTROL, "true")
    if brokers:
        query = writer.option("kafka.bootstrap.servers", brokers).start()
    else:
        query = writer.start(str(home / "logs"))
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        return error
    return None


def read_directory(path: Path) -> dict[int, list[str]]:
    found = {}
    for partition in range(PARTITIONS):
        with Log.open(path / f"{TOPIC}-{partition}", disk=OsDisk()) as log:
            found[partition] = [(record.value or b"").decode() for record in log.read()]
    return found


def read_brokers(brokers: str) -> dict[int, list[str]]:
    from logstore.broker.blocking import BlockingClient
    from logstore.broker.limits import parse_address

    with BlockingClient([parse_address(each) for each in brokers.split(",")]) as client:
        return {
            partition: [(record.value or b"").decode() for record in client.scan(TOPIC, partition)]
            for partition in range(PARTITIONS)
        }


def check_rows(found: dict[int, list[str]], batches: range) -> int:
    """Each row of these batches once; of one batch more, all or none; in order. How many rows there are."""
    total = sum(map(len, found.values()))
    expected = total if total % ROWS == 0 and total // ROWS in (len(batches), len(batches) + 1) else -1
    for partition, rows in found.items():
        values = [int(row.split()[0]) for row in rows]
        wanted = [each for each in range(expected) if partition_of_key(b"%d" % each, PARTITIONS) == partition]
        if sorted(values) != wanted:
            extra = sorted((Counter(values) - Counter(wanted)).elements())[:5]
            missing = sorted((Counter(wanted) - Counter(values)).elements())[:5]
            raise NotOnce(f"partition {partition}: {total} rows; too many {extra}, missing {missing}")
        tasks = [int(row.split()[1]) for row in rows]
        places = [(value // ROWS, task, value) for value, task in zip(values, tasks, strict=True)]
        if places != sorted(places):
            raise NotOnce(f"partition {partition}: rows are not in the order of batch, task and arrival")
    return total


# --- which faults -------------------------------------------------------------------------------------------


def faults(count: int, seed: int) -> Iterator[Fault]:
    """Stages in turn, raised and killed, at calls drawn from the seed."""
    chance = random.Random(seed)
    for number in range(count):
        stage = _STAGES[number % len(_STAGES)]
        how = "raise" if stage in (TWICE, EVERY) or chance.random() < 0.5 else "kill"
        if stage in TASK_STAGES:
            yield Fault(stage, chance.randrange(SPARK_PARTITIONS), how)
        else:
            yield Fault(stage, 0 if stage == AFTER else chance.choice([0, 0, 1, 2, 3, 5, 8]), how)


def run(campaign: Campaign, planned: Sequence[Fault]) -> int:
    """All rounds, then a clean one; how many rows there are at the end. Raises `NotOnce`."""
    looked = 0
    for fault in planned:
        campaign.restart(fault)
        # While a publication is broken off a part of it is there.
        if campaign.rounds >= looked + _LOOK_EVERY and not fault.fails_the_query:
            looked = campaign.rounds
            print(f"  {looked} starts: {campaign.check()} rows, once and in order", flush=True)
    campaign.restart(None)
    total = campaign.check()
    assert total == ROWS * len(campaign.committed_batches()), "a batch that was committed is not there"
    return total


def register(spark: SparkSession) -> None:
    spark.dataSource.register(LogstoreUnderFire)


# --- the command --------------------------------------------------------------------------------------------


@contextmanager
def session(home: Path) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"], os.environ["PYTHONPATH"] = sys.executable, ROOT
    if "SPARK_HOME" not in os.environ:
        os.environ["SPARK_HOME"] = str(linked_home(home / "spark-home"))
    builder = SparkSession.builder.master("local[2,3]").appName("restarts")
    for key, value in {**SETTINGS, "spark.sql.warehouse.dir": f"{home}/warehouse"}.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    register(made)
    try:
        yield made
    finally:
        made.stop()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.restarts", description=__doc__)
    parser.add_argument("--restarts", type=int, default=200, help="%(default)s")
    parser.add_argument("--brokers", type=int, default=40, help="of them, to brokers (%(default)s)")
    parser.add_argument("--drivers", type=int, default=10, help="how many kill the driver (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", metavar="HOME", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        return _one(Path(options.one))
    begun = steady_s()
    with tempfile.TemporaryDirectory(prefix="restarts-") as directory:
        home = Path(directory)
        to_directory = options.restarts - options.brokers - options.drivers
        with session(home) as spark:
            first = Campaign(spark, home / "directory")
            _begin(first, "to a directory")
            _show(first, run(first, list(faults(to_directory, options.seed))))
            control = Campaign(spark, home / "control", control=True)
            _begin(control, "control: a sink without a ledger")
            if not _is_noticed(control):
                print("the control was not noticed: the checker sees nothing")
                return 1
            if options.brokers:
                from logstore.broker.embedded_cluster import BrokerCluster

                with BrokerCluster(3) as cluster:
                    second = Campaign(spark, home / "brokers", brokers=cluster.bootstrap)
                    _begin(second, "to three brokers")
                    _show(second, run(second, list(faults(options.brokers, options.seed + 1))))
        if options.drivers:
            _kill_drivers(home / "drivers", options.drivers, options.seed)
    print(f"{options.restarts} restarts in {steady_s() - begun:.0f} s: each row once, in order")
    return 0


def _begin(campaign: Campaign, what: str) -> None:
    campaign.home.mkdir(parents=True)
    print(f"\n{what}", flush=True)


def _show(campaign: Campaign, rows: int) -> None:
    for stage in (*TASK_STAGES, *COMMIT_STAGES):
        counts = {how: campaign.struck[stage, how] for how in ("raise", "kill", "driver")}
        print(f"  {stage:30} " + "  ".join(f"{how} {count:4}" for how, count in counts.items()))
    print(f"  {campaign.rounds} starts, {len(campaign.committed_batches())} batches, {rows} rows", flush=True)


def _is_noticed(campaign: Campaign) -> bool:
    try:
        run(campaign, [Fault(AFTER), Fault(AFTER)])
    except NotOnce as error:
        print(f"  noticed: {error}")
        return True
    return False


def _kill_drivers(home: Path, count: int, seed: int) -> None:
    """Each round is a driver of its own, which dies by SIGKILL in its commit."""
    home.mkdir()
    print("\ndrivers killed, to a directory", flush=True)
    struck: Counter[str] = Counter()
    chance = random.Random(seed)
    for number in range(count + 1):
        stage = COMMIT_STAGES[number % len(COMMIT_STAGES)]
        fault = Fault(stage, chance.choice([0, 1, 4]), "driver") if number < count else Fault(TWICE, nth=-1)
        fault.write(home / "plan.json")
        child = subprocess.run(
            [sys.executable, "-m", "tests.spark.restarts", "--one", str(home)],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": ROOT}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if number == count:
            assert child.returncode == 0, child.stderr
        else:
            assert child.returncode == -9, f"{fault}: exit {child.returncode}\n{child.stderr}"
            struck[fired_path(home / "plan.json").read_text()] += 1
    total = check_rows(read_directory(home / "logs"), range(_committed(home)))
    assert total == ROWS * _committed(home)
    for stage in COMMIT_STAGES:
        print(f"  {stage:30} driver {struck[stage]:4}")
    print(f"  {count + 1} starts, {_committed(home)} batches, {total} rows", flush=True)


def _committed(home: Path) -> int:
    return 1 + max(int(each.name) for each in (home / "checkpoint/commits").glob("[0-9]*"))


def _one(home: Path) -> int:
    with session(home) as spark:
        jvm: Any = spark.sparkContext._jvm
        pids = (os.getpid(), jvm.java.lang.ProcessHandle.current().pid())
        fault = Fault.read(home / "plan.json")
        Fault(fault.stage, fault.nth, fault.how, pids).write(home / "plan.json")
        failed = run_query(counted_rows(spark), home, home / "plan.json")
        assert failed is None, failed
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

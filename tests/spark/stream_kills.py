"""A stream into a table that is killed: all its processes, by SIGKILL, at moments that a seed chooses.

    python -m tests.spark.stream_kills --rounds 20 --seed 1       (part of make job-kills)

Before each round the topic grows; each tenth row is bad. A round starts the job as a user does, waits until
its ledger changes and a little longer, and kills driver, JVM and workers. At the end the job runs in peace:
each row must be in the table or among the refused ones, once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from logstore import Log
from logstore.spark.jobs.stream import LEDGER_DIRECTORY, REFUSED
from logstore.spark.ledger import LEDGER_FILE
from tests.spark.export_kills import ROOT, kill_session

PARTITIONS: Final = 2
GROWTH: Final = 2000
BAD_EVERY: Final = 10


def grow(data: Path, end: int) -> int:
    """Append to each partition, and return the new end."""
    values = [json.dumps({"id": n}).encode() if n % BAD_EVERY else b"{" for n in range(end, end + GROWTH)]
    for partition in range(PARTITIONS):
        with Log.open(data / f"t-{partition}") as log:
            log.append_arrow(pa.table({"value": pa.array(values, pa.binary())}))
    return end + GROWTH


def start(home: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "logstore.spark", "stream", str(home / "data")]
    command += ["--output", str(home / "table"), "--schema", "id INT", "--batch-records", "1000"]
    with log.open("wb") as errors:
        return subprocess.Popen(
            [*command, "--master", "local[2]", "--conf", "spark.driver.memory=512m"],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )


def offsets(files: Iterable[Path], prefix: str) -> dict[int, list[int]]:
    """Return the offsets in these files by partition, sorted."""
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for file in files:
        rows = pq.read_table(file, partitioning=None)
        places = (rows[f"{prefix}{name}"].to_pylist() for name in ("partition", "offset"))
        for partition, offset in zip(*places, strict=True):
            found[partition].append(offset)
    return {partition: sorted(each) for partition, each in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.stream_kills")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw, killed, end = Random(options.seed), 0, 0
    with tempfile.TemporaryDirectory(prefix="stream-kills-") as directory:
        home = Path(directory)
        table, ledger = home / "table", home / "table" / LEDGER_DIRECTORY / LEDGER_FILE
        for number in range(options.rounds):
            end = grow(home / "data", end)
            before = ledger.read_bytes() if ledger.exists() else b""
            process = start(home, home / "stderr")
            while process.poll() is None and (not ledger.exists() or ledger.read_bytes() == before):
                time.sleep(0.002)
            time.sleep(3 * draw.random())
            killed += process.poll() is None
            kill_session(process.pid)
            process.wait()
            print(f"round {number}: ledger {ledger.exists() and len(ledger.read_bytes())} bytes", flush=True)
        if start(home, home / "stderr").wait() not in (0, 1):  # 1: rows were refused
            print((home / "stderr").read_text()[-2000:])
            return 1
        good, bad = offsets(table.glob("*.parquet"), "_"), offsets((table / REFUSED).glob("*.parquet"), "")
    for partition in range(PARTITIONS):
        if good[partition] != [n for n in range(end) if n % BAD_EVERY]:
            print(f"partition {partition}: rows of the table are missing, or there twice")
            return 1
        if bad[partition] != list(range(0, end, BAD_EVERY)):
            print(f"partition {partition}: refused rows are missing, or there twice")
            return 1
    print(f"{options.rounds} rounds, {killed} killed, {PARTITIONS * end} rows: each once")
    return 0


if __name__ == "__main__":
    sys.exit(main())

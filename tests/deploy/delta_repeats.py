"""Batches of `stream` into a Delta table, whose publication ends at each step and is done again.

    python -m tests.deploy.delta_repeats FOLDER       (part of make spark-hour)

It runs where Delta is installed, which the other tests are not: with no packages of theirs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logstore import Log
from logstore.spark import delta_settings, session
from logstore.spark.jobs import delta_table, stream
from logstore.spark.jobs.command import main
from logstore.spark.jobs.work import QUIET

STEPS = (
    (stream, "publish_once"),
    (stream, "place_files"),
    (delta_table, "append_once"),
    (delta_table, "sync"),
)


def dies(function: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if not before:
            function(*arguments)
        raise OSError("killed")

    return call


def run(folder: Path, *more: str, output: str = "table", table_format: str = "delta") -> int:
    line = ["stream", str(folder / "data"), "--output", str(folder / output), "--table-format", table_format]
    return main([*line, "--schema", "id INT NOT NULL", "--batch-records", "7", *more])


def check(folder: Path) -> None:
    settings = {**delta_settings(), **QUIET, "spark.sql.shuffle.partitions": "2"}
    spark = session(settings=settings, master="local[2]")
    appended = 0
    for module, name in STEPS:
        for before in (True, False):
            with Log.open(folder / "data" / "t-0") as log:
                for number in range(appended, appended + 10):
                    log.append(b"?" if number % 5 == 0 else json.dumps({"id": number}).encode())
            appended += 10
            real = getattr(module, name)
            setattr(module, name, dies(real, before=before))
            assert run(folder) == 1, "it ended midway"
            setattr(module, name, real)
            assert run(folder) in (0, 1), "1: rows were refused in this run"
            rows = spark.read.format("delta").load(str(folder / "table"))
            refused = spark.read.parquet(str(folder / "table" / "_refused"))
            found = sorted(row["id"] for row in rows.collect())
            assert found == [n for n in range(appended) if n % 5], f"{name}, before: {before}: {found}"
            aside = sorted(row["offset"] for row in refused.collect())
            assert aside == list(range(0, appended, 5)), f"{name}, before: {before}: {aside}"
            print(f"{name}, {'before' if before else 'after'} it: each row once", flush=True)
    assert run(folder, "--partition-by", "id") == 1, "the table has no such directories"
    assert run(folder, "--partition-by", "nobody", output="fresh") == 2
    assert run(folder, table_format="parquet") == 1
    spark.stop()


if __name__ == "__main__":
    check(Path(sys.argv[1]))

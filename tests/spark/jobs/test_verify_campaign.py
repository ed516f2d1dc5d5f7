"""`make verify-replicas`: three replica trees of a gigabyte each, fifty differences a seed, and how fast.

    ROUNDS   seeds (default 3)        GIB   of each tree (default 1)

Each round makes three equal trees, verifies them (nothing may be told), compacts one replica of a small keyed
partition and verifies again, plants fifty differences and verifies once more: all of them, nothing else. The
rate counts the bytes of all three trees over the whole job but the start of Spark; page cache warm, for the
trees were just written and read.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logstore.spark.jobs.work import Progress, Workers
from tests.spark.jobs.replica_trees import NODES, Tree, make_tree, plant, unmatched
from tests.spark.jobs.test_verify import compact, prepared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(7200)]

ROUNDS = int(os.environ.get("ROUNDS", "3"))
GIB = float(os.environ.get("GIB", "1"))
PLANTED = 50
PARTITIONS = 16


def test_three_trees(tmp_path: Path, spark: SparkSession) -> None:
    with Workers(Progress(sys.stderr, time.monotonic)) as workers:
        # The first task of a session starts processes and imports.
        small = make_tree(tmp_path / "small", 0)
        prepared(*small.nodes()).run(workers)
        print(f"\n{'seed':>6} {'what':<12} {'bytes':>12} {'s':>7} {'GiB/s':>6}  findings")
        for seed in range(ROUNDS):
            tree = make_tree(
                tmp_path / f"{seed}",
                seed,
                partitions=PARTITIONS,
                partition_bytes=int(GIB * (1 << 30)) // PARTITIONS,
                batch_bytes=(16_000, 4_000, 1_000)[seed % 3],
                segment_bytes=32 << 20,
                sealed=seed % 2 == 1,
            )
            clean = verified(tree, workers, seed, "clean")
            assert clean == []
            keyed = make_tree(
                tmp_path / f"{seed}-keyed",
                seed,
                partitions=2,
                partition_bytes=8 << 20,
                batch_bytes=600,
                keys=500,
            )
            went = compact(keyed, NODES[seed % 3], keyed.partitions[0])
            assert went > 1000
            assert verified(keyed, workers, seed, "compacted") == []
            planted = plant(tree, seed, PLANTED)
            found = verified(tree, workers, seed, "planted")
            left, strange = unmatched(planted, found)
            print(f"{seed:>6} planted {PLANTED}, not found {len(left)}, told for nothing {len(strange)}")
            assert (left, strange) == ([], [])
            for path in tmp_path.glob(f"{seed}*/**/*"):
                if path.is_file():
                    path.unlink()


def verified(tree: Tree, workers: Workers, seed: int, what: str) -> list[dict[str, object]]:
    began = time.perf_counter()
    facts = prepared(*tree.nodes()).run(workers).facts
    took = time.perf_counter() - began
    size = facts["bytes"]
    rate = size / took / (1 << 30)
    told = f"{facts['wrong']} of {facts['batches']} batches"
    print(f"{seed:>6} {what:<12} {size:>12} {took:>7.2f} {rate:>6.2f}  {told}")
    return [finding for finding in facts["findings"] if not finding["note"]]

"""`python -m tests.spark.read_judge`: random reads, beside plain data; exit 1 if one differs.

    python -m tests.spark.read_judge --seeds 1..100
    python -m tests.spark.read_judge --seed 7 --only 12      one query again, or tiers-3, or stream
    python -m tests.spark.read_judge --plant last-offset      must find differences

Most queries without a predicate run without Spark: what Spark calls is called here. Some are asked of a
broker that has adopted the log dirs, some with sealed segments in a tier. Each query has random numbers of
its own, so that it can be run alone.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.data_source import LogstoreDataSource
from logstore.testing.__main__ import seeds_of
from tests.spark.read_judge.batches import judged
from tests.spark.read_judge.brokers import asked_of, served
from tests.spark.read_judge.plants import PLANTS
from tests.spark.read_judge.queries import Drawing, Query
from tests.spark.read_judge.streams import Stream
from tests.spark.read_judge.tiers import asked_with, tiered
from tests.spark.read_judge.topics import Plain, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHOUT_SPARK: Final = 40
"""The first queries of a seed run without Spark."""
IN_SPARK: Final = 12
OF_OTHERS: Final = 20
"""So many of brokers, and of tiers, run without Spark."""
STREAM, BROKERS, TIERS = "stream", "brokers", "tiers"


class Judge:
    """Judges seeds in one session, or without one. `counts` says how often each kind of query ran."""

    def __init__(self, spark: SparkSession | None, home: Path, source: type[LogstoreDataSource]) -> None:
        if spark is not None:
            spark.dataSource.register(source)
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        self._spark, self._home, self._source = spark, home, source
        self.counts: Counter[str] = Counter()

    def of_queries(self, seed: int, numbers: Iterable[int]) -> Iterator[str]:
        """Yield each difference in these queries of a seed, with what shows it."""
        topics = Topics(random.Random(seed), self._home / f"{seed}-queries")
        try:
            topics.write(14)
            plain = topics.plain()
            topics.tear()
            for number in numbers:
                drawing = Drawing(random.Random(f"{seed} {number}"), topics, plain)
                spark = self._spark if number >= WITHOUT_SPARK else None
                has_where = spark is not None and number % 4 > 0
                query = drawing.query(has_where=has_where) if number % WITHOUT_SPARK else drawing.everything()
                kind = "a predicate" if has_where else query.action
                self.counts[f"{kind}, {'without' if spark is None else 'in'} Spark"] += 1
                if wrong := judged(spark, self._source, query, plain):
                    yield f"--seed {seed} --only {number}: {query}\n    {wrong}"
        finally:
            topics.close()

    def of_brokers(self, seed: int, numbers: Iterable[int]) -> Iterator[str]:
        """Yield each difference in these queries of a broker that has adopted the log dirs of a seed."""
        topics = Topics(random.Random(seed), self._home / f"{seed}-{BROKERS}")
        topics.write(14)
        with served(topics) as (bootstrap, plain):
            drawn = self._drawn(BROKERS, seed, numbers, topics, plain)
            yield from self._compared(((name, asked_of(each, bootstrap)) for name, each in drawn), plain)

    def of_tiers(self, seed: int, numbers: Iterable[int]) -> Iterator[str]:
        """Yield each difference in these queries of log dirs of which a part is in a tier."""
        topics = Topics(random.Random(seed), self._home / f"{seed}-{TIERS}")
        url = f"file://{self._home}/{seed}-tier"
        try:
            plain = tiered(topics, url)
            drawn = self._drawn(TIERS, seed, numbers, topics, plain)
            yield from self._compared(((name, asked_with(each, url)) for name, each in drawn), plain)
        finally:
            topics.close()

    def _drawn(
        self,
        what: str,
        seed: int,
        numbers: Iterable[int],
        topics: Topics,
        plain: Mapping[TopicPartition, Plain],
    ) -> Iterator[tuple[str, Query]]:
        for number in numbers:
            name = f"{what}-{number}"
            query = Drawing(random.Random(f"{seed} {name}"), topics, plain).query(has_where=False)
            self.counts[f"{query.action}, of {what}"] += 1
            yield f"--seed {seed} --only {name}", query

    def _compared(
        self, queries: Iterable[tuple[str, Query]], plain: Mapping[TopicPartition, Plain]
    ) -> Iterator[str]:
        for name, query in queries:
            if wrong := judged(None, self._source, query, plain):
                yield f"{name}: {query}\n    {wrong}"

    def of_stream(self, seed: int) -> Iterator[str]:
        """Yield the difference in the stream of a seed, if there is one."""
        assert self._spark is not None
        self.counts[STREAM] += 1
        rng = random.Random(f"{seed} {STREAM}")
        if wrong := Stream(self._spark, self._source.name(), rng, self._home / f"{seed}-{STREAM}").judged():
            yield f"--seed {seed} --only {STREAM}: {wrong}"

    def differences(self, seed: int, only: str = "") -> Iterator[str]:
        """Yield each difference of a seed: of one query, of the stream, or of all."""
        in_spark = 0 if self._spark is None else IN_SPARK
        for what, of in ((BROKERS, self.of_brokers), (TIERS, self.of_tiers)):
            if not only or only.startswith(what):
                yield from of(seed, [int(only.removeprefix(f"{what}-"))] if only else range(OF_OTHERS))
        if not only or only.isdecimal():
            yield from self.of_queries(seed, [int(only)] if only else range(WITHOUT_SPARK + in_spark))
        if only == STREAM or (self._spark is not None and not only):
            yield from self.of_stream(seed)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.read_judge", description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default="1..20", help="A..B, both included (%(default)s)")
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument(
        "--only", default="", help=f"the number of one query, {BROKERS}-NUMBER, {TIERS}-NUMBER, or {STREAM}"
    )
    parser.add_argument("--without-spark", action="store_true", help="only what needs no session: quick")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="make a mistake in the data source")
    options = parser.parse_args(arguments)
    from tests.spark.restarts import session

    logging.disable(logging.CRITICAL)  # losses that are asked for, and predicates that are wrong
    seeds = options.seeds if options.seed is None else [options.seed]
    source = PLANTS[options.plant] if options.plant else LogstoreDataSource
    found = 0
    with (
        tempfile.TemporaryDirectory(prefix="read-judge-") as name,
        nullcontext() if options.without_spark else session(Path(name)) as spark,
    ):
        judge = Judge(spark, Path(name), source)
        for seed in seeds:
            print(f"seed {seed}", flush=True)
            for each in judge.differences(seed, options.only):
                found += 1
                print(each, flush=True)
    for kind, count in sorted(judge.counts.items()):
        print(f"{count:8}  {kind}")
    print(f"{len(seeds)} seeds, {found} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

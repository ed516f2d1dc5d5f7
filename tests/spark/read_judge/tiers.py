"""Random topics of which sealed segments are in a tier, and what a read of both finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.jobs.tier import Tiering
from logstore.spark.read_options import Selection
from logstore.spark.tier import Tier
from tests.spark.jobs.in_process import InProcess
from tests.spark.read_judge.queries import Query, without_segment
from tests.spark.read_judge.topics import Plain, Topics


def tiered(topics: Topics, url: str) -> Mapping[TopicPartition, Plain]:
    """Copy sealed segments to `url`, twice, and write to the logs; return what a read of both finds.

    Below the end of the tier it finds what was copied, whatever compaction or retention did to the log.
    """
    known: dict[TopicPartition, Plain] = {}
    for _ in range(2):
        topics.write(8)
        for each in topics.partitions.values():
            each.settle()
        known = _with_tier(url, known, topics.plain())
        topics.close()
        with InProcess() as workers:
            Tiering(tuple(map(str, topics.log_dirs)), Selection(pattern=".*"), url, False).run(workers)
        for where, found in known.items():
            end = Tier(url).manifest(where).bounds.end_offset
            topics.partitions[where].read_to = max(end, found.start)
    topics.write(8)
    return _with_tier(url, known, topics.plain())


def _with_tier(
    url: str, known: Mapping[TopicPartition, Plain], plain: Mapping[TopicPartition, Plain]
) -> dict[TopicPartition, Plain]:
    """The rows that were `known` when they were copied, up to the tier's end, and the log's behind it."""
    made = {}
    for where, live in plain.items():
        start, end = Tier(url).manifest(where).bounds
        if start == end:
            made[where] = live
            continue
        old = known[where]
        rows = [row for row in old.rows if start <= row[4] < end] + [
            row for row in live.rows if row[4] >= end
        ]
        times = [each for each in old.times if start <= each[0] < end]
        made[where] = live._replace(
            start=start,
            rows=rows,
            times=[*times, *(each for each in live.times if each[0] >= end)],
            aborted=old.aborted | live.aborted,
        )
    return made


def asked_with(query: Query, url: str) -> Query:
    """The query with the tier, which knows no segments."""
    return without_segment(replace(query, options={**query.options, "tier": url}))

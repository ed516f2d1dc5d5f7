"""Offset ranges that a job processes in publications: the remaining ones, their order, the progress.

Shared by the jobs that go on where their last run ended (`export`, `replay`). Their states have `offsets`, up
to which each partition is done, and `topic_ids`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypedDict, Unpack

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.errors import DataLoss
from logstore.spark.ledger import Json
from logstore.spark.logs import Bounds, OffsetRange
from logstore.spark.offsets import flat
from logstore.spark.read_options import ReadOptions


class Told(TypedDict):
    """Whether lost records are an error, and what it says: what was done with them, and how to go on."""

    fail_on_data_loss: bool
    did: str
    otherwise: str


def done_of(state: Json) -> dict[TopicPartition, int]:
    """Return the offset up to which each partition is done."""
    return flat(state.get("offsets", {}))


def rest_of(
    options: ReadOptions,
    state: Json,
    most_records: int,
    check: Callable[[Collection[TopicPartition]], None] = lambda partitions: None,
    **told: Unpack[Told],
) -> tuple[list[OffsetRange], dict[str, str]]:
    """Return the work, in pieces of at most `most_records`, and the topic ids for the next state.

    `check` gets the selected partitions first. Raises `DataLoss` as `left_of` and `same_topics`.
    """
    from logstore.spark.reading import cut, open_logs, plan_batch, selected_bounds

    with closing(open_logs(options)) as logs:
        bounds = selected_bounds(options, logs)
        check(bounds)
        done = done_of(state)
        topic_ids = same_topics(state.get("topic_ids", {}), logs.topic_ids(list(bounds)), **told)
        ranges = [
            left_of(each, done.get(each.topic_partition), bounds[each.topic_partition], **told)
            for each in plan_batch(options, logs, bounds)
        ]
        return in_turn(cut(ranges, logs.cut_points, max_records=most_records)), topic_ids


def in_turn(pieces: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the first piece of each partition, then the second of each, and so on.

    So all partitions advance and all of their brokers work. Pieces of one partition stay in order.
    """
    turns: Counter[TopicPartition] = Counter()
    placed = []
    for piece in pieces:
        placed.append((turns[piece.topic_partition], piece))
        turns[piece.topic_partition] += 1
    return [piece for _, piece in sorted(placed, key=lambda pair: pair[0])]


def joined(pieces: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return each partition's consecutive pieces as one range."""
    found: dict[TopicPartition, OffsetRange] = {}
    for each in sorted(pieces, key=lambda piece: (piece.topic_partition, piece.start_offset)):
        before = found.get(each.topic_partition)
        found[each.topic_partition] = each if before is None else replace(before, end_offset=each.end_offset)
    return list(found.values())


def advanced(done: Mapping[TopicPartition, int], pieces: Iterable[OffsetRange]) -> dict[TopicPartition, int]:
    """Return how far each partition is after `pieces`, which follow `done` without gaps."""
    ends = dict(done)
    for each in sorted(pieces, key=lambda each: (each.topic_partition, each.start_offset)):
        before = ends.get(each.topic_partition, each.start_offset)
        assert before == each.start_offset, "offsets are published in order, without gaps"
        ends[each.topic_partition] = each.end_offset
    return ends


def left_of(wanted: OffsetRange, done: int | None, bounds: Bounds, **told: Unpack[Told]) -> OffsetRange:
    """Return the rest of a range that is done up to `done`. Raises `DataLoss` if the log is shorter now."""
    if done is None:
        return wanted
    if done > bounds.end_offset and told["fail_on_data_loss"]:
        raise DataLoss(
            f"{wanted.topic_partition} ends at {bounds.end_offset} but was {told['did']} up to {done}: it "
            f"was truncated or recreated, or directories of a node are missing. {told['otherwise']}, or set "
            "--option failOnDataLoss=false to skip it until it grows past that offset"
        )
    return replace(wanted, start_offset=done)


def same_topics(
    known: Mapping[str, str], found: Mapping[TopicPartition, str], **told: Unpack[Told]
) -> dict[str, str]:
    """Return the topic ids that a job's offsets belong to, by topic: those known, and those found now.

    Raises `DataLoss` for a topic with another id than before: its offsets are those of a deleted topic.
    """
    ids = {each.topic: topic_id for each, topic_id in sorted(found.items())}
    changed = sorted(topic for topic in ids if known.get(topic, ids[topic]) != ids[topic])
    if changed and told["fail_on_data_loss"]:
        topic = changed[0]
        raise DataLoss(
            f"topic {topic} has topic id {ids[topic]}, but what was {told['did']} is of {known[topic]}: it "
            f"was recreated, or this is another cluster. {told['otherwise']}, or set --option "
            "failOnDataLoss=false to go on at the former topic's offsets"
        )
    return {**known, **ids}


def grouped(
    pieces: Sequence[OffsetRange], tasks: int, most_records: int | None = None
) -> list[list[OffsetRange]]:
    """Return the pieces in groups of at most `tasks`, and of `most_records` offsets if no piece is larger."""
    groups: list[list[OffsetRange]] = []
    records = 0
    for each in pieces:
        is_full = not groups or len(groups[-1]) == tasks
        if is_full or (most_records is not None and records + each.size > most_records):
            groups.append([])
            records = 0
        groups[-1].append(each)
        records += each.size
    return groups


def wait_s(records: int, rate: int | None, passed_s: float) -> float:
    """Return how long to wait until `records` in `passed_s` seconds are no more than `rate` a second."""
    return 0.0 if rate is None else max(records / rate - passed_s, 0.0)

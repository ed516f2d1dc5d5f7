"""Differences between the answers of the two sides.

The rules for small documented differences stand here, each as narrow as possible. Those that
leave the logs in different states are settled in `documented.py`. Both are listed in docs/differences.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from logstore.format.batch import walk
from tests.judge.resolving import batches_of
from tests.judge.sides import MAX_TIMESTAMP, Answer, Operation, Ours, State

_BOUNDS: Final = ("start", "high_watermark", "last_stable")
_COMPARED_RESULTS: Final = ("append", "follow", "epoch_end", "truncate", "start", "high_watermark")


class Pair(NamedTuple):
    """The operation, our log, and the answers of both sides."""

    operation: Operation
    side: Ours
    ours: Answer
    kafka: Answer


def differences(pair: Pair) -> Iterator[str]:
    """Yield the differences of two answers."""
    operation, _, ours, kafka = pair
    if ours.error != kafka.error:
        if not _is_remembered(pair):
            said = (f"{each.error or 'succeeds'} {each.message}".strip() for each in (ours, kafka))
            yield "answer: ours {}, Kafka's {}".format(*said)
    elif ours.error is None:
        match operation["op"]:
            case "read":
                yield from _of_reads(pair)
            case "time":
                yield from _of_times(pair)
            case "compact":
                yield from _of_compactions(pair)
            case name if name in _COMPARED_RESULTS:
                yield from _plainly("result", ours.result, kafka.result)
    yield from _of_states(pair)


def _plainly(name: str, ours: Any, kafka: Any) -> Iterator[str]:
    if ours != kafka:
        yield f"{name}: ours {ours}, Kafka's {kafka}"


# --- results ------------------------------------------------------------------------------------------


def _is_remembered(pair: Pair) -> bool:
    """Return whether we knew a repeated batch that Kafka had forgotten at a truncation or an opening."""
    _, _, ours, kafka = pair
    if ours.error is not None or kafka.error != "OUT_OF_ORDER_SEQUENCE_NUMBER":
        return False
    known, theirs = (
        {batch[1] for entry in each.state["producers"].values() for batch in entry["batches"]}
        for each in (ours, kafka)
    )
    return ours.state["end"] == kafka.state["end"] and ours.result[1] in known - theirs


def _of_reads(pair: Pair) -> Iterator[str]:
    """A byte limit cuts Kafka's bytes inside of a batch; its list of aborted transactions goes further."""
    ours, kafka = pair.ours.result, pair.kafka.result
    data, theirs = bytes.fromhex(ours["data"]), bytes.fromhex(kafka["data"])
    if data != theirs[: sum(batch.size for batch in walk(theirs))]:
        yield f"bytes read: ours {[*walk(data)]}, Kafka's {[*walk(theirs)]}"
    if any(each not in kafka["aborted"] for each in ours["aborted"]):
        yield f"aborted transactions: ours {ours['aborted']}, Kafka's {kafka['aborted']}"


def _of_times(pair: Pair) -> Iterator[str]:
    """Kafka looks into one segment alone, and may find the largest time below the log start.

    That segment is the first one with such a time, which is the time of its file if no record has one.
    """
    (operation, side, ours, kafka), theirs = pair, pair.kafka.result
    if operation["timestamp"] == MAX_TIMESTAMP and theirs is not None:
        if theirs[0] == -1:
            theirs = None
        elif theirs[1] < side.log.log_start_offset:
            theirs = _of_largest_time(side)
    elif theirs is None and ours.result is not None:
        holder = side.log.segments.floor(ours.result[1])
        base_offset = holder.base_offset if holder is not None else -1
        timeless = [base for base, _, largest_ms in kafka.state["segments"] if largest_ms < 0]
        if operation["first_segment"] != base_offset or any(base < base_offset for base in timeless):
            return
    yield from _plainly("result", ours.result, theirs)


def _of_largest_time(side: Ours) -> list[int] | None:
    found = [
        [record.timestamp_ms, record.offset, batch.leader_epoch]
        for batch in batches_of(side)
        for record in batch.records()
        if record.offset >= side.log.log_start_offset
    ]
    timed = [each for each in found if each[0] >= 0]
    return max(timed, key=lambda each: each[0], default=None)


def _of_compactions(pair: Pair) -> Iterator[str]:
    """The segment inside of which the dirty part begins counts as clean for Kafka, too."""
    ours, kafka = dict(pair.ours.result), pair.kafka.result
    ours["clean_bytes"] += ours.pop("partly_clean_bytes")
    if not kafka["cleanable_bytes"]:  # then the end of nothing
        ours["first_uncleanable"] = kafka["first_uncleanable"]
    for name in ("first_dirty", "first_uncleanable", "end"):
        if name in kafka and name in ours and is_same_place(pair.side, ours[name], kafka[name]):
            ours[name] = kafka[name]
    yield from _plainly("result", ours, kafka)


# --- states -------------------------------------------------------------------------------------------


def _of_states(pair: Pair) -> Iterator[str]:
    ours, kafka = pair.ours.state, pair.kafka.state
    if not ours or not kafka:
        yield from _plainly("is open", bool(ours), bool(kafka))
        return
    segments, theirs = without_empty(ours["segments"]), without_empty(kafka["segments"])
    for name in _BOUNDS:
        is_same = segments == theirs and is_same_place(pair.side, ours[name], kafka[name])
        if ours[name] != kafka[name] and not is_same:
            yield f"{name}: ours {ours[name]}, Kafka's {kafka[name]}"
    for name in ("end", "epochs"):
        yield from _plainly(name, ours[name], kafka[name])
    yield from _plainly("segments", segments, theirs)
    for producer in sorted(ours["producers"].keys() | kafka["producers"].keys()):
        mine, known = ours["producers"].get(producer), kafka["producers"].get(producer)
        if not _is_same_producer(pair.side, mine, known):
            yield f"producer {producer}: ours {mine}, Kafka's {known}"


def is_same_place(side: Ours, ours: int, kafka: int) -> bool:
    """Return whether no batch lies between two bounds.

    For an offset inside of a batch, or in a gap, Kafka may name the base offset of the batch that a read from
    there returns first.
    """
    low, high = min(ours, kafka), max(ours, kafka)
    between = [batch for batch in batches_of(side) if batch.next_offset > low and batch.base_offset < high]
    return not between or (kafka < ours and [batch.base_offset for batch in between] == [kafka])


def without_empty(segments: list[list[int]]) -> list[list[int]]:
    """Leave out empty sealed segments: a truncation leaves them in Kafka's log alone."""
    return [each for each in segments[:-1] if each[1]] + segments[-1:]


def _is_same_producer(side: Ours, ours: State | None, kafka: State | None) -> bool:
    """Compare a producer. Kafka's snapshots keep one batch, with the time of a later marker."""
    if ours is None or kafka is None:
        return ours is kafka

    def compared(batches: list[list[int]]) -> list[list[int]]:
        return [batch if batch[1] >= side.loaded_up_to else batch[:3] for batch in batches]

    mine, theirs = compared(ours["batches"]), compared(kafka["batches"])
    more = mine[: len(mine) - len(theirs)]
    is_known = mine[len(more) :] == theirs and all(batch[1] < side.loaded_up_to for batch in more)
    return is_known and bool(theirs) == bool(mine) and {**ours, "batches": []} == {**kafka, "batches": []}

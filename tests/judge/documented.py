"""The documented differences that leave the two logs in different states, and how to bring them together.

docs/differences.md describes each. A rule looks at the answers, recognizes its difference and does on one of
the sides what makes the states equal again; whatever is left after that is a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.judge.differences import Pair, is_same_place, without_empty
from tests.judge.resolving import batches_of
from tests.judge.sides import EXPIRATION_MS, Kafka, State

_Rule = Callable[[Pair, State, Kafka], bool]
_REBUILDS: Final = ("truncate", "open", "crash")
"""The operations at which producers are read from snapshots and batches."""


def settle(pair: Pair, before: State, kafka: Kafka) -> str | None:
    """Bring the sides together after a documented difference and return its name; None if there is none.

    `before` is our state before the operation.
    """
    return next((name for name, rule in _RULES.items() if rule(pair, before, kafka)), None)


def _marker_is_forgotten(pair: Pair, _before: State, _kafka: Kafka) -> bool:
    """A marker above the high watermark holds our last stable offset back, as it should."""
    ours, kafka = pair.ours.state, pair.kafka.state
    unreplicated = pair.side.log.producer_state.unreplicated
    stable, later = ours["last_stable"], kafka["last_stable"]
    if not unreplicated or later <= stable or is_same_place(pair.side, stable, later):
        return False
    first_offset, marker = unreplicated.peekitem(0)
    bound = min(max(first_offset, ours["start"]), ours["high_watermark"])
    if marker < ours["high_watermark"] or stable != bound:
        return False
    pair.side.adopt(kafka)
    return True


def _kept_an_empty_segment(pair: Pair, _before: State, kafka: Kafka) -> bool:
    """An empty segment below our first one, or at the end of a truncated log."""
    ours, theirs = pair.ours.state, pair.kafka.state
    is_same = without_empty(ours["segments"]) == without_empty(theirs["segments"])
    if ours["start"] != theirs["start"] and is_same:
        for side in (pair.side, kafka):
            side.perform({"op": "start", "offset": max(ours["start"], theirs["start"])})
        return True
    is_last = ours["segments"][-1] != [ours["end"], 0, -1] == theirs["segments"][-1]
    if is_last and pair.operation["op"] == "truncate":
        pair.side.perform({"op": "roll"})
        return True
    return False


def _old_producers_are_forgotten(pair: Pair, _before: State, _kafka: Kafka) -> bool:
    """Kafka reads no batch below the log start, and drops producers by the times in snapshots.

    Of those that compaction has removed it knows nothing; of others the last batch.
    """
    ours, theirs = pair.ours.state, pair.kafka.state
    mine, known = ours["producers"], theirs["producers"]
    if pair.operation["op"] not in _REBUILDS or mine == known or not known.keys() <= mine.keys():
        return False

    # In a snapshot, a batch has the time of a later marker.
    times = {batch.last_offset: batch.max_timestamp_ms for batch in batches_of(pair.side)}

    def is_old(batch: list[int]) -> bool:
        at_ms = times.get(batch[1], batch[3])
        return batch[1] < ours["start"] or pair.side.now_ms - at_ms >= EXPIRATION_MS

    for producer, entry in mine.items():
        batches = [batch[:3] for batch in entry["batches"]]
        kept = [batch[:3] for batch in known[producer]["batches"]] if producer in known else []
        gone = [batch for batch in entry["batches"] if batch[:3] not in kept]
        if producer in known and known[producer]["epoch"] != entry["epoch"]:
            return False
        is_last = not kept or kept[-1:] == batches[-1:] or pair.side.was_compacted
        if not is_last or any(batch not in batches for batch in kept):
            return False
        if not kept and gone and is_old(gone[-1]):  # all that Kafka knew of it
            continue
        is_known = bool(kept) or pair.side.was_compacted
        if not all(is_old(batch) or (is_known and batch[1] < pair.side.loaded_up_to) for batch in gone):
            return False
    pair.side.adopt(theirs)
    return True


def _epoch_is_kept(pair: Pair, _before: State, kafka: Kafka) -> bool:
    """If all records are deleted, our log knows the epoch of the last one."""
    ours, theirs = pair.ours.state, pair.kafka.state
    if not ours["epochs"] or ours["epochs"][:-1] != theirs["epochs"] or ours["start"] != ours["end"]:
        return False
    epoch, start = ours["epochs"][-1]
    kafka.perform({"op": "assign", "epoch": epoch, "offset": start})
    return True


def _refusal_left_something(pair: Pair, before: State, _kafka: Kafka) -> bool:
    """A refused or repeated append leaves an epoch, or a new segment, in Kafka's log."""
    ours, theirs = pair.ours.state, pair.kafka.state
    result = pair.kafka.result
    was_refused = pair.kafka.error is not None or result is None or result[1] < before["end"]
    if not was_refused or not before["end"] == ours["end"] == theirs["end"]:
        return False
    if len(theirs["epochs"]) > len(ours["epochs"]):
        epoch, start = theirs["epochs"][-1]
        pair.side.perform({"op": "assign", "epoch": epoch, "offset": start})
    if len(theirs["segments"]) > len(ours["segments"]):
        pair.side.perform({"op": "roll"})
    return True


def _restarted_below_its_start(pair: Pair, before: State, kafka: Kafka) -> bool:
    """A truncation below the log start restarts our log there."""
    if pair.operation["offset"] >= before["start"]:
        return False
    kafka.perform({"op": "restart", "offset": pair.operation["offset"]})
    return True


def _segment_past_the_last_batch(pair: Pair, _before: State, kafka: Kafka) -> bool:
    """A truncation inside of a batch, or into a gap, starts a segment in our log."""
    (_, side, (_, _, _, ours), (_, _, _, theirs)) = pair
    end_offset = ours["end"]
    if theirs["segments"][-1] == [end_offset, 0, -1] or ours["segments"][-1] != [end_offset, 0, -1]:
        return False
    if len(ours["segments"]) > 1:
        kafka.perform({"op": "roll_at", "offset": end_offset})
        # Segments below the high watermark may be deleted, and ours ends further on.
        mark = theirs["high_watermark"]
        mark = end_offset if is_same_place(side, mark, end_offset) else mark
        for each in (side, kafka):
            each.perform({"op": "high_watermark", "offset": mark})
            if is_same_place(side, ours["start"], end_offset):  # else Kafka deletes more segments
                each.perform({"op": "start", "offset": end_offset})
        return True
    # Not one batch is left.
    side.perform({"op": "high_watermark", "offset": end_offset})
    side.perform({"op": "start", "offset": end_offset})
    kafka.perform({"op": "restart", "offset": end_offset})
    for epoch, start in side.log.epochs:
        kafka.perform({"op": "assign", "epoch": epoch, "offset": start})
    return True


def _at(*names: str) -> Callable[[_Rule], _Rule]:
    """Return a decorator that limits a rule to these operations."""
    return lambda rule: (
        lambda pair, before, kafka: pair.operation["op"] in names and rule(pair, before, kafka)
    )


_RULES: Final[dict[str, _Rule]] = {
    "Kafka forgets which markers are not replicated": _marker_is_forgotten,
    "Kafka keeps an empty segment": _kept_an_empty_segment,
    "Kafka forgets old producers": _old_producers_are_forgotten,
    "we keep the epoch of the last deleted record": _epoch_is_kept,
    "a refused append leaves something in Kafka's log": _at("append", "follow")(_refusal_left_something),
    "a truncation below the log start restarts our log": _at("truncate")(_restarted_below_its_start),
    "our log begins a segment past the last batch": _at("truncate")(_segment_past_the_last_batch),
}

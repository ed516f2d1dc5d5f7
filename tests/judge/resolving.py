"""Resolves a drawn operation in the current state of our log into the numbers and bytes for both sides.

It avoids the few operations after which Kafka's log could not be compared any more; each has its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from logstore.format.batch import Batch, encode_batch, encode_marker_batch, walk
from logstore.format.compression import Codec
from logstore.format.record import ControlType, EndTransactionMarker, Header, Record
from logstore.log.partition_log import PartitionLog
from logstore.log.producer_state import ProducerEntry
from tests.judge.sides import MAX_TIMESTAMP, Operation, Ours

BEGIN_MS: Final = 1_700_000_000_000
_Seen = dict[int, tuple[int, int]]
"""Epoch and last sequence of producers."""


def resolve(drawn: Operation, ours: Ours) -> list[Operation]:
    """Return what `drawn` means now; an operation after the first one does not depend on what it leaves."""
    resolved = _RESOLVED.get(drawn["op"])
    if drawn["op"] == "reopen":
        closing = {"op": "close", "high_watermark": ours.log.high_watermark}
        return [closing, {"op": "open", "now": ours.now_ms}]
    return [drawn if resolved is None else resolved(drawn, ours)]


class HasLog(Protocol):
    """A side that has one of our logs."""

    @property
    def log(self) -> PartitionLog: ...


def batches_of(ours: HasLog) -> list[Batch]:
    """Return all batches in the files of our log."""
    batches: list[Batch] = []
    for segment in ours.log.segments:
        with segment.log_for_reading() as file:
            batches += walk(file.pread(segment.size, 0))
    return batches


# --- places -------------------------------------------------------------------------------------------


def _at(drawn: Operation, ours: Ours) -> int:
    log = ours.log
    first, start, end = log.segments.first.base_offset, log.log_start_offset, log.log_end_offset
    share: float = drawn["where"]
    wanted = max(round(first + share * (end - first)), 0)
    if drawn.get("exact", True):
        return wanted
    bases = [batch.base_offset for batch in batches_of(ours) if batch.base_offset > start]
    return min([start, *bases, end], key=lambda each: (abs(each - wanted), each))


def _start(drawn: Operation, ours: Ours) -> Operation:
    offset = _at(drawn, ours)
    if ours.log.config.is_compacted:
        offset = (ours.log.segments.floor(offset) or ours.log.segments.first).base_offset
    return {"op": "start", "offset": offset}


def _compact(_drawn: Operation, ours: Ours) -> Operation:
    log = ours.log
    if log.log_start_offset > log.segments.first.base_offset or not log.config.is_compacted:
        # Kafka's cleaner takes transactions that were aborted below the log start for committed ones.
        return {"op": "retain"}
    first_dirty = log.first_dirty_offset  # kept by Kafka's log manager, not by its log
    following = log.segments.higher(first_dirty)
    if following is not None and not any(
        batch.next_offset > first_dirty and batch.base_offset < following.base_offset
        for batch in batches_of(ours)
    ):
        # Behind a truncation inside of a batch: we compact once more what ends there.
        return {"op": "flush"}
    return {"op": "compact", "first_dirty": first_dirty}


def _time(drawn: Operation, ours: Ours) -> Operation:
    wanted = round(BEGIN_MS + drawn["where"] * (ours.now_ms - BEGIN_MS))
    bases = [each.base_offset for each in ours.log.segments if each.max_timestamp_ms >= wanted]
    timestamp = MAX_TIMESTAMP if drawn["largest"] else wanted
    return {"op": "time", "timestamp": timestamp, "first_segment": min(bases, default=None)}


def _crash(drawn: Operation, ours: Ours) -> Operation:
    log = ours.log
    seals = [segment.seal for segment in log.segments if segment.seal is not None]
    durable_end = max([ours.checkpointed_recovery_point, *(seal.end_offset for seal in seals)])
    holder, active = log.segments.floor(durable_end) or log.segments.first, log.segments.active
    with active.log_for_reading() as file:
        batches = list(walk(file.pread(active.size, 0)))
    not_durable = sum(batch.size for batch in batches if batch.base_offset >= durable_end)
    return {
        "op": "crash",
        "now": ours.now_ms,
        "segment": f"{active.base_offset:020}.log",
        "torn_bytes": int(not_durable * drawn["torn"]),
        "recovery_point": holder.base_offset,
    }


# --- batches ------------------------------------------------------------------------------------------


def _epoch(ours: Ours) -> int:
    return max(ours.log.latest_epoch, 0)


def _known(ours: Ours) -> dict[int, ProducerEntry]:
    return {each.producer_id: each for each in ours.log.producers()}


def _last(producer_id: int, ours: Ours, seen: _Seen) -> tuple[int, int]:
    """Return the producer's epoch and last sequence, with the batches that are on their way."""
    entry = _known(ours).get(producer_id) or ProducerEntry(producer_id)
    return seen.get(producer_id, (max(entry.epoch, 0), entry.last_sequence))


def _sequence(producer: Operation, ours: Ours, count: int, seen: _Seen) -> tuple[int, int, int]:
    """Return the epoch, the first sequence and the number of records of a batch."""
    epoch, last = _last(producer["id"], ours, seen)
    entry = _known(ours).get(producer["id"])
    match producer["kind"]:
        case "repeat" if entry is not None and len(entry.batches) > producer["back"]:
            known = entry.batches[-1 - producer["back"]]
            return epoch, known.first_sequence, known.offset_delta + 1
        case "gap":
            return epoch, last + 2, count
        case "old":
            return max(epoch - 1, 0), last + 1, count
        case "bump":
            return epoch + 1, 0, count
        case "bump gap":
            return epoch + 1, 3, count
    return epoch, last + 1, count


def _batch(drawn: Operation, ours: Ours, offset: int, leader_epoch: int, seen: _Seen) -> bytes:
    producer, count = drawn["producer"], len(drawn["records"])
    fields: dict[str, Any] = {}
    if producer is not None:
        epoch, sequence, count = _sequence(producer, ours, count, seen)
        seen[producer["id"]] = epoch, sequence + count - 1
        fields = {
            "producer_id": producer["id"],
            "producer_epoch": epoch,
            "base_sequence": sequence,
            "is_transactional": producer["transactional"],
        }
    records = []
    for number in range(count):
        key, size, back_ms = drawn["records"][number % len(drawn["records"])]
        value = None if size is None else (b"%d." % offset * size)[:size]
        time_ms = -1 if back_ms is None else ours.now_ms - back_ms
        headers: tuple[Header, ...] = (Header("name", b"value"),) if size == 80 else ()
        records.append(Record(offset + number, time_ms, key and key.encode(), value, headers))
    # A codec's bytes differ between its implementations, and compaction makes new ones.
    codec = Codec.NONE if ours.log.config.is_compacted else Codec(drawn["codec"])
    return encode_batch(records, base_offset=offset, leader_epoch=leader_epoch, codec=codec, **fields)


def _marker(drawn: Operation, ours: Ours, epoch: int, *, offset: int = 0, leader_epoch: int = -1) -> bytes:
    entry = _known(ours).get(drawn["id"]) or ProducerEntry(drawn["id"])
    kind = ControlType.COMMIT if drawn["commit"] else ControlType.ABORT
    return encode_marker_batch(
        EndTransactionMarker(kind, max(entry.coordinator_epoch + drawn["coordinator"], 0)),
        producer_id=drawn["id"],
        producer_epoch=max(epoch, 0),
        timestamp_ms=ours.now_ms,
        base_offset=offset,
        leader_epoch=leader_epoch,
    )


def _append(drawn: Operation, ours: Ours) -> Operation:
    data = _batch(drawn, ours, 0, -1, {})
    return {"op": "append", "data": data.hex(), "epoch": _epoch(ours), "origin": "CLIENT"}


def _append_marker(drawn: Operation, ours: Ours) -> Operation:
    data = _marker(drawn, ours, _last(drawn["id"], ours, {})[0] + drawn["epoch"])
    return {"op": "append", "data": data.hex(), "epoch": _epoch(ours), "origin": "COORDINATOR"}


def _follow(drawn: Operation, ours: Ours) -> Operation:
    """Make batches as a leader may have written them, perhaps with a fault of the way to us."""
    fault, epoch = drawn["fault"], _epoch(ours)
    offset = max(ours.log.log_end_offset - (fault == "below"), 0)
    seen: _Seen = {}
    undecided = {number for number, each in _known(ours).items() if each.transaction_first_offset >= 0}
    batches: list[bytes] = []
    for each in drawn["batches"]:
        offset, epoch = offset + each["gap"], epoch + each["new_epoch"]
        if "marker" in each:
            batch = _leaders_marker(each["marker"], ours, offset, epoch, seen)
            undecided.discard(each["marker"]["id"])
        else:
            # Data outside of the producer's open transaction is refused by Kafka's followers alone.
            batch = _batch(_leaders(each, undecided), ours, offset, epoch, seen)
        # Kafka refuses more than a segment at once; we take it, as our leader did.
        if sum(map(len, batches)) + len(batch) > ours.log.config.segment_bytes:
            break
        batches.append(batch)
        offset = Batch(batch).next_offset
    if not batches:
        return {"op": "flush"}
    data = bytearray(b"".join([*batches, *([batches[-1]] if fault == "disorder" else [])]))
    if fault == "torn":
        del data[-3:]
    elif fault == "crc":
        data[-1] ^= 1
    return {"op": "follow", "data": bytes(data).hex(), "epoch": epoch}


def _leaders(drawn: Operation, undecided: set[int]) -> Operation:
    """Return the batch as a leader lets it pass."""
    producer = drawn["producer"]
    if producer is None:
        return drawn
    is_transactional = producer["transactional"] or producer["id"] in undecided
    if is_transactional:
        undecided.add(producer["id"])
    kind = "bump" if producer["kind"] == "bump" else "next"
    return {**drawn, "producer": {**producer, "kind": kind, "transactional": is_transactional}}


def _leaders_marker(drawn: Operation, ours: Ours, offset: int, leader_epoch: int, seen: _Seen) -> bytes:
    epoch, sequence = _last(drawn["id"], ours, seen)
    is_new = drawn["epoch"] == 1
    seen[drawn["id"]] = epoch + is_new, -1 if is_new else sequence
    drawn = {**drawn, "coordinator": max(drawn["coordinator"], 0)}
    return _marker(drawn, ours, epoch + is_new, offset=offset, leader_epoch=leader_epoch)


_RESOLVED: Final[dict[str, Callable[[Operation, Ours], Operation]]] = {
    "append": _append,
    "marker": _append_marker,
    "follow": _follow,
    "lead": lambda drawn, ours: {"op": "assign", "epoch": ours.log.latest_epoch + drawn["by"]},
    "high_watermark": lambda drawn, ours: {"op": "high_watermark", "offset": _at(drawn, ours)},
    "read": lambda drawn, ours: {**drawn, "offset": _at(drawn, ours)},
    "time": _time,
    "epoch_end": lambda drawn, ours: {"op": "epoch_end", "epoch": ours.log.latest_epoch + 1 - drawn["by"]},
    "truncate": lambda drawn, ours: {"op": "truncate", "offset": _at(drawn, ours)},
    "restart": lambda drawn, ours: {"op": "restart", "offset": max(ours.log.log_end_offset + drawn["by"], 0)},
    "start": _start,
    "compact": _compact,
    "clock": lambda drawn, ours: {"op": "clock", "now": ours.now_ms + drawn["by"]},
    "checkpoint": lambda drawn, ours: {"op": "checkpoint", "high_watermark": ours.log.high_watermark},
    "crash": _crash,
}

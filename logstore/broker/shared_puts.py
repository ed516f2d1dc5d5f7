"""Puts of a shared queue that compare keys: of the messages of a window with one key, one is stored.

    claim the keys → read the events: which are ours? → append their messages → tell where they are

That is four requests, and two for a key that is known. If another process has claimed a key, its message is
waited for. A process that dies before the last step may leave a message that nobody knows by its key. The
next process that claims the key looks for it in the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from logstore.broker.shared_keys import CLAIM, RELEASED, STORED, claim, identity_of, released, stored
from logstore.broker.shared_lane import SharedLane, messages_of
from logstore.disk.errors import EngineError
from logstore.format.record import Record
from logstore.log.partition_log import Clock

_AT_ONCE: Final = 10_000
"""Messages of one claim. Its event has 320 kB then."""


def put_new(lane: SharedLane, records: Sequence[Record], clock: Clock, window_ms: int) -> list[int]:
    """Append those whose key is new; return the offset of each, or of the message that has its key.

    Raises as `SharedLane.put`. Then some may be stored, and the next put of their keys finds them.
    """
    offsets: list[int] = []
    for start in range(0, len(records), _AT_ONCE):
        offsets += _put_some(lane, records[start : start + _AT_ONCE], clock, window_ms)
    return offsets


def put_again(lane: SharedLane, record: Record, window_ms: int) -> None:
    """Append a dead letter as a new message, whether its key is known or not."""
    (offset,) = lane.put([record])
    if record.key is not None and window_ms:
        lane.tell(STORED, stored({identity_of(record.key): offset}, record.timestamp_ms, window_ms))


def _put_some(lane: SharedLane, records: Sequence[Record], clock: Clock, window_ms: int) -> list[int]:
    ids = [each if record.key is None else identity_of(record.key) for each, record in enumerate(records)]
    waiting: dict[int | bytes, Record] = {}
    for each, record in zip(ids, records, strict=True):
        waiting.setdefault(each, record)
    offsets: dict[int | bytes, int] = {}
    while waiting:
        offsets |= _store(lane, waiting, clock(), window_ms)
        waiting = {each: record for each, record in waiting.items() if each not in offsets}
        while any(isinstance(each, bytes) and lane.keys.is_claimed(each, clock()) for each in waiting):
            lane.wait_for_events()
    return [offsets[each] for each in ids]


def _store(
    lane: SharedLane, waiting: Mapping[int | bytes, Record], now_ms: int, window_ms: int
) -> dict[int | bytes, int]:
    """Store those without a key, and those whose keys nobody has claimed; return the known offsets."""
    keys = [each for each in waiting if isinstance(each, bytes)]
    number = lane.tell(CLAIM, claim(keys, now_ms, window_ms)) if keys else -1
    if keys:
        lane.catch_up(number)
    claims = {each: lane.keys.claim_of(each) for each in keys}
    ours = {each: found for each, found in claims.items() if found and found.number == number}
    try:
        since = {each: found.since_ms for each, found in ours.items() if found.since_ms is not None}
        known: dict[int | bytes, int] = dict(messages_of(lane.messages, since).items())
        new = {
            each: record._replace(timestamp_ms=now_ms)
            for each, record in waiting.items()
            if isinstance(each, int) or (each in ours and each not in known)
        }
        known |= zip(new, lane.put(list(new.values())) if new else (), strict=True)
    except Exception:
        if ours:
            with suppress(EngineError):  # then the claim ends by its time
                lane.tell(RELEASED, released(number))
        raise
    if ours:
        lane.tell(STORED, stored({each: known[each] for each in ours}, now_ms, window_ms))
    for each in keys:
        if each not in ours and (offset := lane.keys.find(each)) is not None:
            known[each] = offset
    return known

"""Where the records of a batch lie, and their keys: what compaction has to know of them.

    bounds     0          17              40        52
               ├ record 0 ┼── record 1 ───┼ record 2┤       bytes of the payload, end to end
    deltas     0          3               4                 rising; compaction leaves gaps

No object is made for a record and no value is copied: a record that stays is a slice of its payload. Like
the loops of `record.py` this one is written out by hand, for the same reason.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.errors import InvalidRecord
from logstore.format.varint import decode_varint, decode_varlong


class RecordSpans(NamedTuple):
    """A row a record. `bounds` has one more: where the last record ends.

    `time_deltas` are milliseconds from the batch's base timestamp, `offset_deltas` count from its base
    offset.
    """

    bounds: list[int]
    time_deltas: list[int]
    offset_deltas: list[int]
    keys: list[bytes | None]
    are_tombstones: list[bool]


def find_records(data: bytes, count: int, position: int, end: int) -> RecordSpans:
    """The `count` records that `data[position:end]` holds, and nothing else.

    Raises `InvalidRecord` where they break a rule; headers are not looked into.
    """
    spans = RecordSpans([position], [], [], [], [])
    bounds, time_deltas, offset_deltas, keys, are_tombstones = spans
    last_delta = -1
    try:
        for number in range(count):
            start = position
            length = data[position]
            position += 1
            if length < 0x80:
                length = length >> 1 ^ -(length & 1)
            elif (high := data[position]) < 0x80:
                position += 1
                length = length & 0x7F | high << 7
                length = length >> 1 ^ -(length & 1)
            else:
                length, position = decode_varint(data, start)
            record_end = position + length
            if not position <= record_end <= end:
                raise InvalidRecord(f"record {number}: {length} bytes long, {end - position} are left")
            position += 1  # attributes, unused
            delta = data[position]
            if delta < 0x80:
                position += 1
                delta = delta >> 1 ^ -(delta & 1)
            else:
                delta, position = decode_varlong(data, position)
            time_deltas.append(delta)
            delta = data[position]
            if delta < 0x80:
                position += 1
                delta = delta >> 1 ^ -(delta & 1)
            elif (high := data[position + 1]) < 0x80:
                position += 2
                delta = delta & 0x7F | high << 7
                delta = delta >> 1 ^ -(delta & 1)
            else:
                delta, position = decode_varint(data, position)
            if delta <= last_delta:
                raise InvalidRecord(f"record {number} has offset delta {delta} after {last_delta}")
            offset_deltas.append(delta)
            last_delta = delta
            size = data[position]
            if size < 0x80:
                position += 1
                size = size >> 1 if not size & 1 else -1
            else:
                size, position = decode_varint(data, position)
            key = None
            if size >= 0:
                key = data[position : position + size]
                position += size
            if position >= record_end:
                raise InvalidRecord(f"record {number}: its key passes its end")
            keys.append(key)
            size = data[position]
            if size < 0x80:
                position += 1
                size = size >> 1 if not size & 1 else -1
            elif (high := data[position + 1]) < 0x80:
                position += 2
                size = size & 0x7F | high << 7
                size = size >> 1 if not size & 1 else -1
            else:
                size, position = decode_varint(data, position)
            are_tombstones.append(size < 0)
            if position + max(size, 0) >= record_end:  # a count of headers follows
                raise InvalidRecord(f"record {number}: its value passes its end")
            position = record_end
            bounds.append(position)
    except IndexError:
        raise InvalidRecord(f"the records end at byte {end}, before the last of {count}") from None
    if position != end:
        raise InvalidRecord(f"{end - position} bytes remain after the last of {count} records")
    return spans

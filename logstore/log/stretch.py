"""The part of the active segment in which one more value needs no decision.

      last index entry                    index.interval.bytes                     an entry is due
    ■────────────────────■────────■────────■ · · · · · · · · · · · · · · · · · · ·│
                                           └ position                last_position

Between two index entries only bytes and counters change from one small append to the next: no entry, no roll,
no new epoch, no rule that could refuse the value. These decisions are made once for the whole stretch, so
that a single value costs a write and little more. Every other change to the log invalidates the stretch; the
next append then takes the full path, which starts a new one.
"""

from __future__ import annotations

import struct
from typing import Final

from logstore.config import CREATE_TIME, MAX_INT, MAX_LONG, LogConfig
from logstore.format.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC, NO_PRODUCER_ID
from logstore.format.crc import crc32c
from logstore.format.record import FIRST_PREFIXES, NO_SEQUENCE
from logstore.segment.epochs import LeaderEpochCache
from logstore.segment.segment import Segment

LARGEST_VALUE_BYTES: Final = 2048
"""Larger values would end a stretch too soon."""
_LARGEST_BATCH_BYTES: Final = HEADER_BYTES + LARGEST_VALUE_BYTES + 16
_FRAME_BYTES: Final = 21
_FRAME = struct.Struct(">qiibI").pack
_BODY = struct.Struct(">hiqqqhii").pack


class Stretch:
    """The position of the next value, and the state that must be unchanged for it to be valid."""

    __slots__ = (
        "_config",
        "_epochs",
        "_header",
        "_last_offset",
        "_last_position",
        "_latest_ms",
        "_leader_epoch",
        "_now_ms",
        "_position",
        "_segment",
    )

    def __init__(self, segment: Segment, config: LogConfig, epochs: LeaderEpochCache, latest_ms: int) -> None:
        self._segment = segment
        self._position = segment.size
        self._config = config
        self._epochs = epochs
        self._leader_epoch = epochs.latest_epoch
        room = config.segment_bytes - _LARGEST_BATCH_BYTES
        self._last_position = min(segment.last_position_without_entry, room)
        self._last_offset = segment.base_offset + MAX_INT
        self._latest_ms = latest_ms
        self._now_ms = -1
        self._header = b""
        """The header of the batches of `now_ms`, from the attributes on: many values share a millisecond."""

    def append(
        self,
        value: bytes,
        offset: int,
        now_ms: int,
        active: Segment,
        config: LogConfig,
        epochs: LeaderEpochCache,
    ) -> bool:
        """Write a batch of `value` alone at `offset`; False, with nothing written, if this needs a decision.

        The last three are the log's state now. Raises `OSError` with the segment as it was.
        """
        size = len(value)
        if not (
            size <= LARGEST_VALUE_BYTES
            and self._position <= self._last_position
            and self._position == active.size
            and 0 <= now_ms <= self._latest_ms
            and offset <= self._last_offset
            and active is self._segment
            and epochs is self._epochs
            and config is self._config
        ):
            return False
        if now_ms != self._now_ms:
            self._now_ms = now_ms
            self._header = _BODY(0, 0, now_ms, now_ms, NO_PRODUCER_ID, -1, NO_SEQUENCE, 1)
        body = b"%b%b%b\0" % (self._header, FIRST_PREFIXES[size], value)
        length = len(body) + _FRAME_BYTES - LOG_OVERHEAD
        data = _FRAME(offset, length, self._leader_epoch, MAGIC, crc32c(body)) + body
        active.extend(data, offset, now_ms)
        self._position += len(data)
        return True


def begin_stretch(segment: Segment, config: LogConfig, epochs: LeaderEpochCache) -> Stretch | None:
    """Return a stretch that starts at the segment's end; None if each append needs its own decisions."""
    if (
        config.message_timestamp_type != CREATE_TIME
        or config.is_compacted
        or config.compression_type not in ("producer", "uncompressed")
        or config.flush_messages != MAX_LONG
        or config.max_message_bytes < _LARGEST_BATCH_BYTES
        or segment.size == 0
        or segment.first_timestamp_ms < 0
        or segment.index_is_full
        or epochs.latest_epoch < 0
    ):
        return None
    latest_ms = segment.first_timestamp_ms + config.longest_segment_ms - segment.jitter_ms
    return Stretch(segment, config, epochs, latest_ms)

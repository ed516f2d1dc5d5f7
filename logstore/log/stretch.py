"""The part of the active segment in which one more value needs no decision.

      last append of another kind                                       segment.bytes
    ■────────■─────────────────────■ · · · · · · · · · · · · · · · · · ·│
                                   └ position            last_position

From one small append to the next only bytes and counters change until the segment has its size or its age:
no roll, no new epoch, no rule that could refuse the value. These decisions are made once for the whole
stretch, so that a single value costs a write and little more. Every other change to the log invalidates the
stretch; the next append then takes the full path, which starts a new one.
"""

from __future__ import annotations

import struct
from typing import Final

from logstore.config import CREATE_TIME, MAX_INT, MAX_LONG, LogConfig
from logstore.format.batch import CRC_START, HEADER_BYTES, LOG_OVERHEAD, MAGIC, NO_PRODUCER_ID
from logstore.format.crc import crc32c
from logstore.format.record import FIRST_PREFIXES, NO_SEQUENCE
from logstore.segment.epochs import LeaderEpochCache
from logstore.segment.segment import Segment

LARGEST_VALUE_BYTES: Final = 2048
"""Larger values would end a stretch too soon."""
_LARGEST_BATCH_BYTES: Final = HEADER_BYTES + LARGEST_VALUE_BYTES + 16
_FRAME_BYTES: Final = CRC_START - LOG_OVERHEAD
"""The part of a batch before its checksummed bytes that its length field counts."""
_FRAME = struct.Struct(">qiibI").pack
_BODY = struct.Struct(">hiqqqhii").pack


class Stretch:
    """The position of the next value, and the state that must be unchanged for it to be valid."""

    __slots__ = (
        "_config",
        "_epochs",
        "_last_offset",
        "_last_position",
        "_latest_ms",
        "_leader_epoch",
        "_now_ms",
        "_position",
        "_prefix",
        "_segment",
        "_size",
    )

    def __init__(self, segment: Segment, config: LogConfig, epochs: LeaderEpochCache, latest_ms: int) -> None:
        self._segment = segment
        self._position = segment.size
        self._config = config
        self._epochs = epochs
        self._leader_epoch = epochs.latest_epoch
        self._last_position = config.segment_bytes - _LARGEST_BATCH_BYTES
        self._last_offset = segment.base_offset + MAX_INT
        self._latest_ms = latest_ms
        self._now_ms = self._size = -1
        self._prefix = b""
        """The checksummed bytes before a value of `_size` at `_now_ms`: many values share a millisecond."""

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
        position, size = self._position, len(value)
        if not (
            position <= self._last_position
            and position == active.size
            and offset <= self._last_offset
            and active is self._segment
            and epochs is self._epochs
            and config is self._config
            and ((now_ms == self._now_ms and size == self._size) or self._begin_with(now_ms, size))
        ):
            return False
        body = self._prefix + value + b"\0"
        data = _FRAME(offset, len(body) + _FRAME_BYTES, self._leader_epoch, MAGIC, crc32c(body)) + body
        if position <= active.last_position_without_entry:
            active.extend(data, offset, now_ms)
        else:
            active.append(data, ((len(data), offset, now_ms),))
            if active.index_is_full:
                self._last_position = -1  # the next append rolls
        self._position = position + len(data)
        return True

    def _begin_with(self, now_ms: int, size: int) -> bool:
        """Prepare for values of `size` at `now_ms`; False if they need a decision."""
        if not (size <= LARGEST_VALUE_BYTES and 0 <= now_ms <= self._latest_ms):
            return False
        header = _BODY(0, 0, now_ms, now_ms, NO_PRODUCER_ID, -1, NO_SEQUENCE, 1)
        self._prefix = header + FIRST_PREFIXES[size]
        self._now_ms, self._size = now_ms, size
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

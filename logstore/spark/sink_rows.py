"""Check and place the rows of a sink: Arrow batches in, columns to write and each row's partition out.

    value       string or binary; null deletes its key     topic      string; the option `topic` overrides it
    key         string or binary                           timestamp  if `includeTimestamp`; null: now
    partition   int; null: by the key, or round robin      headers    array<struct<key:string,value:binary>>

Other columns are ignored. No Python runs per row, unless a row is refused: the error then names the row and
the reason, and nothing of the write is published.

Rows whose `partition` is null are placed as by Kafka's producers (`logstore/broker/placement.py`), by
compiled code. Rows without a key stay together for 16 KiB; the next ones go to the next partition (KIP-794).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logstore.columnar.encoding import NO_HEADERS, Blobs, Columns, headers_of
from logstore.columnar.kernels import Bytes, Ints, Longs, kernel, long
from logstore.config import LogConfig
from logstore.disk.errors import InvalidTopic
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.format.batch import HEADER_BYTES
from logstore.format.record import NO_TIMESTAMP
from logstore.spark.errors import RowRefused, WriteRefused
from logstore.spark.write_options import WriteOptions

_M = np.uint64(0x5BD1E995)
_SEED = np.uint64(0x9747B28C)


@kernel
def _murmur2(data: Bytes, at: Longs, sizes: Ints, hashes: Longs) -> None:
    mask = np.uint64(0xFFFFFFFF)
    for row in range(len(at)):
        start, size = at[row], max(sizes[row], 0)
        whole = start + (size & ~3)
        found = _SEED ^ np.uint64(size)
        for position in range(start, whole, 4):
            low = np.uint64(data[position]) | np.uint64(data[position + 1]) << np.uint64(8)
            high = np.uint64(data[position + 2]) | np.uint64(data[position + 3]) << np.uint64(8)
            four = (low | high << np.uint64(16)) * _M & mask
            four ^= four >> np.uint64(24)
            found = (found * _M ^ four * _M) & mask
        if size & 3:
            for position in range(whole, start + size):
                found ^= np.uint64(data[position]) << np.uint64(8 * (position - whole))
            found = found * _M & mask
        found = (found ^ found >> np.uint64(13)) * _M & mask
        hashes[row] = long(found ^ found >> np.uint64(15))


def murmur2_of(keys: Blobs) -> Longs:
    """Return Kafka's hash of each key, unsigned 32 bits; that of no bytes for a null key."""
    hashes = np.empty(len(keys.size), np.int64)
    _murmur2(*keys, hashes)
    return hashes


def partitions_of(keys: Blobs, counts: Longs, turns: Longs) -> Longs:
    """Return each row's partition among its topic's `counts`: its key's, or its turn's without a key."""
    chosen: Longs = np.where(keys.size >= 0, murmur2_of(keys) & 0x7FFFFFFF, turns) % counts
    return chosen


_RECORD_BYTES: Final = 26
"""The largest overhead of a record, in bytes, without key, value and headers; a header's is 10."""
_HEADER_PARTS: Final = 10
_SHOWN: Final = 40
TOGETHER_BYTES: Final = 16 << 10
"""The size of a run of rows without a key, which stay together: the default `batch.size` of producers."""

SINK_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp", "timestamp_ntz"),
}


@dataclass(frozen=True, slots=True)
class Topic:
    """The facts of a topic that decide on its rows; `is_new`: the write will create it."""

    partitions: int
    config: LogConfig
    is_new: bool = False


def check_columns(types: Mapping[str, str], options: WriteOptions) -> None:
    """Raise `WriteRefused` unless rows with these columns (name → Spark's type name) can be written."""
    if "value" not in types:
        raise WriteRefused(f"no column value (string or binary); the columns are {', '.join(types)}")
    if options.topic is None and "topic" not in types:
        raise WriteRefused("no topic: set option topic, or add a column topic")
    wanted = written_columns(types, options)
    if options.include_timestamp and "timestamp" not in types:
        raise WriteRefused("includeTimestamp is set, but there is no column timestamp")
    for name in wanted:
        if types[name] not in SINK_TYPES[name]:
            raise WriteRefused(
                f"column {name} is {types[name]}; it must be {' or '.join(SINK_TYPES[name])}: "
                f"cast it, as in CAST({name} AS {SINK_TYPES[name][0]})"
            )


def written_columns(names: Mapping[str, str] | Sequence[str], options: WriteOptions) -> list[str]:
    """Return the columns among `names` that are written, in the order of `SINK_TYPES`."""
    is_written = {
        "headers": options.include_headers,
        "timestamp": options.include_timestamp,
        "topic": options.topic is None,
    }
    return [name for name in SINK_TYPES if name in names and is_written.get(name, True)]


class Placed(NamedTuple):
    """Rows to write, and each row's slot in `Intake.slots`."""

    rows: Columns
    slots: Longs


class Intake:
    """Checks and places the rows of one task. `turn`: the first partition for rows without a key."""

    def __init__(
        self,
        options: WriteOptions,
        topic_of: Callable[[str], Topic],
        now_ms: Callable[[], int],
        *,
        spark_partition: int = 0,
        turn: int = 0,
    ) -> None:
        """`topic_of` is called once per topic; it raises `EngineError` for one that cannot be written."""
        self.outcome = options.delivery.outcome
        self._options, self._topic_of, self._now_ms = options, topic_of, now_ms
        self._spark_partition, self._turn = spark_partition, turn
        self._rows_before = self._loose_bytes = 0
        self.slots: list[TopicPartition] = []
        """every partition of the topics so far; `Placed.slots` are indexes into it"""
        self.topics: dict[str, Topic] = {}
        self._first_slots: dict[str, int] = {}

    def take(self, batch: Any) -> Placed:
        """Check and place a batch of rows. Raises `RowRefused`, and the errors of `topic_of`."""
        return _Batch(self, batch).placed()

    def _add(self, name: str) -> int:
        """Add a topic and return the slot of its partition 0."""
        topic = self.topics[name] = self._topic_of(name)
        first = self._first_slots[name] = len(self.slots)
        self.slots += (TopicPartition(name, partition) for partition in range(topic.partitions))
        return first


class _Batch:
    """One Arrow batch that is being checked and placed."""

    def __init__(self, intake: Intake, batch: Any) -> None:
        self._intake, self._batch = intake, batch
        self._columns = set(written_columns(batch.schema.names, intake._options))
        self._count = batch.num_rows
        self._keys, self._values = self._blobs("key"), self._blobs("value")
        self._sizes = np.maximum(self._keys.size, 0).astype(np.int64) + np.maximum(self._values.size, 0)
        """The bytes of each row's key and value."""
        self._names: Sequence[str | None] = [intake._options.topic]
        self._topic_codes: Longs = np.zeros(self._count, np.int64)
        self._partitions: Longs | None = None

    def placed(self) -> Placed:
        intake, now_ms = self._intake, self._intake._now_ms()
        if "topic" in self._columns:
            self._read_topics()
        topics = [self._topic(code) for code in range(len(self._names))]
        slots = self._slots(topics)
        self._judge(topics, now_ms)
        has_times, has_headers = "timestamp" in self._columns, "headers" in self._columns
        times = self._times(now_ms) if has_times else np.full(self._count, now_ms, np.int64)
        headers = headers_of(self._batch.column("headers")) if has_headers else NO_HEADERS
        intake._rows_before += self._count
        return Placed(Columns(times, self._keys, self._values, *headers), slots)

    def _blobs(self, name: str) -> Blobs:
        return Blobs.of(self._batch.column(name), name) if name in self._columns else Blobs.none(self._count)

    # --- placing --------------------------------------------------------------------------------------

    def _read_topics(self) -> None:
        column = self._batch.column("topic")
        if column.null_count:
            row = int(np.flatnonzero(~_valid(column))[0])
            self._topic_codes[:] = -1
            raise self._refused(row, "its topic is null; fill it in, or set option topic")
        encoded = column.dictionary_encode()
        self._names = encoded.dictionary.to_pylist()
        self._topic_codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    def _topic(self, code: int) -> Topic:
        intake, name = self._intake, self._names[code]
        assert name is not None
        if name not in intake.topics:
            try:
                check_topic_name(name)
                intake._add(name)
            except (InvalidTopic, WriteRefused) as error:
                if intake._options.topic is not None:  # the same for all rows
                    raise
                rows = np.flatnonzero(self._topic_codes == code)
                raise self._refused(int(rows[0]), str(error)) from error
        return intake.topics[name]

    def _slots(self, topics: Sequence[Topic]) -> Longs:
        counts = np.array([topic.partitions for topic in topics], np.int64)[self._topic_codes]
        by_key = partitions_of(self._keys, counts, self._turns())
        if "partition" in self._columns:
            column = self._batch.column("partition")
            known = _valid(column)
            given = column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            self._partitions = given
            self._refuse_where(
                known & ((given < 0) | (given >= counts)),
                lambda row: f"its topic has the partitions 0 to {counts[row] - 1}",
            )
            by_key = np.where(known, given, by_key)
        self._partitions = by_key
        firsts = [self._intake._first_slots[name] for name in self._names if name is not None]
        slots: Longs = np.array(firsts, np.int64)[self._topic_codes] + by_key
        return slots

    def _turns(self) -> Longs:
        intake = self._intake
        ends = intake._loose_bytes + np.cumsum(np.where(self._keys.size < 0, self._sizes, 0))
        starts = np.concatenate(([intake._loose_bytes], ends[:-1]))
        intake._loose_bytes = int(ends[-1]) if len(ends) else intake._loose_bytes
        turns: Longs = intake._turn + starts // TOGETHER_BYTES
        return turns

    # --- checking -------------------------------------------------------------------------------------

    def _judge(self, topics: Sequence[Topic], now_ms: int) -> None:
        sizes = self._sizes + HEADER_BYTES + _RECORD_BYTES
        if "headers" in self._columns:
            sizes += self._header_sizes()
        limits = np.array(
            [min(self._intake._options.request_bytes, topic.config.max_message_bytes) for topic in topics],
            np.int64,
        )[self._topic_codes]
        self._refuse_where(
            sizes > limits,
            lambda row: (
                f"alone in a batch it has up to {sizes[row]} bytes; the limit is {limits[row]} "
                "(kafka.max.request.size, and the topic's max.message.bytes)"
            ),
        )
        if any(topic.config.is_compacted for topic in topics):
            needs_key = np.array([topic.config.is_compacted for topic in topics])[self._topic_codes]
            self._refuse_where(
                needs_key & (self._keys.size < 0), lambda row: "its topic is compacted, but it has no key"
            )

    def _header_sizes(self) -> Longs:
        column = self._batch.column("headers")
        items = column.flatten()
        parents = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        names = Blobs.of(items.field("key"), "headers")
        wrong = np.flatnonzero(~_valid(items) | (names.size < 0))
        if len(wrong):
            raise self._refused(int(parents[wrong[0]]), "one of its headers is null, or has no key")
        values = np.maximum(Blobs.of(items.field("value"), "headers").size, 0)
        each = names.size.astype(np.int64) + values + _HEADER_PARTS
        return np.bincount(parents, each, self._count).astype(np.int64)

    def _times(self, now_ms: int) -> Longs:
        column = self._batch.column("timestamp")
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
        # A copy: kernels are compiled for times that may be written to.
        times: Longs = np.array(column.cast(pa.int64()).fill_null(now_ms).to_numpy(zero_copy_only=False))
        topics = [self._intake.topics[name] for name in self._names if name is not None]
        oldest, newest = (
            np.array(bounds, np.int64)[self._topic_codes]
            for bounds in zip(*(_times_allowed(topic.config, now_ms) for topic in topics), strict=True)
        )
        self._refuse_where(
            (times != NO_TIMESTAMP) & ((times < oldest) | (times > newest)),
            lambda row: f"its timestamp is {times[row]} ms; its topic accepts {oldest[row]} to {newest[row]}",
        )
        return times

    def _refuse_where(self, wrong: npt.NDArray[np.bool_], reason: Callable[[int], str]) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows):
            row = int(rows[0])
            raise self._refused(row, reason(row))

    def _refused(self, row: int, reason: str) -> RowRefused:
        intake, code = self._intake, int(self._topic_codes[row])
        size = int(self._keys.size[row])
        key = "null"
        if size >= 0:
            at = int(self._keys.at[row])
            key = repr(self._keys.data[at : at + min(size, _SHOWN)].tobytes())
            key += "…" if size > _SHOWN else ""
        where = [f"topic {self._names[code]}"] if code >= 0 else []
        where += [f"partition {self._partitions[row]}"] if self._partitions is not None else []
        return RowRefused(
            f"row {intake._rows_before + row + 1} of Spark partition {intake._spark_partition} "
            f"({', '.join([*where, f'key {key}'])}) cannot be written: {reason}. {intake.outcome}"
        )


def _times_allowed(config: LogConfig, now_ms: int) -> tuple[int, int]:
    if config.message_timestamp_type != "CreateTime":
        return 0, 2**62
    return max(now_ms - config.oldest_allowed_ms, 0), min(now_ms + config.newest_allowed_ms, 2**62)


def _valid(column: Any) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return known

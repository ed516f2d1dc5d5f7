"""Batches of our own making equal those that the plain way makes, and are let in by the same rules."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.config import LogConfig
from logstore.errors import InvalidRecord, InvalidTimestamp, RecordBatchTooLarge, RecordTooLarge
from logstore.format.batch import Batch, encode_batch, encode_batch_of_pairs, walk
from logstore.format.compression import Codec
from logstore.format.record import (
    MAX_PLAIN_BYTES,
    MAX_PLAIN_VALUES,
    Header,
    Record,
    encode_equal_values,
    encode_pairs,
    encode_values,
)
from logstore.log.append import validate_and_assign
from logstore.log.log import Log
from logstore.log.outgoing import (
    ROWS_AT_A_TIME,
    WORTH_A_TABLE,
    Compression,
    MadeBatch,
    batch_of_one,
    batches_of,
    may_enter,
)
from logstore.testing.disks import MemoryDisk

T0 = 1_700_000_000_000
DAY_MS = 86_400_000

# Lengths of varints change at 64 and 8192: of a value's size, of its record's, and of the offset delta.
SIZES = (1, 2, 57, 58, 59, 60, 63, 64, 100, 119, 128, 4096, 8000, 8175)
COUNTS = (1, 2, 63, 64, 65, 127, 128, 129, 1000, MAX_PLAIN_VALUES)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", COUNTS)
def test_tables_encode_as_the_loop_does(count: int, size: int) -> None:
    if count * size > 1 << 20:
        count = max((1 << 20) // size, 1)
    noise = random.Random(size)
    values = [noise.randbytes(size) for _ in range(count)]
    expected = b"".join(encode_pairs([(None, value) for value in values])[0])
    assert b"".join(encode_equal_values(values, size)) == expected
    assert b"".join(encode_values(values, [size] * count)) == expected
    mixed = [value[: noise.randrange(size + 1)] for value in values]
    expected = b"".join(encode_pairs([(None, value) for value in mixed])[0])
    assert b"".join(encode_values(mixed, [len(value) for value in mixed])) == expected


@pytest.mark.parametrize("at", [0, 63, 64, 129])
@pytest.mark.parametrize("size", [MAX_PLAIN_BYTES - 1, MAX_PLAIN_BYTES, 10_000, 100_000])
def test_one_large_value_among_others(at: int, size: int) -> None:
    """Tables end below a size; the batch is the same, with the loop."""
    values = [b"v" * (number % 90) for number in range(130)]
    values[at] = b"v" * size
    made = list(batches_of(values, now_ms=T0, compression=Compression(Codec.NONE), target_bytes=1 << 20))
    assert [each.data for each in made if isinstance(each, MadeBatch)] == [
        encode_batch_of_pairs([(None, value) for value in values], timestamp_ms=T0, leader_epoch=-1)
    ]
    if size >= MAX_PLAIN_BYTES:
        with pytest.raises(IndexError):
            encode_values(values, list(map(len, values)))


def records_in(batches: Iterable[MadeBatch | bytes]) -> Iterator[Record]:
    for each in batches:
        data = each.data if isinstance(each, MadeBatch) else each
        for batch in walk(bytes(data)):
            batch.check_crc()
            batch.check_records()
            yield from batch.records()


_keys = st.none() | st.binary(max_size=5)
_rows: st.SearchStrategy[Any] = st.one_of(
    st.binary(max_size=90),
    st.none(),
    st.binary(max_size=9).map(bytearray),
    st.tuples(_keys, st.none() | st.binary(max_size=90)),
    st.builds(Record, st.just(7), st.integers(-1, T0), _keys, st.binary(max_size=9)),
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    rows=st.lists(_rows, max_size=40)
    | st.lists(st.binary(max_size=90), max_size=400)
    | st.lists(st.tuples(_keys, st.binary(max_size=90)), max_size=40),
    target_bytes=st.sampled_from([1, 200, 1 << 19]),
    codec=st.sampled_from([Codec.NONE, Codec.GZIP]),
    is_list=st.booleans(),
)
def test_whatever_is_given_comes_out_in_order(
    rows: list[Any], target_bytes: int, codec: Codec, is_list: bool
) -> None:
    given_rows = rows if is_list else iter(rows)
    made = list(batches_of(given_rows, now_ms=T0, compression=Compression(codec), target_bytes=target_bytes))
    found = [(each.timestamp_ms, each.key, each.value) for each in records_in(made)]
    expected = []
    for row in rows:
        match row:
            case Record():
                expected.append((row.timestamp_ms, row.key, row.value))
            case tuple():
                expected.append((T0, *row))
            case _:
                expected.append((T0, None, None if row is None else bytes(row)))
    assert found == expected


@pytest.mark.parametrize("size", [100, 0])
@pytest.mark.parametrize("count", [WORTH_A_TABLE - 1, WORTH_A_TABLE, 20_000])
@pytest.mark.parametrize("form", ["values", "mixed sizes", "pairs", "generator"])
def test_batches_have_about_the_size_asked_for(form: str, count: int, size: int) -> None:
    """All but the last reach it with the record that fills them, or hold as many records as one may."""
    target_bytes = 50_000
    rows: Iterable[Any] = [b"x" * size] * count
    if form == "mixed sizes":
        rows = [b"x" * (size + number % 3) for number in range(count)]
    if form == "pairs":
        rows = [(b"", b"x" * size)] * count
    if form == "generator":
        rows = (row for row in [b"x" * size] * count)
    made = list(batches_of(rows, now_ms=T0, compression=Compression(Codec.NONE), target_bytes=target_bytes))
    counts = [each.record_count for each in made if isinstance(each, MadeBatch)]
    assert sum(counts) == count
    for each in counts[:-1]:
        full = each * (size + 34) >= target_bytes and (each - 1) * (size + 32) < target_bytes
        assert full or each == MAX_PLAIN_VALUES or form == "generator"
    if form == "generator":
        assert max(counts) <= ROWS_AT_A_TIME


def _headed(size: int) -> Record:
    return Record(0, T0, None, b"v", (Header("h\u00e9", b"x" * size), Header("none", None)))


@pytest.mark.parametrize(
    "rows",
    [
        [b"x" * 200] * 2_000,
        [(b"k", b"x" * 200)] * 2_000,
        [_headed(200)] * 2_000,
        [b"x" * 40_000, b"y" * 99_000],
        [(b"k", b"x" * 40_000), (None, b"y" * 99_000), (b"k", b"z")],
        [_headed(40_000), _headed(99_000), _headed(1)],
        [b"x" * 49_900] * 2 + [b"y"],
    ],
    ids=["values", "pairs", "headers", "a large value", "a large pair", "large headers", "halves"],
)
@pytest.mark.parametrize(
    "config",
    [LogConfig(max_message_bytes=100_000), LogConfig(segment_bytes=100_000)],
    ids=["batch", "segment"],
)
def test_records_that_fit_alone_are_not_refused_together(config: LogConfig, rows: list[Any]) -> None:
    """They are put into batches that fit; large headers count, and so does the size of a segment."""
    _, log = opened(config)
    assert log.append(rows).offsets == range(len(rows))
    assert [record.offset for record in log.read()] == list(range(len(rows)))


@pytest.mark.parametrize(
    ("headers", "advice"),
    [(((1, b"x"),), "the name of a header is a str, not int"), ((("h", 1),), "header 'h' is bytes or None")],
)
def test_a_header_that_is_none_is_refused(headers: Any, advice: str) -> None:
    _, log = opened(LogConfig())
    with pytest.raises(TypeError, match=advice):
        log.append([Record(0, T0, None, b"v", headers)])


@pytest.mark.parametrize("rows", [[b"x", "text"], [(b"k", "text")], [(b"k", b"v", b"h")], [b"x", 7]])
def test_what_is_no_record_is_refused_with_those_beside_it(rows: list[Any]) -> None:
    _, log = opened(LogConfig())
    with pytest.raises(TypeError):
        log.append(rows)
    assert log.log_end_offset == 0


CONFIGS = (
    LogConfig(),
    LogConfig(max_message_bytes=150),
    LogConfig(segment_bytes=1 << 20, cleanup_policy="compact"),
    LogConfig(message_timestamp_before_max_ms=DAY_MS),
    LogConfig(message_timestamp_after_max_ms=DAY_MS),
    LogConfig(message_timestamp_type="LogAppendTime"),
    LogConfig(compression_type="gzip"),
)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(
    pairs=st.lists(st.tuples(_keys, st.none() | st.binary(max_size=40)), min_size=1, max_size=6),
    at_ms=st.sampled_from([-1, 0, T0 - DAY_MS - 1, T0 - DAY_MS, T0, T0 + DAY_MS, T0 + DAY_MS + 1]),
    config=st.sampled_from(CONFIGS),
)
def test_what_may_enter_is_what_validation_leaves_as_it_is(
    pairs: list[tuple[bytes | None, bytes | None]], at_ms: int, config: LogConfig
) -> None:
    """Our batch skips the reading of its records, so nothing may pass that reading them would refuse."""
    codec = Codec.GZIP if config.compression_type == "gzip" else Codec.NONE
    (made,) = batches_of(pairs, now_ms=at_ms, compression=Compression(codec), target_bytes=1 << 19)
    assert isinstance(made, MadeBatch)
    assert made.data == encode_batch_of_pairs(pairs, timestamp_ms=at_ms, codec=codec)
    try:
        placed = validate_and_assign(
            bytes(made.data), next_offset=0, leader_epoch=-1, now_ms=T0, config=config
        )
    except (RecordTooLarge, InvalidTimestamp, InvalidRecord):
        assert not may_enter(made, T0, config)
        return
    is_as_it_was = placed.data == made.data
    assert not may_enter(made, T0, config) or is_as_it_was
    if at_ms >= 0:  # "no time" is left to validation, which reads each record for it
        assert may_enter(made, T0, config) == is_as_it_was
    if may_enter(made, T0, config):
        assert (placed.last_offset, placed.max_timestamp_ms) == (made.record_count - 1, made.timestamp_ms)


def opened(config: LogConfig) -> tuple[MemoryDisk, Log]:
    disk = MemoryDisk()
    return disk, Log.open("/data/orders-0", config, disk=disk, clock=lambda: T0)


@pytest.mark.parametrize("segment_bytes", [2500, 1 << 20])
@pytest.mark.parametrize("config", CONFIGS[2:], ids=lambda config: str(CONFIGS.index(config)))
def test_the_directory_is_the_one_that_ready_batches_make(config: LogConfig, segment_bytes: int) -> None:
    """Segments, indexes and epochs to the byte, whichever way the batches came in."""
    settings_ = {**config.to_kafka(), "segment.bytes": str(segment_bytes), "index.interval.bytes": "300"}
    config = LogConfig.from_kafka(settings_)
    codec = Codec.GZIP if config.compression_type == "gzip" else Codec.NONE
    made_disk, made = opened(config)
    ready_disk, ready = opened(config)
    noise = random.Random(1)
    for number in range(60):
        pairs = [(b"k", noise.randbytes(noise.randrange(60))) for _ in range(1 + number % 4)]
        info = made.append(pairs, timestamp_ms=T0 - number)
        batch = encode_batch_of_pairs(pairs, timestamp_ms=T0 - number, codec=codec)
        assert info == ready.append_batches(batch)
    made.close()
    ready.close()
    assert made_disk.files() == ready_disk.files()


def test_refusals_name_the_record_as_for_a_strangers_batch() -> None:
    _, log = opened(LogConfig(cleanup_policy="compact"))
    log.append([(b"k", b"v")])
    with pytest.raises(InvalidRecord, match="a compacted topic needs a key") as refused:
        log.append([(b"k", b"v"), (None, b"v")])
    assert [each[0] for each in refused.value.record_errors] == [1]
    _, log = opened(LogConfig(message_timestamp_before_max_ms=DAY_MS))
    with pytest.raises(InvalidTimestamp):
        log.append([b"v"] * 200, timestamp_ms=T0 - 2 * DAY_MS)
    _, log = opened(LogConfig(max_message_bytes=1000))
    with pytest.raises(RecordTooLarge):
        log.append(b"v" * 1000)
    _, log = opened(LogConfig(segment_bytes=1000, segment_index_bytes=1000))
    with pytest.raises(RecordBatchTooLarge):
        log.append(b"v" * 1000)
    assert log.log_end_offset == 0


@pytest.mark.parametrize("others", [0, 200])
@pytest.mark.parametrize(
    "buffer", [memoryview(array("i", [1, 2])), memoryview(b"abcdef")[::2], bytearray(b"q")]
)
def test_any_view_of_bytes_is_stored_as_its_bytes(buffer: Any, others: int) -> None:
    """`len` of such a view counts integers, and one with gaps cannot be joined: each is copied first."""
    _, log = opened(LogConfig())
    rows = [(b"k", buffer), (buffer, b"v"), Record(0, T0, buffer, buffer, (Header("name", buffer),))]
    log.append([(b"k", b"v")] * others + rows)
    log.append(buffer, key=buffer)
    log.append(b"v", headers=[("name", buffer)])
    found = [(record.key, record.value) for record in log.read(others, others + 4)]
    data = bytes(buffer)
    assert [each.headers for each in log.read(others + 2)] == [
        (Header("name", data),),
        (),
        (Header("name", data),),
    ]
    assert found == [(b"k", data), (data, b"v"), (data, data), (data, data)]


@pytest.mark.parametrize("part", [np.arange(3), array("i", [1, 2]), "text", 5, [b"a"]])
@pytest.mark.parametrize("at", [0, 1])
def test_other_keys_and_values_of_pairs_are_refused_by_name(part: Any, at: int) -> None:
    """A condition on an array is an error of numpy, and the `len` of one counts elements."""
    _, log = opened(LogConfig())
    pair = (part, b"v") if at == 0 else (b"k", part)
    for rows in ([pair], [(b"k", b"v")] * 200 + [pair], [Record(0, T0, *pair)]):
        with pytest.raises(TypeError, match=f"bytes or None, not {type(part).__name__}; encode"):
            log.append(rows)
    assert log.log_end_offset == 0


@pytest.mark.parametrize("header", [("a", b"b", b"c"), ("a",), ("a", "text"), 5])
def test_a_header_of_another_form_is_a_type_error(header: Any) -> None:
    _, log = opened(LogConfig())
    with pytest.raises(TypeError, match=r"headers are \(name, value\) pairs|header 'a' is bytes or None"):
        log.append(b"v", headers=[header])
    assert log.log_end_offset == 0


def test_one_record_alone_is_encoded_like_a_batch_of_one() -> None:
    for key, value in ((None, None), (None, b""), (b"", None), (b"k", b"v" * 9000), (b"k" * 200, b"v")):
        made = batch_of_one(key, value, (), T0, Compression(Codec.NONE))
        assert isinstance(made, MadeBatch)
        assert made.data == encode_batch([Record(0, T0, key, value)])
        assert (made.record_count, made.timestamp_ms, made.is_keyed) == (1, T0, key is not None)
    headed = batch_of_one(b"k", bytearray(b"v"), [("h", b"x")], T0, Compression(Codec.NONE))
    assert headed == encode_batch([Record(0, T0, b"k", b"v", (Header("h", b"x"),))])


def test_ready_batches_keep_their_place_among_records() -> None:
    ready = Batch(encode_batch([Record(0, T0, b"r", b"1"), Record(1, T0, b"r", b"2")]))
    _, log = opened(LogConfig())
    log.append([b"0", ready, b"3", (b"k", b"4"), ready])
    assert [record.value for record in log.read()] == [b"0", b"1", b"2", b"3", b"4", b"1", b"2"]

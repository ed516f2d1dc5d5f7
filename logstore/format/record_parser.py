"""Parse records: one set of rules, and the three results that are made from them.

    decode_records   `Record` objects, for applications
    check_plainly    whether a client's batch is well formed, without an object per record (`check_many`)
    find_records     record boundaries, keys and tombstones, for compaction

The rules stand once, in `_LOOP`. Each result is a function compiled from it at import, with its own lines
for what it takes from a record: a shared walk that called back for each record, or for each integer, would
cost more than all else it does. For a hundred records and more, `record_columns.py` finds the same fields
with numpy. `kernels.py` holds the rules once more for numba; `use_compiled` installs its check here (decision
019).
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from logstore.errors import InvalidRecord
from logstore.format.record import MAX_INT, MAX_LONG, Record, wrap_long
from logstore.format.record_columns import Longs, find_columns, records_of
from logstore.format.record_headers import decode_headers, parse_headers
from logstore.format.varint import decode_varint, decode_varlong
from logstore.lazily import np

if TYPE_CHECKING:
    from logstore.disk.files import Buffer

RecordsSummary: TypeAlias = tuple[int, int, int]
"""The result of a check: the smallest and the largest timestamp delta, in ms from the batch's base
timestamp, and the number of records without a key."""

NUMPY_FROM: Final = 100
"""Batches with fewer records are decoded faster by the loop."""
NUMPY_UP_TO: Final = 1 << 16
"""Batches with more records are decoded one record at a time, to bound memory: a batch may hold millions."""
COMPILED_FROM: Final = 3
"""Batches with fewer records are checked faster without a call of compiled code."""
FAR: Final = 1 << 62
"""Sums with larger base offsets and times may need more than 64 bits: they are left to the loop."""


class RecordSpans(NamedTuple):
    """The records of a batch, a row each; `bounds` has one row more: the end of the last record.

    `time_deltas` are milliseconds from the batch's base timestamp, `offset_deltas` count from its base
    offset. Record n is `data[bounds[n] : bounds[n + 1]]`; no value is copied.
    """

    bounds: list[int]
    time_deltas: list[int]
    offset_deltas: list[int]
    keys: list[bytes | None]
    are_tombstones: list[bool]


# --- the loop -----------------------------------------------------------------------------------------------

# `@NAME READER` stands for an integer: one to three bytes are read here, longer ones by READER.
_INTEGER: Final = """\
NAME = data[position]
if NAME < 0x80:
    position += 1
    NAME = NAME >> 1 ^ -(NAME & 1)
elif (high := data[position + 1]) < 0x80:
    position += 2
    NAME = NAME & 0x7F | high << 7
    NAME = NAME >> 1 ^ -(NAME & 1)
elif (top := data[position + 2]) < 0x80:
    position += 3
    NAME = NAME & 0x7F | (high & 0x7F) << 7 | top << 14
    NAME = NAME >> 1 ^ -(NAME & 1)
else:
    NAME, position = READER(data, position)
"""

# `@BEGIN`, `@HEADERS`, `@TAKE` and `@RESULT` stand for the lines of one result.
_LOOP: Final = """\
def parse(data, count, position, end, ARGUMENTS):
    @BEGIN
    try:
        for number in range(count):
            start = position
            @size decode_varint
            record_end = position + size
            if not position <= record_end <= end:
                raise InvalidRecord(f"record {number}: {size} bytes long, {end - position} are left")
            position += 1  # attributes, unused
            @time_delta decode_varlong
            @offset_delta decode_varint
            @key_size decode_varint
            key_at = key_end = position
            if key_size > 0:
                position = key_end = key_at + key_size
                if position > record_end:
                    raise InvalidRecord(f"record {number}: its key passes its end")
            @value_size decode_varint
            value_at = position
            if value_size > 0:
                position += value_size
            value_end = position
            if position >= record_end:
                raise InvalidRecord(f"record {number}: its value passes its end")
            @HEADERS
            if position != record_end:
                raise InvalidRecord(
                    f"record {number}: its length ends it at byte {record_end}, its fields at byte {position}"
                )
            @TAKE
    except IndexError:
        raise InvalidRecord(f"the records end at byte {end}, before the last of {count}") from None
    if position != end:
        raise InvalidRecord(f"{end - position} bytes remain after the last of {count} records")
    @RESULT
"""


_NAMES: Final = {
    each.__name__: each
    for each in (
        InvalidRecord,
        Record,
        decode_headers,
        decode_varint,
        decode_varlong,
        parse_headers,
        wrap_long,
    )
} | {"MAX_INT": MAX_INT, "MAX_LONG": MAX_LONG}


def _expanded(source: str, replacements: dict[str, str]) -> str:
    """`source` with each `@` line replaced, at its own indentation."""
    lines: list[str] = []
    for line in source.splitlines():
        indent, at, name = line.partition("@")
        if at:
            if name not in replacements:
                integer, reader = name.split()
                lines_of = _INTEGER.replace("READER", reader)
                if integer.endswith("_size"):  # a nullable field: every negative size means null
                    lines_of = lines_of.replace("^ -(NAME & 1)", "if not NAME & 1 else -1")
                replacements[name] = lines_of.replace("NAME", integer)
            lines += [indent + each for each in replacements[name].splitlines()]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _compiled(
    kind: str, arguments: str, *, begin: str, headers: str, take: str, result: str = "return"
) -> Any:
    parts = {"BEGIN": begin, "HEADERS": headers, "TAKE": take, "RESULT": result}
    return _function(kind, _LOOP.replace("ARGUMENTS", arguments), "parse", parts)


def _function(kind: str, template: str, name: str, parts: dict[str, str] | None = None) -> Any:
    source = _expanded(template, parts or {})
    shown_as = f"<record parser: {kind}>"
    linecache.cache[shown_as] = (len(source), None, source.splitlines(keepends=True), shown_as)
    namespace: dict[str, Any] = dict(_NAMES)
    exec(compile(source, shown_as, "exec"), namespace)
    return namespace[name]


def _at_first_use(make: Callable[..., Any], *arguments: str, **parts: str) -> Callable[[], Any]:
    """Return what returns the function: a program that only appends never compiles one."""
    return cache(partial(make, *arguments, **parts))


_decode = _at_first_use(
    _compiled,
    "decode",
    "base_offset, base_timestamp_ms, log_append_time_ms, base_sequence",
    begin="new = tuple.__new__",
    headers="""\
if data[position] == 0:
    headers = ()
    position += 1
else:
    headers, position = decode_headers(data, position, record_end)
""",
    take="""\
timestamp_ms = base_timestamp_ms + time_delta if log_append_time_ms is None else log_append_time_ms
if not -MAX_LONG <= timestamp_ms <= MAX_LONG:
    timestamp_ms = wrap_long(timestamp_ms)
yield new(Record, (
    base_offset + offset_delta,
    timestamp_ms,
    data[key_at:key_end] if key_size >= 0 else None,
    data[value_at:value_end] if value_size >= 0 else None,
    headers,
    base_sequence if base_sequence < 0 else (base_sequence + offset_delta) & MAX_INT,
))
""",
)
check_loop: Final = _at_first_use(
    _compiled,
    "check",
    "least=MAX_LONG, most=-MAX_LONG - 1",
    begin="keyless = 0",
    headers="""\
if data[position] == 0:
    position += 1
else:
    position = parse_headers(data, position, record_end)
""",
    take="""\
if time_delta < least:
    least = time_delta
if time_delta > most:
    most = time_delta
if offset_delta != number:
    raise InvalidRecord(f"record {number} has offset delta {offset_delta}, not {number}")
if key_size < 0:
    keyless += 1
""",
    result="return least, most, keyless",
)
_find = _at_first_use(
    _compiled,
    "find",
    "bounds, time_deltas, offset_deltas, keys, are_tombstones",
    begin="last_delta = -1",
    headers="position = record_end",  # not looked into: a record that stays is copied as it lies
    take="""\
if offset_delta <= last_delta:
    raise InvalidRecord(f"record {number} has offset delta {offset_delta} after {last_delta}")
last_delta = offset_delta
bounds.append(record_end)
time_deltas.append(time_delta)
offset_deltas.append(offset_delta)
keys.append(data[key_at:key_end] if key_size >= 0 else None)
are_tombstones.append(value_size < 0)
""",
)


# --- the results --------------------------------------------------------------------------------------------


def decode_records(
    data: bytes,
    count: int,
    *,
    base_offset: int,
    base_timestamp_ms: int,
    log_append_time_ms: int | None,
    base_sequence: int,
) -> Iterator[Record]:
    """Decode the `count` records that fill `data`, in order.

    With `log_append_time_ms` every record has that time and its own is ignored. Raises `InvalidRecord`
    at the first record that breaks a rule, after the records before it.
    """
    if NUMPY_FROM <= count <= NUMPY_UP_TO and max(abs(base_offset), abs(base_timestamp_ms)) <= FAR:
        found = decode_columns(data, count, base_offset, base_timestamp_ms, log_append_time_ms, base_sequence)
        if found is not None:
            return found
    plain: Iterator[Record] = _decode()(
        data, count, 0, len(data), base_offset, base_timestamp_ms, log_append_time_ms, base_sequence
    )
    return plain


def decode_columns(
    data: bytes,
    count: int,
    base_offset: int,
    base_timestamp_ms: int,
    log_append_time_ms: int | None,
    base_sequence: int,
) -> Iterator[Record] | None:
    """`decode_records` with numpy; None: leave it to the loop."""
    columns = find_columns(data, count)
    if columns is None:
        return None
    times: Iterable[int]
    if log_append_time_ms is None:
        times = (base_timestamp_ms + columns.time_deltas).tolist()
    else:
        times = repeat(log_append_time_ms)
    sequences: Iterable[int] = repeat(base_sequence)
    if base_sequence >= 0:
        sequences = (base_sequence + columns.deltas & MAX_INT).tolist()
    return records_of(columns, base_offset + columns.deltas, times, sequences)


def decode_pairs(data: bytes, count: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Return key and value of the `count` records that fill `data`. Raises as `decode_records`."""
    columns = find_columns(data, count) if NUMPY_FROM <= count <= NUMPY_UP_TO else None
    if columns is None:
        return ((record.key, record.value) for record in decode_plainly(data, count, 0, 0, None, -1))
    return zip(columns.keys, columns.values, strict=False)


def decode_values(data: bytes, count: int) -> Iterator[bytes | None]:
    """Return the value of the `count` records that fill `data`. Raises as `decode_records`."""
    columns = find_columns(data, count) if NUMPY_FROM <= count <= NUMPY_UP_TO else None
    if columns is None:
        return (record.value for record in decode_plainly(data, count, 0, 0, None, -1))
    return iter(columns.values)


def decode_plainly(data: bytes, count: int, *fields: int | None) -> Iterator[Record]:
    """`decode_records` by the loop alone."""
    records: Iterator[Record] = _decode()(data, count, 0, len(data), *fields)
    return records


def find_records(data: bytes, count: int, position: int, end: int) -> RecordSpans:
    """Find the `count` records that fill `data[position:end]`, without copying their values.

    Raises `InvalidRecord` for records that break a rule; headers are not looked into.
    """
    spans = RecordSpans([position], [], [], [], [])
    _find()(data, count, position, end, *spans)
    return spans


_SPAN_OF: Final = """\
def span_of(data, delta):
    position = 0
    while True:
        start = position
        @size decode_varint
        record_end = position + size
        if not position < record_end <= len(data):
            return None
        position += 1
        @time_delta decode_varlong
        @offset_delta decode_varint
        if offset_delta >= delta:
            return (start, record_end) if offset_delta == delta else None
        position = record_end
"""
_span_of: Final = _at_first_use(_function, "span", _SPAN_OF, "span_of")


def span_of(data: bytes, offset_delta: int) -> tuple[int, int] | None:
    """Return the bytes in which the record with this offset delta lies; None if there is none.

    `data` begins with a record, and deltas rise. Raises `InvalidRecord` or `IndexError` for malformed bytes
    before it; the record itself is not checked.
    """
    found: tuple[int, int] | None = _span_of()(data, offset_delta)
    return found


class CompiledCheck(Protocol):
    """The check that `kernels.warm_up` installs; None: a record breaks a rule."""

    def one(self, data: Buffer, count: int, position: int, end: int) -> RecordsSummary | None: ...
    def many(self, data: Buffer, starts: Longs, ends: Longs, counts: Longs) -> Longs | None: ...


class Compiled:
    """The compiled check of this process; None: the loop alone."""

    check: CompiledCheck | None = None


def use_compiled(check: CompiledCheck | None) -> None:
    """Install a compiled check for the whole process; None: the loop alone."""
    Compiled.check = check


def check_plainly(data: Buffer, count: int, position: int = 0, end: int | None = None) -> RecordsSummary:
    """Check that `data[position:end]` is `count` well-formed records at offset deltas 0, 1, 2…

    The rules of `decode_records`, and offsets without gaps, by the loop alone. Raises `InvalidRecord`.
    """
    summary: RecordsSummary = check_loop()(data, count, position, len(data) if end is None else end)
    return summary


def check_many(data: bytearray, starts: Longs, ends: Longs, counts: Longs) -> Longs:
    """Check the records of many batches, each in `data[start:end]`: a summary a row, n × 3 int64.

    Raises `InvalidRecord` for the first batch that breaks a rule.
    """
    compiled = Compiled.check
    if compiled is not None:
        summaries = compiled.many(data, starts, ends, counts)
        if summaries is not None:
            return summaries
    rows = zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True)
    return np.array([check_plainly(data, count, start, end) for start, end, count in rows], np.int64)

"""The columns of the source: those of Spark's Kafka source, in its order and types, and two more.

    key            binary       binary
    value          binary       binary
    topic          string       string
    partition      int          int32
    offset         bigint       int64
    timestamp      timestamp    timestamp[us, UTC]
    timestampType  int          int32     0 create time, 1 log append time
    headers        array        list<struct<key: string, value: binary>>; with `includeHeaders`; null if none
    leaderEpoch    int          int32     if `columns` names it
    segment        bigint       int64     likewise

All are nullable. As in Spark's Kafka source, a record without a time has 1969-12-31 23:59:59.999 (Kafka's
-1), and bytes of a header name that are not UTF-8 become U+FFFD. A time outside the range of Spark's type is
null. Rows come as `logstore.columnar.columnar` batches; no Python runs per record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from logstore.spark.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HEADERS: Final = "headers"
SEGMENT: Final = "segment"
"""The base offset of the segment file that holds the record. Directories only."""
CONNECTOR_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
ALL_COLUMNS: Final = (*CONNECTOR_COLUMNS, HEADERS, "leaderEpoch", SEGMENT)
_EVERYTHING: Final = "*"

_READ_AS: Final[Mapping[str, str]] = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    HEADERS: "headers",
    "leaderEpoch": "leader_epoch",
    SEGMENT: SEGMENT,
}
"""The column to read for each of ours; topic and partition are known without reading."""


def parse_columns(text: str | None, *, include_headers: bool) -> tuple[str, ...]:
    """Return the columns that option `columns` names, in that order; `*` and None mean the standard ones.

    As everywhere in Spark, letter case makes no difference. Raises `InvalidOption`.
    """
    standard = (*CONNECTOR_COLUMNS, HEADERS) if include_headers else CONNECTOR_COLUMNS
    if text is None:
        return standard
    known = {name.lower(): name for name in ALL_COLUMNS}
    chosen: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if part != _EVERYTHING and part.lower() not in known:
            raise InvalidOption(
                f"option columns: unknown column {part!r}; use {', '.join(ALL_COLUMNS)}, or *"
            )
        chosen.extend(standard if part == _EVERYTHING else (known[part.lower()],))
    if len(set(chosen)) < len(chosen):
        raise InvalidOption(f"option columns names a column twice: {text!r}; name each once")
    return tuple(chosen)


def read_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to ask of `Logs.read`: at least the offset, because rows must be counted."""
    return tuple(_READ_AS[name] for name in columns if name in _READ_AS) or ("offset",)


def spark_schema(columns: Sequence[str]) -> StructType:
    """Return Spark's schema of these columns."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(arrow_schema(columns))


def arrow_schema(columns: Sequence[str]) -> Any:
    """Return Arrow's schema of these columns, which every record batch must have."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    kinds = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        HEADERS: pa.list_(pa.field("element", header)),
        "leaderEpoch": pa.int32(),
        SEGMENT: pa.int64(),
    }
    return pa.schema([(name, kinds[name]) for name in columns])


class RowMaker:
    """Turns the record batches of `Logs.read`, for one partition, into Spark's rows."""

    def __init__(self, topic: str, partition: int, columns: Sequence[str]) -> None:
        self._schema = arrow_schema(columns)
        self._constants: dict[str, Any] = {"topic": topic, "partition": partition}
        self._made: dict[str, Any] = {}

    def rows(self, read: Any) -> Any:
        """Return a `pyarrow.RecordBatch` of Spark's columns for one that was read."""
        import pyarrow as pa

        made = [self._column(field, read) for field in self._schema]
        return pa.RecordBatch.from_arrays(made, schema=self._schema)

    def _column(self, field: Any, read: Any) -> Any:
        name = field.name
        if name in self._constants:
            return self._constant(field, read.num_rows)
        column = read.column(_READ_AS[name])
        if name == "timestamp":
            return _microseconds(column, field.type)
        if name == HEADERS:
            return _named_in_text(column, field.type)
        return column if column.type == field.type else column.cast(field.type)

    def _constant(self, field: Any, count: int) -> Any:
        """Return a column of one value: a slice of an array as long as the largest batch so far."""
        import pyarrow as pa

        made = self._made.get(field.name)
        if made is None or len(made) < count:
            value = pa.scalar(self._constants[field.name], field.type)
            made = self._made[field.name] = pa.repeat(value, count)
        return made.slice(0, count)


def _microseconds(times: Any, kind: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if times.null_count:
        times = times.fill_null(pa.scalar(-1, times.type))
    try:
        return times.cast(kind)
    except pa.ArrowInvalid:
        bound = (2**63 - 1) // 1000
        numbers = times.cast(pa.int64())
        fits = pc.and_(pc.less_equal(numbers, bound), pc.greater_equal(numbers, -bound))
        return pc.if_else(fits, times, pa.scalar(None, times.type)).cast(kind)


def _named_in_text(headers: Any, kind: Any) -> Any:
    """Return the headers with their names as text."""
    import pyarrow as pa

    if headers.null_count == len(headers):
        return pa.nulls(len(headers), kind)
    items = headers.values
    names = items.field("key")
    try:
        text = names.cast(pa.string())
    except pa.ArrowInvalid:
        distinct = names.dictionary_encode()
        readable = [name.decode(errors="replace") for name in distinct.dictionary.to_pylist()]
        text = pa.array(readable, pa.string()).take(distinct.indices)
    element = kind.value_type
    children = pa.StructArray.from_arrays([text, items.field("value")], fields=list(element))
    known, offsets = headers.buffers()[:2]
    return pa.Array.from_buffers(
        kind, len(headers), [known, offsets], headers.null_count, headers.offset, children=[children]
    )

"""What the tests of columnar share."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from logstore.columnar.columnar import FIELDS, table
from logstore.disk.files import Buffer
from logstore.format.batch import (
    encode_batch,
)
from logstore.format.compression import Codec
from logstore.format.record import MAX_INT, MAX_LONG, Header, Record
from tests.logstore.forge import T0

ALL = tuple(FIELDS)


Row = tuple[object, ...]


times = st.one_of(st.just(-1), st.integers(0, 1 << 41), st.just(MAX_LONG))


blobs = st.one_of(st.none(), st.binary(max_size=10), st.binary(min_size=60, max_size=150))


headers = st.lists(st.builds(Header, st.text(max_size=8), blobs), max_size=3).map(tuple)


def rows_of(found: Any) -> list[Row]:
    """The same tuples from a table or record batch of all columns."""
    found.validate(full=True)
    columns = {
        name: (found.column(name).cast(pa.int64()) if name == "timestamp" else found.column(name)).to_pylist()
        for name in ALL
    }
    columns["timestamp"] = [-1 if time is None else time for time in columns["timestamp"]]
    columns["headers"] = [
        [(header["key"], header["value"]) for header in listed or ()] for listed in columns["headers"]
    ]
    return list(zip(*columns.values(), strict=True))


def columnar(data: Buffer, **options: Any) -> list[Row]:
    return rows_of(table(data, columns=ALL, include_control=True, **options))


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Batches end to end, each of any kind that a log can hold."""
    parts: list[bytes] = []
    offset = draw(st.sampled_from([0, 5, 1 << 40]))
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.lists(st.tuples(times, blobs, blobs, headers), min_size=1, max_size=5))
        base = offset
        records = []
        for row in rows:
            records.append(Record(offset, *row))
            offset += draw(st.sampled_from([1, 1, 1, 2, 300, 70_000]))
        producer_id, producer_epoch, base_sequence = draw(
            st.sampled_from([(-1, -1, -1), (9, 1, MAX_INT - 1)])
        )
        parts.append(
            encode_batch(
                records,
                base_offset=base,
                leader_epoch=draw(st.integers(-1, 3)),
                codec=draw(st.sampled_from(Codec)),
                log_append_time_ms=draw(st.sampled_from([None, None, 0, T0])),
                delete_horizon_ms=draw(st.sampled_from([None, None, T0 + 5])),
                last_offset=offset + draw(st.integers(0, 2)),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
            )
        )
        offset += 3
    return b"".join(parts)

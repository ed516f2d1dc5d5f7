"""Counting by columns gives what counting record by record gives, however the records are cut into tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore import Codec, Record, encode_batch
from logstore.columnar.columnar import schema
from logstore.segment.scan import scan_buffer
from logstore.spark.jobs.dated_files import NEVER
from logstore.spark.jobs.measures import COLUMNS, LATENESS_MS, Measures

Row = tuple[int, int | None, bytes | None, bytes | None]
"""Offset, time, key, value."""


def batch(rows: Sequence[Row]) -> Any:
    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
    kinds = schema(COLUMNS)
    columns[1] = pa.array(columns[1], pa.int64()).cast(kinds.field("timestamp").type)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=kinds)


def plainly(rows: Sequence[Row]) -> dict[str, Any]:
    """The definitions, one record after the other."""
    latest, late, silence = None, [], 0
    for _, time, _, _ in rows:
        if time is None:
            continue
        if latest is not None:
            if time < latest:
                late.append(latest - time)
            silence = max(silence, time - latest)
        latest = time if latest is None else max(time, latest)
    times = [time for _, time, _, _ in rows if time is not None]
    gaps = [after[0] - before[0] - 1 for before, after in pairwise(rows)]
    values = [len(value) for _, _, _, value in rows if value is not None]
    bounds = (*LATENESS_MS, 1 << 62)
    return {
        "records": len(rows),
        "key_bytes": sum(len(key) for _, _, key, _ in rows if key is not None),
        "value_bytes": sum(values),
        "largest_value_bytes": max(values, default=0),
        "distinct_keys": len({key for _, _, key, _ in rows if key is not None}),
        "null_keys": sum(key is None for _, _, key, _ in rows),
        "null_values": sum(value is None for _, _, _, value in rows),
        "gaps": {
            "count": sum(gap > 0 for gap in gaps),
            "offsets": sum(gaps),
            "largest": max(gaps, default=0),
        },
        "earliest_ms": min(times, default=None),
        "latest_ms": latest,
        "without": len(rows) - len(times),
        "longest_silence_ms": silence,
        "late": len(late),
        "most_late_ms": max(late, default=0),
        "lateness": [sum(low <= by < high for by in late) for low, high in pairwise((0, *bounds))],
    }


SOME_TIMES = st.none() | st.integers(0, 5) | st.integers(0, 200_000_000)
SOME_BYTES = st.none() | st.binary(max_size=3)
ROWS = st.lists(
    st.tuples(st.sampled_from([1, 1, 1, 2, 7]), SOME_TIMES, SOME_BYTES, SOME_BYTES), min_size=1, max_size=25
)


@given(steps=ROWS, cuts=st.lists(st.tuples(st.integers(0, 25), st.booleans()), max_size=5))
@settings(derandomize=True, max_examples=150, deadline=None)
def test_columns_agree_with_records(steps: list[Row], cuts: list[tuple[int, bool]]) -> None:
    """Cut into batches of one task, or into tasks: True is where another task begins."""
    rows: list[Row] = []
    for step, *rest in steps:
        rows.append(((rows[-1][0] if rows else 10) + step, *rest))  # type: ignore[arg-type]
    at = {0: True} | {cut: new for cut, new in cuts if 0 < cut < len(rows)}
    tasks: list[Measures] = []
    for start, end in zip(sorted(at), [*sorted(at)[1:], len(rows)], strict=True):
        if at[start]:
            seen = [time for _, time, _, _ in rows[:start] if time is not None]
            tasks.append(Measures(latest_before_ms=max(seen, default=NEVER)))
        tasks[-1].add(batch(rows[start:end]))
    total = tasks[0]
    for each in tasks[1:]:
        total.follow(each)
    facts = total.facts()
    wanted = plainly(rows)
    times = facts.pop("times")
    times["lateness"] = list(times["lateness"].values())
    assert {name: value for name, value in {**facts, **times}.items() if name in wanted} == wanted
    assert sum(facts["days"].values()) == len(rows) - times["without"]


def test_a_task_that_found_nothing_changes_nothing() -> None:
    """A range that was compacted away, at any place."""
    rows: list[Row] = [(3, 5, b"k", b"v"), (9, 1, b"k", b"v")]
    plain = Measures()
    plain.add(batch(rows))
    total = Measures()
    for part in ([], rows[:1], [], rows[1:], []):
        task = Measures(latest_before_ms=max(total.latest_ms, total.latest_before_ms))
        if part:
            task.add(batch(part))
        total.follow(task)
    assert total.facts() == plain.facts()


def test_times_outside_the_calendar_are_one_day() -> None:
    """A producer that counts microseconds writes records of the year 57,859."""
    measures = Measures()
    measures.add(batch([(n, time, b"k", b"v") for n, time in enumerate((0, 1, 1763650000123456, 2**62))]))
    assert measures.facts()["days"] == {"1970-01-01": 2, "__HIVE_DEFAULT_PARTITION__": 2}


def test_batches_are_counted_by_their_headers() -> None:
    data = encode_batch([Record(0, 1, None, b"x" * 100)]) + encode_batch(
        [Record(0, 1, None, b"x" * 100)], codec=Codec.GZIP
    )
    measures = Measures()
    measures.add_batches(scan_buffer(data, len(data)).headers)
    measures.add_batches(np.zeros(0, scan_buffer(data, len(data)).headers.dtype))
    sizes = scan_buffer(data, len(data)).headers["batch_length"] + 12
    assert measures.facts()["batches"] == {
        "count": 2,
        "bytes": len(data),
        "largest_bytes": int(sizes.max()),
        "codecs": {"gzip": 1, "none": 1},
    }

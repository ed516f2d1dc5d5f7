"""Rows from batch headers alone are those of `decode`, which reads the records."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from logstore.columnar.columnar import table
from logstore.compact.compaction import encode_empty_batch
from logstore.format.batch import Batch, encode_batch, encode_marker_batch
from logstore.format.compression import Codec
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.segment.scan import scan_buffer
from logstore.segment.transaction_index import AbortedTransaction
from logstore.spark import header_rows as module
from logstore.spark.header_rows import HEADER_COLUMNS, header_rows
from logstore.spark.logs import OffsetRange

COLUMNS = sorted(HEADER_COLUMNS)
ABORTED = [AbortedTransaction(7, 10, 60, 61), AbortedTransaction(8, 0, 30, 31)]


def batch(base_offset: int, kept: Sequence[int], *, is_by_broker: bool = False, **options: Any) -> bytes:
    """A batch with records at these offsets."""
    records = [Record(offset, 1_000, b"k", b"v") for offset in kept]
    by_broker = 2_000 if is_by_broker else None
    return encode_batch(records, base_offset=base_offset, log_append_time_ms=by_broker, **options)


def log(rng: random.Random) -> bytes:
    """Whole batches with gaps between them, of two producers and of none; markers, and empty batches."""
    parts: list[bytes] = []
    bounds = sorted(rng.sample(range(100), 25))
    for base, end in pairwise(bounds):
        producer = rng.choice((7, 8, -1))
        epoch = {"leader_epoch": base // 30}
        if producer > 0 and rng.random() < 0.3:
            marker = EndTransactionMarker(ControlType.ABORT, 0)
            parts.append(
                encode_marker_batch(
                    marker, producer_id=producer, producer_epoch=0, timestamp_ms=1, base_offset=base, **epoch
                )
            )
            continue
        its = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        made = batch(
            base,
            range(base, rng.randrange(base, end) + 1),
            is_by_broker=rng.random() < 0.5,
            codec=rng.choice((Codec.NONE, Codec.ZSTD)),
            **epoch,
            **(its if producer > 0 else {}),
        )
        parts.append(encode_empty_batch(Batch(made)) if rng.random() < 0.2 else made)
    return b"".join(parts)


def rows(
    data: bytes, columns: Sequence[str], start: int = 0, end: int = 1_000, aborted: Any = ()
) -> dict[str, Any] | None:
    wanted = OffsetRange("orders", 0, start, end)
    found = header_rows(scan_buffer(data, len(data)).headers, wanted, columns, aborted)
    return None if found is None else found.to_pydict()


@pytest.mark.parametrize("seed", range(60))
def test_they_are_those_of_the_records(seed: int) -> None:
    rng = random.Random(seed)
    data = log(rng)
    columns = rng.sample(COLUMNS, rng.randrange(1, 4))
    start, end = sorted(rng.sample(range(-5, 110), 2))
    aborted = rng.sample(ABORTED, rng.randrange(3))
    decoded = table(data, columns=columns, start_offset=start, end_offset=end, aborted=aborted)
    assert rows(data, columns, start, end, aborted) == decoded.to_pydict()


def test_types() -> None:
    data = batch(0, range(3))
    made = header_rows(scan_buffer(data, len(data)).headers, OffsetRange("", 0, 0, 9), COLUMNS, ())
    assert made.schema.types == table(data, columns=COLUMNS).schema.types


def test_records_are_read_where_the_header_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other columns; offsets that compaction removed; more rows than are believed."""
    whole, thinned = batch(0, range(9)), batch(9, [9, 11], last_offset=12)
    assert rows(whole, ["offset"]) == {"offset": [*range(9)]}
    assert rows(whole, ["offset", "key"]) is None
    assert rows(whole + thinned, ["offset"]) is None
    monkeypatch.setattr(module, "_MOST_ROWS", 8)
    assert rows(whole, ["offset"]) is None

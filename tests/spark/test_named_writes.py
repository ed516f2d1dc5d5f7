"""Two writers with one `txnAppId` and version: the same rows are skipped, other rows are refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from logstore.spark.errors import PublicationBroken, WriteRefused
from logstore.spark.ledger import Ledger, read_ledger
from logstore.spark.publishing import Publisher
from logstore.spark.row_sums import KEPT, RowSum, check_same_rows, kept_sums
from logstore.testing.disks import MemoryDisk
from tests.spark.sinks import LEDGER, on_memory, rows, staged, values


def write(disk: MemoryDisk, version: int, *tasks: list[str], **options: str) -> bool:
    given = {"partitions": "1", "txnAppId": "nightly", "txnVersion": str(version), **options}
    sink = on_memory(disk, 0, **given)
    messages = [
        staged(sink, version, [rows(each)], spark_partition=number) for number, each in enumerate(tasks)
    ]
    return sink.commit(messages, LEDGER, version)


def test_the_second_writer_is_told() -> None:
    disk = MemoryDisk()
    assert write(disk, 7, ["a", "b"], ["c"])
    assert not write(disk, 7, ["c"], ["b", "a"]), "the same job again, its rows in other tasks"
    with pytest.raises(WriteRefused, match=r"version 7 .*'nightly' .* other rows \(3; .* 2\).*raise"):
        write(disk, 7, ["x", "y"])
    with pytest.raises(WriteRefused, match="with other rows"):
        write(disk, 7, ["a", "b", "x"])
    with pytest.raises(WriteRefused, match="with other rows"):
        write(disk, 7)
    assert not write(disk, 7, ["x"], txnSameRows="false")
    assert values(disk) == {"t-0": ["a", "b", "c"]}


def test_the_same_rows_for_another_topic() -> None:
    """The option `topic` is in no row: the second write was skipped, and succeeded."""
    disk = MemoryDisk()
    assert write(disk, 7, ["a"], ["b"])
    with pytest.raises(WriteRefused, match=r"version 7 of txnAppId 'nightly' was written to t, .* for u"):
        write(disk, 7, ["a", "b"], topic="u")
    assert not write(disk, 7, ["a", "b"], topic="u", txnSameRows="false")
    assert write(disk, 8, ["a", "b"], topic="u")
    assert write(disk, 9, [], topic="u")
    assert not write(disk, 9, [], topic="t"), "no row is missing"
    assert values(disk) == {"t-0": ["a", "b"], "u-0": ["a", "b"]}


def test_versions_that_were_written_before_and_between() -> None:
    disk = MemoryDisk()
    assert write(disk, 3, ["a"])
    assert write(disk, 5, ["b"])
    assert write(disk, 6, ["a"])
    assert not write(disk, 3, ["a"])
    assert not write(disk, 5, ["b"])
    with pytest.raises(WriteRefused, match=r"version 4 never was: nothing was written.*use 7 or more"):
        write(disk, 4, ["b"])
    assert not write(disk, 1, ["of before the sums"])


def test_a_crash_between_decision_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second writer completes the first one's publication, then it is told."""
    disk = MemoryDisk()

    def fail(*_: object) -> None:
        raise PublicationBroken("planted")

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "carry_out", fail)
        with pytest.raises(PublicationBroken):
            write(disk, 1, ["a", "b"])
    with pytest.raises(WriteRefused, match="with other rows"):
        write(disk, 1, ["c"])
    assert values(disk) == {"t-0": ["a", "b"]}
    assert not write(disk, 1, ["b"], ["a"])


def test_what_a_ledger_keeps() -> None:
    disk = MemoryDisk()
    state: dict[str, object] = {"rows": {str(each): [1, each] for each in range(KEPT)}}
    with Ledger(disk, LEDGER) as ledger:
        ledger.decide(1, {})
        ledger.finish({**state, "rows": kept_sums(state, KEPT, RowSum(2, 9))})
    sums = read_ledger(disk, LEDGER).state["rows"]
    assert len(sums) == KEPT
    assert next(iter(sums)) == "1"
    check_same_rows({"rows": sums}, ("app", KEPT), RowSum(2, 9))
    check_same_rows({}, ("app", 0), RowSum())


def test_every_column_counts() -> None:
    """A null is not an empty text; text is the bytes that it is written as."""
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    kinds = {
        "value": pa.binary(),
        "key": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "headers": pa.list_(header),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    first = {"value": b"v", "key": b"k", "topic": "t", "partition": 1, "headers": None, "timestamp": 5}
    other = {
        **{"value": None, "key": b"", "topic": "u", "partition": None, "timestamp": 6},
        "headers": [{"key": "a", "value": b"b"}],
    }

    def sum_of(row: dict[str, object]) -> RowSum:
        made = pa.RecordBatch.from_pydict({name: pa.array([row[name]], kinds[name]) for name in kinds})
        return RowSum.of(made, list(kinds))

    changed = [sum_of({**first, name: other[name]}) for name in kinds]
    assert len({sum_of(first), *changed}) == 1 + len(kinds)
    assert sum_of({**first, "key": None}) != sum_of({**first, "key": b""})
    text = pa.RecordBatch.from_pydict({"value": ["v"]})
    assert RowSum.of(text, ["value"]) == RowSum.of(text.cast(pa.schema([("value", pa.binary())])), ["value"])

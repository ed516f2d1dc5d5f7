"""A log read into and written from Arrow: the same records, the same places, the same refusals."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import numba
import pyarrow as pa
import pytest

from logstore.columnar.columnar import encode
from logstore.config import LogConfig
from logstore.errors import InvalidRecord, OffsetOutOfRange, RecordTooLarge
from logstore.format.batch import encode_batch
from logstore.format.compression import Codec
from logstore.format.record import Header, Record
from logstore.log.log import FetchIsolation, Log
from tests.logstore.forge import T0


def rows(count: int, value_bytes: int = 20) -> Any:
    return pa.table(
        {
            "key": pa.array([None if number % 5 == 0 else b"k%d" % number for number in range(count)]),
            "value": pa.array(
                [None if number % 7 == 0 else b"%d" % number * value_bytes for number in range(count)]
            ),
            "timestamp": pa.array([T0 + number % 3 for number in range(count)]),
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % number}] if number % 2 else None for number in range(count)]
            ),
        }
    )


@pytest.mark.parametrize("codec", Codec)
def test_round_trip(tmp_path: Path, codec: Codec) -> None:
    """Appended as columns, read as records; appended as records, read as columns: one log."""
    kind = "producer" if codec is Codec.NONE else codec.name.lower()
    config = LogConfig(compression_type=kind, max_message_bytes=4096, segment_bytes=6000)
    with Log.open(tmp_path / "orders-0", config) as log:
        info = log.append_arrow(rows(1000))
        assert (info.first_offset, info.last_offset, info.max_timestamp_ms) == (0, 999, T0 + 2)
        records = list(log.read())
        assert records[7] == Record(7, T0 + 1, b"k7", None, (Header("n", b"7"),))
        assert records[10] == Record(10, T0 + 1, None, b"10" * 20)
        log.append(records[:100])
        found = pa.Table.from_batches(log.read_arrow())
        assert len(found) == 1100
        assert len(log.partition.segments) > 1
        assert {batch.codec for batch in log.read_batches()} == {codec}
        # What was read can be appended as it is: offsets and epochs are given anew.
        log.append_arrow(found.slice(500))
        assert log.log_end_offset == 1700
        everything = pa.Table.from_batches(log.read_arrow(columns=["key", "value", "timestamp", "headers"]))
        assert everything.slice(1100).equals(everything.slice(500, 600))


def test_where_it_starts(tmp_path: Path) -> None:
    """From inside a batch, from the end, from outside; and only what the reader may see."""
    with Log.open(tmp_path / "orders-0") as log:
        log.append_arrow(rows(1000))
        offsets = pa.Table.from_batches(log.read_arrow(501, columns=["offset"])).column("offset").to_pylist()
        assert offsets == list(range(501, 1000))
        assert list(log.read_arrow(1000)) == []
        with pytest.raises(OffsetOutOfRange):
            next(log.read_arrow(1001))
        assert [batch.num_rows for batch in log.read_arrow(max_records=300)] == [300, 300, 300, 100]
        with pytest.raises(ValueError, match="unknown column 'topic'"):
            log.read_arrow(columns=["topic"])


def test_committed_reads(tmp_path: Path) -> None:
    """Nothing undecided and nothing aborted, as `read` has it; markers are in neither."""
    with Log.open(tmp_path / "orders-0", LogConfig(segment_bytes=300)) as log:
        sequences = {1: 0, 2: 0}
        history = ((1, None), (2, True), (1, False), (2, False), (1, None), (2, True), (1, None))
        for producer_id, ends in history:
            batch = encode_batch(
                [Record(delta, T0, None, b"%d" % producer_id) for delta in range(2)],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequences[producer_id],
                is_transactional=True,
            )
            sequences[producer_id] += 2
            log.append_batches(batch)
            if ends is not None:
                log.end_transaction(producer_id, 0, commit=ends)
        seen = {}
        for isolation in FetchIsolation:
            found = pa.Table.from_batches(log.read_arrow(isolation=isolation, columns=["offset"]))
            seen[isolation] = found.column("offset").to_pylist()
            assert seen[isolation] == [record.offset for record in log.read(isolation=isolation)]
        assert len(seen[FetchIsolation.LOG_END]) == 14
        assert seen[FetchIsolation.TXN_COMMITTED] == [2, 3]


def test_nothing_and_a_time(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        assert log.append_arrow(rows(0)).last_offset == -1
        info = log.append_arrow(pa.table({"value": ["a", "b"]}), timestamp_ms=T0, sync=True)
        assert info.max_timestamp_ms == T0
        assert log.partition.recovery_point == 2
        assert log.append_arrow(pa.table({"value": ["c"]})).max_timestamp_ms > T0


def test_refusals(tmp_path: Path) -> None:
    """The log's rules hold for columns too."""
    with Log.open(tmp_path / "orders-0", LogConfig(max_message_bytes=1000)) as log:
        with pytest.raises(RecordTooLarge):
            log.append_arrow(rows(10, 2000))
        with pytest.raises(ValueError, match="column 'value' is missing"):
            log.append_arrow(pa.table({"key": ["k"]}))
    with (
        Log.open(tmp_path / "keyed-0", LogConfig(cleanup_policy="compact")) as log,
        pytest.raises(InvalidRecord, match="needs a key"),
    ):
        log.append_arrow(rows(2))


def test_without_the_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install, and the rest of the log works on."""
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "logstore.columnar" and rest[2] and "columnar" in rest[2]:
            raise ModuleNotFoundError("No module named 'pyarrow'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with Log.open(tmp_path / "orders-0") as log:
        log.append(b"value")
        for call in (log.read_arrow, lambda: log.append_arrow(None)):
            with pytest.raises(ImportError, match=r"pip install 'pylogstore\[arrow\]'"):
                call()


def test_without_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `NUMBA_DISABLE_JIT` some kernels raised an error of numba, and a broker ran others as Python."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    monkeypatch.delattr("logstore.columnar.columnar", raising=False)
    for module in [each for each in sys.modules if each.startswith("logstore.columnar.")]:
        monkeypatch.delitem(sys.modules, module)
    with Log.open(tmp_path / "orders-0") as log:
        log.append(b"value")
        with pytest.raises(ImportError, match="NUMBA_DISABLE_JIT"):
            log.read_arrow()


def test_what_is_no_table_is_refused_with_what_is_taken(tmp_path: Path) -> None:
    """It was an `AttributeError` of the list or the reader."""
    table = pa.table({"value": [b"v"]})
    with Log.open(tmp_path / "orders-0") as log:
        for given in ([1], table.to_reader(), None, b"v", {"value": [b"v"]}):
            kind = type(given).__name__
            with pytest.raises(TypeError, match=rf"{kind} cannot be .*pyarrow\.Table or .*RecordBatch"):
                log.append_arrow(given)
        assert log.log_end_offset == 0
        log.append_arrow(table.to_reader().read_all())
        log.append_arrow(table.to_batches()[0])
        assert log.log_end_offset == 2


def test_columns_are_a_list_of_names_and_not_empty(tmp_path: Path) -> None:
    """A text was taken for its letters; without a column there was no row, however many the log has."""
    with Log.open(tmp_path / "orders-0") as log:
        log.append(b"v")
        for text in ("offset", "", b"offset"):
            with pytest.raises(TypeError, match="columns is a list of names"):
                log.read_arrow(0, columns=text)  # type: ignore[arg-type]
        for wrong in (5, iter(["offset"])):
            with pytest.raises(TypeError, match="columns is a list of names"):
                log.read_arrow(0, columns=wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="columns is empty"):
            log.read_arrow(0, columns=[])
        for most, error in (("1", TypeError), (1.5, TypeError), (0, ValueError)):
            with pytest.raises(error, match="max_records is"):
                log.read_arrow(0, max_records=most)  # type: ignore[arg-type]
        assert len(list(log.read_arrow(0, max_records=1 << 70))) == 1
        assert [batch.num_rows for batch in log.read_arrow(0, columns=["offset"])] == [1]


def test_a_codec_by_name_is_refused_with_what_is_taken() -> None:
    """It was a bare `KeyError`."""
    for codec in ("gzip", None):
        with pytest.raises(TypeError, match=r"codec is .*: it must be a Codec, such as Codec\.GZIP"):
            list(encode(pa.table({"value": [b"v"]}), codec=codec))  # type: ignore[arg-type]

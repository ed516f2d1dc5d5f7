"""The compiled check of records against the plain one: the same verdict, summary and message, always."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.columnar import kernels
from logstore.config import LogConfig
from logstore.errors import InvalidRecord
from logstore.format.batch import HEADER_BYTES, Batch, encode_batch
from logstore.format.record import Header, Record
from logstore.format.record_parser import check_many, check_plainly, use_compiled
from logstore.log.append_many import validate_plain_group
from tests.logstore.forge import T0, payload, values
from tests.logstore.test_record import BAD, blobs, headers, times

COMPILED = kernels._Check()


@pytest.fixture
def compiled() -> Iterator[None]:
    """The compiled check in the place where everybody looks for it."""
    use_compiled(COMPILED)
    yield
    use_compiled(None)


def verdict(data: bytes, count: int) -> object:
    """The plain check's summary; None if it refuses."""
    try:
        return check_plainly(data, count)
    except InvalidRecord:
        return None


def many(parts: list[tuple[bytes, int]]) -> list[tuple[int, ...]] | None:
    """The compiled check of several batches that lie end to end."""
    ends = np.cumsum([len(data) for data, _ in parts])
    starts = ends - [len(data) for data, _ in parts]
    counts = np.array([count for _, count in parts])
    found = COMPILED.many(b"".join(data for data, _ in parts), starts, ends, counts)
    return None if found is None else [tuple(row) for row in found.tolist()]


@pytest.mark.parametrize("name", BAD)
def test_reading_rules(name: str) -> None:
    """Every way for a record to be malformed, alone and between sound batches."""
    data, count = BAD[name]
    good = (payload(*values(3)), 3)
    assert COMPILED.one(data, count, 0, len(data)) is None
    assert many([good, (data, count), good]) is None
    assert many([good, good]) == [check_plainly(*good)] * 2


@settings(derandomize=True, deadline=None, max_examples=400)
@given(
    rows=st.lists(st.tuples(times, blobs, blobs, headers), min_size=1, max_size=4),
    places=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 2),
    count=st.integers(-1, 1),
)
def test_the_compiled_check_agrees(
    rows: list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]],
    places: list[tuple[int, int]],
    cut: int,
    count: int,
) -> None:
    """Sound or mutated: what the plain check says, wherever in its memory the batch lies."""
    data = bytearray(payload(*(Record(offset, *row) for offset, row in enumerate(rows))))
    for place, byte in places:
        data[place % len(data)] = byte
    data = data[: len(data) - cut]
    count += len(rows)
    expected = verdict(bytes(data), count)
    assert COMPILED.one(data, count, 0, len(data)) == expected
    assert COMPILED.one(b"\x0c" * 7 + data + bytes(9), count, 7, 7 + len(data)) == expected
    assert many([(bytes(data), count)]) == (None if expected is None else [expected])


@pytest.mark.usefixtures("compiled")
def test_a_refusal_is_explained_by_the_plain_check() -> None:
    """The message names the record and what is wrong with it, whoever found it."""
    body = payload(*values(5))[:-1]
    batch = encode_batch(values(5))[:-1] + b"\x02"  # the last record has a header, says its count
    for data in (batch, bytearray(batch)):
        with pytest.raises(InvalidRecord, match="headers") as quick:
            Batch(data).check_records()
        with pytest.raises(InvalidRecord) as slow:
            check_plainly(data, 5, HEADER_BYTES)
        assert str(quick.value) == str(slow.value)
    starts, ends, counts = (np.array([number]) for number in (0, len(body), 5))
    with pytest.raises(InvalidRecord, match="record 4"):
        check_many(bytearray(body), starts, ends, counts)


@pytest.mark.parametrize("check", [None, COMPILED])
def test_leaders_use_it(check: kernels._Check | None) -> None:
    """One batch, and a group of them: the same answers with and without."""
    use_compiled(check)
    try:
        data = encode_batch(values(4))
        assert Batch(data).check_records() == (0, 0, 0)
        group = bytearray(data * 5)
        found = validate_plain_group(
            group, len(group), next_offset=7, leader_epoch=1, now_ms=T0, config=LogConfig()
        )
        assert found is not None
        assert [last for _, last, _ in found.extents] == [10, 14, 18, 22, 26]
    finally:
        use_compiled(None)


def test_nowhere_to_keep_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container without a writable directory compiles anew in each process, rather than not at all."""
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])

    def twice(number: int) -> int:
        return number * 2

    assert kernels.kernel(twice)(21) == 42


def test_nobody_waits_for_a_compiler_unasked(tmp_path: Path) -> None:
    """A process that did not ask never imports numba, whatever it appends."""
    script = (
        "import sys; from logstore import Log\n"
        "with Log.open(sys.argv[1]) as log: log.append([b'value'] * 100); list(log.read())\n"
        "assert not {'numba', 'pyarrow', 'logstore.columnar.kernels'} & set(sys.modules)"
    )
    with_log = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "orders-0")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert with_log.returncode == 0, with_log.stderr

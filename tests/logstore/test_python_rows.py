"""The compiled encoder of an application's rows against the plain one: the same bytes, or a refusal."""

from __future__ import annotations

import random
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.columnar.python_rows import encode_rows
from logstore.config import LogConfig
from logstore.format.compression import Codec
from logstore.format.record import MAX_PLAIN_VALUES, Record, encode_pairs, use_compiled_encoder
from logstore.log.log import Log
from logstore.log.outgoing import WORTH_A_CALL, Compression, MadeBatch, batches_of
from logstore.testing.disks import MemoryDisk
from tests.logstore.test_outgoing import T0

ROOM = 61
PLAIN = Compression(Codec.NONE)


@pytest.fixture
def compiled() -> Iterator[None]:
    use_compiled_encoder(encode_rows)
    yield
    use_compiled_encoder(None)


def plainly(rows: list[Any]) -> bytes:
    pairs = [row if type(row) is tuple else (None, row) for row in rows]
    return b"".join(encode_pairs(pairs)[0])


# Varints grow at 64 and 8192.
_blobs = st.none() | st.binary(max_size=9) | st.sampled_from([63, 64, 255, 8191, 8192, 70_000]).map(bytes)
_rows = st.lists(_blobs, min_size=1, max_size=40) | st.lists(
    st.tuples(_blobs, _blobs), min_size=1, max_size=40
)


@settings(max_examples=300, derandomize=True)
@given(rows=_rows)
def test_the_bytes_are_those_of_the_plain_code(rows: list[Any]) -> None:
    encoded = encode_rows(rows, ROOM)
    assert encoded is not None
    records, keyless = encoded
    assert records[:ROOM] == bytes(ROOM)
    assert records[ROOM:] == plainly(rows)
    assert keyless == sum(type(row) is not tuple or row[0] is None for row in rows)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 4095, 4096, 4097, MAX_PLAIN_VALUES])
@pytest.mark.parametrize("is_keyed", [False, True])
def test_lists_of_any_length(count: int, is_keyed: bool) -> None:
    values = [b"%d" % (number % 700) for number in range(count)]
    rows = [(value, value) for value in values] if is_keyed else values
    encoded = encode_rows(rows, 0)
    assert encoded is not None
    assert bytes(encoded[0]) == plainly(rows)
    assert encoded[1] == (0 if is_keyed else count)


def test_one_object_many_times() -> None:
    rows = [(b"key", b"value")] * 50
    encoded = encode_rows(rows, 0)
    assert encoded is not None
    assert bytes(encoded[0]) == plainly(rows)


class Text(bytes):
    """Not exactly bytes."""


OTHERS = [
    "text",
    7,
    1.5,
    True,
    bytearray(b"v"),
    array("i", [1]),
    Text(b"v"),
    lambda: None,
    Record(0, T0, None, b"v"),
    [],
    [b"v"],
    [b"v", b"v"],
    {b"k": b"v"},
    {b"v"},
    (),
    (b"v",),
    (b"v", b"v", b"v"),
    (b"v", b"v", b"v", b"v"),
    (b"k", "text"),
    (b"k", (b"v", b"v")),
    ((b"k", b"v"), b"v"),
    (b"k", bytearray(b"v")),
]


def outcome(rows: list[Any]) -> object:
    """The records in the log after an append of these rows, or the error."""
    log = Log.open("rows-0", disk=MemoryDisk())
    try:
        log.append(rows, timestamp_ms=T0)
        return [(each.timestamp_ms, each.key, each.value) for each in log.read()]
    except Exception as error:
        return f"{error!r}"
    finally:
        log.close()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("other", range(len(OTHERS)))
@pytest.mark.parametrize("at", [0, 1, 39])
@pytest.mark.parametrize("plain", [b"v", (b"k", b"v")], ids=["values", "pairs"])
def test_all_else_has_the_outcome_of_the_plain_code(plain: Any, at: int, other: int) -> None:
    rows = [plain] * 40
    rows[at] = OTHERS[other]
    with_compiled_code = outcome(rows)
    use_compiled_encoder(None)
    assert with_compiled_code == outcome(rows)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_batches_hold_the_same_records(seed: int, codec: Codec) -> None:
    """Also where the rows are many, do not fit one batch, or are of several kinds."""
    chance = random.Random(seed)
    count = chance.choice([1, WORTH_A_CALL, 200, 2000, 9000])
    size = chance.choice([1, 100, 1000])
    rows: list[Any] = [chance.randbytes(chance.randrange(size)) for _ in range(count)]
    if chance.random() < 0.5:
        rows = [(chance.choice([None, b"k", b"key"]), row) for row in rows]
    if chance.random() < 0.3:
        rows[chance.randrange(count)] = chance.choice([Record(0, 5, b"k", b"v"), bytearray(b"v"), None])
    target_bytes = chance.choice([1000, 100_000, 1 << 20])
    given_rows = rows if chance.random() < 0.5 else tuple(rows) if chance.random() < 0.5 else iter(rows)

    def records(items: Any) -> list[tuple[int, bytes | None, bytes | None]]:
        log = Log.open("rows-0", disk=MemoryDisk())
        for each in batches_of(items, now_ms=T0, compression=Compression(codec), target_bytes=target_bytes):
            if isinstance(each, MadeBatch):
                assert len(each.data) < 2 * target_bytes + 2100
            log.append_batches(bytes(each.data) if isinstance(each, MadeBatch) else each)
        found = [(each.timestamp_ms, each.key, each.value) for each in log.read()]
        log.close()
        return found

    found = records(given_rows)
    use_compiled_encoder(None)
    assert found == records(rows)


@pytest.mark.usefixtures("compiled")
def test_whether_all_have_keys_is_known() -> None:
    """A compacted topic refuses records without a key."""
    keyed = [(b"k", b"v")] * 20
    (made,) = batches_of(keyed, now_ms=T0, compression=PLAIN, target_bytes=1 << 20)
    assert isinstance(made, MadeBatch)
    assert made.is_keyed
    (made,) = batches_of([*keyed, (None, b"v")], now_ms=T0, compression=PLAIN, target_bytes=1 << 20)
    assert isinstance(made, MadeBatch)
    assert not made.is_keyed


@pytest.mark.usefixtures("compiled")
def test_a_wrong_row_has_the_error_of_the_plain_code() -> None:
    log = Log.open("rows-0", LogConfig(), disk=MemoryDisk())
    with pytest.raises(TypeError, match="str is not a value"):
        log.append([b"v"] * 20 + ["text"])
    with pytest.raises(TypeError, match="must be bytes or None"):
        log.append([(b"k", b"v")] * 20 + [(b"k", "text")])
    with pytest.raises(ValueError, match="timestamp is -2"):
        log.append([b"v"] * 20, timestamp_ms=-2)
    log.close()


def test_one_call_loads_all_of_it(tmp_path: Path) -> None:
    """In a process of its own: it holds for the whole process."""
    script = (
        "import sys\n"
        "from logstore.columnar import columnar, python_rows\n"
        "from logstore.format import record, record_columns, record_parser\n"
        "from logstore.segment import scan\n"
        "columnar.warm_up()\n"
        "assert record._Installed.encode is python_rows.encode_rows\n"
        "assert record_columns._Installed.locate is python_rows.locate_rows\n"
        "assert record_parser.Compiled.check is not None\n"
        "assert scan._Compiled.walk is not None or scan._Compiled.is_refused\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)

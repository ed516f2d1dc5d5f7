"""Small batches that are decoded together give what they give one by one, sound or damaged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from logstore.columnar.python_rows import locate_rows
from logstore.config import LogConfig
from logstore.errors import CorruptBatch, InvalidRecord
from logstore.format import record_columns
from logstore.format.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, encode_batch
from logstore.format.compression import Codec
from logstore.format.record import MAX_INT, MAX_LONG, Header, Record
from logstore.format.record_columns import Columns, use_compiled_locator
from logstore.log import read, reading, small_batches
from logstore.log.log import Log
from logstore.log.read import FetchedBytes, Piece
from logstore.log.reading import PAIRS, RECORDS, VALUES, Form, batches_of, items_of, items_of_batches
from logstore.segment import scan, segments
from logstore.segment.epochs import EpochEntry
from logstore.segment.scan import use_compiled
from logstore.segment.transaction_index import AbortedTransaction
from logstore.testing.disks import MemoryDisk
from tests.logstore.forge import T0, forge, payload

FORMS: list[Form[Any]] = [RECORDS, VALUES, PAIRS]


@pytest.fixture(autouse=True, params=[None, locate_rows], ids=["numpy", "compiled"])
def locator(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test with numpy, and with the compiled code that does the same (decision 019)."""
    use_compiled_locator(request.param)
    yield
    use_compiled_locator(None)


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reading, "WORTH_A_TABLE_BYTES", 1)
    monkeypatch.setattr(small_batches, "FEWEST", 1)
    yield
    use_compiled(wanted=False)


def outcome(items: Iterator[object]) -> tuple[list[object], str]:
    """The items up to an error, and the error."""
    found: list[object] = []
    try:
        for item in items:
            found.append(item)
    except (CorruptBatch, InvalidRecord) as error:
        return found, f"{type(error).__name__}: {error}"
    return found, ""


def blob(rng: random.Random) -> bytes | None:
    size = rng.choice((None, 0, 1, 63, 64, 100, 100, 100, 9_000))
    return None if size is None else rng.randbytes(size)


def records(rng: random.Random, is_even: bool) -> list[Record]:
    count = 1 if rng.random() < 0.5 else rng.choice((2, 3, 10, 99))
    offset, found = 0, []
    for _ in range(count):
        key, value = (b"key", rng.randbytes(100)) if is_even else (blob(rng), blob(rng))
        headers = (Header("n", b"v"), Header("", None)) if rng.random() < 0.1 else ()
        found.append(Record(offset, T0 + rng.choice((-1, 0, 1, 1 << 20)), key, value, headers))
        offset += rng.choice((1, 1, 1, 2, 200))
    return found


def batches(rng: random.Random, count: int) -> tuple[bytes, int, list[int]]:
    """Many batches, the offset after the last one, and where each begins."""
    is_even, odd = rng.random() < 0.5, rng.choice(("", "control", "transactional", "packed"))
    offset, made, places = 0, b"", []
    for epoch in range(count):
        rows = records(rng, is_even)
        attributes = rng.choice((0, 0, 0, LOG_APPEND_TIME))
        is_odd = rng.random() < 0.2
        if is_odd and odd in ("control", "transactional"):
            attributes |= TRANSACTIONAL | (CONTROL if odd == "control" else 0)
        places.append(len(made))
        if is_odd and odd == "packed":
            placed = [row._replace(offset=offset + row.offset) for row in rows]
            made += encode_batch(placed, base_offset=offset, codec=Codec.GZIP, leader_epoch=epoch)
        else:
            made += forge(
                payload(*rows),
                base_offset=offset,
                leader_epoch=epoch,
                attributes=attributes,
                last_offset_delta=rows[-1].offset,
                max_timestamp_ms=T0 + 5,
                producer_id=7,
                base_sequence=rng.choice((-1, 0, MAX_INT - 1)),
                count=len(rows),
            )
        offset += rows[-1].offset + rng.choice((1, 1, 5))
    return made, offset, places


def both(piece: Piece, form: Form[Any], first: int, end: int) -> tuple[bool, tuple[list[object], str]]:
    """Whether the piece was decoded as a whole, and what it gave; the same as batch by batch."""
    together = outcome(items_of([piece], form, first, end))
    one_by_one = outcome(items_of_batches(batches_of(piece, end), form, first, end))
    assert together == one_by_one
    return small_batches.small_batches(piece, first, end) is not None, together


@pytest.mark.parametrize("seed", range(40))
def test_sound_batches(seed: int) -> None:
    """Keys, headers, clocks, sequences, gaps, markers, aborted transactions, bounds inside of batches."""
    rng = random.Random(seed)
    if seed % 2 and not use_compiled():
        pytest.skip("no compiled walk on this processor")
    data, last, places = batches(rng, 30)
    history = [EpochEntry(epoch, int.from_bytes(data[at : at + 8])) for epoch, at in enumerate(places)]
    decoded = 0
    for _ in range(20):
        first, end = sorted(rng.choices(range(last), k=2))
        if rng.random() < 0.5:
            first, end = 0, MAX_LONG
        aborted = (AbortedTransaction(7, 0, last // 2, last),) if rng.random() < 0.3 else ()
        piece = Piece(FetchedBytes(data, first, 0, 0, last, aborted), rng.choice((None, history)))
        is_whole, (_, error) = both(piece, rng.choice(FORMS), first, end)
        assert not error
        decoded += is_whole
    has_packed = any(data[at + 22] & 7 for at in places)
    assert decoded or has_packed


def test_compressed_batches_are_not_checked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain way checks them; a table of their headers would be thrown away."""
    scans: list[int] = []
    monkeypatch.setattr(small_batches, "scan_buffer", lambda *_: scans.append(1))
    packed = [encode_batch([Record(at, T0, None, b"v")], base_offset=at, codec=Codec.GZIP) for at in range(9)]
    piece = Piece(FetchedBytes(b"".join(packed), 0, 0, 0, 9))
    assert list(items_of([piece], VALUES, 0, 9)) == [b"v"] * 9
    assert not scans


@pytest.mark.parametrize("seed", range(20))
def test_changed_bytes(seed: int) -> None:
    """The records in front of the damage come first, and the error is the same."""
    rng = random.Random(seed)
    data, last, places = batches(rng, 12)
    history = [EpochEntry(epoch, int.from_bytes(data[at : at + 8])) for epoch, at in enumerate(places)]
    errors = 0
    for _ in range(60):
        changed = bytearray(data)
        at = rng.choice((rng.randrange(len(data)), rng.choice(places) + rng.randrange(61)))
        changed[at] ^= 1 << rng.randrange(8)
        piece = Piece(
            FetchedBytes(bytes(changed), 0, 0, 0, last), rng.choice((None, history)), "/data/orders-0"
        )
        errors += bool(both(piece, rng.choice(FORMS), 0, MAX_LONG)[1][1])
    assert errors


@pytest.mark.parametrize("seed", range(20))
def test_malformed_records_with_a_right_checksum(seed: int) -> None:
    rng = random.Random(seed)
    errors = 0
    for _ in range(60):
        made = b""
        for offset in range(6):
            body = bytearray(payload(*records(rng, True)[:1]))
            if rng.random() < 0.3:
                body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
            count = rng.choice((1, 1, 1, 1, 0, 2, -1))
            made += forge(bytes(body), base_offset=offset, count=count)
        errors += bool(both(Piece(FetchedBytes(made, 0, 0, 0, 6)), RECORDS, 0, MAX_LONG)[1][1])
    assert errors


@pytest.mark.parametrize("seed", range(20))
def test_records_that_differ_in_their_values_only(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken at once. With any other byte changed they are not, and the outcome is the loop's."""
    found: list[bool] = []
    alike = record_columns._alike

    def noted(*arguments: Any) -> Columns | None:
        found.append(False)
        columns = alike(*arguments)
        found[-1] = columns is not None
        return columns

    monkeypatch.setattr(record_columns, "_alike", noted)
    rng = random.Random(seed)
    key, size = rng.choice((None, b"", b"key")), rng.choice((1, 57, 63, 64, 100))
    time_delta = rng.choice((0, -1, 1 << 40, (1 << 48) - 1))
    rows = [Record(0, T0 + time_delta, key, rng.randbytes(size)) for _ in range(6)]
    for step in range(100):
        bodies = [bytearray(payload(row)) for row in rows]
        if step:
            body = rng.choice(bodies)
            body[rng.choice((rng.randrange(len(body) - size), -1))] ^= 1 << rng.randrange(8)
        made = b"".join(forge(bytes(body), base_offset=offset) for offset, body in enumerate(bodies))
        piece = Piece(FetchedBytes(made, 0, 0, 0, 6))
        _, (items, error) = both(piece, rng.choice(FORMS), 0, MAX_LONG)
        assert step or (len(items) == 6 and not error and found == [True, True])
    assert found.count(True) < len(found) / 4


@pytest.mark.parametrize("base_offset", [MAX_LONG - 1, (1 << 62) + 1, 1 << 62, 5])
@pytest.mark.parametrize("time_ms", [MAX_LONG, -MAX_LONG - 1, -1, T0])
def test_offsets_and_times_at_the_edge_of_64_bits(base_offset: int, time_ms: int) -> None:
    body = payload(Record(3, T0 + 9, None, b"v"))
    data = forge(body, base_offset=base_offset, base_timestamp_ms=time_ms)
    both(Piece(FetchedBytes(data, base_offset, 0, 0, base_offset + 1)), RECORDS, 0, MAX_LONG)


def test_a_long_read_of_small_batches_loads_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short reads, and reads of larger batches, stay without it; all read the same."""
    if not use_compiled():
        pytest.skip("no compiled walk on this processor")
    monkeypatch.setattr(read, "COMPILED_FROM_BYTES", 40_000)
    monkeypatch.setattr(read, "PIECE_BYTES", 16_000)
    for value_bytes, end, is_loaded in ((50, None, True), (50, 200, False), (2_000, None, False)):
        use_compiled(wanted=False)
        with Log.open("/orders-0", LogConfig(), disk=MemoryDisk(directories=["/"])) as log:
            values = [b"%0*d" % (value_bytes, number) for number in range(150_000 // value_bytes)]
            for value in values:
                log.append(value)
            assert list(log.read_values(end_offset=end)) == values[:end]
            assert (scan._Compiled.walk is not None) is is_loaded
            assert list(log.read_values(end_offset=end)) == values[:end]


@pytest.mark.parametrize("seed", range(5))
def test_the_compiled_search_for_whole_batches(seed: int) -> None:
    if not use_compiled():
        pytest.skip("no compiled walk on this processor")
    from logstore.columnar.walking import whole_batches

    rng = random.Random(seed)
    data, last, _ = batches(rng, 20)
    for _ in range(300):
        changed = bytearray(data)
        if rng.random() < 0.5:
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        bounds = (
            rng.choice((len(data), rng.randrange(len(data)))),
            rng.choice((MAX_LONG, rng.randrange(last))),
        )
        assert whole_batches(bytes(changed), *bounds) == segments._find_whole(bytes(changed), *bounds)

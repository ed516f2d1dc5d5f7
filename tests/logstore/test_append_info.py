"""Offsets that an append returns when others append between its batches, and reads while the bounds move."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from logstore.config import LogConfig
from logstore.log.append import AppendInfo
from logstore.log.log import Log
from logstore.log.outgoing import ROWS_AT_A_TIME
from logstore.testing.disks import MemoryDisk

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=0)


@pytest.fixture
def log() -> Iterator[Log]:
    with Log.open("/data/orders-0", SMALL, disk=MemoryDisk()) as log:
        yield log


def info(*parts: range) -> AppendInfo:
    """Return the result of one append for each of the runs, joined."""
    joined = AppendInfo(7, 6, -1, -1, 0)
    for part in parts:
        joined = joined.joined(AppendInfo(part.start, part.stop - 1, part.start, -1, 0))
    return joined


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (range(3, 4),),
        (range(3, 5), range(5, 9)),
        (range(3, 5), range(6, 7)),
        (range(3, 5), range(6, 7), range(7, 9), range(20, 21)),
        (range(30, 31), range(3, 5), range(5, 6)),
    ],
)
def test_every_record_has_its_offset(parts: tuple[range, ...]) -> None:
    found = info(*parts)
    assert list(found.offsets) == [offset for part in parts for offset in part]
    assert info().joined(found) == found == found.joined(info())
    if parts:
        assert (found.first_offset, found.last_offset) == (parts[0][0], parts[-1][-1])
        assert found.max_timestamp_ms == max(part.start for part in parts)
        assert list(found.joined(found).offsets) == 2 * list(found.offsets)


def test_it_shows_the_runs() -> None:
    assert repr(info(range(3, 4))) == "AppendInfo(offset 3, written, not synced)"
    assert repr(info(range(3, 5), range(5, 9))) == "AppendInfo(offsets 3 to 8, written, not synced)"
    assert repr(info(range(3, 5), range(6, 7))) == "AppendInfo(offsets 3 to 4, 6, written, not synced)"
    assert repr(info()) == "AppendInfo(no records; the log ends at 7)"


def test_records_of_others_between_the_batches_of_an_append(log: Log) -> None:
    def rows() -> Iterator[bytes]:
        for number in range(ROWS_AT_A_TIME + 5):
            if number == ROWS_AT_A_TIME:
                log.append(b"another")
            yield b"%d" % number

    offsets = log.append(rows()).offsets
    assert [log[offset].value for offset in offsets] == [b"%d" % each for each in range(len(offsets))]
    assert log[offsets[-5] - 1].value == b"another"


def test_a_writer_tells_each_record_its_own_offset(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (range(3, 5), range(6, 7))
    monkeypatch.setattr("logstore.log.writer.append_records", lambda *_, **__: info(*parts))
    with log.writer(linger_ms=3_600_000) as writer:
        pending = [writer.append(b"%d" % number) for number in range(3)]
        writer.flush()
    assert [each.written().offsets for each in pending] == [range(3, 4), range(4, 5), range(6, 7)]


@pytest.mark.parametrize(
    ("move", "first", "last"),
    [
        (lambda log: log.delete_records(5), b"5", b"9"),
        (lambda log: log.delete_records(10), None, None),
        (lambda log: log.truncate_to(3), b"0", b"2"),
        (lambda log: log.truncate_to(0), None, None),
    ],
)
def test_the_first_and_the_last_record_while_the_bounds_move(
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    move: Callable[[Log], object],
    first: bytes | None,
    last: bytes | None,
) -> None:
    """Between the look at the bounds and the read."""
    for number in range(10):
        log.append(b"%d" % number)
    pieces = Log._pieces

    def late(log: Log, *bounds: object) -> Iterator[object]:
        monkeypatch.undo()
        move(log)
        return pieces(log, *bounds)  # type: ignore[arg-type]

    for read, value in ((log.first, first), (log.last, last)):
        monkeypatch.setattr(Log, "_pieces", late)
        found = read()
        assert (None if found is None else found.value) == value

"""The methods of `Reading`, on a log and on a class that has only the four that must be given."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from logstore.config import LogConfig
from logstore.errors import OffsetOutOfRange
from logstore.format.batch import encode_batch
from logstore.format.record import ControlType, Record
from logstore.log.log import Log
from logstore.log.read import READ_BYTES, FetchedBytes, FetchIsolation, Isolation, TimestampOffset
from logstore.log.reading import Reading, milliseconds
from logstore.testing.disks import MemoryDisk
from tests.logstore.plain_logs import mark, produce

T0 = 1_700_000_000_000
COMMITTED = FetchIsolation.TXN_COMMITTED
SMALL = LogConfig(segment_bytes=4_000, index_interval_bytes=500)


class Plain(Reading):
    """What a class must give, and nothing more."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    def read_bytes(
        self,
        start_offset: int,
        max_bytes: int = READ_BYTES,
        *,
        end_offset: int | None = None,
        isolation: Isolation = FetchIsolation.LOG_END,
        at_least_one: bool = True,
    ) -> FetchedBytes:
        # Does not know the end, as a fetch from a broker.
        return self._log.read_bytes(start_offset, max_bytes, isolation=isolation, at_least_one=at_least_one)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, isolation: Isolation = FetchIsolation.LOG_END
    ) -> TimestampOffset | None:
        return self._log.offset_for_timestamp(timestamp_ms, isolation=isolation)


Kind = Callable[[Log], Reading]
KINDS: list[Kind] = [lambda log: log, Plain]


@pytest.fixture(params=KINDS, ids=["Log", "Plain"])
def kind(request: pytest.FixtureRequest) -> Kind:
    made: Kind = request.param
    return made


def opened(config: LogConfig = SMALL) -> Log:
    disk = MemoryDisk(directories=["/data"])
    return Log.open("/data/orders-0", config, disk=disk, clock=lambda: T0)


def numbered(count: int, *, batch: int, config: LogConfig = SMALL) -> Log:
    """Record n has key `k n`, value `n` and time T0 + n."""
    log = opened(config)
    for first in range(0, count, batch):
        log.append([record(number) for number in range(first, min(first + batch, count))])
    return log


def record(number: int, time: int | None = None) -> Record:
    return Record(0, T0 + number if time is None else time, b"k %d" % number, b"%d" % number)


def in_transactions() -> Log:
    """Offsets 0 to 9: committed 0 and 5, aborted 1 and 6, markers 3, 4, 7, 8; plain 2; open 9."""
    log = opened()
    produce(log, 1, 0, transaction=True)  # 0
    produce(log, 2, 0, transaction=True)  # 1
    log.append(b"plain")  # 2
    mark(log, 1, ControlType.COMMIT)  # 3
    mark(log, 2, ControlType.ABORT)  # 4
    produce(log, 1, 1, transaction=True)  # 5
    produce(log, 2, 1, transaction=True)  # 6
    mark(log, 1, ControlType.COMMIT)  # 7
    mark(log, 2, ControlType.ABORT)  # 8
    produce(log, 1, 2, transaction=True)  # 9
    return log


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_each_way_of_reading_gives_the_same_records(kind: Kind, batch: int) -> None:
    log = kind(numbered(300, batch=batch))
    records = list(log.read())
    assert [each.value for each in records] == [b"%d" % number for number in range(300)]
    assert list(log) == records
    assert list(log.read_reverse()) == list(reversed(log)) == records[::-1]
    assert list(log.read_values()) == [each.value for each in records]
    assert list(log.read_keys_values()) == [(each.key, each.value) for each in records]
    assert [log[offset] for offset in range(300)] == records
    assert (log.first(), log.last(), len(log)) == (records[0], records[-1], 300)


@pytest.mark.parametrize("bounds", [(0, 300), (15, 35), (99, 101), (50, 50), (60, 50), (299, 400), (0, 0)])
def test_bounds(kind: Kind, bounds: tuple[int, int]) -> None:
    log = kind(numbered(300, batch=10))
    expected = [each for each in log.read() if bounds[0] <= each.offset < bounds[1]]
    assert list(log.read(*bounds)) == expected
    assert list(log.read_reverse(*bounds)) == expected[::-1]
    assert list(log.read_values(*bounds)) == [each.value for each in expected]
    assert list(log.read_keys_values(*bounds)) == [(each.key, each.value) for each in expected]
    assert sum(rows.num_rows for rows in log.read_arrow(*bounds)) == len(expected)
    for number in (0, 1, 3):
        assert list(log.read(*bounds, max_records=number)) == expected[:number]
        assert list(log.read_reverse(*bounds, max_records=number)) == expected[::-1][:number]
        assert list(log.read_values(*bounds, max_records=number)) == [e.value for e in expected[:number]]


def test_batches_of_a_range_overlap_it(kind: Kind) -> None:
    log = kind(numbered(100, batch=10))
    assert [batch.base_offset for batch in log.read_batches(15, 31)] == [10, 20, 30]
    assert [batch.base_offset for batch in log.read_batches(15, 30)] == [10, 20]


def test_a_limit_of_bytes(kind: Kind) -> None:
    log = opened()
    log.append([(b"key", b"x" * size) for size in (7, 7, 87, 0)] + [None])
    reading = kind(log)
    counts = {limit: len(list(reading.read(max_bytes=limit))) for limit in (0, 9, 10, 19, 20, 109, 110, 113)}
    assert counts == {0: 1, 9: 1, 10: 1, 19: 1, 20: 2, 109: 2, 110: 3, 113: 5}


def test_times_choose_the_bounds(kind: Kind) -> None:
    log = kind(numbered(100, batch=10))
    noon = datetime.fromtimestamp(T0 / 1000, UTC)
    second = timedelta(milliseconds=1)
    assert [each.offset for each in log.read(since=T0 + 15, until=T0 + 18)] == [15, 16, 17]
    assert list(log.read_values(since=noon + 15 * second, until=noon + 18 * second)) == [b"15", b"16", b"17"]
    assert [each.offset for each in log.read_reverse(since=T0 + 97)] == [99, 98, 97]
    assert [each.offset for each in log.read(98, since=T0 + 10)] == [98, 99]
    assert [each.offset for each in log.read(None, 12, since=T0 + 10)] == [10, 11]
    assert list(log.read(since=T0 + 100)) == list(log.read_reverse(since=T0 + 100)) == []
    assert len(list(log.read(until=T0 + 100))) == 100
    assert list(log.read(until=T0)) == []
    assert sum(rows.num_rows for rows in log.read_arrow(since=T0 + 15, until=T0 + 18)) == 3


def test_times_out_of_order(kind: Kind) -> None:
    """Reading begins at the first record at or past `since`, ends before the first at or past `until`."""
    log = opened()
    for number, delta in enumerate((10, 30, 20, 40, 35)):
        log.append(record(number, T0 + delta))
    reading = kind(log)
    assert [each.offset for each in reading.read(since=T0 + 15, until=T0 + 40)] == [1, 2]
    assert [each.offset for each in reading.read(since=T0 + 20)] == [1, 2, 3, 4]
    assert list(reading.read(since=T0 + 15, until=T0 + 25)) == []


def test_what_is_appended_after_the_call_does_not_pass_until(kind: Kind) -> None:
    """A reader of a log in use got records of any later time, and came to no end."""
    log = numbered(3, batch=1)
    reading = kind(log)
    found = reading.read(until=T0 + 10)
    backwards = reading.read_reverse(until=T0 + 10)
    log.append(record(3, T0 + 20))
    assert [each.offset for each in found] == [0, 1, 2]
    assert [each.offset for each in backwards] == [2, 1, 0]


@pytest.mark.parametrize("isolation", [FetchIsolation.LOG_END, COMMITTED])
def test_what_is_appended_during_the_lookup_is_not_skipped(isolation: FetchIsolation) -> None:
    log = numbered(3, batch=1)

    class Busy(Plain):
        def offset_for_timestamp(
            self, timestamp_ms: int, *, isolation: Isolation = FetchIsolation.LOG_END
        ) -> TimestampOffset | None:
            found = super().offset_for_timestamp(timestamp_ms, isolation=isolation)
            log.append(record(3, T0 + 20))
            return found

    assert [each.offset for each in Busy(log).read(since=T0 + 10, isolation=isolation)] == [3]


def test_what_is_decided_after_the_call_is_read_from_its_time_on(kind: Kind) -> None:
    """The call could not see them; then it began behind them, or did not end before them."""
    log = opened()
    log.append(record(0, 500))
    produce(log, 7, 0, count=2, transaction=True)  # at 1000
    log.append(record(3, 1500))
    reading = kind(log)
    since = reading.read(since=1000, isolation=COMMITTED)
    until = reading.read(until=1000, isolation=COMMITTED)
    mark(log, 7, ControlType.COMMIT)
    assert [each.offset for each in since] == [1, 2, 3]
    assert [each.offset for each in until] == [0]


def test_a_time_is_a_datetime_with_a_zone_or_milliseconds() -> None:
    assert milliseconds(datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC)) == 1_000
    assert milliseconds(1_500) == 1_500
    with pytest.raises(ValueError, match="no time zone"):
        milliseconds(datetime.fromtimestamp(0, UTC).replace(tzinfo=None))
    with pytest.raises(TypeError):
        milliseconds(1.5)  # type: ignore[arg-type]


def test_transactions_and_markers(kind: Kind) -> None:
    log = kind(in_transactions())
    everything = [0, 1, 2, 5, 6, 9]
    committed = [0, 2, 5]
    assert [each.offset for each in log.read()] == everything
    assert [each.offset for each in log.read_reverse()] == everything[::-1]
    assert [each.offset for each in log.read(isolation=COMMITTED)] == committed
    assert [each.offset for each in log.read_reverse(isolation=COMMITTED)] == committed[::-1]
    assert len(list(log.read_values(isolation=COMMITTED))) == 3
    assert len(list(log.read_keys_values(isolation=COMMITTED))) == 3
    assert [each is None for each in map(log.get, range(10))] == [
        number not in everything for number in range(10)
    ]
    found = [log.get(offset, isolation=COMMITTED) for offset in range(9)]
    assert [each.offset for each in found if each is not None] == committed
    first, last = log.first(isolation=COMMITTED), log.last(isolation=COMMITTED)
    assert [each and each.offset for each in (first, last)] == [0, 5]
    assert len(log) == 10


def test_a_compacted_log(kind: Kind) -> None:
    log = opened(LogConfig(segment_bytes=2_000, cleanup_policy="compact", index_interval_bytes=200))
    for number in range(400):
        log.append((b"%d" % (number % 17 if number > 3 else number), b"%d" % number * 10))
    log.compact()
    reading = kind(log)
    records = list(reading.read())
    assert len(records) < 100 < len(reading) == 400
    assert list(reading.read_reverse()) == records[::-1]
    assert list(reading.read_values()) == [each.value for each in records]
    found = [reading.get(offset) for offset in range(400)]
    assert [each for each in found if each is not None] == records


def test_an_empty_log_is_true(kind: Kind) -> None:
    log = kind(opened())
    assert log
    assert len(log) == 0
    assert (log.first(), log.last()) == (None, None)
    assert [*log, *reversed(log), *log.read_values(), *log.read_arrow()] == []
    with pytest.raises(OffsetOutOfRange):
        log[0]


def test_a_log_that_was_emptied(kind: Kind) -> None:
    log = numbered(100, batch=10)
    log.delete_records(-1)
    reading = kind(log)
    assert (len(reading), reading.first(), reading.last()) == (0, None, None)
    assert list(reading.read_reverse()) == []


def test_reverse_reads_little_of_a_log_of_large_batches_and_gaps(kind: Kind) -> None:
    """Batches of a megabyte and single records, in turns."""
    log = opened(LogConfig(segment_bytes=8 << 20))
    for number in range(4):
        log.append([b"x" * (1 << 19)] * 3)
        for single in range(50):
            log.append(b"%d" % (50 * number + single))
    reading = kind(log)
    assert [each.offset for each in reading.read_reverse()] == list(range(4 * 53 - 1, -1, -1))


def test_malformed_arguments(kind: Kind) -> None:
    log = kind(numbered(10, batch=5))
    for wrong in ("0", 1.0):
        with pytest.raises(TypeError):
            log.read(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            log.get(wrong)  # type: ignore[arg-type]
    with pytest.raises(OffsetOutOfRange):
        next(log.read(11))
    with pytest.raises(OffsetOutOfRange):
        log.get(10)


def test_a_truncation_meanwhile_repeats_no_offset(kind: Kind) -> None:
    """Another batch holds the offset up to which the first piece was read."""
    log = opened(LogConfig())
    for number in range(40):
        log.append(b"%d" % number * 500)
    reading = kind(log)
    rows, values = reading.read(), reading.read_values()
    found = [next(rows).offset]
    next(values)
    log.truncate_to(5)
    log.append([b"new"] * 60)
    found += [record.offset for record in rows]
    assert found == list(range(65))
    assert len(list(values)) == 64


def test_one_batch_is_never_split(kind: Kind) -> None:
    log = opened(LogConfig())
    log.append_batches(encode_batch([Record(n, T0, None, b"%d" % n) for n in range(1000)]))
    assert [each.offset for each in kind(log).read_reverse(max_records=3)] == [999, 998, 997]

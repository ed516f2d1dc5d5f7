"""The rows of a range from a leader that may move, lag, lose, cut and garble."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import pytest

from logstore.broker.client import Client
from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.disk.errors import ErrorCode
from logstore.format.batch import HEADER_BYTES, Batch, encode_batch, encode_marker_batch, set_producer
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.replication.messages import FetchResult
from logstore.replication.transaction_messages import Aborted
from logstore.spark.broker_logs import RangeFetch
from logstore.spark.client import ClientThread
from logstore.spark.logs import Bounds, Cause, Missing, OffsetRange

T = TypeVar("T")
PRODUCER = 7


class Here:
    """A `ClientThread` that does at once what it is asked."""

    def start(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(self.wait(work))
        except Exception as error:
            future.set_exception(error)
        return future

    def wait(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run(work(cast(Client, None)))


class Leader:
    """A log of batches. `answers` come before what the log says; time goes by with each question."""

    def __init__(self, *batches: bytes, start: int = 0) -> None:
        self.batches = list(batches)
        self.start = start
        self.end = Batch(batches[-1]).next_offset if batches else start
        self.high_watermark = self.end
        self.aborted: dict[int, Aborted] = {}
        """by the offset of the marker"""
        self.answers: list[FetchResult | ErrorCode | Callable[[], None]] = []
        self.asked: list[tuple[int, int]] = []
        self.now_s = 0.0

    async def fetch(self, _: Client, offset: int, max_bytes: int) -> FetchResult:
        self.asked.append((offset, max_bytes))
        self.now_s += 1.0
        while self.answers and callable(self.answers[0]):
            cast(Callable[[], None], self.answers.pop(0))()
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, ErrorCode):
                raise RequestRefused(answer)
            assert isinstance(answer, FetchResult)
            return answer
        if not self.start <= offset <= self.end:
            raise RequestRefused(ErrorCode.OFFSET_OUT_OF_RANGE)
        return self.records(offset, max_bytes)

    def records(self, offset: int, max_bytes: int) -> FetchResult:
        found = b""
        for batch in self.batches:
            header = Batch(batch)
            if offset < header.next_offset <= self.high_watermark:
                if found and len(found) + len(batch) > max_bytes:
                    break
                found += batch
        aborted = tuple(each for marker, each in self.aborted.items() if marker >= offset)
        return FetchResult(
            ErrorCode.NONE, self.high_watermark, self.start, found, aborted=aborted if self.aborted else None
        )

    def bounds(self) -> Bounds:
        return Bounds(self.start, self.high_watermark)


def batch(*offsets: int, value: bytes = b"v", last_offset: int | None = None) -> bytes:
    rows = [Record(offset, 1_000 + offset, None, value) for offset in offsets]
    return encode_batch(rows, base_offset=offsets[0], last_offset=last_offset)


def transactional(*offsets: int) -> bytes:
    rows = [Record(offset, 1_000, None, b"t") for offset in offsets]
    return encode_batch(
        rows,
        base_offset=offsets[0],
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )


def marker(offset: int, *, commit: bool) -> bytes:
    return encode_marker_batch(
        EndTransactionMarker(ControlType.COMMIT if commit else ControlType.ABORT, 0),
        producer_id=PRODUCER,
        producer_epoch=0,
        timestamp_ms=1,
        base_offset=offset,
    )


class Read:
    """Offsets that a range gave, and what it did not give."""

    def __init__(self, leader: Leader, start: int, end: int, **limits: Any) -> None:
        self.missing: list[Missing] = []
        self.offsets: list[int] = []
        for offset in self.run(leader, start, end, **limits):
            self.offsets.append(offset)

    def run(self, leader: Leader, start: int, end: int, fetch_bytes: int = 1 << 20) -> Iterator[int]:
        fetching = RangeFetch(
            cast(ClientThread, Here()),
            leader.fetch,
            leader.bounds,
            OffsetRange("t", 0, start, end),
            self.missing,
            fetch_bytes=fetch_bytes,
            poll_timeout_s=20,
            clock_s=lambda: leader.now_s,
        )
        for rows in fetching.rows(("offset",)):
            yield from rows.column("offset").to_pylist()


def lost(start: int, end: int, cause: Cause, detail: str = "") -> Missing:
    return Missing("t", 0, start, end, cause, detail)


def test_a_range_is_read_in_several_fetches_and_no_further() -> None:
    """The first batch begins before it, the last one ends behind it."""
    leader = Leader(*(batch(first, first + 1, first + 2) for first in range(0, 60, 3)))
    read = Read(leader, 4, 50, fetch_bytes=200)
    assert read.offsets == list(range(4, 50))
    assert read.missing == []
    assert len(leader.asked) > 5
    assert [offset for offset, _ in leader.asked[1:]] == sorted({offset for offset, _ in leader.asked[1:]})


def test_the_next_fetch_is_under_way_before_rows_are_given() -> None:
    leader = Leader(*(batch(offset) for offset in range(30)))
    rows = Read(Leader(batch(0)), 0, 1).run(leader, 0, 30, fetch_bytes=300)
    next(rows)
    assert [offset for offset, _ in leader.asked] == [0, 4], "four batches of 70 bytes a fetch"


def test_no_more_is_asked_for_than_the_rest_is_likely_to_have() -> None:
    """Many small ranges of one large partition must not each read megabytes for nothing."""
    leader = Leader(*(batch(offset, value=bytes(5_000)) for offset in range(400)))
    read = Read(leader, 0, 330, fetch_bytes=8 << 20)
    assert read.offsets == list(range(330))
    first, second = (max_bytes for _, max_bytes in leader.asked)
    assert first == 1 << 20
    assert 120 * 5_000 < second < 150 * 5_000 + (1 << 16)


def test_gaps_are_compaction_and_no_loss() -> None:
    leader = Leader(batch(0, 1), batch(5, 7, last_offset=9), batch(12))
    read = Read(leader, 0, 13)
    assert read.offsets == [0, 1, 5, 7, 12]
    assert read.missing == [Missing("t", 0, 2, 12, Cause.COMPACTED, number=8)]
    assert not any(each.cause.is_loss for each in read.missing)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_unreadable_records_cost_their_batch(bad: int) -> None:
    """The checksum is right: a writer made them so."""
    batches = [batch(0, 1), batch(2, 3), batch(4, 5)]
    data = bytearray(batches[bad])
    data[HEADER_BYTES] = 0xFF  # the length of the first record
    set_producer(data, producer_id=-1, producer_epoch=-1, base_sequence=-1)  # a new checksum
    batches[bad] = bytes(data)
    read = Read(Leader(*batches), 1, 5)
    first, end = max(2 * bad, 1), min(2 * bad + 2, 5)
    assert read.offsets == [offset for offset in range(1, 5) if not first <= offset < end]
    [missing] = read.missing
    assert missing[2:5] == (first, end, Cause.DAMAGED)
    assert "record" in missing.detail


def test_a_range_may_end_within_a_gap() -> None:
    leader = Leader(batch(0, 1), batch(9))
    read = Read(leader, 0, 5)
    assert (read.offsets, read.missing) == ([0, 1], [Missing("t", 0, 2, 5, Cause.COMPACTED, number=3)])


def test_aborted_transactions_are_left_out_up_to_their_markers() -> None:
    """One whose marker comes in a later answer is named in that answer, too."""
    leader = Leader(
        batch(0),
        transactional(1, 2),
        transactional(3),
        marker(4, commit=False),
        transactional(5),
        marker(6, commit=True),
        transactional(7),
        marker(8, commit=False),
    )
    leader.aborted = {4: Aborted(PRODUCER, 1), 8: Aborted(PRODUCER, 7)}
    for fetch_bytes in (1, 200, 1 << 20):
        read = Read(leader, 0, 9, fetch_bytes=fetch_bytes)
        assert read.offsets == [0, 5]
        assert read.missing == [Missing("t", 0, 1, 8, Cause.ABORTED, number=4)]


def test_what_is_below_the_log_start_has_expired() -> None:
    leader = Leader(batch(10), batch(11), start=10)
    read = Read(leader, 4, 12)
    assert read.offsets == [10, 11]
    assert read.missing == [lost(4, 10, Cause.EXPIRED)]


def test_a_range_that_has_expired_whole() -> None:
    assert Read(Leader(batch(30), start=30), 4, 12).missing == [lost(4, 12, Cause.EXPIRED)]


def test_a_start_past_the_end_was_cut_off() -> None:
    read = Read(Leader(batch(0)), 4, 12)
    assert (read.offsets, read.missing) == ([], [lost(4, 12, Cause.TRUNCATED, "the log ends at 1")])


def test_an_end_that_was_cut_off_is_told_after_what_is_left() -> None:
    read = Read(Leader(batch(0), batch(1)), 0, 12)
    assert (read.offsets, read.missing) == ([0, 1], [lost(2, 12, Cause.TRUNCATED)])


def test_a_partition_that_was_deleted_has_expired() -> None:
    leader = Leader(batch(0), batch(1))
    leader.answers = [leader.records(0, 1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    read = Read(leader, 0, 2)
    assert read.offsets == [0]
    assert [(each.start_offset, each.end_offset, each.cause) for each in read.missing] == [
        (1, 2, Cause.EXPIRED)
    ]


def test_a_high_watermark_that_is_behind_is_waited_for() -> None:
    """After a failover the new leader hears from the others first: nothing is lost."""
    leader = Leader(batch(0), batch(1), batch(2))
    leader.high_watermark = 1

    def catch_up() -> None:
        leader.high_watermark = 3

    nothing = FetchResult(ErrorCode.NONE, 1)
    leader.answers = [leader.records(0, 1 << 20), nothing, nothing, nothing, catch_up]
    read = Read(leader, 0, 3)
    assert (read.offsets, read.missing) == ([0, 1, 2], [])


def test_patience_ends() -> None:
    """In silence over records that are there, nothing may be passed over."""
    leader = Leader(batch(0), batch(1))
    leader.high_watermark = 1
    told = "t-0: no records from offset 1 on for 20 s, but the end was 2"
    with pytest.raises(RequestUnanswered, match=told):
        Read(leader, 0, 2)
    assert len(leader.asked) < 30


def test_another_leader_may_have_what_one_refused() -> None:
    leader = Leader(batch(0), batch(1))
    leader.answers = [ErrorCode.OFFSET_OUT_OF_RANGE]
    read = Read(leader, 0, 2)
    assert (read.offsets, read.missing) == ([0, 1], [])


def test_other_refusals_are_told() -> None:
    leader = Leader(batch(0))
    leader.answers = [ErrorCode.INVALID_REQUEST]
    with pytest.raises(RequestRefused, match="INVALID_REQUEST"):
        Read(leader, 0, 1)


def garbled(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_bytes_that_changed_on_the_way_are_fetched_again() -> None:
    leader = Leader(batch(0), batch(1), batch(2))
    wrong = batch(0) + garbled(batch(1)) + batch(2)
    leader.answers = [FetchResult(ErrorCode.NONE, 3, records=wrong)]
    read = Read(leader, 0, 3)
    assert (read.offsets, read.missing) == ([0, 1, 2], [])


def test_bytes_that_stay_wrong_are_damage_and_the_rest_is_read() -> None:
    leader = Leader(batch(0), garbled(batch(1, 2)), batch(3))
    read = Read(leader, 0, 4)
    assert (read.offsets, read.missing) == ([0, 3], [lost(1, 3, Cause.DAMAGED)])


def test_a_batch_that_does_not_say_where_it_ends_takes_the_rest_with_it() -> None:
    broken = bytearray(batch(1))
    broken[0:8] = bytes(8)
    broken[-1] ^= 1
    leader = Leader(batch(0), batch(1))
    wrong = FetchResult(ErrorCode.NONE, 2, records=bytes(broken))
    leader.answers = [leader.records(0, 1), wrong, wrong, wrong]
    read = Read(leader, 0, 2)
    assert (read.offsets, read.missing) == ([0], [lost(1, 2, Cause.DAMAGED)])


def test_a_first_batch_that_is_cut_is_asked_for_with_more_bytes() -> None:
    """Kafka sends it whole; others may go by the limit alone."""
    whole = batch(0, value=bytes(1000))
    leader = Leader(whole)
    leader.answers = [FetchResult(ErrorCode.NONE, 1, records=whole[:300])]
    assert Read(leader, 0, 1, fetch_bytes=300).offsets == [0]
    assert [max_bytes for _, max_bytes in leader.asked] == [300, 2400]


def test_who_stops_in_the_middle_leaves_nothing_under_way() -> None:
    leader = Leader(*(batch(offset) for offset in range(30)))
    rows = Read(Leader(batch(0)), 0, 1).run(leader, 0, 30, fetch_bytes=100)
    next(rows)
    cast(Any, rows).close()

"""Numbered batches: what is sent again, what is not, and when a producer begins anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from logstore.broker.client import Client
from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.broker.producing import Appender, Piece, Producer, records_of, split
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch
from logstore.format.record import Header, Record
from logstore.replication.durability import Durability
from logstore.replication.messages import ProduceResult

TP = TopicPartition("t", 0)


class Leader(Client):
    """A client whose produce ends as the test says; a result appends, at the next offset."""

    def __init__(self, *ends: Exception | None) -> None:
        super().__init__([])
        self.ends = list(ends)
        self.batches: list[Batch] = []
        self.end_offset = 0
        self.ids = iter(range(7, 99))
        self.gate: asyncio.Event | None = None

    async def producer_id(self, *, timeout: float | None = None) -> int:
        return next(self.ids)

    async def produce(
        self,
        topic_partition: TopicPartition,
        batch: bytes | memoryview,
        *,
        acks: int = -1,
        timeout: float | None = None,
    ) -> ProduceResult:
        if self.gate is not None:
            await self.gate.wait()
        self.batches.append(Batch(batch))
        end = self.ends.pop(0) if self.ends else None
        if end is not None:
            raise end
        first, self.end_offset = self.end_offset, self.end_offset + self.batches[-1].record_count
        return ProduceResult(ErrorCode.NONE, first if acks else -1, durability=Durability.SYNCED)

    @property
    def numbers(self) -> list[tuple[int, int]]:
        """Of each batch, the producer's id and the first sequence."""
        return [(batch.producer_id, batch.base_sequence) for batch in self.batches]

    @property
    def values(self) -> list[list[bytes | None]]:
        return [[record.value for record in batch.records()] for batch in self.batches]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


def rows(*values: bytes) -> list[Record]:
    return [Record(number, 1, None, value) for number, value in enumerate(values)]


def piece(*values: bytes) -> Piece:
    (found,) = split(range(len(values)), rows(*values))
    return found


def later() -> float:
    return asyncio.get_running_loop().time() + 20


def test_sequences_follow_each_other() -> None:
    async def test() -> None:
        leader = Leader()
        producer = Producer(leader, TP)
        for _ in range(2):
            await producer.send_records(rows(b"a", b"b"))
        assert leader.numbers == [(7, 0), (7, 2)]

    run(test)


@pytest.mark.parametrize("error", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_a_lost_sequence_begins_anew_with_the_same_records(error: ErrorCode) -> None:
    """A leader that lost what acks=1 had answered has not got this batch: it would be the last one there."""

    async def test() -> None:
        leader = Leader(None, RequestRefused(error))
        producer = Producer(leader, TP)
        await producer.send_records(rows(b"a"), acks=1)
        assert (await producer.send_records(rows(b"b"), acks=1)).base_offset == 1
        assert leader.numbers == [(7, 0), (7, 1), (8, 0)]
        assert leader.values == [[b"a"], [b"b"], [b"b"]]

    run(test)


def test_a_first_batch_that_is_out_of_order_is_refused() -> None:
    """No id would help: it would be tried for ever."""

    async def test() -> None:
        leader = Leader(RequestRefused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
        with pytest.raises(RequestRefused):
            await Producer(leader, TP).send_records(rows(b"a"))
        assert len(leader.batches) == 1

    run(test)


@pytest.mark.parametrize(
    "end", [RequestUnanswered("no word"), RequestRefused(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]
)
def test_after_an_unknown_fate_another_id_is_taken(end: EngineError) -> None:
    """The old one's sequence has a gap, or not: the next batch would be refused, or taken for that one."""

    async def test() -> None:
        leader = Leader(None, end)
        producer = Producer(leader, TP)
        await producer.send_records(rows(b"a"))
        with pytest.raises(type(end)):
            await producer.send_records(rows(b"b"))
        await producer.send_records(rows(b"c"))
        assert leader.numbers == [(7, 0), (7, 1), (8, 0)]

    run(test)


def test_a_refusal_leaves_no_gap() -> None:
    async def test() -> None:
        leader = Leader(None, RequestRefused(ErrorCode.MESSAGE_TOO_LARGE))
        producer = Producer(leader, TP)
        await producer.send_records(rows(b"a"))
        with pytest.raises(RequestRefused):
            await producer.send_records(rows(b"b"))
        await producer.send_records(rows(b"c"))
        assert leader.numbers == [(7, 0), (7, 1), (7, 1)]

    run(test)


def test_an_id_that_was_given_is_kept() -> None:
    """Whoever brings one sends the same again, or stops."""

    async def test() -> None:
        leader = Leader(RequestUnanswered("no word"))
        producer = Producer(leader, TP, producer_id=5)
        for _ in range(2):
            try:
                await producer.send([b"a"])
            except RequestUnanswered:
                pass
        assert leader.numbers == [(5, 0), (5, 0)]

    run(test)


def test_without_acks_batches_have_no_number() -> None:
    """Nobody tells of a gap, and a gap would have all that follows refused."""

    async def test() -> None:
        leader = Leader()
        await Producer(leader, TP).send_records(rows(b"a"), acks=0)
        assert leader.numbers == [(-1, -1)]

    run(test)


def test_what_comes_meanwhile_makes_the_next_batch() -> None:
    """In the order of the calls; other acks make a batch of their own."""

    async def test() -> None:
        leader = Leader()
        leader.gate = asyncio.Event()
        appender = Appender(leader, TP)
        works = [
            asyncio.create_task(appender.append(piece(value), acks, later()))
            for value, acks in ((b"a", -1), (b"b", -1), (b"c", -1), (b"d", 1), (b"e", -1))
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        leader.gate.set()
        placed = await asyncio.gather(*works)
        assert [b"".join(filter(None, values)) for values in leader.values] == [b"abc", b"d", b"e"]
        assert [each.offset for (each,) in placed] == [0, 1, 2, 3, 4]
        assert placed[0][0].durability is Durability.SYNCED
        await appender.finished()

    run(test)


def test_what_is_given_up_before_it_is_sent_is_not_sent() -> None:
    async def test() -> None:
        leader = Leader()
        leader.gate = asyncio.Event()
        appender = Appender(leader, TP)
        first = asyncio.create_task(appender.append(piece(b"a"), -1, later()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = asyncio.create_task(appender.append(piece(b"b"), -1, later()))
        third = asyncio.create_task(appender.append(piece(b"c"), -1, asyncio.get_running_loop().time()))
        with pytest.raises(RequestUnanswered, match="did not accept"):
            await third
        second.cancel()
        await asyncio.sleep(0)
        leader.gate.set()
        await first
        await appender.finished()
        assert leader.values == [[b"a"]]

    run(test)


def test_an_unknown_fate_is_everybodys_in_the_batch() -> None:
    """Sending them one by one would write some twice."""

    async def test() -> None:
        leader = Leader(RequestUnanswered("no word"))
        appender = Appender(leader, TP)
        works = [appender.append(piece(value), -1, later()) for value in (b"a", b"b")]
        ends = await asyncio.gather(*works, return_exceptions=True)
        assert [type(end) for end in ends] == [RequestUnanswered] * 2
        assert len(leader.batches) == 1

    run(test)


def test_an_error_of_one_batch_leaves_the_next_one_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Without memory for a batch, the calls behind it failed, too, and asyncio reported an error."""

    async def test() -> None:
        leader = Leader(MemoryError("no room for it"))
        leader.gate = asyncio.Event()
        appender = Appender(leader, TP)
        first = asyncio.create_task(appender.append(piece(b"a"), -1, later()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = asyncio.create_task(appender.append(piece(b"b"), 1, later()))
        await asyncio.sleep(0)
        leader.gate.set()
        with pytest.raises(RequestUnanswered, match=r"the append failed.*no room for it") as caught:
            await first
        assert isinstance(caught.value.__cause__, MemoryError)
        assert [each.offset for each in await second] == [0]
        assert leader.numbers == [(7, 0), (8, 0)]

    run(test)
    assert caplog.records == []


def test_pieces_fit_a_batch() -> None:
    many = rows(*[bytes(100_000)] * 12)
    pieces = list(split(range(12), many))
    assert [list(each.numbers) for each in pieces] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    (alone,) = split([3], rows(b"", b"", b"", bytes(2 << 20)))
    assert alone.size > 2 << 20, "a record that is too large is for the log to refuse"
    with_headers = [Record(0, 1, None, None, (Header("é" * 100_000, bytes(300_000)),))] * 2
    assert len(list(split(range(2), with_headers))) == 2


def test_what_append_takes() -> None:
    whole = Record(5, 3, b"k", None, (Header("h", b""),), 9)
    assert records_of([b"v", (None, b"w"), whole], None, (), 77) == [
        Record(0, 77, None, b"v"),
        Record(0, 77, None, b"w"),
        whole,
    ]
    assert records_of(None, b"k", [("h", None)], 77) == [Record(0, 77, b"k", None, (Header("h", None),))]


def test_the_sequence_begins_again_behind_the_largest_number() -> None:
    """It is an int32 in the batch, so 2^31 - 1 is followed by 0, inside a batch or between two."""

    async def test() -> None:
        leader = Leader()
        producer = Producer(leader, TP)
        await producer.send([b"a"])
        producer._next_sequence = 2**31 - 2
        await producer.send([b"b", b"c", b"d"])
        await producer.send([b"e"])
        producer._next_sequence = 2**31 - 1
        await producer.send([b"f"])
        await producer.send([b"g"])
        assert leader.numbers == [(7, 0), (7, 2**31 - 2), (7, 1), (7, 2**31 - 1), (7, 0)]

    run(test)

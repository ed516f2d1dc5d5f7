"""Produce requests of one connection wait for their acks together; all else waits for them (decision 062)."""

from __future__ import annotations

import asyncio
import struct

import pytest

from logstore.broker.connection import LARGEST_BEFORE_NEXT, MOST_IN_HAND, REQUESTS_A_TURN, Connection
from tests.broker.test_connection import LARGE, PRODUCE, Bench, Run, answer_of, framed, run

__all__ = ["run"]


class Producing(Bench):
    """As `Bench`; a frame that begins as a produce request waits, and lets the next one in."""

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        if frame[:2].tobytes() == PRODUCE:
            self.seen.append(bytes(frame))
            self.waiting.append((connection, frame))
            connection.take_next()
        else:
            super().on_frame(connection, frame)

    async def __aenter__(self) -> Producing:
        await super().__aenter__()
        return self

    def acknowledge(self, place: int, number: int) -> None:
        connection, frame = self.waiting[place]
        connection.answer((struct.pack(">i", len(frame)), frame), number=number)


def produces(count: int) -> list[bytes]:
    return [PRODUCE + bytes([number]) for number in range(count)]


def test_produce_requests_wait_for_their_acks_together(run: Run) -> None:
    """Followers fetch what has arrived in one round; the answers keep the order of the requests."""

    async def test() -> None:
        async with Producing() as bench:
            reader, writer = await bench.connect()
            sent = produces(3)
            writer.write(framed(*sent))
            await bench.until(lambda: len(bench.seen) == 3)
            for number in (3, 2):
                bench.acknowledge(number - 1, number)
            with pytest.raises(AssertionError, match="one answer"):
                bench.acknowledge(1, 2)
            assert next(iter(bench.server.connections)).is_busy
            bench.acknowledge(0, 1)
            assert [await answer_of(reader) for _ in sent] == sent
            assert not next(iter(bench.server.connections)).is_busy

    run(test)


def test_no_more_than_a_producer_has_in_flight(run: Run) -> None:
    async def test() -> None:
        async with Producing() as bench:
            reader, writer = await bench.connect()
            sent = produces(MOST_IN_HAND + 2)
            writer.write(framed(*sent))
            await bench.until(lambda: len(bench.seen) == MOST_IN_HAND)
            for _turn in range(20):
                await asyncio.sleep(0)
            assert bench.seen == sent[:MOST_IN_HAND]
            for number in range(1, len(sent) + 1):
                await bench.until(lambda number=number: len(bench.waiting) >= number)  # type: ignore[misc]
                bench.acknowledge(number - 1, number)
            assert [await answer_of(reader) for _ in sent] == sent

    run(test)


@pytest.mark.parametrize("last", [b"x" * 10, b"y" * LARGE], ids=["small", "large"])
def test_a_request_of_another_kind_waits_for_all_of_them(run: Run, last: bytes) -> None:
    """It might ask for what they write."""

    async def test() -> None:
        async with Producing() as bench:
            reader, writer = await bench.connect()
            sent = [*produces(2), last, b"after"]
            writer.write(framed(*sent))
            await bench.until(lambda: len(bench.seen) == 2)
            bench.acknowledge(0, 1)
            for _turn in range(20):
                await asyncio.sleep(0)
            assert bench.seen == sent[:2]
            bench.acknowledge(1, 2)
            assert [await answer_of(reader) for _ in sent] == sent

    run(test)


def test_all_in_hand_are_given_up_with_their_connection(run: Run) -> None:
    async def test() -> None:
        async with Producing() as bench:
            _, writer = await bench.connect()
            writer.write(framed(*produces(2)))
            await bench.until(lambda: len(bench.seen) == 2)
            (connection,) = bench.server.connections
            lost: list[int] = []
            for number in (1, 2):
                connection.when_lost[number] = lambda number=number: lost.append(number)  # type: ignore[misc]
            writer.close()
            await bench.until(lambda: len(lost) == 2)
            bench.acknowledge(0, 1)  # nobody is there any more

    run(test)


def test_a_server_that_stops_answers_all_in_hand(run: Run) -> None:
    async def test() -> None:
        async with Producing() as bench:
            reader, writer = await bench.connect()
            sent = produces(2)
            writer.write(framed(*sent))
            await bench.until(lambda: len(bench.seen) == 2)
            draining = asyncio.ensure_future(bench.server.drain())
            await asyncio.sleep(0)
            for number in (1, 2):
                bench.acknowledge(number - 1, number)
            assert [await answer_of(reader) for _ in sent] == sent
            await draining

    run(test)


def test_behind_a_very_large_one_none_is_taken_in(run: Run) -> None:
    """Its bytes stay in memory until it is answered."""

    async def test() -> None:
        async with Producing() as bench:
            reader, writer = await bench.connect()
            sent = [PRODUCE + b"x" * LARGEST_BEFORE_NEXT, *produces(1)]
            writer.write(framed(*sent))
            await bench.until(lambda: len(bench.seen) == 1)
            for _turn in range(20):
                await asyncio.sleep(0)
            assert len(bench.seen) == 1
            bench.acknowledge(0, 1)
            await bench.until(lambda: len(bench.seen) == 2)
            bench.acknowledge(1, 2)
            assert [await answer_of(reader) for _ in sent] == sent

    run(test)


def test_a_turn_that_ends_with_some_in_hand_goes_on(run: Run) -> None:
    """Those answered at once leave places: the rest of the bytes waits for its turn, not for an answer."""

    async def test() -> None:
        async with Producing() as bench:
            reader, writer = await bench.connect()
            at_once = [b"x" * 10] * (REQUESTS_A_TURN - 2)
            sent = produces(MOST_IN_HAND)
            writer.write(framed(*at_once, *sent))
            await bench.until(lambda: len(bench.seen) == len(at_once) + len(sent))
            for number in range(len(sent)):
                bench.acknowledge(number, len(at_once) + number + 1)
            assert [await answer_of(reader) for _ in (*at_once, *sent)] == [*at_once, *sent]

    run(test)

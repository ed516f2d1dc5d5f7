"""Get the receipt of a record now, or wait until it reaches a level; see `replication/receipts.py`.

Brokers elsewhere are asked by ListOffsets, in tagged fields that Kafka skips (`ask_receipt`).

    request     partition, tags 10000…   the record's offset, the level and copies to wait for, milliseconds
    response    partition, tags 10000…   replicas, written_on, synced_on, is_committed

The leader answers at once, or as soon as the receipt proves what was asked for, within `LONGEST_LOOK_MS`: the
connection serves others in between. A wait is a row of such looks.
"""

from __future__ import annotations

import asyncio
from itertools import starmap
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import OffsetOutOfRange
from logstore.replication.durability import Durability
from logstore.replication.receipts import Receipt, receipt_of

if TYPE_CHECKING:
    from logstore.broker.runtime import Runtime

LONGEST_LOOK_MS: Final = 500
LEVELS: Final = tuple(Durability)
"""By their number in a request."""


class _Waiter(NamedTuple):
    topic_partition: TopicPartition
    offset: int
    durability: Durability
    copies: int
    done: asyncio.Future[Receipt]


class Receipts:
    """The receipts of one broker, and who waits for one. Used on the broker's loop."""

    def __init__(self, runtime: Runtime) -> None:
        """Answer from the state of this broker's engine."""
        self._runtime = runtime
        self._waiters: list[_Waiter] = []

    def of(self, topic_partition: TopicPartition, offset: int) -> Receipt:
        """Return what is proven now. Raises as `receipt_of`, and `UnknownTopicOrPartition`."""
        return receipt_of(self._runtime.node.replicas.partition(topic_partition), offset)

    def nothing(self, topic_partition: TopicPartition, offset: int) -> Receipt:
        """Return the receipt of a record that is not written yet."""
        replicas = self._runtime.node.replicas.partition(topic_partition).replicas
        return Receipt(offset, len(replicas), written_on=0, synced_on=0, is_committed=False)

    async def wait_for(
        self, topic_partition: TopicPartition, offset: int, durability: Durability, copies: int
    ) -> Receipt:
        """Return the receipt as soon as it proves as much; raises as `of`.

        A record that is not written yet is waited for, unless this broker alone has to sync it. Raises
        `ValueError` for what no receipt will prove.
        """
        replica = self._runtime.node.replicas.partition(topic_partition)
        if not 1 <= copies <= max(len(replica.replicas), 1):
            raise ValueError(f"{topic_partition} has {len(replica.replicas)} replicas; copies={copies}")
        if durability is Durability.SYNCED and not replica.is_synced:
            if copies > 1:
                raise ValueError(
                    f"{topic_partition} has durability.level=replicated: its leader does not learn what the "
                    "followers have synced. Wait for copies=1, or set durability.level=synced"
                )
            _ = self.of(topic_partition, offset)  # nobody would sync a record that comes later
            if replica.log.recovery_point <= offset:
                await self._runtime.in_thread(replica.log.flush)
        waiter = _Waiter(
            topic_partition, offset, durability, copies, asyncio.get_running_loop().create_future()
        )
        if not self._is_served(waiter):
            self._waiters.append(waiter)
            self._runtime.after_turn[self.look] = None
        try:
            return await waiter.done
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def look(self) -> None:
        """Serve the waiters that can be; called after each turn of the engine while there are any."""
        self._waiters = [each for each in self._waiters if not self._is_served(each)]
        if not self._waiters:
            self._runtime.after_turn.pop(self.look, None)

    def _is_served(self, waiter: _Waiter) -> bool:
        if waiter.done.done():
            return True
        try:
            receipt = self.of(waiter.topic_partition, waiter.offset)
        except OffsetOutOfRange as error:
            if waiter.offset >= error.log_end_offset:
                return False
            waiter.done.set_exception(error)
        except Exception as error:
            waiter.done.set_exception(error)
        else:
            if not receipt.proves(waiter.durability, waiter.copies):
                return False
            waiter.done.set_result(receipt)
        return True

    def fail(self, error: BaseException) -> None:
        """Raise `error` in everybody who waits: the broker has stopped."""
        waiters, self._waiters = self._waiters, []
        for each in waiters:
            if not each.done.done():
                each.done.set_exception(error)


# --- requests of clients elsewhere ----------------------------------------------------------------------


async def answer_receipts(body: t.ListOffsetsRequest, receipts: Receipts) -> t.ListOffsetsResponse:
    """Answer a request that asks for receipts, each partition for itself."""

    by_topic: dict[str, list[t.ListOffsetsRequestListOffsetsPartition]] = {}
    for each in body.topics:
        by_topic.setdefault(each.name, []).extend(each.partitions)

    async def answered(
        topic: str, wanted: list[t.ListOffsetsRequestListOffsetsPartition]
    ) -> t.ListOffsetsResponseListOffsetsTopicResponse:
        looks = (_answer(TopicPartition(topic, each.partition_index), each, receipts) for each in wanted)
        partitions = list(await asyncio.gather(*looks))
        return t.ListOffsetsResponseListOffsetsTopicResponse(name=topic, partitions=partitions)

    return t.ListOffsetsResponse(topics=list(await asyncio.gather(*starmap(answered, by_topic.items()))))


async def _answer(
    topic_partition: TopicPartition, wanted: t.ListOffsetsRequestListOffsetsPartition, receipts: Receipts
) -> t.ListOffsetsResponseListOffsetsPartitionResponse:
    made = t.ListOffsetsResponseListOffsetsPartitionResponse(
        partition_index=topic_partition.partition, error_code=int(ErrorCode.NONE)
    )
    try:
        receipt = await _receipt(topic_partition, wanted, receipts)
    except ValueError as error:
        made.error_code, made.receipt_message = int(ErrorCode.INVALID_REQUEST), str(error)
    except EngineError as error:
        made.error_code, made.receipt_message = int(error.code), str(error)
    else:
        made.receipt_replicas, made.receipt_written_on = receipt.replicas, receipt.written_on
        made.receipt_synced_on, made.receipt_is_committed = receipt.synced_on, receipt.is_committed
    return made


async def _receipt(
    topic_partition: TopicPartition, wanted: t.ListOffsetsRequestListOffsetsPartition, receipts: Receipts
) -> Receipt:
    offset = wanted.receipt_offset
    if not wanted.receipt_copies:
        return receipts.of(topic_partition, offset)
    if not 0 <= wanted.receipt_level < len(LEVELS):
        raise ValueError(f"no durability level has the number {wanted.receipt_level}")
    wait_s = min(max(wanted.receipt_wait_ms, 0), LONGEST_LOOK_MS) / 1000
    try:
        async with asyncio.timeout(wait_s):
            level = LEVELS[wanted.receipt_level]
            return await receipts.wait_for(topic_partition, offset, level, wanted.receipt_copies)
    except TimeoutError:
        try:
            return receipts.of(topic_partition, offset)
        except OffsetOutOfRange as error:
            if offset < error.log_end_offset:
                raise
            # Not written yet: a receipt that proves nothing.
            return receipts.nothing(topic_partition, offset)

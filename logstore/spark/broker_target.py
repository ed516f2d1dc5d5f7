"""A cluster that a sink writes to: an idempotent producer that can say, after a crash, how far it had come.

Of each partition one batch is under way at a time, with acks=all. What stands is read back up to the high
watermark; a batch above it has been sent again then, and its leader knows it by its number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from logstore.broker.errors import RequestRefused
from logstore.config import LogConfig
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch, walk
from logstore.replication.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from logstore.spark.client_settings import ClientSettings
from logstore.spark.errors import PublicationBroken
from logstore.spark.publishing import Payment, Producer
from logstore.spark.sink_rows import Topic

T = TypeVar("T")

_AT_A_TIME: Final = 8
"""Partitions that are written to at once."""
_FETCH_BYTES: Final = 4 << 20
_RULES: Final[tuple[str, ...]] = (
    "max.message.bytes",
    "cleanup.policy",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
)
_SEQUENCE_LOST: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)


class BrokerTarget:
    """`Target` over brokers, with an event loop that turns while it is asked something."""

    def __init__(self, settings: ClientSettings) -> None:
        self._runner = asyncio.Runner()
        self._client = settings.client()
        self._counts: Mapping[str, int] | None = None

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def topic(self, name: str) -> Topic | None:
        if self._counts is None:
            self._counts = self._wait(self._client.topics())
        if name not in self._counts:
            return None
        settings = self._wait(self._client.topic_settings(name))
        rules = {rule: settings[rule] for rule in _RULES if rule in settings}
        return Topic(self._counts[name], LogConfig.from_kafka(rules))

    def create(self, name: str, partitions: int) -> None:
        try:
            self._wait(self._client.create_topic(name, partitions))
        except RequestRefused as refusal:
            if refusal.error is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        self._counts = None

    def ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        if not partitions:
            return {}
        return self._wait(self._client.offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP)))

    def new_producer(self) -> Producer:
        return Producer(self._wait(self._client.producer_id()), 0)

    def pay(self, payments: Sequence[Payment]) -> Mapping[TopicPartition, int]:
        return self._wait(self._pay_all(payments))

    async def _pay_all(self, payments: Sequence[Payment]) -> dict[TopicPartition, int]:
        turns = asyncio.Semaphore(_AT_A_TIME)

        async def pay(payment: Payment) -> int:
            async with turns:
                return await self._pay(payment)

        # All come to an end, whatever one of them raises: a batch under way would be of unknown fate.
        results = await asyncio.gather(*map(pay, payments), return_exceptions=True)
        stands = {}
        for payment, result in zip(payments, results, strict=True):
            where = payment.owed.topic_partition
            if isinstance(result, EngineError):
                raise PublicationBroken(
                    f"{where} does not take its part of the write: {result}. What was begun is completed, "
                    "and nothing written twice, when the same query or transaction is run again"
                ) from result
            if isinstance(result, BaseException):
                raise result
            stands[where] = result
        return stands

    async def _pay(self, payment: Payment) -> int:
        owed = payment.owed
        stands = await self._standing(payment)
        while True:
            try:
                for data in payment.batches(stands):
                    await self._client.produce(owed.topic_partition, bytes(data))
                    stands += Batch(data).record_count
                return stands
            except RequestRefused as refusal:
                if refusal.error not in _SEQUENCE_LOST:
                    raise
            # Before it is said that the log has lost our place: it may be ahead of what was read.
            before, stands = stands, max(stands, await self._standing(payment))
            if stands == before:
                return stands

    async def _standing(self, payment: Payment) -> int:
        """How many of the records stand below the high watermark."""
        owed = payment.owed
        partition = owed.topic_partition
        # The end first: a leader that does not know yet how far its predecessor had come does not tell it.
        end = (await self._client.offsets({partition: LATEST_TIMESTAMP}))[partition]
        start = (await self._client.offsets({partition: EARLIEST_TIMESTAMP}))[partition]
        offset = max(min(owed.end_offset, end), start)
        stands = 0
        while offset < end:
            result = await self._client.fetch(partition, offset, max_bytes=_FETCH_BYTES, max_wait_ms=0)
            batches = list(walk(result.records))
            stands = max(stands, owed.standing(batches, payment.producer))
            offset = max([offset, *(batch.next_offset for batch in batches)])
        return stands

    def close(self) -> None:
        self._wait(self._client.close())
        self._runner.close()

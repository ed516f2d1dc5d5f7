"""Write rows at least once: each task sends its batches to the partitions' leaders.

    rows ── place, sort, encode ──▶ batches of every partition ──▶ leaders     the next rows are encoded
                                    in order, partitions side by side          while these are under way

A task that has returned has the acknowledgement of all in-sync replicas for each of its rows, so none is
lost. A task that runs again (a retry, speculation, a repeated batch) sends its rows again, as with Spark's
own sink. Within one attempt nothing repeats: an idempotent producer numbers the batches, and a leader drops
one that was sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, Final

from logstore.broker.client import Client
from logstore.broker.errors import RequestRefused
from logstore.broker.loop_calls import LoopCall
from logstore.config import LogConfig
from logstore.disk.errors import EngineError
from logstore.disk.files import wall_clock_ms
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import set_producer, walk
from logstore.format.record import add_sequence
from logstore.spark.client import ClientThread
from logstore.spark.errors import PublicationBroken, WriteRefused
from logstore.spark.partition_batches import Encoded, PartitionBatches
from logstore.spark.publishing import Producer
from logstore.spark.sink_rows import Intake, Topic
from logstore.spark.targets import SEQUENCE_LOST, BrokerTarget
from logstore.spark.write_options import WriteOptions

_RENEWALS: Final = 3
_FLUSH_BYTES: Final = 8 << 20
"""Less than a staged file's runs, so that a small task, too, encodes while it sends."""
_AT_A_TIME: Final = 32
"""Partitions with a batch under way."""


def write_directly(
    options: WriteOptions,
    batches: Iterable[Any],
    *,
    spark_partition: int,
    turn: int,
    flush_bytes: int = _FLUSH_BYTES,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> int:
    """Write one task's rows to the brokers of `options` and return how many there were.

    Rows without a key begin at partition `turn`. Raises `RowRefused`, `WriteRefused`, and `PublicationBroken`
    if a leader does not acknowledge in time; rows before may be in the topic then.
    """
    assert options.brokers is not None, "the options were checked"
    settings = options.brokers
    with closing(BrokerTarget(settings)) as target, closing(ClientThread(settings.client)) as thread:
        intake = Intake(
            options,
            lambda name: _topic(target, name, options.partitions),
            now_ms,
            spark_partition=spark_partition,
            turn=turn,
        )
        encoder = PartitionBatches(
            intake.slots,
            compression=options.compression,
            batch_bytes=options.batch_bytes,
            max_batch_bytes=lambda name: intake.topics[name].config.max_message_bytes,
            flush_bytes=flush_bytes,
            outcome=options.delivery.outcome,
        )
        sender = _Sender(thread)
        rows = 0
        for batch in batches:
            sender.send(encoder.add(intake.take(batch)))
            rows += batch.num_rows
        sender.send(encoder.rest())
        sender.wait()
        return rows


def _topic(target: BrokerTarget, name: str, partitions: int | None) -> Topic:
    """Return the topic, creating it if it is missing and `partitions` says how. Raises `WriteRefused`."""
    found = target.topic(name)
    if found is None and partitions is not None:
        target.create(name, partitions)
        # Another task may be quicker: then brokers may not know the topic yet, and the sends wait for it.
        found = target.topic(name) or Topic(partitions, LogConfig())
    if found is None:
        raise WriteRefused(
            f"topic {name} does not exist in the cluster; set option partitions to create it with that many"
        )
    return found


class _Sender:
    """Sends the batches of one task; one group of runs is under way while the next is made."""

    def __init__(self, thread: ClientThread) -> None:
        self._thread = thread
        self._under_way: LoopCall[None] | None = None
        self._first: Producer | None = None
        self._producers: dict[TopicPartition, Producer] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._turns = asyncio.Semaphore(_AT_A_TIME)

    def send(self, runs: Iterable[Encoded]) -> None:
        """Send runs, at most one of each partition, once those before are acknowledged. Raises as `wait`."""
        made = list(runs)
        if made:
            self.wait()
            self._under_way = self._thread.start(lambda client: self._send_all(client, made))

    def wait(self) -> None:
        """Wait until everything is acknowledged. Raises `PublicationBroken`."""
        if self._under_way is not None:
            self._under_way.result()

    async def _send_all(self, client: Client, runs: Sequence[Encoded]) -> None:
        if self._first is None:
            self._first = Producer(await client.producer_id(), 0)
        for run in runs:
            self._producers.setdefault(run.partition, self._first)
            self._sequences.setdefault(run.partition, 0)
        results = await asyncio.gather(*(self._send_run(client, run) for run in runs), return_exceptions=True)
        for run, result in zip(runs, results, strict=True):
            if isinstance(result, EngineError):
                raise PublicationBroken(
                    f"{run.partition}: rows were not acknowledged: {result}. Run the write again; with "
                    "delivery=at_least_once rows of this task may then be there twice"
                ) from result
            if result is not None:
                raise result

    async def _send_run(self, client: Client, run: Encoded) -> None:
        async with self._turns:
            for batch in walk(run.data):
                await self._send_batch(client, run.partition, batch.buffer, batch.record_count)

    async def _send_batch(self, client: Client, where: TopicPartition, batch: memoryview, count: int) -> None:
        for renewals in range(_RENEWALS + 1):
            if where not in self._producers:
                self._producers[where] = Producer(await client.producer_id(), 0)
                self._sequences[where] = 0
            producer, sequence = self._producers[where], self._sequences[where]
            set_producer(
                batch, producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=sequence
            )
            try:
                await client.produce(where, batch)
            except RequestRefused as refusal:
                if refusal.error not in SEQUENCE_LOST or renewals == _RENEWALS:
                    raise
                del self._producers[where]  # a log that lost its records has lost the producer, too
                continue
            self._sequences[where] = add_sequence(sequence, count)
            return

"""Get the receipt of a record now, or wait until it reaches a level; see `replication/receipts.py`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from logstore.disk.topic_partition import TopicPartition
from logstore.errors import OffsetOutOfRange
from logstore.replication.durability import Durability
from logstore.replication.receipts import Receipt, receipt_of

if TYPE_CHECKING:
    from logstore.broker.runtime import Runtime


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

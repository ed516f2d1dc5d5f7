"""Producer ids: no number is assigned twice in a cluster's life.

    /latest_producer_id_block    {"version":1,"broker":1,"block_start":"1000","block_end":"1999","writer":"…"}

A broker takes a thousand at a time: it writes the next block on condition of the version that it read. If the
answer is lost, it reads the node again: a block with its own `writer` is its own. Ids that a broker had left
when it stopped are never given out.
"""

from __future__ import annotations

import asyncio
from random import Random

from logstore.broker.identity import AskStore
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.ids import new_id
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import ProducerIdBlock
from logstore.replication.metastore.operations import Get, StoreError, put

BLOCK_SIZE = 1000
LAST_ID = 2**63 - 1
_ROUNDS = 20


class ProducerIdsUnavailable(EngineError):
    """The metadata store returned no block of ids. Retry."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class ProducerIds:
    """This broker's ids. Belongs to one event loop."""

    def __init__(self, broker_id: int, ask: AskStore, random: Random) -> None:
        self._broker_id, self._ask = broker_id, ask
        self._writer = new_id(random)
        self._next, self._end = 0, 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """Return the next id. Raises `ProducerIdsUnavailable`, `CorruptMetadata`, `MetadataStoreFailed`."""
        async with self._lock:
            if self._next >= self._end:
                block = await self._next_block()
                self._next, self._end = block.first, block.last + 1
            self._next += 1
            return self._next - 1

    async def _next_block(self) -> ProducerIdBlock:
        path, attempted = layout.PRODUCER_IDS_PATH, b""
        for _ in range(_ROUNDS):
            found = await self._ask(Get(path))
            if found.error not in (None, StoreError.NO_NODE):
                continue
            if found.stat is not None and attempted and found.data == attempted:
                return layout.parse_producer_ids(attempted)
            first = layout.parse_producer_ids(found.data).last + 1 if found.stat is not None else 0
            if first > LAST_ID - BLOCK_SIZE:
                raise ProducerIdsUnavailable("no producer ids are left")
            block = ProducerIdBlock(self._broker_id, first, first + BLOCK_SIZE - 1, self._writer)
            attempted = layout.encode_producer_ids(block)
            outcome = await self._ask(put(path, attempted, found.version))
            if outcome.error is None:
                return block
        raise ProducerIdsUnavailable("the metadata store assigned no block of producer ids; try again")

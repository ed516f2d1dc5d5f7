"""Wait until a broker that has joined its cluster knows all topics.

The controller sends a new broker its roles and then the leaders of all partitions, in parts if they are many.
Until the last part has arrived, the broker's metadata lacks topics that exist. The metadata store tells which
they are.
"""

from __future__ import annotations

import asyncio
from typing import Final

from logstore.broker.runtime import Runtime
from logstore.broker.store_session import StoreSession
from logstore.disk.errors import InvalidTopic
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Children, Get, Operation, Outcome, StoreError

_RETRY_S: Final = 0.05


async def until_topics_known(runtime: Runtime, store: StoreSession) -> None:
    """Return once the broker's metadata has every partition of the store.

    Topics that are being deleted, or whose names or nodes are invalid, have no place in the metadata.
    """
    metadata = runtime.node.replicas.metadata
    while True:
        updates = metadata.updates
        if await _partitions_in(store) <= metadata.partitions.keys():
            return
        changed = asyncio.Event()

        def look(seen: int = updates, changed: asyncio.Event = changed) -> None:
            if metadata.updates != seen:
                changed.set()

        runtime.after_turn[look] = None
        try:
            look()
            await changed.wait()
        finally:
            runtime.after_turn.pop(look, None)


async def _partitions_in(store: StoreSession) -> set[TopicPartition]:
    names = (await _answered(store, Children(layout.TOPICS_PATH))).children
    # The deletions first: a topic and its deletion go together, and nothing is announced when they have gone.
    reads = await asyncio.gather(
        *(_answered(store, Get(layout.delete_topic_path(name))) for name in names),
        *(_answered(store, Get(layout.topic_path(name))) for name in names),
    )
    found: set[TopicPartition] = set()
    for name, deletion, node in zip(names, reads, reads[len(names) :], strict=False):
        if node.stat is None or deletion.stat is not None:
            continue
        try:
            check_topic_name(name)
            found.update(TopicPartition(name, each) for each in layout.parse_topic(node.data).partitions)
        except (CorruptMetadata, InvalidTopic):
            continue  # the controller reports it
    return found


async def _answered(store: StoreSession, operation: Operation) -> Outcome:
    """Return the outcome, asked again after a lost connection."""
    while (outcome := await store.ask(operation)).error not in (None, StoreError.NO_NODE):
        await asyncio.sleep(_RETRY_S)
    return outcome

"""A broker is ready once it knows what the store has: neither sooner, nor never."""

from __future__ import annotations

import asyncio

from logstore.broker.readiness import until_topics_known
from logstore.broker.store_session import StoreSession
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.effects import StoreCall
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import TopicAssignment
from logstore.replication.metastore.operations import ANY_VERSION, Create, Delete, Get, Multi, Operation
from tests.broker.nodes import Nodes, SharedStore, StoreEnd

T = TopicPartition("t", 0)


def write(shared: SharedStore, *operations: Operation) -> None:
    session_id = shared.store.open_session(1_000, 0)
    for each in operations:
        outcome, fired = shared.store.call(session_id, each, 0)
        assert outcome.error is None, outcome
        shared.fire(fired)


def assignment(topic_id: str) -> bytes:
    return layout.encode_topic(TopicAssignment(topic_id, {0: (0,)}))


def test_a_name_that_no_topic_can_have_is_not_waited_for() -> None:
    """A tool may write it; the controller leaves it out of the metadata."""

    async def test() -> None:
        async with Nodes(1) as nodes:
            await nodes.brokers[0].ready.wait()
            write(nodes.shared, Create(layout.topic_path("no topic"), assignment("a")))
            async with asyncio.timeout(5):
                async with StoreSession(nodes.shared.client) as session:
                    await until_topics_known(nodes.running[0], session)

    asyncio.run(test())


def test_a_topic_whose_deletion_ends_between_two_reads_is_not_waited_for() -> None:
    """The broker has heard of the deletion when it begins; nothing follows when it ends."""

    class Ending(StoreEnd):
        """The deletion ends after the first read of the topic or of its deletion."""

        def submit(self, call: StoreCall) -> None:
            super().submit(call)
            request, node = layout.delete_topic_path("t"), layout.topic_path("t")
            is_of_it = isinstance(call.operation, Get) and call.operation.path in (request, node)
            if is_of_it and shared.store.tree.node(node) is not None:
                write(shared, Multi((Delete(node, ANY_VERSION), Delete(request, ANY_VERSION))))

    async def test() -> None:
        async with Nodes(1) as nodes:
            runtime = nodes.running[0]
            await nodes.brokers[0].ready.wait()
            async with asyncio.timeout(5):
                async with StoreSession(lambda on_event: Ending(shared, on_event)) as session:
                    await until_topics_known(runtime, session)
            assert T not in runtime.node.replicas.metadata.partitions

    shared = SharedStore()
    write(
        shared,
        Create(layout.topic_path("t"), assignment("a"), make_parents=True),
        Create(layout.delete_topic_path("t"), make_parents=True),
    )
    asyncio.run(test())

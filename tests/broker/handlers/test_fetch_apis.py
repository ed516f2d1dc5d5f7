"""Fetch and ListOffsets over the wire."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.broker.handlers import fetch as fetch_handler
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.ids import id_from_text
from logstore.format.batch import Batch, walk
from logstore.log.partition_log import PartitionLog
from logstore.replication import reading
from logstore.replication.config import NodeConfig
from logstore.replication.errors import OffsetNotAvailable
from logstore.replication.partition import Partition
from tests.broker.asking import Asker
from tests.broker.handlers.data_requests import TP, batch, produce, run
from tests.broker.nodes import Nodes

ALL_FETCH = range(4, 17)


ALL_LIST_OFFSETS = range(1, 9)


def fetching(
    nodes: Nodes, version: int, offset: int = 0, *, topic: str = "t", max_bytes: int = 1 << 20, **fields: Any
) -> t.FetchRequest:
    """From version 13 on by the topic's id."""
    part = t.FetchRequestFetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    wanted = t.FetchRequestFetchTopic(partitions=[part])
    if version < 13:
        wanted.topic = topic
    else:
        wanted.topic_id = id_from_text(nodes.running[0].node.replicas.metadata.topic_ids[topic])
    return t.FetchRequest(**{"min_bytes": 1, "max_bytes": 1 << 20, **fields}, topics=[wanted])


async def fetch(
    client: Asker, nodes: Nodes, version: int = 12, offset: int = 0, **fields: Any
) -> t.FetchResponsePartitionData:
    answer = await client.ask(fetching(nodes, version, offset, **fields), version)
    ((partition,),) = (topic.partitions for topic in answer.responses)
    assert isinstance(partition, t.FetchResponsePartitionData)
    assert partition.records is not None, "never null"
    return partition


class TestFetch:
    @pytest.mark.parametrize("version", ALL_FETCH)
    def test_whole_batches_come_back_as_they_went_in(self, version: int) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            await produce(client, batch(b"a", b"b"))
            await produce(client, batch(b"c"))
            found = await fetch(client, nodes, version, 1)
            assert found.error_code == 0
            offsets = [each.base_offset for each in walk(found.records or b"")]
            assert offsets == [0, 2], "the first begins before"
            assert found.high_watermark == 3

        run(test)

    @pytest.mark.parametrize("version", ALL_FETCH)
    def test_records_are_never_null_and_error_partitions_have_offsets_minus_1(self, version: int) -> None:
        """Null makes librdkafka fail to parse and ask again without a pause."""

        async def test(nodes: Nodes, client: Asker) -> None:
            found = await fetch(client, nodes, version, 5)
            assert (found.error_code, found.records) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
            assert (found.high_watermark, found.last_stable_offset) == (-1, -1)
            if version >= 5:
                assert found.log_start_offset == -1
            nothing = await fetch(client, nodes, version, 0)
            assert (nothing.error_code, nothing.records) == (0, b"")

        run(test)

    def test_at_least_one_batch_comes_whatever_the_limits(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            for value in (b"x", b"y"):
                await produce(client, batch(value * 5000))
            found = await fetch(client, nodes, max_bytes=1)
            assert [each.base_offset for each in walk(found.records or b"")] == [0]

        run(test)

    @pytest.mark.parametrize("version", [7, 12, 13, 16])
    def test_in_a_session_only_news_are_asked_and_answered(self, version: int) -> None:
        """KIP-227: a full request makes it; later ones name changes, and get partitions with news."""

        async def test(nodes: Nodes, client: Asker) -> None:
            await produce(client, batch(b"x"))
            full = fetching(nodes, version, session_epoch=0)
            full.topics[0].partitions[0].fetch_offset = 1
            answer = await client.ask(full, version)
            session_id = answer.session_id
            assert (session_id > 0, len(answer.responses)) == (True, 1), "in full"

            def continued(epoch: int) -> t.FetchRequest:
                return t.FetchRequest(min_bytes=1, session_id=session_id, session_epoch=epoch)

            answer = await client.ask(continued(1), version)
            assert (answer.error_code, answer.session_id, answer.responses) == (0, session_id, [])
            await produce(client, batch(b"y"))
            answer = await client.ask(continued(2), version)
            (topic,) = answer.responses
            assert (topic.topic, topic.topic_id) == (full.topics[0].topic, full.topics[0].topic_id)
            assert len(topic.partitions[0].records) > 0
            answer = await client.ask(continued(2), version)
            assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
            forgetting = continued(3)
            forgetting.forgotten_topics_data = [
                t.FetchRequestForgottenTopic(
                    topic=topic.topic, topic_id=full.topics[0].topic_id, partitions=[0]
                )
            ]
            answer = await client.ask(forgetting, version)
            assert (answer.error_code, answer.session_id, answer.responses) == (0, 0, []), "nothing is left"
            answer = await client.ask(continued(4), version)
            assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

        run(test)

    def test_without_a_session_everything_is_answered(self) -> None:
        """Epoch -1, whatever the session: so asks kafka-go's Client, and librdkafka with id 0."""

        async def test(nodes: Nodes, client: Asker) -> None:
            for session_id in (-1, 0, 7):
                asked = fetching(nodes, 12, session_id=session_id, session_epoch=-1)
                answer = await client.ask(asked, 12)
                assert (answer.error_code, answer.session_id, len(answer.responses)) == (0, 0, 1)

        run(test)

    def test_a_session_by_names_is_not_continued_by_ids(self) -> None:
        """FETCH_SESSION_TOPIC_ID_ERROR (106): the client was updated, or downgraded, in between."""

        async def test(nodes: Nodes, client: Asker) -> None:
            answer = await client.ask(fetching(nodes, 12, session_epoch=0), 12)
            asked = t.FetchRequest(session_id=answer.session_id, session_epoch=1)
            answer = await client.ask(asked, 13)
            assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR

        run(test)

    def test_a_topic_id_that_is_unknown_ends_a_session(self) -> None:
        """It has no name to be kept under: the reader starts over, and is served in full."""

        async def test(nodes: Nodes, client: Asker) -> None:
            answer = await client.ask(fetching(nodes, 13, session_epoch=0), 13)
            asked = fetching(nodes, 13, session_id=answer.session_id, session_epoch=1)
            asked.topics[0].topic_id = bytes(15) + b"\1"
            answer = await client.ask(asked, 13)
            assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
            asked.session_epoch = 0
            answer = await client.ask(asked, 13)
            assert (answer.error_code, answer.session_id) == (0, 0)
            assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

        run(test)

    def test_a_wait_ends_with_its_connection(self) -> None:
        """A thousand abandoned fetches made each produce six hundred times as expensive."""

        async def test(nodes: Nodes, client: Asker) -> None:
            purgatory = nodes.running[0].node.replicas.waiting.fetches
            async with Asker(nodes.addresses[0]) as leaving:
                leaving.send(fetching(nodes, 12, max_wait_ms=60_000), 12)
                await nodes.until(lambda: purgatory.delayed == 1)
            await nodes.until(lambda: purgatory.delayed == 0)
            assert not nodes.running[0].node.replicas.waiting.sessions.watchers

        run(test)

    def test_a_debugging_tool_reads_to_the_log_end_of_any_replica(self) -> None:
        """Replica id -2: kafka-replica-verification compares the replicas, not only what is committed."""

        async def test(nodes: Nodes, client: Asker) -> None:
            await produce(client, batch(b"x"))
            asked = fetching(nodes, 12)
            asked.replica_id = -2
            answer = await client.ask(asked, 12)
            assert answer.responses[0].partitions[0].error_code == 0
            assert len(answer.responses[0].partitions[0].records) > 0

        run(test)

    def test_it_waits_for_min_bytes_and_no_longer(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            waiting = client.send(fetching(nodes, 12, max_wait_ms=60_000), 12)
            async with Asker(nodes.addresses[0]) as producer:
                purgatory = nodes.running[0].node.replicas.waiting.fetches
                await nodes.until(lambda: purgatory.delayed == 1)
                await produce(producer, batch(b"x"))
            answer = await client.answer(t.FetchRequest, 12, waiting)
            assert len(answer.responses[0].partitions[0].records) > 0

        run(test)

    def test_it_does_not_wait_with_an_error_to_tell(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            for version, asked in ((12, fetching(nodes, 12)), (13, fetching(nodes, 13))):
                asked.max_wait_ms = 60_000
                bad = t.FetchRequestFetchTopic(topic="unknown" if version < 13 else "")
                bad.topic_id = bytes(16) if version < 13 else bytes(15) + b"\1"
                bad.partitions = [t.FetchRequestFetchPartition(partition=0, partition_max_bytes=100)]
                asked.topics.append(bad)
                answer = await client.ask(asked, version)
                codes = [topic.partitions[0].error_code for topic in answer.responses]
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
                assert codes == [0, unknown]
                assert answer.responses[1].partitions[0].records == b""

        run(test)

    def test_aborted_transactions_are_null_unless_committed_data_is_asked_for(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            await produce(client, batch(b"x"))
            assert (await fetch(client, nodes, 12)).aborted_transactions is None
            committed = await fetch(client, nodes, 12, isolation_level=1)
            assert committed.aborted_transactions == []
            assert committed.last_stable_offset == 1

        run(test)

    @pytest.mark.parametrize(
        ("epoch", "error"),
        [(99, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.NONE)],
    )
    def test_a_newer_epoch_than_ours_is_not_known_yet(self, epoch: int, error: ErrorCode) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            asked = fetching(nodes, 12)
            asked.topics[0].partitions[0].current_leader_epoch = epoch
            answer = await client.ask(asked, 12)
            assert answer.responses[0].partitions[0].error_code == error

        run(test)

    def test_a_broker_that_does_not_lead_says_so(self) -> None:
        async def test(nodes: Nodes, _: Asker) -> None:
            async with Asker(nodes.addresses[1]) as other:
                found = await fetch(other, nodes)
                assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

        run(test, count=2)

    def test_a_forged_follower_is_refused(self) -> None:
        """A replica id that is no replica's moves no high watermark."""

        async def test(nodes: Nodes, client: Asker) -> None:
            found = await fetch(client, nodes, 12, replica_id=7)
            assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

        run(test)

    def test_a_cold_range_is_read_on_a_thread_before_the_engine_is_asked(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the device takes, other connections do not wait for."""
        reads: list[int] = []

        def counting(module: object, name: str) -> None:
            read = getattr(module, name)

            def counted(log: PartitionLog, start_offset: int, *args: int, **kwargs: bool) -> object:
                reads.append(start_offset)
                return read(log, start_offset, *args, **kwargs)

            monkeypatch.setattr(module, name, counted)

        async def test(nodes: Nodes, client: Asker) -> None:
            await produce(client, batch(b"x"))
            counting(reading, "read_checked")
            counting(fetch_handler, "read_ahead")
            assert (await fetch(client, nodes)).high_watermark == 1
            assert reads == [0], "warm: once"
            monkeypatch.setattr(fetch_handler, "is_cold", lambda *_: True)
            assert len((await fetch(client, nodes)).records or b"") > 0
            assert reads == [0, 0, 0]

        run(test)

    @pytest.mark.parametrize(("version", "code"), [(4, 6), (5, 6), (6, 56), (12, 56)])
    def test_a_failed_disk_ends_no_old_consumer(self, version: int, code: int) -> None:
        """As in Kafka: KAFKA_STORAGE_ERROR is new in version 6. Old clients look for another leader."""

        async def test(nodes: Nodes, client: Asker) -> None:
            nodes.running[0].node.replicas.take_offline(TP, OSError("a bad sector"))
            assert (await fetch(client, nodes, version)).error_code == code

        run(test)


class TestListOffsets:
    @pytest.mark.parametrize(("version", "code"), [(1, 5), (4, 5), (5, 78), (8, 78)])
    def test_a_new_leader_ends_no_old_consumer(
        self, version: int, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in Kafka: aiokafka's version is 1, and it ends at OFFSET_NOT_AVAILABLE, which is new in 5."""

        def catching_up(partition: Partition) -> None:
            raise OffsetNotAvailable("the high watermark has not reached the start of this leadership")

        async def test(_: Nodes, client: Asker) -> None:
            monkeypatch.setattr(reading, "_check_caught_up_with_epoch", catching_up)
            assert (await self.ask(client, -1, version))[0] == code

        run(test)

    @staticmethod
    async def ask(
        client: Asker, timestamp: int, version: int = 8, *, isolation: int = 0
    ) -> tuple[int, int, int]:
        part = t.ListOffsetsRequestListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topic = t.ListOffsetsRequestListOffsetsTopic(name="t", partitions=[part])
        request = t.ListOffsetsRequest(replica_id=-1, topics=[topic])
        if version >= 2:
            request.isolation_level = isolation
        found = (await client.ask(request, version)).topics[0].partitions[0]
        return found.error_code, found.offset, found.timestamp

    @pytest.mark.parametrize("version", ALL_LIST_OFFSETS)
    def test_the_end_the_start_and_a_time(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            await produce(client, batch(b"a", b"b", b"c", time_ms=1000, step_ms=10))
            assert await self.ask(client, -1, version) == (0, 3, -1)
            assert await self.ask(client, -2, version) == (0, 0, -1)
            assert await self.ask(client, 1005, version) == (0, 1, 1010), "exact inside the batch"
            assert await self.ask(client, 1021, version) == (0, -1, -1), "none is no error"
            assert await self.ask(client, -1, version, isolation=1) == (0, 3, -1)

        run(test)

    def test_the_largest_time_and_the_earliest_local_offset(self) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            for time_ms in (2000, 1000):
                await produce(client, batch(b"a", time_ms=time_ms))
            assert await self.ask(client, -3) == (0, 0, 2000)
            assert await self.ask(client, -4) == (0, 0, -1)

        run(test)

    @pytest.mark.parametrize(("timestamp", "version"), [(-5, 8), (-6, 8), (-4, 7), (-3, 6)])
    def test_a_place_that_the_version_does_not_have_is_no_time(self, timestamp: int, version: int) -> None:
        """The end of what is kept remotely (-5) was told to be the first record."""

        async def test(_: Nodes, client: Asker) -> None:
            await produce(client, batch(b"a", time_ms=1000))
            found = await self.ask(client, timestamp, version)
            assert found == (ErrorCode.UNSUPPORTED_VERSION, -1, -1)

        run(test)

    def test_a_partition_that_is_listed_twice_has_error_42(self) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            part = t.ListOffsetsRequestListOffsetsPartition(timestamp=-1)
            topic = t.ListOffsetsRequestListOffsetsTopic(name="t", partitions=[part, part])
            answer = await client.ask(t.ListOffsetsRequest(replica_id=-1, topics=[topic]), 5)
            codes = [each.error_code for each in answer.topics[0].partitions]
            assert codes == [ErrorCode.INVALID_REQUEST] * 2

        run(test)


def test_what_followers_hold_reaches_them_over_the_same_wire() -> None:
    """acks=all is answered when both have it, whatever the size."""

    async def test(nodes: Nodes, client: Asker) -> None:
        value = bytes(range(256)) * 3000
        assert (await produce(client, batch(value), acks=-1)).error_code == 0
        await nodes.until(lambda: set(nodes.ends(TP).values()) == {1})
        found = await fetch(client, nodes)
        (record,) = Batch(found.records or b"").records()
        assert record.value == value

    run(test, count=2)


def test_the_nodes_of_these_tests_are_brokers_as_they_come() -> None:
    """No setting of theirs hides a trap."""
    assert NodeConfig(node_id=0).replica_selector_class.value == "none"

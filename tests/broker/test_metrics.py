"""What dashboards ask for: the process, requests by topic, waiting requests, idleness, followers, lag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from logstore.broker import group_metrics
from logstore.broker.metrics import Watched, gather, page
from logstore.broker.pauses import Pauses
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.record import Record
from logstore.replication.config import NodeConfig
from logstore.replication.driver import InProcessCluster
from logstore.replication.messages import NewTopic
from tests.broker.asking import Asker
from tests.broker.groups.desk import T0, T1, Desk
from tests.broker.handlers.administering import produce
from tests.broker.handlers.data_requests import batch, producing
from tests.broker.handlers.test_transactions import begin, ending, write
from tests.broker.nodes import Nodes
from tests.broker.test_observing import values

TOPICS = "kafka_server_brokertopicmetrics_"


def of_topic(traffic: dict[str, float], name: str, topic: str = "orders") -> float:
    return traffic[f'{TOPICS}{name}_total{{topic="{topic}"}}']


def test_the_process_is_told_under_the_names_of_prometheus() -> None:
    seen = values(page(Watched()).content)
    assert seen["process_resident_memory_bytes"] > 1 << 20
    assert seen["process_cpu_seconds_total"] > 0
    assert 0 < seen["process_open_fds"] < seen["process_max_fds"]
    assert seen["process_start_time_seconds"] > 1_000_000_000


def test_idle_is_the_share_of_the_last_minute_without_processor_time() -> None:
    pauses = Pauses(bound_s=1.0)
    name = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"

    def idle(now_s: float) -> float:
        return values(page(Watched(pauses=pauses.report(now_s))).content)[name]

    assert idle(0.0) == 1.0
    for beat in range(2001):  # 100 s, a quarter of each busy
        pauses.beat(beat * 0.0125, beat * 0.05)
    assert idle(100.0) == pytest.approx(0.75)
    for beat in range(1, 1201):  # a minute of nothing else
        pauses.beat(25.0 + beat * 0.05, 100.0 + beat * 0.05)
    assert idle(160.0) == pytest.approx(0.0, abs=0.02)
    assert len(pauses._spent) < 65


def test_requests_are_counted_by_topic_and_routine_errors_are_no_failures() -> None:
    watched = Watched()
    traffic = watched.traffic
    traffic.produced("orders", ErrorCode.NOT_LEADER_OR_FOLLOWER)
    traffic.produced("orders", ErrorCode.NOT_ENOUGH_REPLICAS)
    traffic.fetched("orders", ErrorCode.NONE, 100)
    traffic.fetched("orders", ErrorCode.OFFSET_OUT_OF_RANGE)
    traffic.fetched("orders", ErrorCode.UNKNOWN_SERVER_ERROR)
    traffic.produced("made up", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, is_known=False)
    traffic.fetched("made up", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, is_known=False)
    seen = values(page(watched).content)
    assert of_topic(seen, "totalproducerequests") == 2
    assert of_topic(seen, "failedproducerequests") == 1
    assert of_topic(seen, "totalfetchrequests") == 3
    assert of_topic(seen, "failedfetchrequests") == 1
    assert of_topic(seen, "bytesout") == 100
    assert not any("made up" in each for each in seen), "clients could fill the memory with names"
    traffic.forget({"orders"})
    assert not any("orders" in each for each in values(page(watched).content))


def test_waiting_requests_and_followers_behind() -> None:
    async def test() -> None:
        async with asyncio.timeout(60), Nodes(2) as nodes:
            topic_partition = await nodes.create_topic("orders", (0, 1))
            leader = nodes.leader(topic_partition)
            node = nodes.running[leader].node
            sizes = 'kafka_server_delayedoperationpurgatory_purgatorysize{delayedOperation="%s"}'
            behind = 'kafka_server_replicafetchermanager_maxlag{clientId="Replica"}'
            # The follower's fetch waits for records.
            await nodes.until(lambda: values(page(Watched(node)).content)[sizes % "Fetch"] == 1)
            await nodes.kill(next(each for each in nodes.running if each != leader))
            await nodes.until(
                lambda: any(each.is_under_replicated for each in node.replicas.partitions.values())
            )
            async with Asker(nodes.addresses[leader]) as client:
                await client.ask(producing(batch(b"a", b"b", b"c"), topic="orders"), 9)
            seen = values(page(Watched(node)).content)
            assert seen[behind] == 3
            assert seen[sizes % "Produce"] == 0
            assert seen['kafka_topic_partition_current_offset{partition="0",topic="orders"}'] == 0
            (log_dir,) = node.logs.log_dirs
            size = node.logs.logs()[topic_partition].size
            assert seen[f'logstore_logdir_size_bytes{{logdir="{log_dir}"}}'] == size > 0
            assert seen[f'logstore_logdir_free_bytes{{logdir="{log_dir}"}}'] == node.logs.room(log_dir).free

    asyncio.run(test())


def test_a_family_with_a_row_for_each_partition_is_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 20,000 partitions each of them took a tenth of a second of the event loop."""
    monkeypatch.setattr("logstore.broker.metrics.PIECE_S", 0.0)
    monkeypatch.setattr("logstore.broker.metrics._AT_ONCE", 1, raising=False)
    cluster = InProcessCluster([NodeConfig(node_id=0)], disk_of=lambda _: MemoryDisk())
    cluster.start()

    def turns() -> int:
        made: list[object] = []

        def on_loop(act: Callable[[], Any]) -> Any:
            made.append(0)
            return act()

        gather(Watched(cluster.nodes[0]))(on_loop)
        return len(made)

    cluster.create_topic(NewTopic("one", assignment=((0,),)))
    before, families = turns(), 13
    cluster.create_topic(NewTopic("more", assignment=((0,),) * 3))
    assert turns() == before + 3 * families


def test_partitions_with_a_transaction_that_hangs_are_counted() -> None:
    """By the time of its last record, where it is led, until its marker is there."""

    async def test() -> None:
        async with asyncio.timeout(60), Nodes(2) as nodes:
            where = await nodes.create_topic("t", (0, 1))
            leader = nodes.leader(where)

            def hanging() -> dict[int, float]:
                name = "kafka_server_replicamanager_partitionswithlatetransactionscount"
                return {
                    each: values(page(Watched(runtime.node)).content)[name]
                    for each, runtime in nodes.running.items()
                }

            now_ms = nodes.running[leader].now_ms()
            await begin(nodes, 7, Record(0, now_ms - 19 * 60_000, None, b"soon"), where=where)
            assert hanging() == {0: 0, 1: 0}
            await begin(nodes, 8, Record(0, now_ms - 21 * 60_000, None, b"late"), where=where)
            assert hanging() == {leader: 1, 1 - leader: 0}
            async with Asker(nodes.addresses[leader]) as client:
                await write(client, ending(8))
            assert hanging() == {0: 0, 1: 0}

    asyncio.run(test())


def test_lag_is_known_where_the_coordinator_has_a_replica() -> None:
    async def test() -> None:
        async with asyncio.timeout(60), Nodes(1) as nodes:
            here = await nodes.create_topic("orders", (0,))
            await produce(nodes, "orders", 3)
            elsewhere = TopicPartition("elsewhere", 0)
            desk = Desk()
            desk.stable()
            desk.commit({here: 1, elsewhere: 5}, group_id="readers")
            seen = values(page(Watched(nodes.running[0].node, groups=desk.coordinator)).content)
            labels = '{consumergroup="readers",partition="0",topic="%s"}'
            assert seen["kafka_consumergroup_current_offset" + labels % "orders"] == 1
            assert seen["kafka_consumergroup_lag" + labels % "orders"] == 2
            assert seen["kafka_consumergroup_current_offset" + labels % "elsewhere"] == 5
            assert "kafka_consumergroup_lag" + labels % "elsewhere" not in seen
            assert seen['kafka_consumergroup_members{consumergroup="readers"}'] == 0
            assert seen['kafka_consumergroup_members{consumergroup="g"}'] == 1

    asyncio.run(test())


def test_groups_that_find_no_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_metrics, "MOST_OFFSETS", 3)
    desk = Desk()
    desk.commit({T0: 1, T1: 1}, group_id="a")
    desk.commit({T0: 1, T1: 1}, group_id="b")
    desk.commit({T0: 1}, group_id="c")
    seen = values(page(Watched(groups=desk.coordinator)).content)
    groups = {
        each for each in ("a", "b", "c") if f'kafka_consumergroup_members{{consumergroup="{each}"}}' in seen
    }
    assert groups == {"a", "c"}
    assert seen["logstore_consumergroup_offsets_left_out"] == 2

"""AlterReplicaLogDirs and DescribeLogDirs over the wire: moves of replicas between log dirs."""

from __future__ import annotations

from typing import Any

from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.log_moves import LEAST_ROOM_BYTES
from tests.broker.asking import Asker
from tests.broker.handlers.administering import BROKER, create, produce, run
from tests.broker.nodes import Nodes

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
TP = TopicPartition("t", 0)
DIRS = ("one", "two")


async def alter(client: Asker, path: str, *topics: str, version: int = 2) -> list[tuple[str, int, int]]:
    kind = t.AlterReplicaLogDirsRequestAlterReplicaLogDirTopic
    wanted = t.AlterReplicaLogDirsRequestAlterReplicaLogDir(
        path=path, topics=[kind(name=name, partitions=[0]) for name in topics]
    )
    answer = await client.ask(t.AlterReplicaLogDirsRequest(dirs=[wanted]), version)
    return [
        (topic.topic_name, one.partition_index, one.error_code)
        for topic in answer.results
        for one in topic.partitions
    ]


async def replicas(client: Asker) -> dict[tuple[str, str, bool], Any]:
    """The replicas by log dir, topic, and whether they are to come."""
    answer = await client.ask(t.DescribeLogDirsRequest(topics=None), 4)
    return {
        (log_dir.log_dir, topic.name, one.is_future_key): one
        for log_dir in answer.results
        for topic in log_dir.topics
        for one in topic.partitions
    }


def test_a_replica_moves_and_both_logs_are_listed_meanwhile() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0,))
        await produce(nodes, "t", 5)
        log = nodes.running[0].node.replicas.partitions[TP].log
        here, there = log.directory.partition("/")[0], "two"
        assert here == "one"
        for version in (1, 2):
            assert await alter(client, here, "t", version=version) == [("t", 0, ErrorCode.NONE)]
        answers = await alter(client, "three", "t", "nobody")
        assert answers == [("nobody", 0, ErrorCode.LOG_DIR_NOT_FOUND), ("t", 0, ErrorCode.LOG_DIR_NOT_FOUND)]
        answers = await alter(client, there, "nobody", "no/topic")
        assert answers == [
            ("no/topic", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("nobody", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        log.compaction_lock.acquire()  # as if its segments were being rewritten: nothing can be swapped
        assert await alter(client, there, "t") == [("t", 0, ErrorCode.NONE)]
        found = await replicas(client)
        assert {(here, "t", False), (there, "t", True)} == found.keys()
        assert found[here, "t", False].offset_lag == 0
        assert 0 <= found[there, "t", True].offset_lag <= 5
        log.compaction_lock.release()
        await nodes.until(lambda: log.directory == f"{there}/t-0")
        found = await replicas(client)
        assert found.keys() == {(there, "t", False)}
        await produce(nodes, "t", 5)
        assert log.log_end_offset == 10

    run(test, 1, DIRS)


def test_a_move_that_cannot_go_on_is_told_with_its_reason() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0,))
        disk: Any = nodes.disks[0]
        room = disk.room
        disk.room = lambda path: room(path)._replace(free=LEAST_ROOM_BYTES - 1)
        assert await alter(client, "two", "t") == [("t", 0, ErrorCode.NONE)]
        moves = nodes.running[0].node.logs.moves
        await nodes.until(lambda: bool(moves.under_way[TP].problem))
        answer = await client.ask(t.DescribeLogDirsRequest(topics=None), 4)
        (hanging,) = [one for log_dir in answer.results for one in log_dir.hanging]
        assert hanging.name == "t-0"
        assert hanging.problem.startswith("two is full: ")
        assert [log_dir.problem for log_dir in answer.results] == ["", ""], "the log dir takes appends"
        del disk.room
        await nodes.until(lambda: not moves.under_way)

    run(test, 1, DIRS)


def test_a_throttle_of_moves_is_a_setting_of_brokers() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        entry = t.IncrementalAlterConfigsRequestAlterableConfig(
            name=RATE, config_operation=0, value="1000000"
        )
        resource = t.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=BROKER, resource_name="0", configs=[entry]
        )
        answer = await client.ask(t.IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == ErrorCode.NONE, answer
        await nodes.until(lambda: nodes.running[0].node.replicas.moves.bound == 1_000_000)

    run(test, 1, DIRS)

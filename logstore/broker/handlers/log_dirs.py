"""Requests about the log dirs of this broker: DescribeLogDirs, AlterReplicaLogDirs.

A replica that moves is listed twice: as it is, and as a future one in the log dir to which it moves.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.broker.dispatch import Call, Services
from logstore.broker.since import hanging_transactions
from logstore.broker.translation import by_topic, to_wire
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.files import Room
from logstore.disk.topic_partition import TopicPartition
from logstore.log.moves import Move
from logstore.log.partition_log import PartitionLog
from logstore.replication.healing import damaged_partitions, failed_partitions
from logstore.replication.log_dir_messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from logstore.replication.messages import ResponseBody
from logstore.replication.node import Node
from logstore.replication.state_change import format_time


def alter(call: Call, body: t.AlterReplicaLogDirsRequest, services: Services) -> None:
    """Let replicas move to other log dirs; the answer comes when the moves have begun."""
    dirs = {
        TopicPartition(topic.name, partition): each.path
        for each in body.dirs
        for topic in each.topics
        for partition in topic.partitions
    }
    services.runtime.ask_for(call, AlterReplicaLogDirsRequest(dirs), _altered)


def _altered(answer: ResponseBody) -> t.AlterReplicaLogDirsResponse:
    assert isinstance(answer, AlterReplicaLogDirsResponse), answer
    in_order = AlterReplicaLogDirsResponse(dict(sorted(answer.codes.items())))
    return to_wire(in_order, t.AlterReplicaLogDirsResponse)


def describe(call: Call, body: t.DescribeLogDirsRequest, services: Services) -> t.DescribeLogDirsResponse:
    """List the replicas in each log dir, with sizes and lags; null topics mean all.

    A failed dir is KAFKA_STORAGE_ERROR (56) and lists nothing. A replica's lag is the distance of its end
    from the high watermark; a leader has none. That of a copy, which is to replace a log of another dir, is
    about the number of records that it lacks. The sizes of a file system that cannot be asked are -1. Tags
    of ours have the end offsets in the order of the partitions, the reason of a failure, a lack of room, the
    replicas that are damaged or cannot follow, since when brokers are gone and partitions lack a leader
    or replicas in sync, when brokers have left lately, the clock of this one, and the transactions that hang
    in partitions that it leads.
    """
    wanted = None
    if body.topics is not None:
        wanted = {TopicPartition(topic.topic, each) for topic in body.topics for each in topic.partitions}
    logs = services.node.logs
    inside: dict[str, list[tuple[TopicPartition, Listed]]] = {path: [] for path in logs.log_dirs}
    for topic_partition, log in sorted(logs.logs().items()):
        if wanted is None or topic_partition in wanted:
            path = log.partition.directory.rpartition("/")[0]
            inside[path].append((topic_partition, _listed(log.partition)))
    for topic_partition, move in sorted(logs.moves.under_way.items()):
        if wanted is None or topic_partition in wanted:
            inside[move.target.path].append((topic_partition, _moving(move)))
    results = []
    for path, found in inside.items():
        is_offline = path in logs.offline_dirs
        room = Room(-1, -1) if is_offline else logs.room(path)
        result = t.DescribeLogDirsResponseDescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NONE,
            log_dir=path,
            topics=[] if is_offline else _replicas(found),
            total_bytes=room.total,
            usable_bytes=room.free,
            problem=_problem(services.node, path),
            hanging=_hanging(services.node, path),
        )
        results.append(result)
    replicas = services.node.replicas
    problems = {str(each): text for each, text in sorted(failed_partitions(replicas).items())}
    problems |= {
        name: f"damaged: {'; '.join(places)}" for name, places in damaged_partitions(replicas).items()
    }
    damaged = [t.DamagedReplica(name=name, problem=text) for name, text in problems.items()]
    now_ms = services.now_ms()
    return t.DescribeLogDirsResponse(
        results=results,
        damaged=damaged,
        since=services.since.troubled(services.metadata),
        departures=services.since.departures(now_ms),
        now_ms=now_ms,
        transactions=hanging_transactions(replicas, now_ms),
    )


def _problem(node: Node, path: str) -> str:
    """Return what is wrong with a log dir, for `logstore why` and `health`; empty if nothing is."""
    if path in node.logs.offline_dirs:
        return f"offline: {node.logs.offline_dirs[path]}"
    if path in node.replicas.full_dirs.since_ms:
        since = format_time(node.replicas.full_dirs.since_ms[path])
        return f"full: an append found no room at {since} UTC"
    return ""


def _hanging(node: Node, path: str) -> list[t.DamagedReplica]:
    """Return the moves to a log dir that cannot go on, and why."""
    return [
        t.DamagedReplica(name=str(each.topic_partition), problem=each.problem)
        for each in node.logs.moves.under_way.values()
        if each.target.path == path and each.problem
    ]


class Listed(NamedTuple):
    """A replica in a log dir, or its copy that is to replace it."""

    size: int
    lag: int
    end_offset: int
    is_future: bool = False


def _listed(log: PartitionLog) -> Listed:
    return Listed(log.segments.size, max(log.high_watermark - log.log_end_offset, 0), log.log_end_offset)


def _moving(move: Move) -> Listed:
    return Listed(move.size, move.lag, move.log.log_end_offset - move.lag, is_future=True)


def _replicas(
    listed: list[tuple[TopicPartition, Listed]],
) -> list[t.DescribeLogDirsResponseDescribeLogDirsTopic]:
    return [
        t.DescribeLogDirsResponseDescribeLogDirsTopic(
            name=name,
            partitions=[
                t.DescribeLogDirsResponseDescribeLogDirsPartition(
                    partition_index=number,
                    partition_size=each.size,
                    offset_lag=each.lag,
                    is_future_key=each.is_future,
                )
                for number, each in partitions
            ],
            end_offsets=[each.end_offset for _, each in partitions],
        )
        for name, partitions in by_topic(listed).items()
    ]

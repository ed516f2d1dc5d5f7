"""DescribeLogDirs: what lies in each log dir here, and how far behind it is. Null topics: everything.

A dir that failed has error 56 and nothing in it. The lag of a replica is how far its end lies below the high
watermark; a leader has none. How large and how full the file systems are is not told (-1).
"""

from __future__ import annotations

from typing import Final

from logstore.broker.call import Call
from logstore.broker.handlers.items import listed
from logstore.broker.interbroker.parts import by_topic
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.log.log import Log

_UNKNOWN: Final = -1


def handle(call: Call, body: t.DescribeLogDirsRequest, services: Services) -> t.DescribeLogDirsResponse:
    wanted = None
    if body.topics is not None:
        wanted = set(listed(body.topics, lambda each: each.partitions, lambda each: each.topic))
    logs = services.node.logs
    inside: dict[str, dict[TopicPartition, Log]] = {path: {} for path in logs.log_dirs}
    for topic_partition, log in sorted(logs.logs().items()):
        if wanted is None or topic_partition in wanted:
            inside[log.directory.rpartition("/")[0]][topic_partition] = log
    results = [
        t.DescribeLogDirsResponseDescribeLogDirsResult(
            error_code=(ErrorCode.KAFKA_STORAGE_ERROR if path in logs.offline_dirs else ErrorCode.NONE),
            log_dir=path,
            topics=[] if path in logs.offline_dirs else _topics(found),
            total_bytes=_UNKNOWN,
            usable_bytes=_UNKNOWN,
        )
        for path, found in inside.items()
    ]
    return t.DescribeLogDirsResponse(throttle_time_ms=call.throttle_ms, results=results)


def _topics(logs: dict[TopicPartition, Log]) -> list[t.DescribeLogDirsResponseDescribeLogDirsTopic]:
    return [
        t.DescribeLogDirsResponseDescribeLogDirsTopic(
            name=name,
            partitions=[
                t.DescribeLogDirsResponseDescribeLogDirsPartition(
                    partition_index=number,
                    partition_size=log.size,
                    offset_lag=max(log.high_watermark - log.log_end_offset, 0),
                )
                for number, log in partitions
            ],
        )
        for name, partitions in by_topic(logs.items()).items()
    ]

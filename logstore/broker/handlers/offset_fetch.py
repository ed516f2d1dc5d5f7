"""OffsetFetch: how far a group has come; of several groups at once from version 8 on.

Traps (protocol.md §4): no committed offset is offset -1 and no error; null topics, from version 2 on, are all
that the group has committed. The group's error stands in each partition in version 1, which has no other
place for it, and alone later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from logstore.broker.call import Call
from logstore.broker.groups.requests import (
    GroupResponse,
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from logstore.broker.handlers.items import listed
from logstore.broker.interbroker.parts import by_topic
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition

_HAS_ERROR: Final = 2
_MANY_GROUPS: Final = 8


def handle(call: Call, body: t.OffsetFetchRequest, services: Services) -> None:
    if call.version >= _MANY_GROUPS:
        groups = [OffsetFetchGroup(each.group_id, _partitions(each.topics)) for each in body.groups]
    else:
        groups = [OffsetFetchGroup(body.group_id, _partitions(body.topics))]
    request = OffsetFetchRequest(tuple(groups), body.require_stable)
    services.ask_group(call, request, partial(_response, call, groups))


def _partitions(
    topics: Sequence[t.OffsetFetchRequestTopic] | Sequence[t.OffsetFetchRequestTopics] | None,
) -> tuple[TopicPartition, ...] | None:
    if topics is None:
        return None
    return tuple(listed(topics, lambda each: each.partition_indexes, lambda each: each.name))


def _response(call: Call, groups: Sequence[OffsetFetchGroup], answer: GroupResponse) -> t.OffsetFetchResponse:
    assert isinstance(answer, OffsetFetchResponse)
    if call.version >= _MANY_GROUPS:
        return t.OffsetFetchResponse(
            throttle_time_ms=call.throttle_ms, groups=[_group(each) for each in answer.groups]
        )
    (found,) = answer.groups
    partitions = found.partitions
    if found.error_code is not ErrorCode.NONE and call.version < _HAS_ERROR:
        refused = OffsetFetchPartition(error_code=found.error_code)
        partitions = dict.fromkeys(groups[0].partitions or (), refused)
    return t.OffsetFetchResponse(
        throttle_time_ms=call.throttle_ms,
        error_code=found.error_code,
        topics=[
            t.OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    t.OffsetFetchResponsePartition(
                        partition_index=number,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for number, each in of_topic
                ],
            )
            for name, of_topic in by_topic(partitions.items()).items()
        ],
    )


def _group(found: OffsetFetchGroupResponse) -> t.OffsetFetchResponseGroup:
    return t.OffsetFetchResponseGroup(
        group_id=found.group_id,
        error_code=found.error_code,
        topics=[
            t.OffsetFetchResponseTopics(
                name=name,
                partitions=[
                    t.OffsetFetchResponsePartitions(
                        partition_index=number,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for number, each in of_topic
                ],
            )
            for name, of_topic in by_topic(found.partitions.items()).items()
        ],
    )

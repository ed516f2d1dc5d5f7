"""The offsets that groups commit: a client's requests to their coordinator, one attempt each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from logstore.broker.cluster_view import ClusterView
from logstore.broker.connections import Connections
from logstore.broker.errors import RequestUnanswered
from logstore.broker.groups import requests as g
from logstore.broker.limits import Address
from logstore.broker.retrying import TryAgain, check_code
from logstore.broker.translation import to_wire
from logstore.broker.wire import types as t
from logstore.disk.topic_partition import TopicPartition


def commit_request(group: str, offsets: Mapping[TopicPartition, int]) -> t.OffsetCommitRequest:
    partitions = {
        each: g.OffsetCommitPartition(committed_offset=offset, committed_metadata="")
        for each, offset in offsets.items()
    }
    return to_wire(g.OffsetCommitRequest(group_id=group, partitions=partitions), t.OffsetCommitRequest)


def committed_request(group: str, partitions: Sequence[TopicPartition]) -> t.OffsetFetchRequest:
    request = to_wire(g.OffsetFetchGroup(group, tuple(partitions)), t.OffsetFetchRequest)
    request.require_stable = True
    return request


def offsets_in(answer: t.OffsetFetchResponse) -> dict[TopicPartition, int]:
    """Return the committed offsets of an answer, without the partitions that have none."""
    return {
        TopicPartition(topic.name, each.partition_index): each.committed_offset
        for topic in answer.topics
        for each in topic.partitions
        if each.committed_offset >= 0
    }


async def ask_coordinator(
    cluster: ClusterView,
    connections: Connections,
    group: str,
    request: t.OffsetCommitRequest | t.OffsetFetchRequest,
) -> Any:
    """Find the group's coordinator, and ask it. Raises `TryAgain`, and `RequestRefused` for any error."""
    found = await cluster.ask_any(t.FindCoordinatorRequest(key=group), t.FindCoordinatorResponse)
    check_code(found.error_code, f"no coordinator of group {group}")
    try:
        answer: Any = await connections.ask_wire(Address(found.host, found.port), request)
    except RequestUnanswered as error:
        raise TryAgain(error) from error
    check_code(getattr(answer, "error_code", 0), f"offsets of group {group}")
    for topic in answer.topics:
        for each in topic.partitions:
            where = TopicPartition(topic.name, each.partition_index)
            check_code(each.error_code, f"offset of group {group} for {where}")
    return answer

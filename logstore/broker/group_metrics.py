"""Metrics of the consumer groups that a broker coordinates, with their lag.

    kafka_consumergroup_current_offset{consumergroup,topic,partition}    what the group has committed
    kafka_consumergroup_lag{consumergroup,topic,partition}               the high watermark less that

The coordinator knows what its groups have committed. It knows the high watermark of the partitions that it
has a replica of; a follower's is that of its last fetch. Of other partitions it gives the committed offset
only, and their leaders give `kafka_topic_partition_current_offset`.

A scrape gives at most `MOST_OFFSETS` committed offsets. A group that finds no room is left out as a whole,
and `logstore_consumergroup_offsets_left_out` counts its offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from logstore.broker.groups.coordinator import Coordinator
from logstore.broker.groups.group import State
from logstore.broker.metric_families import gauge, gauges
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import NO_LEADER
from logstore.replication.node import Node

MOST_OFFSETS: Final = 2_000
"""Each is two lines of an answer, about 12 µs."""


def of_groups(groups: Coordinator, node: Node | None) -> Iterator[Metric]:
    """Yield the metrics; without a node no lag is known."""
    states = groups.states
    yield from gauges(
        "kafka_coordinator_group_groupmetadatamanager_",
        ("numgroups", "Groups that this broker coordinates", states.total()),
        *(
            (f"numgroups{each.value.lower()}", f"Groups in state {each.value}", states[each])
            for each in State
        ),
        ("memory_bytes", "Memory of the members of these groups", groups.memory),
        ("numoffsets", "Committed offsets of these groups", groups.committed_offsets),
        (
            "loadingpartitions",
            "Led partitions of __consumer_offsets with groups that are not served",
            groups.loading,
        ),
    )
    prefix, labels = "kafka_consumergroup_", ["consumergroup", "topic", "partition"]
    members = GaugeMetricFamily(prefix + "members", "Members of the group", labels=labels[:1])
    committed = GaugeMetricFamily(prefix + "current_offset", "Committed offset", labels=labels)
    lag = GaugeMetricFamily(
        prefix + "lag", "High watermark less the committed offset, where it is known here", labels=labels
    )
    room, left_out = MOST_OFFSETS, 0
    for group_id, count, offsets in groups.groups():
        if (taken := max(offsets.count, 1)) > room:
            left_out += offsets.count
            continue
        room -= taken
        members.add_metric([group_id], count)
        for topic_partition, offset in offsets.committed:
            values = [group_id, topic_partition.topic, str(topic_partition.partition)]
            committed.add_metric(values, offset)
            end = _high_watermark(node, topic_partition)
            if end is not None:
                lag.add_metric(values, max(end - offset, 0))
    yield from (members, committed, lag)
    text = "Committed offsets of groups that did not fit in this answer"
    yield gauge("logstore_consumergroup_offsets_left_out", text, left_out)


def _high_watermark(node: Node | None, topic_partition: TopicPartition) -> int | None:
    replica = node.replicas.partitions.get(topic_partition) if node is not None else None
    if replica is None or replica.leader_id == NO_LEADER:
        return None
    return replica.log.high_watermark

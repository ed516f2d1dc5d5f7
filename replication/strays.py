"""Logs that nobody assigned to this node: which they are, and what proves it. Pure.

    a full LeaderAndIsr  ─▶  every partition assigned to this node, with its topic's id
    the logs on disk     ─▶  partition and topic id of each
    on disk and not assigned: a stray     assigned under another id: a ghost of a deleted topic

A missing name proves something only if the list is whole and newer than whatever gave us the log. Hence
three conditions. The controller says that the list is whole (`LeaderAndIsrRequest.assigned`), which it
does not while it cannot read a topic's node. The request is addressed to our present registration, so
it was made by a controller that read the store after we registered, and knows all that was assigned to
us before. And it is newer than every other request that gave us roles: a copy of it that comes late would
not know what was assigned since.

The controller sends a full list to each registration, and to everybody when a topic vanishes from the
store, or is replaced there, without its doing: a running broker gives that topic's replicas up as well.

A stray is renamed, not deleted: `<topic>-<partition>.<32 hex>-stray` stays until an operator removes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore.disk.topic_partition import TopicPartition


def strays(
    local: Mapping[TopicPartition, str | None], assigned: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """Which of the `local` logs (partition → topic id, None if it has none) are strays, and why."""
    found: dict[TopicPartition, str] = {}
    for each, topic_id in sorted(local.items()):
        if each not in assigned:
            found[each] = "not assigned to this broker"
        elif is_of_another_incarnation(topic_id, assigned[each]):
            found[each] = f"belongs to topic id {topic_id}, the topic's is {assigned[each]}"
    return found


def is_of_another_incarnation(topic_id: str | None, wanted: str) -> bool:
    """Whether a log with `topic_id` cannot be of the topic `wanted`: unknown on either side is no proof."""
    return bool(topic_id) and bool(wanted) and topic_id != wanted

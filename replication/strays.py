"""Stray logs: logs on this node that the controller has not assigned to it. Pure.

    a full LeaderAndIsr  ─▶  every partition assigned to this node, with its topic id
    the logs on disk     ─▶  partition and topic id of each
    on disk but not assigned: a stray     assigned under another id: left over from a deleted topic

A missing partition is proof only if the list is complete, and newer than the request that created the log.
Hence three conditions:

- The controller marks the list as complete (`LeaderAndIsrRequest.assigned`). It does not while it cannot
  read the node of a topic.
- The request is for our current registration. Its controller read the store after we registered, so it knows
  all earlier assignments.
- The request is newer than every other request that assigned roles here. A late copy would lack later
  assignments.

The controller sends a complete list to each new registration, and to a broker that asks for its roles again:
a full disk may have kept a stray. It also sends one to all brokers when a topic disappears from the store, or
is replaced there, without the controller: running brokers then give up its replicas.

A stray is renamed, not deleted: `<topic>-<partition>.<32 hex>-stray` stays until an operator removes it. A
copy of a log that is not assigned, which was to move between log dirs, is removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore.disk.topic_partition import TopicPartition


def strays(
    local: Mapping[TopicPartition, str | None], assigned: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """Return the strays among the `local` logs (partition → topic id, None without one), with the reason."""
    found: dict[TopicPartition, str] = {}
    for each, topic_id in sorted(local.items()):
        if each not in assigned:
            found[each] = "not assigned to this broker"
        elif is_of_another_incarnation(topic_id, assigned[each]):
            found[each] = f"belongs to topic id {topic_id}, the topic's is {assigned[each]}"
    return found


def is_of_another_incarnation(topic_id: str | None, wanted: str) -> bool:
    """Whether a log with `topic_id` cannot belong to the topic `wanted`; an unknown id proves nothing."""
    return bool(topic_id) and bool(wanted) and topic_id != wanted

"""What operators' verbs decide: pure functions over a reading of the cluster.

under-replicated     fewer in sync than replicas that are not being added
unavailable          no leader, or one that does not live
proposal             where partitions would go over a list of brokers (`reassign generate`)
standing             what became of a reassignment that was asked for (`reassign verify`)
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from logstore.cli.cluster_state import Cluster
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller import assignment


class BadPlan(EngineError):
    """A file or a list that an operator gave makes no sense; nothing was changed."""

    code = ErrorCode.INVALID_REQUEST


def is_under_replicated(cluster: Cluster, each: TopicPartition) -> bool:
    """Replicas that a reassignment is still adding are not missed yet."""
    topic = cluster.topics[each.topic].assignment
    settled = set(topic.partitions[each.partition]) - set(topic.adding_replicas.get(each.partition, ()))
    state = cluster.states.get(each)
    return state is None or len(set(state.isr) & settled) < len(settled)


def is_unavailable(cluster: Cluster, each: TopicPartition) -> bool:
    state = cluster.states.get(each)
    return state is None or state.leader not in cluster.brokers


# --- reassignment ---------------------------------------------------------------------------------

Plan = dict[TopicPartition, tuple[int, ...]]


def parse_topics_to_move(text: str) -> list[str]:
    """`{"version":1,"topics":[{"topic":"a"},…]}`. Raises `BadPlan`."""
    value = _json_object(text)
    topics = value.get("topics")
    if not isinstance(topics, list) or not topics:
        raise BadPlan('no "topics" are listed; write {"version":1,"topics":[{"topic":"orders"}]}')
    names = [each.get("topic") if isinstance(each, dict) else None for each in topics]
    if not all(isinstance(name, str) for name in names):
        raise BadPlan('every entry of "topics" is to be {"topic":"name"}')
    if len(set(names)) != len(names):
        raise BadPlan("a topic is listed twice")
    return [str(name) for name in names]


def parse_plan(text: str) -> Plan:
    """`{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[1,2]},…]}`. Raises `BadPlan`."""
    value = _json_object(text)
    entries = value.get("partitions")
    if not isinstance(entries, list) or not entries:
        raise BadPlan('no "partitions" are listed: the plan is empty')
    plan: Plan = {}
    for entry in entries:
        if not (
            isinstance(entry, dict)
            and isinstance(entry.get("topic"), str)
            and _is_number(entry.get("partition"))
            and isinstance(entry.get("replicas"), list)
            and entry["replicas"]
            and all(map(_is_number, entry["replicas"]))
        ):
            raise BadPlan(f"{json.dumps(entry)[:80]} is no topic, partition and list of replicas")
        each = TopicPartition(entry["topic"], entry["partition"])
        replicas = tuple(entry["replicas"])
        if each in plan:
            raise BadPlan(f"{each} is listed twice")
        if len(set(replicas)) != len(replicas):
            raise BadPlan(f"{each} lists a broker twice: {list(replicas)}")
        plan[each] = replicas
    return plan


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadPlan(f"this is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadPlan("this is not a JSON object")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def encode_plan(plan: Mapping[TopicPartition, Sequence[int]]) -> str:
    """The JSON that `reassign execute` takes, and that rolls a reassignment back."""
    return json.dumps(
        {
            "version": 1,
            "partitions": [
                {"topic": each.topic, "partition": each.partition, "replicas": list(plan[each])}
                for each in sorted(plan)
            ],
        },
        separators=(",", ":"),
    )


def current_plan(cluster: Cluster, topics: Iterable[str]) -> Plan:
    """Where the replicas of these topics are. Raises `BadPlan` for one that does not exist."""
    plan: Plan = {}
    for name in topics:
        if name not in cluster.topics:
            raise BadPlan(f"there is no topic {name!r}")
        for partition, replicas in cluster.topics[name].assignment.partitions.items():
            plan[TopicPartition(name, partition)] = replicas
    return plan


def proposal(
    cluster: Cluster,
    topics: Sequence[str],
    brokers: Sequence[int],
    *,
    with_racks: bool,
    start: int,
    shift: int,
) -> Plan:
    """The topics spread over `brokers` with as many replicas as they have now.

    Raises `BadPlan`, `InvalidReplicationFactor`.
    """
    if len(set(brokers)) != len(brokers):
        raise BadPlan(f"a broker is listed twice: {list(brokers)}")
    if unknown := [broker for broker in brokers if broker not in cluster.brokers]:
        raise BadPlan(f"brokers {unknown} are not alive")
    plan: Plan = {}
    current = current_plan(cluster, topics)
    racks = {broker: cluster.racks[broker] if with_racks else None for broker in brokers}
    for name in topics:
        count = sum(each.topic == name for each in current)
        factor = len(current[TopicPartition(name, 0)])
        lists = assignment.placed(racks, count, factor, start=start, shift=shift)
        plan.update({TopicPartition(name, number): replicas for number, replicas in enumerate(lists)})
    return plan


class Standing(Enum):
    IN_PROGRESS = "still in progress"
    COMPLETED = "completed"
    FAILED = "failed"


def standing(
    cluster: Cluster, each: TopicPartition, wanted: tuple[int, ...], listed: Collection[TopicPartition]
) -> Standing:
    """What became of the wish that `each` has the replicas `wanted`; `listed` are those still asked for."""
    topic = cluster.topics.get(each.topic)
    if topic is None or each.partition not in topic.assignment.partitions:
        return Standing.FAILED
    known = topic.assignment
    moving = known.adding_replicas.get(each.partition) or known.removing_replicas.get(each.partition)
    if each in listed or moving:
        return Standing.IN_PROGRESS
    return Standing.COMPLETED if known.partitions[each.partition] == wanted else Standing.FAILED

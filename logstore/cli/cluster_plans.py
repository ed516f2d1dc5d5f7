"""Decisions of the operators' verbs: pure functions over a reading of the cluster.

under-replicated     fewer in sync than replicas, not counting those being added
unavailable          no leader, or one that is not alive
proposal             the assignment of partitions to a list of brokers (`reassign generate`)
standing             the result of a reassignment (`reassign verify`)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from logstore.cli.cluster_state import Cluster
from logstore.cli.operating import similar
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller import assignment


class BadPlan(EngineError):
    """An operator's request is invalid; nothing was changed."""

    code = ErrorCode.INVALID_REQUEST


class NoSuchSubject(BadPlan):
    """An operator's request is for a topic or a partition that does not exist; nothing was changed."""


def check_partitions(cluster: Cluster, partitions: Iterable[TopicPartition]) -> None:
    """Raise `NoSuchSubject` if the cluster lacks one of these partitions."""
    existing = {each for each, _ in cluster.partitions()}
    if unknown := sorted(str(each) for each in set(partitions) - existing):
        raise NoSuchSubject(f"no partition {', '.join(unknown)}")


def check_topics(
    cluster: Cluster, names: Iterable[str], all_topics: Callable[[], Iterable[str]] | None = None
) -> None:
    """Raise `NoSuchSubject` if the cluster lacks one of these topics, with the most similar names.

    `all_topics` is called for an error if `cluster` was read for some topics only.
    """
    if unknown := [name for name in names if name not in cluster.topics]:
        known = cluster.topics if all_topics is None else all_topics()
        raise NoSuchSubject(f"no topic {', '.join(map(repr, unknown))}; {similar(unknown, known)}")


def is_under_replicated(cluster: Cluster, each: TopicPartition) -> bool:
    """Whether an in-sync replica is missing, apart from those that a reassignment is adding."""
    settled = set(cluster.replicas(each)) - set(cluster.motion(each).adding)
    state = cluster.states.get(each)
    return state is None or len(set(state.isr) & settled) < len(settled)


def is_unavailable(cluster: Cluster, each: TopicPartition) -> bool:
    """Whether a partition has no live leader."""
    return cluster.state(each).leader not in cluster.brokers


def is_led_as_preferred(cluster: Cluster, each: TopicPartition) -> bool:
    """Whether the first replica of the list leads and is alive: there is nothing to elect."""
    if each.topic not in cluster.topics or is_unavailable(cluster, each):
        return False
    return cluster.states[each].leader == cluster.replicas(each)[0]


# --- reassignment ---------------------------------------------------------------------------------

Plan = dict[TopicPartition, tuple[int, ...]]
_VERSION: Final = 1
"""Of Kafka's files; the one that a file without a version has."""


def parse_topics_to_move(text: str) -> list[str]:
    """Parse `{"version":1,"topics":[{"topic":"a"},…]}`. Raises `BadPlan`."""
    value = _json_object(text)
    topics = value.get("topics")
    if not isinstance(topics, list) or not topics:
        raise BadPlan('no "topics" in the file; write {"version":1,"topics":[{"topic":"orders"}]}')
    names = [each.get("topic") if isinstance(each, dict) else None for each in topics]
    if not all(isinstance(name, str) for name in names):
        raise BadPlan('every entry of "topics" must be {"topic":"name"}')
    if len(set(names)) != len(names):
        raise BadPlan("a topic is listed twice")
    return [str(name) for name in names]


def parse_plan(text: str) -> Plan:
    """Parse `{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[1,2]},…]}`.

    Raises `BadPlan`.
    """
    value = _json_object(text)
    entries = value.get("partitions")
    if not isinstance(entries, list) or not entries:
        raise BadPlan('no "partitions" in the file: the plan is empty')
    plan: Plan = {}
    for entry in entries:
        if not (
            isinstance(entry, dict)
            and isinstance(entry.get("topic"), str)
            and entry["topic"].isascii()
            and _is_number(entry.get("partition"))
            and isinstance(entry.get("replicas"), list)
            and entry["replicas"]
            and all(map(_is_number, entry["replicas"]))
        ):
            raise BadPlan(f"{json.dumps(entry)[:80]} is not a topic, a partition and a list of replicas")
        each = TopicPartition(entry["topic"], entry["partition"])
        replicas = tuple(entry["replicas"])
        if each in plan:
            raise BadPlan(f"{each} is listed twice")
        log_dirs = entry.get("log_dirs") or []
        if not isinstance(log_dirs, list) or any(log_dir != "any" for log_dir in log_dirs):
            raise BadPlan(
                f"{each} has log dirs, which this verb does not assign: leave them out, and move replicas "
                "with logstore brokers move-log"
            )
        if len(set(replicas)) != len(replicas):
            raise BadPlan(f"{each} lists a broker twice: {list(replicas)}")
        plan[each] = replicas
    return plan


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise BadPlan(f"the file is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadPlan("the file is not a JSON object")
    version = value.get("version", _VERSION)
    if version != _VERSION or not _is_number(version):
        raise BadPlan(f"the file has version {json.dumps(version)[:40]}; only version {_VERSION} is known")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises `ValueError` for a name that is there twice: the first value would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def encode_plan(plan: Mapping[TopicPartition, Sequence[int]]) -> str:
    """Return the plan as JSON for `reassign execute`."""
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


def current_plan(cluster: Cluster, topics: Collection[str]) -> Plan:
    """Return the current replicas of these topics. Raises `BadPlan` for an unknown one."""
    check_topics(cluster, topics)
    return dict(cluster.partitions(topics))


def proposal(
    cluster: Cluster,
    topics: Sequence[str],
    brokers: Sequence[int],
    *,
    with_racks: bool,
    start: int,
    shift: int,
) -> Plan:
    """Spread the topics over `brokers`, with as many replicas as they have now.

    Raises `BadPlan`.
    """
    if len(set(brokers)) != len(brokers):
        raise BadPlan(f"a broker is listed twice: {list(brokers)}")
    if unknown := [broker for broker in brokers if broker not in cluster.brokers]:
        raise BadPlan(f"brokers {unknown} are not alive")
    plan: Plan = {}
    current = current_plan(cluster, topics)
    racks = {broker: cluster.racks[broker] if with_racks else None for broker in brokers}
    for name in topics:
        count = len(cluster.topics[name].assignment.partitions)
        factor = len(current[TopicPartition(name, 0)])
        if factor > len(brokers):
            raise BadPlan(f"{name} has {factor} replicas: list at least as many brokers, not {len(brokers)}")
        lists = assignment.placed(racks, count, factor, start=start, shift=shift)
        plan.update({TopicPartition(name, number): replicas for number, replicas in enumerate(lists)})
    return plan


class Standing(Enum):
    """The result of a reassignment for one partition."""

    IN_PROGRESS = "still in progress"
    COMPLETED = "completed"
    FAILED = "failed"


def standing(
    cluster: Cluster, each: TopicPartition, wanted: tuple[int, ...], listed: Collection[TopicPartition]
) -> Standing:
    """Return whether `each` has the replicas `wanted`; `listed` are the partitions still requested."""
    topic = cluster.topics.get(each.topic)
    if topic is None or each.partition not in topic.assignment.partitions:
        return Standing.FAILED
    if each in listed or any(cluster.motion(each)):
        return Standing.IN_PROGRESS
    return Standing.COMPLETED if cluster.replicas(each) == wanted else Standing.FAILED


def check_alive(cluster: Cluster, plan: Plan) -> None:
    """Raise `BadPlan` if a plan names a broker that is not alive."""
    for each, replicas in plan.items():
        if dead := [broker for broker in replicas if broker not in cluster.brokers]:
            raise BadPlan(f"{each}: brokers {dead} are not alive")


def plan_back(cluster: Cluster, partitions: Iterable[TopicPartition]) -> Plan:
    """Return the previous replicas of those partitions that a reassignment is moving."""
    back: Plan = {}
    for each in partitions:
        if each.topic not in cluster.topics or not any(motion := cluster.motion(each)):
            continue
        known = cluster.topics[each.topic].assignment
        full = known.partitions.get(each.partition, ())
        settled = tuple(broker for broker in full if broker not in motion.adding)
        back[each] = known.original_replicas.get(each.partition, settled)
    return back

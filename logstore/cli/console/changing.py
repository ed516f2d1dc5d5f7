"""Changes by the console: reassignments and preferred elections. Each runs in the thread of a `Desk`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from logstore.cli.broker_operator import BrokerOperator
from logstore.cli.brokers import Brokers
from logstore.cli.cluster_plans import (
    BadPlan,
    Plan,
    check_alive,
    check_partitions,
    encode_plan,
    is_led_as_preferred,
    parse_plan,
    plan_back,
)
from logstore.disk.topic_partition import TopicPartition


def execute(brokers: Brokers, plan: object, *, may_join: bool) -> dict[str, Any]:
    """Ask the controller to carry a plan out, and return the one that rolls it back.

    Raises `BadPlan`, and `NoSuchSubject` for a partition that does not exist.
    Unlike the command, which skips partitions that are gone, it does all of the plan or nothing.
    """
    if not isinstance(plan, dict):
        raise BadPlan('"plan" is missing or not an object; write it as logstore reassign generate does')
    wanted: Plan = parse_plan(json.dumps(plan))
    to = BrokerOperator(brokers)
    cluster = to.read({each.topic for each in wanted})
    current = dict(cluster.partitions())
    check_partitions(cluster, wanted)
    check_alive(cluster, wanted)
    to.move(wanted, may_join=may_join)
    return {
        "partitions": len(wanted),
        "rollback": json.loads(encode_plan({each: current[each] for each in wanted})),
    }


def cancel(brokers: Brokers, partitions: Sequence[TopicPartition]) -> dict[str, Any]:
    """Move partitions that are under way back to their previous replicas.

    Raises `BadPlan` if none is, and `NoSuchSubject` for a partition that does not exist.
    """
    to = BrokerOperator(brokers)
    cluster = to.read({each.topic for each in partitions})
    check_partitions(cluster, partitions)
    back = plan_back(cluster, partitions)
    if not back:
        raise BadPlan("none of these partitions is being reassigned")
    to.move_back(back)
    return {"partitions": len(back)}


def elect(brokers: Brokers, partitions: Sequence[TopicPartition] | None) -> dict[str, Any]:
    """Elect preferred leaders, for all partitions or these; return what changed.

    Raises `NoSuchSubject` for a partition that does not exist, and `BadPlan` if some were not elected: the
    others were.
    """
    to = BrokerOperator(brokers)
    cluster = to.read(None if partitions is None else {each.topic for each in partitions})
    existing = [each for each, _ in cluster.partitions()]
    wanted = existing if partitions is None else list(partitions)
    check_partitions(cluster, wanted)
    needed = [each for each in wanted if not is_led_as_preferred(cluster, each)]
    if needed and (refused := to.elect(needed)):
        more = f" ({len(refused)} of {len(needed)} partitions)" if len(needed) > 1 else ""
        raise BadPlan(f"{next(iter(refused.values()))}{more}")
    return {"partitions": len(wanted), "needed": len(needed)}

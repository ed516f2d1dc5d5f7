"""Views of a reading of the cluster, as objects for JSON. Pure.

A replica of a partition has one of these marks, which `marks` puts in the order of the replicas:

    L  leads, in sync        I  follows, in sync          A  is being added, not yet in sync
    O  out of sync           S  leads, but is silent or gone
    D  on a broker that is silent or gone                 N  out of sync, and nobody leads
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from logstore.cli.cluster_plans import Plan, is_led_as_preferred, is_unavailable, is_under_replicated
from logstore.cli.console.desk import Seen
from logstore.cli.log_dirs import LogDir
from logstore.cli.trouble import Rank
from logstore.cli.troubles import Observed
from logstore.disk.topic_partition import TopicPartition

Fact: TypeAlias = dict[str, Any]

MOST_TROUBLES: Final = 100
_BAD: Final = frozenset("OSDN")


def broker_ids(observed: Observed) -> list[int]:
    """Return the brokers that are registered or should hold a replica, in order."""
    cluster = observed.cluster
    return sorted({*cluster.brokers, *(each for _, replicas in cluster.partitions() for each in replicas)})


def broker_state(observed: Observed, broker: int) -> str:
    """Return up, stopping, silent (registered, without an answer) or gone (not registered)."""
    if broker not in observed.cluster.brokers:
        return "gone"
    if broker in observed.silent:
        return "silent"
    return "stopping" if broker in observed.stopping else "up"


def overview(seen: Seen) -> Fact:
    """Return brokers, counts and problems of the cluster."""
    observed = seen.observed
    cluster = observed.cluster
    led, held, out = Counter[int](), Counter[int](), Counter[int]()
    unavailable = short = 0
    for each, replicas in cluster.partitions():
        state = cluster.states.get(each)
        held.update(replicas)
        if state is not None:
            led[state.leader] += 1
            out.update(broker for broker in replicas if broker not in state.isr)
        unavailable += is_unavailable(cluster, each)
        short += is_under_replicated(cluster, each)
    dirs: dict[int, list[LogDir]] = {}
    for each_dir in observed.log_dirs:
        dirs.setdefault(each_dir.broker, []).append(each_dir)
    brokers = []
    for broker in broker_ids(observed):
        known = cluster.brokers.get(broker)
        brokers.append(
            {
                "id": broker,
                "host": known.host if known else None,
                "port": known.port if known else None,
                "rack": (known.rack or None) if known else None,
                "state": broker_state(observed, broker),
                "is_controller": broker == cluster.controller,
                "leads": led[broker],
                "replicas": held[broker],
                "out_of_sync": out[broker],
                "bytes": sum(sum(each.sizes.values()) for each in dirs.get(broker, ())),
                "log_dirs": [
                    {
                        "path": each.path,
                        "problem": each.problem or each.error or None,
                        "total_bytes": each.total_bytes,
                        "usable_bytes": each.usable_bytes,
                        "replicas": len(each.replicas),
                    }
                    for each in dirs.get(broker, ())
                ],
            }
        )
    return {
        "as_of_ms": seen.at_ms,
        "took_ms": round(1000 * seen.took_s),
        "controller": cluster.controller,
        "brokers": brokers,
        "topics": len(cluster.topics),
        "partitions": sum(len(topic.assignment.partitions) for topic in cluster.topics.values()),
        "unavailable": unavailable,
        "under_replicated": short,
        "not_preferred": sum(not is_led_as_preferred(cluster, each) for each, _ in cluster.partitions()),
        "moving": sum(1 for _ in moving(observed)),
        "deleting": sorted(cluster.doomed),
        "troubles": [each.facts() for each in seen.causes[:MOST_TROUBLES]],
        "troubles_in_all": len(seen.causes),
        "is_sound": all(each.rank >= Rank.UNDER_WAY for each in seen.troubles),
    }


def moving(observed: Observed) -> Iterable[TopicPartition]:
    """Yield the partitions that a reassignment is moving."""
    for name, topic in sorted(observed.cluster.topics.items()):
        known = topic.assignment
        for number in sorted({*known.adding_replicas, *known.removing_replicas}):
            if any(observed.cluster.motion(each := TopicPartition(name, number))):
                yield each


def ends_of(observed: Observed) -> dict[int, dict[TopicPartition, int]]:
    """Return the end offsets of the replicas of each broker."""
    found: dict[int, dict[TopicPartition, int]] = {}
    for each in observed.log_dirs:
        found.setdefault(each.broker, {}).update(each.end_offsets)
    return found


def marks(observed: Observed, each: TopicPartition, replicas: Sequence[int]) -> str:
    """Return a mark for each replica, as the module lists them."""
    cluster = observed.cluster
    state, adding = cluster.state(each), cluster.motion(each).adding
    found = []
    for broker in replicas:
        is_down = broker not in cluster.brokers or broker in observed.silent
        if broker == state.leader:
            found.append("S" if is_down else "L")
        elif is_down:
            found.append("D")
        elif broker in state.isr:
            found.append("I")
        elif broker in adding:
            found.append("A")
        else:
            found.append("N" if state.leader < 0 else "O")
    return "".join(found)


def lags(
    ends: Mapping[int, Mapping[TopicPartition, int]],
    each: TopicPartition,
    replicas: Sequence[int],
    leader: int,
) -> list[int | None]:
    """Return how many records each replica is behind its leader; None if that is unknown.

    The brokers answer one after the other, so under load a replica in sync may seem a little behind.
    """
    end = ends.get(leader, {}).get(each)
    known = [ends.get(broker, {}).get(each) for broker in replicas]
    return [None if end is None or own is None else max(end - own, 0) for own in known]


class Wanted(NamedTuple):
    """The partitions to show: of all topics, of one, or those with problems; `limit` from `offset` on."""

    offset: int = 0
    limit: int = 1000
    topic: str = ""
    only_bad: bool = False


def partitions(seen: Seen, wanted: Wanted) -> Fact:
    """Return a page of the partitions, a row each: compact, because there may be thousands.

    A row is the place of its topic in `topics`, the partition, leader, epoch, replicas, marks, the lags of
    the replicas (or 0 if none is behind), and 1 if it is moving.
    """
    observed = seen.observed
    cluster = observed.cluster
    ends = ends_of(observed)
    is_moving = set(moving(observed))
    in_trouble = {one for each in seen.troubles if each.rank < Rank.UNDER_WAY for one in each.partitions}
    topics: dict[str, int] = {}
    rows: list[list[Any]] = []
    total = 0
    for each, replicas in cluster.partitions():
        if wanted.topic and each.topic != wanted.topic:
            continue
        is_shown = wanted.offset <= total < wanted.offset + wanted.limit
        if not is_shown and not wanted.only_bad:
            total += 1
            continue
        signs = marks(observed, each, replicas)
        if wanted.only_bad and each not in in_trouble and not _BAD.intersection(signs):
            continue
        total += 1
        if not is_shown:
            continue
        state = cluster.state(each)
        behind = lags(ends, each, replicas, state.leader)
        place = topics.setdefault(each.topic, len(topics))
        rows.append(
            [
                place,
                each.partition,
                state.leader,
                state.leader_epoch,
                replicas,
                signs,
                behind if any(behind) else 0,
                int(each in is_moving),
            ]
        )
    return {
        "as_of_ms": seen.at_ms,
        "total": total,
        "offset": wanted.offset,
        "brokers": [
            {"id": broker, "state": broker_state(observed, broker)} for broker in broker_ids(observed)
        ],
        "topics": list(topics),
        "rows": rows,
    }


def topics(seen: Seen, match: str, offset: int, limit: int) -> Fact:
    """Return a page of the topics whose name contains `match`."""
    observed = seen.observed
    cluster = observed.cluster
    sizes = Counter[str]()
    for each_dir in observed.log_dirs:
        for where, size in each_dir.sizes.items():
            sizes[where.topic] += size
    names = sorted(name for name in cluster.topics if match in name)
    rows = []
    for name in names[offset : offset + limit]:
        held = cluster.topics[name].assignment.partitions
        parts = [TopicPartition(name, number) for number in held]
        rows.append(
            {
                "name": name,
                "partitions": len(held),
                "replication_factor": max(map(len, held.values()), default=0),
                "min_isr": observed.min_isr.get(name),
                "unavailable": sum(is_unavailable(cluster, each) for each in parts),
                "under_replicated": sum(is_under_replicated(cluster, each) for each in parts),
                "bytes": sizes[name],
                "is_doomed": name in cluster.doomed,
            }
        )
    return {"as_of_ms": seen.at_ms, "total": len(names), "offset": offset, "topics": rows}


def partition(seen: Seen, each: TopicPartition) -> Fact | None:
    """Return one partition and its replicas; None if there is none of this name."""
    observed = seen.observed
    cluster = observed.cluster
    topic = cluster.topics.get(each.topic)
    if topic is None or each.partition not in topic.assignment.partitions:
        return None
    replicas = topic.assignment.partitions[each.partition]
    state, motion = cluster.state(each), cluster.motion(each)
    behind = lags(ends_of(observed), each, replicas, state.leader)
    held = {one.broker: one for one in observed.log_dirs if each in one.replicas}
    rows = []
    for broker, mark, lag in zip(replicas, marks(observed, each, replicas), behind, strict=True):
        place = held.get(broker)
        rows.append(
            {
                "broker": broker,
                "mark": mark,
                "lag": lag,
                "end_offset": place.end_offsets.get(each) if place else None,
                "bytes": place.sizes.get(each) if place else None,
                "log_dir": place.path if place else None,
            }
        )
    return {
        "as_of_ms": seen.at_ms,
        "topic": each.topic,
        "partition": each.partition,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
        "min_isr": observed.min_isr.get(each.topic),
        "adding": list(motion.adding),
        "removing": list(motion.removing),
        "replicas": rows,
    }


def load(observed: Observed, plan: Plan) -> list[Fact]:
    """Return what each broker holds now and with the plan: replicas, preferred leaderships, bytes of logs.

    The bytes of a partition are those of its largest replica.
    """
    sizes = Counter[TopicPartition]()
    for each_dir in observed.log_dirs:
        for where, size in each_dir.sizes.items():
            sizes[where] = max(sizes[where], size)
    now, then = (Counter[tuple[int, str]]() for _ in range(2))
    for each, replicas in observed.cluster.partitions():
        for counts, lists in ((now, replicas), (then, plan.get(each, replicas))):
            for place, broker in enumerate(lists):
                counts[broker, "replicas"] += 1
                counts[broker, "preferred"] += place == 0
                counts[broker, "bytes"] += sizes[each]
    brokers = sorted({*broker_ids(observed), *(broker for broker, _ in then)})
    names = ("replicas", "preferred", "bytes")
    return [
        {
            "broker": broker,
            "now": {name: now[broker, name] for name in names},
            "then": {name: then[broker, name] for name in names},
        }
        for broker in brokers
    ]


def moves(seen: Seen) -> list[Fact]:
    """Return the partitions that are moving, and how far their new replicas are behind."""
    cluster, ends = seen.observed.cluster, ends_of(seen.observed)
    found = []
    for each in moving(seen.observed):
        state, (adding, removing) = cluster.state(each), cluster.motion(each)
        found.append(
            {
                "topic": each.topic,
                "partition": each.partition,
                "replicas": list(cluster.replicas(each)),
                "adding": list(adding),
                "removing": list(removing),
                "in_sync": [broker for broker in adding if broker in state.isr],
                "lag": lags(ends, each, adding, state.leader),
                "end_offset": ends.get(state.leader, {}).get(each),
            }
        )
    return found

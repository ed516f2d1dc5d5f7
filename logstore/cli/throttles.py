"""Throttles of a reassignment (KIP-73): the throttled replicas, and the settings. Pure.

leader     what the brokers with the partition's present replicas send
follower   what the brokers with its new replicas fetch
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from logstore.arguments import whole_number
from logstore.broker.configs import FOLLOWER_REPLICAS, LEADER_REPLICAS
from logstore.cli.cluster_plans import Plan
from logstore.cli.cluster_state import Cluster
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidConfig
from logstore.replication.throttle import covers

LISTS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)


class Rates(NamedTuple):
    """The rates of one broker in bytes a second; None if there is none."""

    leader: int | None = None
    follower: int | None = None


class Throttles(NamedTuple):
    """The settings for a plan: lists of each topic, and the brokers that need a rate."""

    of_topics: Mapping[str, Mapping[str, str]]
    brokers: tuple[int, ...]


def throttles_for(cluster: Cluster, plan: Plan) -> Throttles:
    """Return the throttles for the partitions of a plan that get new replicas; add to what is set."""
    listed: dict[str, tuple[set[str], set[str]]] = {}
    brokers: set[int] = set()
    for each, wanted in plan.items():
        adding = set(cluster.motion(each).adding)
        present = set(cluster.replicas(each)) - adding
        new = (set(wanted) | adding) - present
        if not new:
            continue
        brokers |= present | new
        leaders, followers = listed.setdefault(each.topic, (set(), set()))
        leaders |= {f"{each.partition}:{broker}" for broker in present}
        followers |= {f"{each.partition}:{broker}" for broker in new}
    of_topics = {}
    for topic, lists in listed.items():
        own = cluster.topics[topic].config
        of_topics[topic] = {
            name: _added(own.get(name, ""), replicas) for name, replicas in zip(LISTS, lists, strict=True)
        }
    return Throttles(of_topics, tuple(sorted(brokers)))


def _added(text: str, replicas: Iterable[str]) -> str:
    if text == "*":
        return text
    pairs = {*filter(None, text.split(",")), *replicas}
    return ",".join(sorted(pairs, key=lambda pair: [int(part) for part in pair.split(":")]))


def topics_with_lists(cluster: Cluster, topics: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the lists that each of these topics has."""
    found = {
        topic: tuple(name for name in LISTS if name in cluster.topics[topic].config)
        for topic in topics
        if topic in cluster.topics
    }
    return {topic: names for topic, names in found.items() if names}


def throttle_of(
    cluster: Cluster, rates: Mapping[int, Rates], each: TopicPartition
) -> dict[str, dict[int, int]]:
    """Return the rates that count for a partition's replicas: by side and broker."""
    topic = cluster.topics[each.topic]
    found: dict[str, dict[int, int]] = {}
    for side, name in zip(Rates._fields, LISTS, strict=True):
        text = topic.config.get(name, "")
        limits = {
            broker: rate
            for broker in topic.assignment.partitions[each.partition]
            if text
            and covers(text, each.partition, broker)
            and (rate := getattr(rates.get(broker, Rates()), side)) is not None
        }
        if limits:
            found[side] = limits
    return found


def told(throttle: Mapping[str, Mapping[int, int]]) -> str:
    """Describe a throttle: `throttled: leader 1 at 1000, follower 3 at 1000 bytes/s`."""
    parts = [f"{side} {broker} at {rate}" for side, of in throttle.items() for broker, rate in of.items()]
    return f"throttled: {', '.join(parts)} bytes/s" if parts else ""


def rates_in(settings: Mapping[str, str], names: Iterable[str]) -> Rates:
    """Return the rates among a broker's settings. Raises `InvalidConfig`."""
    found = []
    for name in names:
        text = settings.get(name)
        rate = None if text is None else whole_number(text, 0)
        if text is not None and rate is None:
            raise InvalidConfig(f"{name} is {text!r}; expected bytes a second")
        found.append(rate)
    return Rates(*found)

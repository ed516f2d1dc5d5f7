"""The state of a cluster as clients see it, and whether it is at rest. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


class Partition(NamedTuple):
    """A partition in a broker's answer to Metadata."""

    error: int
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


class Told(NamedTuple):
    """A broker's answer to Metadata."""

    brokers: tuple[int, ...]
    controller: int
    partitions: Mapping[Place, Partition]
    errors: Mapping[str, int]


@dataclass(frozen=True)
class View:
    """The brokers that are awake, what each tells, and the nodes of the metadata store."""

    awake: tuple[int, ...]
    told: Mapping[int, Told]
    nodes: Mapping[str, bytes]

    @property
    def registered(self) -> tuple[int, ...]:
        head = "/brokers/ids/"
        return tuple(sorted(int(each.removeprefix(head)) for each in self.nodes if each.startswith(head)))

    def state(self, place: Place) -> dict[str, Any] | None:
        """Return a partition's state node."""
        data = self.nodes.get(f"/brokers/topics/{place.topic}/partitions/{place.partition}/state")
        return json.loads(data) if data else None

    def topic(self, name: str) -> dict[str, Any] | None:
        data = self.nodes.get(f"/brokers/topics/{name}")
        return json.loads(data) if data else None

    def places(self, topic: str) -> list[Place]:
        found = self.topic(topic)
        return sorted(Place(topic, int(each)) for each in found["partitions"]) if found else []


def unrest(view: View, topics: list[str]) -> str:
    """Return why a cluster has not come to rest, or nothing."""
    if (registered := view.registered) != view.awake:
        return f"brokers {registered} are registered"
    if not view.awake:
        return ""
    for number, told in view.told.items():
        if told.brokers != view.awake:
            return f"broker {number} lists brokers {told.brokers}"
        if told.controller not in view.awake:
            return f"broker {number} names controller {told.controller}"
    if len({told.controller for told in view.told.values()}) > 1:
        return "brokers name different controllers"
    for topic in topics:
        if why := _of_topic(view, topic):
            return why
    return ""


def _of_topic(view: View, topic: str) -> str:
    node, places = view.topic(topic), view.places(topic)
    is_complete = all(
        set(replicas) <= set(view.awake) for replicas in (node["partitions"].values() if node else ())
    )
    if f"/admin/delete_topics/{topic}" in view.nodes:
        return f"{topic} is being deleted" if is_complete else ""
    if node is not None and is_complete and (node.get("adding_replicas") or node.get("removing_replicas")):
        return f"{topic} is being reassigned"
    for place in places:
        if why := _of_partition(view, place, node or {}):
            return why
    for number, told in view.told.items():
        if extra := {each for each in told.partitions if each.topic == topic} - set(places):
            return f"broker {number} lists {extra}"
    return ""


def _of_partition(view: View, place: Place, node: Mapping[str, Any]) -> str:
    state, replicas = view.state(place), node["partitions"][str(place.partition)]
    if state is None:
        return f"{place} has no state"
    awake = set(view.awake) & set(replicas)
    if state["leader"] in view.awake:
        if set(state["isr"]) != awake:
            return f"{place} has the ISR {state['isr']}"
    elif state["leader"] != -1:
        return f"{place} is led by {state['leader']}"
    wanted = (state["leader"], state["leader_epoch"], tuple(replicas), tuple(sorted(state["isr"])))
    for number, told in view.told.items():
        part = told.partitions.get(place)
        if part is None or (part.leader, part.epoch, part.replicas, part.isr) != wanted:
            return f"broker {number} tells {part} of {place}; its state is {wanted}"
    return ""

"""The compared state of a cluster at rest: a flat table of values by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from logstore.disk.errors import EngineError
from logstore.format.batch import walk
from tests.cluster_judge.sides import Side
from tests.cluster_judge.views import Place, View

Snapshot = dict[str, Any]

UNREST: Final = "unrest"
"""Why a cluster has not come to rest; it stands for all else."""
_EARLIEST, _LATEST = -2, -1
_CLOCKS_AND_PORTS: Final = frozenset({"timestamp", "port", "jmx_port", "endpoints", "host", "block_end"})
_OURS_ALONE: Final = frozenset(
    {
        *("clean", "continues", "empty", "damaged", "isr_broker_epochs", "min_insync", "eligible", "writer"),
        *("eligible_broker_epochs", "durability", "all_synced", "original_replicas", "leaving_replicas"),
    }
)
"""Fields that docs/metadata-store.md names as added here; Kafka's readers skip them."""
_NO_SETTINGS: Final = {"version": 1, "config": {}}
"""The node of who has no settings, and may have no node."""
_BY_EPOCHS: Final = frozenset({"leader_epoch", "controller_epoch"})


@dataclass
class Baseline:
    """The epochs and log starts of a cluster when it was last at rest."""

    elections: int = 0
    """Controllers so far, without those that the judge has called for."""
    epochs: dict[Place, int] = field(default_factory=dict)
    starts: dict[Place, int] = field(default_factory=dict)
    """The log starts. What lies below them is deleted at any time."""


def snapshot(side: Side, view: View, topics: Sequence[str], last: Baseline) -> Snapshot:
    """Return what a cluster shows of these topics; leader epochs as their rise since it was last at rest."""
    found: Snapshot = {"brokers": view.awake}
    found["controllers"] = elections(side, view) - last.elections
    places = [place for topic in topics for place in view.places(topic)]
    told = next(iter(view.told.values()), None)
    for topic, error in (told.errors if told else {}).items():
        found[f"{short(topic)} error"] = error
    for place in places:
        state = view.state(place) or {"leader": -1, "leader_epoch": 0}
        name = f"{short(place.topic)}-{place.partition}"
        part = told.partitions.get(place) if told else None
        if part is not None:
            found |= {f"{name} told {field}": value for field, value in part._asdict().items()}
            del found[f"{name} told epoch"]
        found[f"{name} epoch rise"] = state["leader_epoch"] - last.epochs.get(place, 0)
        if state["leader"] in view.awake:
            found |= _of_leader(side, name, state["leader"], state["isr"], place)
            last.starts[place] = found[f"{name} log start"][1]
    found |= _of_log_dirs(side, view, topics, last.starts)
    found |= _of_files(side, topics, last.starts)
    found |= _of_nodes(view, topics)
    return found


def elections(side: Side, view: View) -> int:
    """Return how many controllers there were, without those that the judge has called for."""
    return int(view.nodes.get("/controller_epoch", b"0")) - side.depositions


def short(topic: str) -> str:
    """Return a topic's name without its story."""
    return topic.rpartition(".")[2]


def _of_leader(side: Side, name: str, leader: int, isr: Sequence[int], place: Place) -> Snapshot:
    start = side.offset(leader, place, _EARLIEST, 0)
    found: Snapshot = {f"{name} log start": start}
    found[f"{name} high watermark"] = side.offset(leader, place, _LATEST, 0)
    found[f"{name} last stable offset"] = side.offset(leader, place, _LATEST, 1)
    found[f"{name} producers"] = side.producers(leader, place)
    state = json.loads(
        side.node(f"/brokers/topics/{place.topic}/partitions/{place.partition}/state") or b"{}"
    )
    for replica in state.get("isr", ()):
        if replica in side.awake:
            part = side.fetch(replica, place, max(start[1], 0))
            found[f"{name} at {replica}"] = {
                "error": part.error_code,
                "high watermark": part.high_watermark,
                "log start": part.log_start_offset,
                "batches": batches(bytes(part.records or b"")),
            }
    return found


def batches(data: bytes) -> list[Any]:
    """Return the offsets, the values and the rank of the leader epoch of each batch."""
    found: list[Any] = []
    try:
        for batch in walk(memoryview(data)):
            values = [each.value.decode() for each in batch.records() if each.value is not None]
            found.append([batch.base_offset, batch.leader_epoch, values])
    except EngineError as error:
        found.append([type(error).__name__, -1, []])
    ranks = _ranks(epoch for _, epoch, _ in found)
    return [[offset, ranks[epoch], values] for offset, epoch, values in found]


def _ranks(epochs: Any) -> dict[int, int]:
    return {epoch: rank for rank, epoch in enumerate(sorted(set(epochs)))}


def _of_log_dirs(side: Side, view: View, topics: Sequence[str], starts: Mapping[Place, int]) -> Snapshot:
    found: Snapshot = {}
    for number in view.awake:
        for _path, topic, part in side.log_dirs(number, topics):
            name = f"{short(topic)}-{part.partition_index} in log dirs of {number}"
            if part.is_future_key:
                name += " (future)"
            is_whole = starts.get(Place(topic, part.partition_index), 0) <= 0
            found[name] = {"size": part.partition_size if is_whole else "", "lag": part.offset_lag}
    return found


def _of_files(side: Side, topics: Sequence[str], starts: Mapping[Place, int]) -> Snapshot:
    """Read the directories of brokers that do not run."""
    found: Snapshot = {}
    for number in side.servers.ports:
        if side.servers.is_running(number):
            continue
        for log_dir in side.servers.log_dirs(number):
            if (log_dir / ".kafka_cleanshutdown").exists():
                found |= _of_checkpoints(log_dir, number, topics)
            for directory in sorted(log_dir.iterdir()) if log_dir.exists() else ():
                topic, dash, partition = directory.name.rpartition("-")
                if topic in topics and dash and partition.isdecimal():
                    start = starts.get(Place(topic, int(partition)), 0)
                    found[f"{short(directory.name)} in files of {number}"] = _of_directory(directory, start)
    return found


def _of_checkpoints(log_dir: Path, number: int, topics: Sequence[str]) -> Snapshot:
    """Return what a broker that was stopped has noted of its logs."""
    found: Snapshot = {}
    for what in ("replication", "recovery-point"):
        for line in (log_dir / f"{what}-offset-checkpoint").read_text().splitlines()[2:]:
            topic, partition, offset = line.split()
            if topic in topics:
                found[f"{short(topic)}-{partition} in {what} checkpoint of {number}"] = int(offset)
    return found


def _of_directory(directory: Path, start: int) -> dict[str, Any]:
    data = b"".join(each.read_bytes() for each in sorted(directory.glob("*.log")))
    file = directory / "leader-epoch-checkpoint"
    lines = file.read_text().splitlines()[2:] if file.exists() else []
    entries = [[int(word) for word in line.split()] for line in lines]
    entries = [each for each in entries if each[1] > start] if start > 0 else entries
    ranks = _ranks(epoch for epoch, _ in entries)
    return {
        "batches": [each for each in batches(data) if each[0] >= start],
        "epochs": [[ranks[epoch], start] for epoch, start in entries],
        "metadata": (directory / "partition.metadata").exists(),
    }


def _of_nodes(view: View, topics: Sequence[str]) -> Snapshot:
    """Return the nodes that tell of these topics, and those of the whole cluster."""
    found: Snapshot = {}
    for path, data in view.nodes.items():
        if not _is_of_story(path, topics) or path.startswith("/config/changes/"):
            continue
        for topic in topics:
            path = path.replace(topic, short(topic))
        if (value := plain(data)) != _NO_SETTINGS:
            found[f"node {_numbered(path)}"] = value
    notices = [json.loads(data) for path, data in view.nodes.items() if path.startswith("/config/changes/")]
    told = [each.get("entity_path", "") for each in notices]
    found["config changes"] = sorted({short(each) for each in told if each.removeprefix("topics/") in topics})
    return found


def _is_of_story(path: str, topics: Sequence[str]) -> bool:
    if path.startswith(("/brokers/topics/", "/config/topics/", "/admin/delete_topics/")):
        return any(path.split("/")[3] == topic for topic in topics)
    if path.startswith(("/config/users/", "/config/clients/", "/config/ips/")):
        return any(topic in path.split("/") for topic in topics)
    return path.startswith(("/admin/", "/config/brokers/", "/isr_change", "/log_dir_event"))


def _numbered(path: str) -> str:
    """Return the path with the number of a sequential node left out."""
    return path.rstrip("0123456789") if path.startswith(("/isr_change", "/log_dir_event")) else path


def plain(data: bytes) -> Any:
    """Return a node's JSON without clocks, ports, ids, epochs, and fields that are ours alone."""
    try:
        value = json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
    return _plain(value)


def _plain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kept = {key: _plain(each) for key, each in value.items() if key not in _CLOCKS_AND_PORTS | _OURS_ALONE}
    hidden: dict[str, Callable[[Any], Any]] = {name: lambda _: "an epoch" for name in _BY_EPOCHS}
    hidden |= {"topic_id": lambda _: "an id", "isr": sorted}
    return {key: hidden.get(key, lambda each: each)(each) for key, each in kept.items()}


def differences(kafka: Snapshot, ours: Snapshot) -> dict[str, tuple[Any, Any]]:
    """Return what differs, by its name: Kafka's value and ours, None for what a side does not have."""
    names = {*kafka, *ours}
    return {
        name: (kafka.get(name), ours.get(name))
        for name in sorted(names & {UNREST} or names)
        if kafka.get(name) != ours.get(name)
    }

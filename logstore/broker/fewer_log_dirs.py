"""Whether a broker may start on fewer log dirs than it has had: if it has a log for each of its replicas.

A log dir is given up when its replicas were moved to the others (`logstore brokers move-log`). The metadata
store lists the replicas; each must have a directory in a log dir that is left, of the topic with this id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from logstore.broker.identity import AskStore
from logstore.broker.store_reads import read
from logstore.checkpoint.identity import read_partition_metadata
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import DirectoryEntry, Disk
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Children, Get

_WHAT: Final = "the topics"


async def replicas_without_log(
    ask: AskStore, broker_id: int, log_dirs: Sequence[str], *, disk: Disk
) -> list[str]:
    """Return the replicas of a broker that are in none of these log dirs, by the names of their directories.

    A topic whose node cannot be read counts as one of them. Raises `MetadataStoreFailed`.
    """
    there = {entry.name: f"{each}/{entry.name}" for each in log_dirs for entry in _scan(disk, each)}
    names = (await read(ask, Children(layout.TOPICS_PATH), _WHAT)).children
    nodes = await asyncio.gather(*(read(ask, Get(layout.topic_path(name)), _WHAT) for name in names))
    missing = []
    for name, node in zip(names, nodes, strict=True):
        if node.stat is None:
            continue
        try:
            topic = layout.parse_topic(node.data)
        except CorruptMetadata:
            missing.append(name)
            continue
        for number, replicas in topic.partitions.items():
            is_here = broker_id in (*replicas, *topic.leaving_replicas.get(number, ()))
            directory = there.get(f"{name}-{number}")
            if is_here and (directory is None or not _is_of(disk, directory, topic.topic_id)):
                missing.append(f"{name}-{number}")
    return sorted(missing)


def _scan(disk: Disk, log_dir: str) -> Sequence[DirectoryEntry]:
    try:
        return disk.scan(log_dir)
    except OSError:
        return ()


def _is_of(disk: Disk, directory: str, topic_id: str) -> bool:
    """Whether a directory belongs to the topic with this id, or to a topic of its name if one has no id."""
    try:
        found = read_partition_metadata(disk, directory)
    except (OSError, CorruptCheckpoint):
        return False
    return not found or not topic_id or found == topic_id

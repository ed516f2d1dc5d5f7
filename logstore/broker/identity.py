"""The owner of log dirs: the cluster's id, and `meta.properties` in every log dir.

    /cluster/id      {"version":"1","id":"…"}     written by the first broker that finds none
    meta.properties  version, broker.id, cluster.id, directory.id

A broker does not start on log dirs of another cluster or another broker: it would take their logs for strays
and delete them. The check comes before any log is opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random

from logstore.checkpoint.identity import MetaProperties, read_meta_properties, write_meta_properties
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import Disk, make_durable_dir
from logstore.disk.ids import new_id
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.metastore.operations import Create, Get, Operation, Outcome, StoreError

AskStore = Callable[[Operation], Awaitable[Outcome]]
_ROUNDS = 20


class InconsistentClusterId(EngineError):
    """A log dir belongs to another cluster."""

    code = ErrorCode.INCONSISTENT_CLUSTER_ID


class InconsistentBrokerId(EngineError):
    """A log dir belongs to another broker."""

    code = ErrorCode.INVALID_CONFIG


async def find_cluster_id(ask: AskStore, random: Random) -> str:
    """Return the cluster's id; write a new one if it has none.

    Raises `CorruptMetadata`, and `MetadataStoreFailed` if the store loses every answer.
    """
    wanted = new_id(random)
    for _ in range(_ROUNDS):
        found = await ask(Get(layout.CLUSTER_ID_PATH))
        if found.error is None:
            return layout.parse_cluster_id(found.data)
        if found.error is StoreError.NO_NODE:
            data = layout.encode_cluster_id(wanted)
            await ask(Create(layout.CLUSTER_ID_PATH, data, make_parents=True))
    raise MetadataStoreFailed("the metadata store does not answer reads of the cluster id; check the store")


def claim_log_dirs(
    log_dirs: Sequence[str], *, disk: Disk, broker_id: int, cluster_id: str, random: Random
) -> list[str]:
    """Check that every dir is this broker's, and mark new ones; return the dirs that failed.

    The log manager decides about dirs that cannot be read or written. Raises `InconsistentClusterId`,
    `InconsistentBrokerId` and `CorruptCheckpoint` before anything is written.
    """
    unmarked, failed = [], []
    for directory in log_dirs:
        try:
            found = read_meta_properties(disk, directory)
        except OSError:
            failed.append(directory)
            continue
        if found is None:
            unmarked.append(directory)
            continue
        if found.node_id != broker_id:
            raise InconsistentBrokerId(
                f"{directory} belongs to broker {found.node_id}, but this is broker {broker_id}; "
                f"start it with --node-id {found.node_id} or use another log dir"
            )
        if found.cluster_id not in (None, cluster_id):
            raise InconsistentClusterId(
                f"{directory} belongs to cluster {found.cluster_id}, but the metadata store to cluster "
                f"{cluster_id}; name the right store or use another log dir"
            )
    for directory in unmarked:
        properties = MetaProperties(node_id=broker_id, cluster_id=cluster_id, directory_id=new_id(random))
        try:
            make_durable_dir(disk, directory)
            write_meta_properties(disk, directory, properties)
        except OSError:
            failed.append(directory)
    return failed

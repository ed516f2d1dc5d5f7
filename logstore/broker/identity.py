"""The owner of log dirs: the cluster's id, and `meta.properties` in every log dir.

    /cluster/id      {"version":"1","id":"…"}     written by the first broker that finds none
    meta.properties  version, broker.id, cluster.id, directory.id, logstore.log.dirs

A broker does not start on log dirs of another cluster or another broker: it would take their logs for strays
and delete them. Nor does it start on fewer log dirs than before (`logstore.log.dirs` is their number), unless
they have all its replicas (`fewer_log_dirs.py`): it would begin the logs in the others anew, empty, and count
as in sync with them. The check comes before any log is opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from logstore.checkpoint.entry_files import INT32_MAX, parse_number
from logstore.checkpoint.identity import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import Disk, make_durable_dir
from logstore.disk.ids import new_id
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.metastore.operations import Create, Get, Operation, Outcome, StoreError

AskStore = Callable[[Operation], Awaitable[Outcome]]
_ROUNDS = 20
_MOST_NAMES = 3
LOG_DIRS = "logstore.log.dirs"
"""The property of `meta.properties` with the number of the broker's log dirs; Kafka ignores it."""


class InconsistentClusterId(EngineError):
    """A log dir belongs to another cluster."""

    code = ErrorCode.INCONSISTENT_CLUSTER_ID


class InconsistentBrokerId(EngineError):
    """A log dir belongs to another broker."""

    code = ErrorCode.INVALID_CONFIG


class LogDirMissing(EngineError):
    """The broker has had more log dirs than it is started with."""

    code = ErrorCode.INVALID_CONFIG

    def for_want_of(self, replicas: Sequence[str]) -> LogDirMissing:
        """Return the error with the replicas that are in none of the log dirs named."""
        more = f" and {len(replicas) - _MOST_NAMES} more" if len(replicas) > _MOST_NAMES else ""
        return LogDirMissing(
            f"{self}. These replicas have no log in the dirs named: {', '.join(replicas[:_MOST_NAMES])}{more}"
        )


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
    log_dirs: Sequence[str],
    *,
    disk: Disk,
    broker_id: int,
    cluster_id: str,
    random: Random,
    may_be_fewer: bool = False,
) -> list[str]:
    """Check that every dir is this broker's and none is missing, and mark them; return the dirs that failed.

    The log manager decides about dirs that cannot be read or written. Raises `InconsistentClusterId`,
    `InconsistentBrokerId`, `LogDirMissing` (unless they `may_be_fewer`) and `CorruptCheckpoint` before
    anything is written.
    """
    marks: dict[str, MetaProperties | None] = {}
    failed = []
    for directory in log_dirs:
        try:
            found = read_meta_properties(disk, directory)
        except OSError:
            failed.append(directory)
            continue
        marks[directory] = found
        if found is None:
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
    if not may_be_fewer:
        _check_none_is_missing(log_dirs, {each: found for each, found in marks.items() if found is not None})
    count = str(len(log_dirs))
    for directory, found in marks.items():
        if found is None:
            found = MetaProperties(node_id=broker_id, cluster_id=cluster_id, directory_id=new_id(random))
        elif found.extra.get(LOG_DIRS) == count:
            continue
        try:
            make_durable_dir(disk, directory)
            write_meta_properties(disk, directory, replace(found, extra={**found.extra, LOG_DIRS: count}))
        except OSError:
            failed.append(directory)
    return failed


def _check_none_is_missing(log_dirs: Sequence[str], marked: Mapping[str, MetaProperties]) -> None:
    counts = {
        directory: parse_number(found.extra[LOG_DIRS], INT32_MAX, where=f"{directory}: {LOG_DIRS}")
        for directory, found in marked.items()
        if LOG_DIRS in found.extra
    }
    most = max(counts.values(), default=0)
    if most > len(log_dirs):
        raise LogDirMissing(
            f"log.dirs names {len(log_dirs)} of the {most} log dirs that this broker has had; put the others "
            "back. In the place of a lost one name an empty directory: its replicas are fetched from other "
            "brokers. To give one up, put it back and move its replicas to the others first (logstore "
            "brokers move-log)"
        )

"""Nodes by which tools and brokers tell the controller something: read, acted on, removed.

    /admin/preferred_replica_election              one node, removed when its elections are over
    /isr_change_notification/isr_change_<n>        children: each told once
    /log_dir_event_notification/log_dir_event_<n>

What a notice asks for is done before the notice goes. A controller that dies in between leaves it to the
next one, which does it again or finds it done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from logstore.disk.marks import mark
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.controller.partition_states import ROUNDS, check_fence
from logstore.replication.metastore.operations import Children, Delete, Get, Stat, StoreError


class Notice(NamedTuple):
    path: str
    data: bytes
    stat: Stat


def read_notices(context: Context, directory: str) -> Steps[list[Notice]]:
    """What lies in `directory`, oldest first; the watch is set by the very read."""
    (listing,) = yield (Children(directory, watch=True),)
    paths = [f"{directory}/{name}" for name in listing.children]
    reads = yield tuple(Get(path) for path in paths)
    found = zip(paths, reads, strict=True)
    return [Notice(path, read.data, read.stat) for path, read in found if read.stat is not None]


def drop_notices(context: Context, directory: str) -> Steps[None]:
    """At a takeover: everything is read and told anyway, so what was left for the one before goes unread."""
    yield from remove_notices(context, (yield from read_notices(context, directory)))


def remove_notices(context: Context, notices: Iterable[Notice]) -> Steps[None]:
    """Remove just what was read: another node in its place, or a newer version of it, stays.

    Raises `ControllerFenced`, or `MetadataConflict` if the store's answers keep getting lost.
    """
    remaining = list(notices)
    for _ in range(ROUNDS):
        if not remaining:
            return
        outcomes = yield tuple(
            context.fenced(Delete(notice.path, notice.stat.version)) for notice in remaining
        )
        in_doubt = []
        for notice, outcome in zip(remaining, outcomes, strict=True):
            check_fence(outcome)
            if outcome.error is StoreError.CONNECTION_LOSS:
                in_doubt.append(notice)
        reads = yield tuple(Get(notice.path) for notice in in_doubt)
        remaining = []
        for notice, read in zip(in_doubt, reads, strict=True):
            # The same path may hold a new notice by now: nobody has read that one.
            if read.stat is not None and read.stat.created_txid == notice.stat.created_txid:
                remaining.append(notice)
            else:
                mark("notices: the answer to a removal was lost, but the notice is gone")
    if remaining:
        raise MetadataConflict(f"{', '.join(notice.path for notice in remaining)} could not be removed")

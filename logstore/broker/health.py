"""`/healthz`: whether the broker is alive and ready, and its progress in loading logs. Pure.

    200  {"alive":true,"ready":true,"state":"running","broker_epoch":7}
    503  {"alive":true,"ready":false,"state":"recovering","percent":41.7,"log":"data/orders-3"}

`full_log_dirs` are those without room for an append; their leaderships go to other replicas in sync.
`damaged_partitions` names the damage in logs here, which is repaired from other replicas if they have the
offsets; `failed_partitions` names what cannot be mended or cannot follow, `failed_compactions` the logs that
grow because their last compaction failed. `event_loop` has the longest pauses
of the event loop in milliseconds, and the state `slow` for a minute after one that exceeded
`event.loop.pause.warn.ms`. `descriptors` is `short` while new connections wait because the remaining
descriptors are reserved for files. `audit_log`, with `audit.log.path`, is `failing` while its file cannot be
written. `scrub` is `failing` while the last scrub of a partition ended with an unexpected error.

A broker is ready when it is registered and not stopping. `/livez` answers 200 whenever the event loop runs:
use it to decide whether to kill the process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus

from logstore.broker.http import Page
from logstore.broker.metrics import Watched
from logstore.disk.files import Disk
from logstore.disk.topic_partition import partitions_among
from logstore.replication.healing import damaged_partitions, failed_partitions


class Loading:
    """Progress of loading logs: set by the log manager in its thread, read on the loop."""

    def __init__(self, directories: Sequence[str]) -> None:
        """`directories` are those of all partitions, in the order of opening."""
        self._places = {directory: place for place, directory in enumerate(directories)}
        self._place, self._fraction = 0, 0.0
        self.directory = ""
        self.is_over = False

    def __call__(self, directory: str, done: int, total: int) -> None:
        """Take note of progress; pass it to a log manager as `progress`."""
        self._place = self._places.get(directory, self._place)
        self._fraction = done / total if total else 1.0
        self.directory = directory

    @property
    def percent(self) -> float:
        """The share of logs that are loaded; a log in progress counts by its bytes."""
        if self.is_over or not self._places:
            return 100.0
        return round(100 * min((self._place + self._fraction) / len(self._places), 1.0), 1)


def partition_directories(disk: Disk, log_dirs: Sequence[str]) -> list[str]:
    """Return every partition's directory, in the order in which a log manager opens them."""
    found = []
    for log_dir in log_dirs:
        try:
            entries = disk.scan(log_dir)
        except OSError:
            continue  # the log manager reports it
        names = (entry.name for entry in entries if entry.is_directory)
        found += [f"{log_dir}/{name}" for _, name in partitions_among(names)]
    return found


def health(watched: Watched, loading: Loading, *, is_stopping: bool = False) -> Page:
    """Return the page."""
    node, pauses, descriptors = watched.node, watched.pauses, watched.descriptors
    audit, scrub = watched.audit, watched.scrub
    state = "running"
    facts: dict[str, object] = {}
    if is_stopping:
        state = "stopping"
    elif node is None:
        state = "recovering"
        facts = {"percent": loading.percent, "log": loading.directory}
    elif node.broker_epoch < 0:
        state = "registering"
    if node is not None:
        facts["broker_epoch"] = node.broker_epoch
        facts["offline_log_dirs"] = sorted(node.logs.offline_dirs)
        facts["full_log_dirs"] = sorted(node.replicas.full_dirs.since_ms)
        facts["damaged_partitions"] = damaged_partitions(node.replicas)
        facts["failed_partitions"] = {
            str(known): text for known, text in sorted(failed_partitions(node.replicas).items())
        }
        facts["failed_compactions"] = {str(each): text for each, text in node.logs.cleaner.failed.items()}
    if pauses is not None:
        facts["event_loop"] = {
            "state": "slow" if pauses.is_slow else "ok",
            "longest_pause_ms": round(1000 * pauses.longest_s),
            "longest_pause_last_minute_ms": round(1000 * pauses.last_minute_s),
            "bound_ms": round(1000 * pauses.bound_s),
            "longest_turn_ms": round(1000 * pauses.longest_turn_s),
            "longest_turn": pauses.longest_turn,
        }
    if descriptors is not None:
        facts["descriptors"] = {
            "state": "short" if descriptors.is_short else "ok",
            "open": descriptors.open,
            "limit": descriptors.limit,
            "held_back": descriptors.held_back,
        }
    if scrub is not None:
        facts["scrub"] = {
            "state": "failing" if scrub.failed else "ok",
            "passes": scrub.passes,
            "failed": dict(scrub.failed),
        }
    if audit is not None and audit.path:
        facts["audit_log"] = {
            "state": "failing" if audit.error else "ok",
            "path": audit.path,
            "failed_lines": audit.failed,
            "error": audit.error,
        }
    is_ready = state == "running"
    body = json.dumps({"alive": True, "ready": is_ready, "state": state, **facts}) + "\n"
    return Page(body.encode(), status=HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)


def alive() -> Page:
    """Return the page of `/livez`; it is read on the loop, so an answer proves that the loop runs."""
    return Page(b'{"alive":true}\n')

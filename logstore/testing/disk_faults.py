"""Faults of a simulated machine's disk; the functions act on a running host."""

from __future__ import annotations

import errno
from contextlib import suppress

from logstore.errors import DiskFull, LogDirOffline
from logstore.testing.disks.faulty import Fault
from logstore.testing.hosts import Host
from logstore.testing.timeline import Timeline


def fail_disk(time: Timeline, host: Host, operation: str | None, *, once: bool = False) -> None:
    """Make disk calls of this kind (None: any) fail: the next one, or all until the machine restarts."""
    assert host.faulty is not None, "disks of this seed cannot fail"
    fault = Fault(operation=operation, forever=not once)  # first: it may be none
    time.note(host.node_id, "has a dead disk:", operation or "all", "fails")
    time.stamp(f"disk{host.node_id}")
    time.tally.dead_disks += 1
    host.disk_is_dead = True
    host.faulty.inject(fault)


def fill_disk(time: Timeline, host: Host) -> None:
    """Fill the disk: every write that makes a file longer fails until `make_room`."""
    assert host.faulty is not None, "disks of this seed cannot fail"
    time.note(host.node_id, "has a full disk")
    time.stamp(f"full{host.node_id}")
    time.tally.full_disks += 1
    host.disk_is_full = True
    host.faulty.inject(Fault(operation="pwrite", errno=errno.ENOSPC, forever=True))


def make_room(time: Timeline, host: Host) -> None:
    """Make room on a full disk."""
    if host.disk_is_full and not host.disk_is_dead:
        assert host.faulty is not None
        time.note(host.node_id, "has room again")
        host.disk_is_full = False
        host.faulty.heal()


def slow_disk(time: Timeline, host: Host, extra_ms: int) -> None:
    """Make each sync take `extra_ms` longer; 0 ends it."""
    time.note(host.node_id, "syncs slower by", extra_ms)
    host.sync_delay_ms = extra_ms


def flush(time: Timeline, host: Host, *, sealed_only: bool) -> None:
    """Sync a node's logs: all of them, or only up to their active segments.

    A new log first writes its `partition.metadata`, which a full disk refuses: then nothing of it is synced.
    """
    assert host.node is not None
    logs = host.node.logs
    if sealed_only:
        logs.checkpoint_recovery_points()
    else:
        expected = {LogDirOffline: host.disk_is_dead, DiskFull: host.disk_is_full}
        for log in logs.logs().values():
            with suppress(*(error for error, is_expected in expected.items() if is_expected)):
                log.flush()
    time.stamp(f"flush{host.node_id}")

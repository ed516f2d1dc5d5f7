"""Facts that only this broker has: the layout of its logs, their losses, its state-change log."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from logstore.disk.files import Disk, OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.losses import Quarantine
from logstore.log.partition_log import PartitionLog
from logstore.replication.history import Event, of_lines, of_loss
from logstore.replication.partition import Partition
from logstore.replication.state_change_lines import Wanted, wanted_lines

MOST_SEGMENTS: Final = 500
MOST_LINES_BYTES: Final = 4 << 20
"""How much of the end of a state-change log is read for a timeline."""
MOST_LEDGERS: Final = 2_000
"""Of more partitions than these, the losses are shown for a selected topic only."""


@dataclass(frozen=True)
class Local:
    """One broker as its own process sees it. `partitions` are its replicas with a role."""

    node_id: int
    cluster_id: str
    state_changes: str = ""
    """The path of the state-change log; empty without one."""
    partitions: Mapping[TopicPartition, Partition] = field(default_factory=dict)

    def layout(self, each: TopicPartition) -> dict[str, Any] | None:
        """Return the log of a replica here: bounds, epochs, the newest segments, losses. None without one."""
        replica = self.partitions.get(each)
        return None if replica is None else layout(replica.log)

    def events(self, wanted: Wanted) -> list[Event]:
        """Return what the state-change log and the loss ledgers here say, by time. Raises `OSError`."""
        found: list[Event] = []
        if self.state_changes:
            for number, path in enumerate((f"{self.state_changes}.1", self.state_changes)):
                found += of_lines(wanted_lines(number, _last_lines(OsDisk(), path), wanted), wanted)
        chosen = [each for each in list(self.partitions) if wanted.selects(each)]
        if len(chosen) <= MOST_LEDGERS:
            for each in sorted(chosen):
                replica = self.partitions.get(each)
                if replica is not None:
                    place = f"broker {self.node_id}, {os.path.basename(replica.log.directory)}"
                    losses = Quarantine(replica.log.disk, replica.log.directory).losses()
                    found += [of_loss(loss, each, place) for loss in losses]
        return sorted(found, key=lambda event: event.time_ms)


def _last_lines(disk: Disk, path: str) -> Iterator[bytes]:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return
    with closing(file):
        start = max(file.size() - MOST_LINES_BYTES, 0)
        lines = file.pread(MOST_LINES_BYTES, start).split(b"\n")
    yield from lines[1 if start else 0 :]


def layout(log: PartitionLog) -> dict[str, Any]:
    """Return bounds, epochs, segments and losses of a log, at one moment as far as nobody writes."""
    segments = list(log.segments)
    shown = segments[-MOST_SEGMENTS:]
    end = log.log_end_offset
    ends = [*(each.base_offset for each in shown[1:]), end]
    return {
        "directory": log.directory,
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "log_end_offset": end,
        "recovery_point": log.recovery_point,
        "epochs": [{"epoch": each.epoch, "start_offset": each.start_offset} for each in log.epochs],
        "segments_in_all": len(segments),
        "segments": [
            {
                "base_offset": each.base_offset,
                "end_offset": end_offset,
                "bytes": each.size,
                "modified_ms": each.modified_ms or None,
                "is_sealed": each.seal is not None,
                "is_active": each is log.segments.active,
            }
            for each, end_offset in zip(shown, ends, strict=True)
        ],
        "losses": [loss.facts() for loss in Quarantine(log.disk, log.directory).losses()],
    }

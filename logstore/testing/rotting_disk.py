"""Rot on the disk of a simulated machine, and a way for checkers to read the disk without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogClosed, LogDirOffline, OutOfResources
from logstore.log.heal import CannotMend, Flush, Found, Steps, Wanted, mend
from logstore.log.log import Log
from logstore.log.partition_log import PartitionLog
from logstore.log.read import segment_base
from logstore.segment.index_faults import Columns, OffsetFaults, TimeFaults
from logstore.testing.hosts import Host
from logstore.testing.stored import Stored, parse_whole


@dataclass(frozen=True, slots=True, eq=False)
class Rot:
    """Bytes of a file that changed at `position`, from `sound` to `rotten`."""

    topic_partition: TopicPartition
    path: str
    position: int
    sound: bytes
    rotten: bytes
    start_offset: int
    end_offset: int
    """The base of the first batch that changed, and the end of the last one."""
    content: bytes
    """The file with the change; a log up to the end of the last batch that changed."""
    batches: tuple[Stored, ...] = ()
    """The batches that changed, as they were written."""
    life: int = -1
    """That of the host's process, of an index that the process had written."""

    @property
    def is_of_epochs(self) -> bool:
        """Whether it is an epoch file."""
        return self.path.endswith(LEADER_EPOCH_CHECKPOINT)

    def is_in_place(self, host: Host) -> bool:
        """Return whether the file still has the changed bytes, or what a cut of the log left of them.

        A file that was rebuilt or mended may have them by coincidence, so all of its bytes count. It may have
        grown.
        """
        found = bytes(host.disk.files().get(self.path, b""))
        common = min(len(found), len(self.content))
        left = found[self.position : min(common, self.position + len(self.sound))]
        return found[:common] == self.content[:common] and left != self.sound[: len(left)]

    def is_cut(self, host: Host) -> bool:
        """Return whether the log was cut within the changed bytes: no batch can be put back there."""
        return len(host.disk.files().get(self.path, b"")) < self.position + len(self.rotten)

    def end_in(self, log: PartitionLog) -> int:
        """Return the end of the changed batches that a cut of this log has left."""
        successor = log.segments.higher(self.start_offset)
        return self.end_offset if successor is None else min(self.end_offset, successor.base_offset)

    def write(self, host: Host, data: bytes) -> None:
        """Put `data` in the place of the changed bytes, durably."""
        file = host.disk.open(self.path, write=True)
        file.pwrite(data, self.position)
        file.sync()
        file.close()


def cannot_be_told(host: Host, rot: Rot) -> bool:
    """Whether it is in an index that still leads each search to the right place, and nobody can know better.

    A process knows what it has written. The next one judges each entry by the batches, until there is a seal.
    """
    stem, _, suffix = rot.path.rpartition(".")
    files = host.disk.files()
    if rot.life in (-1, host.life) or f"{stem}.seal" in files or f"{stem}.log" not in files:
        return False
    batches = parse_whole(bytes(files[f"{stem}.log"]))
    sizes = np.array([len(each.data) for each in batches], np.int64)
    columns = Columns(
        np.cumsum(sizes) - sizes,
        np.array([each.base for each in batches], np.int64),
        np.array([each.end - 1 for each in batches], np.int64),
        np.array([each.max_timestamp for each in batches], np.int64),
    )
    base, is_of_times = int(stem.rpartition("/")[2]), suffix == "timeindex"
    rows = np.frombuffer(bytes(files[rot.path]), ">i8,>i4" if is_of_times else ">i4,>i4")
    first, second = rows["f0"].astype(np.int64), rows["f1"].astype(np.int64)
    table = np.stack((first, base + second) if is_of_times else (base + first, second), axis=1)
    judging = (TimeFaults if is_of_times else OffsetFaults)(table)
    judging.add(columns)
    return not any(found.any() for found in judging.result().values())


def restore(host: Host, now_ms: int) -> None:
    """Put the original bytes back for good."""
    for rot in host.rots:
        if rot.is_in_place(host):
            put_back(host, rot, now_ms)
    host.rots = [rot for rot in host.rots if rot.is_in_place(host)]


def put_back(host: Host, rot: Rot, now_ms: int) -> None:
    """Put the original bytes back. In an open log by a mending: its seal and producers follow from them.

    They stay while the process is down or paused, another mending is under way, or the disk fails or is full.
    """
    if host.node is None or host.is_paused or host.disk_is_dead:
        return
    log = host.node.logs.logs().get(rot.topic_partition)
    if log is not None and rot.batches:
        with suppress(CannotMend, LogClosed, LogDirOffline, OutOfResources):
            base_offset = segment_base(log.partition, rot.start_offset)
            _mend_with(log, rot.batches, mend(log.partition, base_offset, now_ms=now_ms))
    elif not rot.is_cut(host):
        rot.write(host, rot.sound)


def _mend_with(log: Log, batches: Iterable[Stored], steps: Steps) -> None:
    """Send these batches to a mending, which ends if it wants others."""
    sent = Found(b"".join(batch.data for batch in batches), "the simulation")
    asked: Wanted | None = None
    found: Found | None = None
    with closing(steps), suppress(StopIteration):
        while True:
            step, found = steps.send(found), None
            if isinstance(step, Flush):
                log.flush()
            elif step is not None:
                if step == asked:
                    return
                asked, found = step, sent


@contextmanager
def as_written(host: Host) -> Iterator[None]:
    """Put the original bytes back on a machine's disk while a checker reads it."""
    host.rots = [rot for rot in host.rots if rot.is_in_place(host)]
    whole = [rot for rot in host.rots if not rot.is_cut(host)]
    for rot in whole:
        rot.write(host, rot.sound)
    try:
        yield
    finally:
        for rot in whole:
            rot.write(host, rot.rotten)

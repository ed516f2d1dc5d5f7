"""Rot on the disk of a simulated machine, and a way for checkers to read the disk without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT
from logstore.disk.topic_partition import TopicPartition
from logstore.testing.hosts import Host


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
    content: bytes = b""
    """The whole file with the change, of one that can be rebuilt."""

    @property
    def is_of_epochs(self) -> bool:
        """Whether it is an epoch file."""
        return self.path.endswith(LEADER_EPOCH_CHECKPOINT)

    def is_in_place(self, host: Host) -> bool:
        """Return whether the file still has the changed bytes.

        One that was rebuilt may have them by coincidence, so all of its bytes count. It may have grown.
        """
        found = bytes(host.disk.files().get(self.path, b""))
        end = self.position + len(self.rotten)
        is_there = found[self.position : end] == self.rotten
        common = min(len(found), len(self.content))
        return is_there and found[:common] == self.content[:common]

    def write(self, host: Host, data: bytes) -> None:
        """Put `data` in the place of the changed bytes, durably."""
        file = host.disk.open(self.path, write=True)
        file.pwrite(data, self.position)
        file.sync()
        file.close()


def restore(host: Host) -> None:
    """Put the original bytes back for good."""
    for rot in reversed(host.rots):
        if rot.is_in_place(host):
            rot.write(host, rot.sound)
    host.rots = []


@contextmanager
def as_written(host: Host) -> Iterator[None]:
    """Put the original bytes back on a machine's disk while a checker reads it."""
    host.rots = [rot for rot in host.rots if rot.is_in_place(host)]
    for rot in reversed(host.rots):
        rot.write(host, rot.sound)
    try:
        yield
    finally:
        for rot in host.rots:
            rot.write(host, rot.rotten)

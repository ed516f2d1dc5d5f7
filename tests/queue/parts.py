"""A queue on a disk in memory, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from logstore.disk.files import Disk
from logstore.queue import Message, Queue, QueueConfig
from logstore.testing.disks import MemoryDisk

NOW_MS = 1_700_000_000_000
PATH = "/data/jobs"


def falling_clock() -> Callable[[], int]:
    """Return a clock that goes back at each look, and fails the test if somebody looks for too long."""
    times = iter(range(NOW_MS, NOW_MS - 100, -1))
    return lambda: next(times)


@dataclass
class Hands:
    """Opens the queue again and again; `now_ms` is its clock."""

    config: QueueConfig = field(default_factory=QueueConfig)
    disk: Disk = field(default_factory=MemoryDisk)
    now_ms: int = NOW_MS

    def __post_init__(self) -> None:
        self.queue = self.open()

    def open(self) -> Queue:
        return Queue(PATH, self.config, disk=self.disk, clock=lambda: self.now_ms)

    def reopen(self, config: QueueConfig | None = None, *, killed: bool = False) -> Queue:
        """Close the queue, or kill its owner, and open it again."""
        self.config = config or self.config
        if killed:
            self.queue._abandon()
        else:
            self.queue.close()
        self.queue = self.open()
        return self.queue

    def wait(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)

    def get(self, *topics: str) -> Message:
        message = self.queue.get(topics or None, timeout=0)
        assert message is not None, f"nothing to get: {self.queue.stats()}"
        return message

    def values(self) -> list[bytes]:
        """Lease everything that is there; returns the values."""
        found = []
        while (message := self.queue.get(timeout=0)) is not None:
            found.append(message.value)
        return found

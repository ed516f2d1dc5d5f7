"""The settings of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from logstore.arguments import is_number
from logstore.config import MAX_INT
from logstore.errors import InvalidConfig
from logstore.queue.arguments import LONGEST_S

DURABILITIES: Final = ("written", "synced")


@dataclass(frozen=True, kw_only=True)
class QueueConfig:
    """Hold the settings of a queue. Times are seconds. Raises `InvalidConfig`.

    `durability`: what a `put`, an `ack` and a `nack` have reached when they return. `written` is the page
    cache: it survives the death of the process, not a power cut. `synced` is the disk.
    """

    durability: str = "written"
    lease: float = 30.0
    """How long a worker has a message to itself before it is delivered again."""
    max_deliveries: int = 5
    """After this many deliveries without an acknowledgement, a message becomes a dead letter."""
    deduplication_window: float = 0.0
    """How long the key of a message is remembered: a second message with it is not stored. 0 is off."""
    priorities: Mapping[str, int] = field(default_factory=dict)
    """Topics with a higher number are served first; other topics have 0. Equal ones take turns."""
    max_message_bytes: int = 1_048_588
    """The largest message with its key, its headers and some 70 bytes of the format; `put_many` splits what
    is larger together."""

    def __post_init__(self) -> None:
        if self.durability not in DURABILITIES:
            raise InvalidConfig(f"durability is {self.durability!r}; it must be one of {DURABILITIES}")
        for name, least in (("lease", 0.001), ("deduplication_window", 0)):
            if not (is_number(value := getattr(self, name)) and least <= value <= LONGEST_S):
                raise InvalidConfig(f"{name} is {value!r} s; it must be a number, {least} to {LONGEST_S:g}")
        for name in ("max_deliveries", "max_message_bytes"):
            if not (isinstance(value := getattr(self, name), int) and 1 <= value <= MAX_INT):
                raise InvalidConfig(f"{name} is {value!r}; it must be an int, 1 to {MAX_INT}")
        if not isinstance(self.priorities, Mapping):
            raise InvalidConfig(f"priorities is {self.priorities!r}; it must map topics to ints")
        for topic, priority in self.priorities.items():
            if not isinstance(priority, int):
                raise InvalidConfig(f"the priority of topic {topic!r} is {priority!r}; it must be an int")

"""Random plans: the settings of a log, and operations on it.

A drawn operation names places relative to the log ("a third of the way to its end", "the producer's next
sequence"), so that a list of them keeps its meaning when some are left out: see `resolving.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Any, Final, NamedTuple

from tests.judge.sides import Operation

HOUR_MS: Final = 3_600_000
PRODUCERS: Final = (1, 2, 3)


class Plan(NamedTuple):
    """The settings of a log and the operations on it, as drawn."""

    settings: dict[str, str]
    operations: list[Operation]

    def without(self, places: Collection[int]) -> Plan:
        """Return the plan without the operations at these places."""
        kept = [each for place, each in enumerate(self.operations) if place not in places]
        return self._replace(operations=kept)


def draw(seed: int, count: int) -> Plan:
    """Return the plan of a seed, with `count` operations."""
    dice = Random(seed)
    settings = _settings(dice)
    names = dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=count)
    operations = [{"op": name, **_DRAWN.get(name, _nothing)(dice)} for name in names]
    return Plan(settings, operations)


_WEIGHTS: Final = {
    "append": 40,
    "follow": 8,
    "marker": 6,
    "lead": 3,
    "high_watermark": 8,
    "read": 10,
    "time": 4,
    "epoch_end": 3,
    "truncate": 2,
    "restart": 0.5,
    "start": 2,
    "roll": 3,
    "retain": 3,
    "expire": 1,
    "flush": 1,
    "checkpoint": 1,
    "configure": 1.5,
    "clock": 8,
    "compact": 4,
    "reopen": 2,
    "crash": 1.5,
}


def _settings(dice: Random) -> dict[str, str]:
    settings = {
        "segment.bytes": dice.choice([400, 1000, 4000]),
        "index.interval.bytes": dice.choice([0, 100, 500, 4096]),
        "segment.index.bytes": dice.choice([24, 60, 10_485_760, 10_485_760]),
        "segment.ms": dice.choice([60_000, HOUR_MS, 7 * 24 * HOUR_MS]),
        "cleanup.policy": dice.choice(["delete", "delete", "compact", "compact,delete"]),
        "retention.ms": dice.choice([-1, 60_000, HOUR_MS, 48 * HOUR_MS]),
        "retention.bytes": dice.choice([-1, -1, 1000, 5000]),
        "delete.retention.ms": dice.choice([0, 60_000, HOUR_MS]),
        "min.compaction.lag.ms": dice.choice([0, 0, 60_000]),
        "file.delete.delay.ms": dice.choice([0, 60_000]),
        "max.message.bytes": dice.choice([500, 1_048_588]),
        "message.timestamp.type": dice.choice(["CreateTime", "CreateTime", "CreateTime", "LogAppendTime"]),
        "message.timestamp.before.max.ms": dice.choice([30_000, 2**63 - 1, 2**63 - 1]),
        "message.timestamp.after.max.ms": dice.choice([3, 2**63 - 1, 2**63 - 1]),
    }
    return {name: str(value) for name, value in settings.items()}


def _records(dice: Random) -> list[list[Any]]:
    """Return records as key (or none), size of the value (or none) and time before the clock (or none)."""
    count = dice.choice([1, 1, 1, 2, 3, 6])
    back_ms = dice.choice([0, 0, 0, 1000, 30_000, HOUR_MS])
    has_times = dice.random() > 0.05
    return [
        [
            dice.choice("abcdefgh") if dice.random() > 0.03 else None,
            dice.choice([None, 0, 5, 20, 20, 80]),
            back_ms + dice.randrange(-5, 5) if has_times else None,
        ]
        for _ in range(count)
    ]


def _producer(dice: Random) -> Operation | None:
    if dice.random() < 0.5:
        return None
    kinds = ["next"] * 10 + ["repeat", "repeat", "gap", "old", "bump", "bump gap"]
    return {
        "id": dice.choice(PRODUCERS),
        "kind": dice.choice(kinds),
        "back": dice.randrange(6),
        "transactional": dice.random() < 0.5,
    }


def _append(dice: Random) -> Operation:
    codec = dice.choice([0, 0, 0, 1, 2, 3, 4])
    return {"records": _records(dice), "codec": codec, "producer": _producer(dice)}


def _marker(dice: Random) -> Operation:
    return {
        "id": dice.choice(PRODUCERS),
        "commit": dice.random() < 0.5,
        "epoch": dice.choice([0, 0, 0, 0, 1, -1]),
        "coordinator": dice.choice([0, 0, 0, 1, -1]),
    }


def _follow(dice: Random) -> Operation:
    batches = []
    for _ in range(dice.choice([1, 1, 2, 4])):
        batch = _append(dice) if dice.random() < 0.8 else {"marker": _marker(dice)}
        batches.append({**batch, "gap": dice.choice([0, 0, 0, 0, 1, 5]), "new_epoch": dice.random() < 0.1})
    return {"batches": batches, "fault": dice.choice([None] * 10 + ["below", "disorder", "torn", "crc"])}


def _read(dice: Random) -> Operation:
    return {
        "where": round(dice.uniform(-0.05, 1.05), 3),
        "max": dice.choice([0, 1, 100, 300, 1000, 1 << 20]),
        "isolation": dice.choice(["LOG_END", "HIGH_WATERMARK", "TXN_COMMITTED"]),
        "at_least_one": dice.random() < 0.8,
    }


def _place(low: float, high: float, exact: float) -> Callable[[Random], Operation]:
    """Draw a place: a share of the log, and whether it is that offset or the next boundary of a batch."""
    return lambda dice: {"where": round(dice.uniform(low, high), 3), "exact": dice.random() < exact}


def _one_of(name: str, values: list[Any]) -> Callable[[Random], Operation]:
    return lambda dice: {name: dice.choice(values)}


def _configure(dice: Random) -> Operation:
    """Draw new values for a few settings.

    A log stays compacted or not, as only other logs are compressed. Kafka cannot open an index that is larger
    than its new limit.
    """
    drawn = _settings(dice)
    del drawn["cleanup.policy"], drawn["segment.index.bytes"]
    return {"settings": {name: drawn[name] for name in dice.sample(sorted(drawn), dice.choice([1, 3]))}}


def _nothing(_dice: Random) -> Operation:
    return {}


_DRAWN: Final[dict[str, Callable[[Random], Operation]]] = {
    "append": _append,
    "marker": _marker,
    "follow": _follow,
    "lead": _one_of("by", [1, 1, 2]),
    "high_watermark": _place(0, 1.1, 0),  # inside of a batch, a read would move Kafka's back to its base
    "read": _read,
    "time": lambda dice: {"where": round(dice.uniform(-0.1, 1.1), 3), "largest": dice.random() < 0.2},
    "epoch_end": _one_of("by", [0, 0, 1, 2, -1, 5]),
    "truncate": _place(0.3, 1.05, 0.3),
    "restart": _one_of("by", [0, 5, -3, -100]),
    "start": _place(0, 0.7, 0.3),
    "clock": _one_of("by", [1, 1000, 1000, 20_000, 61_000, 600_000, HOUR_MS, 7 * HOUR_MS]),
    "configure": _configure,
    "crash": _one_of("torn", [0, 0, 0.2, 1]),
}

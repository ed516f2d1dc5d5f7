"""Random plans: the settings of a partition, and what its controller, replicas and clients do.

A drawn operation names places and epochs relative to the state it meets ("the end that the leader knows",
"the epoch before"), so that a list of them keeps its meaning when some are left out: see `resolving.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.judge.drawing import Plan
from tests.judge.sides import Operation

OTHERS: Final = (1, 2, 3)
"""The other brokers."""
SMALL_SEGMENT: Final = 300
_WEIGHTS: Final = {
    "append": 20,
    "marker": 3,
    "fetch": 45,
    "answer": 22,
    "shrink": 12,
    "leader_answers": 30,
    "consume": 5,
    "wait": 14,
    "list": 4,
    "epoch_end": 3,
    "delete": 5,
    "elect": 5,
    "alter": 4,
    "repeat": 1,
    "old": 1,
    "brokers": 3,
    "clock": 6,
    "roll": 1,
    "restart": 1,
    "session": 1,
    "checkpoint": 1,
    "config": 1,
}


def draw(seed: int, count: int) -> Plan:
    """Return the plan of a seed, with `count` operations."""
    dice = Random(seed)
    settings = {
        "segment.bytes": dice.choice([SMALL_SEGMENT, 1 << 20]),
        "min.insync.replicas": dice.choice([1, 1, 2, 3]),
        "cleanup.policy": dice.choice(["delete", "delete", "delete", "compact"]),
        "truncate.on.fetch": dice.choice(["true", "true", "false"]),
    }
    weights = [weight * dice.choice([0.3, 1, 1, 1, 3]) for weight in _WEIGHTS.values()]
    names = dice.choices(list(_WEIGHTS), weights, k=count)
    operations: list[Operation] = [{"op": "brokers", "alive": list(OTHERS), "again": [], "stopping": []}]
    operations += [{"op": name, **_DRAWN[name](dice), **_when(name, dice)} for name in names]
    return Plan({name: str(value) for name, value in settings.items()}, operations)


def _when(name: str, dice: Random) -> Operation:
    """Most requests to a leader are for when it leads."""
    return (
        {"anyway": dice.random() < 0.15} if name in ("append", "marker", "fetch", "consume", "list") else {}
    )


def _some(dice: Random, among: tuple[int, ...], share: float) -> list[int]:
    return [each for each in among if dice.random() < share]


def _assignment(dice: Random) -> Operation:
    return {
        "replicas": _some(dice, OTHERS, 0.9) if dice.random() < 0.3 else None,
        "isr": _some(dice, OTHERS, dice.choice([0.2, 0.7])),
        "adding": _some(dice, OTHERS, 0.3) if dice.random() < 0.2 else [],
    }


def _elect(dice: Random) -> Operation:
    leader = 0 if dice.random() < 0.6 else dice.choice([*OTHERS, *OTHERS, -1])
    history: Operation = {"common": dice.choice([1, 1, 0.8, 0.4]), "is_unclean": dice.random() < 0.2}
    history["more"] = [[dice.randrange(3), _grown(dice)] for _ in range(dice.choice([0, 1, 1, 3]))]
    return {"leader": leader, "by": dice.choice([1, 1, 1, 2, 3]), **_assignment(dice), **history}


def _append(dice: Random) -> Operation:
    facts = {"count": dice.choice([1, 1, 2, 3]), "acks": dice.choice([-1, -1, 1])}
    return facts | {"is_transactional": dice.random() < 0.3}


def _fetch(dice: Random) -> Operation:
    return {
        "replica": dice.choice(OTHERS),
        "where": dice.choice(
            [*["end"] * 12, *["known"] * 4, "mark", "start", "beyond", "below", "any", "next"]
        ),
        "share": round(dice.random(), 2),
        "epoch": dice.choice([*[0] * 20, 1, -1, None]),
        "last": dice.choice([*[0] * 12, None, None, 1, -1]),
        "start": dice.choice(["leader", "leader", "leader", "zero", "any", "unknown"]),
        "broker": dice.choice([*[0] * 12, -1, 1]),
        "max": dice.choice([1 << 20, 1 << 20, 1]),
        "in_session": dice.random() < 0.6,
    }


def _consume(dice: Random) -> Operation:
    return {
        "where": dice.choice(["end", "mark", "start", "beyond", "below", "any", "any", "any"]),
        "share": round(dice.random(), 2),
        "epoch": dice.choice([0, 0, 0, 1, -1, None]),
        "last": dice.choice([None, None, 0, 0, 1, -1]),
        "committed": dice.random() < 0.3,
    }


def _wait(dice: Random) -> Operation:
    """Draw a fetch that waits for bytes, of a follower or of a consumer that may name its rack."""
    replica = dice.choice([-1, -1, *OTHERS])
    rack = dice.choice([None, "", "a", "b", "b", "c", "z"]) if replica < 0 else None
    where = dice.choice([*["end"] * 4, *["mark"] * 4, "known", "start", "beyond", "any", "next"])
    drawn = {**_fetch(dice), "replica": replica, "where": where, "rack": rack}
    drawn |= {"min": dice.choice([1, 1, 1, 100, 200, 500]), "max": dice.choice([1 << 20, 1 << 20, 1, 80])}
    drawn |= {"committed": replica < 0 and dice.random() < 0.4}
    return drawn | {"anyway": dice.random() < (0.15 if rack is None else 0.8)}


def _list(dice: Random) -> Operation:
    return {
        "timestamp": dice.choice([-1, -1, -2, -3, "any", "any"]),
        "share": round(dice.random(), 2),
        "replica": dice.choice([-1, -1, -1, 1]),
        "epoch": dice.choice([0, 0, 0, 1, -1, None]),
        "committed": dice.random() < 0.3,
    }


def _answer(dice: Random) -> Operation:
    """Draw the controller's word on a proposal."""
    outcomes = ["accept"] * 10 + ["unheard", "unheard", "lost", "lost", "older", "same", "other isr"]
    outcomes += ["disconnected", "not the controller"]
    errors = [
        "INVALID_UPDATE_VERSION",
        "FENCED_LEADER_EPOCH",
        "INELIGIBLE_REPLICA",
        "OPERATION_NOT_ATTEMPTED",
    ]
    errors += ["UNKNOWN_TOPIC_OR_PARTITION", "INVALID_REQUEST", "NEW_LEADER_ELECTED", "UNKNOWN_SERVER_ERROR"]
    return {"outcome": dice.choice([*outcomes, *errors]), "isr": _some(dice, OTHERS, 0.5)}


def _leader_answers(dice: Random) -> Operation:
    """Draw what the leader has got since, and how much of it an answer brings."""
    errors = ["NOT_LEADER_OR_FOLLOWER", "UNKNOWN_LEADER_EPOCH", "FENCED_LEADER_EPOCH", "KAFKA_STORAGE_ERROR"]
    errors += ["UNKNOWN_TOPIC_OR_PARTITION", "OFFSET_OUT_OF_RANGE"]
    return {
        "grows": [_grown(dice) for _ in range(dice.choice([0, 0, 1, 2]))],
        "mark": round(dice.random(), 2),
        "start": round(dice.random(), 2) if dice.random() < 0.1 else None,
        "is_inside": dice.random() < 0.3,
        "lie": [dice.choice([-1, 0, 1, 2, 3, 5]), round(dice.random(), 2)] if dice.random() < 0.05 else None,
        "batches": dice.choice([0, 1, 1, 2, 5]),
        "error": dice.choice(errors) if dice.random() < 0.07 else None,
    }


def _grown(dice: Random) -> Operation:
    """Draw a batch of the leader, or a marker where a transaction is open."""
    marker = {"share": dice.randrange(100) / 100, "is_commit": dice.random() < 0.5}
    is_transactional = dice.random() < 0.4
    return {"is_transactional": is_transactional, "count": dice.choice([1, 1, 2])} | (
        {"marker": marker} if dice.random() < 0.3 else {}
    )


def _brokers(dice: Random) -> Operation:
    alive = _some(dice, OTHERS, 0.9)
    return {"alive": alive, "again": _some(dice, OTHERS, 0.2), "stopping": _some(dice, OTHERS, 0.1)}


def _delete(dice: Random) -> Operation:
    return {
        "where": dice.choice(["any", "any", "inside", "mark", "beyond", "high watermark"]),
        "share": round(dice.random(), 2),
        "waits": dice.random() < 0.6,
    }


def _one_of(name: str, values: list[Any]) -> Callable[[Random], Operation]:
    return lambda dice: {name: dice.choice(values)}


def _nothing(_dice: Random) -> Operation:
    return {}


_DRAWN: Final[dict[str, Callable[[Random], Operation]]] = {
    "append": _append,
    "fetch": _fetch,
    "answer": _answer,
    "shrink": _nothing,
    "leader_answers": _leader_answers,
    "consume": _consume,
    "wait": _wait,
    "list": _list,
    "epoch_end": lambda dice: {
        "by": dice.choice([0, 0, 1, 2, -1]),
        "epoch": dice.choice([0, 0, 1, -1, None]),
    },
    "delete": _delete,
    "elect": _elect,
    "alter": lambda dice: {**_assignment(dice), "keeps": dice.random() < 0.5},
    "repeat": _nothing,
    "old": _nothing,
    "brokers": _brokers,
    "clock": _one_of("by", [1, 1, 2, 3, 4, 10]),
    "roll": _nothing,
    "restart": lambda dice: {"is_clean": dice.random() < 0.6},
    "checkpoint": _nothing,
    "session": _nothing,
    "config": _one_of("min_insync", [1, 2, 3]),
    "marker": lambda dice: {"share": dice.randrange(100) / 100, "is_commit": dice.random() < 0.5},
}

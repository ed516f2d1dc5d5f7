"""A few schedules, and the faults that they must show."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Final

import pytest

from logstore.broker import SharedQueue, shared_lane, shared_puts, shared_queue
from logstore.broker.shared_keys import SharedKeys
from logstore.broker.shared_lane import SharedLane, _Ahead
from logstore.format.record import Record
from logstore.queue.state import Deadlines, Event
from tests.shared_schedules.life import run

_happen: Final = SharedLane.happen
_nack: Final = SharedQueue.nack


def _believed(lane: SharedLane, event: Event) -> list[int]:
    """Do as if an event always changed what it names."""
    _happen(lane, event)
    return list(event.offsets)


def _newest_first(ahead: Any, most: int, now_ms: int) -> list[Record]:
    """Do as if the last messages that were read came first."""
    return list(ahead._records)[-most:]


def _in_any_order(queue: Any, wanted: Collection[str] | None) -> list[SharedLane]:
    return [each for each in queue._lanes.values() if wanted is None or each.topic in wanted]


PLANTS: Final[dict[str, tuple[object, str, Any, int]]] = {
    "an extended lease ends": (Deadlines, "is_due", lambda self, offset, now_ms: offset in self, 115),
    "who comes second has it, too": (SharedLane, "happen", _believed, 1),
    "nobody waits for a claim": (SharedKeys, "is_claimed", lambda self, key, now_ms: False, 96),
    "nobody looks for the message of a claim": (shared_puts, "messages_of", lambda messages, since: {}, 53),
    "checkpoints have no keys": (SharedKeys, "encode", lambda self: b"", 5),
    "a get looks seldom": (shared_queue, "_LONGEST_WAIT_S", 5.0, 11),
    "who comes last is first": (_Ahead, "first", _newest_first, 6),
    "no topic is urgent": (SharedQueue, "_ordered", _in_any_order, 31),
    "no message is delayed": (shared_lane, "not_before_ms", lambda headers: 0, 1),
    "returned messages are not delayed": (SharedQueue, "nack", lambda self, it, delay: _nack(self, it), 1),
    "nobody tells of a loss": (SharedLane, "_tell_of_loss", lambda self, end: None, 33),
}
"""The planted faults, each with the first seed that shows it today."""


@pytest.fixture(autouse=True)
def silent() -> None:
    """Planned faults of the upkeep are warnings."""
    logging.getLogger("logstore.broker.shared_lane").setLevel(logging.ERROR)


@pytest.mark.parametrize("seed", [*range(1, 7), 363, 897])
def test_in_any_order_of_requests_each_message_has_one_holder(seed: int) -> None:
    assert run(seed) > 10


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_seen(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, instead, first = PLANTS[plant]
    monkeypatch.setattr(where, name, instead)
    for seed in range(first, first + 40):
        try:
            run(seed)
        except Exception as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail("not seen")

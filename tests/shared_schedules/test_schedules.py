"""A few schedules, and the faults that they must show."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import pytest

from logstore.broker import shared_puts
from logstore.broker.shared_keys import SharedKeys
from logstore.broker.shared_lane import SharedLane
from logstore.queue.state import Deadlines, Event
from tests.shared_schedules.life import run

_happen: Final = SharedLane.happen


def _believed(lane: SharedLane, event: Event) -> list[int]:
    """Do as if an event always changed what it names."""
    _happen(lane, event)
    return list(event.offsets)


PLANTS: Final[dict[str, tuple[object, str, Callable[..., Any], int]]] = {
    "an extended lease ends": (Deadlines, "is_due", lambda self, offset, now_ms: offset in self, 86),
    "who comes second has it, too": (SharedLane, "happen", _believed, 1),
    "nobody waits for a claim": (SharedKeys, "is_claimed", lambda self, key, now_ms: False, 72),
    "nobody looks for the message of a claim": (shared_puts, "messages_of", lambda messages, since: {}, 5),
    "checkpoints have no keys": (SharedKeys, "encode", lambda self: b"", 1),
}
"""The planted faults, each with the first seed that shows it today."""


@pytest.fixture(autouse=True)
def silent() -> None:
    """Planned faults of the upkeep are warnings."""
    logging.getLogger("logstore.broker.shared_lane").setLevel(logging.ERROR)


@pytest.mark.parametrize("seed", range(1, 7))
def test_in_any_order_of_requests_each_message_has_one_holder(seed: int) -> None:
    assert run(seed) > 10


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_seen(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, instead, first = PLANTS[plant]
    monkeypatch.setattr(where, name, instead)
    for seed in range(first, first + 40):
        try:
            run(seed)
        except AssertionError as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail("not seen")

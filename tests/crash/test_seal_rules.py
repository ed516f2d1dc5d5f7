"""The order in which seals come and go, one rule switched off at a time: the crash checker must notice each.

That nothing is noticed with all of them on is `test_log_points.py` and `test_generated.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from logstore.disk.errors import EngineError
from logstore.log import truncate
from logstore.log.partition_log import PartitionLog
from logstore.segment.cutting import CutPlace, place_of_cut
from logstore.segment.seal import Sealing
from logstore.segment.segment import Segment
from tests.crash.script import Script, check
from tests.crash.test_log_points import drawn


def truncations(run: Script) -> None:
    """Into sealed segments, inside batches, with other segments under the same names afterwards."""
    for _ in range(2):
        for _ in range(7):
            run.append(2)
        run.flush()
        run.truncate(5)
        run.append(3, sync=True)
        run.append(3)
        run.truncate(run.log.log_end_offset - 1)


def gaps(run: Script) -> None:
    """An empty active segment is replaced, because the log goes on further up, or ends below it."""
    for _ in range(3):
        run.append(3, sync=True)
        run.roll()
        end = run.log.log_end_offset
        run.truncate(end - 1)
        run.append(2)
        run.flush()


def restarts(run: Script) -> None:
    for _ in range(2):
        for _ in range(5):
            run.append(2, sync=True)
        run.truncate_fully(run.log.log_end_offset + 20)
        run.append(2, sync=True)
        run.truncate_fully(3)


def sealed_anyway(sealing: Sealing) -> None:
    """The seal stays."""


def cut_at_the_offset(segment: Segment, offset: int, **facts: Any) -> CutPlace:
    return place_of_cut(segment, offset, **facts)._replace(end_offset=offset)


LOWER = PartitionLog.lower_bounds


def lowered_to_itself(log: PartitionLog, offset: int) -> None:
    LOWER(log, offset or log.recovery_point)


RULES_OFF: dict[str, tuple[object, str, Callable[..., object], Callable[[Script], None]]] = {
    "a seal goes before its segment is cut": (Sealing, "remove", sealed_anyway, truncations),
    "the recovery point is lowered to what stays": (truncate, "place_of_cut", cut_at_the_offset, gaps),
    "and to nothing when all goes": (PartitionLog, "lower_bounds", lowered_to_itself, restarts),
}


@pytest.mark.parametrize("script", [truncations, gaps, restarts], ids=lambda script: script.__name__)
def test_with_every_rule(script: Callable[[Script], None]) -> None:
    for number, image in enumerate(drawn(Script(3, images_a_call=1), script)):
        try:
            check(image, goes_on=number % 4 == 0)
        except (AssertionError, EngineError) as error:
            raise AssertionError(f"power cut before {image.call}: {error}") from error


@pytest.mark.parametrize("name", RULES_OFF)
def test_a_rule_that_is_off_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, instead, script = RULES_OFF[name]
    for seed in range(6):
        try:
            with monkeypatch.context() as patched:
                patched.setattr(owner, attribute, instead)
                images = drawn(Script(seed, images_a_call=1), script)
            for image in images:
                check(image, goes_on=False)
        except (AssertionError, EngineError):
            return
    raise AssertionError(f"nobody noticed that it is off: {name}")

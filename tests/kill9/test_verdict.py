"""The judge is shown every wrong that it is there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kill9.verdict import SKIPPED, violations
from tests.kill9.workload import Acknowledged, Seen, message

Log = dict[int, dict[int, bytes]]


def sound() -> tuple[Seen, Log]:
    log = {0: {0: message("a", 0), 1: message("b", 0), 2: message("a", 1)}, 1: {0: message("a", 0)}}
    seen = Seen()
    seen.acknowledged[0] = [Acknowledged("a", 0, 0), Acknowledged("b", 0, 1), Acknowledged("a", 1, 2)]
    seen.consumed = {
        "one": [(0, 0, message("a", 0)), (0, 1, message("b", 0))],
        "two": [(0, 1, message("b", 0)), (0, 2, message("a", 1)), (1, 0, message("a", 0))],
    }
    return seen, log


def test_reading_again_after_a_rebalance_is_no_wrong() -> None:
    seen, log = sound()
    seen.acknowledged[0].append(Acknowledged("a", 1, None))
    assert violations(seen, log) == []


def _lose(seen: Seen, log: Log) -> None:
    seen.acknowledged[1].append(Acknowledged("b", 5, 7))


def _lose_what_has_no_offset(seen: Seen, log: Log) -> None:
    seen.acknowledged[1].append(Acknowledged("b", 5, None))


def _replace(seen: Seen, log: Log) -> None:
    log[0][1] = message("c", 0)


def _repeat(seen: Seen, log: Log) -> None:
    log[0][3] = message("a", 1)


def _reorder(seen: Seen, log: Log) -> None:
    log[0][3] = message("b", 2)
    log[0][4] = message("b", 1)


def _repeat_later(seen: Seen, log: Log) -> None:
    log[0][3] = message("a", 2)
    log[0][4] = message("a", 1)


def _skip(seen: Seen, log: Log) -> None:
    del seen.consumed["two"][1]


def _uncommitted(seen: Seen, log: Log) -> None:
    seen.consumed["one"].append((0, 9, message("a", 9)))


def _give_up(seen: Seen, log: Log) -> None:
    seen.refused.append("a 7: timed out")


def _fail(seen: Seen, log: Log) -> None:
    seen.failures.append(RuntimeError("a bug of a client"))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (_lose, "was acknowledged"),
        (_lose_what_has_no_offset, "was acknowledged"),
        (_replace, "was acknowledged"),
        (_repeat, "comes twice"),
        (_repeat_later, "comes twice, first at 2"),
        (_reorder, "comes after 2"),
        (_skip, "never had 1 records"),
        (_uncommitted, "the log has None"),
        (_give_up, "given up"),
        (_fail, "a client failed"),
    ],
)
def test_each_wrong_is_told(wrong: Callable[[Seen, Log], None], complaint: str) -> None:
    seen, log = sound()
    wrong(seen, log)
    assert any(complaint in each for each in violations(seen, log))


def test_a_race_of_librdkafka_is_no_wrong_unless_it_writes_something_twice() -> None:
    seen, log = sound()
    seen.raised.append(SKIPPED)
    assert violations(seen, log) == []
    _repeat(seen, log)
    seen.consumed["two"].append((0, 3, message("a", 1)))
    assert violations(seen, log) == ["partition 0, offset 3: a 1 comes twice, first at 2"]
    seen.raised.append("broker lost its state")
    assert "librdkafka raised its epoch: broker lost its state" in violations(seen, log)

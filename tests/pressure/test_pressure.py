"""The campaigns of `make pressure` and `make soak`, short: memory, lives and answers, but no times."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.pressure.campaign import under
from tests.pressure.soak import ALLOWED, Soak, Use, soak


@pytest.mark.timeout(300)
@pytest.mark.parametrize("attack", ["bombs", "joins", "pipelines", "store_writes", "store_reads"])
def test_an_attack_kills_nothing_and_takes_no_more_memory_than_stated(tmp_path: Path, attack: str) -> None:
    outcome = asyncio.run(under(attack, tmp_path, sends=25))
    assert outcome.problems == []
    assert len(outcome.under.seconds) == 25


@pytest.mark.timeout(300)
def test_what_comes_and_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    found = asyncio.run(soak(tmp_path, minutes=0, measurements=2, rounds=4))
    assert found.problems == []
    assert found.rounds == 12


def test_a_leak_is_noticed() -> None:
    first = Use(100.0, 20, 5, 30)
    for name, allowed in zip(Use._fields, ALLOWED, strict=True):
        last = first._replace(**{name: getattr(first, name) + allowed + 1})
        (problem,) = Soak(1, [first, last]).problems
        assert problem.startswith(f"{name} grew from")
    assert Soak(1, [first, first]).problems == []

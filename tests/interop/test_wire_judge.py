"""A few stories of the wire judge (`make wire-judge`), and a planted difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.kafka.jars import Missing
from logstore.broker.wire import types as t
from tests.wire_judge.__main__ import ALL, SECURED, Report
from tests.wire_judge.campaign import Judge
from tests.wire_judge.counts import Counts
from tests.wire_judge.sides import Side, both

pytestmark = pytest.mark.interop

STORIES = 12


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "secured"])
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    try:
        with both(tmp_path_factory.mktemp("wire-judge"), is_secured=request.param) as sides:
            yield Judge(sides)
    except Missing as reason:
        pytest.skip(str(reason))


def test_answers_are_kafkas(judge: Judge) -> None:
    counts = Counts()
    areas = [each for each in ALL if (each in SECURED) == judge.is_secured]
    for area in areas:
        for seed in range(1, STORIES + 1):
            Report(judge, counts).tell(area, seed)
    assert not counts.unknown
    assert counts.stories == STORIES * len(areas)


def test_a_planted_difference_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Side.ask

    def planted(side: Side, *arguments: Any, **named: Any) -> Any:
        outcome = ask(side, *arguments, **named)
        if side.name == "ours" and isinstance(outcome, t.ListOffsetsResponse):
            outcome.topics[0].partitions[0].leader_epoch += 1
        return outcome

    monkeypatch.setattr(Side, "ask", planted)
    counts = Counts()
    for seed in range(1, STORIES + 1):
        Report(judge, counts).tell("records", seed)
    assert any("leader_epoch" in each for each in counts.unknown)

"""A few stories of the wire judge (`make wire-judge`), and a planted difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.kafka.jars import Missing
from logstore.broker.wire import types as t
from tests.wire_judge.__main__ import AREAS, Report
from tests.wire_judge.campaign import Judge
from tests.wire_judge.sides import Side, both

pytestmark = pytest.mark.interop

STORIES = 12


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    try:
        with both(tmp_path_factory.mktemp("wire-judge")) as sides:
            yield Judge(sides)
    except Missing as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("area", AREAS)
def test_answers_are_kafkas(judge: Judge, area: str) -> None:
    report = Report(judge)
    for seed in range(1, STORIES + 1):
        report.tell(area, seed)
    assert not report.unknown
    assert report.stories == STORIES


def test_a_planted_difference_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Side.ask

    def planted(side: Side, *arguments: Any, **named: Any) -> Any:
        outcome = ask(side, *arguments, **named)
        if side.name == "ours" and isinstance(outcome, t.ListOffsetsResponse):
            outcome.topics[0].partitions[0].leader_epoch += 1
        return outcome

    monkeypatch.setattr(Side, "ask", planted)
    report = Report(judge)
    for seed in range(1, STORIES + 1):
        report.tell("records", seed)
    assert any("leader_epoch" in each for each in report.unknown)

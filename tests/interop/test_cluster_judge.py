"""A few stories of the judge of clusters (`make cluster-judge`), and a planted difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.kafka.jars import Missing
from tests.cluster_judge import asking
from tests.cluster_judge.__main__ import Report
from tests.cluster_judge.campaign import Judge
from tests.cluster_judge.sides import Side, both
from tests.wire_judge.counts import Counts

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SEEDS = ("1", "3")
STEPS = 6


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    try:
        with both(tmp_path_factory.mktemp("cluster-judge")) as sides:
            yield Judge(sides)
    except Missing as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("seed", SEEDS)
def test_clusters_end_alike(judge: Judge, seed: str) -> None:
    counts = Counts()
    report = Report(judge, counts)
    report.tell(seed, STEPS)
    assert not counts.unknown


def test_a_planted_difference_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    produce_at = asking.produce_at

    def planted(side: Side, number: int, name: str, partition: int, values: Any, acks: int = -1) -> Any:
        written = [b"another"] * len(values) if side.name == "ours" else values
        return produce_at(side, number, name, partition, written, acks)

    monkeypatch.setattr(asking, "produce_at", planted)
    counts = Counts()
    report = Report(judge, counts)
    report.tell("planted", 2)
    assert any(" at " in each for each in counts.unknown)

"""One directory from us to Apache Kafka and back, and the judge of its records; `make interop` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.kafka.jars import Missing
from tests.cycles.campaign import Round
from tests.cycles.machine import Owner
from tests.cycles.model import Row, Topic, Written, changes, complaints

PLAIN = Topic("plain", {})
SHORT = PLAIN._replace(is_cut=True)
KEYED = PLAIN._replace(is_compacted=True)


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kafka_compacts_what_is_ours_and_we_go_on(tmp_path: Path) -> None:
    try:
        steps = list(Round(tmp_path / "cluster", 1).run([Owner.OURS, Owner.KAFKA, Owner.OURS]))
    except Missing as reason:
        pytest.skip(str(reason))
    assert [violation for step in steps for violation in step.violations] == []
    assert steps[1].compacted
    assert steps[1].deleted


def rows(*offsets: int) -> list[Row]:
    return [Row(each, b"%d" % (each % 2), b"v%d" % each, 1000) for each in offsets]


def written(*offsets: int, aborted: set[int] | None = None, hanging: set[int] | None = None) -> Written:
    content = {row.offset: (row.key, row.value) for row in rows(*offsets)}
    return Written(content, {(b"sent", b"perhaps")}, aborted or set(), hanging or set())


def test_the_judge_accepts_what_may_be() -> None:
    assert complaints(PLAIN, written(0, 1, 2), rows(0, 1, 2), committed=False) == []
    maybe = [*rows(0, 1), Row(2, b"sent", b"perhaps", 1000)]
    assert complaints(PLAIN, written(0, 1), maybe, committed=False) == []
    assert complaints(SHORT, written(0, 1, 2), rows(1, 2), committed=False) == []
    assert complaints(KEYED, written(0, 1, 2, 3), rows(2, 3), committed=False) == []
    assert complaints(PLAIN, written(0, 1, 2, aborted={1}), rows(0, 2), committed=True) == []
    assert complaints(PLAIN, written(0, 1, 2, hanging={1}), rows(0), committed=True) == []
    # The last record of key 1 was aborted, so the one before it stays.
    assert complaints(KEYED, written(0, 1, 2, 3, aborted={3}), rows(1, 2), committed=False) == []


def test_the_judge_finds_what_may_not_be() -> None:
    assert complaints(PLAIN, written(0, 1, 2), rows(0, 2), committed=False) == ["offset 1 is missing"]
    assert complaints(PLAIN, written(0, 1), rows(0, 1, 2), committed=False)
    assert complaints(PLAIN, written(0), [Row(0, b"0", b"other", 1000)], committed=False)
    assert complaints(PLAIN, written(0, 1), rows(1, 0), committed=False) == ["the offsets do not rise"]
    assert complaints(SHORT, written(0, 1, 2, 3), rows(1, 3), committed=False) == ["offset 2 is missing"]
    assert complaints(KEYED, written(0, 1, 2, 3), rows(0, 1, 2), committed=False) == ["offset 3 is missing"]
    assert complaints(PLAIN, written(0, 1, aborted={1}), rows(0, 1), committed=True)
    assert complaints(KEYED, written(0, 1, 2, 3, aborted={3}), rows(2), committed=False) == [
        "offset 1 is missing"
    ]
    assert changes(PLAIN, rows(0, 1), rows(0)) == ["offset 1 is gone"]
    assert changes(PLAIN, rows(0), rows(0, 1)) == ["offset 1 is new"]
    assert changes(KEYED, rows(0, 1), [rows(0)[0]._replace(timestamp_ms=7)])
    assert changes(SHORT, rows(0, 1, 2), rows(1, 2)) == []

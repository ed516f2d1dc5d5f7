"""Where `groups reset` sets offsets to: times, bounds, and the files of Kafka's tool."""

from __future__ import annotations

import pytest

from logstore.cli.group_resets import clamped, csv_of, parsed, time_in
from logstore.disk.topic_partition import TopicPartition

NOW = 1_700_000_000_000
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("@17", 17),
        ("PT1H30M", NOW - 5_400_000),
        ("P2D", NOW - 2 * 86_400_000),
        ("p1dt0.5s", NOW - 86_400_500),
        ("P999999999999D", 0),
        ("2023-11-14T22:13:20", NOW),
        ("2023-11-14T22:13:20.000", NOW),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20+01:00", NOW),
        ("2023-11-14", 1_699_920_000_000),
        ("1960-01-01T00:00:00", 0),
        *(
            (bad, None)
            for bad in (
                "P",
                "PT",
                "PT1",
                "P1H",
                "@",
                "@-1",
                f"@{1 << 63}",
                "2023-11-14T25:00:00",
                "2023-11-14+01:00",
                "2023-11-14922:13",
                "soon",
                "1200",
            )
        ),
    ],
)
def test_times(text: str, time_ms: int | None) -> None:
    assert time_in(text, NOW) == time_ms


def test_offsets_stay_within_the_log() -> None:
    assert [clamped(each, 3, 7) for each in (0, 5, 9, None)] == [3, 5, 7, 7]


def test_a_file_of_one_group_and_of_several_goes_there_and_back() -> None:
    one = {"g": {T0: 1, U0: 3}}
    assert csv_of(one, with_groups=False) == "t,0,1\nu,0,3\n"
    assert parsed(csv_of(one, with_groups=False), ["g"]) == one
    several = {"g": {T0: 1}, "a,b": {T0: 2, T1: 5}}
    assert csv_of(several, with_groups=True) == 'g,t,0,1\n"a,b",t,0,2\n"a,b",t,1,5\n'
    assert parsed(csv_of(several, with_groups=True), []) == several
    assert parsed(csv_of(several, with_groups=True), ["a,b"]) == {"a,b": several["a,b"]}


@pytest.mark.parametrize(
    ("text", "groups", "complaint"),
    [
        ("t,0\n", ["g"], "line 1: write topic,partition,offset"),
        ("t,0,1\n\nt,0,x\n", ["g"], "line 3: 0,x is not a partition and an offset"),
        ("t,0,-1\n", ["g"], "is not a partition and an offset"),
        ("t,0,1\nt,0,2\n", ["g"], "line 2: t-0 is listed twice"),
        ("t,0,1\n", [], "line 1 names no group"),
        ("t,0,1\n", ["g", "h"], "line 1 names no group"),
        ("g,t,0,1\n", ["g", "h"], "no line is of group h"),
        ("", [], "the file has no line"),
    ],
)
def test_lines_that_are_none(text: str, groups: list[str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parsed(text, groups)

"""The profile as it is run: the same whatever the tasks, skew, gaps and late records as counted by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logstore import Codec, Log, Record, encode_batch
from logstore.spark.jobs.profile import rate, skew
from logstore.spark.jobs.profile_page import bars, moment, page, span
from tests.spark.jobs.conftest import NOON_MS, Command, Row, append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000


def busy() -> list[Row]:
    """A record a second for a hundred, but for one an hour late, two without a key, and a quiet hour."""
    rows: list[Row] = [(NOON_MS + 1000 * n, f"k{n % 10}", "x" * 9) for n in range(100)]
    rows[40] = (NOON_MS + 39_000 - HOUR_MS, "k0", "late")
    rows[41] = (rows[41][0], None, "x")
    rows[42] = (rows[42][0], None, None)
    return rows + [(NOON_MS + HOUR_MS + 99_000 + n, "after", "x") for n in range(5)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    append(directory / "orders-0", busy())
    append(directory / "orders-1", busy()[:35])
    with Log.open(directory / "gaps-0") as log:
        for base, codec in ((0, Codec.NONE), (2, Codec.GZIP)):
            batch = encode_batch([Record(n, NOON_MS, b"k", b"v") for n in (0, 1)], codec=codec)
            log.append_batches(batch)
            assert log.log_end_offset == base + 2
    return directory


def without_seconds(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "seconds"}


@pytest.mark.spark
def test_what_comes_out_is_what_was_put_in(
    spark: SparkSession, command: Command, data: Path, tmp_path: Path
) -> None:
    """In one task a partition and in many: what is counted does not depend on who counts."""
    html = tmp_path / "profile.html"
    facts = command("profile", data, "--json", "--html", html).facts
    cut = command("profile", data, "--json", "--task-records", "7").facts
    assert without_seconds(cut) == without_seconds(facts)
    gaps, orders = facts["topics"]
    assert (orders["topic"], orders["records"]) == ("orders", 140)
    assert orders["skew"]["records"] == 1.5
    assert orders["distinct_keys"] == 11
    busiest = orders["partitions"][0]
    assert (busiest["records"], busiest["distinct_keys"], busiest["null_keys"]) == (105, 11, 2)
    assert busiest["null_values"] == 1
    times = busiest["times"]
    assert (times["late"], times["most_late_ms"]) == (1, HOUR_MS)
    assert times["lateness"]["< 1 day"] == 1
    assert times["earliest_ms"] == NOON_MS + 39_000 - HOUR_MS
    assert times["latest_ms"] == NOON_MS + HOUR_MS + 99_004
    assert (times["longest_silence_ms"], times["longest_silence_until_ms"]) == (
        HOUR_MS,
        NOON_MS + HOUR_MS + 99_000,
    )
    assert busiest["days"] == {"2026-11-20": 105}
    assert busiest["batches"]["count"] == 21
    assert gaps["partitions"][0]["batches"]["codecs"] == {"gzip": 1, "none": 1}
    assert (busiest["value_sizes"]["empty"], busiest["value_sizes"]["< 16 B"]) == (0, 104)
    assert orders["rate"] == {
        "from_ms": NOON_MS - HOUR_MS, "step_hours": 1, "records": [1, 134, 5],
    }  # fmt: skip
    Checked().check(text := html.read_text())
    assert [title.partition(",")[0] for title in re.findall(r"<figcaption>(.*?), at most", text)][5:] == [
        "Records by hour (UTC)",
        "Records by partition",
        "Bytes by partition",
        "Distinct keys by partition",
        "Values by size",
        "Seconds of the newest record behind the topic&#x27;s newest",
        "Late records by lateness",
    ]
    lines = command("profile", data, "--topics", "orders").out.splitlines()
    assert lines[0].startswith("orders-0: 105 records, ")
    assert lines[-1].startswith("orders: 140 records")


def test_a_plan_reads_nothing(command: Command, data: Path, tmp_path: Path) -> None:
    outcome = command("profile", data, "--plan", "--html", tmp_path / "page.html", "--task-records", "50")
    assert outcome.out == "would read 144 offsets of 3 partitions in 5 tasks\n"
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written_is_refused_before_the_work(command: Command, tmp_path: Path) -> None:
    outcome = command("profile", tmp_path, "--html", tmp_path / "none" / "page.html")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("values", "expected"), [([5, 5, 5], 1.0), ([9, 0, 0], 3.0), ([0, 0], 1.0), ([30, 10], 1.5)]
)
def test_skew(values: Sequence[int], expected: float) -> None:
    assert skew(values) == expected


class Checked(HTMLParser):
    """Whether every tag that is opened is closed, and nothing is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def check(self, text: str) -> None:
        assert text.startswith("<!doctype html>")
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe")
        assert not {"src", "href"} & dict(attributes).keys()
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_of_nothing_and_of_strange_names() -> None:
    """Names of topics are harmless; a path may hold anything."""
    Checked().check(text := page({"source": "<b>&", "topics": []}))
    assert "&lt;b&gt;&amp;" in text


def test_bars_are_as_high_as_their_values_and_never_too_many() -> None:
    drawn = bars("B", ["a", "b", "c"], [50, 0, 100])
    assert re.findall(r' height="([0-9.]+)"', drawn) == ["60.0", "0.0", "120.0"]
    many = bars("B", [str(n) for n in range(1000)], [1] * 1000)
    assert many.count("<rect") <= 120
    assert sum(int(count) for count in re.findall(r": (\d+)</title>", many)) == 1000
    assert bars("B", [], []) == ""
    assert 'height="0.0"' in bars("B", ["a"], [0])


def test_a_rate_has_a_bounded_number_of_steps() -> None:
    assert rate({}) is None
    assert rate({5: 2}) == {"from_ms": 5 * HOUR_MS, "step_hours": 1, "records": [2]}
    years = rate({0: 1, 24 * 365 * 20: 1, 100: 3})
    assert years is not None
    assert (len(years["records"]), sum(years["records"]), years["step_hours"]) == (120, 5, 1461)


def test_a_page_has_every_picture() -> None:
    """Rate, skew, keys, sizes, lag, gaps and late records, each with a title; colours of both themes."""
    partition: dict[str, Any] = {
        "partition": 0, "start_offset": 0, "end_offset": 9, "records": 7, "bytes": 70, "distinct_keys": 3,
        "null_keys": 1, "value_sizes": {"empty": 1, "< 16 B": 6, "more": 0},
        "gaps": {"count": 1, "offsets": 2, "largest": 2},
        "times": {
            "earliest_ms": NOON_MS, "latest_ms": NOON_MS + 9000, "longest_silence_ms": 1, "late": 1,
            "most_late_ms": 10, "lateness": {"< 1 s": 1, "more": 0},
        },
    }  # fmt: skip
    behind = {**partition, "partition": 1, "times": {**partition["times"], "latest_ms": NOON_MS}}
    topic = {
        "topic": "t<", "records": 14, "bytes": 140, "distinct_keys": 3, "skew": {"records": 1, "bytes": 1},
        "rate": rate({NOON_MS // HOUR_MS: 14}), "partitions": [partition, behind],
    }  # fmt: skip
    Checked().check(text := page({"source": "data", "topics": [topic]}))
    assert re.findall('role="img" aria-label="(.*?)"', text) == [
        "Records by hour (UTC), at most 14: 2026-11-20 12:00",
        "Records by partition, at most 7: 0",
        "Bytes by partition, at most 70: 0",
        "Distinct keys by partition, at most 3: 0",
        "Values by size, at most 12: &lt; 16 B",
        "Seconds of the newest record behind the topic&#x27;s newest, by partition, at most 9: 1",
        "Offsets without a record by partition, at most 2: 0",
        "Late records by lateness, at most 2: &lt; 1 s",
    ]
    assert "prefers-color-scheme: dark" in text
    assert "<title>1: 9</title>" in text


@pytest.mark.parametrize(
    ("time_ms", "text"), [(NOON_MS, "2026-11-20 12:00:00"), (None, ""), (2**60, f"{2**60} ms")]
)
def test_moments(time_ms: int | None, text: str) -> None:
    assert moment(time_ms) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(15, "15 ms"), (3200, "3.2 s"), (300_000, "5.0 min"), (9_000_000, "2.5 h"), (864_000_000, "10.0 days")],
)
def test_spans(milliseconds: int, text: str) -> None:
    assert span(milliseconds) == text

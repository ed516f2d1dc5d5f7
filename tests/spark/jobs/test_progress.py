"""What is said of a job that runs, by a clock of the test's own."""

from __future__ import annotations

from io import StringIO

import pytest

from logstore.spark.jobs.work import Progress, amount, duration


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def run(stream: StringIO, seconds: int, step_s: float = 0.25) -> str:
    """10 records each step."""
    clock = Clock()
    progress = Progress(stream, clock)
    progress.begin("export", int(seconds / step_s) * 10, "records")
    for _ in range(int(seconds / step_s)):
        clock.now_s += step_s
        progress.advance(10)
    progress.end()
    return stream.getvalue()


def test_a_terminal_shows_one_line_that_is_painted_over_and_goes() -> None:
    shown = run(Screen(), 3)
    assert "\n" not in shown
    assert shown.endswith("\r\x1b[K")
    assert "\rexport: 80 of 120 records, 66 %, 40/s, 1 s left\x1b[K" in shown


def test_elsewhere_a_line_now_and_then() -> None:
    """A log file of a job of an hour has some hundred lines, not some hundred thousand."""
    lines = run(StringIO(), 25).splitlines()
    assert len(lines) == 3
    assert lines[-1].startswith("export: 840 of 1 k records, 84 %")


@pytest.mark.parametrize("stream", [StringIO(), Screen()])
def test_nothing_is_said_of_what_is_done_at_once(stream: StringIO) -> None:
    assert run(stream, 1, step_s=0.3) == ""


def test_what_has_no_total_shows_its_time_and_whoever_waits_shows_it() -> None:
    stream, clock = StringIO(), Clock()
    progress = Progress(stream, clock)
    progress.begin("starting Spark")
    for _ in range(120):
        clock.now_s += 0.25
        progress.tick()
    shown = [f"starting Spark: {seconds} s" for seconds in (1, 11, 21)]
    assert stream.getvalue().splitlines() == shown
    progress.tick(3, 8)
    assert progress.line(clock.now_s).startswith("starting Spark: 3 of 8 , 37 %")
    progress.end()
    clock.now_s += 60
    progress.tick()
    assert stream.getvalue().count("\n") == 3, "nothing is under way"


def test_a_total_of_nothing_divides_by_nothing() -> None:
    assert Progress(StringIO(), Clock()).line(100.0) == ": 100 s"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (12_345, "12.3 k"), (1e6, "1 M"), (7.891e9, "7.89 G")]
)
def test_amounts(number: float, text: str) -> None:
    assert amount(number) == text


@pytest.mark.parametrize(("seconds", "text"), [(42, "42 s"), (600, "10 min"), (3 * 3600, "3.0 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text

"""Measure every figure beside the raw device or memory, in the same run and in alternating rounds.

`beside(raw, ours, …)` alternates rounds of the rival and of ours, so that a noisy machine slows both. The
ratio is that of the medians; rates are in the unit of work that both did.

`pytest bench --table FILE` writes the table of docs/performance.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.bars import Bar

Work = Callable[[], object]


@dataclass
class Comparison:
    """One line of the table. Times are seconds per round; each round does `units` of work."""

    name: str
    rival: str
    bar: Bar
    unit: str
    units: float
    raw: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Our rate divided by the rival's."""
        return statistics.median(self.raw) / statistics.median(self.ours)

    @property
    def rate(self) -> float:
        """Our units per second."""
        return self.units / statistics.median(self.ours)

    def row(self) -> str:
        rival = self.units / statistics.median(self.raw)
        verdict = "yes" if self.bar.holds(self.ratio, self.rate) else "no"
        return (
            f"| {self.name} | {_human(self.rate)} {self.unit} | {_human(rival)} {self.unit} ({self.rival}) "
            f"| {self.ratio:.2f} | {self.bar.text} | {verdict} |"
        )


HEADER = "| what | ours | beside it | ratio | bar | held |\n|---|---|---|---|---|---|"
_comparisons: list[Comparison] = []

FIGURES_HEADER = "| what | figure | bar | held |\n|---|---|---|---|"
_figures: list[str] = []


def _human(rate: float) -> str:
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= limit:
            return f"{rate / limit:.2f} {suffix}"
    return f"{rate:.1f} "


@pytest.fixture
def beside(benchmark: Any, request: pytest.FixtureRequest) -> Callable[..., Comparison]:
    """Measure ours against a rival; see the module's docstring."""

    def measure(
        *,
        raw: Work,
        ours: Work,
        name: str,
        rival: str,
        units: float,
        unit: str,
        bar: Bar,
        rounds: int = 7,
        before: Work = lambda: None,
        after: Work = lambda: None,
    ) -> Comparison:
        comparison = Comparison(name, rival, bar, unit, units)
        clock = time.process_time if request.config.getoption("--cpu") else time.perf_counter

        def one_round_of_the_rival() -> None:
            after()
            before()
            started = clock()
            raw()
            comparison.raw.append(clock() - started)
            after()
            before()

        def one_round_of_ours() -> None:
            started = clock()
            ours()
            comparison.ours.append(clock() - started)

        benchmark.pedantic(one_round_of_ours, setup=one_round_of_the_rival, rounds=rounds, warmup_rounds=1)
        after()
        del comparison.raw[0], comparison.ours[0]  # the warm-up
        benchmark.extra_info["ratio"] = comparison.ratio
        benchmark.extra_info["bar"] = bar.text
        _comparisons.append(comparison)
        return comparison

    return measure


@pytest.fixture
def figure() -> Callable[[str, str, str, bool], None]:
    """Report a figure without a rival: its name, the figure, the bar, whether it is reached."""

    def report(name: str, value: str, bar: str, holds: bool) -> None:
        _figures.append(f"| {name} | {value} | {bar} | {'yes' if holds else 'no'} |")

    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", action="store_true", help="count processor time: for a machine that is busy")
    parser.addoption("--table", default=None, help="write the table of ratios to this file")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if _figures:
        terminalreporter.write_sep("=", "figures")
        terminalreporter.write_line("\n".join([FIGURES_HEADER, *_figures]))
    if not _comparisons:
        return
    table = "\n".join([HEADER, *(comparison.row() for comparison in _comparisons)])
    terminalreporter.write_sep("=", "beside the raw device, in this run")
    terminalreporter.write_line(table)
    if (path := config.getoption("--table")) is not None:
        Path(path).write_text(table + "\n", encoding="utf-8")


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty directory on the measured device."""
    import shutil

    path = tmp_path_factory.mktemp("bench")
    yield path
    shutil.rmtree(path, ignore_errors=True)

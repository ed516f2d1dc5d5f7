"""Bars: what a ratio to a rival, or a rate of ours, must reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Bar(NamedTuple):
    """A bar as the table shows it; `holds` gets our ratio to the rival and our units per second."""

    text: str
    holds: Callable[[float, float], bool]


NO_BAR = Bar("–", lambda _ratio, _rate: True)


def ratio_bar(least: float) -> Bar:
    """Require this ratio of our rate to the rival's."""
    return Bar(f"≥ {least:g}", lambda ratio, _rate: ratio >= least)


def rate_bar(least: float, text: str) -> Bar:
    """Require this many units per second."""
    return Bar(text, lambda _ratio, rate: rate >= least)

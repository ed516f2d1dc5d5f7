"""Turn a failing run into a short one that fails in the same way.

Faults come first, since most are irrelevant: halves, quarters, eighths of the list are left out as long as
the same invariant breaks, down to single faults (ddmin). Then clients are silenced, producers send less,
and each kind of noise is switched off. Every part of the resulting transcript is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from logstore.testing.transcript import NOISE, Transcript

Item = TypeVar("Item")
_FEWEST_SENDS = (0, 1, 2, 3, 5, 8, 13, 21)


def shrink(
    transcript: Transcript, breaks: Callable[[Transcript], bool], clients: Sequence[str]
) -> Transcript:
    """Return a shorter transcript for which `breaks` still holds, as it must for `transcript`."""

    def without_needless_faults() -> Transcript:
        needed = minimal(
            transcript.decisions, lambda some: breaks(replace(transcript, decisions=tuple(some)))
        )
        return replace(transcript, decisions=tuple(needed))

    transcript = without_needless_faults()
    for name in clients:
        shorter = replace(transcript, silent=(*transcript.silent, name))
        if breaks(shorter):
            transcript = shorter
    for most in _FEWEST_SENDS:
        shorter = replace(transcript, most_sends=most)
        if breaks(shorter):
            transcript = shorter
            break
    for name in NOISE:
        shorter = replace(transcript, quiet=(*transcript.quiet, name))
        if breaks(shorter):
            transcript = shorter
    return without_needless_faults()


def minimal(items: Sequence[Item], breaks: Callable[[Sequence[Item]], bool]) -> Sequence[Item]:
    """Return a part of `items`, in order, for which `breaks` holds, but for no part with one item less
    (ddmin)."""
    parts = 2
    while items:
        size = -(-len(items) // parts)
        for at in range(0, len(items), size):
            rest = [*items[:at], *items[at + size :]]
            if breaks(rest):
                items, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(items))
    return items

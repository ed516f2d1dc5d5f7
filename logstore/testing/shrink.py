"""From a failing run to a short one that fails in the same way.

Faults go first, since most of them have nothing to do with it: halves, quarters, eighths of the list are
left out as long as the same invariant breaks, down to single faults (ddmin). Then clients fall silent and
producers send less, and at last the noise of the schedule is switched off, kind by kind. What is left
is a transcript; each of its parts is needed.
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
    """A shorter transcript for which `breaks` holds still, as it must for `transcript`."""

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
    """A part of `items`, in order, for which `breaks` holds, and for no part that lacks one more (ddmin)."""
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

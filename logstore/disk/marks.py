"""Marks: named branches of the engine that a test campaign must reach. No effect in production.

    mark("isr: a proposal is refused for good")        in a rarely taken branch

A campaign that never reaches a rare branch has not tested it, however many seeds it ran. `observed` reports
the marks that are reached. Each name is a literal in one place of the source; the list of all marks is
extracted from the source. Without an observer a mark costs an iteration over an empty list; no mark is in a
loop over records or bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_observers: list[Callable[[str], None]] = []


def mark(name: str) -> None:
    """Report to the observers that this branch was reached."""
    for observer in _observers:
        observer(name)


@contextmanager
def observed(observer: Callable[[str], None]) -> Iterator[None]:
    """Call `observer` for every mark that this process reaches inside the block."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)

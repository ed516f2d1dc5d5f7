"""Marks: named places in the engine that a test campaign must have been to. Nothing in production.

    mark("isr: a proposal is refused for good")        at the branch that is rarely taken

A campaign that never took the rare branch has not tested it, however many seeds it ran; so the rare
branches carry a name, and `observed` tells whoever asks when one is reached. Each name is a literal that
stands in one place of the source: the catalogue of marks is read off the source. With no observer a mark
is one look at an empty list; none stands in a loop over records or bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_observers: list[Callable[[str], None]] = []


def mark(name: str) -> None:
    """This place was reached."""
    for observer in _observers:
        observer(name)


@contextmanager
def observed(observer: Callable[[str], None]) -> Iterator[None]:
    """Hear of every mark reached in this process until the block ends."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)

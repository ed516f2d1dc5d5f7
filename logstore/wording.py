"""Numbers in the sentences that programs print."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return `1 broker`, `2 brokers`, `0 batches`."""
    return f"{count} {noun_of(count, noun)}"


def noun_of(count: int, noun: str) -> str:
    """Return the noun in the number of `count`: `broker`, `brokers`."""
    plural = "es" if noun.endswith(("ch", "s")) else "s"
    return noun if count == 1 else f"{noun}{plural}"

"""Numbers in the sentences that programs print."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return `1 broker`, `2 brokers`, `0 batches`."""
    plural = "es" if noun.endswith(("ch", "s")) else "s"
    return f"{count} {noun}{'' if count == 1 else plural}"

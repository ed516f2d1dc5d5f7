"""What the workers have written down, and what a queue must hold after it.

A file that all of them map: a byte for each message, which outlives whoever wrote it.

    0   not acknowledged      1   an acknowledgement has begun      2   it has returned

A message's value is its number, which is its offset. `put` counts the messages whose put has returned.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

BEGUN, RETURNED = 1, 2


class Ledger:
    """The file as arrays: `acks`, a byte for each message, and `put`, one number."""

    def __init__(self, home: Path) -> None:
        self.acks: npt.NDArray[np.uint8] = np.memmap(home / "acks", np.uint8, "r+")
        self.put: npt.NDArray[np.int64] = np.memmap(home / "put", np.int64, "r+")

    @classmethod
    def create(cls, home: Path, messages: int) -> None:
        (home / "acks").write_bytes(bytes(messages))
        (home / "put").write_bytes(bytes(8))


def violations(
    unfinished: npt.NDArray[np.int64], next_offset: int, end_offset: int, ledger: Ledger
) -> list[str]:
    """Compare the unfinished messages below `next_offset`, and all from there to the end, with the ledger."""
    found: list[str] = []
    if end_offset < ledger.put[0]:
        found.append(f"lost: {ledger.put[0]} messages were put, the log ends at {end_offset}")
    if len(unfinished) and not (np.diff(unfinished) > 0).all():
        found.append("a message is in the queue twice")
    is_there = np.zeros(end_offset, bool)
    is_there[unfinished[unfinished < end_offset]] = True
    is_there[next_offset:] = True
    acks = ledger.acks[:end_offset]
    lost = np.flatnonzero(~is_there & (acks == 0))
    again = np.flatnonzero(is_there & (acks == RETURNED))
    if len(lost):
        found.append(f"lost: {len(lost)} messages that nobody acknowledged, the first is {lost[0]}")
    if len(again):
        found.append(f"new again: {len(again)} acknowledged messages, the first is {again[0]}")
    return found

"""The notes of the workers, and the checks of them.

Each worker appends JSON lines to a file of its own: what it begins, and what has returned. Times are those of
the machine's monotonic clock, so that they can be compared.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path


class Notes:
    """The file of one worker. What is written survives its death."""

    def __init__(self, home: Path, name: str) -> None:
        self._fd = os.open(home / f"{name}.notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, keys: list[int], offsets: list[int] | None = None, at: float = 0) -> None:
        line = json.dumps([what, at or time.monotonic(), keys, offsets or []])
        os.write(self._fd, f"{line}\n".encode())


def _lines(home: Path) -> Iterator[tuple[str, float, list[tuple[int, int]]]]:
    for path in sorted(home.glob("*.notes")):
        for line in path.read_text().splitlines():
            what, at, keys, offsets = json.loads(line)
            yield what, at, list(zip(keys, offsets or [-1] * len(keys), strict=True))


def violations(home: Path) -> tuple[list[str], dict[str, int]]:
    """Return what is wrong after everything was taken, and the counts of what was done.

    A key is put many times: one message of it may be stored. It must be delivered, at the latest at the end,
    and never by a `get` that began after its acknowledgement had returned.
    """
    places: dict[int, set[int]] = defaultdict(set)
    acked: dict[int, float] = {}
    got: dict[int, list[float]] = defaultdict(list)
    stored, counts = set[int](), defaultdict[str, int](int)
    for what, at, found in _lines(home):
        counts[what] += len(found)
        for key, offset in found:
            if what in ("stored", "got"):
                places[key].add(offset)
            if what == "stored":
                stored.add(key)
            elif what == "got":
                got[key].append(at)
            elif what == "acked":
                acked[key] = min(at, acked.get(key, at))
    wrong = [f"twice: key {key} is at {sorted(where)}" for key, where in places.items() if len(where) > 1]
    wrong += [f"lost: key {key} was stored, and nobody got it" for key in sorted(stored - got.keys())]
    wrong += [
        f"again: key {key} was got after its acknowledgement"
        for key, at in acked.items()
        if max(got[key], default=0) > at
    ]
    return wrong, dict(counts)

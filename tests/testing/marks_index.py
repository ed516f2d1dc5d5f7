"""The index of coverage marks: one line per mark, with a seed that reaches it.

Few seeds cover all marks, so that a test can run them. Write the index again with

    logstore simulate --index-marks 0..2899 > tests/testing/marks.txt
"""

from __future__ import annotations

from collections.abc import Iterable

from logstore.testing.runner import run


def parse_index(text: str) -> dict[str, int]:
    """Return the seed of each mark. Raises `ValueError` for another form."""
    found = {}
    for line in text.splitlines():
        seed, separator, name = line.partition("  ")
        if not separator:
            raise ValueError(f"{line!r} is not a seed and a mark")
        found[name] = int(seed)
    return found


def index_of_marks(seeds: Iterable[int], events: int) -> str:
    """Run `seeds`; return a line for each mark that they reach, using as few seeds as possible (greedily)."""
    reached = {seed: set(run(seed, events).marks) for seed in seeds}
    chosen: dict[str, int] = {}
    while left := {name for marks in reached.values() for name in marks} - chosen.keys():
        best = max(reached, key=lambda seed: (len(reached[seed] & left), -seed))
        chosen.update(dict.fromkeys(sorted(reached[best] & left), best))
    return "".join(f"{seed}  {name}\n" for name, seed in sorted(chosen.items()))

"""The engine's coverage marks: which there are, and which seeds reach them.

The catalogue is read off the source, as every `mark("…")` in it is a literal. The index is a committed
file, a line for each mark with the seeds that are to reach it: few seeds for all of them, so that a test can
run them. It is made anew by

    python -m logstore.testing --index-marks 1..2000 > tests/testing/marks.txt
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("disk", "checkpoint", "format", "segment", "log", "compact", "columnar", "replication")


@cache
def catalogue() -> tuple[str, ...]:
    """Every mark in the source, in alphabetical order. Raises `ValueError` where one stands twice."""
    counts = Counter(name for room in ROOMS for name in _marks_below(ROOT / room))
    doubled = [name for name, count in counts.items() if count > 1]
    if doubled:
        raise ValueError(f"marks name one place each; these stand in several: {doubled}")
    return tuple(sorted(counts))


def _marks_below(directory: Path) -> Iterator[str]:
    for path in sorted(directory.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "mark":
                (argument,) = node.args
                if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                    raise ValueError(f"{path.name}:{node.lineno}: a mark is a literal")
                yield argument.value


def parse_index(text: str) -> dict[str, int]:
    """The index as it is committed: the seed for each mark. Raises `ValueError` for another form."""
    found = {}
    for line in text.splitlines():
        seed, separator, name = line.partition("  ")
        if not separator:
            raise ValueError(f"{line!r} is not a seed and a mark")
        found[name] = int(seed)
    return found


def index_of_marks(seeds: Iterable[int], events: int) -> str:
    """Run `seeds`; a line for each mark that they reach, with a seed of as few as will do (greedily)."""
    from logstore.testing.runner import run

    reached = {seed: set(run(seed, events).marks) for seed in seeds}
    chosen: dict[str, int] = {}
    while left := {name for marks in reached.values() for name in marks} - chosen.keys():
        best = max(reached, key=lambda seed: (len(reached[seed] & left), -seed))
        chosen.update(dict.fromkeys(sorted(reached[best] & left), best))
    return "".join(f"{seed}  {name}\n" for name, seed in sorted(chosen.items()))

"""`python -m tests.wire_judge`: send the same requests to Apache Kafka and to ours; exit 1 if answers differ.

A seed draws a story in each area. Documented differences are counted by their name; any other is shown with
the requests that it needs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

from bench.kafka.jars import Missing
from logstore.testing.__main__ import seeds_of
from tests.wire_judge import cluster, groups, records, topics, transactions
from tests.wire_judge.campaign import Area, Difference, Judge, shrunk
from tests.wire_judge.sides import both
from tests.wire_judge.stories import Draw

AREAS: Final[dict[str, Area]] = {
    "records": records.story,
    "groups": groups.story,
    "topics": topics.story,
    "cluster": cluster.story,
    "transactions": transactions.story,
}
_LONGEST: Final = 1_000


class Report:
    """Counts of the differences in the stories so far."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.stories = 0
        self.known: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()

    def tell(self, area: str, seed: int) -> None:
        """Draw a story and tell it to both sides."""
        story = f"{area}-{seed}"
        self.stories += 1
        for each in list(self._judge.hear(AREAS[area](self._draw(story)))):
            if each.name:
                self.known[each.name] += 1
                continue
            self.unknown[each.what] += 1
            if self.unknown[each.what] == 1:
                self._show(area, story, each)

    def _show(self, area: str, story: str, difference: Difference) -> None:
        names = (f"{story}~{number}" for number in count())

        def differs(numbers: Sequence[int]) -> bool:
            steps = AREAS[area](self._draw(story, next(names)))
            told = [steps[number] for number in numbers]
            return any(each.what == difference.what for each in self._judge.hear(told))

        kept = shrunk(difference.step + 1, differs)
        seed = story.rpartition("-")[2]
        print(f"--seeds {seed}..{seed} --areas {area}: {difference}", flush=True)
        steps = AREAS[area](self._draw(story))
        for number in kept:
            print(f"    {steps[number].shown()}"[:_LONGEST], flush=True)

    def _draw(self, story: str, name: str = "") -> Draw:
        return Draw(story, self._judge.versions, name)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire_judge", description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default="1..100", help="A..B (%(default)s)")
    parser.add_argument("--areas", nargs="*", default=list(AREAS), choices=list(AREAS))
    options = parser.parse_args(arguments)
    home = Path(tempfile.mkdtemp(prefix="wire-judge-"))
    try:
        with both(home) as sides:
            report = Report(Judge(sides))
            for seed in options.seeds:
                for area in options.areas:
                    report.tell(area, seed)
    except Missing as reason:
        print(f"not run: {reason}")
        return 0
    finally:
        shutil.rmtree(home, ignore_errors=True)
    for name, number in report.known.most_common():
        print(f"{number:6}  {name}")
    for what, number in report.unknown.most_common():
        print(f"{number:6}  NOT DOCUMENTED: {what}")
    print(f"{report.stories} stories, {report.unknown.total()} differences that are not documented")
    return 1 if report.unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

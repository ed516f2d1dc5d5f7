"""`python -m tests.wire_judge`: send the same requests to Apache Kafka and to ours; exit 1 if answers differ.

A seed draws a story in each area. Documented differences are counted by their name; any other is shown with
the requests that it needs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

from bench.kafka.jars import Missing
from logstore.testing.__main__ import seeds_of
from tests.wire_judge import cluster, groups, logins, permissions, records, topics, transactions, versions
from tests.wire_judge.campaign import Area, Difference, Judge, shrunk
from tests.wire_judge.counts import Counts
from tests.wire_judge.sides import both
from tests.wire_judge.stories import Draw

AREAS: Final[dict[str, Area]] = {
    "records": records.story,
    "groups": groups.story,
    "topics": topics.story,
    "cluster": cluster.story,
    "transactions": transactions.story,
    "versions": versions.story,
}
SECURED: Final[dict[str, Area]] = {
    "permissions": permissions.story,
    "logins": logins.story,
}
"""The areas of brokers with an authorizer and logins."""
ALL: Final = {**AREAS, **SECURED}
_LONGEST: Final = 1_000


def shortened(story: str, number: int) -> str:
    """Return the name of a shorter form of the story: its topics are new."""
    return f"{story}_{number}"


class Report:
    """Tells stories and counts the differences in them."""

    def __init__(self, judge: Judge, counts: Counts) -> None:
        self._judge, self._counts = judge, counts

    def tell(self, area: str, seed: int) -> None:
        """Draw a story and tell it to both sides."""
        story = f"{area}-{seed}"
        self._counts.stories += 1
        for each in list(self._judge.hear(ALL[area](self._draw(story)))):
            if each.name:
                self._counts.known[each.name] += 1
                continue
            self._counts.unknown[each.what] += 1
            if self._counts.unknown[each.what] == 1:
                self._show(area, story, each)

    def _show(self, area: str, story: str, difference: Difference) -> None:
        names = (shortened(story, number) for number in count())

        def differs(numbers: Sequence[int]) -> bool:
            steps = ALL[area](self._draw(story, next(names)))
            told = [steps[number] for number in numbers]
            return any(each.what == difference.what for each in self._judge.hear(told))

        kept = shrunk(difference.step + 1, differs)
        seed = story.rpartition("-")[2]
        print(f"--seeds {seed}..{seed} --areas {area}: {difference}", flush=True)
        steps = ALL[area](self._draw(story))
        for number in kept:
            print(f"    {steps[number].shown()}"[:_LONGEST], flush=True)

    def _draw(self, story: str, name: str = "") -> Draw:
        return Draw(story, self._judge.versions, name)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire_judge", description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default="1..100", help="A..B (%(default)s)")
    parser.add_argument("--areas", nargs="*", default=list(ALL), choices=list(ALL))
    options = parser.parse_args(arguments)
    home = Path(tempfile.mkdtemp(prefix="wire-judge-"))
    counts = Counts()
    try:
        for is_secured in (False, True):
            areas = [each for each in options.areas if (each in SECURED) == is_secured]
            if areas:
                with both(home / ("secured" if is_secured else "plain"), is_secured=is_secured) as sides:
                    report = Report(Judge(sides), counts)
                    for seed in options.seeds:
                        for area in areas:
                            report.tell(area, seed)
    except Missing as reason:
        print(f"not run: {reason}")
        return 0
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return counts.show()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

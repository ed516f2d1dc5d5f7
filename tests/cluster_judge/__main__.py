"""`python -m tests.cluster_judge`: do the same to three brokers of Apache Kafka and three of ours.

A seed draws a story. After each of its steps both clusters come to rest and are compared. Documented
differences are counted by their name; any other ends its story and is shown with the steps up to it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.kafka.jars import Missing
from logstore.testing.__main__ import seeds_of
from tests.cluster_judge.campaign import Judge
from tests.cluster_judge.sides import both
from tests.cluster_judge.stories import story


class Report:
    """Counts of the differences in the stories so far."""

    def __init__(self, judge: Judge, *, is_verbose: bool = False) -> None:
        self._judge, self._is_verbose = judge, is_verbose
        self.stories = 0
        self.known: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()

    def tell(self, seed: str, length: int) -> None:
        """Draw a story and tell it to both sides."""
        told, begin = story(seed, length), time.monotonic()
        self.stories += 1
        met = list(self._judge.hear(told))
        self.known.update(each.name for each in met if each.name)
        unknown = [each for each in met if not each.name]
        self.unknown.update(each.met.what for each in unknown)
        print(f"story {seed}: {len(told.steps)} steps, {time.monotonic() - begin:.1f} s", flush=True)
        for said in self._judge.said if unknown or self._is_verbose else ():
            print(f"    {said}", flush=True)
        for each in met if self._is_verbose else unknown:
            print(f"  {each.name or 'NOT DOCUMENTED'}: {each}"[:1_000], flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster_judge", description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default="1..30", help="A..B (%(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="of a story (%(default)s)")
    parser.add_argument("--verbose", action="store_true", help="show all steps, and known differences")
    options = parser.parse_args(arguments)
    home = Path(tempfile.mkdtemp(prefix="cluster-judge-"))
    try:
        with both(home) as sides:
            report = Report(Judge(sides), is_verbose=options.verbose)
            for seed in options.seeds:
                report.tell(str(seed), options.steps)
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

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
from pathlib import Path

from bench.kafka.jars import Missing
from logstore.testing.__main__ import seeds_of
from tests.cluster_judge.campaign import Judge
from tests.cluster_judge.sides import both
from tests.cluster_judge.stories import story
from tests.wire_judge.counts import Counts


class Report:
    """Tells stories and counts the differences in them."""

    def __init__(self, judge: Judge, counts: Counts, *, is_verbose: bool = False) -> None:
        self._judge, self._counts, self._is_verbose = judge, counts, is_verbose

    def tell(self, seed: str, length: int) -> None:
        """Draw a story and tell it to both sides."""
        told, begin = story(seed, length), time.monotonic()
        self._counts.stories += 1
        met = list(self._judge.hear(told))
        self._counts.known.update(each.name for each in met if each.name)
        unknown = [each for each in met if not each.name]
        self._counts.unknown.update(each.met.what for each in unknown)
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
    counts = Counts()
    try:
        with both(home) as sides:
            report = Report(Judge(sides), counts, is_verbose=options.verbose)
            for seed in options.seeds:
                report.tell(str(seed), options.steps)
    except Missing as reason:
        print(f"not run: {reason}")
        return 0
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return counts.show()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

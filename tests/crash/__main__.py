"""The crash campaign: every script and every short sequence, first one crash, then a crash in the recovery.

    python -m tests.crash               both parts; `make crash` is this
    python -m tests.crash --short       the first alone
    python -m tests.crash --images 24 --second-images 4 --scripts swap

Prints a line a script: the moments at which the power was cut, the images that were enumerated, how many
of them were distinct (other content, or the same under another promise), how many had to be opened, the
images of second crashes, violations, seconds of processor time. Exits with 1 for a violation.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from simulation.crash import CrashReport
from tests.crash import test_generated, test_log_dir_points, test_log_points, test_store_points

ROOMS: tuple[Any, ...] = (test_log_points, test_log_dir_points, test_store_points)
HEAD = f"{'script':36}  moments   images distinct  opened   second  bad      s"


def scripts(wanted: str) -> Iterator[tuple[str, Callable[..., CrashReport]]]:
    for room in ROOMS:
        for script in room.SCRIPTS:
            if wanted in script.__name__:

                def explore(room: Any = room, script: Any = script, **options: Any) -> CrashReport:
                    report: CrashReport = room.explored(script, **options)
                    return report

                yield script.__name__, explore


def sequences(**options: Any) -> CrashReport:
    """All short sequences as one line of the table."""
    return summed("sequences of up to 3", test_generated.explored(test_generated.sequences(), **options))


def summed(name: str, reports: Iterator[CrashReport]) -> CrashReport:
    total = CrashReport(name)
    for report in reports:
        total.moments += report.moments
        total.images += report.images
        total.distinct += report.distinct
        total.states += report.states
        total.second += report.second
        total.violations += report.violations
    return total


def part(title: str, wanted: str, **options: Any) -> CrashReport:
    print(f"\n{title}\n{HEAD}", flush=True)
    reports: list[CrashReport] = []
    begun = time.process_time()
    for name, explore in scripts(wanted):
        reports.append(timed(name, lambda explore=explore: explore(**options)))  # type: ignore[misc]
    if not wanted:
        few = {**options, "images": min(options["images"], 3)}
        reports.append(timed("sequences of up to 3", lambda: sequences(**few)))
    total = summed("in all", iter(reports))
    print(line(total, time.process_time() - begun), flush=True)
    for report in reports:
        if not report.is_good:
            print(f"\n{report}")
    return total


def timed(name: str, explore: Callable[[], CrashReport]) -> CrashReport:
    begun = time.process_time()
    report = explore()
    report.workload = name
    print(line(report, time.process_time() - begun), flush=True)
    return report


def line(report: CrashReport, seconds: float) -> str:
    return (
        f"{report.workload:36} {report.moments:8} {report.images:8} {report.distinct:8} {report.states:7} "
        f"{report.second:8} {len(report.violations):4} {seconds:6.1f}"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one crash only, no crash in the recovery")
    parser.add_argument("--images", type=int, default=10, help="images a moment and kind of file system")
    parser.add_argument("--second-images", type=int, default=3, help="likewise at the moments of a recovery")
    parser.add_argument("--scripts", default="", metavar="NAME", help="only those whose names contain this")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    given = parser.parse_args(arguments)
    first = part("One crash", given.scripts, images=given.images, kills=False, seed=given.seed)
    if given.short:
        return int(not first.is_good)
    second = part(
        "A crash, and another while recovering; a killed process, and a crash behind it",
        given.scripts,
        images=2,
        second_images=given.second_images,
        depth=2,
        seed=given.seed,
    )
    return int(not (first.is_good and second.is_good))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from logstore.testing.crash import CrashReport
from tests.crash import (
    test_compaction_points,
    test_cursor_points,
    test_damaged_cut_points,
    test_generated,
    test_heal_points,
    test_log_dir_points,
    test_log_points,
    test_move_points,
    test_queue_points,
    test_snapshot_points,
    test_store_points,
)

ROOMS: tuple[Any, ...] = (
    test_log_points,
    test_log_dir_points,
    test_move_points,
    test_store_points,
    test_snapshot_points,
    test_heal_points,
    test_cursor_points,
)
HEAD = f"{'script':36}  moments   images distinct  opened   second  bad      s"


Explore = Callable[..., CrashReport]


def scripts() -> dict[str, Explore]:
    """Every script by its name, and what explores it: options are the crash lab's."""
    found: dict[str, Explore] = {}
    for room in ROOMS:
        for script in room.SCRIPTS:
            found[script.__name__] = partial(room.explored, script)
    for fill in test_compaction_points.LOGS:
        for passes in range(3):
            name = f"compaction_{fill.__name__}_{passes}"
            found[name] = partial(test_compaction_points.explore, fill, passes)
    found["damaged_cut"] = test_damaged_cut_points.explored
    found["snapshot_of_a_log_dir"] = test_snapshot_points.explored_log_dir
    found.update(test_queue_points.everything())
    return found


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
    chosen = {name: explore for name, explore in scripts().items() if wanted in name}
    if not wanted:
        chosen["sequences of up to 3"] = sequences
    return table(title, chosen, time.process_time, **options)


def table(
    title: str, explorations: Mapping[str, Explore], clock: Callable[[], float], **options: Any
) -> CrashReport:
    """Explore and print a line each, then the violations; return the sum. `clock` counts seconds."""
    print(f"\n{title}\n{HEAD}", flush=True)
    reports: list[CrashReport] = []
    begun = clock()
    for name, explore in explorations.items():
        started = clock()
        report = explore(**options)
        report.workload = name
        print(line(report, clock() - started), flush=True)
        reports.append(report)
    total = summed("in all", iter(reports))
    print(line(total, clock() - begun), flush=True)
    for report in reports:
        if not report.is_good:
            print(f"\n{report}")
    return total


def line(report: CrashReport, seconds: float) -> str:
    return (
        f"{report.workload:36} {report.moments:8} {report.images:8} {report.distinct:8} {report.states:7} "
        f"{report.second:8} {len(report.violations):4} {seconds:6.1f}"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one crash only, no crash in the recovery")
    parser.add_argument("--images", type=int, default=4, help="images a moment and kind of file system")
    parser.add_argument("--second-images", type=int, default=3, help="likewise at the moments of a recovery")
    parser.add_argument("--scripts", default="", metavar="NAME", help="only those whose names contain this")
    parser.add_argument("--part", type=int, choices=(1, 2), help="one part alone; 1 is --short")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    given = parser.parse_args(arguments)
    is_good = True
    if given.part != 2:
        options = {"images": given.images, "kills": False, "seed": given.seed}
        is_good = part("One crash", given.scripts, **options).is_good
    if given.part != 1 and not given.short:
        title = "A crash, and another while recovering; a killed process, and a crash behind it"
        options = {"images": min(given.images, 2), "second_images": given.second_images, "depth": 2}
        is_good &= part(title, given.scripts, **options, seed=given.seed).is_good
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

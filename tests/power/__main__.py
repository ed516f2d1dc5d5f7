"""Power cuts on real file systems: `python -m tests.power [--kinds ext4,xfs] [--moments N] [--seed N]`.

Every script of the crash campaign (`tests/crash`) runs on a file system of the kernel, whose block device
remembers each write and flush. Images that a power cut may leave are mounted again, and must hold what was
promised. Prints a line a script; exits with 1 for a violation. Needs root, FUSE and loop devices.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest import mock

from bench.kafka.jars import Missing
from tests.crash import script as of_logs
from tests.crash import test_compaction_points, test_damaged_cut_points, test_queue_points
from tests.crash.__main__ import ROOMS, scripts, table
from tests.power.block_device import KINDS, Devices, in_memory
from tests.power.lab import BlockLab


@contextmanager
def on_devices(kind: str, moments: int) -> Iterator[None]:
    """Inside, the crash campaign's scripts are explored on this kind of file system. Raises `Missing`."""
    with in_memory() as folder:
        devices = Devices(folder, KINDS[kind])
        lab = partial(BlockLab, devices=devices, moments=moments)
        rooms = (*ROOMS, of_logs, test_compaction_points, test_damaged_cut_points, test_queue_points)
        try:
            with ExitStack() as stack:
                for room in rooms:
                    if hasattr(room, "CrashLab"):
                        stack.enter_context(mock.patch.object(room, "CrashLab", lab))
                yield
        finally:
            devices.end()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), help="file systems, separated by commas")
    parser.add_argument("--moments", type=int, default=20, help="images of each script")
    parser.add_argument("--seed", type=int, default=0, help="draws the moments and images")
    parser.add_argument("--scripts", default="", help="only scripts whose names contain this")
    given = parser.parse_args(arguments)
    bad = 0
    for kind in given.kinds.split(","):
        try:
            with on_devices(kind, given.moments):
                bad += explored(kind, given.scripts, given.seed)
        except Missing as error:
            print(f"not run: {error}", file=sys.stderr)
            return 2
    return 1 if bad else 0


def explored(kind: str, wanted: str, seed: int) -> int:
    """Explore the scripts on devices of this kind; return the number of violations."""
    chosen = {name: explore for name, explore in scripts().items() if wanted in name}
    total = table(f"{kind}, seed {seed}", chosen, time.perf_counter, seed=seed)
    return len(total.violations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m tests.mutants`: run the listed mutants and report those that no test notices."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.mutants.harness import Area, Fate, copy_of_the_code, fate_of, run_tests
from tests.mutants.listed import EXPLAINED, MUTANTS


def main() -> int:
    """Return 0 if every survivor is explained, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these mutants")
    parser.add_argument("--area", choices=[area.value for area in Area])
    parser.add_argument("--limit-s", type=float, default=300.0, help="time for the tests of one mutant")
    arguments = parser.parse_args()
    chosen = [
        each
        for each in MUTANTS
        if (not arguments.names or each.name in arguments.names)
        and (arguments.area is None or each.area.value == arguments.area)
    ]
    if not chosen:
        parser.error("no such mutant")
    fates: Counter[Fate] = Counter()
    unexplained = []
    with tempfile.TemporaryDirectory() as directory, copy_of_the_code(Path(directory)) as copy:
        modules = tuple(sorted({module for each in chosen for module in each.tests}))
        if run_tests(copy, modules, arguments.limit_s * 4) != 0:
            print("the tests fail without any mutant", file=sys.stderr)
            return 2
        for each in chosen:
            started_s = time.monotonic()
            fate = fate_of(each, copy, arguments.limit_s)
            fates[fate] += 1
            took = f"{time.monotonic() - started_s:5.1f} s"
            why = f": {EXPLAINED[each.name]}" if fate is Fate.SURVIVED and each.name in EXPLAINED else ""
            print(f"{fate.value:10} {took}  {each.area.value:12} {each.name}{why}", flush=True)
            if fate is Fate.SURVIVED and each.name not in EXPLAINED:
                unexplained.append(each.name)
    noticed = fates[Fate.NOTICED] + fates[Fate.TIMED_OUT]
    print(f"{noticed} of {len(chosen)} are noticed")
    if unexplained:
        print(f"survivors without an explanation: {', '.join(unexplained)}", file=sys.stderr)
    return int(bool(unexplained))


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.cycles`: hand directories to Apache Kafka and back; a table, and exit 1 on a violation."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from bench.kafka.jars import Missing
from tests.cycles.campaign import Round


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cycles", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="directories (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first one; the others follow it")
    options = parser.parse_args(arguments)
    violations = 0
    print(f"{'seed':>5}  {'owner':5} {'found':>7} {'left':>7} {'compacted':>9} {'deleted':>7}", flush=True)
    for seed in range(options.seed, options.seed + options.rounds):
        home = Path(tempfile.mkdtemp(prefix="cycles-"))
        try:
            steps = Round(home / "cluster", seed).run()
        except Missing as reason:
            print(f"not run: {reason}")
            return 0
        bad = 0
        for step in steps:
            owner, found, left, compacted, deleted, wrong = step
            row = f"{seed:5}  {owner.value:5} {found:7} {left:7} {compacted:9} {deleted:7}"
            print(row, *wrong, sep="\n  ", flush=True)
            bad += len(wrong)
        violations += bad
        if bad:
            print(f"seed {seed}: the directory is kept in {home}")
        else:
            shutil.rmtree(home)
    print(f"{options.rounds} rounds, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m tests.rot`: rounds of rot at three real brokers; a table, and exit 1 on a violation."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.kill9.campaign import conclude
from tests.rot.campaign import LONGEST_PAUSE_S, Round, run
from tests.rot.rotting import KILLED, KINDS

_HEAD = f"{'round':>5}  {'kind':9} {'node':>4} {'bytes':>5} {'mended':>7} {'paused':>7}  file"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rot", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="in all (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which files rot, and where (%(default)s)")
    parser.add_argument("--plant", choices=["no-scrub"], default="", help="a mistake that must be found")
    parser.add_argument("--only", choices=(*KINDS, KILLED), help="one kind of file")
    parser.add_argument("--patience", type=float, default=60.0, metavar="S", help="(%(default)s)")
    options = parser.parse_args(arguments)

    def show(each: Round) -> None:
        print(
            f"{each.number:5}  {each.kind:9} {each.node:4} {each.size:5} {each.mended_s:6.2f}s "
            f"{each.paused_s:6.2f}s  {each.name}",
            flush=True,
        )

    print(f"seed {options.seed}\n{_HEAD}", flush=True)
    home = tempfile.mkdtemp(prefix="rot-")
    outcome = run(
        Path(home) / "cluster",
        options.rounds,
        options.seed,
        patience_s=options.patience,
        plant=options.plant,
        kinds=(options.only,) if options.only else (*KINDS, KILLED),
        tell_of=show,
    )
    print(
        f"{len(outcome.rounds)} rounds, {outcome.acknowledged} messages acknowledged, {outcome.consumed} "
        f"consumed, {outcome.reads} reads from the start, mended after "
        f"{max(each.mended_s for each in outcome.rounds):.2f} s at most, longest pause "
        f"{max(each.paused_s for each in outcome.rounds):.2f} s (bar {LONGEST_PAUSE_S:g} s), "
        f"{len(outcome.violations)} violations",
        flush=True,
    )
    conclude(outcome.violations, home)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

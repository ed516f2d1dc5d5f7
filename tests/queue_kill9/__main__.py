"""Rounds of kill -9 at a process that works on a queue; a line a round, and exit 1 on a violation.

    python -m tests.queue_kill9 --messages 10000000 --leased 1000000 --rounds 200
    python -m tests.queue_kill9 --plant late-acks        must find violations

In the first round twice as many messages as `--leased` are leased and half of them acknowledged at random.
`tests/queue_kill9/worker.py` says what a worker does, and what it writes down for the judge.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.queue_kill9.judge import Ledger
from tests.queue_kill9.worker import PLANTS

ROOT = Path(__file__).parents[2]
LONGEST_S = 0.5
"""A worker lives for up to so long after it has opened the queue."""
PATIENCE_S = 600.0
ROOM = 10_000_000
"""So many messages more may be put."""


class Round(NamedTuple):
    """One worker: how long the queue took to open, what it found then, and why it ended."""

    open_s: float
    facts: str
    violations: list[str]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.queue_kill9", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--leased", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", choices=sorted(PLANTS), help="switch a precaution of the queue off")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, {options.messages} messages, {options.leased} leased", flush=True)
    home = Path(tempfile.mkdtemp(prefix="queue-kill9-"))
    rng = random.Random(options.seed)
    Ledger.create(home, options.messages + ROOM)
    longest_s, violations = 0.0, list[str]()
    for number in range(options.rounds + 1):
        task = ["fill", options.messages, options.leased] if number == 0 else ["work"]
        seed = rng.randrange(1 << 30)
        result = _round([home, seed, options.plant or "none", *task], rng.random() * LONGEST_S)
        longest_s = max(longest_s, result.open_s if number else 0)
        violations += result.violations
        print(f"{number:5}  open {result.open_s:6.3f} s  {result.facts}", flush=True)
        for violation in result.violations:
            print(f"       {violation}", flush=True)
        if violations:
            break
    if not violations:
        result = _round([home, 0, options.plant or "none", "drain"], PATIENCE_S)
        violations += result.violations
        print(f"  end  open {result.open_s:6.3f} s  {result.facts}", flush=True)
    print(
        f"{options.rounds} rounds, longest open {longest_s:.3f} s, {len(violations)} violations", flush=True
    )
    if violations:
        print(f"the queue is kept in {home}: {violations[0]}", flush=True)
    else:
        shutil.rmtree(home)
    return 1 if violations else 0


def _round(arguments: list[object], life_s: float) -> Round:
    """Start a worker, and kill it so long after it has opened the queue."""
    command = [sys.executable, "-m", "tests.queue_kill9.worker", *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        opened = process.stdout.readline().split(" ", 1)
        if len(opened) < 2:
            return Round(0, "", [f"the worker failed with {process.wait()}"])
        try:
            code = process.wait(life_s if arguments[3] == "work" else PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        rest = process.stdout.read().splitlines()
        # -9: killed, by us or by itself; 0: done.
        failed = [] if code in (0, -9) else [f"the worker failed with {code}"]
        return Round(float(opened[0]), opened[1].strip(), rest + failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

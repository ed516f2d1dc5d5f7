"""`make job-kills`: every Spark job that publishes, and the streaming sink, with faults at every step.

    python -m tests.spark.job_kills --restarts 200 --killed 20 --brokers 20 --seed 1 [--only stream]

Of the restarts of a job, `--killed` are SIGKILLs of all its processes, `--brokers` faults beside brokers, one
of which is killed at a time, `--session` those on two executors with speculation; the others are in forked
processes (`campaign.py`). Exit code 1 if a row is not there once, in order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from logstore.columnar import kernels
from tests.spark.job_kills.campaign import (
    Campaign,
    Killed,
    Start,
    broker_kinds,
    cluster_session,
    forked,
    forked_kinds,
    in_session,
    killed_kinds,
    session_kinds,
    start_line,
)
from tests.spark.job_kills.cases import CASES, Case
from tests.spark.job_kills.mistakes import MISTAKES, mistaken_kinds
from tests.spark.job_kills.nodes import Nodes


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.job_kills", description=__doc__)
    parser.add_argument(
        "--restarts", type=int, default=200, help="faults that strike, of a job (%(default)s)"
    )
    parser.add_argument("--session", type=int, default=60, help="of them, in a session (%(default)s)")
    parser.add_argument(
        "--killed", type=int, default=20, help="of them, SIGKILL of all processes (%(default)s)"
    )
    parser.add_argument("--brokers", type=int, default=20, help="of them, with brokers (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="%(default)s")
    parser.add_argument("--only", choices=CASES, action="append", help="this job; repeatable")
    parser.add_argument("--mistaken", action="store_true", help="with a mistake in each job")
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.start is not None:
        return start_line(options.start)
    print(f"seed {options.seed}", flush=True)
    kernels.warm_up()
    pa.array([""])  # the first array imports pandas: here, not in every child
    with tempfile.TemporaryDirectory(prefix="job-kills-") as home:
        return Program(Path(home), options).run()


class Program:
    """The campaigns of the chosen jobs. Those in a session come last, for Java stays in this process."""

    def __init__(self, home: Path, options: argparse.Namespace) -> None:
        self._home, self._options = home, options
        self._names: list[str] = options.only or list(CASES)
        self._totals = {name: Counter[str]() for name in self._names}
        self._violations = 0

    def run(self) -> int:
        """Run all; return the exit code."""
        options = self._options
        for name in self._names:
            left = options.restarts - options.killed - options.session - self._with_brokers(name)
            if options.mistaken and name in MISTAKES:
                start = partial(forked, mistake=MISTAKES[name][0])
                self._campaign(name, "forked", start, mistaken_kinds, left)
            elif name != "sink":  # `tests.spark.kills` does that
                self._campaign(name, "forked", forked, forked_kinds, left)
            self._campaign(
                name, "killed", Killed(self._home / name, options.seed), killed_kinds, options.killed
            )
        if options.session or options.brokers:
            self._run_in_session()
        self._conclude()
        return 1 if self._violations else 0

    def _run_in_session(self) -> None:
        options = self._options
        with cluster_session(self._home / "spark") as plan:
            for name in self._names:
                self._campaign(name, "session", in_session, session_kinds, options.session, plan)
            for name in self._names:
                if count := self._with_brokers(name):
                    with Nodes(self._home / name / "nodes", options.seed) as nodes:
                        self._campaign(name, "brokers", in_session, broker_kinds, count, plan, nodes)

    def _with_brokers(self, name: str) -> int:
        return int(self._options.brokers) if CASES[name].takes_brokers else 0

    def _campaign(
        self,
        name: str,
        way: str,
        start: Start,
        kinds: Callable[[Case], Sequence[tuple[str, str]]],
        count: int,
        plan: Path | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        if count <= 0:
            return
        print(f"\n{name}, {way}", flush=True)
        began_s = time.monotonic()
        home = self._home / name / way
        home.mkdir(parents=True)
        case = CASES[name](home, nodes.bootstrap if nodes is not None else "")
        campaign = Campaign(case, start, plan or home / "plan.json", self._options.seed, nodes)
        try:
            campaign.run(count, kinds(case))
        except Exception:  # one job's violation must not hide another's
            self._violations += 1
            traceback.print_exc(file=sys.stdout)
        print(f"{campaign.report()}, {time.monotonic() - began_s:.0f} s", flush=True)
        self._totals[name].update(starts=campaign.starts, faults=campaign.struck.total(), rows=campaign.rows)

    def _conclude(self) -> None:
        print()
        for name, total in self._totals.items():
            print(f"{name:18} {total['starts']:5} starts {total['faults']:5} faults {total['rows']:7} rows")
        print(f"{self._violations} violations")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Random schedules of the threads of one program at a log or a queue; exit 1 on a violation.

    python -m tests.thread_schedules --seeds 1..1000

Three threads at a log, four at a writer, or five at a queue, change at any line of the engine; so do a loop's
thread, with tasks at a log or a queue, and those of its pools; and the threads of a node with several logs,
which in some schedules move between log dirs. `life.py` says what must hold for a log, `tasks.py` for tasks
at it, `writing.py` for a writer, `jobs.py` and `job_tasks.py` for a queue, `nodes.py` for a node, and
`moves.py` for one that moves logs. Threads that wait for each other for ever are a violation, too.
"""

from __future__ import annotations

import argparse
import sys

from logstore.testing.__main__ import seeds_of
from tests.thread_schedules import job_tasks, jobs, life, moves, nodes, tasks, writing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.thread_schedules")
    parser.add_argument("--seeds", type=seeds_of, default="1..1000", help="A..B (%(default)s)")
    seeds = parser.parse_args().seeds
    violations = 0
    for seed in seeds:
        for run in (life.run, tasks.run, writing.run, jobs.run, job_tasks.run, nodes.run, moves.run):
            try:
                run(seed)
            except Exception as error:
                violations += 1
                print(f"seed {seed} of {run.__module__}: {type(error).__name__}: {error}", flush=True)
        if seed % 100 == 0:
            print(f"seed {seed}", flush=True)
    print(f"{len(seeds)} seeds: {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

"""Random schedules of the requests of a shared queue's workers; exit 1 on a violation.

    python -m tests.shared_schedules --seeds 1..200

Four workers put, take, acknowledge, return, extend, look and put dead letters again. Before each request of
one, any other may run; some requests are not sent, some answers are lost, and some workers die there. In some
schedules the broker is killed, or everything loses power. `judge.py` says what must hold.
"""

from __future__ import annotations

import argparse
import logging
import sys

from logstore.testing.__main__ import seeds_of
from tests.shared_schedules.life import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.shared_schedules")
    parser.add_argument("--seeds", type=seeds_of, default="1..200", help="A..B (%(default)s)")
    seeds = parser.parse_args().seeds
    violations = 0
    logging.getLogger("logstore.broker.shared_lane").setLevel(logging.ERROR)  # planned faults of the upkeep
    for seed in seeds:
        try:
            print(f"seed {seed}: {run(seed)} deliveries", flush=True)
        except Exception as error:
            violations += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
    print(f"{len(seeds)} seeds: {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

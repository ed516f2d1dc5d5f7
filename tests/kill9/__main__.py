"""`python -m tests.kill9`: rounds of kill -9 at three real brokers; a table, and exit 1 on a violation."""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path

from tests.kill9.campaign import FAULTS, RENEW, SESSION_MS, Round, conclude, run

_HEAD = f"{'round':>5}  {'store':9} {'fault':10} {'victims':9} {'no leader':>9} {'in sync again':>13}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kill9", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="in all (%(default)s)")
    parser.add_argument("--store", choices=["embedded", "zookeeper", "both"], default="both")
    parser.add_argument("--secured", action="store_true", help="TLS among brokers; clients log in by SCRAM")
    options = parser.parse_args(arguments)
    stores = ["embedded", "zookeeper"] if options.store == "both" else [options.store]
    bad = 0
    print(_HEAD, flush=True)
    for place, store in enumerate(stores):
        count = options.rounds // len(stores) + (place < options.rounds % len(stores))
        bad += _rounds(store, count, options.secured)
    return 1 if bad else 0


def _rounds(store: str, count: int, is_secured: bool) -> int:
    """How many violations there were."""
    kinds = [fault for fault in FAULTS if store == "embedded" or fault != "store"]
    if is_secured:
        kinds.append(RENEW)
    longest_s = 0.0

    def show(each: Round) -> None:
        nonlocal longest_s
        longest_s = max(longest_s, each.without_leader_s)
        print(
            f"{each.number:5}  {store:9} {each.fault:10} {each.victims:9} {each.without_leader_s:8.2f}s "
            f"{each.whole_again_s:12.2f}s",
            flush=True,
        )

    home = tempfile.mkdtemp(prefix="kill9-")
    faults = list(islice(cycle(kinds), count))
    if store == "embedded":
        outcome = run(Path(home) / "cluster", faults, is_secured=is_secured, tell_of=show)
    else:
        from tests.zookeeper import ZooKeeperServer

        server = ZooKeeperServer(Path(home) / "zookeeper")
        server.start()
        try:
            url = f"{server.url}/kill9"
            outcome = run(Path(home) / "cluster", faults, metadata=url, is_secured=is_secured, tell_of=show)
        finally:
            server.stop()
    print(
        f"{store}: {count} rounds, {outcome.acknowledged} messages acknowledged, "
        f"{outcome.consumed} consumed, "
        f"longest without a leader {longest_s:.2f} s (session {SESSION_MS / 1000:g} s), "
        f"{outcome.raised} times librdkafka raised its epoch, "
        f"{len(outcome.violations)} violations",
        flush=True,
    )
    conclude(outcome.violations, home)
    return len(outcome.violations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

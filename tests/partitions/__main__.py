"""`python -m tests.partitions`: partitions around three real brokers; a table, exit 1 on a violation."""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path

from tests.kill9.campaign import SESSION_MS, conclude
from tests.partitions.campaign import Round, run
from tests.partitions.faults import KINDS

_HEAD = (
    f"{'round':>5}  {'kind':11} {'broker':>6} {'healed':6} {'others lead':>11} {'clients go on':>13} "
    f"{'in sync again':>13} {'acknowledged meanwhile':>22} {'connections':>11}"
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.partitions", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="in all (%(default)s)")
    parser.add_argument("--store", choices=["embedded", "zookeeper"], default="embedded")
    parser.add_argument("--secured", action="store_true", help="TLS among brokers; clients log in by SCRAM")
    parser.add_argument("--kinds", default=",".join(KINDS), help="in turn (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of how the network heals (%(default)s)")
    parser.add_argument("--plant", choices=["acks-1"], help="a mistake that has to be found")
    options = parser.parse_args(arguments)
    kinds = options.kinds.split(",")
    if unknown := [each for each in kinds if each not in KINDS]:
        parser.error(f"no kind {unknown[0]}; there are {', '.join(KINDS)}")
    rounds: list[Round] = []

    def show(each: Round) -> None:
        rounds.append(each)
        print(
            f"{each.number:5}  {each.kind:11} {each.victim:6} {each.healed_by:6} "
            f"{_seconds(each.led_after_s):>11} {_seconds(each.going_on_after_s):>13} "
            f"{_seconds(each.whole_again_s):>13} {each.acknowledged:22} {each.connections:11}",
            flush=True,
        )

    print(_HEAD, flush=True)
    home = tempfile.mkdtemp(prefix="partitions-")
    outcome = run(
        Path(home) / "cluster",
        [*islice(cycle(kinds), options.rounds)],
        store=options.store,
        is_secured=options.secured,
        seed=options.seed,
        acks="1" if options.plant else "all",
        tell_of=show,
    )
    print(
        f"{options.store}{', secured' if options.secured else ''}: {options.rounds} rounds, "
        f"{outcome.acknowledged} messages acknowledged, {outcome.consumed} consumed, "
        f"longest until others led {max(each.led_after_s or 0 for each in rounds):.2f} s "
        f"(session {SESSION_MS / 1000:g} s), "
        f"until all were in sync again {max(each.whole_again_s for each in rounds):.2f} s, "
        f"{outcome.raised} times librdkafka raised its epoch, {len(outcome.violations)} violations",
        flush=True,
    )
    conclude(outcome.violations, home)
    return 1 if outcome.violations else 0


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

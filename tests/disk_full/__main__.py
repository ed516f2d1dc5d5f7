"""`python -m tests.disk_full`: a broker whose disk is full again and again; exit 1 on a violation."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.disk_full.campaign import MIB, SIZE, Round, run
from tests.kill9.campaign import conclude


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.disk_full", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="%(default)s")
    parser.add_argument("--secured", action="store_true", help="TLS among brokers; clients log in by SCRAM")
    options = parser.parse_args(arguments)
    seconds = 60 * options.minutes
    # Three producers write 1 KiB to six partitions: some 30 MiB in all, however long it takes.
    pause_s = max(seconds / 2000, 0.02)

    def show(each: Round) -> None:
        print(
            f"round {each.number}: led {each.led_before}, full after {each.full_after_s:.1f} s, "
            f"led elsewhere after {each.moved_after_s:.1f} s, in sync again {each.whole_after_s:.1f} s after "
            "there was room",
            flush=True,
        )

    home = tempfile.mkdtemp(prefix="disk-full-")
    outcome = run(Path(home) / "cluster", seconds, pause_s=pause_s, is_secured=options.secured, tell_of=show)
    median_ms, p99_ms, longest_ms = outcome.elsewhere_ms
    print(
        f"tmpfs of {SIZE // MIB} MiB, {len(outcome.rounds)} rounds: {outcome.acknowledged} messages "
        f"acknowledged, {outcome.refused_plain} refused to the producer that does not retry, elsewhere "
        f"{median_ms:.0f} ms median, {p99_ms:.0f} ms p99, {longest_ms:.0f} ms at most; "
        f"{len(outcome.violations)} violations",
        flush=True,
    )
    conclude(outcome.violations, home)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

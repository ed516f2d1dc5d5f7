"""`python -m tests.pressure [--sends 1000] [--only bombs]`: attacks on a broker and its store.

Exit code 1 if a process dies, memory exceeds its bound, a send fails, or the 99th percentile of an honest
producer's sends exceeds five times that in quiet. The line of each attack shows both.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from logstore.broker.limits import Address
from tests.pressure.attacks import ON_BROKERS, ON_STORES
from tests.pressure.campaign import ATTACKS, allow_many_files, is_slow, under
from tests.pressure.soak import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pressure")
    parser.add_argument("--sends", type=int, default=1_000)
    parser.add_argument("--only", choices=ATTACKS)
    chosen = parser.parse_args()
    allow_many_files()
    bad = 0
    for attack in [chosen.only] if chosen.only else ATTACKS:
        with tempfile.TemporaryDirectory() as directory:
            outcome = asyncio.run(under(attack, Path(directory), sends=chosen.sends))
        slow = is_slow(outcome)
        bad += bool(outcome.problems) or slow
        print(f"{outcome}{'  SLOW' if slow else ''}", flush=True)
    print(f"{bad} of the attacks were noticed")
    return int(bad > 0)


def attack(name: str, address: Address) -> None:
    allow_many_files()
    print("begun", flush=True)
    asyncio.run((ON_BROKERS | ON_STORES)[name](address))  # type: ignore[arg-type]


def long_use() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pressure soak")
    parser.add_argument("--minutes", type=float, default=35.0)
    minutes = parser.parse_args(sys.argv[2:]).minutes
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(soak(Path(directory), minutes=minutes))
    print(f"{found.rounds} rounds; " + ("; ".join(found.problems) or "nothing grew"))
    return int(bool(found.problems))


if sys.argv[1:2] == ["attack"]:
    attack(sys.argv[2], Address(sys.argv[3], int(sys.argv[4])))
elif sys.argv[1:2] == ["soak"]:
    sys.exit(long_use())
else:
    sys.exit(main())

"""`python -m simulation`: run seeds, say what broke.

    python -m simulation --seed 7 --events 2000            one seed; exit 1 on a violation
    python -m simulation --seed 7 --trace                  the same, everything that happens as text
    python -m simulation --seeds 1..500 -j 2               a range, by several processes
    python -m simulation --seeds 0..499 --plant NAME       with a mistake put into the engine; stops at
                                                           the first seed that notices

The first line names the seed, the last one ends in the trace hash: equal for equal seeds, on any machine.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from itertools import islice

from simulation.planted import PLANTS, planted
from simulation.runner import Report, run

DEFAULT_EVENTS = 2000
_BATCH = 8


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description="Clusters under a seed.")
    parser.add_argument("--seed", type=int, help="run this one seed")
    parser.add_argument("--seeds", type=_seeds, metavar="A..B", help="run all seeds from A to B")
    parser.add_argument(
        "--events", type=int, default=DEFAULT_EVENTS, help="events under faults (%(default)s)"
    )
    parser.add_argument("-j", "--jobs", type=int, default=1, help="processes for a range of seeds")
    parser.add_argument("--json", action="store_true", help="one object a seed")
    parser.add_argument("--trace", action="store_true", help="print all that happens")
    parser.add_argument(
        "--plant", choices=sorted(PLANTS), metavar="NAME", help="put a mistake into the engine"
    )
    parser.add_argument("--plants", action="store_true", help="list the mistakes there are, and stop")
    options = parser.parse_args(arguments)
    if options.plants:
        for plant in PLANTS.values():
            print(f"{plant.name:36}{plant.mistake}")
        return 0
    if (options.seed is None) == (options.seeds is None):
        parser.error("give --seed N or --seeds A..B")
    if options.events < 1 or options.jobs < 1:
        parser.error("--events and --jobs take 1 or more")
    if options.seed is not None:
        return _one(options.seed, options.events, options.plant, as_json=options.json, trace=options.trace)
    return _range(options.seeds, options.events, options.plant, options.jobs, as_json=options.json)


def _seeds(text: str) -> range:
    first, dots, last = text.partition("..")
    if not (dots and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form A..B")
    return range(int(first), int(last) + 1)


def _run(seed: int, events: int, plant: str | None, *, trace: bool = False) -> Report:
    with planted(plant) if plant else nullcontext():
        return run(seed, events, trace=print if trace else None)


def _facts(report: Report) -> dict[str, object]:
    swarm = report.swarm
    return {
        "seed": swarm.seed,
        "ok": report.is_good,
        "violation": report.violation,
        "invariant": report.invariant,
        "virtual_ms": report.virtual_ms,
        "nodes": swarm.nodes,
        "durability": swarm.durability.value,
        "features": swarm.enabled,
        **asdict(report.tally),
        "trace_hash": report.trace_hash,
    }


def _one(seed: int, events: int, plant: str | None, *, as_json: bool, trace: bool) -> int:
    if not as_json:
        print(f"seed {seed}", flush=True)
    report = _run(seed, events, plant, trace=trace and not as_json)
    if as_json:
        print(json.dumps({**_facts(report), "last_events": report.last_events}))
        return 0 if report.is_good else 1
    swarm, tally = report.swarm, report.tally
    print(
        f"{swarm.nodes} nodes, {swarm.partitions} × {swarm.replication_factor} replicas, min.insync.replicas "
        f"{swarm.min_insync_replicas}, durability {swarm.durability.value}; {', '.join(swarm.enabled)}"
    )
    print(", ".join(f"{name} {count}" for name, count in asdict(tally).items() if count))
    if not report.is_good:
        print("\n".join(report.last_events))
        print(f"VIOLATION after {report.virtual_ms} ms: {report.violation}")
        again = f"python -m simulation --seed {seed} --events {events}"
        print(f"again: {again}{f' --plant {plant}' if plant else ''} --trace")
    print(f"trace {report.trace_hash}")
    return 0 if report.is_good else 1


def _range(seeds: range, events: int, plant: str | None, jobs: int, *, as_json: bool) -> int:
    if not as_json:
        print(f"seeds {seeds[0]}..{seeds[-1]}, {events} events each", flush=True)
    bad: list[Report] = []
    total = done = 0
    digest = blake2b(digest_size=16)
    for report in _reports(seeds, events, plant, jobs):
        done += 1
        total += report.tally.events
        digest.update(report.trace_hash.encode())
        if as_json:
            print(json.dumps(_facts(report)), flush=True)
        elif not report.is_good:
            print(f"seed {report.swarm.seed}: {report.violation}", flush=True)
        if not report.is_good:
            bad.append(report)
            if plant:
                break
        if sys.stderr.isatty():
            print(f"\r{done} of {len(seeds)} seeds, {len(bad)} bad ", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if not as_json:
        print(f"{done} seeds, {total} events, {len(bad)} with a violation")
        print(f"trace {digest.hexdigest()}")
    return 1 if bad else 0


def _reports(seeds: range, events: int, plant: str | None, jobs: int) -> Iterator[Report]:
    one = partial(_run, events=events, plant=plant)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        # A few seeds ahead and no more: a search may stop at any of them.
        for some in _chunks(seeds, _BATCH * jobs):
            yield from pool.map(one, some, chunksize=max(len(some) // (2 * jobs), 1))


def _chunks(seeds: Iterable[int], size: int) -> Iterator[list[int]]:
    remaining = iter(seeds)
    while chunk := list(islice(remaining, size)):
        yield chunk


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # `… | head`: whoever read has seen enough
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())

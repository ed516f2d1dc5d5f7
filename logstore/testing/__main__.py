"""`logstore simulate`, or `python -m logstore.testing`: run clusters under seeds and report violations.

    logstore simulate --seed 7 --events 2000         run one seed; exit 1 on a violation
    logstore simulate --seed 7 --trace               the same, with every event as text
    logstore simulate --shrink 7                     find a short transcript of a failing seed
    logstore simulate --replay FILE                  run a transcript (`-`: from standard input)
    logstore simulate --seeds 1..500 -j 2            run a range in several processes
    logstore simulate --seeds 1..20000 --progress FILE    the same; continues after an interruption
    logstore simulate --seeds 1..200 --atlas         count faults by the state of their victims
    logstore simulate --seeds 1..200 --marks         count how often each coverage mark was reached
    logstore simulate --plants                       find the first seed that detects each planted mistake
    logstore simulate --seeds 0..499 --plant NAME    put one mistake into the engine; stop at the first
                                                     seed that detects it

The first line names the seed. The last line ends with the trace hash: equal seeds give equal hashes on any
machine. A failing seed is reported with the command that repeats it and, with `--commit`, the commit.
`--plant`, `--plants` and `--index-marks` need the repository's `tests/`, so they work in a checkout only.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from hashlib import blake2b
from importlib import import_module
from itertools import islice
from pathlib import Path

from logstore.arguments import whole_numbers
from logstore.testing.atlas import table
from logstore.testing.faults import FAULTS
from logstore.testing.marks import catalogue
from logstore.testing.runner import Report, replay, run, shortened
from logstore.testing.transcript import Transcript

DEFAULT_EVENTS = 2000
_BATCH = 8
_PLANT_SEEDS = 500
_CHECKOUT = Path(__file__).parents[2]


def parser_of(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Run simulated clusters under seeds.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run one seed")
    what.add_argument("--seeds", type=seeds_of, metavar="A..B", help="run all seeds from A to B")
    what.add_argument("--shrink", type=int, metavar="SEED", help="find a short transcript of its failure")
    what.add_argument("--replay", type=Path, metavar="FILE", help="run a transcript; - reads stdin")
    help_text = "find the first seed that detects each planted mistake; print a table"
    what.add_argument("--plants", action="store_true", help=help_text)
    help_text = "print a seed for each coverage mark (checkout only)"
    what.add_argument("--index-marks", type=seeds_of, metavar="A..B", help=help_text)
    add = parser.add_argument
    add("--events", type=int, default=DEFAULT_EVENTS, help="events under faults (default: %(default)s)")
    add("-j", "--jobs", type=int, default=1, help="processes for a range of seeds")
    add("--json", action="store_true", help="print one object per seed")
    add("--trace", action="store_true", help="print every event")
    add("--atlas", action="store_true", help="count faults by the state of their victims")
    add("--marks", action="store_true", help="count the engine's coverage marks")
    add("--progress", type=Path, metavar="FILE", help="record finished seeds; continue from there")
    add("--plant", metavar="NAME", help="put a mistake into the engine (checkout only)")
    add("--commit", default="unknown", help="the commit to report with failures")
    return parser


def main(arguments: list[str] | None = None, prog: str = "python -m logstore.testing") -> int:
    """Run the command; return its exit status. A wrong command line raises `SystemExit` with status 2."""
    parser = parser_of(prog)
    options = parser.parse_args(arguments)
    if options.events < 1 or options.jobs < 1:
        parser.error("--events and --jobs must be 1 or more")
    if options.plants or options.plant or options.index_marks:
        if not (_CHECKOUT / "tests" / "plants").is_dir():
            parser.error("--plant, --plants and --index-marks need a checkout: they use its tests/ folder")
        if str(_CHECKOUT) not in sys.path:
            sys.path.insert(0, str(_CHECKOUT))
    if options.plant and options.plant not in (known := import_module("tests.plants").PLANTS):
        parser.error(f"unknown plant {options.plant!r}; choose from {', '.join(sorted(known))}")
    if options.plants:
        return _plants(options.events)
    if options.replay is not None:
        return _replay(options.replay, trace=options.trace)
    if options.shrink is not None:
        return _shrink(options.shrink, options.events, options.plant, options.commit)
    if options.index_marks is not None:
        index_of_marks = import_module("tests.testing.marks_index").index_of_marks
        print(index_of_marks(options.index_marks, options.events), end="")
        return 0
    if options.seed is not None:
        return _one(options)
    return Campaign(options).run()


def seeds_of(text: str) -> range:
    """Return the seeds A to B of `A..B`, an argument. Raises `ArgumentTypeError`."""
    ends = whole_numbers(text.split(".."))
    if ends is None or len(ends) != 2 or ends[0] > ends[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of the form A..B")
    return range(ends[0], ends[1] + 1)


def _planted(plant: str | None) -> AbstractContextManager[object]:
    return import_module("tests.plants").planted(plant) if plant else nullcontext()


def _run(seed: int, events: int, plant: str | None, *, trace: bool = False) -> Report:
    with _planted(plant):
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
        "led_in_ms": report.led_in_ms,
        "in_sync_in_ms": report.in_sync_in_ms,
        **asdict(report.tally),
        "trace_hash": report.trace_hash,
    }


def _one(options: argparse.Namespace) -> int:
    seed: int = options.seed
    if not options.json:
        print(f"seed {seed}", flush=True)
    report = _run(seed, options.events, options.plant, trace=options.trace and not options.json)
    if options.json:
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
        print(f"again, at commit {options.commit}: {_again(seed, options.events, options.plant)}")
    print(f"trace {report.trace_hash}")
    return 0 if report.is_good else 1


def _plants(events: int) -> int:
    """Print the table of docs/simulation.md; return 1 if a mistake that is not rare went undetected."""
    print("| mistake | name | first seed | reported as | seconds |\n|---|---|---|---|---|")
    unnoticed = 0
    for plant in import_module("tests.plants").PLANTS.values():
        began = time.monotonic()
        reports = (_run(seed, events, plant.name) for seed in range(_PLANT_SEEDS))
        found = next((report for report in reports if not report.is_good), None)
        unnoticed += found is None and not plant.is_rare
        first = f"none of 0 to {_PLANT_SEEDS - 1}" if found is None else f"{found.swarm.seed}"
        invariant = "" if found is None else found.invariant
        seconds = round(time.monotonic() - began)
        print(f"| {plant.mistake} | `{plant.name}` | {first} | {invariant} | {seconds} |", flush=True)
    return 1 if unnoticed else 0


def _replay(path: Path, *, trace: bool) -> int:
    text = sys.stdin.read() if str(path) == "-" else path.read_text()
    transcript = Transcript.from_json(text)
    print(f"seed {transcript.seed}, {len(transcript.decisions)} decisions", flush=True)
    with _planted(transcript.plant):
        report = replay(transcript, trace=print if trace else None)
    print(f"VIOLATION {report.violation}" if report.violation else "no violation")
    print(f"trace {report.trace_hash}")
    return 0 if report.is_good else 1


def _shrink(seed: int, events: int, plant: str | None, commit: str) -> int:
    with _planted(plant):
        report = run(seed, events)
        if report.is_good:
            print(f"seed {seed} is good", file=sys.stderr)
            return 2
        transcript = shortened(report, events, plant or "")
        after = replay(transcript)
    print(
        f"{len(report.decisions)} decisions, now {len(transcript.decisions)}; silent: "
        f"{', '.join(transcript.silent) or 'none'}; {after.violation}",
        file=sys.stderr,
    )
    print(replace(transcript, commit=commit).to_json())
    return 1


class Campaign:
    """A run over many seeds: counts, violations and the remaining time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.seeds: range = options.seeds
        self.progress: Path | None = options.progress
        self._began = time.monotonic()
        self._atlas: Counter[tuple[str, str]] = Counter()
        self._marks: Counter[str] = Counter()
        self._bad: list[int] = []
        self._done = self._total_events = self._virtual_ms = 0
        self._slowest_leader_ms = self._slowest_isr_ms = 0
        self._cpu_s = 0.0
        self._digest = blake2b(digest_size=16)

    def run(self) -> int:
        seeds = self._resumed()
        if not self._options.json:
            print(f"seeds {self.seeds[0]}..{self.seeds[-1]}, {self._options.events} events each", flush=True)
        for report, cpu_s in self._reports(seeds):
            self._take(report, cpu_s)
            if self._options.plant and self._bad:
                break
        if sys.stderr.isatty():
            print(file=sys.stderr)
        if not self._options.json:
            self._summarize()
        return 1 if self._bad else 0

    def _resumed(self) -> range:
        """Return the seeds that are left according to the progress file."""
        if self.progress is None or not self.progress.exists():
            return self.seeds
        known = json.loads(self.progress.read_text())
        if [known["first"], known["last"], known["events"]] != [
            self.seeds[0],
            self.seeds[-1],
            self._options.events,
        ]:
            raise SystemExit(f"{self.progress} belongs to other seeds; remove it or name another file")
        self._bad = known["bad"]
        return range(known["next"], self.seeds[-1] + 1)

    def _reports(self, seeds: range) -> Iterator[tuple[Report, float]]:
        one = partial(_timed, events=self._options.events, plant=self._options.plant)
        if self._options.jobs == 1:
            yield from map(one, seeds)
            return
        with ProcessPoolExecutor(self._options.jobs) as pool:
            # A few seeds ahead and no more: a search may stop at any of them.
            for some in _chunks(seeds, _BATCH * self._options.jobs):
                yield from pool.map(one, some, chunksize=max(len(some) // (2 * self._options.jobs), 1))

    def _take(self, report: Report, cpu_s: float) -> None:
        self._done += 1
        self._cpu_s += cpu_s
        self._total_events += report.tally.events
        self._virtual_ms += report.virtual_ms
        self._atlas.update(report.atlas)
        self._marks.update(report.marks)
        self._slowest_leader_ms = max(self._slowest_leader_ms, report.led_in_ms)
        self._slowest_isr_ms = max(self._slowest_isr_ms, report.in_sync_in_ms)
        self._digest.update(report.trace_hash.encode())
        seed = report.swarm.seed
        if self._options.json:
            print(json.dumps(_facts(report)), flush=True)
        elif not report.is_good:
            print(f"seed {seed} at commit {self._options.commit}: {report.violation}")
            print(f"    {_again(seed, self._options.events, self._options.plant)}", flush=True)
        if not report.is_good:
            self._bad.append(seed)
        if self.progress is not None:
            state = {
                "first": self.seeds[0],
                "last": self.seeds[-1],
                "events": self._options.events,
                "next": seed + 1,
                "bad": self._bad,
            }
            scratch = self.progress.with_suffix(".new")
            scratch.write_text(json.dumps(state))
            scratch.replace(self.progress)
        if sys.stderr.isatty():
            left = self.seeds[-1] - seed
            seconds = int((time.monotonic() - self._began) / self._done * left)
            eta = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
            print(
                f"\r{len(self.seeds) - left} of {len(self.seeds)} seeds, {len(self._bad)} bad, {eta} left ",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def _summarize(self) -> None:
        hours = self._virtual_ms / 3_600_000
        print(f"{self._done} seeds, {self._total_events} events, {len(self._bad)} with a violation")
        print(
            f"healed: led within {self._slowest_leader_ms} ms, every ISR full within "
            f"{self._slowest_isr_ms} ms of virtual time"
        )
        if self._cpu_s:
            print(
                f"{hours:.2f} simulated hours, {hours / self._cpu_s * 60:.2f} for each minute of one core",
                file=sys.stderr,
            )
        if self._options.atlas:
            print(table(self._atlas, FAULTS))
        if self._options.marks:
            names = catalogue()
            for name in names:
                print(f"{self._marks[name]:>8}  {name}")
            print(f"{sum(1 for name in names if self._marks[name])} of {len(names)} marks reached")
        print(f"trace {self._digest.hexdigest()}")


def _timed(seed: int, *, events: int, plant: str | None) -> tuple[Report, float]:
    began = time.process_time()
    return _run(seed, events, plant), time.process_time() - began


def _again(seed: int, events: int, plant: str | None) -> str:
    mistake = f" --plant {plant}" if plant else ""
    return f"logstore simulate --seed {seed} --events {events}{mistake} --trace"


def _chunks(seeds: Iterable[int], size: int) -> Iterator[list[int]]:
    remaining = iter(seeds)
    while chunk := list(islice(remaining, size)):
        yield chunk


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # `… | head` ends the command quietly
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())

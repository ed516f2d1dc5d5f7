"""An export that is killed: every process of it, by SIGKILL, at a moment that a seed chooses; again.

    python -m tests.spark.export_kills --rounds 50 --seed 1       (make export-kills)

Before each round the topic grows. A round starts the export as a user does, in a session (setsid) of its own,
waits for what the seed chose (so many files staged, so many published, an intent, nothing) and a little
longer, and kills driver, JVM and workers. After each, what a reader finds is judged: whole files, no row
twice, each partition's rows without a hole from its beginning. At the end the export runs once more, and all
that was ever appended must be there, once and in order.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from logstore import Log
from logstore.spark.jobs.export import LEDGER_DIRECTORY

ROOT: Final = Path(__file__).parents[2]
PARTITIONS: Final = 3
GROWTH: Final = 1500
"""Records that a partition gains a round, or up to twice as many: in tasks of `TASK`, two a publication."""
TASK: Final = 700
FIRST_MS: Final = 1_795_176_000_000
DAY_MS: Final = 86_400_000
START_LIMIT_S: Final = 300.0


@dataclass
class Outcome:
    """What a campaign saw."""

    rounds: int = 0
    appended: int = 0
    killed_at: dict[str, int] = field(default_factory=dict)
    completed_intents: int = 0
    violations: list[str] = field(default_factory=list)


class Campaign:
    """A topic, a table, and an export between them that is never left in peace."""

    def __init__(self, home: Path, seed: int) -> None:
        self._data, self._table = home / "data", home / "table"
        self._log = home / "stderr"
        self._random = Random(seed)
        self._ends = [0] * PARTITIONS
        self.outcome = Outcome()

    def round(self) -> str:
        """Let the topic grow, start an export, kill it; which moment it was."""
        self._grow()
        process = self._start()
        try:
            moment = self._wait(process)
        finally:
            kill_session(process.pid)
            process.wait()
        self.outcome.rounds += 1
        self.outcome.killed_at[moment] = self.outcome.killed_at.get(moment, 0) + 1
        if process.returncode not in (0, -signal.SIGKILL):
            self.outcome.violations.append(f"the export failed: {self._log.read_text()[-2000:]}")
        if self._has_intent():
            self.outcome.completed_intents += 1
        self._judge(whole=False)
        return moment

    def finish(self) -> None:
        """One run in peace: all is there."""
        process = self._start(all_at_once=True)
        if process.wait():
            self.outcome.violations.append(f"the last export failed: {self._log.read_text()[-2000:]}")
        self._judge(whole=True)

    # --- what happens ---------------------------------------------------------------------------------------

    def _grow(self) -> None:
        for partition, end in enumerate(self._ends):
            count = GROWTH + self._random.randrange(GROWTH)
            offsets = range(end, end + count)
            rows = pa.table(
                {
                    "value": pa.array([f"{partition}/{offset}".encode() for offset in offsets], pa.binary()),
                    # Days go back and forth: tasks write several files each.
                    "timestamp": pa.array([FIRST_MS + offset // 300 % 3 * DAY_MS for offset in offsets]),
                }
            )
            with Log.open(self._data / f"orders-{partition}") as log:
                log.append_arrow(rows)
            self._ends[partition] = end + count
            self.outcome.appended += count

    def _start(self, *, all_at_once: bool = False) -> subprocess.Popen[bytes]:
        command = [
            *(
                sys.executable,
                "-m",
                "logstore.spark",
                "export",
                str(self._data),
                "--output",
                str(self._table),
            ),
            *("--master", "local[2]", "--conf", "spark.driver.memory=512m"),
        ]
        if not all_at_once:
            command += ["--task-records", str(TASK), "--publish-tasks", "2"]
        # C1 alone: a second less a round.
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command,
                start_new_session=True,
                env=environment,
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def _wait(self, process: subprocess.Popen[bytes]) -> str:
        """Until the chosen moment, or until the export is done."""
        published, staged = len(self._published()), set(self._staged())

        def new_staged() -> int:
            return len(set(self._staged()) - staged)

        count = self._random.randrange(1, 6)
        moments: list[tuple[str, Callable[[], bool]]] = [
            ("staged", lambda: new_staged() >= count),
            ("published", lambda: len(self._published()) >= published + count),
            ("intent", lambda: self._has_intent() and len(self._published()) > published),
            ("anywhere", lambda: bool(new_staged()) or len(self._published()) > published),
        ]
        name, is_now = self._random.choice(moments)
        later_s = self._random.random() * (4.0 if name == "anywhere" else 0.02)
        deadline = time.monotonic() + START_LIMIT_S
        while process.poll() is None and not is_now():
            if time.monotonic() > deadline:
                self.outcome.violations.append(f"nothing happens: {self._log.read_text()[-2000:]}")
                return "nothing"
            time.sleep(0.001)
        time.sleep(later_s)
        return name if process.poll() is None else "done"

    # --- what is there --------------------------------------------------------------------------------------

    def _staged(self) -> list[Path]:
        return list(self._table.glob(f"{LEDGER_DIRECTORY}/staged/*/*"))

    def _published(self) -> list[Path]:
        return list(self._table.glob("topic=*/*/*/*.parquet"))

    def _has_intent(self) -> bool:
        try:
            return b'"intent"' in (self._table / LEDGER_DIRECTORY / "ledger").read_bytes()
        except FileNotFoundError:
            return False

    def _judge(self, *, whole: bool) -> None:
        """Each row once, in order, its content right; without holes unless a publication is half done."""
        found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        for path in sorted(self._published(), key=lambda path: path.name):
            partition = int(path.parts[-3].removeprefix("partition="))
            table = pq.read_table(path, partitioning=None)
            offsets = table["offset"].to_pylist()
            if offsets != sorted(offsets):
                self._violated(f"{path}: rows out of order")
            wrong = [
                offset
                for offset, value in zip(offsets, table["value"].to_pylist(), strict=True)
                if value != f"{partition}/{offset}".encode()
            ]
            if wrong:
                self._violated(f"{path}: wrong rows at {wrong[:5]}")
            found[partition] += offsets
        for partition, offsets in found.items():
            if len(set(offsets)) != len(offsets):
                self._violated(f"partition {partition}: rows twice")
            expected = list(range(self._ends[partition] if whole else len(offsets)))
            if (whole or not self._has_intent()) and sorted(offsets) != expected:
                self._violated(f"partition {partition}: {len(offsets)} rows, not those up to {len(expected)}")

    def _violated(self, text: str) -> None:
        self.outcome.violations.append(f"round {self.outcome.rounds}: {text}")


def kill_session(session: int) -> None:
    """SIGKILL to every process of the session until none is left: Spark's workers have their own group."""
    while members := [pid for pid in _processes() if _session_of(pid) == session]:
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.005)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _session_of(pid: int) -> int:
    """0 for one that is gone, or dead and not yet waited for."""
    try:
        state, _, _, session, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if state in ("Z", "X") else int(session)


def run(home: Path, rounds: int, seed: int, tell: Callable[[str], None]) -> Outcome:
    """A campaign in the directory `home`."""
    campaign = Campaign(home, seed)
    for number in range(rounds):
        began_s = time.monotonic()
        moment = campaign.round()
        tell(f"round {number}: {moment}, {time.monotonic() - began_s:.1f} s")
    campaign.finish()
    return campaign.outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.export_kills")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="export-kills-") as home:
        outcome = run(Path(home), options.rounds, options.seed, partial(print, flush=True))
    print(
        f"{outcome.rounds} rounds, {outcome.appended} records, killed at {outcome.killed_at}, "
        f"{outcome.completed_intents} intents left open, {len(outcome.violations)} violations"
    )
    for violation in outcome.violations[:50]:
        print(f"  {violation}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())

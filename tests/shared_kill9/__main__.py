"""Kill -9 at the processes of a shared queue and at its broker, one after the other; exit 1 on a violation.

    python -m tests.shared_kill9 --rounds 40
    python -m tests.shared_kill9 --plant no-claims        must find violations

Four workers put the same keys, each in its own order, take messages and acknowledge them. In each round one
of them is killed and another takes its place; in every fifth round the broker is killed and started again.
`tests/shared_kill9/judge.py` says what must hold.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from logstore.cli.ports import free_ports
from tests.shared_kill9.judge import violations
from tests.shared_kill9.worker import PLANTS

ROOT = Path(__file__).parents[2]
WORKERS = 4
PATIENCE_S = 120.0


def _started(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a process of the campaign, and wait until it is ready."""
    command = [sys.executable, "-m", f"tests.shared_kill9.{module}", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(f"the {module} ended with {process.wait()}")
    return process


def _ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


class Campaign:
    """The processes, and what they are told."""

    def __init__(self, home: Path, rng: random.Random, plant: str | None, pause_s: float) -> None:
        self._home, self._rng, self._plant, self._pause_s = home, rng, plant, pause_s
        self._began, self._count = time.monotonic(), 0
        self._port = str(free_ports(1)[0])
        self._broker = self._started_broker()
        self._workers = [self._worker("work") for _ in range(WORKERS)]

    def _worker(self, task: str) -> subprocess.Popen[str]:
        self._count += 1
        told = {
            "home": str(self._home),
            "address": f"127.0.0.1:{self._port}",
            "name": f"{self._count:04}",
            "seed": self._rng.randrange(1 << 30),
            "began": self._began,
            "plant": self._plant,
            "task": task,
        }
        return _started("worker", json.dumps(told))

    def _started_broker(self) -> subprocess.Popen[str]:
        return _started("broker", str(self._home / "broker"), self._port)

    def round(self, number: int) -> None:
        """Let them work, and kill one of them, or the broker."""
        time.sleep(self._rng.random() * self._pause_s)
        if number % 5 == 4:
            _ended(self._broker)
            self._broker = self._started_broker()
            return
        _ended(self._rng.choice(self._workers))
        for place, each in enumerate(self._workers):
            if (code := each.poll()) is not None:
                if code != -signal.SIGKILL:
                    raise RuntimeError(f"a worker ended with {code}")
                self._workers[place] = self._worker("work")

    def drain(self) -> list[str]:
        """Kill all workers, and let another one take what is left; return what is wrong with that."""
        for each in self._workers:
            _ended(each)
        self._workers = [self._worker("drain")]
        self._workers[0].communicate(timeout=PATIENCE_S)
        code = self._workers[0].returncode
        return [f"the last worker ended with {code}"] if code else []

    def close(self) -> None:
        for each in (*self._workers, self._broker):
            _ended(each)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.shared_kill9", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two kills, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", choices=sorted(PLANTS), help="switch a precaution of the queue off")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    home = Path(tempfile.mkdtemp(prefix="shared-kill9-"))
    campaign = Campaign(home, random.Random(options.seed), options.plant, options.pause)
    try:
        for number in range(options.rounds):
            campaign.round(number)
        wrong = campaign.drain()
    finally:
        campaign.close()
    found, counts = violations(home)
    found = wrong + found
    print(f"{options.rounds} rounds, {counts}, {len(found)} violations", flush=True)
    for each in found[:20]:
        print(each, flush=True)
    if found:
        print(f"the notes and the broker's files are kept in {home}", flush=True)
    else:
        shutil.rmtree(home)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

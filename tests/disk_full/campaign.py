"""Three brokers, one of them on a file system of 64 MiB that is full again and again, with clients at work.

A round: a file takes all but a little of the space, the producers' batches take the rest, the broker's log
dir is full for a while, the file goes. Then all replicas have to be in sync again, by themselves. Needs the
permission to mount (root).
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from logstore.cli.local_cluster import start, stop
from tests.access import Access, access_to
from tests.disk_full.workload import ELSEWHERE, Workload
from tests.kill9.campaign import NODES, PARTITIONS, PATIENCE_S, SETTINGS, Campaign, read_all
from tests.kill9.verdict import lost, out_of_order
from tests.kill9.workload import TOPIC

MIB = 1 << 20
SIZE = 64 * MIB
LEFT = 256 << 10
"""Bytes that the file leaves for the producers."""
FULL_NODE = 1
FULL_S = 10.0


class FullDisk(Campaign):
    """The cluster of the kill -9 campaign, with a small file system under the first broker's log dir."""

    def __init__(self, directory: Path, *, is_secured: bool = False) -> None:
        self.directory = directory
        self.home = directory / f"node-{FULL_NODE}"
        self.home.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(self.home)], check=True)
        try:
            self.cluster = start(directory, NODES, SETTINGS, patience_s=PATIENCE_S, is_secured=is_secured)
            self.access = access_to(self.cluster, directory)
        except BaseException:
            self._unmount()
            raise
        self._down: set[int] = set()

    def close(self) -> None:
        stop(self.directory, patience_s=30.0)
        self._unmount()

    def _unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.home)], check=True)

    @property
    def free(self) -> int:
        status = os.statvfs(self.home)
        return status.f_bavail * status.f_frsize

    @property
    def ballast(self) -> Path:
        return self.home / "ballast"

    def says_full(self) -> bool:
        """Whether the broker reports its log dir as full, in `/healthz`."""
        port = self.cluster.nodes[FULL_NODE - 1].http_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
            return bool(json.load(answer)["full_log_dirs"])

    def until(self, what: str, holds: Callable[[], bool]) -> float:
        """Wait; return the seconds that it took."""
        began_s = time.monotonic()
        while not holds():
            assert time.monotonic() - began_s < PATIENCE_S, f"{what} did not happen"
            time.sleep(0.1)
        return time.monotonic() - began_s

    def leads(self) -> int:
        """How many partitions the broker with the full disk leads."""
        view = self.view()
        assert view is not None
        return sum(leader == FULL_NODE for leader in view.leaders.values())

    def fill(self) -> None:
        with self.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.free - LEFT)


@dataclass(frozen=True, slots=True)
class Round:
    """One time of a full disk: seconds until it was known, until another led, until all were in sync."""

    number: int
    led_before: int
    full_after_s: float
    moved_after_s: float
    whole_after_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    rounds: list[Round]
    acknowledged: int
    refused_plain: int
    elsewhere_ms: tuple[float, float, float]
    """Median, 99th percentile and longest wait of the producer elsewhere."""
    violations: list[str]


def run(
    directory: Path,
    seconds: float,
    *,
    pause_s: float,
    is_secured: bool,
    tell_of: Callable[[Round], None],
) -> Outcome:
    """Fill the disk again and again for this long, then judge."""
    running = FullDisk(directory, is_secured=is_secured)
    try:
        _create_topics(running.access)
        running.wait_until_whole()
        workload = Workload(running.access, PARTITIONS, pause_s=pause_s)
        rounds: list[Round] = []
        end_s = time.monotonic() + seconds
        while not rounds or time.monotonic() < end_s:
            led_before = running.leads()
            running.fill()
            full_after_s = running.until("a full disk", running.says_full)
            moved_after_s = running.until("leadership elsewhere", lambda: running.leads() == 0)
            time.sleep(FULL_S)
            running.ballast.unlink()
            began_s = time.monotonic()
            running.until("the end of the full disk", lambda: not running.says_full())
            running.wait_until_whole()
            whole_after_s = time.monotonic() - began_s
            rounds.append(Round(len(rounds) + 1, led_before, full_after_s, moved_after_s, whole_after_s))
            tell_of(rounds[-1])
            _prefer(running.access)
            if running.free < 4 * MIB:
                break  # the records themselves have filled it
        workload.stop(PATIENCE_S)
        log = read_all(running.access)
        seen, other = workload.seen, workload.elsewhere
        waits_ms = sorted(1000 * wait_s for _, wait_s in workload.waits_s)
        return Outcome(
            rounds,
            sum(map(len, seen.acknowledged.values())),
            workload.refused_plain,
            (quantiles(waits_ms, n=2)[0], quantiles(waits_ms, n=100)[98], waits_ms[-1]),
            [
                *(f"a client failed: {error!r}" for error in seen.failures),
                *(f"given up: {each}" for each in (*seen.refused, *other.refused)),
                *lost(seen, log),
                *out_of_order(log),
            ],
        )
    finally:
        running.close()


def _create_topics(access: Access) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    others = [number for number in range(1, NODES + 1) if number != FULL_NODE]
    topics = [
        NewTopic(TOPIC, PARTITIONS, NODES, config={"segment.bytes": str(MIB)}),
        NewTopic(ELSEWHERE, 1, replica_assignment=[others]),
    ]
    admin = AdminClient(access.librdkafka)
    for made in admin.create_topics(topics).values():
        made.result(60)


def _prefer(access: Access) -> None:
    """Let the preferred replicas lead again, so that the next full disk finds leaders."""
    from confluent_kafka import ElectionType, TopicPartition
    from confluent_kafka.admin import AdminClient

    wanted = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    admin = AdminClient(access.librdkafka)
    admin.elect_leaders(ElectionType.PREFERRED, wanted).result(60)

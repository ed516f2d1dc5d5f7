"""Rounds of rot at three brokers in three processes, with clients at work all the while.

A round: a bit or a block of a random file of a random replica changes on the disk. The broker has to find it
within a scrub or by the first read, and to mend it by itself. Then the next round begins, so of every range
of records a sound copy lives. One kind of round kills the broker first, and starts it over a wrong epoch
file.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from logstore.cli.local_cluster import end, launch
from logstore.config import LogConfig
from tests.kill9.campaign import (
    NODES,
    PARTITIONS,
    PATIENCE_S,
    Campaign,
    consume_all,
    create_topic,
    read_all,
    wait_for_clients,
)
from tests.kill9.verdict import violations
from tests.kill9.workload import TOPIC, Workload
from tests.rot.rotting import KILLED, KINDS, Rot, candidates, lie, spoil
from tests.rot.transactions import write_aborted
from tests.rot.workload import Reader, Watch

SCRUB_MS = 1_000
LONGEST_PAUSE_S = 5.0
SETTINGS = {
    "log.scrub.interval.ms": str(SCRUB_MS),
    "log.segment.bytes": "100000",
    "log.index.interval.bytes": "512",
    "log.scrub.io.max.bytes.per.second": str(1 << 30),
    "log.scrub.max.busy.percent": "100",
}
COUNTERS = ("damagesfound_total", "filesrebuilt_total")


@dataclass(frozen=True, slots=True)
class Round:
    """One rot: the file, its size in bytes, seconds until it was gone, the longest pause of the group."""

    number: int
    kind: str
    node: int
    name: str
    size: int
    mended_s: float
    paused_s: float
    was_counted: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    rounds: list[Round]
    acknowledged: int
    consumed: int
    reads: int
    violations: list[str]


class RotCampaign(Campaign):
    """The cluster of the kill -9 campaign, with a scrub that never rests."""

    def __init__(self, directory: Path, *, patience_s: float, plant: str) -> None:
        settings = {**SETTINGS, "log.scrub.interval.ms": "0"} if plant == "no-scrub" else SETTINGS
        super().__init__(directory, settings=settings)
        self.patience_s = patience_s
        self.violations: list[str] = []

    def write_aborted(self) -> None:
        """Give every log aborted transactions, while the brokers are down. The same leaders lead again."""
        before = self.view()
        assert before is not None, "the cluster is whole"
        nodes = [f"node-{number}" for number in range(1, NODES + 1)]
        killed = end(self.directory, nodes, patience_s=PATIENCE_S)
        assert not killed, killed
        config = LogConfig(
            segment_bytes=int(SETTINGS["log.segment.bytes"]),
            index_interval_bytes=int(SETTINGS["log.index.interval.bytes"]),
        )
        write_aborted([self.directory / name for name in nodes], TOPIC, PARTITIONS, config)
        launch(self.directory, nodes, patience_s=PATIENCE_S)
        self.wait_for("the leaders before the restart", lambda view: view.leaders == before.leaders)
        self.wait_until_whole()

    def _ask(self, node: int, path: str) -> bytes:
        port = self.cluster.nodes[node - 1].http_port
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            return error.read()

    def counted(self, node: int) -> float:
        """How much damage a broker has found so far."""
        lines = [line.split() for line in self._ask(node, "/metrics").decode().splitlines()]
        return sum(float(words[-1]) for words in lines if words[0].endswith(COUNTERS))

    def is_healthy(self) -> bool:
        """Whether no broker knows of damage."""
        facts = [json.loads(self._ask(node, "/healthz")) for node in range(1, NODES + 1)]
        return not any(each["damaged_partitions"] or each["failed_partitions"] for each in facts)

    def spoil(self, kind: str, random: Random) -> tuple[int, Rot]:
        """Let a file of this kind rot; return the node that has it."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            node, partition = random.randint(1, NODES), random.randrange(PARTITIONS)
            found = candidates(self.directory / f"node-{node}" / f"{TOPIC}-{partition}", kind)
            if found and (rot := spoil(*random.choice(found), random)) is not None:
                return node, rot
            time.sleep(0.05)
        raise AssertionError(f"no file of the kind {kind} can rot")

    def lie(self, random: Random) -> tuple[int, Rot]:
        """Kill a broker, let an epoch file of it rot so that it still parses, and start the broker again."""
        node = random.randint(1, NODES)
        self._strike("leader", node)
        directory = self.directory / f"node-{node}"
        partitions = random.sample(range(PARTITIONS), PARTITIONS)
        found = (lie(directory / f"{TOPIC}-{partition}", random) for partition in partitions)
        rot = next((each for each in found if each is not None), None)
        self._mend("leader", [node])
        assert rot is not None, "no epoch file can rot unseen"
        return node, rot

    def round_of_rot(self, number: int, kind: str, random: Random, watch: Watch) -> Round:
        """Let it rot, and wait until nobody can tell."""
        before = [self.counted(node) for node in range(1, NODES + 1)]
        watch.longest_s()
        if kind == KILLED:
            node, rot = self.lie(random)
            before[node - 1] = 0.0  # it counts anew
            watch.longest_s()  # the death of a leader is another campaign's
        else:
            node, rot = self.spoil(kind, random)
        began_s = time.monotonic()
        name = f"{rot.path.parent.name}/{rot.path.name}"
        was_counted = False
        while rot.is_in_place or not was_counted or not self.is_healthy():
            was_counted = was_counted or self.counted(node) > before[node - 1]
            if time.monotonic() - began_s > self.patience_s:
                self.violations.append(
                    f"round {number}: {name} of node {node} at byte {rot.position} is not mended in "
                    f"{self.patience_s:.0f} s"
                )
                break
            time.sleep(0.05)
        mended_s = time.monotonic() - began_s
        if not was_counted:
            self.violations.append(f"round {number}: {name} of node {node} changed, and no counter rose")
        paused_s = watch.longest_s()
        if paused_s >= LONGEST_PAUSE_S:
            self.violations.append(f"round {number}: the group waited {paused_s:.1f} s for a partition")
        self.wait_until_whole()
        return Round(number, kind, node, name, len(rot.rotten), mended_s, paused_s, was_counted)


def run(
    directory: Path,
    rounds: int,
    seed: int,
    *,
    patience_s: float = 60.0,
    plant: str = "",
    kinds: tuple[str, ...] = (*KINDS, KILLED),
    tell_of: Callable[[Round], None] = lambda each: None,
) -> Outcome:
    """Let files rot, one a round, and judge."""
    random = Random(seed)
    running = RotCampaign(directory, patience_s=patience_s, plant=plant)
    try:
        create_topic(running.access)
        running.wait_until_whole()
        running.write_aborted()
        workload = Workload(running.access, PARTITIONS)
        reader, watch = Reader(running.access, PARTITIONS), Watch(workload, PARTITIONS)
        wait_for_clients(workload)
        reader.start()
        watch.start()
        done = []
        for number in range(1, rounds + 1):
            kind = kinds[(number - 1) % len(kinds)]
            done.append(running.round_of_rot(number, kind, random, watch))
            tell_of(done[-1])
            if len(running.violations) > 10 or (plant and running.violations):
                break
        watch.end()
        workload.stop_producing(PATIENCE_S)
        reader.end(PATIENCE_S)
        log = read_all(running.access)
        consume_all(workload, log)
        seen = workload.seen
        return Outcome(
            done,
            sum(map(len, seen.acknowledged.values())),
            sum(map(len, seen.consumed.values())),
            reader.reads,
            [*running.violations, *misread(reader, log), *violations(seen, log)],
        )
    finally:
        running.close()


def misread(reader: Reader, log: dict[int, dict[int, bytes]]) -> list[str]:
    """Return the values that the reader got and the log does not have."""
    found = [f"the reader failed: {reader.failure!r}"] if reader.failure is not None else []
    found += reader.wrong
    for partition, values in reader.values.items():
        for offset, value in values.items():
            if log[partition].get(offset) != value:
                found.append(
                    f"the reader got {value!r} at partition {partition}, offset {offset}; the log has "
                    f"{log[partition].get(offset)!r}"
                )
    return found

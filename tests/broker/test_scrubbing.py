"""The scrub of running brokers: it finds changed bytes in files that nobody reads, and they are mended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from logstore.broker import BrokerCluster, metrics, scrubbing
from logstore.broker.health import Loading, health
from logstore.broker.runtime import Runtime
from logstore.broker.scrubbing import PROGRESS, Pace, Progress, Scrubbing, ScrubReport, decode_progress
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.scrub import Cursor, Scrubbed
from logstore.replication.healing import DamagedReplicas

TOPIC = "orders"
TP = TopicPartition(TOPIC, 0)
SETTINGS = {
    "log.scrub.interval.ms": "100",
    "log.scrub.max.busy.percent": "100",
    "log.segment.bytes": "20000",
}
VALUES = [b"%d:" % number + b"x" * 100 for number in range(600)]


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def flip(path: Path, at: int) -> bytes:
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([before[at] ^ 0x10]))
    return before


def damaged(cluster: BrokerCluster, node_id: int) -> DamagedReplicas:
    return cluster.brokers[node_id]._client._running.runtime.node.replicas.damaged


def logs_of(tmp_path: Path, node_id: int) -> list[Path]:
    return sorted((tmp_path / f"broker-{node_id}" / f"{TOPIC}-0").glob("*.log"))


def test_every_replica_finds_its_damage_and_is_mended(tmp_path: Path) -> None:
    """A sealed segment of the leader and of a follower, and the active one of the other follower."""
    with BrokerCluster(3, directory=str(tmp_path), settings=SETTINGS) as cluster:
        cluster.create_topic(TOPIC, 1)
        for first in range(0, len(VALUES), 50):
            cluster.append(TOPIC, VALUES[first : first + 50])
        leader = cluster.leader(TOPIC)
        followers = [each for each in cluster.brokers if each != leader]
        until(lambda: all(len(logs_of(tmp_path, each)) > 2 for each in cluster.brokers))
        paths = {
            leader: logs_of(tmp_path, leader)[0],
            followers[0]: logs_of(tmp_path, followers[0])[1],
            followers[1]: logs_of(tmp_path, followers[1])[-1],
        }
        until(lambda: len({path.stat().st_size for path in (logs_of(tmp_path, n)[-1] for n in paths)}) == 1)
        before = {node_id: flip(path, at=200) for node_id, path in paths.items()}
        until(lambda: all(damaged(cluster, each).healed_total == 1 for each in paths))
        assert {node_id: path.read_bytes() for node_id, path in paths.items()} == before
        assert [record.value for record in cluster.scan(TOPIC, offset=0)] == VALUES
        assert not any(damaged(cluster, each).known for each in paths)
    assert decode_progress((tmp_path / f"broker-{leader}" / PROGRESS).read_bytes()).began_ms > 0


class Broken:
    """A broker's runtime with two logs; the scrub of the one that `broken` names fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.joined = asyncio.Event()
        self.joined.set()
        self.scrubbed: list[str] = []
        self.broken, self.time_ms = "orders-0", 0
        directories = {TP: "orders-0", TopicPartition(TOPIC, 1): "orders-1"}
        logs = {each: SimpleNamespace(partition=name) for each, name in directories.items()}
        self.node = SimpleNamespace(
            logs=SimpleNamespace(logs=lambda: logs, log_dirs=["/data"], offline_dirs=())
        )
        monkeypatch.setattr(scrubbing, "scrub", self.scrub)

    def now_ms(self) -> int:
        self.time_ms += 1
        return self.time_ms

    def scrub(self, name: str, cursor: Cursor) -> Iterator[Scrubbed]:
        self.scrubbed.append(name)
        if name == self.broken:
            raise RuntimeError("a defect")
        yield Scrubbed(0, None)

    def run(self, seen: Callable[[ScrubReport], None]) -> None:
        asyncio.run(self._run(seen))

    async def _run(self, seen: Callable[[ScrubReport], None]) -> None:
        disk = MemoryDisk(directories=["/data"])
        running = Scrubbing(cast(Runtime, self), disk, interval_ms=1, pace=Pace(1 << 30, 100))
        running.start()
        for broken in ("orders-0", "none"):
            self.broken = broken
            passes = running.passes + 2
            while running.passes < passes:
                await asyncio.sleep(0.001)
            seen(running.report)
        await running.stop()


def test_an_unexpected_error_is_a_state_and_the_next_log_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports: list[ScrubReport] = []
    broken = Broken(monkeypatch)
    broken.run(reports.append)
    first, last = reports
    assert "orders-1" in broken.scrubbed, "the other log is scrubbed"
    assert dict(first.failed) == {"orders-0": "RuntimeError: a defect"}
    assert first.failures >= first.passes, "one in each"
    assert dict(last.failed) == {}
    page = health(metrics.Watched(scrub=first), Loading([]))
    assert json.loads(page.content)["scrub"]["state"] == "failing"
    assert json.loads(page.content)["scrub"]["failed"] == dict(first.failed)
    text = metrics.page(metrics.Watched(scrub=first)).content.decode()
    assert "logstore_scrub_failing 1.0" in text
    assert json.loads(health(metrics.Watched(scrub=last), Loading([])).content)["scrub"]["state"] == "ok"


def test_a_scrub_continues_where_it_was() -> None:
    under_way = Progress(1_700_000_000_000, TP, Cursor(400, 1 << 20))
    assert decode_progress(under_way.encode()) == under_way
    assert decode_progress(Progress(5).encode()) == Progress(5)


def test_an_unreadable_progress_counts_for_nothing() -> None:
    short = b'{"began_ms": 1, "partition": ["t"], "cursor": [0, 0]}'
    for data in (None, b"", b"{", b"[]", b'{"began_ms": 1}', short):
        assert decode_progress(data) == Progress()


def test_a_step_that_takes_long_is_followed_by_a_long_pause() -> None:
    """Whatever a step holds up while it runs, it costs others no more than its share of the time."""
    pace = Pace(32 << 20, 5)
    assert pace.pause_s(1 << 20, 0.001) == pytest.approx(1 / 32 - 0.001), "the rate"
    assert pace.pause_s(4 << 20, 0.025) == pytest.approx(0.475), "the share"
    assert pace.pause_s(0, 0.025) == pytest.approx(0.475), "a step that reads what was just read"
    assert pace.pause_s(0, 0.0) == 0
    assert Pace(1 << 30, 100).pause_s(0, 0.5) == 0

"""Starts and stops that are refused, and files that stay where they were when the broker started."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from logstore.broker import AsyncBroker, Broker, BrokerCluster, BrokerConfig, BrokerStopped, threaded
from logstore.cli.serve import _options

CONFIG = BrokerConfig(timeout_s=30)


def test_a_broker_is_started_once() -> None:
    broker = Broker(CONFIG)
    with broker, pytest.raises(RuntimeError, match="broker 1 was started before"):
        broker.start()
    with pytest.raises(RuntimeError, match="broker 1 was started before"):
        broker.start()

    async def test() -> None:
        with pytest.raises(RuntimeError, match="broker 1 was started before"):
            await broker.__aenter__()
        async with AsyncBroker(CONFIG) as inner:
            with pytest.raises(RuntimeError, match="broker 1 was started before"):
                await inner.start()

    asyncio.run(test())


def test_a_cluster_is_started_once() -> None:
    """The second start waited for a metadata store that was closed."""
    cluster = BrokerCluster(1, timeout_s=30)
    with cluster, pytest.raises(RuntimeError, match="this cluster was started before; make another"):
        cluster.__enter__()
    with pytest.raises(RuntimeError, match="this cluster was started before; make another"):
        cluster.__enter__()
    with pytest.raises(RuntimeError, match="this cluster was started before; make another"):
        cluster.start(1)


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_an_end_whose_caller_is_cancelled_goes_on(tmp_path: Path, way: str) -> None:
    """The log dirs stayed locked for the rest of the process, and the broker went on listening."""
    config = BrokerConfig(log_dirs=(str(tmp_path / "a"),), timeout_s=30)

    async def test() -> None:
        for _start in range(2):
            broker = AsyncBroker(config)
            await broker.start()
            await broker.wait_until_ready()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await getattr(broker, way)()
            await broker.stop()
            assert broker.down.is_set()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    """The thread that opened the store held its lock for the rest of the process."""
    config = BrokerConfig(log_dirs=(str(tmp_path / "a"),), timeout_s=30)

    async def test() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await AsyncBroker(config).start()
        async with AsyncBroker(config) as broker:
            assert broker.is_ready

    asyncio.run(asyncio.wait_for(test(), 60))


def test_files_stay_where_they_are_if_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics were made in the new directory, and the metadata store failed."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for number, metadata in enumerate(("embedded", "embedded:store")):
        monkeypatch.chdir(tmp_path / "a")
        with Broker(BrokerConfig(log_dirs=("data",), metadata=metadata, boot_id="x")) as broker:
            monkeypatch.chdir(tmp_path / "b")
            broker.create_topic("t")
            broker.append("t", b"x")
            broker.snapshot(tmp_path / f"snapshot-{number}")
        shutil.rmtree(tmp_path / "a" / "data")
    monkeypatch.chdir(tmp_path / "a")
    with BrokerCluster(1, directory="cluster") as cluster:
        monkeypatch.chdir(tmp_path / "b")
        cluster.create_topic("t")
        cluster.stop(1)
        cluster.start(1)
        cluster.append("t", b"x")
    assert list((tmp_path / "b").iterdir()) == []
    assert {each.name for each in (tmp_path / "a").iterdir()} == {"data.metadata", "store", "cluster"}


def test_a_broker_of_a_cluster_is_named_if_it_cannot_be_stopped_or_started() -> None:
    for count, error in ((0, ValueError), (1 << 70, ValueError), ("3", TypeError), (1.5, TypeError)):
        with pytest.raises(error, match="count"):
            BrokerCluster(count)  # type: ignore[arg-type]
    with BrokerCluster(2) as cluster:
        for call in (cluster.kill, cluster.stop, cluster.start):
            with pytest.raises(ValueError, match="no broker 99: this cluster has 1, 2"):
                call(99)
        with pytest.raises(RuntimeError, match="broker 1 is running"):
            cluster.start(1)
        cluster.kill(1)
        for stop in (cluster.kill, cluster.stop):
            with pytest.raises(BrokerStopped, match="broker 1 of this cluster is not running"):
                stop(1)


def test_a_served_broker_has_absolute_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = {"node.id": "1", "listen": "127.0.0.1:0", "log.dirs": f"a, {tmp_path}/b/", "advertise": None}
    for metadata, found in (("embedded:m", f"embedded:{tmp_path}/m"), ("embedded", "embedded")):
        options = _options({**named, "metadata": metadata}, {}, {})
        assert options.log_dirs == (f"{tmp_path}/a", f"{tmp_path}/b")
        assert options.metadata == found


def test_a_log_that_another_program_has_compacted(tmp_path: Path) -> None:
    """Kafka's cleaner removes whole segments. Of a topic that is not compacted this would be damage."""
    config = BrokerConfig(
        log_dirs=(str(tmp_path / "a"),), metadata=f"embedded:{tmp_path}/store", timeout_s=30
    )
    broker = Broker(config)
    broker.start()
    broker.create_topic("t", settings={"cleanup.policy": "compact", "segment.bytes": "1048576"})
    for number in range(6):
        broker.append("t", (b"k%d" % (number % 3), b"%d" % number * 600_000))
    broker.kill()
    for path in (tmp_path / "a" / "t-0").glob("*1.*"):
        if path.suffix != ".seal":
            path.unlink()
    with Broker(config) as broker:
        assert [broker.read("t", 0, offset)[0].offset for offset in range(6)] == [0, 2, 2, 3, 4, 5]


def test_a_start_without_descriptors_for_an_event_loop_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for ever for its thread, which had ended."""

    def none_left() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(threaded, "fastest_loop", lambda: none_left)
    errors: list[OSError] = []

    def start() -> None:
        try:
            Broker(CONFIG).start()
        except OSError as error:
            errors.append(error)

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    starting.join(5)
    assert [error.errno for error in errors] == [errno.EMFILE]

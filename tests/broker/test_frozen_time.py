"""A program's tests freeze its time: records have the frozen time, and waits end as ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from freezegun import freeze_time

from logstore import AsyncLog, Log, Queue
from logstore.broker import BlockingClient, Broker, BrokerConfig, SharedQueue, threaded
from logstore.broker.loop import SteadyLoop, fastest_loop

NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_577_880_000_000


@freeze_time(NOON)
def test_a_log(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        with log.writer(linger_ms=1) as writer:
            assert writer.append(b"one").synced().first_offset == 0
        assert log[0].timestamp_ms == NOON_MS
        assert [each.value for each in log.follow(0, timeout=0.01)] == [b"one"]


@freeze_time(NOON)
def test_a_queue(tmp_path: Path) -> None:
    with Queue(tmp_path / "jobs") as queue:
        assert queue.get(timeout=0.01) is None
        queue.put(b"job", delay=60)
        assert queue.get(timeout=0.01) is None
        with freeze_time(NOON.replace(minute=1)):
            message = queue.get(timeout=60)
        assert message is not None
        assert message.value == b"job"


@freeze_time(NOON)
@pytest.mark.parametrize("loop", [fastest_loop, lambda: SteadyLoop])
def test_a_broker_its_client_and_a_shared_queue(
    loop: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threaded, "fastest_loop", loop)
    with Broker(BrokerConfig()) as broker, BlockingClient(broker.bootstrap) as client:
        client.create_topic("orders")
        client.topic("orders").partition(0).append(b"one")
        (record,) = broker.topic("orders").partition(0).follow(0, timeout=0.01)
        assert 0 <= record.timestamp_ms - NOON_MS < 60_000, "the broker's clock goes on from the frozen time"
        with SharedQueue(client, "jobs") as queue:
            queue.put(b"job")
            message = queue.get(timeout=60)
            assert message is not None
            queue.ack(message)
            assert queue.get(timeout=0.01) is None


@freeze_time(NOON, real_asyncio=True)
def test_a_log_for_tasks(tmp_path: Path) -> None:
    async def main() -> list[bytes | None]:
        async with await AsyncLog.open(tmp_path / "orders-0") as log:
            await log.append(b"one")
            await log.flush()
            return [each.value async for each in log.follow(0, timeout=0.01)]

    assert asyncio.run(main()) == [b"one"]

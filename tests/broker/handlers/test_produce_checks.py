"""Validation of large batches leaves the event loop; of small ones it is not repeated."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from logstore.broker.handlers import produce as handler
from logstore.broker.wire import types as t
from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidRecord
from logstore.format.batch import Batch, encode_batch, walk
from logstore.format.compression import Codec, InflatesTooFar
from logstore.format.record import Record
from logstore.log.append import CheckedBatch, check_ahead, validate_and_assign
from tests.broker.asking import Asker
from tests.broker.nodes import Nodes

MIB = 1 << 20
T = TopicPartition("t", 0)


def bomb(mib: int, count: int = 1) -> bytes:
    records = [Record(number, 1, b"k", bytes(mib * MIB // count)) for number in range(count)]
    return encode_batch(records, codec=Codec.GZIP)


def producing(data: bytes) -> t.ProduceRequest:
    part = t.ProduceRequestPartitionProduceData(index=0, records=data)
    wanted = [t.ProduceRequestTopicProduceData(name="t", partition_data=[part])]
    return t.ProduceRequest(acks=1, timeout_ms=5_000, topic_data=wanted)


async def produce(client: Asker, data: bytes) -> tuple[int, int]:
    """Error code and base offset."""
    part = (await client.ask(producing(data), 9)).responses[0].partition_responses[0]
    return part.error_code, part.base_offset


def test_a_bomb_is_inflated_in_a_thread_and_others_are_served_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread is held until another client's batch is answered; without a thread that deadlocks."""
    others_served = threading.Event()
    names: list[str] = []
    real = check_ahead

    def held(*args: Any, **more: Any) -> CheckedBatch:
        if "max_decompressed_bytes" not in more:
            names.append(threading.current_thread().name)
            assert others_served.wait(30)
        return real(*args, **more)

    monkeypatch.setattr(handler, "check_ahead", held)

    async def test() -> None:
        nodes = Nodes(1)
        nodes.log_config = LogConfig(min_insync_replicas=1, retention_ms=-1)
        async with asyncio.timeout(60), nodes:
            await nodes.create_topic("t", (0,))
            address = nodes.addresses[0]
            async with Asker(address) as first, Asker(address) as second:
                waiting = asyncio.create_task(produce(first, bomb(8)))
                while not names:
                    await asyncio.sleep(0)
                small = encode_batch([Record(0, 1, None, b"x")], codec=Codec.GZIP)
                assert await produce(second, small) == (ErrorCode.NONE, 0)
                assert await produce(second, encode_batch([Record(0, 1, None, b"y")])) == (0, 1)
                assert not waiting.done()
                others_served.set()
                assert await waiting == (ErrorCode.NONE, 2)
                assert await produce(first, bomb(101)) == (ErrorCode.INVALID_RECORD, -1)
                broken = bytearray(bomb(3))
                broken[-300] ^= 1
                assert (await produce(first, bytes(broken)))[0] == ErrorCode.CORRUPT_MESSAGE
            assert all(name.startswith("check") for name in names)
            assert len(names) == 2

    asyncio.run(test())


def test_a_batch_checked_ahead_is_placed_without_another_check(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LogConfig()
    data = encode_batch(
        [Record(n, 1, None, b"v") for n in range(3)],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        codec=Codec.GZIP,
    )
    wanted = validate_and_assign(data, next_offset=40, leader_epoch=5, now_ms=1, config=config)
    checked = check_ahead(data, now_ms=1, config=config)
    assert checked == data

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the records were checked before")

    monkeypatch.setattr(Batch, "check_records", never)
    placed = validate_and_assign(checked, next_offset=40, leader_epoch=5, now_ms=9, config=config)
    assert bytes(placed.data) == bytes(wanted.data)
    assert placed[1:6] == wanted[1:6]
    (batch,) = placed.batches
    assert (batch.base_offset, batch.leader_epoch, batch.producer_id) == (40, 5, 7)
    (again,) = walk(placed.data)
    again.check_crc()


def test_other_settings_are_checked_again() -> None:
    data = encode_batch([Record(0, 1, None, b"v")])
    checked = check_ahead(data, now_ms=1, config=LogConfig())
    compacted = LogConfig(cleanup_policy="compact")
    with pytest.raises(InvalidRecord, match="needs a key"):
        validate_and_assign(checked, next_offset=0, leader_epoch=0, now_ms=1, config=compacted)


def test_what_inflates_too_far_is_told_apart_from_what_is_broken() -> None:
    with pytest.raises(InflatesTooFar, match="more than 1048576 bytes"):
        check_ahead(bomb(2), now_ms=1, config=LogConfig(), max_decompressed_bytes=MIB)

"""What strangers do to a broker or a metadata store, each until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final, TypeAlias

from kazoo.protocol.serialization import Connect, Create, GetData
from kazoo.security import OPEN_ACL_UNSAFE

from logstore.broker.limits import Address
from logstore.broker.wire import types as t
from logstore.broker.wire.headers import request_frame
from logstore.format.batch import encode_batch
from logstore.format.compression import Codec
from logstore.format.record import Record
from tests.broker.asking import Asker

MIB: Final = 1 << 20
Attack: TypeAlias = Callable[[Address], Awaitable[None]]


async def _again(one: Callable[[], Awaitable[None]]) -> None:
    """Do something over and over; a closed connection is an answer."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await one()
        await asyncio.sleep(0.01)


async def _together(number: int, one: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(*(_again(one) for _ in range(number)))


def produce(topic: str, data: bytes) -> t.ProduceRequest:
    part = t.ProduceRequestPartitionProduceData(index=0, records=data)
    wanted = [t.ProduceRequestTopicProduceData(name=topic, partition_data=[part])]
    return t.ProduceRequest(acks=1, timeout_ms=30_000, topic_data=wanted)


async def bombs(address: Address) -> None:
    """Six connections send batches of 89 KiB that inflate to 89 MiB."""
    bomb = encode_batch([Record(0, 1, None, bytes(89 * MIB))], codec=Codec.GZIP)

    async def one() -> None:
        async with Asker(address) as client:
            while True:
                await client.ask(produce("bombed", bomb), 9)

    await _together(6, one)


async def connections(address: Address, number: int = 5_000) -> None:
    """So many connections, each of which asks for the versions and stays."""

    async def one() -> None:
        async with Asker(address) as client:
            while True:
                await client.ask(t.ApiVersionsRequest(), 0)
                await asyncio.sleep(60)

    await _together(number, one)


async def topics(address: Address) -> None:
    """Metadata of 3,000 unknown topics that may be created."""
    rounds = count()

    async def one() -> None:
        async with Asker(address) as client:
            names = [t.MetadataRequestTopic(name=f"flood-{next(rounds) % 4}-{n}") for n in range(3_000)]
            await client.ask(t.MetadataRequest(topics=names, allow_auto_topic_creation=True), 12)

    await _again(one)


async def coordinated(address: Address) -> None:
    """Have the broker create its topic of groups, and wait until it coordinates them."""
    async with Asker(address) as client:
        while (await client.ask(t.FindCoordinatorRequest(key="g"), 0)).error_code:
            await asyncio.sleep(0.1)


async def joins(address: Address) -> None:
    """Members of a megabyte each, in groups of their own, that disconnect at once."""
    groups = count()

    async def one() -> None:
        async with Asker(address) as client:
            protocol = t.JoinGroupRequestProtocol(name="range", metadata=bytes(MIB - 100))
            request = t.JoinGroupRequest(
                group_id=f"g{next(groups)}",
                session_timeout_ms=1_800_000,
                rebalance_timeout_ms=1_800_000,
                member_id="",
                protocol_type="consumer",
                protocols=[protocol],
            )
            client.send(request, 3)
            await client._writer.drain()
            await asyncio.sleep(0.05)

    await _together(4, one)


async def frames(address: Address) -> None:
    """Two hundred frames of 100 MiB that are announced; 40 kB of each are sent."""

    async def one() -> None:
        async with Asker(address) as client:
            client.send_bytes(struct.pack(">i", 100 * MIB) + bytes(40_000))
            await asyncio.sleep(60)

    await _together(200, one)


async def pipelines(address: Address) -> None:
    """Connections that send requests for all metadata and take no answers."""
    request = b"".join(request_frame(t.MetadataRequest(topics=None), 12, 1, "flood"))

    async def one() -> None:
        reader, writer = await asyncio.open_connection(*address, limit=1)
        try:
            while True:
                writer.write(request * 100)
                await writer.drain()
        finally:
            del reader
            writer.close()

    await _together(50, one)


# --- the store --------------------------------------------------------------------------------


async def _store_session(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address)
    hello = bytes(Connect(0, 0, 30_000, 0, bytes(16), False).serialize())
    writer.write(struct.pack(">i", len(hello)) + hello)
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    await reader.readexactly(size)
    return reader, writer


def _asked(xid: int, request: object) -> bytes:
    body = struct.pack(">ii", xid, request.type) + request.serialize()  # type: ignore[attr-defined]
    return struct.pack(">i", len(body)) + bytes(body)


async def store_writes(address: Address) -> None:
    """Nodes of 500 kB, as fast as they are taken."""
    numbers = count()

    async def one() -> None:
        reader, writer = await _store_session(address)
        while True:
            writer.write(_asked(1, Create(f"/flood-{next(numbers)}", bytes(500_000), OPEN_ACL_UNSAFE, 0)))
            await writer.drain()
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)

    await _together(3, one)


async def store_reads(address: Address) -> None:
    """Reads of 500 kB whose answers nobody takes."""

    async def one() -> None:
        reader, writer = await _store_session(address)
        writer.write(_asked(1, Create("/read", bytes(500_000), OPEN_ACL_UNSAFE, 0)))
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        for xid in range(3_000):
            writer.write(_asked(xid, GetData("/read", None)))
        await asyncio.sleep(60)
        writer.close()

    await _together(4, one)


ON_BROKERS: Final[dict[str, Attack]] = {
    each.__name__: each for each in (bombs, connections, topics, joins, frames, pipelines)
}
ON_STORES: Final[dict[str, Attack]] = {each.__name__: each for each in (store_writes, store_reads)}

"""The embedded metadata store, served on a loopback port by a thread of this process."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from broker.clock import SteadyClock
from broker.metadata.server import MetadataServer
from broker.transport import Address
from checkpoint.disk import Disk
from checkpoint.disks.memory import MemoryDisk
from replication.metastore.embedded import EmbeddedStore

DEADLINE_S = 30.0


@contextmanager
def served(disk: Disk | None = None, directory: str = "/meta") -> Iterator[int]:
    """The port of a server over a store in memory, or on `disk`."""
    ports: list[int] = []
    is_up, is_over = threading.Event(), threading.Event()

    async def serve(stop: list[asyncio.Event]) -> None:
        with EmbeddedStore(directory, disk=disk or MemoryDisk(), journal_limit=1 << 14) as store:
            server = MetadataServer(store, clock=SteadyClock(), random=random.Random(0))
            ports.append((await server.listen(Address("127.0.0.1", 0))).port)
            stop.append(asyncio.Event())
            is_up.set()
            await stop[0].wait()
            server.close()

    stop: list[asyncio.Event] = []
    loop = asyncio.new_event_loop()

    def run() -> None:
        try:
            loop.run_until_complete(serve(stop))
        finally:
            loop.close()
            is_up.set()
            is_over.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_up.wait(DEADLINE_S)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop[0].set)
        assert is_over.wait(DEADLINE_S)
        thread.join(DEADLINE_S)

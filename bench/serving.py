"""Servers to measure, each in its own process: `python -m bench.serving echo|broker DIRECTORY`.

Both print their port. The echo splits frames and writes each back, those of one wake-up in one write: the
least that a server of these frames can do in Python. The broker keeps its logs in DIRECTORY.
"""

from __future__ import annotations

import asyncio
import random
import struct
import sys
from typing import cast

from logstore.broker.broker import Assembly
from logstore.broker.limits import Address
from logstore.broker.loop import compile_checks, fastest_loop, keep_freed_memory, settle_heap
from logstore.broker.metadata.local import SharedStore
from logstore.broker.settings import read_settings
from logstore.disk.files import OsDisk, SteadyClock
from logstore.disk.memory import MemoryDisk
from logstore.replication.metastore.embedded import EmbeddedStore

_SIZE = struct.Struct(">i")
_ANY_PORT = Address("127.0.0.1", 0)


class _Echo(asyncio.Protocol):
    def __init__(self) -> None:
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, out = 0, []
        while len(data) - at >= _SIZE.size:
            end = at + _SIZE.size + _SIZE.unpack_from(data, at)[0]
            if end > len(data):
                break
            out.append(data[at:end])
            at = end
        self._rest = data[at:]
        if out:
            self._transport.write(b"".join(out))


async def echo() -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, *_ANY_PORT)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def broker(directory: str) -> None:
    clock = SteadyClock()
    with SharedStore(EmbeddedStore("store", disk=MemoryDisk()), clock=clock) as store:
        settings = read_settings({}, node_id=0, host=_ANY_PORT.host, port=0)
        served = await Assembly.open(
            settings,
            _ANY_PORT,
            [directory],
            store.client,
            disk=OsDisk(),
            clock=clock,
            random=random.Random(),
        )
        served.start()
        await served.runtime.registered.wait()
        compile_checks()
        settle_heap()
        keep_freed_memory()
        print(served.address.port, flush=True)
        await served.runtime.ended


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(echo() if sys.argv[1] == "echo" else broker(sys.argv[2]))

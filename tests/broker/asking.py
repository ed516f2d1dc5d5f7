"""A client of one connection for tests of handlers: asks what it is told, in the version it is told."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from logstore.broker.limits import Address
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.codec import decode
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import decode_response_header, request_frame


class Asker:
    """`async with Asker(address) as client: answer = await client.ask(t.MetadataRequest(), 12)`."""

    def __init__(self, address: Address, client_id: str | None = "test") -> None:
        self._address, self._client_id = address, client_id
        self._last_id = 0
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Asker:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    def send(self, request: Struct, version: int) -> int:
        """Write a request; its correlation id."""
        self._last_id += 1
        self._writer.writelines(request_frame(request, version, self._last_id, self._client_id))
        return self._last_id

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self, kind: type[Struct], version: int, correlation_id: int) -> Any:
        """The next answer, which must be of that kind and to that request."""
        frame = memoryview(await self.answer_bytes())
        got, used = decode_response_header(frame, API_OF[kind], version)
        assert got == correlation_id
        answer, size = decode(API_OF[kind].response, version, frame[used:])
        assert used + size == len(frame), "nothing follows an answer of ours"
        return answer

    async def answer_bytes(self) -> bytes:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def size(self) -> int:
        """The next size, alone."""
        return int(struct.unpack(">i", await self._reader.readexactly(4))[0])

    async def ask(self, request: Struct, version: int) -> Any:
        """Send, and wait for the answer."""
        return await self.answer(type(request), version, self.send(request, version))

    async def is_cut_off(self) -> bool:
        """Whether the connection ends without another byte. Waits until it does."""
        try:
            return await self._reader.read(1) == b""
        except ConnectionResetError:
            return True

    async def has_news(self) -> bool:
        """Whether something has come by now, or the end. What came is not there to be read any more."""
        reading = asyncio.ensure_future(self._reader.read(1))
        for _ in range(5):
            await asyncio.sleep(0)
        if not reading.done():
            reading.cancel()
            return False
        return True

"""One request to one broker, over a connection or in the process, in a version that both sides support."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from logstore.broker.client_messages import newest, request_of, response_of
from logstore.broker.connection import shared_scratch
from logstore.broker.errors import MalformedMessage, RequestFailed, RequestRefused, RequestUnanswered
from logstore.broker.limits import Address, Limits
from logstore.broker.links import Link, Then
from logstore.broker.security.client import NO_SECURITY, ClientSecurity
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import EngineError, ErrorCode
from logstore.replication.messages import (
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    RequestBody,
    ResponseBody,
)


class Way(Protocol):
    """How requests reach a broker: a `Link`, or `InProcess`."""

    def ask(self, request: Struct, version: int, then: Then | None) -> None: ...

    def close(self) -> None: ...


class Connections:
    """Connections to brokers, opened when first needed. Belongs to one event loop."""

    def __init__(
        self,
        *,
        limits: Limits,
        client_id: str,
        ways: Mapping[Address, Way],
        check: Callable[[], None],
        security: ClientSecurity | None = None,
    ) -> None:
        """`ways` reach brokers in this process; they are closed with the connections.

        `check` raises if no request may be sent any more.
        """
        self.check = check
        self._limits, self._client_id, self.security = limits, client_id, security or NO_SECURITY
        self._ways = dict(ways)
        self._links: dict[tuple[Address, type[Any]], Link] = {}
        self._served: dict[Address, Mapping[int, range]] = {}
        """The versions that a broker serves, by API key."""
        self.failures: dict[Address, str] = {}
        """Why the last request to a broker was not answered; those that answered it are left out."""
        self._scratch: memoryview | None = None
        self.closed: EngineError | None = None
        """The error of `close`."""
        self._process_id = 0
        """The process that uses them; 0 before the first use."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that uses them, from the first use on."""

    def check_process(self) -> None:
        """Raise `RequestFailed` in a forked child of the process that has used the connections.

        Its sockets, its loop's selector and its producers' sequence numbers are the parent's, too.
        """
        process_id = os.getpid()
        self._process_id = self._process_id or process_id
        if process_id != self._process_id:
            raise RequestFailed("the client is the parent process's; make another one after the fork")

    def check_loop(self) -> None:
        """Raise as `check`, and `RequestFailed` on another event loop than that of the first use.

        Answers arrive on that one: a task elsewhere would wait in vain.
        """
        self.check()
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if loop is not self._loop:
            raise RequestFailed("the client belongs to another event loop; make another one on this loop")

    def close(self, error: EngineError | None) -> None:
        """Close every connection. Requests that wait raise `error`, later ones too."""
        self.closed = self.closed or error or RequestUnanswered("the client is closed")
        for way in (*self._links.values(), *self._ways.values()):
            way.close()
        self._links.clear()

    def reach(self, address: Address, way: Way) -> None:
        """Ask the broker at `address` by `way` from now on, on this event loop."""
        self._loop = asyncio.get_running_loop()
        self._ways[address] = way

    async def ask(self, address: Address, body: RequestBody) -> ResponseBody:
        """Send a request of the engine once; with acks=0 return as soon as it is sent.

        Raises `RequestUnanswered`; `RequestRefused` if the broker serves no version that we know.
        """
        request = request_of(body)
        if isinstance(body, ProduceRequest) and body.acks == 0:
            version = await self._version(address, type(request))
            self._way(address, type(request)).ask(request, version, None)
            return ProduceResponse({each: ProduceResult(ErrorCode.NONE) for each in body.records})
        try:
            return response_of(await self.ask_wire(address, request))
        except MalformedMessage as error:
            raise RequestUnanswered(f"malformed response from {address}: {error}") from error

    async def ask_wire(self, address: Address, request: Struct) -> Struct:
        """Send a request of the wire once and return the response."""
        version = await self._version(address, type(request))
        return await self._exchange(address, self._way(address, type(request)), request, version)

    def _way(self, address: Address, kind: type[Struct]) -> Way:
        self.check_loop()
        if address in self._ways:
            return self._ways[address]
        # A connection for each kind of request: a fetch may wait long and would delay requests behind it.
        link = self._links.get((address, kind))
        if link is None:
            if not self._links:
                self._scratch = shared_scratch(asyncio.get_running_loop())
            link = Link(
                address,
                client_id=self._client_id,
                limits=self._limits,
                scratch=self._scratch,
                security=self.security,
            )
            self._links[address, kind] = link
        return link

    async def _version(self, address: Address, kind: type[Struct]) -> int:
        """Return the newest version of this request that both sides know."""
        if address in self._ways:
            return newest(kind)
        served = self._served.get(address)
        if served is None:
            # Every broker understands version 0 of ApiVersions; an unknown version would close the
            # connection.
            way = self._way(address, kind)
            answer = await self._exchange(address, way, t.ApiVersionsRequest(), 0)
            assert isinstance(answer, t.ApiVersionsResponse), "the link checks the type"
            served = {each.api_key: range(each.min_version, each.max_version + 1) for each in answer.api_keys}
            self._served[address] = served
        api = API_OF[kind]
        theirs = served.get(api.key, range(0))
        version = min(newest(kind), theirs.stop - 1)
        if version not in theirs or version not in api.served:
            raise RequestRefused(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {address} serves versions {theirs.start} to {theirs.stop - 1} of {api.name}; "
                f"this client knows {api.served[0]} to {newest(kind)}"
                if theirs
                else f"the broker at {address} does not serve {api.name}",
            )
        return version

    async def _exchange(self, address: Address, way: Way, request: Struct, version: int) -> Struct:
        waiting: asyncio.Future[Struct] = asyncio.get_running_loop().create_future()

        def answered(answer: Struct | RequestUnanswered) -> None:
            if isinstance(answer, RequestUnanswered):
                self._served.pop(address, None)  # it may come back as another version
                self.failures[address] = str(answer)
            else:
                self.failures.pop(address, None)
            if waiting.done():
                return
            if isinstance(answer, RequestUnanswered):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)

        way.ask(request, version, answered)
        return await waiting

"""A network between processes of this host that can be cut: a proxy in front of each port.

A process listens on its port, and is known to others by the port of a `gate`. A connection belongs to the
process that has opened it, by /proc (Linux), and to the one that it reaches. Its bytes are two flows, one
each way. Of a flow that is cut, no byte and no end of a connection arrives, and its sender does not notice. A
connection that is opened while a flow of it is cut seems to be open, and reaches nobody. When the network is
healed, what was held arrives late, as TCP would send it again, or the connections are reset.

`Network` works on a thread, `NetworkProcess` in a process of its own: among clients that keep Python busy a
thread would be slow.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar, cast

Party: TypeAlias = str
CLIENTS: Final[Party] = "clients"
"""Every process that is not named."""
_CHUNK: Final = 1 << 16
_SLOW_CHUNK: Final = 1 << 10
_DEADLINE_S: Final = 30.0

T = TypeVar("T")


class Flow(NamedTuple):
    """The bytes from one party to another."""

    source: Party
    target: Party


class _Connection:
    """A connection of a client to a gate, and the one from there to the port behind."""

    def __init__(self, asking: socket.socket, source: Party, target: Party) -> None:
        self.sockets = [asking]
        self.there, self.back = Flow(source, target), Flow(target, source)
        self.left = {self.there: 0, self.back: 0}
        """Bytes that pass after the flow is cut: the cut may be in the middle of a frame."""

    def reset(self) -> None:
        for each in self.sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()


class Network:
    """Gates and the connections through them. `pids` says which processes are parties now."""

    def __init__(self, pids: Callable[[], Mapping[Party, int]], seed: int = 0) -> None:
        self.carried: Counter[Flow] = Counter()
        """Bytes that passed."""
        self.opened: Counter[Flow] = Counter()
        """Connections, by who opened them to whom."""
        self._pids, self._random = pids, Random(seed)
        self._cut: set[Flow] = set()
        self._rates: dict[Flow, int] = {}
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def gate(self, party: Party, port: int) -> int:
        """Return a new port through which `port` of this party is reached."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        listener.setblocking(False)
        self._listeners.append(listener)
        found: int = listener.getsockname()[1]

        async def begin() -> None:
            self._tasks.add(asyncio.create_task(self._accept(listener, party, port)))

        self._do(begin())
        return found

    def cut(self, flows: Iterable[Flow], after: Sequence[int] = (0,)) -> None:
        """Cut these flows. Each connection that there is now carries one of these numbers of bytes more."""

        async def apply() -> None:
            self._cut |= {*flows}
            for connection in self._connections:
                connection.left = {flow: self._random.choice(after) for flow in connection.left}

        self._do(apply())

    def slow(self, flows: Iterable[Flow], bytes_per_s: int) -> None:
        """Let each connection carry that many bytes a second."""

        async def apply() -> None:
            self._rates |= dict.fromkeys(flows, bytes_per_s)

        self._do(apply())

    def connections(self) -> int:
        """Return how many connections have been opened so far."""
        return self.opened.total()

    def heal(self, *, is_reset: bool = False) -> None:
        """End all cuts. With `is_reset`, connections that were cut are reset, and what they held is lost."""

        async def apply() -> None:
            lost = [
                task
                for connection, task in self._connections.items()
                if is_reset and {connection.there, connection.back} & self._cut
            ]
            for task in lost:
                task.cancel()
            await asyncio.gather(*lost, return_exceptions=True)
            self._cut, self._rates = set(), {}
            self._changed.set()
            self._changed = asyncio.Event()

        self._do(apply())

    def close(self) -> None:
        """Reset all connections and close the gates."""

        self.heal()

        async def apply() -> None:
            tasks = [*self._tasks, *self._connections.values()]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._do(apply())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_DEADLINE_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_DEADLINE_S)

    # --- on the thread --------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket, party: Party, port: int) -> None:
        with listener:
            while True:
                asking, (_, asking_port) = await self._loop.sock_accept(listener)
                asking.setblocking(False)
                source = self._owner_of(asking_port, listener.getsockname()[1])
                self.opened[Flow(source, party)] += 1
                connection = _Connection(asking, source, party)
                task = asyncio.create_task(self._serve(connection, port))
                self._connections[connection] = task
                task.add_done_callback(partial(self._ended, connection))
                await asyncio.sleep(0)  # else nothing else runs while connections are waiting

    def _owner_of(self, port: int, peer: int) -> Party:
        inode = _inode_of(port, peer)
        pids = self._pids() if inode else {}
        return next((party for party, pid in pids.items() if _has_socket(pid, inode)), CLIENTS)

    async def _serve(self, connection: _Connection, port: int) -> None:
        try:
            await self._open(connection.there)
            await self._open(connection.back)
            reached = socket.socket()
            reached.setblocking(False)
            connection.sockets.append(reached)
            for each in connection.sockets:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(reached, ("127.0.0.1", port))
            asking = connection.sockets[0]
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(connection, connection.there, asking, reached))
                group.create_task(self._carry(connection, connection.back, reached, asking))
        except* OSError:
            pass  # one end has reset the connection, or refused it: so does the other

    def _ended(self, connection: _Connection, _: asyncio.Task[None]) -> None:
        del self._connections[connection]
        connection.reset()

    async def _carry(
        self, connection: _Connection, flow: Flow, source: socket.socket, sink: socket.socket
    ) -> None:
        try:
            while data := memoryview(await self._loop.sock_recv(source, _CHUNK)):
                while data:
                    size = await self._may_pass(connection, flow, len(data))
                    self.carried[flow] += size
                    await self._loop.sock_sendall(sink, data[:size])
                    data = data[size:]
        except OSError:  # a reset, which neither end hears of while a flow is cut
            await self._open(connection.there)
            await self._open(connection.back)
            raise
        await self._open(flow)
        sink.shutdown(socket.SHUT_WR)

    async def _may_pass(self, connection: _Connection, flow: Flow, wanted: int) -> int:
        """Wait until some of these bytes may arrive; return how many."""
        if flow in self._cut and connection.left[flow]:
            size = min(wanted, connection.left[flow])
            connection.left[flow] -= size
            return size
        await self._open(flow)
        if flow in self._rates:
            wanted = min(wanted, _SLOW_CHUNK)
            await asyncio.sleep(wanted / self._rates[flow])
        return wanted

    async def _open(self, flow: Flow) -> None:
        while flow in self._cut:
            await self._changed.wait()


def _inode_of(port: int, peer: int) -> int:
    """Return the inode of the socket that is connected from one port of this host to another, or 0."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if [int(each.rpartition(":")[2], 16) for each in words[1:3]] == [port, peer]:
            return int(words[9])
    return 0


def _has_socket(pid: int, inode: int) -> bool:
    name = f"socket:[{inode}]"
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(_link_of(each) == name for each in entries)
    except OSError:
        return False  # the process has ended


def _link_of(entry: os.DirEntry[str]) -> str:
    try:
        return os.readlink(entry.path)
    except OSError:
        return ""  # it was closed meanwhile


class NetworkProcess:
    """A `Network` in a process of its own, which ends with this one."""

    def __init__(self, pids: Callable[[], Mapping[Party, int]], seed: int = 0) -> None:
        """`pids` is a function of a module, or a `partial` of one."""
        context = get_context("spawn")
        self._way, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, pids, seed), daemon=True)
        self._process.start()
        far.close()

    def gate(self, party: Party, port: int) -> int:
        return cast(int, self._ask("gate", party, port))

    def cut(self, flows: Iterable[Flow], after: Sequence[int] = (0,)) -> None:
        self._ask("cut", [*flows], after)

    def slow(self, flows: Iterable[Flow], bytes_per_s: int) -> None:
        self._ask("slow", [*flows], bytes_per_s)

    def heal(self, *, is_reset: bool = False) -> None:
        self._ask("heal", is_reset=is_reset)

    def connections(self) -> int:
        return cast(int, self._ask("connections"))

    def close(self) -> None:
        self._way.close()
        self._process.join(_DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, name: str, *arguments: object, **options: object) -> object:
        self._way.send((name, arguments, options))
        return self._way.recv()


def _serve(way: Connection, pids: Callable[[], Mapping[Party, int]], seed: int) -> None:
    with Network(pids, seed) as network:
        while True:
            try:
                name, arguments, options = way.recv()
            except (EOFError, KeyboardInterrupt):
                return
            way.send(getattr(network, name)(*arguments, **options))

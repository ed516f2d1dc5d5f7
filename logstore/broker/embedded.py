"""A broker inside the program that uses it.

    with Broker(BrokerConfig(node_id=1, log_dirs=("data",))) as broker:     a thread and a loop of its own
        broker.append("orders", b"placed")

    async with Broker(config) as broker:                                    the caller's event loop
        await broker.append("orders", b"placed")

    Broker ──thread──▶ AsyncBroker (a Client) ──InProcess──▶ handlers ─▶ engine     what this broker leads
                              └────────────────links────────▶ other brokers         what others lead

Kafka's clients reach it at `bootstrap`, whatever loop it runs on. Nothing is global: a process may run any
number of brokers, of one cluster (they share a `SharedStore`, or ZooKeeper) or of several.

A broker that cannot go on is taken down at once, so that others take over, and says so: `BrokerFailed` at
every call from then on, at those that wait, and when its `with` block ends.

Threads do not survive a fork, and a broker is threads: after a fork the child has none, and its calls raise
`BrokerStopped`. Start brokers in the child, or start children by spawning.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from logstore.broker.blocking import BlockingCalls
from logstore.broker.broker import Assembly
from logstore.broker.client import Client
from logstore.broker.clock import SteadyClock
from logstore.broker.errors import BrokerFailed, BrokerStopped
from logstore.broker.in_process import InProcess
from logstore.broker.limits import Address, parse_address
from logstore.broker.loop import fastest_loop
from logstore.broker.metadata.local import SharedStore
from logstore.broker.metadata.opening import EMBEDDED, OpenStore, open_store, store_named, with_defaults
from logstore.broker.settings import read_settings
from logstore.disk.files import Disk, OsDisk, boot_id
from logstore.disk.memory import MemoryDisk

T = TypeVar("T")

_IN_MEMORY = "data"
_PULSE_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """What a broker is told. Without `log_dirs` its logs are in memory, and gone when it stops.

    `listen` is host:port, port 0 for any free one; `advertised` is where others find it, if not there.
    `metadata` is a `SharedStore` that brokers of this process have in common, or names a store: `embedded`
    (beside the first log dir, in memory without one), `embedded:DIRECTORY`,
    `zookeeper://host:port,…/chroot`. `settings` have Kafka's names, the broker's and its topics' defaults
    alike. `timeout_s` is for calls that do not say theirs, and for getting ready. `disk` is for tests: one
    that fails, or that outlives the broker.
    """

    node_id: int = 1
    """Broker id, unique in the cluster."""
    listen: str = "127.0.0.1:0"
    """Address to listen on, `host:port`; port 0 takes any free port."""
    advertised: str | None = None
    """Address given to clients and other brokers, if it differs from `listen`."""
    log_dirs: tuple[str, ...] = ()
    """Log directories. Without any, logs are kept in memory and lost when the broker stops."""
    metadata: str | SharedStore = EMBEDDED
    """Metadata store: `embedded`, `embedded:DIRECTORY`, `zookeeper://host:port,…/chroot`, or a `SharedStore`
    for several brokers of one process.
    """
    settings: Mapping[str, str] = field(default_factory=dict)
    """Broker properties under Kafka's names, including topic defaults."""
    timeout_s: float = 60.0
    """Default timeout of calls and of the start, in seconds."""
    disk: Disk | None = None
    """Disk implementation, for tests."""


class AsyncBroker(Client):
    """A broker on the running event loop, and a client that reaches the leaders of its cluster through it.

    Recovery, fsyncs and cold reads are done on threads; all else in turns of the loop, which should not be
    kept waiting: while it stands still nobody is served, and over ZooKeeper the session may run out.
    """

    def __init__(self, config: BrokerConfig | None = None) -> None:
        """It is not started yet. Raises `InvalidConfig` for bad settings, `ValueError` for a bad address."""
        self.config = config or BrokerConfig()
        self._listen = parse_address(self.config.listen)
        advertised = self.config.advertised
        self._advertised = parse_address(advertised) if advertised is not None else None
        settings, metadata = self.config.settings, self.config.metadata
        self._settings = read_settings(
            with_defaults(settings, metadata) if isinstance(metadata, str) else settings,
            node_id=self.config.node_id,
            host=self._listen.host,
            port=self._listen.port,
        )
        self._broker: Assembly | None = None
        self._resources = ExitStack()
        self._store: OpenStore | None = None
        self._watching: asyncio.Task[None] | None = None
        self.down = asyncio.Event()
        """Set once it has stopped, or failed."""
        super().__init__([], limits=self._settings.limits, timeout_s=self.config.timeout_s)

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the logs, listen, and join the cluster; `wait_until_ready` tells when that is done.

        Raises `EngineError` and `OSError` if that cannot be; nothing is left open then.
        """
        assert self._broker is None, "a broker is started once"
        config = self.config
        disk = config.disk or (OsDisk() if config.log_dirs else MemoryDisk())
        log_dirs = config.log_dirs or (_IN_MEMORY,)
        loop = asyncio.get_running_loop()
        try:
            self._store = await loop.run_in_executor(None, self._open_store, log_dirs[0], disk)
            self._broker = await Assembly.open(
                self._settings,
                self._listen,
                log_dirs,
                self._store.client,
                disk=disk,
                clock=SteadyClock(),
                random=Random(),
                advertised=self._advertised,
                boot_id=boot_id() if isinstance(disk, OsDisk) else "",
            )
        except BaseException:
            await self._let_go()
            raise
        address = self.address
        client_id = f"in-process-{self.node_id}"
        self._ways[address] = InProcess(self._broker.dispatch, address, client_id=client_id)
        self._addresses = {address: None}
        self._watching = loop.create_task(self._watch(self._broker))
        self._broker.start()

    def _open_store(self, first_log_dir: str, disk: Disk) -> OpenStore:
        named = self.config.metadata
        if isinstance(named, SharedStore):
            return named
        if named == EMBEDDED and not self.config.log_dirs:
            return self._resources.enter_context(open_store(disk=disk))
        return self._resources.enter_context(store_named(named, first_log_dir=first_log_dir, disk=disk))

    async def _let_go(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._resources.close)

    async def wait_until_ready(self, timeout: float | None = None) -> None:
        """Return when the cluster knows this broker, and has a controller.

        Raises `BrokerFailed`, `BrokerStopped`, and `TimeoutError`: it goes on trying then.
        """
        joined = asyncio.ensure_future(self._running.runtime.joined.wait())
        down = asyncio.ensure_future(self.down.wait())
        try:
            seconds = self.config.timeout_s if timeout is None else timeout
            await asyncio.wait((joined, down), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            joined.cancel()
            down.cancel()
        self.check()
        if not self.is_ready:
            raise TimeoutError(f"broker {self.node_id} is not ready after {seconds:g} s")

    async def stop(self, reason: str = "") -> None:
        """Stop in order: what it leads is moved, logs are closed with the mark of it, the session ends.

        Calls that wait raise `BrokerStopped`, with the reason. Raises `BrokerFailed` if it could not go on.
        Stopping again does nothing.
        """
        if self._broker is None or self._closed is not None:
            await self._until_down()
            return
        _log.info("broker %d stops%s", self.node_id, reason and f": {reason}")
        failure = self._failure_of_store()
        stopped = BrokerStopped(f"broker {self.node_id} was stopped{reason and f': {reason}'}")
        await self.close(failure or stopped)
        await self._end(in_order=failure is None)
        self.tell_at_exit(None)

    async def kill(self, reason: str = "") -> None:
        """End at once, as if its process had been killed: logs keep no mark, others take over.

        What was acknowledged by all in sync is with them. Calls that wait raise `BrokerStopped`.
        """
        if self._broker is None or self._closed is not None:
            await self._until_down()
            return
        await self.close(BrokerStopped(f"broker {self.node_id} was killed{reason and f': {reason}'}"))
        await self._end(in_order=False)

    async def _until_down(self) -> None:
        """Whoever came first is taking it down."""
        if self._broker is not None:
            await self.down.wait()

    async def _end(self, *, in_order: bool) -> None:
        broker = self._running
        if self._watching is not None:
            self._watching.cancel()
        try:
            if in_order:
                await broker.stop()
            if not in_order or broker.runtime.ended.done():
                if broker.runtime.ended.done():
                    self._closed = _failure(self.node_id, broker.runtime.ended)
                await broker.abandon()
        finally:
            await self._let_go()
            self.down.set()

    async def _watch(self, broker: Assembly) -> None:
        """Take the broker down when it cannot go on."""
        ended = broker.runtime.ended
        await asyncio.wait((ended,))
        failure = _failure(self.node_id, ended)
        _log.critical("%s", failure)
        self._watching = None
        await self.close(failure)
        await self._end(in_order=False)

    async def __aenter__(self) -> AsyncBroker:
        await self.start()
        try:
            await self.wait_until_ready()
        except BaseException:
            await self.kill("it did not get ready")
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        except BrokerFailed:
            pass  # told below, beside what went wrong before
        self.tell_at_exit(error)

    def tell_at_exit(self, error: BaseException | None) -> None:
        """Raise `BrokerFailed` if it could not go on; where `error` is under way, that has it as a note."""
        closed = self._closed
        if not isinstance(closed, BrokerFailed) or error is closed:
            return
        if error is None:
            raise closed
        error.add_note(str(closed))

    # --- what it is ---------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """Return the broker's node id."""
        return self.config.node_id

    @property
    def address(self) -> Address:
        """Where others look for it: where it listens, unless it advertises another one."""
        return self._advertised or self._running.address

    @property
    def bootstrap(self) -> str:
        """The address as Kafka's clients take it: host:port."""
        return str(self.address)

    @property
    def is_ready(self) -> bool:
        """Whether the cluster knows it, and it goes on."""
        return self._broker is not None and self._closed is None and self._broker.runtime.joined.is_set()

    def check(self) -> None:
        """Raise `BrokerFailed` or `BrokerStopped` if it does not run."""
        super().check()
        if (failure := self._failure_of_store()) is not None:
            raise failure
        if self._broker is None:
            raise _not_started(self.node_id)

    def _failure_of_store(self) -> BrokerFailed | None:
        if self._store is None or self._store.failure is None:
            return None
        failure = BrokerFailed(f"the metadata store of broker {self.node_id} failed: {self._store.failure}")
        failure.__cause__ = self._store.failure
        return failure

    @property
    def _running(self) -> Assembly:
        if self._broker is None:
            raise _not_started(self.node_id)
        return self._broker


def _not_started(node_id: int) -> BrokerStopped:
    return BrokerStopped(f"broker {node_id} has not been started")


def _failure(node_id: int, ended: asyncio.Future[str]) -> BrokerFailed:
    bug = ended.exception()
    failure = BrokerFailed(f"broker {node_id} cannot go on: {bug or ended.result()}")
    failure.__cause__ = bug
    return failure


class Broker(BlockingCalls):
    """A broker in a thread of its own. Any thread may call; calls wait.

    `with` starts it, waits until it is ready, and stops it in the end. `async with` runs it on the caller's
    event loop instead, and gives the `AsyncBroker` whose calls are awaited.
    """

    def __init__(self, config: BrokerConfig | None = None) -> None:
        """It is not started yet."""
        self.config = config or BrokerConfig()
        self._inner: AsyncBroker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process_id = -1

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the logs, listen, and join the cluster; `wait_until_ready` tells when that is done.

        Raises `InvalidConfig`, `ValueError` for `listen`, `EngineError` and `OSError`: nothing is left open.
        """
        assert self._inner is None, "a broker is started once"
        self._process_id = os.getpid()
        started: Future[AsyncBroker] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name=f"broker-{self.config.node_id}", daemon=True
        )
        self._thread.start()
        try:
            self._inner = started.result()
        except BaseException:
            self._thread.join()
            raise

    def _run(self, started: Future[AsyncBroker]) -> None:
        with asyncio.Runner(loop_factory=fastest_loop()) as runner:
            self._loop = runner.get_loop()
            runner.run(self._live(started))

    async def _live(self, started: Future[AsyncBroker]) -> None:
        try:
            inner = AsyncBroker(self.config)
            await inner.start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(inner)
        await inner.down.wait()

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """As `AsyncBroker.wait_until_ready`."""
        self._wait(self._client.wait_until_ready(timeout))

    def stop(self, reason: str = "") -> None:
        """Stop in order, and wait for that; as `AsyncBroker.stop`."""
        if (inner := self._inner) is not None:
            self._finish(inner.stop(reason))

    def kill(self, reason: str = "") -> None:
        """End at once, as if its process had been killed; as `AsyncBroker.kill`."""
        if (inner := self._inner) is not None:
            self._finish(inner.kill(reason))

    def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        thread = self._thread
        if thread is None or os.getpid() != self._process_id:
            work.close()  # it runs elsewhere, and is not ours to stop
            return
        try:
            if self._client.down.is_set():
                work.close()
            else:
                self._in_thread(work)
        except BrokerStopped:
            pass  # by another thread, at the same time
        finally:
            thread.join()

    def __enter__(self) -> Broker:
        self.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill("it did not get ready")
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except BrokerFailed:
            pass  # told below, beside what went wrong before
        if self._inner is not None:
            self._inner.tell_at_exit(error)

    async def __aenter__(self) -> AsyncBroker:
        assert self._inner is None, "a broker is started once"
        self._inner = AsyncBroker(self.config)
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    # --- calls --------------------------------------------------------------------------------

    @property
    def _client(self) -> AsyncBroker:
        if self._inner is None:
            raise _not_started(self.node_id)
        return self._inner

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._client.check()
            if self._thread is None:
                raise BrokerStopped("this broker runs on an event loop: await what `async with` gave")
            if os.getpid() != self._process_id:
                raise BrokerStopped("this process was forked from the broker's; start one of its own")
        except BaseException:
            work.close()
            raise
        return self._in_thread(work)

    def _in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None, "it was started"
        assert self._thread is not None, "it was started"
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the broker's own thread cannot wait for the broker")
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            self._client.check()
            raise
        try:
            while True:
                try:
                    return future.result(_PULSE_S)
                except TimeoutError:
                    if future.done():
                        raise
                    if not self._thread.is_alive():  # its loop ended, and will not come to this
                        self._client.check()
                        raise
                except CancelledError:  # its loop ended on the way
                    self._client.check()
                    raise
        except BaseException:
            future.cancel()
            raise

    # --- what it is ---------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """Return the broker's node id."""
        return self.config.node_id

    @property
    def address(self) -> Address:
        """Where others look for it: where it listens, unless it advertises another one."""
        return self._client.address

    @property
    def bootstrap(self) -> str:
        """The address as Kafka's clients take it: host:port."""
        return self._client.bootstrap

    @property
    def is_ready(self) -> bool:
        """Whether the cluster knows it, and it goes on."""
        return self._inner is not None and self._inner.is_ready

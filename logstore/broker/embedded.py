"""A broker inside the program that uses it.

    with Broker(BrokerConfig(node_id=1, log_dirs=("data",))) as broker:    a thread of its own (`threaded.py`)
        broker.append("orders", b"placed")

    async with Broker(config) as broker:                                    the caller's event loop
        await broker.append("orders", b"placed")

    Broker ──thread──▶ AsyncBroker (a Client) ──InProcess──▶ handlers ─▶ engine     what this broker leads
                              └────────────────links────────▶ other brokers         what others lead

Kafka's clients connect to `bootstrap`, on whichever loop the broker runs. There is no global state: a
process may run any number of brokers, of one cluster (they share a `SharedStore`, or ZooKeeper) or of
several.

A broker that fails is stopped at once, so that others take over. Every call from then on raises
`BrokerFailed`, as do calls that wait and the end of the `with` block.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import TracebackType

from logstore.arguments import as_bool, as_config, as_offset, as_seconds, as_str
from logstore.broker.async_topics import AsyncTopic
from logstore.broker.broker import Assembly
from logstore.broker.checked_calls import checked
from logstore.broker.client import Client
from logstore.broker.errors import BrokerFailed, BrokerStopped
from logstore.broker.in_process import InProcess
from logstore.broker.limits import Address, parse_address
from logstore.broker.metadata.local import SharedStore
from logstore.broker.metadata.opening import EMBEDDED, OpenStore, absolute, store_named, with_defaults
from logstore.broker.properties import settings_in_program
from logstore.broker.security.config import refuse_open
from logstore.broker.security.door import Door
from logstore.broker.settings import read_settings
from logstore.config import SettingValue
from logstore.disk.errors import EngineError
from logstore.disk.files import Disk, OsDisk, SteadyClock, as_disk, wall_clock_ms
from logstore.disk.memory import MemoryDisk
from logstore.disk.running import boot_id
from logstore.disk.topic_partition import TopicPartition
from logstore.log.log_dir_snapshot import LogDirSnapshot, snapshot_logs
from logstore.loggers import logger_of
from logstore.replication.durability import Durability
from logstore.replication.receipts import Receipt

_IN_MEMORY = "data"

_log = logger_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The configuration of an embedded broker. Without `log_dirs` its logs are in memory only.

    `listen` is host:port, with port 0 for any free one; `advertised` is the address for others, if it
    differs. `metadata` is a `SharedStore` for several brokers of this process, or names a store: `embedded`
    (beside the first log dir, in memory without one), `embedded:DIRECTORY`,
    `zookeeper://host:port,…/chroot`. `settings` have Kafka's names, for the broker and for defaults of
    topics. `timeout_s` is the default timeout of calls and of the start. `disk` is for tests: a disk that
    fails, or that outlives the broker.
    """

    node_id: int = 1
    """Broker id, unique in the cluster."""
    listen: str = "127.0.0.1:0"
    """Address to listen on, `host:port`; port 0 takes any free port."""
    insecure: bool = False
    """Listen beyond this host without TLS or a login: everyone on the network has full access then."""
    advertised: str | None = None
    """Address given to clients and other brokers, if it differs from `listen`."""
    log_dirs: tuple[str, ...] = ()
    """Log directories. Without any, logs are kept in memory and lost when the broker stops."""
    metadata: str | SharedStore = EMBEDDED
    """`embedded`, `embedded:DIRECTORY`, `zookeeper://host:port,…/chroot`, or a `SharedStore`."""
    settings: Mapping[str, SettingValue] = field(default_factory=dict, repr=False)
    """Broker properties under Kafka's names, including topic defaults; not those with a parameter here."""
    timeout_s: float = 60.0
    """Default timeout of calls and of the start, in seconds."""
    disk: Disk | None = None
    """Disk implementation, for tests."""
    boot_id: str = ""
    """Names the boot of the machine that `disk` belongs to, for tests; power cuts change it."""

    def __post_init__(self) -> None:
        """Raise `TypeError` for a value of the wrong type, such as a text in place of a bool.

        Raises `ValueError` for a log dir without a name, and for a timeout that is negative or no number.
        """
        if isinstance(self.node_id, bool):
            raise TypeError(f"node_id is an int, not bool ({self.node_id!r})")
        as_offset(self.node_id, "node_id")
        if not isinstance(self.metadata, str | SharedStore):
            raise TypeError(
                f"metadata is the name of a store or a SharedStore, not {type(self.metadata).__name__} "
                f"({self.metadata!r:.100})"
            )
        as_seconds(self.timeout_s, "timeout_s")
        as_bool(self.insecure, "insecure")
        as_str(self.listen, "listen")
        as_str(self.boot_id, "boot_id")
        if self.advertised is not None:
            as_str(self.advertised, "advertised")
        if not isinstance(self.log_dirs, tuple | list):
            raise TypeError(f"log_dirs is a tuple of directories; write ({self.log_dirs!r},) for one")
        if not all(self.log_dirs):
            raise ValueError(f"log_dirs is {self.log_dirs!r}; a directory has a name")


class AsyncBroker(Client):
    """A broker on the running event loop, and a client of its cluster.

    Recovery, fsyncs and cold reads run on threads, everything else on the loop. Do not block the loop:
    while it is blocked no request is served, and a ZooKeeper session may expire.
    """

    def __init__(self, config: BrokerConfig | None = None) -> None:
        """Check the configuration. Raises `InvalidConfig`, and `ValueError` for a bad address."""
        self.config = as_config(config, BrokerConfig)
        self._listen = parse_address(self.config.listen)
        advertised = self.config.advertised
        self._advertised = parse_address(advertised) if advertised is not None else None
        settings, metadata = settings_in_program(self.config.settings), self.config.metadata
        self._settings = read_settings(
            with_defaults(settings, metadata) if isinstance(metadata, str) else settings,
            node_id=self.config.node_id,
            host=self._listen.host,
            port=self._listen.port,
        )
        if not self.config.insecure:
            refuse_open(self._settings.security, self._listen)
        self._log_dirs, self._metadata = self.config.log_dirs, metadata
        if isinstance(as_disk(self.config.disk), OsDisk):
            # The working directory may change while the broker runs.
            self._log_dirs = tuple(map(os.path.abspath, self._log_dirs))
            self._metadata = metadata if isinstance(metadata, SharedStore) else absolute(metadata)
        self._broker: Assembly | None = None
        self._resources = ExitStack()
        self._store: OpenStore | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.down = asyncio.Event()
        """Set once the broker has stopped or failed."""
        super().__init__([], limits=self._settings.limits, timeout_s=self.config.timeout_s)

    def __repr__(self) -> str:
        state = "not started" if self._broker is None else "down" if self.down.is_set() else self.bootstrap
        return f"AsyncBroker({self.node_id}, {state})"

    # --- starting and stopping --------------------------------------------------------------------

    async def start(self) -> None:
        """Open the logs, listen, and begin to join the cluster; see `wait_until_ready`.

        Raises `EngineError` and `OSError` if that fails; everything is closed again then. `RuntimeError` for
        a broker that was started before.
        """
        if self._broker is not None:
            raise started_already(self.node_id)
        config = self.config
        disk = config.disk or (OsDisk() if config.log_dirs else MemoryDisk())
        log_dirs = self._log_dirs or (_IN_MEMORY,)
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, self._open_store, disk)
        try:
            self._store = await asyncio.shield(opening)
            self._broker = await Assembly.open(
                self._settings,
                self._listen,
                log_dirs,
                self._store.client,
                disk=disk,
                clock=SteadyClock(),
                random=Random(),
                advertised=self._advertised,
                boot_id=boot_id() if isinstance(disk, OsDisk) else config.boot_id,
            )
        except BaseException:
            await asyncio.gather(opening, return_exceptions=True)  # a thread cannot be cancelled
            await self._let_go()
            raise
        address, security = self.address, self._broker.runtime.peers.security
        door = Door(security.listener) if security.listener else None
        client_id = f"in-process-{self.node_id}"
        way = InProcess(self._broker.dispatch, address, client_id=client_id, door=door)
        self._connections.security = security
        self._connections.reach(address, way)
        self._cluster.begin_at(address)
        self._watching = loop.create_task(self._watch(self._broker))
        self._broker.start()

    def _open_store(self, disk: Disk) -> OpenStore:
        named = self._metadata
        if isinstance(named, SharedStore):
            return named
        first = self._log_dirs[0] if self._log_dirs else None
        opened = store_named(named, first_log_dir=first, disk=disk, security=self._settings.store)
        return self._resources.enter_context(opened)

    async def _let_go(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._resources.close)

    @checked
    async def wait_until_ready(self, timeout: float | None = None) -> None:
        """Wait until the broker is registered, the cluster has a controller, and all topics are known.

        Raises `BrokerFailed`, `BrokerStopped`, and `TimeoutError`; the broker keeps trying after a timeout.
        """
        ready = asyncio.ensure_future(self._running.ready.wait())
        down = asyncio.ensure_future(self.down.wait())
        try:
            seconds = as_seconds(self.config.timeout_s if timeout is None else timeout, "timeout")
            await asyncio.wait((ready, down), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            down.cancel()
        self.check()
        if not self.is_ready:
            raise TimeoutError(f"broker {self.node_id} is not ready after {seconds:g} s")

    async def stop(self, reason: str = "") -> None:
        """Shut down: move leadership away, close the logs cleanly, end the session.

        Calls that wait raise `BrokerStopped` with the reason. Raises `BrokerFailed` if the broker had failed.
        Does nothing on a stopped broker. Cancelled, it ends without moving leadership; another call waits for
        the end.
        """
        if self._broker is None or self._ending is not None or self._connections.closed is not None:
            await self._until_down()
            return
        _log.info("broker %d stops%s", self.node_id, reason and f": {reason}")
        failure = self._failure_of_store()
        stopped = BrokerStopped(f"broker {self.node_id} was stopped{reason and f': {reason}'}")
        await self._shut_down(failure or stopped, in_order=failure is None)
        self.tell_at_exit(None)

    async def kill(self, reason: str = "") -> None:
        """Stop at once, as if the process had been killed: no clean-shutdown marker, and others take over.

        Records acknowledged with acks=all are on the other in-sync replicas. Calls that wait raise
        `BrokerStopped`.
        """
        if self._broker is None or self._ending is not None or self._connections.closed is not None:
            await self._until_down()
            return
        killed = BrokerStopped(f"broker {self.node_id} was killed{reason and f': {reason}'}")
        await self._shut_down(killed, in_order=False)

    async def _until_down(self) -> None:
        """Wait for another call that is stopping the broker."""
        if self._broker is not None:
            await self.down.wait()

    async def _shut_down(self, why: EngineError, *, in_order: bool) -> None:
        """End the calls that wait, and the broker, even if the caller is cancelled.

        Half a shutdown would keep the log dirs locked for the rest of the process.
        """

        async def end() -> None:
            await self.close(why)
            await self._end(in_order=in_order)

        self._ending = asyncio.create_task(end())
        try:
            await asyncio.shield(self._ending)
        except asyncio.CancelledError:
            self._running.runtime.hurry()
            raise

    async def _end(self, *, in_order: bool) -> None:
        broker = self._running
        if self._watching is not None:
            self._watching.cancel()
        try:
            if in_order:
                await broker.stop()
            if not in_order or broker.runtime.ended.done():
                if broker.runtime.ended.done():
                    self._connections.closed = _failure(self.node_id, broker.runtime.ended)
                await broker.abandon()
        finally:
            try:
                await self._let_go()
            finally:
                self.down.set()

    async def fail(self, error: BaseException) -> None:
        """Stop as a broker with a bug, and wait for the end."""
        self._running.runtime.fail(error)
        await self.down.wait()

    async def _watch(self, broker: Assembly) -> None:
        """Stop the broker when its engine fails."""
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
            await self.kill("it did not become ready")
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        except BrokerFailed:
            pass  # raised below, together with an earlier error
        self.tell_at_exit(error)

    def tell_at_exit(self, error: BaseException | None) -> None:
        """Raise `BrokerFailed` if the broker failed; add it as a note to `error`, if there is one."""
        closed = self._connections.closed
        if not isinstance(closed, BrokerFailed) or error is closed:
            return
        if error is None:
            raise closed
        error.add_note(str(closed))

    def topic(self, name: str) -> AsyncTopic:
        """Return the topic of this name, whose partitions are read in the words of an `AsyncLog`."""
        return AsyncTopic(self, name)

    # --- receipts -----------------------------------------------------------------------------------

    @checked
    async def durability(
        self, topic: str, partition: int, offset: int, *, timeout: float | None = None
    ) -> Receipt:
        """Return the receipt of the record at `offset` now, if this broker leads the partition.

        Raises `NotLeaderOrFollower`, `UnknownTopicOrPartition`, and `OffsetOutOfRange` for a record that is
        deleted or not written yet.
        """
        self._connections.check_loop()
        return self._running.services.receipts.of(TopicPartition(topic, partition), offset)

    @checked
    async def wait_for(
        self,
        topic: str,
        partition: int,
        offset: int,
        level: Durability = Durability.REPLICATED,
        *,
        copies: int = 1,
        timeout: float | None = None,
    ) -> Receipt:
        """Return the receipt of a record once it is committed and on `copies` replicas, synced for SYNCED.

        Raises as `durability`; `ValueError` for what this topic's level cannot prove; `TimeoutError`, and
        the record may get there later; `BrokerStopped`.
        """
        self._connections.check_loop()
        seconds = as_seconds(self.config.timeout_s if timeout is None else timeout, "timeout")
        topic_partition = TopicPartition(topic, partition)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await self._running.services.receipts.wait_for(topic_partition, offset, level, copies)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"{topic_partition}: durability of offset {offset} not confirmed after {seconds:g} s"
            ) from error

    async def close(self, why: EngineError | None = None) -> None:
        """End the calls that wait; see `Client.close`."""
        if self._broker is not None:
            self._broker.services.receipts.fail(why or BrokerStopped(f"broker {self.node_id} was stopped"))
        await super().close(why)

    # --- snapshots ----------------------------------------------------------------------------------

    @checked
    async def snapshot(self, path: str | os.PathLike[str]) -> LogDirSnapshot:
        """Put this broker's logs, each up to its high watermark, into the new log dir `path`.

        A broker with the same id starts from it. An embedded metadata store is copied beside it, to
        `<path>.metadata`. The broker keeps serving. Raises `ValueError` for logs in memory and for
        several log dirs, `FileExistsError`, `DamagedLog`, `LogDirOffline`, `DiskFull`, `OSError`.
        """
        if not self.config.log_dirs:
            raise ValueError("this broker keeps its logs in memory: there is nothing to link")
        running, (kind, _, directory) = self._running, str(self._metadata).partition(":")
        return await asyncio.get_running_loop().run_in_executor(
            None,
            partial(
                snapshot_logs,
                running.runtime.node.logs,
                as_disk(self.config.disk),
                os.fspath(path),
                clock=wall_clock_ms,
                metadata=directory if kind == EMBEDDED and directory else None,
            ),
        )

    # --- facts ------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """Return the broker's node id."""
        return self.config.node_id

    @property
    def address(self) -> Address:
        """The address for brokers, mostly for clients too: the advertised one, else the one it listens on."""
        return self._advertised or self._running.address

    @property
    def bootstrap(self) -> str:
        """The `bootstrap.servers` of Kafka's clients: host:port, of the first listener that clients have."""
        return str(self._running.client_address if self._advertised is None else self._advertised)

    @property
    def listeners(self) -> dict[str, Address]:
        """The addresses of the named listeners; empty for a single plain one."""
        endpoints = self._running.runtime.node.config.endpoints
        return {each.listener: Address(each.host, each.port) for each in endpoints}

    @property
    def is_ready(self) -> bool:
        """Whether the broker is registered, running, and knows all topics."""
        broker = self._broker
        return broker is not None and self._connections.closed is None and broker.ready.is_set()

    def check(self) -> None:
        """Raise `BrokerFailed` or `BrokerStopped` if the broker is not running."""
        super().check()
        if (failure := self._failure_of_store()) is not None:
            raise failure
        if self._broker is None:
            raise not_started(self.node_id)

    def _failure_of_store(self) -> BrokerFailed | None:
        if self._store is None or self._store.failure is None:
            return None
        failure = BrokerFailed(f"the metadata store of broker {self.node_id} failed: {self._store.failure}")
        failure.__cause__ = self._store.failure
        return failure

    @property
    def _running(self) -> Assembly:
        if self._broker is None:
            raise not_started(self.node_id)
        return self._broker


def started_already(node_id: int) -> RuntimeError:
    return RuntimeError(f"broker {node_id} was started before; make another one with its config")


def not_started(node_id: int) -> BrokerStopped:
    return BrokerStopped(f"broker {node_id} has not been started")


def _failure(node_id: int, ended: asyncio.Future[str]) -> BrokerFailed:
    bug = ended.exception()
    failure = BrokerFailed(f"broker {node_id} failed: {bug or ended.result()}")
    failure.__cause__ = bug
    return failure

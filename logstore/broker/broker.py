"""One broker, assembled: its server, its logs, its node, and its handlers' services.

`process.py` runs one in a process of its own, `embedded.py` inside a program.

    Server ─frames─▶ Dispatch ─▶ handlers ─▶ Services ─▶ Runtime ─▶ Node ─▶ logs
                                                            └─ peers, the store's client

The server listens before the broker is registered, because it registers its actual port. Clients that connect
before the start are disconnected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from logstore.broker.connection import Connection
from logstore.broker.dispatch import Dispatch, Services
from logstore.broker.handlers import HANDLERS
from logstore.broker.identity import claim_log_dirs, find_cluster_id
from logstore.broker.limits import Address
from logstore.broker.pauses import Pauses
from logstore.broker.runtime import Runtime, StoreClient
from logstore.broker.scrubbing import Scrubbing
from logstore.broker.server import Server
from logstore.broker.settings import Settings
from logstore.broker.store_session import StoreSession
from logstore.broker.threads import run_all
from logstore.disk.files import Disk, make_durable_dir
from logstore.errors import LogDirOffline
from logstore.log.manager import DirectoryProgress, LogManager
from logstore.replication.effects import StoreEvent
from logstore.replication.node import Node
from logstore.replication.state_change import Sink, unheard

_log = logging.getLogger(__name__)


class Assembly:
    """One broker. Create it with `open`, then `start` it; in the end `stop` it, or `abandon` it if it
    failed."""

    def __init__(
        self,
        address: Address,
        server: Server,
        runtime: Runtime,
        services: Services,
        store: StoreSession,
        disk: Disk,
    ) -> None:
        self.address, self.server, self.runtime, self.services = address, server, runtime, services
        self._store = store
        broker = services.settings.broker
        self.scrubbing = Scrubbing(
            runtime,
            disk,
            interval_ms=broker.log_scrub_interval_ms,
            bytes_per_second=broker.log_scrub_io_max_bytes_per_second,
        )
        self.dispatch = server.on_frame = Dispatch(services, HANDLERS)

    @classmethod
    async def open(
        cls,
        settings: Settings,
        listen: Address,
        log_dirs: Sequence[str],
        store_of: Callable[[Callable[[StoreEvent], None]], StoreClient],
        *,
        disk: Disk,
        clock: Callable[[], int],
        random: Random,
        state_changes: Sink = unheard,
        advertised: Address | None = None,
        progress: DirectoryProgress | None = None,
        boot_id: str = "",
    ) -> Assembly:
        """Check the owner of the log dirs, open the logs, and listen. `clock` gives epoch milliseconds.

        `store_of` as for `Runtime`; `advertised` is the address for others, if it is not `listen`; `progress`
        is called from another thread while logs are opened; `boot_id` as for `LogManager`. Raises
        `EngineError` and `OSError`; nothing is left open then.
        """
        _check_usable(log_dirs, disk)
        node_id = settings.node.node_id
        store = StoreSession(store_of, session_timeout_ms=settings.node.zookeeper_session_timeout_ms)
        server = Server(_not_yet, settings.limits)
        logs: LogManager | None = None
        try:
            cluster_id = await find_cluster_id(store.ask, random)
            for failed in claim_log_dirs(
                log_dirs, disk=disk, broker_id=node_id, cluster_id=cluster_id, random=random
            ):
                _log.error("log dir %s is offline: it cannot be read or written", failed)
            logs = await asyncio.get_running_loop().run_in_executor(
                None,
                partial(
                    LogManager,
                    log_dirs,
                    disk=disk,
                    clock=clock,
                    random=random,
                    settings=settings.logs,
                    progress=progress,
                    boot_id=boot_id,
                    run_all=run_all,
                ),
            )
            address = await server.listen(listen)
            known = advertised or address
            node = Node(
                replace(settings.node, host=known.host, port=known.port),
                logs,
                random=random,
                log_config=settings.logs.topic_defaults,
                state_changes=state_changes,
            )
            runtime = Runtime(
                node,
                clock=clock,
                store_of=store_of,
                server=server,
                limits=settings.limits,
                pauses=Pauses(settings.broker.event_loop_pause_warn_ms / 1000),
            )
        except BaseException:
            server.close()
            if logs is not None:
                logs.abandon()
            await store.close()
            raise
        services = Services(runtime, settings, cluster_id=cluster_id, store=store, random=random)
        runtime.after_change = services.after_change
        return cls(address, server, runtime, services, store, disk)

    def start(self) -> None:
        """Join the cluster; `runtime.registered` is set when that is done."""
        self.runtime.start()
        self.scrubbing.start()

    async def stop(self) -> None:
        """Stop in order, as `Runtime.stop`."""
        await self.scrubbing.stop()
        await self.runtime.stop()
        self.services.close()
        if not self.runtime.ended.done():
            await self._store.close()

    async def abandon(self) -> None:
        """Stop at once, as `Runtime.abandon`."""
        self.runtime.halt()
        await self.scrubbing.stop()
        self.services.close()
        await self.runtime.abandon()
        await self._store.close()


def _check_usable(log_dirs: Sequence[str], disk: Disk) -> None:
    """Raise `LogDirOffline` if every log dir fails: then the store need not be asked."""
    reasons = []
    for directory in log_dirs:
        try:
            make_durable_dir(disk, directory)
        except OSError as error:
            reasons.append(f"{directory}: {error}")
    if len(reasons) == len(log_dirs):
        raise LogDirOffline(f"no usable log dir: {'; '.join(reasons)}")


def _not_yet(connection: Connection, frame: memoryview) -> None:
    connection.refuse("this broker is still starting")

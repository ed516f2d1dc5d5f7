"""One broker, put together: its server, its logs, its node, and what its handlers share.

`process.py` runs one in a process, `embedded.py` inside a program.

    Server ─frames─▶ Dispatch ─▶ handlers ─▶ Services ─▶ Runtime ─▶ Node ─▶ logs
                                                            └─ links to other brokers, the store's client

It listens first, since what it registers is where it listens; whoever asks before it has started is cut off.
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
from logstore.broker.runtime import Runtime, StoreClient
from logstore.broker.server import Server
from logstore.broker.settings import Settings
from logstore.broker.store_session import StoreSession
from logstore.disk.files import Disk, make_durable_dir
from logstore.errors import LogDirOffline
from logstore.log.manager import DirectoryProgress, LogManager
from logstore.replication.effects import StoreEvent
from logstore.replication.node import Node
from logstore.replication.state_change import Sink, unheard

_log = logging.getLogger(__name__)


class Assembly:
    """Made by `open`; then `start` it, and in the end `stop` it, or `abandon` it if `runtime.ended`."""

    def __init__(
        self, address: Address, server: Server, runtime: Runtime, services: Services, store: StoreSession
    ) -> None:
        self.address, self.server, self.runtime, self.services = address, server, runtime, services
        self._store = store
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
        """Check whose the log dirs are, open the logs, and listen. `clock` gives epoch milliseconds.

        `store_of` as for `Runtime`; `advertised` is where others find it, if not where it listens;
        `progress` is called from another thread while logs are opened; `boot_id` as for `LogManager`.
        Raises `EngineError` and `OSError`; nothing is left open then.
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
                _log.error("log dir %s cannot be read or written", failed)
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
            runtime = Runtime(node, clock=clock, store_of=store_of, server=server, limits=settings.limits)
        except BaseException:
            server.close()
            if logs is not None:
                logs.abandon()
            await store.close()
            raise
        services = Services(runtime, settings, cluster_id=cluster_id, store=store, random=random)
        runtime.after_turn = services.groups.after_turn
        return cls(address, server, runtime, services, store)

    def start(self) -> None:
        """Join the cluster; `runtime.registered` says when that is done."""
        self.runtime.start()

    async def stop(self) -> None:
        """End in order, as `Runtime.stop`."""
        await self.runtime.stop()
        self.services.groups.close()
        if not self.runtime.ended.done():
            await self._store.close()

    async def abandon(self) -> None:
        """End at once, as `Runtime.abandon`."""
        self.services.groups.close()
        await self.runtime.abandon()
        await self._store.close()


def _check_usable(log_dirs: Sequence[str], disk: Disk) -> None:
    """Raise `LogDirOffline` if no log dir can be had: then there is no need to ask the store for anything."""
    reasons = []
    for directory in log_dirs:
        try:
            make_durable_dir(disk, directory)
        except OSError as error:
            reasons.append(f"{directory}: {error}")
    if len(reasons) == len(log_dirs):
        raise LogDirOffline(f"no log dir can be used: {'; '.join(reasons)}")


def _not_yet(connection: Connection, frame: memoryview) -> None:
    connection.refuse("this broker has not started yet")

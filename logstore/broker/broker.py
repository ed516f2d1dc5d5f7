"""One broker, assembled: its server, its logs, its node, and its handlers' services.

`process.py` runs one in a process of its own, `embedded.py` inside a program.

    Server ─frames─▶ Dispatch ─▶ handlers ─▶ Services ─▶ Runtime ─▶ Node ─▶ logs
                                                            └─ peers, the store's client

The server listens before the broker is registered, because it registers its actual port. Clients that connect
before the start are disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from logstore.broker.config_nodes import read_live
from logstore.broker.configs import live_defaults
from logstore.broker.connection import Connection
from logstore.broker.dispatch import Dispatch, Services
from logstore.broker.fewer_log_dirs import replicas_without_log
from logstore.broker.handlers import HANDLERS
from logstore.broker.identity import AskStore, LogDirMissing, claim_log_dirs, find_cluster_id
from logstore.broker.limits import Address
from logstore.broker.pauses import Pauses
from logstore.broker.readiness import until_topics_known
from logstore.broker.runtime import Runtime
from logstore.broker.scrubbing import Pace, Scrubbing
from logstore.broker.security.audit import ACCESS_SUFFIX, Audit, AuditFile
from logstore.broker.security.authorizer import Authorizer
from logstore.broker.security.client import NO_SECURITY, inter_broker_security
from logstore.broker.security.delegation_store import DelegationTokens
from logstore.broker.security.door import Door
from logstore.broker.security.limiter import Limiter
from logstore.broker.security.login import sasl_door
from logstore.broker.security.principals import parse_rules
from logstore.broker.security.quota_store import Followed
from logstore.broker.security.tls import Renewed
from logstore.broker.server import Server
from logstore.broker.settings import ServiceConfig, Settings
from logstore.broker.since import Since
from logstore.broker.store_reads import read
from logstore.broker.store_session import StoreOf, StoreSession
from logstore.broker.threads import run_all
from logstore.disk.files import Disk, make_durable_dir
from logstore.errors import InvalidConfig, LogDirOffline
from logstore.log.manager import DirectoryProgress, LogManager
from logstore.log.manager_config import LogManagerConfig
from logstore.loggers import logger_of
from logstore.replication.messages import Endpoint
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Get
from logstore.replication.node import Node
from logstore.replication.opening_configs import config_reads, configs_in
from logstore.replication.rates import Windows
from logstore.replication.state_change import Sink, StateChange, unheard

_log = logger_of(__name__)


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
        """`address` is the one of the listener for brokers."""
        self.address, self.server, self.runtime, self.services = address, server, runtime, services
        self._store = store
        self.ready = asyncio.Event()
        """Set once the broker has joined the cluster and knows all its topics."""
        self._getting_ready: asyncio.Task[None] | None = None
        broker = services.settings.broker
        self.scrubbing = Scrubbing(
            runtime,
            disk,
            interval_ms=broker.log_scrub_interval_ms,
            pace=Pace(broker.log_scrub_io_max_bytes_per_second, broker.log_scrub_max_busy_percent),
        )
        self.dispatch = server.on_frame = Dispatch(services, HANDLERS)

    @classmethod
    async def open(
        cls,
        settings: Settings,
        listen: Address,
        log_dirs: Sequence[str],
        store_of: StoreOf,
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

        Named listeners of the settings take the place of `listen` and `advertised`, the address for others if
        it is not `listen`. `store_of` as for `Runtime`; `progress`
        is called from another thread while logs are opened; `boot_id` as for `LogManager`. Raises
        `EngineError` and `OSError`; nothing is left open then. Cancelled, it ends once logs that are being
        opened are open, and closes them in order.
        """
        _check_usable(log_dirs, disk)
        node_id = settings.node.node_id
        audit = _open_audit(settings.broker)
        store = StoreSession(store_of, session_timeout_ms=settings.node.zookeeper_session_timeout_ms)
        server = Server(_not_yet, settings.limits, audit)
        speaking, endpoints = NO_SECURITY, tuple[Endpoint, ...]()
        if settings.security is not None:
            speaking = inter_broker_security(settings.security)
        logs: LogManager | None = None
        tokens: DelegationTokens | None = None
        authorizer: Authorizer | None = None
        quotas: Followed | None = None
        try:
            cluster_id = await _claim(store.ask, node_id, log_dirs, disk, random)
            manager = partial(
                LogManager,
                log_dirs,
                disk=disk,
                clock=clock,
                random=random,
                progress=progress,
                boot_id=boot_id,
                run_all=run_all,
            )
            logs = await _open_logs(manager, settings, store.ask, config_reads(disk, log_dirs))
            if settings.security is None:
                address = await server.listen(listen)
                known = advertised or address
            else:
                tokens = DelegationTokens(settings.security.tokens, store.ask, clock, audit)
                endpoints = await _open_doors(server, settings, store.ask, tokens)
                address = known = Address(endpoints[0].host, endpoints[0].port)
            since = Since()
            node = Node(
                replace(settings.node, host=known.host, port=known.port, endpoints=endpoints),
                logs,
                random=random,
                log_config=settings.logs.topic_defaults,
                state_changes=partial(_heard, since, state_changes),
            )
            if settings.security is not None and settings.security.rules is not None:
                authorizer = Authorizer(
                    settings.security.rules,
                    store,
                    node.replicas.metadata,
                    audit,
                    clock,
                    creates_topics=settings.broker.auto_create_topics_enable,
                )
                await authorizer.open()
            quotas = _follow_quotas(settings, store, clock, node)
            quotas.limiter.authorizer = authorizer
            server.by_address = quotas.limiter.connections
            await quotas.open()
            runtime = Runtime(
                node,
                clock=clock,
                store_of=store_of,
                server=server,
                limits=settings.limits,
                pauses=Pauses(settings.broker.event_loop_pause_warn_ms / 1000),
                security=speaking,
            )
        except BaseException as error:
            if authorizer is not None:
                authorizer.close()
            if quotas is not None:
                quotas.close()
            server.close()
            audit.close()
            if logs is not None and isinstance(error, asyncio.CancelledError):
                _close_unserved(logs)
            elif logs is not None:
                logs.abandon()
            await store.close()
            raise
        services = Services(
            runtime, settings, cluster_id=cluster_id, store=store, quotas=quotas, audit=audit, random=random
        )
        runtime.after_change = services.after_change
        services.since, services.tokens = since, tokens
        if tokens is not None and tokens.are_on:
            services.go(tokens.keep_removing(lambda: runtime.node.controller.is_active))
        if authorizer is not None:
            services.authorizer = authorizer
        return cls(address, server, runtime, services, store, disk)

    @property
    def client_address(self) -> Address:
        """The address of the first listener for clients; the only one's is for brokers, too."""
        control = self.runtime.peers.security.control_plane
        others = self.runtime.node.config.endpoints[1:]
        of_clients = [each for each in others if control is None or each.listener != control.listener]
        return Address(of_clients[0].host, of_clients[0].port) if of_clients else self.address

    def start(self) -> None:
        """Join the cluster; `ready` is set when that is done."""
        self.runtime.start()
        self._getting_ready = asyncio.get_running_loop().create_task(self._get_ready())
        self.scrubbing.start()

    async def _get_ready(self) -> None:
        await self.runtime.joined.wait()
        await until_topics_known(self.runtime, self._store)
        self.ready.set()

    async def stop(self) -> None:
        """Stop in order, as `Runtime.stop`."""
        self._give_up_getting_ready()
        await self.scrubbing.stop()
        await self.runtime.stop()
        self.services.close()
        if not self.runtime.ended.done():
            await self._store.close()

    def _give_up_getting_ready(self) -> None:
        if self._getting_ready is not None:
            self._getting_ready.cancel()

    async def abandon(self) -> None:
        """Stop at once, as `Runtime.abandon`."""
        self.runtime.halt()
        self._give_up_getting_ready()
        await self.scrubbing.stop()
        self.services.close()
        await self.runtime.abandon()
        await self._store.close()


def _open_audit(settings: ServiceConfig) -> Audit:
    """Return the audit log of a broker. Raises `OSError` if its files cannot be opened."""
    path, bounds = settings.audit_log_path, (settings.audit_log_max_bytes, settings.audit_log_files)
    if not path:
        return Audit()
    return Audit(AuditFile(path, *bounds), access=AuditFile(f"{path}{ACCESS_SUFFIX}", *bounds))


def _follow_quotas(settings: Settings, store: StoreSession, clock: Callable[[], int], node: Node) -> Followed:
    broker = settings.broker
    limiter = Limiter(
        clock,
        node.replicas.metadata,
        Windows(broker.quota_window_num, 1000 * broker.quota_window_size_seconds),
        Windows(broker.controller_quota_window_num, 1000 * broker.controller_quota_window_size_seconds),
        settings.node.controller.num_partitions,
        take_back=node.replicas.waiting.sessions.take_back,
    )
    return Followed(store, clock, limiter, node, settings.logs)


async def _claim(ask: AskStore, node_id: int, log_dirs: Sequence[str], disk: Disk, random: Random) -> str:
    """Make the log dirs this broker's, and return the cluster's id. Raises `LogDirMissing`."""
    cluster_id = await find_cluster_id(ask, random)
    claim = partial(
        claim_log_dirs, log_dirs, disk=disk, broker_id=node_id, cluster_id=cluster_id, random=random
    )
    try:
        offline = claim()
    except LogDirMissing as error:
        if lacking := await replicas_without_log(ask, node_id, log_dirs, disk=disk):
            raise error.for_want_of(lacking) from error
        _log.warning("this broker starts on fewer log dirs than before: they have all its replicas")
        offline = claim(may_be_fewer=True)
    for failed in offline:
        _log.error("log dir %s is offline: it cannot be read or written", failed)
    return cluster_id


async def _open_logs(
    manager: Callable[..., LogManager], settings: Settings, ask: AskStore, reads: Mapping[str, Get]
) -> LogManager:
    """Open the logs, in a thread, with the settings that `reads` find. Cancelled, close them in order."""
    live = await _live_logs(settings.logs, ask, settings.node.node_id)
    found = await asyncio.gather(*(read(ask, each, "settings") for each in reads.values()))
    configs = configs_in(dict(zip(reads, found, strict=True)), live.topic_defaults)
    loading = asyncio.get_running_loop().run_in_executor(
        None, partial(manager, configs=configs, settings=live)
    )
    try:
        return await asyncio.shield(loading)
    except asyncio.CancelledError:
        logs = await loading  # a thread cannot be cancelled
        _close_unserved(logs)
        raise


def _close_unserved(logs: LogManager) -> None:
    """Close in order, as `Node.is_clean` has it: the controller knows nothing of this start yet."""
    logs.close(mark_clean=logs.was_clean)


async def _live_logs(settings: LogManagerConfig, ask: AskStore, node_id: int) -> LogManagerConfig:
    """Return the settings with those changed while brokers ran; without these if they are invalid."""
    try:
        return replace(settings, topic_defaults=live_defaults(settings, await read_live(ask, node_id)))
    except (CorruptMetadata, InvalidConfig) as error:
        _log.error("settings that were changed while brokers ran are not in effect: %s", error)
        return settings


async def _open_doors(
    server: Server, settings: Settings, ask: AskStore, tokens: DelegationTokens
) -> tuple[Endpoint, ...]:
    """Listen on every named listener; return those that others are told of: the brokers' own first, the
    controller's last."""
    security = settings.security
    assert security is not None, "it has named listeners"
    is_only = len(security.listeners) == 1
    endpoints = []
    for each in security.listeners:
        tls = Renewed(each.tls) if each.protocol.has_tls else None
        sasl = None
        if each.protocol.has_sasl:
            sasl = await sasl_door(each, ask, settings.limits, server.logins, server.audit, tokens)
        rules = parse_rules(each.tls.ssl_principal_mapping_rules)
        is_for_brokers = security.is_for_brokers(each)
        door = Door(each.name, is_only or is_for_brokers, tls, sasl, rules)
        is_protected = is_for_brokers and not is_only
        bound = await server.listen(
            each.bind, door, is_protected=is_protected, most_a_second=each.most_a_second
        )
        if each.advertised is not None:
            host, port = each.advertised
            endpoints.append(Endpoint(each.name, host, port or bound.port, each.protocol))
    order = {security.inter_broker: 0, security.control_plane: 2}
    endpoints.sort(key=lambda each: order.get(each.listener, 1))
    return tuple(endpoints)


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


def _heard(since: Since, state_changes: Sink, change: StateChange) -> None:
    """Pass a state change on; damage is an error in the log of the process, too."""
    if change.change in ("finds damage", "stays damaged"):
        _log.error("%s %s: %s", change.topic_partition, change.change, change.reason)
    since.on_change(change)
    state_changes(change)


def _not_yet(connection: Connection, frame: memoryview) -> None:
    connection.refuse("this broker is still starting")

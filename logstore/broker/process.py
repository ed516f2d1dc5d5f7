"""Runs one broker in its own process, for `logstore serve`.

One line of JSON on stdout reports that the broker is registered, and the addresses of its listeners. Later
events are logged on stderr, a JSON object a line. SIGTERM, SIGINT and SIGHUP stop the broker in order (exit
code 0), also during its start. A second SIGTERM or SIGINT ends the wait for a controller that is to move its
leaderships. The exit code is 1 if it fails while running, or if at its start the servers of the metadata
store do not answer or the keys of the identity provider cannot be read: another start may work. It is 2 if
it cannot start. After a crash, the logs recover at the next start.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias

from logstore.broker.broker import Assembly
from logstore.broker.health import Loading, alive, health, partition_directories
from logstore.broker.http import Asked, HttpServer, Page, Route, Site
from logstore.broker.http_access import HttpAccess, read_http
from logstore.broker.json_lines import log_as_json
from logstore.broker.limits import Address
from logstore.broker.loop import (
    compile_checks,
    fastest_loop,
    heed_stop_signals,
    keep_freed_memory,
    settle_heap,
    survive_broken_pipes,
)
from logstore.broker.metadata.opening import EMBEDDED, store_named, with_defaults
from logstore.broker.metrics import Elections, Watched, gather
from logstore.broker.security.config import refuse_open
from logstore.broker.security.oauth import KeysUnreadable
from logstore.broker.server import Descriptors, sufficient_descriptors
from logstore.broker.settings import Settings, read_settings
from logstore.broker.state_change_file import OFF, StateChangeFile, default_path
from logstore.broker.store_session import StoreOf
from logstore.disk.clocks import steady_s
from logstore.disk.errors import EngineError, explained
from logstore.disk.files import Disk, SteadyClock, as_disk
from logstore.disk.running import boot_id
from logstore.errors import InvalidConfig
from logstore.loggers import logger_of
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.state_change import Sink, StateChange, unheard

if not __debug__:
    sys.exit("error: assertions protect the logs; run without python -O")

_WILDCARDS = frozenset({"0.0.0.0", "::", ""})
_PROGRESS_S = 1.0

_log = logger_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of a broker's process. `settings` have Kafka's names.

    `metadata` is zookeeper://host:port/chroot, or `embedded` or `embedded:DIRECTORY`: a store in this
    process, for a cluster of one. `advertised` is the address for clients and brokers, if it is not `listen`.
    Named listeners among the settings take the place of both. `insecure` allows a listener beyond this host
    without TLS or a login. With `https`, `http` is over TLS; `http_settings` are those of `http_access.py`.
    Without `log_file` the log goes to stderr. `state_change_log` is a file, by default beside the first log
    dir, or `none`.
    """

    node_id: int
    listen: Address
    log_dirs: tuple[str, ...]
    metadata: str = EMBEDDED
    advertised: Address | None = None
    http: Address | None = None
    https: bool = False
    http_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    state_change_log: str | None = None
    log_file: str | None = None
    insecure: bool = False
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


SiteOf: TypeAlias = Callable[[Assembly], Site]
"""Makes what the HTTP port serves beside metrics and health, once the broker is open."""


def run(options: ServeOptions, *, disk: Disk | None = None, site_of: SiteOf | None = None) -> int:
    """Serve until the end and return the exit code. An error at the start is one line on stderr."""
    survive_broken_pipes()
    disk = as_disk(disk)
    try:
        log_as_json(options.log_file)
        host, port = options.listen
        given = with_defaults(options.settings, options.metadata)
        settings = read_settings(given, node_id=options.node_id, host=host, port=port)
        is_plain = settings.security is None
        if is_plain and options.listen.host in _WILDCARDS and options.advertised is None:
            raise InvalidConfig(
                f"clients cannot connect to {options.listen}; give an address with --advertise"
            )
        if not options.insecure:
            refuse_open(settings.security, options.listen)
        sink = state_change_sink(options, disk=disk)
        allow_open_files(settings.limits.max_connections)
        compile_checks()
        with (
            store_named(
                options.metadata,
                first_log_dir=options.log_dirs[0],
                disk=disk,
                security=settings.store,
            ) as store,
            asyncio.Runner(loop_factory=fastest_loop()) as runner,
        ):
            return runner.run(
                serve(options, settings, store.client, disk=disk, state_changes=sink, site_of=site_of)
            )
    except (EngineError, OSError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        is_elsewhere = options.metadata.partition(":")[0] != EMBEDDED
        is_passing = isinstance(error, MetadataStoreFailed) and is_elsewhere
        return 1 if is_passing or isinstance(error, KeysUnreadable) else 2


def state_change_sink(options: ServeOptions, *, disk: Disk) -> Sink:
    """Return what keeps the state changes. Raises `OSError` if the file that was asked for cannot be opened.

    The one beside the first log dir is made with its first line: then this process holds the log dirs.
    """
    if options.state_change_log == OFF:
        return unheard
    sink = StateChangeFile(options.state_change_log or default_path(options.log_dirs), disk=disk)
    if options.state_change_log is not None:
        try:
            sink.open()
        except OSError as error:
            what = f"cannot write to {options.state_change_log} (state.change.log)"
            raise explained(error, what) from error
    return sink


def allow_open_files(connections: int) -> None:
    """Raise the limit of open files to the system's maximum; warn if it is too low for `connections`.

    Segments, indexes and clients all count. Most systems start a process with 1,024 and allow far more.
    Raises `OutOfResources` if it is too low for a broker.
    """
    found = sufficient_descriptors(raise_it=True)
    if found.room_for_others < connections:
        _log.warning(
            "the limit of open files is %d, and %d are left to files: about %d connections are accepted, not "
            "max.connections=%d; raise the limit (ulimit -n) or lower the setting",
            found.limit,
            found.held_back,
            found.room_for_others,
            connections,
        )


class _Served:
    """The state that the HTTP port shows, from before the broker is open until its end."""

    def __init__(self, loading: Loading) -> None:
        self.loading = loading
        self.elections = Elections()
        self.broker: Assembly | None = None
        self.site: Site | None = None
        self.is_stopping = False

    def watched(self) -> Watched:
        """Return the sources of the metrics and of `/healthz`."""
        broker = self.broker
        if broker is None:
            return Watched(elections=self.elections)
        services, server = broker.services, broker.server
        return Watched(
            broker.runtime.node,
            services.traffic,
            self.elections,
            services.groups.coordinator,
            len(server.connections),
            server.refused,
            broker.runtime.pauses.report(steady_s()),
            Descriptors.of(server),
            server.logins,
            server.failed_handshakes,
            services.limiter,
            services.audit.state,
            broker.scrubbing.report,
        )

    def on_site(self, asked: Asked) -> Page:
        """Answer for the site, in a thread; while the logs are loaded there is none."""
        if self.site is None or self.is_stopping:
            doing = "stops" if self.is_stopping else f"is loading its logs: {self.loading.percent} %"
            error = {"error": f"the broker {doing}; try again"}
            return Page(json.dumps(error).encode() + b"\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        return self.site.answer(asked)


async def serve(
    options: ServeOptions,
    settings: Settings,
    store_of: StoreOf,
    *,
    disk: Disk,
    state_changes: Sink = unheard,
    site_of: SiteOf | None = None,
) -> int:
    """Run a broker; return 0 when it is stopped, 1 when it fails.

    Raises `EngineError` and `OSError` if it cannot start.
    """
    loop = asyncio.get_running_loop()
    told_to_stop = asyncio.Event()
    served = _Served(Loading(partition_directories(disk, options.log_dirs)))

    opening: asyncio.Task[Assembly] | None = None

    def told(number: signal.Signals) -> None:
        if opening is not None and not told_to_stop.is_set():
            opening.cancel()  # once: it may wait for its logs
        # A terminal that is closed sends two SIGHUPs.
        if served.is_stopping and served.broker is not None and number is not signal.SIGHUP:
            _log.warning("second stop signal: leaderships are not transferred")
            served.broker.runtime.hurry()
        told_to_stop.set()

    heed_stop_signals(told)

    def heard(change: StateChange) -> None:
        served.elections(change)
        state_changes(change)

    with ExitStack() as stack:
        http: HttpServer | None = None
        if options.http is not None:
            site = None if site_of is None else served.on_site
            config = read_http(options.http_settings, options.settings, is_tls=options.https)
            http = HttpServer(options.http, _routes(served), access=HttpAccess(config), site=site)
            stack.callback(http.close)
        telling = loop.create_task(_tell_of_loading(served.loading))
        opening = loop.create_task(
            Assembly.open(
                settings,
                options.listen,
                options.log_dirs,
                store_of,
                disk=disk,
                clock=SteadyClock(),
                random=random.Random(),
                state_changes=heard,
                advertised=options.advertised,
                progress=served.loading,
                boot_id=boot_id(),
            )
        )
        try:
            served.broker = broker = await opening
        except asyncio.CancelledError:
            if not told_to_stop.is_set():
                raise
            _log.info("stopped during the start")
            return 0
        finally:
            telling.cancel()
        served.loading.is_over = True
        if site_of is not None:
            served.site = site_of(broker)
            stack.callback(served.site.close)
        settle_heap()
        keep_freed_memory()
        ended = broker.runtime.ended
        broker.start()
        waiting = loop.create_task(told_to_stop.wait())
        announcing = loop.create_task(_announce(broker, http, has_site=site_of is not None))
        try:
            await asyncio.wait((waiting, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            announcing.cancel()
        served.is_stopping = True
        if not ended.done():
            await broker.stop()
        if ended.done():
            _log.critical("broker failed: %s", ended.exception() or ended.result())
            await broker.abandon()
            return 1
        return 0


def _routes(served: _Served) -> dict[str, Route]:
    return {
        "/healthz": lambda: health(served.watched(), served.loading, is_stopping=served.is_stopping),
        "/livez": alive,
        "/metrics": lambda: gather(served.watched()),
    }


async def _tell_of_loading(loading: Loading) -> None:
    """Log the progress of loading, once a second."""
    while True:
        await asyncio.sleep(_PROGRESS_S)
        if loading.directory:
            _log.info("loading logs: %.1f %%, at %s", loading.percent, loading.directory)


async def _announce(broker: Assembly, http: HttpServer | None, *, has_site: bool) -> None:
    await broker.runtime.registered.wait()
    node = broker.runtime.node
    ready: dict[str, object] = {
        "node_id": node.node_id,
        "host": node.config.host,
        "port": node.config.port,
        "broker_epoch": node.broker_epoch,
        "cluster_id": broker.services.cluster_id,
    }
    if node.config.endpoints:
        found = node.config.endpoints
        ready["listeners"] = {each.listener: str(Address(each.host, each.port)) for each in found}
    if http is not None:
        ready["http"] = http.name
        if has_site:
            name = http.name
            ready["console"] = f"{name}/" if "://" in name else f"http://{name}/"
    print(json.dumps(ready), flush=True)

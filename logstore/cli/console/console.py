"""Assembles the console for an open broker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from logstore.broker.blocking import BlockingClient
from logstore.broker.broker import Assembly
from logstore.broker.limits import Address
from logstore.broker.security.config import Protocol, Security
from logstore.cli.brokers import Brokers
from logstore.cli.console.api import Api, Permits
from logstore.cli.console.desk import PATIENCE_S, Desk, Watch
from logstore.cli.console.local import Local
from logstore.cli.console.peers import Peer, Peers
from logstore.cli.console.site import ConsoleSite, names_of
from logstore.cli.observing import observe


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The console's permissions and HTTP address, and the path of the state-change log (or empty)."""

    http: Address
    may_change: bool = False
    may_show_records: bool = False
    """Show records also where brokers have logins or permissions."""
    state_changes: str = ""
    peers: tuple[Peer, ...] = ()
    """The consoles of other brokers, asked for their logs and timelines."""
    peer_properties: Mapping[str, str] = field(default_factory=dict)
    """How they are asked: `ssl.…` and `http.…`; empty without TLS and login."""


def is_secured(security: Security | None) -> bool:
    """Whether the brokers restrict reading by TLS, logins or permissions."""
    if security is None:
        return False
    return security.rules is not None or any(
        each.protocol is not Protocol.PLAINTEXT for each in security.listeners
    )


def open_console(broker: Assembly, options: ConsoleOptions) -> ConsoleSite:
    """Return the console of a broker. It acts as the broker itself, over the listener of the brokers."""
    settings = broker.services.settings
    config = broker.runtime.node.config
    # With port 0 the node knows its port; a wildcard address is not one to connect to.
    own = config.endpoints[0] if config.endpoints else config
    address = str(Address(own.host, own.port))
    speaking = broker.runtime.peers.security
    watching, asking = (Desk(Brokers(address, speaking, timeout_s=PATIENCE_S)) for _ in range(2))
    reader = Desk(BlockingClient(address, timeout_s=5 * PATIENCE_S, security=speaking))
    watch = Watch(
        lambda: watching.ask(lambda to: observe(to, patience_s=PATIENCE_S)),
        time.monotonic,
        lambda: time.time_ns() // 1_000_000,
    )
    local = Local(
        config.node_id,
        broker.services.cluster_id,
        options.state_changes,
        broker.runtime.node.replicas.partitions,
    )
    permits = Permits(options.may_change, options.may_show_records or not is_secured(settings.security))
    peers = Peers(options.peers, options.peer_properties)
    api = Api(watch, asking, reader, local, peers, permits)

    def close() -> None:
        for each in (watching, asking, reader, peers):
            each.close()

    return ConsoleSite(api, names_of(options.http.host, config.host), close)

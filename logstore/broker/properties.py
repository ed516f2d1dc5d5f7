"""Reads a Kafka broker's properties file: identity and addresses, and settings. Pure.

    broker.id, node.id                 the broker's number
    listeners, advertised.listeners    PLAINTEXT://host:port, one of them; also the older `port`, `host.name`
    log.dirs, log.dir                  the log dirs
    zookeeper.connect                  host:port,host:port/chroot

Settings of Kafka's parts that do not exist here, or need no setting (threads, socket buffers, transactions),
are ignored. A file for KRaft, or with TLS or passwords, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from logstore.errors import InvalidConfig

WITHOUT_EFFECT: Final = frozenset(
    {
        "num.network.threads",
        "num.io.threads",
        "background.threads",
        "queued.max.requests",
        "socket.send.buffer.bytes",
        "socket.receive.buffer.bytes",
        "socket.listen.backlog.size",
        "zookeeper.connection.timeout.ms",
        "zookeeper.max.in.flight.requests",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
        "transaction.state.log.num.partitions",
        "transaction.max.timeout.ms",
        "transactional.id.expiration.ms",
        "inter.broker.protocol.version",
        "inter.broker.listener.name",
        "security.inter.broker.protocol",
        "listener.security.protocol.map",
        "confluent.support.metrics.enable",
        "metric.reporters",
        "reserved.broker.max.id",
        "broker.id.generation.enable",
        "num.replica.alter.log.dirs.threads",
    }
)
"""Accepted and ignored."""

_OF_KRAFT: Final = ("process.roles", "controller.quorum.voters", "controller.listener.names")
_LISTENER: Final = re.compile(
    r"(?:(?P<name>[A-Za-z0-9_]+)://)?(?P<host>[^:/]*|\[[^]]*\]):(?P<port>[0-9]{1,5})"
)


def split_properties(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return identity and addresses (`node.id`, `listen`, `advertise`, `log.dirs`, `metadata`), and settings.

    Raises `InvalidConfig`.
    """
    rest = {name: value.strip() for name, value in properties.items() if name not in WITHOUT_EFFECT}
    for name in _OF_KRAFT:
        if name in rest:
            raise InvalidConfig(f"{name}: KRaft is not supported; name a metadata store with --metadata")
    said: dict[str, str] = {}
    for names, key in (
        (("broker.id", "node.id"), "node.id"),
        (("log.dirs", "log.dir"), "log.dirs"),
    ):
        found = [rest.pop(name, None) for name in names]
        given = [value for value in found if value is not None]
        if given:
            said[key] = given[0]
    host, port = rest.pop("host.name", None), rest.pop("port", None)
    if port is not None:
        said["listen"] = f"{host or '127.0.0.1'}:{port}"
    for name, key in (("listeners", "listen"), ("advertised.listeners", "advertise")):
        if name in rest:
            said[key] = _listener(name, rest.pop(name))
    if "zookeeper.connect" in rest:
        said["metadata"] = f"zookeeper://{rest.pop('zookeeper.connect')}"
    return said, rest


def _listener(name: str, text: str) -> str:
    if "," in text:
        raise InvalidConfig(f"{name} is {text!r}: only one listener is supported")
    found = _LISTENER.fullmatch(text)
    if found is None:
        raise InvalidConfig(f"{name} is {text!r}; expected PLAINTEXT://host:port")
    protocol = (found["name"] or "PLAINTEXT").upper()
    if protocol in ("SSL", "SASL_SSL", "SASL_PLAINTEXT"):
        raise InvalidConfig(f"{name} is {text!r}: TLS and SASL are not supported; use PLAINTEXT")
    return f"{found['host'] or '0.0.0.0'}:{found['port']}"

"""Reads a Kafka broker's properties file: identity and addresses, and settings. Pure.

    broker.id, node.id                 the broker's number
    listeners, advertised.listeners    a single PLAINTEXT://host:port; also the older `port`, `host.name`
    log.dirs, log.dir                  the log dirs
    zookeeper.connect                  host:port,host:port/chroot
    http.listener                      https://host:port of metrics and health
    state.change.log                   the file of decisions about partitions, or none

Settings that tune Kafka's parts that do not exist here, or need no setting (threads, socket buffers,
transactions), are ignored; what would turn such a part on is refused. Other listeners stay among the settings
(`security/config.py`). A file for KRaft is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import permutations
from typing import Final

from logstore.broker.security.config import PLAINTEXT, parse_listeners, split_security
from logstore.broker.typed_settings import as_text
from logstore.config import SettingValue, check_mapping
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
        "confluent.support.metrics.enable",
        "metric.reporters",
        "reserved.broker.max.id",
        "broker.id.generation.enable",
        "num.replica.alter.log.dirs.threads",
        "alter.log.dirs.replication.quota.window.num",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "auto.include.jmx.reporter",
        "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms",
        "controller.quorum.append.linger.ms",
        "controller.quorum.election.backoff.max.ms",
        "controller.quorum.election.timeout.ms",
        "controller.quorum.fetch.timeout.ms",
        "controller.quorum.request.timeout.ms",
        "controller.quorum.retry.backoff.ms",
        "controller.socket.timeout.ms",
        "delete.records.purgatory.purge.interval.requests",
        "group.consumer.assignors",
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
        "group.consumer.max.session.timeout.ms",
        "group.consumer.max.size",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.session.timeout.ms",
        "group.coordinator.append.linger.ms",
        "group.coordinator.threads",
        "group.share.delivery.count.limit",
        "group.share.heartbeat.interval.ms",
        "group.share.max.groups",
        "group.share.max.heartbeat.interval.ms",
        "group.share.max.record.lock.duration.ms",
        "group.share.max.session.timeout.ms",
        "group.share.max.size",
        "group.share.min.heartbeat.interval.ms",
        "group.share.min.record.lock.duration.ms",
        "group.share.min.session.timeout.ms",
        "group.share.partition.max.record.locks",
        "group.share.record.lock.duration.ms",
        "group.share.session.timeout.ms",
        "initial.broker.registration.timeout.ms",
        "kafka.metrics.polling.interval.secs",
        "kafka.metrics.reporters",
        "max.request.partition.size.limit",
        "metadata.log.max.record.bytes.between.snapshots",
        "metadata.log.max.snapshot.interval.ms",
        "metadata.log.segment.bytes",
        "metadata.log.segment.ms",
        "metadata.max.idle.interval.ms",
        "metadata.max.retention.bytes",
        "metadata.max.retention.ms",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "offsets.commit.required.acks",
        "remote.fetch.max.wait.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.copy.quota.window.num",
        "remote.log.manager.copy.quota.window.size.seconds",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.fetch.max.bytes.per.second",
        "remote.log.manager.fetch.quota.window.num",
        "remote.log.manager.fetch.quota.window.size.seconds",
        "remote.log.manager.task.interval.ms",
        "remote.log.manager.thread.pool.size",
        "remote.log.metadata.custom.metadata.max.bytes",
        "remote.log.metadata.manager.class.name",
        "remote.log.metadata.manager.impl.prefix",
        "remote.log.reader.max.pending.tasks",
        "remote.log.reader.threads",
        "remote.log.storage.manager.impl.prefix",
        "replica.socket.receive.buffer.bytes",
        "replica.socket.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "early.start.listeners",
        "metadata.log.dir",
        "remote.log.metadata.manager.class.path",
        "remote.log.metadata.manager.listener.name",
        "remote.log.storage.manager.class.name",
        "remote.log.storage.manager.class.path",
        "telemetry.max.bytes",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "transaction.state.log.load.buffer.size",
        "transaction.state.log.segment.bytes",
    }
)
"""Accepted and ignored: they tune parts of Kafka that do not exist here."""

_DEFAULT_ONLY: Final = {
    "eligible.leader.replicas.enable": "false",
    "group.coordinator.rebalance.protocols": "classic",
    "queued.max.request.bytes": "-1",
    "remote.log.storage.system.enable": "false",
    "zookeeper.metadata.migration.enable": "false",
}
"""They turn on what does not exist here; Kafka's default is accepted."""

_SELECTOR: Final = "replica.selector.class"
_SELECTORS: Final = {
    "": "none",
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": "rack-aware",
}
"""The words for Kafka's classes."""
_POLICIES: Final = ("alter.config.policy.class.name", "create.topic.policy.class.name")
_OF_KRAFT: Final = (
    "process.roles",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.voters",
    "controller.listener.names",
)


_OF_PROGRAMS: Final = {
    "node.id": "node_id",
    "broker.id": "node_id",
    "log.dirs": 'log_dirs=("data",)',
    "log.dir": 'log_dirs=("data",)',
    "zookeeper.connect": 'metadata="zookeeper://host:port"',
}
"""By property, the parameter of `BrokerConfig` that a program gives instead."""


def settings_in_program(settings: Mapping[str, SettingValue]) -> dict[str, str]:
    """Return those of a program's settings that have an effect. They are judged as those of a file are.

    Raises `InvalidConfig`.
    """
    check_mapping(settings)
    for name, parameter in _OF_PROGRAMS.items():
        if name in settings:
            raise InvalidConfig(f"{name} has no effect in settings; give {parameter} of BrokerConfig instead")
    return _judged({name: as_text(name, value) for name, value in settings.items()})


def _judged(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties without those that have no effect here. Raises `InvalidConfig`."""
    rest = {name: value.strip() for name, value in properties.items() if name not in WITHOUT_EFFECT}
    for name in _OF_KRAFT:
        if rest.pop(name, ""):
            raise InvalidConfig(
                f"{name}: KRaft is not supported; name a metadata store with --metadata, or with metadata of "
                "BrokerConfig"
            )
    for name in _POLICIES:
        if name in rest:
            raise InvalidConfig(f"{name}: policies are Java classes, which are not supported")
    if _SELECTOR in rest:
        rest[_SELECTOR] = _SELECTORS.get(rest[_SELECTOR], rest[_SELECTOR])
    for name, default in _DEFAULT_ONLY.items():
        if (value := rest.pop(name, default)) != default:
            raise InvalidConfig(f"{name} is {value!r}; only Kafka's default {default} is supported")
    return rest


def split_properties(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return identity and addresses (`node.id`, `listen`, `advertise`, `log.dirs`, `metadata`), and settings.

    `http.listener` and `state.change.log` are among the former.

    Raises `InvalidConfig`.
    """
    rest = _judged(properties)
    said: dict[str, str] = {}
    for names, key in (
        (("broker.id", "node.id"), "node.id"),
        (("log.dirs", "log.dir"), "log.dirs"),
        (("state.change.log",), "state.change.log"),
        (("http.listener",), "http"),
    ):
        given = {name: rest.pop(name) for name in names if name in rest}
        if key == "node.id" and len(set(given.values())) > 1:
            raise InvalidConfig("node.id and broker.id differ; give one of them")
        if given:
            said[key] = next(iter(given.values()))
    host, port = rest.pop("host.name", None), rest.pop("port", None)
    if port is not None:
        said["listen"] = f"{host or '127.0.0.1'}:{port}"
    said |= _plain_listener(rest)
    if "zookeeper.connect" in rest:
        said["metadata"] = f"zookeeper://{rest.pop('zookeeper.connect')}"
    return said, rest


def parse_log_dirs(text: str) -> tuple[str, ...]:
    """Return the log dirs of a comma-separated list.

    Raises `InvalidConfig` for an empty list, and if two are one directory or one lies in the other.
    """
    found = tuple(each.strip() for each in text.split(",") if each.strip())
    if not found:
        raise InvalidConfig("log.dirs is empty; give at least one log dir")
    paths = [os.path.join(os.path.realpath(each), "") for each in found]
    for (one, path), (other, inner) in permutations(zip(found, paths, strict=True), 2):
        if path == inner:
            raise InvalidConfig(f"log.dirs: {one} and {other} are the same directory; give it once")
        if inner.startswith(path):
            raise InvalidConfig(f"log.dirs: {other} lies in {one}; give directories beside each other")
    return found


def _plain_listener(rest: dict[str, str]) -> dict[str, str]:
    """Take a single plain listener out of the settings; others stay there, for `read_security`."""
    own, _ = split_security(rest)
    found = {
        key: parse_listeners(name, rest[name])
        for name, key in (("listeners", "listen"), ("advertised.listeners", "advertise"))
        if name in rest
    }
    said = {key: str(next(iter(listeners.values()))) for key, listeners in found.items() if listeners}
    is_plain = own.keys() <= {"listeners", "advertised.listeners"}
    if is_plain and all(each.keys() == {PLAINTEXT} for each in found.values()):
        for name in own:
            del rest[name]
        return said
    return {"listen": said["listen"]} if "listen" in said else {}

"""A broker's properties (`--set name=value`), distributed to the config classes.

    zookeeper.session.timeout.ms, replica.fetch.*, …   NodeConfig
    unclean.leader.election.enable, num.partitions, …  ControllerConfig
    socket.request.max.bytes, connections.max.idle.ms  Limits
    group.max.size, offsets.retention.minutes, …       GroupConfig
    auto.create.topics.enable, event.loop.pause.…      ServiceConfig
    listeners, ssl.*, listener.name.*, …               security/config.py
    zookeeper.ssl.*, zookeeper.set.acl, …              security/store.py
    everything else                                    LogManagerConfig, with the topics' defaults

A name that several classes have (`request.timeout.ms`) applies to all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from logstore.broker.groups.config import GroupConfig
from logstore.broker.limits import Limits
from logstore.broker.security.config import OF_LISTENERS, Security, read_security, split_security
from logstore.broker.security.store import StoreSecurity, split_store
from logstore.broker.typed_settings import as_text, values_for
from logstore.config import (
    MAX_INT,
    SettingValue,
    check_mapping,
    check_settings,
    kafka_name,
    setting,
)
from logstore.log.manager_config import LogManagerConfig, check_names
from logstore.replication.config import NodeConfig
from logstore.replication.controller.config import ControllerConfig

_NOT_PROPERTIES = frozenset({"node.id", "host", "port", "endpoints", "controller"})
"""Set in another way."""

_OF_TOPICS = frozenset({"min.insync.replicas"})
"""The log manager's, for all topics; `Node` passes it to its controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Settings of a broker's service to clients, under Kafka's names."""

    auto_create_topics_enable: bool = setting(True, "Create a topic when a client requests its metadata.")
    event_loop_pause_warn_ms: int = setting(
        1_000,
        "A longer pause of the event loop is logged, and `/healthz` reports `slow` for a minute. Not a "
        "Kafka setting.",
        low=1,
        high=MAX_INT,
    )
    log_scrub_interval_ms: int = setting(
        7 * 24 * 60 * 60 * 1000,
        "The interval at which each log is read completely for damage; 0 disables it. Not a Kafka setting.",
        low=0,
    )
    log_scrub_io_max_bytes_per_second: int = setting(
        32 << 20, "The maximum rate at which a scrub reads. Not a Kafka setting.", low=1
    )
    quota_window_num: int = setting(
        11,
        "The number of samples over which the rate of a client with a quota is measured.",
        low=1,
        high=MAX_INT,
    )
    quota_window_size_seconds: int = setting(1, "Length of such a sample.", low=1, high=MAX_INT)
    controller_quota_window_num: int = setting(
        11,
        "The number of samples over which tokens for new and deleted partitions accumulate.",
        low=1,
        high=MAX_INT,
    )
    controller_quota_window_size_seconds: int = setting(1, "Length of such a sample.", low=1, high=MAX_INT)
    log_scrub_max_busy_percent: int = setting(
        5, "The percentage of time in which a scrub may work: 1 to 100. Not a Kafka setting.", low=1, high=100
    )
    audit_log_path: str = setting(
        "",
        "The audit log's file of changes. Logins and denials go to the same path with `.access`. If "
        "unset, all lines go to the logger `logstore.audit`. Not a Kafka setting.",
    )
    audit_log_max_bytes: int = setting(
        16 << 20, "The size at which a new file of either kind is started. Not a Kafka setting.", low=1 << 10
    )
    audit_log_files: int = setting(
        10,
        "The number of files of either kind that are kept, including the current one. Not a Kafka setting.",
        low=2,
        high=MAX_INT,
    )

    def __post_init__(self) -> None:
        """Raise `InvalidConfig` for a value out of range, also for an audit log that could keep nothing."""
        check_settings(self)


OTHER_NAMES: Final = frozenset(
    kafka_name(each.name)
    for config in (NodeConfig, ControllerConfig, Limits, GroupConfig, ServiceConfig)
    for each in fields(config)
) - _NOT_PROPERTIES | set(OF_LISTENERS)
"""A broker's settings of replication, controller, groups, connections, service and listeners."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a broker."""

    node: NodeConfig
    logs: LogManagerConfig
    limits: Limits
    given: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Settings as they were given, without those of security; all others have their defaults."""
    groups: GroupConfig = field(default_factory=GroupConfig)
    broker: ServiceConfig = field(default_factory=ServiceConfig)
    security: Security | None = None
    """Named listeners; None for a single plain one."""
    store: StoreSecurity = field(default_factory=StoreSecurity)
    """How ZooKeeper is reached."""


def read_settings(settings: Mapping[str, SettingValue], *, node_id: int, host: str, port: int) -> Settings:
    """Read a broker's properties on top of the defaults.

    Raises `InvalidConfig` for an unknown name or an invalid value.
    """
    check_mapping(settings)
    store, others = split_store({name: as_text(name, value) for name, value in settings.items()})
    own, rest = split_security(others)
    given = dict(rest)
    of_controller = _taken_by(ControllerConfig, given, rest)
    of_node = _taken_by(NodeConfig, given, rest)
    of_limits = _taken_by(Limits, given, rest)
    of_groups = _taken_by(GroupConfig, given, rest)
    of_broker = _taken_by(ServiceConfig, given, rest)
    check_names(rest, OTHER_NAMES)
    return Settings(
        NodeConfig(
            **{"node_id": node_id, "host": host, "port": port, **of_node},
            controller=ControllerConfig(**of_controller),
        ),
        LogManagerConfig.from_kafka(rest),
        Limits(**of_limits),
        given,
        GroupConfig(**of_groups),
        ServiceConfig(**of_broker),
        read_security(own),
        store,
    )


def _taken_by(config: type[Any], settings: Mapping[str, str], rest: dict[str, str]) -> dict[str, Any]:
    """Return the values of `config`'s own fields, and remove them from `rest`."""
    own = {name: value for name, value in settings.items() if name not in _NOT_PROPERTIES | _OF_TOPICS}
    found = values_for(config, own)
    for name in found:
        rest.pop(name, None)
    return dict(found.values())

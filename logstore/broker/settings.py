"""A broker's properties (`--set name=value`), distributed to the config classes.

    zookeeper.session.timeout.ms, replica.fetch.*, …   NodeConfig
    unclean.leader.election.enable, num.partitions, …  ControllerConfig
    socket.request.max.bytes, connections.max.idle.ms  Limits
    group.max.size, offsets.retention.minutes, …       GroupConfig
    auto.create.topics.enable, event.loop.pause.…      ServiceConfig
    everything else                                    LogManagerConfig, with the topics' defaults

A name that several classes have (`request.timeout.ms`) applies to all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, get_type_hints

from logstore.broker.groups.config import GroupConfig
from logstore.broker.limits import Limits
from logstore.errors import InvalidConfig
from logstore.log.manager_config import LogManagerConfig
from logstore.replication.config import NodeConfig
from logstore.replication.controller.config import ControllerConfig

_NOT_PROPERTIES = frozenset({"node.id", "host", "port", "controller"})
"""Set in another way."""

_OF_TOPICS = frozenset({"min.insync.replicas"})
"""The log manager's, for all topics; `Node` passes it to its controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Settings of a broker's service to clients, under Kafka's names."""

    auto_create_topics_enable: bool = True
    """Create a topic when a client requests its metadata."""
    event_loop_pause_warn_ms: int = 1_000
    """A longer pause of the event loop is logged, and `/healthz` reports `slow` for a minute. Not a Kafka
    setting.
    """
    log_scrub_interval_ms: int = 7 * 24 * 60 * 60 * 1000
    """How often each log is read as a whole, to find damage; 0 turns it off. Not a Kafka setting."""
    log_scrub_io_max_bytes_per_second: int = 32 << 20
    """How fast a scrub reads. Not a Kafka setting."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a broker."""

    node: NodeConfig
    logs: LogManagerConfig
    limits: Limits
    given: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Settings as they were given; all others have their defaults."""
    groups: GroupConfig = field(default_factory=GroupConfig)
    broker: ServiceConfig = field(default_factory=ServiceConfig)


def read_settings(settings: Mapping[str, str], *, node_id: int, host: str, port: int) -> Settings:
    """Read a broker's properties on top of the defaults.

    Raises `InvalidConfig` for an unknown name or an invalid value.
    """
    rest = dict(settings)
    of_controller = _taken_by(ControllerConfig, settings, rest)
    of_node = _taken_by(NodeConfig, settings, rest)
    of_limits = _taken_by(Limits, settings, rest)
    of_groups = _taken_by(GroupConfig, settings, rest)
    of_broker = _taken_by(ServiceConfig, settings, rest)
    return Settings(
        NodeConfig(
            **{"node_id": node_id, "host": host, "port": port, **of_node},
            controller=ControllerConfig(**of_controller),
        ),
        LogManagerConfig.from_kafka(rest),
        Limits(**of_limits),
        dict(settings),
        GroupConfig(**of_groups),
        ServiceConfig(**of_broker),
    )


def _taken_by(config: type[Any], settings: Mapping[str, str], rest: dict[str, str]) -> dict[str, Any]:
    """Return the values of `config`'s own fields, and remove them from `rest`."""
    hints = get_type_hints(config)
    taken = {}
    for each in fields(config):
        name = each.name.replace("_", ".")
        if name in settings and name not in _NOT_PROPERTIES | _OF_TOPICS:
            taken[each.name] = _value(name, settings[name], hints[each.name])
            rest.pop(name, None)
    return taken


def _value(name: str, text: str, kind: Any) -> object:
    if kind is str:
        return text
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise InvalidConfig(f"{name} is {text!r}; expected true or false")
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(text)
        except ValueError:
            choices = ", ".join(str(member.value) for member in kind)
            raise InvalidConfig(f"{name} is {text!r}; expected one of {choices}") from None
    if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal()):
        raise InvalidConfig(f"{name} is {text!r}; expected a number")
    return int(text)

"""Generate the settings reference from the configuration classes.

Two kinds of class exist. Most describe each field in its metadata (`logstore.config.setting`). Those of security
and `BrokerConfig` are plain dataclasses whose fields carry a docstring each; the docstrings are the descriptions.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Any

from logstore.broker.embedded import BrokerConfig
from logstore.broker.groups.config import GroupConfig
from logstore.broker.limits import Limits
from logstore.broker.properties import WITHOUT_EFFECT
from logstore.broker.security.config import (
    SSL_WITHOUT_EFFECT,
    AuthorizerConfig,
    OAuthConfig,
    SaslConfig,
    TlsConfig,
)
from logstore.broker.security.delegation import TokenConfig
from logstore.broker.security.secret import Secret
from logstore.broker.settings import ServiceConfig
from logstore.config import MAX_INT, MAX_LONG, LogConfig, formatted, kafka_name
from logstore.log.manager_config import PARTS, LogManagerConfig, broker_names, settings_of
from logstore.replication.config import NodeConfig
from logstore.replication.controller.config import ControllerConfig

LOG_NODE = (LogManagerConfig, *(part for part in PARTS.values() if part is not LogConfig))
DESCRIBED: dict[type[Any], str] = {
    GroupConfig: "Group coordinator settings",
    NodeConfig: "Replication settings of a node",
    ControllerConfig: "Controller settings",
    Limits: "Network limits",
    ServiceConfig: "Client-facing settings",
}
PLAIN: dict[type[Any], str] = {
    TlsConfig: "TLS of a listener or a client",
    SaslConfig: "SASL of a listener",
    OAuthConfig: "Logins by tokens at a listener",
    TokenConfig: "Delegation tokens",
    AuthorizerConfig: "Access control",
}
"""Classes, of either kind, whose fields are broker properties under the field's name with dots."""

_HEAD = """\
# Settings

Settings have Kafka's names, defaults and ranges. Times are milliseconds and sizes are bytes. An unknown name is
refused, and the error suggests the closest match. This page is generated from the configuration classes.
[Configuration](../configuration.md) explains where settings are given.

## Topic settings

`LogConfig.from_kafka({"segment.bytes": "16777216"})` or `LogConfig(segment_bytes=1 << 24)`. The second column is
the broker property that sets the default for all topics. Where several properties set one default, the first one
listed wins.

Changes to an open log take effect at once, except for settings marked *new segments*.
"""

_NODE = """
## Log manager settings of a node

`LogManagerConfig.from_kafka` reads these together with the topic defaults. `LogManager(settings=...)` applies them.
"""

LISTENERS: dict[str, str] = {
    "broker.id": "The number of the broker; also `node.id` and `--node-id`.",
    "log.dirs": "The log dirs, separated by commas; also `log.dir` and `--log-dirs`.",
    "zookeeper.connect": "The metadata store, `host:port,host:port/chroot`; also `--metadata`.",
    "listeners": "The listeners, `NAME://host:port`, separated by commas; for a single plain one use `--listen`.",
    "advertised.listeners": "The addresses for clients and brokers; for a single plain one use `--advertise`.",
    "listener.security.protocol.map": "The protocol of each name: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL.",
    "inter.broker.listener.name": "The listener that brokers use among themselves.",
    "security.inter.broker.protocol": "The same, chosen by protocol, if only one listener has it.",
    "control.plane.listener.name": "The listener between the controller and the brokers, if separate.",
    "authorizer.class.name": "Kafka's authorizer, which checks permissions; if unset, nothing is checked.",
    "super.users": "Principals with full access, `User:a;User:b`.",
    "allow.everyone.if.no.acl.found": "Permit access to resources without rules.",
    "listener.name.NAME.…": "A setting of TLS or SASL for one listener; NAME in lower case.",
    "zookeeper.ssl.client.enable": "Connect to ZooKeeper over TLS; the stores are set by `zookeeper.ssl.…`.",
    "zookeeper.set.acl": "Only the creator may change new nodes.",
    "zookeeper.sasl.jaas.config": "A login to ZooKeeper by name. Not a Kafka setting.",
    "http.listener": "The address of metrics and health, `https://host:port`; also `--http`. Not a Kafka setting.",
    "http.basic.user": "The user name for the HTTP port, with `http.basic.password`. Not Kafka settings.",
    "http.ssl.…": "A setting of TLS for the HTTP port. Not a Kafka setting.",
}
"""Settings that say who a broker is and where it listens, with their descriptions."""

_LISTENERS = """
## Identity and listeners of a broker

In a properties file (`--config`) or with `--set`. [Security](../security.md) explains listeners, logins and
permissions.
"""

_IGNORED = """
In a properties file these are ignored too: they are about threads, buffers and parts of Kafka that do not exist here.
"""

_EMBEDDED = """
## Arguments of an embedded broker

`BrokerConfig` holds what a broker in your own process is started with. All properties above go into `settings`.
"""

_LEFT_OUT = """
## Settings without effect

These names are accepted so that an existing properties file can be used. They change nothing, or only their
default is accepted.
"""


def page() -> str:
    """Return the Markdown of the settings reference."""
    lines = [
        _HEAD,
        *_table("setting", "broker property", "type", "default", "values", "description", "applies at"),
    ]
    lines += [_row(each, (_names(each.metadata["broker"]),)) for each in _effective(LogConfig)]
    lines += [_NODE, *_table("setting", "type", "default", "values", "description", "applies at")]
    lines += [_row(each, ()) for config in LOG_NODE for each in _effective(config)]
    for config, title in DESCRIBED.items():
        lines += [f"\n## {title}\n\n`{config.__name__}`.\n"]
        lines += _table("setting", "type", "default", "values", "description", "applies at")
        lines += [_row(each, ()) for each in _effective(config)]
    for config, title in PLAIN.items():
        lines += [f"\n## {title}\n\n`{config.__name__}`.\n"]
        lines += [*_table("setting", "type", "default", "description"), *_plain_rows(config, kafka_name)]
    lines += [_LISTENERS, *_table("setting", "description")]
    lines += [f"| `{name}` | {text} |" for name, text in LISTENERS.items()]
    lines += [_EMBEDDED, *_table("argument", "type", "default", "description")]
    lines += _plain_rows(BrokerConfig, str)
    lines += [_LEFT_OUT, *_table("setting", "default", "in Kafka", "here")]
    for config in (LogConfig, *LOG_NODE):
        for each in settings_of(config):
            if reason := each.metadata.get("no_effect"):
                lines.append(_without(each, f"accepted: {reason}"))
            elif reason := each.metadata.get("only"):
                lines.append(_without(each, f"only the default is accepted: {reason}"))
    lines += [_IGNORED, f"{_names(tuple(sorted(WITHOUT_EFFECT | SSL_WITHOUT_EFFECT)))}."]
    return "\n".join(lines) + "\n"


def field_docs(config: type[Any]) -> dict[str, str]:
    """Return each field's docstring, the string literal that follows it in the class body."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for each, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if (
            isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[each.target.id] = " ".join(following.value.value.split())
    return found


def _table(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def _plain_rows(config: type[Any], name_of: Any) -> Iterator[str]:
    docs = field_docs(config)
    for each in fields(config):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        kind = str(each.type).replace("str", "text").replace("|", "or")
        value = "–" if default in (None, (), {}, "") or isinstance(default, Secret) else _value(default)
        yield f"| `{name_of(each.name)}` | {kind} | {value} | {docs.get(each.name, '')} |"


def _effective(config: type) -> Iterator[Field[Any]]:
    for each in settings_of(config):
        if not each.metadata["only"] and not each.metadata["no_effect"]:
            yield each


def _row(each: Field[Any], after_the_name: tuple[str, ...]) -> str:
    metadata = each.metadata
    name = _names(broker_names(each)) if not after_the_name else f"`{kafka_name(each.name)}`"
    kind = "text" if isinstance(each.default, str | Enum) else type(each.default).__name__
    facts = (kind, _value(each.default), _values(each), metadata["help"], metadata["at"])
    return f"| {' | '.join((name, *after_the_name, *facts))} |"


def _without(each: Field[Any], what: str) -> str:
    names = _names((kafka_name(each.name), *each.metadata["broker"]))
    return f"| {names} | {_value(each.default)} | {each.metadata['help']} | {what} |"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names)) or "–"


def _values(each: Field[Any]) -> str:
    metadata = each.metadata
    if metadata["choices"]:
        return ", ".join(metadata["choices"])
    if isinstance(each.default, Enum):
        return ", ".join(member.value for member in type(each.default))
    if isinstance(each.default, bool):
        return "true, false"
    if metadata["low"] is None:
        return "–"
    if metadata["high"] is None:
        return f"≥ {metadata['low']}"
    return f"{metadata['low']} … {_value(metadata['high'])}"


def _value(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if value in (MAX_LONG, sys.float_info.max, float("inf")):
        return "no limit"
    if value == MAX_INT:
        return "2³¹ − 1"
    return formatted(value) or "–"

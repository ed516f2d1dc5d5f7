"""Prints docs/configuration.md: every setting, read out of the classes that take it.

    python -m logstore.cli.configuration > docs/configuration.md

A test holds the page to what this prints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import Field
from typing import Any

from logstore.broker.groups.config import GroupConfig
from logstore.config import MAX_INT, MAX_LONG, LogConfig, formatted, kafka_name
from logstore.log.manager_config import PARTS, LogManagerConfig, broker_names, settings_of

_NODES = (LogManagerConfig, *(part for part in PARTS.values() if part is not LogConfig))

_HEAD = """\
# Configuration

Settings have Kafka's names, defaults and ranges; times are milliseconds, sizes bytes. A name that is not one
of these is refused, with what was probably meant. This page is printed by
`python -m logstore.cli.configuration`.

## A topic's

`LogConfig.from_kafka({"segment.bytes": "16777216"})`, or `LogConfig(segment_bytes=1 << 24)`. A broker sets
their defaults under the names of the second column; where there are several, the first that is given wins.

Settings of a log that is open take effect at once, except where it says *new segments*.
"""

_NODE = """
## A node's

`LogManagerConfig.from_kafka` reads them together with the topics' defaults, and `LogManager(settings=...)`
goes by them.
"""

_GROUPS = """
## A group coordinator's

`GroupConfig`, of a broker ([consumer-groups.md](consumer-groups.md)).
"""

_LEFT_OUT = """
## Taken without effect, or refused
"""


def page() -> str:
    """The whole page, with its final newline."""
    lines = [_HEAD, "| setting | broker's name | type | default | values | what it does | where |"]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += [_row(each, (_names(each.metadata["broker"]),)) for each in _effective(LogConfig)]
    lines += [_NODE, "| setting | type | default | values | what it does | where |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [_row(each, ()) for config in _NODES for each in _effective(config)]
    lines += [_GROUPS, "| setting | type | default | values | what it does | where |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [_row(each, ()) for each in _effective(GroupConfig)]
    lines += [_LEFT_OUT, "| setting | default | what it is in Kafka | here |", "|---|---|---|---|"]
    for config in (LogConfig, *_NODES):
        for each in settings_of(config):
            if reason := each.metadata.get("no_effect"):
                lines.append(_without(each, f"taken: {reason}"))
            elif reason := each.metadata.get("only"):
                lines.append(_without(each, f"only the default is taken: {reason}"))
    return "\n".join(lines) + "\n"


def _effective(config: type) -> Iterator[Field[Any]]:
    for each in settings_of(config):
        if not each.metadata["only"] and not each.metadata["no_effect"]:
            yield each


def _row(each: Field[Any], after_the_name: tuple[str, ...]) -> str:
    metadata = each.metadata
    name = _names(broker_names(each)) if not after_the_name else f"`{kafka_name(each.name)}`"
    kind = type(each.default).__name__.replace("str", "text")
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
    if isinstance(each.default, bool):
        return "true, false"
    if metadata["low"] is None:
        return "–"
    if metadata["high"] is None:
        return f"≥ {metadata['low']}"
    return f"{metadata['low']} … {_value(metadata['high'])}"


def _value(value: Any) -> str:
    if value in (MAX_LONG, sys.float_info.max, float("inf")):
        return "no limit"
    if value == MAX_INT:
        return "2³¹ − 1"
    return formatted(value) or "–"


if __name__ == "__main__":
    sys.stdout.write(page())

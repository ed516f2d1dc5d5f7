"""docs/limits.md and the code have the same bounds."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields
from pathlib import Path

import pytest

from logstore.broker import group_metrics, metrics
from logstore.broker.groups.config import GroupConfig
from logstore.broker.limits import Limits
from logstore.broker.security.config import SaslConfig
from logstore.broker.settings import ServiceConfig
from logstore.config import LogConfig
from logstore.replication.config import NodeConfig

PAGE = Path(__file__).parent.parent.parent / "docs" / "limits.md"
UNITS = {"": 1, "ms": 1, "s": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "units": 1}
CONFIGS = (Limits, GroupConfig, ServiceConfig, LogConfig, NodeConfig, SaslConfig)
NO_BOUNDS = frozenset(
    {
        "request_timeout_ms",
        "connect_timeout_ms",
        "reconnect_backoff_ms",
        "reconnect_backoff_max_ms",
        "shutdown_grace_ms",
        "max_connections_per_ip_overrides",
    }
)
"""Of `Limits`: times of our own requests, which no client can use up, and a list."""


def rows() -> list[list[str]]:
    """Cells of every row: resource, default, set by, at the bound, metric."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [row for row in cells if row[1] != "default"]


def number(text: str) -> int:
    found = re.fullmatch(rf"([\d,]+) ?({'|'.join(UNITS)})", text)
    assert found, text
    return int(found[1].replace(",", "")) * UNITS[found[2]]


def in_code(name: str) -> int:
    if name.startswith("logstore."):
        module, _, constant = name.rpartition(".")
        value = getattr(importlib.import_module(module), constant)
    else:
        field = name.replace(".", "_")
        (value,) = (each.default for config in CONFIGS for each in fields(config) if each.name == field)
    assert isinstance(value, int)
    return value


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_page_has_the_bound_of_the_code(row: list[str]) -> None:
    name = row[2].strip("`")
    assert number(row[1]) == in_code(name)
    for suffix, units in (("ms", ["ms"]), ("s", ["s"]), ("bytes", ["bytes", "KiB", "MiB", "units"])):
        if re.search(rf"[._]{suffix}$", name, re.IGNORECASE):
            assert row[1].split(" ")[-1] in units, f"{name}: {row[1]} has no unit"


def test_every_limit_is_on_the_page() -> None:
    named = {row[2].strip("`") for row in rows()}
    limits = {each.name.replace("_", ".") for each in fields(Limits) if each.name not in NO_BOUNDS}
    assert limits <= named
    assert {"group.max.bytes", "group.coordinator.max.bytes", "event.loop.pause.warn.ms"} <= named
    store = importlib.import_module("logstore.broker.metadata.server")
    bounds = {
        name
        for name in vars(store)
        if name.isupper() and name[0] != "_" and isinstance(vars(store)[name], int)
    }
    assert bounds == {each.rpartition(".")[2] for each in named if ".metadata.server." in each}


def test_metrics_on_the_page_exist() -> None:
    source = "".join(Path(str(each.__file__)).read_text() for each in (metrics, group_metrics))
    for row in rows():
        for name in re.findall(r"`(\w+)`", row[4]):
            stem = name.removesuffix("_total")
            assert any(stem.endswith(part) for part in re.findall(r'"(\w+)"', source)), name

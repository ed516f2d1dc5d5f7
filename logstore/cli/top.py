"""`logstore top HTTP…`: brokers and groups at a glance, from their metrics, refreshed periodically.

Rates are between two scrapes. Deciding what a line says is pure; reading and drawing are at the end.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.cli.operating import LONGEST_INTERVAL_S, Json, properties_of
from logstore.cli.terminal import print_json

if TYPE_CHECKING:
    from rich.table import Table

_PATIENCE_S: Final = 5.0
_MOST_GROUPS: Final = 10
_LABELS: Final = ("topic", "partition")
_CURRENT: Final = "kafka_topic_partition_current_offset"
_COMMITTED: Final = "kafka_consumergroup_current_offset"
_LAG: Final = "kafka_consumergroup_lag"


@dataclass(frozen=True)
class Scrape:
    """A broker's metrics at a time in seconds: sums over labels, by name; offsets for the lag of groups."""

    at_s: float
    values: Mapping[str, float]
    ends: Mapping[tuple[str, str], float] = field(default_factory=dict)
    committed: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    told_lags: Mapping[tuple[str, str, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A broker's line; None is unknown. Rates are per second, `pause_s` of the last minute, `idle` 0 to 1."""

    broker: str
    state: str
    leaders: float | None = None
    under_replicated: float | None = None
    under_min_isr: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    records_in: float | None = None
    requests: float | None = None
    idle: float | None = None
    pause_s: float | None = None
    memory: float | None = None
    free: float | None = None
    reason: str = ""
    """why it is down"""


_NOW: Final = {
    "leaders": "kafka_server_replicamanager_leadercount",
    "under_replicated": "kafka_server_replicamanager_underreplicatedpartitions",
    "under_min_isr": "kafka_server_replicamanager_underminisrpartitioncount",
    "idle": "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "pause_s": "logstore_eventloop_pause_max_last_minute_seconds",
    "memory": "process_resident_memory_bytes",
    "free": "logstore_logdir_free_bytes",
}
_RATES: Final = {
    "bytes_in": "kafka_server_brokertopicmetrics_bytesin_total",
    "bytes_out": "kafka_server_brokertopicmetrics_bytesout_total",
    "records_in": "kafka_server_brokertopicmetrics_messagesin_total",
    "requests": "kafka_network_requestmetrics_requests_total",
}


def read(text: str, at_s: float) -> Scrape:
    """Return the metrics of an answer. Raises `ValueError` if it is none of Prometheus' text."""
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[str, float] = {}
    ends: dict[tuple[str, str], float] = {}
    of_groups: dict[str, dict[tuple[str, str, str], float]] = {_COMMITTED: {}, _LAG: {}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
            if sample.name == _CURRENT or sample.name in of_groups:
                topic, partition = (sample.labels[each] for each in _LABELS)
                if sample.name == _CURRENT:
                    ends[topic, partition] = sample.value
                else:
                    of_groups[sample.name][sample.labels["consumergroup"], topic, partition] = sample.value
    return Scrape(at_s, values, ends, of_groups[_COMMITTED], of_groups[_LAG])


def row(broker: str, before: Scrape | str | None, now: Scrape | str) -> Row:
    """Return a broker's line from its last two scrapes; a text is the reason why there is none."""
    if isinstance(now, str):
        return Row(broker, "down", reason=now)
    leads = now.values.get("kafka_controller_kafkacontroller_activecontrollercount")
    told: dict[str, Any] = {key: now.values[name] for key, name in _NOW.items() if name in now.values}
    if isinstance(before, Scrape) and now.at_s > before.at_s:
        for key, name in _RATES.items():
            grown = now.values.get(name, 0.0) - before.values.get(name, 0.0)
            told[key] = max(grown, 0.0) / (now.at_s - before.at_s)  # a restart begins at 0
    state = "loading" if leads is None else "controller" if leads else "up"
    return Row(broker, state, **told)


def lags(scrapes: Iterable[Scrape]) -> list[tuple[str, int]]:
    """Return the groups and their lag over all partitions, the largest first.

    The end of a partition is its leader's, if it was scraped; else the lag is the one that the coordinator
    tells.
    """
    known = list(scrapes)
    ends = {partition: end for each in known for partition, end in each.ends.items()}
    found: dict[str, int] = {}
    for each in known:
        for (group, topic, partition), offset in each.committed.items():
            end = ends.get((topic, partition))
            told = each.told_lags.get((group, topic, partition), 0.0)
            behind = told if end is None else max(end - offset, 0.0)
            found[group] = found.get(group, 0) + int(behind)
    return sorted(found.items(), key=lambda known: (-known[1], known[0]))


def _size(value: float | None) -> str:
    if value is None:
        return "–"
    for unit in ("", "K", "M", "G"):
        if value < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"


def table(rows: Sequence[Row], groups: Sequence[tuple[str, int]]) -> Table:
    """Return the lines as a table; what needs attention is red."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    rates = ("in/s", "out/s", "rec/s", "req/s")
    drawn.add_column("broker", overflow="fold")  # it gives way: a figure without its end says nothing
    for head in ("leads", "<repl", "<min", *rates, "idle", "pause", "mem", "free"):
        drawn.add_column(head, justify="right", no_wrap=True)
    for each in rows:
        is_known, bad = each.leaders is not None, "red" if each.state == "down" else ""
        short = (each.under_replicated, each.under_min_isr)
        drawn.add_row(
            Text(f"{each.broker}{' *' if each.state == 'controller' else ''}", bad),
            Text(_size(each.leaders) if is_known else each.state, bad),
            *(Text(_size(value), "red" if value else "") for value in short),
            *map(_size, (each.bytes_in, each.bytes_out, each.records_in, each.requests)),
            "–" if each.idle is None else f"{each.idle:.0%}",
            "–" if each.pause_s is None else f"{each.pause_s * 1000:.0f}ms",
            _size(each.memory),
            _size(each.free),
        )
    captions = [f"{each.broker} is down: {each.reason}" for each in rows if each.reason]
    if groups:
        shown = ", ".join(f"{group} {lag}" for group, lag in groups[:_MOST_GROUPS])
        more = f", and {len(groups) - _MOST_GROUPS} groups more" if len(groups) > _MOST_GROUPS else ""
        captions.append(f"lag of groups: {shown}{more}")
    drawn.caption = "\n".join(captions) or None
    return drawn


# --- the shell ----------------------------------------------------------------------------------


def _scrape(ask: Callable[..., Any], address: str) -> Scrape | str:
    """Return the metrics of a broker, or why there are none."""
    from http.client import HTTPException

    address = address if "//" in address else f"http://{address}"
    try:
        with ask(f"{address}/metrics", timeout=_PATIENCE_S) as answer:
            return read(answer.read().decode(), time.monotonic())
    except (HTTPException, ValueError) as error:
        why = str(error) or type(error).__name__
        return f"no metrics ({why}): name the address of --http, not the listener of clients"
    except OSError as error:
        return str(getattr(error, "reason", error)) or type(error).__name__


def top(
    brokers: Annotated[
        list[str],
        typer.Argument(metavar="HOST:PORT...", help="HTTP addresses (--http) of brokers; https://…."),
    ],
    interval: Annotated[
        float,
        typer.Option("--interval", min=0.1, max=LONGEST_INTERVAL_S, help="Seconds between two readings."),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval, and exit.")] = False,
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config", metavar="FILE", help="Properties: ssl.…, http.basic.user, ….password."
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show what brokers do, from their metrics: rates, leaders, replicas out of sync, lag of groups.

    "*" is the controller. "<repl" and "<min" count led partitions with replicas out of sync, and with too few
    for acks=all. "pause" is the event loop's longest of the last minute, "free" the space in the log dirs.
    Ctrl-C ends it; with --once, exit code 1 means that no broker answered.
    """
    from concurrent.futures import ThreadPoolExecutor
    from functools import partial
    from urllib.request import urlopen

    from rich.console import Console
    from rich.live import Live

    from logstore.broker.http_access import http_opener, parse_http
    from logstore.broker.limits import is_loopback

    if math.isnan(interval):  # typer before 0.29 takes it
        raise typer.BadParameter("--interval is not a number")
    ask: Callable[..., Any] = urlopen
    properties = properties_of(command_config) if command_config is not None else {}
    if properties:
        ask = http_opener(properties).open
    for each in brokers:
        try:
            address, is_tls = parse_http(each)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        if "http.basic.password" in properties and not (is_tls or is_loopback(address.host)):
            raise typer.BadParameter(f"{each}: the password would be sent in plain; write https:// before it")
    scrape = partial(_scrape, ask)
    console = Console(width=None if sys.stdout.isatty() else 120)
    with ThreadPoolExecutor(len(brokers)) as threads, Live(console=console, auto_refresh=False) as live:
        if as_json or once or not console.is_terminal:
            live.stop()
        before = list(threads.map(scrape, brokers))
        while True:
            time.sleep(interval)
            now = list(threads.map(scrape, brokers))
            rows = [row(*each) for each in zip(brokers, before, now, strict=True)]
            groups = lags(each for each in now if isinstance(each, Scrape))
            if as_json:
                for told in rows:
                    print_json(asdict(told))
                for group, lag in groups:
                    print_json({"group": group, "lag": lag})
            elif live.is_started:
                live.update(table(rows, groups), refresh=True)
            else:
                console.print(table(rows, groups))
            if once:
                return 0 if any(isinstance(each, Scrape) for each in now) else 1
            before = now

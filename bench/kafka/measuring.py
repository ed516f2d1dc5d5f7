"""The measurements: the same steps on a cluster of ours and on one of Kafka's, in turns."""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bench.kafka import asking, usage
from bench.kafka.rows import SIZES, Figure
from bench.kafka.servers import Kafka, Ours, Servers, eventually
from bench.kafka.tools import Tools
from logstore.broker.wire import types as t

_CREATE: Final = 5
_DELETE: Final = 4
_PATIENCE_MS: Final = 60_000
_FAILOVER_PARTITIONS: Final = 300
_MANY_PARTITIONS: Final = 500


class Plan(NamedTuple):
    """How much is measured. `megabytes` of records a run of a tool, `rounds` of each after a warm-up."""

    directory: Path
    version: str
    jars: Path
    rounds: int
    megabytes: int
    restart_mebibytes: int


class Pair(NamedTuple):
    """The two clusters that are compared."""

    ours: Servers
    kafka: Servers

    def each(self) -> Iterator[tuple[str, Servers]]:
        yield "ours", self.ours
        yield "kafka", self.kafka


@contextmanager
def running(plan: Plan, count: int) -> Iterator[Pair]:
    """Run both clusters; both end with the block."""
    home = plan.directory / f"brokers-{count}-{time.monotonic_ns()}"
    pair = Pair(
        Ours(home / "ours", count),
        Kafka(home / "kafka", count, version=plan.version, jars=plan.jars),
    )
    try:
        for _, servers in pair.each():
            servers.start_all()
        yield pair
    finally:
        for _, servers in pair.each():
            servers.end_all()


def create(servers: Servers, topic: str, partitions: int, factor: int) -> None:
    """Create a topic; returns when every broker lists a leader for each partition."""
    wanted = t.CreateTopicsRequestCreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=factor
    )
    _ask_somebody(servers, t.CreateTopicsRequest(topics=[wanted], timeout_ms=_PATIENCE_MS), _CREATE)
    for port in servers.ports.values():
        eventually(partial(_has_leaders, port, topic, partitions), f"{topic} at {servers.name}")


def delete(servers: Servers, topic: str) -> None:
    """Delete a topic; returns when no broker lists it."""
    request = t.DeleteTopicsRequest(topic_names=[topic], timeout_ms=_PATIENCE_MS)
    _ask_somebody(servers, request, _DELETE)
    for port in servers.ports.values():
        eventually(partial(_has_leaders, port, topic, 0), f"{topic} gone at {servers.name}")


def _has_leaders(port: int, topic: str, partitions: int) -> bool:
    return len(asking.leaders(port, topic)) == partitions


def _ask_somebody(
    servers: Servers, request: t.CreateTopicsRequest | t.DeleteTopicsRequest, version: int
) -> None:
    ports, controller = asking.brokers(next(iter(servers.ports.values())))
    answer = asking.ask(ports.get(controller, next(iter(ports.values()))), request, version)
    assert isinstance(answer, t.CreateTopicsResponse | t.DeleteTopicsResponse)
    topics = answer.topics if isinstance(answer, t.CreateTopicsResponse) else answer.responses
    bad = [each.error_code for each in topics if each.error_code]
    if bad:
        raise RuntimeError(f"{servers.name} refused {type(request).__name__}: error {bad[0]}")


# --- traffic ----------------------------------------------------------------------------------------


def traffic(plan: Plan, pair: Pair, rows: Sequence[str], factor: int) -> Iterator[Figure]:
    """Measure the produce and consume rows of one replication factor."""
    tools = Tools(plan.jars)
    for label, size in SIZES.items():
        suffix = f"{label}-rf{factor}"
        wanted = [kind for kind in ("produce", "consume") if f"{kind}-{suffix}" in rows]
        if wanted:
            yield from _traffic_of(plan, pair, tools, suffix, size, factor, "consume" in wanted)


def _traffic_of(
    plan: Plan, pair: Pair, tools: Tools, suffix: str, size: int, factor: int, consumes: bool
) -> Iterator[Figure]:
    records = max(plan.megabytes * 1_000_000 // size, 1_000)
    acks = "1" if factor == 1 else "all"
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    load = 0.0
    for number in range(plan.rounds + 1):  # the first warms both up
        for who, servers in pair.each():
            topic = f"t-{suffix}-{number}"
            create(servers, topic, 1, factor)
            before_s = usage.cpu_s(servers.pids)
            produced = tools.produce(servers.bootstrap, topic, records=records, size=size, acks=acks)
            between_s = usage.cpu_s(servers.pids)
            rate = tools.consume(servers.bootstrap, topic, records=records) if consumes else 0.0
            after_s = usage.cpu_s(servers.pids)
            resident = usage.resident_bytes(servers.broker_pids)
            delete(servers, topic)
            load = max(load, usage.load())
            if number:
                found["rate"][who].append(produced.rate)
                found["p99"][who].append(produced.p99_ms)
                found["cpu"][who].append((between_s - before_s) / records * 1e6)
                found["read rate"][who].append(rate)
                found["read cpu"][who].append((after_s - between_s) / records * 1e6)
                found["memory"][who].append(resident / 1e6)

    def figure(key: str, name: str, unit: str, bar: float, *, is_rate: bool = False) -> Figure:
        each = found[key]
        return Figure(f"{name} {suffix}", unit, each["ours"], each["kafka"], bar, load, is_rate)

    yield figure("rate", "produce", "records/s", 1.0, is_rate=True)
    yield figure("p99", "produce p99", "ms", 1.0)
    yield figure("cpu", "produce processor", "µs/record", 1.0)
    if consumes:
        yield figure("read rate", "consume", "records/s", 1.0, is_rate=True)
        yield figure("read cpu", "consume processor", "µs/record", 1.0)
    yield figure("memory", "memory after", "MB", 0.5)


def cost_of_replicas(figures: Sequence[Figure]) -> Iterator[Figure]:
    """Compare the processor time a record of RF 3 with that of RF 1, where both were measured."""
    found = {each.name: each for each in figures}
    for label in SIZES:
        one, three = (found.get(f"produce processor {label}-rf{factor}") for factor in (1, 3))
        if one is not None and three is not None:
            name, note = f"RF 3 beside RF 1, {label}", "ours at RF 3 / ours at RF 1"
            yield Figure(name, "µs/record", three.ours, one.ours, 6.0, three.load, note=note)


# --- starting, creating, failing ----------------------------------------------------------------------


def start(plan: Plan) -> Iterator[Figure]:
    """Measure from the start of a broker's process until it serves, after an orderly stop."""
    with running(plan, 1) as pair:
        taken: dict[str, list[float]] = defaultdict(list)
        for _, servers in pair.each():
            create(servers, "t", 8, 1)
        for _ in range(plan.rounds):
            for who, servers in pair.each():
                servers.end(1, signal.SIGTERM)
                taken[who].append(_seconds_to_serve(servers))
        yield Figure("clean start", "s", taken["ours"], taken["kafka"], 1.0, usage.load())


def restart(plan: Plan) -> Iterator[Figure]:
    """Measure from the start of a broker that was killed with unflushed records until it serves them."""
    tools, taken = Tools(plan.jars), defaultdict[str, list[float]](list)
    records = plan.restart_mebibytes * 1024
    for _ in range(plan.rounds):
        with running(plan, 1) as pair:
            for who, servers in pair.each():
                create(servers, "t", 8, 1)
                tools.produce(servers.bootstrap, "t", records=records, size=1024, acks="1")
                servers.end(1, signal.SIGKILL)
                taken[who].append(_seconds_to_serve(servers))
                servers.end(1, signal.SIGKILL)
    note = f"{plan.restart_mebibytes} MiB unflushed"
    yield Figure("restart after kill -9", "s", taken["ours"], taken["kafka"], 1.0, usage.load(), note=note)


def _seconds_to_serve(servers: Servers) -> float:
    started_s = time.monotonic()
    servers.start(1)
    port = servers.ports[1]
    eventually(lambda: asking.serves_all(port, "t", 8), f"{servers.name} serves t")
    return time.monotonic() - started_s


def partitions(plan: Plan, pair: Pair) -> Iterator[Figure]:
    """Measure the creation and the deletion of many partitions with three replicas."""
    created: dict[str, list[float]] = defaultdict(list)
    deleted: dict[str, list[float]] = defaultdict(list)
    for number in range(plan.rounds):
        for who, servers in pair.each():
            started_s = time.monotonic()
            create(servers, f"many-{number}", _MANY_PARTITIONS, servers.count)
            created[who].append(time.monotonic() - started_s)
            started_s = time.monotonic()
            delete(servers, f"many-{number}")
            deleted[who].append(time.monotonic() - started_s)
    many, load = f"{_MANY_PARTITIONS} partitions", usage.load()
    yield Figure(f"creation of {many}", "s", created["ours"], created["kafka"], 1.0, load)
    yield Figure(f"deletion of {many}", "s", deleted["ours"], deleted["kafka"], 1.0, load)


def failover(plan: Plan, pair: Pair) -> Iterator[Figure]:
    """Measure from kill -9 of a broker until the others list leaders for all of its partitions.

    The broker is not the controller: Kafka's is a process of its own here. The session timeout is part of
    the time.
    """
    taken: dict[str, list[float]] = defaultdict(list)
    for _, servers in pair.each():
        create(servers, "f", _FAILOVER_PARTITIONS, 3)
    for _ in range(plan.rounds):
        for who, servers in pair.each():
            ports, controller = asking.brokers(servers.ports[1])
            victim = next(number for number in reversed(ports) if number != controller)
            _balanced(servers, victim)
            started_s = time.monotonic()
            servers.end(victim, signal.SIGKILL)
            for number in ports:
                if number != victim:
                    port = servers.ports[number]
                    moved = partial(_has_leaders_without, port, victim)
                    eventually(moved, f"{servers.name} replaces leaders")
            taken[who].append(time.monotonic() - started_s)
            servers.start(victim)
            servers.wait_until_whole()
    name = f"failover of {_FAILOVER_PARTITIONS} partitions"
    yield Figure(name, "s", taken["ours"], taken["kafka"], 1.0, usage.load(), note="with the session timeout")


def _has_leaders_without(port: int, victim: int) -> bool:
    leaders = asking.leaders(port, "f")
    return len(leaders) == _FAILOVER_PARTITIONS and victim not in leaders.values()


def _balanced(servers: Servers, victim: int) -> None:
    """Let every broker lead what it leads in a new cluster, so that each round moves as much."""
    port = servers.ports[victim]
    fair = _FAILOVER_PARTITIONS // servers.count

    def is_fair() -> bool:
        request = t.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=_PATIENCE_MS)
        controller = asking.brokers(port)[1]
        asking.ask(servers.ports.get(controller, port), request, 2)
        return list(asking.leaders(port, "f").values()).count(victim) >= fair

    eventually(is_fair, f"broker {victim} of {servers.name} leads a third", every_s=0.2)

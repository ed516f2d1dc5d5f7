"""A broker's metrics, under the names that Kafka's exporters made usual.

    kafka_server_replicamanager_underreplicatedpartitions      read from the engine at each scrape
    kafka_network_requestmetrics_requests_total{request=…}     counted with each request (`Traffic`)

Counting costs an addition or two a request. Metric families and their text are made at a scrape.
`docs/operators.md` lists all names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from logstore.broker.dispatch import BOUNDS_S, Traffic
from logstore.broker.groups.coordinator import Coordinator
from logstore.broker.groups.group import State
from logstore.broker.http import Page
from logstore.broker.pauses import PauseReport
from logstore.broker.security.audit import AuditState
from logstore.broker.security.limiter import Limiter
from logstore.broker.security.login import LoginCounts
from logstore.broker.security.quotas import Kind
from logstore.broker.server import Descriptors
from logstore.log.log import Log
from logstore.replication.healing import failed_partitions
from logstore.replication.messages import NO_LEADER
from logstore.replication.node import Node
from logstore.replication.receipts import at_risk
from logstore.replication.state_change import Side, StateChange


class Elections:
    """Counts the elections of this broker as the controller. Call it with every state change."""

    def __init__(self) -> None:
        self.leaders = 0
        self.unclean = 0

    def __call__(self, change: StateChange) -> None:
        """Count an election."""
        if change.side is Side.CONTROLLER and change.change.startswith("elects a leader"):
            self.leaders += 1
            self.unclean += change.change != "elects a leader"


@dataclass(frozen=True, slots=True)
class Watched:
    """The sources of the metrics. Without a node the broker is still loading its logs."""

    node: Node | None = None
    traffic: Traffic = field(default_factory=Traffic)
    elections: Elections = field(default_factory=Elections)
    groups: Coordinator | None = None
    connections: int = 0
    refused_connections: int = 0
    pauses: PauseReport | None = None
    descriptors: Descriptors | None = None
    logins: LoginCounts | None = None
    failed_handshakes: int = 0
    limiter: Limiter | None = None
    audit: AuditState | None = None


def _of_logins(logins: LoginCounts, failed_handshakes: int) -> Iterator[Metric]:
    yield from _counters(
        "kafka_server_socketservermetrics_",
        ("successful_authentication", "Logins by SASL", logins.successful),
        ("failed_authentication", "Failed logins by SASL", logins.failed),
        ("successful_reauthentication", "Sessions that were renewed", logins.renewed),
        ("expired_connections_killed", "Connections used after their session's end", logins.expired),
        ("failed_tls_handshakes", "Connections whose TLS handshake failed", failed_handshakes),
    )


_RATES = {
    Kind.PRODUCE: ("produce_byte_rate", "Bytes a second that clients with a quota produced"),
    Kind.FETCH: ("fetch_byte_rate", "Bytes a second that clients with a quota fetched"),
    Kind.REQUEST: ("request_request_time", "Percent of the broker's thread that clients with a quota used"),
    Kind.MUTATION: ("controllermutation_tokens", "Partitions that clients with a quota may change at once"),
}


def _of_quotas(limiter: Limiter) -> Iterator[Metric]:
    families = {
        kind: GaugeMetricFamily(f"kafka_server_{name}", text, labels=["user", "client_id"])
        for kind, (name, text) in _RATES.items()
    }
    for kind, key, value in limiter.measured():
        families[kind].add_metric([key.user or "", key.client or ""], value)
    yield from families.values()
    throttled = CounterMetricFamily(
        "kafka_server_quotas_throttled", "Answers to clients above a quota", labels=["quota"]
    )
    seconds = CounterMetricFamily(
        "kafka_server_quotas_throttle_seconds", "Time for which clients were muted", labels=["quota"]
    )
    for kind in Kind:
        throttled.add_metric([kind], limiter.throttled[kind])
        seconds.add_metric([kind], limiter.throttled_ms[kind] / 1000)
    yield from (throttled, seconds)


class _Collector:
    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def collect(self) -> Iterator[Metric]:
        watched = self._watched
        yield from _of_traffic(watched.traffic)
        yield _gauge(
            "kafka_server_socketservermetrics_connection_count", "Open connections", watched.connections
        )
        yield from _counters(
            "",
            (
                "kafka_server_socketservermetrics_connections_refused",
                "Connections refused because there were too many",
                watched.refused_connections,
            ),
        )
        if watched.logins is not None:
            yield from _of_logins(watched.logins, watched.failed_handshakes)
        if watched.limiter is not None:
            yield from _of_quotas(watched.limiter)
        if (audit := watched.audit) is not None:
            yield from _counters(
                "logstore_audit_",
                ("lines", "Lines of the audit log", audit.lines),
                ("failed_lines", "Lines that the audit file did not take", audit.failed),
            )
            yield _gauge("logstore_audit_failing", "1 while the audit file takes no lines", bool(audit.error))
        yield from _counters(
            "kafka_controller_controllerstats_",
            ("leaderelections", "Leaders elected by this controller", watched.elections.leaders),
            ("uncleanleaderelections", "Leaders elected from outside the ISR", watched.elections.unclean),
        )
        if watched.pauses is not None:
            yield from _of_pauses(watched.pauses)
        if watched.descriptors is not None:
            yield from _of_descriptors(watched.descriptors)
        if (node := watched.node) is not None:
            yield from _of_replicas(node)
            yield from _of_controller(node)
            yield from _of_logs(node)
        if (groups := watched.groups) is not None:
            yield from _of_groups(groups)

    def describe(self) -> list[Metric]:
        return []


def page(watched: Watched) -> Page:
    """Return the text for Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Collector(watched))
    return Page(generate_latest(registry), CONTENT_TYPE_LATEST)


# --- families -----------------------------------------------------------------------------------


_Row: TypeAlias = tuple[str, str, float]
"""Name without its prefix, help text, value."""


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _gauges(prefix: str, *rows: _Row) -> Iterator[Metric]:
    return (_gauge(prefix + name, text, value) for name, text, value in rows)


def _counters(prefix: str, *rows: _Row) -> Iterator[Metric]:
    return (CounterMetricFamily(prefix + name, text, value=value) for name, text, value in rows)


def _by_topic(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily("kafka_server_brokertopicmetrics_" + name, text, labels=["topic"])
    for topic in sorted(counts):
        family.add_metric([topic], counts[topic])
    return family


def _of_traffic(traffic: Traffic) -> Iterator[Metric]:
    prefix = "kafka_network_requestmetrics_"
    requests = CounterMetricFamily(prefix + "requests", "Requests answered", labels=["request"])
    times = HistogramMetricFamily(
        prefix + "totaltime_seconds",
        "Time from the last byte of a request to its answer, with waiting",
        labels=["request"],
    )
    for request, buckets, seconds in traffic.times():
        requests.add_metric([request], sum(buckets))
        total, cumulated = 0, []
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], buckets, strict=True):
            total += count
            cumulated.append((bound, total))
        times.add_metric([request], cumulated, seconds)
    errors = CounterMetricFamily(prefix + "errors", "Errors in answers", labels=["request", "error"])
    for (request, error), count in sorted(traffic.errors.items()):
        errors.add_metric([request, error], count)
    yield from (requests, times, errors)
    yield _by_topic("bytesin", "Bytes that clients produced", traffic.bytes_in)
    yield _by_topic("messagesin", "Records that clients produced", traffic.messages_in)
    yield _by_topic("bytesout", "Bytes that consumers fetched", traffic.bytes_out)
    replicated = ("replicationbytesout", "Bytes that followers fetched", traffic.replication_bytes_out)
    yield from _counters("kafka_server_brokertopicmetrics_", replicated)


def _of_pauses(pauses: PauseReport) -> Iterator[Metric]:
    prefix = "logstore_eventloop_"
    yield from _gauges(
        prefix,
        ("pause_max_seconds", "Longest pause of the event loop since the start", pauses.longest_s),
        (
            "pause_max_last_minute_seconds",
            "Longest pause of the event loop in the last minute",
            pauses.last_minute_s,
        ),
        ("turn_max_seconds", "Longest turn of the engine since the start", pauses.longest_turn_s),
    )
    over = ("pauses_over_bound", "Pauses longer than event.loop.pause.warn.ms", pauses.over_bound)
    yield from _counters(prefix, over)


def _of_descriptors(descriptors: Descriptors) -> Iterator[Metric]:
    prefix = "logstore_descriptors_"
    if descriptors.open is not None:
        yield _gauge(prefix + "open", "Open file descriptors", descriptors.open)
    yield from _gauges(
        prefix,
        ("limit", "Limit of open files of the process", descriptors.limit),
        ("held_back", "Descriptors that connections leave to files", descriptors.held_back),
    )
    pauses = ("accept_pauses", "Pauses of accepting for want of descriptors", descriptors.accept_pauses)
    yield from _counters(prefix, pauses)


def _of_replicas(node: Node) -> Iterator[Metric]:
    replicas, counters = node.replicas, node.replicas.counters
    partitions = replicas.partitions.values()
    prefix = "kafka_server_replicamanager_"
    yield from _gauges(
        prefix,
        ("partitioncount", "Replicas on this broker", len(partitions)),
        ("leadercount", "Partitions that this broker leads", sum(each.is_leader for each in partitions)),
        (
            "underreplicatedpartitions",
            "Led partitions with replicas out of sync",
            replicas.under_replicated_partitions,
        ),
        (
            "underminisrpartitioncount",
            "Led partitions with too few replicas in sync for acks=all",
            replicas.under_min_isr_partitions,
        ),
        (
            "atminisrpartitioncount",
            "Led partitions with the minimum of replicas in sync for acks=all",
            replicas.at_min_isr_partitions,
        ),
        ("offlinereplicacount", "Replicas with a failed or damaged log", replicas.offline_replicas),
        (
            "failedpartitionscount",
            "Replicas that cannot follow their leader, or are damaged without a sound copy elsewhere",
            len(failed_partitions(replicas)),
        ),
        (
            "recordsatrisk",
            "Committed offsets of the replicas on this broker that a power cut of it could take",
            sum(at_risk(each.log) for each in partitions),
        ),
        (
            "damagedpartitionscount",
            "Replicas with damage in their logs",
            len(replicas.damaged.known) + len(node.logs.damaged),
        ),
        ("delayedoperations", "Waiting requests", replicas.waiting.count),
    )
    replicated = ("replicationbytesin", "Bytes fetched from leaders", counters.replicated_bytes)
    yield from _counters("kafka_server_brokertopicmetrics_", replicated)
    yield from _counters(
        prefix,
        ("isrshrinks", "Replicas removed from an ISR", counters.isr_shrinks),
        ("isrexpands", "Replicas added to an ISR", counters.isr_expands),
        ("leaderelectionswon", "Leaderships that this broker took over", counters.elections_won),
        ("damagesfound", "Damaged segments found since the start", replicas.damaged.found_total),
        ("damageshealed", "Damaged segments mended from other replicas", replicas.damaged.healed_total),
        ("filesrebuilt", "Derived files rebuilt because they differed", replicas.damaged.rebuilt_total),
        ("truncations", "Truncations by followers", counters.truncations),
        ("recordstruncated", "Records truncated by followers", counters.records_truncated),
        (
            "truncationsbelowhighwatermark",
            "Truncations of committed records, after unclean elections or lost disks",
            counters.truncations_below_high_watermark,
        ),
    )
    sessions = replicas.waiting.sessions
    yield from _gauges(
        "kafka_server_fetchsessioncache_",
        ("numincrementalfetchsessions", "Fetch sessions", len(sessions)),
        ("numincrementalfetchpartitionscached", "Partitions in fetch sessions", sessions.partitions),
    )
    evicted = ("incrementalfetchsessionevictions", "Fetch sessions replaced by others", sessions.evictions)
    yield from _counters("kafka_server_fetchsessioncache_", evicted)
    state = 3 if node.broker_epoch >= 0 else 1
    yield _gauge("kafka_server_kafkaserver_brokerstate", "3 if registered, else 1", state)


def _of_controller(node: Node) -> Iterator[Metric]:
    prefix = "kafka_controller_kafkacontroller_"
    context = node.controller.context
    yield _gauge(prefix + "activecontrollercount", "1 on the controller", int(context is not None))
    if context is None:
        return
    leaders = {each: known.state.leader for each, known in context.states.items()}
    without_leader = sum(leader == NO_LEADER for leader in leaders.values())
    not_preferred = sum(
        leaders.get(each, replicas[0]) != replicas[0] for each, replicas in context.replicas.items()
    )
    yield from _gauges(
        prefix,
        ("offlinepartitionscount", "Partitions without a leader", without_leader),
        ("preferredreplicaimbalancecount", "Partitions not led by their preferred replica", not_preferred),
        ("globaltopiccount", "Topics in the cluster", len(context.topics)),
        ("globalpartitioncount", "Partitions in the cluster", len(context.replicas)),
        ("activebrokercount", "Registered brokers", len(context.brokers)),
    )


def _of_logs(node: Node) -> Iterator[Metric]:
    sources: tuple[tuple[str, str, Callable[[Log], int]], ...] = (
        ("size", "Bytes in the segments", lambda log: log.size),
        ("logstartoffset", "First offset", lambda log: log.log_start_offset),
        ("logendoffset", "Offset after the last record", lambda log: log.log_end_offset),
        ("numlogsegments", "Segments", lambda log: len(log.partition.segments)),
    )
    logs = sorted(node.logs.logs().items())
    for name, text, value in sources:
        family = GaugeMetricFamily("kafka_log_log_" + name, text, labels=["topic", "partition"])
        for (topic, partition), log in logs:
            family.add_metric([topic, str(partition)], value(log))
        yield family
    failed = len(node.logs.offline_dirs)
    yield _gauge("kafka_log_logmanager_offlinelogdirectorycount", "Failed log dirs", failed)
    full = len(node.replicas.full_dirs.since_ms)
    yield _gauge("kafka_log_logmanager_fulllogdirectorycount", "Log dirs without room for an append", full)


def _of_groups(groups: Coordinator) -> Iterator[Metric]:
    states = groups.states
    yield from _gauges(
        "kafka_coordinator_group_groupmetadatamanager_",
        ("numgroups", "Groups that this broker coordinates", states.total()),
        *(
            (f"numgroups{each.value.lower()}", f"Groups in state {each.value}", states[each])
            for each in State
        ),
        ("memory_bytes", "Memory of the members of these groups", groups.memory),
        ("numoffsets", "Committed offsets of these groups", groups.committed_offsets),
        (
            "loadingpartitions",
            "Led partitions of __consumer_offsets with groups that are not served",
            groups.loading,
        ),
    )

"""A broker's metrics, under the usual names of Kafka's exporters.

    kafka_server_replicamanager_underreplicatedpartitions      read from the engine at each scrape
    kafka_network_requestmetrics_requests_total{request=…}     counted with each request (`Traffic`)

Counting costs an addition or two a request. Metric families are made at a scrape, on the event loop, a few at
a time; their text is made by the thread that answers.
`docs/operators.md` lists all names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector

from logstore.broker.group_metrics import of_groups
from logstore.broker.groups.coordinator import Coordinator
from logstore.broker.http import OnLoop, Page
from logstore.broker.metric_families import counters, gauge, gauges
from logstore.broker.pauses import PauseReport
from logstore.broker.scrubbing import ScrubReport
from logstore.broker.security.audit import AuditState
from logstore.broker.security.limiter import Limiter
from logstore.broker.security.login import LoginCounts
from logstore.broker.security.quotas import Kind
from logstore.broker.server import Descriptors
from logstore.broker.since import hanging_transactions_of
from logstore.broker.traffic import BOUNDS_S, Traffic
from logstore.disk.clocks import steady_s
from logstore.log.log import Log
from logstore.replication.healing import failed_partitions
from logstore.replication.messages import NO_LEADER
from logstore.replication.node import Node
from logstore.replication.partition import Partition
from logstore.replication.receipts import at_risk
from logstore.replication.state_change import Side, StateChange

PIECE_S: Final = 0.005
"""Time after which a scrape lets the event loop go on."""
_AT_ONCE: Final = 256
"""Partitions that a metric looks at between two looks at the time."""


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
    scrub: ScrubReport | None = None


def _of_logins(logins: LoginCounts, failed_handshakes: int) -> Iterator[Metric]:
    yield from counters(
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
        "kafka_server_quotas_throttled",
        "Answers to clients, and connections, above a quota",
        labels=["quota"],
    )
    seconds = CounterMetricFamily(
        "kafka_server_quotas_throttle_seconds", "Time for which clients were muted or held", labels=["quota"]
    )
    for kind in Kind:
        throttled.add_metric([kind], limiter.throttled[kind])
        seconds.add_metric([kind], limiter.throttled_ms[kind] / 1000)
    yield from (throttled, seconds)


class _Gathered:
    """The families of one scrape, as a collector of the library."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families

    def describe(self) -> Sequence[Metric]:
        return ()


def _families(watched: Watched) -> Iterator[Metric | None]:
    """Yield the metrics, and None in the middle of long ones: the event loop may go on there."""
    yield from _of_traffic(watched.traffic)
    yield gauge("kafka_server_socketservermetrics_connection_count", "Open connections", watched.connections)
    yield from counters(
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
        yield from counters(
            "logstore_audit_",
            ("lines", "Lines of the audit log", audit.lines),
            ("failed_lines", "Lines that the audit file did not take", audit.failed),
        )
        yield gauge("logstore_audit_failing", "1 while the audit file cannot be written", bool(audit.error))
    if (scrub := watched.scrub) is not None:
        yield gauge("logstore_scrub_failing", "Partitions whose last scrub failed", len(scrub.failed))
        yield from counters(
            "logstore_scrub_",
            ("passes", "Scrubs of all logs that ended", scrub.passes),
            ("failures", "Scrubs that ended with an unexpected error", scrub.failures),
        )
    yield from counters(
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
        yield from of_groups(groups, watched.node)
    yield from _process().collect()


@cache
def _process() -> ProcessCollector:
    """Return what reads `process_*` of this process from /proc; elsewhere it yields nothing."""
    return ProcessCollector(registry=None)


def gather(watched: Watched) -> Callable[[OnLoop], Page]:
    """Return what makes the text for Prometheus, on any thread.

    It reads the metrics on the event loop, a few milliseconds at a time: with thousands of partitions all of
    them take a tenth of a second. The text takes twice as long, which the loop does not have to spend.
    """
    families = _families(watched)

    def some() -> list[Metric | None]:
        found, end_s = list[Metric | None](), steady_s() + PIECE_S
        for family in families:
            found.append(family)
            if steady_s() >= end_s:
                break
        return found

    def make(on_loop: OnLoop) -> Page:
        registry = CollectorRegistry()
        gathered = chain.from_iterable(iter(lambda: on_loop(some), []))
        registry.register(_Gathered([each for each in gathered if each is not None]))
        return Page(generate_latest(registry), CONTENT_TYPE_LATEST)

    return make


def page(watched: Watched) -> Page:
    """Return the text for Prometheus."""
    return gather(watched)(lambda act: act())


# --- families -----------------------------------------------------------------------------------


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
    yield _by_topic("totalproducerequests", "Partitions in produce requests", traffic.produces)
    yield _by_topic(
        "failedproducerequests", "Those that failed for no routine reason", traffic.failed_produces
    )
    yield _by_topic("totalfetchrequests", "Partitions in answers to fetches", traffic.fetches)
    yield _by_topic("failedfetchrequests", "Those that failed for no routine reason", traffic.failed_fetches)
    replicated = ("replicationbytesout", "Bytes that followers fetched", traffic.replication_bytes_out)
    yield from counters("kafka_server_brokertopicmetrics_", replicated)


def _of_pauses(pauses: PauseReport) -> Iterator[Metric]:
    prefix = "logstore_eventloop_"
    yield from gauges(
        prefix,
        ("pause_max_seconds", "Longest pause of the event loop since the start", pauses.longest_s),
        (
            "pause_max_last_minute_seconds",
            "Longest pause of the event loop in the last minute",
            pauses.last_minute_s,
        ),
        ("turn_max_seconds", "Longest turn of the engine since the start", pauses.longest_turn_s),
    )
    idle = "Share of the last minute in which the event loop's thread used no processor"
    yield gauge("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", idle, pauses.idle)
    yield gauge("kafka_network_socketserver_networkprocessoravgidle_percent", idle, pauses.idle)
    over = ("pauses_over_bound", "Pauses longer than event.loop.pause.warn.ms", pauses.over_bound)
    yield from counters(prefix, over)


def _of_descriptors(descriptors: Descriptors) -> Iterator[Metric]:
    prefix = "logstore_descriptors_"
    if descriptors.open is not None:
        yield gauge(prefix + "open", "Open file descriptors", descriptors.open)
    yield from gauges(
        prefix,
        ("limit", "Limit of open files of the process", descriptors.limit),
        ("held_back", "Descriptors that connections leave to files", descriptors.held_back),
    )
    pauses = ("accept_pauses", "Pauses of accepting for want of descriptors", descriptors.accept_pauses)
    yield from counters(prefix, pauses)


def _of_replicas(node: Node) -> Iterator[Metric | None]:
    replicas, counted = node.replicas, node.replicas.counters
    partitions = list(replicas.partitions.values())
    prefix = "kafka_server_replicamanager_"
    for name, text, value in _counts_of_replicas(node):
        yield gauge(prefix + name, text, value)
    for name, text, adds in _counts_of_partitions(replicas.now_ms):
        total = 0
        for first in range(0, len(partitions), _AT_ONCE):
            yield None
            total += sum(map(adds, partitions[first : first + _AT_ONCE]))
        yield gauge(prefix + name, text, total)
    sent, fetched, copied = (
        each.per_second(replicas.now_ms)
        for each in (replicas.throttle, replicas.followers.throttle, replicas.moves)
    )
    yield from gauges(
        "kafka_server_",
        ("leaderreplication_byte_rate", "Bytes a second that throttled replicas got from here", sent),
        ("followerreplication_byte_rate", "Bytes a second that throttled replicas here fetched", fetched),
        ("alterlogdirsreplication_byte_rate", "Bytes a second copied between log dirs", copied),
    )
    replicated = ("replicationbytesin", "Bytes fetched from leaders", counted.replicated_bytes)
    yield from counters("kafka_server_brokertopicmetrics_", replicated)
    yield from counters(
        prefix,
        ("isrshrinks", "Replicas removed from an ISR", counted.isr_shrinks),
        ("isrexpands", "Replicas added to an ISR", counted.isr_expands),
        ("leaderelectionswon", "Leaderships that this broker took over", counted.elections_won),
        ("damagesfound", "Damaged segments found since the start", replicas.damaged.found_total),
        ("damageshealed", "Damaged segments repaired from other replicas", replicas.damaged.healed_total),
        ("filesrebuilt", "Derived files rebuilt because they differed", replicas.damaged.rebuilt_total),
        ("truncations", "Truncations by followers", counted.truncations),
        ("recordstruncated", "Records truncated by followers", counted.records_truncated),
        (
            "truncationsbelowhighwatermark",
            "Truncations of committed records, after unclean elections or lost disks",
            counted.truncations_below_high_watermark,
        ),
    )
    behind = GaugeMetricFamily(
        "kafka_server_replicafetchermanager_maxlag",
        "Records by which the slowest follower of a partition led here is behind",
        labels=["clientId"],
    )
    most = 0
    for number, each in enumerate(partitions):
        if not number % _AT_ONCE:
            yield None
        if each.is_leader:
            most = max(most, _behind(each))
    behind.add_metric(["Replica"], most)
    yield behind
    waiting = replicas.waiting
    sizes = GaugeMetricFamily(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "Waiting requests",
        labels=["delayedOperation"],
    )
    for kind, purgatory in (
        ("Produce", waiting.produces),
        ("Fetch", waiting.fetches),
        ("DeleteRecords", waiting.deletions),
    ):
        sizes.add_metric([kind], purgatory.delayed)
    yield sizes
    sessions = waiting.sessions
    yield from gauges(
        "kafka_server_fetchsessioncache_",
        ("numincrementalfetchsessions", "Fetch sessions", len(sessions)),
        ("numincrementalfetchpartitionscached", "Partitions in fetch sessions", sessions.partitions),
    )
    evicted = ("incrementalfetchsessionevictions", "Fetch sessions replaced by others", sessions.evictions)
    yield from counters("kafka_server_fetchsessioncache_", evicted)
    state = 3 if node.broker_epoch >= 0 else 1
    yield gauge("kafka_server_kafkaserver_brokerstate", "3 if registered, else 1", state)


def _counts_of_replicas(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield name, text and value."""
    replicas = node.replicas
    yield ("partitioncount", "Replicas on this broker", len(replicas.partitions))
    yield ("offlinereplicacount", "Replicas with a failed or damaged log", replicas.offline_replicas)
    yield (
        "failedpartitionscount",
        "Replicas that cannot follow their leader, or are damaged without an intact copy elsewhere",
        len(failed_partitions(replicas)),
    )
    yield (
        "damagedpartitionscount",
        "Replicas with damage in their logs",
        len(replicas.damaged.known) + len(node.logs.damaged),
    )
    yield ("delayedoperations", "Waiting requests", replicas.waiting.count)


def _counts_of_partitions(now_ms: int) -> Iterator[tuple[str, str, Callable[[Partition], int]]]:
    """Yield name, text, and what a partition adds to the value."""
    yield ("leadercount", "Partitions that this broker leads", lambda each: each.is_leader)
    yield (
        "underreplicatedpartitions",
        "Led partitions with replicas out of sync",
        lambda each: each.is_under_replicated,
    )
    yield (
        "underminisrpartitioncount",
        "Led partitions with too few replicas in sync for acks=all",
        lambda each: each.is_under_min_isr,
    )
    yield (
        "atminisrpartitioncount",
        "Led partitions with the minimum of replicas in sync for acks=all",
        lambda each: each.is_at_min_isr,
    )
    yield (
        "partitionswithlatetransactionscount",
        "Led partitions with a transaction that nothing has ended for 20 minutes",
        lambda each: bool(hanging_transactions_of(each, now_ms)),
    )
    yield (
        "recordsatrisk",
        "Committed offsets of the replicas on this broker that a power cut of it could take",
        lambda each: at_risk(each.log),
    )


def _behind(partition: Partition) -> int:
    """Return by how many records the slowest follower is behind; all of them until it has fetched."""
    log = partition.log
    ends = (each.log_end_offset for each in partition.remote_replicas.values())
    return log.log_end_offset - max(min(ends, default=log.log_end_offset), log.log_start_offset)


def _of_controller(node: Node) -> Iterator[Metric]:
    prefix = "kafka_controller_kafkacontroller_"
    context = node.controller.context
    yield gauge(prefix + "activecontrollercount", "1 on the controller", int(context is not None))
    if context is None:
        return
    leaders = {each: known.state.leader for each, known in context.states.items()}
    without_leader = sum(leader == NO_LEADER for leader in leaders.values())
    not_preferred = sum(
        leaders.get(each, replicas[0]) != replicas[0] for each, replicas in context.replicas.items()
    )
    yield from gauges(
        prefix,
        ("offlinepartitionscount", "Partitions without a leader", without_leader),
        ("preferredreplicaimbalancecount", "Partitions not led by their preferred replica", not_preferred),
        ("globaltopiccount", "Topics in the cluster", len(context.topics)),
        ("globalpartitioncount", "Partitions in the cluster", len(context.replicas)),
        ("activebrokercount", "Registered brokers", len(context.brokers)),
    )


def _of_logs(node: Node) -> Iterator[Metric | None]:
    sources: tuple[tuple[str, str, Callable[[Log], int]], ...] = (
        ("size", "Bytes in the segments", lambda log: log.size),
        ("logstartoffset", "First offset", lambda log: log.log_start_offset),
        ("logendoffset", "Offset after the last record", lambda log: log.log_end_offset),
        ("numlogsegments", "Segments", lambda log: len(log.partition.segments)),
    )
    logs = list(node.logs.logs().items())
    for name, text, value in sources:
        family = GaugeMetricFamily("kafka_log_log_" + name, text, labels=["topic", "partition"])
        for number, ((topic, partition), log) in enumerate(logs):
            if not number % _AT_ONCE:
                yield None
            family.add_metric([topic, str(partition)], value(log))
        yield family
    ends = GaugeMetricFamily(
        "kafka_topic_partition_current_offset",
        "High watermark of a partition that this broker leads",
        labels=["topic", "partition"],
    )
    for number, ((topic, partition), replica) in enumerate(list(node.replicas.partitions.items())):
        if not number % _AT_ONCE:
            yield None
        if replica.is_leader:
            ends.add_metric([topic, str(partition)], replica.log.high_watermark)
    yield ends
    yield from _of_log_dirs(node, [log for _, log in logs])
    failed = len(node.logs.offline_dirs)
    yield gauge("kafka_log_logmanager_offlinelogdirectorycount", "Failed log dirs", failed)
    full = len(node.replicas.full_dirs.since_ms)
    yield gauge("kafka_log_logmanager_fulllogdirectorycount", "Log dirs without room for an append", full)
    yield gauge(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "Partitions whose last compaction failed",
        len(node.logs.cleaner.failed),
    )
    moves = node.logs.moves.under_way.values()
    moving = "Logs on their way to another log dir of the broker"
    yield gauge("logstore_logdir_moves", moving, len(moves))
    hanging = sum(bool(each.problem) for each in moves)
    yield gauge("logstore_logdir_moves_hanging", "Moves between log dirs that cannot continue", hanging)


def _of_log_dirs(node: Node, logs: Sequence[Log]) -> Iterator[Metric | None]:
    free = GaugeMetricFamily(
        "logstore_logdir_free_bytes", "Free bytes of the log dir's file system", labels=["logdir"]
    )
    size = GaugeMetricFamily(
        "logstore_logdir_size_bytes", "Bytes of the logs in a log dir", labels=["logdir"]
    )
    held = Counter[str]()
    for number, log in enumerate(logs):
        if not number % _AT_ONCE:
            yield None
        held[log.partition.directory.rpartition("/")[0]] += log.size
    for path in node.logs.log_dirs:
        if path not in node.logs.offline_dirs:
            free.add_metric([path], max(node.logs.room(path).free, 0))
            size.add_metric([path], held[path])
    yield from (free, size)

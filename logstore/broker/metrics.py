"""What a broker tells those who watch it, under the names that Kafka's exporters made usual.

    kafka_server_replicamanager_underreplicatedpartitions      read off the engine when somebody asks
    kafka_network_requestmetrics_requests_total{request=…}     counted as requests go by (`Traffic`)

Counting costs an addition or two a request; families are made, and text of them, only for who scrapes.
`docs/operators.md` lists all names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

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
from logstore.replication.messages import NO_LEADER
from logstore.replication.node import Node
from logstore.replication.state_change import Side, StateChange


class Watched(Protocol):
    """What is told of: the node once it is there, how many connections, what went through them."""

    @property
    def traffic(self) -> Traffic: ...

    @property
    def connections(self) -> int: ...

    @property
    def refused_connections(self) -> int: ...

    @property
    def elections(self) -> Elections: ...

    @property
    def node(self) -> Node | None: ...

    @property
    def groups(self) -> Coordinator | None: ...


class Elections:
    """What this broker decided while it was the controller: hand it every state change."""

    def __init__(self) -> None:
        self.leaders = 0
        self.unclean = 0

    def __call__(self, change: StateChange) -> None:
        """Take note; a sink of state changes."""
        if change.side is Side.CONTROLLER and change.change.startswith("elects a leader"):
            self.leaders += 1
            self.unclean += change.change != "elects a leader"


class _Collector:
    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def collect(self) -> Iterator[Metric]:
        yield from _of_traffic(self._watched.traffic)
        yield _gauge(
            "kafka_server_socketservermetrics_connection_count",
            "Connections that are open",
            self._watched.connections,
        )
        yield _counter(
            "kafka_server_socketservermetrics_connections_refused",
            "Connections cut off as they came: there were too many",
            self._watched.refused_connections,
        )
        elections, prefix = self._watched.elections, "kafka_controller_controllerstats_"
        yield _counter(prefix + "leaderelections", "Leaders elected by this controller", elections.leaders)
        yield _counter(
            prefix + "uncleanleaderelections", "Of these, leaders from outside the ISR", elections.unclean
        )
        if (node := self._watched.node) is not None:
            yield from _of_replicas(node)
            yield from _of_controller(node)
            yield from _of_logs(node)
        if (groups := self._watched.groups) is not None:
            yield from _of_groups(groups)

    def describe(self) -> list[Metric]:
        return []


def page(watched: Watched) -> Page:
    """The text for Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Collector(watched))
    return Page(generate_latest(registry), CONTENT_TYPE_LATEST)


# --- families -----------------------------------------------------------------------------------


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _by(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key in sorted(counts):
        family.add_metric([key], counts[key])
    return family


def _of_traffic(traffic: Traffic) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "kafka_network_requestmetrics_requests", "Requests answered", labels=["request"]
    )
    times = HistogramMetricFamily(
        "kafka_network_requestmetrics_totaltime_seconds",
        "From a request's last byte to its answer; waiting counts",
        labels=["request"],
    )
    for request, buckets, seconds in traffic.times():
        requests.add_metric([request], sum(buckets))
        total, cumulated = 0, []
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], buckets, strict=True):
            total += count
            cumulated.append((bound, total))
        times.add_metric([request], cumulated, seconds)
    yield requests
    yield times
    errors = CounterMetricFamily(
        "kafka_network_requestmetrics_errors", "Errors in answers", labels=["request", "error"]
    )
    for (request, error), count in sorted(traffic.errors.items()):
        errors.add_metric([request, error], count)
    yield errors
    topics = "kafka_server_brokertopicmetrics_"
    yield _by(topics + "bytesin", "Bytes appended for clients", "topic", traffic.bytes_in)
    yield _by(topics + "messagesin", "Records appended for clients", "topic", traffic.messages_in)
    yield _by(topics + "bytesout", "Bytes given to consumers", "topic", traffic.bytes_out)
    yield _counter(topics + "replicationbytesout", "Bytes given to followers", traffic.replication_bytes_out)


def _of_replicas(node: Node) -> Iterator[Metric]:
    replicas, counters = node.replicas, node.replicas.counters
    partitions = replicas.partitions.values()
    prefix = "kafka_server_replicamanager_"
    gauges = {
        "partitioncount": ("Replicas here", len(partitions)),
        "leadercount": ("Led here", sum(each.is_leader for each in partitions)),
        "underreplicatedpartitions": (
            "Led here with replicas out of sync",
            replicas.under_replicated_partitions,
        ),
        "underminisrpartitioncount": (
            "Led here with too few in sync for acks=all",
            replicas.under_min_isr_partitions,
        ),
        "atminisrpartitioncount": (
            "Led here with just enough in sync for acks=all",
            replicas.at_min_isr_partitions,
        ),
        "offlinereplicacount": ("Replicas whose log failed or is damaged", replicas.offline_replicas),
        "failedpartitionscount": (
            "Followed no more until the controller speaks",
            len(replicas.followers.failed),
        ),
        "delayedoperations": ("Requests that wait for something to happen", replicas.waiting.count),
    }
    for name, (text, value) in gauges.items():
        yield _gauge(prefix + name, text, value)
    yield _counter(
        "kafka_server_brokertopicmetrics_replicationbytesin",
        "Bytes taken over from leaders",
        counters.replicated_bytes,
    )
    totals = {
        "isrshrinks": ("Replicas left an ISR", counters.isr_shrinks),
        "isrexpands": ("Replicas joined an ISR", counters.isr_expands),
        "leaderelectionswon": ("Leaderships that this broker took up", counters.elections_won),
        "truncations": ("Times that a follower cut its log", counters.truncations),
        "recordstruncated": ("Records cut by followers", counters.records_truncated),
        "truncationsbelowhighwatermark": (
            "Cuts of what had been committed: after unclean elections or lost disks",
            counters.truncations_below_high_watermark,
        ),
    }
    for name, (text, value) in totals.items():
        yield _counter(prefix + name, text, value)
    state = 3 if node.broker_epoch >= 0 else 1
    yield _gauge("kafka_server_kafkaserver_brokerstate", "3 when registered, 1 before", state)


def _of_controller(node: Node) -> Iterator[Metric]:
    prefix = "kafka_controller_kafkacontroller_"
    context = node.controller.context
    yield _gauge(prefix + "activecontrollercount", "1 on the controller", int(context is not None))
    if context is None:
        return
    leaders = {each: known.state.leader for each, known in context.states.items()}
    yield _gauge(
        prefix + "offlinepartitionscount",
        "Partitions that nobody leads",
        sum(leader == NO_LEADER for leader in leaders.values()),
    )
    yield _gauge(
        prefix + "preferredreplicaimbalancecount",
        "Partitions that another than the preferred replica leads",
        sum(leaders.get(each, replicas[0]) != replicas[0] for each, replicas in context.replicas.items()),
    )
    yield _gauge(prefix + "globaltopiccount", "Topics in the cluster", len(context.topics))
    yield _gauge(prefix + "globalpartitioncount", "Partitions in the cluster", len(context.replicas))
    yield _gauge(prefix + "activebrokercount", "Brokers that are registered", len(context.brokers))


def _of_logs(node: Node) -> Iterator[Metric]:
    labels = ["topic", "partition"]
    size = GaugeMetricFamily("kafka_log_log_size", "Bytes in the segments", labels=labels)
    start = GaugeMetricFamily("kafka_log_log_logstartoffset", "The first offset", labels=labels)
    end = GaugeMetricFamily("kafka_log_log_logendoffset", "The offset after the last", labels=labels)
    segments = GaugeMetricFamily("kafka_log_log_numlogsegments", "Segments", labels=labels)
    for topic_partition, log in sorted(node.logs.logs().items()):
        values = [topic_partition.topic, str(topic_partition.partition)]
        size.add_metric(values, log.size)
        start.add_metric(values, log.log_start_offset)
        end.add_metric(values, log.log_end_offset)
        segments.add_metric(values, len(log.segments))
    yield from (size, start, end, segments)
    yield _gauge(
        "kafka_log_logmanager_offlinelogdirectorycount", "Log dirs that failed", len(node.logs.offline_dirs)
    )


def _of_groups(groups: Coordinator) -> Iterator[Metric]:
    prefix = "kafka_coordinator_group_groupmetadatamanager_"
    states = groups.states
    yield _gauge(prefix + "numgroups", "Groups that this broker coordinates", states.total())
    for state in State:
        name = f"{prefix}numgroups{state.value.lower()}"
        yield _gauge(name, f"Of these, groups in state {state.value}", states[state])
    yield _gauge(prefix + "numoffsets", "Committed offsets of these groups", groups.committed_offsets)
    yield _gauge(
        prefix + "loadingpartitions",
        "Partitions of __consumer_offsets led here whose groups are not served yet, or cannot be",
        groups.loading,
    )

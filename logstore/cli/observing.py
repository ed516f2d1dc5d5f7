"""Reads the facts for `health` and `why`: from brokers, the metadata store, a group's coordinator."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from logstore.broker.errors import AuthenticationFailed, RequestRefused, RequestUnanswered
from logstore.broker.groups.served import OFFSETS_TOPIC, partition_for
from logstore.broker.wire import types as t
from logstore.cli.broker_operator import MIN_ISR, TOPIC, BrokerOperator, described_settings, min_isr_in
from logstore.cli.brokers import Brokers
from logstore.cli.clocks import Clock, clock
from logstore.cli.cluster_state import Cluster
from logstore.cli.group_explanations import STABLE, ObservedGroup, Progress
from logstore.cli.group_facts import Member, committed_offsets, membership
from logstore.cli.log_dirs import LogDir
from logstore.cli.operating import pause
from logstore.cli.store_operator import StoreOperator, own_min_isr
from logstore.cli.throttles import LISTS, topics_with_lists
from logstore.cli.troubles import Observed, Since
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition, parse_directory_name
from logstore.replication.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

PATIENCE_S: Final = 5.0
"""The time without an answer after which a broker counts as silent."""
_PASSING: Final = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


def observe(brokers: Brokers, *, patience_s: float = PATIENCE_S) -> Observed:
    """Ask the brokers of a cluster, each for its log dirs. Raises `RequestUnanswered` if none answers."""
    cluster = _cluster(brokers)
    settings: dict[str, list[t.DescribeConfigsResponseDescribeConfigsResourceResult]] = {}
    store_error = ""
    try:
        settings = described_settings(
            brokers, TOPIC, list(cluster.topics), keys=[MIN_ISR, *LISTS], timeout_s=PATIENCE_S
        )
    except AuthenticationFailed:
        raise
    except RequestUnanswered:
        store_error = f"brokers answer, but read no setting in the store for {PATIENCE_S:.0f} s"
    dirs: list[LogDir] = []
    damaged: dict[int, Mapping[str, str]] = {}
    silent: dict[int, str] = {}
    since: dict[str, Since] = {}
    departures: dict[int, tuple[int, ...]] = {}
    clocks: dict[int, Clock] = {}
    transactions: dict[TopicPartition, Since] = {}
    for broker in sorted(cluster.brokers):
        asked_ms = _now_ms()
        try:
            answer = brokers.log_dirs(broker, timeout_s=patience_s)
        except RequestUnanswered as error:
            silent[broker] = str(error)
            continue
        dirs += [_log_dir(broker, each) for each in answer.results]
        transactions |= _hanging(answer)
        damaged[broker] = {each.name: each.problem for each in answer.damaged}
        if answer.now_ms >= 0:
            clocks[broker] = clock(asked_ms, answer.now_ms, _now_ms())
        for left in answer.departures:
            seen = tuple(left.times_ms)
            departures[left.broker] = max(departures.get(left.broker, ()), seen, key=len)
        for each in answer.since:
            known = since.get(each.name)
            if known is None or each.since_ms > known.since_ms:
                since[each.name] = Since(each.since_ms, each.reason)
    min_isr = min_isr_in(settings)
    listed = brokers.any(t.DescribeClusterRequest())
    stopping = frozenset(each.broker_id for each in listed.brokers if each.is_stopping)
    lists = {
        topic: {each.name: each.value for each in found if each.name in LISTS and each.value}
        for topic, found in settings.items()
    }
    listing = {name: replace(topic, config=lists.get(name, {})) for name, topic in cluster.topics.items()}
    answering = sorted(cluster.brokers.keys() - silent.keys())
    rates = BrokerOperator(brokers).replication_rates(answering) if any(lists.values()) else {}
    cluster = replace(cluster, topics=listing)
    return Observed(
        cluster,
        min_isr,
        tuple(dirs),
        silent,
        damaged,
        stopping,
        rates,
        store_error,
        since,
        departures,
        clocks,
        _now_ms(),
        transactions,
    )


def hanging_transactions(brokers: Brokers, asked: Iterable[int]) -> dict[TopicPartition, Since]:
    """Return the transactions that hang in partitions that these brokers lead; a silent one is left out."""
    found: dict[TopicPartition, Since] = {}
    for broker in asked:
        try:
            found |= _hanging(brokers.log_dirs(broker, timeout_s=PATIENCE_S))
        except RequestUnanswered:
            continue  # it is a trouble of its own
    return found


def _hanging(answer: t.DescribeLogDirsResponse) -> dict[TopicPartition, Since]:
    return {
        parse_directory_name(each.name): Since(each.since_ms, each.reason) for each in answer.transactions
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _log_dir(broker: int, each: t.DescribeLogDirsResponseDescribeLogDirsResult) -> LogDir:
    found = {
        TopicPartition(topic.name, one.partition_index): one
        for topic in each.topics
        for one in topic.partitions
        if not one.is_future_key
    }
    return LogDir(
        broker,
        each.log_dir,
        ErrorCode(each.error_code).name if each.error_code else "",
        each.total_bytes,
        each.usable_bytes,
        frozenset(found),
        each.problem,
        {where: one.partition_size for where, one in found.items()},
        {
            TopicPartition(topic.name, one.partition_index): end
            for topic in each.topics
            for one, end in zip(topic.partitions, topic.end_offsets, strict=False)
            if not one.is_future_key
        },
        {parse_directory_name(one.name): one.problem for one in each.hanging},
    )


def observe_store(store: StoreOperator) -> Observed:
    """Read the metadata store: what brokers alone know (log dirs, damage, silence) is missing."""
    cluster = store.read(settings=True)
    min_isr = own_min_isr(cluster)
    listed = topics_with_lists(cluster, cluster.topics)
    rates = store.replication_rates(sorted(cluster.brokers)) if listed else {}
    return Observed(cluster, min_isr, rates=rates)


def observe_group(brokers: Brokers, group: str, watch_s: float) -> ObservedGroup:
    """Observe one group, as `observe_groups`."""
    return observe_groups(brokers, [group], watch_s)[0]


def observe_groups(
    brokers: Brokers, names: Iterable[str], watch_s: float, cluster: Cluster | None = None
) -> list[ObservedGroup]:
    """Query the groups' coordinators; read the offsets of stable groups twice, at most `watch_s` apart.

    The second look ends as soon as every partition that a member reads, and that lags, has moved. `cluster`
    is one that was just read.
    """
    cluster = cluster or _cluster(brokers)
    groups = [_first_look(brokers, name, cluster) for name in names]
    began = time.monotonic()
    pending = [each for each in groups if each.state == STABLE]
    while pending and time.monotonic() < began + watch_s:
        pause()
        for each in pending:
            looked = _second_look(brokers, each, time.monotonic() - began)
            groups[groups.index(each)] = looked
        pending = [each for each in groups if each.state == STABLE and _stands_still(each)]
    return groups


def group_names(brokers: Brokers, asked: Iterable[int]) -> list[str]:
    """Return the names of the groups that these brokers coordinate; a broker that is silent is left out."""
    found: set[str] = set()
    for broker in asked:
        try:
            answer = brokers.broker(broker, t.ListGroupsRequest(), timeout_s=PATIENCE_S)
        except RequestUnanswered:
            continue  # it is a trouble of its own
        found |= {str(each.group_id) for each in answer.groups}
    return sorted(found)


def _first_look(brokers: Brokers, group: str, cluster: Cluster) -> ObservedGroup:
    home = _home(cluster, group)
    try:
        found, members = _described(brokers, group)
        committed = committed_offsets(brokers, group)
    except (RequestRefused, RequestUnanswered) as error:
        return ObservedGroup(group, refusal=str(error), home=home)
    known = {*committed, *(where for member in members for where in member.partitions)}
    led = {where for where in known if where in cluster.states}
    leaderless = frozenset(where for where in led if cluster.states[where].leader not in cluster.brokers)
    ends = _ends(brokers, led - leaderless)
    starts = _starts(brokers, [each for each, end in ends.items() if (end or 0) > committed.get(each, 0)])
    return ObservedGroup(
        group,
        found.group_state,
        home=home,
        coordinator=cluster.states[home].leader if home is not None else -1,
        members=tuple(members),
        offsets={
            where: Progress(at := committed.get(where), at, end := ends.get(where), end, starts.get(where))
            for where in known
        },
        leaderless=leaderless,
        since_ms=found.state_since_ms,
        round_ends_ms=found.round_ends_ms,
    )


def _second_look(brokers: Brokers, group: ObservedGroup, watched_s: float) -> ObservedGroup:
    committed = committed_offsets(brokers, group.name)
    ends = _ends(brokers, [where for where, each in group.offsets.items() if each.first_end is not None])
    offsets = {
        where: each._replace(committed=committed.get(where), end=ends.get(where))
        for where, each in group.offsets.items()
    }
    return replace(group, offsets=offsets, watched_s=watched_s)


def _stands_still(group: ObservedGroup) -> bool:
    read = {where for member in group.members for where in member.partitions}
    known = [group.offsets[where] for where in read if where in group.offsets]
    return any(each.stands_still for each in known)


def _cluster(brokers: Brokers) -> Cluster:
    return BrokerOperator(brokers).read(may_lack_controller=True)


def _home(cluster: Cluster, group: str) -> TopicPartition | None:
    """Return the partition that keeps the group; None if the topic of offsets is not there yet."""
    topic = cluster.topics.get(OFFSETS_TOPIC)
    count = len(topic.assignment.partitions) if topic is not None else 0
    return TopicPartition(OFFSETS_TOPIC, partition_for(group, count)) if count else None


def _described(brokers: Brokers, group: str) -> tuple[t.DescribeGroupsResponseDescribedGroup, list[Member]]:
    """Ask until the coordinator serves the group: it may just move, or the topic of offsets be made."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return membership(brokers, group)
        except RequestRefused as error:
            if error.error not in _PASSING or time.monotonic() > end:
                raise
        pause()


def _ends(brokers: Brokers, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
    return brokers.offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP))


def _starts(brokers: Brokers, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
    return brokers.offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))

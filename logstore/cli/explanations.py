"""The state of one subject, its explanation and the next step: pure functions of the cluster's state.

    explain_partition, explain_broker, explain_cluster      over an `Observed` (`troubles.py`)
    explain_group                                           `group_explanations.py`

An explanation says more than `health`: also what is in order, and what concerns this one thing only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from logstore.cli.causes import causes
from logstore.cli.cluster_plans import is_unavailable, is_under_replicated
from logstore.cli.trouble import ITSELF, Rank, Trouble
from logstore.cli.troubles import DRAINED, Observed, listed, of_the_store, troubles
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.state_change import format_time
from logstore.wording import counted

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state of `subject`, the evidence for it, since when (UTC; empty if unknown), and what is wrong."""

    subject: str
    state: str
    evidence: str
    since: str = ""
    troubles: tuple[Trouble, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong; operations in progress do not count."""
        return all(each.rank >= Rank.UNDER_WAY for each in self.troubles)

    def facts(self) -> dict[str, object]:
        """Return it as an object for JSON, without its problems."""
        return {
            "subject": self.subject,
            "state": self.state,
            "since": self.since or None,
            "evidence": self.evidence,
            "is_sound": self.is_sound,
        }


def explain_partition(observed: Observed, each: TopicPartition) -> Explanation | None:
    """Explain a partition; None if the cluster has none of this name."""
    cluster = observed.cluster
    replicas = dict(cluster.partitions()).get(each)
    if replicas is None and each.topic in cluster.doomed:
        everything = troubles(observed)
        roots = {
            root for known in everything if known.subject == f"topic {each.topic}" for root in known.roots
        }
        wanted = {f"topic {each.topic}", *roots}
        of_topic = tuple(known for known in everything if known.subject in wanted)
        evidence = f"brokers no longer list the topic {each.topic}; the controller still deletes it"
        return Explanation(str(each), "being deleted", evidence, troubles=of_topic)
    if replicas is None:
        return None
    state = cluster.states.get(each)
    if state is None:
        said = f"no state yet  replicas {listed(replicas)}"
    else:
        said = (
            f"leader {state.leader}  epoch {state.leader_epoch}  replicas {listed(replicas)}  "
            f"isr {listed(state.isr)}"
        )
    found = tuple(trouble for trouble in troubles(observed) if each in trouble.partitions)
    return Explanation(str(each), said, "the metadata of the cluster", _since(observed, str(each)), found)


def explain_broker(observed: Observed, broker: int) -> Explanation | None:
    """Explain a broker; None if it is not registered and holds no replica."""
    from logstore.broker.limits import Address

    cluster = observed.cluster
    hosted = [each for each, replicas in cluster.partitions() if broker in replicas]
    registered = cluster.brokers.get(broker)
    if registered is None and not hosted:
        return None
    led = [each for each in hosted if each in cluster.states and cluster.states[each].leader == broker]
    if registered is None:
        state = f"not registered; {counted(len(hosted), 'partition')} with a replica on it"
        evidence = f"the live brokers are {listed(sorted(cluster.brokers))}"
    else:
        state = f"registered; leads {len(led)} of the {len(hosted)} partitions that have a replica on it"
        is_controller = ", which is the controller" if cluster.controller == broker else ""
        evidence = f"the metadata lists it at {Address(registered.host, registered.port)}{is_controller}"
        if broker in observed.silent:
            state = f"registered, and silent; {counted(len(hosted), 'partition')} with a replica on it"
        elif broker in observed.stopping:
            state = f"shutting down; still leads {len(led)} of {len(hosted)} partitions"
    own = f"broker {broker}"
    found = [
        each for each in troubles(observed) if each.subject == own or each.subject.startswith(f"{own}, ")
    ]
    found += _of_its_replicas(observed, broker, hosted)
    return Explanation(
        own, state, evidence, _since(observed, own), tuple(sorted(found, key=lambda each: each.rank))
    )


def _since(observed: Observed, name: str) -> str:
    found = observed.since.get(name)
    return f"{format_time(found.since_ms)} UTC" if found is not None else ""


def _of_its_replicas(observed: Observed, broker: int, hosted: list[TopicPartition]) -> Iterable[Trouble]:
    cluster = observed.cluster
    is_up = broker in cluster.brokers and broker not in observed.silent
    states = {each: cluster.states[each] for each in hosted if each in cluster.states}
    orphans = [
        each for each, state in states.items() if is_unavailable(cluster, each) and broker in state.isr
    ]
    if orphans:
        yield Trouble(
            Rank.UNAVAILABLE,
            f"broker {broker}",
            f"{counted(len(orphans), 'partition')} without a leader need it: it is in their ISR",
            _named(orphans),
            f"look at its log dirs and its log: logstore why {orphans[0]}"
            if is_up
            else f"start broker {broker}",
            frozenset(orphans),
            no_help="a preferred election, or restarting other brokers: only a replica in the ISR may lead",
        )
    behind = [
        each
        for each, state in states.items()
        if broker not in state.isr and each not in orphans and not is_unavailable(cluster, each)
    ]
    if behind and is_up and broker in observed.stopping:
        yield Trouble(
            Rank.AT_RISK,
            f"broker {broker}",
            f"its replicas of {counted(len(behind), 'partition')} are not in sync",
            f"it is not in the ISR of {_named(behind)}, and the controller counts it as stopping",
            DRAINED.format(broker),
            frozenset(behind),
            waits_for=f"the end of broker {broker}'s process",
            acts="you, if it was drained; else nobody",
            no_help="waiting for its replicas: it joins no ISR before it is restarted",
        )
    elif behind:
        yield Trouble(
            Rank.AT_RISK,
            f"broker {broker}",
            f"its replicas of {counted(len(behind), 'partition')} are not in sync",
            f"it is not in the ISR of {_named(behind)}",
            "wait: it fetches, and joins when it has caught up. If the list does not get shorter, "
            "look at its log, "
            f"its disk, and logstore why {behind[0]}"
            if is_up
            else f"fix why broker {broker} ends: once it stays up, it catches up automatically"
            if observed.restarts(broker)
            else f"start broker {broker}: it catches up automatically",
            frozenset(behind),
            waits_for="the records that it lacks" if is_up else f"broker {broker}",
            acts=ITSELF if is_up else "you",
            no_help="restarting it again: it would start to catch up from the beginning",
        )
    preferring = [
        each
        for each, replicas in cluster.partitions()
        if replicas[0] == broker and each in states and broker in states[each].isr
    ]
    led = [each for each in preferring if states[each].leader == broker]
    if is_up and preferring and not led and broker not in observed.stopping:
        yield Trouble(
            Rank.UNDER_WAY,
            f"broker {broker}",
            f"it leads none of {counted(len(preferring), 'partition')} that prefer it, though it is in sync",
            f"another replica leads {_named(preferring)}, as after a restart or a drain",
            f"logstore elect-preferred {preferring[0]} …; or wait, if auto.leader.rebalance.enable=true",
            frozenset(preferring),
            waits_for="an election of preferred leaders",
            acts="you, or the controller at its next rebalancing",
            no_help="restarting the broker",
        )


def explain_cluster(observed: Observed, *, every: bool = False) -> Explanation:
    """Explain a cluster: its controller, its brokers, and all that is wrong, worst first.

    With `every`, each partition has troubles of its own; else they are grouped by their causes.
    """
    cluster = observed.cluster
    partitions = [each for each, _ in cluster.partitions()]
    dark = sum(is_unavailable(cluster, each) for each in partitions)
    short = sum(
        is_under_replicated(cluster, each) and not is_unavailable(cluster, each) for each in partitions
    )
    known = {broker for _, replicas in cluster.partitions() for broker in replicas}
    missing = sorted(known - cluster.brokers.keys())
    found = tuple(troubles(observed) if every else causes(troubles(observed)))
    controller = "no controller" if cluster.controller is None else f"controller {cluster.controller}"
    state = f"{controller}, {counted(len(cluster.brokers), 'broker')} up, {len(missing)} missing; " + (
        f"{counted(len(partitions), 'partition')}: {dark} without a leader, {short} not fully in sync"
    )
    evidence = f"live brokers {listed(sorted(cluster.brokers))}"
    if missing:
        evidence += f"; brokers {listed(missing)} have replicas, and are not registered"
    return Explanation("cluster", state, evidence, troubles=found)


def store_unreachable(error: str) -> Explanation:
    """Explain a cluster whose metadata store does not answer."""
    state = "unknown: the metadata store does not answer"
    return Explanation("cluster", state, error, troubles=(of_the_store(error),))


def nobody_answers(error: str) -> Explanation:
    """Explain a cluster of which no broker answers."""
    trouble = Trouble(
        Rank.UNAVAILABLE,
        "brokers",
        "none of the given ones answers",
        error,
        "check --bootstrap, and whether the processes run; ask the store with --metadata, or name "
        "other brokers",
        waits_for="a broker",
        no_help="clients that try again with the same addresses",
    )
    return Explanation("cluster", "unknown: no broker answers", error, troubles=(trouble,))


def _named(partitions: list[TopicPartition]) -> str:
    more = len(partitions) - _MOST_NAMED
    return ", ".join(map(str, partitions[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")

"""What is wrong with a cluster, worst first: pure functions over what its brokers report.

Each trouble names what it is about, what follows from it, the evidence, what it waits for, who has to act,
the next step, and what would not help. The rules are those of replication (docs/replication.md): a leader
comes from the ISR, a write with `acks=all` needs `min.insync.replicas` of it, and a follower that is behind
leaves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from logstore.cli.cluster_plans import is_unavailable, is_under_replicated
from logstore.cli.cluster_state import Cluster
from logstore.cli.throttles import Rates, throttle_of, told
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore.layout import LeaderAndIsr

NEARLY_FULL = 0.05
"""The share of free bytes below which a log dir's disk counts as nearly full."""
OPERATOR = "you"
ITSELF = "nobody: it goes on by itself"
"""Who has to act."""


class Rank(IntEnum):
    """How bad a trouble is."""

    UNAVAILABLE = 0
    REFUSES_WRITES = 1
    AT_RISK = 2
    UNDER_WAY = 3


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong, or under way."""

    rank: Rank
    subject: str
    """a partition, a broker, a log dir or the cluster"""
    says: str
    evidence: str
    next_step: str
    partitions: frozenset[TopicPartition] = frozenset()
    """the partitions that it explains"""
    waits_for: str = ""
    acts: str = OPERATOR
    no_help: str = ""
    """what would not help"""


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log dir as its broker reports it; sizes in bytes, -1 if unknown. `problem`: brokers of ours only."""

    broker: int
    path: str
    error: str = ""
    total_bytes: int = -1
    usable_bytes: int = -1
    replicas: frozenset[TopicPartition] = frozenset()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """What was read of a cluster.

    `silent`: live brokers that do not answer, and why. `damaged`: by broker, the replicas that are damaged or
    cannot follow, and why. `stopping`: brokers in a controlled shutdown. Brokers of ours report these two.
    `rates`: the replication throttles of brokers.
    """

    cluster: Cluster
    min_isr: Mapping[str, int]
    log_dirs: tuple[LogDir, ...] = ()
    silent: Mapping[int, str] = field(default_factory=dict)
    damaged: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    stopping: frozenset[int] = frozenset()
    rates: Mapping[int, Rates] = field(default_factory=dict)


def troubles(observed: Observed) -> list[Trouble]:
    """Return all troubles, worst first; of the same rank, first those that explain more partitions."""
    found = [*_of_the_cluster(observed), *_of_brokers(observed), *_of_log_dirs(observed)]
    for each, replicas in observed.cluster.partitions():
        found += _of_partition(observed, each, replicas)
    return sorted(found, key=lambda each: (each.rank, -len(each.partitions), each.subject))


_MAKE_ROOM = "lower retention.ms or retention.bytes of large topics, move replicas away, or add room"
_FREE = "remove a forgotten throttle with logstore reassign verify PLAN."
_FASTER = "wait, or raise the rate: logstore reassign execute PLAN --additional --throttle BYTES_PER_S"
_BY_HAND = "deleting segments by hand: the logs would be damaged"


def _of_the_cluster(observed: Observed) -> Iterator[Trouble]:
    cluster = observed.cluster
    if cluster.controller is None:
        yield Trouble(
            Rank.UNAVAILABLE,
            "cluster",
            "no controller is active: nobody elects leaders or carries out requests",
            "the metadata names no controller",
            "start a broker, and check that the metadata store answers",
            frozenset(each for each, _ in cluster.partitions()),
            waits_for="a broker that has a session with the metadata store",
            no_help="restarting brokers while the store is down: they cannot register, and those "
            "that lead stop",
        )
    for name in sorted(cluster.doomed.keys() - cluster.topics.keys()):
        # Brokers no longer list its partitions; only the controller knows of it.
        yield _deletion(cluster, name, f"topic {name}")
    for node, why in sorted(cluster.unreadable.items()):
        yield Trouble(Rank.AT_RISK, node, "it cannot be read", why, "mend or remove it")


def _of_brokers(observed: Observed) -> Iterator[Trouble]:
    hosted: dict[int, set[TopicPartition]] = {}
    for each, replicas in observed.cluster.partitions():
        for broker in replicas:
            hosted.setdefault(broker, set()).add(each)
    for broker, partitions in sorted(hosted.items()):
        if broker not in observed.cluster.brokers:
            yield Trouble(
                Rank.AT_RISK,
                f"broker {broker}",
                f"it is down, and holds replicas of {len(partitions)} partitions",
                "the cluster lists no such live broker",
                f"start broker {broker}; if it is gone for good, start an empty one with its id, or move its "
                "replicas with logstore reassign",
                frozenset(partitions),
                waits_for=f"broker {broker}",
                no_help="waiting, or an election: the replicas on it come back with it alone",
            )
    for broker, why in sorted(observed.silent.items()):
        yield Trouble(
            Rank.AT_RISK,
            f"broker {broker}",
            "it is registered, but does not answer",
            why,
            "look at its process: it may be paused, overloaded, or advertise an address that is not its own",
            frozenset(hosted.get(broker, ())),
            waits_for=f"broker {broker}",
            no_help="restarting the brokers that answer",
        )
    for broker, damaged in sorted(observed.damaged.items()):
        for name, why in sorted(damaged.items()):
            yield Trouble(
                Rank.AT_RISK,
                f"broker {broker}, {name}",
                "the replica cannot be used fully",
                why,
                "if other replicas are sound wait: the broker mends it from them. Else stop the "
                "broker, and look "
                "at the partition's directory with logstore verify",
                frozenset(each for each in hosted.get(broker, ()) if str(each) == name),
                waits_for="a sound replica on another broker",
                acts="the broker, while another replica is sound; else you",
                no_help="restarting the broker, or deleting files by hand",
            )
    for broker in sorted(observed.stopping):
        led = [each for each, state in observed.cluster.states.items() if state.leader == broker]
        yield Trouble(
            Rank.UNDER_WAY,
            f"broker {broker}",
            "it is shutting down, and hands its leaderships on",
            f"the controller counts it as stopping; it leads {len(led)} partitions",
            "wait. What no other replica in sync can lead loses its leader when the broker ends"
            if led
            else "wait: its process ends",
            frozenset(led),
            waits_for="other replicas in sync" if led else "",
            acts=ITSELF,
            no_help="killing it: its logs would be recovered at the next start",
        )


def _of_log_dirs(observed: Observed) -> Iterator[Trouble]:
    for each in observed.log_dirs:
        where = f"broker {each.broker}, {each.path}"
        if each.error:
            yield Trouble(
                Rank.AT_RISK,
                where,
                "the log dir is offline: its replicas serve nothing",
                each.problem or each.error,
                "find the first error in the broker's log, mend or replace the disk, restart the broker",
                each.replicas,
                no_help="restarting the broker before the disk is mended: the log dir fails again",
            )
        elif each.problem:
            yield Trouble(
                Rank.REFUSES_WRITES,
                where,
                "the disk is full: appends are refused",
                each.problem,
                _MAKE_ROOM,
                each.replicas,
                waits_for="free space; the broker looks every second",
                no_help=_BY_HAND,
            )
        elif 0 <= each.usable_bytes < NEARLY_FULL * each.total_bytes:
            yield Trouble(
                Rank.AT_RISK,
                where,
                "the disk is nearly full: appends will be refused",
                f"{each.usable_bytes} of {each.total_bytes} bytes are free",
                _MAKE_ROOM,
                each.replicas,
                no_help=_BY_HAND,
            )


def _of_partition(observed: Observed, each: TopicPartition, replicas: tuple[int, ...]) -> Iterator[Trouble]:
    cluster = observed.cluster
    throttle = told(throttle_of(cluster, observed.rates, each))
    state = cluster.states.get(each)
    if each.topic in cluster.doomed:
        yield _deletion(cluster, each.topic, str(each), frozenset((each,)))
        return
    if is_unavailable(cluster, each):
        yield _no_leader(cluster, each, state)
    elif is_under_replicated(cluster, each):
        assert state is not None, "it has a leader"
        wanted = observed.min_isr.get(each.topic, 1)
        is_short = len(state.isr) < wanted
        missing = [broker for broker in replicas if broker not in state.isr]
        yield Trouble(
            Rank.REFUSES_WRITES if is_short else Rank.AT_RISK,
            str(each),
            f"writes with acks=all are refused: {len(state.isr)} replicas are in sync, {wanted} are needed"
            if is_short
            else f"{len(missing)} of {len(replicas)} replicas are not in sync",
            f"ISR {_listed(state.isr)} of replicas {_listed(replicas)}; "
            + "; ".join(_absence(observed, each, broker) for broker in missing)
            + (f"; {throttle}" if throttle else ""),
            f"{_FREE} {_bring_back(cluster, missing)}" if throttle else _bring_back(cluster, missing),
            frozenset((each,)),
            waits_for=f"broker {_listed(missing)}",
            acts=_who_acts(observed, missing),
            no_help="sending again until then; an unclean election, which brings no replica back"
            if is_short
            else "a preferred election: it moves the leader, and brings no replica back",
        )
    if adding := cluster.topics[each.topic].assignment.adding_replicas.get(each.partition):
        waits = [broker for broker in adding if state is None or broker not in state.isr]
        yield Trouble(
            Rank.UNDER_WAY,
            str(each),
            "it is being reassigned"
            + (" at a throttled rate" if throttle else "")
            + (f", and waits for broker {_listed(waits)}" if waits else ""),
            ("; ".join(_absence(observed, each, broker) for broker in waits) or f"adding {_listed(adding)}")
            + (f"; {throttle}" if throttle else ""),
            _bring_back(cluster, waits)
            if any(broker not in cluster.brokers for broker in waits)
            else _FASTER
            if throttle
            else "wait",
            frozenset((each,)),
            waits_for=f"broker {_listed(waits)}" if waits else "the controller",
            acts=_who_acts(observed, waits),
            no_help="executing the plan again; logstore reassign cancel ends it",
        )


def _no_leader(cluster: Cluster, each: TopicPartition, state: LeaderAndIsr | None) -> Trouble:
    isr = state.isr if state is not None else ()
    dead = [broker for broker in isr if broker not in cluster.brokers]
    if state is None:
        says, step = "it has no state yet: no controller has placed it", "check that a controller is active"
    elif dead == list(isr):
        says = f"it has no leader: every replica in sync is down ({_listed(dead)})"
        step = (
            f"start one of them: {_listed(dead)}. The other replicas may lack committed records. Only if "
            "these are gone for good: unclean.leader.election.enable=true elects another, and loses records"
        )
    else:
        alive = [broker for broker in isr if broker in cluster.brokers]
        says = f"it has no leader, though {_listed(alive)} of its ISR are up"
        step = f"look at the log dirs and the log of broker {alive[0]}: its replica may be offline or damaged"
    evidence = f"leader {state.leader if state is not None else -1}, ISR {_listed(isr)}"
    return Trouble(
        Rank.UNAVAILABLE,
        str(each),
        says,
        evidence,
        step,
        frozenset((each,)),
        waits_for=f"broker {_listed(isr)}" if isr else "the controller",
        no_help="a preferred election, or restarting other brokers: only a replica in the ISR may lead",
    )


def _deletion(
    cluster: Cluster, name: str, subject: str, partitions: frozenset[TopicPartition] = frozenset()
) -> Trouble:
    awaited = cluster.doomed[name] or "the controller"
    step = (
        "each replica's broker deletes its own log: start a broker that is not alive, mend a log dir that "
        "failed; else wait"
    )
    says = f"it is being deleted, and waits for {awaited}"
    return Trouble(
        Rank.UNDER_WAY,
        subject,
        says,
        f"the topic {name} is marked for deletion",
        step,
        partitions,
        waits_for=awaited,
        acts="you, if it waits for a broker that is not alive or cannot delete; else nobody",
        no_help="deleting the topic again, or removing its directories by hand",
    )


def _absence(observed: Observed, each: TopicPartition, broker: int) -> str:
    """Return why a replica is not in sync, as far as it is known."""
    if broker not in observed.cluster.brokers:
        return f"broker {broker} is down"
    if broker in observed.silent:
        return f"broker {broker} does not answer"
    if why := observed.damaged.get(broker, {}).get(str(each)):
        return f"on broker {broker}: {why}"
    if all(log_dir.broker != broker for log_dir in observed.log_dirs):
        return f"broker {broker} is up, and its log dirs are not known"
    for log_dir in observed.log_dirs:
        if log_dir.broker == broker and log_dir.error:
            return f"{log_dir.path} on broker {broker} is offline"
        if log_dir.broker == broker and each in log_dir.replicas:
            return f"broker {broker} is up and behind"
    return f"broker {broker} has no log of it"


def _bring_back(cluster: Cluster, missing: Iterable[int]) -> str:
    dead = [broker for broker in missing if broker not in cluster.brokers]
    if dead:
        return f"start broker {_listed(dead)}"
    return (
        "wait: a follower joins once it has caught up. If it does not, look at its broker's log, its disk, "
        "and replica.lag.time.max.ms"
    )


def _who_acts(observed: Observed, missing: Iterable[int]) -> str:
    unreachable = [
        each for each in missing if each not in observed.cluster.brokers or each in observed.silent
    ]
    return OPERATOR if unreachable else ITSELF


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"

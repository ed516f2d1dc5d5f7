"""The problems of a cluster, worst first: pure functions of its brokers' reports.

Each trouble names what it is about, what follows from it, the evidence, what it waits for, who has to act,
the next step, and what would not help. The rules are those of replication (docs/replication.md): a leader
comes from the ISR, a write with `acks=all` needs `min.insync.replicas` of it, and a follower that is behind
leaves it.

A trouble of a partition names its `roots`: the troubles of brokers and log dirs that explain it. `causes.py`
folds it into these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from logstore.cli.clocks import Clock, wrong_clocks
from logstore.cli.cluster_plans import is_unavailable, is_under_replicated
from logstore.cli.cluster_state import Cluster
from logstore.cli.log_dirs import LogDir, hanging
from logstore.cli.throttles import Rates, throttle_of, told
from logstore.cli.trouble import ITSELF, OPERATOR, Kind, Rank, Trouble
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.state_change import format_time
from logstore.wording import counted

TOO_OFTEN = 3
"""So many departures in ten minutes: the broker restarts again and again."""
STEADY_MS = 60_000
"""A broker that stays so long is well again."""
NEARLY_FULL = 0.05
"""The share of free bytes below which a log dir's disk counts as nearly full."""
DRAINED = "stop its process, or restart broker {}: after brokers drain it leads nothing new and joins no ISR"


class Since(NamedTuple):
    """When something began (epoch ms), and why, as reported by this library's brokers."""

    since_ms: int
    reason: str = ""

    def __str__(self) -> str:
        return f"since {format_time(self.since_ms)} UTC" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Observed:
    """The facts read about a cluster.

    `silent`: live brokers that do not answer, and why. `damaged`: by broker, the replicas that are damaged or
    cannot follow, and why. `stopping`: brokers in a controlled shutdown. Brokers of ours report these two.
    `rates`: the replication throttles of brokers. `store_error`: brokers answer, but not what they read in
    the metadata store. `since`: when what is wrong with a partition or a broker began, by its name.
    `departures`: when brokers have left in the last minutes (epoch ms, as `now_ms`, when it was read).
    `transactions`: by partition, its oldest transaction that no coordinator will end, and its last record.
    """

    cluster: Cluster
    min_isr: Mapping[str, int]
    log_dirs: tuple[LogDir, ...] = ()
    silent: Mapping[int, str] = field(default_factory=dict)
    damaged: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    stopping: frozenset[int] = frozenset()
    rates: Mapping[int, Rates] = field(default_factory=dict)
    store_error: str = ""
    since: Mapping[str, Since] = field(default_factory=dict)
    departures: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    clocks: Mapping[int, Clock] = field(default_factory=dict)
    now_ms: int = 0
    transactions: Mapping[TopicPartition, Since] = field(default_factory=dict)

    def restarts(self, broker: int) -> str:
        """Return how often a broker has left recently, if too often; empty if it has stayed for a while."""
        left_ms = self.departures.get(broker, ())
        is_steady = broker in self.cluster.brokers and self.now_ms - max(left_ms, default=0) > STEADY_MS
        if len(left_ms) < TOO_OFTEN or is_steady:
            return ""
        return f"it left the cluster {len(left_ms)} times since {format_time(left_ms[0])} UTC"


def troubles(observed: Observed) -> list[Trouble]:
    """Return all problems, worst first; within a rank, those that explain more partitions come first."""
    found = [*_of_the_cluster(observed), *_of_brokers(observed), *_of_log_dirs(observed)]
    found += [*_of_moves(observed), *of_transactions(observed.transactions)]
    for each, replicas in observed.cluster.partitions():
        found += _of_partition(observed, each, replicas)
    return in_order(_dated(observed, each) for each in found)


def _dated(observed: Observed, trouble: Trouble) -> Trouble:
    """Add since when a trouble is there, if a broker knows."""
    since = observed.since.get(trouble.subject)
    return trouble if since is None else replace(trouble, evidence=f"{trouble.evidence}; {since}")


def in_order(found: Iterable[Trouble]) -> list[Trouble]:
    """Sort problems, worst first; within a rank, those that explain more partitions come first."""
    return sorted(
        found,
        key=lambda each: (
            each.rank,
            -len(each.partitions),
            min(each.partitions, default=_NONE),
            each.subject,
        ),
    )


_NONE = TopicPartition("", 0)


_WHY_IT_ENDS = (
    "find and fix the reason: the last lines of its log before each start (logstore cluster logs DIR ID, "
    "journalctl -u logstore), or the kernel's log (out of memory)"
)
_CLOSED = "broke"
_MAKE_ROOM = (
    "lower retention.ms or retention.bytes of large topics, move replicas away, or add room. A lower "
    "retention frees the disk after another minute (file.delete.delay.ms)"
)
_FREE = "remove a forgotten throttle with logstore reassign verify PLAN."
_FASTER = "wait, or raise the rate: logstore reassign execute PLAN --additional --throttle BYTES_PER_S"
_BY_HAND = "deleting segments by hand: the logs would be damaged"


def of_the_store(error: str) -> Trouble:
    """Return the problem of a cluster whose metadata store does not answer."""
    return Trouble(
        Rank.UNAVAILABLE,
        "metadata store",
        "it does not answer: no broker can register, no leader be elected, and nothing be administered",
        error,
        "start the store, or a majority of its servers; check the address, the network and its disk",
        waits_for="the store",
        no_help="restarting brokers: they cannot register. Brokers whose session ends stop leading "
        "until the store is back",
    )


def _of_the_cluster(observed: Observed) -> Iterator[Trouble]:
    cluster = observed.cluster
    if observed.store_error:
        every = frozenset(each for each, _ in cluster.partitions())
        yield replace(of_the_store(observed.store_error), partitions=every)
    elif cluster.controller is None:
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
        yield Trouble(Rank.AT_RISK, node, "it cannot be read", why, "repair or remove it")


_Hosted: TypeAlias = dict[int, set[TopicPartition]]
"""The partitions with a replica on each broker."""


def _of_brokers(observed: Observed) -> Iterator[Trouble]:
    hosted: _Hosted = {}
    for each, replicas in observed.cluster.partitions():
        for broker in replicas:
            hosted.setdefault(broker, set()).add(each)
    for name in observed.cluster.doomed:
        for broker in _obstacles(observed.cluster, name):
            hosted.setdefault(broker, set())  # brokers no longer list the partitions
    yield from _of_ended(observed, hosted)
    yield from _of_clocks(observed)
    yield from _of_silent(observed, hosted)
    yield from _of_damaged(observed, hosted)
    yield from _of_stopping(observed, hosted)


def _of_ended(observed: Observed, hosted: _Hosted) -> Iterator[Trouble]:
    for broker, partitions in sorted(hosted.items()):
        restarts = observed.restarts(broker)
        if broker not in observed.cluster.brokers:
            holds = f", and holds replicas of {counted(len(partitions), 'partition')}" if partitions else ""
            down = "it is down again, and ends each time it is started" if restarts else "it is down"
            start = _start(observed.cluster, broker, partitions)
            yield Trouble(
                Rank.AT_RISK,
                f"broker {broker}",
                f"{down}{holds}",
                "the cluster lists no such live broker" + (f"; {restarts}" if restarts else ""),
                f"{_WHY_IT_ENDS}. Then {start}" if restarts else start,
                frozenset(partitions),
                waits_for=f"broker {broker}",
                no_help="starting it once more before the reason is fixed"
                if restarts
                else "waiting, or an election: the replicas on it come back with it alone",
            )
        elif restarts:
            yield Trouble(
                Rank.AT_RISK,
                f"broker {broker}",
                "it is up, and restarts again and again",
                restarts,
                _WHY_IT_ENDS,
                frozenset(partitions),
                waits_for=f"a minute in which broker {broker} stays",
                no_help="restarting it, or an election: its replicas leave the ISR each time",
            )


def _of_clocks(observed: Observed) -> Iterator[Trouble]:
    for wrong in wrong_clocks(observed.clocks):
        yield Trouble(
            Rank.AT_RISK,
            f"broker {wrong.broker}",
            f"{wrong.says}: timestamps, retention by time and tokens go wrong",
            wrong.evidence,
            f"set the clock of its host, keep it right (NTP), and restart broker {wrong.broker}: it reads "
            "the clock when it starts",
            waits_for=f"the restart of broker {wrong.broker}",
            no_help="setting the clock without a restart; records keep the timestamps that they have",
        )


def _of_silent(observed: Observed, hosted: _Hosted) -> Iterator[Trouble]:
    for broker, why in sorted(observed.silent.items()):
        is_closing = _CLOSED in why
        leads = broker == observed.cluster.controller
        yield Trouble(
            Rank.UNAVAILABLE if leads else Rank.AT_RISK,
            f"broker {broker}",
            (
                "it is registered, but closes new connections"
                if is_closing
                else "it is registered, but does not answer"
            )
            + ("; it is the controller: nobody elects leaders until its session ends" if leads else ""),
            why,
            "look at its log: it may have no descriptor left (raise ulimit -n, LimitNOFILE of its unit, or "
            "lower max.connections, and restart it), or end just now"
            if is_closing
            else "look at its process: it may be paused, overloaded, or advertise an address that is not its "
            "own",
            frozenset(hosted.get(broker, ())),
            waits_for=f"broker {broker}",
            no_help="restarting the brokers that answer",
        )


def _of_damaged(observed: Observed, hosted: _Hosted) -> Iterator[Trouble]:
    for broker, damaged in sorted(observed.damaged.items()):
        named = {str(each): frozenset((each,)) for each in hosted.get(broker, ())}
        for name, why in sorted(damaged.items()):
            yield Trouble(
                Rank.AT_RISK,
                f"broker {broker}, {name}",
                "the replica cannot be used fully",
                why,
                "if other replicas are intact, wait: the broker repairs it from them. Otherwise stop the "
                "broker, and check "
                "the partition's directory with logstore verify",
                named.get(name, frozenset()),
                waits_for="an intact replica on another broker",
                acts="the broker, while another replica is intact; otherwise you",
                no_help="restarting the broker, or deleting files by hand",
            )


def _of_stopping(observed: Observed, hosted: _Hosted) -> Iterator[Trouble]:
    for broker in sorted(observed.stopping):
        led = [each for each, state in observed.cluster.states.items() if state.leader == broker]
        yield Trouble(
            Rank.UNDER_WAY,
            f"broker {broker}",
            "it is shutting down, and transfers its leaderships" if led else "it is shut down or drained",
            f"the controller counts it as stopping; it leads {counted(len(led), 'partition')}",
            "wait until its process ends. After brokers drain it does not end by itself: stop it, or restart "
            f"broker {broker}. Partitions without another in-sync replica lose their leader then"
            if led
            else DRAINED.format(broker),
            frozenset(hosted.get(broker, ())),
            waits_for=f"the end of broker {broker}'s process",
            acts="you, if it was drained; else nobody",
            no_help="killing it: its logs would be recovered at the next start"
            if led
            else "an election: it joins no ISR before it is restarted",
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
                "find the first error in the broker's log, repair or replace the disk, restart the broker",
                each.replicas,
                no_help="restarting the broker before the disk is repaired: the log dir fails again",
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


def _of_moves(observed: Observed) -> Iterator[Trouble]:
    for log_dir, each, problem in hanging(observed.log_dirs):
        back = f"logstore brokers move-log {each} --broker {log_dir.broker} --to DIR"
        yield Trouble(
            Rank.UNDER_WAY,
            str(each),
            f"its move to {log_dir.path} of broker {log_dir.broker} hangs; the replica serves as before",
            problem,
            f"fix that, or cancel the move by naming the log dir that holds the replica: {back}",
            frozenset((each,)),
        )


def of_transactions(hanging: Mapping[TopicPartition, Since]) -> Iterator[Trouble]:
    """Yield a problem for each partition with a transaction that hangs."""
    for each, open_one in sorted(hanging.items()):
        yield Trouble(
            Rank.AT_RISK,
            str(each),
            "a transaction hangs: readers of committed data and compaction stop there",
            f"{open_one.reason}; its last record is of {format_time(open_one.since_ms)} UTC",
            "logstore transactions find-hanging shows it, logstore transactions abort ends it; its records "
            "cannot be committed then. If brokers of Apache Kafka can still be started, let them end it",
            frozenset((each,)),
            waits_for="its marker",
            no_help="waiting, or restarting brokers or consumers: no coordinator will end it",
            kind=Kind.TRANSACTION,
            cause="no coordinator will end them",
        )


def _of_partition(observed: Observed, each: TopicPartition, replicas: tuple[int, ...]) -> Iterator[Trouble]:
    cluster = observed.cluster
    throttle = told(throttle_of(cluster, observed.rates, each))
    state = cluster.states.get(each)
    if each.topic in cluster.doomed:
        yield _deletion(cluster, each.topic, str(each), frozenset((each,)))
        return
    if is_unavailable(cluster, each):
        yield _no_leader(observed, each, state)
    elif is_under_replicated(cluster, each):
        assert state is not None, "it has a leader"
        yield _not_in_sync(observed, each, state, replicas)
    if adding := cluster.motion(each).adding:
        waits = [broker for broker in adding if broker not in cluster.state(each).isr]
        absences = [_absence(observed, each, broker) for broker in waits]
        step = _FASTER if throttle else "wait"
        if any(broker not in cluster.brokers for broker in waits):
            step = f"{_bring_back(cluster, waits)}, or give up: logstore reassign cancel PLAN"
        yield Trouble(
            Rank.AT_RISK if any(absence.root for absence in absences) else Rank.UNDER_WAY,
            str(each),
            "it is being reassigned"
            + (" at a throttled rate" if throttle else "")
            + (f", and waits for broker {listed(waits)}" if waits else ""),
            ("; ".join(absence.text for absence in absences) or f"adding {listed(adding)}")
            + (f"; {throttle}" if throttle else ""),
            step,
            frozenset((each,)),
            waits_for=f"broker {listed(waits)}" if waits else "the controller",
            acts=_who_acts(absences),
            no_help="executing the plan again; logstore reassign cancel ends it",
            kind=Kind.REASSIGNMENT,
            roots=_roots(absences),
            cause=throttle or _causes(absences),
        )


def _not_in_sync(
    observed: Observed, each: TopicPartition, state: LeaderAndIsr, replicas: tuple[int, ...]
) -> Trouble:
    throttle = told(throttle_of(observed.cluster, observed.rates, each))
    wanted = min(observed.min_isr.get(each.topic, 1), len(replicas))  # as a leader counts
    is_short = len(state.isr) < wanted
    missing = [broker for broker in replicas if broker not in state.isr]
    absences = [_absence(observed, each, broker) for broker in missing]
    step = _bring_back(observed.cluster, missing)
    if (leader := _stopping_leader(observed, each)) and observed.cluster.brokers.keys() >= set(missing):
        step = f"restart {leader}, which leads: no replica joins before"
    return Trouble(
        Rank.REFUSES_WRITES if is_short else Rank.AT_RISK,
        str(each),
        f"writes with acks=all are refused: {counted(len(state.isr), 'replica')} in sync, {wanted} needed"
        if is_short
        else f"{len(missing)} of {len(replicas)} replicas are not in sync",
        f"ISR {listed(state.isr)} of replicas {listed(replicas)}; "
        + "; ".join(absence.text for absence in absences)
        + (f"; {throttle}" if throttle else ""),
        f"{_FREE} {step}" if throttle else step,
        frozenset((each,)),
        waits_for=f"broker {listed(missing)}",
        acts=_who_acts(absences),
        no_help="sending again until then; an unclean election, which brings no replica back"
        if is_short
        else "a preferred election: it moves the leader, and brings no replica back",
        kind=Kind.REFUSES_WRITES if is_short else Kind.NOT_IN_SYNC,
        roots=_roots(absences),
        cause=throttle or _causes(absences),
    )


def _no_leader(observed: Observed, each: TopicPartition, state: LeaderAndIsr | None) -> Trouble:
    cluster = observed.cluster
    isr = state.isr if state is not None else ()
    dead = [broker for broker in isr if broker not in cluster.brokers]
    absences = [_absence(observed, each, broker) for broker in isr]
    roots = _roots(absences)
    if state is None:
        says, step = "it has no state yet: no controller has placed it", "check that a controller is active"
        roots = frozenset(("cluster",) if cluster.controller is None else ())
    elif dead == list(isr):
        says = f"it has no leader: every replica in sync is down ({listed(dead)})"
        step = (
            f"start one of them: {listed(dead)}. The other replicas may lack committed records. Only if "
            f"these are gone for good: logstore elect-unclean {each} reports what may be lost, and with "
            "--accept-loss elects another"
        )
    else:
        alive = [broker for broker in isr if broker in cluster.brokers]
        says = f"it has no leader, though {listed(alive)} of its ISR are up"
        step = (
            f"look at the log of broker {alive[0]}. Its replica may be offline or damaged; or it came back "
            "without records that it had acknowledged, after a power cut or with a new disk. If no other "
            f"copy exists, logstore elect-unclean {each} --accept-loss elects it, and gives up the missing "
            "records"
        )
    evidence = f"leader {state.leader if state is not None else -1}, ISR {listed(isr)}"
    return Trouble(
        Rank.UNAVAILABLE,
        str(each),
        says,
        "; ".join((evidence, *(absence.text for absence in absences if absence.root))),
        step,
        frozenset((each,)),
        waits_for=f"broker {listed(isr)}" if isr else "the controller",
        no_help="a preferred election, or restarting other brokers: only a replica in the ISR may lead",
        kind=Kind.NO_LEADER,
        roots=roots,
        cause=_causes(absences),
    )


def _deletion(
    cluster: Cluster, name: str, subject: str, partitions: frozenset[TopicPartition] = frozenset()
) -> Trouble:
    awaited = cluster.doomed[name] or "the controller"
    obstacles = _obstacles(cluster, name)
    step = (
        "each replica's broker deletes its own log: start a broker that is not alive, repair a log dir that "
        "failed; else wait"
    )
    return Trouble(
        Rank.AT_RISK if obstacles else Rank.UNDER_WAY,
        subject,
        f"it is being deleted, and waits for {awaited}",
        f"the topic {name} is marked for deletion",
        step,
        partitions,
        waits_for=awaited,
        acts=OPERATOR if obstacles else ITSELF,
        no_help="deleting the topic again, or removing its directories by hand",
        kind=Kind.DELETION,
        roots=frozenset(f"broker {broker}" for broker in obstacles if broker not in cluster.brokers),
        cause=awaited,
    )


_OBSTACLE = re.compile(r"broker (\d+) \(")
"""In the words of `Deletion.awaited`: a broker that cannot delete, and why."""


def _obstacles(cluster: Cluster, topic: str) -> list[int]:
    """Return the brokers without which the deletion of a topic does not go on."""
    return [int(number) for number in _OBSTACLE.findall(cluster.doomed[topic])]


def _start(cluster: Cluster, broker: int, partitions: Iterable[TopicPartition]) -> str:
    """Return what to do about a broker that is down: what it alone has must not be lost."""
    start = (
        f"start broker {broker}. If its process exists, it hangs, is paused, or cannot reach the metadata "
        "store: its log says so"
    )
    alone = [
        each
        for each in sorted(partitions)
        if is_unavailable(cluster, each) and broker in cluster.state(each).isr
    ]
    if alone:
        return (
            f"{start}. Do not start it empty: it is in the ISR of {alone[0]}, whose other replicas may lack "
            "committed records. Only if all of that ISR is gone for good: "
            "logstore elect-unclean elects another, and loses records"
        )
    return (
        f"{start}. If it is gone for good, start an empty one with its id, or move its replicas with "
        "logstore reassign"
    )


class _Absence(NamedTuple):
    """Why a replica is not in sync, if known; `root`: the subject of the problem that causes it."""

    text: str
    root: str = ""


def _absence(observed: Observed, each: TopicPartition, broker: int) -> _Absence:
    own = f"broker {broker}"
    if broker not in observed.cluster.brokers:
        return _Absence(f"{own} is down", own)
    if broker in observed.silent:
        return _Absence(f"{own} does not answer", own)
    if broker in observed.stopping:
        return _Absence(f"{own} is shutting down or drained", own)
    if why := observed.damaged.get(broker, {}).get(str(each)):
        return _Absence(f"on {own}: {why}", f"{own}, {each}")
    dirs = [log_dir for log_dir in observed.log_dirs if log_dir.broker == broker]
    for log_dir in dirs:
        if each in log_dir.replicas and not log_dir.error:
            if log_dir.problem:
                return _Absence(f"the disk of {log_dir.path} on {own} is full", f"{own}, {log_dir.path}")
            if leader := _stopping_leader(observed, each):
                return _Absence(
                    f"{own} cannot join: {leader}, which leads, is shutting down or drained", leader
                )
            return _Absence(f"{own} is up and behind")
    for log_dir in dirs:
        if log_dir.error:
            return _Absence(f"{log_dir.path} on {own} is offline", f"{own}, {log_dir.path}")
    return _Absence(f"{own} has no log of it" if dirs else f"{own} is up, and its log dirs are not known")


def _stopping_leader(observed: Observed, each: TopicPartition) -> str:
    """Return the leader if it is shutting down or drained: the controller refuses its ISR proposals."""
    leader = observed.cluster.state(each).leader
    return f"broker {leader}" if leader in observed.stopping else ""


def _roots(absences: Iterable[_Absence]) -> frozenset[str]:
    """Return the roots, if they explain all."""
    roots = [absence.root for absence in absences]
    return frozenset(roots) if all(roots) else frozenset()


def _causes(absences: Iterable[_Absence]) -> str:
    return "; ".join(sorted(absence.text for absence in absences))


def _bring_back(cluster: Cluster, missing: Iterable[int]) -> str:
    dead = [broker for broker in missing if broker not in cluster.brokers]
    if dead:
        return f"start broker {listed(dead)}"
    return (
        "wait: a follower joins once it has caught up. If it does not, look at its broker's log, its disk, "
        "and replica.lag.time.max.ms"
    )


def _who_acts(absences: Iterable[_Absence]) -> str:
    return OPERATOR if any(absence.root for absence in absences) else ITSELF


def listed(numbers: Iterable[int]) -> str:
    """Return the numbers with commas between; `none` if there are none."""
    return ", ".join(map(str, numbers)) or "none"

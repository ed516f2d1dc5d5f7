"""Resolves a drawn operation in the current state into the numbers and bytes for both sides.

It plays the cluster around the partition: the controller's state, the brokers, and the log of another leader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from logstore.format.batch import Batch
from logstore.replication.fetcher import FollowerRequest
from logstore.replication.messages import FetchRequest, OffsetForLeaderEpochRequest
from tests.judge.resolving import batches_of
from tests.judge.sides import PARTITION, Operation
from tests.partition_judge.drawing import OTHERS, SMALL_SEGMENT
from tests.partition_judge.other_log import OtherLog, batch_of, boundary, marker_of
from tests.partition_judge.ours import LOCAL, Ours, described, described_proposal

BEGIN_MS: Final = 1_700_000_000_000


@dataclass
class Cluster:
    """The controller, the followers and the other leader around the partition."""

    ours: Ours
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: list[int] = field(default_factory=list)
    replicas: list[int] = field(default_factory=lambda: [LOCAL, *OTHERS])
    adding: list[int] = field(default_factory=list)
    sent: list[Operation] = field(default_factory=list)
    """The orders of the controller so far."""
    brokers: dict[int, int] = field(default_factory=dict)
    """The newest registration of each broker."""
    history: OtherLog = field(default_factory=lambda: OtherLog([], 0, 0))
    producers: int = 0

    def resolve(self, drawn: Operation) -> list[Operation]:
        """Return what `drawn` means now."""
        return _RESOLVED[drawn["op"]](self, drawn)

    @property
    def has_role(self) -> bool:
        """Whether the partition has one, and so a log."""
        return self.ours.partition is not None

    def new_producer(self) -> int:
        """Return the id of a producer that has sent nothing yet."""
        self.producers += 1
        return self.producers

    def later(self, by: int = 1) -> Operation:
        """Return the operation that moves the clock."""
        return {"op": "clock", "now": self.ours.now_ms + by}

    def order(self) -> Operation:
        """Return the controller's order for its current state, which is sent now."""
        self.sent.append(self.state)
        return self.state

    @property
    def state(self) -> Operation:
        """The controller's current state, as an order."""
        return {
            "op": "role",
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "isr": self.isr,
            "partition_epoch": self.partition_epoch,
            "replicas": self.replicas,
            "adding": self.adding,
            "removing": [],
            "is_new": self.partition_epoch == 0,
        }


# --- the controller ---------------------------------------------------------------------------------------


def _assign(cluster: Cluster, drawn: Operation) -> None:
    if drawn["replicas"] is not None:
        cluster.replicas = sorted(
            {LOCAL, *drawn["replicas"], *[each for each in [cluster.leader] if each >= 0]}
        )
    cluster.adding = [each for each in drawn["adding"] if each in cluster.replicas and each != cluster.leader]
    if len(cluster.replicas) - len(cluster.adding) < cluster.ours.min_insync:
        cluster.adding = []  # to Kafka, they count for the smallest size of the ISR
    cluster.isr = sorted({each for each in [cluster.leader, *drawn["isr"]] if each in cluster.replicas})
    cluster.partition_epoch += 1


def _elect(cluster: Cluster, drawn: Operation) -> list[Operation]:
    cluster.leader = drawn["leader"]
    cluster.leader_epoch += drawn["by"]
    _assign(cluster, drawn)
    if cluster.leader != LOCAL:
        cluster.history = _history(cluster, drawn)
    return [cluster.later(), cluster.order()]


def _history(cluster: Cluster, drawn: Operation) -> OtherLog:
    """Return the new leader's log: a part of ours, and what was written behind that."""
    batches: list[Batch] = []
    start = mark = 0
    epochs: list[tuple[int, int]] = []
    if cluster.sent:
        log = cluster.ours.log
        committed = max(log.high_watermark, cluster.ours.manager.logs.checkpointed_high_watermark(PARTITION))
        mark = log.log_start_offset if drawn["is_unclean"] else committed
        start = min(log.log_start_offset, mark)
        batches = [each for each in batches_of(cluster.ours) if each.next_offset > start]
        common = boundary(batches, drawn["common"], mark, log.log_end_offset)
        batches = [each for each in batches if each.next_offset <= common]
        epochs = [(each.epoch, each.start_offset) for each in log.epochs]
    other = OtherLog(batches, start, 0, epochs)
    other.high_watermark = other.boundary(drawn["common"], start, mark)
    newest, ours = max([epoch for epoch, begin in epochs if begin < other.end], default=-1), dict(epochs)
    for step, batch in drawn["more"]:
        # Nobody else has written in the epochs of which we have something.
        free = [each for each in range(newest, cluster.leader_epoch + 1) if each >= 0 and each not in ours]
        newest = free[min(step, len(free) - 1)]
        other.begin(newest)
        other.append(batch, cluster.new_producer(), cluster.ours.now_ms)
    other.begin(cluster.leader_epoch)
    return other


def _alter(cluster: Cluster, drawn: Operation) -> list[Operation]:
    if not cluster.sent:
        return []
    isr, replicas = cluster.isr, cluster.replicas
    _assign(cluster, drawn)
    # A replica joins by its leader's proposal, not as it is added.
    cluster.isr = [each for each in (isr if drawn["keeps"] else cluster.isr) if each in replicas]
    cluster.isr = [each for each in cluster.isr if each in cluster.replicas]
    return [cluster.later(), cluster.order()]


def _again(place: int) -> Callable[[Cluster, Operation], list[Operation]]:
    def resolved(cluster: Cluster, _drawn: Operation) -> list[Operation]:
        partition = cluster.ours.partition
        if partition is None or len(cluster.sent) < -place:
            return []
        order = cluster.sent[place]
        if cluster.leader_epoch != cluster.sent[-1]["leader_epoch"]:
            return []
        if place == -1 and "proposal" in cluster.ours.state():
            return []
        return [order]

    return resolved


def _answer(cluster: Cluster, drawn: Operation) -> list[Operation]:
    if cluster.ours.proposed is None or not cluster.ours.manager.isr_channel.owns(cluster.ours.proposed[0]):
        return []
    proposal = cluster.ours.proposed[1].partitions[PARTITION]
    outcome: str = drawn["outcome"]
    is_current = (proposal.leader_epoch, proposal.partition_epoch) == (
        cluster.leader_epoch,
        cluster.partition_epoch,
    )
    answer: Operation = {"op": "answer", "proposal": described_proposal(proposal)}
    if outcome.isupper():
        return [cluster.later(), answer | {"error": outcome}]
    if outcome in ("disconnected", "not the controller"):
        return [cluster.later(), {"op": "unanswered", "outcome": outcome}, cluster.later()]
    if outcome in ("lost", "unheard"):
        if is_current and outcome == "unheard":
            cluster.isr = list(proposal.new_isr)
            cluster.partition_epoch += 1
        return []
    if not is_current:
        error = (
            "FENCED_LEADER_EPOCH"
            if proposal.leader_epoch < cluster.leader_epoch
            else "INVALID_UPDATE_VERSION"
        )
        return [cluster.later(), answer | {"error": error}]
    answer |= {
        "leader": LOCAL,
        "leader_epoch": cluster.leader_epoch,
        "partition_epoch": cluster.partition_epoch + 1,
        "isr": list(proposal.new_isr),
    }
    match outcome:
        case "older":
            return [cluster.later(), answer | {"leader_epoch": cluster.leader_epoch - 1}]
        case "same":
            answer |= {"partition_epoch": cluster.partition_epoch, "isr": cluster.isr}
        case "other isr":
            answer["isr"] = sorted({LOCAL, *drawn["isr"]} & set(cluster.replicas))
    cluster.partition_epoch, cluster.isr = answer["partition_epoch"], answer["isr"]
    return [cluster.later(), answer]


def _brokers(cluster: Cluster, drawn: Operation) -> list[Operation]:
    for each in OTHERS:
        cluster.brokers[each] = cluster.brokers.get(each, 10) + (each in drawn["again"])
    alive = {str(each): cluster.brokers[each] for each in drawn["alive"]}
    stopping = [each for each in drawn["stopping"] if each in drawn["alive"]]
    return [{"op": "brokers", "alive": alive, "stopping": stopping}]


# --- places -----------------------------------------------------------------------------------------------


def _place(cluster: Cluster, drawn: Operation, known: int = -1) -> int:
    log = cluster.ours.log
    start, end = log.log_start_offset, log.log_end_offset
    match drawn["where"]:
        case "end":
            return end
        case "known":
            return max(known, start)
        case "next":
            ends = [batch.next_offset for batch in batches_of(cluster.ours)]
            return min([each for each in ends if each > known], default=end)
        case "mark":
            return log.high_watermark
        case "start":
            return start
        case "beyond":
            return end + 1
        case "below":
            return max(start - 1, 0)
        case "high watermark":
            return -1
        case "inside":
            share: float = drawn["share"]
            return round(start + share * (log.high_watermark - start))
    return boundary(batches_of(cluster.ours), drawn["share"], start, end)


def _epoch(cluster: Cluster, by: int | None) -> int:
    partition = cluster.ours.partition
    assert partition is not None
    return -1 if by is None else max(partition.leader_epoch + by, 0)


def _last_epoch(cluster: Cluster, drawn: Operation, offset: int) -> int:
    """Return the epoch of the record before an offset, or one beside it; -1 for none."""
    if drawn["last"] is None or offset <= 0:
        return -1
    return max(cluster.ours.log.epoch_for_offset(offset - 1) + int(drawn["last"]), -1)


# --- the leader -------------------------------------------------------------------------------------------


def _append(cluster: Cluster, drawn: Operation) -> list[Operation]:
    producer = cluster.new_producer()
    data = batch_of(drawn["count"], producer if drawn["is_transactional"] else None, cluster.ours.now_ms)
    return [{**drawn, "data": data.hex(), "number": producer}]


def _append_marker(cluster: Cluster, drawn: Operation) -> list[Operation]:
    producers = cluster.ours.log.producers()
    still_open = sorted(each.producer_id for each in producers if each.transaction_first_offset >= 0)
    if not still_open:
        return []
    chosen = still_open[int(drawn["share"] * len(still_open))]
    data = marker_of(chosen, drawn["is_commit"], cluster.ours.now_ms)
    return [{**drawn, "producer": chosen, "data": data.hex(), "acks": -1}]


def _fetch(cluster: Cluster, drawn: Operation) -> list[Operation]:
    ours, replica = cluster.ours, drawn["replica"]
    partition = ours.partition
    assert partition is not None
    known = partition.remote_replicas.get(replica)
    offset, log = _place(cluster, drawn, known.log_end_offset if known else -1), ours.log
    for batch in batches_of(ours):
        if batch.base_offset < offset < batch.next_offset:
            offset = batch.next_offset  # Kafka's leader takes a place inside of a batch for the batch's
    last = _last_epoch(cluster, drawn, offset)
    starts = {"leader": log.log_start_offset, "zero": 0, "unknown": -1, "any": round(offset * drawn["share"])}
    newest = cluster.brokers.get(replica, -1)
    # Kafka admits replicas to the ISR that do not know of the leader's log start, or name no broker epoch.
    is_joining = replica not in partition.isr.maximal and offset >= log.high_watermark
    log_start = log.log_start_offset if is_joining else starts[drawn["start"]]
    broker_epoch = newest + drawn["broker"]
    if known and known.broker_epoch > ours.manager.metadata.broker_epoch(replica):
        # Kafka fences former lives by its metadata alone, which may come late.
        broker_epoch = max(broker_epoch, known.broker_epoch)
    return [
        cluster.later(),
        {
            "op": "fetch",
            "replica": replica,
            "offset": offset,
            "current_epoch": _epoch(cluster, drawn["epoch"]),
            "last_epoch": last,
            "log_start": min(log_start, offset),
            "broker_epoch": broker_epoch,
            "max": drawn["max"],
            "in_session": drawn["in_session"],
        },
    ]


def _consume(cluster: Cluster, drawn: Operation) -> list[Operation]:
    offset = _place(cluster, drawn)
    return [
        {
            "op": "fetch",
            "replica": -1,
            "offset": offset,
            "current_epoch": _epoch(cluster, drawn["epoch"]),
            "last_epoch": _last_epoch(cluster, drawn, offset),
            "log_start": -1,
            "broker_epoch": -1,
            "max": 1 << 20,
            "committed": drawn["committed"],
        }
    ]


def _wait(cluster: Cluster, drawn: Operation) -> list[Operation]:
    """Return a fetch that waits. A consumer's is like a follower's, but for what only followers tell."""
    names = ("replica", "rack", "min", "max", "committed", "in_session")
    told = {name: drawn[name] for name in names} | {"number": cluster.new_producer()}
    if drawn["replica"] >= 0:
        later, fetch = _fetch(cluster, drawn)
        return [later, {**fetch, **told, "op": "wait"}]
    [fetch] = _consume(cluster, drawn)
    return [{**fetch, **told, "op": "wait"}]


def _list(cluster: Cluster, drawn: Operation) -> list[Operation]:
    timestamp = drawn["timestamp"]
    if timestamp == "any":
        timestamp = round(BEGIN_MS + drawn["share"] * (cluster.ours.now_ms - BEGIN_MS))
    log = cluster.ours.log
    facts = {"timestamp": timestamp, "current_epoch": _epoch(cluster, drawn["epoch"])}
    return [{**drawn, **facts, "has_deleted": log.segments.first.base_offset < log.log_start_offset}]


def _epoch_end(cluster: Cluster, drawn: Operation) -> list[Operation]:
    epoch = max(cluster.ours.log.latest_epoch - drawn["by"], 0)
    return [{"op": "epoch_end", "epoch": epoch, "current_epoch": _epoch(cluster, drawn["epoch"])}]


def _delete(cluster: Cluster, drawn: Operation) -> list[Operation]:
    offset, start = _place(cluster, drawn), cluster.ours.log.log_start_offset
    batches = batches_of(cluster.ours)
    is_inside = any(each.base_offset < start < each.next_offset for each in batches)
    # Inside of a batch, Kafka's high watermark may be below the log start.
    found = {"op": "delete", "offset": offset, "waits": drawn["waits"]}
    return [] if is_inside and -1 < offset <= start else [found]


def _config(cluster: Cluster, drawn: Operation) -> list[Operation]:
    is_too_much = cluster.adding and len(cluster.replicas) - len(cluster.adding) < drawn["min_insync"]
    return [] if is_too_much else [drawn]


# --- the follower -----------------------------------------------------------------------------------------


def _leader_answers(cluster: Cluster, drawn: Operation) -> list[Operation]:
    other = cluster.history
    body = cluster.ours.request
    if cluster.leader == LOCAL or body is None or other.is_broken:
        return []
    for batch in drawn["grows"]:
        other.append(batch, cluster.new_producer(), cluster.ours.now_ms)
    other.high_watermark = other.boundary(drawn["mark"], other.high_watermark, other.end)
    if drawn["start"] is not None:
        other.start = other.boundary(drawn["start"], other.start, other.high_watermark)
        other.start = max(other.start - drawn["is_inside"], 0)
    answer = {"op": "leader_answers", "last": other.end, "first": other.start}
    match body:
        case OffsetForLeaderEpochRequest():
            epoch = body.partitions[PARTITION].leader_epoch
            error = None if drawn["error"] == "OFFSET_OUT_OF_RANGE" else drawn["error"]
            answer["epoch"] = error or list(other.end_of(epoch))
            if drawn["lie"] is not None:
                answer["epoch"] = _untrue(cluster, drawn)
        case FetchRequest():
            answer["fetch"] = fetched = _fetched(other, body, drawn)
            if drawn["lie"] is not None and "diverging" in fetched:
                fetched["diverging"] = [max(each, 0) for each in _untrue(cluster, drawn)]
            log = cluster.ours.log
            is_below = log.log_start_offset < log.log_end_offset <= fetched.get("start", 0)
            if is_below and log.latest_epoch < cluster.leader_epoch and "diverging" not in fetched:
                answer["begins_anew"] = True
    return [cluster.later(), answer]


def _untrue(cluster: Cluster, drawn: Operation) -> list[int]:
    """Return an epoch and its end, as a leader with another history would name them, and then no more."""
    cluster.history.is_broken = True
    back, share = drawn["lie"]
    log = cluster.ours.log
    if back < 0:
        return [-1, -1 if share < 0.5 else boundary(batches_of(cluster.ours), share, 0, log.log_end_offset)]
    end = boundary(batches_of(cluster.ours), share, log.log_start_offset, log.log_end_offset)
    return [max(log.latest_epoch - back, 0), end + (share > 0.9)]


def _fetched(other: OtherLog, body: FollowerRequest, drawn: Operation) -> Operation:
    if drawn["error"] is not None:
        return {"error": drawn["error"]}
    wanted = described(body)
    offset, last_epoch = wanted["offset"], wanted["last_epoch"]
    bounds = {"high_watermark": other.high_watermark, "start": other.start}
    if last_epoch >= 0:
        epoch, end = other.end_of(last_epoch)
        if epoch < 0 or offset < other.start:
            return {"error": "OFFSET_OUT_OF_RANGE"}
        if epoch < last_epoch or end < offset:
            return {**bounds, "diverging": [epoch, end]}
    if not other.start <= offset <= other.end:
        return {"error": "OFFSET_OUT_OF_RANGE"}
    batches = [each for each in other.batches if each.next_offset > offset][: drawn["batches"]]
    data = b""
    for each in batches:
        if len(data) + each.size > SMALL_SEGMENT:
            break  # Kafka refuses more than a segment at once
        data += each.buffer
    return {**bounds, "data": data.hex()}


# --- the rest ---------------------------------------------------------------------------------------------


def _session(cluster: Cluster, drawn: Operation) -> list[Operation]:
    partition = cluster.ours.partition
    assert partition is not None
    known = partition.leader_epoch, partition.partition_epoch
    is_known = known == (cluster.leader_epoch, cluster.partition_epoch)
    return [{**drawn, "order": cluster.state}] if is_known else []


def _restart(cluster: Cluster, drawn: Operation) -> list[Operation]:
    if not drawn["is_clean"] and cluster.leader == LOCAL:
        # It never goes on in the epoch that it led: the controller elects.
        cluster.leader_epoch += 1
        cluster.sent = cluster.sent[:1]
    return [drawn]


def _needs_role(
    resolved: Callable[[Cluster, Any], list[Operation]],
) -> Callable[[Cluster, Any], list[Operation]]:
    def found(cluster: Cluster, drawn: Any) -> list[Operation]:
        partition = cluster.ours.partition
        if partition is None or not (partition.leads or drawn.get("anyway", True)):
            return []
        return resolved(cluster, drawn)

    return found


_RESOLVED: Final[dict[str, Callable[[Cluster, Operation], list[Operation]]]] = {
    "append": _needs_role(_append),
    "marker": _needs_role(_append_marker),
    "fetch": _needs_role(_fetch),
    "answer": _answer,
    "shrink": lambda cluster, drawn: [cluster.later(), drawn],
    "leader_answers": _needs_role(_leader_answers),
    "consume": _needs_role(_consume),
    "wait": _needs_role(_wait),
    "list": _needs_role(_list),
    "epoch_end": _needs_role(_epoch_end),
    "delete": _needs_role(_delete),
    "elect": _elect,
    "alter": _alter,
    "repeat": _again(-1),
    "old": _again(-2),
    "brokers": _brokers,
    "clock": lambda cluster, drawn: [cluster.later(drawn["by"])],
    "roll": _needs_role(lambda cluster, drawn: [drawn]),
    "restart": _needs_role(_restart),
    "config": _config,
    "session": _needs_role(_session),
    "checkpoint": _needs_role(lambda cluster, drawn: [drawn]),
}

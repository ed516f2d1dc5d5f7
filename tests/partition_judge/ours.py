"""Our replica of the partition, in the replica manager of a node."""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Mapping
from typing import Any, Final, TypeVar

from logstore.config import MAX_INT, LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.manager_config import LogManagerConfig
from logstore.log.partition_log import PartitionLog
from logstore.log.producer_state import ProducerState, ProducerStateConfig
from logstore.replication import orders
from logstore.replication.config import NodeConfig, ReplicaSelector
from logstore.replication.effects import Client, Effect, Peer, Reply, Respond, Send
from logstore.replication.fetcher import FetchState, FollowerRequest, Phase
from logstore.replication.isr import CommittedIsr
from logstore.replication.messages import (
    AlterPartitionRequest,
    BrokerEndpoint,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    IsrProposal,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceResponse,
    UpdateMetadataRequest,
)
from logstore.replication.partition import Partition
from logstore.replication.replica_manager import ReplicaManager
from logstore.testing.role_flushes import finished
from tests.judge.sides import PARTITION, Operation, State

LOCAL: Final = 0
CONTROLLER: Final = 99
BROKER_EPOCH: Final = 5
"""The registration of broker 0."""
MAX_LAG_MS: Final = 3
"""`replica.lag.time.max.ms`: so short that ISRs are checked at each tick."""
FOR_EVER: Final = MAX_INT
NO_SESSION: Final = {"error": "session"}
"""The answer to a fetch whose session is gone."""
RACKS: Final = {LOCAL: "a", 1: "b", 2: "b", 3: "c"}
"""The rack of each broker."""
R = TypeVar("R")


class Ours:
    """Our partition, in the replica manager of a node."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.now_ms = 0
        self.manager: ReplicaManager
        self.proposed: tuple[int, AlterPartitionRequest] | None = None
        """The latest request to the controller, and its correlation id."""
        self.asked: tuple[int, FollowerRequest] | None = None
        """The latest request to a leader, and its correlation id."""
        self.settings: Mapping[str, str] = {}
        self._disk = MemoryDisk()
        self.brokers: Operation = {"op": "brokers", "alive": {}, "stopping": []}
        """The last operation that told of live brokers."""
        self.answers: list[Any] = []
        """The answers to requests since the list was cleared."""
        self.sessions: dict[int, tuple[int, int, FetchPartition]] = {}
        """The fetch sessions of followers: id, next epoch, and what the follower asked for last."""
        self.waiting: dict[int, int] = {}
        """Appends with acks=all that are not answered yet: the end of each, by its number."""
        self.acknowledged: dict[int, str] = {}
        """The answers to such appends since the last change of the role."""
        self.fetches: dict[int, Operation] = {}
        """The operations with fetches that may wait, by their numbers."""
        self.fetching: dict[Hashable, int] = {}
        """The numbers of those that wait, by the address that the answer names."""
        self.resuming: dict[Hashable, tuple[int, int, FetchPartition]] = {}
        """The follower, its next epoch and what it wants, of those that wait in a fetch session."""
        self.fetched: State = {}
        """The answers to such fetches, in the last operation."""
        self._ids = 0

    @property
    def partition(self) -> Partition | None:
        """The partition; None without a role."""
        return self.manager.partitions.get(PARTITION)

    @property
    def log(self) -> PartitionLog:
        """The open log."""
        log = self.manager.logs.get(PARTITION)
        assert isinstance(log, Log)
        return log.partition

    @property
    def min_insync(self) -> int:
        """`min.insync.replicas`."""
        return int(self.settings["min.insync.replicas"])

    def begin(self, settings: Mapping[str, str], now_ms: int) -> None:
        """Begin without a role, and with an empty log dir."""
        self.settings, self.now_ms = settings, now_ms
        self.start()

    @property
    def config(self) -> LogConfig:
        """The settings of the log."""
        own = {name: value for name, value in self.settings.items() if name != "truncate.on.fetch"}
        return LogConfig.from_kafka(own)

    def start(self) -> None:
        """Start the node."""
        config = self.config
        producers = ProducerStateConfig(transaction_partition_verification_enable=False)
        logs = LogManager(
            ["data"],
            disk=self._disk,
            clock=lambda: self.now_ms,
            random=random.Random(0),
            config=config,
            settings=LogManagerConfig(producers=producers),
        )
        node = NodeConfig(
            node_id=LOCAL,
            replica_lag_time_max_ms=MAX_LAG_MS,
            replica_fetch_wait_max_ms=1,
            replica_fetch_backoff_ms=1,
            alter_partition_retry_ms=1,
            request_timeout_ms=FOR_EVER,
            replica_high_watermark_checkpoint_interval_ms=FOR_EVER,
            replica_selector_class=ReplicaSelector.RACK_AWARE,
            broker_rack=RACKS[LOCAL],
            truncate_on_fetch=self.settings["truncate.on.fetch"] == "true",
        )
        self.manager = ReplicaManager(node, logs, next_id=self.next_id, default_config=config)
        self.proposed = self.asked = None
        self.fetching = {}
        self.forget()
        self.take(orders.registered(self.manager, BROKER_EPOCH, self.now_ms))
        self.tell_brokers()

    def end(self) -> None:
        """Let go of the log."""
        self.manager.logs.abandon()

    def next_id(self) -> int:
        """Return the next correlation id."""
        self._ids += 1
        return self._ids

    def forget(self) -> None:
        """Forget the clients that wait."""
        self.waiting, self.acknowledged = {}, {}

    def take(self, effects: list[Effect]) -> None:
        """Take what a turn of the manager asks for."""
        for effect in finished(self.manager, effects, self.now_ms):
            match effect:
                case Send(_, number, AlterPartitionRequest() as body):
                    self.proposed = number, body
                case Send(_, number, body) if isinstance(body, FollowerRequest):
                    self.asked = number, body
                case Reply(int() as token, ProduceResponse() as body):
                    if self.waiting.pop(token, None) is not None:
                        self.acknowledged[token] = body.partitions[PARTITION].error.name
                case Reply(key, FetchResponse() as body) | Respond(_, key, FetchResponse() as body) if (
                    key in self.fetching
                ):
                    self._answered(key, body)
                case Reply(_, body) | Respond(_, _, body):
                    self.answers.append(body)

    def _answered(self, key: Hashable, body: FetchResponse) -> None:
        """Note the answer to a fetch that may have waited."""
        number, result = str(self.fetching.pop(key)), body.partitions.get(PARTITION)
        resuming = self.resuming.pop(key, None)
        if body.error is not ErrorCode.NONE:
            self.fetched[number] = NO_SESSION
            return
        self.fetched[number] = {} if result is None else described_answer(result)
        if resuming is not None and body.session_id:
            replica, epoch, wanted = resuming
            self.sessions.setdefault(replica, (body.session_id, epoch, wanted))

    def reply(self, kind: type[R]) -> R:
        """Return the answer of this kind that the operation has led to."""
        found = [each for each in self.answers if isinstance(each, kind)]
        assert len(found) == 1, self.answers
        return found[0]

    def tell_brokers(self) -> None:
        """Tell the node of the live brokers."""
        alive, stopping = self.brokers["alive"], tuple(self.brokers["stopping"])
        live = tuple(
            BrokerEndpoint(int(each), epoch=epoch, rack=RACKS[int(each)]) for each, epoch in alive.items()
        )
        body = UpdateMetadataRequest(CONTROLLER, 1, BROKER_EPOCH, {}, live, shutting_down=stopping)
        self.take(orders.update_metadata(self.manager, Peer(CONTROLLER, self.next_id()), body, self.now_ms))

    @property
    def request(self) -> FollowerRequest | None:
        """The request to the leader that waits for its answer; None without one."""
        if self.asked is None:
            return None
        number, body = self.asked
        in_flight = [each.in_flight for each in self.manager.followers.fetchers.values()]
        return body if any(each and each.correlation_id == number for each in in_flight) else None

    def advance(self) -> None:
        """Move the high watermark as far as it may, as the next check of the ISR does."""
        assert self.partition is not None
        self.manager.advance(self.partition, self.now_ms)
        self.take(self.manager.end_turn(self.now_ms))

    def newest_epoch(self, replica: int) -> int:
        """Return the newest registration of another broker that is known here."""
        known = self.partition and self.partition.remote_replicas.get(replica)
        return max(self.manager.metadata.broker_epoch(replica), known.broker_epoch if known else -1)

    def abandon(self, number: int) -> None:
        """Let the consumer of a waiting fetch go."""
        key = f"fetch {number}"
        del self.fetching[key]
        self.manager.waiting.abandon(Client(key))

    def forget_transactions(self, first_offsets: Collection[int]) -> None:
        """Forget the producers whose open transactions begin there."""
        log = self.log
        kept = [each for each in log.producer_state if each.transaction_first_offset not in first_offsets]
        former = log.producer_state
        log.producer_state = ProducerState.load(kept, end_offset=log.log_end_offset)
        log.producer_state.remember(former)

    @property
    def overdue(self) -> int:
        """How many requests wait although they could be answered."""
        waiting = self.manager.waiting
        purgatories = (waiting.produces, waiting.deletions)
        found = {each for one in purgatories for known in one.watchers.values() for each in known}
        return sum(not each.is_completed and each.is_ready(self.now_ms) for each in found)

    # --- the state ------------------------------------------------------------------------------------

    def state(self) -> State:
        """Return the state of the partition, with the names that `PartitionJudge.java` gives Kafka's."""
        partition = self.partition
        if partition is None:
            return {}
        log = partition.log
        state: State = {
            "start": log.log_start_offset,
            "high_watermark": log.high_watermark,
            "last_stable": log.last_stable_offset,
            "end": log.log_end_offset,
            "epochs": [list(each) for each in log.epochs],
            "undecided": [each.first_offset for each in log.producer_state.open_transactions()],
            "leads": partition.is_leader,
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": partition.partition_epoch,
            "fetching": sorted(self.fetching.values()),
            "fetched": dict(self.fetched),
        }
        if not partition.is_leader:
            followers = self.manager.followers
            known, is_on_fetch = followers.followed.get(PARTITION), self.manager.config.truncate_on_fetch
            fetcher = _fetcher(known, is_failed=PARTITION in followers.failed)
            return state | {"fetcher": fetcher | ({} if is_on_fetch or known is None else {"last_epoch": -1})}
        replicas = {
            str(each.replica_id): {
                "end": each.log_end_offset,
                "start": each.log_start_offset,
                "caught_up": max(each.caught_up_ms, 0),
                "broker_epoch": each.broker_epoch,
            }
            for each in (known.settled() for known in partition.remote_replicas.values())
        }
        state |= {
            "under_replicated": partition.is_under_replicated,
            "under_min_isr": partition.is_under_min_isr,
            "at_min_isr": partition.is_at_min_isr,
            "epoch_start": partition.epoch_start_offset,
            "committed": sorted(partition.isr.committed),
            "maximal": sorted(partition.isr.maximal),
            "low_watermark": partition.low_watermark,
            "replicas": replicas,
            "waiting": {str(number): end for number, end in self.waiting.items()},
            "acknowledged": {str(number): error for number, error in self.acknowledged.items()},
        }
        if not isinstance(partition.isr, CommittedIsr):
            state["proposal"] = described_proposal(partition.isr.proposal)
        return state


def described_proposal(proposal: IsrProposal) -> State:
    """Return a proposal, with the names that `PartitionJudge.java` gives Kafka's."""
    return {
        "leader_epoch": proposal.leader_epoch,
        "partition_epoch": proposal.partition_epoch,
        "isr": dict(zip(map(str, proposal.new_isr), proposal.broker_epochs, strict=True)),
    }


def described_answer(found: FetchResult) -> State:
    """Return the answer to a fetch, with the names that `Waiting.java` gives Kafka's."""
    if found.error is not ErrorCode.NONE:
        return {"error": found.error.name}
    answer: State = {"high_watermark": found.high_watermark, "start": found.log_start_offset}
    answer["data"] = bytes(found.records).hex()
    if found.preferred_read_replica >= 0:
        answer["preferred"] = found.preferred_read_replica
    if found.diverging_epoch is not None:
        answer["diverging"] = list(found.diverging_epoch)
    return answer


def described(body: FollowerRequest) -> State:
    """Return a follower's request, with the names that `PartitionJudge.java` gives Kafka's."""
    match body:
        case FetchRequest():
            wanted = body.partitions[PARTITION]
            return {
                "kind": "fetch",
                "offset": wanted.fetch_offset,
                "current_epoch": wanted.current_leader_epoch,
                "last_epoch": wanted.last_fetched_epoch,
                "log_start": wanted.log_start_offset,
            }
        case OffsetForLeaderEpochRequest():
            query = body.partitions[PARTITION]
            return {
                "kind": "epoch",
                "current_epoch": query.current_leader_epoch,
                "last_epoch": query.leader_epoch,
            }
        case ListOffsetsRequest():
            return {"kind": "bound"}


def _fetcher(known: FetchState | None, *, is_failed: bool) -> State:
    if known is None:
        return {"failed": is_failed}
    return {
        "failed": is_failed,
        "offset": known.fetch_offset,
        "leader_epoch": known.leader_epoch,
        "last_epoch": known.last_fetched_epoch,
        "truncating": known.phase is Phase.TRUNCATING,
    }

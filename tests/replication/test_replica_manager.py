"""Requests to a node's replicas, and the conditions they wait for."""

from __future__ import annotations

import random
from typing import TypeVar

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.manager import LogManager
from logstore.replication import orders, serving
from logstore.replication.config import NodeConfig
from logstore.replication.durability import Durability
from logstore.replication.effects import Client, Effect, Peer, Reply, Respond, Send
from logstore.replication.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    BrokerEndpoint,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    ProduceRequest,
    ProduceResponse,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from logstore.replication.replica_manager import ReplicaManager
from logstore.testing.role_flushes import finished
from logstore.testing.stage import batch

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ELSEWHERE, NOWHERE = TopicPartition("elsewhere", 0), TopicPartition("nowhere", 0)
ME, F1, F2, CONTROLLER = 0, 1, 2, 9
LAG_MS = 10_000
BODY = TypeVar("BODY")


class Manager:
    """Broker 0, incarnation 5, with brokers 1 and 2 alive."""

    def __init__(
        self,
        *,
        disk: Disk | None = None,
        log_config: LogConfig | None = None,
        durability: Durability = Durability.REPLICATED,
        config: NodeConfig | None = None,
    ) -> None:
        self.now_ms = 1_000_000
        self.disk = disk if disk is not None else MemoryDisk()
        self.log_config = log_config or LogConfig()
        self.logs = LogManager(
            ["data"],
            disk=self.disk,
            clock=lambda: self.now_ms,
            random=random.Random(0),
            config=self.log_config,
        )
        self._ids = 0
        self.config = config or NodeConfig(node_id=ME, replica_lag_time_max_ms=LAG_MS)
        self.durability = durability
        self.manager = ReplicaManager(
            self.config, self.logs, next_id=self._next_id, default_config=self.log_config
        )
        self.versions = 0
        self.take(orders.registered(self.manager, 5, self.now_ms))
        self.effects: list[Effect] = []
        self.metadata((ME, F1, F2))

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    def take(self, effects: list[Effect]) -> list[Effect]:
        self.effects = finished(self.manager, effects, self.now_ms)
        return self.effects

    def body(self, kind: type[BODY], token: object = None) -> BODY | None:
        """Return the answer of this kind among the last effects."""
        for effect in self.effects:
            if not isinstance(effect, Respond | Reply) or not isinstance(effect.body, kind):
                continue
            if token is None or (isinstance(effect, Reply) and effect.token == token):
                return effect.body
        return None

    def metadata(self, brokers: tuple[int, ...]) -> None:
        live = tuple(BrokerEndpoint(broker, epoch=5) for broker in brokers)
        known = {ELSEWHERE: PartitionState(1, F1, 0, (F1,), 0, (F1,))}
        body = UpdateMetadataRequest(CONTROLLER, 1, -1, known, live)
        self.take(orders.update_metadata(self.manager, Peer(CONTROLLER, self._next_id()), body, self.now_ms))

    def role(
        self,
        leader: int,
        epoch: int,
        *partitions: TopicPartition,
        isr: tuple[int, ...] = (ME, F1, F2),
        controller_epoch: int = 1,
        broker_epoch: int = 5,
        topic_ids: dict[str, str] | None = None,
        configs: dict[str, dict[str, str]] | None = None,
        version: int | None = None,
        replicas: tuple[int, ...] = (ME, F1, F2),
        min_insync: int = 0,
    ) -> LeaderAndIsrResponse:
        self.versions = self.versions + 1 if version is None else version
        states = {
            tp: PartitionState(
                controller_epoch,
                leader,
                epoch,
                isr,
                self.versions,
                replicas,
                durability=self.durability,
                min_insync=min_insync,
            )
            for tp in partitions or (P0,)
        }
        body = LeaderAndIsrRequest(
            CONTROLLER, controller_epoch, broker_epoch, states, topic_ids or {}, (), configs or {}
        )
        self.take(orders.leader_and_isr(self.manager, Peer(CONTROLLER, self._next_id()), body, self.now_ms))
        response = self.body(LeaderAndIsrResponse)
        assert response is not None
        return response

    def stop(
        self,
        epoch: int,
        *,
        delete: bool,
        controller_epoch: int = 1,
        tp: TopicPartition = P0,
        topic_ids: dict[str, str] | None = None,
    ) -> StopReplicaResponse:
        order = {tp: StopReplicaPartition(epoch, delete)}
        body = StopReplicaRequest(CONTROLLER, controller_epoch, 5, order, topic_ids or {})
        self.take(orders.stop_replica(self.manager, Peer(CONTROLLER, self._next_id()), body, self.now_ms))
        response = self.body(StopReplicaResponse)
        assert response is not None
        return response

    def produce(
        self, token: str, *partitions: TopicPartition, acks: int = -1, timeout_ms: int = 1000
    ) -> None:
        request = ProduceRequest({tp: batch(token.encode()) for tp in partitions or (P0,)}, acks, timeout_ms)
        self.take(serving.produce(self.manager, Client(token), request, self.now_ms))

    def fetch(
        self,
        address: Client | Peer,
        offset: int,
        *partitions: TopicPartition,
        epoch: int = -1,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
    ) -> FetchResponse | None:
        is_synced = self.durability is Durability.SYNCED
        wanted = FetchPartition(offset, 1 << 20, current_leader_epoch=epoch, is_synced=is_synced)
        replica = address.broker_id if isinstance(address, Peer) else -1
        request = FetchRequest(
            replica, max_wait_ms, min_bytes, max_bytes, dict.fromkeys(partitions or (P0,), wanted), 5
        )
        self.take(serving.fetch(self.manager, address, request, self.now_ms))
        return self.body(FetchResponse)

    def follow(self, broker: int, offset: int, *partitions: TopicPartition) -> FetchResponse | None:
        return self.fetch(Peer(broker, self._next_id()), offset, *partitions)

    def tick(self, after_ms: int) -> None:
        self.now_ms += after_ms
        self.take(self.manager.tick(self.now_ms))

    def error(self, token: str, tp: TopicPartition = P0) -> ErrorCode | None:
        """Return the error in the answer to this client's append; None without an answer."""
        response = self.body(ProduceResponse, token)
        return None if response is None else response.partitions[tp].error


# --- produce ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [3, 2, -2])
def test_other_acks_are_refused(acks: int) -> None:
    """6.4: INVALID_REQUIRED_ACKS, nothing appended."""
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("w", acks=acks)
    assert rig.error("w") is ErrorCode.INVALID_REQUIRED_ACKS
    assert rig.manager.partitions[P0].log.log_end_offset == 0


def test_acks_one_and_zero_are_answered_at_once() -> None:
    """2.2: acks=0 has no answer; a failure closes the connection."""
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("one", acks=1)
    assert rig.error("one") is ErrorCode.NONE
    rig.produce("zero", acks=0)
    assert Reply("zero", None) in rig.effects
    rig.produce("lost", NOWHERE, acks=0)
    assert Reply("lost", None, close=True) in rig.effects


def test_acks_all_waits_for_the_high_watermark() -> None:
    """2.2: answered in the very turn in which the last member's fetch arrives."""
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("w")
    assert rig.error("w") is None
    rig.follow(F1, 1)
    assert rig.error("w") is None
    rig.follow(F2, 1)
    assert rig.error("w") is ErrorCode.NONE
    response = rig.body(ProduceResponse)
    assert response is not None
    assert response.partitions[P0].base_offset == 0


def test_acks_all_alone_in_the_isr_is_answered_at_once() -> None:
    rig = Manager()
    rig.role(ME, 1, isr=(ME,))
    rig.produce("w")
    assert rig.error("w") is ErrorCode.NONE


def test_time_runs_out_and_the_record_stays() -> None:
    """2.2: REQUEST_TIMED_OUT; the outcome is unknown to the client, and it may find its record later."""
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("w", timeout_ms=500)
    assert rig.manager.deadline_ms == rig.now_ms + 500
    rig.tick(499)
    assert rig.error("w") is None
    rig.tick(1)
    assert rig.error("w") is ErrorCode.REQUEST_TIMED_OUT
    rig.follow(F1, 1)
    rig.follow(F2, 1)
    assert rig.error("w") is None, "answered once (I14)"
    assert rig.manager.partitions[P0].log.high_watermark == 1


def test_one_request_of_two_partitions_waits_for_both() -> None:
    """2.2: complete when no partition is pending; an error counts as decided."""
    rig = Manager()
    rig.role(ME, 1, P0, P1)
    rig.produce("w", P0, P1, NOWHERE)
    for broker in (F1, F2):
        rig.follow(broker, 1, P0)
    assert rig.error("w") is None
    for broker in (F1, F2):
        rig.follow(broker, 1, P1)
    response = rig.body(ProduceResponse)
    assert response is not None
    assert [response.partitions[tp].error for tp in (P0, P1, NOWHERE)] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_losing_the_store_session_stops_every_acknowledgement() -> None:
    """R7: new requests are refused, waiting ones are not answered, and late messages change nothing."""
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("w")
    rig.follow(F1, 1)
    rig.take(orders.session_lost(rig.manager, rig.now_ms))
    assert rig.error("w") is None
    rig.follow(F2, 1)
    assert rig.error("w") is None
    rig.produce("next", acks=1)
    assert rig.error("next") is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert rig.manager.partitions[P0].log.high_watermark == 0


def test_a_leader_resumes_when_the_controller_confirms_it_to_its_new_registration() -> None:
    """R7: same epoch, nothing lost: this process never stopped. Its former registration does not count."""
    rig = Manager()
    rig.role(ME, 1)
    rig.take(orders.session_lost(rig.manager, rig.now_ms))
    rig.take(orders.registered(rig.manager, 6, rig.now_ms))
    assert rig.role(ME, 1, version=rig.versions, broker_epoch=5).error is ErrorCode.STALE_BROKER_EPOCH
    rig.produce("early", acks=1)
    assert rig.error("early") is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert rig.role(ME, 1, version=rig.versions, broker_epoch=6).partitions[P0] is ErrorCode.NONE
    rig.produce("w", acks=1)
    assert rig.error("w") is ErrorCode.NONE


def test_min_isr_broken_after_the_append() -> None:
    """S35: the ISR shrinks while the write waits; with the wall at min.insync.replicas it times out, and
    the next one is refused up front. Never a success."""
    rig = Manager(log_config=LogConfig(min_insync_replicas=3))
    rig.role(ME, 1)
    rig.produce("w", timeout_ms=5000)
    rig.follow(F1, 1)
    rig.role(ME, 1, isr=(ME, F1))
    assert rig.error("w") is None
    rig.follow(F1, 1)
    assert rig.error("w") is None
    rig.produce("next")
    assert rig.error("next") is ErrorCode.NOT_ENOUGH_REPLICAS
    rig.tick(5000)
    assert rig.error("w") is ErrorCode.REQUEST_TIMED_OUT


# --- fetch ------------------------------------------------------------------------------------------


def test_beyond_the_high_watermark() -> None:
    """6.4: a replica gets the records, a consumer gets nothing and no error."""
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("w", acks=1)
    consumer = rig.fetch(Client("c"), 0)
    assert consumer is not None
    assert (consumer.partitions[P0].error, consumer.partitions[P0].records) == (ErrorCode.NONE, b"")
    follower = rig.follow(F1, 0)
    assert follower is not None
    assert follower.partitions[P0].records
    assert rig.fetch(Client("c"), 5).partitions[P0].error is ErrorCode.OFFSET_OUT_OF_RANGE  # type: ignore[union-attr]


def test_a_consumer_waits_for_the_watermark_and_a_follower_for_records() -> None:
    """1.16: the append wakes the follower, the commit wakes the consumer."""
    rig = Manager()
    rig.role(ME, 1, isr=(ME, F1))
    rig.metadata((ME, F1))
    assert rig.fetch(Client("c"), 0, max_wait_ms=500) is None
    assert rig.fetch(Peer(F1, 77), 0, max_wait_ms=500) is None
    rig.produce("w", acks=1)
    [answer] = [e for e in rig.effects if isinstance(e, Respond)]
    assert answer.correlation_id == 77
    assert not [e for e in rig.effects if isinstance(e, Reply) and e.token == "c"]
    rig.fetch(Peer(F1, 78), 1, max_wait_ms=500)
    response = rig.body(FetchResponse, "c")
    assert response is not None
    assert response.partitions[P0].records
    assert response.partitions[P0].high_watermark == 1


def test_a_parked_fetch_is_answered_on_time_from_a_second_reading() -> None:
    """S0a: it carries the watermark as it is then; the follower's position is not counted again."""
    rig = Manager()
    rig.role(ME, 1, isr=(ME, F1))
    rig.metadata((ME, F1))
    rig.produce("w", acks=1)
    assert rig.fetch(Peer(F1, 70), 1, max_wait_ms=500) is None
    before = rig.manager.partitions[P0].remote_replicas[F1]
    rig.tick(500)
    response = rig.body(FetchResponse)
    assert response is not None
    assert response.partitions[P0].high_watermark == 1
    assert rig.manager.partitions[P0].remote_replicas[F1] == before


def test_min_bytes() -> None:
    rig = Manager()
    rig.role(ME, 1, isr=(ME,))
    size = len(batch(b"a"))
    assert rig.fetch(Client("c"), 0, max_wait_ms=500, min_bytes=2 * size) is None
    rig.produce("a", acks=1)
    assert rig.body(FetchResponse) is None
    rig.produce("b", acks=1)
    response = rig.body(FetchResponse)
    assert response is not None
    assert len(response.partitions[P0].records) == 2 * size


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (1, ErrorCode.FENCED_LEADER_EPOCH)],
)
def test_a_parked_fetch_when_its_leader_steps_down(epoch: int, expected: ErrorCode) -> None:
    """6.4: without an epoch NOT_LEADER, with one FENCED."""
    rig = Manager()
    rig.role(ME, 1)
    assert rig.fetch(Client("c"), 0, epoch=epoch, max_wait_ms=500) is None
    rig.role(F1, 2)
    response = rig.body(FetchResponse)
    assert response is not None
    assert response.partitions[P0].error is expected


def test_one_error_answers_the_whole_fetch() -> None:
    """6.4: the other partition is served at once, with what there is."""
    rig = Manager()
    rig.role(ME, 1)
    response = rig.fetch(Client("c"), 0, P0, ELSEWHERE, NOWHERE, max_wait_ms=500)
    assert response is not None
    assert [response.partitions[tp].error for tp in (P0, ELSEWHERE, NOWHERE)] == [
        ErrorCode.NONE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_followed_partitions_take_turns_by_records() -> None:
    """1.16: the order rotates: a partition that got records goes to the back, the others keep their place."""
    rig = Manager()
    rig.role(F1, 1, P0, P1)

    def asked() -> Send:
        (send,) = (effect for effect in rig.effects if isinstance(effect, Send))
        return send

    first = asked()
    source = Manager()
    source.role(ME, 1)
    source.produce("w", acks=1)
    served = source.follow(F1, 0)
    assert served is not None
    records = served.partitions[P0]._replace(high_watermark=0)
    answer = FetchResponse({P0: records, P1: FetchResult(ErrorCode.NONE, 0, 0)})
    rig.take(rig.manager.on_response(first.correlation_id, answer, rig.now_ms))
    body = asked().body
    assert isinstance(body, FetchRequest)
    assert list(body.partitions) == [P1, P0]


def test_a_batch_larger_than_the_limit_still_gets_through() -> None:
    """1.16: the first batch of a response may be of any size; the next partition then gets nothing."""
    rig = Manager()
    rig.role(ME, 1, P0, P1, isr=(ME,))
    rig.produce("w", P0, P1, acks=1)
    response = rig.fetch(Client("c"), 0, P0, P1, max_bytes=1)
    assert response is not None
    assert response.partitions[P0].records
    assert not response.partitions[P1].records


# --- the ISR ----------------------------------------------------------------------------------------


def test_lagging_members_are_proposed_to_the_controller() -> None:
    """2.6: checked every half of the bound, sent to the current controller."""
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("w", acks=1)
    rig.tick(LAG_MS // 2)
    assert not [e for e in rig.effects if isinstance(e, Send)]
    rig.tick(LAG_MS // 2)
    rig.tick(LAG_MS // 2)
    [send] = [e for e in rig.effects if isinstance(e, Send)]
    assert send.target == CONTROLLER
    assert isinstance(send.body, AlterPartitionRequest)
    assert send.body.broker_epoch == 5
    assert send.body.partitions[P0].new_isr == (ME,)


def proposals(rig: Manager) -> list[Send]:
    return [e for e in rig.effects if isinstance(e, Send) and isinstance(e.body, AlterPartitionRequest)]


def lagging() -> tuple[Manager, Send]:
    """A leader whose proposal to be alone in its ISR is on its way to the controller."""
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("w", acks=1)
    for _ in range(3):
        rig.tick(LAG_MS // 2)
    [sent] = proposals(rig)
    return rig, sent


def test_a_proposal_refused_for_good_is_asked_again_at_the_next_check() -> None:
    """7.2: the controller's request may have been lost; until it arrives the larger ISR counts."""
    rig, sent = lagging()
    refusal = AlterPartitionResult(ErrorCode.INVALID_UPDATE_VERSION)
    body = AlterPartitionResponse(ErrorCode.NONE, {P0: refusal})
    rig.take(rig.manager.on_response(sent.correlation_id, body, rig.now_ms))
    assert not proposals(rig)
    assert rig.manager.partitions[P0].isr.maximal == {ME, F1, F2}
    rig.tick(LAG_MS // 2)
    [again] = proposals(rig)
    assert again.body == sent.body
    rig.role(ME, 2, isr=(ME, F1))
    rig.tick(LAG_MS // 2)
    assert not proposals(rig), "the word came, and nobody lags in its epoch yet"


def test_the_check_of_the_isr_moves_a_watermark_that_waited_for_a_follower() -> None:
    """F1 was about to join when it fell silent: the next check waits for it no longer, nor do clients."""
    rig = Manager()
    rig.role(ME, 1, isr=(ME,))
    rig.follow(F1, 0)
    [sent] = proposals(rig)
    refusal = AlterPartitionResponse(ErrorCode.NONE, {P0: AlterPartitionResult(ErrorCode.INELIGIBLE_REPLICA)})
    rig.take(rig.manager.on_response(sent.correlation_id, refusal, rig.now_ms))
    rig.produce("w", timeout_ms=10 * LAG_MS)
    rig.tick(LAG_MS)
    assert rig.error("w") is None, "it may still come"
    rig.tick(LAG_MS // 2)
    assert rig.error("w") is ErrorCode.NONE


def test_a_broker_that_is_not_the_controller_is_asked_no_longer() -> None:
    """An order may have named the wrong one, and no other order may come: some live broker is it."""
    rig, sent = lagging()
    asked = [sent.target]
    for _ in range(3):
        body = AlterPartitionResponse(ErrorCode.NOT_CONTROLLER)
        rig.take(rig.manager.on_response(sent.correlation_id, body, rig.now_ms))
        rig.tick(rig.config.alter_partition_retry_ms)
        [sent] = proposals(rig)
        asked.append(sent.target)
    assert asked == [CONTROLLER, ME, F1, F2]


def test_a_new_controller_is_asked_at_once() -> None:
    """The old one may never answer, and then the connection has to time out first."""
    rig, sent = lagging()
    live = tuple(BrokerEndpoint(broker, epoch=5) for broker in (ME, F1, F2))
    rig.take(
        orders.update_metadata(
            rig.manager, Peer(F1, 1), UpdateMetadataRequest(F1, 2, 5, {}, live), rig.now_ms
        )
    )
    [again] = proposals(rig)
    assert again.target == F1
    assert again.body == sent.body
    result = AlterPartitionResult(ErrorCode.NONE, ME, 1, (ME,), 9)
    late = AlterPartitionResponse(ErrorCode.NONE, {P0: result})
    rig.take(rig.manager.on_response(sent.correlation_id, late, rig.now_ms))
    assert rig.manager.partitions[P0].isr.committed == {ME, F1, F2}, "the old one's answer is nobody's"

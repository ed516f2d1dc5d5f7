"""The conditions that a fetch waits for, and the replica that serves a consumer (KIP-392)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.truncate import truncate_to
from logstore.replication import orders, serving
from logstore.replication.config import NodeConfig, ReplicaSelector
from logstore.replication.driver import InProcessCluster, three_nodes
from logstore.replication.effects import Client, Peer, Send
from logstore.replication.messages import (
    BrokerEndpoint,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    NewTopic,
    UpdateMetadataRequest,
)
from logstore.segment.epochs import EpochEndOffset
from logstore.testing.stage import batch
from tests.replication.test_driver import BASE, TP, write
from tests.replication.test_replica_manager import CONTROLLER, F1, F2, ME, P0, P1, Manager

WAIT_MS = 500
RACKS = {ME: "x", F1: "y", F2: "y"}


def written(value: bytes, *, base_offset: int) -> bytes:
    """Return a batch of one record as the leader of epoch 1 has written it."""
    return encode_batch([Record(base_offset, 0, None, value)], base_offset=base_offset, leader_epoch=1)


class Rig(Manager):
    """Broker 0 leads two partitions; it and the brokers 1 and 2 may be in racks."""

    def __init__(
        self,
        *,
        log_config: LogConfig | None = None,
        selector: ReplicaSelector = ReplicaSelector.NONE,
        leads: bool = True,
    ) -> None:
        super().__init__(
            log_config=log_config,
            config=NodeConfig(
                node_id=ME,
                replica_lag_time_max_ms=10_000,
                broker_rack=RACKS[ME],
                replica_selector_class=selector,
            ),
        )
        self.in_racks(RACKS)
        self.role(ME if leads else F1, 1, P0, P1)

    def in_racks(self, racks: dict[int, str]) -> None:
        live = tuple(BrokerEndpoint(broker, epoch=5, rack=rack) for broker, rack in racks.items())
        body = UpdateMetadataRequest(CONTROLLER, 1, -1, {}, live)
        self.take(orders.update_metadata(self.manager, Peer(CONTROLLER, self._next_id()), body, self.now_ms))

    def consume(
        self,
        offset: int,
        *,
        min_bytes: int = 1,
        max_wait_ms: int = WAIT_MS,
        rack: str | None = None,
        epoch: int = -1,
        max_bytes: int = 1 << 20,
    ) -> FetchResult | None:
        wanted = FetchPartition(offset, max_bytes, current_leader_epoch=epoch)
        request = FetchRequest(-1, max_wait_ms, min_bytes, 1 << 20, {P0: wanted}, rack=rack)
        self.take(serving.fetch(self.manager, Client("f"), request, self.now_ms))
        return self.fetched()

    def hear(self, result: FetchResult) -> None:
        """As a follower: its leader answers the fetch that is under way, for both partitions the same."""
        [fetch] = [each for each in self.effects if isinstance(each, Send)]
        body = FetchResponse({P0: result, P1: result})
        self.take(self.manager.on_response(fetch.correlation_id, body, self.now_ms))

    def fetched(self) -> FetchResult | None:
        """Return the answer to that consumer among the last effects; None while it waits."""
        response = self.body(FetchResponse, "f")
        return None if response is None else response.partitions[P0]

    def commit(self, count: int = 1) -> None:
        for _ in range(count):
            self.produce("w", acks=1)
        end = self.manager.partitions[P0].log.log_end_offset
        for follower in (F1, F2):
            self.follow(follower, end)


# --- what a fetch waits for -------------------------------------------------------------------------


def test_a_consumer_waits_for_the_high_watermark_and_a_follower_for_the_end() -> None:
    """1.16: a follower counts to LEO, a consumer to HW."""
    rig = Rig()
    assert rig.consume(0) is None
    wanted = FetchPartition(0, 1 << 20)
    request = FetchRequest(F1, WAIT_MS, 1, 1 << 20, {P0: wanted}, 5)
    rig.take(serving.fetch(rig.manager, Peer(F1, 70), request, rig.now_ms))
    rig.produce("w", acks=1)
    assert rig.fetched() is None
    assert rig.body(FetchResponse) is not None, "the follower's"
    rig.follow(F1, 1)
    rig.follow(F2, 1)
    assert rig.fetched() is not None


def test_it_waits_for_as_much_as_it_asked() -> None:
    """1.16: the sum of readable bytes reaches min_bytes; or the time is up, with what there is."""
    rig = Rig()
    size = len(batch(b"x"))
    assert rig.consume(0, min_bytes=2 * size) is None
    rig.commit()
    assert rig.fetched() is None
    rig.commit()
    assert rig.fetched() is not None
    assert rig.consume(0, min_bytes=5 * size) is None
    rig.tick(WAIT_MS)
    result = rig.fetched()
    assert result is not None
    assert len(result.records) > 0


def test_a_fetch_above_the_high_watermark_waits() -> None:
    """A consumer that was sent on by an earlier leader would ask again at once."""
    rig = Rig()
    rig.produce("w", acks=1)
    assert rig.consume(1) is None
    rig.commit(0)
    assert rig.fetched() is None, "it has what is committed"
    rig.commit()
    assert rig.fetched() is not None


def test_a_follower_does_not_count_the_bytes_below_its_high_watermark() -> None:
    """It would have to read them: a consumer that waits for many gets what there is."""
    rig = Rig(selector=ReplicaSelector.RACK_AWARE, leads=False)
    one, two = (written(value, base_offset=number) for number, value in enumerate((b"one", b"two")))
    rig.hear(FetchResult(ErrorCode.NONE, 0, 0, one + two))
    fetching = rig.effects
    assert rig.consume(0, rack="y", min_bytes=1 << 19) is None
    rig.effects = fetching
    rig.hear(FetchResult(ErrorCode.NONE, 1, 0))
    result = rig.fetched()
    assert result is not None
    assert bytes(result.records) == one


def test_a_roll_ends_the_wait() -> None:
    """6.4: DelayedFetch on segment roll completes: in an older segment there is always something to send."""
    rig = Rig()
    rig.commit()
    assert rig.consume(0, min_bytes=1 << 19) is None
    log = rig.manager.partitions[P0].log
    log.config = replace(log.config, segment_bytes=log.segments.size + 10)
    rig.produce("w", acks=1)
    result = rig.fetched()
    assert result is not None
    assert len(log.segments) == 2
    assert len(result.records) > 0


def test_a_roll_at_the_offset_that_a_fetch_waits_for_ends_the_wait() -> None:
    """The position in the segment before says nothing about the new one."""
    rig = Rig()
    rig.commit(3)
    assert rig.consume(3, min_bytes=1 << 19) is None
    log = rig.manager.partitions[P0].log
    log.config = replace(log.config, segment_bytes=log.segments.size + 10)
    rig.produce("w", acks=1)
    assert rig.fetched() is None, "it is not committed"
    for follower in (F1, F2):
        rig.follow(follower, 4)
    result = rig.fetched()
    assert result is not None
    assert len(log.segments) == 2
    assert len(result.records) > 0


def test_a_change_of_leader_ends_the_wait() -> None:
    """6.4: fetch in purgatory when becoming follower: client without epoch NOT_LEADER, with epoch FENCED."""
    rig = Rig()
    assert rig.consume(0) is None
    rig.role(F1, 2)
    result = rig.fetched()
    assert result is not None
    assert result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig = Rig()
    assert rig.consume(0, epoch=1) is None
    rig.role(F1, 2)
    result = rig.fetched()
    assert result is not None
    assert result.error is ErrorCode.FENCED_LEADER_EPOCH


def test_a_cut_ends_the_wait() -> None:
    """6.4: DelayedFetch on log truncation: the fetch offset lies beyond the end now."""
    rig = Rig()
    rig.commit(3)
    assert rig.consume(3) is None
    truncate_to(rig.manager.partitions[P0].log, 1)
    rig.manager.waiting.wake(P0)
    rig.tick(0)
    result = rig.fetched()
    assert result is not None
    assert result.error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_divergence_is_answered_at_once() -> None:
    """1.16: waiting is pointless: the follower has to truncate first."""
    rig = Rig()
    rig.commit()
    rig.role(ME, 4, P0, P1)
    wanted = FetchPartition(1, 1 << 20, current_leader_epoch=4, last_fetched_epoch=3)
    request = FetchRequest(F1, WAIT_MS, 1, 1 << 20, {P0: wanted}, 5)
    rig.take(serving.fetch(rig.manager, Peer(F1, 70), request, rig.now_ms))
    response = rig.body(FetchResponse)
    assert response is not None
    assert response.partitions[P0].diverging_epoch == EpochEndOffset(1, 1)
    assert response.partitions[P0].records == b""


def test_a_consumer_that_diverged_learns_the_last_stable_offset() -> None:
    """As beside every other answer without an error."""
    rig = Rig()
    rig.commit()
    rig.role(ME, 4, P0, P1)
    wanted = FetchPartition(1, 1 << 20, current_leader_epoch=4, last_fetched_epoch=3)
    rig.take(
        serving.fetch(rig.manager, Client("f"), FetchRequest(-1, 0, 1, 1 << 20, {P0: wanted}), rig.now_ms)
    )
    response = rig.body(FetchResponse)
    assert response is not None
    result = response.partitions[P0]
    assert result.diverging_epoch == EpochEndOffset(1, 1)
    assert result.last_stable_offset == result.high_watermark


def test_without_time_or_partitions_it_does_not_wait() -> None:
    """1.16: max_wait of 0, and a request that asks for nothing."""
    rig = Rig()
    result = rig.consume(0, max_wait_ms=0)
    assert result is not None
    assert (result.error, result.records) == (ErrorCode.NONE, b"")
    rig.take(serving.fetch(rig.manager, Client("f"), FetchRequest(-1, WAIT_MS, 1, 1 << 20, {}), rig.now_ms))
    assert rig.body(FetchResponse, "f") == FetchResponse({})


def test_one_error_and_the_other_partition_is_served_at_once() -> None:
    """6.4: two partitions fetched, one error: the other is served at once."""
    rig = Rig()
    rig.commit()
    wanted = {P0: FetchPartition(0, 1 << 20), P1: FetchPartition(9, 1 << 20)}
    rig.take(
        serving.fetch(
            rig.manager, Client("f"), FetchRequest(-1, WAIT_MS, 1 << 19, 1 << 20, wanted), rig.now_ms
        )
    )
    response = rig.body(FetchResponse, "f")
    assert response is not None
    assert response.partitions[P1].error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(response.partitions[P0].records) > 0


def test_a_batch_larger_than_every_limit_is_sent_if_it_is_the_first() -> None:
    """1.16: the first non-empty partition may exceed the limits, or a large batch could never be read."""
    rig = Rig()
    rig.commit(2)
    wanted = {P1: FetchPartition(0, 1), P0: FetchPartition(0, 1)}
    rig.take(serving.fetch(rig.manager, Client("f"), FetchRequest(-1, 0, 1, 1, wanted), rig.now_ms))
    response = rig.body(FetchResponse, "f")
    assert response is not None
    assert len(response.partitions[P0].records) == len(batch(b"x")), "one batch, though P1 came first"


# --- a replica nearby -------------------------------------------------------------------------------


def test_a_consumer_is_sent_to_a_replica_in_its_rack() -> None:
    """6.4: preferred read replica: returned, no records, immediately."""
    rig = Rig(selector=ReplicaSelector.RACK_AWARE)
    rig.commit(2)
    result = rig.consume(0, rack="y")
    assert result is not None
    assert (result.error, result.records) == (ErrorCode.NONE, b"")
    assert result.preferred_read_replica == F2, "the highest id of two that are alike"
    result = rig.consume(2, rack="y")
    assert result is not None, "not parked either"


def test_the_replica_in_its_rack_compares_a_consumers_epoch() -> None:
    rig = Rig(selector=ReplicaSelector.RACK_AWARE)
    rig.commit(2)
    request = FetchRequest(
        -1, 0, 1, 1 << 20, {P0: FetchPartition(2, 1 << 20, last_fetched_epoch=9)}, rack="y"
    )
    rig.take(serving.fetch(rig.manager, Client("f"), request, rig.now_ms))
    result = rig.fetched()
    assert result is not None
    assert (result.error, result.preferred_read_replica) == (ErrorCode.NONE, F2)


@pytest.mark.parametrize("why", ["none", "own rack", "no rack", "no such rack", "dead", "lacks it", "out"])
def test_or_is_served_by_the_leader(why: str) -> None:
    """6.4: not when the follower lacks the offset or is not in the ISR; nor when the leader is as near."""
    selector = ReplicaSelector.NONE if why == "none" else ReplicaSelector.RACK_AWARE
    rig = Rig(selector=selector)
    rig.commit(2)
    rack: str | None = {"own rack": "x", "no rack": None, "no such rack": "z"}.get(why, "y")
    offset = 0
    if why == "dead":
        rig.in_racks({ME: "x"})
    elif why == "lacks it":
        rig.produce("w", acks=1)
        offset = 3
    elif why == "out":
        rig.role(ME, 1, isr=(ME,))
    result = rig.consume(offset, rack=rack, max_wait_ms=0)
    assert result is not None
    assert result.error is ErrorCode.NONE
    assert result.preferred_read_replica == -1
    assert bool(len(result.records)) == (offset == 0)


def test_the_furthest_of_several_is_preferred() -> None:
    rig = Rig(selector=ReplicaSelector.RACK_AWARE)
    rig.commit(2)
    rig.produce("w", acks=1)
    rig.follow(F2, 3)
    result = rig.consume(0, rack="y")
    assert result is not None
    assert result.preferred_read_replica == F2


@pytest.mark.parametrize("selector", list(ReplicaSelector))
@pytest.mark.parametrize("rack", [None, "y"])
def test_who_asks_a_follower(selector: ReplicaSelector, rack: str | None) -> None:
    """6.2: consumer fetch at follower without client metadata: NOT_LEADER. With it, and where replicas are
    selected, it is served, and not sent on."""
    rig = Rig(selector=selector, leads=False)
    rig.hear(FetchResult(ErrorCode.NONE, 0, 0))
    result = rig.consume(0, rack=rack, max_wait_ms=0)
    assert result is not None
    is_served = selector is ReplicaSelector.RACK_AWARE and rack is not None
    assert result.error is (ErrorCode.NONE if is_served else ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert result.preferred_read_replica == -1


@pytest.mark.parametrize("is_another_history", [False, True])
def test_a_follower_serves_nobody_before_its_log_was_compared(is_another_history: bool) -> None:
    """What was committed here may be of a history that the election of its leader gave up (seed 19951): a
    consumer that knows the new epoch would be given another record than its leader has there."""
    rig = Rig(selector=ReplicaSelector.RACK_AWARE)
    rig.commit(2)
    rig.role(F1, 2, P0, P1, isr=(F1,))

    def ask(offset: int) -> tuple[ErrorCode, int]:
        result = rig.consume(offset, rack="x", epoch=2, max_wait_ms=0)
        assert result is not None
        return result.error, len(result.records)

    role = rig.effects
    assert ask(1) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    rig.effects = role
    if is_another_history:
        rig.hear(FetchResult(ErrorCode.NONE, 9, 0, diverging_epoch=EpochEndOffset(1, 1)))
        cut = rig.effects
        assert ask(0)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER, "it says where to cut, not that all is well"
        rig.effects = cut
    rig.hear(FetchResult(ErrorCode.NONE, 2, 0))
    assert ask(0)[0] is ErrorCode.NONE
    assert bool(ask(1)[1]) != is_another_history


def test_consumers_read_from_a_follower_up_to_its_high_watermark() -> None:
    """A whole cluster: the parked fetch at the follower ends when its high watermark moves; beyond its end is
    out of range, between the two there is nothing yet."""
    base = replace(BASE, replica_selector_class=ReplicaSelector.RACK_AWARE)
    configs = [replace(each, broker_rack="xyz"[each.node_id]) for each in three_nodes(base=base)]
    made = InProcessCluster(configs, disk_of=lambda node_id: MemoryDisk())
    made.start()
    made.create_topic(NewTopic("t", assignment=((0, 1, 2),)))
    write(made, b"first")

    def ask(node_id: int, offset: int, max_wait_ms: int = 0) -> FetchResult:
        body = FetchRequest(-1, max_wait_ms, 1, 1 << 20, {TP: FetchPartition(offset, 1 << 20)}, rack="y")
        response = made.call(body, node_id)
        assert isinstance(response, FetchResponse)
        return response.partitions[TP]

    assert ask(0, 0).preferred_read_replica == 1
    made.advance(1000)
    assert len(ask(1, 0).records) == len(batch(b"first"))
    assert ask(1, 9).error is ErrorCode.OFFSET_OUT_OF_RANGE
    request = FetchRequest(-1, 5000, 1, 1 << 20, {TP: FetchPartition(1, 1 << 20)}, rack="y")
    waiting = made.client(request, 1)
    made.settle()
    assert not waiting.is_done
    before_ms = made.now_ms
    write(made, b"second")
    assert made.run_until(lambda: waiting.is_done)
    assert made.now_ms - before_ms < 5000
    assert isinstance(waiting.body, FetchResponse)
    assert len(waiting.body.partitions[TP].records) == len(batch(b"second"))

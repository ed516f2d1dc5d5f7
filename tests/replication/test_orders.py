"""The controller's requests to the replicas of a node: roles, deletions, live brokers."""

from __future__ import annotations

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.replication import orders, serving
from logstore.replication.effects import Client, Peer, Send
from logstore.replication.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    BrokerEndpoint,
    EpochAnswer,
    EpochQuery,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    LeaderAndIsrRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from logstore.testing.disks.faulty import Fault, FaultyDisk
from tests.replication.test_replica_manager import CONTROLLER, F1, F2, ME, NOWHERE, P0, P1, Manager


def test_old_controllers_and_former_lives() -> None:
    """1.5, 6.7: stale epochs are refused whole, a newer incarnation is accepted (the registration race)."""
    rig = Manager()
    assert rig.role(ME, 1, broker_epoch=4).error is ErrorCode.STALE_BROKER_EPOCH
    assert rig.role(ME, 1, controller_epoch=0).error is ErrorCode.STALE_CONTROLLER_EPOCH
    assert not rig.manager.partitions
    assert rig.role(ME, 1, broker_epoch=6).partitions[P0] is ErrorCode.NONE
    assert rig.stop(1, delete=True, controller_epoch=0).error is ErrorCode.STALE_CONTROLLER_EPOCH
    assert rig.logs.get(P0) is not None, "S43"


def test_metadata_of_an_old_controller_is_refused_and_of_a_new_one_makes_it_known() -> None:
    """1.6: UpdateMetadata sets the known controller epoch, as LeaderAndIsr does."""
    rig = Manager()

    def tell(controller_epoch: int) -> ErrorCode:
        body = UpdateMetadataRequest(CONTROLLER, controller_epoch, -1, {}, (BrokerEndpoint(F2, epoch=9),))
        rig.take(orders.update_metadata(rig.manager, Peer(CONTROLLER, rig._next_id()), body, rig.now_ms))
        response = rig.body(UpdateMetadataResponse)
        assert response is not None
        return response.error

    assert tell(0) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert set(rig.manager.metadata.brokers) == {ME, F1, F2}
    assert tell(4) is ErrorCode.NONE
    assert set(rig.manager.metadata.brokers) == {F2}
    assert rig.manager.controller_epoch == 4
    assert rig.role(ME, 1, controller_epoch=3).error is ErrorCode.STALE_CONTROLLER_EPOCH


def test_what_is_refused_for_one_partition() -> None:
    """1.5: not a replica, another incarnation of the topic, one epoch with two leaders."""
    rig = Manager()
    refused = rig.role(F1, 1, P1, replicas=(F1, F2)).partitions[P1]
    assert refused is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    first, second = "A" * 21 + "Q", "A" * 21 + "g"
    assert rig.role(ME, 1, topic_ids={"t": first}).partitions[P0] is ErrorCode.NONE
    assert rig.role(ME, 9, topic_ids={"t": second}).partitions[P0] is ErrorCode.INCONSISTENT_TOPIC_ID
    assert rig.role(ME, 2).partitions[P0] is ErrorCode.NONE, "an absent id is accepted"
    assert rig.role(ME, 1, P1).partitions[P1] is ErrorCode.NONE
    assert rig.role(ME, 2, P1, topic_ids={"t": first}).partitions[P1] is ErrorCode.NONE, (
        "and one that comes late"
    )
    assert rig.role(ME, 3, P1, topic_ids={"t": second}).partitions[P1] is ErrorCode.INCONSISTENT_TOPIC_ID
    assert rig.role(F1, 2).partitions[P0] is ErrorCode.INVALID_REQUEST


def test_a_missed_leader_is_followed_by_name() -> None:
    """S46: the metadata does not know the leader yet: the log exists, and the fetch goes to it."""
    rig = Manager()
    rig.metadata((ME,))
    rig.role(F2, 3)
    assert rig.logs.get(P0) is not None
    assert [e.target for e in rig.effects if isinstance(e, Send)] == [F2]


def test_s46_a_leader_without_an_address_is_adopted_and_found_later() -> None:
    """Its epoch fences at once, the log keeps its checkpoint entry, and it is asked until it answers."""
    rig = Manager()
    rig.metadata((ME,))
    rig.role(ME, 2)
    rig.role(F2, 3)
    partition = rig.manager.partitions[P0]
    assert (partition.leader_id, partition.leader_epoch) == (F2, 3)
    (asked,) = [effect for effect in rig.effects if isinstance(effect, Send)]
    # Whoever carries requests does not know where F2 is.
    assert rig.manager.on_disconnected(asked.correlation_id, rig.now_ms)
    fenced = FetchRequest(F1, 0, 1, 1 << 20, {P0: FetchPartition(0, 1 << 20, current_leader_epoch=2)})
    rig.take(serving.fetch(rig.manager, Peer(F1, 77), fenced, rig.now_ms))
    answer = rig.body(FetchResponse)
    assert answer is not None
    assert answer.partitions[P0].error is ErrorCode.FENCED_LEADER_EPOCH
    rig.tick(rig.config.replica_fetch_backoff_ms)
    assert [effect.target for effect in rig.effects if isinstance(effect, Send)] == [F2]
    rig.tick(5000)
    assert b"t 0 0" in read_checkpoint(rig.disk)


def test_no_leader_no_fetch() -> None:
    """Leader -1: the log and its checkpoint entry exist (KAFKA-1647), and nothing is fetched."""
    rig = Manager()
    rig.role(-1, 3)
    assert not [e for e in rig.effects if isinstance(e, Send)]
    rig.tick(5000)
    assert b"t 0 0" in read_checkpoint(rig.disk)


def read_checkpoint(disk: Disk) -> bytes:
    file = disk.open("data/replication-offset-checkpoint")
    try:
        return file.pread(1 << 16, 0)
    finally:
        file.close()


def test_the_watermark_is_checkpointed_on_schedule_from_the_first_role_on() -> None:
    """2.9: every five seconds."""
    rig = Manager()
    rig.tick(60_000)
    rig.role(ME, 1, isr=(ME,))
    rig.produce("a", acks=1)
    rig.tick(5000)
    assert b"t 0 1" in read_checkpoint(rig.disk)


def test_settings_arrive_with_the_role_and_later() -> None:
    """Also with states that have not changed."""
    rig = Manager()
    rig.role(ME, 1, configs={"t": {"min.insync.replicas": "2"}})
    assert rig.manager.partitions[P0].min_insync == 2
    assert rig.role(ME, 1, version=rig.versions, configs={}).partitions[P0] is ErrorCode.NONE
    assert rig.manager.partitions[P0].min_insync == 1


def test_settings_that_come_late_do_not_replace_newer_ones() -> None:
    """A request that its controller gave up as lost may arrive behind the one that was sent after it; the
    role in it is a repeat, its settings are old (seed 19 of the simulation)."""
    rig = Manager()
    late = Peer(CONTROLLER, rig._next_id())
    rig.role(ME, 1, configs={"t": {"min.insync.replicas": "2"}})
    state = PartitionState(1, ME, 1, (ME, F1, F2), rig.versions, (ME, F1, F2), durability=rig.durability)
    body = LeaderAndIsrRequest(CONTROLLER, 1, 5, {P0: state}, {}, (), {"t": {}})
    rig.take(orders.leader_and_isr(rig.manager, late, body, rig.now_ms))
    assert rig.manager.partitions[P0].min_insync == 2


def test_new_defaults_after_another_partition_of_the_topic_was_deleted() -> None:
    """The topic's own settings are known as long as one of its partitions is here."""
    rig = Manager()
    rig.role(ME, 1, P0, P1, configs={"t": {"min.insync.replicas": "2"}})
    assert rig.stop(1, delete=True, tp=P1).partitions[P1] is ErrorCode.NONE
    orders.change_defaults(rig.manager, LogConfig(retention_ms=5_000))
    config = rig.manager.partitions[P0].log.config
    assert (config.retention_ms, config.min_insync_replicas) == (5_000, 2)
    assert rig.stop(1, delete=True).partitions[P0] is ErrorCode.NONE
    assert rig.manager.topic_configs == {}


def test_a_default_that_a_topic_contradicts_does_not_count_for_it() -> None:
    """Neither where defaults change nor where the topic's role comes later; it is served."""
    own, new = {"t": {"min.compaction.lag.ms": "9000"}}, LogConfig(max_compaction_lag_ms=5_000, segment_ms=7)
    rig, later = Manager(), Manager(log_config=new)
    rig.role(ME, 1, configs=own)
    orders.change_defaults(rig.manager, new)
    assert later.role(ME, 1, configs=own).partitions[P0] is ErrorCode.NONE
    for each in (rig, later):
        config = each.manager.partitions[P0].log.config
        assert (config.min_compaction_lag_ms, config.segment_ms) == (9_000, 7)
        assert config.max_compaction_lag_ms == LogConfig().max_compaction_lag_ms


@pytest.mark.parametrize("is_remade", [False, True], ids=["deleted", "deleted, and its namesake too"])
def test_a_role_that_comes_late_makes_no_log(is_remade: bool) -> None:
    """It was given up as lost, and sent again since; then its topic went. What is known of deletions is the
    last one, so that a namesake's would make room for it."""
    first, second = {"t": "AAAAAAAAAAAAAAAAAAAAAQ"}, {"t": "AAAAAAAAAAAAAAAAAAAAAg"}
    rig = Manager()
    late = Peer(CONTROLLER, rig._next_id())
    for ids in (first, second) if is_remade else (first,):
        assert rig.role(ME, 0, version=0, topic_ids=ids).partitions[P0] is ErrorCode.NONE
        assert rig.stop(-2, delete=True, topic_ids=ids).partitions[P0] is ErrorCode.NONE
    state = PartitionState(1, ME, 0, (ME, F1, F2), 0, (ME, F1, F2))
    body = LeaderAndIsrRequest(CONTROLLER, 1, 5, {P0: state}, first, (), {})
    rig.take(orders.leader_and_isr(rig.manager, late, body, rig.now_ms))
    assert rig.logs.get(P0) is None
    assert not rig.manager.partitions


@pytest.mark.parametrize("is_remade", [True, False])
def test_an_order_to_delete_that_comes_late_takes_back_nothing_of_a_later_one(is_remade: bool) -> None:
    """A replica was moved away twice, or its topic deleted twice. The first order comes once more, then the
    role that the second one ended: it would make a log that nobody assigned."""
    first, second = {"t": "AAAAAAAAAAAAAAAAAAAAAQ"}, {"t": "AAAAAAAAAAAAAAAAAAAAAg"}
    if not is_remade:
        second = first
    rig = Manager()
    ends = (-2, -2) if is_remade else (2, 4)
    given = []
    for epoch, end, ids in zip((1, 3), ends, (first, second), strict=True):
        role = LeaderAndIsrRequest(
            CONTROLLER, 1, 5, {P0: PartitionState(1, F1, epoch, (F1,), epoch, (ME, F1))}, ids, (), {}
        )
        stop = StopReplicaRequest(CONTROLLER, 1, 5, {P0: StopReplicaPartition(end, delete=True)}, ids)
        given.append((Peer(CONTROLLER, rig._next_id()), role, Peer(CONTROLLER, rig._next_id()), stop))
    for role_of, role, stop_of, stop in given:
        rig.take(orders.leader_and_isr(rig.manager, role_of, role, rig.now_ms))
        assert rig.logs.get(P0) is not None
        rig.take(orders.stop_replica(rig.manager, stop_of, stop, rig.now_ms))
        assert rig.logs.get(P0) is None
    (_, _, first_stop_of, first_stop), (role_of, role, _, _) = given
    rig.take(orders.stop_replica(rig.manager, first_stop_of, first_stop, rig.now_ms))
    rig.take(orders.leader_and_isr(rig.manager, role_of, role, rig.now_ms))
    assert rig.logs.get(P0) is None
    assert not rig.manager.partitions


@pytest.mark.parametrize("delete", [True, False])
@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-2, ErrorCode.NONE),
        (-1, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (6, ErrorCode.NONE),
    ],
)
def test_stop_replica(epoch: int, expected: ErrorCode, delete: bool) -> None:
    """6.4: epochs against a current 5; waiting requests are sent away; the log goes only if asked."""
    rig = Manager()
    rig.role(ME, 5)
    rig.produce("w")
    assert rig.stop(epoch, delete=delete).partitions[P0] is expected
    if expected is ErrorCode.NONE:
        assert rig.error("w") is (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if delete else None)
        assert (rig.logs.get(P0) is None) is delete
    else:
        assert rig.error("w") is None
        assert rig.logs.get(P0) is not None


def test_stop_replica_of_an_old_controller_or_a_dead_disk() -> None:
    """S43: the log is still there; and there is nothing to stop where a disk failed."""
    disk = FaultyDisk(MemoryDisk())
    rig = Manager(disk=disk)
    rig.role(ME, 1, controller_epoch=3)
    late = rig.stop(1, delete=True, controller_epoch=2)
    assert late.error is ErrorCode.STALE_CONTROLLER_EPOCH
    assert rig.manager.partitions[P0].is_leader
    disk.inject(Fault(operation="pwrite", path=lambda path: path.endswith(".log")))
    rig.produce("w")
    assert rig.stop(1, delete=True, controller_epoch=3).partitions[P0] is ErrorCode.KAFKA_STORAGE_ERROR


def test_questions_are_answered_partition_by_partition() -> None:
    """Offsets by time for clients and replicas, and the ends of epochs: one error is one partition's."""
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("a", acks=1)
    rig.produce("b", acks=1)
    rig.follow(F1, 1)
    rig.follow(F2, 1)
    times = (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, 0, 1)
    ends = {}
    for replica in (-1, F1):
        for timestamp in times:
            asked = dict.fromkeys((P0, NOWHERE), ListOffsetsPartition(timestamp))
            rig.take(
                serving.list_offsets(rig.manager, Client("c"), ListOffsetsRequest(replica, asked), rig.now_ms)
            )
            offsets = rig.body(ListOffsetsResponse)
            assert offsets is not None
            assert offsets.partitions[NOWHERE].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert offsets.partitions[P0].error is ErrorCode.NONE
            ends[replica, timestamp] = offsets.partitions[P0].offset
    assert [ends[-1, timestamp] for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, 0, 1)] == [
        0,
        1,
        0,
        -1,
    ]
    assert ends[F1, LATEST_TIMESTAMP] == 2, "a replica sees all of the log"
    question = OffsetForLeaderEpochRequest(F1, dict.fromkeys((P0, NOWHERE), EpochQuery(1, 1)))
    rig.take(serving.offset_for_leader_epoch(rig.manager, Peer(F1, 77), question, rig.now_ms))
    answers = rig.body(OffsetForLeaderEpochResponse)
    assert answers is not None
    assert answers.partitions[P0] == EpochAnswer(ErrorCode.NONE, 1, 2)
    assert answers.partitions[NOWHERE].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_answer_to_another_question_is_counted_and_changes_nothing() -> None:
    """P6: requests to a peer that breaks the protocol pause for one back-off."""
    rig = Manager()
    rig.role(F1, 1)
    [fetch] = [e for e in rig.effects if isinstance(e, Send)]
    body = FetchResponse({P1: FetchResult(ErrorCode.NONE)})
    rig.take(rig.manager.on_response(fetch.correlation_id, body, rig.now_ms))
    assert rig.manager.counters.protocol_violations == 1
    assert not [e for e in rig.effects if isinstance(e, Send)]


def test_stop_replica_of_a_log_without_a_role() -> None:
    """6.4: what an earlier life left on disk is removed as well."""
    rig = Manager()
    rig.logs.get_or_create(P1)
    assert rig.stop(-2, delete=True, tp=P1).partitions[P1] is ErrorCode.NONE
    assert rig.logs.get(P1) is None
    assert rig.stop(-2, delete=True, tp=P1).partitions[P1] is ErrorCode.NONE


def test_a_stopped_replica_takes_its_role_up_again() -> None:
    """Stopped without deletion, then assigned the same role again: it fetches again."""
    rig = Manager()
    rig.role(F1, 5)
    rig.stop(5, delete=False)
    assert P0 not in rig.manager.followers.followed
    rig.role(F1, 5, version=rig.versions)
    assert P0 in rig.manager.followers.followed


def test_an_update_that_comes_late_does_not_bring_the_dead_back() -> None:
    """One controller numbers its requests; each is the whole list of the living, so an older one is void."""
    rig = Manager()
    everybody = UpdateMetadataRequest(
        CONTROLLER, 1, -1, {}, tuple(BrokerEndpoint(broker, epoch=5) for broker in (ME, F1, F2))
    )
    late = Peer(CONTROLLER, rig._next_id())
    rig.metadata((ME, F1))
    rig.take(orders.update_metadata(rig.manager, late, everybody, rig.now_ms))
    assert sorted(rig.manager.metadata.brokers) == [ME, F1]
    newer_term = UpdateMetadataRequest(F1, 2, -1, {}, everybody.live_brokers)
    rig.take(orders.update_metadata(rig.manager, Peer(F1, 1), newer_term, rig.now_ms))
    assert sorted(rig.manager.metadata.brokers) == [ME, F1, F2]

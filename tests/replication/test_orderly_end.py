"""Nodes that stop in order, on whole clusters: leaderships first, then roles, logs, and the session last.

S and I numbers are those of the failure schedules and invariants in the replication reference.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import InProcessCluster, NodeConfig
from logstore.replication.driver import LOG_DIR, three_nodes
from logstore.replication.effects import Request, Response, WatchFired
from logstore.replication.in_process import Envelope
from logstore.replication.messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    FetchRequest,
    FetchResponse,
    LeaderAndIsrRequest,
    NewTopic,
    ProduceResponse,
    StopReplicaRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.memory import MemoryStore
from logstore.testing.stage import batch

TP = TopicPartition("t", 0)
BASE = NodeConfig(
    node_id=0,
    zookeeper_session_timeout_ms=6_000,
    replica_lag_time_max_ms=6_000,
    request_timeout_ms=5_000,
    replica_fetch_backoff_ms=200,
)


def cluster(
    *, base: NodeConfig = BASE, disks: dict[int, Disk] | None = None, store: MemoryStore | None = None
) -> InProcessCluster:
    """Three nodes; `t` is led by node 0, which is the controller too."""
    kept = disks if disks is not None else {}
    made = InProcessCluster(
        three_nodes(base=base),
        disk_of=lambda node_id: kept.setdefault(node_id, MemoryDisk()),
        store=store,
    )
    made.start()
    made.create_topic(NewTopic("t", assignment=((0, 1, 2),)))
    made.advance(1_000)
    return made


def state(made: InProcessCluster) -> layout.LeaderAndIsr:
    assert isinstance(made.store, MemoryStore)
    nodes = dict(made.store.tree.nodes())
    return layout.parse_state(nodes[layout.partition_state_path(TP)].data)


def view(made: InProcessCluster) -> tuple[int, int, tuple[int, ...]]:
    found = state(made)
    return found.leader, found.leader_epoch, found.isr


def is_registered(made: InProcessCluster, node_id: int) -> bool:
    assert isinstance(made.store, MemoryStore)
    return layout.broker_path(node_id) in dict(made.store.tree.nodes())


def is_marked_clean(disk: Disk) -> bool:
    return any(entry.name == ".kafka_cleanshutdown" for entry in disk.scan(LOG_DIR))


class WatchfulStore(MemoryStore):
    """Notes, as each session ends, whether this disk carries the mark of a clean stop."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self.seen: list[bool] = []
        self._disk = disk

    def close_session(self, session_id: int) -> list[WatchFired]:
        self.seen.append(is_marked_clean(self._disk))
        return super().close_session(session_id)


# --- the whole course -------------------------------------------------------------------------


def test_a_controlled_stop_costs_one_election_and_no_error() -> None:
    """Produces continue at the next leader at once: no session had to expire."""
    made = cluster()
    assert view(made) == (0, 0, (0, 1, 2))
    made.stop_node(0, controlled=True)
    assert view(made) == (1, 1, (1, 2))
    made.run_until(lambda: made.nodes[1].replicas.partitions[TP].is_leader, 1_000)
    reply = made.produce(TP, batch(b"x"))
    made.run_until(lambda: reply.is_done, 1_000)
    assert isinstance(reply.body, ProduceResponse)
    assert reply.body.partitions[TP].error is ErrorCode.NONE
    assert made.nodes[2].controller.is_active or made.nodes[1].controller.is_active
    made.advance(10_000)
    assert view(made) == (1, 1, (1, 2)), "its going was no news to anybody"


def test_a_client_with_acks_all_does_not_wait_for_the_one_that_leaves() -> None:
    """Follower 2 goes; the leader's next commit does not wait out the lag bound (KAFKA-15021)."""
    made = cluster()
    made.begin_shutdown(2)
    made.run_until(lambda: made.nodes[2].is_ready_to_stop, 1_000)
    assert view(made) == (0, 1, (0, 1))
    reply = made.produce(TP, batch(b"x"))
    before_ms = made.now_ms
    made.run_until(lambda: reply.is_done, 10_000)
    assert isinstance(reply.body, ProduceResponse)
    assert reply.body.partitions[TP].error is ErrorCode.NONE
    assert made.now_ms - before_ms < 1_000


def test_s53_every_node_in_turn() -> None:
    """The third keeps its partition to the end, and stops at once: it waits for nobody."""
    made = cluster()
    made.stop_node(0, controlled=True)
    made.stop_node(1, controlled=True)
    assert view(made) == (2, 2, (2,))
    last = made.nodes[2]
    assert made.run_until(lambda: last.replicas.controller_id == 2, 10_000)
    before_ms = made.now_ms
    made.stop_node(2, controlled=True)
    assert last.departure is not None
    assert not last.departure.has_left
    assert last.departure.remaining == (TP,)
    assert made.now_ms - before_ms < 1_000, "no pauses: no other broker could lead"
    made.start_node(0)
    made.advance(20_000)
    assert view(made)[::2] == (-1, (2,)), "it lacks nothing, but nobody can know that"
    made.start_node(2)
    made.advance(20_000)
    assert view(made)[0] == 2
    assert set(view(made)[2]) == {0, 2}


def test_a_new_controller_is_found_and_asked() -> None:
    """The controller dies with the request; the second attempt goes to its successor."""
    made = cluster()
    made.intercept = lambda envelope: (
        envelope.target == 0
        and isinstance(envelope.event, Request)
        and isinstance(envelope.event.body, ControlledShutdownRequest)
    )
    made.begin_shutdown(1)
    made.kill_node(0, expire_session=True)
    made.intercept = lambda envelope: False
    assert made.run_until(lambda: made.nodes[1].is_ready_to_stop, 30_000)
    departure = made.nodes[1].departure
    assert departure is not None
    assert departure.has_left
    assert view(made)[0] == 2
    made.stop_node(1)
    made.advance(10_000)
    assert view(made)[::2] == (2, (2,))


def test_a_controller_that_cannot_be_reached_does_not_keep_a_node() -> None:
    made = cluster()
    made.isolate(1)
    before_ms = made.now_ms
    made.stop_node(1, controlled=True)
    assert 1 not in made.nodes
    assert made.now_ms - before_ms >= 10_000


def test_switched_off_it_stops_at_once() -> None:
    made = cluster(base=replace(BASE, controlled_shutdown_enable=False))
    before_ms = made.now_ms
    made.stop_node(0, controlled=True)
    assert made.now_ms == before_ms
    made.advance(1_000)
    assert view(made) == (1, 1, (1, 2))


# --- a departing broker -----------------------------------------------------------------------


def test_s54_a_late_fetch_reaches_the_new_leader() -> None:
    """Node 2 has left the ISR; its fetch of before that arrives: fenced, and not let in."""
    made = cluster()
    late: list[Envelope] = []

    def keep(envelope: Envelope) -> bool:
        is_fetch = isinstance(envelope.event, Request) and isinstance(envelope.event.body, FetchRequest)
        if envelope.source == 2 and is_fetch:
            late.append(envelope)
            return True
        return False

    made.intercept = keep
    made.run_until(lambda: bool(late), 2_000)
    made.begin_shutdown(2)
    made.run_until(lambda: made.nodes[2].is_ready_to_stop, 1_000)
    assert view(made) == (0, 1, (0, 1))
    made.intercept = lambda envelope: False
    made.release_all()
    made.advance(3_000)
    assert view(made) == (0, 1, (0, 1))
    partition = made.nodes[0].replicas.partitions[TP]
    assert partition.isr.maximal == {0, 1}
    assert not made.nodes[0].replicas.metadata.may_be_in_sync(2)
    assert made.nodes[0].replicas.metadata.is_alive(2), "its address may still be needed"


def test_s54_a_fetch_of_the_new_epoch_does_not_bring_it_back_either() -> None:
    """Even one with all records and the right epoch: the leader's metadata lists it as shutting down."""
    made = cluster()
    made.begin_shutdown(2)
    made.run_until(lambda: made.nodes[2].is_ready_to_stop, 1_000)
    leader = made.nodes[0].replicas.partitions[TP]
    made.nodes[2].replicas.is_departing = False  # a broker with the old rule: it follows on
    follower = made.nodes[2].replicas
    follower.followers.remove(TP)
    follower.followers.add(follower.partitions[TP])
    answers: list[ErrorCode] = []

    def listen(envelope: Envelope) -> bool:
        if isinstance(envelope.event, Response) and isinstance(envelope.event.body, FetchResponse):
            answers.extend(result.error for result in envelope.event.body.partitions.values())
        return False

    made.intercept = listen
    made.advance(3_000)
    assert ErrorCode.NONE in answers, "it was served as any replica"
    assert leader.isr.committed == {0, 1}
    assert leader.isr.maximal == {0, 1}


def test_a_departing_node_follows_nobody_new() -> None:
    """become follower during shutdown: no fetcher"""
    made = cluster()
    made.begin_shutdown(0)
    made.run_until(lambda: made.nodes[0].is_ready_to_stop, 1_000)
    made.advance(1_000)
    partition = made.nodes[0].replicas.partitions[TP]
    assert (partition.leader_id, partition.leader_epoch) == (1, 1), "it knows whom it lost it to"
    assert not made.nodes[0].replicas.followers.followed
    assert not partition.is_leader


def test_clients_are_served_until_the_leadership_has_moved() -> None:
    made = cluster()
    made.intercept = lambda envelope: (
        isinstance(envelope.event, Request) and isinstance(envelope.event.body, ControlledShutdownRequest)
    )
    made.begin_shutdown(0)
    reply = made.produce(TP, batch(b"x"))
    made.run_until(lambda: reply.is_done, 1_000)
    assert isinstance(reply.body, ProduceResponse)
    assert reply.body.partitions[TP].error is ErrorCode.NONE
    assert not made.nodes[0].is_ready_to_stop


def test_a_leaving_broker_finds_the_controller_though_it_was_told_another() -> None:
    made = cluster()
    active = next(each for each, node in made.nodes.items() if node.controller.is_active)
    leaves = next(each for each in made.nodes if each != active)
    made.nodes[leaves].replicas.controller_id = leaves
    made.begin_shutdown(leaves)
    made.run_until(lambda: made.nodes[leaves].is_ready_to_stop, 20_000)
    departure = made.nodes[leaves].departure
    assert departure is not None
    assert departure.has_left


def test_any_client_may_ask_for_it_and_nothing_stops() -> None:
    """The request alone stops no broker: it moves what it leads, and serves on."""
    made = cluster()
    body = made.call(ControlledShutdownRequest(0, made.nodes[0].broker_epoch), 0)
    assert body == ControlledShutdownResponse(ErrorCode.NONE)
    made.advance(1_000)
    assert view(made) == (1, 1, (1, 2))
    assert not made.nodes[0].is_ready_to_stop
    assert made.nodes[0].replicas.followers.followed, "it follows the leader it was told of"


def test_a_second_wish_changes_nothing() -> None:
    made = cluster()
    made.begin_shutdown(1)
    first = made.nodes[1].departure
    made.begin_shutdown(1)
    assert made.nodes[1].departure is first
    made.run_until(lambda: made.nodes[1].is_ready_to_stop, 1_000)
    made.stop_node(1)


# --- the order of the end ---------------------------------------------------------------------


def test_the_session_ends_after_the_mark_of_a_clean_stop() -> None:
    """1.15: fetchers, high watermark checkpoint, flush, mark, and only then the registration."""
    disk = MemoryDisk()
    store = WatchfulStore(disk)
    made = cluster(disks={1: disk}, store=store)
    assert is_registered(made, 1)
    assert not is_marked_clean(disk)
    made.stop_node(1, controlled=True)
    assert store.seen == [True]
    assert not is_registered(made, 1)


def test_whoever_waits_is_answered_before_the_node_is_gone() -> None:
    made = cluster()
    made.isolate(2)
    reply = made.produce(TP, batch(b"x"))
    made.advance(500)
    assert not reply.is_done
    made.stop_node(0)
    assert isinstance(reply.body, ProduceResponse)
    assert reply.body.partitions[TP].error is ErrorCode.REQUEST_TIMED_OUT, "nobody can know"


def test_a_stopped_node_sends_nothing_more() -> None:
    made = cluster()
    node = made.nodes[2]
    assert node.replicas.followers.followed
    effects = node.stop(made.now_ms)
    assert effects == []
    assert not node.replicas.followers.followed
    assert node.leave(made.now_ms) != []
    assert node.leave(made.now_ms) == []


@pytest.mark.parametrize("controlled", [True, False])
def test_the_high_watermark_is_checkpointed_at_the_end(controlled: bool) -> None:
    """clean shutdown: HW of all partitions checkpointed"""
    made = cluster()
    for value in (b"a", b"b", b"c"):
        reply = made.produce(TP, batch(value))
        made.run_until(lambda reply=reply: reply.is_done, 5_000)  # type: ignore[misc]
    made.advance(1_000)
    made.stop_node(1, controlled=controlled)
    node = made.start_node(1)
    assert node.logs.checkpointed_high_watermark(TP) == 3


def test_orders_of_the_controller_go_out_before_the_answer() -> None:
    """StopReplica reaches the departing follower before the answer to its ControlledShutdown."""
    made = cluster()
    told: list[type] = []

    def listen(envelope: Envelope) -> bool:
        if envelope.target == 2 and isinstance(envelope.event, Request):
            told.append(type(envelope.event.body))
        return False

    made.intercept = listen
    made.begin_shutdown(2)
    made.run_until(lambda: made.nodes[2].is_ready_to_stop, 1_000)
    made.settle()
    assert StopReplicaRequest in told
    assert LeaderAndIsrRequest in told

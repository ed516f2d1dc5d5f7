"""The testing kit: what a user's test may do to a cluster, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from logstore.disk.errors import ErrorCode
from logstore.format.record import Record
from logstore.replication.durability import Durability
from logstore.replication.messages import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    MetadataRequest,
    MetadataResponse,
    ResponseBody,
)
from logstore.testing import STORE, Delivery, RequestFailed, SimulatedCluster, Stage, Timings, Violation
from logstore.testing.stored import find
from tests.plants import planted


def values(cluster: SimulatedCluster, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in cluster.consume(topic, partition=partition)]


def with_topic(nodes: int = 3, *, seed: int = 0, partitions: int = 1) -> SimulatedCluster:
    cluster = SimulatedCluster(nodes, seed=seed)
    cluster.create_topic("t", partitions=partitions)
    return cluster


# --- time ---------------------------------------------------------------------------------------


def test_time_passes_only_when_it_is_told_to() -> None:
    cluster = SimulatedCluster()
    assert cluster.now_ms == 0
    cluster.run_for(1500)
    assert cluster.now_ms == 1500
    seen: list[int] = []
    cluster.at(100, lambda: seen.append(cluster.now_ms))
    assert cluster.run_until(lambda: seen) == 100
    assert seen == [1600]


def test_what_does_not_come_is_told_with_the_seed_and_what_happened() -> None:
    """A predicate that never holds must end the test, not hang it."""
    cluster = with_topic(seed=11)
    cluster.kill(2)
    with pytest.raises(TimeoutError, match="not within 200 ms") as caught:
        cluster.run_until(lambda: False, 200)
    (note,) = caught.value.__notes__
    assert "seed=11" in note
    assert "kill(2)" in note
    assert "the last events:" in note


def test_nothing_can_wait_inside_a_callback() -> None:
    """It would let time pass while time passes: an actor would see its own future."""
    cluster = with_topic()
    cluster.at(10, lambda: cluster.run_for(5))
    with pytest.raises(RuntimeError, match="inside a callback"):
        cluster.run_for(20)
    cluster.run_for(20)


def story(seed: int) -> tuple[str, int]:
    with SimulatedCluster(3, seed=seed, durability="synced") as cluster:
        cluster.create_topic("t")
        cluster.lossy_network(drop=0.1, duplicate=0.1, delay_ms=3, reorder=True)
        for number in range(5):
            cluster.produce("t", b"%d" % number)
        cluster.power_cut()
        cluster.run_for(300)
        cluster.restart()
    return cluster.trace_hash(), cluster.now_ms


def test_one_seed_one_story() -> None:
    """Byte for byte, and another one for another seed."""
    assert story(3) == story(3)
    assert story(3)[0] != story(4)[0]


def test_a_seed_is_the_same_in_a_cluster_that_is_watched() -> None:
    lines: list[str] = []

    def hash_of(trace: Callable[[str], None] | None) -> str:
        cluster = SimulatedCluster(seed=5, trace=trace)
        cluster.create_topic("t")
        cluster.run_for(500)
        return cluster.trace_hash()

    assert hash_of(lines.append) == hash_of(None)
    assert len(lines) > 50


# --- topics and clients -------------------------------------------------------------------------


def test_records_come_back_in_order_with_keys_and_offsets() -> None:
    with with_topic(partitions=2) as cluster:
        first = cluster.produce("t", b"one")
        second = cluster.produce("t", [b"two", (b"key", b"three"), (b"gone", None)])
        assert (first.offset, second.offset) == (0, 1)
        assert first.is_acknowledged
        assert first.durability is Durability.REPLICATED
        assert [(each.offset, each.key, each.value) for each in cluster.consume("t", 1)] == [
            (1, None, b"two"),
            (2, b"key", b"three"),
            (3, b"gone", None),
        ]
        cluster.produce("t", b"elsewhere", partition=1)
        assert values(cluster, partition=1) == [b"elsewhere"]
        assert cluster.leader("t", 1) == 1, "replicas of partition p begin with node p"
        assert cluster.isr("t", 1) == (1, 2, 0)


def test_acks_0_promises_nothing_and_says_so() -> None:
    with with_topic() as cluster:
        delivery = cluster.produce("t", b"somewhere", acks=0)
        assert delivery.is_acknowledged
        assert delivery.offset == -1
        assert delivery.durability is None
        cluster.run_until(cluster.is_in_sync)
        assert values(cluster) == [b"somewhere"]


def test_levels_and_timings_are_the_users() -> None:
    timings = Timings(zookeeper_session_timeout_ms=6000, retry_backoff_ms=20)
    with SimulatedCluster(durability="synced", timings=timings) as cluster:
        cluster.create_topic("t")
        assert cluster.produce("t", b"safe").durability is Durability.SYNCED
        cluster.kill(0)
        took_ms = cluster.run_until(lambda: cluster.leader("t") == 1)
        assert 3000 < took_ms <= 6500


def test_a_topic_goes_and_another_one_comes_under_its_name() -> None:
    """What was lost with the old one was not lost; the old one's clients are not the new one's."""
    with with_topic() as cluster:
        cluster.produce("t", b"old")
        cluster.delete_topic("t")
        with pytest.raises(ValueError, match="no topic"):
            cluster.partitions("t")
        cluster.create_topic("t")
        cluster.produce("t", b"new")
        assert values(cluster) == [b"new"]
        assert cluster.lost() == []


def test_a_call_that_waits_in_vain_says_for_what() -> None:
    cluster = with_topic()
    cluster.kill(2)
    with pytest.raises(TimeoutError, match="not within 9000 ms of virtual time: topic 't' is gone from each"):
        cluster.delete_topic("t", limit_ms=9_000)
    with pytest.raises(TimeoutError, match="virtual time: every order is paid"):
        cluster.run_until(lambda: False, 10, what="every order is paid")


def test_the_controller_can_be_asked_for_anything() -> None:
    with SimulatedCluster(4) as cluster:
        cluster.create_topic("t")
        cluster.produce("t", b"moves")
        (partition,) = cluster.partitions("t")
        answer = cluster.administer(AlterPartitionReassignmentsRequest({partition: (3, 2, 1)}))
        assert isinstance(answer, AlterPartitionReassignmentsResponse)
        cluster.run_until(lambda: set(cluster.isr("t")) == {1, 2, 3} and cluster.leader("t") == 3)
        assert values(cluster) == [b"moves"]
        heard: list[ResponseBody | None] = []
        cluster.call(2, MetadataRequest(), heard.append)
        cluster.run_until(lambda: heard)
        assert isinstance(heard[0], MetadataResponse)


def test_refusals_have_a_code() -> None:
    cluster = with_topic()
    with pytest.raises(RequestFailed) as refused:
        cluster.produce("t", b"x" * (2 << 20))
    assert refused.value.error is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(RequestFailed) as out_of_range:
        cluster.consume("t", 77)
    assert out_of_range.value.error is ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(RequestFailed) as invalid:
        cluster.create_topic("u", configs={"segment.bytes": "no number"})
    assert invalid.value.error is ErrorCode.INVALID_CONFIG
    cluster.finish()


def test_too_few_in_sync_is_no_acknowledgement() -> None:
    with with_topic() as cluster:
        cluster.kill(1)
        cluster.kill(2)
        cluster.run_until(lambda: cluster.isr("t") == (0,))
        cluster.run_for(50)  # the leader has to hear it
        with pytest.raises(RequestFailed) as refused:
            cluster.produce("t", b"alone", limit_ms=500)
        assert refused.value.error is ErrorCode.NOT_ENOUGH_REPLICAS
        assert cluster.produce("t", b"with acks=1", acks=1).is_acknowledged
        assert values(cluster) == [], "it is not committed either"
        cluster.restart()
        with pytest.raises(TimeoutError, match=r"at least 2 committed records of t-0, .*; 1 were read"):
            cluster.consume("t", at_least=2, limit_ms=3000)
        assert values(cluster) == [b"with acks=1"]


def test_an_actor_sends_and_reads_while_the_cluster_breaks() -> None:
    """No call waits inside an actor: it is called back."""
    with with_topic(seed=2) as cluster:
        producer = cluster.producer("t")
        done: list[Delivery] = []

        def send_next() -> None:
            producer.send(b"%d" % len(done), on_end=sent)

        def sent(delivery: Delivery) -> None:
            done.append(delivery)
            if len(done) < 20:
                cluster.at(25, send_next)

        cluster.at(0, send_next)
        cluster.at(30, lambda: cluster.kill(0))
        cluster.at(200, lambda: cluster.stop(1))
        cluster.at(4000, lambda: cluster.restart(0))
        cluster.at(5000, lambda: cluster.restart(1))
        cluster.run_until(lambda: len(done) == 20)
        assert all(delivery.is_acknowledged for delivery in done)
        assert values(cluster)[:20] == [b"%d" % number for number in range(20)]
        consumer, seen = cluster.consumer("t", from_offset=15), []
        consumer.poll(lambda fetched: seen.extend(fetched.records))
        cluster.run_until(lambda: seen)
        assert [record.offset for record in seen] == [15, 16, 17, 18, 19]
        assert consumer.position == 20


@pytest.mark.parametrize("seed", range(6))
def test_a_producer_with_numbers_is_not_doubled_by_a_bad_network(seed: int) -> None:
    """Lost answers make it send again; the checkers would name a record that is there twice."""
    with with_topic(seed=seed) as cluster:
        cluster.lossy_network(drop=0.2, duplicate=0.3, delay_ms=4, reorder=True)
        for number in range(10):
            cluster.produce("t", b"%d" % number)
        cluster.heal()
        assert values(cluster) == [b"%d" % number for number in range(10)]


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_leaders_power_cut_takes_nothing_that_was_acknowledged(seed: int) -> None:
    with with_topic(seed=seed) as cluster:
        for number in range(3):
            cluster.produce("t", b"%d" % number)
        cluster.power_cut(0)
        cluster.produce("t", b"3")
        assert cluster.leader("t") == 1
        assert values(cluster) == [b"0", b"1", b"2", b"3"]
        assert "node 0: down" in cluster.describe()


def test_a_paused_leader_does_not_know_that_it_is_none_any_more() -> None:
    with with_topic() as cluster:
        cluster.pause(0)
        cluster.run_until(lambda: cluster.leader("t") == 1)
        cluster.run_for(50)
        assert cluster.claimants("t") == (0, 1)
        assert "node 0: running, life 1, paused" in cluster.describe()
        cluster.resume(0)
        cluster.run_until(lambda: cluster.claimants("t") == (1,))


def test_an_expired_session_costs_the_leadership_and_no_record() -> None:
    with with_topic() as cluster:
        cluster.produce("t", b"one")
        cluster.expire_session(0)
        cluster.run_until(lambda: cluster.leader("t") == 1, 1000)
        cluster.run_until(lambda: 0 in cluster.isr("t"))
        cluster.kill(0)
        with pytest.raises(ValueError, match="is down"):
            cluster.kill(0)
        with pytest.raises(ValueError, match="no session"):
            cluster.expire_session(0)


def test_a_slow_disk_is_waited_for_where_syncs_count() -> None:
    for durability, bound_ms in ((Durability.REPLICATED, 100), (Durability.SYNCED, 1000)):
        with SimulatedCluster(durability=durability) as cluster:
            cluster.create_topic("t")
            cluster.slow_disk(1, 400)
            began_ms = cluster.now_ms
            cluster.produce("t", b"one")
            assert (cluster.now_ms - began_ms >= 400) is (durability is Durability.SYNCED)
            assert cluster.now_ms - began_ms < bound_ms


def test_full_and_failing_disks_are_survived() -> None:
    with with_topic() as cluster:
        cluster.produce("t", b"one")
        cluster.full_disk(2)
        cluster.produce("t", b"two")
        cluster.heal()
        cluster.fail_disk(0)
        cluster.produce("t", b"three")
        assert cluster.leader("t") != 0
        cluster.fail_disk(1, "sync")
        cluster.run_for(3000)


def test_a_store_without_a_leader_stops_no_leader() -> None:
    """Nobody's session ends while there is nobody to end it; nobody is elected either."""
    with with_topic() as cluster:
        cluster.stop_store()
        cluster.run_for(10_000)
        cluster.produce("t", b"one")
        cluster.kill(0)
        cluster.run_for(5000)
        assert cluster.leader("t") == 0
        cluster.start_store()
        cluster.run_until(lambda: cluster.leader("t") == 1)


def test_cut_off_from_the_store_a_leader_is_replaced() -> None:
    with with_topic() as cluster:
        cluster.partition({0}, {STORE})
        cluster.run_until(lambda: cluster.leader("t") == 1)
        cluster.produce("t", b"one")


def test_one_way_a_follower_is_heard_and_hears_nothing() -> None:
    with with_topic() as cluster:
        follower = 3 - (cluster.controller() or 1)  # the leader has to reach the controller
        cluster.partition({0}, {follower}, one_way=True)
        cluster.produce("t", b"one", acks=1)
        cluster.run_until(lambda: follower not in cluster.isr("t"))
        cluster.heal()
        cluster.run_until(cluster.is_in_sync)


def test_a_stop_in_order_leaves_no_gap() -> None:
    with with_topic() as cluster:
        cluster.stop(0)
        assert cluster.leader("t") == 1, "moved before the node went"
        cluster.restart()
        cluster.run_until(cluster.is_in_sync)


def test_an_operator_may_give_up_what_nobody_has() -> None:
    """The only way on for a partition whose members all came back with a loss, and it can be seen."""
    cluster = with_topic(seed=0)  # what a power cut leaves is drawn from the seed
    for number in range(5):
        cluster.produce("t", b"%d" % number)
    cluster.power_cut()
    cluster.restart()
    cluster.run_for(3000)
    assert cluster.leader("t") is None
    cluster.administer(AlterConfigsRequest({"t": {"unclean.leader.election.enable": "true"}}))
    cluster.heal_and_check()
    assert 0 < len(cluster.lost()) <= 5
    assert len(cluster.consume("t")) == 5 - len(cluster.lost())


@pytest.mark.parametrize("fewer", ["1", None])
def test_an_operator_may_ask_for_fewer_in_sync(fewer: str | None) -> None:
    """In so many words, or by taking the topic's own setting away."""
    with with_topic() as cluster:
        cluster.administer(AlterConfigsRequest({"t": {"min.insync.replicas": fewer}, "unknown": {}}))
        cluster.kill(1)
        cluster.kill(2)
        cluster.run_until(lambda: cluster.isr("t") == (0,))
        assert cluster.produce("t", b"alone").is_acknowledged


def deeds(cluster: SimulatedCluster, nodes: list[int], operation: str | None) -> list[Callable[[], object]]:
    """All that can be done to a cluster, the good a little more often."""
    first = nodes[0]
    return [
        lambda: cluster.kill(first),
        lambda: cluster.power_cut(*nodes[:2]),
        lambda: cluster.power_cut(),
        *[lambda: cluster.restart()] * 2,
        lambda: cluster.at(0, lambda: cluster.stop(first)),
        lambda: cluster.pause(first),
        lambda: cluster.resume(first),
        lambda: cluster.partition(nodes[:1], [*nodes[1:], STORE]),
        lambda: cluster.partition(nodes[:2], nodes[2:], one_way=True),
        lambda: cluster.lossy_network(drop=0.1, duplicate=0.1, delay_ms=5, reorder=True),
        lambda: cluster.slow_disk(first, 300),
        lambda: cluster.full_disk(first),
        lambda: cluster.fail_disk(first, operation),
        lambda: cluster.expire_session(first),
        lambda: cluster.stop_store(),
        lambda: cluster.start_store(),
        *[lambda: cluster.heal()] * 2,
    ]


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_faults_is_survived_by_what_was_synced(seed: int) -> None:
    """Whatever a user calls in whatever order: the cluster heals, and `synced` keeps its promise."""
    random = Random(seed)
    with SimulatedCluster(4, seed=seed, durability="synced") as cluster:
        cluster.create_topic("t", partitions=2)
        producers = [cluster.producer("t", partition) for partition in range(2)]
        for number in range(40):
            nodes = random.sample(range(4), 4)
            deed = random.choice(deeds(cluster, nodes, random.choice((None, "sync"))))
            with suppress(ValueError):  # who is down cannot be killed
                deed()
            producers[number % 2].send(b"%d" % number)
            with suppress(ValueError):
                cluster.run_for(random.choice((1, 50, 700)))
        cluster.heal_and_check()
        cluster.run_until(lambda: all(delivery.is_done for delivery in cluster.deliveries))
        assert any(delivery.is_acknowledged for delivery in cluster.deliveries)


@pytest.mark.parametrize(
    ("misuse", "text"),
    [
        (lambda cluster: cluster.kill(9), "no node 9"),
        (lambda cluster: cluster.restart(0), "node 0 is running"),
        (lambda cluster: cluster.partition({0}), "two or more sides"),
        (lambda cluster: cluster.partition({0}, {0, 1}), "on two of them"),
        (lambda cluster: cluster.produce("u", b""), "no partition u-0"),
        (lambda cluster: cluster.produce("t", []), "at least one record"),
        (lambda cluster: cluster.produce("t", b"", acks=2), "acks=2"),
        (lambda cluster: cluster.create_topic("t"), "exists already"),
        (lambda cluster: cluster.create_topic("u", configs={"cleanup.policy": "compact"}), "compact"),
        (lambda cluster: cluster.create_topic(None), "name is a str, not NoneType"),
        (lambda cluster: cluster.create_topic("u", partitions="3"), "partitions is an int"),
        (lambda cluster: cluster.create_topic("u", partitions=0), "partitions is 0"),
        (lambda cluster: cluster.lossy_network(drop=2), "drop is 2"),
        (lambda cluster: cluster.lossy_network(drop=-1), "drop is -1"),
        (lambda cluster: cluster.lossy_network(drop="x"), "drop is a probability, not str"),
        (lambda cluster: cluster.lossy_network(duplicate=1.1), "duplicate is 1.1"),
        (lambda cluster: cluster.lossy_network(delay_ms=0), "delay_ms is 0"),
        (lambda cluster: cluster.slow_disk(0, -5), "extra_ms is -5"),
        (lambda cluster: cluster.run_for(-5), "is -5"),
        (lambda cluster: cluster.run_for("x"), "is an int, not str"),
        (lambda cluster: cluster.run_until(lambda: True, -1), "is -1"),
        (lambda cluster: cluster.at(-5, print), "delay_ms is -5"),
        (lambda cluster: cluster.at(None, print), "delay_ms is an int"),
        (lambda cluster: SimulatedCluster(0), "nodes is 0"),
        (lambda cluster: SimulatedCluster(2.0), "nodes is an int"),  # type: ignore[arg-type]
        (
            lambda cluster: SimulatedCluster(2, replication_factor=3),
            "replication_factor is 3, but nodes is 2",
        ),
        (lambda cluster: SimulatedCluster(replication_factor=0), "replication_factor is 0"),
        (lambda cluster: SimulatedCluster(min_insync_replicas=0), "min_insync_replicas is 0"),
        (lambda cluster: SimulatedCluster(min_insync_replicas=4), "is 4, but replication_factor is 3"),
        (lambda cluster: SimulatedCluster(seed=None), "seed is an int"),  # type: ignore[arg-type]
        (lambda cluster: SimulatedCluster(timings={}), "timings is a Timings, not dict"),  # type: ignore[arg-type]
        (lambda cluster: cluster.at(1, None), "a callback is a function, not NoneType"),
        (lambda cluster: cluster.partition(set(), {0}), "each with a node"),
        (lambda cluster: cluster.consume("t", at_least=-1), "at_least is -1"),
        (lambda cluster: cluster.create_topic("u", replication_factor=0), "replication_factor is 0"),
        (
            lambda cluster: cluster.create_topic("u", configs={"retention.ms": 1.5}),
            "a str or an int, not float",
        ),
        (
            lambda cluster: cluster.create_topic("u", configs={"preallocate": True}),
            "a str or an int, not bool",
        ),
        (lambda cluster: SimulatedCluster(durability="hoped"), "is 'hoped'; use replicated or synced"),
        (lambda cluster: cluster.produce("u", b"x"), "no partition u-0; create_topic"),
        (lambda cluster: Stage("AA"), "a letter of its own"),
        (lambda cluster: Stage("AB").kill("C"), "no replica 'C'; the stage has A, B"),
        (lambda cluster: Stage("AB").start("A"), "A is running"),
        (lambda cluster: Stage("AB").values("A"), "A has no log before its first role"),
        (lambda cluster: Stage("AB").append("A", value="x"), "value is bytes, not str"),  # type: ignore[arg-type]
        (lambda cluster: Stage("AB").append("A", count=0), "count is 0"),
        (lambda cluster: Stage("AB").advance(-1), "duration_ms is -1"),
    ],
)
def test_misuse_is_refused_at_once(misuse: Callable[[SimulatedCluster], object], text: str) -> None:
    """A test that asks for the impossible is told so where it asks."""
    with with_topic() as cluster:
        with pytest.raises((TypeError, ValueError), match=text):
            misuse(cluster)
        assert cluster.produce("t", b"x").is_acknowledged, "the misuse left nothing behind"


def test_a_stage_says_what_is_down() -> None:
    stage = Stage("AB")
    stage.kill("B")
    for act in (stage.kill, stage.power_cut, stage.values, stage.checkpoint, stage.append):
        with pytest.raises(ValueError, match="B is down: start it first"):
            act("B")
    stage.start("B")


def test_a_setting_may_be_a_number() -> None:
    """It was stored as one, and the log was opened with the default settings."""
    with SimulatedCluster() as cluster:
        cluster.create_topic("t", configs={"max.message.bytes": 100})
        with pytest.raises(RequestFailed, match=r"max\.message\.bytes = 100"):
            cluster.produce("t", b"x" * 200)


@pytest.mark.parametrize("seed", range(5))
def test_killed_processes_lose_nothing(seed: int) -> None:
    """As for a real broker, whose machine has not started again; a power cut of all may lose records."""
    with with_topic(seed=seed) as cluster:
        cluster.produce("t", b"one")
        for node in range(3):
            cluster.kill(node)
        cluster.restart()
        assert [record.value for record in cluster.consume("t", at_least=1)] == [b"one"]
    cluster = with_topic(seed=seed)
    cluster.produce("t", b"one")
    cluster.power_cut()
    with pytest.raises(Violation, match="C18"):
        cluster.heal_and_check(limit_ms=5000)


def test_a_large_value_is_not_printed_whole() -> None:
    with with_topic() as cluster, pytest.raises(RequestFailed) as refused:
        cluster.produce("t", b"x" * 2_000_000)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "records",
    ["text", None, 5, ["text"], [None], (b"k", "v"), (b"k",), [(b"k", b"v", b"w")], Record(0, 1, None, b"v")],
)
def test_what_is_no_record_is_refused_before_it_is_queued(records: Any) -> None:
    """It stayed in the producer's queue, so that the next send failed."""
    with with_topic() as cluster:
        with pytest.raises(TypeError, match="is not a value"):
            cluster.produce("t", records)
        cluster.produce("t", [b"v", (b"k", None)])
        assert [record.key for record in cluster.consume("t", at_least=2)] == [None, b"k"]
        assert len(cluster.deliveries) == 1


# --- judging ------------------------------------------------------------------------------------


def test_the_end_of_the_block_judges() -> None:
    """A cluster whose rule for acks=all was taken away is found out without an assertion of the user's."""

    def trust_acks_all() -> None:
        with SimulatedCluster(seed=1) as cluster:
            cluster.create_topic("t")
            cluster.partition({0}, {1, 2})
            cluster.produce("t", b"on one node only")

    with planted("acknowledged-too-early"), pytest.raises(Violation, match="C4") as caught:
        trust_acks_all()
    (note,) = caught.value.__notes__
    assert note.startswith("seed 1: ")
    assert "partition({0}, {1, 2})" in note
    assert "ProduceRequest" in note


def test_a_failing_block_is_not_judged_on_top() -> None:
    """Its own failure is what the user has to see."""

    def fail() -> None:
        with with_topic() as cluster:
            cluster.power_cut()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_what_cannot_heal_is_loud() -> None:
    """All in-sync replicas came back from a power cut: durability `replicated` waits for its operator."""
    cluster = with_topic(seed=3)
    cluster.produce("t", b"one")
    cluster.power_cut()
    cluster.restart()
    with pytest.raises(Violation, match="C18") as caught:
        cluster.heal_and_check(limit_ms=10_000)
    assert "leader -1" in str(caught.value)
    cluster.finish()  # told once is enough


def test_a_byte_that_changes_is_noticed() -> None:
    """The judge looks at logs, not at what replicas say of themselves."""
    cluster = with_topic()
    delivery = cluster.produce("t", b"one")
    cluster.run_until(cluster.is_in_sync)
    view = delivery.checker.views[0]
    batch = find(view.batches, 0)
    assert batch is not None
    view.batches[0] = batch._replace(data=batch.data[:-1] + b"?")
    assert cluster.lost() == [delivery]
    with pytest.raises(Violation, match=r"C4.*'one'.*is lost"):
        cluster.check()

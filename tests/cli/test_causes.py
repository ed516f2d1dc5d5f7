"""Troubles by their causes: what is folded into a broker's trouble, what is grouped, and what stays alone."""

from __future__ import annotations

from dataclasses import replace

from logstore.cli.causes import causes, named
from logstore.cli.cluster_state import Cluster, Topic
from logstore.cli.explanations import explain_partition
from logstore.cli.group_explanations import troubles_of_groups
from logstore.cli.log_dirs import LogDir
from logstore.cli.trouble import Rank
from logstore.cli.troubles import Observed, Since, troubles
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore.layout import BrokerRegistration, LeaderAndIsr, TopicAssignment
from tests.cli.test_health import ORDERS, observed
from tests.cli.test_why import ANN, STUCK, group

MANY = 53


def many(*, live: tuple[int, ...] = (1, 2), min_isr: int = 1, leader: int = 1, doomed: str = "") -> Observed:
    """53 partitions with replicas on the brokers 1, 2 and 3; those that are not live are out of the ISR."""
    partitions = {number: (1, 2, 3) for number in range(MANY)}
    isr = tuple(broker for broker in (1, 2, 3) if broker in live)
    cluster = Cluster(
        {broker: BrokerRegistration("host", 9092) for broker in live},
        {} if doomed else {"t": Topic(TopicAssignment("id", partitions), {}, -1, -1)},
        {}
        if doomed
        else {TopicPartition("t", each): LeaderAndIsr(leader, 5, isr, -1) for each in partitions},
        1,
        {"t": doomed} if doomed else {},
    )
    replicas = frozenset(TopicPartition("t", each) for each in partitions)
    dirs = tuple(LogDir(broker, "/data", replicas=replicas) for broker in live)
    return Observed(cluster, {"t": min_isr}, dirs)


def test_a_dead_broker_is_one_trouble_with_all_that_follows() -> None:
    found = troubles(many())
    assert len(found) == MANY + 1
    (cause,) = causes(found)
    assert cause.subject == "broker 3"
    assert cause.rank is Rank.AT_RISK
    assert "53 partitions lack a replica in sync (t-0, t-1, t-2 and 50 more)" in cause.says
    assert len(cause.partitions) == MANY


def test_transactions_that_hang_are_one_trouble() -> None:
    hanging = {TopicPartition("t", each): Since(0, "producer 7 has one open") for each in range(2)}
    (alone,) = causes(troubles(replace(many(live=(1, 2, 3)), transactions=dict([*hanging.items()][:1]))))
    assert (alone.subject, alone.rank) == ("t-0", Rank.AT_RISK)
    assert alone.evidence == "producer 7 has one open; its last record is of 1970-01-01 00:00:00,000 UTC"
    (together,) = causes(troubles(replace(many(live=(1, 2, 3)), transactions=hanging)))
    assert together.subject == "2 partitions"
    assert together.says.startswith("in each, a transaction hangs")
    assert together.says.endswith("(t-0, t-1)")


def test_partitions_that_are_told_together_are_not_called_it() -> None:
    seen = many(live=(1, 2, 3))
    doomed = replace(seen.cluster, doomed={"t": "an answer"})
    (found,) = causes(troubles(replace(seen, cluster=doomed)))
    assert found.subject == "53 partitions"
    assert found.says.startswith("each is being deleted, and waits for an answer")


def test_a_cause_is_as_bad_as_what_follows_from_it() -> None:
    first, second = causes(troubles(many(live=(1,), min_isr=2)))
    assert {first.subject, second.subject} == {"broker 2", "broker 3"}
    assert first.rank is second.rank is Rank.REFUSES_WRITES
    assert "53 partitions refuse writes with acks=all" in first.says


def test_a_broker_that_has_the_only_replica_in_sync_is_not_to_be_started_empty() -> None:
    (cause, _) = causes(troubles(observed(live=(2,), leader=-1, isr=(1,))))
    assert (cause.subject, cause.rank) == ("broker 1", Rank.UNAVAILABLE)
    assert "1 partition has no leader (orders-0)" in cause.says
    assert "Do not start it empty: it is in the ISR of orders-0" in cause.next_step


def test_followers_that_are_behind_without_a_cause_are_grouped() -> None:
    seen = many(live=(1, 2, 3))
    states = {each: replace(state, isr=(1, 2)) for each, state in seen.cluster.states.items()}
    (found,) = causes(troubles(replace(seen, cluster=replace(seen.cluster, states=states))))
    assert found.subject == "53 partitions"
    assert found.evidence == "broker 3 is up and behind"
    assert "(t-0, t-1, t-2 and 50 more)" in found.says


def test_a_deletion_that_waits_for_a_dead_broker_is_told_with_it() -> None:
    """Brokers list neither the topic nor the broker any more: only the controller knows."""
    (found,) = causes(troubles(many(doomed="broker 3 (not alive) for t-0, t-1")))
    assert (found.subject, found.rank) == ("broker 3", Rank.AT_RISK)
    assert "1 deletion waits for it (topic t)" in found.says
    (waits,) = causes(troubles(many(doomed="the answer of broker 2 for t-0")))
    assert (waits.subject, waits.rank) == ("topic t", Rank.UNDER_WAY)


def test_a_reassignment_to_a_dead_broker_hangs() -> None:
    (found,) = causes(troubles(observed(live=(1, 2), isr=(1, 2), adding=(3,))))
    assert (found.subject, found.rank) == ("broker 3", Rank.AT_RISK)
    assert "1 reassignment waits for it (orders-0)" in found.says


def first(seen: Observed) -> str:
    return causes(troubles(seen))[0].subject


def test_each_reason_of_a_live_broker_is_a_cause() -> None:
    behind = observed(isr=(1, 2))
    full = LogDir(3, "/data", replicas=frozenset((ORDERS,)), problem="full: an append found no room")
    damage = {3: {"orders-0": "damaged: 0.log at byte 61"}}
    assert first(replace(behind, silent={3: "no answer"})) == "broker 3"
    assert first(replace(behind, stopping=frozenset((3,)))) == "broker 3"
    assert first(replace(behind, damaged=damage)) == "broker 3, orders-0"
    assert first(replace(behind, log_dirs=(LogDir(3, "/bad", "KAFKA_STORAGE_ERROR"),))) == "broker 3, /bad"
    assert first(replace(behind, log_dirs=(full,))) == "broker 3, /data"


def test_a_leader_that_is_drained_lets_no_replica_join() -> None:
    """The controller refuses each ISR that it proposes: waiting for followers would never end."""
    alone = troubles(replace(observed(isr=(1,)), stopping=frozenset((1,))))
    (drained,) = causes(alone)
    assert (drained.subject, drained.waits_for) == ("broker 1", "the end of broker 1's process")
    assert "1 partition lacks a replica in sync (orders-0)" in drained.says
    (partition,) = (each for each in alone if each.subject == "orders-0")
    assert "broker 3 cannot join: broker 1, which leads, is shutting down or drained" in partition.evidence
    assert partition.next_step == "restart broker 1, which leads: no replica joins before"


def test_a_controller_that_is_silent_keeps_leaders_from_being_elected() -> None:
    (found,) = causes(troubles(observed(silent={1: "no answer in 5 s"})))
    assert (found.subject, found.rank) == ("broker 1", Rank.UNAVAILABLE)
    assert "it is the controller" in found.says


def test_a_store_that_brokers_cannot_read_is_the_cause_of_a_missing_controller() -> None:
    (found,) = causes(troubles(replace(observed(controller=None), store_error="no answer in 5 s")))
    assert (found.subject, found.rank) == ("metadata store", Rank.UNAVAILABLE)
    assert "start the store" in found.next_step


def test_groups_without_coordinator_or_leader_are_told_by_their_partitions() -> None:
    stuck = group("Stable", ANN, offsets={ORDERS: STUCK}, leaderless=frozenset((ORDERS,)))
    lost = group("", refusal="COORDINATOR_NOT_AVAILABLE")
    assert [each.subject for each in troubles_of_groups([stuck, lost])] == ["group g"]


def test_since_when_is_evidence() -> None:
    seen = replace(many(), since={"broker 3": Since(1_000), "t-0": Since(2_000, "broker 3 fell behind")})
    (cause,) = causes(troubles(seen))
    assert cause.evidence.endswith("no such live broker; since 1970-01-01 00:00:01,000 UTC")
    found = explain_partition(seen, TopicPartition("t", 0))
    assert found is not None
    assert found.since == "1970-01-01 00:00:02,000 UTC"
    assert "since 1970-01-01 00:00:02,000 UTC: broker 3 fell behind" in found.troubles[-1].evidence


def test_the_first_names_and_how_many_more() -> None:
    assert named(["a", "b", "c"]) == "a, b, c"
    assert named(["a", "b", "c", "d"]) == "a, b, c and 1 more"

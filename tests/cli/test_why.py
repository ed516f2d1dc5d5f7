"""`logstore why`: each state of a group, a broker and a cluster by what was read, and real brokers."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import typer
from kafka import KafkaConsumer

from logstore.broker import BlockingClient, BrokerCluster
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.group import Group, State
from logstore.cli.explanations import Explanation, explain_broker, explain_cluster, explain_partition
from logstore.cli.group_explanations import ObservedGroup, Progress, explain_group
from logstore.cli.group_facts import Member
from logstore.cli.log_dirs import LogDir
from logstore.cli.operating import wait_until
from logstore.cli.trouble import Rank
from logstore.cli.troubles import Observed, Since, of_transactions
from logstore.cli.why import Subject, parse_subject
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore.zookeeper import BlockingZooKeeperStore
from tests.cli.conftest import Outcome
from tests.cli.test_health import ORDERS, observed

Command = Callable[..., Outcome]
OTHER = TopicPartition("orders", 1)
HOME = TopicPartition("__consumer_offsets", 7)
ANN = Member("ann-1", "ann", "/10.0.0.1", frozenset((ORDERS,)))
BOB = Member("bob-1", "bob", "/10.0.0.2", frozenset((OTHER,)))


def ranks(found: Explanation | None) -> list[Rank]:
    assert found is not None
    return [each.rank for each in found.troubles]


# --- what is asked about ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        (["orders-0"], Subject("partition", "orders-0")),
        (["group-0"], Subject("partition", "group-0")),
        (["broker-3"], Subject("partition", "broker-3")),
        (["cluster-0"], Subject("partition", "cluster-0")),
        (["group", "group-0"], Subject("group", "group-0")),
        (["group", "cluster"], Subject("group", "cluster")),
        (["broker", "3"], Subject("broker", "3")),
        (["cluster"], Subject("cluster")),
    ],
    ids=" ".join,
)
def test_topics_that_are_called_like_kinds_can_be_asked_for(words: list[str], subject: Subject) -> None:
    assert parse_subject(words) == subject


@pytest.mark.parametrize("words", [["group"], ["broker", "x"], ["broker", "-1"], ["orders"], ["a", "b", "c"]])
def test_words_that_name_nothing_are_refused(words: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match="write a partition like orders-0, group NAME, broker ID"):
        parse_subject(words)


# --- groups -----------------------------------------------------------------------------------------------


def group(state: str, *members: Member, **facts: Any) -> ObservedGroup:
    return ObservedGroup("g", state, home=HOME, coordinator=2, members=members, watched_s=6.0, **facts)


STUCK = Progress(4, 4, 10, 10)
FALLING = Progress(4, 6, 10, 20)
CATCHING_UP = Progress(4, 8, 10, 10)
DONE = Progress(10, 10, 10, 10)
DELETED = Progress(4, 4, 10, 10, start=10)
CUT_SHORT = Progress(4, 4, 10, 10, start=8)


@pytest.mark.parametrize(
    ("seen", "rank", "says", "evidence", "next_step"),
    [
        (
            group("Empty", offsets={ORDERS: STUCK}),
            Rank.AT_RISK,
            "nobody reads, with 6 records waiting",
            "no members; orders-0 committed 4, end 10, lag 6",
            "start its consumers",
        ),
        (
            group("Empty", offsets={ORDERS: CUT_SHORT, OTHER: DELETED}),
            Rank.AT_RISK,
            "nobody reads, with 2 records waiting",
            "no members; orders-0 committed 4, log start 8, end 10, lag 2",
            "start its consumers",
        ),
        (
            group("PreparingRebalance", ANN._replace(is_awaited=True), BOB, round_ends_ms=60_000),
            Rank.AT_RISK,
            "waits for 1 of 2 members",
            "no JoinGroup since the round began from ann at 10.0.0.1",
            "continues without them at 1970-01-01 00:01:00,000 UTC",
        ),
        (
            group("PreparingRebalance", ANN, round_ends_ms=60_000),
            Rank.UNDER_WAY,
            "its first round waits for more members",
            "every member has joined (1)",
            "group.initial.rebalance.delay.ms",
        ),
        (
            group("CompletingRebalance", ANN._replace(is_awaited=True), BOB, round_ends_ms=60_000),
            Rank.AT_RISK,
            "waits for 1 of 2 members",
            "no SyncGroup since the round began from ann",
            "look at ann at 10.0.0.1",
        ),
        (
            group("CompletingRebalance", ANN, round_ends_ms=60_000),
            Rank.UNDER_WAY,
            "its assignment is being written",
            "all members have sent SyncGroup",
            "logstore why __consumer_offsets-7",
        ),
        (
            group("PreparingRebalance", ANN),
            Rank.UNDER_WAY,
            "it rebalances: nobody reads",
            "does not report which members it waits for",
            "max.poll.interval.ms",
        ),
        (
            group("Stable", ANN, BOB, offsets={ORDERS: STUCK, OTHER: DONE}),
            Rank.AT_RISK,
            "ann at 10.0.0.1 commits nothing, with 6 records waiting",
            "in 6.0 s it committed no new offset of these: orders-0 committed 4, end 10, lag 6",
            "enable.auto.commit=false",
        ),
        (
            group("Stable", ANN, offsets={ORDERS: Progress(None, None, 10, 12)}),
            Rank.AT_RISK,
            "ann at 10.0.0.1 commits nothing, with 2 records waiting",
            "orders-0 committed -, end 12, lag 2",
            "look at its log",
        ),
        (
            group("Stable", ANN, BOB, offsets={ORDERS: FALLING, OTHER: DONE}),
            Rank.AT_RISK,
            "ann at 10.0.0.1 reads, and falls behind: 14 records wait",
            "the lag grew: orders-0 committed 6, end 20, lag 14",
            "add partitions: each member has one partition already",
        ),
        (
            group("Stable", ANN._replace(partitions=frozenset((ORDERS, OTHER))), offsets={ORDERS: FALLING}),
            Rank.AT_RISK,
            "falls behind",
            "the lag grew",
            "start more consumers",
        ),
        (
            group("Stable", ANN, offsets={ORDERS: CATCHING_UP}),
            Rank.UNDER_WAY,
            "is behind, and catches up",
            "it committed new offsets",
            "wait",
        ),
        (
            group("Stable", ANN, BOB._replace(partitions=frozenset()), offsets={ORDERS: DONE}),
            Rank.UNDER_WAY,
            "1 member without a partition to read",
            "no partition is assigned to bob at 10.0.0.2",
            "more partitions",
        ),
        (
            group("Stable", ANN, offsets={ORDERS: DONE, OTHER: STUCK}),
            Rank.UNDER_WAY,
            "offsets of partitions that no member reads",
            "orders-1 committed 4, end 10, lag 6",
            "topics that its consumers subscribe to",
        ),
        (
            group(
                "Stable", ANN, offsets={ORDERS: Progress(4, 4, None, None)}, leaderless=frozenset((ORDERS,))
            ),
            Rank.UNAVAILABLE,
            "the group cannot read it: it has no leader",
            "the metadata",
            "logstore why orders-0",
        ),
        (
            group("", refusal="COORDINATOR_NOT_AVAILABLE: no known leader"),
            Rank.UNAVAILABLE,
            "no broker coordinates it: members can neither join nor commit",
            "COORDINATOR_NOT_AVAILABLE",
            "logstore why __consumer_offsets-7",
        ),
        (
            ObservedGroup("g", refusal="COORDINATOR_NOT_AVAILABLE: no known leader"),
            Rank.UNAVAILABLE,
            "no broker coordinates it",
            "COORDINATOR_NOT_AVAILABLE",
            "offsets.topic.replication.factor",
        ),
        (
            group("", refusal="COORDINATOR_LOAD_IN_PROGRESS: group g"),
            Rank.UNAVAILABLE,
            "still reads __consumer_offsets-7",
            "COORDINATOR_LOAD_IN_PROGRESS",
            "wait",
        ),
        (
            group("", refusal="GROUP_AUTHORIZATION_FAILED: group g"),
            Rank.UNAVAILABLE,
            "you may not see it",
            "GROUP_AUTHORIZATION_FAILED",
            "logstore acls add",
        ),
        (
            group("Dead", offsets={ORDERS: DONE}),
            Rank.UNDER_WAY,
            "it is being deleted",
            "shows it as Dead",
            "wait",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_each_state_of_a_group(
    seen: ObservedGroup, rank: Rank, says: str, evidence: str, next_step: str
) -> None:
    found = explain_group(seen)
    assert found is not None
    (trouble,) = found.troubles
    assert trouble.rank is rank
    assert says in trouble.says
    assert evidence in trouble.evidence
    assert next_step in trouble.next_step
    assert trouble.acts
    assert found.is_sound == (rank is Rank.UNDER_WAY)


def test_a_group_in_order_and_one_that_is_none() -> None:
    found = explain_group(group("Stable", ANN, offsets={ORDERS: DONE}, since_ms=1_000))
    assert found == Explanation(
        "group g",
        "Stable, 1 member, lag 0",
        "its coordinator, broker 2, says so; __consumer_offsets-7 keeps the group",
        "1970-01-01 00:00:01,000 UTC",
    )
    assert explain_group(group("Dead")) is None
    at_rest = explain_group(group("Empty", offsets={ORDERS: DONE}))
    assert at_rest is not None
    assert at_rest.is_sound


def test_a_group_whose_unread_records_were_deleted_waits_for_nothing() -> None:
    for seen in (
        group("Empty", offsets={ORDERS: DELETED}),
        group("Stable", ANN, offsets={ORDERS: DELETED}),
        group("Stable", ANN, offsets={ORDERS: Progress(4, 4, 10, 12, start=12)}),
    ):
        found = explain_group(seen)
        assert found is not None
        assert found.state.endswith(" lag 0")
        assert found.is_sound, found.troubles


def test_a_group_whose_consumers_cannot_start_for_a_transaction() -> None:
    seen = group("Empty", offsets={ORDERS: DONE})
    assert seen.partitions == {HOME, ORDERS}
    found = explain_group(seen, of_transactions({HOME: Since(0, "producer 7 has one open")}))
    assert found is not None
    (trouble,) = found.troubles
    assert trouble.subject == str(HOME)
    assert "logstore transactions abort" in trouble.next_step


def test_the_coordinator_tells_whom_a_round_waits_for() -> None:
    """Our tags of DescribeGroups: since when, until when, and who has not joined or synced."""
    known = Group("g", GroupConfig(), 1_000)
    assert known.describe().round_ends_ms == -1
    known.become(State.PREPARING_REBALANCE, 2_000)
    known.joining.deadline_ms = 9_000
    assert (known.describe().state_since_ms, known.describe().round_ends_ms) == (2_000, 9_000)
    known.become(State.COMPLETING_REBALANCE, 3_000)
    known.sync_deadline_ms = 8_000
    assert (known.describe().state_since_ms, known.describe().round_ends_ms) == (3_000, 8_000)


# --- brokers ----------------------------------------------------------------------------------------------


def with_facts(**facts: Any) -> Observed:
    seen = observed()
    return Observed(seen.cluster, seen.min_isr, seen.log_dirs, **facts)


def test_the_replicas_of_a_drained_broker_do_not_wait_for_themselves() -> None:
    seen = observed(isr=(1, 2))
    seen = Observed(seen.cluster, seen.min_isr, seen.log_dirs, stopping=frozenset((3,)))
    found = explain_broker(seen, 3)
    assert found is not None
    steps = {each.next_step for each in found.troubles}
    assert steps == {
        "stop its process, or restart broker 3: after brokers drain it leads nothing new and joins no ISR"
    }


def test_a_drained_broker_that_still_leads_does_not_end_by_itself() -> None:
    leader = next(iter(observed().cluster.states.values())).leader
    found = explain_broker(with_facts(stopping=frozenset((leader,))), leader)
    assert found is not None
    (trouble,) = [each for each in found.troubles if "it is shutting down" in each.says]
    assert "After brokers drain it does not end by itself: stop it" in trouble.next_step
    assert trouble.acts == "you, if it was drained; else nobody"


@pytest.mark.parametrize(
    ("seen", "state", "rank", "says", "next_step"),
    [
        (observed(live=(1, 2), isr=(1, 2)), "not registered", Rank.AT_RISK, "it is down", "start broker 3"),
        (
            observed(live=(1, 2), leader=-1, isr=(3,)),
            "not registered; 1 partition with",
            Rank.UNAVAILABLE,
            "1 partition without a leader need it",
            "start broker 3",
        ),
        (
            with_facts(silent={3: "no answer in 5 s"}),
            "registered, and silent",
            Rank.AT_RISK,
            "does not answer",
            "it may be paused",
        ),
        (
            observed(isr=(1, 2)),
            "leads 0 of the 1 partitions",
            Rank.AT_RISK,
            "its replicas of 1 partition are not in sync",
            "wait: it fetches",
        ),
        (
            observed(log_dirs=(LogDir(3, "/bad", "KAFKA_STORAGE_ERROR", problem="offline: EIO"),)),
            "registered",
            Rank.AT_RISK,
            "the log dir is offline",
            "repair or replace the disk",
        ),
        (
            observed(log_dirs=(LogDir(3, "/full", problem="full: an append found no room"),)),
            "registered",
            Rank.REFUSES_WRITES,
            "the disk is full: appends are refused",
            "A lower retention frees the disk after another minute (file.delete.delay.ms)",
        ),
        (
            with_facts(damaged={3: {"orders-0": "damaged: 0.log at byte 61"}}),
            "registered",
            Rank.AT_RISK,
            "the replica cannot be used fully",
            "logstore verify",
        ),
        (
            with_facts(stopping=frozenset((3,))),
            "shutting down; still leads 0 of 1",
            Rank.UNDER_WAY,
            "it is shut down or drained",
            "stop its process, or restart broker 3",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_each_state_of_a_broker(seen: Observed, state: str, rank: Rank, says: str, next_step: str) -> None:
    found = explain_broker(seen, 3)
    assert found is not None
    assert state in found.state
    (trouble,) = [each for each in found.troubles if says in each.says]
    assert trouble.rank is rank
    assert trouble.evidence
    assert trouble.no_help
    assert next_step in trouble.next_step
    assert ranks(found) == sorted(ranks(found))


def test_a_broker_that_prefers_to_lead_and_does_not() -> None:
    found = explain_broker(observed(leader=2), 1)
    assert found is not None
    assert found.is_sound, "nothing is wrong: an election would balance the load"
    assert "leads none of 1 partition that prefer it" in found.troubles[0].says
    assert "logstore elect-preferred orders-0" in found.troubles[0].next_step
    assert explain_broker(observed(), 1) == Explanation(
        "broker 1",
        "registered; leads 1 of the 1 partitions that have a replica on it",
        "the metadata lists it at host:9092, which is the controller",
    )
    assert explain_broker(observed(), 9) is None


# --- partitions and clusters ------------------------------------------------------------------------------


def test_why_a_partition_and_a_cluster() -> None:
    seen = observed(live=(1,), isr=(1,), min_isr=2)
    found = explain_partition(seen, ORDERS)
    assert found is not None
    assert found.state == "leader 1  epoch 5  replicas 1, 2, 3  isr 1"
    assert ranks(found)[0] is Rank.REFUSES_WRITES
    assert found.troubles[0].waits_for == "broker 2, 3"
    assert "an unclean election, which brings no replica back" in found.troubles[0].no_help
    assert explain_partition(seen, TopicPartition("none", 0)) is None
    whole = explain_cluster(seen)
    assert whole.state == (
        "controller 1, 1 broker up, 2 missing; 1 partition: 0 without a leader, 1 not fully in sync"
    )
    assert ranks(whole) == sorted(ranks(whole))
    assert "brokers 2, 3 have replicas, and are not registered" in whole.evidence
    assert not explain_cluster(observed(controller=None)).is_sound
    assert explain_cluster(observed()).is_sound


def test_why_a_partition_of_a_topic_that_brokers_no_longer_list() -> None:
    seen = observed(doomed=True)
    found = explain_partition(replace(seen, cluster=replace(seen.cluster, topics={}, states={})), ORDERS)
    assert found is not None
    assert "being deleted" in found.state
    assert [each.waits_for for each in found.troubles] == ["broker 3 (not alive) for orders-0"]


@pytest.mark.parametrize(
    ("option", "says"),
    [("--bootstrap", "none of the given ones answers"), ("--metadata", "it does not answer: no broker can")],
)
def test_why_a_cluster_that_nobody_answers_for(
    command: Command, monkeypatch: pytest.MonkeyPatch, option: str, says: str
) -> None:
    impatient = partial(BlockingZooKeeperStore, patience_s=0.05)
    monkeypatch.setattr("logstore.replication.metastore.zookeeper.BlockingZooKeeperStore", impatient)
    address = "127.0.0.1:1" if option == "--bootstrap" else "zookeeper://127.0.0.1:1"
    ended = command("why", "cluster", option, address)
    assert ended.code == 1
    assert says in ended.out
    assert command("why", "orders-0", option, address).code == 1


def test_a_store_that_does_not_answer_is_told_once(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = partial(BlockingZooKeeperStore, patience_s=0.2)
    monkeypatch.setattr("logstore.replication.metastore.zookeeper.BlockingZooKeeperStore", impatient)
    unheard = io.StringIO()
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("kazoo"), "handlers", [])
    monkeypatch.setattr(logging, "lastResort", logging.StreamHandler(unheard))
    assert command("why", "cluster", "--metadata", "zookeeper://127.0.0.1:1").code == 1
    assert unheard.getvalue() == ""


def test_the_ways_to_a_cluster(command: Command) -> None:
    assert "give --bootstrap HOST:PORT, or --metadata URL" in command("why", "cluster").err
    asked = command("why", "group", "g", "--metadata", "zookeeper://127.0.0.1:1")
    assert (asked.code, "known to brokers only" in asked.err) == (2, True)


# --- real brokers -----------------------------------------------------------------------------------------


def test_why_over_real_brokers(command: Command) -> None:
    """A topic called group; a group that is empty, then has a member that commits nothing; a dead broker."""
    with BrokerCluster(3) as cluster:
        over = ("--bootstrap", cluster.bootstrap)
        cluster.create_topic("group", replication_factor=3)
        cluster.append("group", [b"x"] * 10)
        cluster.create_topic("read", replication_factor=3)
        cluster.append("read", [b"x"] * 10)
        assert command("why", "group-0", *over).out.startswith("group-0  leader ")
        assert command("why", "group", "none", *over).err == "logstore: no group none\n"
        assert command("why", "broker", "9", *over).err == "logstore: no broker 9\n"
        sound = command("why", "cluster", *over)
        assert (sound.code, "nothing is wrong" in sound.out) == (0, True)
        with closing(BlockingClient(cluster.bootstrap)) as client:
            client.topic("group").partition(0).cursor("g").commit(4)
        empty = command("why", "group", "g", *over)
        assert (empty.code, "nobody reads, with 6 records waiting" in empty.out) == (1, True)
        with closing(BlockingClient(cluster.bootstrap)) as client:
            client.topic("read").partition(0).cursor("late").commit(4)
        assert command("delete-records", "read-0", "latest", *over).code == 0
        deleted = command("why", "group", "late", *over)
        assert (deleted.code, "lag 0" in deleted.out) == (0, True), deleted.out
        assert "group late" not in command("health", *over, "--watch", 0).out
        consumer = KafkaConsumer(
            "group",
            bootstrap_servers=cluster.bootstrap,
            group_id="g",
            client_id="ann",
            enable_auto_commit=False,
            api_version=(2, 5),
        )
        try:
            consumer.poll(timeout_ms=10_000)
            stuck = command("why", "group", "g", *over, "--watch", 0.1, "--json")
            state, *found = [json.loads(line) for line in stuck.out.splitlines()]
            assert (stuck.code, state["state"]) == (1, "Stable, 1 member, lag 6")
            assert state["since"].endswith(" UTC")
            assert found[0]["says"].startswith("ann at 127.0.0.1 commits nothing, with 6 records waiting")
            assert found[0]["acts"] == "the operator of ann at 127.0.0.1"
            consumer.commit()
            assert command("why", "group", "g", *over).code == 0
        finally:
            consumer.close()
        leader = cluster.leader("group")
        dead = next(each for each in (1, 2, 3) if each != leader)
        cluster.kill(dead)
        over = ("--bootstrap", cluster.brokers[leader].bootstrap)
        assert wait_until(60, lambda: "it is down" in command("why", "broker", dead, *over).out)
        told = command("why", "broker", dead, *over)
        assert (told.code, told.out.startswith(f"broker {dead}  not registered")) == (1, True)
        assert command("why", "cluster", *over).code == 1

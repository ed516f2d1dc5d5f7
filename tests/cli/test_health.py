"""`health` and `why`: each trouble by what a cluster reports, and real brokers that are killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.broker import BrokerCluster
from logstore.cli.cluster_state import Cluster, Topic
from logstore.cli.log_dirs import LogDir
from logstore.cli.trouble import Rank
from logstore.cli.troubles import Observed, troubles
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore.layout import BrokerRegistration, LeaderAndIsr, TopicAssignment
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]
ORDERS = TopicPartition("orders", 0)


def observed(
    *,
    live: tuple[int, ...] = (1, 2, 3),
    leader: int = 1,
    isr: tuple[int, ...] = (1, 2, 3),
    min_isr: int = 1,
    adding: tuple[int, ...] = (),
    controller: int | None = 1,
    doomed: bool = False,
    log_dirs: tuple[LogDir, ...] | None = None,
    silent: Mapping[int, str] | None = None,
) -> Observed:
    """One partition with replicas on the brokers 1, 2 and 3."""
    moving = {0: adding} if adding else {}
    topic = Topic(TopicAssignment("id", {0: (1, 2, 3)}, moving), {}, -1, -1)
    cluster = Cluster(
        {broker: BrokerRegistration("host", 9092) for broker in live},
        {"orders": topic},
        {ORDERS: LeaderAndIsr(leader, 5, isr, -1)},
        controller,
        {"orders": "broker 3 (not alive) for orders-0"} if doomed else {},
    )
    everywhere = tuple(LogDir(broker, "/data", replicas=frozenset((ORDERS,))) for broker in live)
    return Observed(cluster, {"orders": min_isr}, everywhere if log_dirs is None else log_dirs, silent or {})


def test_no_more_replicas_are_needed_than_there_are() -> None:
    """`min.insync.replicas` above the number of replicas counts as that number, for leaders too."""
    (found,) = (each for each in troubles(observed(isr=(1, 2), min_isr=5)) if each.subject == "orders-0")
    assert found.says.endswith("2 replicas in sync, 3 needed")


def test_a_cause_comes_before_what_follows_from_it() -> None:
    partitions = {TopicPartition("__consumer_offsets", number): (1, 2, 3) for number in range(2)}
    topic = Topic(TopicAssignment("id", {each.partition: to for each, to in partitions.items()}), {}, -1, -1)
    seen = observed(live=(1, 2), isr=(1, 2))
    states = {each: LeaderAndIsr(1, 5, (1, 2), -1) for each in partitions}
    cluster = replace(seen.cluster, topics={"__consumer_offsets": topic}, states=states)
    found = [each.subject for each in troubles(replace(seen, cluster=cluster))]
    assert found == ["broker 3", "__consumer_offsets-0", "__consumer_offsets-1"]


def test_a_sound_cluster_has_none() -> None:
    assert troubles(observed()) == []


@pytest.mark.parametrize(
    ("seen", "rank", "subject", "said"),
    [
        (observed(controller=None), Rank.UNAVAILABLE, "cluster", "no controller is active"),
        (
            observed(live=(2, 3), leader=-1, isr=(1,)),
            Rank.UNAVAILABLE,
            "orders-0",
            "every replica in sync is down (1)",
        ),
        (
            observed(live=(1, 2), leader=3, isr=(3, 1)),
            Rank.UNAVAILABLE,
            "orders-0",
            "it has no leader, though 1 of its ISR are up",
        ),
        (
            observed(live=(1,), isr=(1,), min_isr=2),
            Rank.REFUSES_WRITES,
            "orders-0",
            "writes with acks=all are refused: 1 replica in sync, 2 needed",
        ),
        (observed(isr=(1, 2)), Rank.AT_RISK, "orders-0", "1 of 3 replicas are not in sync"),
        (observed(live=(1, 2), isr=(1, 2)), Rank.AT_RISK, "broker 3", "it is down, and holds replicas of 1"),
        (observed(silent={2: "no answer in 5 s"}), Rank.AT_RISK, "broker 2", "does not answer"),
        (
            observed(log_dirs=(LogDir(2, "/bad", "KAFKA_STORAGE_ERROR"),)),
            Rank.AT_RISK,
            "broker 2, /bad",
            "the log dir is offline",
        ),
        (
            observed(log_dirs=(LogDir(2, "/full", "", 1000, 40),)),
            Rank.AT_RISK,
            "broker 2, /full",
            "the disk is nearly full",
        ),
        (
            observed(isr=(1, 2), adding=(3,)),
            Rank.UNDER_WAY,
            "orders-0",
            "it is being reassigned, and waits for broker 3",
        ),
        (
            observed(live=(1, 2), doomed=True),
            Rank.AT_RISK,
            "orders-0",
            "it is being deleted, and waits for broker 3",
        ),
    ],
)
def test_each_trouble_by_its_name(seen: Observed, rank: Rank, subject: str, said: str) -> None:
    found = {(each.rank, each.subject): each for each in troubles(seen)}
    assert said in found[rank, subject].says
    assert found[rank, subject].evidence
    assert found[rank, subject].next_step


def test_the_worst_comes_first_and_the_reason_is_named() -> None:
    found = troubles(observed(live=(1,), isr=(1,), min_isr=2, silent={}))
    assert [each.rank for each in found] == sorted(each.rank for each in found)
    assert found[0].evidence == "ISR 1 of replicas 1, 2, 3; broker 2 is down; broker 3 is down"
    assert found[0].next_step == "start broker 2, 3"
    behind = troubles(observed(isr=(1, 2)))[0]
    assert "broker 3 is up and behind" in behind.evidence


def test_brokers_that_are_killed_are_named(command: Command) -> None:
    with BrokerCluster(3) as cluster:
        over = ("--bootstrap", cluster.bootstrap)
        settings = {"min.insync.replicas": "2"}
        cluster.create_topic("orders", replication_factor=3, settings=settings)
        cluster.append("orders", [b"x"])
        sound = command("health", *over)
        assert (sound.code, sound.err) == (0, "")
        assert sound.out.startswith("nothing is wrong: 3 brokers, ")
        assert "nothing is wrong" in command("why", "orders-0", *over).out
        assert command("why", "none-0", *over).err == "logstore: no partition none-0\n"
        leader = cluster.leader("orders")
        dead = [broker for broker in (1, 2, 3) if broker != leader]
        for broker in dead:
            cluster.kill(broker)
        named: set[str] = set()
        while not {f"broker {broker}" for broker in dead} <= named:
            told = command("why", "orders-0", "--bootstrap", cluster.bootstrap, "--json")
            facts = [json.loads(line) for line in told.out.splitlines()]
            named = {each["subject"] for each in facts}
        assert command("why", "orders-0", "--bootstrap", cluster.bootstrap).code == 1
        assert command("health", "--bootstrap", cluster.bootstrap).code == 1


def test_the_next_step_ends_a_trouble(command: Command, tmp_path: Path) -> None:
    """A dead broker with what follows from it, then a group without members: `make troubles` in short."""
    with BrokerCluster(3, directory=str(tmp_path)) as cluster:
        over = ("--bootstrap", cluster.bootstrap)
        cluster.create_topic("three", replication_factor=3)
        made = command("topics", "create", "one", "--replica-assignment", "3", *over, "--wait", 30)
        assert made.code == 0, made.err

        def first() -> dict[str, str]:
            lines = command("health", "--json", "--bootstrap", cluster.bootstrap).out.splitlines()
            return json.loads(lines[0]) if lines else {}

        cluster.kill(3)
        while "1 partition has no leader (one-0)" not in (found := first()).get("says", ""):
            pass
        assert (found["subject"], found["rank"]) == ("broker 3", "unavailable")
        assert "start broker 3" in found["next_step"]
        assert "Do not start it empty" in found["next_step"]
        cluster.start(3)
        while first():
            pass
        while command("groups", "reset", "billing", "one", "--to", "latest", *over).code:
            pass
        cluster.append("one", [b"x"])
        while "1 record waiting" not in (found := first()).get("says", ""):
            pass
        assert found["next_step"].endswith("logstore groups delete billing")
        deleted = command("groups", "delete", "billing", *over, "--json")
        assert json.loads(deleted.out) == {"group": "billing", "is_deleted": True}
        while first():
            pass


def test_a_move_to_another_log_dir_that_hangs() -> None:
    where = LogDir(2, "/b", hanging={TopicPartition("orders", 0): "/b is full: 7 bytes are free"})
    (trouble,) = troubles(observed(log_dirs=(where,)))
    assert (trouble.subject, trouble.rank) == ("orders-0", Rank.UNDER_WAY)
    assert "its move to /b of broker 2 hangs" in trouble.says
    assert "7 bytes" in trouble.evidence
    assert "logstore brokers move-log orders-0 --broker 2 --to DIR" in trouble.next_step

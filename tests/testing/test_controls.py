"""Controls: where nothing is promised, something is lost; and a loss, or a double, is always reported.

A simulation in which no acknowledged record ever went missing could be one that cannot lose any. Each test
takes a promise away, sees the loss, and sees the checkers name it; its twin keeps the promise and sees none.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.replication.config import NodeConfig
from logstore.replication.messages import ProduceRequest
from logstore.testing import SimulatedCluster, Violation
from logstore.testing.kit_clients import Acks
from tests.plants import planted

SEEDS = range(10, 18)
"""What a power cut leaves is the seed's choice: between these, a part of what had not been synced is gone."""


def leader_killed_with_a_record_of_its_own(acks: Acks, *, promised_acks: Acks) -> SimulatedCluster:
    """A record reaches the leader alone; then the leader dies, and the others go on."""
    cluster = SimulatedCluster(seed=1, promised_acks=promised_acks)
    cluster.create_topic("t")
    cluster.produce("t", b"on all of them")
    cluster.partition({0}, {1, 2})
    if acks == 1:
        assert cluster.produce("t", b"on the leader", acks=1).offset == 1
    else:
        cluster.producer("t", acks=acks, delivery_timeout_ms=1).send(b"on the leader")
        cluster.run_for(50)
    cluster.kill(0)
    cluster.heal()
    cluster.run_until(lambda: cluster.leader("t") == 1)
    return cluster


def test_acks_1_loses_what_a_killed_leader_alone_had() -> None:
    """As promised: acks=1 promises nothing for this, so it is lost and no rule is broken."""
    cluster = leader_killed_with_a_record_of_its_own(1, promised_acks="all")
    cluster.heal_and_check()
    assert [delivery.values for delivery in cluster.lost()] == [[b"on the leader"]]
    assert [record.value for record in cluster.consume("t")] == [b"on all of them"]


def test_acks_1_taken_for_a_promise_is_reported() -> None:
    cluster = leader_killed_with_a_record_of_its_own(1, promised_acks=1)
    with pytest.raises(Violation, match=r"C4: .*b'on the leader'.* is lost"):
        cluster.heal_and_check()


def test_acks_all_had_not_answered() -> None:
    """The same kill: whoever asked for all replicas was never told that they have it."""
    cluster = leader_killed_with_a_record_of_its_own("all", promised_acks="all")
    cluster.heal_and_check()
    assert [delivery.is_acknowledged for delivery in cluster.deliveries] == [True, False]
    assert cluster.lost() == []


def power_cut_everywhere(seed: int, durability: str, *, has_r2: bool) -> SimulatedCluster:
    """Five records that every replica acknowledged, then darkness, then all machines start."""

    def configure(node: NodeConfig) -> NodeConfig:
        controller = replace(node.controller, elect_unclean_restarted_last_member=not has_r2)
        return replace(node, controller=controller)

    cluster = SimulatedCluster(seed=seed, durability=durability, configure=configure)
    cluster.create_topic("t")
    for number in range(5):
        assert cluster.produce("t", b"%d" % number).is_acknowledged
    cluster.power_cut()
    cluster.restart()
    return cluster


def verdict(cluster: SimulatedCluster) -> Violation | None:
    try:
        cluster.heal_and_check(5000)
    except Violation as violation:
        return violation
    return None


def test_replicated_without_r2_loses_and_is_reported() -> None:
    """A last member that came back with a loss leads again: what it lost is gone for all, and nobody says so.

    But the judge does, for each seed in which anything is missing.
    """
    losses = 0
    for seed in SEEDS:
        cluster = power_cut_everywhere(seed, "replicated", has_r2=False)
        checker = cluster.deliveries[0].checker
        violation = verdict(cluster)
        if violation is not None:
            assert violation.invariant in ("C4", "C7"), violation
            assert checker.state is not None
            kept = [checker.views[node].log_end for node in checker.state.isr if node in checker.views]
            assert min(kept) < checker.committed_end == 5, "in sync, says the store, and short of records"
            losses += 1
        else:
            assert len(cluster.consume("t")) == 5
            assert cluster.lost() == []
    assert 0 < losses < len(SEEDS), "a power cut takes a part, not always and not never"


@pytest.mark.parametrize("seed", SEEDS)
def test_replicated_with_r2_stays_offline_and_loud(seed: int) -> None:
    """Nobody can know what is missing: nobody leads until an operator says who is to be believed."""
    cluster = power_cut_everywhere(seed, "replicated", has_r2=True)
    with pytest.raises(Violation, match="C18: not healed") as caught:
        cluster.heal_and_check(5000)
    assert "leader -1" in caught.value.message
    assert cluster.leader("t") is None
    assert cluster.claimants("t") == ()


@pytest.mark.parametrize("has_r2", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_synced_loses_nothing(seed: int, has_r2: bool) -> None:
    """Whatever was acknowledged was on disks: R2 has nothing to guard here, and does not stand in the way."""
    with power_cut_everywhere(seed, "synced", has_r2=has_r2) as cluster:
        cluster.run_until(lambda: cluster.is_led("t"))
        cluster.heal_and_check()
        assert [record.value for record in cluster.consume("t")] == [b"0", b"1", b"2", b"3", b"4"]


def produce_over_a_bad_network(seed: int) -> SimulatedCluster:
    """Answers get lost, so batches are sent again, with the numbers they had."""
    cluster = SimulatedCluster(seed=seed)
    cluster.create_topic("t")
    cluster.lossy_network(drop=0.3, delay_ms=3)
    for number in range(10):
        cluster.produce("t", b"%d" % number)
    return cluster


@pytest.mark.parametrize("seed", SEEDS)
def test_a_planted_duplicate_is_reported(seed: int) -> None:
    """With idempotence switched off, a batch that is sent again is there twice."""
    with planted("repeats-not-recognised"), pytest.raises(Violation, match="sent once, committed at"):
        produce_over_a_bad_network(seed)
    assert produce_over_a_bad_network(seed).lost() == []


def test_a_duplicate_of_the_clients_own_making_is_reported() -> None:
    """A batch without numbers that is sent twice is there twice; who promised not to, is told."""
    cluster = SimulatedCluster()
    cluster.create_topic("t")
    delivery = cluster.producer("t", is_idempotent=False).send(b"once")
    cluster.run_until(lambda: delivery.is_done)
    view = delivery.checker.views[0]
    copy = ProduceRequest({delivery.topic_partition: view.batches[0].data}, -1, 1000)
    cluster.call(0, copy, lambda body: None)
    with pytest.raises(Violation, match="C6"):
        cluster.run_for(1000)

"""Invariants of one node between turns; the stage checks them after every action of a schedule.

I1   log start ≤ high watermark ≤ end
I18  the epoch cache agrees with the batches about every record; at most one more entry, at the end
I20  a partition's proposal in flight is the one that its leader waits for
I21  a followed partition has one fetcher, of its leader, or has failed; a led one has none
"""

from __future__ import annotations

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.isr import CommittedIsr
from logstore.replication.messages import NO_LEADER
from logstore.replication.partition import Partition
from logstore.replication.replica_manager import ReplicaManager
from logstore.testing.observation import read_all
from logstore.testing.recovery_checks import check_epochs


def check_node(manager: ReplicaManager) -> None:
    """Check a node. Raises AssertionError or `Violation`, which name the invariant."""
    for topic_partition, partition in manager.partitions.items():
        if topic_partition in manager.offline:
            continue
        _check_log(partition)
        _check_fetchers(manager, topic_partition, partition)
        if isinstance(partition.isr, CommittedIsr):
            assert not manager.isr_channel.holds(topic_partition), (
                f"I20: {topic_partition}: nobody waits for it"
            )


def _check_log(partition: Partition) -> None:
    log = partition.log
    assert 0 <= log.log_start_offset <= log.high_watermark <= log.log_end_offset, f"I1: {partition}"
    check_epochs("I18", [batch for batch in read_all(log) if batch.epoch >= 0], log.epochs)
    beyond = [entry for entry in log.epochs if entry[1] >= log.log_end_offset]
    assert all(entry[1] == log.log_end_offset for entry in beyond), f"I18: {log.epochs}"
    assert [entry[0] for entry in beyond] in ([], [partition.leader_epoch]) or not partition.leads, "I18"


def _check_fetchers(manager: ReplicaManager, topic_partition: TopicPartition, partition: Partition) -> None:
    followers = manager.followers
    fetchers = [fetcher for fetcher in followers.fetchers.values() if topic_partition in fetcher.states]
    if partition.leads or partition.is_suspended:
        assert not fetchers, f"I21: {topic_partition} is led here, and fetched"
        return
    assert len(fetchers) <= 1, f"I21: {topic_partition} is with {len(fetchers)} fetchers"
    if topic_partition in followers.failed or partition.leader_id == NO_LEADER:
        assert not fetchers, f"I21: {topic_partition} is fetched from nobody"
    elif not manager.is_departing:
        assert fetchers, f"I21: {topic_partition} is not fetched"
        assert fetchers[0].leader_id == partition.leader_id, f"I21: {topic_partition} is fetched elsewhere"

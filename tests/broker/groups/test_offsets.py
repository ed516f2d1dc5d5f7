"""Committed offsets of one group: what counts, and from when; what expires, and when."""

from __future__ import annotations

import pytest

from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.group import Group
from logstore.broker.groups.offsets import Offsets
from logstore.broker.groups.rebalance import loaded
from logstore.broker.groups.records import GroupMetadata, MemberMetadata, OffsetAndMetadata
from logstore.broker.groups.requests import OffsetFetchPartition
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from tests.broker.groups.desk import T0, T1, subscription

U0 = TopicPartition("u", 0)
RETENTION_MS = 1_000


def at(offset: int, committed_ms: int = 0, expires_ms: int = -1) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, 3, "m", committed_ms, expires_ms)


def group_of(
    *topics: str, state_ms: int = 0, protocol_type: str = "consumer", data: bytes | None = None
) -> Group:
    """A stable group that reads these topics; empty since `state_ms` without any."""
    member = MemberMetadata("c", None, "c", "/h", 1, 1, subscription(*topics) if data is None else data, b"")
    members = (member,) if topics or data is not None else ()
    protocol = "range" if members else None
    metadata = GroupMetadata(protocol_type, 1, protocol, None, state_ms, members)
    return loaded("g", metadata, GroupConfig(), 0)


class TestCommitting:
    def test_an_offset_counts_once_the_log_has_it(self) -> None:
        offsets = Offsets()
        offsets.stage({T0: at(5)})
        assert offsets.get(T0) is None
        assert not offsets.is_empty, "it may count soon"
        offsets.complete({T0: at(5)}, 0)
        assert offsets.get(T0) == at(5)

    def test_what_failed_had_never_been(self) -> None:
        offsets = Offsets()
        offsets.stage((T0,))
        offsets.fail((T0,))
        assert offsets.is_empty
        assert offsets.fetch((T0,), require_stable=True) == {T0: OffsetFetchPartition()}

    def test_what_was_written_later_wins_in_whatever_order_one_hears_of_it(self) -> None:
        offsets = Offsets()
        offsets.stage((T0,))
        offsets.stage((T0,))
        offsets.complete({T0: at(20)}, 8)
        assert offsets.is_unstable(T0), "another one is under way"
        offsets.complete({T0: at(10)}, 7)
        assert offsets.get(T0) == at(20)
        assert not offsets.is_unstable(T0)

    def test_a_tombstone_removes_what_was_written_before_it_only(self) -> None:
        offsets = Offsets()
        offsets.put(T0, at(1), 1)
        offsets.put(T1, at(2), 3)
        offsets.remove((T0, T1), 2)
        assert offsets.partitions == [T1]

    def test_what_is_told_of_a_partition(self) -> None:
        offsets = Offsets()
        offsets.put(T0, at(5), 0)
        offsets.stage((T1,))
        told = OffsetFetchPartition(committed_offset=5, committed_leader_epoch=3, metadata="m")
        assert offsets.fetch((T0, T1), require_stable=False) == {T0: told, T1: OffsetFetchPartition()}
        assert offsets.fetch(None, require_stable=False) == {T0: told}
        unstable = OffsetFetchPartition(error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert offsets.fetch((T0, T1), require_stable=True) == {T0: told, T1: unstable}


class TestTransactions:
    def test_they_count_when_they_are_committed(self) -> None:
        offsets = Offsets()
        offsets.put_in_transaction(9, T0, at(5), 0)
        assert offsets.get(T0) is None
        assert offsets.is_unstable(T0)
        offsets.end_transaction(9, is_commit=True)
        assert offsets.get(T0) == at(5)
        assert not offsets.is_unstable(T0)

    def test_they_are_gone_when_they_are_aborted(self) -> None:
        offsets = Offsets()
        offsets.put_in_transaction(9, T0, at(5), 0)
        offsets.end_transaction(9, is_commit=False)
        assert offsets.is_empty

    def test_a_later_commit_outside_of_them_stands(self) -> None:
        """As of when the record was written, not of the marker: compaction would decide so too."""
        offsets = Offsets()
        offsets.put_in_transaction(9, T0, at(5), 3)
        offsets.put(T0, at(6), 4)
        offsets.end_transaction(9, is_commit=True)
        assert offsets.get(T0) == at(6)

    def test_a_tombstone_within_takes_back(self) -> None:
        offsets = Offsets()
        offsets.put_in_transaction(9, T0, at(5), 3)
        offsets.put_in_transaction(9, T0, None, 4)
        offsets.end_transaction(9, is_commit=True)
        assert offsets.is_empty

    def test_a_removal_takes_what_is_open_too(self) -> None:
        offsets = Offsets()
        offsets.put_in_transaction(9, T0, at(5), 3)
        assert offsets.partitions == [T0]
        offsets.remove((T0,), 4)
        offsets.end_transaction(9, is_commit=True)
        assert offsets.get(T0) is None


class TestExpiry:
    """KIP-211."""

    @pytest.mark.parametrize(
        ("state_ms", "committed_ms", "end_ms"),
        [(500, 0, 1_500), (500, 700, 1_700), (-1, 700, 1_700)],
        ids=["since it is empty", "since it was committed", "no time of the state"],
    )
    def test_of_an_empty_group_since_the_last_use(
        self, state_ms: int, committed_ms: int, end_ms: int
    ) -> None:
        offsets = Offsets()
        offsets.put(T0, at(1, committed_ms), 0)
        group = group_of(state_ms=state_ms)
        assert offsets.expired(group, end_ms - 1, RETENTION_MS) == []
        assert offsets.expired(group, end_ms, RETENTION_MS) == [T0]

    def test_of_a_stable_group_only_topics_that_nobody_reads(self) -> None:
        offsets = Offsets()
        offsets.put(T0, at(1), 0)
        offsets.put(U0, at(1, 300), 0)
        group = group_of("t")
        assert offsets.expired(group, 1_299, RETENTION_MS) == []
        assert offsets.expired(group, 1_300, RETENTION_MS) == [U0]

    def test_of_a_stable_group_nothing_if_its_subscriptions_cannot_be_read(self) -> None:
        offsets = Offsets()
        offsets.put(T0, at(1), 0)
        for data in (b"", b"\0", b"\0\0\0\0\0\2\0\1t"):
            assert offsets.expired(group_of(data=data), 10**9, RETENTION_MS) == []

    def test_of_members_that_are_no_consumers_nothing(self) -> None:
        offsets = Offsets()
        offsets.put(T0, at(1), 0)
        assert offsets.expired(group_of("u", protocol_type="connect"), 10**9, RETENTION_MS) == []

    def test_of_a_group_that_never_had_members_each_by_itself(self) -> None:
        offsets = Offsets()
        offsets.put(T0, at(1, 100), 0)
        offsets.put(T1, at(1, 200), 0)
        assert offsets.expired(Group("g", GroupConfig(), 10**9), 1_100, RETENTION_MS) == [T0]

    def test_an_end_of_its_own_comes_first(self) -> None:
        offsets = Offsets()
        offsets.put(T0, at(1, 0, 50), 0)
        offsets.put(T1, at(1, 0, 5_000), 0)
        group = group_of()
        assert offsets.expired(group, 49, RETENTION_MS) == []
        assert offsets.expired(group, 4_999, RETENTION_MS) == [T0]
        assert offsets.expired(group, 5_000, RETENTION_MS) == [T0, T1]

    def test_what_is_being_committed_stays(self) -> None:
        offsets = Offsets()
        offsets.put(T0, at(1), 0)
        offsets.stage((T0,))
        assert offsets.expired(group_of(), 10**9, RETENTION_MS) == []

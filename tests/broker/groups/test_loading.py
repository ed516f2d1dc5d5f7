"""From the log to groups: last record of a key, tombstones, transactions, codecs, what cannot be read."""

from __future__ import annotations

import pytest

from logstore.broker.errors import CorruptGroupRecord
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.group import Group, State
from logstore.broker.groups.loading import Loader
from logstore.broker.groups.offsets import Offsets
from logstore.broker.groups.records import (
    GroupMetadata,
    MemberMetadata,
    OffsetAndMetadata,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import CorruptBatch
from logstore.format.batch import encode_batch, encode_marker_batch
from logstore.format.compression import Codec
from logstore.format.record import ControlType, EndTransactionMarker, Record
from tests.broker.groups.desk import T0, T1, subscription

Pair = tuple[bytes | None, bytes | None]
MEMBER = MemberMetadata("c-1", None, "c", "/h", 60_000, 10_000, subscription("t"), b"A")
STABLE = GroupMetadata("consumer", 3, "range", "c-1", 50, (MEMBER,))


def committed(group_id: str, where: TopicPartition, offset: int | None) -> Pair:
    value = None if offset is None else encode_offset(OffsetAndMetadata(offset))
    return encode_offset_key(group_id, where), value


def generation(group_id: str, metadata: GroupMetadata | None) -> Pair:
    return encode_group_key(group_id), None if metadata is None else encode_group(metadata)


class Written:
    """A log under construction."""

    def __init__(self) -> None:
        self.data = b""
        self.end = 0

    def batch(self, *pairs: Pair, codec: Codec = Codec.NONE, producer_id: int = -1) -> Written:
        records = [Record(self.end + number, 1, *pair) for number, pair in enumerate(pairs)]
        is_transactional = producer_id >= 0
        self.data += encode_batch(
            records,
            base_offset=self.end,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=0 if is_transactional else -1,
            base_sequence=0 if is_transactional else -1,
            is_transactional=is_transactional,
        )
        self.end += len(pairs)
        return self

    def marker(self, producer_id: int, kind: ControlType) -> Written:
        marker = EndTransactionMarker(kind, 0)
        self.data += encode_marker_batch(
            marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=1, base_offset=self.end
        )
        self.end += 1
        return self

    def offsets(self) -> dict[str, dict[TopicPartition, int]]:
        """What is committed, by group."""
        found = {}
        for group, offsets in self.load():
            fetched = offsets.fetch(None, require_stable=False)
            found[group.group_id] = {each: value.committed_offset for each, value in fetched.items()}
        return found

    def load(self) -> list[tuple[Group, Offsets]]:
        loader = Loader()
        loader.feed(self.data)
        return list(loader.groups(GroupConfig(), 100))


@pytest.mark.parametrize("codec", list(Codec))
def test_the_last_record_of_a_key_is_the_truth(codec: Codec) -> None:
    log = Written().batch(committed("g", T0, 1), committed("g", T1, 2), committed("g", T0, 3), codec=codec)
    log.batch(committed("h", T0, 4), committed("g", T1, None), codec=codec)
    assert log.offsets() == {"g": {T0: 3}, "h": {T0: 4}}


def test_a_stable_group_comes_back_with_its_members() -> None:
    ((group, _),) = Written().batch(generation("g", STABLE)).load()
    assert (group.state, group.generation, group.leader_id) == (State.STABLE, 3, "c-1")
    assert group.describe().members[0].member_assignment == b"A"
    assert group.deadline_ms == 100 + 10_000, "a whole session"
    assert group.state_timestamp_ms == 50


def test_an_empty_group_comes_back_as_old_as_it_is() -> None:
    ((group, _),) = Written().batch(generation("g", GroupMetadata("consumer", 4, None, None, 50, ()))).load()
    assert (group.state, group.generation, group.state_timestamp_ms) == (State.EMPTY, 4, 50)


def test_a_group_whose_tombstone_was_written_is_gone() -> None:
    log = Written().batch(generation("g", STABLE), committed("g", T0, 1))
    log.batch(committed("g", T0, None), generation("g", None))
    assert log.load() == []


def test_offsets_that_outlive_their_group_make_an_empty_one() -> None:
    log = Written().batch(generation("g", STABLE), committed("g", T0, 1), generation("g", None))
    ((group, _),) = log.load()
    assert (group.state, group.protocol_type, group.generation) == (State.EMPTY, None, 0)


def test_what_a_transaction_commits_counts_when_it_does() -> None:
    log = Written().batch(committed("g", T0, 1)).batch(committed("g", T0, 2), producer_id=9)
    assert log.offsets() == {"g": {T0: 1}}
    ((_, offsets),) = log.load()
    assert offsets.is_unstable(T0)
    assert log.marker(9, ControlType.COMMIT).offsets() == {"g": {T0: 2}}


def test_what_a_transaction_aborts_does_not_count() -> None:
    log = Written().batch(committed("g", T0, 2), producer_id=9).marker(9, ControlType.ABORT)
    assert log.load() == []


def test_transactions_of_several_producers_and_groups_are_kept_apart() -> None:
    log = Written().batch(committed("g", T0, 2), committed("h", T0, 3), producer_id=9)
    log.batch(committed("g", T1, 4), producer_id=8).marker(9, ControlType.COMMIT).marker(8, ControlType.ABORT)
    assert log.offsets() == {"g": {T0: 2}, "h": {T0: 3}}


def test_a_tombstone_leaves_what_a_transaction_commits_later() -> None:
    """As Kafka's loader: an expired offset of before, and the one that the transaction brings."""
    log = Written().batch(committed("g", T0, 1)).batch(committed("g", T0, 9), producer_id=9)
    log.batch((encode_offset_key("g", T0), None)).marker(9, ControlType.COMMIT)
    assert log.offsets() == {"g": {T0: 9}}


def test_other_kinds_of_records_are_passed_over() -> None:
    """Kafka 4 keeps its new groups in the same topic."""
    log = Written().batch((b"\0\3\0\1g", b"\0\0"), committed("g", T0, 1), (b"\0\5\0\1g", None))
    assert log.offsets() == {"g": {T0: 1}}


def test_the_log_comes_in_pieces() -> None:
    first, second = Written().batch(committed("g", T0, 1)), Written().batch(committed("g", T1, 2))
    loader = Loader()
    loader.feed(first.data)
    loader.feed(second.data)
    ((_, offsets),) = loader.groups(GroupConfig(), 0)
    assert offsets.partitions == [T0, T1]


@pytest.mark.parametrize(
    "pair",
    [
        (None, b""),
        (b"\0", b""),
        (encode_offset_key("g", T0), b"\0\3\0"),
        (encode_group_key("g"), b"\0\7"),
    ],
    ids=["no key", "half a key", "half an offset", "a group of the future"],
)
def test_what_cannot_be_read_is_never_passed_over(pair: Pair) -> None:
    with pytest.raises(CorruptGroupRecord):
        Written().batch(pair).load()


def test_a_batch_whose_checksum_is_wrong_is_refused() -> None:
    """It holds offsets that somebody relies on."""
    log = Written().batch(committed("g", T0, 1))
    log.data = log.data[:-1] + b"\xff"
    with pytest.raises(CorruptBatch):
        log.load()


def test_nothing_is_made_of_an_empty_log() -> None:
    assert Written().load() == []
    assert Offsets().is_empty

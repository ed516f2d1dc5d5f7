"""Records of __consumer_offsets: the bytes are Kafka's, in every version that is found in logs."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.broker.errors import CorruptGroupRecord
from logstore.broker.groups.records import (
    GroupKey,
    GroupMetadata,
    MemberMetadata,
    OffsetAndMetadata,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from logstore.disk.topic_partition import TopicPartition

ORDERS = TopicPartition("orders", 7)


def raw(text: str) -> bytes:
    """Hex, with spaces between the fields."""
    return bytes.fromhex("".join(text.split()))


OFFSET_KEY = raw("0001 0002 6731 0006 6f7264657273 00000007")
GROUP_KEY = raw("0002 0002 6731")
OFFSET_V0 = raw("0000 000000000000002a 0001 6d 0000018bcfe56800")
OFFSET_V1 = raw("0001 000000000000002a 0001 6d 0000018bcfe56800 0000018bd50bc400")
OFFSET_V2 = raw("0002 000000000000002a 0001 6d 0000018bcfe56800")
OFFSET_V3 = raw("0003 000000000000002a 00000005 0001 6d 0000018bcfe56800")
# Compact text (length + 1), then one tagged field: tag 0, 16 bytes of a topic id.
OFFSET_V4 = raw("0004 000000000000002a 00000005 02 6d 0000018bcfe56800 01 00 10") + bytes(range(16))
COMMITTED_MS = 0x18BCFE56800
EXPIRES_MS = 0x18BD50BC400

MEMBER_V0 = raw("0003 632d31 0001 63 0002 2f68 00002710 00000002 aabb 00000001 cc")
MEMBER_V1 = raw("0003 632d31 0001 63 0002 2f68 0000ea60 00002710 00000002 aabb 00000001 cc")
MEMBER_V3 = raw("0003 632d31 0001 69 0001 63 0002 2f68 0000ea60 00002710 00000002 aabb 00000001 cc")
HEAD = raw("0008 636f6e73756d6572 00000003 0005 72616e6765 0003 632d31")
STATE = raw("0000018bcfe56800")
GROUP_V0 = raw("0000") + HEAD + raw("00000001") + MEMBER_V0
GROUP_V1 = raw("0001") + HEAD + raw("00000001") + MEMBER_V1
GROUP_V2 = raw("0002") + HEAD + STATE + raw("00000001") + MEMBER_V1
GROUP_V3 = raw("0003") + HEAD + STATE + raw("00000001") + MEMBER_V3
GROUP_V4 = raw(
    """0004 09 636f6e73756d6572 00000003 06 72616e6765 04 632d31 0000018bcfe56800
       02 04 632d31 02 69 02 63 03 2f68 0000ea60 00002710 03 aabb 02 cc 00 00"""
)
EMPTY_GROUP_V3 = raw("0003 0008 636f6e73756d6572 00000004 ffff ffff 0000018bcfe56800 00000000")

MEMBER = MemberMetadata("c-1", "i", "c", "/h", 60_000, 10_000, b"\xaa\xbb", b"\xcc")
GROUP = GroupMetadata("consumer", 3, "range", "c-1", COMMITTED_MS, (MEMBER,))


def test_keys_are_written_in_kafkas_bytes() -> None:
    assert encode_offset_key("g1", ORDERS) == OFFSET_KEY
    assert encode_group_key("g1") == GROUP_KEY


def test_keys_are_read() -> None:
    assert decode_key(OFFSET_KEY) == OffsetKey("g1", ORDERS)
    assert decode_key(b"\0\0" + OFFSET_KEY[2:]) == OffsetKey("g1", ORDERS), "version 0 is the same"
    assert decode_key(GROUP_KEY) == GroupKey("g1")


def test_a_key_of_another_kind_is_passed_over() -> None:
    """Kafka 4 keeps the state of its new groups in the same topic, under keys 3 and higher."""
    assert decode_key(raw("0003 0002 6731")) is None
    assert decode_key(raw("0010")) is None


@pytest.mark.parametrize(
    ("data", "leader_epoch", "expires_ms"),
    [
        pytest.param(OFFSET_V0, -1, -1, id="v0"),
        pytest.param(OFFSET_V1, -1, EXPIRES_MS, id="v1"),
        pytest.param(OFFSET_V2, -1, -1, id="v2"),
        pytest.param(OFFSET_V3, 5, -1, id="v3"),
        pytest.param(OFFSET_V4, 5, -1, id="v4"),
    ],
)
def test_offsets_of_every_version_are_read(data: bytes, leader_epoch: int, expires_ms: int) -> None:
    assert decode_offset(data) == OffsetAndMetadata(42, leader_epoch, "m", COMMITTED_MS, expires_ms)


def test_offsets_are_written_as_kafka_2_8_to_3_x_does() -> None:
    """Version 3; only version 1 can say when an offset ends by itself."""
    assert encode_offset(OffsetAndMetadata(42, 5, "m", COMMITTED_MS)) == OFFSET_V3
    assert encode_offset(OffsetAndMetadata(42, 5, "m", COMMITTED_MS, EXPIRES_MS)) == OFFSET_V1


@pytest.mark.parametrize(
    ("data", "instance_id", "rebalance_ms", "state_ms"),
    [
        pytest.param(GROUP_V0, None, 10_000, -1, id="v0"),
        pytest.param(GROUP_V1, None, 60_000, -1, id="v1"),
        pytest.param(GROUP_V2, None, 60_000, COMMITTED_MS, id="v2"),
        pytest.param(GROUP_V3, "i", 60_000, COMMITTED_MS, id="v3"),
        pytest.param(GROUP_V4, "i", 60_000, COMMITTED_MS, id="v4"),
    ],
)
def test_groups_of_every_version_are_read(
    data: bytes, instance_id: str | None, rebalance_ms: int, state_ms: int
) -> None:
    """Version 0 had one timeout for both."""
    member = MemberMetadata("c-1", instance_id, "c", "/h", rebalance_ms, 10_000, b"\xaa\xbb", b"\xcc")
    assert decode_group(data) == GroupMetadata("consumer", 3, "range", "c-1", state_ms, (member,))


def test_groups_are_written_as_kafka_2_8_to_3_x_does() -> None:
    assert encode_group(GROUP) == GROUP_V3
    assert encode_group(GroupMetadata("consumer", 4, None, None, COMMITTED_MS, ())) == EMPTY_GROUP_V3


@pytest.mark.parametrize("data", [OFFSET_V0, OFFSET_V1, OFFSET_V2, OFFSET_V3])
def test_an_offset_cut_anywhere_is_refused(data: bytes) -> None:
    """Half a record must not pass for a committed offset."""
    for size in range(len(data)):
        with pytest.raises(CorruptGroupRecord):
            decode_offset(data[:size])


@pytest.mark.parametrize("data", [GROUP_V0, GROUP_V1, GROUP_V2, GROUP_V3])
def test_a_group_cut_anywhere_is_refused(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(CorruptGroupRecord):
            decode_group(data[:size])


@pytest.mark.parametrize(
    "key",
    [None, b"", b"\0", OFFSET_KEY[:-1], b"\xff\xff", raw("0002 0002 ff31"), raw("0002 ffff")],
    ids=["null", "empty", "half a version", "cut", "negative", "not UTF-8", "null group"],
)
def test_a_key_that_says_nothing_is_refused(key: bytes | None) -> None:
    with pytest.raises(CorruptGroupRecord):
        decode_key(key)


@pytest.mark.parametrize("version", [-1, 5, 100])
def test_a_value_of_an_unknown_version_is_refused(version: int) -> None:
    """To pass over it would forget an offset."""
    with pytest.raises(CorruptGroupRecord, match="version"):
        decode_offset(struct.pack(">h", version) + OFFSET_V3[2:])
    with pytest.raises(CorruptGroupRecord, match="version"):
        decode_group(struct.pack(">h", version) + GROUP_V3[2:])


def test_a_count_beyond_the_data_is_refused_before_anything_is_made() -> None:
    data = raw("0003") + HEAD + STATE + raw("7fffffff")
    with pytest.raises(CorruptGroupRecord, match="2147483647 announced"):
        decode_group(data)


@settings(derandomize=True, max_examples=300)
@given(st.binary(max_size=120))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for decode in (decode_key, decode_offset, decode_group):
        try:
            decode(data)
        except CorruptGroupRecord:
            pass


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MEMBERS = st.builds(
    MemberMetadata,
    TEXTS,
    st.none() | TEXTS,
    TEXTS,
    TEXTS,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=20),
    st.binary(max_size=20),
)
GROUPS = st.builds(
    GroupMetadata,
    TEXTS,
    st.integers(0, 2**31 - 1),
    st.none() | TEXTS,
    st.none() | TEXTS,
    st.integers(-1, 2**62),
    st.lists(MEMBERS, max_size=4).map(tuple),
)
OFFSETS = st.builds(
    OffsetAndMetadata,
    st.integers(0, 2**62),
    st.just(-1),
    TEXTS,
    st.integers(-1, 2**62),
    st.integers(-1, 2**62),
)


@settings(derandomize=True, max_examples=200)
@given(GROUPS, OFFSETS, TEXTS, st.integers(0, 2**31 - 1))
def test_what_is_written_is_read_again(
    group: GroupMetadata, offset: OffsetAndMetadata, name: str, partition: int
) -> None:
    key = OffsetKey(name, TopicPartition(name, partition))
    assert decode_key(encode_offset_key(*key)) == key
    assert decode_key(encode_group_key(name)) == GroupKey(name)
    assert decode_group(encode_group(group)) == group
    assert decode_offset(encode_offset(offset)) == offset

"""The codec against kio, against itself, and against bytes that nobody meant."""

from __future__ import annotations

import random
import tracemalloc
from typing import TypeVar

import pytest

from logstore.broker.errors import MalformedMessage
from logstore.broker.wire import codec
from logstore.broker.wire import types as t
from logstore.broker.wire.codec import decode, decoder, encode, varint
from logstore.broker.wire.declarations import Struct
from tests.broker.wire.samples import (
    KINDS,
    NOT_IN_KIO,
    Generator,
    kio_bytes,
    kio_decode,
    kio_type,
    name_of,
    to_kio,
)

SHARED_WITH_KIO = [kind for kind in KINDS if kind.KEY not in NOT_IN_KIO]
S = TypeVar("S", bound=Struct)
EACH_KIND = pytest.mark.parametrize("kind", KINDS, ids=name_of)
EACH_KIND_OF_KIO = pytest.mark.parametrize("kind", SHARED_WITH_KIO, ids=name_of)


def joined(message: Struct, version: int) -> bytes:
    return b"".join(encode(message, version))


def sample(kind: type[S], version: int, seed: int, *, ours: bool = True, small: bool = True) -> S:
    """The message of a seed; failures print the seed."""
    made: S = Generator(f"{kind.__name__} {version} {seed}", ours=ours, small=small).message(kind, version)
    return made


# --- what is meant ----------------------------------------------------------------------------


def same_as_kio(kind: type[Struct], seeds: range) -> None:
    for version in kind.VERSIONS:
        for seed in seeds:
            message = sample(kind, version, seed, ours=False, small=False)
            entity = to_kio(message, kio_type(kind, version))
            data = joined(message, version)
            assert data == kio_bytes(entity), (version, seed)
            assert decode(kind, version, memoryview(data)) == (message, len(data)), (version, seed)
            assert kio_decode(type(entity), data) == (entity, len(data)), (version, seed)


@EACH_KIND_OF_KIO
def test_bytes_are_those_of_kio_in_both_directions(kind: type[Struct]) -> None:
    """Two implementations that share only the declarations."""
    same_as_kio(kind, range(2))


@pytest.mark.slow
@pytest.mark.timeout(900)
@EACH_KIND_OF_KIO
def test_bytes_are_those_of_kio_many_times(kind: type[Struct]) -> None:
    same_as_kio(kind, range(2, 60))


@EACH_KIND
def test_what_follows_a_message_is_left_alone(kind: type[Struct]) -> None:
    """librdkafka 2.15 sends three bytes too many. Fields in our own tags come back here too."""
    for version in kind.VERSIONS:
        message = sample(kind, version, 0)
        data = joined(message, version)
        assert decode(kind, version, memoryview(data + b"\xff\xff\xff")) == (message, len(data)), version


@EACH_KIND
def test_tags_that_nobody_knows_are_skipped(kind: type[Struct]) -> None:
    """What a later Kafka adds must not break us."""
    for version in set(kind.VERSIONS) & set(kind.FLEXIBLE):
        bare = joined(kind(), version)
        assert bare.endswith(b"\0")
        tagged = bare[:-1] + b"\x02\x63\x02xy\xff\x7f\0"
        assert decode(kind, version, memoryview(tagged)) == (kind(), len(tagged)), version


def test_unknown_tags_inside_a_list_are_skipped_too() -> None:
    topic = b"\x02t" + b"\x01" + b"\x01\x20\x03abc"  # name, no partitions, one tag
    data = b"\0" + b"\xff\xff" + b"\0\0\0\1" + b"\x03" + topic * 2 + b"\0"
    request, used = decode(t.ProduceRequest, 9, memoryview(data))
    assert used == len(data)
    assert [each.name for each in request.topic_data] == ["t", "t"]


def test_records_are_views_of_the_frame_and_other_bytes_are_not() -> None:
    """Zero-copy for what is large; what is kept for long does not keep its frame."""
    partition = t.ProduceRequestPartitionProduceData(records=b"r" * 100)
    topic = t.ProduceRequestTopicProduceData(name="t", partition_data=[partition])
    frame = bytearray(joined(t.ProduceRequest(topic_data=[topic]), 9))
    request, _ = decode(t.ProduceRequest, 9, memoryview(frame))
    records = request.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame
    login, _ = decode(t.SaslAuthenticateRequest, 2, memoryview(b"\x04abc\0"))
    assert type(login.auth_bytes) is bytes


def test_large_records_are_not_copied_when_written() -> None:
    records = memoryview(bytes(1 << 20))
    partition = t.FetchResponsePartitionData(records=records)
    response = t.FetchResponse(responses=[t.FetchResponseFetchableTopicResponse(partitions=[partition])])
    for version in (4, 11, 12, 16):
        assert any(piece is records for piece in encode(response, version))


def test_a_tagged_struct_that_says_nothing_is_not_sent() -> None:
    """As Kafka has it: absent and default are one."""
    said = t.FetchRequest(replica_state=t.FetchRequestReplicaState())
    assert joined(said, 15) == joined(t.FetchRequest(), 15)


# --- what a version has no place for ----------------------------------------------------------


@EACH_KIND
def test_a_field_that_a_version_lacks_is_refused_or_by_rule_left_out(kind: type[Struct]) -> None:
    """Kafka marks what may be left out; of everything else only the default may be."""
    lacking = [(v, n, f) for v in kind.VERSIONS for n, f in kind.FIELDS.items() if v not in f.versions]
    for version, name, field in lacking:
        elsewhere = next(other for other in reversed(kind.VERSIONS) if other in field.versions)
        message, seed = kind(), 0
        while message == kind():  # until it says something
            seed += 1
            drawn = Generator(f"{name} {seed}", ours=True, small=True).field(name, field, elsewhere)
            setattr(message, name, drawn)
        if field.ignorable:
            assert joined(message, version) == joined(kind(), version), (version, name)
        else:
            with pytest.raises(MalformedMessage, match=name):
                encode(message, version)


@EACH_KIND
def test_null_is_refused_at_the_sender_where_it_may_not_be(kind: type[Struct]) -> None:
    for version in kind.VERSIONS:
        for name, field in kind.FIELDS.items():
            is_checked = version in field.versions and field.tag is None and field.kind != "bool"
            if is_checked and version not in field.nullable:
                message = kind()
                setattr(message, name, None)
                with pytest.raises(MalformedMessage):
                    encode(message, version)


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (t.HeartbeatRequest(generation_id=1 << 31), 4),
        (t.HeartbeatRequest(group_id="g" * 32_768), 0),
        (t.HeartbeatRequest(group_id="g" * 32_768), 4),
        (t.HeartbeatRequest(group_id="\ud800"), 4),
        (t.MetadataRequest(topics=[t.MetadataRequestTopic(topic_id=b"short")]), 12),
        (t.MetadataRequest(), 13),
        (t.MetadataRequest(), -1),
    ],
    ids=repr,
)
def test_what_has_no_bytes_is_refused_at_the_sender(message: Struct, version: int) -> None:
    with pytest.raises(MalformedMessage):
        encode(message, version)


def test_the_longest_string_goes_through() -> None:
    for version in (0, 4):
        message = t.HeartbeatRequest(group_id="g" * 32_767)
        data = joined(message, version)
        assert decode(t.HeartbeatRequest, version, memoryview(data))[0] == message


# --- what nobody meant ------------------------------------------------------------------------

ENDLESS = b"\xff\xff\xff\xff\x07"
"""2^31 - 1 as a varint."""


@pytest.mark.parametrize(
    ("kind", "version", "data", "complaint"),
    [
        (t.MetadataRequest, 0, b"\xff\xff\xff\xff", "topics has length -1"),
        (t.MetadataRequest, 1, b"\xff\xff\xff\xfe", "topics has length -2"),
        (t.ProduceRequest, 3, b"\x80\0", "transactional_id has length -32768"),
        (t.MetadataRequest, 1, b"\x7f\xff\xff\xff", "topics has length 2147483647"),
        (t.MetadataRequest, 1, b"\0\0\0\3\0\1t\0\1", "topics has length 3, with 5 bytes left"),
        (t.ElectLeadersRequest, 1, b"\0\0\0\0\1\0\1t\0\0\0\2\0\0\0\1\0\0", "partitions has length 2"),
        (t.MetadataRequest, 9, ENDLESS + b"\0\0\0\0", "topics has length 2147483646"),
        (t.MetadataRequest, 0, b"\0\0\0\1\xff\xff", "name has length -1"),
        (t.MetadataRequest, 0, b"\0\0\0\1\0\5abcd", "name has length 5, with 4 bytes left"),
        (t.MetadataRequest, 0, b"\0\0\0\1\0\2\xc3\x28", "utf-8"),
        (t.MetadataRequest, 9, b"\x02\0\0", "name has length -1"),
        (t.HeartbeatRequest, 4, b"\xff\xff\xff\xff\x0f", "a varint is longer"),
        (t.HeartbeatRequest, 4, b"\x80\x80\x80\x80\x80\x01", "a varint is longer"),
        (t.HeartbeatRequest, 4, b"\x82\0a", "a varint is longer"),
        (t.HeartbeatRequest, 4, b"\x80", "malformed at byte 1 of 1"),
        (t.SyncGroupRequest, 0, b"\0\0\0\0\0\0\0\0\0\0\0\1\0\0\x7f\xff\xff\xff", "assignment has length"),
        (t.SyncGroupRequest, 0, b"\0\0\0\0\0\0\0\0\0\0\0\1\0\0\xff\xff\xff\xff", "assignment has length -1"),
        (t.SaslAuthenticateRequest, 2, ENDLESS, "auth_bytes has length"),
        (t.SaslAuthenticateRequest, 2, b"\x01\x01\x05\x09x", "tag 5 of 9 bytes"),
        (t.SaslAuthenticateRequest, 2, b"\x01\x02\x05\x00\x05\x00", "tag 5 of 0 bytes after tag 5"),
        (t.SaslAuthenticateRequest, 2, b"\x01\x02\x05\x00\x04\x00", "tag 4 of 0 bytes after tag 5"),
        (t.SaslAuthenticateRequest, 2, b"\x01" + ENDLESS, "malformed at byte"),
        (t.FetchRequest, 99, b"", "has no version 99"),
    ],
)
def test_each_lie_is_named(kind: type[Struct], version: int, data: bytes, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        decode(kind, version, memoryview(data))


@pytest.mark.parametrize("size", [0, 1, 3, 5])
def test_a_known_tag_has_the_size_it_says(size: int) -> None:
    """The field ends where its tag does, or one of both lies."""
    whole = joined(t.FetchRequest(cluster_id="abc"), 12)
    at = whole.rindex(b"\x00\x04\x04abc")
    broken = whole[: at + 1] + bytes([size]) + whole[at + 2 :]
    with pytest.raises(MalformedMessage):
        decode(t.FetchRequest, 12, memoryview(broken))


@EACH_KIND
def test_a_message_cut_anywhere_is_refused(kind: type[Struct]) -> None:
    for version in kind.VERSIONS:
        data = joined(sample(kind, version, 1), version)
        read = decoder(kind, version)
        for size in range(len(data)):
            with pytest.raises(MalformedMessage):
                read(memoryview(data)[:size])


def damaged(whole: bytes, draw: random.Random) -> bytes:
    """One thing wrong with it: bits, a length, noise in the midst, or nothing but noise."""
    data = bytearray(whole or b"\0")
    at = draw.randrange(len(data))
    match draw.randrange(5):
        case 0:
            data[at] ^= 1 << draw.randrange(8)
        case 1:
            data[at : at + 4] = draw.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"])
        case 2:
            data[at : at + 1] = draw.choice([ENDLESS, b"\xff" * 9, varint(len(data) * 2), b"\x80\x01"])
        case 3:
            data[at:at] = draw.randbytes(draw.randrange(9))
        case _:
            return draw.randbytes(draw.randrange(200))
    return bytes(data)


def withstands(kind: type[Struct], seeds: range) -> None:
    for version in kind.VERSIONS:
        for seed in seeds:
            draw = random.Random(f"damage {kind.__name__} {version} {seed}")
            data = damaged(joined(sample(kind, version, seed % 7), version), draw)
            about = f"version {version}, seed {seed}: {data.hex()}"
            try:
                message, used = decode(kind, version, memoryview(data))
            except MalformedMessage:
                continue
            except BaseException as error:
                error.add_note(about)
                raise
            assert used <= len(data), about
            # Compared as bytes, for a tagged struct may come in with its defaults, and goes out as none.
            written = joined(message, version)
            again, _ = decode(kind, version, memoryview(written))
            assert joined(again, version) == written, f"what can be read can be written: {about}"


@EACH_KIND
def test_damage_raises_one_error_or_reads_as_another_message(kind: type[Struct]) -> None:
    withstands(kind, range(30))


@pytest.mark.slow
@pytest.mark.timeout(900)
@EACH_KIND
def test_much_damage_raises_one_error_or_reads_as_another_message(kind: type[Struct]) -> None:
    """A million inputs in all."""
    withstands(kind, range(30, 3000))


def test_no_count_makes_room_for_what_is_not_there() -> None:
    """P2: whatever a frame claims, it costs no more than some tens of its own bytes."""
    frames = []
    for kind in KINDS:
        version = kind.VERSIONS[-1]
        draw = random.Random(kind.__name__)
        whole = joined(sample(kind, version, 3), version)
        frames += [(kind, version, damaged(whole, draw)) for _ in range(10)]
        decoder(kind, version)
    tracemalloc.start()
    try:
        for kind, version, data in frames:
            # Again if it was too much: other threads of this process may have taken memory meanwhile.
            costs = (memory_to_decode(kind, version, data) for _ in range(3))
            assert any(cost < 100 * len(data) + 20_000 for cost in costs), (kind, version, data.hex())
    finally:
        tracemalloc.stop()


def memory_to_decode(kind: type[Struct], version: int, data: bytes) -> int:
    """Return the bytes of memory that a frame takes at most while it is read, as `tracemalloc` counts."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        decode(kind, version, memoryview(data))
    except MalformedMessage:
        pass
    return tracemalloc.get_traced_memory()[1] - before


def test_a_frame_full_of_tiny_things_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three bytes are an empty topic, whose object takes a hundred and fifty."""
    monkeypatch.setattr(codec, "MAX_ELEMENTS_REQUESTED", 1000)
    read = decoder.__wrapped__(t.ProduceRequest, 9)

    def request(topics: int) -> memoryview:
        count = varint(topics + 1)
        return memoryview(b"\0\0\0\0\0\0\0" + count + b"\1\1\0" * topics + b"\0")

    assert len(read(request(1000))[0].topic_data) == 1000
    with pytest.raises(MalformedMessage, match="topic_data has length 1001"):
        read(request(1001))


def test_lists_inside_lists_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_ELEMENTS_REQUESTED", 1000)
    topics = [t.OffsetFetchRequestTopic(name="t", partition_indexes=[0] * 99) for _ in range(11)]
    read = decoder.__wrapped__(t.OffsetFetchRequest, 7)
    data = joined(t.OffsetFetchRequest(topics=topics[:10]), 7)
    assert read(memoryview(data))[1] == len(data)
    with pytest.raises(MalformedMessage, match="partition_indexes has length 99"):
        read(memoryview(joined(t.OffsetFetchRequest(topics=topics), 7)))

"""Messages as bytes: every declared one comes back as it went, and nothing else is believed."""

from __future__ import annotations

import struct
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import MalformedMessage
from broker.message_codec import RESPONSE_OF, WORTH_ITS_OWN_CHUNK, decode_request, decode_response, encode
from checkpoint.errors import ErrorCode
from checkpoint.topic_partition import TopicPartition
from replication.messages import (
    AlterConfigsRequest,
    DeleteTopicsRequest,
    FetchResponse,
    FetchResult,
    MetadataRequest,
    ProduceRequest,
    RequestBody,
    ResponseBody,
    UpdateMetadataResponse,
)

TP = TopicPartition("t", 0)
REQUESTS: tuple[type[Any], ...] = get_args(RequestBody)
RESPONSES: tuple[type[Any], ...] = get_args(ResponseBody)
TOPICS = st.text("abz09._-", min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))


def values_of(declared: Any) -> st.SearchStrategy[Any]:
    """Any value that a declaration allows and bytes can hold."""
    origin, arguments = get_origin(declared), get_args(declared)
    if declared is int:
        return st.integers(-(2**63), 2**63 - 1)
    if declared is TopicPartition:
        return st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1))
    if declared is bytes or memoryview in arguments:
        return st.binary(max_size=20) | st.just(bytes(WORTH_ITS_OWN_CHUNK))
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(each) for each in arguments])
    if declared is type(None):
        return st.none()
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if isinstance(declared, type) and issubclass(declared, Enum):
        return st.sampled_from(list(declared))
    if declared in (str, bool):
        return st.from_type(declared)
    hints = get_type_hints(declared)
    return st.builds(declared, **{name: values_of(hint) for name, hint in hints.items()})


def joined(body: RequestBody | ResponseBody) -> bytes:
    return b"".join(encode(body))


@pytest.mark.parametrize("kind", REQUESTS)
@settings(derandomize=True, max_examples=12, deadline=None)
@given(data=st.data())
def test_a_request_comes_back_as_it_went(kind: type[Any], data: st.DataObject) -> None:
    """Whatever is declared later is held to it too: the strategy follows the declarations."""
    body = data.draw(values_of(kind))
    assert decode_request(joined(body)) == body


@pytest.mark.parametrize("kind", RESPONSES)
@settings(derandomize=True, max_examples=12, deadline=None)
@given(data=st.data())
def test_a_response_comes_back_as_it_went(kind: type[Any], data: st.DataObject) -> None:
    body = data.draw(values_of(kind))
    assert decode_response(joined(body)) == body


def test_requests_and_answers_are_declared_in_pairs() -> None:
    """A connection tells a wrong kind of answer by this table."""
    for request, response in RESPONSE_OF.items():
        assert request.__name__.removesuffix("Request") == response.__name__.removesuffix("Response")


@pytest.mark.parametrize("decode", [decode_request, decode_response])
@settings(derandomize=True, max_examples=600, deadline=None)
@given(kind=st.integers(0, 255), noise=st.binary(max_size=80))
def test_noise_raises_one_error(decode: Any, kind: int, noise: bytes) -> None:
    """A stranger on the port can end its own connection, and nothing else."""
    try:
        body = decode(bytes([kind]) + noise)
    except MalformedMessage:
        return
    assert joined(body) == bytes([kind]) + noise, "what is read is what was written, to the byte"


@settings(derandomize=True, max_examples=100, deadline=None)
@given(data=st.data())
def test_a_flipped_or_cut_message_raises_one_error_or_reads_as_another(data: st.DataObject) -> None:
    """Near misses reach deeper than noise does."""
    kind = data.draw(st.sampled_from(REQUESTS))
    whole = joined(data.draw(values_of(kind)))
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(MalformedMessage):
        decode_request(whole[:at])
    try:
        again = joined(decode_request(flipped))
    except MalformedMessage:
        return
    assert again == flipped


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "1 bytes are to follow, 0 do"),
        (b"\xff", "a byte is 255"),
        (bytes([REQUESTS.index(DeleteTopicsRequest)]) + b"\xff\xff\xff\xff", "4294967295 things"),
        (bytes([REQUESTS.index(DeleteTopicsRequest)]) + b"\0\0\0\1\0\0\0\2\xc3\x28", "not UTF-8"),
        (bytes([REQUESTS.index(MetadataRequest)]) + b"\2", "a byte is 2 where 1 is the most"),
        (bytes([REQUESTS.index(MetadataRequest)]) + b"\0more", "4 bytes follow the end of a MetadataRequest"),
        (
            bytes([REQUESTS.index(AlterConfigsRequest)]) + b"\0\0\0\2" + b"\0\0\0\1a\0\0\0\0" * 2,
            "a key twice",
        ),
    ],
)
def test_each_lie_is_named(data: bytes, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        decode_request(data)


@pytest.mark.parametrize("topic", ["..", "a/b", "", "x" * 250, "ü"])
def test_a_partition_that_is_no_name_of_a_directory_is_refused(topic: str) -> None:
    """P7: LeaderAndIsr makes directories of these names."""
    with pytest.raises(MalformedMessage):
        decode_request(joined(ProduceRequest({TopicPartition(topic, 0): b""}, 1, 1)))


@pytest.mark.parametrize("partition", [-1, 2**31])
def test_a_partition_has_a_number(partition: int) -> None:
    with pytest.raises(MalformedMessage):
        decode_request(joined(ProduceRequest({TopicPartition("t", partition): b""}, 1, 1)))


@pytest.mark.parametrize("topic", ["\ud800"])
def test_what_has_no_bytes_is_refused_at_the_sender(topic: str) -> None:
    with pytest.raises(MalformedMessage):
        encode(DeleteTopicsRequest((topic,)))
    with pytest.raises(MalformedMessage):
        encode(ProduceRequest({}, 1, 2**63))


def test_large_records_are_not_copied() -> None:
    """A megabyte of batches goes from the log's bytes to the socket, and from the frame to the log."""
    records = memoryview(bytes(1 << 20))
    chunks = encode(FetchResponse({TP: FetchResult(ErrorCode.NONE, records=records)}))
    assert any(chunk is records for chunk in chunks)
    frame = b"".join(chunks)
    body = decode_response(frame)
    assert isinstance(body, FetchResponse)
    view = body.partitions[TP].records
    assert isinstance(view, memoryview)
    assert view.obj is frame
    assert view.readonly


def test_a_count_is_held_against_the_bytes_before_anything_is_made() -> None:
    """P2: a frame of a few bytes that declares four billion entries costs nothing."""
    kind = bytes([RESPONSES.index(UpdateMetadataResponse)])
    assert decode_response(kind + bytes([list(ErrorCode).index(ErrorCode.NONE)])) == UpdateMetadataResponse(
        ErrorCode.NONE
    )
    count = struct.pack(">I", 2**31)
    for kind_number in range(len(REQUESTS)):
        with pytest.raises(MalformedMessage):
            decode_request(bytes([kind_number]) + count * 3)

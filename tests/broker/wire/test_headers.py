"""Headers, and the frames around bodies."""

from __future__ import annotations

import itertools

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.request_header.v1.header import RequestHeader as OldHeader
from kio.schema.request_header.v2.header import RequestHeader as NewHeader

from logstore.broker.errors import MalformedMessage
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import APIS
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import (
    decode_request_header,
    decode_response_header,
    request_frame,
    response_frame,
)
from tests.broker.wire.samples import KINDS, kio_bytes, kio_type


def frame_of(pieces: list[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(pieces)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "Request" in kind.__name__ and kind.KEY > 7])
def test_request_headers_are_those_of_kio(kind: type[Struct]) -> None:
    """With and without tags, by version; the client id is of the old kind in all of them."""
    for version, client_id in itertools.product(kind.VERSIONS, (None, "", "a client of ours")):
        frame = frame_of(request_frame(kind(), version, 7, client_id))
        wanted = kio_type(kind, version).__header_schema__(
            request_api_key=kind.KEY, request_api_version=version, correlation_id=7, client_id=client_id
        )
        head = kio_bytes(wanted)
        assert frame[4:].startswith(head)
        found = decode_request_header(memoryview(frame)[4:])
        assert found == (kind.KEY, version, 7, client_id, APIS[kind.KEY], len(head))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "Response" in kind.__name__ and kind.KEY > 7])
def test_response_headers_are_those_of_kio(kind: type[Struct]) -> None:
    """Among them the exception: ApiVersions is answered without tags."""
    for version in kind.VERSIONS:
        frame = frame_of(response_frame(kind(), version, 7))
        head = kio_bytes(kio_type(kind, version).__header_schema__(correlation_id=7))
        assert frame[4:].startswith(head)
        assert int.from_bytes(frame[:4]) == len(frame) - 4
        assert decode_response_header(memoryview(frame)[4:], APIS[kind.KEY], version) == (7, len(head))


def test_who_asks_for_what_is_not_served_is_told_apart_from_who_talks_nonsense() -> None:
    """An unknown version of ApiVersions wants an answer, and so its correlation id."""
    for key, version in ((18, 99), (18, -1), (999, 0), (-1, -1)):
        header = OldHeader(request_api_key=key, request_api_version=version, correlation_id=5, client_id="x")  # type: ignore[arg-type]
        found = decode_request_header(memoryview(kio_bytes(header) + b"\xff" * 9))
        assert (found.key, found.version, found.correlation_id, found.api) == (key, version, 5, None)


def test_unknown_tags_of_a_header_are_skipped() -> None:
    header = kio_bytes(NewHeader(request_api_key=18, request_api_version=3, correlation_id=5, client_id="x"))  # type: ignore[arg-type]
    assert header.endswith(b"\0")
    tagged = header[:-1] + b"\x02\x05\x01!\x90N\x00"
    assert decode_request_header(memoryview(tagged + b"body")).size == len(tagged)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\x12\0\0\0\0\0\1",  # no client id
        b"\0\x12\0\0\0\0\0\1\xff\xfe",  # a client id of -2 bytes
        b"\0\x12\0\0\0\0\0\1\0\2x",  # a client id that ends too soon
        b"\0\x12\0\0\0\0\0\1\0\2\xc3\x28",  # not UTF-8
        b"\0\x12\0\3\0\0\0\1\xff\xff",  # no tags
        b"\0\x12\0\3\0\0\0\1\xff\xff\1\0\5abc",  # a tag that ends too soon
        b"\0\x12\0\3\0\0\0\1\xff\xff\2\1\0\1\0",  # a tag twice
        b"\0\x12\0\3\0\0\0\1\xff\xff\x80\x80\x80\x80\x80\0",  # an endless number of tags
    ],
)
def test_broken_headers_are_refused(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_request_header(memoryview(frame))


def test_a_small_frame_is_one_piece_and_large_records_stay_what_they_are() -> None:
    """A write for small answers, no copy for large ones."""
    records = memoryview(bytes(1 << 16))

    def response(data: memoryview) -> t.FetchResponse:
        partitions = [t.FetchResponsePartitionData(records=each) for each in (data, data[:9], data)]
        return t.FetchResponse(responses=[t.FetchResponseFetchableTopicResponse(partitions=partitions)])

    small = response_frame(response(records[:100]), 12, 1)
    assert len(small) == 1
    large = response_frame(response(records), 12, 1)
    assert [piece is records for piece in large] == [False, True, False, True, False]
    whole = frame_of(large)
    assert int.from_bytes(whole[:4]) == len(whole) - 4


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        request_frame(t.ApiVersionsRequest(), 0, 1 << 31, "x")
    with pytest.raises(MalformedMessage):
        request_frame(t.ApiVersionsRequest(), 0, 1, "\ud800")
    with pytest.raises(MalformedMessage):
        request_frame(t.ApiVersionsRequest(), 9, 1, "x")
    assert ApiVersionsRequest.__api_key__ == t.ApiVersionsRequest.KEY

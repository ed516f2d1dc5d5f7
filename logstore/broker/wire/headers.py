"""Headers of requests and responses, and complete frames to send.

    frame      size i32 │ header │ body          size counts the bytes after it

    request    key i16 │ version i16 │ correlation id i32 │ client id: i16 n, n bytes; -1: null │ [tags]
    response   correlation id i32 │ [tags]

Flexible versions have the tag sections. The client id is always a legacy string, and responses to ApiVersions
never have tags. The header of a request that is not served (`api` is None) can be read except for its tags,
which come last.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, NamedTuple

from logstore.broker.errors import MalformedMessage
from logstore.broker.wire.apis import API_OF, APIS, Api
from logstore.broker.wire.codec import encoder, skip_tag_section
from logstore.broker.wire.declarations import Struct
from logstore.disk.files import Buffer

JOINED_BELOW: Final = 1 << 16
"""A smaller frame is one piece; in larger ones, smaller pieces are joined."""

_REQUEST: Final = struct.Struct(">hhih")
_RESPONSE: Final = struct.Struct(">i")
_SIZE: Final = struct.Struct(">i")
_MOST_BYTES: Final = (1 << 31) - 1


class RequestHeader(NamedTuple):
    """A request's header. `api` is None for a key or version that is not served; `size` then excludes
    tags."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    api: Api | None
    size: int


def decode_request_header(frame: memoryview) -> RequestHeader:
    """Read the header of any request. Raises `MalformedMessage` for invalid bytes."""
    try:
        key, version, correlation_id, length = _REQUEST.unpack_from(frame)
        at = stop = _REQUEST.size
        client_id = None
        if length != -1:
            stop += length
            if not at <= stop <= len(frame):
                raise MalformedMessage(f"client id of {length} bytes in a frame of {len(frame)}")
            client_id = str(frame[at:stop], "utf-8")
        api = APIS.get(key)
        if api is not None and version not in api.served:
            api = None
        if api is not None and version in api.flexible:
            # Few clients send tags: nearly every section is the byte 0, a count of none.
            if stop < len(frame) and not frame[stop]:
                stop += 1
            else:
                stop = skip_tag_section(frame, stop)
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedMessage(f"invalid request header: {error}") from error
    return RequestHeader(key, version, correlation_id, client_id, api, stop)


def decode_response_header(frame: memoryview, api: Api, version: int) -> tuple[int, int]:
    """Return the correlation id and the position of the body. Raises `MalformedMessage`."""
    try:
        (correlation_id,) = _RESPONSE.unpack_from(frame)
    except struct.error as error:
        raise MalformedMessage(f"invalid response header: {error}") from error
    at = _RESPONSE.size
    if api.has_flexible_response_header(version):
        at = skip_tag_section(frame, at)
    return correlation_id, at


def request_frame(body: Struct, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """Return the frame of a request as few pieces; large records are pieces of their own, not copied.

    Raises `MalformedMessage` for a request that the version cannot express.
    """
    api = API_OF[type(body)]
    try:
        name = b"" if client_id is None else client_id.encode()
        head = _REQUEST.pack(api.key, version, correlation_id, -1 if client_id is None else len(name)) + name
    except (struct.error, UnicodeEncodeError) as error:
        raise MalformedMessage(f"{api.name} request cannot be encoded: {error}") from error
    if version in api.flexible:
        head += b"\0"
    return _frame(head, encoder(type(body), version)(body))


def response_frame(body: Struct, version: int, correlation_id: int) -> list[Buffer]:
    """Return the frame of a response; otherwise as `request_frame`."""
    tags, encode = _response_parts(type(body), version)
    return _frame(_RESPONSE.pack(correlation_id) + tags, encode(body))


@cache
def _response_parts(kind: type[Struct], version: int) -> tuple[bytes, Callable[[Struct], list[Buffer]]]:
    """Return the end of the header, and the encoder of the body."""
    is_flexible = API_OF[kind].has_flexible_response_header(version)
    return b"\0" if is_flexible else b"", encoder(kind, version)


def _frame(head: bytes, pieces: list[Buffer]) -> list[Buffer]:
    size = len(head) + sum(map(len, pieces))
    if size > _MOST_BYTES:
        raise MalformedMessage(f"a frame of {size} bytes is too large")
    pieces[:0] = (_SIZE.pack(size), head)
    return [b"".join(pieces)] if size < JOINED_BELOW else list(joined(pieces))


def joined(pieces: Iterable[Buffer]) -> Iterable[Buffer]:
    """Yield the same bytes with pieces below `JOINED_BELOW` joined: that costs less than a write."""
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < JOINED_BELOW:
            small.append(piece)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield piece
    if small:
        yield b"".join(small)

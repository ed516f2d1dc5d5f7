"""Requests over a plain socket, to time a server without a client's own pauses."""

from __future__ import annotations

import socket
import struct
from typing import Final

from logstore.broker.wire import types as t
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.codec import decode
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import decode_response_header, request_frame

_METADATA: Final = 9
_LIST_OFFSETS: Final = 6
_LATEST: Final = -1
_LONGEST_S: Final = 30.0


def ask(port: int, request: Struct, version: int) -> Struct:
    """Send one request over a connection of its own. Raises `OSError`."""
    with socket.create_connection(("127.0.0.1", port), timeout=_LONGEST_S) as connection:
        connection.sendall(b"".join(request_frame(request, version, 1, "bench")))
        (size,) = struct.unpack(">i", _take(connection, 4))
        frame = memoryview(_take(connection, size))
    api = API_OF[type(request)]
    _, at = decode_response_header(frame, api, version)
    return decode(api.response, version, frame[at:])[0]


def _take(connection: socket.socket, size: int) -> bytes:
    taken = bytearray()
    while len(taken) < size:
        piece = connection.recv(size - len(taken))
        if not piece:
            raise ConnectionResetError("the server closed the connection")
        taken += piece
    return bytes(taken)


def brokers(port: int) -> tuple[dict[int, int], int]:
    """Return the port of each broker that the server at `port` knows, and the controller's id."""
    found = ask(port, t.MetadataRequest(topics=[]), _METADATA)
    assert isinstance(found, t.MetadataResponse)
    return {each.node_id: each.port for each in found.brokers}, found.controller_id


def leaders(port: int, topic: str) -> dict[int, int]:
    """Return the leader of each partition that has one; empty if the topic is unknown."""
    wanted = [t.MetadataRequestTopic(name=topic)]
    asked = t.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    found = ask(port, asked, _METADATA)
    assert isinstance(found, t.MetadataResponse)
    return {
        part.partition_index: part.leader_id
        for each in found.topics
        for part in each.partitions
        if part.leader_id >= 0
    }


def serves_all(port: int, topic: str, partitions: int) -> bool:
    """Return whether the broker at `port` leads all partitions and answers for their ends."""
    parts = [
        t.ListOffsetsRequestListOffsetsPartition(partition_index=index, timestamp=_LATEST)
        for index in range(partitions)
    ]
    topics = [t.ListOffsetsRequestListOffsetsTopic(name=topic, partitions=parts)]
    found = ask(port, t.ListOffsetsRequest(replica_id=-1, topics=topics), _LIST_OFFSETS)
    assert isinstance(found, t.ListOffsetsResponse)
    return all(part.error_code == 0 for each in found.topics for part in each.partitions)

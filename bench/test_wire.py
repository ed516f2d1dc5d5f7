"""Read and write messages, beside kio with the same ones: CPU microseconds, the best of the rounds.

pytest bench/test_wire.py -p no:xdist -q -s
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from kio.serial import entity_reader, entity_writer

from logstore.broker.wire import types as t
from logstore.broker.wire.apis import api_versions
from logstore.broker.wire.codec import decoder, encoder
from logstore.broker.wire.declarations import Struct
from tests.broker.wire.samples import kio_bytes, kio_type, to_kio

ROUNDS = 15
ROUND_S = 0.02


class Case(NamedTuple):
    """A message, and the microseconds that a prototype took to read and to write it on an idle machine."""

    what: str
    message: Struct
    version: int
    read_us: float | None = None
    write_us: float | None = None


def produce(records: bytes) -> t.ProduceRequest:
    partition = t.ProduceRequestPartitionProduceData(index=1, records=records)
    topic = t.ProduceRequestTopicProduceData(name="a-topic", partition_data=[partition])
    return t.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def produced() -> t.ProduceResponse:
    partition = t.ProduceResponsePartitionProduceResponse(index=1, base_offset=12345, log_start_offset=0)
    topic = t.ProduceResponseTopicProduceResponse(name="a-topic", partition_responses=[partition])
    return t.ProduceResponse(responses=[topic])


def fetch(partitions: int) -> t.FetchRequest:
    wanted = [
        t.FetchRequestFetchPartition(partition=each, fetch_offset=1000, partition_max_bytes=1 << 20)
        for each in range(partitions)
    ]
    return t.FetchRequest(
        max_wait_ms=500, min_bytes=1, topics=[t.FetchRequestFetchTopic(topic="a-topic", partitions=wanted)]
    )


def fetched(partitions: int) -> t.FetchResponse:
    found = [
        t.FetchResponsePartitionData(partition_index=each, high_watermark=1000, aborted_transactions=None)
        for each in range(partitions)
    ]
    return t.FetchResponse(
        responses=[t.FetchResponseFetchableTopicResponse(topic="a-topic", partitions=found)]
    )


def metadata(partitions: int) -> t.MetadataResponse:
    known = [
        t.MetadataResponsePartition(
            partition_index=each, leader_id=1, leader_epoch=3, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3]
        )
        for each in range(partitions)
    ]
    brokers = [t.MetadataResponseBroker(node_id=each, host="a-host", port=9092) for each in (1, 2, 3)]
    return t.MetadataResponse(
        brokers=brokers, cluster_id="x", topics=[t.MetadataResponseTopic(name="a-topic", partitions=known)]
    )


CASES = [
    Case("Produce, 1 partition", produce(b"x" * 100), 9, read_us=1.5),
    Case("Produce, 1 MiB of records", produce(bytes(1 << 20)), 9, read_us=2.0),
    Case("Produce response, 1 partition", produced(), 9, write_us=0.9),
    Case("Fetch, 1 partition", fetch(1), 12),
    Case("Fetch, 100 partitions", fetch(100), 12, read_us=25),
    Case("Fetch, 100 partitions, not flexible", fetch(100), 11),
    Case("Fetch response, 100 partitions", fetched(100), 12, write_us=44),
    Case("Fetch response, 100 partitions, not flexible", fetched(100), 11),
    Case("Metadata response, 1,000 partitions", metadata(1000), 12, write_us=1100),
    Case("ApiVersions response", api_versions(), 3, write_us=6),
]


def microseconds(act: Callable[[], object]) -> float:
    act()
    begun, calls = time.perf_counter(), 0
    while time.perf_counter() - begun < ROUND_S:
        act()
        calls += 1
    calls = max(calls, 1)
    rounds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(calls):
            act()
        rounds.append((time.process_time() - begun) / calls * 1e6)
    return min(rounds)


class Sink:
    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.write = self.pieces.append


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_wire(case: Case) -> None:
    """Print a row of the table in docs/performance.md."""
    kind, message, version = type(case.message), case.message, case.version
    entity = to_kio(message, kio_type(kind, version))
    data = kio_bytes(entity)
    read, write = decoder(kind, version), encoder(kind, version)
    kio_read, kio_write = entity_reader(type(entity)), entity_writer(type(entity))
    view = memoryview(data)
    assert b"".join(write(message)) == data
    read_us, kio_read_us = microseconds(lambda: read(view)), microseconds(lambda: kio_read(data, 0))
    write_us = microseconds(lambda: b"".join(write(message)) if len(data) < 1 << 16 else write(message))
    kio_write_us = microseconds(lambda: kio_write(Sink(), entity))  # type: ignore[arg-type]
    wanted = [f"{figure:g}" if figure else "–" for figure in (case.read_us, case.write_us)]
    print(
        f"| {case.what} | {read_us:.1f} | {kio_read_us:.1f} | {wanted[0]} "
        f"| {write_us:.1f} | {kio_write_us:.1f} | {wanted[1]} |"
    )

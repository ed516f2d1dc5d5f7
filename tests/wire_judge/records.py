"""Stories of records: topics, produce, fetch, offsets, deletion of records.

Not drawn: transactions, which have no coordinator here, and values at which Kafka itself fails with
UNKNOWN_SERVER_ERROR (-1) or never answers (null records, an isolation level of 2, negative sizes)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from logstore.broker.wire import types as t
from logstore.format.batch import encode_batch
from logstore.format.compression import Codec
from logstore.format.crc import crc32c
from logstore.format.record import Header, Record
from tests.wire_judge.known import UNKNOWN_ID
from tests.wire_judge.stories import Draw, Known, Step

BASE_MS: Final = 1_700_000_000_000
_CONFIGS: Final = (
    *(
        ("message.timestamp.type", "LogAppendTime"),
        ("max.message.bytes", "200"),
        ("cleanup.policy", "compact"),
    ),
    *(("compression.type", "gzip"), ("compression.type", "uncompressed"), ("min.insync.replicas", "2")),
    *(("message.timestamp.before.max.ms", "1000"), ("message.timestamp.after.max.ms", "1000")),
    *(("message.timestamp.difference.max.ms", "1000"), ("segment.bytes", "1048576")),
)


def topics(draw: Draw) -> list[str]:
    return [draw.name("a"), draw.name("b")]


def creation(draw: Draw) -> Step:
    """Create the story's topics, mostly with settings of the broker."""
    made = []
    for name in topics(draw):
        configs = [draw.pick(*_CONFIGS)] if draw.chance(0.5) else []
        made.append((name, draw.pick(1, 2), configs))

    def build(_known: Known) -> t.CreateTopicsRequest:
        return t.CreateTopicsRequest(
            topics=[
                t.CreateTopicsRequestCreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    configs=[
                        t.CreateTopicsRequestCreatableTopicConfig(name=key, value=value)
                        for key, value in configs
                    ],
                )
                for name, partitions, configs in made
            ]
        )

    def learn(response: Any, known: Known) -> None:
        for each in response.topics:
            known[f"topic {each.name}"] = each.topic_id

    return draw.step(t.CreateTopicsRequest, build, learn, least=7)


def _places(draw: Draw, most: int = 2) -> list[tuple[str, list[int]]]:
    names = draw.some([*topics(draw), *topics(draw), draw.name("nowhere")], most)
    return [(name, [draw.usual(0, 1, 2, -1, of=0.85)]) for name in dict.fromkeys(names)]


def _records(draw: Draw) -> list[Record]:
    base = draw.usual(BASE_MS, 0, -1, BASE_MS - 5_000, of=0.8)
    return [
        Record(
            offset,
            base if base <= 0 else base + draw.number(-20, 20),
            draw.usual(b"key", None, b"", of=0.6),
            draw.usual(b"value %d" % draw.number(0, 9), None, b"", b"x" * 300, of=0.8),
            (Header("h", draw.pick(b"1", None)),) if draw.chance(0.2) else (),
        )
        for offset in range(draw.number(1, 3))
    ]


class Broken(bytes):
    """A batch that a client's mistake, or a wire's, has changed; `how` says it."""

    how = ""


def _at(at: int, value: bytes) -> Callable[[bytearray], bytearray]:
    """Return a change of bytes outside the checksum."""
    return lambda batch: batch[:at] + value + batch[at + len(value) :]


def _sealed(at: int, value: bytes) -> Callable[[bytearray], bytearray]:
    """Return a change of bytes that the checksum covers, and the checksum with it."""

    def change(batch: bytearray) -> bytearray:
        batch[at : at + len(value)] = value
        batch[17:21] = crc32c(batch[21:]).to_bytes(4)
        return batch

    return change


_BREAKS: Final[dict[str, Callable[[bytearray], bytearray]]] = {
    "no bytes": lambda _: bytearray(),
    "a byte short": lambda batch: batch[:-1],
    "half a header": lambda batch: batch[:30],
    "no magic": lambda batch: batch[:12],
    "bytes behind it": lambda batch: batch + b"\0" * 5,
    "twice": lambda batch: batch * 2,
    "magic 0": _at(16, b"\0"),
    "magic 1": _at(16, b"\x01"),
    "magic 3": _at(16, b"\x03"),
    "magic -1": _at(16, b"\xff"),
    "a wrong byte": lambda batch: batch[:-1] + bytes([batch[-1] ^ 255]),
    "base offset 9": _at(7, b"\x09"),
    "leader epoch 9": _at(12, b"\0\0\0\x09"),
    "length negative": _at(8, b"\xff"),
    "length 20": _at(8, b"\0\0\0\x14"),
    "codec 5": _sealed(22, b"\x05"),
    "codec 7": _sealed(22, b"\x07"),
    "append time": _sealed(22, b"\x08"),
    "control": _sealed(22, b"\x20"),
    "delete horizon": _sealed(22, b"\x40"),
    "transactional": _sealed(22, b"\x10"),
    "unused attribute": _sealed(22, b"\x80"),
    "unused attributes": _sealed(21, b"\xff"),
    "last delta 5": _sealed(23, b"\0\0\0\x05"),
    "last delta -1": _sealed(23, b"\xff\xff\xff\xff"),
    "count 5": _sealed(57, b"\0\0\0\x05"),
    "count 0": _sealed(57, b"\0\0\0\0"),
    "count -1": _sealed(57, b"\xff\xff\xff\xff"),
    "max timestamp 1": _sealed(35, b"\0\0\0\0\0\0\0\x01"),
    "base timestamp -1": _sealed(27, b"\xff" * 8),
    "base timestamp -9": _sealed(27, b"\xff" * 7 + b"\xf7"),
    "record too long": _sealed(61, b"\x40"),
    "record length -1": _sealed(61, b"\x01"),
    "garbage for records": _sealed(61, b"\xff" * 5),
    "gzip of garbage": _sealed(22, b"\x01"),
    "snappy of garbage": _sealed(22, b"\x02"),
    "lz4 of garbage": _sealed(22, b"\x03"),
    "zstd of garbage": _sealed(22, b"\x04"),
    "epoch without id": _sealed(51, b"\0\x05"),
    "sequence without id": _sealed(53, b"\0\0\0\x05"),
    "id without epoch": _sealed(43, b"\0\0\0\0\0\0\0\x05\xff\xff\0\0\0\0"),
    "id without sequence": _sealed(43, b"\0\0\0\0\0\0\0\x05\0\0\xff\xff\xff\xff"),
    "id -2": _sealed(43, b"\xff" * 7 + b"\xfe\0\0\0\0\0\0"),
}


def _batch(draw: Draw, how: str) -> Callable[[Known], bytes]:
    who = draw.usual("", "known", "other", of=0.5)
    codec = draw.usual(Codec.NONE, *Codec)
    epoch, sequence = draw.usual(0, 1, 2, of=0.9), draw.usual(0, 1, 2, 3, 7, of=0.4)
    records = _records(draw)

    def build(known: Known) -> bytes:
        producer: dict[str, Any] = {}
        if who:
            producer_id = known.get("producer", 4_000) if who == "known" else 5_000
            producer = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        batch = encode_batch(records, codec=codec, **producer)
        if not how:
            return batch
        broken = Broken(_BREAKS[how](bytearray(batch)))
        broken.how = how
        return broken

    return build


def produce(draw: Draw) -> Step:
    """Write to some places; what is broken mostly goes alone."""
    how = draw.pick(*_BREAKS) if draw.chance(0.25) else ""
    places = [(draw.pick(*topics(draw)), [0])] if how and draw.chance(0.9) else _places(draw)
    plans = [
        (name, partition, _batch(draw, how if not place else ""))
        for place, (name, partitions) in enumerate(places)
        for partition in partitions
    ]
    acks = draw.usual(-1, 1, 0, 2, -2, of=0.8)

    def build(known: Known) -> t.ProduceRequest:
        topics = [
            t.ProduceRequestTopicProduceData(
                name=name,
                partition_data=[t.ProduceRequestPartitionProduceData(index=partition, records=batch(known))],
            )
            for name, partition, batch in plans
        ]
        return t.ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=topics)

    return draw.step(t.ProduceRequest, build, is_answered=acks != 0)


def init_producer(draw: Draw) -> Step:
    def learn(response: Any, known: Known) -> None:
        if response.error_code == 0:
            known["producer"] = known[f"producer {len(known)}"] = response.producer_id

    request = t.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    return draw.step(t.InitProducerIdRequest, lambda _: request, learn)


def fetch(draw: Draw) -> Step:
    plans = [
        (
            name,
            partition,
            draw.usual(0, 1, 2, 5, 100, -1, of=0.5),
            draw.usual(-1, 0, 1, 5),
            draw.usual(-1, 0, 1, of=0.8),
            draw.usual(1_000_000, 0, 1, 100),
        )
        for name, partitions in _places(draw)
        for partition in partitions
    ]
    # The session -2 is the one that the last answer has made.
    session = draw.usual((0, -1), (0, 0), (-2, 1), (-2, 2), (77, 1), (-2, -1), of=0.5)
    limits = (draw.usual(0, 5, of=0.9), draw.usual(0, 1, 1_000), draw.usual(1 << 20, 1, 100, 0))
    isolation = draw.pick(0, 1)
    replica = draw.usual(-1, -2, 1, 9, of=0.95)
    forgotten, is_same = draw.chance(0.1), draw.chance(0.5)

    def build(known: Known) -> t.FetchRequest:
        parts = [
            t.FetchRequestFetchTopic(
                topic=name,
                topic_id=known.get(f"topic {name}", UNKNOWN_ID),
                partitions=[
                    t.FetchRequestFetchPartition(
                        partition=partition,
                        fetch_offset=offset,
                        current_leader_epoch=epoch,
                        last_fetched_epoch=last_epoch,
                        partition_max_bytes=size,
                    )
                ],
            )
            for name, partition, offset, epoch, last_epoch, size in plans
        ]
        name = plans[0][0]
        return t.FetchRequest(
            replica_id=replica,
            max_wait_ms=limits[0],
            min_bytes=limits[1],
            max_bytes=limits[2],
            isolation_level=isolation,
            session_id=known.get("session", 0) if session[0] == -2 else session[0],
            session_epoch=session[1],
            topics=[] if session[1] > 0 and is_same else parts,
            forgotten_topics_data=[
                t.FetchRequestForgottenTopic(
                    topic=name, topic_id=known.get(f"topic {name}", bytes(16)), partitions=[0]
                )
            ]
            if forgotten
            else [],
        )

    def learn(response: Any, known: Known) -> None:
        if response.session_id:
            known["session"] = response.session_id

    return draw.step(t.FetchRequest, build, learn)


def list_offsets(draw: Draw) -> Step:
    replica, isolation = draw.usual(-1, -2, 1, of=0.9), draw.pick(0, 1)
    topics = [
        t.ListOffsetsRequestListOffsetsTopic(
            name=name,
            partitions=[
                t.ListOffsetsRequestListOffsetsPartition(
                    partition_index=partition,
                    current_leader_epoch=draw.usual(-1, 0, 1, 5),
                    timestamp=draw.pick(-1, -2, -3, -4, -5, -6, 0, BASE_MS, BASE_MS + 5, BASE_MS + 60),
                )
                for partition in partitions
            ],
        )
        for name, partitions in _places(draw)
    ]
    request = t.ListOffsetsRequest(replica_id=replica, isolation_level=isolation, topics=topics)
    return draw.step(t.ListOffsetsRequest, lambda _: request)


def epoch_end(draw: Draw) -> Step:
    topics = [
        t.OffsetForLeaderEpochRequestOffsetForLeaderTopic(
            topic=name,
            partitions=[
                t.OffsetForLeaderEpochRequestOffsetForLeaderPartition(
                    partition=partition,
                    current_leader_epoch=draw.usual(-1, 0, 1, of=0.5),
                    leader_epoch=draw.pick(0, 1, -1, 5, -2),
                )
                for partition in partitions
            ],
        )
        for name, partitions in _places(draw)
    ]
    request = t.OffsetForLeaderEpochRequest(replica_id=draw.usual(-1, -2, 9), topics=topics)
    return draw.step(t.OffsetForLeaderEpochRequest, lambda _: request)


def delete_records(draw: Draw) -> Step:
    topics = [
        t.DeleteRecordsRequestDeleteRecordsTopic(
            name=name,
            partitions=[
                t.DeleteRecordsRequestDeleteRecordsPartition(
                    partition_index=partition, offset=draw.pick(-1, 0, 1, 2, 50, -2)
                )
                for partition in partitions
            ],
        )
        for name, partitions in _places(draw)
    ]
    request = t.DeleteRecordsRequest(topics=topics, timeout_ms=5_000)
    return draw.step(t.DeleteRecordsRequest, lambda _: request)


STEPS: Final = (
    *(produce, produce, produce, fetch, fetch, list_offsets, list_offsets),
    *(epoch_end, delete_records, init_producer),
)


def story(draw: Draw) -> list[Step]:
    """Draw a story of records."""
    steps = [creation(draw)] + ([init_producer(draw)] if draw.chance(0.5) else [])
    return steps + [draw.pick(*STEPS)(draw) for _ in range(draw.number(2, 10))]

"""Partitions for records, chosen as Kafka's own producers do. Pure.

    with a key      murmur2 of the key, modulo the number of partitions: the same key, the same partition,
                    from any client, as long as the number of partitions stays
    without         a partition that has a leader, the next one for each call

Producers on librdkafka place keys by CRC-32 unless they set `partitioner=murmur2_random`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from logstore.broker.cluster_view import Topic
from logstore.broker.errors import RequestRefused
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition

_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash, unsigned; Kafka's is the same number, signed."""
    length = len(data)
    result = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k ^= k >> 24
        result = (result * _M ^ k * _M) & _MASK
    if whole < length:
        result = (result ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    result = (result ^ result >> 13) * _M & _MASK
    return result ^ result >> 15


def partition_of_key(key: bytes, count: int) -> int:
    """Return the partition of a key among `count`."""
    return (murmur2(key) & 0x7FFFFFFF) % count


def partition_of_call(call: int, with_leader: Sequence[int], count: int) -> int:
    """Return the partition for keyless records of the `call`th call; any partition if none has a leader."""
    return with_leader[call % len(with_leader)] if with_leader else call % count


def placed(
    topic: str, keys: Sequence[bytes | None], partition: int | None, known: Topic, call: int
) -> dict[TopicPartition, Sequence[int]]:
    """Return the numbers of the records, in their order, that go to each partition.

    All go to `partition` if it is given. Raises `RequestRefused` if there is no such partition.
    """
    if partition is not None:
        if not 0 <= partition < known.partitions:
            why = f"{topic} has no partition {partition}; it has {known.partitions}, from 0 on"
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)
        return {TopicPartition(topic, partition): range(len(keys))}
    keyless = partition_of_call(call, known.with_leader, known.partitions)
    chosen: dict[int, list[int]] = {}
    for number, key in enumerate(keys):
        place = keyless if key is None else partition_of_key(key, known.partitions)
        chosen.setdefault(place, []).append(number)
    return {TopicPartition(topic, place): numbers for place, numbers in chosen.items()}

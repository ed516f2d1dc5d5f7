"""The messages about transactions: aborted ones in a fetch, and markers to write; see `messages.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.record import EndTransactionMarker


class Aborted(NamedTuple):
    """An aborted transaction: readers skip its data from `first_offset` to the marker."""

    producer_id: int
    first_offset: int


class ProducerMarker(NamedTuple):
    """The end of a producer's transaction in one partition; id and epoch are not negative."""

    producer_id: int
    producer_epoch: int
    marker: EndTransactionMarker


class WriteTxnMarkersRequest(NamedTuple):
    """Append these markers; answered once all in-sync replicas have them."""

    partitions: Mapping[TopicPartition, tuple[ProducerMarker, ...]]
    timeout_ms: int


class WriteTxnMarkersResponse(NamedTuple):
    """An error code for each marker of the request, in its order."""

    partitions: Mapping[TopicPartition, tuple[ErrorCode, ...]]

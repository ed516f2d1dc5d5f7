"""Counters of a broker's requests and records, for its metrics. Counting costs a few additions a partition.

Counters by topic exist only for topics that exist: names that clients make up are not kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Final

from logstore.disk.clocks import steady_s
from logstore.disk.errors import ErrorCode
from logstore.disk.files import Buffer

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram of request times."""

ROUTINE_ERRORS: Final = frozenset(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""What clients get during elections, or by their own mistake. As in Kafka, these are no failed requests."""

RECORD_COUNT: Final = Struct(">57xi")
"""The number of records in a batch's header."""


class Traffic:
    """Counters of the requests and records of a broker. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.errors: Counter[tuple[str, str]] = Counter()
        """by request and Kafka's name of the error"""
        self.bytes_in: Counter[str] = Counter()
        """by topic: bytes of batches that clients produced"""
        self.messages_in: Counter[str] = Counter()
        """by topic: records in these batches"""
        self.bytes_out: Counter[str] = Counter()
        """by topic: bytes of batches that consumers fetched"""
        self.produces: Counter[str] = Counter()
        """by topic: partitions in answered produce requests"""
        self.failed_produces: Counter[str] = Counter()
        """by topic: those of them that failed, but for `ROUTINE_ERRORS`"""
        self.fetches: Counter[str] = Counter()
        """by topic: partitions in answers to fetches of consumers and followers"""
        self.failed_fetches: Counter[str] = Counter()
        """by topic: those of them that failed, but for `ROUTINE_ERRORS`"""
        self.replication_bytes_out = 0
        self._times: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def forget(self, topics: Iterable[str]) -> None:
        """Drop the counters of deleted topics, as Kafka does."""
        for topic in topics:
            for counter in (
                self.bytes_in,
                self.messages_in,
                self.bytes_out,
                self.produces,
                self.failed_produces,
                self.fetches,
                self.failed_fetches,
            ):
                counter.pop(topic, None)

    def produced(
        self, topic: str, error: ErrorCode, records: Buffer | None = None, *, is_known: bool = True
    ) -> None:
        """Count a partition of a produce request; `records` is its batch, `is_known` whether the topic is."""
        if error is not ErrorCode.NONE:
            self.errors["Produce", error.name] += 1
            if is_known:
                self.produces[topic] += 1
                self.failed_produces[topic] += error not in ROUTINE_ERRORS
            return
        self.produces[topic] += 1
        if records is not None:
            self.bytes_in[topic] += len(records)
            self.messages_in[topic] += RECORD_COUNT.unpack_from(records)[0]

    def fetched(
        self, topic: str, error: ErrorCode, size: int = 0, *, is_follower: bool = False, is_known: bool = True
    ) -> None:
        """Count a partition in the answer to a fetch, with `size` bytes of batches; `is_known` as above."""
        if error is not ErrorCode.NONE:
            self.errors["Fetch", error.name] += 1
            if is_known:
                self.fetches[topic] += 1
                self.failed_fetches[topic] += error not in ROUTINE_ERRORS
            return
        self.fetches[topic] += 1
        if is_follower:
            self.replication_bytes_out += size
        elif size:
            self.bytes_out[topic] += size

    def timing(self, request: str) -> Callable[[], None]:
        """Start a timer; call the result when the request has been answered.

        The loop's clock will not do: uvloop's counts whole milliseconds, and most requests take less than
        one.
        """
        started_s = steady_s()
        return lambda: self.answered(request, steady_s() - started_s)

    def answered(self, request: str, seconds: float) -> None:
        """Count a request, answered `seconds` after its last byte arrived."""
        buckets = self._times.get(request)
        if buckets is None:
            buckets = self._times[request] = [0] * (len(BOUNDS_S) + 1)
        buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self._seconds[request] = self._seconds.get(request, 0.0) + seconds

    def times(self) -> Iterator[tuple[str, list[int], float]]:
        """Yield each request's name, its count in each bucket (the last: above all bounds), total seconds."""
        for request, buckets in sorted(self._times.items()):
            yield request, buckets, self._seconds[request]

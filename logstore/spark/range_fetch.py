"""The rows of one range, from whoever leads the partition.

    task's thread     ask for A │ wait │ decode A, give rows │ decode B, give rows │ …
    client's thread              A ════╪═ B ═════════════════╪═ C ═════════════════╪═ …

The next megabytes come while the last ones are decoded; one fetch is under way at a time. Nothing is passed
over because an answer is empty: after a failover the new leader's high watermark is behind for a while, so it
is asked again until `kafkaConsumer.pollTimeoutMs` are over. What is gone is told by refusals:

    offset below the log start       EXPIRED, up to the log start
    end of the range past the log    TRUNCATED, from the last record there is
    no such partition any more       EXPIRED, all that is left
    the same bytes wrong twice       DAMAGED, their batch (or all that is left, if its header says nothing)
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from logstore.broker.client import Client
from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.columnar.columnar import decode
from logstore.disk.errors import ErrorCode
from logstore.format.batch import CONTROL, HEADER_BYTES
from logstore.format.record import MAX_LONG
from logstore.replication.messages import Aborted, FetchResult
from logstore.segment.scan import HEADER_DTYPE, Fault, scan_buffer
from logstore.segment.transaction_index import AbortedTransaction
from logstore.spark.client_thread import ClientThread
from logstore.spark.counting import Count
from logstore.spark.logs import Bounds, Cause, Headers, Missing, OffsetRange

FIRST_FETCH_BYTES: Final = 1 << 20
"""Little, for nobody knows yet how large a range is in bytes."""
_SMALLEST_FETCH_BYTES: Final = 1 << 16

Fetch = Callable[[Client, int, int], Coroutine[Any, Any, FetchResult]]
"""A fetch of the partition from an offset on, of about so many bytes. Raises as `Client.fetch`."""


class RangeFetch:
    """Reads `wanted` once; what gives no rows is added to `missing`."""

    def __init__(
        self,
        client: ClientThread,
        fetch: Fetch,
        bounds: Callable[[], Bounds],
        wanted: OffsetRange,
        missing: list[Missing],
        *,
        fetch_bytes: int,
        poll_timeout_s: float,
        clock_s: Callable[[], float],
        on_batches: Callable[[Headers], None] | None = None,
    ) -> None:
        """`bounds` asks what can be read of the partition now; `fetch_bytes` bound a fetch."""
        self._client, self._fetch, self._bounds = client, fetch, bounds
        self._wanted, self._missing = wanted, missing
        self._count, self._on_batches = Count(wanted), on_batches
        self._position = wanted.start_offset
        self._max_bytes = fetch_bytes
        self._bytes = min(FIRST_FETCH_BYTES, fetch_bytes)
        self._ahead: Future[FetchResult] | None = None
        self._patience_s, self._clock_s = poll_timeout_s, clock_s
        self._moved_s = clock_s()
        self._suspect: bytes | None = None
        """the header of the batch at the position that was wrong when it was fetched last"""

    def rows(self, columns: Sequence[str]) -> Iterator[Any]:
        """As `Logs.read`. Raises the client's last `EngineError` when patience is over."""
        try:
            while self._position < self._wanted.end_offset:
                before = self._position
                try:
                    answer = self._answer()
                except RequestRefused as error:
                    self._refused(error)
                else:
                    yield from self._taken(answer, columns)
                if self._position == before:
                    self._check_patience()
        finally:
            if self._ahead is not None:
                self._ahead.cancel()
        self._missing.extend(self._count.missing())

    # --- what came ------------------------------------------------------------------------------------------

    def _answer(self) -> FetchResult:
        ahead, self._ahead = self._ahead, None
        return (ahead or self._begun(self._position)).result()

    def _begun(self, offset: int) -> Future[FetchResult]:
        return self._client.start(lambda client: self._fetch(client, offset, self._bytes))

    def _taken(self, answer: FetchResult, columns: Sequence[str]) -> Iterator[Any]:
        found = scan_buffer(answer.records, len(answer.records))
        if not found.end:
            self._nothing_whole(answer, found.fault)
            return
        after = max(int(found.last_offsets[-1]) + 1, self._position)
        if after < self._wanted.end_offset:
            self._bytes = self._worth_asking(after, found.end)
            self._ahead = self._begun(after)
        aborted = aborted_spans(answer.aborted or (), found.headers)
        rows = 0
        for batch in decode(
            memoryview(answer.records)[: found.end],
            columns=columns,
            start_offset=self._position,
            end_offset=self._wanted.end_offset,
            aborted=aborted,
        ):
            rows += batch.num_rows
            yield batch
        self._count.add(found.headers, rows, aborted)
        if self._on_batches is not None:
            self._on_batches(found.headers)
        self._move(after)

    def _worth_asking(self, after: int, size: int) -> int:
        """About as many bytes as the rest of the range has, if it goes on like this."""
        per_offset = size / max(after - self._position, 1)
        rest = int((self._wanted.end_offset - after) * per_offset * 1.1) + _SMALLEST_FETCH_BYTES
        return min(max(rest, _SMALLEST_FETCH_BYTES), self._max_bytes, 8 * self._bytes)

    def _move(self, position: int) -> None:
        self._position = position
        self._moved_s = self._clock_s()
        self._suspect = None

    # --- what did not come ----------------------------------------------------------------------------------

    def _nothing_whole(self, answer: FetchResult, fault: Fault | None) -> None:
        """Nothing that can be read at the position: ask again, or find that it will not come."""
        records = answer.records
        if len(records) and fault is not Fault.TORN:
            header = bytes(records[:HEADER_BYTES])
            if header == self._suspect:
                self._lose(_end_of(header, self._position, self._wanted.end_offset), Cause.DAMAGED)
            self._suspect = header
            return
        if len(records):
            self._bytes = min(8 * self._bytes, (1 << 31) - 1)  # a broker that cuts even the first batch
        elif self._is_cut_off():
            self._lose(self._wanted.end_offset, Cause.TRUNCATED)

    def _check_patience(self) -> None:
        if self._clock_s() - self._moved_s > self._patience_s:
            raise RequestUnanswered(
                f"{self._wanted.topic_partition}: nothing came from offset {self._position} on in "
                f"{self._patience_s:g} s, and {self._wanted.end_offset} was its end when this was planned; "
                "see whether its replicas are in sync, or give kafkaConsumer.pollTimeoutMs more time"
            )

    def _is_cut_off(self) -> bool:
        """Whether the log ends below the range, so that nothing will come."""
        end_offset = self._wanted.end_offset
        try:
            self._client.wait(lambda client: self._fetch(client, end_offset, 1))
        except RequestRefused as error:
            return error.error is ErrorCode.OFFSET_OUT_OF_RANGE
        return False

    def _refused(self, error: RequestRefused) -> None:
        """Find out what is lost. Raises `error` for what is none of that."""
        match error.error:
            case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._lose(self._wanted.end_offset, Cause.EXPIRED, "the partition is not there any more")
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                bounds = self._bounds()
                if self._position < bounds.start_offset:
                    self._lose(min(bounds.start_offset, self._wanted.end_offset), Cause.EXPIRED)
                elif self._position > bounds.end_offset:
                    detail = f"the log ends at {bounds.end_offset}"
                    self._lose(self._wanted.end_offset, Cause.TRUNCATED, detail)
                # Else somebody else leads by now, who has it.
            case _:
                raise error

    def _lose(self, until: int, cause: Cause, detail: str = "") -> None:
        topic, partition = self._wanted.topic_partition
        self._missing.append(Missing(topic, partition, self._position, until, cause, detail))
        self._count.skip_to(until)
        self._move(until)


def _end_of(header: bytes, position: int, end: int) -> int:
    """Where a damaged batch ends, if what its header says of that can be."""
    fields = np.frombuffer(header.ljust(HEADER_BYTES, b"\0"), HEADER_DTYPE)[0]
    after = int(fields["base_offset"]) + int(fields["last_offset_delta"]) + 1
    return after if position < after < end else end


def aborted_spans(aborted: Sequence[Aborted], headers: npt.NDArray[np.void]) -> list[AbortedTransaction]:
    """The aborted transactions of an answer, each up to its marker; those that have none here go on.

    Transactions of a producer follow one another: the first marker behind a transaction's begin is its own.
    """
    if not aborted:
        return []
    markers = headers[headers["attributes"] & CONTROL != 0]
    bases = markers["base_offset"].astype(np.int64)
    spans = []
    for each in aborted:
        ends = bases[(markers["producer_id"] == each.producer_id) & (bases > each.first_offset)]
        last_offset = int(ends[0]) if len(ends) else MAX_LONG
        spans.append(AbortedTransaction(each.producer_id, each.first_offset, last_offset, last_offset))
    return spans

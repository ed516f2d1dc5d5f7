"""Idempotent writes to one partition: no gaps and no duplicates, across failovers.

    append, append, … ─▶ queue ─▶ one batch in flight, the same bytes at every attempt ─▶ leader

A batch carries the producer id and a sequence number, so every leader recognises a duplicate. One batch is in
flight at a time, which keeps the order of calls; records that arrive meanwhile form the next batch.

If the fate of a batch is unknown at the deadline, the producer takes a new id: the old sequence may have a
gap. It does the same when a leader no longer knows the sequence (it lost a batch acknowledged with acks=1,
or expired an idle producer). The batch is then not in the leader's log, because it would be the last one
there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from logstore.arguments import as_offset
from logstore.broker.errors import SEQUENCE_LOST, RequestRefused, RequestUnanswered
from logstore.broker.placement import placed
from logstore.config import MAX_LONG
from logstore.disk.errors import EngineError
from logstore.disk.files import wall_clock_ms
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import NO_TIMESTAMP, Record, data_of, headers_of
from logstore.replication.durability import Durability
from logstore.replication.messages import ProduceResult

if TYPE_CHECKING:
    from logstore.broker.client import Client
    from logstore.broker.cluster_view import ClusterView

Appendable: TypeAlias = bytes | tuple[bytes | None, bytes | None] | Record
"""A value; a (key, value) pair; or a record, whose offset is ignored and whose timestamp -1 means now."""

_ACKS_ALL: Final = -1
_LAST_SEQUENCE: Final = 2**31
_BATCH_BYTES: Final = 512 << 10
_RECORD_BYTES: Final = 24
"""The most that a record takes beside key, value and headers."""
_LAST_WORD_S: Final = 0.2
_PLAIN: Final = frozenset({bytes, type(None)})


class Appended(NamedTuple):
    """The place of a written record; the offset is -1 with acks=0, which has no response.

    `durability` is the level that acks=all reached; None for other values of acks.
    """

    topic: str
    partition: int
    offset: int
    durability: Durability | None


class Producer:
    """Writes numbered batches to one partition, one at a time."""

    def __init__(
        self,
        client: Client,
        topic_partition: TopicPartition,
        *,
        producer_id: int | None = None,
        producer_epoch: int = 0,
    ) -> None:
        """`producer_id` must be unique in the partition; by default the cluster assigns one."""
        self._client, self._topic_partition = client, topic_partition
        self._producer_id, self._producer_epoch = producer_id, producer_epoch
        self._may_renew = producer_id is None
        self._next_sequence = 0

    async def send(
        self, values: Sequence[bytes], *, acks: int = _ACKS_ALL, timestamp_ms: int | None = None
    ) -> int:
        """Append one record for each value, in order; return the first offset. The timestamp defaults to now.

        Raises as `Client.produce`. With a given producer id, send the same values again or stop: any other
        values would leave a gap in the sequence.
        """
        time_ms = wall_clock_ms() if timestamp_ms is None else timestamp_ms
        records = [Record(number, time_ms, None, value) for number, value in enumerate(values)]
        return (await self.send_records(records, acks=acks)).base_offset

    async def send_records(
        self, records: Sequence[Record], *, acks: int = _ACKS_ALL, timeout: float | None = None
    ) -> ProduceResult:
        """Append one batch, whose record offsets count from 0. Raises as `Client.produce`.

        With acks=0 it is sent once and without a sequence number: a gap could not be detected.
        """
        if acks == 0:
            batch = encode_batch(records)
            return await self._client.produce(self._topic_partition, batch, acks=acks, timeout=timeout)
        while True:
            if self._producer_id is None:
                self._producer_id = await self._client.producer_id(timeout=timeout)
                self._next_sequence = 0
            batch = encode_batch(
                records,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=self._next_sequence,
            )
            is_first = self._next_sequence == 0
            try:
                result = await self._client.produce(self._topic_partition, batch, acks=acks, timeout=timeout)
            except RequestRefused as refusal:
                if self._may_renew and not is_first and refusal.error in SEQUENCE_LOST:
                    self._producer_id = None
                    continue
                if refusal.is_passing:
                    self._give_up()
                raise
            except BaseException:
                self._give_up()
                raise
            self._next_sequence = (self._next_sequence + len(records)) % _LAST_SEQUENCE
            return result

    def _give_up(self) -> None:
        if self._may_renew:
            self._producer_id = None


@dataclass(slots=True, eq=False)
class _Waiting:
    records: Sequence[Record]
    size: int
    acks: int
    deadline: float
    done: asyncio.Future[tuple[int, ProduceResult]]
    """The first record's offset, and the result."""


class Appender:
    """Appends the records of many calls to one partition, in the order of the calls."""

    def __init__(self, client: Client, topic_partition: TopicPartition) -> None:
        self._producer = Producer(client, topic_partition)
        self._topic_partition = topic_partition
        self._queue: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    async def append(self, piece: Piece, acks: int, deadline: float) -> list[Appended]:
        """Append a piece; raises as `Client.append`. Records past their deadline are not sent."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(piece.records, piece.size, acks, deadline, loop.create_future())
        self._queue.append(waiting)
        if self._task is None:
            self._task = loop.create_task(self._run())
        try:
            # The batch in flight has its own deadline, and its error is more precise than a timeout here.
            async with asyncio.timeout_at(deadline + _LAST_WORD_S):
                first, result = await waiting.done
        except TimeoutError:
            raise RequestUnanswered(f"{self._topic_partition} did not accept the records in time") from None
        topic, partition = self._topic_partition
        count = len(piece.records)
        offsets = range(first, first + count) if first >= 0 else [-1] * count
        return [Appended(topic, partition, offset, result.durability) for offset in offsets]

    async def finished(self) -> None:
        """Wait until no batch is in flight: the client was closed."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while together := self._next():
                await self._send(together)
        finally:
            self._task = None
            _fail(self._queue, RequestUnanswered("the append was cancelled"))  # usually empty
            self._queue.clear()

    def _next(self) -> list[_Waiting]:
        """Take the records of the next batch: the same acks, within the size of a batch."""
        together: list[_Waiting] = []
        size = 0
        while self._queue:
            first = self._queue[0]
            if not first.done.done():
                size += first.size
                if together and (size > _BATCH_BYTES or first.acks != together[0].acks):
                    break
                together.append(first)
            self._queue.popleft()
        return together

    async def _send(self, together: list[_Waiting]) -> None:
        rows = [record for each in together for record in each.records]
        left = max(each.deadline for each in together) - asyncio.get_running_loop().time()
        try:
            result = await self._producer.send_records(
                [Record._make((number, *record[1:])) for number, record in enumerate(rows)],
                acks=together[0].acks,
                timeout=max(left, 0.0),
            )
        except RequestRefused as refusal:
            if refusal.is_passing or len(together) == 1:
                _fail(together, refusal)
                return
            for each in together:  # only the faulty call fails
                await self._send([each])
        except EngineError as error:
            _fail(together, error)
        except Exception as error:  # too little memory, or a bug
            failure = RequestUnanswered(f"the append failed, and its records may be in the log: {error!r}")
            failure.__cause__ = error
            _fail(together, failure)
        except BaseException as error:
            _fail(together, RequestUnanswered(f"the append was cancelled: {error!r}"))
            raise
        else:
            first = result.base_offset
            for each in together:
                if not each.done.done():
                    each.done.set_result((first, result))
                first += len(each.records) if first >= 0 else 0


class Appenders:
    """The appenders of a client's partitions; places the records of each call among them."""

    def __init__(self, client: Client, cluster: ClusterView) -> None:
        self._client, self._cluster = client, cluster
        self._of: dict[TopicPartition, Appender] = {}
        self._calls = 0

    async def append(
        self,
        topic: str,
        rows: Sequence[Record],
        partition: int | None,
        acks: int,
        until: Callable[[], float],
        *,
        is_one: bool,
    ) -> Appended | list[Appended]:
        """Append the records of one call; `until` gives its deadline. Raises as `Client.append`."""
        deadline = until()
        known = await self._cluster.topic(topic, deadline)
        self._calls += 1
        chosen = placed(topic, [row.key for row in rows], partition, known, self._calls)
        pieces = [(where, piece) for where, numbers in chosen.items() for piece in split(numbers, rows)]
        self._of |= {where: Appender(self._client, where) for where in chosen.keys() - self._of.keys()}
        works = [self._of[where].append(piece, acks, deadline) for where, piece in pieces]
        found: dict[int, Appended] = {}
        if len(works) == 1:  # as a rule; a task more is a tenth of the time of a call
            results: list[Any] = [await works[0]]
        else:
            results = await asyncio.gather(*works, return_exceptions=True)
        for (_, piece), result in zip(pieces, results, strict=True):
            if isinstance(result, BaseException):
                raise result
            found.update(zip(piece.numbers, result, strict=True))
        return found[0] if is_one else [found[number] for number in range(len(rows))]

    async def finished(self) -> None:
        """Wait until no batch is in flight: the client was closed."""
        for appender in self._of.values():
            await appender.finished()


def _fail(together: Iterable[_Waiting], error: EngineError) -> None:
    for each in together:
        if not each.done.done():
            each.done.set_exception(error)


# --- records ----------------------------------------------------------------------------------


def is_one_record(given: object) -> bool:
    """Return whether the argument of `append` is one record; otherwise it is an iterable of them.

    A tuple is one record, its key and its value, as for `Log.append`.
    """
    return given is None or isinstance(given, bytes | bytearray | memoryview | tuple)


def records_of(
    given: Appendable | Iterable[Appendable] | None,
    key: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    now_ms: int,
) -> list[Record]:
    """Return the arguments of `append` as records. Raises `TypeError`, and `ValueError` for a timestamp."""
    if given is None or isinstance(given, bytes | bytearray | memoryview):
        value = None if given is None else bytes(given)
        return [Record(0, now_ms, data_of(key), value, headers_of(headers))]
    if key is not None or headers:
        raise ValueError("key and headers are for a single value; give each of many records its own")
    if isinstance(given, tuple):
        return [_record_of(given, now_ms)]
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise _not_appendable(given)
    return [_record_of(each, now_ms) for each in given]


def _record_of(given: object, now_ms: int) -> Record:
    match given:
        case Record():
            return _checked(given, now_ms)
        case (key, value) if isinstance(given, tuple):
            return Record(0, now_ms, data_of(key), data_of(value))
        case bytes() | bytearray() | memoryview():
            return Record(0, now_ms, None, bytes(given))
    raise _not_appendable(given)


def _checked(record: Record, now_ms: int) -> Record:
    """Return a record whose parts can be encoded, with its time."""
    _, timestamp_ms, key, value, headers, _ = record
    time_ms = as_offset(timestamp_ms, "a record's timestamp_ms")
    if not NO_TIMESTAMP <= time_ms <= MAX_LONG:
        raise ValueError(f"a record's timestamp_ms is {time_ms}; it is 0 to {MAX_LONG}, or -1 for now")
    if time_ms == NO_TIMESTAMP:
        record = record._replace(timestamp_ms=now_ms)
    if headers or not (type(key) in _PLAIN and type(value) in _PLAIN):
        record = record._replace(key=data_of(key), value=data_of(value), headers=headers_of(headers))
    return record


def _not_appendable(given: object) -> TypeError:
    return TypeError(
        f"{type(given).__name__} is not a value (bytes), a (key, value) pair or a Record; encode it, as in "
        "'text'.encode(), and give many records as a list"
    )


class Piece(NamedTuple):
    """The part of a call that goes into one batch: record numbers, records, and an upper bound of bytes."""

    numbers: Sequence[int]
    records: Sequence[Record]
    size: int


def split(numbers: Iterable[int], rows: Sequence[Record]) -> Iterator[Piece]:
    """Split the records for one partition into pieces that fit a batch."""
    taken: list[int] = []
    size = 0
    for number in numbers:
        _, _, key, value, headers, _ = rows[number]
        more = _RECORD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
        if headers:
            more += sum(len(name) * 3 + len(each or b"") + 10 for name, each in headers)
        if taken and size + more > _BATCH_BYTES:
            yield Piece(taken, [rows[each] for each in taken], size)
            taken, size = [], 0
        taken.append(number)
        size += more
    if taken:
        yield Piece(taken, [rows[each] for each in taken], size)

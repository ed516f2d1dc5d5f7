"""Stories of transactions in a log: batches, markers, and what readers of committed data get.

There is no transaction coordinator here: producers name their ids and epochs themselves, and the story writes
the markers (`with_transactions.py`). Not drawn: markers of a negative id or epoch, for which Kafka fails with
UNKNOWN_SERVER_ERROR (-1), two markers of one producer, of which Kafka answers one, and an unknown topic in
one of several markers, which Kafka may never answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from logstore.broker.wire import types as t
from logstore.format.batch import encode_batch
from logstore.format.compression import Codec
from logstore.format.record import Record
from tests.wire_judge.records import BASE_MS, creation, delete_records, epoch_end, topics
from tests.wire_judge.stories import Draw, Known, Step

_PRODUCERS: Final = (7_000_000, 7_000_001, 7_000_002)
_TIMEOUTS: Final = (60_000, 0, -1, 900_001, 1)


class Tally:
    """What the story's producers have most likely written: the next epoch and sequence of each."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, int], tuple[int, int]] = {}

    def of(self, topic: str, producer: int) -> tuple[int, int]:
        return self._next.get((topic, producer), (0, 0))

    def wrote(self, topic: str, producer: int, epoch: int, records: int) -> None:
        then, sequence = self.of(topic, producer)
        if epoch >= then:
            self._next[topic, producer] = epoch, (sequence if epoch == then else 0) + records


def _topic(draw: Draw) -> str:
    return draw.usual(*topics(draw), of=0.85)


def produce(draw: Draw, tally: Tally) -> Step:
    """Write a batch, mostly the next one of a transaction; now and then again, too early or fenced."""
    name, producer = _topic(draw), draw.usual(*_PRODUCERS)
    epoch, sequence = tally.of(name, producer)
    how = draw.usual("", "again", "gap", "older", "newer", "newer at 3", "from 0", of=0.8)
    count = draw.number(1, 3)
    if how == "again":
        sequence -= min(count, sequence)
    elif how == "older":
        epoch = max(0, epoch - 1)
    elif how.startswith("newer"):
        epoch, sequence = epoch + 1, 3 if how == "newer at 3" else 0
    sequence = 0 if how == "from 0" else sequence + 2 * (how == "gap")
    if how in ("", "newer"):
        tally.wrote(name, producer, epoch, count)
    is_transactional, codec = draw.usual(True, False, of=0.85), draw.usual(Codec.NONE, Codec.GZIP)
    records = [
        Record(each, BASE_MS + draw.number(-9, 9), draw.pick(b"key", None), b"value %d" % each)
        for each in range(count)
    ]
    batch = encode_batch(
        records,
        codec=codec,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )
    part = t.ProduceRequestPartitionProduceData(index=0, records=batch)
    request = t.ProduceRequest(
        transactional_id=draw.name("tx") if is_transactional else draw.usual(None, draw.name("tx")),
        acks=draw.usual(-1, 1, 0, of=0.9),
        timeout_ms=5_000,
        topic_data=[t.ProduceRequestTopicProduceData(name=name, partition_data=[part])],
    )
    return draw.step(t.ProduceRequest, lambda _: request, is_answered=request.acks != 0)


def markers(draw: Draw, tally: Tally) -> Step:
    """End transactions, mostly one; now and then of a fenced or future producer, or nobody's."""
    made = []
    producers = draw.some(_PRODUCERS, draw.usual(1, 2))
    for producer in producers:
        unknown = [draw.name("nowhere")] if len(producers) == 1 and draw.chance(0.1) else []
        names = draw.some([*topics(draw), *unknown], 2)
        epoch = max(0, tally.of(names[0], producer)[0] + draw.usual(0, 1, -1, 5, of=0.85))
        made.append(
            t.WriteTxnMarkersRequestWritableTxnMarker(
                producer_id=producer,
                producer_epoch=epoch,
                transaction_result=draw.chance(0.5),
                coordinator_epoch=draw.usual(0, 1, 2, -1, of=0.7),
                topics=[
                    t.WriteTxnMarkersRequestWritableTxnMarkerTopic(
                        name=name, partition_indexes=draw.usual([0], [0, 9], of=0.9)
                    )
                    for name in names
                ],
            )
        )
        for name in names:
            tally.wrote(name, producer, epoch, 0)
    request = t.WriteTxnMarkersRequest(markers=made)
    return draw.step(t.WriteTxnMarkersRequest, lambda _: request)


def fetch(draw: Draw, _tally: Tally) -> Step:
    name = _topic(draw)
    request = t.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=draw.usual(1, 0, of=0.8),
        session_epoch=-1,
        topics=[
            t.FetchRequestFetchTopic(
                topic=name,
                partitions=[
                    t.FetchRequestFetchPartition(
                        partition=0,
                        fetch_offset=draw.usual(0, 1, 2, 3, 5, 8, of=0.5),
                        partition_max_bytes=draw.usual(1 << 20, 1, 150),
                    )
                ],
            )
        ],
    )

    def build(known: Known) -> t.FetchRequest:
        request.topics[0].topic_id = known.get(f"topic {name}", bytes(16))
        return request

    return draw.step(t.FetchRequest, build)


def list_offsets(draw: Draw, _tally: Tally) -> Step:
    part = t.ListOffsetsRequestListOffsetsPartition(
        partition_index=0, timestamp=draw.pick(-1, -1, -2, -3, BASE_MS - 3, BASE_MS + 5)
    )
    request = t.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=draw.usual(1, 0),
        topics=[t.ListOffsetsRequestListOffsetsTopic(name=_topic(draw), partitions=[part])],
    )
    return draw.step(t.ListOffsetsRequest, lambda _: request)


def describe_producers(draw: Draw, _tally: Tally) -> Step:
    topic = t.DescribeProducersRequestTopicRequest(name=_topic(draw), partition_indexes=[0])
    return draw.step(t.DescribeProducersRequest, lambda _: t.DescribeProducersRequest(topics=[topic]))


def begin(draw: Draw, _tally: Tally) -> Step:
    """Ask for the id of a transactional producer; nobody coordinates one here."""
    producer = draw.usual((-1, -1), (5, 0), (5, -1), (-1, 0), of=0.7)
    request = t.InitProducerIdRequest(
        transactional_id=draw.usual(draw.name("tx"), "", of=0.8),
        transaction_timeout_ms=draw.usual(*_TIMEOUTS),
        producer_id=producer[0],
        producer_epoch=producer[1],
    )
    return draw.step(t.InitProducerIdRequest, lambda _: request)


def coordinator(draw: Draw, _tally: Tally) -> Step:
    name = draw.name("tx")
    request = t.FindCoordinatorRequest(key=name, key_type=1, coordinator_keys=[name])
    return draw.step(t.FindCoordinatorRequest, lambda _: request, least=1)


def known_states(draw: Draw, _tally: Tally) -> Step:
    """Ask for coordinated transactions. There are none."""
    if draw.chance(0.5):
        ids = draw.some([draw.name("tx"), draw.name("other"), ""], 2)
        described = t.DescribeTransactionsRequest(transactional_ids=ids * draw.usual(1, 2))
        return draw.step(t.DescribeTransactionsRequest, lambda _: described)
    producer_ids, states = draw.usual([], [7_000_000]), draw.usual([], ["Ongoing"], ["Wrong"], ["Empty"])
    listed = t.ListTransactionsRequest(
        state_filters=states,
        producer_id_filters=producer_ids,
        duration_filter=draw.usual(-1, 0, 5, -2),
    )

    def trim(response: Any) -> None:
        response.transaction_states = []

    return draw.step(t.ListTransactionsRequest, lambda _: listed, trim=trim)


_Stage = Callable[[Draw, Tally], Step]
_STEPS: Final[tuple[_Stage, ...]] = (
    *(produce, produce, produce, produce, produce, markers, markers, markers, fetch, fetch, fetch, fetch),
    *(list_offsets, list_offsets, describe_producers, describe_producers, known_states),
)
_SELDOM: Final[tuple[_Stage, ...]] = (begin, coordinator)


def _named(step: Step) -> Step:
    """Return the step with the producers' ids known by a name: they are the same on both sides."""

    def learn(response: Any, known: Known) -> None:
        step.learn(response, known)
        known.update({f"producer {each}": each for each in _PRODUCERS})

    return replace(step, learn=learn)


def story(draw: Draw) -> list[Step]:
    """Draw a story of transactions."""
    tally, steps = Tally(), [_named(creation(draw))]
    for _ in range(draw.number(3, 14)):
        if draw.chance(0.1):
            steps.append(draw.pick(delete_records, epoch_end)(draw))
        else:
            steps.append(draw.usual(draw.pick(*_STEPS), *_SELDOM, of=0.97)(draw, tally))
    return steps

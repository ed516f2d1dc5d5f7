"""What committed readers leave out: our rule against the one that consumers follow."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partialmethod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.format.batch import Batch, encode_marker_batch
from logstore.format.record import ControlRecord, ControlType, EndTransactionMarker
from logstore.log import read_committed
from logstore.log.producer_state import ProducerState
from logstore.log.read_committed import aborted_between, without_aborted
from logstore.segment.transaction_index import AbortedTransaction, TransactionIndex
from tests.logstore.producing import ABORT, COMMIT, NOW_MS, at, data


def consumed(batches: Iterable[Batch], aborted: Iterable[AbortedTransaction]) -> Iterator[Batch]:
    """A consumer's rule: it is told producer ids and first offsets, and reads the markers."""
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    dropping: set[int] = set()
    for batch in batches:
        while waiting and waiting[0].first_offset <= batch.last_offset:
            dropping.add(waiting.pop(0).producer_id)
        if batch.is_control:
            record = next(batch.records(), None)
            if record is not None and ControlRecord.parse(record.key).type is ControlType.ABORT:
                dropping.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in dropping:
            continue
        yield batch


def marker(producer_id: int, kind: ControlType, offset: int) -> bytes:
    return encode_marker_batch(
        EndTransactionMarker(kind, 0),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=NOW_MS,
        base_offset=offset,
    )


STEPS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from("dddpca")), max_size=40)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(steps=STEPS, segments=st.integers(1, 5), start=st.integers(0, 20), length=st.integers(1, 20))
def test_the_same_as_a_consumer_sees(
    steps: list[tuple[int, str]], segments: int, start: int, length: int
) -> None:
    """Any part of any history of decided transactions, its aborts in the indexes of several segments."""
    for producer_id in (1, 2, 3):
        steps = [*steps, (producer_id, "c")]
    state = ProducerState()
    batches: list[Batch] = []
    entries: list[list[AbortedTransaction]] = [[] for _ in range(segments)]
    sequences = dict.fromkeys((1, 2, 3), 0)
    for offset, (producer_id, step) in enumerate(steps):
        if step in "ca":
            batch = Batch(marker(producer_id, COMMIT if step == "c" else ABORT, offset))
        else:
            transaction = step == "d" or state.has_open_transaction(producer_id, 0)
            batch = Batch(at(data(producer_id, sequences[producer_id], transaction=transaction), offset))
            sequences[producer_id] += 1
        batches.append(batch)
        completed = state.replay(batch)
        if completed is not None and (entry := completed.index_entry()):
            entries[offset * segments // len(steps)].append(entry)
    start = min(start, len(batches) - 1)
    end = min(start + length, len(batches))
    floor = start * segments // len(steps)
    aborted = aborted_between((TransactionIndex(each) for each in entries[floor:]), start, end)
    overlapping = [e for each in entries for e in each if e.last_offset >= start and e.first_offset < end]
    assert list(aborted) == overlapping
    seen = [batch.base_offset for batch in without_aborted(batches[start:end], aborted)]
    assert seen == [batch.base_offset for batch in consumed(batches[start:end], aborted)]


def test_no_index_is_asked_once_it_is_complete() -> None:
    """Reading an index costs a file."""
    asked: list[int] = []

    def indexes() -> Iterator[TransactionIndex]:
        for number in range(3):
            asked.append(number)
            yield TransactionIndex([AbortedTransaction(1, number * 10, number * 10 + 5, number * 10 + 6)])

    assert aborted_between(indexes(), 0, 16) == ((1, 0, 5, 6), (1, 10, 15, 16))
    assert asked == [0, 1]


class Compared(int):
    """An offset that counts its comparisons."""

    count = 0

    def _compared(self, order: Callable[[int, int], bool], other: int) -> bool:
        Compared.count += 1
        return order(int(self), other)

    __lt__ = partialmethod(_compared, operator.lt)
    __le__ = partialmethod(_compared, operator.le)
    __gt__ = partialmethod(_compared, operator.gt)
    __ge__ = partialmethod(_compared, operator.ge)


def comparisons(run: Callable[[int], object], size: int) -> int:
    Compared.count = 0
    run(size)
    return Compared.count


def left_out(size: int) -> None:
    numbers = range(size)
    aborted = [AbortedTransaction(1, Compared(2 * each), Compared(2 * each + 1), 0) for each in numbers]
    batches = [Batch(at(data(1, each), 2 * each)) for each in numbers]
    assert not list(without_aborted(batches, aborted))


def with_ends(size: int) -> None:
    begun = [(1, 2 * number) for number in range(size)]
    found = read_committed.up_to_markers(begun, [(1, Compared(2 * number + 1)) for number in range(size)])
    assert [each.last_offset for each in found] == [2 * number + 1 for number in range(size)]


def collected(size: int) -> None:
    index = TransactionIndex(
        AbortedTransaction(1, 2 * number, Compared(2 * number + 1), 2 * number + 2) for number in range(size)
    )
    for number in range(0, size, 20):
        assert len(index.collect(2 * number, 2 * number + 1).transactions) == 1


@pytest.mark.parametrize("run", [left_out, with_ends, collected])
def test_many_aborted_transactions_of_one_producer_cost_no_square(run: Callable[[int], object]) -> None:
    """Ten times as many need a little more than ten times as many comparisons."""
    assert comparisons(run, 1000) < 20 * comparisons(run, 100)

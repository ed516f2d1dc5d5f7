"""The leader epoch cache: every case of row 217 in docs/reference/behaviours.md."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.log.log import Log
from logstore.segment.epochs import EpochEndOffset, LeaderEpochCache
from logstore.testing.disks import MemoryDisk

Entries = list[tuple[int, int]]
THREE: Entries = [(2, 6), (3, 8), (4, 11)]


def cache(entries: Entries) -> LeaderEpochCache:
    return LeaderEpochCache(entries)


def entries(of: LeaderEpochCache) -> Entries:
    return [(entry.epoch, entry.start_offset) for entry in of.entries]


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (8, [(2, 6)]),
        (9, [(2, 6), (3, 8)]),
        (11, [(2, 6), (3, 8)]),
        (12, THREE),
        (6, []),
        (0, []),
        (-1, THREE),
    ],
)
def test_row_217_truncate_from_the_end(end: int, left: Entries) -> None:
    epochs = cache(THREE)
    assert epochs.truncate_from_end(end) == (left != THREE)
    assert entries(epochs) == left


def test_the_first_epoch_is_spared_where_the_log_start_is_the_end() -> None:
    """Records of it lie below: what is written next must not be of an older one."""
    epochs = cache([(4, 11)])
    assert not epochs.truncate_from_end(11, spare_first=True)
    assert entries(epochs) == [(4, 11)]
    assert epochs.truncate_from_end(10, spare_first=True)
    epochs = cache(THREE)
    assert epochs.truncate_from_end(6, spare_first=True)
    assert entries(epochs) == [(2, 6)]


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (8, [(3, 8), (4, 11)]),
        (9, [(3, 9), (4, 11)]),
        (11, [(4, 11)]),
        (15, [(4, 15)]),
        (6, THREE),
        (1, THREE),
        (-1, THREE),
    ],
)
def test_row_217_truncate_from_the_start(start: int, left: Entries) -> None:
    epochs = cache(THREE)
    assert epochs.truncate_from_start(start) == (left != THREE)
    assert entries(epochs) == left


@pytest.mark.parametrize(
    ("known", "asked", "log_end_offset", "answer"),
    [
        (THREE, 3, 13, (3, 11)),
        (THREE, 4, 13, (4, 13)),
        (THREE, 5, 13, (-1, -1)),
        (THREE, 1, 13, (1, 6)),
        (THREE, -1, 13, (-1, -1)),
        ([], 0, 0, (-1, -1)),
        ([(1, 7)], 2, 9, (-1, -1)),
        ([(5, 11), (7, 12)], 5, 13, (5, 12)),
        ([(5, 11), (7, 12)], 6, 13, (5, 12)),
        ([(0, 10), (3, 20)], 2, 30, (0, 20)),
    ],
)
def test_row_217_where_an_epoch_ends(
    known: Entries, asked: int, log_end_offset: int, answer: tuple[int, int]
) -> None:
    """A gap is answered with the epoch below it, so that the asker looks further back itself (KIP-279)."""
    assert cache(known).end_offset_for(asked, log_end_offset) == EpochEndOffset(*answer)


@pytest.mark.parametrize(
    ("before", "assigned", "after"),
    [
        ([], (0, 0), [(0, 0)]),
        ([(2, 9)], (3, 9), [(3, 9)]),
        ([(2, 6)], (3, 5), [(3, 5)]),
        ([(2, 6)], (2, 7), [(2, 6)]),
        ([(2, 6)], (2, 6), [(2, 6)]),
        ([(2, 6)], (2, 5), [(2, 5)]),
        ([(1, 5), (2, 6)], (1, 7), [(1, 7)]),
        ([(5, 11), (6, 12), (7, 13)], (7, 12), [(5, 11), (7, 12)]),
    ],
)
def test_row_217_assign(before: Entries, assigned: tuple[int, int], after: Entries) -> None:
    """Later knowledge overrules what contradicts it."""
    epochs = cache(before)
    assert epochs.assign(*assigned) == (before != after)
    assert entries(epochs) == after


def test_row_218_the_same_epoch_again_and_negative_numbers() -> None:
    """The same epoch again keeps its first offset; nothing negative is an epoch or an offset."""
    epochs = cache([(2, 9)])
    assert not epochs.assign(2, 10)
    assert entries(epochs) == [(2, 9)]
    for epoch, offset in ((-1, 5), (3, -1)):
        with pytest.raises(ValueError, match="negative"):
            epochs.assign(epoch, offset)


def test_row_219() -> None:
    """What a follower learns from its batches."""
    epochs = cache([])
    for offset, epoch in enumerate((0, 0, 1, 1, 2, 2, 3)):
        epochs.assign(epoch, offset)
    assert entries(epochs) == [(0, 0), (1, 2), (2, 4), (3, 6)]
    assert [epochs.end_offset_for(epoch, 7).end_offset for epoch in range(4)] == [2, 4, 6, 7]


@pytest.mark.parametrize(("offset", "epoch"), [(5, -1), (6, 2), (9, 3), (50, 4)])
def test_row_222(offset: int, epoch: int) -> None:
    assert cache(THREE).epoch_for_offset(offset) == epoch


def test_loading_applies_the_same_rule() -> None:
    """A file with entries that contradict each other gives what assigning them in order gives."""
    assert entries(cache([(0, 0), (2, 5), (1, 7)])) == [(0, 0), (1, 7)]
    assert cache([]).latest_epoch == -1
    assert cache(THREE).latest_epoch == 4


def test_clear() -> None:
    epochs = cache(THREE)
    assert epochs.clear()
    assert not epochs.clear()
    assert entries(epochs) == []


operations = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.integers(0, 12), st.integers(0, 40)),
        st.tuples(st.just("end"), st.integers(-1, 40), st.just(0)),
        st.tuples(st.just("start"), st.integers(-1, 40), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(operations)
def test_both_columns_always_rise(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is done, the entries are a history; mutators say exactly whether they changed it."""
    epochs = LeaderEpochCache()
    for name, first, second in steps:
        before = epochs.entries
        match name:
            case "assign":
                changed = epochs.assign(first, second)
            case "end":
                changed = epochs.truncate_from_end(first)
            case _:
                changed = epochs.truncate_from_start(first)
        after = epochs.entries
        assert changed == (before != after)
        assert all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(after))


def test_a_new_epoch_costs_the_same_after_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that catches up with a log of thousands of epochs enters them one by one."""
    disk, entered = MemoryDisk(directories=["/data"]), 0
    assign = LeaderEpochCache.assign

    def counted(self: LeaderEpochCache, epoch: int, start_offset: int) -> bool:
        nonlocal entered
        entered += 1
        return assign(self, epoch, start_offset)

    monkeypatch.setattr(LeaderEpochCache, "assign", counted)
    with Log.open("/data/orders-0", disk=disk) as log:
        for epoch in range(100):
            log.partition.assign_epoch(epoch, epoch)
        assert len(log.partition.epochs) == 100
    assert entered < 200

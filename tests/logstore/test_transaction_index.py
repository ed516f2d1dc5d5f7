"""The transaction index: rows 70 to 74 of docs/reference/behaviours.md, and files that cannot be trusted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import CorruptIndex
from logstore.segment.transaction_index import AbortedTransaction, TransactionIndex, decode_entries

FOUR = [
    AbortedTransaction(0, 0, 10, 11),
    AbortedTransaction(1, 5, 15, 13),
    AbortedTransaction(2, 18, 35, 25),
    AbortedTransaction(3, 32, 50, 40),
]


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "found", "is_complete"),
    [
        (0, 100, FOUR, False),
        (0, 32, FOUR[:3], True),
        (0, 35, FOUR, True),
        (10, 35, FOUR, True),
        (11, 35, FOUR[1:], True),
        (20, 41, FOUR[2:], False),
    ],
)
def test_rows_70_and_71_collect(
    fetch_offset: int, upper_bound: int, found: list[AbortedTransaction], is_complete: bool
) -> None:
    """Rows 70, 71: it stops at an entry whose *stored* last stable offset reaches the bound."""
    collected = TransactionIndex(FOUR).collect(fetch_offset, upper_bound)
    assert (list(collected.transactions), collected.is_complete) == (found, is_complete)


@pytest.mark.parametrize(("offset", "kept"), [(51, 4), (50, 3), (11, 1), (0, 0)])
def test_row_72_truncate(offset: int, kept: int) -> None:
    """Row 72: an abort goes with its marker."""
    index = TransactionIndex(FOUR)
    assert index.truncate_to(offset) == (kept < 4)
    assert (index.entries, index.size_bytes) == (tuple(FOUR[:kept]), kept * 34)


@pytest.mark.parametrize("last_offset", [50, 49])
def test_row_73_markers_are_in_order(last_offset: int) -> None:
    """Row 73: equal is refused too."""
    index = TransactionIndex(FOUR)
    with pytest.raises(ValueError, match="out of order"):
        index.append(AbortedTransaction(9, 9, last_offset, 60))
    assert index.size_bytes == 4 * 34


def test_row_74_append_says_what_to_write_where() -> None:
    """Row 74: reopened, it goes on at the right place."""
    file = bytearray()
    for entry in FOUR:
        index = TransactionIndex.decode(bytes(file), base_offset=0)
        position = index.size_bytes
        assert position == len(file)
        file += index.append(entry)
    assert decode_entries(file) == FOUR


def test_part_of_an_entry_at_the_end_is_ignored() -> None:
    """At every cut. The next append overwrites it."""
    data = b"".join(entry.encode() for entry in FOUR)
    for size in range(len(data) + 1):
        index = TransactionIndex.decode(data[:size], base_offset=0)
        assert (index.entries, index.size_bytes) == (tuple(FOUR[: size // 34]), size // 34 * 34)


def test_a_newer_version_is_refused() -> None:
    """What a later version means, nobody here knows."""
    data = bytearray(FOUR[0].encode())
    data[1] = 1
    with pytest.raises(CorruptIndex, match="version 1"):
        decode_entries(data)


def test_row_74_sanity() -> None:
    """Row 74: an entry below the segment's base, or out of order, belongs to something else."""
    data = b"".join(entry.encode() for entry in FOUR)
    TransactionIndex.decode(data, base_offset=10)
    with pytest.raises(CorruptIndex):
        TransactionIndex.decode(data, base_offset=11)
    with pytest.raises(CorruptIndex):
        TransactionIndex.decode(FOUR[1].encode() + FOUR[0].encode(), base_offset=0)
    with pytest.raises(CorruptIndex):
        TransactionIndex.decode(bytes(68), base_offset=0)


@settings(derandomize=True)
@given(data=st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """Entries, or `CorruptIndex`; nothing else."""
    try:
        entries = decode_entries(data)
    except CorruptIndex:
        return
    assert b"".join(entry.encode() for entry in entries) == data[: len(data) // 34 * 34]

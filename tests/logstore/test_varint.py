"""Variable-length integers: the listed encodings, both ways, and what no reader may accept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRecord
from logstore.format.varint import decode_varint, decode_varlong, encode_varint, encode_varlong
from tests.golden.reading import ALL

PRIMITIVES = ALL["primitives"]


@pytest.mark.parametrize(("value", "encoded"), PRIMITIVES["varint"])
def test_listed_varints(value: int, encoded: str) -> None:
    """Borders of every length, positive and negative."""
    assert encode_varint(value).hex() == encoded
    assert decode_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@pytest.mark.parametrize(("value", "encoded"), PRIMITIVES["varlong"])
def test_listed_varlongs(value: int, encoded: str) -> None:
    """Borders of every length, positive and negative."""
    assert encode_varlong(value).hex() == encoded
    assert decode_varlong(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@pytest.mark.parametrize("encoded", PRIMITIVES["varint_invalid"])
def test_row_21_a_sixth_group_is_refused(encoded: str) -> None:
    """Row 21: a varint has at most 5 bytes."""
    with pytest.raises(InvalidRecord, match="more than 5"):
        decode_varint(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("encoded", PRIMITIVES["varlong_invalid"])
def test_row_21_an_eleventh_group_is_refused(encoded: str) -> None:
    """Row 21: a varlong has at most 10 bytes."""
    with pytest.raises(InvalidRecord, match="more than 10"):
        decode_varlong(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("encoded", ["", "80", "ff", "ffffffff"])
def test_row_21_the_data_may_end_inside(encoded: str) -> None:
    """Row 21: cut data is an error of ours, never an IndexError."""
    with pytest.raises(InvalidRecord, match="ends inside"):
        decode_varint(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize(("encoded", "value"), [("8000", 0), ("8280808000", 1), ("8180808000", -1)])
def test_needlessly_long_encodings_are_taken(encoded: str, value: int) -> None:
    """Kafka's reader does not insist on the shortest form."""
    assert decode_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


def test_bits_past_the_width_are_dropped() -> None:
    """Five groups have 35 bits; Java's int keeps 32 of them."""
    assert decode_varint(bytes.fromhex("ffffffff7f"), 0) == (-(1 << 31), 5)


@settings(derandomize=True)
@given(
    value=st.integers(-(1 << 63), (1 << 63) - 1), before=st.binary(max_size=3), after=st.binary(max_size=3)
)
def test_round_trip_in_the_middle_of_data(value: int, before: bytes, after: bytes) -> None:
    """The position after is exact, whatever surrounds the integer."""
    encoded = encode_varlong(value)
    assert len(encoded) <= 10
    assert decode_varlong(before + encoded + after, len(before)) == (value, len(before) + len(encoded))


def test_values_out_of_range_are_a_broken_promise() -> None:
    """The encoder is only ever given what fits; anything else is our own mistake."""
    with pytest.raises(AssertionError):
        encode_varint(1 << 31)
    with pytest.raises(AssertionError):
        encode_varlong(1 << 63)

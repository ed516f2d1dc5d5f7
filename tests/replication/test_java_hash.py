"""Java's hash of a text: a consumer group must be on the broker where clients look for it."""

from __future__ import annotations

import pytest

from logstore.replication.java_hash import absolute, java_hash


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        ("t", 116),
        ("hello", 99162322),
        ("orders", -1008770331),
        ("polygenelubricants", -(2**31)),
        # Two UTF-16 code units, d83d and de00: 31 * 0xd83d + 0xde00.
        ("\N{GRINNING FACE}", 31 * 0xD83D + 0xDE00),
    ],
)
def test_the_hash_is_javas(text: str, number: int) -> None:
    assert java_hash(text) == number % 2**32


@pytest.mark.parametrize(("number", "value"), [(0, 0), (-7, 7), (1 - 2**31, 2**31 - 1), (-(2**31), 0)])
def test_the_absolute_value_is_kafkas(number: int, value: int) -> None:
    assert absolute(number % 2**32) == value

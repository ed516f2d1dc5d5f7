"""Where records go: the numbers that Kafka's own producers come to."""

from __future__ import annotations

import pytest

from logstore.broker.placement import murmur2, partition_of_call, partition_of_key


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_hash_as_in_kafka(key: bytes, signed: int) -> None:
    """The vectors of Kafka's own tests; two clients that disagreed would tear a key's records apart."""
    assert murmur2(key) == signed % 2**32


def test_the_sign_is_dropped_not_negated() -> None:
    assert partition_of_key(b"foobar", 7) == (-790332482 & 0x7FFFFFFF) % 7
    assert {partition_of_key(bytes([number]), 3) for number in range(50)} == {0, 1, 2}


def test_calls_without_a_key_go_round_those_with_a_leader() -> None:
    assert [partition_of_call(call, (0, 2), 3) for call in range(4)] == [0, 2, 0, 2]
    assert [partition_of_call(call, (), 3) for call in range(4)] == [0, 1, 2, 0]

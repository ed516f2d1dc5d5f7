"""A column of keys goes where Kafka's producers put each of them."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from logstore.broker.placement import murmur2, partition_of_key
from logstore.columnar.encoding import Blobs
from logstore.spark.sink_rows import murmur2_of, partitions_of


def keys_of(random: Random, count: int, longest: int) -> list[bytes | None]:
    sizes = [random.randrange(longest + 1) for _ in range(count)]
    return [None if random.randrange(5) == 0 else random.randbytes(size) for size in sizes]


@pytest.mark.parametrize("longest", [0, 1, 3, 4, 5, 40, 700])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_the_same_hash_as_one_by_one(longest: int, kind: pa.DataType) -> None:
    keys = keys_of(Random(longest), 200, longest)
    column = pa.array([b"before", *keys, b"behind"], kind).slice(1, len(keys))
    found = murmur2_of(Blobs.of(column, "key")).tolist()
    assert [each for each, key in zip(found, keys, strict=True) if key is not None] == [
        murmur2(key) for key in keys if key is not None
    ]


def test_kafkas_own_vectors() -> None:
    """Signed, as Kafka's tests have them."""
    vectors = {
        "21": -973932308,
        "foobar": -790332482,
        "a-little-bit-long-string": -985981536,
        "a-little-bit-longer-string": -1486304829,
        "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        "abc": 479470107,
    }
    found = murmur2_of(Blobs.of(pa.array(list(vectors)), "key"))
    assert found.astype(np.uint32).view(np.int32).tolist() == list(vectors.values())


def test_text_and_the_number_of_partitions_of_each_row() -> None:
    keys = ["a", "b", None, "", "häuser"]
    counts = np.array([3, 7, 5, 11, 4])
    found = partitions_of(Blobs.of(pa.array(keys), "key"), counts, np.full(5, 13)).tolist()
    assert found == [
        13 % count if key is None else partition_of_key(key.encode(), count)
        for key, count in zip(keys, counts.tolist(), strict=True)
    ]


def test_no_rows_and_no_keys() -> None:
    assert (
        partitions_of(
            Blobs.of(pa.array([], pa.binary()), "key"), np.zeros(0, np.int64), np.zeros(0, np.int64)
        ).tolist()
        == []
    )
    assert partitions_of(Blobs.none(3), np.array([4, 4, 2]), np.full(3, 6)).tolist() == [2, 2, 0]

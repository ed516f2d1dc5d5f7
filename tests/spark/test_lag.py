"""How far a query is behind, from what Spark reports."""

from __future__ import annotations

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.offsets import Behind, lags

A, B = TopicPartition("t", 0), TopicPartition("t", 10)


def test_each_partition_of_each_source() -> None:
    """Offsets are text or not, by where the progress came from; other sources' have any form."""
    ours = {"endOffset": '{"t": {"0": 3}}', "latestOffset": {"t": {"0": 5, "10": 7}}}
    others = [
        {"endOffset": "null", "latestOffset": "null"},
        {"endOffset": "12", "latestOffset": "13"},
        {"endOffset": {"logOffset": 2}, "latestOffset": "no JSON"},
        {},
    ]
    assert lags({"sources": [ours, *others]}) == [Behind({A: 2, B: 7}), *[Behind({})] * 4]


def test_an_end_that_was_passed_meanwhile_is_no_lag() -> None:
    source = {"endOffset": '{"t": {"0": 9}}', "latestOffset": '{"t": {"0": 5}}'}
    assert lags({"sources": [source]}) == [Behind({A: 0})]


def test_sums_have_the_names_of_sparks_own_source() -> None:
    behind = Behind({A: 2, B: 7})
    assert (behind.total, behind.largest) == (9, 7)
    assert behind.metrics() == {
        "minOffsetsBehindLatest": "2",
        "maxOffsetsBehindLatest": "7",
        "avgOffsetsBehindLatest": "4.5",
    }
    assert Behind({}).metrics()["avgOffsetsBehindLatest"] == "0.0"


def test_before_the_first_batch_there_is_no_lag() -> None:
    """`query.lastProgress` is None then: it was "'NoneType' object is not subscriptable"."""
    assert lags(None) == []
    with pytest.raises(TypeError, match=r"pass query\.lastProgress, not \[\]"):
        lags([])  # type: ignore[arg-type]

"""Quotas: which one counts, rates and throttle times as Kafka computes them, and paths."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logstore.broker.security.quotas import (
    CLIENT,
    IP,
    USER,
    Entity,
    Key,
    Kind,
    Quotas,
    TokenBucket,
    entity_of,
    parse,
    path_of,
    text_of,
)
from logstore.config import MAX_INT, MAX_LONG
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.rates import LONGEST_THROTTLE_MS, Rate, Windows

VECTORS = [json.loads(line) for line in Path(__file__).with_name("quota.jsonl").read_text().splitlines()]
"""Steps computed by the classes of Kafka 3.9.1: time, amount, rate or tokens after it, throttle time."""


@pytest.mark.parametrize("vector", VECTORS, ids=lambda each: each["what"])
def test_steps_of_kafkas_classes(vector: dict[str, Any]) -> None:
    windows = Windows(vector["samples"], 1000 * vector["window_s"])
    bound: float = vector["quota"]
    rate, bucket = Rate(windows), TokenBucket(windows, bound, 0)
    for now_ms, amount, after, throttle_ms in vector["steps"]:
        if vector["kind"] == "rate":
            rate.record(amount, now_ms)
            found = rate.throttle_ms(bound, now_ms)
            assert (min(found, windows.size_ms) if vector["capped"] else found) == throttle_ms
            assert rate.per_second(now_ms) == pytest.approx(after, abs=0.001)
            continue
        is_refused = vector["kind"] == "bucket_strict" and bucket.tokens(bound, now_ms) < 0
        if not is_refused:
            bucket.take(amount, bound, now_ms)
        waits = is_refused or (vector["kind"] == "bucket_permissive" and bucket.tokens(bound, now_ms) < 0)
        assert (bucket.throttle_ms(bound, now_ms) if waits else None) == throttle_ms
        assert bucket.tokens(bound, now_ms) == pytest.approx(after, abs=0.01)


def test_a_bound_of_zero_lets_nothing_through() -> None:
    rate, bucket = Rate(Windows()), TokenBucket(Windows(), 0, 0)
    assert (rate.throttle_ms(0, 0), bucket.throttle_ms(0, 0)) == (0, 0)
    rate.record(1, 0)
    bucket.take(1, 0, 0)
    assert rate.throttle_ms(0, 5) == bucket.throttle_ms(0, 5) == LONGEST_THROTTLE_MS


def test_what_is_idle_may_be_forgotten() -> None:
    rate, bucket = Rate(Windows()), TokenBucket(Windows(), 10, 0)
    rate.record(1, 0)
    bucket.take(120, 10, 0)
    assert (rate.is_idle(10_999), rate.is_idle(11_000)) == (False, True)
    assert (bucket.is_full(10, 11_999), bucket.is_full(10, 12_000)) == (False, True)


@pytest.mark.parametrize(("bound", "size"), [(50_000, 1_000), (1_000_000, 16_000), (1_000_000, 60_000)])
@pytest.mark.parametrize("clients", [1, 3])
def test_clients_are_held_to_their_rate(bound: int, size: int, clients: int) -> None:
    """Whoever waits as it is told uses its quota, within 5 %: two minutes on a virtual clock."""
    rate, random = Rate(Windows()), Random(7)
    ready_ms = {each: random.random() for each in range(clients)}
    used, begun_ms, ends_ms = 0, 20_000, 140_000
    while (now_ms := min(ready_ms.values())) < ends_ms:
        client = min(ready_ms, key=ready_ms.__getitem__)
        rate.record(size, int(now_ms))
        used += size if now_ms >= begun_ms else 0
        ready_ms[client] = now_ms + random.uniform(0.1, 1) + rate.throttle_ms(bound, int(now_ms))
    assert used / ((ends_ms - begun_ms) / 1000) == pytest.approx(bound, rel=0.05)


# --- which one counts ---------------------------------------------------------------------------

U, C = USER, CLIENT
ORDER: list[tuple[Entity, Key]] = [
    (((U, "ann"), (C, "app")), Key("ann", "app")),
    (((U, "ann"), (C, None)), Key("ann", "app")),
    (((U, "ann"),), Key("ann", None)),
    (((U, None), (C, "app")), Key("ann", "app")),
    (((U, None), (C, None)), Key("ann", "app")),
    (((U, None),), Key("ann", None)),
    (((C, "app"),), Key(None, "app")),
    (((C, None),), Key(None, "app")),
]
"""What counts for client `app` of user ann, first what counts most; and who shares the budget."""


def test_the_most_exact_quota_counts() -> None:
    values: dict[Entity, dict[Kind, float]] = {
        entity: {Kind.FETCH: number} for number, (entity, _) in enumerate(ORDER)
    }
    others: dict[Entity, dict[Kind, float]] = {
        ((U, "bob"),): {Kind.FETCH: 99},
        ((U, "ann"), (C, "other")): {Kind.FETCH: 99},
        ((U, "ann"), (C, "app")): {Kind.PRODUCE: 99},
    }
    for number, (entity, key) in enumerate(ORDER):
        assert Quotas(others | values).bound(Kind.FETCH, "ann", "app") == (number, key)
        del values[entity]
    assert Quotas(others | values).bound(Kind.FETCH, "ann", "app") is None
    assert not Quotas({((U, "ann"),): {}})


def test_entities_stand_in_paths_as_kafka_writes_them() -> None:
    for entity, _ in ORDER:
        assert entity_of(path_of(entity)) == entity
    assert path_of(((U, "ann"), (C, None))) == "users/ann/clients/<default>"
    assert path_of(((C, "my app/1"),)) == "clients/my%20app%2F1"
    assert entity_of("clients/my%20app%2F1") == ((C, "my app/1"),)
    assert entity_of("ips/<default>") == ((IP, None),)
    assert entity_of("ips/0%3A1") == ((IP, "0:1"),)
    for other in ("", "users", "users/bob/ips/1.1.1.1", "topics/t", "clients/a/users/b", "users/a/clients"):
        assert entity_of(other) is None


def test_a_client_without_an_id_has_the_quota_of_all() -> None:
    values: dict[Entity, dict[Kind, float]] = {
        ((C, None),): {Kind.PRODUCE: 1.0},
        ((U, "ann"), (C, None)): {Kind.PRODUCE: 2.0},
    }
    assert Quotas(values).bound(Kind.PRODUCE, "bob", "") == (1.0, Key(None, ""))
    assert Quotas(values).bound(Kind.PRODUCE, "ann", "") == (2.0, Key("ann", ""))


def test_values_are_those_that_kafka_can_read() -> None:
    """A broker of Kafka on the same store reads a long, or an int for connections."""
    unlimited = float(MAX_LONG)  # one more, as a client's float
    assert text_of(Kind.FETCH, unlimited) == str(MAX_LONG)
    assert text_of(Kind.CONNECTION, MAX_INT) == str(MAX_INT)
    assert text_of(Kind.PRODUCE, 0.3 * 1e7 + 5e-10) == "3000000"
    assert text_of(Kind.REQUEST, 1e30) == "1e+30"
    for kind, value in (
        (Kind.PRODUCE, 1e30),
        (Kind.FETCH, unlimited * 1.001),
        (Kind.CONNECTION, MAX_INT + 1),
        (Kind.PRODUCE, 1.5),
        (Kind.PRODUCE, 7 - 1e-5),
        (Kind.REQUEST, math.inf),
        (Kind.MUTATION, -1.0),
    ):
        with pytest.raises(ValueError, match=kind):
            text_of(kind, value)


def test_values_are_stored_as_kafka_stores_them() -> None:
    assert [text_of(Kind.PRODUCE, 1024.0), text_of(Kind.REQUEST, 12.5), text_of(Kind.REQUEST, 50)] == [
        "1024",
        "12.5",
        "50.0",
    ]
    settings = {"producer_byte_rate": "1024", "SCRAM-SHA-256": "salt=…", "request_percentage": "12.5"}
    assert parse(settings, ((U, "bob"),)) == {Kind.PRODUCE: 1024, Kind.REQUEST: 12.5}
    assert parse({"connection_creation_rate": "7", "request_percentage": "1"}, ((IP, None),)) == {
        Kind.CONNECTION: 7
    }
    for wrong in ("x", "-1", "nan", "inf"):
        with pytest.raises(CorruptMetadata, match="request_percentage"):
            parse({"request_percentage": wrong}, ((U, "bob"),))

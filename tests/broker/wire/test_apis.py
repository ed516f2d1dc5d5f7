"""The one table."""

from __future__ import annotations

from logstore.broker.wire import types as t
from logstore.broker.wire.apis import API_OF, APIS, api_versions
from logstore.broker.wire.codec import decode, encode
from logstore.broker.wire.declarations import parse_versions


def test_single_versions_that_old_librdkafka_looks_for_are_inside() -> None:
    """Without one of these it sends old batches, no compression, or never joins a group."""
    for key, version in ((0, 0), (0, 3), (0, 7), (1, 4), (1, 10), (2, 1), (10, 0), (22, 0)):
        assert version in APIS[key].advertised, (key, version)


def test_all_that_is_advertised_is_served_but_the_first_versions_of_produce() -> None:
    for api in APIS.values():
        assert set(api.advertised) - set(api.served) == ({0, 1, 2} if api.key == 0 else set()), api.name


def test_flexible_versions_begin_where_kafka_says() -> None:
    """A wrong first flexible version would agree with itself; these are from the protocol's table."""
    first = {0: 9, 1: 12, 2: 6, 3: 9, 8: 8, 9: 6, 10: 3, 11: 6, 12: 4, 13: 4, 14: 4, 15: 5, 16: 3, 18: 3}
    first |= {19: 5, 20: 4, 21: 2, 22: 2, 23: 4, 32: 4, 33: 2, 36: 2, 37: 2, 42: 2, 43: 2, 44: 1, 60: 0}
    for key, version in first.items():
        assert APIS[key].flexible[0] == version, APIS[key].name
    assert not APIS[17].flexible
    assert not APIS[47].flexible


def test_api_versions_lists_what_clients_may_ask() -> None:
    answer = api_versions()
    listed = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert listed[0] == (0, 11)
    assert listed[1] == (4, 17)
    assert listed.keys() == APIS.keys() - {4, 5, 6, 56}, "what nodes ask each other is nobody's business"


def test_the_answer_to_an_unknown_version_of_api_versions_is_in_the_first_one() -> None:
    """Every client reads it so and asks again, lower."""
    data = b"".join(encode(api_versions(35), 0))
    answer, _ = decode(t.ApiVersionsResponse, 0, memoryview(data))
    assert answer.error_code == 35
    assert len(answer.api_keys) == 50


def test_an_api_is_found_by_its_types() -> None:
    assert API_OF[t.FetchRequest] is API_OF[t.FetchResponse] is APIS[1]
    assert APIS[1].latest == 16, "brokers of before serve no later one"


def test_ranges_of_versions() -> None:
    assert list(parse_versions("3")) == [3]
    assert list(parse_versions("3-5")) == [3, 4, 5]
    assert 2 not in parse_versions("3+")
    assert 32_767 in parse_versions("3+")
    assert not parse_versions("")

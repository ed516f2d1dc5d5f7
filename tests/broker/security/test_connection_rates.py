"""Rates of new connections by address, with a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest

from logstore.broker.limits import Limits
from logstore.broker.security import connection_rates
from logstore.broker.security.connection_rates import ConnectionRates
from logstore.broker.security.quotas import IP, Kind, Quotas
from logstore.errors import InvalidConfig
from logstore.replication.rates import Windows
from tests.broker.test_connection import Bench, answer_of, framed


def _rates(bounds: Mapping[str | None, float]) -> ConnectionRates:
    rates = ConnectionRates(Windows(), Counter(), Counter())
    rates.replace(Quotas({((IP, name),): {Kind.CONNECTION: bound} for name, bound in bounds.items()}))
    return rates


def test_who_comes_too_fast_is_held_and_does_not_count() -> None:
    """As Kafka: ten seconds' worth may come at once, and each that is too early waits a second at most."""
    rates = _rates({"10.0.0.1": 2})
    assert [rates.held_ms("10.0.0.1", 0) for _ in range(20)] == [0] * 20
    assert [rates.held_ms("10.0.0.1", 0) for _ in range(5)] == [500] * 5
    assert rates.held_ms("10.0.0.2", 0) == 0, "without a quota"
    assert rates.held_ms("10.0.0.1", 10_000) == 500
    assert rates.held_ms("10.0.0.1", 11_000) == 0, "those that were held were not counted"


def test_the_default_is_for_each_address_alone() -> None:
    rates = _rates({None: 1, "10.0.0.1": 0})
    assert rates.held_ms("10.0.0.1", 0) == 1_000, "nobody may come from there"
    for peer in ("10.0.0.2", "10.0.0.3"):
        assert [rates.held_ms(peer, 0) for _ in range(11)] == [0] * 10 + [1_000]


def test_every_spelling_of_an_address_is_the_same() -> None:
    rates = _rates({"0:0:0:0:0:0:0:1": 0, "FE80::1": 0})
    assert rates.held_ms("::1", 0) == rates.held_ms("fe80::1", 0) == 1_000
    assert _rates({"::ffff:10.0.0.1": 0}).held_ms("10.0.0.1", 0) == 1_000


def test_a_name_in_the_store_is_told_and_others_count(caplog: pytest.LogCaptureFixture) -> None:
    rates = _rates({"localhost": 0, "10.0.0.1": 0})
    assert "'localhost' does not appear to be an IPv4 or IPv6 address" in caplog.text
    assert rates.held_ms("10.0.0.1", 0) == 1_000


def test_a_change_counts_at_once_and_usage_stays() -> None:
    rates = _rates({None: 100})
    assert [rates.held_ms("10.0.0.1", 0) for _ in range(100)] == [0] * 100
    rates.replace(Quotas({((IP, None),): {Kind.CONNECTION: 1}}))
    assert rates.held_ms("10.0.0.1", 0) == 1_000
    rates.replace(Quotas())
    assert rates.held_ms("10.0.0.1", 0) == 0


def test_idle_addresses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_rates, "_MOST_KNOWN", 8)
    rates = _rates({None: 5})
    rates._next_look = 8
    for number in range(1_000):
        rates.held_ms(f"10.0.{number // 250}.{number % 250}", 20_000 * number)
    assert len(rates._rates) <= 8


# --- over sockets -------------------------------------------------------------------------------


def test_an_address_may_have_a_limit_of_its_own() -> None:
    async def test() -> None:
        for overrides, is_refused in (("127.0.0.1:1", True), ("127.0.0.2:1", False), ("127.0.0.1:2", False)):
            limits = Limits(max_connections_per_ip=2, max_connections_per_ip_overrides=overrides)
            async with Bench(limits) as bench:
                reader, writer = await bench.connect()
                writer.write(framed(b"x"))
                await answer_of(reader)
                if is_refused:
                    assert await bench.is_cut_off(b"")
                else:
                    reader, writer = await bench.connect()
                    writer.write(framed(b"x"))
                    assert await answer_of(reader) == b"x"

    asyncio.run(test())


def test_an_address_above_its_connection_rate_is_closed_unread(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with Bench() as bench:
            rates = bench.server.by_address = ConnectionRates(Windows(size_ms=20), Counter(), Counter())
            rates.replace(Quotas({((IP, "127.0.0.1"),): {Kind.CONNECTION: 0}}))
            assert await bench.is_cut_off(framed(b"x"))
            assert bench.server.refused == 1
            assert not bench.server.connections
            rates.replace(Quotas())
            reader, writer = await bench.connect()
            writer.write(framed(b"x"))
            assert await answer_of(reader) == b"x"
        assert "connection_creation_rate of 127.0.0.1 exceeded" in caplog.text

    asyncio.run(test())


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_at_which_nobody_could_connect_is_refused(rate: int) -> None:
    """Kafka refuses it, too. It was taken for no limit, silently."""
    with pytest.raises(InvalidConfig, match="it must be 1 to 2147483647"):
        Limits(max_connection_creation_rate=rate)


def test_overrides_by_address() -> None:
    limits = Limits(max_connections_per_ip_overrides=" 127.0.0.2:7, ::1:8 ,localhost:9")
    found = limits.most_by_ip()
    assert found["127.0.0.2"] == 7
    assert found["127.0.0.1"] == 9
    for wrong in ("127.0.0.1", "127.0.0.1:x", ":7", "127.0.0.1:-1"):
        with pytest.raises(InvalidConfig, match="expected host:number"):
            Limits(max_connections_per_ip_overrides=wrong)

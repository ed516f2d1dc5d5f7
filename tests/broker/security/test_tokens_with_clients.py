"""Other projects' clients log in by tokens."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.broker.security.provider import claims, settings, signed
from tests.broker.security.test_login import Bench, run
from tests.broker.security.test_oauth import _as_names, now_s

pytestmark = pytest.mark.interop


def options(bootstrap: str, tokens: list[str], lifetime_s: float = 60, **change: Any) -> dict[str, Any]:
    """librdkafka's, with a function that makes tokens."""

    def token(_: str) -> tuple[str, float]:
        tokens.append(signed(claims(now_s(), exp=now_s() + lifetime_s, **change)))
        return tokens[-1], time.time() + lifetime_s

    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
        "broker.address.family": "v4",
    }


def test_librdkafka_produces_and_consumes_while_its_tokens_expire(tmp_path: Path) -> None:
    ck = pytest.importorskip("confluent_kafka")
    tokens: list[str] = []

    def produce_until(bench: Bench, bootstrap: str) -> int:
        producer = ck.Producer(options(bootstrap, tokens, 4))
        delivered: list[Any] = []
        deadline = time.monotonic() + 60
        while bench.counts.renewed < 2 and time.monotonic() < deadline:
            producer.produce("orders", b"x", on_delivery=lambda error, _: delivered.append(error))
            producer.flush(10)
        assert delivered
        assert not any(delivered)
        return len(delivered)

    def consume(bootstrap: str, count: int) -> int:
        given = options(bootstrap, tokens) | {"group.id": "g", "enable.auto.commit": False}
        consumer = ck.Consumer(given)
        consumer.assign([ck.TopicPartition("orders", 0, 0)])
        found, deadline = 0, time.monotonic() + 60
        while found < count and time.monotonic() < deadline:
            message = consumer.poll(1)
            found += message is not None and message.error() is None
        consumer.close()
        return found

    async def test() -> None:
        async with Bench(**_as_names(settings(tmp_path))) as bench:
            bootstrap = str(bench.address)
            count = await asyncio.to_thread(produce_until, bench, bootstrap)
            assert await asyncio.to_thread(consume, bootstrap, count) == count
            assert bench.counts.renewed >= 2
            assert (bench.counts.failed, bench.counts.expired) == (0, 0)

    run(test)
    assert len(set(tokens)) >= 3


def test_librdkafka_hears_that_its_token_is_refused(tmp_path: Path) -> None:
    ck = pytest.importorskip("confluent_kafka")
    errors: list[str] = []

    def ask(bench: Bench, bootstrap: str) -> None:
        given = options(bootstrap, [], aud="mail") | {"error_cb": lambda error: errors.append(str(error))}
        producer = ck.Producer(given)
        deadline = time.monotonic() + 60
        while not any("uthentication" in each for each in errors) and time.monotonic() < deadline:
            producer.poll(0.2)

    async def test() -> None:
        async with Bench(**_as_names(settings(tmp_path))) as bench:
            await asyncio.to_thread(ask, bench, str(bench.address))
            assert bench.counts.failed >= 1
            assert bench.counts.successful == 0

    run(test)
    assert any("invalid_token" in each for each in errors), errors

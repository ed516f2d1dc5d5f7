"""Brokers that log in to each other by a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.broker import Client, links, open_store
from logstore.broker.security import login
from tests.broker.security.authority import broker, stores
from tests.broker.security.test_login import NAME, SASL, SCRAM, add, by, run


def test_brokers_log_in_to_each_other_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_RENEWAL_S", 0.0)
    monkeypatch.setattr(links, "_RENEWAL_AT", 0.1)

    async def test() -> None:
        name = "listener.name.sasl_ssl.scram-sha-512"
        settings = {
            "listeners": "SASL_SSL://localhost:0",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            f"{name}.sasl.jaas.config": f'{SCRAM} username="admin" password="admin-secret";',
            f"{name}.connections.max.reauth.ms": "2000",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:admin;User:ann",
            **stores(tmp_path),
        }
        trust = {"ssl.truststore.location": settings["ssl.truststore.location"]}
        ann = by("SCRAM-SHA-512", **{"security.protocol": "SASL_SSL", **trust})
        with open_store() as store:
            for user in ("admin", "ann"):
                await add(store, user)
            async with broker(settings, 1, metadata=store) as one, broker(settings, 2, metadata=store) as two:
                client = Client([one.address, two.address], security=ann, timeout_s=20)
                await client.create_topic("orders", 1, replication_factor=2)
                counts = [each._running.server.logins for each in (one, two)]
                written = 0
                # Sessions are renewed while records flow.
                while min(each.renewed for each in counts) < 2:
                    await client.append("orders", str(written).encode(), acks="all")
                    written += 1
                read = [each.value async for page in client.pages("orders", 0) for each in page]
                assert read == [str(each).encode() for each in range(written)]
                assert [each.failed + each.expired for each in counts] == [0, 0]
                await client.close()

    run(test)


def test_a_broker_whose_login_others_refuse_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    """It cannot follow, and nothing else says why."""

    async def test() -> None:
        name = "listener.name.internal.scram-sha-512.sasl.jaas.config"
        right, wrong = (f'{SCRAM} username="admin" password="{each}";' for each in ("admin-secret", "no"))
        settings = {
            **SASL,
            "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,CLIENTS:PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        }
        del settings[f"{NAME}plain.sasl.jaas.config"]
        with open_store() as store:
            await add(store, "admin")
            first = broker({**settings, name: right}, 1, metadata=store)
            second = broker({**settings, name: wrong}, 2, metadata=store)
            async with first, second, Client([first.bootstrap], timeout_s=20) as client:
                await client.create_topic("orders", 2, replication_factor=2)  # each leads one
                while first._running.server.logins.failed < 3:
                    await client.metadata()

    run(test)
    (warned,) = [each for each in caplog.records if "sasl.jaas.config" in each.getMessage()]
    assert warned.levelname == "WARNING"
    assert "broker 1" in warned.getMessage()
    assert "login of 'admin' refused" in warned.getMessage()

"""Certificates for tests: one authority, and key stores as files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

from logstore.broker import AsyncBroker, BrokerConfig, ClientSecurity, client_security
from logstore.broker.security.certificates import Signed, new_authority, signed_by
from logstore.broker.security.tls import now

QUICK = {
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "20",
    "registration.retry.ms": "20",
    "controlled.shutdown.retry.backoff.ms": "20",
    "request.timeout.ms": "5000",
}


@cache
def authority() -> Signed:
    return new_authority(now())


@cache
def signed(name: str, *hosts: str, days: int = 9, since_days: int = 0) -> Signed:
    at: datetime = now() - timedelta(days=since_days)
    return signed_by(authority(), name, hosts, at, days=days)


BROKER = ("broker", "localhost", "127.0.0.1")


def stores(directory: Path, name: str = "broker", *hosts: str) -> dict[str, str]:
    """The settings of a key store and a trust store, whose files they make."""
    mine = signed(name, *(hosts or BROKER[1:]))
    store, trust = directory / f"{name}.pem", directory / "ca.pem"
    store.write_bytes(mine.key_pem + mine.certificate_pem)
    trust.write_bytes(authority().certificate_pem)
    return {"ssl.keystore.location": str(store), "ssl.truststore.location": str(trust)}


def trusting(directory: Path, **more: str) -> ClientSecurity:
    """A client that trusts the authority."""
    trust = {"ssl.truststore.location": stores(directory)["ssl.truststore.location"]}
    return client_security({"security.protocol": "SSL", **trust, **more})


def broker(settings: Mapping[str, str], node_id: int = 1, **more: object) -> AsyncBroker:
    """A broker in memory with these settings."""
    config = BrokerConfig(node_id=node_id, settings={**QUICK, **settings}, timeout_s=30.0, **more)  # type: ignore[arg-type]
    return AsyncBroker(config)

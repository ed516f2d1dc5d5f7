"""TLS contexts: stores of all kinds, errors at the start, renewed files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    pkcs12,
)

from logstore.broker.security import tls
from logstore.broker.security.config import tls_config
from logstore.broker.security.tls import Renewed, client_context, now, server_context
from logstore.disk.files import wall_clock_ms
from logstore.errors import InvalidConfig
from tests.broker.security.authority import BROKER, authority, signed, stores

MINE, CA = signed(*BROKER), authority().certificate_pem.decode()
SEALED = MINE.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hush")).decode()
INLINE = {
    "ssl.keystore.key": MINE.key_pem.decode(),
    "ssl.keystore.certificate.chain": MINE.certificate_pem.decode(),
}


def test_a_file_with_key_and_certificate(tmp_path: Path) -> None:
    server_context(tls_config(stores(tmp_path)), now())
    client_context(tls_config(stores(tmp_path)), now())


def test_inline_pem() -> None:
    server_context(tls_config({**INLINE, "ssl.truststore.certificates": CA}), now())


def test_an_encrypted_key() -> None:
    server_context(tls_config({**INLINE, "ssl.keystore.key": SEALED, "ssl.key.password": "hush"}), now())


def test_where_there_is_no_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    server_context(tls_config(INLINE), now())


def test_pkcs12(tmp_path: Path) -> None:
    store = tmp_path / "store.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"me", MINE.key, MINE.certificate, [authority().certificate], BestAvailableEncryption(b"hush")
        )
    )
    settings = {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": "hush",
        "ssl.truststore.type": "pkcs12",
        "ssl.truststore.location": str(store),
        "ssl.truststore.password": "hush",
        "ssl.client.auth": "required",
    }
    server_context(tls_config(settings), now())
    with pytest.raises(InvalidConfig, match=r"ssl\.keystore\.password right"):
        server_context(tls_config({**settings, "ssl.keystore.password": "loud"}), now())


def inline(name: str, **how: int) -> dict[str, str]:
    other = signed(name, **how)
    return {
        "ssl.keystore.key": other.key_pem.decode(),
        "ssl.keystore.certificate.chain": other.certificate_pem.decode(),
    }


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (dict, "needs a key and a certificate"),
        (lambda: {"ssl.keystore.location": "/no/such.pem"}, "No such file"),
        (lambda: inline("late", since_days=9, days=3), "CN=late expired on"),
        (lambda: inline("early", since_days=-3), "CN=early is not valid before"),
        (lambda: {**INLINE, "ssl.keystore.key": signed("x").key_pem.decode()}, "is not that of the first"),
        (lambda: {**INLINE, "ssl.keystore.key": SEALED}, "is encrypted: set ssl.key.password"),
        (lambda: {**INLINE, "ssl.keystore.key": SEALED, "ssl.key.password": "no"}, "password right"),
        (lambda: {**INLINE, "ssl.key.password": "hush"}, "is not encrypted: remove"),
        (lambda: {**INLINE, "ssl.keystore.key": "?"}, "has 0 private keys"),
        (lambda: {**INLINE, "ssl.keystore.certificate.chain": "?"}, "has no certificate"),
        (lambda: {"ssl.keystore.key": INLINE["ssl.keystore.key"]}, "both or neither"),
        (lambda: {**INLINE, "ssl.keystore.location": "x"}, "not both"),
        (lambda: {**INLINE, "ssl.enabled.protocols": "TLSv1.1"}, r"TLSv1\.1"),
        (lambda: {**INLINE, "ssl.cipher.suites": "ROT13"}, "OpenSSL knows none"),
        (lambda: {**INLINE, "ssl.client.auth": "required", "ssl.truststore.location": "/no"}, "No such file"),
    ],
)
def test_what_is_wrong_is_said_at_the_start(settings: Callable[[], dict[str, str]], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        server_context(tls_config(settings()), now())


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    settings = stores(tmp_path)
    Path(settings["ssl.keystore.location"]).unlink()
    Path(settings["ssl.keystore.location"]).mkdir()
    with pytest.raises(InvalidConfig, match=r"ssl\.keystore\.location"):
        server_context(tls_config(settings), now())


def test_the_end_is_near(caplog: pytest.LogCaptureFixture) -> None:
    server_context(tls_config(INLINE), now())
    assert "expires in" in caplog.text


def test_renewed_files_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = stores(tmp_path)
    renewed = Renewed(tls_config(settings))
    first = renewed.context(1.0)
    other = signed("renewed", "localhost")
    Path(settings["ssl.keystore.location"]).write_bytes(other.key_pem + other.certificate_pem)
    assert renewed.context(1.5) is first, "once a second is enough"
    second = renewed.context(3.0)
    assert second is not first
    Path(settings["ssl.keystore.location"]).write_bytes(other.key_pem)
    assert renewed.context(5.0) is second
    assert "keeping the previous ones" in caplog.text


def test_renewed_files_are_taken_once_they_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate may come before its time, or before this process may read it."""
    settings = stores(tmp_path)
    renewed = Renewed(tls_config(settings))
    first = renewed.context(1.0)
    other = signed("renewed", "localhost")
    Path(settings["ssl.keystore.location"]).write_bytes(other.key_pem + other.certificate_pem)
    with monkeypatch.context() as yesterday:
        yesterday.setattr(tls, "wall_clock_ms", lambda: wall_clock_ms() - 86_400_000)
        assert renewed.context(3.0) is renewed.context(5.0) is first
    assert caplog.text.count("not valid before") == 1, "told once"
    second = renewed.context(7.0)
    assert second is not first
    assert renewed.context(9.0) is second


def test_the_present_is_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "wall_clock_ms", lambda: 86_400_000)
    assert f"{now():%Y-%m-%d}" == "1970-01-02"

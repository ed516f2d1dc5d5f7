"""`logstore certs`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.x509 import load_pem_x509_certificate

from logstore.broker.security import tls
from logstore.broker.security.config import tls_config
from logstore.broker.security.tls import client_context, now, server_context
from logstore.disk.files import wall_clock_ms
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]


def test_certificates_for_development(command: Command, tmp_path: Path) -> None:
    home = tmp_path / "tls"
    assert command("certs", home, "--host", "localhost", "--host", "::1", "--client", "alice").code == 0
    assert sorted(each.name for each in home.iterdir()) == ["alice.pem", "broker.pem", "ca.key", "ca.pem"]
    assert {each.stat().st_mode & 0o777 for each in home.iterdir()} == {0o600}
    stores = {
        "ssl.keystore.location": str(home / "broker.pem"),
        "ssl.truststore.location": str(home / "ca.pem"),
    }
    server_context(tls_config({**stores, "ssl.client.auth": "required"}), now())
    client_context(tls_config({**stores, "ssl.keystore.location": str(home / "alice.pem")}), now())
    authority, broker = (home / "ca.pem").read_bytes(), (home / "broker.pem").read_bytes()
    assert command("certs", home).code == 0
    assert (home / "ca.pem").read_bytes() == authority
    assert (home / "broker.pem").read_bytes() != broker
    refused = command("certs", home, "--client", "../x")
    assert (refused.code, "file's name" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--client", "ca"), "ca.pem is the name of another file"),
        (("--client", "alice", "--client", "broker"), "broker.pem is the name of another file"),
        (("--client", "Broker"), "Broker.pem is the name of another file"),
        (("--client", "x" * 65), "longer than 64 characters"),
        (("--days", "99999999"), "less than or equal to"),
    ],
)
def test_what_certs_refuses_changes_nothing(
    command: Command, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    command("certs", tmp_path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    refused = command("certs", tmp_path, *words)
    assert (refused.code, said in refused.err) == (2, True), refused
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


@pytest.mark.parametrize("kept", ["ca.pem", "ca.key"])
def test_half_an_authority_is_not_replaced(command: Command, tmp_path: Path, kept: str) -> None:
    command("certs", tmp_path)
    for each in {"ca.pem", "ca.key"} - {kept}:
        (tmp_path / each).unlink()
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    refused = command("certs", tmp_path)
    assert (refused.code, f"{kept} is there without" in refused.err) == (2, True)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_a_damaged_authority_is_refused(command: Command, tmp_path: Path) -> None:
    command("certs", tmp_path / "one")
    command("certs", tmp_path / "two")
    (tmp_path / "two" / "ca.key").write_bytes((tmp_path / "one" / "ca.key").read_bytes())
    mixed = command("certs", tmp_path / "two")
    assert (mixed.code, "the key is not that of the certificate" in mixed.err) == (2, True)
    for name in ("ca.pem", "ca.key"):
        (tmp_path / "one" / name).write_bytes(b"nothing")
        refused = command("certs", tmp_path / "one")
        assert (refused.code, "are no authority" in refused.err) == (2, True)
    file = command("certs", tmp_path / "one" / "ca.pem")
    assert (file.code, "is not a directory" in file.err) == (2, True)


def test_certificates_end_with_their_authority(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a broker warns of nothing before the end of the authority ends its connections."""
    command("certs", tmp_path, "--days", "10")
    command("certs", tmp_path, "--days", "400")
    made = load_pem_x509_certificate((tmp_path / "broker.pem").read_bytes())
    assert made.not_valid_after_utc <= now() + timedelta(days=10)
    monkeypatch.setattr(tls, "wall_clock_ms", lambda: wall_clock_ms() + 11 * 86_400_000)
    refused = command("certs", tmp_path)
    assert (refused.code, "create a new one" in refused.err) == (2, True)

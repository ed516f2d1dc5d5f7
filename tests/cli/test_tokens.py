"""`logstore tokens` against a broker with logins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logstore.broker import Broker, BrokerConfig
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SETTINGS = {
    "listeners": "INTERNAL://127.0.0.1:0,CLIENTS://localhost:0",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.clients.plain.sasl.jaas.config": f'{PLAIN} user_ann="ann-secret" user_bob="bob-secret" '
    'user_carl="carl-secret";',
    "delegation.token.secret.key": "a secret of all brokers",
    "connection.failed.authentication.delay.ms": "5",
}


def properties(directory: Path, name: str, mechanism: str, jaas: str) -> str:
    file = directory / f"{name}.properties"
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"
    )
    return str(file)


@pytest.fixture
def tokens(command: Command, tmp_path: Path) -> Iterator[Command]:
    """`tokens("ann", "create", …)`: as that user."""
    files = {
        name: properties(tmp_path, name, "PLAIN", f'{PLAIN} username="{name}" password="{name}-secret";')
        for name in ("ann", "bob", "carl")
    }
    with Broker(BrokerConfig(settings=SETTINGS)) as broker:
        address = str(broker._client.listeners["CLIENTS"])
        yield lambda name, verb, *words: command(
            "tokens", verb, *words, "--bootstrap", address, "--command-config", files.get(name, name)
        )


def test_the_life_of_a_token(tokens: Command, tmp_path: Path) -> None:
    assert tokens("ann", "describe").out == ""
    made = json.loads(tokens("ann", "create", *("--renewer", "User:bob") * 2, "--json").out)
    assert (made["owner"], made["requester"], made["renewers"]) == ("User:ann", "User:ann", ["User:bob"])
    shown = tokens("bob", "describe").out
    assert shown.startswith(f"{made['id']}  User:ann, renewers User:bob, expires ")
    assert made["hmac"] not in shown
    described = json.loads(tokens("bob", "describe", "--owner", "User:ann", "--show-hmac", "--json").out)
    assert described == made
    shorter = json.loads(tokens("bob", "renew", made["id"], "--period-ms", "3600000", "--json").out)
    assert made["issued_ms"] < shorter["expires_ms"] < made["expires_ms"]
    jaas = f'{SCRAM} username="{made["id"]}" password="{made["hmac"]}" tokenauth="true";'
    of_token = properties(tmp_path, "token", "SCRAM-SHA-512", jaas)
    refused = tokens(of_token, "describe")
    assert (refused.code, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in refused.err) == (1, True)
    password = tmp_path / "hmac"
    password.write_text(f"{made['hmac']}\n")
    other = tokens("carl", "expire", "--hmac-file", str(password))
    assert (other.code, "only its owner and its renewers may renew or expire it" in other.err) == (1, True)
    assert tokens("ann", "expire", "--hmac-file", str(password)).out.startswith("expires ")
    gone = tokens("ann", "expire", "--hmac-file", str(password))
    assert (gone.code, "DELEGATION_TOKEN_NOT_FOUND" in gone.err) == (1, True)
    assert tokens("ann", "describe", "--json").out == ""
    assert "hmac" in tokens("ann", "create", "--owner", "User:eve", "--max-lifetime-ms", "5000").out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("create", "--owner", "eve"), "'eve' is not a principal; expected User:NAME"),
        (("create", "--max-lifetime-ms", "0"), "--max-lifetime-ms is 0; expected 1 or more, or -1"),
        (("create", "--max-lifetime-ms", "-5"), "--max-lifetime-ms is -5"),
        (("renew", "x", "--period-ms", "0"), "--period-ms is 0; expected 1 or more"),
        (("expire", "x", "--period-ms", "-2"), "--period-ms is -2; expected 0 or more"),
        (("renew", "--hmac-file", "missing"), "No such file"),
        (("renew",), "name a token by its ID, or by --hmac-file"),
        (("expire", "--hmac-file", "broken"), "broken has no HMAC in base64"),
    ],
)
def test_wrong_words(
    tokens: Command,
    words: tuple[str, ...],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken").write_text("?")
    outcome = tokens("ann", *words)
    assert outcome.code == 2
    assert complaint in outcome.err


def test_a_token_that_does_not_exist_is_refused(tokens: Command) -> None:
    """A negative answer, and no wrong usage: exit code 1."""
    outcome = tokens("ann", "renew", "nothing")
    assert (outcome.code, "there is no token nothing, or you may not describe it" in outcome.err) == (1, True)

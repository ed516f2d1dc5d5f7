"""SCRAM, PLAIN and JAAS lines: known exchanges, and messages that lie."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logstore.broker.security import scram, users
from logstore.broker.security.config import read_security, split_security
from logstore.broker.security.jaas import parse_jaas
from logstore.broker.security.sasl import Plain, Scram, Step
from logstore.broker.security.scram import Credential, LoginFailed
from logstore.broker.security.scram_client import Violation, client_final, client_first
from logstore.broker.security.secret import Secret
from logstore.errors import InvalidConfig
from logstore.replication.metastore.errors import CorruptMetadata

VECTORS = [json.loads(line) for line in (Path(__file__).parent / "scram.jsonl").read_text().splitlines()]
PENCIL = VECTORS[0]


def known(vector: dict[str, Any]) -> Credential:
    salt, iterations = vector["s1"].partition(",s=")[2].split(",i=")
    raw = base64.b64decode(salt)
    password = Secret(vector["password"])
    salted = scram.salted_password(vector["mechanism"], password, raw, int(iterations))
    return scram.credential(vector["mechanism"], salted, raw, int(iterations))


@pytest.mark.parametrize("vector", VECTORS)
def test_known_exchanges(vector: dict[str, Any]) -> None:
    found = known(vector)
    assert base64.b64encode(found.stored_key).decode() == vector["stored_key"]
    assert base64.b64encode(found.server_key).decode() == vector["server_key"]
    first = scram.parse_first(vector["c1"].encode())
    assert first.name == vector["user"]
    nonce = vector["s1"].partition(",")[0].removeprefix("r=")
    assert scram.server_first(nonce, found) == vector["s1"]
    assert scram.server_final(vector["mechanism"], first, nonce, found, vector["c2"].encode()) == vector["s2"]
    assert users.parse(users.encode(found)) == found


@pytest.mark.parametrize("vector", VECTORS)
def test_known_exchanges_on_the_clients_side(vector: dict[str, Any]) -> None:
    bare = vector["c1"].removeprefix("n,,")
    nonce = bare.rpartition(",r=")[2].partition(",")[0]
    by_token = vector["c1"].endswith(",tokenauth=true")
    first = client_first(vector["user"], nonce, by_token=by_token)
    assert first.message == vector["c1"].encode()
    last = client_final(vector["mechanism"], Secret(vector["password"]), first, vector["s1"].encode())
    assert (last.message, last.expected) == (vector["c2"].encode(), vector["s2"].encode())


@pytest.mark.parametrize(
    "password", ["x²", "ﬁx", "a\u00a0b", "e\u0301", "soft\u00adhy", "😀", "a\tb", "\u0627a", " x "]
)
def test_a_password_is_what_was_typed(password: str) -> None:
    """Of all these SASLprep would make another one, or none."""

    async def test() -> None:
        stored = users.new_credential("SCRAM-SHA-512", Secret(password), Random(1))

        async def find(user: str, mechanism: str) -> Credential | None:
            return stored

        server = Scram("SCRAM-SHA-512", find, b"", Random(5))
        first = client_first("ann", "mine")
        answer = (await server.step(first.message)).answer
        last = client_final("SCRAM-SHA-512", Secret(password), first, answer)
        assert (await server.step(last.message)).answer == last.expected

    asyncio.run(test())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("r=other,s=c2FsdHNhbHQ=,i=4096", "does not extend"),
        ("r=mine,s=c2FsdHNhbHQ=,i=4096", "does not extend"),
        ("r=mine+1,s=c2FsdHNhbHQ=,i=4095", "unsafe number"),
        ("r=mine+1,s=c2FsdHNhbHQ=,i=1000001", "unsafe number"),
        ("r=mine+1,s=c2FsdHNhbHQ=,i=-1", "malformed"),
        ("r=mine+1,s=c2F,i=4096", "salt"),
        ("m=x,r=mine+1,s=c2FsdHNhbHQ=,i=4096", "malformed"),
        ("e=other-error", "malformed: 'e=other-error'"),
        ("r=mine\u00e9,s=c2FsdHNhbHQ=,i=4096", "malformed"),
        ("", "malformed"),
    ],
)
def test_a_broker_that_violates_the_exchange(answer: str, said: str) -> None:
    with pytest.raises(Violation, match=said):
        client_final("SCRAM-SHA-256", Secret("x"), client_first("ann", "mine"), answer.encode())


def final(vector: dict[str, Any], without_proof: str) -> bytes:
    """A client's last message with a right proof of what it says."""
    name = scram.HASHES[vector["mechanism"]]
    found = known(vector)
    salted = scram.salted_password(
        vector["mechanism"], Secret(vector["password"]), found.salt, found.iterations
    )
    key = hmac.digest(salted, b"Client Key", name)
    message = f"{vector['c1'].removeprefix('n,,')},{vector['s1']},{without_proof}".encode()
    proof = bytes(a ^ b for a, b in zip(key, hmac.digest(found.stored_key, message, name), strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def check(token: bytes) -> str:
    nonce = PENCIL["s1"].partition(",")[0].removeprefix("r=")
    return scram.server_final(
        PENCIL["mechanism"], scram.parse_first(PENCIL["c1"].encode()), nonce, known(PENCIL), token
    )


NONCE = PENCIL["s1"].partition(",")[0].removeprefix("r=")
CLIENT_PART = PENCIL["c1"].partition("r=")[2]


def test_a_nonce_whose_first_part_is_doubled_is_accepted() -> None:
    for said in (f"c=biws,r={CLIENT_PART}{NONCE}", f"c=biws,r={NONCE},x=1"):
        assert check(final(PENCIL, said)).startswith("v=")


@pytest.mark.parametrize(
    "token",
    [
        final(PENCIL, f"c=eSws,r={NONCE}"),  # another header
        final(PENCIL, f"c=biws,r={NONCE.removeprefix(CLIENT_PART)}"),  # the server's part alone
        final(PENCIL, f"c=biws,r={CLIENT_PART}"),
        final(PENCIL, f"c=biws,r={PENCIL['s1'].partition('s=')[2].partition(',')[0]}"),
        PENCIL["c2"].replace("p=d", "p=e").encode(),
        PENCIL["c2"].encode() + b"\0",
        PENCIL["c2"].partition(",p=")[0].encode(),
        PENCIL["c2"].partition(",p=")[0].encode() + b",p=AAAA",
        PENCIL["c2"].partition(",p=")[0].encode() + b",p==A=",
        b"",
        b"\xff" * 100,
        b"c=biws,r=" + b"x" * 100_000,
    ],
)
def test_what_does_not_prove_the_password(token: bytes) -> None:
    with pytest.raises(LoginFailed):
        check(token)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n,,",
        b"n,,n=,r=x",
        b"n,,n=user",
        b"y,,n=user,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"n,,m=1,n=user,r=x",
        b"n,,n=us=er,r=x",
        b"n,,n=us,er,r=x",
        b"n,a=other,n=user,r=x",
        "n,,n=usér,r=x".encode(),
        b"n,,n=user,r=x\0",
        b"n,,n=user,r=",
        b"n," * 50_000,
    ],
)
def test_a_first_message_that_is_none(token: bytes) -> None:
    with pytest.raises(LoginFailed):
        scram.parse_first(token)


def test_names_are_escaped() -> None:
    assert scram.parse_first(b"n,a=a=2Cb=3D,n=a=2Cb=3D,r=x").name == "a,b="
    assert scram.parse_first(b"n,,n=x,r=y,tokenauth=true").has_token


def test_an_unknown_user_looks_like_a_known_one() -> None:
    """The same salt each time and the default iterations; refused at the last message only."""

    async def test() -> None:
        async def find(user: str, mechanism: str) -> Credential | None:
            return known(PENCIL) if user == "user" else None

        answers = []
        for _ in range(2):
            exchange = Scram("SCRAM-SHA-256", find, b"secret", Random(1))
            step = await exchange.step(b"n,,n=nobody,r=abc")
            assert step.user is None
            answers.append(step.answer)
            nonce = step.answer.decode().partition(",")[0]
            with pytest.raises(LoginFailed):
                await exchange.step(f"c=biws,{nonce},p={'A' * 43}=".encode())
        assert answers[0] == answers[1]
        other = await Scram("SCRAM-SHA-256", find, b"secret", Random(1)).step(b"n,,n=nobody2,r=abc")
        assert other.answer != answers[0]
        real = await Scram("SCRAM-SHA-256", find, b"secret", Random(1)).step(b"n,,n=user,r=abc")
        assert real.answer.endswith(b",i=4096")
        assert answers[0].endswith(b",i=4096")

    asyncio.run(test())


def test_a_replayed_login_fails() -> None:
    """A new nonce each time makes an old proof worthless."""

    async def test() -> None:
        async def find(user: str, mechanism: str) -> Credential | None:
            return known(PENCIL)

        random = Random(5)
        exchange = Scram("SCRAM-SHA-256", find, b"", random)
        first = (await exchange.step(PENCIL["c1"].encode())).answer.decode()
        replayed = final({**PENCIL, "s1": first}, f"c=biws,{first.partition(',')[0]}")
        assert (await exchange.step(replayed)).user == "user"
        exchange = Scram("SCRAM-SHA-256", find, b"", random)
        await exchange.step(PENCIL["c1"].encode())
        with pytest.raises(LoginFailed, match="wrong nonce"):
            await exchange.step(replayed)

    asyncio.run(test())


def test_weak_credentials_and_long_names_are_refused() -> None:
    async def test() -> None:
        async def find(user: str, mechanism: str) -> Credential | None:
            return known(PENCIL)._replace(iterations=4095)

        for token in (b"n,,n=user,r=abc", b"n,,n=" + b"x" * 5000 + b",r=a"):
            with pytest.raises(LoginFailed):
                await Scram("SCRAM-SHA-256", find, b"", Random(1)).step(token)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("token", "user"),
    [
        (b"\0ann\0secret", "ann"),
        (b"ann\0ann\0secret", "ann"),
        ("\0bé\0pä".encode(), "bé"),
        (b"\0ann\0wrong", None),
        (b"\0nobody\0secret", None),
        (b"\0nobody\0\0", None),
        (b"bob\0ann\0secret", None),
        (b"\0ann\0", None),
        (b"\0\0secret", None),
        (b"ann\0secret", None),
        (b"\0ann\0secret\0", None),
        (b"\0\xff\0secret", None),
        (b"", None),
    ],
)
def test_plain(token: bytes, user: str | None) -> None:
    exchange = Plain({"ann": Secret("secret"), "bé": Secret("pä")})
    if user is None:
        with pytest.raises(LoginFailed):
            asyncio.run(exchange.step(token))
    else:
        assert asyncio.run(exchange.step(token)) == Step(b"", user)


# --- credentials and settings -----------------------------------------------------------------


def test_names_stand_in_paths_as_kafka_writes_them() -> None:
    assert users.entity_path("CN=a b,*~é") == "users/CN%3Da%20b%2C%2A%7E%C3%A9"


@pytest.mark.parametrize("text", ["", "salt=x", "salt=AA==,stored_key=?,server_key=AA==,iterations=1"])
def test_a_malformed_credential(text: str) -> None:
    with pytest.raises(CorruptMetadata) as raised:
        users.parse(text)
    assert "AA==" not in str(raised.value)


def test_credentials_have_bounds() -> None:
    for iterations in (4095, 16_385):
        with pytest.raises(InvalidConfig, match="expected 4096 to 16384"):
            users.new_credential("SCRAM-SHA-512", Secret("x"), Random(1), iterations)
    with pytest.raises(InvalidConfig, match="SCRAM-SHA-1"):
        users.new_credential("SCRAM-SHA-1", Secret("x"), Random(1))


PLAIN_LINE = "org.apache.kafka.common.security.plain.PlainLoginModule required "


def test_jaas_lines() -> None:
    line = PLAIN_LINE + r'username="me" password="a\"b;c" user_ann="x" user_b.c=y ;'
    found = parse_jaas("name", line, "PLAIN")
    assert (found.username, found.password.reveal()) == ("me", 'a"b;c')
    assert {name: each.reveal() for name, each in found.users.items()} == {"ann": "x", "b.c": "y"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("'it is'", "it is"),
        (r"'\"\''", "\"'"),
        (r'"\\\n\t\x\8"', "\\\n\tx8"),
        (r'"\101\1\0777\400"', "A\1?7 0"),
        ("plain", "plain"),
    ],
)
def test_values_of_jaas_lines_as_java_reads_them(value: str, expected: str) -> None:
    """Expected values are those of Kafka's `JaasContext`, of which 60,000 random lines were compared."""
    line = f"a.PlainLoginModule Required password={value} username='me'user_ann=\"x\";"
    found = parse_jaas("name", line, "PLAIN")
    assert (found.username, found.password.reveal(), [*found.users]) == ("me", expected, ["ann"])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "is not of the form"),
        (PLAIN_LINE + "password=hush/it;", "is not of the form"),
        (PLAIN_LINE + 'username="hush', "is not of the form"),
        (PLAIN_LINE + 'username="hush" username="hush";', "username twice"),
        (PLAIN_LINE + 'serviceName="hush";', "serviceName, which is not supported"),
        ('a.ScramLoginModule required password="hush";', "PLAIN needs PlainLoginModule"),
    ],
)
def test_jaas_lines_that_are_none(line: str, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint) as raised:
        parse_jaas("name", line, "PLAIN")
    assert "hush" not in str(raised.value)


JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
SASL = {"listeners": "SASL_PLAINTEXT://127.0.0.1:1", "sasl.enabled.mechanisms": "PLAIN"}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"sasl.enabled.mechanisms": ""}, "set sasl.enabled.mechanisms"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "has GSSAPI; supported are"),
        ({}, "so set listener.name.sasl_plaintext.plain.sasl.jaas.config"),
        ({JAAS: PLAIN_LINE}, r"sasl\.mechanism\.inter\.broker\.protocol is not set"),
        ({JAAS: PLAIN_LINE, "sasl.mechanism.inter.broker.protocol": "PLAIN"}, "needs the username"),
        ({"sasl.jaas.config": PLAIN_LINE}, "for a listener and mechanism"),
        (
            {"listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class": "x"},
            "Java classes",
        ),
        ({"connections.max.reauth.ms": "300", JAAS: PLAIN_LINE}, "at least 1200"),
        (
            {JAAS: PLAIN_LINE, "listener.name.sasl_plaintext.plain.sasl.server.max.receive.size": "9"},
            "plain.sasl.server.max.receive.size is not supported for one mechanism",
        ),
        ({"sasl.kerberos.service.name": "kafka"}, "GSSAPI is not supported"),
    ],
)
def test_what_sasl_needs(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        read_security(split_security(SASL | settings)[0])

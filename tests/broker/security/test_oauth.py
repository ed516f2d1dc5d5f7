"""OAUTHBEARER: signed tokens log in; whatever else is sent is refused, counted and audited."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OctKey

from logstore.broker import client_security
from logstore.broker.errors import AuthenticationFailed
from logstore.broker.security import web
from logstore.broker.security.config import OAuthConfig, TlsConfig
from logstore.broker.security.jaas import Jaas
from logstore.broker.security.oauth import (
    BadToken,
    Keys,
    KeysUnreadable,
    OAuthBearer,
    Validator,
    bearer_logins,
    parse_keys,
)
from logstore.broker.security.sasl import Step
from logstore.broker.security.scram import LoginFailed
from logstore.broker.security.secret import Secret
from logstore.broker.security.tls import provider_context
from logstore.broker.security.tokens import ClientCredentials
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.files import wall_clock_ms
from logstore.errors import InvalidConfig
from tests.broker.asking import Asker
from tests.broker.security.hostile_tokens import GOOD, HOSTILE, NOW_S, OTHER
from tests.broker.security.provider import (
    AUDIENCE,
    ISSUER,
    claims,
    jwks,
    key,
    serving,
    settings,
    signed,
)
from tests.broker.security.test_login import Bench, run

INVALID = '{"status":"invalid_token"}'


def now_s() -> float:
    return wall_clock_ms() / 1000


def initial(token: str, authzid: str = "") -> bytes:
    prefix = f"a={authzid}" if authzid else ""
    return f"n,{prefix},\x01auth=Bearer {token}\x01\x01".encode()


def validator(directory: Path, **more: Any) -> Validator:
    path = directory / "jwks.json"
    if not path.exists():
        path.write_bytes(jwks(key()))
    config = OAuthConfig(
        **{
            "sasl_oauthbearer_jwks_endpoint_url": path.as_uri(),
            "sasl_oauthbearer_expected_audience": f"other, {AUDIENCE}",
            "sasl_oauthbearer_expected_issuer": ISSUER,
            **more,
        }
    )
    return Validator(config, Keys(config, provider_context(TlsConfig())), lambda: NOW_S * 1000)


async def check(found: Validator, *tokens: str) -> list[str | tuple[str, float]]:
    """What becomes of each token: why it is refused, or whose it is and for how long."""
    await found._keys.open()
    results: list[str | tuple[str, float]] = []
    for each in tokens:
        try:
            results.append(await found.check(each))
        except BadToken as error:
            results.append(str(error))
    return results


# --- tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        *(("RSA", f"{name}{bits}") for name in ("RS", "PS") for bits in (256, 384, 512)),
        ("P-256", "ES256"),
        ("P-384", "ES384"),
        ("P-521", "ES512"),
        ("Ed25519", "EdDSA"),
    ],
)
def test_signatures_by_private_keys(kind: str, algorithm: str, tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_bytes(jwks(key("k", kind)))
    good = signed(claims(NOW_S), key("k", kind), algorithm)
    start, _, signature = good.rpartition(".")
    forged = f"{start}.{signature[:20]}{'A' if signature[20] != 'A' else 'B'}{signature[21:]}"
    found = asyncio.run(check(validator(tmp_path), good, forged))
    assert found[0] == ("ann", 300)
    assert "signature is not valid" in str(found[1])


def test_hostile_tokens_are_refused_for_their_reason(tmp_path: Path) -> None:
    tokens = [token for token, _ in HOSTILE.values()]
    found = asyncio.run(check(validator(tmp_path), *tokens, GOOD))
    for (name, (_, reason)), result in zip(HOSTILE.items(), found[:-1], strict=True):
        assert isinstance(result, str), (name, result)
        assert reason in result, (name, result)
        assert len(result) < 300, name
    assert found[-1] == ("ann", 300)


def test_good_tokens_within_the_skew_of_clocks(tmp_path: Path) -> None:
    for token, expected in (
        (signed(claims(NOW_S, exp=NOW_S - 29)), ("ann", 2)),
        (signed(claims(NOW_S, exp=NOW_S + 1)), ("ann", 2)),
        (signed(claims(NOW_S, exp=NOW_S + 10.5, iat=NOW_S + 29, nbf=NOW_S + 29)), ("ann", 10.5)),
        (signed(claims(NOW_S, aud=["mail", "other"])), ("ann", 300)),
        (signed(claims(NOW_S, scope="read write")), ("ann", 300)),
        (signed(claims(NOW_S, scope=["read", "write"])), ("ann", 300)),
        (signed(claims(NOW_S), kid=None), ("ann", 300)),
        (signed(claims(NOW_S, sub="Ännchen, O=x")), ("Ännchen, O=x", 300)),
    ):
        assert asyncio.run(check(validator(tmp_path), token)) == [expected]


def test_claims_by_other_names_and_no_expectations(tmp_path: Path) -> None:
    more = {
        "sasl_oauthbearer_sub_claim_name": "client_id",
        "sasl_oauthbearer_scope_claim_name": "scp",
        "sasl_oauthbearer_expected_audience": "",
        "sasl_oauthbearer_expected_issuer": "",
    }
    token = signed(claims(NOW_S, client_id="batch", scp=["a"], aud=None, iss="x", scope="b b"))
    assert asyncio.run(check(validator(tmp_path, **more), token)) == [("batch", 300)]


@pytest.mark.parametrize("audience", ["mail", ["mail"], "", []])
def test_a_token_for_somebody_needs_an_expected_audience(audience: object, tmp_path: Path) -> None:
    found = validator(tmp_path, sasl_oauthbearer_expected_audience="")
    tokens = (signed(claims(NOW_S, aud=audience)), signed(claims(NOW_S, aud=None)))
    refused, accepted = asyncio.run(check(found, *tokens))
    assert "the expected one is not set" in str(refused)
    assert accepted == ("ann", 300)


def test_a_token_without_a_kid_may_be_signed_by_any_key(tmp_path: Path) -> None:
    """A provider that changes its key publishes the old and the new one for a while."""
    new = key("new")
    (tmp_path / "jwks.json").write_bytes(jwks(key(), key("curve", "P-256"), new))
    tokens = [signed(claims(NOW_S), each, kid=None) for each in (key(), new, OTHER)]
    *good, refused = asyncio.run(check(validator(tmp_path), *tokens))
    assert good == [("ann", 300), ("ann", 300)]
    assert "signature is not valid" in str(refused)


def test_keys_without_names_are_all_tried(tmp_path: Path) -> None:
    published = json.loads(jwks(key(), OTHER))
    for each in published["keys"]:
        del each["kid"]
    (tmp_path / "jwks.json").write_text(json.dumps(published))
    tokens = [signed(claims(NOW_S), each, kid=None) for each in (key(), OTHER)]
    assert asyncio.run(check(validator(tmp_path), *tokens, GOOD)) == [
        ("ann", 300),
        ("ann", 300),
        "no key has the token's kid 'one'",
    ]


def test_a_key_for_one_algorithm_checks_no_other(tmp_path: Path) -> None:
    published = json.loads(jwks(key()))
    published["keys"][0]["alg"] = "PS256"
    (tmp_path / "jwks.json").write_text(json.dumps(published))
    found = asyncio.run(check(validator(tmp_path), GOOD, signed(claims(NOW_S), algorithm="PS256")))
    assert found == ["the token's algorithm is RS256, its key's is PS256", ("ann", 300)]


# --- keys -------------------------------------------------------------------------------------


def test_what_is_no_public_key_for_signatures_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    private = key().as_dict(private=True)
    assert isinstance(private, dict)
    secret = OctKey.generate_key(256, {"kid": "secret"}).as_dict(private=True)
    weak = key("weak", "RSA-1024").as_dict(private=False)
    listed = [private, secret, weak, {**private, "kid": "enc", "use": "enc"}, {"kty": "new"}, 7]
    found = parse_keys(json.dumps({"keys": listed}).encode())
    assert [each.kid for each in found.keys] == ["one"]
    assert not found.keys[0].is_private
    assert "RSA below 2048 bits" in caplog.text
    for text in ("", "[]", "{}", '{"keys":{}}', '{"keys":[]}', json.dumps({"keys": [secret, weak]})):
        with pytest.raises(ValueError, match=r"keys|key|Expecting"):
            parse_keys(text.encode())


def test_keys_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:
    for url in ("file:///nowhere/jwks.json", "http://127.0.0.1:1/keys"):
        config = OAuthConfig(sasl_oauthbearer_jwks_endpoint_url=url)
        with pytest.raises(KeysUnreadable, match=url):
            asyncio.run(Keys(config, provider_context(TlsConfig())).open())


def test_a_wrong_file_of_keys_is_a_wrong_setting() -> None:
    """A broker that systemd starts again would not find it either."""
    config = OAuthConfig(sasl_oauthbearer_jwks_endpoint_url="file:///nowhere/jwks.json")
    with pytest.raises(InvalidConfig, match=r"jwks\.endpoint\.url: the keys at file:///nowhere"):
        asyncio.run(bearer_logins(config, provider_context(TlsConfig()), lambda: 0))


def test_a_start_waits_for_a_provider_that_starts_with_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> bytes:
        if len(caplog.messages) < 2:
            raise OSError("refused")
        return jwks(key())

    async def test() -> None:
        config = OAuthConfig(
            sasl_oauthbearer_jwks_endpoint_url="https://id/keys",
            sasl_oauthbearer_jwks_endpoint_retry_backoff_ms=1,
        )
        keys = Keys(config, provider_context(TlsConfig()))
        await keys.open(30)
        assert await keys.find("one")

    monkeypatch.setattr(web, "read", read)
    run(test)
    again = "the keys at https://id/keys cannot be read: refused; they are read again in 0.0 s"
    assert caplog.messages == [again, again]


def test_new_keys_are_found_and_unknown_ones_ask_seldom(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        late_s = 0.0
        with serving() as provider:
            config = OAuthConfig(sasl_oauthbearer_jwks_endpoint_url=f"{provider.url}/keys")
            keys = Keys(config, provider_context(TlsConfig()), lambda: late_s)
            await keys.open()
            provider.keys = jwks(OTHER)
            assert [await keys.find(f"random {number}") for number in range(50)] == [[]] * 50
            assert len(provider.asked) == 1, "the start; a flood of unknown kids asks nobody"
            late_s += 11
            found = await asyncio.gather(*(keys.find("other") for _ in range(9)), keys.find("x"))
            assert all(found[:9])
            assert len(provider.asked) == 2, "once for all that wait"
            assert await keys.find("one") == [], "a key that is withdrawn is not used any more"
            provider.status = 500
            late_s += 3_601
            assert await keys.find("other")
            assert await keys.find("other")
            assert len(provider.asked) == 3, "a failure is followed by a pause"
            assert "keeping the previous ones" in caplog.text
            provider.status = 302
            late_s += 11
            assert await keys.find("other")
            assert [path for path, _, _ in provider.asked] == ["/keys"] * 4, "redirects are not followed"
            provider.status, provider.keys = 200, jwks(key())
            late_s += 11
            assert await keys.find("other") == []
            assert await keys.find("one")

    run(test)


def test_a_provider_that_hangs_does_not_stop_logins_by_known_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    late_s, is_asked, goes_on = 0.0, threading.Event(), threading.Event()

    def hangs(url: str, context: object) -> bytes:
        is_asked.set()
        assert goes_on.wait(60)
        raise TimeoutError("timed out")

    async def test() -> None:
        nonlocal late_s
        with serving() as provider:
            config = OAuthConfig(sasl_oauthbearer_jwks_endpoint_url=f"{provider.url}/keys")
            keys = Keys(config, provider_context(TlsConfig()), lambda: late_s)
            await keys.open()
        monkeypatch.setattr(web, "read", hangs)
        late_s += 11
        unknown = asyncio.ensure_future(keys.find("made up"))
        try:
            while not is_asked.is_set():
                await asyncio.sleep(0.001)
            assert await asyncio.wait_for(keys.find("one"), 30)
            assert not unknown.done()
        finally:
            goes_on.set()
        late_s += 10  # what the request took
        assert await unknown == []
        is_asked.clear()
        assert await keys.find("one")
        assert not is_asked.is_set(), "the pause begins with the end of a request that failed"

    run(test)


def test_a_provider_that_does_not_speak_http_leaves_the_former_keys(caplog: pytest.LogCaptureFixture) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read(1 << 16)
        while asked.startswith(b"POST") and b"grant_type" not in asked:  # or the close is a reset
            asked += await reader.read(1 << 16)
        writer.write(b"garbage\r\n\r\n")
        writer.close()

    async def test() -> None:
        late_s = 0.0
        server = await asyncio.start_server(garbage, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
        config = OAuthConfig(sasl_oauthbearer_jwks_endpoint_url=url)
        keys = Keys(config, provider_context(TlsConfig()), lambda: late_s)
        with pytest.raises(KeysUnreadable, match=r"cannot be read: the answer is not HTTP"):
            await keys.open()
        ask = ClientCredentials(url, Jaas("me", Secret("secret"), {}), provider_context(TlsConfig()))
        with pytest.raises(OSError, match=f"^{re.escape(url)} returned no token: the answer is not HTTP"):
            await asyncio.get_running_loop().run_in_executor(None, ask)
        keys._take(parse_keys(jwks()))
        late_s += 3_601
        assert await keys.find("one")
        assert "keeping the previous ones" in caplog.text
        server.close()

    run(test)


# --- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic YTpi\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,,\x01auth=Bearer a.b.c",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"p=x,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01Auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01x y=z\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01x=\x00\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01\x01\x01",
        b"n,,\x01x=y\x01\x01",
        b"n,,\x01auth=x\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01" + b"a=b\x01" * 100_000,
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n" * 500_000,
        b"n,,\x01auth=Bearer " + b"a" * 500_000,
        b"\0ann\0ann-secret",
        b"n,,n=ann,r=abc",
    ],
)
def test_malformed_messages_are_refused_at_once(message: bytes, tmp_path: Path) -> None:
    with pytest.raises(LoginFailed, match="malformed"):
        asyncio.run(OAuthBearer(validator(tmp_path)).step(message))


def test_a_login_step_by_step(tmp_path: Path) -> None:
    async def test() -> None:
        found = validator(tmp_path)
        await found._keys.open()
        for message in (
            initial(GOOD),
            initial(GOOD, "ann"),
            f"n,,\x01auth=bEaReR  {GOOD}\x01traceId=1 2\x01\x01".encode(),
            f"n,a=ann,\x01host=kafka\x01port=9092\x01auth=Bearer {GOOD}\x01\x01".encode(),  # as in RFC 7628
        ):
            assert await OAuthBearer(found).step(message) == Step(b"", "ann", lifetime_ms=300_000)
        exchange = OAuthBearer(found)
        step = await exchange.step(initial(GOOD, "admin"))
        assert (step.answer.decode(), step.user, "another user" in step.refusal) == (INVALID, None, True)
        with pytest.raises(LoginFailed) as refused:
            await exchange.step(initial(GOOD))
        assert refused.value.args[1] == INVALID

    run(test)


def test_a_stop_does_not_wait_for_a_silent_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM during a start cancels it; asyncio waits for the threads of its executor."""
    released, ended = threading.Event(), threading.Event()

    def silent(*_: object) -> bytes:
        released.wait(5)
        ended.set()
        return b""

    monkeypatch.setattr(web, "read", silent)

    async def test() -> None:
        config = OAuthConfig(sasl_oauthbearer_jwks_endpoint_url="http://127.0.0.1:1/keys")
        opening = asyncio.create_task(Keys(config, provider_context(TlsConfig())).open())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        opening.cancel()

    asyncio.run(test())
    assert not ended.is_set()
    released.set()
    assert ended.wait(60)


# --- a broker ---------------------------------------------------------------------------------


def by_token(source: Callable[[], str], **more: str) -> Any:
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", **more}
    return client_security(properties, token=source)


async def login(asker: Asker, token: str) -> Any:
    await asker.ask(t.SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
    return await asker.ask(t.SaslAuthenticateRequest(auth_bytes=initial(token)), 1)


def test_our_client_logs_in_by_a_token_of_each_origin(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(signed(claims(now_s())) + "\n")

    async def test() -> None:
        async with Bench(**_as_names(settings(tmp_path))) as bench:
            with serving() as provider:
                answer = {"access_token": signed(claims(now_s(), sub="batch")), "expires_in": 300}
                provider.token = 200, json.dumps(answer).encode()
                module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
                properties = {
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "OAUTHBEARER",
                    "sasl.login.callback.handler.class": (
                        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
                    ),
                }
                endpoint = "sasl.oauthbearer.token.endpoint.url"
                jaas = f'{module} clientId="batch:1" clientSecret="sécret" scope="kafka";'
                of_client = properties | {endpoint: f"{provider.url}/token", "sasl.jaas.config": jaas}
                for security in (
                    by_token(lambda: signed(claims(now_s()))),
                    client_security(properties | {endpoint: file.as_uri()}),
                    client_security(of_client),
                ):
                    async with bench.client(security) as client:
                        await client.metadata()
                assert [path for path, _, _ in provider.asked] == ["/token"]
                _, body, authorization = provider.asked[0]
                assert body == b"grant_type=client_credentials&scope=kafka"
                sent = base64.b64decode(authorization.removeprefix("Basic ")).decode()
                assert sent == "batch%3A1:s%C3%A9cret"
                provider.token = 200, json.dumps(answer | {"expires_in": "300"}).encode()
                async with bench.client(client_security(of_client)) as client:
                    await client.metadata()
                for status, content, why in (
                    (401, b"{}", "refused to issue a token"),
                    (200, b"[]", "returned no access_token"),
                    (200, b'{"access_token":7}', "returned no access_token"),
                    (200, b'{"access_token":"a","expires_in":NaN}', "a lifetime of nan s"),
                    (200, b'{"access_token":"a","expires_in":1e400}', "a lifetime of inf s"),
                    (200, b'{"access_token":"a","expires_in":"soon"}', "returned no access_token"),
                ):
                    provider.token = status, content
                    async with bench.client(client_security(of_client)) as client:
                        with pytest.raises(AuthenticationFailed, match=why):
                            await client.metadata()
        assert "sécret" not in repr(client_security(of_client))

    run(test)


def _as_names(given: dict[str, str]) -> dict[str, str]:
    return {name.replace(".", "_"): value for name, value in given.items()}


def test_refused_tokens_are_answered_counted_and_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "logstore.audit")
    wrong = signed(claims(now_s(), aud="mail"))

    async def test() -> None:
        async with Bench(**_as_names(settings(tmp_path))) as bench:
            async with bench.asker() as asker:
                answer = await login(asker, wrong)
                assert (answer.error_code, bytes(answer.auth_bytes).decode()) == (0, INVALID)
                assert bench.counts.failed == 1, "a client that leaves now has been counted"
                answer = await asker.ask(t.SaslAuthenticateRequest(auth_bytes=b"\x01"), 1)
                assert (answer.error_code, answer.error_message) == (
                    ErrorCode.SASL_AUTHENTICATION_FAILED,
                    INVALID,
                )
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await asker.answer_bytes()
            assert bench.counts.failed == 1
            async with bench.client(by_token(lambda: wrong)) as client:
                with pytest.raises(AuthenticationFailed, match=r"refused: .*invalid_token"):
                    await client.metadata()
            async with bench.client(by_token(lambda: "no token")) as client:
                with pytest.raises(AuthenticationFailed, match="invalid characters"):
                    await client.metadata()
            assert (bench.counts.failed, bench.counts.successful) == (2, 0)

    run(test)
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "logstore.audit"]
    assert [(each["event"], each["mechanism"]) for each in lines] == [("login failed", "OAUTHBEARER")] * 2
    assert all("audience is 'mail'" in each["reason"] for each in lines)
    assert wrong.split(".")[2] not in caplog.text


@pytest.mark.parametrize(("reauth_ms", "least", "most"), [("0", 50_000, 60_000), ("5000", 5_000, 5_000)])
def test_a_session_ends_with_the_token_or_earlier(
    reauth_ms: str, least: int, most: int, tmp_path: Path
) -> None:
    async def test() -> None:
        given = settings(tmp_path, connections_max_reauth_ms=reauth_ms)
        async with Bench(**_as_names(given)) as bench, bench.asker() as asker:
            answer = await login(asker, signed(claims(now_s(), exp=now_s() + 60)))
            assert answer.error_code == 0
            assert least <= answer.session_lifetime_ms <= most

    run(test)


def test_a_client_logs_in_again_with_a_new_token_and_nobody_else_may(tmp_path: Path) -> None:
    given: list[str] = []

    def source() -> str:
        given.append(signed(claims(now_s(), exp=now_s() + 3)))
        return given[-1]

    async def test() -> None:
        async with Bench(**_as_names(settings(tmp_path))) as bench:
            async with bench.client(by_token(source)) as client:
                await client.metadata()
                while not bench.counts.renewed:
                    await asyncio.sleep(0.05)
                    await client.metadata()
            assert (bench.counts.expired, bench.counts.failed) == (0, 0)
            assert len(set(given)) >= 2
            async with bench.asker() as asker:
                assert (await login(asker, signed(claims(now_s())))).error_code == 0
                await asyncio.sleep(1.01)  # a connection may log in again once a second
                answer = await login(asker, signed(claims(now_s(), sub="bob")))
                assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert "Cannot change principals" in answer.error_message

    run(test)


# --- strangers --------------------------------------------------------------------------------

MALFORMED = (b"", b"n,,", b"\xff" * 9, b"n" * 500_000, b"n,,\x01auth=Bearer " + b"a" * 500_000 + b"\x01\x01")


def test_every_hostile_login_is_closed_counted_once_and_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "logstore.audit")
    messages = [initial(token) for token, _ in HOSTILE.values() if token] + list(MALFORMED)

    async def test() -> None:
        async with Bench(**_as_names(settings(tmp_path))) as bench:

            async def one(message: bytes) -> None:
                async with bench.asker() as asker:
                    await asker.ask(t.SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
                    answer = await asker.ask(t.SaslAuthenticateRequest(auth_bytes=message), 1)
                    if not answer.error_code:
                        assert bytes(answer.auth_bytes).decode() == INVALID
                        # Whatever follows a refusal, even a good token, is refused.
                        good = initial(signed(claims(now_s())))
                        answer = await asker.ask(t.SaslAuthenticateRequest(auth_bytes=good), 1)
                    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                        await asker.answer_bytes()

            for start in range(0, len(messages), 20):
                await asyncio.gather(*map(one, messages[start : start + 20]))
            assert (bench.counts.failed, bench.counts.successful) == (len(messages), 0)
            async with bench.asker() as asker:
                assert (await login(asker, signed(claims(now_s())))).error_code == 0

    run(test)
    lines = [each.getMessage() for each in caplog.records if each.name == "logstore.audit"]
    assert [json.loads(line)["event"] for line in lines] == ["login failed"] * len(messages) + ["login"]
    assert max(map(len, lines)) < 1_000

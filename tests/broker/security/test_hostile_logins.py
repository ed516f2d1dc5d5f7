"""Hostile logins: a table of what strangers send before they are logged in, and a fuzz of SASL's messages.

Each case ends with a closed connection and is counted as a failed login; together they take little memory,
and the broker serves on.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import hmac
import struct
import tracemalloc
from collections.abc import Iterator
from hashlib import new
from random import Random
from typing import Any, Final

import pytest

from logstore.broker.security import scram
from logstore.broker.security.sasl import Exchange, Plain, Scram
from logstore.broker.security.scram import Credential, LoginFailed
from logstore.broker.security.secret import Secret
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import request_frame
from tests.broker.asking import Asker
from tests.broker.security.test_login import MECHANISMS, Bench, logged_in

SCRAMS: Final = MECHANISMS[1:]
MOST_BYTES: Final = 48 << 20
"""Of memory, while twenty connections at a time send what they like. One may send 512 KiB."""
Steps = list["Struct | bytes | str"]
"""Requests to be answered, or raw bytes; last of all comes the end of the connection. A text names a step
that needs earlier answers."""


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def header(key: int, version: int, rest: bytes = bytes(20)) -> bytes:
    return framed(struct.pack(">hhih", key, version, 1, -1) + rest)


def handshake(mechanism: str) -> t.SaslHandshakeRequest:
    return t.SaslHandshakeRequest(mechanism=mechanism)


def token(data: bytes) -> t.SaslAuthenticateRequest:
    return t.SaslAuthenticateRequest(auth_bytes=data)


def final(mechanism: str, first: bytes, answer: bytes, password: str, **change: bytes) -> bytes:
    """A client's last SCRAM message; `change` replaces parts of it, before or after they are proved."""
    fields = dict(part.split(b"=", 1) for part in answer.split(b","))
    salted = scram.salted_password(
        mechanism, Secret(password), base64.b64decode(fields[b"s"]), int(fields[b"i"])
    )
    name = scram.HASHES[mechanism]
    key = hmac.digest(salted, b"Client Key", name)
    binding, nonce = change.get("binding", b"biws"), change.get("nonce", fields[b"r"])
    proved = b"c=" + binding + b",r=" + nonce + change.get("extension", b"")
    message = first.removeprefix(b"n,,") + b"," + answer + b"," + proved
    signature = hmac.digest(new(name, key).digest(), message, name)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
    return change.get("said", proved) + b",p=" + change.get("proof", proof)


FIRST: Final = b"n,,n=ann,r=abcdefgh"
BAD_FIRSTS: Final = {
    "empty": b"",
    "one byte": b"n",
    "no nonce": b"n,,n=ann",
    "an empty nonce": b"n,,n=ann,r=",
    "no name": b"n,,r=abc",
    "an empty name": b"n,,n=,r=abc",
    "no header": b"n=ann,r=abc",
    "channel binding asked": b"p=tls-unique,,n=ann,r=abc",
    "channel binding possible": b"y,,n=ann,r=abc",
    "a mandatory extension": b"n,,m=x,n=ann,r=abc",
    "somebody else's authzid": b"n,a=admin,n=ann,r=abc",
    "a delegation token": b"n,,n=ann,r=abc,tokenauth=true",
    "a bare equals sign": b"n,,n=a=nn,r=abc",
    "an unknown escape": b"n,,n=a=2Dnn,r=abc",
    "a zero in the name": b"n,,n=a\0nn,r=abc",
    "a zero in the nonce": b"n,,n=ann,r=a\0bc",
    "a line end in the nonce": b"n,,n=ann,r=a\nbc",
    "not ASCII": "n,,n=änn,r=abc".encode(),
    "not UTF-8": b"n,,n=\xff\xfe,r=abc",
    "twice": FIRST + FIRST,
    "the last message first": b"c=biws,r=abcdefgh,p=AAAA",
    "the server's message": b"r=abc,s=AAAA,i=4096",
    "iterations": b"n,,n=ann,r=abc,i=1",
    "a long name": b"n,,n=" + b"x" * 2_000 + b",r=abc",
    "half a megabyte of name": b"n,,n=" + b"x" * 500_000 + b",r=abc",
    "half a megabyte of escapes": b"n,,n=" + b"=2C" * 166_000,
    "half a megabyte of commas": b"n,," + b"," * 500_000,
    "half a megabyte of extensions": b"n,,n=ann,r=abc" + b",a=b" * 120_000 + b",",
    "a PLAIN token": b"\0ann\0ann-secret",
    "an OAUTHBEARER token": b"n,,\x01auth=Bearer e30.e30.\x01\x01",
}
BAD_FINALS: Final[dict[str, dict[str, bytes]]] = {
    "another binding": {"binding": b"eSws"},
    "no base64 in the binding": {"binding": b"====="},
    "the nonce of another login": {"nonce": b"abcdefgh0123456789abcdefghi"},
    "the client's nonce alone": {"nonce": b"abcdefgh"},
    "no server nonce": {"nonce": b"x"},
    "a proof of nothing": {"proof": b"AAAA"},
    "a proof of zeros": {"proof": base64.b64encode(bytes(32))},
    "a long proof": {"proof": base64.b64encode(bytes(64) * 9)},
    "a huge proof": {"proof": b"A" * 400_000},
    "no base64 in the proof": {"proof": b"A=A="},
    "an extension that is not proved": {"said": b"c=biws,r=abcdefgh,x=y"},
    "nothing": {"said": b"", "proof": b""},
    "the first message again": {"said": FIRST},
    "not ASCII": {"proof": b"\xff"},
    "iterations of its own": {"said": b"c=biws,i=1"},
    "a salt for a nonce": {"nonce": b"AAAA"},
}
BAD_PLAINS: Final = {
    "empty": b"",
    "a zero": b"\0",
    "two zeros": b"\0\0",
    "no name": b"\0\0ann-secret",
    "no password": b"\0ann\0",
    "no zeros": b"annann-secret",
    "four parts": b"\0ann\0ann-secret\0",
    "another authzid": b"bob\0ann\0ann-secret",
    "another case": b"\0ANN\0ann-secret",
    "a space behind": b"\0ann \0ann-secret",
    "another's password": b"\0ann\0bob-secret",
    "an unknown user": b"\0eve\0ann-secret",
    "the default of unknown users": b"\0eve\0\0",
    "not UTF-8": b"\0\xff\0\xfe",
    "half a megabyte of password": b"\0ann\0" + b"x" * 500_000,
    "half a megabyte of name": b"\0" + b"x" * 500_000 + b"\0x",
    "half a megabyte of zeros": bytes(500_000),
    "a SCRAM message": FIRST,
}


def cases() -> Iterator[tuple[str, Steps]]:
    for key in range(100):
        if key not in (17, 18):
            yield f"API {key} before the handshake", [header(key, 0)]
        if key != 36 and key < 70:
            yield f"API {key} behind the handshake", [handshake("PLAIN"), header(key, 0)]
    for key in (-1, -32768, 32767):
        yield f"API {key}", [header(key, 0)]
    for size in (-1, -(2**31), 0, (512 << 10) + 1, 100 << 20, 2**31 - 1):
        sent = struct.pack(">i", size)
        yield f"a frame of {size} bytes", [sent]
        yield f"a frame of {size} bytes behind the handshake", [handshake("PLAIN"), sent]
        if size:
            yield f"a bare token of {size} bytes", ["bare", sent]
    for size in (1, 2, 7, 8, 9):
        yield f"a header of {size} bytes", [framed(header(18, 3)[4 : 4 + size])]
    for number in range(12):
        data = Random(number).randbytes(100)
        yield f"noise {number}", [framed(b"\0\x11" + data)]
    for name in ("", "plain", "GSSAPI", "OAUTHBEARER", "SCRAM-SHA-1", "EXTERNAL", "none", "x" * 32_767):
        yield f"mechanism {name[:20]!r}", [handshake(name)]
    yield "an unknown version of the handshake", [header(17, 9)]
    yield "an unknown version of the token", [handshake("PLAIN"), header(36, 9)]
    yield "a handshake that is cut", [framed(b"".join(request_frame(handshake("PLAIN"), 1, 1, "c"))[4:-3])]
    yield "another handshake in the middle", [handshake("PLAIN"), handshake("PLAIN")]
    yield "TLS on a plain port", [bytes.fromhex("160301020001000200")]
    yield "HTTP", [b"GET / HTTP/1.1\r\n\r\n"]
    for name, data in BAD_PLAINS.items():
        yield f"PLAIN: {name}", [handshake("PLAIN"), token(data)]
        yield f"PLAIN, bare: {name}", ["bare", framed(data)]
    for mechanism in SCRAMS:
        for name, data in BAD_FIRSTS.items():
            yield f"{mechanism}, first: {name}", [handshake(mechanism), token(data)]
        for name in BAD_FINALS:
            yield f"{mechanism}, last: {name}", [handshake(mechanism), token(FIRST), f"final:{name}"]
        yield f"{mechanism}, replayed", [handshake(mechanism), token(FIRST), "replay"]
        yield f"{mechanism}, three firsts", [handshake(mechanism), token(FIRST), token(FIRST)]


CASES: Final = list(cases())


async def play(bench: Bench, steps: Steps, replayed: dict[str, bytes]) -> None:
    """Send a case, and read until the broker has closed the connection."""
    async with bench.asker() as asker:
        answer, mechanism = b"", ""
        for number, step in enumerate(steps):
            is_last = number == len(steps) - 1
            if step == "bare":
                await asker.ask(handshake("PLAIN"), 0)
                continue
            if isinstance(step, t.SaslHandshakeRequest):
                mechanism = step.mechanism
            if isinstance(step, str):
                password = "ann-secret" if step == "replay" else "wrong"
                change = {} if step == "replay" else BAD_FINALS[step.removeprefix("final:")]
                data = final(mechanism, FIRST, answer, password, **change)
                step = token(replayed[mechanism] if step == "replay" else data)
            if isinstance(step, bytes):
                asker.send_bytes(step)
            elif is_last:
                asker.send(step, 1)
            else:
                found = await asker.ask(step, 1)
                answer = bytes(getattr(found, "auth_bytes", b""))
        await read_to_the_end(asker)


async def read_to_the_end(asker: Asker) -> None:
    try:
        while True:
            await asker.answer_bytes()
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return


async def scram_login(bench: Bench, mechanism: str) -> bytes:
    """Log in; the last message, which no other login may use."""
    async with bench.asker() as asker:
        await asker.ask(handshake(mechanism), 1)
        answer = await asker.ask(token(FIRST), 1)
        data = final(mechanism, FIRST, bytes(answer.auth_bytes), "ann-secret")
        assert (await asker.ask(token(data), 1)).error_code == 0
        return data


def test_every_hostile_login_is_closed_and_counted() -> None:
    assert len(CASES) >= 300

    async def test() -> None:
        async with Bench() as bench:
            replayed = {each: await scram_login(bench, each) for each in SCRAMS}
            room = asyncio.Semaphore(20)

            async def one(name: str, steps: Steps) -> None:
                async with room:
                    try:
                        await play(bench, steps, replayed)
                    except Exception as error:
                        error.add_note(name)
                        raise

            gc.collect()
            tracemalloc.start()
            try:
                await asyncio.gather(*(one(name, steps) for name, steps in CASES))
                gc.collect()
                left, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert (bench.counts.failed, bench.counts.successful) == (len(CASES), len(SCRAMS))
            assert peak < MOST_BYTES
            assert left < 4 << 20
            async with bench.asker() as asker:
                assert (await logged_in(asker)).error_code == 0

    async def bounded() -> None:
        async with asyncio.timeout(300):  # traced memory makes a busy machine slow
            await test()

    asyncio.run(bounded())


# --- a fuzz of the messages -----------------------------------------------------------------------

ANN: Final = {
    each: scram.credential(
        each, scram.salted_password(each, Secret("ann-secret"), b"salt", 4096), b"salt", 4096
    )
    for each in SCRAMS
}


async def find(user: str, mechanism: str) -> Credential | None:
    return ANN[mechanism] if user == "ann" else None


def stepped(exchange: Exchange, data: bytes) -> Any:
    """What a message leads to; nothing here waits."""
    running = exchange.step(data)
    try:
        running.send(None)
    except StopIteration as done:
        return done.value
    except LoginFailed:
        return None
    raise AssertionError("a step waits")


def mutated(data: bytes, random: Random) -> bytes:
    """Cut, repeat, replace, insert, or leave as it is."""
    changed = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 2, 5))):
        at = random.randrange(len(changed) + 1)
        match random.randrange(5):
            case 0:
                del changed[at : at + random.randrange(1, 9)]
            case 1:
                changed[at:at] = changed[: random.randrange(len(changed) + 1)]
            case 2:
                changed[at : at + 1] = random.randbytes(1)
            case 3:
                changed[at:at] = random.choice((b",", b"=", b"\0", b"=2C", b"r=", b",a=b", b"\xff"))
            case 4:
                del changed[at:]
    return bytes(changed)


def fuzz(count: int, seed: int) -> int:
    """Return how many logins succeeded; only those may that prove the password."""
    random, succeeded = Random(seed), 0
    for _ in range(count):
        mechanism = random.choice(MECHANISMS)
        if mechanism == "PLAIN":
            data = mutated(b"\0ann\0ann-secret", random)
            done = stepped(Plain({"ann": Secret("ann-secret")}), data)
            if done is not None:
                assert done.user == "ann"
                assert data in (b"\0ann\0ann-secret", b"ann\0ann\0ann-secret")
                succeeded += 1
            continue
        exchange = Scram(mechanism, find, b"secret", random)
        sent = mutated(FIRST, random)
        begun = stepped(exchange, sent)
        if begun is None:
            continue
        assert begun.user is None
        honest = _quick_final(mechanism, sent, begun.answer)
        data = mutated(honest, random)
        done = stepped(exchange, data)
        if done is not None:
            assert done.user == "ann"
            # The last characters of a proof have bits that mean nothing.
            assert data.rstrip(b"=")[:-1] == honest.rstrip(b"=")[:-1]
            succeeded += 1
    return succeeded


def _quick_final(mechanism: str, first: bytes, answer: bytes) -> bytes:
    """The honest last message to whatever the first one was, from the stored keys' own salted password."""
    name = scram.HASHES[mechanism]
    key = hmac.digest(_SALTED[mechanism], b"Client Key", name)
    parsed = scram.parse_first(first)
    nonce = answer.split(b",s=")[0].removeprefix(b"r=")
    proved = b"c=" + base64.b64encode(parsed.header.encode()) + b",r=" + nonce
    message = parsed.bare.encode() + b"," + answer + b"," + proved
    signature = hmac.digest(new(name, key).digest(), message, name)
    return proved + b",p=" + base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))


_SALTED: Final = {each: scram.salted_password(each, Secret("ann-secret"), b"salt", 4096) for each in SCRAMS}


def test_fuzzed_messages() -> None:
    assert fuzz(5_000, seed=1) > 100


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_fuzzed_messages() -> None:
    assert fuzz(1_000_000, seed=2) > 20_000

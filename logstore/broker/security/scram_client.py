"""SCRAM's messages on the client's side (RFC 5802, 7677), as Kafka's clients write them. Pure.

The messages are those of `scram.py`. Passwords are raw UTF-8 on both sides: Kafka does not prepare them
(SASLprep), so one with a ligature or a non-breaking space is what was typed.
"""

from __future__ import annotations

import base64
import hmac
import re
from typing import Final, NamedTuple

from logstore.broker.security.scram import HASHES, LEAST_ITERATIONS, credential, salted_password
from logstore.broker.security.secret import Secret

_HEADER: Final = "n,,"
_BY_TOKEN: Final = ",tokenauth=true"
_SERVER_FIRST: Final = re.compile(
    r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/]+={0,2}),i=([0-9]{1,20})(?:,.*)?", re.ASCII
)
_MOST_ITERATIONS: Final = 1_000_000
"""A server could ask for hours of work."""


class Violation(Exception):
    """A server's message is not what SCRAM requires, or is not safe to answer."""


class ClientFirst(NamedTuple):
    """A client's first message."""

    bare: str
    nonce: str

    @property
    def message(self) -> bytes:
        return f"{_HEADER}{self.bare}".encode()


class ClientFinal(NamedTuple):
    """A client's last message, and the answer that proves that the server knows the user's keys."""

    message: bytes
    expected: bytes


def client_first(name: str, nonce: str, *, by_token: bool = False) -> ClientFirst:
    """Return the first message of a user, or of the delegation token of that id."""
    escaped = name.replace("=", "=3D").replace(",", "=2C")
    return ClientFirst(f"n={escaped},r={nonce}{_BY_TOKEN if by_token else ''}", nonce)


def client_final(mechanism: str, password: Secret, first: ClientFirst, answer: bytes) -> ClientFinal:
    """Return what follows the server's first message: milliseconds of work. Raises `Violation`."""
    text = answer.decode("ascii", "replace")
    match = _SERVER_FIRST.fullmatch(text)
    if match is None:
        raise Violation(f"the broker's first SCRAM message is malformed: {text!r:.100}")
    nonce, salt, iterations = match[1], match[2], int(match[3])
    if not nonce.startswith(first.nonce) or nonce == first.nonce:
        raise Violation("the broker's SCRAM nonce does not extend the client's")
    if not LEAST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
        raise Violation(
            f"the broker asks for an unsafe number of iterations; expected {LEAST_ITERATIONS} to "
            f"{_MOST_ITERATIONS}"
        )
    try:
        raw = base64.b64decode(salt, validate=True)
    except ValueError:
        raise Violation("the salt of the broker's first SCRAM message is malformed") from None
    name = HASHES[mechanism]
    salted = salted_password(mechanism, password, raw, iterations)
    keys = credential(mechanism, salted, raw, iterations)
    without_proof = f"c={base64.b64encode(_HEADER.encode()).decode()},r={nonce}"
    message = f"{first.bare},{text},{without_proof}".encode()
    signature = hmac.digest(keys.stored_key, message, name)
    client_key = hmac.digest(salted, b"Client Key", name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    verifier = base64.b64encode(hmac.digest(keys.server_key, message, name)).decode()
    final = f"{without_proof},p={base64.b64encode(proof).decode()}"
    return ClientFinal(final.encode(), f"v={verifier}".encode())

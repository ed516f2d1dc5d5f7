"""SCRAM's keys and messages (RFC 5802, 7677) on the server's side, as Kafka reads them. Pure.

    client-first   n,[a=AUTHZID],n=NAME,r=NONCE[,ext]      `=` is =3D and `,` is =2C in names
    server-first   r=NONCE+SERVER NONCE,s=SALT,i=ITERATIONS
    client-final   c=biws,r=NONCE,p=PROOF
    server-final   v=SIGNATURE

Passwords are raw UTF-8: Kafka does not prepare them (SASLprep). librdkafka to 2.6.0 sends the client's part
of the nonce twice in the last message, so a nonce that ends with the one sent is accepted; the proof covers
what was sent.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from dataclasses import dataclass
from hashlib import pbkdf2_hmac, sha256
from typing import Final, NamedTuple

from logstore.broker.security.secret import Secret

LEAST_ITERATIONS: Final = 4_096
MOST_ITERATIONS: Final = 16_384
LONGEST_MESSAGE: Final = 8 << 10
"""Bytes of a client's message."""
HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Names of hash functions by mechanism."""
_SIZES: Final = {"sha256": 32, "sha512": 64}

_SAFE: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)"
_EXTENSIONS: Final = r"((?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*)"
_FIRST: Final = re.compile(
    rf"(n,(?:a=({_SAFE}+))?,)((?:m=[^,]*,)?n=({_SAFE}+),r=([\x21-\x2b\x2d-\x7e]+){_EXTENSIONS})"
)
_FINAL: Final = re.compile(
    rf"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+){_EXTENSIONS}),p=([A-Za-z0-9+/=]+)"
)


class LoginFailed(Exception):
    """A login is refused. The text is for the log; the client's answer is the same for every user."""


class Credential(NamedTuple):
    """A stored SCRAM credential: it verifies a password and does not contain it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


@dataclass(frozen=True, slots=True)
class ClientFirst:
    header: str
    bare: str
    name: str
    nonce: str
    has_token: bool
    """Whether the name is the id of a delegation token."""


def salted_password(mechanism: str, password: Secret, salt: bytes, iterations: int) -> bytes:
    """Return the slow part of a password's keys: milliseconds of processor time."""
    return pbkdf2_hmac(HASHES[mechanism], password.reveal().encode(), salt, iterations)


def credential(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """Return the credential of a salted password."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return Credential(salt, _hash(name, client_key), hmac.digest(salted, b"Server Key", name), iterations)


def made_up(mechanism: str, user: str, secret: bytes) -> Credential:
    """Return a credential for an unknown user: always the same, and no password fits it."""
    seed = hmac.digest(secret, f"{mechanism},{user}".encode(), "sha512")
    size = _SIZES[HASHES[mechanism]]
    salt = base36(int.from_bytes(seed[:17], "big") >> 6).encode()  # 130 bits
    keys = [hmac.digest(secret, seed + part, "sha512")[:size] for part in (b"stored", b"server")]
    return Credential(salt, keys[0], keys[1], LEAST_ITERATIONS)


def base36(number: int) -> str:
    """Return a number in the digits 0-9 and a-z: so Kafka writes nonces and salts."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits or "0"


# --- messages ---------------------------------------------------------------------------------


def parse_first(token: bytes) -> ClientFirst:
    """Parse a client's first message. Raises `LoginFailed`."""
    match = _FIRST.fullmatch(_ascii(token))
    if match is None:
        raise LoginFailed("the first SCRAM message is malformed")
    header, authzid, bare, name, nonce, extensions = match.groups()
    if "m=" in bare.partition("n=")[0]:
        raise LoginFailed("the first SCRAM message has a mandatory extension")
    user = _unescaped(name)
    if authzid is not None and _unescaped(authzid) != user:
        raise LoginFailed(f"user {user!r} asked to act as another user")
    return ClientFirst(header, bare, user, nonce, "tokenauth=true" in extensions)


def server_first(nonce: str, found: Credential) -> str:
    salt = base64.b64encode(found.salt).decode()
    return f"r={nonce},s={salt},i={found.iterations}"


def server_final(mechanism: str, first: ClientFirst, nonce: str, found: Credential, token: bytes) -> str:
    """Check a client's last message; return the server's. Raises `LoginFailed`."""
    match = _FINAL.fullmatch(_ascii(token))
    if match is None:
        raise LoginFailed("the last SCRAM message is malformed")
    without_proof, binding, returned, _, proof = match.groups()
    name = HASHES[mechanism]
    if _decoded(binding) != first.header.encode():
        raise LoginFailed("the header of the last SCRAM message differs from that of the first")
    if not returned.endswith(nonce):
        raise LoginFailed("the last SCRAM message has the wrong nonce")
    message = f"{first.bare},{server_first(nonce, found)},{without_proof}".encode()
    signature = hmac.digest(found.stored_key, message, name)
    sent = _decoded(proof)
    if len(sent) != len(signature):
        raise LoginFailed("the size of the proof differs from that of the hash")
    client_key = bytes(a ^ b for a, b in zip(sent, signature, strict=True))
    if not hmac.compare_digest(_hash(name, client_key), found.stored_key):
        raise LoginFailed(f"wrong password for {first.name!r}, or no such user")
    return f"v={base64.b64encode(hmac.digest(found.server_key, message, name)).decode()}"


def _ascii(token: bytes) -> str:
    if len(token) > LONGEST_MESSAGE:  # the patterns take 240 bytes of memory for each
        raise LoginFailed(f"a SCRAM message of {len(token)} bytes is too long")
    try:
        return token.decode("ascii")
    except UnicodeDecodeError:
        raise LoginFailed("a SCRAM message is not ASCII") from None


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise LoginFailed("a SCRAM message has malformed base64") from None


def _hash(name: str, data: bytes) -> bytes:
    import hashlib

    return hashlib.new(name, data).digest()


def same(one: str, other: str) -> bool:
    """Compare texts in a time that does not depend on them."""
    return hmac.compare_digest(sha256(one.encode()).digest(), sha256(other.encode()).digest())

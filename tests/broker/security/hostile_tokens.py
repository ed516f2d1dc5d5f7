"""Tokens that nobody may log in by, and a part of the reason that the log gets."""

from __future__ import annotations

import hmac
from typing import Any

from logstore.broker.security.oauth import MOST_BYTES
from tests.broker.security.provider import AUDIENCE, ISSUER, claims, encoded, jwks, key, signed

NOW_S = 1_700_000_000


def by_secret(secret: bytes, algorithm: str = "HS256", **header: Any) -> str:
    """A token that is signed with a secret, for instance the text of the public key."""
    signing = f"{encoded({'alg': algorithm, 'kid': 'one', **header})}.{encoded(claims(NOW_S))}"
    return f"{signing}.{encoded(hmac.digest(secret, signing.encode(), 'sha256'))}"


def swapped(token: str, payload: object) -> str:
    """The same header and signature around another payload."""
    header, _, signature = token.split(".")
    return f"{header}.{encoded(payload)}.{signature}"


def unsigned(algorithm: object = "none", signature: str = "", **more: Any) -> str:
    return f"{encoded({'alg': algorithm, **more})}.{encoded(claims(NOW_S))}.{signature}"


GOOD = signed(claims(NOW_S))
PUBLIC = key().as_pem(private=False)  # type: ignore[union-attr]
OTHER = key("other")
OF_OTHER = OTHER.as_dict(private=False)
HOSTILE: dict[str, tuple[str, str]] = {
    "algorithm none": (unsigned(), "algorithm is 'none'"),
    "algorithm None": (unsigned("None"), "algorithm is 'None'"),
    "algorithm nOnE and a kid": (unsigned("nOnE", kid="one"), "algorithm is 'nOnE'"),
    "algorithm none, signed": (unsigned("none", GOOD.split(".")[2]), "algorithm is 'none'"),
    "no algorithm": (f"{encoded({'kid': 'one'})}.{encoded(claims(NOW_S))}.", "algorithm is None"),
    "a list of algorithms": (unsigned(["RS256"]), "algorithm is"),
    "the public key as a secret": (by_secret(PUBLIC), "algorithm is 'HS256'"),
    "the public JWK as a secret": (by_secret(jwks(key())), "algorithm is 'HS256'"),
    "HS512": (by_secret(PUBLIC, "HS512"), "algorithm is 'HS512'"),
    "a secret under RS256": (by_secret(PUBLIC, "RS256"), "signature is not valid"),
    "an empty secret": (by_secret(b""), "algorithm is 'HS256'"),
    "no signature": (unsigned("RS256", kid="one"), "signature is not valid"),
    "another's signature": (swapped(GOOD, claims(NOW_S, sub="admin")), "signature is not valid"),
    "another key under our kid": (signed(claims(NOW_S), OTHER, kid="one"), "signature is not valid"),
    "a key of its own in the header": (
        signed(claims(NOW_S), OTHER, kid="one", jwk=OF_OTHER),
        "signature is not valid",
    ),
    "a URL of keys in the header": (
        signed(claims(NOW_S), OTHER, kid="none", jku="http://127.0.0.1:1/keys"),
        "no key has the token's kid",
    ),
    "an unknown kid": (signed(claims(NOW_S), OTHER), "no key has the token's kid 'other'"),
    "a path as kid": (signed(claims(NOW_S), OTHER, kid="../../dev/null"), "no key has the token's kid"),
    "a long kid": (signed(claims(NOW_S), kid="k" * 1_001), "kid is not a string, or too long"),
    "a kid that is a number": (unsigned("RS256", kid=1), "kid is not a string"),
    "a kid that is an object": (unsigned("RS256", kid={"a": 1}), "kid is not a string"),
    "another algorithm of the same key type": (
        f"{encoded({'alg': 'PS256', 'kid': 'one'})}.{GOOD.split('.', 1)[1]}",
        "signature is not valid",
    ),
    "an algorithm of another key type": (
        f"{encoded({'alg': 'ES256', 'kid': 'one'})}.{GOOD.split('.', 1)[1]}",
        "signature is not valid",
    ),
    "an encrypted token": (".".join(["e30"] * 5), "three parts"),
    "two parts": ("e30.e30", "three parts"),
    "nothing": ("", "three parts"),
    "dots": ("..", "header is not JSON"),
    "a header that is a list": (f"{encoded([])}.e30.e30", "not a JSON object"),
    "a header of nested lists": (f"{encoded(b'[' * 9_000)}.e30.e30", "header is not JSON"),
    "critical extensions": (unsigned("RS256", kid="one", crit=["b64"], b64=False), "critical"),
    "a huge token": (signed(claims(NOW_S, pad="x" * MOST_BYTES)), f"more than {MOST_BYTES}"),
    "a payload that is no JSON": (signed(b"ann"), "payload is not JSON"),
    "a payload that is a list": (signed([claims(NOW_S)]), "payload is not a JSON object"),
    "a payload with NaN": (signed(b'{"exp":NaN}'), "payload is not JSON"),
    "expired": (signed(claims(NOW_S, exp=NOW_S - 31)), "expired 31 s ago"),
    "never expires": (signed(claims(NOW_S, exp=None)), "exp is not a time"),
    "expires at a text": (signed(claims(NOW_S, exp="2099")), "exp is not a time"),
    "expires at true": (signed(claims(NOW_S, exp=True)), "exp is not a time"),
    "expires at infinity": (signed(claims(NOW_S, exp=10**400)), "exp is not a time"),
    "expires before all time": (signed(claims(NOW_S, exp=-1)), "exp is not a time"),
    "never issued": (signed(claims(NOW_S, iat=None)), "iat is not a time"),
    "issued in the future": (signed(claims(NOW_S, iat=NOW_S + 31)), "issued in the future"),
    "not valid yet": (signed(claims(NOW_S, nbf=NOW_S + 31)), "not valid yet"),
    "valid from a text": (signed(claims(NOW_S, nbf="now")), "nbf is not a time"),
    "another issuer": (signed(claims(NOW_S, iss="https://evil.example")), "issuer is 'https://evil"),
    "the issuer with a slash": (signed(claims(NOW_S, iss=f"{ISSUER}/")), "issuer is"),
    "no issuer": (signed(claims(NOW_S, iss=None)), "issuer is None"),
    "a list of issuers": (signed(claims(NOW_S, iss=[ISSUER])), "issuer is"),
    "another audience": (signed(claims(NOW_S, aud="mail")), "audience is"),
    "no audience": (signed(claims(NOW_S, aud=None)), "audience is"),
    "an audience that begins like ours": (signed(claims(NOW_S, aud=f"{AUDIENCE}2")), "audience is"),
    "our audience among words": (signed(claims(NOW_S, aud=f"mail {AUDIENCE}")), "audience is"),
    "other audiences": (signed(claims(NOW_S, aud=["mail", "files"])), "audience is"),
    "an audience that is an object": (signed(claims(NOW_S, aud={AUDIENCE: 1})), "aud is neither"),
    "audiences that are numbers": (signed(claims(NOW_S, aud=[1])), "aud is neither"),
    "no subject": (signed(claims(NOW_S, sub=None)), "sub is not a principal's name"),
    "an empty subject": (signed(claims(NOW_S, sub="")), "sub is not a principal's name"),
    "a blank subject": (signed(claims(NOW_S, sub=" ")), "sub is not a principal's name"),
    "a subject that is a number": (signed(claims(NOW_S, sub=1)), "sub is not a principal's name"),
    "a subject that is nobody": (signed(claims(NOW_S, sub="ANONYMOUS")), "sub is not a principal's name"),
    "a long subject": (signed(claims(NOW_S, sub="x" * 1_025)), "sub is not a principal's name"),
    "a scope twice": (signed(claims(NOW_S, scope="read read")), "scope twice"),
    "scopes that are numbers": (signed(claims(NOW_S, scope=[1, 2])), "scope is neither"),
}

"""Names of certificates, and the rules that shorten them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from logstore.broker.security.principals import (
    ANONYMOUS,
    distinguished_name,
    mapped,
    parse_rules,
    principal_of,
)
from logstore.errors import InvalidConfig
from tests.broker.security.authority import signed

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "principal-rules.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["rules"])
def test_rules_are_those_of_kafka(case: dict[str, str]) -> None:
    if "name" in case:
        assert mapped(case["dn"], parse_rules(case["rules"])) == case["name"]
    elif "NoMatching" in case["error"]:
        assert mapped(case["dn"], parse_rules(case["rules"])) is None
    else:
        with pytest.raises(InvalidConfig):
            parse_rules(case["rules"])


def test_names_are_written_as_java_does() -> None:
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, 'A, "B" + C=D\\'),
            x509.NameAttribute(NameOID.COMMON_NAME, "#x "),
            x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b.c"),
        ]
    )
    assert distinguished_name(name) == (
        r"1.2.840.113549.1.9.1=#16056140622e63,CN=\#x\ ,O=A\, \"B\" \+ C\=D\\,C=DE"
    )


def test_the_principal_of_a_certificate() -> None:
    der = signed("alice").certificate.public_bytes(Encoding.DER)
    assert principal_of(der, parse_rules("DEFAULT")) == "User:CN=alice"
    assert principal_of(der, parse_rules("RULE:^CN=(.*)$/$1/U")) == "User:ALICE"
    assert principal_of(der, ()) is None
    assert principal_of(None, ()) == ANONYMOUS

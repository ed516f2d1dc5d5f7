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


@pytest.mark.parametrize(
    ("rule", "name", "expected"),
    [
        (r"RULE:^CN=(\w+).*$/$1/", "CN=Ünï,OU=É", None),
        (r"RULE:CN=(\w+),.*/\$1-\x/", "CN=a,OU=b", "$1-x"),
        (r"RULE:CN=(?<who>\w+),.*/${who}$12$0/", "CN=a,OU=b", "aa2CN=a,OU=b"),
        (r"RULE:CN=(\w+),.*/$2/", "CN=a,OU=b", "$2"),
    ],
)
def test_patterns_are_those_of_java(rule: str, name: str, expected: str | None) -> None:
    """Of 20,000 random rules and names, the results are those of Kafka's `SslPrincipalMapper`."""
    assert mapped(name, parse_rules(rule)) == expected


@pytest.mark.parametrize("replacement", ["$1", "$", "${who}"])
def test_a_replacement_without_its_group_is_refused(replacement: str) -> None:
    """Kafka refuses each connection to which the rule applies."""
    with pytest.raises(InvalidConfig, match="names a group that is not there"):
        parse_rules(f"RULE:CN=.*/{replacement}/")


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

"""Principals of certificates: distinguished names as Java writes them, and the rules that shorten them.

    rules    rule (, rule)*              the first that matches wins; without one the connection is refused
    rule     DEFAULT, or RULE:pattern/replacement/[L|U]; the pattern matches the whole name

A name has its last part first (RFC 2253). Types other than CN, C, O, OU, L, ST, STREET, DC and UID are
numbers, with the value's DER in hex.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore.errors import InvalidConfig

if TYPE_CHECKING:
    from cryptography.x509 import Name, NameAttribute

ANONYMOUS: Final = "User:ANONYMOUS"
_PART: Final = r"((?:\\.|[^\\/])*)"
_RULE: Final = re.compile(rf"\s*(?:DEFAULT|RULE:{_PART}/{_PART}/([LU]?))\s*(?:,|\Z)")
_NAMED: Final = re.compile(r"\(\?<(?=[A-Za-z])")
_REPLACEMENT: Final = re.compile(r"\\(.)|\$(?:([0-9]+)|\{(\w+)\})|([^\\$]+|[\\$])", re.DOTALL)
_KNOWN: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}


class Rule(NamedTuple):
    """`pattern` None is DEFAULT. The replacement has texts, and numbers of groups."""

    pattern: re.Pattern[str] | None
    replacement: tuple[str | int, ...] = ()
    case: str = ""


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parse `ssl.principal.mapping.rules`. Raises `InvalidConfig`."""
    rules, at = [], 0
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None:
            raise InvalidConfig(f"ssl.principal.mapping.rules has a malformed rule: {text[at:]!r}")
        at = match.end()
        pattern, replacement, case = match.groups()
        if pattern is None:
            rules.append(Rule(None))
            continue
        try:
            # Java's \w, \d and \s are ASCII, and its named groups have no P.
            compiled = re.compile(_NAMED.sub("(?P<", pattern.replace(r"\/", "/")), re.ASCII)
        except re.error as error:
            raise InvalidConfig(f"ssl.principal.mapping.rules: {pattern!r}: {error}") from error
        parts = tuple(_parts(replacement.replace(r"\/", "/"), compiled))
        rules.append(Rule(compiled, parts, case))
    return tuple(rules)


def _parts(replacement: str, pattern: re.Pattern[str]) -> Iterator[str | int]:
    """Read a replacement as Java's `Matcher.replaceAll`: `$n` has as many digits as there is a group for.

    Where the pattern has groups, but not this one, Kafka leaves `$n` as it is.
    """
    for escaped, digits, name, other in _REPLACEMENT.findall(replacement):
        ends = [end for end in range(len(digits), 0, -1) if int(digits[:end]) <= pattern.groups]
        number = int(digits[: ends[0]]) if ends else pattern.groupindex.get(name)
        if number is not None:
            yield number
            yield digits[ends[0] :] if ends else ""
        elif digits and pattern.groups:
            yield f"${digits}"
        elif not (escaped or other) or other in ("$", "\\"):
            raise InvalidConfig(
                f"ssl.principal.mapping.rules: {replacement!r} names a group that is not there"
            )
        else:
            yield escaped or other


def mapped(name: str, rules: tuple[Rule, ...]) -> str | None:
    """Return the name by the first rule that matches; None if none does."""
    for pattern, replacement, case in rules:
        if pattern is None:
            return name
        if pattern.fullmatch(name):
            found = pattern.sub(lambda match, parts=replacement: _filled(match, parts), name)  # type: ignore[misc]
            return {"L": found.lower(), "U": found.upper()}.get(case, found)
    return None


def _filled(match: re.Match[str], parts: Iterable[str | int]) -> str:
    return "".join(each if isinstance(each, str) else match[each] or "" for each in parts)


def principal_of(certificate: bytes | None, rules: tuple[Rule, ...]) -> str | None:
    """Return the principal of a certificate in DER; None if no rule matches. Without one: ANONYMOUS."""
    if certificate is None:
        return ANONYMOUS
    from cryptography.x509 import load_der_x509_certificate

    name = mapped(distinguished_name(load_der_x509_certificate(certificate).subject), rules)
    return f"User:{name}" if name is not None else None


def distinguished_name(name: Name) -> str:
    """Return a name as Java's `X500Principal.getName()` does."""
    return ",".join("+".join(_attribute(each) for each in rdn) for rdn in reversed(name.rdns))


def _attribute(attribute: NameAttribute[Any]) -> str:
    oid = attribute.oid.dotted_string
    if oid in _KNOWN:
        return f"{_KNOWN[oid]}={_escaped(str(attribute.value))}"
    value = attribute.value.encode() if isinstance(attribute.value, str) else attribute.value
    length = bytes([len(value)]) if len(value) < 128 else b"\x82" + len(value).to_bytes(2, "big")
    return f"{oid}=#{bytes([attribute._type.value]).hex()}{length.hex()}{value.hex()}"


def _escaped(text: str) -> str:
    escaped = re.sub(r'([,+"\\<>;=])', r"\\\1", text)
    if escaped.startswith((" ", "#")):
        escaped = f"\\{escaped}"
    return escaped[:-1] + "\\ " if len(escaped) > 1 and escaped.endswith(" ") else escaped

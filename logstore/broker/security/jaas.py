"""JAAS lines, in which Kafka's settings keep names and passwords. Pure.

org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="…" user_ann="…";
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from logstore.broker.security.secret import Secret
from logstore.errors import InvalidConfig

# A slash in a value without quotes begins a comment in Kafka.
_VALUE: Final = r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';/]+))"""
_OPTION: Final = rf"""(?:\s+|(?<=["']))([^\s="';]+)\s*=\s*{_VALUE}"""
_LINE: Final = re.compile(
    rf"\s*([\w.$]+)\s+(?i:required|requisite|sufficient|optional)((?:{_OPTION})*)\s*;?\s*"
)
_ESCAPE: Final = re.compile(r"\\(?:([0-3][0-7]{2}|[0-7]{1,2})|(.))")
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
"""Escapes of Java's `StreamTokenizer`, beside octal numbers; another character is itself."""
_USER: Final = "user_"
_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
    "DIGEST-MD5": "DigestLoginModule",
}
_MODULES_OF_SCRAM: Final = _MODULES["SCRAM-SHA-256"]


class Jaas(NamedTuple):
    """The content of a JAAS line: this side's user name and password, and the users of a server.

    With OAUTHBEARER, name and password are those of the client at its identity provider, and `scope` is what
    it asks for. `by_token`: they are those of a delegation token.
    """

    username: str
    password: Secret
    users: Mapping[str, Secret]
    scope: str = ""
    by_token: bool = False


def parse_jaas(setting: str, text: str, mechanism: str) -> Jaas:
    """Parse a line for this mechanism. Raises `InvalidConfig`, without the line: it has passwords."""
    match = _LINE.fullmatch(text)
    if match is None:
        raise InvalidConfig(f'{setting} is not of the form MODULE required username="…" password="…";')
    module = _MODULES.get(mechanism, _MODULES_OF_SCRAM)
    if match[1].rpartition(".")[2] != module:
        raise InvalidConfig(f"{setting} names {match[1]}; {mechanism} needs {module}")
    options: dict[str, str] = {}
    for name, double, single, bare in re.findall(_OPTION, match[2]):
        if name in options:
            raise InvalidConfig(f"{setting} has {name} twice")
        options[name] = _ESCAPE.sub(_unescaped, double or single) or bare
    if mechanism == "OAUTHBEARER":
        if unknown := sorted(options.keys() - {"clientId", "clientSecret", "scope"}):
            raise InvalidConfig(f"{setting} has {unknown[0]}, which is not supported")
        secret = Secret(options.get("clientSecret", ""))
        return Jaas(options.get("clientId", ""), secret, {}, options.get("scope", ""))
    by_token = options.pop("tokenauth", "false").lower() if module == _MODULES_OF_SCRAM else "false"
    if by_token not in ("true", "false"):
        raise InvalidConfig(f"{setting} has tokenauth={by_token!r}; expected true or false")
    users = {name[len(_USER) :]: Secret(value) for name, value in options.items() if name.startswith(_USER)}
    unknown = [
        name for name in options if name not in ("username", "password") and not name.startswith(_USER)
    ]
    if unknown:
        raise InvalidConfig(f"{setting} has {unknown[0]}, which is not supported")
    password = Secret(options.get("password", ""))
    return Jaas(options.get("username", ""), password, users, by_token=by_token == "true")


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 8)) if match[1] else _ESCAPED.get(match[2], match[2])

"""`logstore security check`: the access that a broker's settings allow, and their mistakes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from logstore.arguments import whole_number
from logstore.cli.operating import Json, properties_of
from logstore.cli.terminal import print_json

if TYPE_CHECKING:
    from logstore.broker.security.config import Listener, OAuthConfig, Security
    from logstore.broker.security.store import StoreSecurity

app = typer.Typer(help="The security of a broker.", no_args_is_help=True)

_OTHERS = 0o077
_UNUSABLE = "no broker starts with this file"


@app.callback()
def _group() -> None:
    pass


@app.command()
def check(
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The broker's properties file.")],
    http: Annotated[
        str, typer.Option("--http", metavar="HOST:PORT", help="The broker's HTTP port, as given to serve.")
    ] = "",
    metadata: Annotated[
        str, typer.Option("--metadata", metavar="STORE", help="Show users and ACLs of this store, too.")
    ] = "",
    as_json: Json = False,
) -> int:
    """Show listeners, users, permissions and the expiry of certificates; exit 1 if there is a problem.

    Nothing is changed, and the broker need not run.
    """
    from logstore.errors import InvalidConfig

    properties = properties_of(config, "--config")
    try:
        facts, problems = _judged(config, properties, http, metadata)
    except InvalidConfig as error:
        facts, problems = [], [f"{_UNUSABLE}: {error}"]
    for fact in facts:
        if as_json:
            print_json(fact)
        else:
            print("  ".join(f"{name} {_text(value)}" for name, value in fact.items()))
    for problem in problems:
        if as_json:
            print_json({"problem": problem})
        else:
            print(f"PROBLEM  {problem}")
    return int(bool(problems))


def _judged(
    config: Path, properties: dict[str, str], http: str, metadata: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what the settings allow, and their problems. Raises `InvalidConfig` if they have no meaning."""
    from logstore.broker.http_access import split_http
    from logstore.broker.properties import split_properties
    from logstore.broker.security.config import read_security, split_security
    from logstore.broker.security.store import StoreSecurity, split_store
    from logstore.cli.serve import KAFKAS_PORT

    listening, rest = split_properties(properties)
    of_http, settings = split_http(rest)
    store, rest = split_store(settings)
    own, _ = split_security(rest)
    security = read_security(own)
    facts: list[dict[str, Any]] = []
    if security is None:
        facts.append(
            {"listener": "PLAINTEXT", "protocol": "PLAINTEXT", "bind": listening.get("listen", KAFKAS_PORT)}
        )
    else:
        facts += [_listener(each, security) for each in security.listeners]
        facts.append({"authorizer": _authorizer(security)})
    servers = listening.get("metadata", "")
    if servers:
        facts.append(_store(servers, store))
    if metadata:
        facts += _from_store(metadata, store if metadata.startswith("zookeeper:") else StoreSecurity())
    problems = [
        *_problems_of_settings(listening.get("node.id", "0"), settings),
        *_problems(config, properties, security, listening.get("listen", "")),
        *_problems_of_store(servers, store),
        *(_too_open(Path(metadata.removeprefix("embedded:"))) if metadata.startswith("embedded:") else ()),
        *_problems_of_http(http or listening.get("http", ""), of_http, rest),
    ]
    return facts, problems


def _problems_of_settings(number: str, settings: dict[str, str]) -> Iterator[str]:
    from logstore.broker.settings import read_settings
    from logstore.errors import InvalidConfig

    if whole_number(number, 0) is None:
        yield f"node.id: {number!r} is not a number, 0 or more"
    try:
        found = read_settings(settings, node_id=0, host="127.0.0.1", port=0)
        found.limits.most_by_ip()
    except InvalidConfig as error:
        yield f"{_UNUSABLE}: {error}"
        return
    path = Path(found.broker.audit_log_path)
    if found.broker.audit_log_path and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        yield f"{_UNUSABLE}: audit.log.path: {path} is no file that this user can write"


def _text(value: Any) -> str:
    return ",".join(value) or "-" if isinstance(value, list) else str(value)


def _listener(listener: Listener, security: Security) -> dict[str, Any]:
    from logstore.broker.security.tls import read_identity
    from logstore.errors import InvalidConfig

    facts: dict[str, Any] = {
        "listener": listener.name,
        "protocol": listener.protocol.name,
        "bind": str(listener.bind),
        "advertised": str(listener.advertised or "-"),
        "for": "brokers" if security.is_for_brokers(listener) else "clients",
    }
    if listener.protocol.has_tls:
        facts["client_certificate"] = listener.tls.ssl_client_auth
        try:
            identity = read_identity(listener.tls)
        except InvalidConfig:
            identity = None  # one of the problems
        facts["certificate_ends"] = f"{identity.ends:%Y-%m-%d}" if identity is not None else "-"
    if listener.protocol.has_sasl:
        facts["mechanisms"] = list(listener.sasl.mechanisms)
        plain = listener.jaas.get("PLAIN")
        if plain is not None:
            facts["plain_users"] = sorted(plain.users)
    return facts


def _authorizer(security: Security) -> str:
    if security.rules is None:
        return "none: everyone who can log in has full access"
    others = "open to everyone" if security.rules.allow_if_none else "closed to all but super users"
    supers = sorted(each for each in security.rules.super_users if each.startswith("User:"))
    return f"ACLs; what has no rule is {others}; super users: {', '.join(supers) or 'none'}"


def _store(servers: str, store: StoreSecurity) -> dict[str, Any]:
    has_certificate = store.tls is not None and bool(store.tls.ssl_keystore_location)
    login = "certificate" if has_certificate else "SASL" if store.login is not None else "none"
    return {
        "metadata": servers,
        "protocol": "SSL" if store.tls is not None else "PLAINTEXT",
        "login": login,
        "set_acl": store.set_acl,
    }


def _problems_of_store(servers: str, store: StoreSecurity) -> Iterator[str]:
    from logstore.broker.limits import is_loopback
    from logstore.broker.security.store import access_of
    from logstore.errors import InvalidConfig

    try:
        access_of(store)
    except InvalidConfig as error:
        yield f"the way to the metadata store: {error}"
        return
    if store.tls is not None and store.tls.ssl_keystore_location:
        yield from _too_open(Path(store.tls.ssl_keystore_location))
    hosts = servers.removeprefix("zookeeper://").partition("/")[0].split(",")
    if not servers or all(is_loopback(each.rpartition(":")[0].strip("[]") or each) for each in hosts):
        return
    if store.tls is None:
        yield f"the metadata store at {servers} is reached without TLS: set zookeeper.ssl.client.enable=true"
    if store.login is None and not (store.tls is not None and store.tls.ssl_keystore_location):
        yield (
            f"brokers do not log in to the metadata store at {servers}, so it must let anyone in: set "
            "zookeeper.ssl.keystore.location, and have it require certificates"
        )


def _problems_of_http(listener: str, own: dict[str, str], others: dict[str, str]) -> Iterator[str]:
    from logstore.broker.http_access import HttpAccess, parse_http, read_http
    from logstore.errors import InvalidConfig

    if not listener:
        return
    try:
        address, is_tls = parse_http(listener)
        config = read_http(own, others, is_tls=is_tls)
        HttpAccess(config)
    except (ValueError, InvalidConfig) as error:
        yield f"the HTTP port: {error}"
        return
    yield from config.problems(address)


def _from_store(metadata: str, store: StoreSecurity) -> Iterator[dict[str, Any]]:
    from logstore.broker.security.acl_store import read_all
    from logstore.broker.security.users import all_users
    from logstore.cli.users import with_store

    for user, found in with_store(metadata, all_users, store).items():
        yield {"user": user, "mechanisms": list(found)}
    for acl in sorted(with_store(metadata, read_all, store)):
        yield {
            "principal": acl.principal,
            "host": acl.host,
            "permission": acl.permission.name,
            "operation": acl.operation.name,
            "resource": f"{acl.resource.name}:{acl.pattern.name}:{acl.name}",
        }


def _problems(
    config: Path, properties: dict[str, str], security: Security | None, listen: str
) -> Iterator[str]:
    from logstore.broker.limits import parse_address
    from logstore.broker.security.config import refuse_open
    from logstore.broker.security.tls import WARN_DAYS, now, read_identity, server_context
    from logstore.errors import InvalidConfig

    try:
        refuse_open(security, parse_address(listen or "127.0.0.1:0"))
    except InvalidConfig as error:
        yield str(error)
    endings = (".jaas.config", "keystore.key", "token.secret.key", "token.master.key")
    if any("password" in name or name.endswith(endings) for name in properties):
        yield from _too_open(config)
    for listener in security.listeners if security is not None else ():
        if security is not None and security.rules is None and listener.lets_anyone_in:
            yield (
                f"listener {listener.name} on {listener.bind} gives everyone on the network full access: set "
                "ssl.client.auth=required or SASL_SSL, or an authorizer"
            )
        if "PLAIN" in listener.sasl.mechanisms and not listener.protocol.has_tls and listener.jaas:
            yield f"listener {listener.name} takes passwords without encryption (PLAIN without TLS)"
        if listener.oauth is not None:
            yield from _problems_of_tokens(listener, listener.oauth)
        if not listener.protocol.has_tls:
            continue
        try:
            server_context(listener.tls, now())
            identity = read_identity(listener.tls)
        except InvalidConfig as error:
            yield f"listener {listener.name}: {error}"
            continue
        if identity is not None and (left := (identity.ends - now()).days) < WARN_DAYS:
            yield f"listener {listener.name}: its certificate ends in {left} days"
        if listener.tls.ssl_keystore_location:
            yield from _too_open(Path(listener.tls.ssl_keystore_location))


def _problems_of_tokens(listener: Listener, oauth: OAuthConfig) -> Iterator[str]:
    import asyncio
    import ssl

    from logstore.broker.security.oauth import Keys, KeysUnreadable

    if not listener.protocol.has_tls:
        yield f"listener {listener.name} takes tokens without encryption (OAUTHBEARER without TLS)"
    if oauth.sasl_oauthbearer_jwks_endpoint_url.startswith("http:"):
        yield f"listener {listener.name} reads the keys of tokens without encryption: use https"
    if oauth.sasl_oauthbearer_jwks_endpoint_url.startswith("file:"):
        try:
            asyncio.run(Keys(oauth, ssl.create_default_context()).open())
        except KeysUnreadable as error:
            yield f"{_UNUSABLE}: sasl.oauthbearer.jwks.endpoint.url: {error}"
    by_tokens = listener.sasl.sasl_mechanism_inter_broker_protocol == "OAUTHBEARER"
    endpoint = urlsplit(oauth.sasl_oauthbearer_token_endpoint_url if by_tokens else "")
    if endpoint.scheme == "file" and (file := Path(unquote(endpoint.path))).exists():
        yield from _too_open(file)
    if endpoint.scheme == "http":
        yield f"brokers send their clientSecret without encryption (listener {listener.name}): use https"
    for what, value, tokens in (
        ("audience", oauth.audiences, "without an audience"),
        ("issuer", oauth.sasl_oauthbearer_expected_issuer, "of any issuer"),
    ):
        if not value:
            yield f"listener {listener.name} takes tokens {tokens}: set sasl.oauthbearer.expected.{what}"


def _too_open(path: Path) -> Iterator[str]:
    mode = path.stat().st_mode & 0o777
    if mode & _OTHERS:
        wanted = 700 if path.is_dir() else 600
        yield f"{path} has secrets, and others may read or write it (mode {mode:o}): chmod {wanted} {path}"

"""Security settings of brokers and clients, under Kafka's names. Pure.

    listeners                        NAME://host:port,…
    advertised.listeners             the addresses for others, under the same names
    listener.security.protocol.map   NAME:PROTOCOL,…
    inter.broker.listener.name       the listener of the brokers; or security.inter.broker.protocol
    control.plane.listener.name      the listener between the controller and the brokers, if it is another one
    delegation.token.…               tokens by which clients log in for others
    ssl.…, sasl.…                    for all listeners
    listener.name.<name>.ssl.…       for one listener; its name in lower case
    listener.name.<name>.<mechanism>.sasl.jaas.config

A setting for something that is not built is refused: to ignore it could leave a broker open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Final

from logstore.arguments import whole_number
from logstore.broker.limits import Address, is_loopback
from logstore.broker.security.acls import Rules
from logstore.broker.security.delegation import SETTINGS, TokenConfig, token_config
from logstore.broker.security.jaas import Jaas, parse_jaas
from logstore.broker.security.principals import parse_rules
from logstore.broker.security.sasl import MECHANISMS, OAUTHBEARER
from logstore.broker.security.secret import Secret
from logstore.broker.security.web import check_url
from logstore.broker.typed_settings import values_for
from logstore.config import MAX_INT, kafka_name, refuse_unknown
from logstore.errors import InvalidConfig
from logstore.replication.metastore.layout import SECURITY_PROTOCOLS

PLAINTEXT: Final = "PLAINTEXT"
LEAST_REAUTH_MS: Final = 1_200
_JAAS: Final = "sasl.jaas.config"
_REAUTH: Final = "connections.max.reauth.ms"
_RATE: Final = "max.connection.creation.rate"
_LISTENER: Final = re.compile(r"(?:([\w-]+)://)?([^:/]*|\[[^]]*\]):(\d{1,5})", re.ASCII)
_PREFIX: Final = "listener.name."
_CONTROL_PLANE: Final = "control.plane.listener.name"
OF_LISTENERS: Final = (
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "security.inter.broker.protocol",
    _CONTROL_PLANE,
    "authorizer.class.name",
    "super.users",
    "allow.everyone.if.no.acl.found",
)
AUTHORIZERS: Final = (
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)
IN_PROCESS: Final = "Program:in-process"
"""The principal of the program that a broker runs in; it may do everything."""
_STARTS: Final = ("ssl.", "sasl.", "connections.max.reauth.ms", SETTINGS, _PREFIX)
_HANDSHAKE: Final = "ssl.handshake.timeout.ms"
"""One of the limits of all connections, in spite of its name."""
_MECHANISM: Final = re.compile(r"\A(?:plain|scram-sha-256|scram-sha-512|gssapi|oauthbearer)\.")

NOT_BUILT: Final = {
    "client.quota.callback.class": "quota callbacks are Java classes",
    "password.encoder.": "passwords are not kept in the metadata store",
    "principal.builder.class": "principals are those of Kafka's default builder",
    "quota.consumer.default": "set a default quota with logstore quotas set",
    "quota.producer.default": "set a default quota with logstore quotas set",
    "sasl.client.callback.": "callback handlers are Java classes; use sasl.jaas.config",
    "sasl.kerberos.": "GSSAPI is not supported; use SCRAM-SHA-512",
    "sasl.login.": "login callbacks are not supported; use sasl.jaas.config",
    "sasl.server.callback.": "callback handlers are Java classes; use PLAIN or SCRAM-SHA-512",
    "security.providers": "security providers are Java classes",
    "ssl.engine.factory.class": "engine factories are Java classes",
    "ssl.keymanager.algorithm": "TLS is OpenSSL's and has no key managers",
    "ssl.provider": "TLS is OpenSSL's and has no providers",
    "ssl.secure.random.implementation": "TLS is OpenSSL's, with its own random numbers",
    "ssl.trustmanager.algorithm": "TLS is OpenSSL's and has no trust managers",
}
"""Settings of Kafka, by the start of their names, for what is not built here: refused with this reason, but
for Kafka's default."""
_DEFAULTS: Final = {
    "password.encoder.cipher.algorithm": "AES/CBC/PKCS5Padding",
    "password.encoder.iterations": "4096",
    "password.encoder.key.length": "128",
    "principal.builder.class": (
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
    ),
    "sasl.kerberos.kinit.cmd": "/usr/bin/kinit",
    "sasl.kerberos.min.time.before.relogin": "60000",
    "sasl.kerberos.principal.to.local.rules": "DEFAULT",
    "sasl.kerberos.ticket.renew.jitter": "0.05",
    "sasl.kerberos.ticket.renew.window.factor": "0.8",
    "sasl.login.refresh.buffer.seconds": "300",
    "sasl.login.refresh.min.period.seconds": "60",
    "sasl.login.refresh.window.factor": "0.8",
    "sasl.login.refresh.window.jitter": "0.05",
    "sasl.login.retry.backoff.max.ms": "10000",
    "sasl.login.retry.backoff.ms": "100",
    "ssl.keymanager.algorithm": "SunX509",
    "ssl.trustmanager.algorithm": "PKIX",
}
"""Of these settings in Kafka; the others have none."""
_HANDLER: Final = "sasl.server.callback.handler.class"
_VALIDATORS: Final = frozenset(
    f"org.apache.kafka.common.security.oauthbearer.{each}OAuthBearerValidatorCallbackHandler"
    for each in ("", "secured.")
)
"""Kafka's classes that check signed tokens, which is what happens here in any case."""


class Protocol(IntEnum):
    """A listener's security protocol, with Kafka's number."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def has_tls(self) -> bool:
        return self in (Protocol.SSL, Protocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS settings of a listener or a client. Stores are PEM or PKCS#12 files, or inline PEM."""

    ssl_keystore_type: str = "PEM"
    """Type of the key store: `PEM` or `PKCS12`. JKS is refused."""
    ssl_keystore_location: str = ""
    """File with the private key and the certificate chain."""
    ssl_keystore_password: Secret = field(default_factory=Secret)
    """Password of a PKCS#12 key store."""
    ssl_key_password: Secret = field(default_factory=Secret)
    """Password of an encrypted private key in PEM."""
    ssl_keystore_key: Secret = field(default_factory=Secret)
    """Private key as inline PEM, with `ssl.keystore.certificate.chain`."""
    ssl_keystore_certificate_chain: str = ""
    """Certificate chain as inline PEM, the own certificate first."""
    ssl_truststore_type: str = "PEM"
    """Type of the trust store: `PEM` or `PKCS12`. JKS is refused."""
    ssl_truststore_location: str = ""
    """File with the certificates of trusted authorities. Without any, the system's are trusted."""
    ssl_truststore_password: Secret = field(default_factory=Secret)
    """Password of a PKCS#12 trust store."""
    ssl_truststore_certificates: str = ""
    """Certificates of trusted authorities as inline PEM."""
    ssl_enabled_protocols: str = "TLSv1.2,TLSv1.3"
    """Versions of TLS that are accepted: `TLSv1.2`, `TLSv1.3` or both."""
    ssl_cipher_suites: str = ""
    """Cipher suites of TLS 1.2 under OpenSSL's names, separated by commas; empty for OpenSSL's choice."""
    ssl_endpoint_identification_algorithm: str = "https"
    """`https` compares a broker's certificate with its host name; empty does not."""
    ssl_client_auth: str = "none"
    """Whether a listener asks clients for a certificate: `none`, `requested` or `required`."""
    ssl_principal_mapping_rules: str = "DEFAULT"
    """Rules that turn a certificate's distinguished name into the name of the principal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    """SASL settings of a listener. Names and passwords come in JAAS lines, one for each mechanism:
    `listener.name.<name>.<mechanism>.sasl.jaas.config`."""

    sasl_enabled_mechanisms: str = ""
    """Mechanisms of a listener: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`."""
    sasl_mechanism_inter_broker_protocol: str = ""
    """Mechanism by which brokers log in to each other."""
    sasl_server_max_receive_size: int = 512 << 10
    """Largest request before the login is complete, in bytes."""
    connections_max_reauth_ms: int = 0
    """Time after which a connection must log in again; 0 means never. Also per listener and mechanism."""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return tuple(filter(None, map(str.strip, self.sasl_enabled_mechanisms.split(","))))


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthConfig:
    """Settings of logins by tokens. Can be set per listener: `listener.name.<name>.oauthbearer.…`."""

    sasl_oauthbearer_jwks_endpoint_url: str = ""
    """URL of the identity provider's keys (JWKS): `https://…` or `file:///…`. Required for OAUTHBEARER."""
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = 3_600_000
    """Time after which the keys are read again."""
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = 100
    """Pause after the first failure to read them again."""
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = 10_000
    """Longest pause after such failures."""
    sasl_oauthbearer_expected_audience: str = ""
    """Audiences, one of which a token must name, separated by commas; empty: it must name none."""
    sasl_oauthbearer_expected_issuer: str = ""
    """The issuer that a token must name; empty accepts any."""
    sasl_oauthbearer_scope_claim_name: str = "scope"
    """The claim with the token's scopes."""
    sasl_oauthbearer_sub_claim_name: str = "sub"
    """The claim with the name of the principal."""
    sasl_oauthbearer_clock_skew_seconds: int = 30
    """The maximum difference of the provider's clock."""
    sasl_oauthbearer_token_endpoint_url: str = ""
    """URL from which brokers get their tokens to log in to each other: `https://…` or `file:///…`."""

    @property
    def audiences(self) -> tuple[str, ...]:
        return tuple(filter(None, map(str.strip, self.sasl_oauthbearer_expected_audience.split(","))))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizerConfig:
    """Settings of the authorizer."""

    authorizer_class_name: str = ""
    """`kafka.security.authorizer.AclAuthorizer` (or Kafka's newer name) turns ACLs on."""
    super_users: str = ""
    """Principals with full access, `User:name` separated by semicolons."""
    allow_everyone_if_no_acl_found: bool = False
    """Whether everyone has full access to a resource without ACLs."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener of a broker. `advertised` is None if it is not advertised.

    `jaas` and `reauth_ms` are by mechanism. `oauth` is None without OAUTHBEARER.
    """

    name: str
    protocol: Protocol
    bind: Address
    advertised: Address | None = None
    tls: TlsConfig = field(default_factory=TlsConfig)
    sasl: SaslConfig = field(default_factory=SaslConfig)
    jaas: Mapping[str, Jaas] = field(default_factory=dict)
    reauth_ms: Mapping[str, int] = field(default_factory=dict)
    oauth: OAuthConfig | None = None
    most_a_second: int | None = None
    """`max.connection.creation.rate` of this listener."""

    @property
    def is_open(self) -> bool:
        """Whether anyone on the network may connect and do everything."""
        return self.protocol is Protocol.PLAINTEXT and not is_loopback(self.bind.host)

    @property
    def lets_anyone_in(self) -> bool:
        """Whether anyone on the network may connect over TLS without a login or a certificate."""
        is_anonymous = self.protocol is Protocol.SSL and self.tls.ssl_client_auth != "required"
        return is_anonymous and not is_loopback(self.bind.host)


@dataclass(frozen=True, slots=True)
class Security:
    """The named listeners of a broker, and the ones that brokers use among themselves."""

    listeners: tuple[Listener, ...]
    inter_broker: str
    rules: Rules | None = None
    """The settings of the authorizer, without its ACLs; None without one."""
    control_plane: str = ""
    """The listener between the controller and the brokers; empty if it is that of the brokers."""
    tokens: TokenConfig = field(default_factory=TokenConfig)

    @property
    def of_brokers(self) -> Listener:
        """The listener of the brokers."""
        return next(each for each in self.listeners if each.name == self.inter_broker)

    @property
    def of_controller(self) -> Listener | None:
        """The listener between the controller and the brokers; None if it is that of the brokers."""
        return next((each for each in self.listeners if each.name == self.control_plane), None)

    def is_for_brokers(self, listener: Listener) -> bool:
        """Return whether brokers use a listener among themselves."""
        return listener.name in (self.inter_broker, self.control_plane)


def refuse_open(security: Security | None, listen: Address) -> None:
    """Raise `InvalidConfig` if a listener lets anyone on the network do everything.

    Without named listeners there is a plain one, on `listen`.
    """
    plain = Listener(PLAINTEXT, Protocol.PLAINTEXT, listen)
    for each in security.listeners if security is not None else (plain,):
        if each.is_open:
            raise InvalidConfig(
                f"listener {each.name} on {each.bind} gives everyone on the network full access: use SSL or "
                "SASL_SSL, bind it to 127.0.0.1, or accept that with --insecure, in a "
                "program with insecure=True"
            )


def split_security(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the security settings and the others. Raises `InvalidConfig` for what is not built."""
    own: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name, value in given.items():
        plain = name.removeprefix(_PREFIX).partition(".")[2] if name.startswith(_PREFIX) else name
        plain = _MECHANISM.sub("", plain, count=1)
        reason = next((why for start, why in NOT_BUILT.items() if plain.startswith(start)), None)
        if reason is not None and not (plain == _HANDLER and value in _VALIDATORS):
            if value == _DEFAULTS.get(plain):
                continue
            raise InvalidConfig(f"{name}: {reason}")
        is_own = name in OF_LISTENERS or (name.startswith(_STARTS) and name != _HANDSHAKE)
        (own if is_own else rest)[name] = value
    return own, rest


def read_security(own: Mapping[str, str]) -> Security | None:
    """Read the security settings of a broker; None if it has no named listeners.

    Raises `InvalidConfig`.
    """
    if "listeners" not in own:
        for name in own:
            # Without the listeners that they are about, these are in many old files: the map, and plain ones.
            if name != OF_LISTENERS[2] and not (name in OF_LISTENERS[3:5] and own[name] == PLAINTEXT):
                raise InvalidConfig(f"{name} has no effect without listeners; set listeners, too")
        return None
    binds = parse_listeners("listeners", own["listeners"])
    protocols = _protocols(own, binds)
    inter_broker = _inter_broker(own, protocols)
    told = parse_listeners("advertised.listeners", own.get("advertised.listeners", ""))
    if unknown := sorted(told.keys() - binds.keys()):
        raise InvalidConfig(f"advertised.listeners names {unknown[0]}, which is not in listeners")
    told = told or binds
    if inter_broker not in told:
        raise InvalidConfig(f"advertised.listeners lacks {inter_broker}, the listener of the brokers")
    control_plane = own.get(_CONTROL_PLANE, "").upper()
    if control_plane and (control_plane not in told or control_plane == inter_broker):
        raise InvalidConfig(
            f"{_CONTROL_PLANE} is {control_plane}; expected one of advertised.listeners that is not "
            f"{inter_broker}, the listener of the brokers"
        )
    for name, address in told.items():
        if address.host in ("", "0.0.0.0", "::"):
            raise InvalidConfig(
                f"clients cannot connect to {name}://{address}; give an address in advertised.listeners"
            )
    _check_prefixes(own, binds)
    listeners = []
    for name, bind in binds.items():
        settings = _of_listener(own, name)
        plain = Listener(name, protocols[name], bind, told.get(name), tls_config(settings))
        if (rate := settings.get(_RATE)) is not None:
            plain = replace(plain, most_a_second=_creation_rate(name, rate))
        is_for_brokers = name in (inter_broker, control_plane)
        listeners.append(_with_sasl(plain, settings, is_for_brokers=is_for_brokers))
    return Security(tuple(listeners), inter_broker, _authorizer(own), control_plane, token_config(own))


def _creation_rate(listener: str, text: str) -> int:
    name = f"{_PREFIX}{listener.lower()}.{_RATE}"
    if (rate := whole_number(text, 1, MAX_INT)) is None:
        raise InvalidConfig(f"{name} is {text!r}; it must be 1 to {MAX_INT}")
    return rate


def _authorizer(own: Mapping[str, str]) -> Rules | None:
    config = AuthorizerConfig(**dict(values_for(AuthorizerConfig, own).values()))
    if not config.authorizer_class_name:
        for name in ("super.users", "allow.everyone.if.no.acl.found"):
            if name in own:
                raise InvalidConfig(f"{name} has no effect without authorizer.class.name; set it, too")
        return None
    if config.authorizer_class_name not in AUTHORIZERS:
        raise InvalidConfig(
            f"authorizer.class.name is {config.authorizer_class_name}; supported are {', '.join(AUTHORIZERS)}"
        )
    return Rules(
        super_users=[*super_users(config.super_users), IN_PROCESS],
        allow_if_none=config.allow_everyone_if_no_acl_found,
    )


def super_users(text: str) -> list[str]:
    """Return the principals of `super.users`. Raises `InvalidConfig`."""
    supers = [each.strip() for each in text.split(";") if each.strip()]
    if wrong := [each for each in supers if ":" not in each]:
        raise InvalidConfig(f"super.users has {wrong[0]!r}; expected User:name, separated by semicolons")
    return supers


def _with_sasl(listener: Listener, settings: Mapping[str, str], *, is_for_brokers: bool) -> Listener:
    """Add what the settings of a listener say of SASL."""
    found = values_for(SaslConfig, settings)
    for name in settings:
        is_known = name in found or name == _HANDLER or name in _OAUTH_NAMES
        if name.startswith("sasl.") and not is_known:
            raise InvalidConfig(
                f"{name} is not supported"
                if name != _JAAS
                else f"{name}: give it for a listener and mechanism, listener.name.<name>.plain.{_JAAS}"
            )
    sasl = SaslConfig(**dict(found.values()))
    if not listener.protocol.has_sasl:
        return listener
    if not sasl.mechanisms:
        raise InvalidConfig(
            f"listener {listener.name} has SASL, so set sasl.enabled.mechanisms: {', '.join(MECHANISMS)}"
        )
    jaas, reauth_ms, oauth = {}, {}, None
    for mechanism in sasl.mechanisms:
        if mechanism not in MECHANISMS:
            raise InvalidConfig(
                f"sasl.enabled.mechanisms has {mechanism}; supported are {', '.join(MECHANISMS)}"
            )
        prefix = f"{mechanism.lower()}."
        if text := settings.get(f"{prefix}{_JAAS}"):
            name = f"{_PREFIX}{listener.name.lower()}.{prefix}{_JAAS}"
            jaas[mechanism] = parse_jaas(name, text, mechanism)
        own = {name.removeprefix(prefix): settings[name] for name in settings if name.startswith(prefix)}
        if mechanism == OAUTHBEARER:
            oauth = _oauth(listener.name, {**settings, **own})
        _check_own(prefix, own, _OAUTH_NAMES | {_HANDLER} if mechanism == OAUTHBEARER else frozenset())
        limits = values_for(SaslConfig, {name: own[name] for name in own if name == _REAUTH})
        reauth_ms[mechanism] = dict(limits.values()).get(
            "connections_max_reauth_ms", sasl.connections_max_reauth_ms
        )
        if 0 < reauth_ms[mechanism] < LEAST_REAUTH_MS:
            raise InvalidConfig(
                f"{_REAUTH} is {reauth_ms[mechanism]}; expected 0 or at least {LEAST_REAUTH_MS}: a "
                "connection may log in again once a second"
            )
    if "PLAIN" in sasl.mechanisms and "PLAIN" not in jaas:
        raise InvalidConfig(
            f"listener {listener.name} has PLAIN, so set {_PREFIX}{listener.name.lower()}.plain.{_JAAS} "
            "with its users"
        )
    if is_for_brokers:
        chosen = sasl.sasl_mechanism_inter_broker_protocol
        if chosen not in sasl.mechanisms:
            raise InvalidConfig(
                f"sasl.mechanism.inter.broker.protocol is {chosen or 'not set'}; it must be one of the "
                f"mechanisms of listener {listener.name}: {', '.join(sasl.mechanisms)}"
            )
        is_by_file = oauth is not None and oauth.sasl_oauthbearer_token_endpoint_url.startswith("file:")
        if chosen == OAUTHBEARER and oauth is not None:
            name = "sasl.oauthbearer.token.endpoint.url"
            if not oauth.sasl_oauthbearer_token_endpoint_url:
                raise InvalidConfig(
                    f"brokers log in to each other by tokens, so set {name}: where they get them"
                )
            check_url(name, oauth.sasl_oauthbearer_token_endpoint_url)
        if (chosen not in jaas or not jaas[chosen].username) and not (chosen == OAUTHBEARER and is_by_file):
            raise InvalidConfig(
                f"{_PREFIX}{listener.name.lower()}.{chosen.lower()}.{_JAAS} needs the username and password "
                "(clientId and clientSecret for OAUTHBEARER) by which brokers log in to each other"
            )
    return replace(listener, sasl=sasl, jaas=jaas, reauth_ms=reauth_ms, oauth=oauth)


_OAUTH_NAMES: Final = frozenset(kafka_name(each.name) for each in fields(OAuthConfig))


def _check_own(prefix: str, own: Iterable[str], more: frozenset[str]) -> None:
    for name in own:
        if name not in (_JAAS, _REAUTH) and name not in more:
            raise InvalidConfig(f"{prefix}{name} is not supported for one mechanism")


def _oauth(listener: str, settings: Mapping[str, str]) -> OAuthConfig:
    """Return how a listener checks tokens. Raises `InvalidConfig`."""
    config = OAuthConfig(**dict(values_for(OAuthConfig, settings).values()))
    url = config.sasl_oauthbearer_jwks_endpoint_url
    if not url:
        raise InvalidConfig(
            f"listener {listener} has OAUTHBEARER, so set sasl.oauthbearer.jwks.endpoint.url: where the "
            "keys of the identity provider are"
        )
    check_url("sasl.oauthbearer.jwks.endpoint.url", url)
    if config.sasl_oauthbearer_expected_audience and not config.audiences:
        raise InvalidConfig(
            f"sasl.oauthbearer.expected.audience is {config.sasl_oauthbearer_expected_audience!r}, which "
            "names none: every token would be accepted"
        )
    for each in fields(OAuthConfig):
        value = getattr(config, each.name)
        if isinstance(value, int) and value < (0 if each.name.endswith("seconds") else 1):
            raise InvalidConfig(f"{kafka_name(each.name)} is {value}, which is too small")
    return config


def tls_config(settings: Mapping[str, str]) -> TlsConfig:
    """Return the `ssl.…` settings. Raises `InvalidConfig` for unknown ones and wrong values."""
    found = values_for(TlsConfig, settings)
    for name in settings:
        if name.startswith("ssl.") and name not in found and name not in SSL_WITHOUT_EFFECT:
            refuse_unknown([name], {kafka_name(each.name) for each in fields(TlsConfig)}, {})
    config = TlsConfig(**dict(found.values()))
    for name, kind in (("key", config.ssl_keystore_type), ("trust", config.ssl_truststore_type)):
        if kind.upper() not in ("PEM", "PKCS12"):
            raise InvalidConfig(
                f"ssl.{name}store.type is {kind}: use PEM or PKCS12; this converts a JKS file: keytool "
                "-importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12"
            )
    parse_rules(config.ssl_principal_mapping_rules)
    if config.ssl_client_auth not in ("none", "requested", "required"):
        raise InvalidConfig(
            f"ssl.client.auth is {config.ssl_client_auth!r}; expected none, requested or required"
        )
    if config.ssl_endpoint_identification_algorithm.lower() not in ("", "https"):
        raise InvalidConfig(
            f"ssl.endpoint.identification.algorithm is {config.ssl_endpoint_identification_algorithm!r}; "
            "expected https, or nothing to check no host name"
        )
    return config


SSL_WITHOUT_EFFECT: Final = frozenset({"ssl.protocol", "ssl.allow.dn.changes", "ssl.allow.san.changes"})
"""`ssl.enabled.protocols` decides instead of the first; stores of a running broker cannot be changed by a
request, which the others are about."""


def _of_listener(own: Mapping[str, str], listener: str) -> dict[str, str]:
    """Return the settings of a listener without its prefix: its own, then those for all."""
    prefix = f"{_PREFIX}{listener.lower()}."
    of_all = {name: value for name, value in own.items() if not name.startswith(_PREFIX)}
    of_one = {name.removeprefix(prefix): own[name] for name in own if name.startswith(prefix)}
    return {**of_all, **of_one}


def _check_prefixes(own: Mapping[str, str], listeners: Iterable[str]) -> None:
    known = {each.lower() for each in listeners}
    for name in own:
        listener, dot, setting = name.removeprefix(_PREFIX).partition(".")
        if not name.startswith(_PREFIX):
            continue
        if listener not in known or not dot:
            raise InvalidConfig(f"{name}: there is no listener {listener!r} (its name in lower case)")
        if not _MECHANISM.sub("", setting, count=1).startswith(_STARTS[:-2]) and setting != _RATE:
            raise InvalidConfig(f"{name}: {setting} cannot be set for one listener")


def parse_listeners(setting: str, text: str) -> dict[str, Address]:
    """Parse `NAME://host:port,…`. Without a name it is PLAINTEXT."""
    found: dict[str, Address] = {}
    for each in filter(None, map(str.strip, text.split(","))):
        match = _LISTENER.fullmatch(each)
        if match is None or int(match[3]) > 65535:
            raise InvalidConfig(f"{setting} has {each!r}; expected NAME://host:port, such as SSL://:9093")
        name = (match[1] or PLAINTEXT).upper()
        if name in found:
            raise InvalidConfig(f"{setting} names {name} twice")
        address = Address(match[2].removeprefix("[").removesuffix("]"), int(match[3]))
        found[name] = address._replace(host="0.0.0.0") if not address.host else address
    if setting == "listeners":
        ports = [each.port for each in found.values() if each.port]
        if not found or len(set(ports)) != len(ports):
            raise InvalidConfig(f"listeners is {text!r}; expected listeners with different ports")
    return found


def _protocols(own: Mapping[str, str], names: Iterable[str]) -> dict[str, Protocol]:
    """Return the protocol of each listener: by the map, else its name is that of a protocol."""
    text = own.get(
        "listener.security.protocol.map", ",".join(f"{each}:{each}" for each in SECURITY_PROTOCOLS)
    )
    known = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, protocol = pair.partition(":")
        if protocol.strip().upper() not in SECURITY_PROTOCOLS:
            raise InvalidConfig(
                f"listener.security.protocol.map has {pair!r}; expected NAME:PROTOCOL with one of "
                f"{', '.join(SECURITY_PROTOCOLS)}"
            )
        known[name.strip().upper()] = Protocol[protocol.strip().upper()]
    for name in names:
        if name not in known:
            raise InvalidConfig(f"listener.security.protocol.map has no protocol for listener {name}")
    return {name: known[name] for name in names}


def _inter_broker(own: Mapping[str, str], protocols: Mapping[str, Protocol]) -> str:
    """Return the listener of the brokers: by its name, else the only one or the first of that protocol."""
    named, protocol = own.get("inter.broker.listener.name"), own.get("security.inter.broker.protocol")
    if named is not None and protocol is not None:
        raise InvalidConfig("set inter.broker.listener.name or security.inter.broker.protocol, not both")
    name = (named or protocol or "").upper()
    if not name:
        name = next(iter(protocols)) if len(protocols) == 1 else PLAINTEXT
    if name not in protocols:
        raise InvalidConfig(
            f"the brokers' listener is {name}, which is not in listeners; set inter.broker.listener.name"
        )
    return name

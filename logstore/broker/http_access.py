"""Access to a broker's HTTP port: TLS, client certificates, a name with a password.

    --http https://HOST:PORT, or http.listener=https://HOST:PORT
    ssl.keystore.…, ssl.truststore.…        the broker's certificate; http.ssl.… for this port alone
    http.ssl.client.auth=required           only clients with a certificate
    http.basic.user, http.basic.password    a login (RFC 7617), of everyone but those who ask for /livez

The settings of this port are not Kafka's.
"""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, build_opener

from logstore.broker.acceptor import SeldomEach
from logstore.broker.limits import Address, is_loopback, parse_address
from logstore.broker.security.config import TlsConfig, tls_config
from logstore.broker.security.secret import Secret
from logstore.broker.security.tls import Renewed, client_context, now
from logstore.broker.typed_settings import values_for
from logstore.disk.clocks import steady_s
from logstore.errors import InvalidConfig
from logstore.loggers import logger_of

_PREFIX: Final = "http."
_TLS: Final = "http.ssl."
_SCHEMES: Final = {"https": True, "http": False}
_HANDSHAKE_S: Final = 10.0
_FOR_ALL: Final = "/livez"

_log = logger_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Login:
    http_basic_user: str = ""
    http_basic_password: Secret = field(default_factory=Secret)


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The settings of an HTTP port. `tls` is None for plain connections, `user` empty without a login."""

    tls: TlsConfig | None = None
    user: str = ""
    password: Secret = field(default_factory=Secret)

    def problems(self, listen: Address) -> list[str]:
        """Return what is wrong with the port if it listens there."""
        if is_loopback(listen.host):
            return []
        found = []
        if self.tls is None:
            what = "a password and metrics" if self.user else "metrics and health"
            found.append(f"the HTTP port on {listen} sends {what} without encryption: use https://")
        if not self.user and (self.tls is None or self.tls.ssl_client_auth != "required"):
            found.append(
                f"the HTTP port on {listen} is open to everyone: set http.basic.user and "
                "http.basic.password, or http.ssl.client.auth=required"
            )
        return found


def parse_http(text: str) -> tuple[Address, bool]:
    """Parse `https://host:port`, `http://host:port` or `host:port`; return whether it has TLS, too.

    Raises `ValueError`.
    """
    scheme, found, rest = text.rpartition("://")
    if found and scheme not in _SCHEMES:
        raise ValueError(f"{text!r} is not a valid address; expected https://host:port")
    return parse_address(rest), _SCHEMES.get(scheme, False)


def split_http(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of the HTTP port, and the others."""
    own = {name: value for name, value in given.items() if name.startswith(_PREFIX)}
    return own, {name: value for name, value in given.items() if name not in own}


def read_http(own: Mapping[str, str], others: Mapping[str, str], *, is_tls: bool) -> HttpConfig:
    """Return the settings of the HTTP port, which has the broker's `ssl.…` from the others.

    Raises `InvalidConfig`.
    """
    known = values_for(_Login, own)
    login = _Login(**dict(known.values()))
    if bool(login.http_basic_user) != bool(login.http_basic_password):
        raise InvalidConfig("set http.basic.user and http.basic.password, both or neither")
    if ":" in login.http_basic_user:
        raise InvalidConfig("http.basic.user has a colon, which ends the name in a request")
    of_tls = {name.removeprefix(_PREFIX): own[name] for name in own if name.startswith(_TLS)}
    if unknown := sorted(own.keys() - known.keys() - {f"{_PREFIX}{name}" for name in of_tls}):
        raise InvalidConfig(f"{unknown[0]} is not a setting of the HTTP port")
    if of_tls and not is_tls:
        raise InvalidConfig(f"{min(of_tls)} has no effect on a plain HTTP port: use --http https://HOST:PORT")
    of_all = {name: value for name, value in others.items() if name.startswith("ssl.")}
    of_all.pop("ssl.client.auth", None)  # that of Kafka's clients, whose certificates Prometheus lacks
    tls = tls_config({**of_all, **of_tls}) if is_tls else None
    return HttpConfig(tls, login.http_basic_user, login.http_basic_password)


class HttpAccess:
    """Admits connections and requests to an HTTP port. Any thread may call."""

    def __init__(self, config: HttpConfig | None = None) -> None:
        """Raises `InvalidConfig` for certificates that cannot be used."""
        config = config or HttpConfig()
        self._tls = Renewed(config.tls) if config.tls is not None else None
        self._login = _digest(f"{config.user}:{config.password.reveal()}".encode()) if config.user else b""
        self._lock, self._seldom = threading.Lock(), SeldomEach()

    @property
    def prefix(self) -> str:
        """The scheme of the port's address: `https://`, or empty."""
        return "https://" if self._tls is not None else ""

    def accepted(self, connection: socket.socket) -> AbstractContextManager[socket.socket]:
        """Return a connection, after its TLS handshake. Raises `OSError`."""
        if self._tls is None:
            return closing(connection)
        connection.settimeout(_HANDSHAKE_S)
        with self._lock:
            context = self._tls.context(steady_s())
        try:
            return context.wrap_socket(connection, server_side=True)
        except OSError as error:
            self._report(f"TLS: {getattr(error, 'reason', None) or error}")
            raise

    def admits(self, path: str, authorization: str | None) -> bool:
        """Return whether a request with this header `Authorization` may be answered."""
        if not self._login or path.partition("?")[0] == _FOR_ALL:
            return True
        if authorization is None:
            return False  # a browser asks without first
        scheme, _, encoded = authorization.partition(" ")
        try:
            said = base64.b64decode(encoded.strip(), validate=True) if scheme.lower() == "basic" else b""
        except ValueError:
            said = b""
        if compare_digest(_digest(said), self._login):
            return True
        self._report("a wrong name or password")
        return False

    def _report(self, why: str) -> None:
        with self._lock:
            count = self._seldom(why, steady_s())
        if count:
            _log.warning("refusing requests to the HTTP port: %s (%d since the last message)", why, count)


def http_opener(properties: Mapping[str, str]) -> OpenerDirector:
    """Return a client of HTTP ports, with its `ssl.…` and `http.basic.…`. Raises `InvalidConfig`."""
    own, others = split_http(properties)
    config = read_http(own, others, is_tls=True)
    assert config.tls is not None, "asked for"
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=client_context(config.tls, now())))
    if config.user:
        said = base64.b64encode(f"{config.user}:{config.password.reveal()}".encode()).decode()
        opener.addheaders = [("Authorization", f"Basic {said}")]
    return opener


def _digest(text: bytes) -> bytes:
    return sha256(text).digest()

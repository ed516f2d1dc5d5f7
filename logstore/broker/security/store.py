"""The connection of brokers and commands to ZooKeeper: settings `zookeeper.…` under Kafka's names.

    zookeeper.ssl.client.enable=true
    zookeeper.ssl.keystore.…, zookeeper.ssl.truststore.…, zookeeper.ssl.enabled.protocols, …
    zookeeper.sasl.jaas.config    DigestLoginModule required username="…" password="…";
    zookeeper.set.acl

The last but one is not Kafka's, which reads the section `Client` of a JAAS file.
"""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from logstore.broker.security.config import TlsConfig, tls_config
from logstore.broker.security.jaas import Jaas, parse_jaas
from logstore.broker.security.secret import Secret
from logstore.broker.security.tls import Renewed, client_context
from logstore.broker.typed_settings import values_for
from logstore.disk.clocks import steady_s
from logstore.errors import InvalidConfig
from logstore.replication.metastore.zookeeper_access import OPEN, Access, Connect

_PREFIX: Final = "zookeeper."
_TLS: Final = "zookeeper.ssl."
_ENABLE: Final = "zookeeper.ssl.client.enable"
_JAAS: Final = "zookeeper.sasl.jaas.config"
_SET_ACL: Final = "zookeeper.set.acl"
_SOCKET: Final = "zookeeper.clientCnxnSocket"
_REVOCATION: Final = ("zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable")
_TYPES: Final = {"p12": "PKCS12", "pfx": "PKCS12", "jks": "JKS"}
"""By the end of a store's name, where its type is not given, as ZooKeeper does."""


@dataclass(frozen=True, slots=True)
class StoreSecurity:
    """Security of the connection to ZooKeeper. `tls` is None for plain connections, `login` without SASL."""

    tls: TlsConfig | None = None
    login: Jaas | None = None
    set_acl: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Switches:
    zookeeper_ssl_client_enable: bool = False
    zookeeper_set_acl: bool = False
    zookeeper_ssl_crl_enable: bool = False
    zookeeper_ssl_ocsp_enable: bool = False


def split_store(given: Mapping[str, str]) -> tuple[StoreSecurity, dict[str, str]]:
    """Return how ZooKeeper is reached, and the other settings. Raises `InvalidConfig`."""
    own: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name, value in given.items():
        is_own = name in (_JAAS, _SET_ACL, _SOCKET) or name.startswith(_TLS)
        (own if is_own else rest)[name] = value
    switches = _Switches(**dict(values_for(_Switches, own).values()))
    for name in _REVOCATION:
        if getattr(switches, name.replace(".", "_")):
            raise InvalidConfig(f"{name}: lists of revoked certificates are not supported")
    tls = None
    if switches.zookeeper_ssl_client_enable:
        tls = _tls({name: value for name, value in own.items() if name.startswith(_TLS)})
    elif useless := sorted(
        name for name in own if name.startswith(_TLS) and name not in (_ENABLE, *_REVOCATION)
    ):
        raise InvalidConfig(f"{useless[0]} has no effect without {_ENABLE}=true: connections would be plain")
    login = parse_jaas(_JAAS, own[_JAAS], "DIGEST-MD5") if _JAAS in own else None
    if login is not None and not (login.username and login.password):
        raise InvalidConfig(f"{_JAAS} needs username and password")
    has_key = tls is not None and bool(tls.ssl_keystore_location)
    if switches.zookeeper_set_acl and login is None and not has_key:
        raise InvalidConfig(
            f"{_SET_ACL} needs a login, to whom the nodes belong: set {_JAAS}, or {_ENABLE}=true and "
            "zookeeper.ssl.keystore.location"
        )
    return StoreSecurity(tls, login, switches.zookeeper_set_acl), rest


def _tls(own: Mapping[str, str]) -> TlsConfig:
    plain = {
        name.removeprefix(_PREFIX): value
        for name, value in own.items()
        if name not in (_ENABLE, *_REVOCATION)
    }
    for kind in ("key", "trust"):
        location = plain.get(f"ssl.{kind}store.location", "")
        by_name = _TYPES.get(location.rpartition(".")[2].lower(), "PEM")
        plain[f"ssl.{kind}store.type"] = plain.get(f"ssl.{kind}store.type") or by_name
    config = tls_config(plain)
    if config.ssl_keystore_type.upper() == "PEM":
        # ZooKeeper has no setting for the password of a key in PEM but this one.
        config = replace(
            config, ssl_key_password=config.ssl_keystore_password, ssl_keystore_password=Secret()
        )
    return config


def access_of(security: StoreSecurity) -> Access:
    """Return what a client of the store needs. Raises `InvalidConfig`, and `ModuleNotFoundError`."""
    if security == StoreSecurity():
        return OPEN
    if security.login is not None and importlib.util.find_spec("puresasl") is None:
        raise ModuleNotFoundError(
            f"{_JAAS} needs a library that is not installed: pip install 'pylogstore[zookeeper-sasl]'"
        )
    login = security.login
    return Access(
        _connect(Renewed(security.tls, client_context)) if security.tls is not None else None,
        (login.username, login.password.reveal()) if login is not None else None,
        security.set_acl,
    )


def _connect(renewed: Renewed) -> Connect:
    def connect(address: tuple[str, int], host: str, timeout_s: float) -> socket.socket:
        plain = socket.create_connection(address, timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return renewed.context(steady_s()).wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    return connect

"""TLS contexts from PEM and PKCS#12, checked at the start.

OpenSSL says little about a wrong password, a foreign key or an expired certificate. So keys and certificates
are read with `cryptography` first, and what is wrong with them is an `InvalidConfig` that names the setting.
A private key reaches OpenSSL through memory (a memfd), else through a file that is removed at once; it is
encrypted there with a password of this moment.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore.broker.security.config import TlsConfig
from logstore.broker.security.secret import Secret
from logstore.disk.extras import require
from logstore.disk.files import wall_clock_ms
from logstore.errors import InvalidConfig
from logstore.loggers import logger_of

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

WARN_DAYS: Final = 30
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

_log = logger_of(__name__)


class Identity(NamedTuple):
    """A private key and its certificates, the own one first."""

    key: Any
    chain: list[Certificate]

    @property
    def ends(self) -> datetime:
        """When the first of the certificates expires."""
        return min(each.not_valid_after_utc for each in self.chain)


def now() -> datetime:
    """Return the current time, for the dates of certificates."""
    return datetime.fromtimestamp(wall_clock_ms() / 1000, UTC)


def provider_context(config: TlsConfig) -> ssl.SSLContext:
    """Return how identity providers are reached: with the trust store of the settings, else the system's."""
    if config.ssl_truststore_location or config.ssl_truststore_certificates:
        return client_context(config, now())
    return ssl.create_default_context()


def server_context(config: TlsConfig, at: datetime) -> ssl.SSLContext:
    """Return a listener's context. Raises `InvalidConfig`, and `ModuleNotFoundError` without the extra."""
    require("cryptography")
    identity = read_identity(config)
    if identity is None:
        raise InvalidConfig(
            "a TLS listener needs a key and a certificate: set ssl.keystore.location to a PEM file with "
            "both, or ssl.keystore.key and ssl.keystore.certificate.chain"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0  # Kafka's clients do not resume sessions
    _set_up(context, config, identity, at)
    context.verify_mode = _AUTH[config.ssl_client_auth]
    if config.ssl_client_auth != "none":
        _trust(context, config)
    return context


def client_context(config: TlsConfig, at: datetime) -> ssl.SSLContext:
    """Return a client's context; with a key store it has a certificate. Raises as `server_context`."""
    require("cryptography")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(config.ssl_endpoint_identification_algorithm)
    _set_up(context, config, read_identity(config), at)
    _trust(context, config)
    return context


def _set_up(context: ssl.SSLContext, config: TlsConfig, identity: Identity | None, at: datetime) -> None:
    wanted = [each.strip() for each in config.ssl_enabled_protocols.split(",")]
    if unknown := sorted(set(wanted) - _VERSIONS.keys()):
        raise InvalidConfig(f"ssl.enabled.protocols has {unknown[0]!r}; expected TLSv1.2, TLSv1.3 or both")
    versions = [_VERSIONS[each] for each in wanted]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if config.ssl_cipher_suites:
        try:
            context.set_ciphers(config.ssl_cipher_suites.replace(",", ":"))
        except ssl.SSLError as error:
            raise InvalidConfig(
                f"ssl.cipher.suites is {config.ssl_cipher_suites!r}: OpenSSL knows none of them; use names "
                "such as ECDHE-RSA-AES256-GCM-SHA384"
            ) from error
    if identity is not None:
        check(identity, at)
        _load(context, identity)


def _trust(context: ssl.SSLContext, config: TlsConfig) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    found = _trusted(config)
    if found is None:
        context.load_default_certs(
            ssl.Purpose.SERVER_AUTH if context.check_hostname else ssl.Purpose.CLIENT_AUTH
        )
        return
    context.load_verify_locations(cadata="".join(each.public_bytes(Encoding.PEM).decode() for each in found))


# --- what the settings name -------------------------------------------------------------------


def read_identity(config: TlsConfig) -> Identity | None:
    """Return the key and certificates of the key store; None if there is none. Raises `InvalidConfig`."""
    given = bool(config.ssl_keystore_location), bool(config.ssl_keystore_key)
    if given == (False, False) and not config.ssl_keystore_certificate_chain:
        return None
    if given == (True, True):
        raise InvalidConfig("set ssl.keystore.location or ssl.keystore.key, not both")
    if config.ssl_keystore_type.upper() == "PKCS12":
        name = "ssl.keystore.location"
        key, own, others = _pkcs12(name, config.ssl_keystore_location, config.ssl_keystore_password)
        if key is None or own is None:
            raise InvalidConfig(
                f"{name} {config.ssl_keystore_location} has no private key with a certificate"
            )
        return Identity(key, [own, *others])
    if config.ssl_keystore_location:
        if config.ssl_keystore_password:
            raise InvalidConfig(
                "ssl.keystore.password is for PKCS12; the password of a key in PEM is ssl.key.password"
            )
        name = f"ssl.keystore.location {config.ssl_keystore_location}"
        text = _read("ssl.keystore.location", config.ssl_keystore_location)
        return Identity(_key(name, text, config.ssl_key_password), _certificates(name, text))
    if not (config.ssl_keystore_key and config.ssl_keystore_certificate_chain):
        raise InvalidConfig("set ssl.keystore.key and ssl.keystore.certificate.chain, both or neither")
    chain = config.ssl_keystore_certificate_chain.encode()
    key = _key("ssl.keystore.key", config.ssl_keystore_key.reveal().encode(), config.ssl_key_password)
    return Identity(key, _certificates("ssl.keystore.certificate.chain", chain))


def check(identity: Identity, at: datetime) -> None:
    """Raise `InvalidConfig` unless the key is that of the first certificate, and all are valid at `at`."""
    own = identity.chain[0]
    if identity.key.public_key() != own.public_key():
        raise InvalidConfig(
            f"the private key is not that of the first certificate, {own.subject.rfc4514_string()}"
        )
    for each in identity.chain:
        name = each.subject.rfc4514_string()
        if each.not_valid_after_utc < at:
            raise InvalidConfig(f"the certificate of {name} expired on {each.not_valid_after_utc:%Y-%m-%d}")
        if each.not_valid_before_utc > at:
            raise InvalidConfig(
                f"the certificate of {name} is not valid before {each.not_valid_before_utc:%Y-%m-%d}"
            )
    left = (identity.ends - at).days
    if left < WARN_DAYS:
        _log.warning("the certificate of %s expires in %d days", own.subject.rfc4514_string(), left)


def _trusted(config: TlsConfig) -> list[Certificate] | None:
    name, path = "ssl.truststore.location", config.ssl_truststore_location
    if path and config.ssl_truststore_certificates:
        raise InvalidConfig(f"set {name} or ssl.truststore.certificates, not both")
    if config.ssl_truststore_type.upper() == "PKCS12" and path:
        _, own, others = _pkcs12(name, path, config.ssl_truststore_password)
        found = [*([own] if own is not None else []), *others]
        if not found:
            raise InvalidConfig(f"{name} {path} has no certificate")
        return found
    if path:
        return _certificates(f"{name} {path}", _read(name, path))
    if config.ssl_truststore_certificates:
        return _certificates("ssl.truststore.certificates", config.ssl_truststore_certificates.encode())
    return None


def _read(setting: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfig(f"{setting}: {error}") from error


def _key(name: str, text: bytes, password: Secret) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    start = text.find(b"-----BEGIN")
    blocks = [b"-----BEGIN" + each for each in text[max(start, 0) :].split(b"-----BEGIN")[1:]]
    keys = [each for each in blocks if b"PRIVATE KEY-----" in each.splitlines()[0]]
    if len(keys) != 1:
        raise InvalidConfig(f"{name} has {len(keys)} private keys in PEM; it needs one")
    try:
        return load_pem_private_key(keys[0], password.reveal().encode() if password else None)
    except TypeError as error:
        needs = (
            "is not encrypted: remove ssl.key.password" if password else "is encrypted: set ssl.key.password"
        )
        raise InvalidConfig(f"{name}: the private key {needs}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidConfig(f"{name}: the private key cannot be read; is ssl.key.password right?") from error


def _certificates(name: str, text: bytes) -> list[Certificate]:
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(text)
    except ValueError as error:
        raise InvalidConfig(f"{name} has no certificate in PEM") from error


def _pkcs12(setting: str, path: str, password: Secret) -> tuple[Any, Certificate | None, list[Certificate]]:
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    try:
        found = load_pkcs12(_read(setting, path), password.reveal().encode() if password else None)
    except ValueError as error:
        raise InvalidConfig(
            f"{setting} {path} cannot be read as PKCS12; is {setting[:-8]}password right?"
        ) from error
    own = found.cert.certificate if found.cert is not None else None
    return found.key, own, [each.certificate for each in found.additional_certs]


def _load(context: ssl.SSLContext, identity: Identity) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
    )

    password = SystemRandom().randbytes(24).hex()
    sealed = identity.key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode())
    )
    with _as_file([sealed, *(each.public_bytes(Encoding.PEM) for each in identity.chain)]) as path:
        context.load_cert_chain(path, password=password)


@contextmanager
def _as_file(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the path of a file with these bytes, which only this process reads."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("pem"), "wb") as file:
            file.writelines(pieces)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile() as file:  # mode 0600
        file.writelines(pieces)
        file.flush()
        yield file.name


class Renewed:
    """The context of a listener, or of a client, recreated when its certificate files change.

    New connections get the newest context that was valid; open ones keep theirs. Files that cannot be used
    are tried again: they may be half-written, or unreadable yet, or their certificate not valid yet.
    Certificates of authorities cannot be removed from a context, so a changed file means a new one.
    """

    def __init__(
        self, config: TlsConfig, make: Callable[[TlsConfig, datetime], ssl.SSLContext] = server_context
    ) -> None:
        """Raises as `server_context`."""
        self._config, self._make = config, make
        self._seen = self._stamps()
        self._context = make(config, now())
        self._problem = ""
        """Why changed files are not used."""
        self._look_at_s = 0.0

    def context(self, now_s: float) -> ssl.SSLContext:
        """Return the present context. `now_s` is a steady clock's: files are looked at once a second."""
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + 1
            stamps = self._stamps()
            if stamps != self._seen:
                try:
                    self._context = self._make(self._config, now())
                except (InvalidConfig, ssl.SSLError) as error:
                    if str(error) != self._problem:
                        _log.error(
                            "cannot use the changed certificates; keeping the previous ones: %s", error
                        )
                    self._problem = str(error)
                else:
                    self._seen, self._problem = stamps, ""
                    _log.info("certificates were read again: %s", self._config.ssl_keystore_location)
        return self._context

    def _stamps(self) -> tuple[tuple[int, int] | None, ...]:
        stamps: list[tuple[int, int] | None] = []
        for path in (self._config.ssl_keystore_location, self._config.ssl_truststore_location):
            try:
                found = Path(path).stat() if path else None
                stamps.append((found.st_mtime_ns, found.st_ino) if found is not None else None)
            except OSError:
                stamps.append(None)
        return tuple(stamps)

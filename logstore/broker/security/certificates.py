"""A certificate authority for development and tests, and certificates that it signs.

ca.pem           the authority's certificate: the trust store of everybody
ca.key           its private key
<name>.pem       key and certificate of a broker or a client, in one file: a key store
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_NAME: Final = "logstore development CA"
_AUTHORITY_USAGE: Final = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Signed(NamedTuple):
    """A key and its certificate."""

    key: Any
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        return bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def ends(self) -> datetime:
        """The moment from which the certificate is not valid any more."""
        return self.certificate.not_valid_after_utc


def read_authority(certificate: bytes, key: bytes) -> Signed:
    """Return an authority from its files. Raises `ValueError` if they are damaged, or no pair."""
    found = Signed(load_pem_private_key(key, None), x509.load_pem_x509_certificate(certificate))
    if found.key.public_key() != found.certificate.public_key():
        raise ValueError("the key is not that of the certificate")
    return found


def new_authority(at: datetime, *, days: int = 365) -> Signed:
    """Return a new authority, valid from `at`, with a key on the curve P-256."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(CA_NAME)
    builder = _builder(name, name, key, at, at + timedelta(days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_AUTHORITY_USAGE, critical=True)
    return Signed(key, builder.sign(key, hashes.SHA256()))


def signed_by(authority: Signed, name: str, hosts: Sequence[str], at: datetime, *, days: int = 365) -> Signed:
    """Return a certificate for `CN=name`, valid for these host names and IP addresses.

    It expires no later than the authority, which would otherwise end its use without a warning.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(
        _name(name), authority.certificate.subject, key, at, min(at + timedelta(days), authority.ends)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([*map(_host, hosts)]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(usages, critical=False)
    return Signed(key, builder.sign(authority.key, hashes.SHA256()))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Any, at: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - timedelta(minutes=5))  # clocks differ
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)

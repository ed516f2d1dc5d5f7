"""Security of a local cluster: certificates, one user, and the settings of its brokers.

    DIR/tls/ca.pem, ca.key     the authority, for development; it signs
    DIR/tls/broker.pem         key and certificate of all brokers; a file that is replaced is read again
    DIR/client.properties      TLS and the password of `admin`, for `--command-config` and Kafka's tools

Clients use the listener CLIENTS: TLS, and a login by SCRAM. Brokers use BROKERS: TLS with certificates on
both sides. `admin` and the brokers are super users; everybody else needs rules.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

CLIENT_FILE: Final = "client.properties"
ADMIN: Final = "admin"
MECHANISM: Final = "SCRAM-SHA-512"
_HOSTS: Final = ("localhost", "127.0.0.1")
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


def make_files(directory: Path) -> None:
    """Make certificates and the clients' file, once: those that are there are kept."""
    from logstore.cli.certs import make_certificates, write_secret

    tls, clients = directory / "tls", directory / CLIENT_FILE
    if not (tls / "broker.pem").exists():
        make_certificates(tls, {"broker": _HOSTS})
    if not clients.exists():
        properties = {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str((tls / "ca.pem").resolve()),
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{_MODULE} required username="{ADMIN}" password="{secrets.token_hex(16)}";',
        }
        write_secret(clients, "".join(f"{name}={value}\n" for name, value in properties.items()).encode())


def add_admin(directory: Path, metadata: str) -> None:
    """Give `admin` the password of the clients' file in the metadata store."""
    from logstore.broker.security.jaas import parse_jaas
    from logstore.cli.operating import properties_of
    from logstore.cli.users import give_password

    text = properties_of(directory / CLIENT_FILE, "--config")["sasl.jaas.config"]
    give_password(metadata, ADMIN, parse_jaas("sasl.jaas.config", text, MECHANISM).password, MECHANISM)


def properties_of_brokers(directory: Path) -> dict[str, str]:
    """Return the client properties with which a broker reaches the others."""
    return {
        "security.protocol": "SSL",
        "ssl.keystore.location": str(directory / "tls" / "broker.pem"),
        "ssl.truststore.location": str(directory / "tls" / "ca.pem"),
    }


def settings(directory: Path, port: int, brokers_port: int) -> dict[str, str]:
    """Return the settings of the broker that listens on these ports."""
    return {
        "listeners": f"CLIENTS://127.0.0.1:{port},BROKERS://127.0.0.1:{brokers_port}",
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SSL",
        "inter.broker.listener.name": "BROKERS",
        "listener.name.brokers.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": MECHANISM,
        "ssl.keystore.location": str(directory / "tls" / "broker.pem"),
        "ssl.truststore.location": str(directory / "tls" / "ca.pem"),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:CN=broker;User:{ADMIN}",
    }

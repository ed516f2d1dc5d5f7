"""Client settings for the cluster of a campaign: the brokers' addresses and, if it is secured, the login."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from logstore.broker import ClientSecurity, client_security
from logstore.broker.security.jaas import parse_jaas
from logstore.cli.cluster_file import LocalCluster
from logstore.cli.secured_cluster import CLIENT_FILE
from logstore.cli.serve import read_properties


class Access(NamedTuple):
    """`properties` are Kafka's client properties; without any, clients connect in plain."""

    bootstrap: str
    properties: dict[str, str]

    @property
    def librdkafka(self) -> dict[str, Any]:
        found = {"bootstrap.servers": self.bootstrap}
        if self.properties:
            user, password = self._login
            found |= {
                "security.protocol": self.properties["security.protocol"],
                "ssl.ca.location": self.properties["ssl.truststore.location"],
                "sasl.mechanism": self.properties["sasl.mechanism"],
                "sasl.username": user,
                "sasl.password": password,
            }
        return found

    @property
    def kafka_python(self) -> dict[str, Any]:
        found: dict[str, Any] = {"bootstrap_servers": self.bootstrap.split(",")}
        if self.properties:
            user, password = self._login
            found |= {
                "security_protocol": self.properties["security.protocol"],
                "ssl_cafile": self.properties["ssl.truststore.location"],
                "sasl_mechanism": self.properties["sasl.mechanism"],
                "sasl_plain_username": user,
                "sasl_plain_password": password,
            }
        return found

    @property
    def ours(self) -> ClientSecurity | None:
        return client_security(self.properties) if self.properties else None

    @property
    def _login(self) -> tuple[str, str]:
        jaas = parse_jaas("jaas", self.properties["sasl.jaas.config"], self.properties["sasl.mechanism"])
        return jaas.username, jaas.password.reveal()


def access_to(cluster: LocalCluster, directory: Path) -> Access:
    """Return the access to the cluster in this directory."""
    properties = read_properties(directory / CLIENT_FILE) if cluster.is_secured else {}
    return Access(cluster.bootstrap, properties)

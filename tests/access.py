"""Client settings for the cluster of a campaign: the brokers' addresses and, if it is secured, the login."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, NamedTuple

from logstore.broker import ClientSecurity, client_security
from logstore.broker.security.jaas import parse_jaas
from logstore.cli.cluster_file import LocalCluster
from logstore.cli.operating import properties_of
from logstore.cli.secured_cluster import CLIENT_FILE


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
                "ssl_context": resilient_context(self.properties["ssl.truststore.location"]),
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


def resilient_context(authority: str) -> ssl.SSLContext:
    """Return TLS for kafka-python 3.0.12, whose clients survive a broker that is killed as they connect.

    A reset between connect and `wrap_socket` is an OSError there, where its loop of metadata expects errors
    of its own: the loop ends for good, and the client never hears of another leader.
    """
    from kafka.errors import KafkaConnectionError

    class Context(ssl.SSLContext):
        def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
            try:
                return super().wrap_socket(*arguments, **options)
            except OSError as error:
                raise KafkaConnectionError(str(error)) from error

    context = Context(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    return context


def access_to(cluster: LocalCluster, directory: Path) -> Access:
    """Return the access to the cluster in this directory."""
    properties = properties_of(directory / CLIENT_FILE) if cluster.is_secured else {}
    return Access(cluster.bootstrap, properties)

"""Apache Kafka with TLS and logins: a broker from Maven's jars, with a listener for each way in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.kafka.servers import Kafka, free_port
from logstore.cli.certs import make_certificates

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USER: Final = "ann"
PASSWORD: Final = "ann-secret"
_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def client_properties(
    mechanism: str, password: str = PASSWORD, *, ca: Path | None = None, user: str = USER
) -> dict[str, str]:
    """Return Kafka's properties of a client that logs in, over TLS if the authority's file is given."""
    login = f'{_MODULES[mechanism]} required username="{user}" password="{password}";'
    found = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": login,
    }
    if ca is not None:
        tls = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(ca)}
        found |= {"security.protocol": "SASL_SSL", **tls}
    return found


class SecuredKafka(Kafka):
    """One broker with a plain listener and one with TLS and logins, at `secured`."""

    def __init__(self, directory: Path, *, version: str, jars: Path) -> None:
        super().__init__(directory, 1, version=version, jars=jars)
        self._port = free_port()
        self.secured = f"localhost:{self._port}"
        self.ca = directory / "tls" / "ca.pem"

    def _format_and_run(self, name: str, node_id: int, own: Mapping[str, str]) -> None:
        make_certificates(self.directory / "tls", {"broker": ["localhost"]})
        listener = f"SASL_SSL://{self.secured}"
        tls = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.directory / "tls" / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
        }
        users = f'user_{USER}="{PASSWORD}"'
        logins = {
            f"listener.name.sasl_ssl.{mechanism.lower()}.sasl.jaas.config": (
                f"{_MODULES[mechanism]} required {users if mechanism == 'PLAIN' else ''};"
            )
            for mechanism in MECHANISMS
        }
        more = {
            **own,
            "listeners": f"{own['listeners']},{listener}",
            "advertised.listeners": f"{own['advertised.listeners']},{listener}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "inter.broker.listener.name": "PLAINTEXT",
            **tls,
            **logins,
        }
        super()._format_and_run(name, node_id, more)

    def add_user(self) -> None:
        """Give the user of the tests its passwords for SCRAM."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.admin._scram import (
            ScramCredentialInfo,
            ScramMechanism,
            UserScramCredentialUpsertion,
        )

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            change = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
            for changed in admin.alter_user_scram_credentials([change]).values():
                changed.result(60)

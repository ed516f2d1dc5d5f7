"""A broker for tests with TLS, logins and access control, and its own certificate authority."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from logstore.broker.embedded import BrokerConfig
from logstore.broker.security.certificates import new_authority, signed_by
from logstore.broker.security.tls import now
from logstore.broker.threaded import Broker

ADMIN, USER = "admin", "alice"
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """A running broker, and what its clients need.

    `admin` may do everything, `alice` what rules allow; the password of each is the name with `-secret`.
    """

    broker: Broker
    bootstrap: str
    ca_file: Path
    """The certificate of the authority, in PEM."""

    def password(self, user: str) -> str:
        return f"{user}-secret"

    def properties(self, user: str = ADMIN) -> dict[str, str]:
        """Return the client's properties under Kafka's names, for instance for `client_security`."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": str(self.ca_file),
            "ssl.truststore.type": "PEM",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{_MODULE} required username="{user}" password="{self.password(user)}";',
        }


@contextmanager
def secured_broker(directory: Path, settings: Mapping[str, str]) -> Iterator[SecuredBroker]:
    """Run a broker in memory with these settings too; its keys are in `directory`."""
    authority = new_authority(now())
    mine = signed_by(authority, "broker", ("localhost", "127.0.0.1"), now())
    store, trust = directory / "broker.pem", directory / "ca.pem"
    store.touch(mode=0o600)
    store.write_bytes(mine.key_pem + mine.certificate_pem)
    trust.write_bytes(authority.certificate_pem)
    users = " ".join(f'user_{each}="{each}-secret"' for each in (ADMIN, USER))
    security = {
        "listeners": "SASL_SSL://localhost:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'{_MODULE} required username="{ADMIN}" password="{ADMIN}-secret" {users};'
        ),
        "ssl.keystore.location": str(store),
        "ssl.truststore.location": str(trust),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{ADMIN}",
    }
    with Broker(BrokerConfig(settings={**security, **settings})) as broker:
        yield SecuredBroker(broker, broker.bootstrap, trust)

"""The security of one named listener: its TLS, its login and its inter-broker APIs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from logstore.broker.security.login import SaslDoor
from logstore.broker.security.principals import Rule
from logstore.broker.security.tls import Renewed

AMONG_BROKERS: Final = frozenset({4, 5, 6, 7, 56})
"""LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown, AlterPartition."""


@dataclass(frozen=True, slots=True)
class Door:
    """A named listener. A follower's fetch is refused by the handler, which knows it."""

    listener: str
    is_for_brokers: bool = True
    """Whether requests of other brokers are served here."""
    tls: Renewed | None = None
    sasl: SaslDoor | None = None
    rules: tuple[Rule, ...] = (Rule(None),)
    """How names of certificates become names of principals."""

    @property
    def hidden(self) -> frozenset[int]:
        """The APIs that are not served here, and not listed in ApiVersions."""
        return frozenset() if self.is_for_brokers else AMONG_BROKERS

    def refusal(self, key: int) -> str:
        """Return why a request of this API is refused here; empty if it is not."""
        if key in self.hidden:
            return f"API {key} is for brokers, and is not served on listener {self.listener}"
        return ""

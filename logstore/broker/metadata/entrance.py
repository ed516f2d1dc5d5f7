"""Access to the served store: the settings of `logstore metadata-store --config`, and their meaning.

    ssl.keystore.…, ssl.truststore.…, ssl.client.auth, …    as for a broker's listener
    ssl.principal.mapping.rules
    super.users       User:CN=broker1;…    who may connect; without it everyone with a certificate

A node of the served store is open to everyone who may connect: there are no access lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from logstore.broker.limits import Address, is_loopback
from logstore.broker.security.config import super_users, tls_config
from logstore.broker.security.principals import Rule, parse_rules, principal_of
from logstore.broker.security.tls import Renewed
from logstore.errors import InvalidConfig

_SUPER_USERS: Final = "super.users"


@dataclass(frozen=True, slots=True)
class Entrance:
    """`tls` is None for plain connections. Without `principals`, everyone who can connect may."""

    tls: Renewed | None = None
    rules: tuple[Rule, ...] = ()
    principals: frozenset[str] = frozenset()
    asks_for_certificates: bool = False

    def refusal(self, transport: asyncio.Transport) -> str:
        """Return why the peer of an open connection may not connect; empty if it may."""
        if not self.principals:
            return ""
        certificate = transport.get_extra_info("ssl_object").getpeercert(True)
        principal = principal_of(certificate, self.rules)
        if principal in self.principals:
            return ""
        return f"{principal or 'the name in its certificate, which no rule matches,'} is not in super.users"

    def refuse_open(self, listen: Address) -> None:
        """Raise `InvalidConfig` if anyone on the network could change the cluster."""
        if not self.asks_for_certificates and not is_loopback(listen.host):
            raise InvalidConfig(
                f"the metadata store on {listen} gives everyone on the network full access: set "
                "ssl.keystore.location and ssl.client.auth=required, listen on 127.0.0.1, or accept that "
                "with --insecure"
            )


OPEN: Final = Entrance()


def read_entrance(settings: Mapping[str, str]) -> Entrance:
    """Return who may connect. Raises `InvalidConfig`, and `ModuleNotFoundError` without `security`."""
    for name in settings:
        if not name.startswith("ssl.") and name != _SUPER_USERS:
            raise InvalidConfig(
                f"{name} is not a setting of the metadata store; these are ssl.… and super.users"
            )
    if not settings:
        return OPEN
    config = tls_config(settings)
    principals = frozenset(super_users(settings.get(_SUPER_USERS, "")))
    is_required = config.ssl_client_auth == "required"
    if principals and not is_required:
        raise InvalidConfig("super.users are the names in certificates, so set ssl.client.auth=required")
    return Entrance(Renewed(config), parse_rules(config.ssl_principal_mapping_rules), principals, is_required)

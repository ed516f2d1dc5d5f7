"""Connections to ZooKeeper: over TLS or plain, with or without a login, with nodes for all or the creator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Connect: TypeAlias = Callable[[tuple[str, int], str, float], Any]
"""Returns a socket over TLS: to this address, of a server of this name, within these seconds."""


@dataclass(frozen=True, slots=True)
class Access:
    """Connection settings of a ZooKeeper client. Without `connect`, connections are plain.

    `login` is a name and a password for SASL (DIGEST-MD5). With `has_acls`, new nodes belong to their
    creator.
    """

    connect: Connect | None = None
    login: tuple[str, str] | None = field(default=None, repr=False)
    has_acls: bool = False

    def sasl_options(self) -> dict[str, str] | None:
        """Return kazoo's options of the login."""
        if self.login is None:
            return None
        username, password = self.login
        return {"mechanism": "DIGEST-MD5", "username": username, "password": password}


OPEN: Final = Access()
"""Plain connections, and nodes that are open to all clients."""

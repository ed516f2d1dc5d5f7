"""Ports that a cluster on this machine keeps while it is stopped."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Final

_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST: Final = 10_000
_TRIES: Final = 10_000


def free_ports(count: int) -> list[int]:
    """Return different ports of loopback that were free a moment ago.

    They lie below those that the system gives to outgoing connections and to whoever asks for any port: one
    of these could be taken by anybody while its owner is stopped. Raises `OSError` if there are too few.
    """
    candidates = range(_LOWEST, max(_first_ephemeral(), _LOWEST + _TRIES))
    with ExitStack() as open_listeners:
        found: list[int] = []
        for port in random.sample(candidates, _TRIES):
            try:
                open_listeners.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue  # in use
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"no {count} ports of 127.0.0.1 are free from {candidates.start} to {candidates.stop - 1}")


def _first_ephemeral() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768

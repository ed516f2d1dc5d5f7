"""Users and their SCRAM credentials in the metadata store, at Kafka's paths.

    /config/users/<name>   config: {"SCRAM-SHA-256": "salt=…,stored_key=…,server_key=…,iterations=4096"}

Names are URL-encoded. Other settings of a user, such as quotas, stay as they are. A change takes effect at
the next login; connections that are open stay open.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from random import Random
from typing import Final
from urllib.parse import unquote

from logstore.broker.identity import AskStore
from logstore.broker.security.scram import (
    HASHES,
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    Credential,
    base36,
    credential,
    salted_password,
)
from logstore.broker.security.secret import Secret
from logstore.broker.store_reads import read
from logstore.errors import InvalidConfig
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata, MetadataStoreFailed
from logstore.replication.metastore.operations import Children, Create, Get

_KEYS: Final = ("salt", "stored_key", "server_key", "iterations")
_ROUNDS: Final = 20
_SECRET_BYTES: Final = 32


def entity_path(user: str) -> str:
    """Return a user's path below `/config`."""
    return f"users/{layout.sanitized(user)}"


def encode(found: Credential) -> str:
    parts = [base64.b64encode(each).decode() for each in found[:3]]
    return ",".join(f"{name}={value}" for name, value in zip(_KEYS, [*parts, found.iterations], strict=True))


def parse(text: str) -> Credential:
    """Parse a stored credential. Raises `CorruptMetadata`."""
    values = dict(part.partition("=")[::2] for part in text.split(","))
    try:
        salt, stored, server = (base64.b64decode(values[name], validate=True) for name in _KEYS[:3])
        return Credential(salt, stored, server, int(values["iterations"]))
    except (KeyError, ValueError, binascii.Error) as error:
        raise CorruptMetadata("a SCRAM credential in the metadata store is malformed") from error


def new_credential(
    mechanism: str, password: Secret, random: Random, iterations: int = LEAST_ITERATIONS
) -> Credential:
    """Return the credential of a password, with a new salt. Raises `InvalidConfig`."""
    if mechanism not in HASHES:
        raise InvalidConfig(f"mechanism {mechanism!r} is not one of {', '.join(HASHES)}")
    if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
        raise InvalidConfig(f"iterations is {iterations}; expected {LEAST_ITERATIONS} to {MOST_ITERATIONS}")
    salt = base36(random.getrandbits(130)).encode()
    return credential(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def changed(now: Mapping[str, str], changes: Mapping[str, Credential | None]) -> dict[str, str]:
    """Return a user's settings with these credentials by mechanism; None removes one."""
    kept = {name: value for name, value in now.items() if name not in changes}
    return kept | {name: encode(found) for name, found in changes.items() if found is not None}


async def find(ask: AskStore, user: str, mechanism: str) -> Credential | None:
    """Return a user's credential; None if there is none.

    Raises `MetadataStoreFailed` if the store does not answer, `CorruptMetadata`.
    """
    found = await _settings(ask, f"/config/{entity_path(user)}")
    return parse(found[mechanism]) if mechanism in found else None


async def all_users(ask: AskStore) -> dict[str, dict[str, Credential]]:
    """Return the credentials of all users that have any, by name and mechanism. Raises as `find`."""
    listing = await read(ask, Children(layout.USERS_PATH), "users")
    users = {}
    for child in sorted(listing.children):
        settings = await _settings(ask, f"{layout.USERS_PATH}/{child}")
        if found := {each: parse(settings[each]) for each in HASHES if each in settings}:
            users[unquote(child)] = found
    return users


async def login_secret(ask: AskStore, random: Random) -> bytes:
    """Return the cluster's secret, which makes the salts of unknown users; make one if there is none."""
    for _ in range(_ROUNDS):
        found = await read(ask, Get(layout.LOGIN_SECRET_PATH), "users")
        if found.stat is not None:
            return bytes.fromhex(found.data.decode())
        wanted = random.randbytes(_SECRET_BYTES).hex().encode()
        await ask(Create(layout.LOGIN_SECRET_PATH, wanted, make_parents=True))
    raise MetadataStoreFailed("the metadata store did not store the login secret; check the store")


async def _settings(ask: AskStore, path: str) -> Mapping[str, str]:
    found = await read(ask, Get(path), "users")
    return layout.parse_topic_config(found.data) if found.stat is not None else {}

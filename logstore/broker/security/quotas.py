"""Quotas: their entities, their precedence, and their use. Pure.

    user and client id     /config/users/<user>/clients/<client>
    user                   /config/users/<user>
    client id              /config/clients/<client>
    IP address             /config/ips/<address>

An entity is one of these, each part by its name or as the default for all names. For each kind of quota on
its own the most exact entity that has it counts (KIP-13, 55, 124, 257, 546, 599, 612). Rates and throttle
times are computed as Kafka's Rate, TokenBucket and QuotaUtils compute them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from logstore.config import MAX_INT, MAX_LONG
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.rates import Windows, rounded

USER: Final = "user"
CLIENT: Final = "client-id"
IP: Final = "ip"
_FOLDERS: Final = {USER: "users", CLIENT: "clients", IP: "ips"}
_CLOSE: Final = 1e-6
"""How far a number may be from a whole one."""
_TYPES: Final = {folder: kind for kind, folder in _FOLDERS.items()}


Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Pairs of type and name, the user first; the name None is the default."""
ENTITIES: Final = ((USER,), (CLIENT,), (USER, CLIENT), (IP,))
"""The types of the parts of all entities."""


class Kind(StrEnum):
    """The resource that a quota limits."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"

    @property
    def is_whole(self) -> bool:
        """Whether values have no fraction."""
        return self in (Kind.PRODUCE, Kind.FETCH, Kind.CONNECTION)

    @property
    def most(self) -> int:
        """The largest whole value: Kafka's brokers read an int or a long."""
        return MAX_INT if self is Kind.CONNECTION else MAX_LONG

    def is_for(self, entity: Entity) -> bool:
        """Return whether such entities have this quota: addresses have connection rates, and nobody else."""
        return (self is Kind.CONNECTION) == (entity[0][0] == IP)


Settings = Mapping[Kind, float]


class Key(NamedTuple):
    """The clients that share one budget; a part that is None does not matter."""

    user: str | None
    client: str | None


def path_of(entity: Entity) -> str:
    """Return an entity's path below `/config`: `users/bob/clients/<default>`."""
    names = (layout.DEFAULT_ENTITY if name is None else layout.sanitized(name) for _, name in entity)
    return "/".join(f"{_FOLDERS[kind]}/{name}" for (kind, _), name in zip(entity, names, strict=True))


def entity_of(path: str) -> Entity | None:
    """Return the entity of a path below `/config`; None if quotas are not about it."""
    parts = path.split("/")
    kinds = tuple(_TYPES.get(each, "") for each in parts[::2])
    if len(parts) % 2 or kinds not in ENTITIES:
        return None
    names = (None if each == layout.DEFAULT_ENTITY else unquote(each) for each in parts[1::2])
    return tuple(zip(kinds, names, strict=True))


def parse(settings: Mapping[str, str], entity: Entity) -> dict[Kind, float]:
    """Return the quotas among the settings of an entity. Raises `CorruptMetadata`."""
    found = {}
    for kind in Kind:
        if (text := settings.get(kind)) is None or not kind.is_for(entity):
            continue
        try:
            found[kind] = float(text)
        except ValueError:
            raise CorruptMetadata(
                f"{kind} in the metadata store is {text!r}, which is not a number"
            ) from None
        if not 0 <= found[kind] < math.inf:
            raise CorruptMetadata(f"{kind} in the metadata store is {text!r}, which is not a rate")
    return found


def text_of(kind: Kind, value: float) -> str:
    """Return a value as Kafka stores it. Raises `ValueError` for one that it refuses."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{kind} is {value}; expected a number from 0")
    if not kind.is_whole:
        return repr(float(value))
    whole = int(value + _CLOSE)
    # A client's number for "no limit" may be the largest long as a float, which is one more.
    if abs(whole - value) > _CLOSE or value > float(kind.most):
        raise ValueError(f"{kind} is {value}; expected a whole number from 0 to {kind.most}")
    return str(min(whole, kind.most))


class Quotas:
    """All quotas of a cluster, by entity."""

    def __init__(self, values: Mapping[Entity, Settings] | None = None) -> None:
        self.values = {entity: found for entity, found in (values or {}).items() if found}

    def __bool__(self) -> bool:
        return bool(self.values)

    def bound(self, kind: Kind, user: str, client: str) -> tuple[float, Key] | None:
        """Return the quota that counts for a client, and who shares it; None if there is none."""
        for entity, key in _candidates(user, client):
            if (value := self.values.get(entity, {}).get(kind)) is not None:
                return value, key
        return None


def _candidates(user: str, client: str) -> Iterator[tuple[Entity, Key]]:
    """Yield what may count, the most exact entity first."""
    both, of_user, of_client = Key(user, client), Key(user, None), Key(None, client)
    yield ((USER, user), (CLIENT, client)), both
    yield ((USER, user), (CLIENT, None)), both
    yield ((USER, user),), of_user
    yield ((USER, None), (CLIENT, client)), both
    yield ((USER, None), (CLIENT, None)), both
    yield ((USER, None),), of_user
    yield ((CLIENT, client),), of_client
    yield ((CLIENT, None),), of_client


# --- measuring ----------------------------------------------------------------------------------


class TokenBucket:
    """A token bucket (KIP-599). It starts full, and may fall below zero."""

    def __init__(self, windows: Windows, bound: float, now_ms: int) -> None:
        self._windows, self._now_ms = windows, now_ms
        self._tokens = self._burst(bound)

    def _burst(self, bound: float) -> float:
        return bound * self._windows.total_ms / 1000

    def tokens(self, bound: float, now_ms: int) -> float:
        """Return how many there are now."""
        refilled = self._tokens + (now_ms - self._now_ms) / 1000 * bound
        self._tokens, self._now_ms = min(self._burst(bound), refilled), now_ms
        return self._tokens

    def take(self, amount: float, bound: float, now_ms: int) -> None:
        """Take tokens, also more than there are."""
        self._tokens = self.tokens(bound, now_ms) - amount

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """Return the time until there are none missing."""
        tokens = self.tokens(bound, now_ms)
        if tokens >= 0:
            return 0
        return rounded(-tokens / bound * 1000 if bound else math.inf)

    def is_full(self, bound: float, now_ms: int) -> bool:
        """Return whether forgetting it changes nothing."""
        return self.tokens(bound, now_ms) >= self._burst(bound)

"""Access control lists and the decision over a request, by the rules of Kafka's AclAuthorizer. Pure.

matching rules   those of the very name, of the literal `*`, and of every prefix of the name
1. super user: allowed
2. no matching rule, whoever it names: `allow.everyone.if.no.acl.found`
3. a Deny of the principal (or User:*), the host (or *) and the operation (or All): denied
4. an Allow likewise: allowed; Describe is implied by Read, Write, Delete and Alter, DescribeConfigs by
   AlterConfigs
5. denied
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import chain
from typing import Final, NamedTuple, TypeAlias


class Resource(IntEnum):
    """A type of resource, with Kafka's number."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Operation(IntEnum):
    """An operation, with Kafka's number."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class Pattern(IntEnum):
    """How a rule names resources; ANY and MATCH are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """The effect of a rule."""

    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
WILDCARD: Final = "*"
EVERYONE: Final = "User:*"
_SUPPORTED: Final = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    Resource.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    Resource.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
_IMPLIED_BY: Final = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
_MOST_DECISIONS: Final = 10_000
"""Decisions that are remembered."""
_LONGEST_NAME: Final = 256
"""Decisions about longer names are not: clients may ask for any number of groups of 32 KiB."""


class Acl(NamedTuple):
    """One rule."""

    resource: Resource
    pattern: Pattern
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def concerns(self, principal: str, host: str) -> bool:
        return self.principal in (principal, EVERYONE) and self.host in (host, WILDCARD)


Named: TypeAlias = tuple[Resource, Pattern, str]
"""The resources that a rule covers: its first three fields."""


class AclFilter(NamedTuple):
    """Selects rules; None matches everything."""

    resource: Resource | None = None
    pattern: Pattern = Pattern.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    permission: Permission | None = None

    def matches(self, acl: Acl) -> bool:
        pairs = (
            (self.resource, acl.resource),
            (self.principal, acl.principal),
            (self.host, acl.host),
            (self.operation, acl.operation),
            (self.permission, acl.permission),
        )
        return all(wanted is None or wanted == found for wanted, found in pairs) and self._names(acl)

    def _names(self, acl: Acl) -> bool:
        if self.pattern in (Pattern.LITERAL, Pattern.PREFIXED) and acl.pattern is not self.pattern:
            return False
        if self.name is None or acl.name == self.name:
            return True
        if self.pattern is not Pattern.MATCH:
            return False
        if acl.pattern is Pattern.LITERAL:
            return acl.name == WILDCARD
        return self.name.startswith(acl.name)


class Rules:
    """A set of rules, indexed by the resources that they name."""

    def __init__(
        self, acls: Iterable[Acl] = (), *, super_users: Iterable[str] = (), allow_if_none: bool = False
    ) -> None:
        """`allow_if_none` is `allow.everyone.if.no.acl.found`."""
        self.super_users, self.allow_if_none = frozenset(super_users), allow_if_none
        rules: defaultdict[Named, set[Acl]] = defaultdict(set)
        for acl in acls:
            rules[acl[:3]].add(acl)
        self._rules: dict[Named, Collection[Acl]] = dict(rules)
        self._lengths = _lengths(rules)
        # The same few questions come with every request.
        self._remembered = lru_cache(_MOST_DECISIONS)(self._allows)
        self._any_remembered = lru_cache(_MOST_DECISIONS)(self._allows_any)

    @cached_property
    def acls(self) -> frozenset[Acl]:
        return frozenset(chain.from_iterable(self._rules.values()))

    def replaced_by(self, acls: Iterable[Acl]) -> Rules:
        """Return other rules with the same settings."""
        return Rules(acls, super_users=self.super_users, allow_if_none=self.allow_if_none)

    def changed(self, read: Mapping[Named, Collection[Acl]]) -> Rules:
        """Return the rules after those that name these resources were read again."""
        rules = self.replaced_by(())
        rules._rules, rules._lengths = {**self._rules, **read}, self._lengths | _lengths(read)
        return rules

    def is_super(self, principal: str) -> bool:
        return principal in self.super_users

    def _matching(self, resource: Resource, name: str) -> list[Acl]:
        literals = (name,) if name == WILDCARD else (name, WILDCARD)
        prefixes = (
            name[:length] for kind, length in self._lengths if kind is resource and length <= len(name)
        )
        matching = [
            *((resource, Pattern.LITERAL, each) for each in literals),
            *((resource, Pattern.PREFIXED, each) for each in prefixes),
        ]
        return [acl for named in matching for acl in self._rules.get(named, ())]

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        """Return whether the principal may do this from this host (an address as `host_of` writes it)."""
        decide = self._remembered if len(name) <= _LONGEST_NAME else self._allows
        return decide(principal, host, operation, resource, name)

    def _allows(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        if principal in self.super_users:
            return True
        matching = self._matching(resource, name)
        if not matching:
            return self.allow_if_none
        mine = [acl for acl in matching if acl.concerns(principal, host)]
        exactly = (operation, Operation.ALL)
        if any(acl.permission is Permission.DENY and acl.operation in exactly for acl in mine):
            return False
        enough = (*exactly, *_IMPLIED_BY.get(operation, ()))
        return any(acl.permission is Permission.ALLOW and acl.operation in enough for acl in mine)

    def allows_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Return whether the principal may do this with some resource of the type; nothing is implied."""
        return self._any_remembered(principal, host, operation, resource)

    def _allows_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        if principal in self.super_users:
            return True
        mine = [
            acl
            for acl in self.acls
            if acl.resource is resource
            and acl.concerns(principal, host)
            and acl.operation in (operation, Operation.ALL)
        ]
        denied = [acl for acl in mine if acl.permission is Permission.DENY]
        literals = {acl.name for acl in denied if acl.pattern is Pattern.LITERAL}
        prefixes = tuple(acl.name for acl in denied if acl.pattern is Pattern.PREFIXED)
        if WILDCARD in literals:
            return False
        if self.allow_if_none:
            return True
        return any(
            acl.permission is Permission.ALLOW
            and (
                (acl.pattern is Pattern.LITERAL and acl.name == WILDCARD)
                or not (
                    acl.name.startswith(prefixes) or (acl.pattern is Pattern.LITERAL and acl.name in literals)
                )
            )
            for acl in mine
        )


def _lengths(named: Iterable[Named]) -> frozenset[tuple[Resource, int]]:
    """Return the lengths of the prefixes of each type."""
    return frozenset((kind, len(name)) for kind, pattern, name in named if pattern is Pattern.PREFIXED)


def supported_operations(resource: Resource) -> tuple[Operation, ...]:
    """Return the operations that requests ask for with a type of resource, and ALL (`AclEntry` in Kafka)."""
    return (*_SUPPORTED[resource], Operation.ALL)


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, so that a rule with it can match."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_of(peer: str) -> str:
    """Return a peer's address as Java writes it, and rules with it: IPv6 without `::`."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{int(part, 16):x}" for part in address.exploded.split(":"))

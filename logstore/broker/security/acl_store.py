"""Rules in the metadata store, at Kafka's paths and in its form.

    /kafka-acl/<Type>/<name>                       rules of a resource by its literal name
    /kafka-acl-extended/prefixed/<Type>/<name>     rules of a prefix
    /kafka-acl-changes/acl_changes_<n>             notifications: TOPIC:orders
    /kafka-acl-extended-changes/acl_changes_<n>    the same for prefixes, as JSON

A broker reads all rules when it starts, and then what the notifications name (`notices.py`); its own changes
count at once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from logstore.broker.identity import AskStore
from logstore.broker.security.acls import Acl, Named, Operation, Pattern, Permission, Resource
from logstore.broker.store_reads import not_written, read, read_many
from logstore.loggers import logger_of
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import (
    Children,
    Create,
    Delete,
    Get,
    Multi,
    Outcome,
    Write,
    put,
)

LITERAL_PATH: Final = "/kafka-acl"
PREFIXED_PATH: Final = "/kafka-acl-extended/prefixed"
CHANGES: Final = ("/kafka-acl-changes", "/kafka-acl-extended-changes")
_NOTICE: Final = "acl_changes_"
_ROUNDS: Final = 20

_log = logger_of(__name__)


def camel(member: Resource | Operation | Permission) -> str:
    """Return a name as Kafka stores it: TransactionalId."""
    return member.name.title().replace("_", "")


_RESOURCES: Final = {camel(each): each for each in Resource}
_OPERATIONS: Final = {camel(each): each for each in Operation}
_PERMISSIONS: Final = {camel(each): each for each in Permission}


def path_of(resource: Resource, pattern: Pattern, name: str) -> str:
    root = LITERAL_PATH if pattern is Pattern.LITERAL else PREFIXED_PATH
    return f"{root}/{camel(resource)}/{name}"


def encode(acls: Iterable[Acl]) -> bytes:
    """Encode the rules of one node."""
    rules = [
        {
            "principal": each.principal,
            "permissionType": camel(each.permission),
            "host": each.host,
            "operation": camel(each.operation),
        }
        for each in sorted(acls)
    ]
    return json.dumps({"version": 1, "acls": rules}, separators=(",", ":"), ensure_ascii=False).encode()


def parse(resource: Resource, pattern: Pattern, name: str, data: bytes) -> frozenset[Acl]:
    """Parse the rules of one node. Raises `CorruptMetadata`: a rule that is skipped might be a Deny."""
    try:
        rules: Any = json.loads(data.decode())["acls"]
        return frozenset(
            Acl(
                resource,
                pattern,
                name,
                str(each["principal"]),
                str(each["host"]),
                _OPERATIONS[each["operation"]],
                _PERMISSIONS[each["permissionType"]],
            )
            for each in rules
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptMetadata(
            f"the rules of {camel(resource)} {name} in the metadata store are malformed"
        ) from error


async def read_all(ask: AskStore) -> set[Acl]:
    """Return all rules. Raises `MetadataStoreFailed` and `CorruptMetadata`."""
    found: list[Named] = []
    for root, pattern in ((LITERAL_PATH, Pattern.LITERAL), (PREFIXED_PATH, Pattern.PREFIXED)):
        for kind in (await read(ask, Children(root), "ACLs")).children:
            resource = _RESOURCES.get(kind)
            if resource is None:
                _log.warning("ignoring the ACLs of unknown resource type %s", kind)
                continue
            names = (await read(ask, Children(f"{root}/{kind}"), "ACLs")).children
            found += ((resource, pattern, name) for name in names)
    return {acl for acls in (await read_of(ask, found)).values() for acl in acls}


async def read_of(ask: AskStore, named: Collection[Named]) -> dict[Named, frozenset[Acl]]:
    """Return the rules that name these resources. Raises as `read_all`."""
    by_path = {path_of(*each): each for each in named}
    return {
        by_path[path]: parse(*by_path[path], node.data) if node.data else frozenset()
        for path, node in (await read_many(ask, by_path, "ACLs")).items()
    }


def resources_in(notices: Iterable[bytes]) -> set[Named] | None:
    """Return what notifications name; None if one is malformed, or of an unknown type."""
    try:
        return {_resource_in(each.decode()) for each in notices}
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("a notification of changed ACLs is malformed (%r); reading all ACLs again", error)
        return None


def _resource_in(notice: str) -> Named:
    kind, _, name = notice.partition(":")
    pattern = Pattern.LITERAL
    if notice.startswith("{"):
        facts: Any = json.loads(notice)
        kind, name, pattern = facts["resourceType"], facts["name"], Pattern[facts["patternType"]]
    if name in ("", ".", "..") or "/" in name:
        raise ValueError(f"no resource has the name {name!r}")
    return Resource[kind], pattern, name


async def change(ask: AskStore, add: Collection[Acl] = (), remove: Collection[Acl] = ()) -> None:
    """Add and remove rules: all of one resource together. Raises as `read_all`."""
    by_node: defaultdict[Named, list[Acl]] = defaultdict(list)
    for acl in (*add, *remove):
        by_node[acl[:3]].append(acl)
    gone = frozenset(remove)
    for named, acls in by_node.items():
        await _change(
            ask,
            *named,
            lambda now, acls=frozenset(acls): (now | (acls - gone)) - gone,  # type: ignore[misc]
        )


async def _change(
    ask: AskStore,
    resource: Resource,
    pattern: Pattern,
    name: str,
    changed: Callable[[frozenset[Acl]], frozenset[Acl]],
) -> None:
    path = path_of(resource, pattern, name)
    outcome = Outcome()
    for _ in range(_ROUNDS):
        node = await read(ask, Get(path), "ACLs")
        now = frozenset[Acl]() if node.stat is None else parse(resource, pattern, name, node.data)
        wanted = changed(now)
        if wanted == now:
            return
        write: Write = put(path, encode(wanted), node.version)
        if node.stat is not None and not wanted:
            write = Delete(path, node.stat.version)
        notice = _notice(resource, pattern, name)
        outcome = await ask(Multi((write, notice)))
        if outcome.error is None:
            return
    raise not_written("rules", outcome)


def _notice(resource: Resource, pattern: Pattern, name: str) -> Create:
    data = f"{resource.name}:{name}".encode()
    if pattern is Pattern.PREFIXED:
        facts = {
            "version": 1,
            "resourceType": resource.name,
            "name": name,
            "patternType": pattern.name,
        }
        data = json.dumps(facts, separators=(",", ":"), ensure_ascii=False).encode()
    path = CHANGES[pattern is Pattern.PREFIXED]
    return Create(f"{path}/{_NOTICE}", data, sequential=True, make_parents=True)

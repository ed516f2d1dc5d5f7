"""Decisions over requests: equal to those of Kafka's AclAuthorizer on 700 sets of rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from logstore.broker.security import acl_store
from logstore.broker.security.acls import (
    Acl,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    Resource,
    Rules,
    host_of,
)
from logstore.replication.metastore.errors import CorruptMetadata

CASES = [json.loads(line) for line in (Path(__file__).parent / "acl.jsonl").read_text().splitlines()]


def acl(row: list[str]) -> Acl:
    resource, pattern, name, principal, host, operation, permission = row
    return Acl(
        Resource[resource],
        Pattern[pattern],
        name,
        principal,
        host,
        Operation[operation],
        Permission[permission],
    )


def rules(case: dict[str, Any]) -> Rules:
    supers = [each for each in case["super"].split(";") if each]
    return Rules(map(acl, case["acls"]), super_users=supers, allow_if_none=case["everyone"])


def test_decisions_are_those_of_kafka() -> None:
    asked = 0
    for case in CASES:
        found = rules(case)
        for principal, host, operation, resource, name, expected, _ in case["queries"]:
            allowed = found.allows(principal, host, Operation[operation], Resource[resource], name)
            assert allowed == bool(expected), (case["id"], principal, host, operation, resource, name)
            asked += 1
        for principal, host, operation, resource, expected, _ in case["any"]:
            allowed = found.allows_any(principal, host, Operation[operation], Resource[resource])
            assert allowed == bool(expected), (case["id"], principal, host, operation, resource)
            asked += 1
    assert asked == 9_800 + 2_100


def test_rules_are_stored_as_kafka_stores_them() -> None:
    for case in CASES[:50]:
        for each in map(acl, case["acls"]):
            data = acl_store.encode([each])
            assert acl_store.parse(each.resource, each.pattern, each.name, data) == {each}
    known = (
        b'{"acls":[{"principal":"User:bob","permissionType":"Allow","host":"*","operation":"DescribeConfigs"}],'
        b'"version":1}'
    )
    (found,) = acl_store.parse(Resource.TOPIC, Pattern.LITERAL, "orders", known)
    assert found[3:] == ("User:bob", "*", Operation.DESCRIBE_CONFIGS, Permission.ALLOW)
    path = acl_store.path_of(Resource.TRANSACTIONAL_ID, Pattern.PREFIXED, "app-")
    assert path == "/kafka-acl-extended/prefixed/TransactionalId/app-"


@pytest.mark.parametrize("data", [b"", b"{}", b'{"acls":[{}]}', b'{"acls":[{"operation":"Fly"}]}'])
def test_rules_that_cannot_be_read_are_not_skipped(data: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        acl_store.parse(Resource.TOPIC, Pattern.LITERAL, "orders", data)


def rule(name: str, pattern: Pattern = Pattern.LITERAL) -> Acl:
    return Acl(Resource.TOPIC, pattern, name, "User:a", "*", Operation.READ, Permission.ALLOW)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (AclFilter(), {"app-1", "*", "app-", "b"}),
        (AclFilter(name="app-1"), {"app-1"}),
        (AclFilter(name="app-1", pattern=Pattern.MATCH), {"app-1", "*", "app-"}),
        (AclFilter(name="app-", pattern=Pattern.PREFIXED), {"app-"}),
        (AclFilter(name="app-", pattern=Pattern.LITERAL), set()),
        (AclFilter(pattern=Pattern.PREFIXED), {"app-"}),
        (AclFilter(principal="User:b"), set()),
        (AclFilter(operation=Operation.WRITE), set()),
    ],
)
def test_filters(wanted: AclFilter, names: set[str]) -> None:
    all_rules = [rule("app-1"), rule("*"), rule("app-", Pattern.PREFIXED), rule("b")]
    assert {each.name for each in all_rules if wanted.matches(each)} == names


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("in-process", "in-process"),
    ],
)
def test_hosts_are_written_as_java_does(peer: str, host: str) -> None:
    assert host_of(peer) == host


def test_decisions_about_long_names_are_not_remembered() -> None:
    """Ten thousand of them would take 300 MiB."""
    found = Rules([acl(["GROUP", "PREFIXED", "g", "User:ann", "*", "READ", "ALLOW"])])
    for length in (10, 32_000):
        assert found.allows("User:ann", "", Operation.READ, Resource.GROUP, "g" * length)
        assert not found.allows("User:bob", "", Operation.READ, Resource.GROUP, "g" * length)
    assert found._remembered.cache_info().currsize == 2

"""Names that clients choose and that become paths of the metadata store: odd ones, and too long ones.

Before, the user ".." ended the thread of an embedded store, and with it every change of metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from logstore.broker import Broker, BrokerConfig
from logstore.broker.limits import Address
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode
from tests.broker.asking import Asker

ODD = ["..", ".", "%2E", "a/b", "\0", "\ufeff", "<default>", "ann bob", "x" * 10_000]
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(BrokerConfig(settings=SETTINGS)) as made:
        yield made


def ask(broker: Broker, request: Struct, version: int) -> Any:
    async def asked() -> Any:
        host, _, port = broker.bootstrap.rpartition(":")
        async with Asker(Address(host, int(port))) as client:
            return await client.ask(request, version)

    return asyncio.run(asked())


def quota_of(name: str) -> t.AlterClientQuotasRequest:
    """One for a user and a client of that name: both stand in one path."""
    entity = [
        t.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)
        for kind in ("user", "client-id")
    ]
    change = t.AlterClientQuotasRequestOpData(key="producer_byte_rate", value=1_000.0)
    return t.AlterClientQuotasRequest(
        entries=[t.AlterClientQuotasRequestEntryData(entity=entity, ops=[change])]
    )


def user_of(name: str) -> t.AlterUserScramCredentialsRequest:
    new = t.AlterUserScramCredentialsRequestScramCredentialUpsertion(
        name=name, mechanism=1, iterations=4096, salt=b"salt", salted_password=b"x" * 32
    )
    return t.AlterUserScramCredentialsRequest(upsertions=[new])


def rule_of(name: str) -> t.CreateAclsRequest:
    rule = t.CreateAclsRequestAclCreation(
        resource_type=3,
        resource_name=name,
        resource_pattern_type=3,
        principal="User:ann",
        host="*",
        operation=3,
        permission_type=3,
    )
    return t.CreateAclsRequest(creations=[rule])


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_quotas_and_credentials_of_an_odd_name(broker: Broker, name: str) -> None:
    assert ask(broker, quota_of(name), 1).entries[0].error_code == ErrorCode.NONE
    assert ask(broker, user_of(name), 0).results[0].error_code == ErrorCode.NONE
    wanted = [t.DescribeUserScramCredentialsRequestUserName(name=name)]
    found = ask(broker, t.DescribeUserScramCredentialsRequest(users=wanted), 0)
    assert [(each.user, each.error_code) for each in found.results] == [(name, ErrorCode.NONE)]
    found = ask(broker, t.DescribeClientQuotasRequest(components=[]), 1)
    assert (name, name) in [tuple(one.entity_name for one in each.entity) for each in found.entries]


def test_a_name_that_is_too_long_is_refused(broker: Broker) -> None:
    """Escaped, a face takes 12 bytes of the path."""
    for name in ("x" * 32_000, "\N{GRINNING FACE}" * 4_000):
        quota = ask(broker, quota_of(name), 1).entries[0]
        assert quota.error_code == ErrorCode.INVALID_REQUEST
        assert quota.error_message.endswith("the name of an entity is too long")
    user = ask(broker, user_of("\N{GRINNING FACE}" * 8_000), 0).results[0]
    assert user.error_code == ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert user.error_message.endswith("the name of the user is too long")
    broker.create_topic("after")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("..", "must not be '.' or '..'"),
        (".", "must not be '.' or '..'"),
        ("a\0b", "control characters"),
        ("a\nb", "control characters"),
        ("a/b", "slash"),
        ("x" * 30_000, ""),
        ("\N{GRINNING FACE}" * 6_000, "too long"),
    ],
    ids=lambda text: ascii(text[:5]),
)
def test_a_rule_of_a_name_that_no_node_can_have(broker: Broker, name: str, said: str) -> None:
    refused = ask(broker, rule_of(name), 2).results[0]
    assert refused.error_code == (ErrorCode.INVALID_REQUEST if said else ErrorCode.NONE)
    assert said in (refused.error_message or "")
    assert ask(broker, rule_of("fine"), 2).results[0].error_code == ErrorCode.NONE

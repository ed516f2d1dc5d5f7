"""Lists of a quarter of a million entries, the most of a request: no entry is compared with all others.

The names here count how often they are compared. A set or a dict does that when two of them are the same.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from logstore.broker import configs
from logstore.broker.configs import InvalidConfigChange, Operation
from logstore.broker.handlers import users
from logstore.broker.receipts import answer_receipts
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.errors import InvalidConfig
from logstore.replication.errors import UnknownTopicOrPartition

MANY = 50


class Name(str):
    """Counts comparisons with others."""

    compared: ClassVar[list[str]] = []

    def __eq__(self, other: object) -> bool:
        Name.compared.append(self)
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.fixture(autouse=True)
def _counted() -> None:
    Name.compared.clear()


def some() -> list[Name]:
    return [Name(f"name-{each}") for each in range(MANY)]


def test_settings_of_a_resource() -> None:
    with pytest.raises(InvalidConfig):
        configs.replaced([(each, "1") for each in some()])
    with pytest.raises(InvalidConfig):
        configs.changed({}, [(each, Operation.SET, "1") for each in some()])
    with pytest.raises(InvalidConfigChange, match="a, b: listed more than once"):
        configs.replaced([(each, "1") for each in ("b", "a", "c", "a", "b")])
    assert len(Name.compared) < 10 * MANY


def test_users(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(ask: object) -> dict[str, Any]:
        return {}

    async def changed(ask: object, path: str, change: object) -> None:
        """Written."""

    monkeypatch.setattr("logstore.broker.security.users.all_users", none)
    monkeypatch.setattr(users, "change_entity", changed)
    services: Any = SimpleNamespace(ask_store=None, audit=lambda *_, **__: None)
    call: Any = SimpleNamespace(connection=SimpleNamespace(principal="User:ann", peer=""))

    async def test() -> None:
        name = t.DescribeUserScramCredentialsRequestUserName
        request = t.DescribeUserScramCredentialsRequest(users=[name(name=each) for each in some()])
        assert len((await users.describe(call, request, services)).results) == MANY
        deletion = t.AlterUserScramCredentialsRequestScramCredentialDeletion
        deletions = [deletion(name=each, mechanism=1) for each in some()]
        wanted = t.AlterUserScramCredentialsRequest(deletions=deletions)
        assert len((await users.alter(call, wanted, services)).results) == MANY

    asyncio.run(test())
    assert len(Name.compared) < 10 * MANY


def test_topics_of_receipts() -> None:
    class Receipts:
        def of(self, *_: object) -> None:
            raise UnknownTopicOrPartition("no such topic")

    async def test() -> None:
        topic, part = t.ListOffsetsRequestListOffsetsTopic, t.ListOffsetsRequestListOffsetsPartition
        topics = [topic(name=each, partitions=[part(receipt_offset=0)]) for each in some()]
        answer = await answer_receipts(t.ListOffsetsRequest(topics=topics * 2), Receipts())  # type: ignore[arg-type]
        found = [(len(each.partitions), each.partitions[0].error_code) for each in answer.topics]
        assert found == [(2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] * MANY

    asyncio.run(test())
    assert len(Name.compared) < 10 * MANY

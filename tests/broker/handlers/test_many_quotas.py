"""AlterClientQuotas with many entries: the store gets them together, those of one entity in their order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from logstore.broker.handlers import quotas
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.replication.metastore.layout import parse_topic_config
from logstore.replication.metastore.operations import Get, Multi, Operation, Outcome, Stat, StoreError

MANY = 50


class Store:
    """Answers once all that can be asked was asked."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}
        self.syncs = 0
        self._waiting: list[tuple[Operation, asyncio.Future[Outcome]]] = []

    async def ask(self, operation: Operation) -> Outcome:
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, answer))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._answer)
        return await answer

    def _answer(self) -> None:
        self.syncs += 1
        waiting, self._waiting = self._waiting, []
        for operation, answer in waiting:
            answer.set_result(self._done(operation))

    def _done(self, operation: Operation) -> Outcome:
        if isinstance(operation, Multi):
            write: Any = operation.writes[0]
            _, version = self.nodes.get(write.path, (b"", -1))
            if getattr(write, "version", -1) != version:
                return Outcome(StoreError.BAD_VERSION)
            self.nodes[write.path] = (write.data, version + 1)
            return Outcome()
        assert isinstance(operation, Get)
        if (found := self.nodes.get(operation.path)) is None:
            return Outcome(StoreError.NO_NODE)
        return Outcome(data=found[0], stat=Stat(found[1], 1))


def entry(user: str, rate: float, kind: str = "producer_byte_rate") -> t.AlterClientQuotasRequestEntryData:
    return t.AlterClientQuotasRequestEntryData(
        entity=[t.AlterClientQuotasRequestEntityData(entity_type="user", entity_name=user)],
        ops=[t.AlterClientQuotasRequestOpData(key=kind, value=rate)],
    )


def test_the_store_gets_them_together() -> None:
    store = Store()
    refreshed: list[str] = []

    async def refresh(*paths: str) -> None:
        refreshed.extend(paths)

    services: Any = SimpleNamespace(
        ask_store=store.ask, audit=lambda *_, **__: None, quotas=SimpleNamespace(refresh=refresh)
    )
    call: Any = SimpleNamespace(connection=SimpleNamespace(principal="User:ann", peer=""))
    entries = [entry(f"user-{number}", number) for number in range(MANY)]
    more = [entry("user-7", 1.5), entry("user-7", 70), entry("user-7", 8, "consumer_byte_rate")]

    async def test() -> None:
        answer = await quotas.alter(call, t.AlterClientQuotasRequest(entries=[*entries, *more]), services)
        codes = [each.error_code for each in answer.entries]
        assert codes == [ErrorCode.NONE] * MANY + [ErrorCode.INVALID_REQUEST] + [ErrorCode.NONE] * 2

    asyncio.run(test())
    assert store.syncs < MANY / 2
    assert sorted(refreshed) == sorted(
        [*(f"users/user-{number}" for number in range(MANY)), *["users/user-7"] * 2]
    )
    found = parse_topic_config(store.nodes["/config/users/user-7"][0])
    assert found == {"producer_byte_rate": "70", "consumer_byte_rate": "8"}

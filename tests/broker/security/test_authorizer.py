"""The rules that a broker follows in the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from logstore.broker.metadata.opening import open_store
from logstore.broker.security import acl_store
from logstore.broker.security.acls import Acl, Operation, Pattern, Permission, Resource, Rules
from logstore.broker.security.audit import Audit
from logstore.broker.security.authorizer import Authorizer
from logstore.broker.store_session import StoreSession
from logstore.disk.files import SteadyClock
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import (
    Children,
    Create,
    Delete,
    Get,
    Outcome,
    Set,
    StoreError,
)
from logstore.replication.metastore.operations import (
    Operation as Asked,
)


class Lossy(StoreSession):
    """A session to the store that loses answers, and with them the watches."""

    lost: tuple[type[Asked], ...] = ()

    async def ask(self, operation: Asked) -> Outcome:
        if isinstance(operation, self.lost) and getattr(operation, "watch", True):
            self.lost = ()
            return Outcome(StoreError.CONNECTION_LOSS)
        return await super().ask(operation)


def deny(principal: str, topic: str = "t", pattern: Pattern = Pattern.LITERAL) -> Acl:
    return Acl(Resource.TOPIC, pattern, topic, principal, "*", Operation.READ, Permission.DENY)


def test_changes_are_followed_after_lost_answers() -> None:
    """Rules of another broker: one that is missed might be a Deny."""

    async def main() -> None:
        with open_store() as shared:
            store = Lossy(shared.client)
            async with store, StoreSession(shared.client) as other:
                store.lost = (Create,)
                authorizer = Authorizer(Rules(), store, MetadataCache(), Audit(), SteadyClock())
                await authorizer.open()
                for principal in ("User:ann", "User:bob", "User:eve"):
                    store.lost = (Children,)
                    await acl_store.change(other.ask, add=[deny(principal)])
                    while deny(principal) not in authorizer.rules.acls:
                        await asyncio.sleep(0)
                authorizer.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_rules_that_are_read_slowly_replace_no_newer_ones() -> None:
    """A change is in force when it is answered, and stays so."""

    class Slow(StoreSession):
        """Holds one answer back: what was read is old when it is told."""

        held: asyncio.Event | None = None

        async def ask(self, operation: Asked) -> Outcome:
            answer = await super().ask(operation)
            if self.held is not None and operation == Children(acl_store.CHANGES[0], watch=True):
                held, self.held = self.held, None
                await held.wait()
            return answer

    async def main() -> None:
        with open_store() as shared:
            store = Slow(shared.client)
            async with store:
                authorizer = Authorizer(Rules(), store, MetadataCache(), Audit(), SteadyClock())
                await authorizer.open()
                authorizer.close()
                store.held = held = asyncio.Event()
                slow = asyncio.create_task(authorizer.refresh())
                while store.held is not None:
                    await asyncio.sleep(0)
                changing = asyncio.create_task(authorizer.change(add=[deny("User:ann")]))
                for _ in range(1_000):
                    if deny("User:ann") in authorizer.rules.acls:
                        break
                    await asyncio.sleep(0)
                held.set()
                await asyncio.gather(slow, changing)
                assert deny("User:ann") in authorizer.rules.acls

    asyncio.run(asyncio.wait_for(main(), 20))


MINUTE_MS = 60_000
ALL = [deny("User:ann", f"t{number}") for number in range(100)]


class Observed(StoreSession):
    """Keeps what it is asked."""

    def __init__(self, store_of: Callable[..., Any]) -> None:
        super().__init__(store_of)
        self.asked: list[Asked] = []

    async def ask(self, operation: Asked) -> Outcome:
        if isinstance(operation, Get | Children):
            self.asked.append(operation)
        if isinstance(operation, Get) and "changes" in operation.path:
            await self.before_notice(operation.path)
        return await super().ask(operation)

    async def before_notice(self, path: str) -> None: ...


class Town:
    """A broker that follows 100 rules, and another one that changes them."""

    def __init__(self, store: Observed, other: StoreSession) -> None:
        self.store, self.other = store, other
        self.now_ms = 0
        self.authorizer = Authorizer(Rules(), store, MetadataCache(), Audit(), lambda: self.now_ms)

    async def change(self, add: Collection[Acl] = (), remove: Collection[Acl] = ()) -> int:
        """Make a change elsewhere, and return how many reads it takes here until it is known."""
        await acl_store.change(self.other.ask, add, remove)
        self.store.asked.clear()
        await self.authorizer.refresh()
        assert self.authorizer.rules.acls.issuperset(add)
        assert self.authorizer.rules.acls.isdisjoint(remove)
        return len(self.store.asked)


@asynccontextmanager
async def town() -> AsyncIterator[Town]:
    with open_store() as shared:
        store = Observed(shared.client)
        async with asyncio.timeout(20), store, StoreSession(shared.client) as other:
            await acl_store.change(other.ask, ALL)
            made = Town(store, other)
            await made.authorizer.open()
            made.authorizer.close()  # each test looks when it wants to
            yield made


FEW = 10
"""Reads after a change: two listings, and two for each rule that changed."""


def test_a_change_reads_what_the_notification_names() -> None:
    async def main() -> None:
        async with town() as here:
            assert here.authorizer.rules.acls == {*ALL}
            prefixed = deny("User:bob", "t", Pattern.PREFIXED)
            assert await here.change(add=[prefixed]) < FEW
            assert not here.authorizer.rules.allows("User:bob", "h", Operation.READ, Resource.TOPIC, "t1")
            assert await here.change(add=[deny("User:bob", "t1"), deny("User:bob", "t2")]) < FEW
            assert await here.change(remove=[ALL[3], prefixed]) < FEW
            bobs = {deny("User:bob", "t1"), deny("User:bob", "t2")}
            assert here.authorizer.rules.acls == ({*ALL} | bobs) - {ALL[3]}

    asyncio.run(main())


def test_all_rules_are_read_again_after_a_pause_or_another_session() -> None:
    async def main() -> None:
        async with town() as here:
            here.now_ms += 10 * MINUTE_MS
            assert await here.change(add=[deny("User:bob")]) > len(ALL)
            here.now_ms += 9 * MINUTE_MS
            assert await here.change(add=[deny("User:eve")]) < FEW
            here.store._forget(here.store.session_id or 0)
            assert await here.change(add=[deny("User:mal")]) > len(ALL)
            assert await here.change(remove=[deny("User:mal")]) < FEW

    asyncio.run(main())


def test_a_quiet_hour_makes_the_next_change_no_dearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logstore.broker.notices.LOOK_S", 0.0)

    async def main() -> None:
        async with town() as here:
            await here.authorizer.open()
            for _ in range(12):
                here.now_ms += 5 * MINUTE_MS
                here.store.asked.clear()
                while len(here.store.asked) < FEW:
                    await asyncio.sleep(0)
            here.authorizer.close()
            assert await here.change(add=[deny("User:bob")]) < FEW

    asyncio.run(main())


@pytest.mark.parametrize("notice", [b"", b"TOPIC:", b"TOPIC:a/b", b"MOON:t", b"{}", b"{", b"\xff", b"[]"])
def test_a_notification_that_says_nothing_reads_all_rules(notice: bytes) -> None:
    async def main() -> None:
        async with town() as here:
            change = Create(acl_store.path_of(*deny("User:bob")[:3]), acl_store.encode([deny("User:bob")]))
            await here.other.ask(change)
            await here.other.ask(Create(f"{acl_store.CHANGES[0]}/acl_changes_", notice, sequential=True))
            await here.authorizer.refresh()
            assert deny("User:bob") in here.authorizer.rules.acls

    asyncio.run(main())


def test_a_notification_that_is_gone_when_it_is_read_reads_all_rules() -> None:
    async def main() -> None:
        async with town() as here:

            async def remove(path: str) -> None:
                await here.other.ask(Delete(path))

            here.store.before_notice = remove  # type: ignore[method-assign]
            assert await here.change(add=[deny("User:bob")]) > len(ALL)

    asyncio.run(main())


def test_a_change_that_cannot_be_read_is_read_the_next_time() -> None:
    async def main() -> None:
        async with town() as here:
            bob = acl_store.path_of(*deny("User:bob")[:3])
            await acl_store.change(here.other.ask, add=[deny("User:bob")])
            await here.other.ask(Set(bob, b"?", -1))
            with pytest.raises(CorruptMetadata):
                await here.authorizer.refresh()
            assert here.authorizer.rules.acls == {*ALL}
            await here.other.ask(Set(bob, acl_store.encode([deny("User:bob")]), -1))
            await here.authorizer.refresh()
            assert deny("User:bob") in here.authorizer.rules.acls

    asyncio.run(main())


def test_a_change_that_comes_while_another_is_read_is_not_missed() -> None:
    async def main() -> None:
        async with town() as here:
            await here.authorizer.open()

            async def change_again(path: str) -> None:
                del here.store.before_notice
                await acl_store.change(here.other.ask, add=[deny("User:eve")])

            here.store.before_notice = change_again  # type: ignore[method-assign]
            await acl_store.change(here.other.ask, add=[deny("User:bob")])
            while not here.authorizer.rules.acls.issuperset((deny("User:bob"), deny("User:eve"))):
                await asyncio.sleep(0)
            here.authorizer.close()

    asyncio.run(main())


def test_notifications_are_removed_after_fifteen_minutes() -> None:
    async def main() -> None:
        async with town() as here:

            async def count() -> int:
                return len((await here.other.ask(Children(acl_store.CHANGES[0]))).children)

            before = await count()
            here.now_ms += 14 * MINUTE_MS
            await here.change(add=[deny("User:bob")])
            assert await count() == before + 1
            here.now_ms += MINUTE_MS
            await here.authorizer._notices.look()
            assert await count() == 1

    asyncio.run(main())

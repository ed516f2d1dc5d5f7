"""The rules that a broker follows in the metadata store."""

from __future__ import annotations

import asyncio

from logstore.broker.metadata.opening import open_store
from logstore.broker.security import acl_store
from logstore.broker.security.acls import Acl, Operation, Pattern, Permission, Resource, Rules
from logstore.broker.security.audit import Audit
from logstore.broker.security.authorizer import Authorizer
from logstore.broker.store_session import StoreSession
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.metastore.operations import (
    Children,
    Create,
    Outcome,
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


def deny(principal: str) -> Acl:
    return Acl(Resource.TOPIC, Pattern.LITERAL, "t", principal, "*", Operation.READ, Permission.DENY)


def test_changes_are_followed_after_lost_answers() -> None:
    """Rules of another broker: one that is missed might be a Deny."""

    async def main() -> None:
        with open_store() as shared:
            store = Lossy(shared.client)
            async with store, StoreSession(shared.client) as other:
                store.lost = (Create,)
                authorizer = Authorizer(Rules(), store, MetadataCache(), Audit())
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
            if self.held is not None and operation == Children(acl_store.LITERAL_PATH):
                held, self.held = self.held, None
                await held.wait()
            return answer

    async def main() -> None:
        with open_store() as shared:
            store = Slow(shared.client)
            async with store:
                authorizer = Authorizer(Rules(), store, MetadataCache(), Audit())
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

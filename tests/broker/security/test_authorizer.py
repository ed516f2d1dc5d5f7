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

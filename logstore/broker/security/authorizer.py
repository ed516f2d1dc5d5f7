"""Decides over requests by the rules of the metadata store, and follows their changes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from logstore.broker.notices import Notices
from logstore.broker.security import acl_store
from logstore.broker.security.acls import CLUSTER_NAME, Acl, Operation, Resource, Rules, host_of
from logstore.broker.security.audit import Audit
from logstore.broker.security.permissions import PERMISSIONS, Question
from logstore.broker.store_session import StoreSession
from logstore.broker.wire.declarations import Struct
from logstore.replication.metadata_cache import MetadataCache

if TYPE_CHECKING:
    from logstore.broker.dispatch import Call

MOST_AUDITED: Final = 20
"""Denials of a request that have a line each in the audit log; the others are counted in one. A request may
have a quarter of a million, whose lines would replace all earlier ones."""


class Authorizer:
    """One for all connections of a broker. Belongs to the event loop's thread."""

    def __init__(
        self,
        rules: Rules,
        store: StoreSession,
        metadata: MetadataCache,
        audit: Audit,
        now_ms: Callable[[], int],
        *,
        creates_topics: bool = True,
    ) -> None:
        """`creates_topics` is `auto.create.topics.enable`."""
        self.rules, self._store, self._metadata = rules, store, metadata
        self._audit, self._creates_topics = audit, creates_topics
        self._notices = Notices(store, now_ms, acl_store.CHANGES, "ACLs", self.refresh, are_removed=True)

    async def open(self) -> None:
        """Read the rules and follow them. Raises `MetadataStoreFailed` and `CorruptMetadata`."""
        await self._notices.open()

    def close(self) -> None:
        self._notices.close()

    async def refresh(self) -> None:
        """Read the rules that have changed. Raises as `open`."""
        async with self._notices.news() as news:
            named = None if news is None else acl_store.resources_in(news)
            if named is None:
                self.rules = self.rules.replaced_by(await acl_store.read_all(self._store.ask))
            elif named:  # without news the remembered decisions stay
                self.rules = self.rules.changed(await acl_store.read_of(self._store.ask, named))

    async def change(self, add: Collection[Acl] = (), remove: Collection[Acl] = ()) -> None:
        """Write rules; they count here from now on. Raises as `open`."""
        await acl_store.change(self._store.ask, add, remove)
        await self.refresh()

    def is_broker(self, call: Call) -> bool:
        """Return whether a request comes from a broker, on the listener for brokers."""
        principal, host = call.connection.principal, host_of(call.connection.peer)
        door = call.connection.door
        return (door is None or door.is_for_brokers) and self.rules.allows(
            principal, host, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME
        )

    def admits(self, call: Call, body: Struct) -> bool:
        """Return whether the handler is to see the request, maybe without some entries; else answer it."""
        principal = call.connection.principal
        if self.rules.is_super(principal):
            return True
        host = host_of(call.connection.peer)
        allows = self.rules.allows
        if self.is_broker(call):
            return True  # it forwards what another one has admitted

        def has(operation: Operation, resource: Resource, name: str) -> bool:
            return allows(principal, host, operation, resource, name)

        audit = partial(self._audit, "denied", principal=principal, host=host, request=call.api.name)
        denials = 0

        def may(operation: Operation, resource: Resource, name: str) -> bool:
            nonlocal denials
            is_allowed = has(operation, resource, name)
            if not is_allowed:
                denials += 1
                if denials <= MOST_AUDITED:
                    audit(operation=operation.name, resource=f"{resource.name}:{name}")
            return is_allowed

        def may_any(operation: Operation, resource: Resource) -> bool:
            return self.rules.allows_any(principal, host, operation, resource)

        check = PERMISSIONS.get(call.api.key)
        if check is None:
            call.refuse(f"no permission is known for {call.api.name}")
            return False
        question = Question(
            call, body, self._metadata, has, may, may_any, creates_topics=self._creates_topics
        )
        answer = check(question)
        if denials > MOST_AUDITED:
            audit(more=denials - MOST_AUDITED)
        if answer is not None:
            call.answer(answer)
        return answer is None

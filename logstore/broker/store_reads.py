"""Operations on the metadata store that are repeated until they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import islice
from typing import Final

from logstore.broker.identity import AskStore
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.metastore.operations import Children, Create, Get, Outcome, StoreError

_ROUNDS: Final = 20
_AT_ONCE: Final = 500


async def read(ask: AskStore, operation: Get | Children, what: str) -> Outcome:
    """Return what a node holds, or that it is absent. Raises `MetadataStoreFailed`, which names `what`."""
    for _ in range(_ROUNDS):
        found = await ask(operation)
        if found.error in (None, StoreError.NO_NODE):
            return found
    raise MetadataStoreFailed(f"the metadata store does not answer reads of {what}; check the store")


async def read_many(ask: AskStore, paths: Collection[str], what: str) -> dict[str, Outcome]:
    """Return what each of these nodes holds, asked in groups. Raises as `read`."""
    waiting, found = iter(paths), dict[str, Outcome]()
    while some := tuple(islice(waiting, _AT_ONCE)):
        outcomes = await asyncio.gather(*(read(ask, Get(each), what) for each in some))
        found.update(zip(some, outcomes, strict=True))
    return found


def not_written(what: str, outcome: Outcome) -> MetadataStoreFailed:
    """Return the error of a change that was repeated in vain; `outcome` is the last one."""
    if outcome.error is StoreError.CONNECTION_LOSS:
        return MetadataStoreFailed(f"the metadata store does not answer changes of {what}; check the store")
    return MetadataStoreFailed(f"the {what} were changed concurrently; try again")


async def make(ask: AskStore, path: str, what: str) -> None:
    """Make a node, with its parents, unless it is there. Raises as `read`."""
    for _ in range(_ROUNDS):
        made = await ask(Create(path, make_parents=True))
        if made.error in (None, StoreError.NODE_EXISTS):
            return
    raise MetadataStoreFailed(f"the metadata store could not create a node for {what}; check the store")

"""Operations on the metadata store that are repeated until they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable
from itertools import islice
from typing import Final, TypeVar

from logstore.broker.identity import AskStore
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.metastore.operations import Children, Create, Get, Outcome, StoreError

T = TypeVar("T")

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
    outcomes = await in_groups(read(ask, Get(each), what) for each in paths)
    return dict(zip(paths, outcomes, strict=True))


async def in_groups(works: Iterable[Awaitable[T]]) -> list[T]:
    """Do these works, many at a time: the store syncs once for all writes that wait for it."""
    waiting, done = iter(works), list[T]()
    while some := tuple(islice(waiting, _AT_ONCE)):
        done += await asyncio.gather(*some)
    return done


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

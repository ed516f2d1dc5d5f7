"""Reads of the metadata store that are repeated until they are answered."""

from __future__ import annotations

from typing import Final

from logstore.broker.identity import AskStore
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.metastore.operations import Children, Get, Outcome, StoreError

_ROUNDS: Final = 20


async def read(ask: AskStore, operation: Get | Children, what: str) -> Outcome:
    """Return what a node holds, or that it is absent. Raises `MetadataStoreFailed`, which names `what`."""
    for _ in range(_ROUNDS):
        found = await ask(operation)
        if found.error in (None, StoreError.NO_NODE):
            return found
    raise MetadataStoreFailed(f"the metadata store does not answer reads of {what}; check the store")

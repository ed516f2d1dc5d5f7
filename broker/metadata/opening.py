"""Which metadata store a broker uses, by the text that names it.

    embedded             a store in this process, beside the first log dir (`data` → `data.metadata`)
    embedded:DIRECTORY   likewise, there
    zookeeper://…        servers that speak ZooKeeper's protocol
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from broker.clock import SteadyClock
from broker.metadata.local import SharedStore
from broker.runtime import StoreClient, StoreEvent
from checkpoint.disk import Disk, OsDisk
from checkpoint.disks.memory import MemoryDisk
from logstore.errors import InvalidConfig
from replication.metastore.embedded import EmbeddedStore

EMBEDDED: Final = "embedded"
_IN_MEMORY: Final = "metadata"

StoreOf = Callable[[Callable[[StoreEvent], None]], StoreClient]
"""Makes a client of the metadata store, given the function that takes its events."""


def open_store(directory: str | None = None, *, disk: Disk | None = None) -> SharedStore:
    """A metadata store for the brokers of this process; close it after the last of them.

    It is kept in `directory`, on `disk` if not on the machine's own; without either, in memory only.
    Raises `DirectoryLocked`, `CorruptMetadata`, `OSError`.
    """
    if directory is None:
        return SharedStore(EmbeddedStore(_IN_MEMORY, disk=disk or MemoryDisk()), clock=SteadyClock())
    return SharedStore(EmbeddedStore(directory, disk=disk or OsDisk()), clock=SteadyClock())


@contextmanager
def store_named(name: str, *, first_log_dir: str, disk: Disk) -> Iterator[SharedStore | StoreOf]:
    """The store of that name; an embedded one is closed in the end.

    Raises `InvalidConfig` for a name that is none, `EngineError` and `OSError` for a store that cannot be
    opened, `ModuleNotFoundError` without the extra `zookeeper`.
    """
    kind, _, rest = name.partition(":")
    if kind == EMBEDDED:
        with open_store(rest or f"{first_log_dir.rstrip('/')}.metadata", disk=disk) as shared:
            yield shared
    elif kind == "zookeeper":
        from replication.metastore.zookeeper import ZooKeeperStore

        yield partial(ZooKeeperStore, name)
    else:
        raise InvalidConfig(f"{name!r} is no metadata store; embedded, embedded:DIRECTORY, zookeeper://… are")

"""Which metadata store a broker uses, by the text that names it.

embedded             a store in this process, beside the first log dir (`data` → `data.metadata`)
embedded:DIRECTORY   likewise, there
zookeeper://…        servers that speak ZooKeeper's protocol
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from logstore.broker.clock import SteadyClock
from logstore.broker.metadata.local import SharedStore
from logstore.broker.runtime import StoreClient
from logstore.disk.files import Disk, OsDisk
from logstore.disk.memory import MemoryDisk
from logstore.errors import InvalidConfig
from logstore.replication.effects import StoreEvent
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.replication.metastore.errors import MetadataStoreFailed

EMBEDDED: Final = "embedded"
_IN_MEMORY: Final = "metadata"

StoreOf = Callable[[Callable[[StoreEvent], None]], StoreClient]
"""Makes a client of the metadata store, given the function that takes its events."""


class OpenStore(Protocol):
    """A store that brokers can have clients of."""

    @property
    def failure(self) -> MetadataStoreFailed | None:
        """Why it cannot go on, if it is here that it cannot."""

    @property
    def client(self) -> StoreOf: ...


def open_store(directory: str | None = None, *, disk: Disk | None = None) -> SharedStore:
    """A metadata store for the brokers of this process; close it after the last of them.

    It is kept in `directory`, on `disk` if not on the machine's own; without either, in memory only.
    Raises `DirectoryLocked`, `CorruptMetadata`, `OSError`.
    """
    if disk is None:
        disk = OsDisk() if directory is not None else MemoryDisk()
    store = EmbeddedStore(directory if directory is not None else _IN_MEMORY, disk=disk)
    return SharedStore(store, clock=SteadyClock())


def with_defaults(settings: Mapping[str, str], name: str) -> Mapping[str, str]:
    """The settings; a cluster of one can have its groups kept, which three replicas could not be had for."""
    is_alone = name.partition(":")[0] == EMBEDDED
    return {"offsets.topic.replication.factor": "1", **settings} if is_alone else settings


@contextmanager
def store_named(name: str, *, first_log_dir: str, disk: Disk) -> Iterator[OpenStore]:
    """The store of that name; an embedded one is closed in the end.

    Raises `InvalidConfig` for a name that is none, `EngineError` and `OSError` for a store that cannot be
    opened, `ModuleNotFoundError` without the extra `zookeeper`.
    """
    kind, _, rest = name.partition(":")
    if kind == EMBEDDED:
        with open_store(rest or f"{first_log_dir.rstrip('/')}.metadata", disk=disk) as shared:
            yield shared
    elif kind == "zookeeper":
        yield _Servers(name)
    else:
        raise InvalidConfig(f"{name!r} is no metadata store; embedded, embedded:DIRECTORY, zookeeper://… are")


class _Servers:
    """Servers elsewhere: a client connects, and tries again for as long as they are away."""

    failure = None

    def __init__(self, url: str) -> None:
        from logstore.replication.metastore import zookeeper  # needs the extra

        self._url, self._library = url, zookeeper

    def client(self, on_event: Callable[[StoreEvent], None]) -> StoreClient:
        return self._library.ZooKeeperStore(self._url, on_event)

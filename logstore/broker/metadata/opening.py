"""Opens the metadata store named in a setting.

embedded             a store in this process, beside the first log dir (`data` → `data.metadata`)
embedded:DIRECTORY   the same in DIRECTORY
zookeeper://…        servers that speak ZooKeeper's protocol
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from logstore.broker.metadata.local import SharedStore
from logstore.broker.security.store import StoreSecurity, access_of
from logstore.broker.store_session import StoreClient, StoreOf
from logstore.config import SettingValue
from logstore.disk.files import Disk, OsDisk, SteadyClock
from logstore.disk.host_files import make_private_dir
from logstore.disk.memory import MemoryDisk
from logstore.errors import InvalidConfig
from logstore.replication.effects import StoreEvent
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.metastore.zookeeper_access import Access

EMBEDDED: Final = "embedded"
_IN_MEMORY: Final = "metadata"
_PLAIN: Final = StoreSecurity()


class OpenStore(Protocol):
    """An open store, from which brokers get clients."""

    @property
    def failure(self) -> MetadataStoreFailed | None:
        """The reason why the store failed; None while it works, or if it runs elsewhere."""

    @property
    def client(self) -> StoreOf:
        """Makes a client for one broker."""


def open_store(directory: str | None = None, *, disk: Disk | None = None) -> SharedStore:
    """Open a metadata store for the brokers of this process; close it after the last broker.

    The store lies in `directory`, on `disk` if given; without a directory it is in memory only.
    Raises `DirectoryLocked`, `CorruptMetadata`, `OSError`.
    """
    if disk is None:
        disk = OsDisk() if directory is not None else MemoryDisk()
    if directory is not None and isinstance(disk, OsDisk):
        directory = os.path.abspath(directory)  # the working directory may change
        make_private_dir(directory)  # it holds the credentials of users
    make = partial(EmbeddedStore, directory if directory is not None else _IN_MEMORY, disk=disk)
    return SharedStore(make(), clock=SteadyClock(), open_store=make)


def is_embedded(name: str) -> bool:
    """Return whether the store of that name is part of its broker's process."""
    return name.partition(":")[0] == EMBEDDED


def absolute(name: str) -> str:
    """Return the name of a store with an absolute directory, if it has one."""
    kind, _, directory = name.partition(":")
    return f"{kind}:{os.path.abspath(directory)}" if kind == EMBEDDED and directory else name


def with_defaults(settings: Mapping[str, SettingValue], name: str) -> Mapping[str, SettingValue]:
    """Return the settings; with an embedded store, __consumer_offsets gets one replica by default."""
    return {"offsets.topic.replication.factor": "1", **settings} if is_embedded(name) else settings


@contextmanager
def store_named(
    name: str, *, first_log_dir: str | None, disk: Disk, security: StoreSecurity = _PLAIN
) -> Iterator[OpenStore]:
    """Open the store of that name; an embedded one is closed at the end. `security` is for servers.

    Without a first log dir, a store that is `embedded` is in memory.

    Raises `InvalidConfig` for an unknown name or for certificates that cannot be used, `EngineError` and
    `OSError` for a store that cannot be opened, `ModuleNotFoundError` without the extra `zookeeper`.
    """
    kind, _, rest = name.partition(":")
    if kind == EMBEDDED and security != _PLAIN:
        raise InvalidConfig(
            f"settings zookeeper.… configure ZooKeeper, but the metadata store is {name}: remove them, or "
            "give zookeeper://HOST:PORT,…"
        )
    if kind == EMBEDDED:
        beside = f"{first_log_dir.rstrip('/')}.metadata" if first_log_dir is not None else None
        try:
            opened = open_store(rest or beside, disk=disk)
        except OSError as error:
            where, remedy = "", ""
            if not rest:
                where = ", beside the first log dir"
                remedy = ". Use a log dir in a directory that this process can write, or embedded:DIRECTORY"
            raise MetadataStoreFailed(
                f"the metadata store cannot be opened in {rest or beside}{where}: {error}{remedy}"
            ) from error
        with opened as shared:
            yield shared
    elif kind == "zookeeper":
        yield _Servers(name, access_of(security))
    else:
        raise InvalidConfig(
            f"unknown metadata store {name!r}; use embedded, embedded:DIRECTORY or zookeeper://HOST:PORT,…"
        )


class _Servers:
    """ZooKeeper servers: clients connect, and reconnect for as long as the servers are unreachable."""

    failure = None

    def __init__(self, url: str, access: Access) -> None:
        from logstore.replication.metastore import zookeeper  # needs the extra

        self._url, self._access, self._library = url, access, zookeeper

    def client(self, on_event: Callable[[StoreEvent], None]) -> StoreClient:
        return self._library.ZooKeeperStore(self._url, on_event, self._access)

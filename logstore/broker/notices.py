"""Follows notifications in the metadata store: which of them are new, and when all is to be read again.

    /config/changes/config_change_<n>     what has changed: read that, and nothing else
    /kafka-acl-changes/acl_changes_<n>

Notifications are kept for fifteen minutes. A broker reads all again if it has not looked for ten, or if it
has lost its session: the next one may be with a server that lags behind. A look every five minutes, which
costs a listing, keeps a change after a quiet hour as cheap as any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Final

from logstore.broker.store_reads import make, read, read_many
from logstore.broker.store_session import StoreSession
from logstore.disk.errors import EngineError
from logstore.loggers import logger_of
from logstore.replication.metastore.operations import Children, Delete

LOOK_S: Final = 300.0
_ALL_AGAIN_MS: Final = 600_000
_KEPT_MS: Final = 900_000
_MOST_REMOVED: Final = 1_000
"""Notifications that one look removes."""
_AGAIN_S: Final = 1.0

_log = logger_of(__name__)


class Notices:
    """Belongs to one event loop."""

    def __init__(
        self,
        store: StoreSession,
        now_ms: Callable[[], int],
        paths: Sequence[str],
        what: str,
        refresh: Callable[[], Awaitable[None]],
        *,
        are_removed: bool = False,
    ) -> None:
        """`refresh` reads what has changed, by `news`; `what` names it in messages.

        With `are_removed`, notifications are removed that were first seen fifteen minutes ago.
        """
        self._store, self._now_ms, self._paths, self._what = store, now_ms, paths, what
        self._refresh, self._are_removed = refresh, are_removed
        self._reading = asyncio.Lock()
        self._seen: dict[str, int] = {}
        self._looked_ms = 0
        self._session: int | None = None
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Refresh, and again after each notification. Raises as `refresh`, and `MetadataStoreFailed`."""
        for path in self._paths:
            await make(self._store.ask, path, self._what)
            self._store.watchers[path] = self._changed.set
        await self._refresh()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    def close(self) -> None:
        if self._following is not None:
            self._following.cancel()

    @asynccontextmanager
    async def news(self) -> AsyncIterator[list[bytes] | None]:
        """Yield what the new notifications say; None if all is to be read again.

        Raises `MetadataStoreFailed`. Notifications stay new if the block raises. One block runs at a time:
        one that began earlier, and ends later, would bring former values back.
        """
        async with self._reading:
            ask, now_ms = self._store.ask, self._now_ms()
            listed = [
                f"{path}/{name}"
                for path in self._paths
                for name in (await read(ask, Children(path, watch=True), self._what)).children
            ]
            session = self._store.session_id
            if session is None or session != self._session or now_ms - self._looked_ms >= _ALL_AGAIN_MS:
                yield None
            else:
                new = [each for each in listed if each not in self._seen]
                found = (await read_many(ask, new, self._what)).values()
                is_complete = all(each.stat is not None for each in found)  # or one was removed meanwhile
                yield [each.data for each in found] if is_complete else None
            self._seen = {each: self._seen.get(each, now_ms) for each in listed}
            self._looked_ms, self._session = now_ms, session

    async def look(self) -> None:
        """Refresh, then remove old notifications; one that stays is removed by a later look."""
        await self._refresh()
        if self._are_removed:
            old = (path for path, seen_ms in self._seen.items() if self._now_ms() - seen_ms >= _KEPT_MS)
            removed = (self._store.ask(Delete(path)) for path in islice(old, _MOST_REMOVED))
            await asyncio.gather(*removed, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.look()
            except EngineError as error:
                _log.error("cannot apply changed %s; keeping the previous ones: %s", self._what, error)
                await asyncio.sleep(_AGAIN_S)
                self._changed.set()

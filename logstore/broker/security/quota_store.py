"""Quotas and brokers' live settings in the metadata store, at Kafka's paths, in its form; and their changes.

    /config/users/<u>, /config/clients/<c>, …   {"version":1,"config":{"producer_byte_rate":"1024"}}
    /config/brokers/<id>, …/<default>           … {"log.retention.ms":"3600000"}
    /config/changes/config_change_<n>           {"version":2,"entity_path":"users/<u>"}

A broker reads all quotas at its start, and then what the notifications name (`notices.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import chain

from logstore.broker.config_nodes import read_live
from logstore.broker.configs import (
    FETCHERS,
    FOLLOWER_RATE,
    LEADER_RATE,
    MOVES_RATE,
    live_defaults,
    number_of,
)
from logstore.broker.identity import AskStore
from logstore.broker.notices import Notices
from logstore.broker.security.limiter import Limiter
from logstore.broker.security.quotas import Quotas, entity_of, parse
from logstore.broker.store_reads import read, read_many
from logstore.broker.store_session import StoreSession
from logstore.errors import InvalidConfig
from logstore.log.manager_config import LogManagerConfig
from logstore.loggers import logger_of
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Children
from logstore.replication.node import Node
from logstore.replication.orders import change_defaults

_log = logger_of(__name__)


async def read_all(ask: AskStore) -> Quotas:
    """Return all quotas. Raises `MetadataStoreFailed`."""
    users = await _below(ask, "users")
    of_users = await asyncio.gather(*(_below(ask, f"{user}/clients") for user in users))
    others = [await _below(ask, "clients"), await _below(ask, "ips")]
    return await reread(ask, [*users, *chain(*of_users, *others)], Quotas())


async def _below(ask: AskStore, folder: str) -> list[str]:
    """Return the paths of a folder's entities."""
    found = await read(ask, Children(f"/config/{folder}"), "quotas")
    return [f"{folder}/{each}" for each in found.children]


async def reread(ask: AskStore, paths: Iterable[str], now: Quotas) -> Quotas:
    """Return the quotas after those of these entities, by their paths, are read again. Raises as `read_all`.

    Of an entity with malformed data the former quotas stay, and the log has an error.
    """
    entities = {f"/config/{path}": entity for path in sorted(set(paths)) if (entity := entity_of(path))}
    values = dict(now.values)
    for path, node in (await read_many(ask, entities, "quotas")).items():
        entity = entities[path]
        try:
            settings = layout.parse_topic_config(node.data) if node.stat is not None else {}
            values[entity] = parse(settings, entity)
        except CorruptMetadata as error:
            _log.error("cannot apply the quotas of %s; keeping the previous ones: %s", path, error)
    return Quotas(values)


class Followed:
    """Follows the quotas of a cluster and the live settings of a broker.

    Quotas go to a limiter; replication throttles and the defaults of topics' settings to the broker's node.
    `logs` are the settings with which the broker was started.
    """

    def __init__(
        self,
        store: StoreSession,
        now_ms: Callable[[], int],
        limiter: Limiter,
        node: Node,
        logs: LogManagerConfig,
    ) -> None:
        self._store, self.limiter, self._node = store, limiter, node
        self._logs = logs
        self._live = frozenset((f"brokers/{node.node_id}", f"brokers/{layout.DEFAULT_ENTITY}"))
        self._notices = Notices(store, now_ms, (layout.CONFIG_CHANGES_PATH,), "quotas", self.refresh)

    async def open(self) -> None:
        """Read the quotas and follow them. Raises `MetadataStoreFailed`."""
        await self._notices.open()

    def close(self) -> None:
        self._notices.close()

    async def refresh(self, *paths: str) -> None:
        """Read what has changed, and these entities. Raises `MetadataStoreFailed`."""
        async with self._notices.news() as news:
            if news is None:
                quotas, is_live = await read_all(self._store.ask), True
            else:
                changed = [*paths, *map(_entity_path, news)]
                quotas = await reread(self._store.ask, changed, self.limiter.quotas)
                is_live = not self._live.isdisjoint(changed)
            if is_live:
                await self._read_live()
            self.limiter.replace(quotas)

    async def _read_live(self) -> None:
        """Read the broker's live settings. If one is invalid, the former ones stay; the log has an error."""
        replicas = self._node.replicas
        try:
            live = await read_live(self._store.ask, self._node.node_id)
            leader, follower, moves = (
                number_of(name, live, None) for name in (LEADER_RATE, FOLLOWER_RATE, MOVES_RATE)
            )
            fetchers = number_of(FETCHERS, live, self._node.config.num_replica_fetchers)
            for topic in change_defaults(replicas, live_defaults(self._logs, live)):
                _log.warning(
                    "a setting of topic %s contradicts a changed default of this broker, which does not "
                    "count for it",
                    topic,
                )
        except (CorruptMetadata, InvalidConfig) as error:
            _log.error("cannot apply changed settings of this broker; keeping the previous ones: %s", error)
            return
        replicas.throttle.limit(leader)
        replicas.followers.throttle.limit(follower)
        replicas.moves.limit(moves)
        replicas.followers.resize(fetchers)


def _entity_path(notice: bytes) -> str:
    try:
        return layout.parse_entity_change(notice)
    except CorruptMetadata as error:
        _log.warning("a notification of changed settings is malformed: %s", error)
        return ""

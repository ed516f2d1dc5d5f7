"""Settings in the metadata store, read and changed by any broker: `/config/topics/<t>`, `/config/brokers/…`.

A change is one Multi: the node, on condition of the version that was read, and the notification for Kafka's
brokers and tools. The controller watches the nodes and informs the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from logstore.broker.configs import Live
from logstore.broker.identity import AskStore
from logstore.broker.store_reads import not_written, read
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Create, Get, Multi, Outcome, put

Settings = Mapping[str, str]
_ROUNDS = 20


async def read_live(ask: AskStore, broker: int) -> Live:
    """Return what was changed for a broker, and for all, while they run.

    Raises `CorruptMetadata`, and `MetadataStoreFailed`.
    """
    own = await read(ask, Get(f"/config/brokers/{broker}"), "settings")
    of_all = await read(ask, Get(layout.BROKER_DEFAULTS_PATH), "settings")
    return Live(
        layout.parse_topic_config(own.data) if own.stat is not None else {},
        layout.parse_broker_defaults(of_all.data) if of_all.stat is not None else {},
    )


async def change_entity(
    ask: AskStore, entity: str, change: Callable[[Settings], Settings], *, validate_only: bool = False
) -> None:
    """Write the settings that `change` returns for an entity's: `topics/orders`, `users/ann`, `brokers/1`.

    Raises what `change` raises, or as `read_live`.
    """
    path = f"/config/{entity}"
    notice = Create(
        layout.CONFIG_CHANGE_PREFIX,
        layout.encode_entity_change(entity),
        sequential=True,
        make_parents=True,
    )
    outcome = Outcome()
    for _ in range(_ROUNDS):
        found = await read(ask, Get(path), "settings")
        now = layout.parse_topic_config(found.data) if found.stat is not None else {}
        wanted = change(now)
        if validate_only or wanted == now:
            return  # also when only the answer of a write was lost
        write = put(path, layout.encode_topic_config(wanted), found.version)
        outcome = await ask(Multi((write, notice)))
        if outcome.error is None:
            return
    raise not_written("settings", outcome)

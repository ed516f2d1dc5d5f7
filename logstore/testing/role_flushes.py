"""Flush the logs of new roles in line, for tests that have no runner to carry out effects."""

from __future__ import annotations

from logstore.replication import orders
from logstore.replication.carrying import flush
from logstore.replication.effects import Effect, Sync
from logstore.replication.replica_manager import ReplicaManager


def finished(manager: ReplicaManager, effects: list[Effect], now_ms: int) -> list[Effect]:
    """Carry out the `Sync`s that roles wait for, and return all other effects."""
    left: list[Effect] = []
    while effects:
        effect, *effects = effects
        roles = manager.roles_under_way
        if isinstance(effect, Sync) and roles is not None and effect.topic_partition in roles.unflushed:
            effects += manager.on_sync_done(flush(manager.logs, effect), now_ms)
            effects += orders.log_flushed(manager, roles, effect.topic_partition, now_ms)
        else:
            left.append(effect)
    return left

"""Carry effects out: one loop for every runner of nodes.

A runner gives each node a network, clients, a store and a disk: sockets and threads in `logstore/broker/`, a
seeded world in `logstore/testing/`, a queue in one process in `replication/driver.py`. What differs is in
`Outlets`; what an effect is, is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from logstore.errors import LogDirOffline, OutOfResources
from logstore.log.manager import LogManager
from logstore.replication.effects import (
    CloseSession,
    Effect,
    Halt,
    OpenSession,
    Reply,
    Respond,
    Send,
    StoreCall,
    Sync,
    SyncDone,
)
from logstore.replication.messages import RequestBody, ResponseBody

H = TypeVar("H")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlets(Generic[H]):
    """One function for each effect. The first argument is the node's host, as the runner knows it."""

    send: Callable[[H, int, int, RequestBody], None]
    respond: Callable[[H, Respond], None]
    reply: Callable[[H, Hashable, ResponseBody | None, bool], None]
    call_store: Callable[[H, StoreCall], None]
    open_session: Callable[[H, int], None]
    close_session: Callable[[H, int], None]
    sync: Callable[[H, Sync], None]
    halt: Callable[[H, str], None]


def carry_out(effects: Iterable[Effect], host: H, outlets: Outlets[H]) -> None:
    """Call the outlet of each effect, in order."""
    for effect in effects:
        match effect:
            case Reply():
                outlets.reply(host, effect.token, effect.body, effect.close)
            case Respond():
                outlets.respond(host, effect)
            case Send():
                outlets.send(host, effect.target, effect.correlation_id, effect.body)
            case StoreCall():
                outlets.call_store(host, effect)
            case Sync():
                outlets.sync(host, effect)
            case OpenSession():
                outlets.open_session(host, effect.timeout_ms)
            case CloseSession():
                outlets.close_session(host, effect.session_id)
            case Halt():
                outlets.halt(host, effect.reason)


def flush(logs: LogManager, effect: Sync) -> SyncDone:
    """Carry out a `Sync` in line. A storage failure is in the event; its log dir is offline then."""
    failure = ""
    try:
        log = logs.get(effect.topic_partition)
        if log is not None:
            log.partition.flush(effect.end_offset)
    except OutOfResources:
        pass  # nothing was synced and nothing has failed; the engine looks
    except (LogDirOffline, OSError) as error:
        failure = str(error)
    return SyncDone(effect.topic_partition, effect.end_offset, failure)

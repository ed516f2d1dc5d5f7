"""The engine's interface: events in, effects out.

`Node.start`, `Node.receive` and `Node.tick` are plain functions that run to completion and return effects. A
runner carries them out (`carrying.py`) and returns their outcomes as events: sockets and threads in
`logstore/broker/`, a seeded world in `logstore/testing/`, a queue in one process in `replication/driver.py`.

    event                          effect
    ─────                          ──────
    Request   from a node          Respond   to that request
    Response  to our Send          Send      a request to a node
    ClientRequest                  Reply     to that client
    Abandoned
    StoreReply                     StoreCall
    WatchFired, SessionOpened,     OpenSession, CloseSession
    SessionExpired
    SyncDone                       Sync
                                   Halt      the node cannot continue: end the process

Delivery has no order and no guarantee: any message may be lost, late or doubled. `tick(now_ms)` is called
when `Node.deadline_ms` has passed; more calls are harmless.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from logstore.disk.topic_partition import TopicPartition
from logstore.errors import Damage
from logstore.replication.messages import RequestBody, ResponseBody
from logstore.replication.metastore.operations import Operation, Outcome, WatchKind

# --- addresses --------------------------------------------------------------------------------


class Peer(NamedTuple):
    """The address of a node's request."""

    broker_id: int
    correlation_id: int
    token: Hashable = None


class Client(NamedTuple):
    """The address of a client's request."""

    token: Hashable


Address: TypeAlias = Peer | Client


# --- events -----------------------------------------------------------------------------------


class Request(NamedTuple):
    """A request of another node (or of this one to itself).

    `token` identifies its connection and is opaque: the same node in another life may use the same
    correlation ids.
    """

    source: int
    correlation_id: int
    body: RequestBody
    token: Hashable = None


class Response(NamedTuple):
    """The answer to the `Send` with the same correlation id."""

    source: int
    correlation_id: int
    body: ResponseBody


class Disconnected(NamedTuple):
    """The connection of a `Send` broke: no answer will arrive. The request may have been served."""

    source: int
    correlation_id: int


class ClientRequest(NamedTuple):
    """A request of a client; `token` identifies the client and is opaque."""

    token: Hashable
    body: RequestBody


class Abandoned(NamedTuple):
    """The connection of a request closed before its answer: the wait can end.

    The address is the one that an answer would have. A request that has been answered is none the worse.
    """

    address: Address


class StoreReply(NamedTuple):
    """The outcome of a `StoreCall`; after CONNECTION_LOSS it may have been applied."""

    call_id: int
    outcome: Outcome


class WatchFired(NamedTuple):
    """A one-shot watch fired; set it again before reading."""

    session_id: int
    path: str
    kind: WatchKind


class SessionOpened(NamedTuple):
    session_id: int


class SessionExpired(NamedTuple):
    """This session expired in the store: its ephemeral nodes are gone."""

    session_id: int


class SyncDone(NamedTuple):
    """The end of a `Sync`; `error` is the text of a failure, after which the log dir is offline."""

    topic_partition: TopicPartition
    end_offset: int
    error: str = ""


class DamageFound(NamedTuple):
    """A scrub found these damages in the log of a partition here, and rebuilt these derived files."""

    topic_partition: TopicPartition
    damages: tuple[Damage, ...]
    rebuilt: tuple[Damage, ...] = ()


StoreEvent: TypeAlias = SessionOpened | SessionExpired | StoreReply | WatchFired
"""The events of a metadata store client."""

Event: TypeAlias = (
    Request
    | Response
    | Disconnected
    | ClientRequest
    | Abandoned
    | StoreReply
    | WatchFired
    | SessionOpened
    | SessionExpired
    | SyncDone
    | DamageFound
)

# --- effects ----------------------------------------------------------------------------------


class Send(NamedTuple):
    target: int
    correlation_id: int
    body: RequestBody


class Respond(NamedTuple):
    target: int
    correlation_id: int
    body: ResponseBody
    token: Hashable = None


class Reply(NamedTuple):
    """An answer to a client; `close` asks to drop its connection instead (acks=0 that failed)."""

    token: Hashable
    body: ResponseBody | None
    close: bool = False


class OpenSession(NamedTuple):
    """Connect to the metadata store; the runner keeps the session alive while the node runs."""

    timeout_ms: int


class CloseSession(NamedTuple):
    session_id: int


class StoreCall(NamedTuple):
    session_id: int
    call_id: int
    operation: Operation


class Sync(NamedTuple):
    """Flush this partition's log outside the engine's thread, then return `SyncDone`."""

    topic_partition: TopicPartition
    end_offset: int


class Halt(NamedTuple):
    """Every log dir has failed: end the process, with an exit code other than 0."""

    reason: str


Effect: TypeAlias = Send | Respond | Reply | OpenSession | CloseSession | StoreCall | Sync | Halt


def answer(address: Address, body: ResponseBody) -> Effect:
    """Return the effect that sends `body` to the requester."""
    if isinstance(address, Peer):
        return Respond(address.broker_id, address.correlation_id, body, address.token)
    return Reply(address.token, body)

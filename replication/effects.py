"""The engine's two directions: events that come in, effects that go out.

`Node.start`, `Node.receive` and `Node.tick` are plain functions that run to completion and return
effects. A driver carries them out and brings their outcomes back as events: sockets and threads in
`logstore/broker/`, a seeded world in `logstore/testing/`, a loop in one process in `replication/driver.py`.

    event                          effect
    ─────                          ──────
    Request   from a node          Respond   to that request
    Response  to our Send          Send      a request to a node
    ClientRequest                  Reply     to that client
    StoreReply                     StoreCall
    WatchFired, SessionOpened,     OpenSession, CloseSession
    SessionExpired
    SyncDone                       Sync
                                   Halt      the node cannot go on: end the process

Delivery is at most once and in no order: any message may be lost, late or doubled. `tick(now_ms)`
is called when `Node.deadline_ms` has passed; calling it more often is harmless.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import RequestBody, ResponseBody
from logstore.replication.metastore.operations import Operation, Outcome, WatchKind

# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """A request of another node (or of this one to itself).

    `token` says on which connection it came and is never looked into: the same node in another life may
    use the same correlation ids.
    """

    source: int
    correlation_id: int
    body: RequestBody
    token: Hashable = None


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to our `Send` with the same correlation id."""

    source: int
    correlation_id: int
    body: ResponseBody


@dataclass(frozen=True, slots=True)
class Disconnected:
    """No answer will come to our `Send`: the connection broke. The request may have been served."""

    source: int
    correlation_id: int


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request of a client; `token` says whom to answer and is never looked into."""

    token: Hashable
    body: RequestBody


@dataclass(frozen=True, slots=True)
class StoreReply:
    """How a `StoreCall` ended; `Outcome.error` CONNECTION_LOSS means it may have been applied."""

    call_id: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class WatchFired:
    """A one-shot watch went off; it must be set again before reading."""

    session_id: int
    path: str
    kind: WatchKind


@dataclass(frozen=True, slots=True)
class SessionOpened:
    session_id: int


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """The store gave up on this session: its ephemeral nodes are gone."""

    session_id: int


@dataclass(frozen=True, slots=True)
class SyncDone:
    """A `Sync` ended; `error` is the text of the failure, after which the log dir is offline."""

    topic_partition: TopicPartition
    end_offset: int
    error: str = ""


StoreEvent: TypeAlias = SessionOpened | SessionExpired | StoreReply | WatchFired
"""What a client of the metadata store tells its owner."""

Event: TypeAlias = (
    Request
    | Response
    | Disconnected
    | ClientRequest
    | StoreReply
    | WatchFired
    | SessionOpened
    | SessionExpired
    | SyncDone
)

# --- effects ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    target: int
    correlation_id: int
    body: RequestBody


@dataclass(frozen=True, slots=True)
class Respond:
    target: int
    correlation_id: int
    body: ResponseBody
    token: Hashable = None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a client; `close` asks to drop its connection instead (acks=0 that failed)."""

    token: Hashable
    body: ResponseBody | None
    close: bool = False


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Connect to the metadata store; the driver keeps the session alive while the node runs."""

    timeout_ms: int


@dataclass(frozen=True, slots=True)
class CloseSession:
    session_id: int


@dataclass(frozen=True, slots=True)
class StoreCall:
    session_id: int
    call_id: int
    operation: Operation


@dataclass(frozen=True, slots=True)
class Sync:
    """Flush this partition's log off the engine's thread, then bring back `SyncDone`."""

    topic_partition: TopicPartition
    end_offset: int


@dataclass(frozen=True, slots=True)
class Halt:
    """Every log dir has failed: the process is to end, with a code other than 0."""

    reason: str


Effect: TypeAlias = Send | Respond | Reply | OpenSession | CloseSession | StoreCall | Sync | Halt

# --- addresses --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peer:
    """Answer to a node's request."""

    broker_id: int
    correlation_id: int
    token: Hashable = None


@dataclass(frozen=True, slots=True)
class Client:
    """Answer to a client's request."""

    token: Hashable


Address: TypeAlias = Peer | Client


def answer(address: Address, body: ResponseBody) -> Effect:
    """The effect that takes `body` to whoever asked."""
    if isinstance(address, Peer):
        return Respond(address.broker_id, address.correlation_id, body, address.token)
    return Reply(address.token, body)

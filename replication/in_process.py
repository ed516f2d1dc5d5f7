"""The surroundings of the nodes in one process: their slots, the network between them, their store sessions.

Parts of `driver.InProcessCluster`, which drives them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from logstore.disk.files import Disk
from logstore.replication.carrying import flush
from logstore.replication.config import NodeConfig
from logstore.replication.effects import (
    Abandoned,
    ClientRequest,
    Disconnected,
    Event,
    Peer,
    Request,
    Respond,
    Response,
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreReply,
    Sync,
    WatchFired,
)
from logstore.replication.messages import RequestBody, ResponseBody
from logstore.replication.metastore.memory import MetadataStore
from logstore.replication.metastore.operations import Get, Outcome, StoreError
from logstore.replication.node import Node

_READING_MS = 30_000


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """One event under way; `source` is None for the store, the disk and clients.

    `life` is the life of the target that it is for: connections do not outlive a process.
    """

    source: int | None
    target: int
    event: Event
    life: int

    def __str__(self) -> str:
        body = getattr(self.event, "body", self.event)
        return f"{'·' if self.source is None else self.source} → {self.target}  {type(body).__name__}"


@dataclass(slots=True, eq=False)
class PendingReply:
    """The reply to a client. `body` is None until then, after acks=0, and after a disconnect."""

    node_id: int
    body: ResponseBody | None = None
    is_done: bool = False
    is_disconnected: bool = False


@dataclass(slots=True)
class Slot:
    """One node's place in the cluster. It stays when the process dies."""

    config: NodeConfig
    disk: Disk
    log_dirs: tuple[str, ...]
    life: int = 0
    node: Node | None = None
    session_id: int | None = None
    outstanding: dict[int, int] = field(default_factory=dict)
    """The target of each request without an answer, by correlation id."""

    @property
    def node_id(self) -> int:
        return self.config.node_id

    @property
    def running(self) -> Node:
        """The node. Raises `AssertionError` if it does not run."""
        assert self.node is not None, f"node {self.node_id} is not running"
        return self.node

    def end_life(self) -> dict[int, int]:
        """Forget the process; the disk stays. Returns its requests without an answer."""
        outstanding, self.outstanding = self.outstanding, {}
        self.node = self.session_id = None
        return outstanding


class Links:
    """The network between nodes, and from their clients: a queue of envelopes."""

    def __init__(self, slots: dict[int, Slot], is_held: Callable[[Envelope], bool]) -> None:
        self.slots = slots
        self.queue: deque[Envelope] = deque()
        self.held: list[Envelope] = []
        self.cuts: set[frozenset[int]] = set()
        self.clients: dict[int, PendingReply] = {}
        self._is_held = is_held
        self._next_token = 0

    def post(self, source: int | None, target: int, event: Event) -> None:
        """Queue an event for a node, unless it is intercepted."""
        envelope = Envelope(source, target, event, self.slots[target].life)
        (self.held if self._is_held(envelope) else self.queue).append(envelope)

    def send(self, slot: Slot, target: int, correlation_id: int, body: RequestBody) -> None:
        """Queue a request of a node; a target outside the cluster disconnects it."""
        slot.outstanding[correlation_id] = target
        if target in self.slots:
            self.post(slot.node_id, target, Request(slot.node_id, correlation_id, body))
        else:
            self._disconnect(slot.node_id, target, correlation_id)

    def respond(self, slot: Slot, effect: Respond) -> None:
        """Queue the answer of a node."""
        self.post(slot.node_id, effect.target, Response(slot.node_id, effect.correlation_id, effect.body))

    def sync(self, slot: Slot, effect: Sync) -> None:
        """Flush in line, and queue the outcome."""
        self.post(None, slot.node_id, flush(slot.running.logs, effect))

    def ask(self, node_id: int, request: RequestBody) -> PendingReply:
        """Queue a client's request."""
        self._next_token += 1
        reply = self.clients[self._next_token] = PendingReply(node_id)
        self.post(None, node_id, ClientRequest(self._next_token, request))
        return reply

    def reply(self, slot: Slot | None, token: Hashable, body: ResponseBody | None, close: bool) -> None:
        """Complete a client's request, by a disconnect if `close`."""
        assert isinstance(token, int), "tokens are numbers that `ask` gave out"
        reply = self.clients.pop(token, None)
        if reply is not None:
            reply.body, reply.is_done, reply.is_disconnected = body, True, close

    def _disconnect(self, node_id: int, peer: int, correlation_id: int) -> None:
        self.slots[node_id].outstanding.pop(correlation_id, None)
        self.post(None, node_id, Disconnected(peer, correlation_id))

    def break_off(self, node_id: int, outstanding: dict[int, int]) -> None:
        """Break the connections of a process that is gone; `outstanding` are the targets of its requests."""
        for correlation_id, target in outstanding.items():
            if target in self.slots:
                self.post(None, target, Abandoned(Peer(node_id, correlation_id)))
        for other_id, other in self.slots.items():
            for correlation_id, target in list(other.outstanding.items()):
                if target == node_id:
                    self._disconnect(other_id, node_id, correlation_id)
        for token, reply in list(self.clients.items()):
            if reply.node_id == node_id:
                self.reply(None, token, None, True)

    def arrive(self, envelope: Envelope) -> Slot | None:
        """Return the slot of the running target that the envelope reaches.

        None if there is none. The sender is then disconnected, unless the link is cut.
        """
        slot, event = self.slots.get(envelope.target), envelope.event
        if slot is not None and (slot.node is None or slot.life != envelope.life):
            slot = None
        if isinstance(event, Request) and envelope.source is not None:
            if frozenset((envelope.source, envelope.target)) in self.cuts:
                return None
            if slot is None:
                self._disconnect(envelope.source, envelope.target, event.correlation_id)
        if slot is None:
            if isinstance(event, ClientRequest):
                self.reply(None, event.token, None, True)
            return None
        if isinstance(event, Response):
            if frozenset((event.source, envelope.target)) in self.cuts:
                return None
            slot.outstanding.pop(event.correlation_id, None)
        elif isinstance(event, SessionOpened):
            slot.session_id = event.session_id
        return slot


class StoreLink:
    """The metadata store as the nodes see it: calls, sessions, watches."""

    def __init__(self, store: MetadataStore, links: Links, clock: Callable[[], int]) -> None:
        self.store = store
        self.cut_off: set[int] = set()
        """Nodes that do not reach the store."""
        self._links = links
        self._clock = clock
        self._late_watches: list[tuple[int, WatchFired]] = []

    def open_session(self, slot: Slot, timeout_ms: int) -> None:
        """Open a session for a node, and queue the event."""
        slot.session_id = self.store.open_session(timeout_ms, self._clock())
        self._links.post(None, slot.node_id, SessionOpened(slot.session_id))

    def close_session(self, slot: Slot, session_id: int) -> None:
        """End a session, and with it its ephemeral nodes."""
        self.fire(self.store.close_session(session_id))

    def call(self, slot: Slot, call: StoreCall) -> None:
        """Carry out a call of a node, and queue the reply; a node that is cut off loses its connection."""
        if slot.node_id in self.cut_off:
            outcome = Outcome(StoreError.CONNECTION_LOSS)
        else:
            outcome, fired = self.store.call(call.session_id, call.operation, self._clock())
            self.fire(fired)
        self._links.post(None, slot.node_id, StoreReply(call.call_id, outcome))

    def read(self, reads: Mapping[str, Get]) -> dict[str, Outcome]:
        """Return the outcomes of reads that no node makes, in a session of their own."""
        session_id, found = self.store.open_session(_READING_MS, self._clock()), {}
        for name, each in reads.items():
            found[name], fired = self.store.call(session_id, each, self._clock())
            self.fire(fired)
        self.fire(self.store.close_session(session_id))
        return found

    def fire(self, watches: Iterable[WatchFired]) -> None:
        """Send watches to their owners; a node that is cut off receives them when it is reconnected."""
        slots = self._links.slots
        owners = {slot.session_id: node_id for node_id, slot in slots.items() if slot.node is not None}
        for watch in watches:
            owner = owners.get(watch.session_id)
            if owner is None:
                continue
            if owner in self.cut_off:
                self._late_watches.append((owner, watch))  # a session that survives misses none
            else:
                self._links.post(None, owner, watch)

    def _expire(self, slot: Slot) -> None:
        session_id, slot.session_id = slot.session_id, None
        if session_id is not None:
            self._links.post(None, slot.node_id, SessionExpired(session_id))

    def mend(self) -> None:
        """Connect every node to the store again. Nodes whose session expired meanwhile learn it now."""
        slots = self._links.slots
        for node_id in sorted(self.cut_off):
            session_id = slots[node_id].session_id
            if session_id is not None and not self.store.heartbeat(session_id, self._clock()):
                self._expire(slots[node_id])
        self.cut_off.clear()
        late, self._late_watches = self._late_watches, []
        for node_id, watch in late:
            if slots[node_id].session_id == watch.session_id:
                self._links.post(None, node_id, watch)

    def tick(self) -> None:
        """Keep the sessions of running nodes alive, and expire the others."""
        now_ms = self._clock()
        connected = [
            slot
            for node_id, slot in self._links.slots.items()
            if slot.node is not None and node_id not in self.cut_off
        ]
        for slot in connected:
            if slot.session_id is not None:
                self.store.heartbeat(slot.session_id, now_ms)
        expired, fired = self.store.tick(now_ms)
        for slot in connected:
            if slot.session_id in expired:
                self._expire(slot)
        self.fire(fired)

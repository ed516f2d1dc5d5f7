"""Connect nodes to the metadata store: the production tree, with sessions in virtual time.

Calls of one node and their responses keep their order; watches are delivered before later responses. A call
may be lost, or applied with its response lost. A node that is cut off gets watches, or the end of its
session, when it reaches the store again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from logstore.replication.effects import (
    Event,
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreReply,
    WatchFired,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.memory import MemoryStore
from logstore.replication.metastore.operations import Get, Operation, Outcome, StoreError
from logstore.testing.hosts import Host
from logstore.testing.network import STORE, Network
from logstore.testing.swarm import Swarm, stream
from logstore.testing.timeline import Timeline

_FOR_EVER_MS = 1 << 30


class StoreLink:
    """The store and the links to it. `judge` sees every successful operation at the moment it is applied."""

    def __init__(
        self,
        time: Timeline,
        network: Network,
        swarm: Swarm,
        hosts: Mapping[int, Host],
        receive: Callable[[Host, Event], None],
        judge: Callable[[Operation, Outcome], None],
    ) -> None:
        self.store = MemoryStore()
        self._time = time
        self._network = network
        self._swarm = swarm
        self._hosts = hosts
        self._receive = receive
        self._judge = judge
        self._random = stream(swarm.seed, "store network")
        self._tick_at_ms: int | None = None
        self.is_down = False
        self._kept: set[int] = set()
        self._operator = self.store.open_session(_FOR_EVER_MS, time.now_ms)

    def delay_ms(self) -> int:
        """Return how long a message to or from the store takes."""
        return self._network.delay(self._random)

    # --- calls -----------------------------------------------------------------------------------

    def reaches_store(self, host: Host) -> bool:
        return not self.is_down and (host.node_id, STORE) not in self._network.cuts

    def hears_store(self, host: Host) -> bool:
        return not self.is_down and (STORE, host.node_id) not in self._network.cuts

    def _is_lost(self) -> bool:
        return not self._network.is_calm and self._random.random() < self._swarm.store_loss_rate

    def call(self, host: Host, call: StoreCall) -> None:
        if self._is_lost():
            self._answer(host, host.life, StoreReply(call.call_id, Outcome(StoreError.CONNECTION_LOSS)))
            return
        self._network.along(host.node_id, STORE, self.delay_ms(), self._serve, host, host.life, call)

    def _serve(self, host: Host, life: int, call: StoreCall) -> None:
        outcome = Outcome(StoreError.CONNECTION_LOSS)
        if self.reaches_store(host):
            outcome, fired = self.store.call(call.session_id, call.operation, self._time.now_ms)
            self._time.stamp(f"{self._time.now_ms}{host.node_id}{outcome.error}")
            self._time.note("store ◀", host.node_id, call.operation, "gives", outcome.error or "success")
            if outcome.error is None:
                self._judge(call.operation, outcome)
            # Before the outcome: a node that reads later must know of the change.
            self._fire(fired)
            if self._is_lost():
                outcome = Outcome(StoreError.CONNECTION_LOSS)
        self._answer(host, life, StoreReply(call.call_id, outcome))
        self._schedule_tick()

    def _answer(self, host: Host, life: int, event: Event) -> None:
        if host.life == life:
            self._network.along(STORE, host.node_id, self.delay_ms(), self._arrive, host, life, event)

    def _arrive(self, host: Host, life: int, event: Event) -> None:
        if host.life != life or host.node is None:
            return
        if self.hears_store(host):
            self._receive(host, event)
        elif isinstance(event, StoreReply):
            lost = StoreReply(event.call_id, Outcome(StoreError.CONNECTION_LOSS))
            if self._swarm.features.store_losses or self._random.random() < 0.5:
                self._receive(
                    host, lost
                )  # its connection reports the loss; otherwise it waits for its timeout
        else:
            host.unheard.append(event)

    def hear(self, host: Host) -> None:
        """Deliver the events that were held back while the node could not receive from the store."""
        if host.node is None or not self.hears_store(host):
            return
        unheard, host.unheard = host.unheard, []
        for event in unheard:
            if host.node is not None:
                self._receive(host, event)

    def _fire(self, fired: Iterable[WatchFired]) -> None:
        for watch in fired:
            for host in self._hosts.values():
                if host.session_id == watch.session_id:
                    self._answer(host, host.life, watch)

    @property
    def controller_epoch(self) -> int:
        """The epoch of the newest controller in the store."""
        outcome, _ = self.store.tree.apply(self._operator, Get(layout.CONTROLLER_EPOCH_PATH))
        return layout.parse_controller_epoch(outcome.data) if outcome.stat is not None else 0

    def broker_epoch(self, node_id: int) -> int:
        """Return the broker epoch of a registered node; -1 for none."""
        outcome, _ = self.store.tree.apply(self._operator, Get(layout.broker_path(node_id)))
        return outcome.stat.created_txid if outcome.stat is not None else -1

    # --- what an operator does -------------------------------------------------------------------

    def write_as_operator(self, operation: Operation) -> Outcome:
        """Write to the store as an operator's tool does."""
        outcome, fired = self.store.call(self._operator, operation, self._time.now_ms)
        self._fire(fired)
        return outcome

    def read_as_operator(self, path: str) -> Outcome:
        return self.store.call(self._operator, Get(path), self._time.now_ms)[0]

    # --- sessions --------------------------------------------------------------------------------

    def open_session_later(self, host: Host, timeout_ms: int) -> None:
        """Open a session for a node, after the delay of a message."""
        self._time.at(self.delay_ms(), self._open_session, host, host.life, timeout_ms)

    def close_session_later(self, session_id: int) -> None:
        """Close a node's session, after the delay of a message."""
        self._time.at(self.delay_ms(), self._close_session, session_id)

    def _open_session(self, host: Host, life: int, timeout_ms: int) -> None:
        if host.life != life or host.node is None:
            return
        if host.is_paused or not self.reaches_store(host) or not self.hears_store(host):
            self._time.at(timeout_ms // 4, self._open_session, host, life, timeout_ms)
            return
        session_id = self.store.open_session(timeout_ms, self._time.now_ms)
        host.session_id = session_id
        self._answer(host, life, SessionOpened(session_id))
        self._schedule_tick()

    def keep_session(self, session_id: int) -> None:
        """Lose the request to close this session: it lives until its timeout."""
        self._kept.add(session_id)

    def renew_session(self, host: Host, *, keeps_old: bool) -> None:
        """Open another session for a node's client; the old one ends now, or at its timeout."""
        old = host.session_id
        assert old is not None
        self._time.note("store", "has a new session for", host.node_id)
        host.session_id = self.store.open_session(host.config.zookeeper_session_timeout_ms, self._time.now_ms)
        host.end_notified = old
        if not keeps_old:
            self.expire(old)
        self._answer(host, host.life, SessionOpened(host.session_id))
        self._schedule_tick()

    def keep_sessions(self) -> None:
        """Begin the timeout of every session anew, as after a failover."""
        for session_id in sorted(self.store.tree.sessions):
            self.store.heartbeat(session_id, self._time.now_ms)

    def _close_session(self, session_id: int) -> None:
        if session_id in self._kept:
            return
        self._fire(self.store.close_session(session_id))

    def heartbeat(self, host: Host, life: int) -> None:
        """Send a heartbeat, three per session timeout. A node whose heartbeat comes too late learns of the
        end."""
        if host.life != life or host.node is None:
            return
        self._time.at(host.config.zookeeper_session_timeout_ms // 3, self.heartbeat, host, life)
        if host.session_id is None or host.is_paused or not self.reaches_store(host):
            return
        if not self.store.heartbeat(host.session_id, self._time.now_ms):
            self._tell_expired(host, host.session_id)

    def _tell_expired(self, host: Host, session_id: int) -> None:
        if host.end_notified == session_id:
            return
        host.end_notified = session_id
        self._answer(host, host.life, SessionExpired(session_id))

    def _schedule_tick(self) -> None:
        deadline_ms = self.store.deadline_ms
        if deadline_ms is not None and (self._tick_at_ms is None or deadline_ms < self._tick_at_ms):
            self._tick_at_ms = max(deadline_ms, self._time.now_ms + 1)
            self._time.push(self._tick_at_ms, self._time.draw_tie(), self._tick, (self._tick_at_ms,))

    def _tick(self, at_ms: int) -> None:
        if at_ms != self._tick_at_ms:
            self._time.was_nothing()
            return
        self._tick_at_ms = None
        if self.is_down:
            return
        expired, fired = self.store.tick(self._time.now_ms)
        for session_id in expired:
            self._time.tally.sessions_expired += 1
            self._time.note("store", "ends session", session_id)
            for host in self._hosts.values():
                if host.session_id == session_id and host.node is not None:
                    self._tell_expired(host, session_id)
        self._fire(fired)
        self._schedule_tick()

    def go_down(self) -> None:
        """Stop serving: the store has no leader of its own, so no session expires."""
        self._time.note("store", "is unavailable")
        self._time.stamp("store down")
        self.is_down = True

    def come_back(self) -> None:
        """Serve again. The timeout of every session begins anew, as after a failover."""
        if not self.is_down:
            return
        self._time.note("store", "is back")
        self.is_down = False
        self.keep_sessions()
        for host in self._hosts.values():
            self.hear(host)
        self._schedule_tick()

    def expire(self, session_id: int) -> None:
        """Expire a session; its owner learns of it at its next heartbeat."""
        self._time.tally.sessions_expired += 1
        self._time.note("store", "gives up session", session_id)
        self._time.stamp(f"expire{session_id}")
        self._fire(self.store.close_session(session_id))

"""One node of the cluster: routes events to its replica manager and its controller.

    start ─▶ OpenSession ─▶ SessionOpened ─▶ create /brokers/ids/<id> ─▶ registered
               ▲                                 │ exists: wait for the end of the former session
               └── SessionExpired ◀──────────────┘

The broker epoch fences incarnations. It is the transaction id that created the registration. Until it is
known, requests of the controller are held: they could be for this life or for a former one. Those of an
unknown controller are held until the store confirms its epoch (`order_gate.py`). An expired session ends
every leadership here at once.

    begin_shutdown ─▶ … ControlledShutdown … ─▶ is_ready_to_stop ─▶ stop ─▶ (logs closed) ─▶ leave

An orderly shutdown first asks the controller to move the leaderships (`departure.py`). Then it ends every
role, closes the logs with the clean-shutdown marker, and closes the session last: the marker is durable
before anybody else is elected. `stop` may also be called at once.

`start`, `receive`, `tick`, `begin_shutdown`, `stop` and `leave` run to completion and return effects. They
have no other side effects outside the logs.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Final

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.log.manager import LogManager
from logstore.replication import healing, log_moves, markers, messages, orders, serving
from logstore.replication.config import NodeConfig
from logstore.replication.controller.controller import SERVICES, Controller
from logstore.replication.departure import Departure
from logstore.replication.effects import (
    Abandoned,
    Address,
    Client,
    ClientRequest,
    CloseSession,
    DamageFound,
    Disconnected,
    Effect,
    Event,
    Halt,
    OpenSession,
    Peer,
    Request,
    Response,
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreReply,
    SyncDone,
    WatchFired,
)
from logstore.replication.errors import InvalidRequest
from logstore.replication.log_dir_messages import AlterReplicaLogDirsRequest
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import BrokerRegistration, broker_path, encode_broker
from logstore.replication.metastore.operations import Create, Delete, Get, Outcome, StoreError
from logstore.replication.order_gate import OrderGate, Verdict, order_in
from logstore.replication.replica_manager import ReplicaManager, owes_answers
from logstore.replication.state_change import Sink, unheard
from logstore.replication.transaction_messages import WriteTxnMarkersRequest

# Each epoch stays in the registration until a controller has read a later one: a few suffice.
_MOST_FORMER_EPOCHS = 256

ORDERS: Final[dict[type[messages.RequestBody], Callable[..., list[Effect]]]] = {
    messages.LeaderAndIsrRequest: orders.leader_and_isr,
    messages.StopReplicaRequest: orders.stop_replica,
    messages.UpdateMetadataRequest: orders.update_metadata,
}
"""Requests of the controller: from nodes only, and held until this node is registered."""

SERVED: Final[dict[type[messages.RequestBody], Callable[..., list[Effect]]]] = {
    messages.ProduceRequest: serving.produce,
    messages.FetchRequest: serving.fetch,
    messages.DeleteRecordsRequest: serving.delete_records,
    AlterReplicaLogDirsRequest: log_moves.alter_log_dirs,
    WriteTxnMarkersRequest: markers.write_txn_markers,
    messages.ListOffsetsRequest: serving.list_offsets,
    messages.OffsetForLeaderEpochRequest: serving.offset_for_leader_epoch,
    messages.MetadataRequest: serving.describe_cluster,
}
"""Requests of clients and followers. The controller serves all others (`SERVICES`)."""


class Node:
    """A broker's engine: events in, effects out; no thread, no clock, no socket."""

    def __init__(
        self,
        config: NodeConfig,
        logs: LogManager,
        *,
        random: random.Random,
        log_config: LogConfig | None = None,
        state_changes: Sink = unheard,
    ) -> None:
        """`logs` is open. The caller closes it, after `stop` or instead of it.

        `log_config` applies to topics without settings of their own. `state_changes` receives every decision
        about a partition made here, as controller or as broker.
        """
        self.config = config
        self.logs = logs
        self._ids = count(1)
        self.replicas = ReplicaManager(
            config,
            logs,
            next_id=self._next_id,
            default_config=log_config or LogConfig(),
            state_changes=state_changes,
        )
        self.controller = Controller(
            config.node_id,
            replace(
                config.controller,
                durability=config.durability,
                min_insync_wall=config.min_insync_wall,
                min_insync_replicas=(log_config or LogConfig()).min_insync_replicas,
            ),
            random=random,
            next_id=self._next_id,
            state_changes=state_changes,
        )
        self.session_id: int | None = None
        self.departure: Departure | None = None
        """The controlled shutdown under way, if one was begun."""
        self._registration_call: int | None = None
        self._register_at_ms: int | None = None
        self._former_sessions: set[int] = set()
        self._former_epochs: deque[int] = deque(maxlen=_MOST_FORMER_EPOCHS)
        self._gate = OrderGate(self._next_id, config.request_timeout_ms)
        self._held: deque[Request] = deque()
        """Requests of the controller that wait: for the registration, or for the end of an earlier one."""
        self._failures_reported = 0
        self._report: tuple[int, int] | None = None
        """The store call that reports failed logs, and how many it reports."""
        self._report_again_ms: int | None = None

    def _next_id(self) -> int:
        return next(self._ids)

    @property
    def node_id(self) -> int:
        """Return the node's id."""
        return self.config.node_id

    @property
    def broker_epoch(self) -> int:
        """The epoch of the current registration; -1 without one."""
        return self.replicas.broker_epoch

    @property
    def deadline_ms(self) -> int | None:
        """The time at which `tick` is next needed; None without a timed action."""
        deadlines = (
            self.replicas.deadline_ms,
            self.controller.deadline_ms,
            self.logs.deadline_ms,
            self._register_at_ms,
            self._gate.deadline_ms,
            self._report_again_ms,
            self.departure.deadline_ms if self.departure is not None else None,
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def is_clean(self) -> bool:
        """Whether the logs may be closed with the clean-shutdown marker.

        After an unclean start, only once the controller has recorded the possible loss; its first full list
        of roles proves that. The marker would hide the loss from a later controller.
        """
        return self.logs.was_clean or self.replicas.is_on_record

    @property
    def is_ready_to_stop(self) -> bool:
        """Whether a shutdown was begun, and the controller agreed or all attempts were used.

        Clients that wait for batches which are led elsewhere now get their answers first.
        """
        return self.departure is not None and self.departure.is_over and not owes_answers(self.replicas)

    # --- life ---------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list[Effect]:
        """Begin: ask for a session."""
        for topic_partition, error in self.logs.damaged.items():
            self.replicas.note(topic_partition, "finds damage", now_ms, reason=str(error))
        return [OpenSession(self.config.zookeeper_session_timeout_ms)]

    def begin_shutdown(self, now_ms: int) -> list[Effect]:
        """Ask the controller to move the leaderships of this node; see `is_ready_to_stop`.

        Until then the node serves as before, but follows no new leader.
        """
        if self.departure is None:
            self.replicas.is_departing = True
            self.departure = Departure(self.config, now_ms)
        return self._depart(now_ms)

    def _depart(self, now_ms: int) -> list[Effect]:
        if self.departure is None:
            return []
        request = self.departure.next_request(
            self._next_id,
            self.replicas.controller_id,
            self.broker_epoch,
            now_ms,
            others_stay=bool(self.replicas.metadata.in_sync_candidates - {self.node_id}),
        )
        return [request] if request is not None else []

    def stop(self, now_ms: int) -> list[Effect]:
        """End every role: waiting requests are answered, and nothing is appended or fetched any more.

        The caller then closes the logs, with the clean-shutdown marker if `is_clean`, and calls `leave`.
        """
        return [*orders.stop(self.replicas, now_ms), *self.controller.on_session_lost(now_ms)]

    def leave(self, now_ms: int) -> list[Effect]:
        """Close the session, and with it the registration."""
        session_id, self.session_id = self.session_id, None
        return [CloseSession(session_id)] if session_id is not None else []

    def tick(self, now_ms: int) -> list[Effect]:
        """Do everything that is due."""
        effects: list[Effect] = []
        if self._register_at_ms is not None and self._register_at_ms <= now_ms:
            effects += self._register(now_ms)
        if self._gate.deadline_ms is not None:
            effects += self._judge_orders(self._gate.expire(now_ms), now_ms)
        if self.logs.deadline_ms <= now_ms:
            self.logs.tick(now_ms)
            self.replicas.note_log_starts()
            healing.after_compaction(self.replicas)
        effects += self.replicas.tick(now_ms)
        effects += self.controller.tick(now_ms)
        return self._end_turn(effects, now_ms)

    def receive(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event. Raises `InvalidRequest` for a request that its sender may not send."""
        return self._end_turn(self._receive(event, now_ms), now_ms)

    def look(self, now_ms: int) -> list[Effect]:
        """Check waiting fetches for changed partitions; only if `WaitingRequests.defers_fetches` is set."""
        self.replicas.waiting.look(now_ms)
        return self._end_turn(self.replicas.end_turn(now_ms), now_ms)

    def _end_turn(self, effects: list[Effect], now_ms: int) -> list[Effect]:
        effects += self._depart(now_ms)
        if self.logs.failed_dirs and self.logs.is_offline:
            # Nothing is left to serve. Closing the session spares others the wait for its timeout.
            mark("node: its last log dir failed")
            reasons = "; ".join(f"{path}: {reason}" for path, reason in self.logs.offline_dirs.items())
            halt = Halt(f"every log dir has failed: {reasons}")
            return [*effects, *self.stop(now_ms), *self.leave(now_ms), halt]
        if self.replicas.failures != self._failures_reported:
            return [*effects, *self._report_failed_logs(now_ms)]
        return effects

    # --- events -------------------------------------------------------------------------------

    def _receive(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case ClientRequest(token, body):
                return self._serve(Client(token), body, now_ms)
            case Request(_, _, body):
                if type(body) not in ORDERS:
                    if type(body) is messages.ProduceRequest:
                        raise InvalidRequest("ProduceRequest is for clients, not for nodes")
                    return self._serve(_sender(event), body, now_ms)
                if self.broker_epoch < 0:
                    mark("node: a controller's request waits for the registration")
                self._held.append(event)
                return self._obey_held(now_ms)
            case Response():
                return self._on_response(event, now_ms)
            case Abandoned(address):
                self.replicas.waiting.abandon(address)
                return []
            case Disconnected(source, correlation_id):
                if self.replicas.on_disconnected(correlation_id, now_ms):
                    return []
                if self.departure is not None and self.departure.owns(correlation_id):
                    self.departure.on_disconnected(now_ms)
                    return []
                return self.controller.on_disconnected(source, correlation_id, now_ms)
            case StoreReply(call_id, outcome):
                if call_id == self._registration_call:
                    return self._on_registration_reply(outcome, now_ms)
                if self._report is not None and call_id == self._report[0]:
                    self._on_report_reply(outcome, now_ms)
                    return []
                if self._gate.owns(call_id):
                    return self._judge_orders(self._gate.decide(outcome), now_ms)
                return self.controller.on_store_reply(call_id, outcome, now_ms)
            case WatchFired(session_id, path, kind):
                if session_id != self.session_id:
                    return []
                return self.controller.on_watch(path, kind, now_ms)
            case SessionOpened(session_id):
                return self._on_session(session_id, now_ms)
            case SessionExpired(session_id):
                if session_id != self.session_id:
                    return []
                return [*self._lose_session(now_ms), OpenSession(self.config.zookeeper_session_timeout_ms)]
            case DamageFound(topic_partition, damages, rebuilt):
                healing.take_note(self.replicas, topic_partition, damages)
                healing.take_note_of_rebuilt(self.replicas, topic_partition, rebuilt)
                return self.replicas.end_turn(now_ms)
            case SyncDone(topic_partition):
                effects = self.replicas.on_sync_done(event, now_ms)
                if (roles := self.replicas.roles_under_way) is not None:
                    effects += orders.log_flushed(self.replicas, roles, topic_partition, now_ms)
                    effects += self._obey_held(now_ms)
                return effects

    def _serve(self, address: Address, body: messages.RequestBody, now_ms: int) -> list[Effect]:
        serve = SERVED.get(type(body))
        if serve is not None:
            return serve(self.replicas, address, body, now_ms)
        if type(body) in SERVICES:
            return self.controller.on_request(address, body, now_ms)
        raise InvalidRequest(f"{type(body).__name__} is for nodes, not for clients")

    def _obey_held(self, now_ms: int) -> list[Effect]:
        """Carry out the controller's requests in their order, up to one that cannot be finished yet."""
        effects: list[Effect] = []
        while self._held and self.broker_epoch >= 0 and self.replicas.roles_under_way is None:
            request = self._held.popleft()
            if self._gate.admits(order_in(request).controller_epoch):
                effects += ORDERS[type(request.body)](self.replicas, _sender(request), request.body, now_ms)
            else:
                assert self.session_id is not None, "registered without a session"
                self._gate.hold(request)
                effects += self._gate.look_up(self.session_id, now_ms)
        return effects

    def _judge_orders(self, verdict: Verdict, now_ms: int) -> list[Effect]:
        self._held.extendleft(reversed(verdict.confirmed))
        effects = self._obey_held(now_ms)
        for request in verdict.refused:
            effects += orders.refuse_unconfirmed(
                self.replicas, _sender(request), order_in(request), verdict.reason, now_ms
            )
        if self.session_id is not None:
            effects += self._gate.look_up(self.session_id, now_ms)
        return effects

    def _on_response(self, response: Response, now_ms: int) -> list[Effect]:
        correlation_id = response.correlation_id
        match response.body:
            case (
                messages.FetchResponse()
                | messages.ListOffsetsResponse()
                | messages.OffsetForLeaderEpochResponse()
                | messages.AlterPartitionResponse() as body
            ):
                return self.replicas.on_response(correlation_id, body, now_ms)
            case messages.ControlledShutdownResponse() as answer:
                if self.departure is not None and self.departure.owns(correlation_id):
                    self.departure.on_response(answer, now_ms)
                    if answer.error is ErrorCode.NOT_CONTROLLER:
                        self.replicas.controller_id = self.replicas.metadata.next_broker(response.source)
                return []
            case (
                messages.LeaderAndIsrResponse()
                | messages.StopReplicaResponse()
                | messages.UpdateMetadataResponse() as result
            ):
                return self.controller.on_response(response.source, correlation_id, result, now_ms)
        raise InvalidRequest(f"{type(response.body).__name__} answers no request of a node")

    # --- the store session --------------------------------------------------------------------

    def _on_session(self, session_id: int, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if self.session_id is not None and self.session_id != session_id:
            mark("node: a new session before the word of the old one's end")
            effects += self._lose_session(now_ms)  # the event of its end was lost
        self.session_id = session_id
        return [*effects, *self._register(now_ms)]

    def _lose_session(self, now_ms: int) -> list[Effect]:
        assert self.session_id is not None, "no session to lose"
        self._former_sessions.add(self.session_id)
        if self.broker_epoch >= 0:
            self._former_epochs.append(self.broker_epoch)
        self.session_id = None
        self._registration_call = None
        self._register_at_ms = None
        self._report = self._report_again_ms = None
        self._held.extendleft(reversed(self._gate.release()))
        # Leaderships first: nothing may be acknowledged under a registration that is gone.
        return [*orders.session_lost(self.replicas, now_ms), *self.controller.on_session_lost(now_ms)]

    def _registration(self, operation: Create | Delete | Get, now_ms: int) -> list[Effect]:
        assert self.session_id is not None, "no session to register in"
        self._registration_call = self._next_id()
        self._register_at_ms = now_ms + self.config.request_timeout_ms  # in case the reply is lost
        return [StoreCall(self.session_id, self._registration_call, operation)]

    def _register(self, now_ms: int) -> list[Effect]:
        registration = BrokerRegistration(
            self.config.host,
            self.config.port,
            timestamp_ms=now_ms,
            clean=self.logs.was_clean,
            empty=self.logs.had_empty_dir,
            continues=tuple(self._former_epochs),
            damaged=tuple(sorted(self.logs.damaged)),
            rack=self.config.broker_rack,
            endpoints=self.config.endpoints,
            keeps_topics=not self.config.controller.delete_topic_enable,
        )
        return self._registration(
            Create(broker_path(self.node_id), encode_broker(registration), ephemeral=True, make_parents=True),
            now_ms,
        )

    def _on_registration_reply(self, outcome: Outcome, now_ms: int) -> list[Effect]:
        """Alternate Create and Get until the node in the store is ours.

        An existing node may be ours (the reply to its creation was lost), of a former session of this process
        (it is deleted), or of a former process (it goes when that session expires).
        """
        self._registration_call = None
        self._register_at_ms = None
        path = broker_path(self.node_id)
        match outcome.error:
            case None:
                if outcome.stat is None:
                    mark("registration: a former session's node is gone")
                    return self._register(now_ms)  # the reply to a Delete
                if outcome.stat.ephemeral_owner == self.session_id:
                    return self._registered(outcome.stat.created_txid, now_ms)
                if outcome.stat.ephemeral_owner in self._former_sessions:
                    mark("registration: our former session's node is removed")
                    return self._registration(Delete(path, outcome.stat.version), now_ms)
                self._register_at_ms = now_ms + self.config.registration_retry_ms
                return []
            case StoreError.CONNECTION_LOSS:
                mark("registration: a call to the store was lost")
                self._register_at_ms = now_ms + self.config.registration_retry_ms
                return []
            case StoreError.NODE_EXISTS:
                mark("registration: somebody's node stands in the way")
                return self._registration(Get(path), now_ms)
            case StoreError.NO_NODE | StoreError.BAD_VERSION:
                mark("registration: our former session's node went by itself")
                return self._register(now_ms)
            case StoreError.SESSION_EXPIRED:
                mark("registration: the session ended before it")
                return [*self._lose_session(now_ms), OpenSession(self.config.zookeeper_session_timeout_ms)]
        raise AssertionError(f"{path}: the store answered {outcome.error} to a plain create or get")

    def _registered(self, broker_epoch: int, now_ms: int) -> list[Effect]:
        assert self.session_id is not None, "registered without a session"
        effects = orders.registered(self.replicas, broker_epoch, now_ms)
        # The controller assigns every role to the new registration, and gets a report of each refused one.
        self._failures_reported = self.replicas.failures
        effects += self.controller.on_session(self.session_id, broker_epoch, now_ms)
        if self._held:
            mark("node: a controller's request is served after the registration")
        return [*effects, *self._obey_held(now_ms)]

    # --- failed logs --------------------------------------------------------------------------

    def _report_failed_logs(self, now_ms: int) -> list[Effect]:
        """Report logs that failed, or work again, to the store, until the store has it.

        The controller then assigns the roles of this node again, and learns which ones it cannot take.
        """
        if self.session_id is None or self.broker_epoch < 0:
            return []
        if self._report_again_ms is not None and now_ms < self._report_again_ms:
            return []
        self._report = self._next_id(), self.replicas.failures
        self._report_again_ms = now_ms + self.config.request_timeout_ms
        event = Create(
            layout.LOG_DIR_EVENT_PREFIX,
            layout.encode_log_dir_event(self.node_id),
            sequential=True,
            make_parents=True,
        )
        return [StoreCall(self.session_id, self._report[0], event)]

    def _on_report_reply(self, outcome: Outcome, now_ms: int) -> None:
        assert self._report is not None, "a reply without a report"
        if outcome.error is None:
            self._failures_reported = self._report[1]
            self._report_again_ms = None
        else:
            mark("node: the word of a failed log is left once more")
            self._report_again_ms = now_ms + self.config.registration_retry_ms
        self._report = None


def _sender(request: Request) -> Peer:
    return Peer(request.source, request.correlation_id, request.token)

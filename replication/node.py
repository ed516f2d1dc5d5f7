"""One node of the cluster: routes what comes in to its replica manager and its controller.

    start ─▶ OpenSession ─▶ SessionOpened ─▶ create /brokers/ids/<id> ─▶ registered
               ▲                                 │ taken: wait until the former life's session is over
               └── SessionExpired ◀──────────────┘

The broker epoch, the incarnation that others fence by, is the transaction id of that node's
creation. Until it is known the controller's requests are held: whether they are for this life or a
former one cannot be told before. A session that expires ends every leadership here at once.

    begin_shutdown ─▶ … ControlledShutdown … ─▶ is_ready_to_stop ─▶ stop ─▶ (logs closed) ─▶ leave

An orderly end asks the controller first to move what is led here (`departure.py`), then stops every
role, closes the logs with the mark of a clean stop, and gives up the session last: nobody else is elected
because of it before the mark is durable. `stop` may also come at once.

`start`, `receive`, `tick`, `begin_shutdown`, `stop` and `leave` run to completion and return effects;
nothing else happens.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from itertools import count

from logstore.config import LogConfig
from logstore.disk.marks import mark
from logstore.log.manager import LogManager
from logstore.replication.config import NodeConfig
from logstore.replication.controller.controller import Controller
from logstore.replication.controller.services import SERVICES
from logstore.replication.departure import Departure
from logstore.replication.effects import (
    Address,
    Client,
    ClientRequest,
    CloseSession,
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
    answer,
)
from logstore.replication.errors import InvalidRequest
from logstore.replication.messages import (
    AlterPartitionResponse,
    ControlledShutdownResponse,
    DeleteRecordsRequest,
    FetchRequest,
    FetchResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    RequestBody,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import BrokerRegistration, broker_path, encode_broker
from logstore.replication.metastore.operations import Create, Delete, Get, Outcome, StoreError
from logstore.replication.replica_manager import ReplicaManager
from logstore.replication.state_change import Sink, unheard

# Each stands in the registration until a controller has seen a later one: a few are enough.
_MOST_FORMER_EPOCHS = 256
_CONTROL = (LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest)


class Node:
    """A broker's engine: logs on one side, effects on the other, no thread, no clock, no socket."""

    def __init__(
        self,
        config: NodeConfig,
        logs: LogManager,
        *,
        random: random.Random,
        log_config: LogConfig | None = None,
        state_changes: Sink = unheard,
    ) -> None:
        """`logs` is open and stays the caller's to close, after `stop` or instead of it.

        `log_config` is what topics without settings of their own have; `state_changes` hears of every
        decision about a partition that is made here, as controller and as broker.
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
        """The leave-taking of a node whose shutdown has begun."""
        self._registration_call: int | None = None
        self._register_at_ms: int | None = None
        self._former_sessions: set[int] = set()
        self._former_epochs: deque[int] = deque(maxlen=_MOST_FORMER_EPOCHS)
        self._held: list[Request] = []
        self._failures_told = 0
        self._report: tuple[int, int] | None = None
        """The store call that tells of failed logs, and how many it tells of."""
        self._report_again_ms: int | None = None

    def _next_id(self) -> int:
        return next(self._ids)

    @property
    def node_id(self) -> int:
        return self.config.node_id

    @property
    def broker_epoch(self) -> int:
        """This life's registration; -1 while there is none."""
        return self.replicas.broker_epoch

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` is next needed; None if time alone changes nothing."""
        deadlines = (
            self.replicas.deadline_ms,
            self.controller.deadline_ms,
            self.logs.deadline_ms,
            self._register_at_ms,
            self._report_again_ms,
            self.departure.deadline_ms if self.departure is not None else None,
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def is_clean(self) -> bool:
        """Whether the logs may be closed with the mark of a clean stop.

        After an unclean start, only once the controller has put on record what that may have cost:
        its first role proves that. The mark would hide it from a controller that comes later.
        """
        return self.logs.was_clean or self.replicas.is_on_record

    def start(self, now_ms: int) -> list[Effect]:
        """Begin: ask for a session."""
        return [OpenSession(self.config.zookeeper_session_timeout_ms)]

    def begin_shutdown(self, now_ms: int) -> list[Effect]:
        """Ask the controller to move what is led here; `is_ready_to_stop` says when that is over.

        Until then this node serves as before, but follows nobody new.
        """
        if self.departure is None:
            self.replicas.is_departing = True
            self.departure = Departure(self.config, now_ms)
        return self._depart(now_ms)

    @property
    def is_ready_to_stop(self) -> bool:
        """Whether a shutdown was begun, and the controller let us go or was asked often enough."""
        return self.departure is not None and self.departure.is_over

    def _depart(self, now_ms: int) -> list[Effect]:
        if self.departure is None:
            return []
        request = self.departure.next_request(
            self._next_id, self.replicas.controller_id, self.broker_epoch, now_ms
        )
        return [request] if request is not None else []

    def stop(self, now_ms: int) -> list[Effect]:
        """End every role: whoever waits is answered, nothing is appended or fetched any more.

        The logs are then the caller's to close, with the mark of a clean stop if `is_clean`; `leave`
        comes after that.
        """
        return [*self.replicas.stop(now_ms), *self.controller.on_session_lost(now_ms)]

    def leave(self, now_ms: int) -> list[Effect]:
        """Give up the session: the registration goes, and with it all that still names this node."""
        session_id, self.session_id = self.session_id, None
        return [CloseSession(session_id)] if session_id is not None else []

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what has become due."""
        effects: list[Effect] = []
        if self._register_at_ms is not None and self._register_at_ms <= now_ms:
            effects += self._register(now_ms)
        if self.logs.deadline_ms <= now_ms:
            self.logs.tick(now_ms)
        effects += self.replicas.tick(now_ms)
        effects += self.controller.tick(now_ms)
        effects += self._depart(now_ms)
        return self._end_turn(effects, now_ms)

    def receive(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event."""
        return self._end_turn(self._receive(event, now_ms), now_ms)

    def _end_turn(self, effects: list[Effect], now_ms: int) -> list[Effect]:
        if self.logs.is_offline:
            # Nothing is left to serve (F3). The session goes with us: nobody has to wait for its timeout.
            mark("node: its last log dir failed")
            reasons = "; ".join(f"{path}: {reason}" for path, reason in self.logs.offline_dirs.items())
            halt = Halt(f"every log dir has failed: {reasons}")
            return [*effects, *self.stop(now_ms), *self.leave(now_ms), halt]
        return [*effects, *self._tell_of_failed_logs(now_ms)]

    def _receive(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case Request():
                return self._on_request(event, now_ms)
            case Response():
                return self._on_response(event, now_ms)
            case Disconnected(source, correlation_id):
                if self.replicas.on_disconnected(correlation_id, now_ms):
                    return []
                if self.departure is not None and self.departure.owns(correlation_id):
                    self.departure.on_disconnected(now_ms)
                    return []
                return self.controller.on_disconnected(source, correlation_id, now_ms)
            case ClientRequest():
                return self._on_client_request(event, now_ms)
            case StoreReply(call_id, outcome):
                if call_id == self._registration_call:
                    return self._on_registration_reply(outcome, now_ms)
                if self._report is not None and call_id == self._report[0]:
                    self._on_report_reply(outcome, now_ms)
                    return []
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
            case SyncDone():
                return self.replicas.on_sync_done(event, now_ms)

    # --- requests -----------------------------------------------------------------------------

    def _on_request(self, request: Request, now_ms: int) -> list[Effect]:
        body = request.body
        if isinstance(body, _CONTROL):
            if self.broker_epoch < 0:
                mark("node: a controller's request waits for the registration")
                self._held.append(request)
                return []
            return self._on_control(request, now_ms)
        return self._serve(_peer(request), body, now_ms)

    def _on_control(self, request: Request, now_ms: int) -> list[Effect]:
        address = _peer(request)
        match request.body:
            case LeaderAndIsrRequest() as body:
                return self.replicas.leader_and_isr(address, body, now_ms)
            case StopReplicaRequest() as body:
                return self.replicas.stop_replica(address, body, now_ms)
            case UpdateMetadataRequest() as body:
                return self.replicas.update_metadata(address, body, now_ms)
        raise AssertionError(f"{type(request.body).__name__} is no request of a controller")

    def _on_client_request(self, request: ClientRequest, now_ms: int) -> list[Effect]:
        body = request.body
        if isinstance(body, ProduceRequest):
            return self.replicas.produce(Client(request.token), body, now_ms)
        return self._serve(Client(request.token), body, now_ms)

    def _serve(self, address: Address, body: RequestBody, now_ms: int) -> list[Effect]:
        """What brokers and clients may both ask: the controller's services, and reads."""
        if type(body) in SERVICES:
            return self.controller.on_request(address, body, now_ms)
        match body:
            case FetchRequest():
                return self.replicas.fetch(address, body, now_ms)
            case DeleteRecordsRequest():
                return self.replicas.delete_records(address, body, now_ms)
            case ListOffsetsRequest():
                return self.replicas.list_offsets(address, body, now_ms)
            case OffsetForLeaderEpochRequest():
                return self.replicas.offset_for_leader_epoch(address, body, now_ms)
            case MetadataRequest():
                return [answer(address, self.replicas.metadata.describe(body))]
        raise InvalidRequest(f"{type(body).__name__} does not come this way")

    def _on_response(self, response: Response, now_ms: int) -> list[Effect]:
        match response.body:
            case (
                FetchResponse()
                | ListOffsetsResponse()
                | OffsetForLeaderEpochResponse()
                | AlterPartitionResponse()
            ):
                return self.replicas.on_response(response.correlation_id, response.body, now_ms)
            case ControlledShutdownResponse() as body:
                if self.departure is not None and self.departure.owns(response.correlation_id):
                    self.departure.on_response(body, now_ms)
                return []
            case LeaderAndIsrResponse() | StopReplicaResponse() | UpdateMetadataResponse():
                return self.controller.on_response(
                    response.source, response.correlation_id, response.body, now_ms
                )
        raise InvalidRequest(f"{type(response.body).__name__} answers nothing that a node sends")

    # --- the store session --------------------------------------------------------------------

    def _on_session(self, session_id: int, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if self.session_id is not None and self.session_id != session_id:
            mark("node: a new session before the word of the old one's end")
            effects += self._lose_session(now_ms)  # the word of its end was lost
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
        # Leaderships first: nothing is acknowledged in the name of a registration that is gone.
        return [*self.replicas.on_session_lost(now_ms), *self.controller.on_session_lost(now_ms)]

    def _store_call(self, operation: Create | Delete | Get, now_ms: int) -> list[Effect]:
        assert self.session_id is not None, "a session to call in"
        self._registration_call = self._next_id()
        self._register_at_ms = now_ms + self.config.request_timeout_ms  # should the reply be lost
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
        )
        return self._store_call(
            Create(broker_path(self.node_id), encode_broker(registration), ephemeral=True, make_parents=True),
            now_ms,
        )

    def _on_registration_reply(self, outcome: Outcome, now_ms: int) -> list[Effect]:
        """Create and Get take turns until the node in the store is ours.

        A node that is there may be ours (the reply to its creation was lost), a former session's of
        this process (removed here), or a former process's (gone when its session is over).
        """
        self._registration_call = None
        self._register_at_ms = None
        path = broker_path(self.node_id)
        match outcome.error:
            case None:
                if outcome.stat is None:
                    mark("registration: a former session's node is gone")
                    return self._register(now_ms)  # a former session's node was deleted
                if outcome.stat.ephemeral_owner == self.session_id:
                    return self._registered(outcome.stat.created_txid, now_ms)
                if outcome.stat.ephemeral_owner in self._former_sessions:
                    mark("registration: our former session's node is removed")
                    return self._store_call(Delete(path, outcome.stat.version), now_ms)
                self._register_at_ms = now_ms + self.config.registration_retry_ms
                return []
            case StoreError.CONNECTION_LOSS:
                mark("registration: a call to the store was lost")
                self._register_at_ms = now_ms + self.config.registration_retry_ms
                return []
            case StoreError.NODE_EXISTS:
                mark("registration: somebody's node stands in the way")
                return self._store_call(Get(path), now_ms)
            case StoreError.NO_NODE | StoreError.BAD_VERSION:
                mark("registration: our former session's node went by itself")
                return self._register(now_ms)
            case StoreError.SESSION_EXPIRED:
                mark("registration: the session ended before it")
                return [*self._lose_session(now_ms), OpenSession(self.config.zookeeper_session_timeout_ms)]
        raise AssertionError(f"{path}: the store answers {outcome.error} to a plain create or get")

    def _registered(self, broker_epoch: int, now_ms: int) -> list[Effect]:
        assert self.session_id is not None, "registered in a session"
        effects = self.replicas.on_registered(broker_epoch, now_ms)
        # The controller will ask this incarnation for every role, and hear of each that it cannot take.
        self._failures_told = self.replicas.failures
        effects += self.controller.on_session(self.session_id, broker_epoch, now_ms)
        held, self._held = self._held, []
        for request in held:
            mark("node: a controller's request is served after the registration")
            effects += self._on_control(request, now_ms)
        return effects

    # --- failed logs --------------------------------------------------------------------------

    def _tell_of_failed_logs(self, now_ms: int) -> list[Effect]:
        """Leave word in the store of logs that failed since, or work again, until the store has taken it.

        The controller then asks this node for its roles once more, and hears which it cannot fill.
        """
        failed = self.replicas.failures
        if failed == self._failures_told or self.session_id is None or self.broker_epoch < 0:
            return []
        if self._report_again_ms is not None and now_ms < self._report_again_ms:
            return []
        self._report = self._next_id(), failed
        self._report_again_ms = now_ms + self.config.request_timeout_ms
        event = Create(
            layout.LOG_DIR_EVENT_PREFIX,
            layout.encode_log_dir_event(self.node_id),
            sequential=True,
            make_parents=True,
        )
        return [StoreCall(self.session_id, self._report[0], event)]

    def _on_report_reply(self, outcome: Outcome, now_ms: int) -> None:
        assert self._report is not None, "a reply to our report"
        if outcome.error is None:
            self._failures_told = self._report[1]
            self._report_again_ms = None
        else:
            mark("node: the word of a failed log is left once more")
            self._report_again_ms = now_ms + self.config.registration_retry_ms
        self._report = None


def _peer(request: Request) -> Peer:
    return Peer(request.source, request.correlation_id, request.token)

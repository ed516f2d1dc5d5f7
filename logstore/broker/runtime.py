"""Carries a node's effects out, with asyncio: one event loop, on which the node's engine runs.

    connections ─▶ Request, ClientRequest ─┐               ┌─▶ Send ─────────▶ links, one for each purpose
    links ───────▶ Response, Disconnected ─┤    ┌──────┐   ├─▶ Respond, Reply ▶ the connection that asked
    timer ───────▶ tick ───────────────────┼──▶ │ node │ ──┼─▶ Sync ─────────▶ a thread ─▶ SyncDone
    the store's threads ─▶ its events ─────┘    └──────┘   ├─▶ StoreCall … ──▶ the store's client
                                                           └─▶ Halt ─────────▶ the process ends

Controller traffic, fetches and proposals to the controller go over connections of their own: the receiver
takes one request of a connection at a time, and a fetch may wait there for half a second (KIP-291).

After a pause. A process may be stopped for a minute (SIGSTOP, a suspended machine) and go on with
requests in its sockets' buffers, while the store has given its session up and others lead. So whenever the
clock shows that this loop did nothing for a third of the session's timeout, nothing but the store's events
reaches the node, no request and no timer, until the store has answered a question that only a live session
gets answered, or has said that the session is over. A session that is over is the first thing the node
hears of, and it leads nothing from then on. A store that is gone for good keeps a paused node shut; one
that is gone while the node runs does not: sessions cannot run out where nobody counts.

What is left: a record may be appended and acknowledged with acks=1 between the end of the session and the
word of it. acks=all is safe without any of this, since followers that live in a newer epoch fetch no more.

A crash leaves what the logs and the store have; the engine's own memory is rebuilt from them. An
exception of the engine ends the process, without the mark of a clean stop.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeVar, TypeVarTuple, Unpack

from logstore.broker import client_messages
from logstore.broker.errors import MalformedMessage, RequestUnanswered
from logstore.broker.limits import Address, Limits
from logstore.broker.links import Link, client_id_of, is_of_broker
from logstore.broker.node_messages import response_of, to_wire
from logstore.broker.server import Server
from logstore.broker.wire import interbroker as w
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.declarations import Struct
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogClosed, LogDirOffline
from logstore.log.log import Log
from logstore.replication.effects import (
    ClientRequest,
    CloseSession,
    Disconnected,
    Effect,
    Event,
    Halt,
    OpenSession,
    Reply,
    Request,
    Respond,
    Response,
    Send,
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreEvent,
    StoreReply,
    Sync,
    SyncDone,
)
from logstore.replication.errors import InvalidRequest
from logstore.replication.messages import (
    AlterPartitionRequest,
    ControlledShutdownRequest,
    LeaderAndIsrRequest,
    RequestBody,
    ResponseBody,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import ANY_VERSION, Check, Multi, StoreError
from logstore.replication.node import Node

T = TypeVar("T")
Args = TypeVarTuple("Args")


CLIENT: Final = -1
"""As a source: no node."""
_SYNC_THREADS = 4
_READ_THREADS = 4
_PROBE_AGAIN_S = 0.1
_TICKS_APART_MS: Final = 5
"""What falls due within so short a time is done together: of a thousand fetches that wait ten end at once."""
_STOPS: Final = "this broker stops"
_PROBE: Final = Multi((Check(layout.CONTROLLER_EPOCH_PATH, ANY_VERSION),))
"""Changes nothing, and is a write all the same: servers order it, and refuse it of a session that is over."""

_log = logging.getLogger(__name__)


class StoreClient(Protocol):
    """A client of the metadata store that does not block: what comes of a call is an event.

    Events come in order, from any thread, through a function that was handed in when it was made.
    `close_session` and `close` may wait for the store.
    """

    def open_session(self, timeout_ms: int) -> None: ...

    def submit(self, call: StoreCall) -> None: ...

    def close_session(self, session_id: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Whom to tell what comes of a request that was put to the engine here.

    `then` gets the answer, or None where there is to be none (acks=0); `refused` the reason why there is no
    answer and the client had better be cut off. One of them is called, at most once, and must not raise.
    A request that had to stand in line is refused if it is not wanted any more.
    """

    then: Callable[[ResponseBody | None], None]
    refused: Callable[[str], None]
    is_wanted: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True, eq=False)
class _InLine:
    """Something that is done when its turn comes."""

    act: Callable[[], None]
    refused: Callable[[str], None]


class Lane(Enum):
    """What a connection to another node is for."""

    CONTROL = "control"
    PROPOSALS = "proposals"
    FETCHES = "fetches"
    ERRANDS = "errands"
    """What a client could ask as well."""
    HANDED_ON = "handed on"
    """What clients asked, and the controller has to do."""


_LANES: Final[dict[type[RequestBody], Lane]] = {
    LeaderAndIsrRequest: Lane.CONTROL,
    StopReplicaRequest: Lane.CONTROL,
    UpdateMetadataRequest: Lane.CONTROL,
    AlterPartitionRequest: Lane.PROPOSALS,
    ControlledShutdownRequest: Lane.PROPOSALS,
}
"""All others are a follower's to its leader."""


class Runtime:
    """Runs one node until it is stopped or cannot go on. All methods belong to the event loop's thread."""

    def __init__(
        self,
        node: Node,
        *,
        clock: Callable[[], int],
        store_of: Callable[[Callable[[StoreEvent], None]], StoreClient],
        server: Server,
        limits: Limits | None = None,
    ) -> None:
        """`server` listens already, and whoever serves its frames puts requests here (`ask`).

        `clock` gives epoch ms.
        `store_of` makes the store's client, given the function that takes its events from any thread.
        """
        self.node = node
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the node cannot go on: the reason, or the exception of a bug."""
        self.registered = asyncio.Event()
        """Set once the node has been registered in the store."""
        self.joined = asyncio.Event()
        """Set once the controller has told the node of itself: from then on it can tell clients who leads."""
        self._ready_to_stop = asyncio.Event()
        self._clock, self._server, self._limits = clock, server, limits or Limits()
        self._loop = asyncio.get_running_loop()
        self._store = store_of(self._from_any_thread)
        self._links: dict[tuple[int, Lane], Link] = {}
        self.after_turn: Callable[[], None] = lambda: None
        """Called after each turn of the engine, for whoever goes by roles; must be quick."""
        self._inbox: deque[Event | _InLine] = deque()
        self._pump_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = self._ticked_ms = 0
        self._timer_is_due = False
        self._threads = ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="sync")
        self._readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="read")
        self._is_stopping = False
        self._is_in_turn = False
        self._longest_gap_ms = max(node.config.zookeeper_session_timeout_ms // 3, 1)
        self._seen_ms = clock()
        self._probes = 0
        self._is_in_doubt = False
        self._heartbeat: asyncio.TimerHandle | None = None

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Let the node join."""
        self._beat()
        self._turn(self.node.start)

    async def stop(self) -> None:
        """End in order: leaderships moved, roles ended, requests answered, logs closed, the session last.

        The logs get the mark of a clean stop if the node can vouch for them. A node that ends by itself
        meanwhile (`ended`) is left as it is: `abandon` it.
        """
        self._turn(self.node.begin_shutdown)
        ready = asyncio.ensure_future(self._ready_to_stop.wait())
        # A node in doubt waits for a store that may never answer: it leads nothing that it could move.
        longest_s = self._longest_departure_s
        await asyncio.wait((ready, self.ended), timeout=longest_s, return_when=FIRST_COMPLETED)
        ready.cancel()
        if self.ended.done():
            return
        self._turn(self.node.stop)
        self._end()
        await self._server.drain()
        await self._loop.run_in_executor(None, self._end_threads)
        if self.ended.done():
            return  # a bug in the last turn, or in a sync: nobody can vouch for these logs
        self.node.logs.close(mark_clean=self.node.is_clean)
        self._carry_out(self.node.leave(self._clock()))
        await self._loop.run_in_executor(None, self._store.close)

    @property
    def _longest_departure_s(self) -> float:
        config = self.node.config
        attempt_ms = config.request_timeout_ms + config.controlled_shutdown_retry_backoff_ms
        return config.controlled_shutdown_max_retries * attempt_ms / 1000

    async def abandon(self) -> None:
        """End at once: the logs keep no mark of a clean stop. The session is closed, so others take over."""
        self._end()
        self._server.close()
        await self._loop.run_in_executor(None, self._end_threads)
        await self._loop.run_in_executor(None, self._store.close)
        if self.ended.done():
            self.node.logs.let_nobody_vouch()  # a bug, in the middle of whatever it was at
        self.node.logs.abandon()

    def _end(self) -> None:
        self._is_stopping = True
        for timer in (self._timer, self._heartbeat):
            if timer is not None:
                timer.cancel()
        for link in self._links.values():
            link.close()
        inbox, self._inbox = self._inbox, deque()
        for event in inbox:
            if isinstance(event, _InLine):
                event.refused(_STOPS)
            elif isinstance(event, Request | ClientRequest) and isinstance(event.token, Asked):
                event.token.refused(_STOPS)

    def _end_threads(self) -> None:
        self._threads.shutdown()
        self._readers.shutdown()

    def _fail(self, reason: str | BaseException) -> None:
        self._is_stopping = True
        if self.ended.done():
            return
        if isinstance(reason, str):
            self.ended.set_result(reason)
        else:
            self.ended.set_exception(reason)

    # --- turns --------------------------------------------------------------------------------

    def _turn(self, act: Callable[[Unpack[Args], int], list[Effect]], *args: *Args) -> None:
        """One turn of the engine, `act(*args, now_ms)`, and all that comes of it."""
        if self._is_stopping:
            return
        assert not self._is_in_turn, "turns follow each other"
        self._is_in_turn = True
        try:
            self._carry_out(act(*args, self._clock()))
        except Exception as error:
            # Half a turn: neither memory nor promises can be trusted. Another node takes over.
            _log.exception("the engine failed")
            self._fail(error)
            return
        finally:
            self._is_in_turn = False
        if self.node.broker_epoch >= 0:
            self.registered.set()
        if not self.joined.is_set() and self.node.replicas.metadata.is_alive(self.node.node_id):
            self.joined.set()
        if self.node.is_ready_to_stop:
            self._ready_to_stop.set()
        self._do(self.after_turn)
        if not self._timer_is_due:
            # Once for all turns of this wake-up: to find the next deadline costs a tenth of a produce.
            self._timer_is_due = True
            self._loop.call_soon(self._set_timer)

    def _do(self, act: Callable[[], None]) -> None:
        """What is done beside the engine, and for its word: a bug there ends the node as one of its own."""
        try:
            act()
        except Exception as error:
            _log.exception("what goes by the engine failed")
            self._fail(error)

    def _set_timer(self) -> None:
        self._timer_is_due = False
        now_ms = self._clock()
        if self._timer is not None and self._timer_ms <= now_ms + _TICKS_APART_MS:
            return  # what would be due before that is done then
        deadline_ms = self.node.deadline_ms if not self._is_stopping else None
        if deadline_ms is not None:
            deadline_ms = max(deadline_ms, self._ticked_ms + _TICKS_APART_MS)
        if self._timer is not None:
            if deadline_ms == self._timer_ms:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            # A millisecond late rather than early: a tick before its time changes nothing and comes again.
            delay_s = max(deadline_ms - now_ms, 0) / 1000 + 0.001
            self._timer, self._timer_ms = self._loop.call_later(delay_s, self._tick), deadline_ms

    def _tick(self) -> None:
        self._timer = None
        self._ticked_ms = self._clock()
        if not self._doubts():
            self._turn(self.node.tick)

    def _deliver(self, event: Event | _InLine) -> None:
        """Put an event in line. The line moves by itself, never from within a turn."""
        self._inbox.append(event)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if self._inbox and not self._pump_is_due:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        for _ in range(len(self._inbox)):  # what is added meanwhile lets the sockets go first
            if self._is_stopping or self._doubts():
                return
            event = self._inbox.popleft()
            if isinstance(event, _InLine):
                self._do(event.act)
            else:
                self._turn(self._receive, event)

    def _receive(self, event: Event, now_ms: int) -> list[Effect]:
        token = event.token if isinstance(event, ClientRequest) else None
        if isinstance(token, Asked) and not token.is_wanted():
            token.refused("it is not wanted any more")
            return []
        try:
            return self.node.receive(event, now_ms)
        except InvalidRequest as error:
            if isinstance(event, Request | ClientRequest) and isinstance(event.token, Asked):
                event.token.refused(str(error))  # it was looked at, and nothing else
                return []
            raise

    # --- pauses -------------------------------------------------------------------------------

    def _beat(self) -> None:
        self._doubts()
        self._heartbeat = self._loop.call_later(self._longest_gap_ms / 4000, self._beat)

    def _doubts(self) -> bool:
        """Whether nothing may be done until the store has spoken."""
        now_ms = self._clock()
        gap_ms, self._seen_ms = now_ms - self._seen_ms, now_ms
        if gap_ms >= self._longest_gap_ms and self.node.session_id is not None and not self._is_in_doubt:
            _log.warning("stood still for %d ms: asking the store whether the session lives", gap_ms)
            self._is_in_doubt = True
            self._probe()
        return self._is_in_doubt

    def _probe(self) -> None:
        if self._is_in_doubt and self.node.session_id is not None and not self._is_stopping:
            self._probes += 1
            self._store.submit(StoreCall(self.node.session_id, -self._probes, _PROBE))

    def _settle(self) -> None:
        self._is_in_doubt = False
        self._seen_ms = self._clock()
        self._pump_soon()
        self._set_timer()

    # --- the store ----------------------------------------------------------------------------

    def _from_any_thread(self, event: StoreEvent) -> None:
        try:
            self._loop.call_soon_threadsafe(self._from_store, event)
        except RuntimeError:
            _log.info("the loop is closed: %s is too late", event)

    def _from_store(self, event: StoreEvent) -> None:
        """The store's events do not stand in line: what they tell is what the others wait for."""
        match event:
            case StoreReply(call_id, outcome) if call_id < 0:
                if call_id != -self._probes or not self._is_in_doubt:
                    return
                match outcome.error:
                    case StoreError.CONNECTION_LOSS:
                        self._loop.call_later(_PROBE_AGAIN_S, self._probe)
                    case StoreError.SESSION_EXPIRED:
                        pass  # the event that says so follows
                    case _:
                        self._settle()
            case _:
                self._doubts()
                self._turn(self.node.receive, event)
                if self._is_in_doubt and isinstance(event, SessionExpired | SessionOpened):
                    self._settle()

    # --- requests that come in ----------------------------------------------------------------

    def ask(self, body: RequestBody, asked: Asked, *, source: int = CLIENT, number: int = 0) -> None:
        """Put a request to the engine: a client's, or one that node `source` sent as its `number`th.

        It is served before this returns if nothing else is in line; its answer may be later.
        """
        if self._is_stopping:
            asked.refused(_STOPS)
            return
        event: Event = ClientRequest(asked, body)
        if source >= 0:
            event = Request(source, number, body, asked)
        if self._is_in_turn or self._inbox or self._doubts():
            self._deliver(event)
        else:
            self._turn(self._receive, event)

    def ask_controller(self, body: RequestBody, then: Callable[[ResponseBody | None], None]) -> None:
        """Ask the controller what a client could, wherever it is; `then` gets None if there is no answer."""
        target = self.node.replicas.metadata.controller_id
        if self.node.controller.is_active or target == self.node.node_id:
            self.ask(body, Asked(then, lambda _: then(None)))
            return
        link = self._link(target, Lane.ERRANDS)
        if link is None:
            self._loop.call_soon(then, None)
            return

        def answered(answer: Struct | RequestUnanswered) -> None:
            try:
                then(None if isinstance(answer, RequestUnanswered) else client_messages.response_of(answer))
            except MalformedMessage as error:
                _log.info("the controller answers what cannot be: %s", error)
                then(None)

        request = client_messages.request_of(body)
        link.ask(request, API_OF[type(request)].latest, answered)

    def hand_on(
        self, request: Struct, version: int, client_id: str | None, then: Callable[[Struct | None], None]
    ) -> bool:
        """Hand a client's request on to the controller; `then` gets its answer, or None if there is none.

        False if that is to no purpose: this is the controller, nobody knows of one, or another broker has
        handed it on to here.
        """
        target = self.node.replicas.metadata.controller_id
        if self.node.controller.is_active or target == self.node.node_id or is_of_broker(client_id):
            return False
        link = self._link(target, Lane.HANDED_ON)
        if link is None:
            return False

        def answered(answer: Struct | RequestUnanswered) -> None:
            then(None if isinstance(answer, RequestUnanswered) else answer)

        link.ask(request, version, answered)
        return True

    def in_line(self, act: Callable[[], None], refused: Callable[[str], None]) -> None:
        """Do what goes by the engine's word when all that came before has been done, and nothing is in doubt.

        That is at once if nothing is in line. `refused` is called instead if this broker stops before.
        """
        if self._is_stopping:
            refused(_STOPS)
        elif self._is_in_turn or self._inbox or self._doubts():
            self._deliver(_InLine(act, refused))
        else:
            self._do(act)

    def now_ms(self) -> int:
        return self._clock()

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do what may wait for a disk where nobody waits for it."""
        return self._loop.run_in_executor(self._readers, work)

    # --- effects ------------------------------------------------------------------------------

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(target, correlation_id, body):
                    self._send(target, correlation_id, body)
                case Respond(target, correlation_id, body, token):
                    if isinstance(token, Asked):
                        token.then(body)
                    else:
                        assert target == self.node.node_id, "only our own requests come without a connection"
                        self._deliver(Response(target, correlation_id, body))
                case Reply(token, body, close):
                    assert isinstance(token, Asked), "tokens are given out here"
                    if close:
                        token.refused("it wants no answer, and failed")
                    else:
                        token.then(body)
                case OpenSession(timeout_ms):
                    self._store.open_session(timeout_ms)
                case CloseSession(session_id):
                    self._loop.run_in_executor(None, self._store.close_session, session_id)
                case StoreCall():
                    self._store.submit(effect)
                case Sync(topic_partition, end_offset):
                    self._sync(topic_partition, end_offset)
                case Halt(reason):
                    self._fail(reason)

    def _link(self, target: int, lane: Lane) -> Link | None:
        """The way to a node; None if it is not known where that is."""
        address = self._address_of(target)
        link = self._links.get((target, lane))
        if link is not None and link.address != address:
            link.close()
            del self._links[target, lane]
            link = None
        if link is None and address is not None:
            link = Link(
                address,
                client_id=client_id_of(self.node.node_id),
                limits=self._limits,
                scratch=self._server.scratch,
            )
            self._links[target, lane] = link
        return link

    def _send(self, target: int, correlation_id: int, body: RequestBody) -> None:
        if target == self.node.node_id:
            self._deliver(Request(target, correlation_id, body))
            return
        link = self._link(target, _LANES.get(type(body), Lane.FETCHES))
        if link is None:
            self._deliver(Disconnected(target, correlation_id))
            return

        def answered(answer: Struct | RequestUnanswered) -> None:
            try:
                if isinstance(answer, RequestUnanswered):
                    raise answer
                event: Event = Response(target, correlation_id, response_of(answer))
            except (RequestUnanswered, MalformedMessage) as error:
                _log.info("no answer of node %d: %s", target, error)
                event = Disconnected(target, correlation_id)
            self._deliver(event)

        request = to_wire(body)
        if isinstance(request, w.LeaderAndIsrRequest | w.StopReplicaRequest | w.UpdateMetadataRequest):
            request.receiver_id, request.number = target, correlation_id
        link.ask(request, API_OF[type(request)].latest, answered)

    def _address_of(self, broker_id: int) -> Address | None:
        """Where the broker registered that it listens: as the controller here knows, or as it told us."""
        context = self.node.controller.context
        if context is not None and broker_id in context.brokers:
            endpoint = context.brokers[broker_id].endpoint
        elif broker_id in self.node.replicas.metadata.brokers:
            endpoint = self.node.replicas.metadata.brokers[broker_id]
        else:
            return None
        return Address(endpoint.host, endpoint.port)

    def _sync(self, topic_partition: TopicPartition, end_offset: int) -> None:
        try:
            log = self.node.logs.get(topic_partition)
        except LogDirOffline as error:
            self._deliver(SyncDone(topic_partition, end_offset, str(error)))
            return
        if log is None:
            self._deliver(SyncDone(topic_partition, end_offset))
            return

        def flushed(future: asyncio.Future[str]) -> None:
            if future.cancelled():
                return
            if (bug := future.exception()) is not None:
                _log.error("a sync failed in a way that no disk does", exc_info=bug)
                self._fail(bug)
            else:
                self._deliver(SyncDone(topic_partition, end_offset, future.result()))

        self._loop.run_in_executor(self._threads, _flush, log).add_done_callback(flushed)


def _flush(log: Log) -> str:
    """Flush on a thread of the pool; the text of what went wrong."""
    try:
        log.flush()
    except LogClosed:
        return ""  # deleted meanwhile: nobody waits for it
    except (LogDirOffline, OSError) as error:
        return str(error)
    return ""

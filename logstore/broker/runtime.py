"""Carries out a node's effects with asyncio: one event loop, on which the node's engine runs.

    connections ─▶ Request, ClientRequest ─┐               ┌─▶ Send ─────────▶ connections to other brokers
    peers ───────▶ Response, Disconnected ─┤    ┌──────┐   ├─▶ Respond, Reply ▶ the request's connection
    timer ───────▶ tick ───────────────────┼──▶ │ node │ ──┼─▶ Sync ─────────▶ a thread ─▶ SyncDone
    the store's threads ─▶ its events ─────┘    └──────┘   ├─▶ StoreCall … ──▶ the store's client
                                                           └─▶ Halt ─────────▶ the process ends

Pauses. A process may be stopped for a minute (SIGSTOP, a suspended machine). When it resumes, requests wait
in its sockets' buffers, while the store has ended its session and other brokers lead. So if the clock shows
that the loop was idle for a third of the session's timeout, the node gets only events of the store, no
requests and no timers, until the store has answered a probe that needs a live session, or has reported that
the session is over. A node that has lost its session learns that first, and leads nothing from then on. A
paused node whose store never returns serves nothing. If the store fails while the node runs, the node
continues to serve: without a store no session can end.

One gap remains: a record may be acknowledged with acks=1 between the end of the session and the report of it.
acks=all is safe without any of this, because followers in a newer epoch do not fetch.

A crash leaves the logs and the store; the engine's memory is rebuilt from them. An exception of the engine
ends the process without the clean-shutdown marker.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple, Unpack

from logstore.broker.errors import RequestUnanswered
from logstore.broker.limits import Limits
from logstore.broker.links import is_of_broker
from logstore.broker.pauses import BEAT_S, NOTABLE_S, TURN_BUDGET_S, Pauses, describe
from logstore.broker.peers import Peers
from logstore.broker.security.client import NO_SECURITY, ClientSecurity
from logstore.broker.server import Server
from logstore.broker.store_session import StoreOf
from logstore.broker.ticker import Ticker
from logstore.broker.wire.declarations import Struct
from logstore.disk.clocks import steady_s
from logstore.errors import LogClosed, LogDirOffline, OutOfResources
from logstore.log.log import Log
from logstore.loggers import logger_of
from logstore.replication.carrying import Outlets, carry_out
from logstore.replication.effects import (
    Abandoned,
    Client,
    ClientRequest,
    Effect,
    Event,
    Peer,
    Request,
    Respond,
    Response,
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreEvent,
    StoreReply,
    Sync,
    SyncDone,
)
from logstore.replication.errors import InvalidRequest
from logstore.replication.messages import RequestBody, ResponseBody
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import ANY_VERSION, Check, Multi, StoreError
from logstore.replication.node import Node

if TYPE_CHECKING:
    from logstore.broker.dispatch import Call

T = TypeVar("T")
Args = TypeVarTuple("Args")


CLIENT: Final = -1
"""The source of a client's request: no node."""
_SYNC_THREADS = 4
_READ_THREADS = 4
_PROBE_AGAIN_S = 0.1
_SYNC_AGAIN_S = 0.1
_STOPS: Final = "this broker is stopping"
_PROBE: Final = Multi((Check(layout.CONTROLLER_EPOCH_PATH, ANY_VERSION),))
"""Changes nothing, but is a write: servers order it, and refuse it for an expired session."""

_log = logger_of(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """The receiver of a request's outcome.

    `then` gets the answer, or None if there is to be none (acks=0). `refused` gets the reason why there is no
    answer and the client's connection should be closed. One of them is called, at most once, and must not
    raise. A queued request is refused once `is_wanted()` is false.
    """

    then: Callable[[ResponseBody | None], None]
    refused: Callable[[str], None]
    is_wanted: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True, eq=False)
class _InLine:
    """An action in the queue of events."""

    act: Callable[[], None]
    refused: Callable[[str], None]


class Runtime:
    """Runs one node until it is stopped or fails. All methods belong to the event loop's thread."""

    def __init__(
        self,
        node: Node,
        *,
        clock: Callable[[], int],
        store_of: StoreOf,
        server: Server,
        limits: Limits | None = None,
        pauses: Pauses | None = None,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        """`server` listens already; its handlers put requests to the engine with `ask`.

        `clock` gives epoch milliseconds. `store_of` makes the store's client; it is given the function that
        takes the client's events from any thread.
        """
        self.node = node
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the node cannot continue: the reason, or the exception of a bug."""
        self.registered = asyncio.Event()
        """Set once the node has been registered in the store."""
        self.joined = asyncio.Event()
        """Set once the controller's metadata lists the node: from then on it can answer clients."""
        self._ready_to_stop = asyncio.Event()
        self.pauses = pauses or Pauses(bound_s=1.0)
        """How long the loop was blocked, in seconds of `steady_s`."""
        self._woke_s = 0.0
        self._clock, self._server = clock, server
        self._loop = asyncio.get_running_loop()
        self._store = store_of(self._from_any_thread)
        self.peers = Peers(node, limits or Limits(), server.scratch, security)
        self.after_change: Callable[[], None] = lambda: None
        """Called after each turn of the engine that changed roles or metadata; must be quick."""
        self.after_turn: dict[Callable[[], None], None] = {}
        """Called after each turn of the engine, for services that wait for records; must be quick."""
        self._changes = 0
        self._inbox: deque[Event | _InLine] = deque()
        self._pump_is_due = False
        self._ticker = Ticker(self._loop, self._clock, lambda: self.node.deadline_ms, self._tick)
        self._is_wake_up_open = False
        self._threads = ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="sync")
        self._readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="read")
        self._is_stopping = False
        self._is_in_turn = False
        self._longest_gap_ms = max(node.config.zookeeper_session_timeout_ms // 3, 1)
        self._seen_ms = clock()
        self._probes = 0
        self._is_in_doubt = False
        self._heartbeat: asyncio.TimerHandle | None = None
        self._beat_due_s = 0.0
        self._outlets = _outlets_of(self)
        # Appends of one wake-up, from several producers, go to a follower in one answer.
        node.replicas.waiting.defers_fetches = True

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Let the node join."""
        self._beat_due_s = steady_s()
        self._beat()
        self._turn(self.node.start)

    async def stop(self) -> None:
        """Stop in order: move leaderships, end roles, answer requests, close the logs, then the session.

        The logs get the clean-shutdown marker unless the node lost acknowledged records. If the node ends
        by itself meanwhile (`ended`), call `abandon`.
        """
        self._turn(self.node.begin_shutdown)
        ready = asyncio.ensure_future(self._ready_to_stop.wait())
        # A node with an unconfirmed session waits for a store that may never answer, and has no leadership
        # to move.
        longest_s = _longest_departure_s(self.node)
        await asyncio.wait((ready, self.ended), timeout=longest_s, return_when=FIRST_COMPLETED)
        ready.cancel()
        if self.ended.done():
            return
        self._turn(self.node.stop)
        self._end()
        await self._server.drain()
        await self._loop.run_in_executor(None, _end, self._threads, self._readers)
        if self.ended.done():
            return  # a bug in the last turn, or in a sync: the state of the logs is unknown
        close = partial(self.node.logs.close, mark_clean=self.node.is_clean)
        await self._loop.run_in_executor(None, close)
        carry_out(self.node.leave(self._clock()), self.node, self._outlets)
        await self._loop.run_in_executor(None, self._store.close)
        if self._heartbeat is not None:
            self._heartbeat.cancel()

    def hurry(self) -> None:
        """Let `stop` continue without moving leaderships: the controller, or the store, may never answer."""
        self._ready_to_stop.set()

    async def abandon(self) -> None:
        """Stop at once, without the clean-shutdown marker.

        Closing the session lets other brokers take over.
        """
        self.halt()
        await self._loop.run_in_executor(None, _end, self._threads, self._readers)
        await self._loop.run_in_executor(None, self._store.close)
        if self.ended.done():
            self.node.logs.let_nobody_vouch()  # a bug in the middle of an operation
        self.node.logs.abandon()
        if self._heartbeat is not None:
            self._heartbeat.cancel()

    def halt(self) -> None:
        """Take no more events and disconnect every client; `abandon` does the rest."""
        self._end()
        self._server.close()

    def _end(self) -> None:
        self._is_stopping = True
        self._ticker.stop()
        self.peers.close()
        inbox, self._inbox = self._inbox, deque()
        for event in inbox:
            if isinstance(event, _InLine):
                event.refused(_STOPS)
            elif isinstance(event, Request | ClientRequest) and isinstance(event.token, Asked):
                event.token.refused(_STOPS)

    def fail(self, reason: str | BaseException) -> None:
        """Take no more events, and set `ended`; its owner calls `abandon` then."""
        self._is_stopping = True
        self._ticker.stop()
        if self.ended.done():
            return
        if isinstance(reason, str):
            self.ended.set_result(reason)
        else:
            self.ended.set_exception(reason)

    # --- turns --------------------------------------------------------------------------------

    def _turn(self, act: Callable[[Unpack[Args], int], list[Effect]], *args: *Args) -> None:
        """Run one turn of the engine, `act(*args, now_ms)`, and carry out its effects."""
        if self._is_stopping:
            return
        assert not self._is_in_turn, "turns follow each other"
        self._is_in_turn = True
        began_s = steady_s()
        try:
            carry_out(act(*args, self._clock()), self.node, self._outlets)
        except Exception as error:
            # Half a turn: the engine's memory cannot be trusted. Another node takes over.
            _log.exception("the engine failed")
            self.fail(error)
            return
        finally:
            self._is_in_turn = False
        replicas = self.node.replicas
        if replicas.broker_epoch >= 0:
            self.registered.set()
        if not self.joined.is_set() and replicas.metadata.is_alive(self.node.node_id):
            self.joined.set()
        if self.node.departure is not None and self.node.is_ready_to_stop:
            self._ready_to_stop.set()
        counters = replicas.counters
        changes = counters.role_changes + counters.storage_changes + replicas.metadata.updates
        if changes != self._changes:
            self._changes = changes
            self._do(self.after_change)
        for serve in tuple(self.after_turn):
            self._do(serve)
        if not self._is_wake_up_open:
            # Once for all turns of this wake-up.
            self._is_wake_up_open = True
            self._woke_s = began_s
            self._loop.call_soon(self._end_wake_up)
        if (took_s := steady_s() - began_s) > TURN_BUDGET_S:
            self.pauses.turn(took_s, lambda: describe(args[0] if args else act))

    def _do(self, act: Callable[[], None]) -> None:
        """Run work that depends on the engine's state; a bug in it ends the node like a bug of the engine."""
        try:
            act()
        except Exception as error:
            _log.exception("a service of the engine failed")
            self.fail(error)

    def _end_wake_up(self) -> None:
        self._is_wake_up_open = False
        now_s = steady_s()
        if now_s - self._woke_s > NOTABLE_S:
            self.pauses.blocked(now_s - self._woke_s, now_s)
        if self.node.replicas.waiting.has_to_look:
            self._turn(self.node.look)
        self._ticker.look()

    def _tick(self) -> None:
        if not self._doubts():
            self._turn(self.node.tick)

    def deliver(self, event: Event | _InLine) -> None:
        """Queue an event. The queue is served by the loop, never from within a turn."""
        self._inbox.append(event)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if self._inbox and not self._pump_is_due:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        for _ in range(len(self._inbox)):  # events added meanwhile wait until sockets are served
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
            token.refused("the request is no longer wanted")
            return []
        try:
            return self.node.receive(event, now_ms)
        except InvalidRequest as error:
            if isinstance(event, Request | ClientRequest) and isinstance(event.token, Asked):
                event.token.refused(str(error))  # checked first: nothing has changed
                return []
            raise

    # --- pauses -------------------------------------------------------------------------------

    def _beat(self) -> None:
        self._doubts()
        now_s = steady_s()
        self.pauses.blocked(now_s - self._beat_due_s, now_s)
        self.pauses.beat(time.thread_time(), now_s)
        delay_s = min(self._longest_gap_ms / 4000, BEAT_S)
        self._beat_due_s = now_s + delay_s
        self._heartbeat = self._loop.call_later(delay_s, self._beat)

    def _doubts(self) -> bool:
        """Return whether the node must wait for the store: the loop stood still for too long."""
        now_ms = self._clock()
        gap_ms, self._seen_ms = now_ms - self._seen_ms, now_ms
        if gap_ms >= self._longest_gap_ms and self.node.session_id is not None and not self._is_in_doubt:
            _log.warning(
                "the event loop was blocked for %d ms; checking that the store session is alive", gap_ms
            )
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
        self._ticker.look()

    # --- the store ----------------------------------------------------------------------------

    def _from_any_thread(self, event: StoreEvent) -> None:
        try:
            self._loop.call_soon_threadsafe(self._from_store, event)
        except RuntimeError:
            _log.info("the loop is closed: ignoring %s", event)

    def _from_store(self, event: StoreEvent) -> None:
        """Handle an event of the store at once: queued events may be waiting for it."""
        match event:
            case StoreReply(call_id, outcome) if call_id < 0:
                if call_id != -self._probes or not self._is_in_doubt:
                    return
                match outcome.error:
                    case StoreError.CONNECTION_LOSS:
                        self._loop.call_later(_PROBE_AGAIN_S, self._probe)
                    case StoreError.SESSION_EXPIRED:
                        pass  # a SessionExpired event follows
                    case _:
                        self._settle()
            case _:
                self._doubts()
                self._turn(self.node.receive, event)
                if self._is_in_doubt and isinstance(event, SessionExpired | SessionOpened):
                    self._settle()

    # --- requests that come in ----------------------------------------------------------------

    def ask_for(
        self,
        call: Call,
        body: RequestBody,
        then: Callable[[ResponseBody], Struct | None],
        *,
        source: int = CLIENT,
        number: int = 0,
    ) -> None:
        """Put a call's request to the engine; `then` builds the answer from the response (None: later).

        `then` may be called at once, much later, or never: the call is then refused. `source` and `number`
        belong to a request that another node made.
        """

        def answered(answer: ResponseBody | None) -> None:
            if answer is None:
                call.end()
            else:
                call.finish(then, answer)

        asked = Asked(answered, call.refuse)
        self.ask(body, asked, source=source, number=number)
        if not call.is_done:
            address = Peer(source, number, asked) if source >= 0 else Client(asked)
            call.on_lost = partial(self.deliver, Abandoned(address))

    def ask(self, body: RequestBody, asked: Asked, *, source: int = CLIENT, number: int = 0) -> None:
        """Put a request to the engine: a client's, or one that node `source` sent as its `number`th.

        It is served before this returns if the queue is empty; the answer may come later.
        """
        if self._is_stopping:
            asked.refused(_STOPS)
            return
        event: Event = ClientRequest(asked, body)
        if source >= 0:
            event = Request(source, number, body, asked)
        if self._is_in_turn or self._inbox or self._doubts():
            self.deliver(event)
        else:
            self._turn(self._receive, event)

    def _is_controller(self) -> bool:
        return self.node.controller.is_active or (
            self.node.replicas.metadata.controller_id == self.node.node_id
        )

    def ask_controller(self, body: RequestBody, then: Callable[[ResponseBody | None], None]) -> None:
        """Put a client's request to the controller, on any broker; `then` gets None without an answer."""

        def unanswered(reason: str = "") -> None:
            # Not from within: `then` may ask for the next of many, and each would be refused as well.
            self._loop.call_soon(then, None)

        if self._is_controller():
            self.ask(body, Asked(then, unanswered))
        elif not self.peers.ask_controller(body, then):
            unanswered()

    def forward(
        self,
        request: Struct,
        version: int,
        client_id: str | None,
        then: Callable[[Struct | RequestUnanswered], None],
    ) -> bool:
        """Forward a client's request to the controller; `then` gets its answer, or why there is none.

        Returns False if this broker must answer itself: it is the controller, knows no controller, or another
        broker has forwarded the request.
        """
        if self._is_controller() or is_of_broker(client_id):
            return False
        return self.peers.forward(request, version, then)

    def in_line(self, act: Callable[[], None], refused: Callable[[str], None]) -> None:
        """Run work that depends on the engine's state once all earlier events are handled and no doubt is
        left.

        With an empty queue that is at once. `refused` is called instead if the broker stops first.
        """
        if self._is_stopping:
            refused(_STOPS)
        elif self._is_in_turn or self._inbox or self._doubts():
            self.deliver(_InLine(act, refused))
        else:
            self._do(act)

    def now_ms(self) -> int:
        return self._clock()

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run work that may block on a disk in a thread."""
        return self._loop.run_in_executor(self._readers, work)


def _longest_departure_s(node: Node) -> float:
    config = node.config
    attempt_ms = config.request_timeout_ms + config.controlled_shutdown_retry_backoff_ms
    return config.controlled_shutdown_max_retries * attempt_ms / 1000


def _end(*pools: Executor) -> None:
    for pool in pools:
        pool.shutdown()


def _outlets_of(runtime: Runtime) -> Outlets[Node]:
    """Return the ways out of the node: connections to peers and clients, threads for fsync and the store."""
    store, loop, node_id = runtime._store, runtime._loop, runtime.node.node_id
    deliver = runtime.deliver

    def send(node: Node, target: int, correlation_id: int, body: RequestBody) -> None:
        if target == node_id:
            deliver(Request(target, correlation_id, body))
        else:
            runtime.peers.send(target, correlation_id, body, deliver)

    def respond(node: Node, effect: Respond) -> None:
        if isinstance(effect.token, Asked):
            effect.token.then(effect.body)
        else:
            assert effect.target == node_id, "only this node's own requests have no connection"
            deliver(Response(effect.target, effect.correlation_id, effect.body))

    def reply(node: Node, token: Hashable, body: ResponseBody | None, close: bool) -> None:
        assert isinstance(token, Asked), "the token was made by `ask`"
        if close:
            token.refused("produce with acks=0 failed; closing the connection")
        else:
            token.then(body)

    def close_session(node: Node, session_id: int) -> None:
        loop.run_in_executor(None, store.close_session, session_id)

    def sync(node: Node, effect: Sync) -> None:
        topic_partition, end_offset = effect.topic_partition, effect.end_offset
        try:
            log = node.logs.get(topic_partition)
        except LogDirOffline as error:
            deliver(SyncDone(topic_partition, end_offset, str(error)))
            return
        if log is None:
            deliver(SyncDone(topic_partition, end_offset))
            return

        def flushed(future: asyncio.Future[str]) -> None:
            if future.cancelled():
                return
            if isinstance(future.exception(), OutOfResources):
                # Nothing was synced and nothing has failed; the engine sees that and asks again.
                loop.call_later(_SYNC_AGAIN_S, deliver, SyncDone(topic_partition, end_offset))
            elif (bug := future.exception()) is not None:
                _log.error("unexpected error in the fsync worker", exc_info=bug)
                runtime.fail(bug)
            else:
                deliver(SyncDone(topic_partition, end_offset, future.result()))

        loop.run_in_executor(runtime._threads, _flush, log, end_offset).add_done_callback(flushed)

    return Outlets(
        send=send,
        respond=respond,
        reply=reply,
        call_store=lambda node, call: store.submit(call),
        open_session=lambda node, timeout_ms: store.open_session(timeout_ms),
        close_session=close_session,
        sync=sync,
        halt=lambda node, reason: runtime.fail(reason),
    )


def _flush(log: Log, end_offset: int) -> str:
    """Flush a log, in a thread of the pool; return the error's text. Raises `OutOfResources`."""
    try:
        log.partition.flush(end_offset)
    except LogClosed:
        return ""  # deleted meanwhile: no request waits for it
    except (LogDirOffline, OSError) as error:
        return str(error)
    return ""

"""The controller's shell: one queue, one event at a time, store calls and requests as effects.

    watch, session, request, answer ──► queue ──► one procedure ──► StoreCall … StoreReply ──► …
                                                        │
                                                        └──► channels ──► Send to brokers

Every broker has a controller; the one that holds `/controller` is active. An event becomes a procedure: a
generator that yields store operations. The next event starts when it has ended, so procedures never
interleave and need no locks. A new procedure is one more line: in `_WATCHED` or `_WATCHED_BELOW` for a change
in the store, in `SERVICES` for a request.

    a read's reply is lost             the read is repeated after a back-off
    a write's reply is lost            the procedure reads whether it was applied
    an unexpected refusal              the event starts again, `event_retries` times; then we resign
    our epoch is not the latest        resign: drop all state, answer all waiting requests, compete again
    the session is over                the same, once there is a new one
    an AssertionError                  is not caught: a bug stops the node, and another takes over

Nothing is dropped: an event ends, is tried again, or ends the term, and a term begins by reading everything.
A crash leaves what the store has; no file is written here.
"""

from __future__ import annotations

import random as random_module
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.replication import messages as m
from logstore.replication.controller import (
    alter_partition,
    brokers,
    deletion,
    elect_leaders,
    failover,
    reassignment,
    topics,
)
from logstore.replication.controller.channel import Answer, Channel
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.errors import ControllerFenced
from logstore.replication.controller.procedure import of_all
from logstore.replication.effects import Address, Effect, StoreCall, answer
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Children, Get, Operation, Outcome, StoreError, WatchKind
from logstore.replication.state_change import Sink, unheard

_WATCHED: Mapping[str, tuple[str, Callable[[Context], Steps[None]]]] = {
    layout.BROKER_DEFAULTS_PATH: ("broker defaults", brokers.broker_defaults_changed),
    layout.BROKER_IDS_PATH: ("brokers", brokers.brokers_changed),
    layout.ISR_NOTIFICATIONS_PATH: ("isr notifications", alter_partition.isr_changed),
    layout.REASSIGNMENT_PATH: ("reassignment requests", reassignment.requests_changed),
    layout.CONFIG_CHANGES_PATH: ("config changes", topics.config_changes_noticed),
    layout.DELETE_TOPICS_PATH: ("topic deletions", deletion.requests_changed),
    layout.LOG_DIR_EVENTS_PATH: ("log dirs", brokers.log_dirs_failed),
    layout.PREFERRED_ELECTION_PATH: ("preferred election", elect_leaders.asked_in_store),
    layout.TOPICS_PATH: ("topics", topics.topics_changed),
}
"""Node → the event's name and its procedure."""

_WATCHED_BELOW: Mapping[str, tuple[str, Callable[[Context, str], Steps[None]]]] = {
    layout.TOPICS_PATH: ("topic", topics.topic_changed),
    layout.TOPIC_CONFIGS_PATH: ("config", topics.topic_config_changed),
}
"""Directory → the event's name and the procedure for a node in it, which gets the node's name."""


class Service(NamedTuple):
    """Serves a request: `serve(context, request, results)` does the work.

    It fills `results`, by item, as the result of each item becomes certain, and returns the response; None
    stands for `answer(request, results)`. A term may end half-way: then `answer` alone responds, with the
    certain results and NOT_CONTROLLER for the rest. An event that starts again finds its earlier results.
    """

    name: str
    serve: Callable[[Context, Any, dict[Any, Any]], Steps[m.ResponseBody | None]]
    answer: Callable[[Any, dict[Any, Any]], m.ResponseBody]


def _by_item(
    response: Callable[[Any], m.ResponseBody],
    result: Callable[[ErrorCode, str], Any] = m.AdminResult,
    items: Callable[[Any], Iterable[Any]] = lambda request: request.topics,
) -> Callable[[Any, dict[Any, Any]], m.ResponseBody]:
    return lambda request, results: response(of_all(items(request), results, result))


def _nothing(response: Callable[[ErrorCode], m.ResponseBody]) -> Callable[[Any, object], m.ResponseBody]:
    return lambda request, results: response(ErrorCode.NOT_CONTROLLER)


SERVICES: Mapping[type[m.RequestBody], Service] = {
    m.AlterPartitionRequest: Service(
        "alter partition", alter_partition.alter_partitions, _nothing(m.AlterPartitionResponse)
    ),
    m.ControlledShutdownRequest: Service(
        "controlled shutdown", brokers.shut_down, _nothing(m.ControlledShutdownResponse)
    ),
    m.CreateTopicsRequest: Service(
        "create topics",
        topics.create_topics,
        _by_item(
            m.CreateTopicsResponse,
            m.CreateTopicsResult,
            lambda request: [each.name for each in request.topics],
        ),
    ),
    m.CreatePartitionsRequest: Service(
        "create partitions", topics.create_partitions, _by_item(m.CreatePartitionsResponse)
    ),
    m.AlterConfigsRequest: Service("alter configs", topics.alter_configs, _by_item(m.AlterConfigsResponse)),
    m.DeleteTopicsRequest: Service("delete topics", deletion.delete_topics, _by_item(m.DeleteTopicsResponse)),
    m.ElectLeadersRequest: Service("elect leaders", elect_leaders.elect_leaders, elect_leaders.refuse),
    m.AlterPartitionReassignmentsRequest: Service(
        "alter reassignments", reassignment.alter_reassignments, reassignment.answer
    ),
    m.ListPartitionReassignmentsRequest: Service(
        "list reassignments", reassignment.list_reassignments, _nothing(m.ListPartitionReassignmentsResponse)
    ),
}
"""The requests that the active controller serves."""


def _replicas_stopped(context: Context, answer: Answer) -> Steps[None]:
    yield from reassignment.deletions_answered(context, answer)
    yield from deletion.replicas_stopped(context, answer)


@dataclass(slots=True)
class _Event:
    """Something to react to. Events with the same `key` would do the same; only one of them waits."""

    name: str
    start: Callable[[], Steps[None]]
    abandon: Callable[[], None] | None = None
    key: str = ""
    in_term: bool = True
    failures: int = 0
    not_before_ms: int = 0


@dataclass(slots=True)
class _Run:
    """The procedure under way, and the store calls that it waits for."""

    event: _Event
    steps: Steps[None]
    operations: tuple[Operation, ...] = ()
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    """call id → index of its operation"""
    calls_deadline_ms: int = 0
    repeat_at_ms: dict[int, int] = field(default_factory=dict)
    """index of an operation → when to send it again"""


class Controller:
    """A broker's (possible) controller. Every method returns the effects to carry out."""

    def __init__(
        self,
        node_id: int,
        config: ControllerConfig,
        *,
        random: random_module.Random,
        next_id: Callable[[], int],
        state_changes: Sink = unheard,
    ) -> None:
        """`next_id` gives call and correlation ids; the node draws its own from the same source."""
        self.node_id, self.config = node_id, config
        self._state_changes = state_changes
        self.resigned_because = ""
        """The reason for which the last term ended; empty before the first end."""
        self._random, self._next_id = random, next_id
        self._session_id: int | None = None
        self._term: Context | None = None
        self._queue: deque[_Event] = deque()
        self._run: _Run | None = None
        self._rebalance_at_ms: int | None = None
        self._effects: list[Effect] = []
        self._now_ms = 0

    @property
    def is_active(self) -> bool:
        """Whether this node regards itself as the controller; the fences protect against an outdated view."""
        return self._term is not None

    @property
    def context(self) -> Context | None:
        """The active controller's state, for tests, metrics and tools; read-only."""
        return self._term

    # --- events -------------------------------------------------------------------------------

    def on_session(self, session_id: int, broker_epoch: int, now_ms: int) -> list[Effect]:
        """Compete: the node has a session and is registered with `broker_epoch`."""
        assert broker_epoch >= 0, "register before competing: an unregistered node cannot be controller"
        self._now_ms = now_ms
        if self._session_id is not None:
            self._end_session()
        self._session_id = session_id
        self._enqueue(_Event("compete", self._compete, in_term=False))
        return self._carry_on()

    def on_session_lost(self, now_ms: int) -> list[Effect]:
        """Resign: the session is over."""
        self._now_ms = now_ms
        self._end_session()
        return self._carry_on()

    def on_store_reply(self, call_id: int, outcome: Outcome, now_ms: int) -> list[Effect]:
        """Take the outcome of a `StoreCall`; an outdated one is ignored."""
        self._now_ms = now_ms
        if self._run is not None and call_id in self._run.calls:
            self._take_outcome(self._run, self._run.calls.pop(call_id), outcome)
        return self._carry_on()

    def on_watch(self, path: str, kind: WatchKind, now_ms: int) -> list[Effect]:
        """React to a watch of this session; `kind` is ignored, since everything is read again."""
        self._now_ms = now_ms
        if self._session_id is not None:
            self._notice(path)
        return self._carry_on()

    def on_request(self, address: Address, body: m.RequestBody, now_ms: int) -> list[Effect]:
        """Serve a request of a broker or a client; its type is one of `SERVICES`."""
        self._now_ms = now_ms
        service = SERVICES[type(body)]
        results: dict[Any, Any] = {}

        def abandon() -> None:
            self._effects.append(answer(address, service.answer(body, results)))

        def serve() -> Steps[None]:
            response = yield from service.serve(self._active, body, results)
            self._effects.append(answer(address, response or service.answer(body, results)))

        self._enqueue(_Event(service.name, serve, abandon))
        return self._carry_on()

    def on_response(
        self, source: int, correlation_id: int, body: m.ResponseBody, now_ms: int
    ) -> list[Effect]:
        """Handle a broker's answer to a request of the controller."""
        self._now_ms = now_ms
        channel = self._channels.get(source)
        if channel is not None and (answer := channel.answered(correlation_id, body, now_ms)) is not None:
            self._notice_answer(answer)
        return self._carry_on()

    def on_disconnected(self, source: int, correlation_id: int, now_ms: int) -> list[Effect]:
        """Record that a request gets no answer; it is sent again while the broker is alive."""
        self._now_ms = now_ms
        if (channel := self._channels.get(source)) is not None:
            mark("channel: a connection broke")
            channel.disconnected(correlation_id, now_ms)
        return self._carry_on()

    def tick(self, now_ms: int) -> list[Effect]:
        """Repeat overdue reads, end waits, and resend requests."""
        self._now_ms = now_ms
        if self._run is not None:
            self._repeat_and_expire(self._run)
        if self._rebalance_at_ms is not None and self._rebalance_at_ms <= now_ms:
            self._rebalance_at_ms = now_ms + 1000 * self.config.leader_imbalance_check_interval_seconds
            self._react("rebalance", elect_leaders.rebalance, key="rebalance")
        return self._carry_on()

    @property
    def deadline_ms(self) -> int | None:
        """The time at which `tick` is next needed; None if only an event can change anything."""
        deadlines: list[int | None] = [self._rebalance_at_ms]
        if self._run is not None:
            deadlines += self._run.repeat_at_ms.values()
            if self._run.calls:
                deadlines.append(self._run.calls_deadline_ms)
        elif self._queue:
            deadlines.append(self._queue[0].not_before_ms)
        deadlines += (channel.deadline_ms for channel in self._channels.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # --- what events mean ---------------------------------------------------------------------

    @property
    def _active(self) -> Context:
        assert self._term is not None
        return self._term

    @property
    def _channels(self) -> Mapping[int, Channel]:
        return self._term.channels if self._term is not None else {}

    def _notice(self, path: str) -> None:
        directory, _, child = path.rpartition("/")
        if path == layout.CONTROLLER_PATH:
            self._enqueue(_Event("controller changed", self._controller_changed, key=path, in_term=False))
        elif self._term is None:
            mark("controller: a watch left over from an earlier term")
        elif path in _WATCHED:
            self._react(*_WATCHED[path], key=path)
        elif directory in _WATCHED_BELOW:
            self._react(*_WATCHED_BELOW[directory], child, key=path)

    def _notice_answer(self, answer: Answer) -> None:
        broker_id, _, body, _ = answer
        if getattr(body, "error", ErrorCode.NONE) is ErrorCode.STALE_CONTROLLER_EPOCH:
            # A broker knows a later controller. If the store does not (it was restored from a copy, say),
            # giving up the term still helps: the next one has a higher epoch.
            mark("controller: a broker knows a later one")
            self._resign(f"broker {broker_id} knows a later controller", abdicate=True)
        elif isinstance(body, m.LeaderAndIsrResponse):
            self._notice_roles(answer, body)
        elif isinstance(body, m.StopReplicaResponse):
            self._react("replicas stopped", _replicas_stopped, answer)

    def _notice_roles(self, answer: Answer, body: m.LeaderAndIsrResponse) -> None:
        broker_id, broker_epoch, context = answer.broker_id, answer.broker_epoch, self._active
        # By what was reported, not by what was done about it: a refusal may still wait in the queue.
        refusers = context.refusers(broker_id)
        codes = body.partitions.items()
        failed = frozenset(each for each, error in codes if error is ErrorCode.KAFKA_STORAGE_ERROR)
        returned = frozenset(each for each, error in codes if error is ErrorCode.NONE and each in refusers)
        if failed:
            written_off = context.offline_replicas.get(broker_id, set())
            context.refusing.setdefault(broker_id, set()).update(failed - written_off)
            self._react("replicas failed", brokers.replicas_failed, broker_id, broker_epoch, failed)
        if returned:
            context.refusing.get(broker_id, set()).difference_update(returned)
            self._react("replicas returned", brokers.replicas_returned, broker_id, broker_epoch, returned)

    def _compete(self) -> Steps[None]:
        assert self._session_id is not None
        claimed = yield from failover.claim(self.node_id, self._session_id, self._now_ms)
        if claimed is None:
            return
        self._term = Context(
            self.node_id,
            claimed.epoch,
            claimed.epoch_version,
            self.config,
            self._random,
            now=lambda: self._now_ms,
            state_changes=self._state_changes,
        )
        if self.config.auto_leader_rebalance_enable:
            self._rebalance_at_ms = self._now_ms + elect_leaders.FIRST_CHECK_MS
        self._queue.appendleft(_Event("take over", lambda: failover.take_over(self._active)))

    def _controller_changed(self) -> Steps[None]:
        assert self._session_id is not None
        if self._term is None:
            yield from self._compete()
        elif not (yield from failover.still_mine(self.node_id, self._session_id)):
            mark("controller: another broker is")
            raise ControllerFenced(f"{layout.CONTROLLER_PATH} names another broker")

    # --- ending a term ------------------------------------------------------------------------

    def _end_session(self) -> None:
        self._session_id = None
        self._resign("the session with the metadata store is over")

    def _resign(self, reason: str, *, abdicate: bool = False) -> None:
        """Drop the term's state, answer all waiting requests, and compete again if there is a session."""
        ended, self._term = self._term, None
        self._rebalance_at_ms = None
        if ended is not None:
            self.resigned_because = reason
        waiting = [self._run.event, *self._queue] if self._run is not None else [*self._queue]
        if self._run is not None:
            mark("controller: a term ends in the middle of an event")
            self._run.steps.close()
            self._run = None
        self._queue.clear()
        for event in waiting:
            if event.abandon is not None:
                event.abandon()
        if self._session_id is None:
            return
        compete = _Event("compete", self._compete, in_term=False)
        if abdicate and ended is not None:
            self._enqueue(_Event("abdicate", lambda: failover.abdicate(ended), in_term=False))
            # The cause of the failure may not exist elsewhere: let the other nodes try first.
            compete.not_before_ms = self._now_ms + self.config.retry_backoff_ms
        self._enqueue(compete)

    # --- the queue ----------------------------------------------------------------------------

    def _react(self, name: str, procedure: Callable[..., Steps[None]], *facts: Any, key: str = "") -> None:
        self._enqueue(_Event(name, lambda: procedure(self._active, *facts), key=key))

    def _enqueue(self, event: _Event) -> None:
        if event.in_term and self._term is None:
            if event.abandon is not None:
                event.abandon()
        elif not event.key or all(waiting.key != event.key for waiting in self._queue):
            self._queue.append(event)

    def _carry_on(self) -> list[Effect]:
        """Run what can run, send what can be sent, and return the effects."""
        while self._run is None and self._queue and self._queue[0].not_before_ms <= self._now_ms:
            event = self._queue.popleft()
            self._run = _Run(event, event.start())
            self._resume(self._run, None)
        for _, channel in sorted(self._channels.items()):
            send = channel.pump(self._now_ms, self._next_id, self._active.build)
            if send is not None:
                self._effects.append(send)
        effects, self._effects = self._effects, []
        return effects

    def _resume(self, run: _Run, outcomes: tuple[Outcome, ...] | None) -> None:
        """Let the procedure run to its next store operations, or to its end."""
        try:
            operations = next(run.steps) if outcomes is None else run.steps.send(outcomes)
            while not operations:
                operations = run.steps.send(())
        except StopIteration:
            self._run = None
        except ControllerFenced as error:
            self._run = None
            if run.event.abandon is not None:
                run.event.abandon()
            self._resign(str(error))
        except EngineError as error:
            self._run = None
            self._fail(run.event, error)
        else:
            run.operations, run.outcomes = operations, {}
            self._call(run, range(len(operations)))

    def _fail(self, event: _Event, error: EngineError) -> None:
        event.failures += 1
        event.not_before_ms = self._now_ms + self.config.retry_backoff_ms
        self._queue.appendleft(event)
        if event.in_term and event.failures > self.config.event_retries:
            self._resign(f"{event.name} failed {event.failures} times: {error}", abdicate=True)

    # --- store calls --------------------------------------------------------------------------

    def _call(self, run: _Run, which: Iterable[int]) -> None:
        assert self._session_id is not None
        run.calls_deadline_ms = self._now_ms + self.config.request_timeout_ms
        for index in which:
            call_id = self._next_id()
            run.calls[call_id] = index
            self._effects.append(StoreCall(self._session_id, call_id, run.operations[index]))

    def _take_outcome(self, run: _Run, index: int, outcome: Outcome) -> None:
        if outcome.error is StoreError.SESSION_EXPIRED:
            # The node will report it too; but no further write may be tried before there is a new session.
            self._end_session()
            return
        is_read = isinstance(run.operations[index], Get | Children)
        if outcome.error is StoreError.CONNECTION_LOSS and is_read:
            run.repeat_at_ms[index] = self._now_ms + self.config.retry_backoff_ms
            return
        run.outcomes[index] = outcome
        if len(run.outcomes) == len(run.operations):
            self._resume(run, tuple(run.outcomes[each] for each in range(len(run.operations))))

    def _repeat_and_expire(self, run: _Run) -> None:
        if run.calls and self._now_ms >= run.calls_deadline_ms:
            # Treated as lost: a later reply is ignored.
            overdue, run.calls = run.calls, {}
            for index in sorted(overdue.values()):
                self._take_outcome(run, index, Outcome(StoreError.CONNECTION_LOSS))
        due = sorted(index for index, at in run.repeat_at_ms.items() if at <= self._now_ms)
        for index in due:
            del run.repeat_at_ms[index]
        if due and self._run is run:
            self._call(run, due)

"""From a frame to its handler, and back: one request in progress, and the services for its handler.

    frame ─▶ header ─▶ the table of APIs ─▶ body ─▶ handler ─▶ answer, at once or later

A malformed request, an unknown API, or a version that is not served ends the connection: Kafka has no frame
for errors. One exception: ApiVersions in an unknown version is answered with the versions that are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar

from logstore.broker.connection import Connection
from logstore.broker.errors import MalformedMessage
from logstore.broker.groups.requests import GroupRequest, GroupResponse, JoinGroupRequest, JoinGroupResponse
from logstore.broker.groups.served import OFFSETS_TOPIC
from logstore.broker.groups.service import GroupService
from logstore.broker.log_dir_reports import LogDirReports
from logstore.broker.producer_ids import ProducerIds
from logstore.broker.receipts import Receipts
from logstore.broker.runtime import Runtime
from logstore.broker.security.audit import Audit
from logstore.broker.security.audited import ADMINISTRATIVE, changes_of
from logstore.broker.security.authorizer import Authorizer
from logstore.broker.security.delegation_store import DelegationTokens
from logstore.broker.security.door import Door
from logstore.broker.security.limiter import Meter
from logstore.broker.security.login import Login
from logstore.broker.security.quota_store import Followed
from logstore.broker.settings import Settings
from logstore.broker.since import Since
from logstore.broker.store_session import StoreSession
from logstore.broker.topic_creation import TopicCreation
from logstore.broker.traffic import Traffic
from logstore.broker.wire.apis import API_VERSIONS, APIS, Api, api_versions
from logstore.broker.wire.codec import decoder
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import RequestHeader, decode_request_header, response_frame
from logstore.broker.wire.types import MetadataResponsePartition
from logstore.disk.errors import ErrorCode
from logstore.disk.files import Buffer
from logstore.loggers import logger_of
from logstore.replication.messages import NewTopic
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.node import Node

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A", bound=Struct)

_LOOK_AGAIN_MS: Final = 10

_log = logger_of(__name__)


class Caller(Protocol):
    """The connection of a request."""

    peer: str
    """The client's address."""
    software: str
    """Name and version of the client's software, if known."""

    @property
    def principal(self) -> str:
        """Return the principal of the connection: `User:name`."""

    door: Door | None
    """The listener through which the client came; None for the only one."""
    login: Login | None
    """How the client logs in, if it has to."""

    @property
    def number(self) -> int:
        """Return the number of the last request."""

    @property
    def is_closing(self) -> bool:
        """Return whether answers have nowhere to go."""

    def take_next(self) -> None: ...

    def answer(
        self, pieces: Iterable[Buffer], *, throttle_ms: int = 0, number: int | None = None
    ) -> None: ...

    def refuse(self, reason: str) -> None: ...


class Call:
    """One request in progress. It is answered once: by its handler's result, or by `answer` later."""

    __slots__ = (
        "amend",
        "api",
        "client_id",
        "connection",
        "correlation_id",
        "hear",
        "is_done",
        "meter",
        "number",
        "on_answer",
        "on_lost",
        "size",
        "throttle_ms",
        "version",
    )

    def __init__(
        self, connection: Caller, api: Api, version: int, correlation_id: int, client_id: str | None
    ) -> None:
        self.connection, self.number = connection, connection.number
        self.api, self.version = api, version
        self.correlation_id, self.client_id = correlation_id, client_id
        self.throttle_ms = 0
        """How long the connection stays muted after the answer. Set it before answering."""
        self.size = 0
        """Of the request, in bytes; 0 if it has none."""
        self.meter: Meter | None = None
        """Measures what the request uses, if quotas limit its client."""
        self.is_done = False
        self.amend: Callable[[Struct], None] | None = None
        """Changes the answer before it is sent."""
        self.hear: Callable[[Struct], None] | None = None
        """Called with the handler's answer, for the audit log."""
        self.on_answer: Callable[[], None] | None = None
        """Called when the request is answered, or ends without an answer; not if it is refused."""
        self.on_lost: Callable[[], None] | None = None
        """Called if the connection closes before the request is answered."""

    def __repr__(self) -> str:
        who = " ".join(filter(None, (self.connection.peer, self.client_id, self.connection.software)))
        return f"{self.api.name} v{self.version} of {who}, correlation id {self.correlation_id}"

    @property
    def listener(self) -> str:
        """The name of the listener through which the request came; empty for the only one."""
        door = self.connection.door
        return door.listener if door is not None else ""

    def when_lost(self, unanswered: Callable[[], Struct]) -> None:
        """Let the audit log hear of a request whose connection closes; it may have been carried out."""
        if (abandon := self.on_lost) is None:
            return

        def lost() -> None:
            abandon()
            answer = unanswered()
            if self.hear is not None:
                self.hear(answer)

        self.on_lost = lost

    def finish(self, then: Callable[P, Struct | None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Answer with what `then` returns, if anything. A bug in it closes the client's connection only."""
        try:
            response = then(*args, **kwargs)
        except MalformedMessage as error:
            self.refuse(str(error))
        except Exception:
            self.fail("the handler failed")
        else:
            if response is not None:
                self.answer(response)

    def answer(self, body: Struct) -> None:
        """Send the answer; the connection's next request follows. A late answer has no effect."""
        self.answer_as(body, self.version)

    def answer_as(self, body: Struct, version: int) -> None:
        """Send the answer in another version than the request's: only ApiVersions may do that."""
        if self.is_done:
            return
        try:
            if self.hear is not None:
                self.hear(body)
            if self.amend is not None:
                self.amend(body)
            if self.meter is not None:
                body = self.meter.limit(body)
            if self.throttle_ms and "throttle_time_ms" in body.FIELDS:
                body.throttle_time_ms = self.throttle_ms  # type: ignore[attr-defined]
            pieces = response_frame(body, version, self.correlation_id)
        except Exception:
            self.fail("failed to finish the response")
            return
        self.is_done = True
        self.connection.answer(pieces, throttle_ms=self.throttle_ms, number=self.number)
        if self.on_answer is not None:
            self.on_answer()

    def end(self) -> None:
        """End the request without an answer (acks=0); the connection's next request follows."""
        if not self.is_done:
            self.is_done = True
            if self.meter is not None:
                self.meter.end()
            self.connection.answer((), throttle_ms=self.throttle_ms, number=self.number)
            if self.on_answer is not None:
                self.on_answer()

    def lost(self) -> None:
        """Abandon a request whose connection has closed, and end its waits."""
        if not self.is_done and self.on_lost is not None:
            self.on_lost()

    def refuse(self, reason: str) -> None:
        """Close the connection instead: no correct client sends such a request."""
        if not self.is_done:
            self.is_done = True
            self.connection.refuse(f"{self!r}: {reason}")

    def fail(self, what: str) -> None:
        """Close the connection because of a bug in the broker. Call it in an `except` block."""
        _log.exception("%r: %s", self, what)
        self.refuse("internal error")


class Services:
    """The services that handlers may use: the engine and the broker's state, not its sockets.

    One for all handlers of a broker. Everything here belongs to the event loop's thread.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        cluster_id: str,
        store: StoreSession,
        quotas: Followed,
        audit: Audit,
        random: Random,
    ) -> None:
        """The caller keeps `store` and closes it."""
        self.audit = audit
        self.runtime, self.settings = runtime, settings
        self.cluster_id = cluster_id
        self.ask_store = store.ask
        self.topic_creation = TopicCreation(runtime.ask_controller)
        self.producer_ids = ProducerIds(runtime.node.node_id, store.ask, random)
        self.groups = GroupService(runtime, settings.groups, ask_store=store.ask, random=random)
        self.receipts = Receipts(runtime)
        self.traffic = Traffic()
        self.quotas, self.limiter = quotas, quotas.limiter
        self.shown: dict[str, list[MetadataResponsePartition]] = {}
        """The partitions of topics as clients are shown them, until roles or metadata change."""
        self.since = Since()
        """When what is wrong began; the node feeds it."""
        self.tokens: DelegationTokens | None = None
        """The delegation tokens; None without named listeners."""
        self.authorizer: Authorizer | None = None
        """Decides who may do what; None: everyone may do everything."""
        self._log_dirs = LogDirReports(runtime.node)
        self._checks = ThreadPoolExecutor(1, thread_name_prefix="check")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._deleted = runtime.node.replicas.metadata.deleted

    @property
    def node(self) -> Node:
        return self.runtime.node

    @property
    def metadata(self) -> MetadataCache:
        """The newest cluster metadata that this broker has received."""
        return self.runtime.node.replicas.metadata

    def now_ms(self) -> int:
        return self.runtime.now_ms()

    def after_change(self) -> None:
        """Follow the engine: changed roles, deleted topics, log dirs that fail or are full."""
        self.shown.clear()
        self.since.look(self.metadata, self.now_ms())
        self.groups.after_change()
        self._log_dirs.look()
        if self.metadata.deleted is not self._deleted:
            self._deleted = self.metadata.deleted
            self.traffic.forget({each.topic for each in self._deleted} - self.metadata.topic_ids.keys())

    def ask_group(self, call: Call, request: GroupRequest, then: Callable[[GroupResponse], Struct]) -> None:
        """Pass a request to the group coordinator; `then` builds the call's answer from the response."""

        def answered(answer: GroupResponse) -> None:
            if isinstance(answer, JoinGroupResponse) and call.connection.is_closing:
                assert isinstance(request, JoinGroupRequest)
                self.groups.undelivered(request.group_id, answer.member_id)
            call.finish(then, answer)

        self.groups.ask(request, answered, call.refuse)

    def want_offsets_topic(self) -> None:
        """Request the creation of `__consumer_offsets` with the group settings."""
        config = self.settings.groups
        topic = NewTopic(
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            configs=config.topic_settings,
        )
        self.topic_creation.want(topic, is_urgent=True)

    def begin(self, call: Call, work: Coroutine[Any, Any, Struct | None]) -> None:
        """Run a coroutine for a call, for instance one that asks the store; its result is the answer.

        With None the call is answered later.
        """

        def done(task: asyncio.Task[Struct | None]) -> None:
            if not task.cancelled():
                call.finish(task.result)

        self.go(work).add_done_callback(done)

    def go(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine until its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def in_thread(self, call: Call, work: Callable[[], T], then: Callable[[T], Struct | None]) -> None:
        """Run work that may block on a disk in a thread; `then`, on the loop, makes the answer."""
        self.runtime.in_thread(work).add_done_callback(partial(_finish_with, call, then))

    def check_in_thread(self, call: Call, work: Callable[[], T], then: Callable[[T], Struct | None]) -> None:
        """As `in_thread`, in the one thread that validates large batches, in the order of the calls.

        One connection has one request in hand, so no client has more than one place in that order.
        """
        future = asyncio.get_running_loop().run_in_executor(self._checks, work)
        future.add_done_callback(partial(_finish_with, call, then))

    def close(self) -> None:
        """End the thread that validates batches; waiting ones are dropped."""
        self.groups.close()
        if self.authorizer is not None:
            self.authorizer.close()
        self.quotas.close()
        self.audit.close()
        self._checks.shutdown(wait=False, cancel_futures=True)

    def audit_changes(self, call: Call, body: Struct, answer: Struct) -> None:
        """Write what the answer to an administrative request confirms to the audit log."""
        by, host = call.connection.principal, call.connection.peer
        for event, facts in changes_of(call.api.key, body, answer):
            self.audit(event, by=by, host=host, **facts)

    def later(self, call: Call, delay_ms: int, then: Callable[[], Struct | None]) -> asyncio.TimerHandle:
        """Call `then` after a delay, and answer with what it returns."""
        loop = asyncio.get_running_loop()
        return loop.call_later(delay_ms / 1000, call.finish, then)

    def when(
        self, call: Call, condition: Callable[[], bool], ends_ms: int, then: Callable[[], A | None]
    ) -> A | None:
        """Return `then()` once `condition()` holds or the time is over; None: the call is answered later.

        The wait ends with the connection: the answer is for the audit log then.
        """
        if condition() or call.connection.is_closing or self.now_ms() >= ends_ms:
            return then()
        self.later(call, _LOOK_AGAIN_MS, partial(self.when, call, condition, ends_ms, then))
        return None


Handler: TypeAlias = Callable[[Call, Any, Services], Struct | None]


def _finish_with(call: Call, then: Callable[[T], Struct | None], future: asyncio.Future[T]) -> None:
    if not future.cancelled():
        call.finish(lambda: then(future.result()))


class Dispatch:
    """Serves frames: a `Server` calls it with each."""

    def __init__(self, services: Services, handlers: Mapping[int, Handler]) -> None:
        """`handlers` are by API key; an API without one is not served."""
        self._services, self._handlers = services, handlers

    def __call__(self, connection: Connection, frame: memoryview) -> None:
        if connection.door is not None and self._is_stopped(connection, frame):
            return
        try:
            header = decode_request_header(frame)
            api = header.api
            if api is None or header.key not in self._handlers:
                self._refuse(connection, header)
                return
            body, _ = decoder(api.request, header.version)(frame[header.size :])
        except MalformedMessage as error:
            connection.refuse(str(error))
            return
        call = Call(connection, api, header.version, header.correlation_id, header.client_id)
        call.size = len(frame)
        connection.when_lost[call.number] = call.lost
        self.serve(call, body)

    def _is_stopped(self, connection: Connection, frame: memoryview) -> bool:
        """Return whether a request is not served at its listener, or not before a login."""
        assert connection.door is not None, "asked for requests at a door"
        login, key = connection.login, int.from_bytes(frame[:2], "big", signed=True)
        if login is not None and login.takes_bare_tokens:
            self._services.go(login.bare_token(bytes(frame)))
            return True
        if login is not None and login.refuses(key):
            return True
        if reason := connection.door.refusal(key):
            self._services.audit(
                "refused", principal=connection.principal, host=connection.peer, reason=reason
            )
            connection.refuse(reason)
        return bool(reason)

    def serve(self, call: Call, body: Struct) -> None:
        """Call the handler of the request's API, if there is one."""
        call.on_answer = self._services.traffic.timing(call.api.name)
        authorizer, limiter = self._services.authorizer, self._services.limiter
        if limiter.is_on:
            limiter.measure(call, body)
        if authorizer is not None and not authorizer.admits(call, body):
            return
        if call.meter is not None and not limiter.admits(call, body):
            return
        # Without an authorizer anyone may call itself a broker: rather two lines than none.
        is_forwarded = limiter.authorizer is not None and limiter.is_of_brokers(call)
        if call.api.key in ADMINISTRATIVE and not is_forwarded:
            call.hear = partial(self._services.audit_changes, call, body)
        call.finish(self._handlers[call.api.key], call, body, self._services)
        if call.meter is not None:
            call.meter.handled()

    def _refuse(self, connection: Connection, header: RequestHeader) -> None:
        if header.key != API_VERSIONS:
            api = APIS.get(header.key)
            name = api.name if api else f"API {header.key}"
            others = f", versions {api.served[0]} to {api.served[-1]} are" if api else ""
            connection.refuse(f"{name} version {header.version} is not served{others}")
            return
        call = Call(connection, APIS[API_VERSIONS], 0, header.correlation_id, header.client_id)
        call.answer(api_versions(ErrorCode.UNSUPPORTED_VERSION))

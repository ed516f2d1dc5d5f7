"""One session with ZooKeeper: a kazoo client whose events keep the server's order.

    submit ─▶ waiting ──┬─▶ kazoo ─▶ server ─▶ answer ─▶ on_event
                        │                 └──▶ watch ──▶ on_event
      sent when: connected · watches checked · no earlier call of several round trips pending
                 · fewer than 64 pending

    connected ─▶ broken ─▶ connected ─▶ every watched node compared ─▶ resumed
                   └─▶ expired ─▶ over

This file implements the promises of `zookeeper.py` about order, broken connections and expiry. Decision 028
explains why kazoo's own threads and methods are not used.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss, NodeExistsError, NoNodeError, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Exists, GetChildren2, GetData
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry

from logstore.loggers import logger_of
from logstore.replication.effects import (
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreEvent,
    StoreReply,
    WatchFired,
)
from logstore.replication.metastore.operations import (
    Check,
    Children,
    Create,
    Get,
    Multi,
    Outcome,
    StoreError,
    WatchKind,
    Write,
)
from logstore.replication.metastore.zookeeper_access import OPEN, Access
from logstore.replication.metastore.zookeeper_requests import (
    Address,
    error_of,
    failure_in,
    multi_outcome,
    multi_request_of,
    named,
    outcome_of,
    parents_to_check,
    request_of,
    stat_of,
    with_parents,
)

_LONGEST_PAUSE_S = 0.5

_ATTEMPTS = 4
"""Attempts to connect, each without an answer, that fit into a session's timeout. A server that still loads
its data may accept a connection and never answer (3.8 does); the next attempt succeeds."""

_WINDOW = 64
"""The limit of calls that kazoo has at a time. Each request takes a byte in a socket's buffer, and the thread
that reads them may be the one that sends: some 250 would block it for ever."""

_log = logger_of(__name__)


class _InOrder(SequentialThreadingHandler):  # type: ignore[misc]
    """Runs kazoo's callbacks at once, on the connection's thread: in the server's order.

    kazoo's own handler has one thread for watches and another for results, which race.
    """

    def __init__(self, connect_timeout_s: float, on_death: Callable[[], None], access: Access) -> None:
        """`on_death` is called on a thread of kazoo's that ends with an exception."""
        super().__init__()
        self._connect_timeout_s, self._on_death, self._access = connect_timeout_s, on_death, access

    def spawn(self, func: Any, *arguments: Any, **options: Any) -> Any:
        def watched() -> None:
            try:
                func(*arguments, **options)
            except Exception:
                _log.critical(
                    "a thread of the ZooKeeper client failed; its session counts as lost", exc_info=True
                )
                self._on_death()

        return super().spawn(watched)

    def start(self) -> None:
        """No threads."""

    def stop(self) -> None:
        """No threads."""

    def create_connection(self, *arguments: Any, timeout: float = math.inf, **options: Any) -> Any:
        timeout_s = min(timeout, self._connect_timeout_s)
        if self._access.connect is not None:
            return self._access.connect(options["address"], options["hostname"], timeout_s)
        return super().create_connection(*arguments, timeout=timeout_s, **options)

    def select(self, readers: Any, writers: Any, failing: Any, timeout: float | None = None) -> Any:
        # Answers that came in one TLS record are in OpenSSL's buffer: the socket has nothing to read.
        decrypted = [each for each in readers if hasattr(each, "pending") and each.pending()]
        if not decrypted:
            return super().select(readers, writers, failing, timeout)
        ready, *others = super().select(readers, writers, failing, 0)
        return [*decrypted, *(each for each in ready if each not in decrypted)], *others

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)


class _Then:
    """A stand-in for kazoo's result object: passes a result or an exception on, on the thread that has it."""

    __slots__ = ("set", "set_exception")

    def __init__(self, then: Callable[[Any], None]) -> None:
        self.set = then
        self.set_exception = then


@dataclass(frozen=True, slots=True)
class _Watch:
    path: str
    on_children: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """The state of a watched node when its watch was set; zeros for an absent node.

    Compared by identity: a watch that was set again is another one.
    """

    created_txid: int = 0
    changed_txid: int = 0

    @classmethod
    def of(cls, stat: Any, watch: _Watch) -> _Seen:
        if stat is None:
            return cls()
        return cls(stat.czxid, stat.pzxid if watch.on_children else stat.mzxid)

    def missed(self, now: _Seen, watch: _Watch) -> WatchKind | None:
        """Return what a watch set at `self` would have reported up to `now`, or None."""
        if self.created_txid != now.created_txid:
            return WatchKind.DELETED if self.created_txid else WatchKind.CREATED
        if self.changed_txid == now.changed_txid:
            return None
        return WatchKind.CHILDREN if watch.on_children else WatchKind.CHANGED


_KINDS = {
    EventType.CREATED: WatchKind.CREATED,
    EventType.CHANGED: WatchKind.CHANGED,
    EventType.DELETED: WatchKind.DELETED,
    EventType.CHILD: WatchKind.CHILDREN,
}


class Session:
    """One session: a kazoo client, the unanswered calls, the watches that are set.

    `_lock` guards the fields that `submit` shares with the connection's thread; the rest is that thread's.
    """

    def __init__(
        self, address: Address, timeout_ms: int, on_event: Callable[[StoreEvent], None], access: Access = OPEN
    ) -> None:
        self.session_id: int | None = None
        self.is_gone = False
        self._address, self._on_event = address, on_event
        self._client = KazooClient(
            # kazoo waits for a server's first answer for the timeout divided by the number of hosts.
            hosts=",".join([address.hosts] * -(-_ATTEMPTS // (address.hosts.count(",") + 1))),
            timeout=timeout_ms / 1000,
            handler=_InOrder(timeout_ms / 1000 / _ATTEMPTS, self._on_lost, access),
            sasl_options=access.sasl_options(),
            # kazoo's own pauses grow to minutes, in which the session would expire.
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.02, max_delay=min(_LONGEST_PAUSE_S, timeout_ms / 8000)
            ),
        )
        self._client.add_listener(self._on_state)
        self._closer = threading.Lock()

        self._lock = threading.RLock()
        self._is_ready = False
        self._is_over = False
        self._numbers = 0
        self._unanswered: dict[int, StoreCall] = {}
        self._waiting: deque[int] = deque()
        self._barrier: int | None = None
        """The pending call of several round trips: later calls wait for its end."""

        self._has_root = not address.chroot
        """Whether it is known to be there; it may be where we have no right to create it."""
        self._refusal = ""
        self._watches: dict[_Watch, _Seen] = {}
        self._to_check: list[tuple[_Watch, _Seen]] = []
        """Watches whose nodes must still be compared after a break, with their states from before."""
        self._being_checked = 0
        self._held_back: list[StoreEvent] | None = None
        """Events held back during the comparison; None when there is none."""

    # --- the owner's side ---------------------------------------------------------------------

    def start(self) -> None:
        self._client.start_async()

    def submit(self, call: StoreCall) -> bool:
        """Take the call, unless the session is over."""
        with self._lock:
            if self._is_over:
                return False
            self._numbers += 1
            self._unanswered[self._numbers] = call
            self._waiting.append(self._numbers)
        self._send()
        return True

    def close(self) -> None:
        """End the session, and the thread, and wait for both."""
        with self._lock:
            self._is_over = True
        with self._closer:
            if not self.is_gone:
                self._client.stop()
                self._client.close()
                self.is_gone = True

    # --- the connection's state ---------------------------------------------------------------

    def _on_state(self, state: str) -> None:
        match state:
            case KazooState.CONNECTED:
                self._on_connected()
            case KazooState.SUSPENDED:
                self._is_ready = False
            case KazooState.LOST:
                self._on_lost()

    def _on_connected(self) -> None:
        if self._is_over:
            return  # kazoo began a new session before it could be stopped
        if self.session_id is None:
            self.session_id, _ = self._client.client_id
            self._on_event(SessionOpened(self.session_id))
        if not self._has_root:
            self._make_root()
        if self._watches:
            self._check_watches()
        else:
            self._go_on()

    def _on_lost(self) -> None:
        if self._client.client_state == KeeperState.AUTH_FAILED:
            _log.error("ZooKeeper refused the login: check the name and password, and what its log says")
        with self._lock:
            was_closed, self._is_over = self._is_over, True
            self._is_ready = False
            unanswered, self._unanswered = self._unanswered, {}
            self._waiting.clear()
        self._watches.clear()
        self._tell_held_back()
        for call in unanswered.values():
            self._on_event(StoreReply(call.call_id, Outcome(StoreError.SESSION_EXPIRED)))
        if not was_closed and self.session_id is not None:
            self._on_event(SessionExpired(self.session_id))
            # On another thread, before kazoo begins a new session: stopping it waits for this thread.
            self._client.handler.spawn(self.close)

    def _make_root(self) -> None:
        self._refusal = ""

        def made(result: Any) -> None:
            if isinstance(result, Exception) and not isinstance(result, NodeExistsError):
                self._refusal = self._refusal or type(result).__name__

        def looked(result: Any) -> None:
            self._has_root = self._has_root or not (result is None or isinstance(result, Exception))

        for node in accumulate(self._address.chroot.split("/")[1:], "{}/{}".format, initial=""):
            if node:
                root = self._address._replace(chroot="")
                self._request(request_of(Create(node), root), made)
        # A server may refuse to create what is there: where we have no right to.
        self._request(Exists(self._address.chroot, None), looked)

    # --- calls --------------------------------------------------------------------------------

    def _request(self, request: Any, then: Callable[[Any], None]) -> None:
        # Not through kazoo's methods: any thread may process their results.
        self._client._call(request, _Then(then))

    def _send(self) -> None:
        """Hand the calls to kazoo that may be sent now."""
        with self._lock:
            # `connected` too: when the connection breaks, kazoo fails its requests before it reports that.
            while (
                self._waiting
                and self._is_ready
                and self._barrier is None
                and len(self._unanswered) - len(self._waiting) < _WINDOW
                and self._client.connected
            ):
                number = self._waiting.popleft()
                self._begin(number, self._unanswered[number])

    def _ask(self, number: int, request: Any, then: Callable[[Any], None]) -> None:
        """Send one of a call's requests; an error answers the call, any other result goes to `then`."""

        def done(result: Any) -> None:
            if isinstance(result, Exception):
                self._answer(number, Outcome(error_of(result)), result)
            elif number in self._unanswered:  # an earlier request of the call may have answered it
                then(result)

        self._request(request, done)

    def _begin(self, number: int, call: StoreCall) -> None:
        address = self._address
        match call.operation:
            case Get(path, False):
                self._ask(number, GetData(address.full(path), None), partial(self._on_data, number))
            case Get(path):
                self._begin_watched(number, path)
            case Children(path, watch):
                request = GetChildren2(address.full(path), self._on_watch if watch else None)
                self._ask(number, request, partial(self._on_children, number, path, watch))
            case Multi(writes):
                self._begin_multi(number, writes, is_multi=True)
            case Check() | Create(make_parents=True) as write:
                self._begin_multi(number, (write,), is_multi=False)
            case write:

                def written(result: Any) -> None:
                    self._answer(number, outcome_of(write, result, address))

                self._ask(number, request_of(write, address), written)

    def _on_data(self, number: int, result: Any) -> None:
        data, stat = result
        self._answer(number, Outcome(data=data or b"", stat=stat_of(stat)))

    def _begin_watched(self, number: int, path: str) -> None:
        """Read the data, and ask whether the node exists: only that leaves a watch on its absence."""
        full, watch = self._address.full(path), _Watch(path, on_children=False)

        def on_data(result: Any) -> None:
            if isinstance(result, NoNodeError):
                return  # `on_existence` answers
            if isinstance(result, Exception):
                self._answer(number, Outcome(error_of(result)), result)
            else:
                self._watches[watch] = _Seen.of(result[1], watch)
                self._on_data(number, result)

        def on_existence(stat: Any) -> None:
            if stat is None:
                self._watches[watch] = _Seen()
            self._answer(number, Outcome(StoreError.NO_NODE))
            if stat is not None:  # created between the two
                self._tell(self._fired(path, WatchKind.CREATED))

        self._request(GetData(full, self._on_watch), on_data)
        self._ask(number, Exists(full, self._on_watch), on_existence)

    def _on_children(self, number: int, path: str, is_watched: bool, result: Any) -> None:
        names, stat = result
        if is_watched:
            watch = _Watch(path, on_children=True)
            self._watches[watch] = _Seen.of(stat, watch)
        self._answer(number, Outcome(children=tuple(sorted(names)), stat=stat_of(stat)))

    def _begin_multi(self, number: int, writes: tuple[Write, ...], *, is_multi: bool) -> None:
        """Look which parents exist and create the others in the same transaction; again if they changed."""
        parents = parents_to_check(writes)
        existing: set[str] = set()

        def checked(parent: str, stat: Any) -> None:
            if stat is not None:
                existing.add(parent)
            if parent == parents[-1]:
                commit()

        def commit() -> None:
            all_writes, positions = with_parents(writes, existing)
            self._ask(number, multi_request_of(all_writes, self._address), partial(committed, positions))

        def committed(positions: list[int], results: Any) -> None:
            transaction = (self._client.last_zxid, self._opened)
            outcome = multi_outcome(writes, positions, results, transaction, self._address)
            if outcome is None and not self._has_root:
                _log.warning(
                    "ZooKeeper refused to create the root %s, and it is missing: %s",
                    self._address.chroot,
                    self._refusal,
                )
                self._answer(number, Outcome(StoreError.CONNECTION_LOSS), ConnectionLoss())
            elif outcome is None:
                self._begin_multi(number, writes, is_multi=is_multi)
            else:
                if not is_multi:
                    outcome = Outcome(outcome.error) if outcome.error else outcome.results[0]
                self._answer(number, outcome, results[failure_in(results)])

        if not parents:
            commit()
            return
        self._barrier = number
        for parent in parents:
            self._ask(number, Exists(self._address.full(parent), None), partial(checked, parent))

    def _answer(self, number: int, outcome: Outcome, cause: Any = None) -> None:
        """Report the outcome of a call, once; `_on_lost` reports the end of the session."""
        if isinstance(cause, SessionExpiredError):
            return
        with self._lock:
            call = self._unanswered.pop(number, None)
            if call is None:
                return
            if self._barrier == number:
                self._barrier = None
        if outcome.error is StoreError.CONNECTION_LOSS and not isinstance(cause, ConnectionLoss):
            _log.warning(
                "ZooKeeper refused %s: %s; the outcome is reported as unknown",
                named(call.operation),
                type(cause).__name__,
            )
        self._tell(StoreReply(call.call_id, outcome))
        self._send()

    # --- watches ------------------------------------------------------------------------------

    @property
    def _opened(self) -> int:
        assert self.session_id is not None, "calls are made, and watches are set, in a session"
        return self.session_id

    def _fired(self, path: str, kind: WatchKind) -> WatchFired:
        return WatchFired(self._opened, path, kind)

    def _on_watch(self, event: WatchedEvent) -> None:
        """Take a fired watch from the server. (kazoo also calls this when a connection breaks.)"""
        kind = _KINDS.get(event.type)
        if kind is None:
            return
        path = self._address.ours(event.path)
        about = [_Watch(path, on_children=kind is WatchKind.CHILDREN)]
        if kind is WatchKind.DELETED:
            about.append(_Watch(path, on_children=True))
        # A watch that is missing here was reported after a break; the server had it set again.
        if any([self._watches.pop(watch, None) for watch in about]):
            self._tell(self._fired(path, kind))

    def _check_watches(self) -> None:
        """Set the watches again after a break, and check for changes that they missed."""
        if self._held_back is None:
            self._held_back = []
        self._to_check = list(self._watches.items())
        self._being_checked = 0
        self._check_more()

    def _check_more(self) -> None:
        while self._to_check and self._being_checked < _WINDOW:
            watch, seen = self._to_check.pop()
            self._being_checked += 1
            kind = GetChildren2 if watch.on_children else Exists
            request = kind(self._address.full(watch.path), self._on_watch)
            self._request(request, partial(self._on_checked, watch, seen))
        if not self._being_checked:
            self._go_on()

    def _on_checked(self, watch: _Watch, seen: _Seen, result: Any) -> None:
        if isinstance(result, ConnectionLoss | SessionExpiredError):
            return  # another break: everything is checked again once the connection is back
        if isinstance(result, Exception) or result is None:
            stat = None
        else:
            stat = result[1] if watch.on_children else result
        missed = seen.missed(_Seen.of(stat, watch), watch)
        set_now = self._watches.get(watch)
        if missed is not None and set_now is not None:
            if set_now is seen:  # else a call has set it again and relies on it
                del self._watches[watch]
            self._on_event(self._fired(watch.path, missed))
        self._being_checked -= 1
        self._check_more()

    def _go_on(self) -> None:
        """Release the events held back and the waiting calls: the connection is restored."""
        self._tell_held_back()
        self._is_ready = True
        self._send()

    def _tell(self, event: StoreEvent) -> None:
        # A call that entered kazoo's queue as the connection broke is sent before the checks: its outcome
        # must not overtake the watches that they may fire.
        if self._held_back is None:
            self._on_event(event)
        else:
            self._held_back.append(event)

    def _tell_held_back(self) -> None:
        held_back, self._held_back = self._held_back, None
        for event in held_back or ():
            self._on_event(event)

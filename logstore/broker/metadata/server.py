"""The embedded metadata store, served to the brokers of a cluster in ZooKeeper's protocol.

    connections ──▶ a few requests of each connection ──▶ EmbeddedStore.call_many ──▶ one sync ──▶ replies

For a cluster on one host without ZooKeeper: one process, one directory, no quorum. Brokers connect as they
connect to ZooKeeper, `zookeeper://host:port`, and so can any ZooKeeper client (`jute.py` lists what is
served). While the server is down brokers keep serving, but leadership does not change. After a restart
nothing is lost and every session has its full timeout again. Only watches are lost; clients set theirs
again and compare.

    <directory>/session-secret    16 random bytes, written once: session passwords derive from them

A reply is sent after its effect is synced. A disk failure ends the server (`failed`): no request is
answered any more, because the content of the disk is unknown.

After a stall of the process, heartbeats wait unread in its sockets. If the session timer is late, every
session gets its full timeout again before any expires. That is always safe.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from hmac import compare_digest
from random import Random
from typing import Final, NamedTuple, cast

from logstore.broker.acceptor import Acceptor, Seldom, SeldomEach
from logstore.broker.errors import MalformedMessage
from logstore.broker.limits import Address
from logstore.broker.metadata import jute
from logstore.broker.metadata.entrance import OPEN, Entrance
from logstore.broker.security.tls_stream import TlsStream
from logstore.disk.descriptors import descriptor_limit
from logstore.disk.files import Buffer, Disk, publish, read_small_file
from logstore.loggers import logger_of
from logstore.replication.effects import WatchFired
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.metastore.operations import Children, Create, Get, Multi, Operation, Outcome, Set
from logstore.replication.metastore.tree import Tree, size_of

_SHORTEST_TIMEOUT_MS, _LONGEST_TIMEOUT_MS = 100, 600_000
LARGEST_REQUEST: Final = 1 << 20
"""As ZooKeeper's `jute.maxbuffer`; no node is larger."""
MOST_TREE_BYTES: Final = 64 << 20
"""Memory of all nodes; a write that needs more is QuotaExceeded (-125)."""
MOST_CONNECTIONS: Final = 1_000
MOST_SESSIONS: Final = 10_000
REQUESTS_A_TURN: Final = 64
"""Requests of one connection that wait, and that are served in one turn."""
BYTES_A_TURN: Final = 256 << 10
"""Bytes of one connection's requests, with their answers, that are served in one turn."""
_PATIENCE_S = 10.0
_READ_BYTES = 1 << 16
_LATE_MS = 500
_NAME_BYTES = 30

SECRET_FILE: Final = "session-secret"
_SECRET_BYTES = 16
_ALIVE: Final = b"ruok"
_log = logger_of(__name__)


def session_secret(directory: str, *, disk: Disk, random: Random) -> bytes:
    """Return the store's secret, made on first use. Raises `OSError` and `CorruptCheckpoint`."""
    path = f"{directory}/{SECRET_FILE}"
    secret = read_small_file(disk, path, limit=_SECRET_BYTES)
    if secret is None or len(secret) != _SECRET_BYTES:
        # A secret of the wrong size is replaced: no client can prove its session then, so all expire.
        secret = random.randbytes(_SECRET_BYTES)
        publish(disk, directory, SECRET_FILE, secret)
    return secret


class _Pending(NamedTuple):
    connection: _Connection
    session_id: int
    asked: jute.Asked
    size: int


class MetadataServer:
    """Serves one store. All methods belong to the event loop's thread."""

    def __init__(
        self, store: EmbeddedStore, *, clock: Callable[[], int], secret: bytes, entrance: Entrance = OPEN
    ) -> None:
        """`store` is closed by the caller; `secret` comes from `session_secret`."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception when the store fails."""
        self._store, self._clock, self._secret = store, clock, secret
        self._loop = asyncio.get_running_loop()
        self._entrance = entrance
        self._connections: set[_Connection] = set()
        self._handshakes: set[TlsStream] = set()
        self.buffer = memoryview(bytearray(_READ_BYTES))
        """The read buffer of all sockets; a connection takes its bytes out at once."""
        self._by_session: dict[int, _Connection] = {}
        self._waiting: dict[_Connection, None] = {}
        """Connections with requests, in the order in which they are served."""
        self._is_due = False
        self._seldom = Seldom()
        self._refusals = SeldomEach()
        self._acceptor: Acceptor | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def listen(self, address: Address) -> Address:
        """Listen; return the address with the actual port. Raises `OSError`."""
        self._acceptor = Acceptor(self._accepted, descriptor_limit())
        return await self._acceptor.listen(address)

    def close(self) -> None:
        """Close all connections; sessions live as long as the store."""
        if self._timer is not None:
            self._timer.cancel()
        if self._acceptor is not None:
            self._acceptor.close()
        for connection in list(self._connections):
            connection.hang_up()

        for stream in list(self._handshakes):
            stream.abort()

    # --- connections --------------------------------------------------------------------------

    def _accepted(self) -> asyncio.BaseProtocol:
        if self._entrance.tls is None:
            return _Connection(self)
        return TlsStream(_Connection(self), self._entrance.tls.context(self._loop.time()), watcher=self)

    def began(self, stream: TlsStream) -> None:
        """Note a connection that begins its TLS handshake, or refuse it."""
        self._handshakes.add(stream)
        if len(self._connections) + len(self._handshakes) > MOST_CONNECTIONS:
            self.refuse(stream, f"more than {MOST_CONNECTIONS} connections")

    def ended(self, stream: TlsStream, reason: str) -> None:
        """The handshake is over: the connection comes next, unless `reason` says why it failed."""
        self._handshakes.discard(stream)
        if reason:
            self._report(stream, reason)

    def connected(self, connection: _Connection, transport: asyncio.Transport) -> None:
        """Note a new connection, or refuse it."""
        if len(self._connections) >= MOST_CONNECTIONS:
            self.refuse(transport, f"more than {MOST_CONNECTIONS} connections")
        elif reason := self._entrance.refusal(transport):
            self.refuse(transport, reason)
        else:
            self._connections.add(connection)

    def refuse(self, transport: asyncio.Transport, why: str) -> None:
        """Close a connection at once, and log why."""
        self._report(transport, why)
        transport.abort()

    def _report(self, transport: asyncio.Transport, why: str) -> None:
        if count := self._refusals(why, self._loop.time()):
            peer = (transport.get_extra_info("peername") or ("",))[0]
            _log.warning("refusing %s: %s (%d refused since the last message)", peer, why, count)

    def disconnected(self, connection: _Connection) -> None:
        """Remove a closed connection; its session continues."""
        self._connections.discard(connection)
        self._waiting.pop(connection, None)
        if self._by_session.get(connection.session_id) is connection:
            del self._by_session[connection.session_id]

    def greet(self, connection: _Connection, hello: jute.Hello) -> None:
        """Open a session, or continue one over a new connection."""
        if self.failed.done():
            return
        try:
            self._greet(connection, hello)
        except MetadataStoreFailed as error:
            self._fail(error)

    def _greet(self, connection: _Connection, hello: jute.Hello) -> None:
        now_ms = self._clock()
        timeout_ms = min(max(hello.timeout_ms, _SHORTEST_TIMEOUT_MS), _LONGEST_TIMEOUT_MS)
        if hello.session_id == 0:
            if len(self._store.tree.sessions) >= MOST_SESSIONS:
                connection.refuse(f"more than {MOST_SESSIONS} sessions")
                return
            session_id = self._store.open_session(timeout_ms, now_ms)
        else:
            session_id = hello.session_id
            is_owner = compare_digest(hello.password, self._password(session_id))
            if not is_owner or not self._store.heartbeat(session_id, now_ms):
                connection.write(jute.welcome(0, 0, bytes(jute.PASSWORD_BYTES)))
                connection.finish()
                return
            timeout_ms = self._store.tree.sessions[session_id]
        former = self._by_session.get(session_id)
        if former is not None:
            former.hang_up()  # its unread requests are dropped
        connection.session_id = session_id
        self._by_session[session_id] = connection
        connection.write(jute.welcome(session_id, timeout_ms, self._password(session_id)))
        self._set_timer()

    # --- requests -----------------------------------------------------------------------------

    def alive(self, connection: _Connection) -> None:
        """Renew the session of a connection that sends, however long its requests wait."""
        if self._by_session.get(connection.session_id) is connection:
            self._store.heartbeat(connection.session_id, self._clock())

    def wake(self, connection: _Connection) -> None:
        """Serve a connection's requests in the next turn of the loop."""
        self._waiting.setdefault(connection)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Serve a few requests of each connection, with one sync for all of them.

        Sockets are read between two turns, so that nobody's session ends because of another's writes.
        """
        self._is_due = False
        waiting, self._waiting = self._waiting, {}
        pending = [each for connection in waiting for each in connection.take(self._answer_size)]
        if self.failed.done():
            return
        run: list[_Pending] = []
        room = MOST_TREE_BYTES - self._store.tree.size
        try:
            for each in pending:
                if not self._speaks_for_its_session(each):
                    continue
                growth = _growth(self._store.tree, each.asked.operation)
                if growth > max(room, 0):
                    self._report_growth()
                    refused = each.asked._replace(operation=None, error=jute.QUOTA_EXCEEDED)
                    each = each._replace(asked=refused)
                if each.asked.operation is not None:
                    room -= growth
                    run.append(each)
                else:
                    self._carry_out(run)
                    run = []
                    self._answer_plain(each)
            self._carry_out(run)
        except MetadataStoreFailed as error:
            self._fail(error)
        for connection in waiting:
            if connection.has_requests:
                self.wake(connection)

    def _answer_size(self, asked: jute.Asked) -> int:
        """Return about how many bytes the answer has."""
        match asked.operation:
            case Get(path):
                node = self._store.tree.node(path)
                return len(node.data) if node is not None else 0
            case Children(path):
                node = self._store.tree.node(path)
                return _NAME_BYTES * len(node.children) if node is not None else 0
        return 0

    def _report_growth(self) -> None:
        if count := self._seldom(self._loop.time()):
            _log.warning(
                "the tree has reached its maximum size of %d bytes; %d writes refused since the last one: "
                "Delete nodes that are not needed",
                MOST_TREE_BYTES,
                count,
            )

    def _speaks_for_its_session(self, each: _Pending) -> bool:
        """Return False for a replaced connection, or one whose session has expired."""
        return self._by_session.get(each.session_id) is each.connection

    def _carry_out(self, run: list[_Pending]) -> None:
        if not run:
            return
        tree = self._store.tree
        stats: list[dict[str, bytes]] = []

        def look(operation: Operation, outcome: Outcome) -> None:
            found = {} if outcome.error is not None else jute.paths_in(operation, outcome)
            stats.append({path: jute.stat_of(node) for path in found if (node := tree.node(path))})

        calls = [(each.session_id, operation) for each in run if (operation := each.asked.operation)]
        answers = self._store.call_many(calls, self._clock(), after_each=look)
        for each, (outcome, fired), seen in zip(run, answers, stats, strict=True):
            self._tell(fired)
            each.connection.write(jute.outcome(each.asked, outcome, tree.last_txid, seen))

    def _answer_plain(self, each: _Pending) -> None:
        asked, txid = each.asked, self._store.tree.last_txid
        if asked.kind == jute.Kind.CLOSE:
            fired = self._store.close_session(each.session_id)
            self._by_session.pop(each.session_id, None)
            self._tell(fired)
            each.connection.write(jute.reply(asked.xid, self._store.tree.last_txid))
            each.connection.finish()
        else:
            self._store.heartbeat(each.session_id, self._clock())
            each.connection.write(jute.reply(asked.xid, txid, asked.error, jute.echo(asked)))

    def _tell(self, fired: list[WatchFired]) -> None:
        for watch in fired:
            connection = self._by_session.get(watch.session_id)
            if connection is not None:  # a disconnected client compares after it reconnects
                connection.write(jute.event(watch))

    # --- sessions -----------------------------------------------------------------------------

    def _password(self, session_id: int) -> bytes:
        return blake2b(b"%d" % session_id, key=self._secret, digest_size=jute.PASSWORD_BYTES).digest()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self._store.deadline_ms
        if deadline_ms is not None:
            delay_ms = max(deadline_ms - self._clock(), 0) + 1
            self._timer = self._loop.call_later(delay_ms / 1000, self._tick, deadline_ms)

    def _tick(self, due_ms: int) -> None:
        self._timer = None
        if self.failed.done():
            return
        now_ms = self._clock()
        if now_ms > due_ms + _LATE_MS:
            _log.warning(
                "stalled for about %d ms; all sessions get their full timeout again", now_ms - due_ms
            )
            for session_id in self._store.tree.sessions:
                self._store.heartbeat(session_id, now_ms)
        try:
            expired, fired = self._store.tick(now_ms)
        except MetadataStoreFailed as error:
            self._fail(error)
            return
        for session_id in expired:
            _log.info("session %d expired", session_id)
            connection = self._by_session.pop(session_id, None)
            if connection is not None:
                connection.hang_up()
        self._tell(fired)
        self._set_timer()

    def _fail(self, error: MetadataStoreFailed) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
        self.close()


def _growth(tree: Tree, operation: Operation | None) -> int:
    """Return by how much an operation may enlarge the tree, which may be full: leaders are elected by writes
    that replace others of about the same size.
    """
    match operation:
        case Create(path, data):
            return size_of(path, data)
        case Set(path, data):
            node = tree.node(path)
            return max(len(data) - len(node.data), 0) if node is not None else len(data)
        case Multi(writes):
            return sum(_growth(tree, each) for each in writes)
    return 0


class _Connection(asyncio.BufferedProtocol):
    """Splits a stream into frames. `session_id` is 0 until a session is open.

    Requests wait here, a few of them; the rest waits in the socket. While the client does not take its
    answers, none of its requests is served.
    """

    def __init__(self, server: MetadataServer) -> None:
        self.session_id = 0
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._is_greeted = self._is_clogged = self._is_paused = False
        self._requests: deque[_Pending] = deque()
        self._impatience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._impatience = asyncio.get_running_loop().call_later(_PATIENCE_S, self.hang_up)
        self._server.connected(self, self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
        self._server.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.receive(self._server.buffer[:nbytes])

    def receive(self, data: Buffer) -> None:
        """Take in what has arrived."""
        self._received += data
        if not self._is_greeted and self._received[:4] == _ALIVE:
            self.write(b"imok")
            self.finish()
            return
        self._server.alive(self)
        self._cut()

    def _cut(self) -> None:
        """Take requests from what has arrived, until enough of them wait."""
        while len(self._received) >= jute.SIZE.size and self._transport is not None:
            (size,) = jute.SIZE.unpack_from(self._received)
            if not 0 < size <= LARGEST_REQUEST:
                _log.warning(
                    "closing a connection: request of %d bytes; the maximum is %d", size, LARGEST_REQUEST
                )
                self.hang_up()
                return
            if len(self._received) < jute.SIZE.size + size or len(self._requests) >= REQUESTS_A_TURN:
                break
            payload = bytes(self._received[jute.SIZE.size : jute.SIZE.size + size])
            del self._received[: jute.SIZE.size + size]
            try:
                self._on_frame(payload)
            except MalformedMessage as error:
                _log.warning("closing a connection: malformed request: %s", error)
                self.hang_up()
                return
        self._set_reading()

    def _set_reading(self) -> None:
        """Read while there is room for a request."""
        if self._transport is None or self._transport.is_closing():
            return
        is_full = len(self._requests) >= REQUESTS_A_TURN or (
            bool(self._requests) and len(self._received) >= BYTES_A_TURN
        )
        if is_full and not self._is_paused:
            self._transport.pause_reading()
        elif self._is_paused and not is_full:
            self._transport.resume_reading()
        self._is_paused = is_full

    @property
    def has_requests(self) -> bool:
        """Return whether requests wait that may be served now."""
        return bool(self._requests) and not self._is_clogged

    def take(self, answer_size: Callable[[jute.Asked], int]) -> list[_Pending]:
        """Take the requests to serve in one turn: `BYTES_A_TURN` of them and their answers, at least one."""
        taken: list[_Pending] = []
        size = 0
        while self.has_requests:
            size += self._requests[0].size + answer_size(self._requests[0].asked)
            if taken and size > BYTES_A_TURN:
                break
            taken.append(self._requests.popleft())
        self._cut()
        return taken

    def pause_writing(self) -> None:
        self._is_clogged = True

    def resume_writing(self) -> None:
        self._is_clogged = False
        if self._requests:
            self._server.wake(self)

    def _on_frame(self, payload: bytes) -> None:
        if not self._is_greeted:
            self._is_greeted = True
            if self._impatience is not None:
                self._impatience.cancel()
            self._server.greet(self, jute.read_hello(payload))
            return
        self._requests.append(_Pending(self, self.session_id, jute.read_request(payload), len(payload)))
        self._server.wake(self)

    def write(self, data: bytes) -> None:
        """Send data, unless the connection is closing."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def finish(self) -> None:
        """Close after all written data is sent."""
        if self._transport is not None:
            self._transport.close()

    def refuse(self, why: str) -> None:
        """Close at once, and log why."""
        if self._transport is not None:
            self._server.refuse(self._transport, why)

    def hang_up(self) -> None:
        """Close at once."""
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()

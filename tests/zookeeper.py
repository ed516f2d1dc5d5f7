"""A real ZooKeeper server for tests, and a proxy in front of it that loses replies.

The server listens on a free loopback port, keeps its data in a directory of the test's, and is waited for
by asking it; it stops with the process that started it. Its tick is short, hence sessions may be, too.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue

from logstore.cli.ports import free_ports
from logstore.replication.effects import (
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreEvent,
    StoreReply,
    WatchFired,
)
from logstore.replication.metastore.operations import Operation, Outcome
from logstore.replication.metastore.zookeeper import ZooKeeperStore
from logstore.replication.metastore.zookeeper_access import OPEN, Access

JAR = Path("/usr/share/java/zookeeper.jar")
INSTALL = "apt-get install -y zookeeper"
_MORE_JARS = ("slf4j-simple", "netty-codec", "netty-resolver")
"""Those that the manifest lacks. ZooKeeper's TLS is netty's, which Debian's package depends on."""
TICK_MS = 100
"""The server allows sessions between 2 and 20 of them; `MAX_SESSION_MS` is set apart."""
MAX_SESSION_MS = 60_000
DEADLINE_S = 30.0
"""Nothing here takes long; a machine under load may."""


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until `holds`; it is asked again and again, until a deadline that only a defect reaches."""
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, f"{what} did not happen within {DEADLINE_S:.0f} s"
        time.sleep(0.005)


def free_port() -> int:
    return free_ports(1)[0]


class ZooKeeperServer:
    """One server on this machine; it may be stopped, killed, paused and started again on the same data."""

    def __init__(
        self, directory: Path, *, port: int = 0, tls: Mapping[str, str] | None = None, user: str = ""
    ) -> None:
        """With `tls`, settings `ssl.…` of ZooKeeper, there is a port for TLS beside the plain one. `user` is
        `name:password` of the one user who may log in by SASL.

        Raises `AssertionError` with the command that installs what is missing.
        """
        java = shutil.which("java") if JAR.exists() else None
        assert java, f"these tests need a ZooKeeper server: {INSTALL}"
        self.port = port or free_port()
        self.tls_port = free_port() if tls else 0
        self._jaas = directory / "jaas.conf" if user else None
        self._java, self._directory = java, directory
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "tickTime": TICK_MS,
            "maxSessionTimeout": MAX_SESSION_MS,
            "dataDir": directory / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,ruok",
        }
        if tls is not None:
            netty = "org.apache.zookeeper.server.NettyServerCnxnFactory"
            settings |= {"secureClientPort": self.tls_port, "serverCnxnFactory": netty, **tls}
            settings["secureClientPortAddress"] = "127.0.0.1"
        if self._jaas is not None:
            provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
            settings["authProvider.sasl"] = provider
            name, _, password = user.partition(":")
            module = "org.apache.zookeeper.server.auth.DigestLoginModule"
            self._jaas.write_text(f'Server {{ {module} required user_{name}="{password}"; }};')
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        (directory / "zoo.cfg").write_text(lines)

    @property
    def url(self) -> str:
        return f"zookeeper://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What the server said about itself."""
        return (self._directory / "server.log").read_text(errors="replace")

    def start(self) -> None:
        """Start, and wait until it serves."""
        assert self._process is None, "already running"
        command = [
            self._java,
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dzookeeper.forceSync=no",  # no test cuts the power
            *([f"-Djava.security.auth.login.config={self._jaas}"] if self._jaas else []),
            "-cp",
            ":".join([str(JAR), *(str(JAR.with_name(f"{each}.jar")) for each in _MORE_JARS)]),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self._directory / "zoo.cfg"),
        ]
        if keeper := shutil.which("setpriv"):  # killed with the thread that starts it, should we be killed
            command = [keeper, "--pdeathsig", "KILL", *command]
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            eventually(self._serves, f"the start of ZooKeeper on port {self.port}")
        except AssertionError:
            self.kill()
            raise AssertionError(self.log[-4000:]) from None

    def _serves(self) -> bool:
        assert self._process is not None, "started"
        assert self._process.poll() is None, "the server ended by itself"
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"srvr")
                return b"Mode:" in b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return False

    def stop(self) -> None:
        """End it as an operator would. Sessions live on when it returns, for their timeout."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """The process stands still: connections stay, nothing is answered."""
        assert self._process is not None, "running"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None, "running"
        self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        process.wait(DEADLINE_S)


# --- a client of the asynchronous store -------------------------------------------------------


class Client:
    """Talks to a `ZooKeeperStore` one call at a time, and keeps all that it heard, in order."""

    def __init__(
        self, url: str, *, session_ms: int = 10_000, wait: bool = True, access: Access = OPEN
    ) -> None:
        self._inbox: SimpleQueue[StoreEvent] = SimpleQueue()
        self.events: list[StoreEvent] = []
        """all that was taken from the inbox"""
        self.threads: set[int] = set()
        """those that events came from"""
        self._calls = 0
        self.store = ZooKeeperStore(url, self._hear, access)
        self.session_id = 0
        self.store.open_session(session_ms)
        if wait:
            self.wait_for_session()

    def wait_for_session(self) -> None:
        opened = self.next()
        assert isinstance(opened, SessionOpened)
        self.session_id = opened.session_id

    def _hear(self, event: StoreEvent) -> None:
        self.threads.add(threading.get_ident())
        self._inbox.put(event)

    def next(self) -> StoreEvent:
        """The next event, waited for."""
        try:
            event = self._inbox.get(timeout=DEADLINE_S)
        except Empty:
            raise AssertionError(f"no event came; before: {self.events[-5:]}") from None
        self.events.append(event)
        return event

    def submit(self, operation: Operation) -> int:
        self._calls += 1
        self.store.submit(StoreCall(self.session_id, self._calls, operation))
        return self._calls

    def call(self, operation: Operation) -> Outcome:
        """Its outcome; watches that come first are in `events`."""
        call_id = self.submit(operation)
        while True:
            event = self.next()
            if isinstance(event, StoreReply) and event.call_id == call_id:
                return event.outcome

    def next_watch(self) -> WatchFired:
        event = self.next()
        assert isinstance(event, WatchFired), event
        return event

    def wait_for_end(self) -> None:
        """Wait until the server has given this session up and the store has said so."""
        while not isinstance(self.next(), SessionExpired):
            pass

    @property
    def watches(self) -> list[WatchFired]:
        return [event for event in self.events if isinstance(event, WatchFired)]

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- a proxy that loses replies ---------------------------------------------------------------

_CREATE2, _DELETE, _SET_DATA, _MULTI, _CLOSE = 15, 2, 5, 14, -11
WRITES = frozenset({_CREATE2, _DELETE, _SET_DATA, _MULTI})


class Proxy:
    """Sits between clients and a server, on a port of its own.

    frame    int32 length · payload
    request  int32 xid · int32 type · body
    reply    int32 xid · int64 zxid · int32 error · body
    but the first of a connection:
    request  int32 · int64 · int32 timeout · int64 session · int32 16 · password · bool
    reply    int32 · int32 timeout · int64 session · int32 16 · password · …
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._links: dict[int, tuple[socket.socket, socket.socket]] = {}
        self._passwords: dict[int, bytes] = {}
        self._threads: list[threading.Thread] = []
        self._loses: Callable[[int, bytes], bool] | None = None
        self._is_whole = threading.Event()
        self._is_whole.set()
        self._is_closed = False
        self.lost = threading.Event()
        """Set when a reply was lost, its connection with it."""
        self._spawn(self._accept)

    @property
    def url(self) -> str:
        return f"zookeeper://127.0.0.1:{self.port}"

    def lose_reply(self, to: Callable[[int, bytes], bool] = lambda kind, body: kind in WRITES) -> None:
        """The next request for which `to(type, body)` holds is served; its reply and connection are lost."""
        self.lost.clear()
        self._loses = to

    def cut(self) -> None:
        """Break every connection, and let no new one come to life until `mend`."""
        self._is_whole.clear()
        self._break()

    def mend(self) -> None:
        self._is_whole.set()

    def end_session(self, session_id: int) -> None:
        """Let the server end a session of a client, who learns of it as of one that ran out."""
        hello = struct.pack(">iqiqi16s?", 0, 0, 10_000, session_id, 16, self._passwords[session_id], False)
        farewell = struct.pack(">ii", 1, _CLOSE)
        self._is_whole.clear()  # else the client comes back at once, and takes its session with it
        with socket.create_connection(("127.0.0.1", self._target_port), DEADLINE_S) as connection:
            connection.sendall(_frame(hello) + _frame(farewell))
            answers = list(_frames(connection))
        assert struct.unpack_from(">iiq", answers[0])[2] == session_id, "the server knows the session"
        assert struct.unpack_from(">iqi", answers[1])[2] == 0, "and ended it"
        self._is_whole.set()

    def close(self) -> None:
        self._is_closed = True
        self._is_whole.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._break()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _break(self) -> None:
        with self._lock:
            links, self._links = self._links, {}
        for link in links.values():
            _close(*link)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        self._is_whole.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._target_port), DEADLINE_S)
        except OSError:
            _close(client)
            return
        server.settimeout(None)
        with self._lock:
            self._links[id(client)] = client, server
        doomed: set[int] = set()
        replies = threading.Thread(target=self._carry_replies, args=(server, client, doomed), daemon=True)
        replies.start()
        with contextlib.suppress(OSError):
            for number, payload in enumerate(_frames(client)):
                if number:
                    xid, kind = struct.unpack_from(">ii", payload)
                    if self._loses is not None and self._loses(kind, payload[8:]):
                        self._loses = None
                        doomed.add(xid)
                server.sendall(_frame(payload))
        _close(client, server)
        replies.join(DEADLINE_S)
        with self._lock:
            self._links.pop(id(client), None)

    def _carry_replies(self, server: socket.socket, client: socket.socket, doomed: set[int]) -> None:
        with contextlib.suppress(OSError):
            for number, payload in enumerate(_frames(server)):
                if number == 0:
                    *_, session_id, _, password = struct.unpack_from(">iiqi16s", payload)
                    self._passwords[session_id] = password
                elif struct.unpack_from(">i", payload)[0] in doomed:
                    self.lost.set()
                    _close(client, server)
                    return
                client.sendall(_frame(payload))
        _close(client, server)


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


def _frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def _frames(connection: socket.socket) -> Iterator[bytes]:
    while (head := _exactly(connection, 4)) is not None:
        payload = _exactly(connection, struct.unpack(">i", head)[0])
        if payload is None:
            return
        yield payload


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return parts

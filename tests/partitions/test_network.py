"""The network that campaigns cut: what arrives, what is held, and whose connection is whose."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from tests.partitions.network import CLIENTS, Flow, Network, NetworkProcess, Party

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

REQUESTS, ANSWERS = Flow(CLIENTS, "a"), Flow("a", CLIENTS)


class Echo:
    """A server that answers all bytes with themselves."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.accepted = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                pass

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


class Ground:
    """Two servers, `a` and `b`, behind one network. `pids` are the parties."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.pids: Mapping[str, int] = {}
        self.servers = {"a": Echo(), "b": Echo()}
        self.network = stack.enter_context(Network(lambda: self.pids))
        self.gates = {name: self.network.gate(name, each.port) for name, each in self.servers.items()}
        for each in self.servers.values():
            stack.callback(each.close)

    def connect(self, name: str) -> socket.socket:
        address = ("127.0.0.1", self.gates[name])
        return self.stack.enter_context(socket.create_connection(address, 30))

    def pass_time(self) -> None:
        """Until a connection that was opened and used later than all others has its answer."""
        assert exchange(self.connect("b"), b"now") == b"now"


@pytest.fixture
def ground() -> Iterator[Ground]:
    with ExitStack() as stack:
        yield Ground(stack)


def exchange(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return receive(connection, len(data))


def receive(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (part := connection.recv(size - len(found))):
        found += part
    return found


def has_nothing(connection: socket.socket) -> bool:
    return not select.select([connection], [], [], 0)[0]


@pytest.mark.parametrize("flow", [REQUESTS, ANSWERS])
def test_a_cut_flow_holds_its_bytes_until_it_is_healed(ground: Ground, flow: Flow) -> None:
    connection = ground.connect("a")
    assert exchange(connection, b"before") == b"before"
    ground.network.cut([flow])
    connection.sendall(b"meanwhile")
    ground.pass_time()
    assert has_nothing(connection)
    assert ground.network.carried[flow] == len(b"before")
    ground.network.heal()
    assert receive(connection, 9) == b"meanwhile"


def test_a_cut_one_way_lets_the_other_way_pass(ground: Ground) -> None:
    connection = ground.connect("a")
    exchange(connection, b"1")
    ground.network.cut([ANSWERS])
    connection.sendall(b"22")
    while ground.network.carried[REQUESTS] < 3:
        ground.pass_time()
    assert has_nothing(connection)


def test_the_end_of_a_connection_does_not_pass_a_cut(ground: Ground) -> None:
    connection = ground.connect("a")
    exchange(connection, b"1")
    ground.network.cut([REQUESTS])
    connection.shutdown(socket.SHUT_WR)
    ground.pass_time()
    assert has_nothing(connection)
    ground.network.heal()
    assert connection.recv(1) == b""


def test_a_cut_in_the_middle_of_a_frame(ground: Ground) -> None:
    connection = ground.connect("a")
    exchange(connection, b"1")
    ground.network.cut([REQUESTS], after=[3])
    connection.sendall(b"abcdef")
    assert receive(connection, 3) == b"abc"
    ground.pass_time()
    assert has_nothing(connection)
    ground.network.heal()
    assert receive(connection, 3) == b"def"


def test_connections_may_be_reset_instead(ground: Ground) -> None:
    cut, whole = ground.connect("a"), ground.connect("b")
    exchange(cut, b"1")
    exchange(whole, b"1")
    ground.network.cut([ANSWERS])
    cut.sendall(b"lost")
    ground.network.heal(is_reset=True)
    with pytest.raises(ConnectionResetError):
        cut.recv(1)
    assert exchange(whole, b"2") == b"2"
    assert exchange(ground.connect("a"), b"3") == b"3"


@pytest.mark.parametrize("flow", [REQUESTS, ANSWERS])
def test_a_connection_that_is_opened_while_a_flow_is_cut_reaches_nobody(ground: Ground, flow: Flow) -> None:
    ground.network.cut([flow])
    connection = ground.connect("a")
    connection.sendall(b"late")
    ground.pass_time()
    assert ground.servers["a"].accepted == 0
    ground.network.heal()
    assert receive(connection, 4) == b"late"


def test_a_slow_flow_carries_everything(ground: Ground) -> None:
    connection = ground.connect("a")
    ground.network.slow([REQUESTS], 1 << 20)
    data = os.urandom(5000)
    assert exchange(connection, data) == data


def test_a_connection_belongs_to_the_process_that_opened_it(ground: Ground) -> None:
    """So the same port can be cut for one process, and not for another."""
    code = (
        "import socket, sys\n"
        "sys.stdin.readline()\n"
        "connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 30)\n"
        "for line in sys.stdin:\n"
        "    connection.sendall(b'x')\n"
        "    print(connection.recv(1), flush=True)\n"
    )
    command = [sys.executable, "-I", "-c", code, str(ground.gates["a"])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ground.pids = {"child": process.pid, "ended": 2**22 + 1}
        ours = ground.connect("a")
        exchange(ours, b"1")
        process.stdin.write("connect\ngo\n")
        process.stdin.flush()
        assert process.stdout.readline() == "b'x'\n"
        assert ground.network.carried[Flow("child", "a")] == ground.network.carried[Flow("a", "child")] == 1
        ground.network.cut([Flow("child", "a")])
        process.stdin.write("go\n")
        process.stdin.flush()
        assert exchange(ours, b"2") == b"2"
        ground.network.heal()
        assert process.stdout.readline() == "b'x'\n"
        process.stdin.close()


def nobody() -> Mapping[Party, int]:
    return {}


def test_a_network_in_a_process_of_its_own() -> None:
    server = Echo()
    with NetworkProcess(nobody) as network:
        address = ("127.0.0.1", network.gate("a", server.port))
        with socket.create_connection(address, 30) as connection:
            assert exchange(connection, b"1") == b"1"
            network.cut([REQUESTS])
            connection.sendall(b"22")
            network.heal()
            assert receive(connection, 2) == b"22"
            network.slow([ANSWERS], 1 << 20)
            assert exchange(connection, b"333") == b"333"
            assert network.connections() == 1
    server.close()

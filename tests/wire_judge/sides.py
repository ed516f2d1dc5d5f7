"""The two sides: one broker of Apache Kafka and one of ours, asked over sockets of their own."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

from bench.kafka.jars import jars
from bench.kafka.servers import Kafka, Ours, Servers, eventually, free_port
from logstore.broker.errors import MalformedMessage
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import API_OF, APIS
from logstore.broker.wire.codec import decode
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import decode_response_header, request_frame

RELEASE: Final = "3.9.1"
CLIENT_ID: Final = "judge"
PATIENCE_S: Final = 30.0
PARKED_S: Final = 0.4
"""How long a response may be late until its request counts as parked; nothing else depends on it."""
SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.retention.ms": "-1",
    "transaction.partition.verification.enable": "false",  # there is no transaction coordinator here
}
USERS: Final = ("ann", "bob", "root")
"""Users with PLAIN; `root` may do everything."""
NO_LOGIN: Final = "nobody"
_CLIENTS: Final = "CLIENTS"
_MODULE: Final = "org.apache.kafka.common.security.{}LoginModule required"
_OF_LISTENER: Final = f"listener.name.{_CLIENTS.lower()}"
_SECURED: Final = {
    "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,{_CLIENTS}:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    f"{_OF_LISTENER}.plain.sasl.jaas.config": (
        " ".join([_MODULE.format("plain.Plain"), *(f'user_{each}="{each}"' for each in USERS)]) + ";"
    ),
    f"{_OF_LISTENER}.scram-sha-256.sasl.jaas.config": _MODULE.format("scram.Scram") + ";",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:root",
    "delegation.token.secret.key": "judge",
}
_MARKER: Final = "settled"
_TAGS: Final = b"\x01\xf3\x2f\x03odd"
"""One tag, number 6131."""
_TAGS_AT: Final = 4 + 10 + len(CLIENT_ID)
"""Where the count of a header's tags is."""
_PROBE: Final = 0
"""The correlation id of the request that shows whether a connection goes on."""


def plain_login(user: str, password: str | None = None) -> bytes:
    """Return the token of a login by PLAIN; users have their names for passwords."""
    return f"\0{user}\0{user if password is None else password}".encode()


Outcome = Struct | Literal["parked", "closed", "silent", "answered", "malformed"]
"""A response. Or none yet; the connection's end; none, or one that is not looked into, and the connection
goes on; bytes that cannot be read."""


@dataclass
class Side:
    """One broker, and what a story's responses have told about it.

    With `door`, the port of a listener with logins, a client that has a user's name is logged in as the
    user, and `NO_LOGIN` is not. Others use the plain listener."""

    name: str
    port: int
    door: int = 0
    known: dict[str, Any] = field(default_factory=dict)
    _sockets: dict[str, socket.socket] = field(default_factory=dict)
    _parked: dict[str, tuple[type[Struct], int]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def forget(self) -> None:
        """End the story: close its connections."""
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()
        self._parked.clear()
        self.known.clear()

    def is_parked(self, client: str) -> bool:
        return client in self._parked

    def ask(
        self,
        request: Struct,
        version: int,
        client: str = "a",
        *,
        is_answered: bool = True,
        may_park: bool = False,
        is_tagged: bool = False,
    ) -> Outcome:
        """Send a request and return what comes back."""
        frame = b"".join(request_frame(request, version, next(self._numbers), CLIENT_ID))
        if is_tagged and version in API_OF[type(request)].flexible:
            frame = _tagged(frame)
        self._send(client, frame)
        if not is_answered:
            return self._probe(client)
        self._parked[client] = (API_OF[type(request)].response, version)
        return self.collect(client, PARKED_S if may_park else PATIENCE_S)

    def ask_raw(self, head: bytes, client: str) -> Outcome:
        """Send a frame that no codec would make; the outcome shows whether the connection ends."""
        self._send(client, struct.pack(">i", len(head)) + head)
        return self._probe(client)

    def collect(self, client: str, patience_s: float) -> Outcome:
        """Return the response that a parked request has, or gets."""
        kind, version = self._parked[client]
        try:
            frame = self._frame(client, patience_s)
        except TimeoutError:
            return "parked"
        del self._parked[client]
        if frame is None:
            return "closed"
        _, at = decode_response_header(frame, API_OF[kind], version)
        body = frame[at:]
        if kind is t.ApiVersionsResponse and bytes(body[:2]) == b"\0\x23":
            version = 0
        try:
            return decode(kind, version, body)[0]
        except MalformedMessage:
            return "malformed"

    def _probe(self, client: str) -> Outcome:
        """Ask for versions on the same connection: it goes on, or it has ended."""
        answered = False
        try:
            self._send(client, b"".join(request_frame(t.ApiVersionsRequest(), 0, _PROBE, CLIENT_ID)))
            while (frame := self._frame(client, PATIENCE_S)) is not None:
                if struct.unpack_from(">i", frame) == (_PROBE,):
                    return "answered" if answered else "silent"
                answered = True
        except ConnectionError:
            self._sockets.pop(client).close()
        return "closed"

    def _send(self, client: str, frame: bytes) -> None:
        if client not in self._sockets:
            is_secured = self.door and client in (*USERS, NO_LOGIN)
            port = self.door if is_secured else self.port
            self._sockets[client] = socket.create_connection(("127.0.0.1", port))
            if is_secured and client != NO_LOGIN:
                self._log_in(client)
        self._sockets[client].sendall(frame)

    def _log_in(self, user: str) -> None:
        for request in (
            t.SaslHandshakeRequest(mechanism="PLAIN"),
            t.SaslAuthenticateRequest(auth_bytes=plain_login(user)),
        ):
            found: Any = self.ask(request, 1, user)
            assert found.error_code == 0, found

    def _frame(self, client: str, patience_s: float) -> memoryview | None:
        """Return the next frame; None at the connection's end. Raises `TimeoutError`."""
        connection = self._sockets[client]
        try:
            connection.settimeout(patience_s)
            connection.recv(1, socket.MSG_PEEK)  # a frame that has begun is read to its end
            connection.settimeout(PATIENCE_S)
            (size,) = struct.unpack(">i", _take(connection, 4))
            return memoryview(_take(connection, size))
        except (ConnectionError, EOFError):
            self._sockets.pop(client).close()
            return None


def _tagged(frame: bytes) -> bytes:
    """Return a request with an unknown tag in its header and, last, in its body."""
    head = _TAGS_AT
    content = frame[4:head] + _TAGS + frame[head + 1 : -1] + _TAGS
    return struct.pack(">i", len(content)) + content


def _take(connection: socket.socket, size: int) -> bytes:
    taken = bytearray()
    while len(taken) < size:
        piece = connection.recv(size - len(taken))
        if not piece:
            raise EOFError
        taken += piece
    return bytes(taken)


class Settling:
    """Waits until a broker has applied every change of the cluster's metadata that was answered before.

    It changes a setting of a topic and waits until it is described, twice: changes are applied in order, so
    whoever shows the second one has finished with the first."""

    def __init__(self, side: Side) -> None:
        self._side, self._numbers = side, count(1)
        topic = t.CreateTopicsRequestCreatableTopic(name=_MARKER, num_partitions=1, replication_factor=1)
        side.ask(t.CreateTopicsRequest(topics=[topic]), 5, _MARKER)

    def __call__(self) -> None:
        for _ in range(2):
            self._change(str(100_000 + next(self._numbers)))

    def _change(self, value: str) -> None:
        change = t.IncrementalAlterConfigsRequestAlterableConfig(
            name="segment.ms", config_operation=0, value=value
        )
        resource = t.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name=_MARKER, configs=[change]
        )
        request = t.IncrementalAlterConfigsRequest(resources=[resource])
        eventually(lambda: self._answer(request, 0).responses[0].error_code == 0, "a change")
        eventually(lambda: self._described() == value, "a change that is described", every_s=0.001)

    def _described(self) -> str | None:
        resource = t.DescribeConfigsRequestDescribeConfigsResource(
            resource_type=2, resource_name=_MARKER, configuration_keys=["segment.ms"]
        )
        found = self._answer(t.DescribeConfigsRequest(resources=[resource]), 1).results[0].configs
        return found[0].value if found else None

    def _answer(self, request: Struct, version: int) -> Any:
        return self._side.ask(request, version, _MARKER)


class _Ours(Ours):
    program = "tests.wire_judge.with_transactions"


@contextmanager
def both(directory: Path, *, is_secured: bool = False) -> Iterator[tuple[Side, Side]]:
    """Start the two brokers; yield Kafka's side and ours. Raises `Missing`.

    Secured ones have an authorizer, and a listener with logins beside the plain one."""
    servers: list[Servers] = [
        Kafka(directory / "kafka", 1, version=RELEASE, jars=jars(RELEASE)),
        _Ours(directory / "ours", 1),
    ]
    sides = []
    for name, each in zip(("kafka", "ours"), servers, strict=True):
        door = free_port() if is_secured else 0
        each.settings = {**SETTINGS, **_SECURED} if is_secured else SETTINGS
        each.more_listeners = [f"{_CLIENTS}://127.0.0.1:{door}"] if is_secured else []
        sides.append(Side(name, each.ports[1], door))
    try:
        for each in servers:
            each.directory.mkdir(parents=True)
            each.start(1)
        for each, side in zip(servers, sides, strict=True):
            each.wait_until_whole()
            _warm_up(side)
        yield sides[0], sides[1]
    finally:
        for side in sides:
            side.forget()
        for each in servers:
            each.end_all()


def _warm_up(side: Side) -> None:
    """Have the coordinators' topics created and loaded."""
    request = t.OffsetFetchRequest(group_id="warm-up", topics=[])
    for key_type in (0, 1):
        side.ask(t.FindCoordinatorRequest(key="warm-up", key_type=key_type), 1)
        side.forget()

    def is_loaded() -> bool:
        side.ask(t.FindCoordinatorRequest(key="warm-up"), 1)
        side.forget()
        found: Any = side.ask(request, 5)
        side.forget()
        return not isinstance(found, str) and found.error_code == 0

    def gives_ids() -> bool:
        found: Any = side.ask(t.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 1)
        side.forget()
        return not isinstance(found, str) and found.error_code == 0

    eventually(gives_ids, f"{side.name} gives producer ids", every_s=0.1)
    eventually(is_loaded, f"{side.name} coordinates groups", every_s=0.1)


def shared_versions(sides: tuple[Side, Side]) -> Mapping[int, range]:
    """Return the versions of each API that both sides offer and our codec makes."""
    offered = []
    for side in sides:
        found: Any = side.ask(t.ApiVersionsRequest(), 0)
        offered.append({each.api_key: each for each in found.api_keys})
        side.forget()
    kafka, ours = offered
    return {
        key: range(
            max(kafka[key].min_version, ours[key].min_version, APIS[key].served[0]),
            min(kafka[key].max_version, ours[key].max_version) + 1,
        )
        for key in kafka.keys() & ours.keys()
    }

"""Carry requests of clients to a node, and the responses back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from logstore.replication.effects import Abandoned, Client, ClientRequest, Event
from logstore.replication.messages import ProduceRequest, RequestBody, ResponseBody
from logstore.testing.hosts import Host
from logstore.testing.network import Network
from logstore.testing.timeline import Timeline


@dataclass(slots=True, eq=False)
class Call:
    """A client's request on its way; `on_end` gets the response, or None if it is lost."""

    token: int
    node_id: int
    life: int
    body: RequestBody
    on_end: Callable[[ResponseBody | None], object]
    is_single: bool = True
    """Sent once, without retries: an error that says "not appended" is then final."""
    is_over: bool = False


class ClientLink:
    """The connections of all clients. `judge` sees a response before its client does."""

    def __init__(
        self,
        time: Timeline,
        network: Network,
        hosts: Mapping[int, Host],
        receive: Callable[[Host, Event], None],
        judge: Callable[[Host, Call, ResponseBody | None], None],
    ) -> None:
        self._time = time
        self._network = network
        self._hosts = hosts
        self._receive = receive
        self._judge = judge
        self._next_token = 0
        self._calls: dict[int, Call] = {}
        self._arriving: Counter[type[RequestBody]] = Counter()

    def is_under_way(self, kinds: Collection[type[RequestBody]]) -> bool:
        """Whether a request of one of these kinds waits for its response, or may still arrive."""
        return any(type(call.body) in kinds for call in self._calls.values()) or any(
            self._arriving[kind] for kind in kinds
        )

    def call(
        self,
        node_id: int,
        body: RequestBody,
        on_end: Callable[[ResponseBody | None], object],
        *,
        timeout_ms: int,
        is_single: bool = True,
    ) -> None:
        """Send a client's request to a node; `on_end` is called once, with None if no response came back."""
        self._next_token += 1
        host = self._hosts[node_id]
        call = Call(self._next_token, node_id, host.life, body, on_end, is_single)
        self._calls[call.token] = call
        self._time.at(timeout_ms, self._give_up, call)
        if self._network.is_lost():
            return
        copies = 1 if is_single and isinstance(body, ProduceRequest) else self._network.copies()
        for _ in range(copies):
            self._arriving[type(body)] += 1
            self._time.at(self._network.delay(self._network.random), self._client_arrives, host, call)

    def _client_arrives(self, host: Host, call: Call) -> None:
        self._arriving[type(call.body)] -= 1
        if host.node is None or host.life != call.life:
            self._time.at(self._network.delay(self._network.random), self._end_call, call, None)
        else:
            self._receive(host, ClientRequest(call, call.body))

    def reply(self, host: Host, token: object, body: ResponseBody | None, close: bool) -> None:
        assert isinstance(token, Call), "tokens are created here"
        self._judge(host, token, body)
        if self._network.is_lost():
            return
        self._time.at(self._network.delay(self._network.random), self._end_call, token, body)

    def _give_up(self, call: Call) -> None:
        if call.is_over:
            self._time.was_nothing()
        else:
            host = self._hosts[call.node_id]
            if host.life == call.life:
                self._receive(host, Abandoned(Client(call)))
            self._end_call(call, None)

    def _end_call(self, call: Call, body: ResponseBody | None) -> None:
        if call.is_over:
            return
        call.is_over = True
        del self._calls[call.token]
        self._time.stamp(f"{self._time.now_ms}{type(body).__name__}")
        call.on_end(body)

    def break_off(self, node_id: int) -> None:
        """Break the connections to a node whose process is gone."""
        for call in list(self._calls.values()):
            if call.node_id == node_id:
                self._time.at(self._network.delay(self._network.random), self._end_call, call, None)

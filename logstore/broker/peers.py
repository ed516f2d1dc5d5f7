"""A broker's connections to other brokers, one for each purpose.

Orders of the controller, fetches, and proposals to the controller use different connections: the receiver
takes one request of a connection at a time, and a fetch may wait there for half a second (KIP-291).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from logstore.broker import client_messages
from logstore.broker.errors import AuthenticationFailed, MalformedMessage, RequestUnanswered
from logstore.broker.limits import Address, Limits
from logstore.broker.links import Link, client_id_of
from logstore.broker.node_messages import response_of, to_wire
from logstore.broker.security.client import NO_SECURITY, ClientSecurity
from logstore.broker.wire import interbroker as w
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.declarations import Struct
from logstore.loggers import logger_of
from logstore.replication.effects import Disconnected, Response
from logstore.replication.messages import (
    AlterPartitionRequest,
    ControlledShutdownRequest,
    LeaderAndIsrRequest,
    RequestBody,
    ResponseBody,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from logstore.replication.node import Node

_log = logger_of(__name__)


class Lane(Enum):
    """The purpose of a connection to another broker."""

    CONTROL = "control"
    PROPOSALS = "proposals"
    FETCHES = "fetches"
    ERRANDS = "errands"
    """This broker's own requests to the controller, such as creating a topic."""
    FORWARDED = "forwarded"
    """Clients' requests to the controller."""


LANES: Final[dict[type[RequestBody], Lane]] = {
    LeaderAndIsrRequest: Lane.CONTROL,
    StopReplicaRequest: Lane.CONTROL,
    UpdateMetadataRequest: Lane.CONTROL,
    AlterPartitionRequest: Lane.PROPOSALS,
    ControlledShutdownRequest: Lane.PROPOSALS,
}
"""Every other request is a follower's to its leader."""


class Peers:
    """Sends the requests of one node. Belongs to the event loop's thread."""

    def __init__(
        self, node: Node, limits: Limits, scratch: memoryview | None, security: ClientSecurity = NO_SECURITY
    ) -> None:
        """`scratch` as for `Link`; `security` names the listener of the brokers."""
        self._node, self._limits, self._scratch, self.security = node, limits, scratch, security
        self._links: dict[tuple[int, Lane], Link] = {}
        self._refusing: set[int] = set()
        """The brokers that refuse this one's login."""

    def close(self) -> None:
        """Close all connections; unanswered requests are lost."""
        for link in self._links.values():
            link.close()

    def send(
        self,
        target: int,
        correlation_id: int,
        body: RequestBody,
        then: Callable[[Response | Disconnected], None],
    ) -> None:
        """Send a request of the engine; `then` gets its outcome, never from within this call's own turn."""
        link = self._link(target, LANES.get(type(body), Lane.FETCHES))
        if link is None:
            then(Disconnected(target, correlation_id))
            return

        def answered(answer: Struct | RequestUnanswered) -> None:
            try:
                if isinstance(answer, RequestUnanswered):
                    raise answer
                self._refusing.discard(target)
                then(Response(target, correlation_id, response_of(answer)))
            except (RequestUnanswered, MalformedMessage) as error:
                self._report(target, error)
                then(Disconnected(target, correlation_id))

        request = to_wire(body)
        if isinstance(request, w.LeaderAndIsrRequest | w.StopReplicaRequest | w.UpdateMetadataRequest):
            request.receiver_id, request.number = target, correlation_id
        link.ask(request, API_OF[type(request)].latest, answered)

    def _report(self, target: int, error: Exception) -> None:
        if isinstance(error, AuthenticationFailed) and target not in self._refusing:
            self._refusing.add(target)
            _log.warning(
                "broker %d takes no requests: %s. Check the sasl.jaas.config by which brokers log in",
                target,
                error,
            )
        else:
            _log.info("no answer from broker %d: %s", target, error)

    def ask_controller(self, body: RequestBody, then: Callable[[ResponseBody | None], None]) -> bool:
        """Send the controller, which is another broker, a client's request.

        `then` gets None without an answer.

        Returns False if no controller is known.
        """
        link = self._link(self._node.replicas.metadata.controller_id, Lane.ERRANDS)
        if link is None:
            return False

        def answered(answer: Struct | RequestUnanswered) -> None:
            try:
                then(None if isinstance(answer, RequestUnanswered) else client_messages.response_of(answer))
            except MalformedMessage as error:
                _log.info("invalid response from the controller: %s", error)
                then(None)

        request = client_messages.request_of(body)
        link.ask(request, API_OF[type(request)].latest, answered)
        return True

    def forward(
        self, request: Struct, version: int, then: Callable[[Struct | RequestUnanswered], None]
    ) -> bool:
        """Forward a client's request to the controller, in the same version; else as `ask_controller`."""
        link = self._link(self._node.replicas.metadata.controller_id, Lane.FORWARDED)
        if link is None:
            return False
        link.ask(request, version, then)
        return True

    def _link(self, target: int, lane: Lane) -> Link | None:
        """Return the connection to a broker; None if its address is unknown."""
        security, address = self._way_to(target, lane)
        link = self._links.get((target, lane))
        if link is not None and link.address != address:
            link.close()
            del self._links[target, lane]
            link = None
        if link is None and address is not None:
            client_id = client_id_of(self._node.node_id)
            link = Link(
                address,
                client_id=client_id,
                limits=self._limits,
                scratch=self._scratch,
                security=security,
            )
            self._links[target, lane] = link
        return link

    def _way_to(self, broker_id: int, lane: Lane) -> tuple[ClientSecurity, Address | None]:
        """Return the broker's registered address, on the listener for this purpose.

        The controller's copy counts, else the metadata cache. A broker without a listener for the controller,
        which is yet to be restarted, is reached on that of the brokers.
        """
        control = self.security.control_plane if lane is not Lane.FETCHES else None
        context = self._node.controller.context
        if context is not None and broker_id in context.brokers:
            endpoint = context.brokers[broker_id].endpoint
        elif broker_id in self._node.replicas.metadata.brokers:
            endpoint = self._node.replicas.metadata.brokers[broker_id]
        else:
            return self.security, None
        if control is not None and (found := endpoint.on(control.listener)) is not None:
            return control, Address(*found)
        found = endpoint.on(self.security.listener)
        return self.security, Address(*found) if found is not None else None

"""Requests to the active controller: one attempt each, and topics that are made or removed for certain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logstore.broker.client_messages import is_not_controller
from logstore.broker.cluster_view import ClusterView, address_of, is_led
from logstore.broker.connections import Connections
from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.broker.retrying import NO_BROKER, TryAgain, left_s
from logstore.disk.errors import ErrorCode
from logstore.replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    MetadataResponse,
    NewTopic,
    RequestBody,
    ResponseBody,
)

_METADATA_SPREADS_S: Final = 0.005
"""Pause between looks at every broker's metadata after a change of topics."""


async def ask_controller(
    cluster: ClusterView, connections: Connections, body: RequestBody, deadline: float
) -> ResponseBody:
    """Send a request to the controller, once, when one has been found. Raises `RequestUnanswered`."""

    async def once() -> ResponseBody:
        try:
            metadata = await cluster.of_controller()
        except RequestUnanswered as error:
            raise TryAgain(error) from error
        address = address_of(metadata, metadata.controller_id)
        answer = await connections.ask(address, body) if address is not None else None
        if answer is None or is_not_controller(answer):
            raise TryAgain
        return answer

    return await cluster.retried(once, "no controller was found", deadline)


async def make_topic(cluster: ClusterView, connections: Connections, new: NewTopic, deadline: float) -> None:
    """Create a topic and wait until every broker knows its leaders. Raises as `Client.create_topic`."""
    request = CreateTopicsRequest((new,))
    await _carried_out(cluster, connections, request, new.name, ErrorCode.TOPIC_ALREADY_EXISTS, deadline)
    await _known(
        cluster,
        new.name,
        lambda found: is_led(found, new.name),
        f"not every broker knows the leaders of {new.name} yet",
        deadline,
    )


async def remove_topic(cluster: ClusterView, connections: Connections, topic: str, deadline: float) -> None:
    """Delete a topic and wait until no broker lists it. Raises as `Client.delete_topic`."""
    request, gone = DeleteTopicsRequest((topic,)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await _carried_out(cluster, connections, request, topic, gone, deadline)
    await _known(
        cluster,
        topic,
        lambda found: not any(name == topic for name, _ in found.partitions),
        f"not every broker knows yet that {topic} is deleted",
        deadline,
    )


async def _carried_out(
    cluster: ClusterView,
    connections: Connections,
    request: CreateTopicsRequest | DeleteTopicsRequest,
    topic: str,
    done_before: ErrorCode,
    deadline: float,
) -> None:
    """Ask until there is an answer; after a lost one, `done_before` means that the lost request did it."""
    was_lost = False
    while True:
        try:
            answer = await ask_controller(cluster, connections, request, deadline)
        except RequestUnanswered as error:
            is_final = not error.retriable or connections.closed is not None
            if is_final or not left_s(deadline):
                raise
            was_lost = True
            continue
        assert isinstance(answer, CreateTopicsResponse | DeleteTopicsResponse)
        result = answer.topics[topic]
        is_deletion = isinstance(answer, DeleteTopicsResponse)
        if (
            result.error is ErrorCode.NONE
            or (was_lost and result.error is done_before)
            or (is_deletion and result.error is ErrorCode.REQUEST_TIMED_OUT)  # recorded, and continues
        ):
            return
        raise RequestRefused(result.error, result.message or f"topic {topic}")


async def _known(
    cluster: ClusterView,
    topic: str,
    is_known: Callable[[MetadataResponse], bool],
    waiting: str,
    deadline: float,
) -> None:
    """Wait until `is_known` holds for the topic's metadata of every broker."""

    async def once() -> None:
        answers = await cluster.ask_all((topic,))
        if not answers or not all(is_known(answer) for answer in answers):
            raise TryAgain(RequestUnanswered(waiting))

    await cluster.retried(once, NO_BROKER, deadline, pause_s=_METADATA_SPREADS_S)

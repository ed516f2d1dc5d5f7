"""The audit lines of a forwarded request."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.broker.dispatch import Call
from logstore.broker.errors import AuthenticationFailed, NotConnected, RequestUnanswered
from logstore.broker.handlers import HANDLERS
from logstore.broker.handlers.forwarding import at_the_controller
from logstore.broker.peers import Peers
from logstore.broker.security.audited import ADMINISTRATIVE, changes_of, in_doubt
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import APIS
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode
from tests.broker.security.test_limiter import Line

PASSED_ON: list[tuple[Struct, list[tuple[str, str]]]] = [
    (
        t.CreateTopicsRequest(
            topics=[t.CreateTopicsRequestCreatableTopic(name=each, num_partitions=3) for each in "ab"]
        ),
        [("topic created", "a"), ("topic created", "b")],
    ),
    (t.DeleteTopicsRequest(topic_names=["a"]), [("topic deleted", "a")]),
    (
        t.DeleteTopicsRequest(topics=[t.DeleteTopicsRequestDeleteTopicState(name="a")]),
        [("topic deleted", "a")],
    ),
    (
        t.CreatePartitionsRequest(
            topics=[t.CreatePartitionsRequestCreatePartitionsTopic(name="a", count=9, assignments=None)]
        ),
        [("partitions created", "a")],
    ),
    (
        t.ElectLeadersRequest(
            topic_partitions=[t.ElectLeadersRequestTopicPartitions(topic="a", partitions=[2])]
        ),
        [("leader elected", "a-2")],
    ),
    (
        t.AlterPartitionReassignmentsRequest(
            topics=[
                t.AlterPartitionReassignmentsRequestReassignableTopic(
                    name="a",
                    partitions=[
                        t.AlterPartitionReassignmentsRequestReassignablePartition(
                            partition_index=2, replicas=[1]
                        )
                    ],
                )
            ]
        ),
        [("reassignment begun", "a-2")],
    ),
]


@pytest.mark.parametrize(
    "lost", [RequestUnanswered("gone"), NotConnected("away"), AuthenticationFailed("no")]
)
def test_what_was_passed_on_to_a_controller_that_died_is_audited(lost: RequestUnanswered) -> None:
    """It may have made the change. What was not sent, it has not made."""
    handled: list[Struct] = []
    link = SimpleNamespace(ask=lambda _body, _version, then: then(lost))
    metadata = SimpleNamespace(controller_id=1)
    node = SimpleNamespace(replicas=SimpleNamespace(metadata=metadata))
    peers: Any = SimpleNamespace(_node=node, _link=lambda *_: link)

    def handle(_call: Call, body: Struct, _services: object) -> None:
        handled.append(body)

    for body, expected in PASSED_ON:
        heard: list[tuple[str, str, object]] = []

        def hear(answer: Struct, body: Struct = body, heard: list[Any] = heard) -> None:
            for event, facts in changes_of(type(body).KEY, body, answer):
                heard.append((event, facts.get("topic") or facts["partition"], facts.get("error")))

        def forward(body: Struct, version: int, _client: str, then: Callable[[Any], None]) -> bool:
            return Peers.forward(peers, body, version, then)

        api = APIS[type(body).KEY]
        call = Call(Line("User:bob"), api, api.latest, 1, "test")
        call.hear = hear
        services: Any = SimpleNamespace(runtime=SimpleNamespace(forward=forward))
        at_the_controller(handle)(call, body, services)
        assert handled.pop() == body, "this broker answers"
        was_sent = type(lost) is RequestUnanswered
        assert heard == [(*each, "REQUEST_TIMED_OUT") for each in expected if was_sent]
    assert {type(body).KEY for body, _ in PASSED_ON} == {
        key for key in ADMINISTRATIVE if HANDLERS[key].__qualname__.startswith("at_the_controller")
    }


@pytest.mark.parametrize(("told", "logged"), [(-1, "default"), (5, 5)])
def test_a_default_number_of_partitions_is_not_logged_as_minus_one(told: int, logged: object) -> None:
    request = t.CreateTopicsRequest(topics=[t.CreateTopicsRequestCreatableTopic(name="a", num_partitions=-1)])
    done = t.CreateTopicsResponseCreatableTopicResult(name="a", num_partitions=told)
    ((_, facts),) = changes_of(19, request, t.CreateTopicsResponse(topics=[done]))
    assert facts["partitions"] == logged


def test_a_change_in_doubt_was_not_denied() -> None:
    request = t.DeleteTopicsRequest(topic_names=["a"])
    answer: Any = in_doubt(request, t.DeleteTopicsResponse)
    assert [(each.error_code, each.error_message) for each in answer.responses] == [
        (ErrorCode.REQUEST_TIMED_OUT, None)
    ]

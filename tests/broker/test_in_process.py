"""The way to a broker on the same loop is what a link is: at most one word about each request."""

from __future__ import annotations

from typing import Any, cast

import pytest

from logstore.broker.dispatch import Call, Dispatch
from logstore.broker.errors import RequestFailed, RequestUnanswered
from logstore.broker.in_process import InProcess
from logstore.broker.limits import Address
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.declarations import Struct

REQUEST = t.MetadataRequest()
VERSION = API_OF[t.MetadataRequest].latest


class Handlers:
    """Keeps the calls; what comes of them is the test's."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def serve(self, call: Call, body: Struct) -> None:
        assert body is REQUEST
        self.calls.append(call)


def way(handlers: Handlers) -> InProcess:
    return InProcess(cast(Dispatch, handlers), Address("127.0.0.1", 9), client_id="me")


def test_an_answer_is_handed_over_as_it_is_and_once() -> None:
    handlers = Handlers()
    told: list[object] = []
    way(handlers).ask(REQUEST, VERSION, told.append)
    (call,) = handlers.calls
    assert (call.version, call.client_id, call.connection.peer) == (VERSION, "me", "in-process")
    timed: list[bool] = []
    call.on_answer = lambda: timed.append(True)
    answer = t.MetadataResponse()
    call.answer(answer)
    call.answer(t.MetadataResponse())
    call.refuse("too late")
    assert told == [answer]
    assert told[0] is answer
    assert timed == [True]


def test_a_refusal_and_no_answer_are_words_too() -> None:
    handlers = Handlers()
    told: list[object] = []
    for _ in range(2):
        way(handlers).ask(REQUEST, VERSION, told.append)
    handlers.calls[0].refuse("as the test says")
    handlers.calls[1].end()
    assert [type(each) for each in told] == [RequestUnanswered] * 2
    assert "as the test says" in str(told[0])


def test_without_a_listener_nobody_is_told() -> None:
    handlers = Handlers()
    way(handlers).ask(REQUEST, VERSION, None)
    handlers.calls[0].end()


def test_what_waits_when_it_is_closed_is_lost_and_what_comes_later() -> None:
    handlers = Handlers()
    told: list[object] = []
    closing = way(handlers)
    closing.ask(REQUEST, VERSION, told.append)
    closing.close()
    closing.ask(REQUEST, VERSION, told.append)
    handlers.calls[0].answer(t.MetadataResponse())
    assert [type(each) for each in told] == [RequestUnanswered] * 2
    assert len(handlers.calls) == 1, "a closed way asks nothing"


@pytest.mark.parametrize("name", [None, b"x", 5, ["a"], "\udc80"])
@pytest.mark.parametrize("then", [None, list[object]().append])
def test_what_cannot_be_encoded_is_not_served(name: Any, then: Any) -> None:
    """Handlers and the engine rely on the types of the fields: a wrong one stopped the whole broker."""
    handlers = Handlers()
    new = t.CreateTopicsRequestCreatableTopic(name=name, num_partitions=1, replication_factor=1)
    with pytest.raises(RequestFailed, match="cannot be encoded"):
        way(handlers).ask(t.CreateTopicsRequest(topics=[new]), API_OF[t.CreateTopicsRequest].latest, then)
    assert handlers.calls == []


def test_a_bug_of_a_handler_is_told_and_not_to_be_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    handlers = Handlers()
    told: list[Any] = []
    way(handlers).ask(REQUEST, VERSION, told.append)

    def broken() -> Struct:
        raise LookupError("as the test says")

    handlers.calls[0].finish(broken)
    handlers.calls[0].finish(t.MetadataResponse)
    [failure] = told
    assert type(failure) is RequestFailed
    assert not failure.retriable
    assert "LookupError('as the test says')" in str(failure)
    assert "as the test says" in caplog.text, "with its traceback"

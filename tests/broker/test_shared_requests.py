"""How many requests of a broker the calls of a shared queue need, and when one sees what others did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from logstore.broker import SharedQueue
from logstore.broker.shared_lane import SharedLane
from logstore.queue import Message, QueueConfig
from logstore.queue.waiting import Deadline
from tests.broker.test_shared_queue import (  # noqa: F401 - fixtures
    LIMIT_S,
    Clients,
    Clock,
    clients_of_the_test,
    got,
    one_broker,
    still_clock,
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[SharedQueue], list[str]]:
    """The requests of a queue from now on, in a list that grows; its known topics stay fresh."""

    def watched(queue: SharedQueue) -> list[str]:
        asked: list[str] = []
        monkeypatch.setattr(queue, "_learned", Deadline(None))
        for name in ("append", "read", "topics"):
            call = getattr(queue._calls, name)

            def counted(*args: Any, name: str = name, call: Any = call, **options: Any) -> Any:
                asked.append(name)
                return call(*args, **options)

            monkeypatch.setattr(queue._calls, name, counted)
        return asked

    return watched


Asked = Callable[[SharedQueue], list[str]]


def test_who_is_alone_needs_one_request_for_each_call(clients: Clients, clock: Clock, asked: Asked) -> None:
    queue, other = clients.connect(), clients.connect()
    queue.put_many([b"%d" % number for number in range(30)])
    queue.ack(got(queue))
    requests = asked(queue)
    for _ in range(10):
        queue.ack(got(queue))
    assert requests == ["append"] * 20
    first = got(other)
    requests.clear()
    second = got(queue)
    assert (first.value, second.value) == (b"11", b"12")
    assert requests == ["append", "read", "append"], "its choice was taken: it reads, and chooses again"
    other.ack(first)
    requests.clear()
    queue.ack(second)
    assert requests == ["append", "read"]
    requests.clear()
    clock.now_ms += 101
    queue.ack(got(queue))
    assert requests == ["read", "append", "append"]


def test_who_is_not_alone_needs_two_requests_for_each_call(clients: Clients, asked: Asked) -> None:
    one, two = clients.connect(), clients.connect()
    one.put_many([b"%d" % number for number in range(40)])
    for queue in (one, two):
        queue.ack(got(queue))
    one.ack(got(one))
    two.ack(got(two))
    requests, found = asked(one), []
    for _ in range(10):
        theirs = got(two)
        found.append(int(got(one).value))
        two.ack(theirs)
    assert requests == ["append", "read"] * 10, "it named others beside the one that was taken"
    assert found == list(range(5, 25, 2)), "the next one that was free"


def test_a_look_a_moment_ago_serves_the_next_message(clients: Clients, clock: Clock) -> None:
    """A message that another process returned since then is delivered later."""
    one, two = clients.connect(), clients.connect()
    one.put_many([b"%d" % number for number in range(10)])
    got(one)
    returned = got(two)
    got(one)
    two.nack(returned)
    clock.now_ms += 100
    assert got(one).value == b"3"
    two.nack(got(two))
    clock.now_ms += 101
    assert (got(one).value, got(one).value) == (b"1", b"4")


def held_by_one_while_another_is_alone(one: SharedQueue, two: SharedQueue) -> Message:
    """Put nine messages; `one` holds the first, and `two` finishes so many that it counts as alone."""
    one.put_many([b"%d" % number for number in range(9)])
    first = got(one)
    for _ in range(4):
        two.ack(got(two))
    return first


def test_who_was_alone_gets_a_returned_message_before_new_ones(clients: Clients, clock: Clock) -> None:
    one, two = clients.connect(), clients.connect()
    one.nack(held_by_one_while_another_is_alone(one, two))
    clock.now_ms += 101
    assert (got(two).value, got(two).value) == (b"0", b"5")


def test_who_is_alone_sees_that_the_lease_of_another_was_extended(clients: Clients, clock: Clock) -> None:
    one, two = clients.connect(), clients.connect()
    first = held_by_one_while_another_is_alone(one, two)
    second = got(two)
    one.extend(first, lease=100)
    clock.now_ms += 30_000
    again = got(two)
    assert (again.value, again.deliveries) == (second.value, 2)
    one.ack(first)


def test_a_get_that_waits_seldom_looks_for_new_topics(
    clients: Clients,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That reads the metadata of all topics of the cluster."""
    one, two = clients.connect(), clients.connect()
    two.put(b"first")
    one.ack(got(one))
    requests = asked(one)
    monkeypatch.setattr(SharedLane, "wait", lambda lane, seconds: two.put(b"next"))
    for _ in range(5):
        message = one.get(timeout=LIMIT_S)
        assert message is not None
        one.ack(message)
    assert "topics" not in requests
    assert one.get("another", timeout=0) is None
    assert requests.count("topics") == 1, "once before it says that there is none"


def test_what_a_worker_held_that_died_is_taken_over_with_few_requests(
    clients: Clients,
    clock: Clock,
    asked: Asked,
) -> None:
    """It was three requests for each message."""
    one, two = clients.connect(QueueConfig(max_deliveries=2)), clients.connect(QueueConfig(max_deliveries=2))
    one.put_many([b"%d" % number for number in range(100)])
    assert len(one.get_many(90, timeout=0)) == 90
    two.ack(got(two))
    clock.now_ms += 30_000
    requests = asked(two)
    again = two.get_many(200, timeout=0)
    assert [(int(each.value), each.deliveries) for each in again] == [
        *((number, 2) for number in range(90)),
        *((number, 1) for number in range(91, 100)),
    ]
    assert len(requests) < 20, requests
    two.ack_many(again[5:])
    clock.now_ms += 30_000
    assert two.get_many(200, timeout=0) == []
    assert [int(letter.message.value) for letter in two.dead_letters()] == [0, 1, 2, 3, 4]

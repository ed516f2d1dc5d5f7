"""Checkpoints of a shared queue: how short its topics stay, and what becomes of a client that was away."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from logstore.broker import BlockingClient, Broker, BrokerConfig, RequestRefused, SharedQueue, shared_lane
from logstore.disk.errors import ErrorCode
from logstore.queue import AlreadyFinished, Message, QueueConfig
from logstore.queue.state import Event, EventKind

EVERY = 6


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_lane, "CHECKPOINT_EVENTS", EVERY)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(BrokerConfig()) as running:
        yield running


def got(queue: SharedQueue) -> Message:
    message = queue.get(timeout=0)
    assert message is not None, queue.stats()
    return message


def work(queue: SharedQueue, count: int) -> None:
    """Put, get and finish so many messages: two events each."""
    for number in range(count):
        queue.put(b"%d" % number)
        queue.ack(got(queue))


def starts(broker: Broker) -> tuple[int, int]:
    """Where the messages and the events begin."""
    names = ("jobs.default", "jobs.default.__events")
    messages, events = (broker.topic(name).partition(0).log_start_offset for name in names)
    return messages, events


def test_finished_messages_and_their_events_are_deleted(broker: Broker) -> None:
    """All but those of about two intervals, whatever the queue has done before."""
    with SharedQueue(broker, "jobs") as queue:
        for round_ in range(5):
            work(queue, 20)
            messages, events = starts(broker)
            ends = [
                broker.topic(name).partition(0).log_end_offset
                for name in queue._calls.topics()
                if "default" in name
            ]
            assert ends[0] - messages <= 2 * EVERY, round_
            assert EVERY <= ends[1] - events <= 3 * EVERY, round_
        assert queue.stats().topics["default"][:4] == (0, 0, 0, 100)
        with SharedQueue(broker, "jobs") as other:
            assert other.get(timeout=0) is None
            assert other.stats().topics["default"][:4] == (0, 0, 0, 100)


def test_an_old_unfinished_message_keeps_its_place(broker: Broker) -> None:
    """Lease, deliveries and delay are those of the checkpoint, for one who knows nothing else."""
    now_ms = [1_700_000_000_000]
    queue = SharedQueue(broker, "jobs", clock=lambda: now_ms[0])
    queue.put_many([b"returned", b"leased", b"delayed"])
    first, second, third = got(queue), got(queue), got(queue)
    queue.nack(first)
    first = got(queue)
    queue.nack(third, delay=1000)
    queue.extend(second, lease=500)
    for number in range(20):
        queue.put(b"%d" % number)
        message = got(queue)
        assert message.value == b"%d" % number
        queue.ack(message)
    assert starts(broker)[0] == 0
    assert starts(broker)[1] > EVERY
    other = SharedQueue(broker, "jobs", clock=lambda: now_ms[0])
    assert other.get(timeout=0) is None
    assert other.stats().topics["default"][:4] == (0, 2, 1, 20)
    now_ms[0] += 30_000
    again = got(other)
    assert (again.value, again.deliveries) == (b"returned", 3)
    now_ms[0] += 470_000
    other.ack(again)
    again = got(other)
    assert (again.value, again.deliveries) == (b"leased", 2)
    other.ack(again)
    now_ms[0] += 500_000
    again = got(other)
    assert (again.value, again.deliveries) == (b"delayed", 2)


def test_a_client_that_was_away(broker: Broker) -> None:
    """Its next event is gone: it goes on with a checkpoint, and its message is still its own."""
    with SharedQueue(broker, "jobs") as queue, SharedQueue(broker, "jobs") as away:
        queue.put(b"mine")
        mine = got(away)
        work(queue, 20)
        assert starts(broker)[1] > EVERY
        away.ack(mine)
        assert away.get(timeout=0) is None
        assert starts(broker)[0] == 0
        work(queue, 20)
        assert starts(broker)[0] > 2


@pytest.mark.parametrize("was_returned", [True, False])
def test_a_client_that_was_paused_when_it_had_chosen(broker: Broker, was_returned: bool) -> None:
    """Meanwhile others finished what it had chosen, and deleted it."""
    one, two = SharedQueue(broker, "jobs"), SharedQueue(broker, "jobs")
    one.put_many([b"0", b"1"])
    if was_returned:
        one.nack(got(one))
    paused = two._shared_lane("default")
    paused.catch_up()
    one.ack_many(one.get_many(2, timeout=0))
    work(one, 20)
    assert starts(broker)[0] > 1
    assert paused.take(0, 1000, 2) == []
    one.put(b"2")
    assert [message.value for message in paused.take(0, 1000, 2)] == [b"2"]


def test_a_client_that_was_paused_when_it_had_found_a_lease_over(broker: Broker) -> None:
    one, two = SharedQueue(broker, "jobs"), SharedQueue(broker, "jobs", QueueConfig(max_deliveries=1))
    one.put(b"job")
    message = got(one)
    assert two.get(timeout=0) is None
    one.ack(message)
    work(one, 20)
    two._return(two._lanes["default"], Event(EventKind.ENDED, (0,), 0, 1), "its lease ended")
    assert list(one.dead_letters()) == []


@pytest.mark.parametrize("is_finished_by_it", [True, False])
def test_an_event_that_is_deleted_before_it_is_read(broker: Broker, is_finished_by_it: bool) -> None:
    """An acknowledgement has its effect; a lease that may be another's is left alone."""
    with SharedQueue(broker, "jobs") as queue, SharedQueue(broker, "jobs") as slow:
        queue.put_many([b"0", b"1"])
        message = got(slow) if is_finished_by_it else None
        append, patch = slow._calls.append, pytest.MonkeyPatch()

        def then_others(topic: str, *args: Any, **options: Any) -> Any:
            patch.undo()
            work(queue, 1)
            placed = append(topic, *args, **options)
            work(queue, 5 * EVERY)
            return placed

        lane = slow._existing("default")
        assert lane is not None
        lane.catch_up()
        patch.setattr(slow._calls, "append", then_others)
        if message is not None:
            slow.ack(message)
            with pytest.raises(AlreadyFinished):
                slow.ack(message)
        else:
            taken = slow.get(timeout=0)
            assert taken is None or taken.value != b"0"


def test_a_client_that_may_not_delete(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, and works on; openings are short nevertheless."""

    def refuse(*_: object, **__: object) -> None:
        raise RequestRefused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no Delete on jobs.default")

    with SharedQueue(broker, "jobs") as queue, caplog.at_level(logging.WARNING, shared_lane.__name__):
        with monkeypatch.context() as forbidden:
            forbidden.setattr(broker, "delete_records", refuse)
            work(queue, 20)
        assert starts(broker) == (0, 0)
        warnings = [each.getMessage() for each in caplog.records]
        assert len(warnings) == 1
        assert "no Delete on jobs.default" in warnings[0]
        work(queue, 20)
        assert min(starts(broker)) > 20


def test_a_checkpoint_that_would_be_too_large_waits(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with SharedQueue(broker, "jobs") as queue:
        with monkeypatch.context() as limited:
            limited.setattr(shared_lane, "_MOST_CHECKPOINT_BYTES", 10)
            work(queue, 20)
        assert starts(broker) == (0, 0)
        work(queue, 20)
        assert min(starts(broker)) > 20


@pytest.mark.parametrize("is_used", [True, False])
def test_events_without_a_checkpoint(broker: Broker, caplog: pytest.LogCaptureFixture, is_used: bool) -> None:
    """A power cut of all brokers may take it: every message that is stored is delivered again."""
    with SharedQueue(broker, "jobs") as queue:
        queue.put_many([b"0", b"1", b"2"])
        queue.ack(got(queue))
        broker.delete_records("jobs.default.__events", 0, -1)
        if is_used:
            queue.ack(got(queue))
    with SharedQueue(broker, "jobs") as other, caplog.at_level(logging.WARNING, shared_lane.__name__):
        found = sorted(message.value for message in other.get_many(10, timeout=0))
        assert found == ([b"0", b"2"] if is_used else [b"0", b"1", b"2"])
    assert "all stored messages are delivered again" in caplog.text


def test_a_checkpoint_before_the_first_event(broker: Broker) -> None:
    """It needs events that are gone; the next one does not."""
    with SharedQueue(broker, "jobs") as queue:
        work(queue, 20)
        broker.delete_records("jobs.default.__events", 0, starts(broker)[1] + 1)
        queue.put(b"last")
        with SharedQueue(broker, "jobs") as other:
            assert other.stats().topics["default"][:4] == (1, 0, 0, 20)
            assert got(other).value == b"last"


def test_dead_letters_are_put_again(broker: Broker) -> None:
    with SharedQueue(broker, "jobs", QueueConfig(max_deliveries=1)) as queue:
        assert queue.redrive() == 0
        queue.put(b"0", key=b"key", headers=[("name", b"value")], topic="mail")
        queue.put(b"1")
        while (message := queue.get(timeout=0)) is not None:
            assert not queue.nack(message)
        assert queue.stats().dead_letters == 2
        assert queue.redrive() == 2
        assert (queue.stats().dead_letters, queue.redrive()) == (0, 0)
        again = queue.get("mail", timeout=0)
        assert again is not None
        assert (again.value, again.key, again.headers, again.deliveries) == (
            b"0",
            b"key",
            (("name", b"value"),),
            1,
        )
        assert got(queue).value == b"1"
        assert list(queue.dead_letters()) == []


def test_deleting_records(broker: Broker) -> None:
    """From within, and over a connection."""
    broker.create_topic("orders")
    broker.append("orders", [b"0", b"1", b"2"])
    with BlockingClient([broker.address]) as client:
        assert client.delete_records("orders", 0, 1) == 1
        assert broker.delete_records("orders", 0, 0) == 1
        with pytest.raises(RequestRefused) as refused:
            client.delete_records("orders", 0, 4)
        assert refused.value.error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert [each.value for each in client.scan("orders")] == [b"1", b"2"]
        assert client.delete_records("orders", 0, -1) == 3
    with pytest.raises(TypeError, match="before_offset"):
        broker.delete_records("orders", 0, "1")  # type: ignore[arg-type]


@pytest.mark.parametrize("who", ["a consumer", "a producer"])
@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_messages_that_a_power_cut_took(
    broker: Broker, caplog: pytest.LogCaptureFixture, who: str, is_checkpointed: bool
) -> None:
    """Their events are there: the messages that come next have their offsets, and are delivered."""
    with SharedQueue(broker, "jobs") as queue:
        queue.put_many([b"old %d" % number for number in range(5)])
        found = queue.get_many(4, timeout=0)
        queue.ack_many(found[1:])
        if is_checkpointed:
            work(queue, 20)
    emptied(broker)
    broker.append("jobs.default", [b"old 0", b"old 1"], partition=0)
    new = [b"new %d" % number for number in range(6)]
    with caplog.at_level(logging.WARNING, shared_lane.__name__):
        producer, consumer = SharedQueue(broker, "jobs"), SharedQueue(broker, "jobs")
        if who == "a consumer":
            assert consumer.get(timeout=0) is None
        assert producer.put_many(new[:1]) == [2]
        producer.put_many(new[1:])
        assert [message.value for message in consumer.get_many(20, timeout=0)] == new
        assert SharedQueue(broker, "jobs").get(timeout=0) is None
    assert len(caplog.records) == 1
    assert "messages 2 to " in caplog.text


def emptied(broker: Broker) -> None:
    broker.delete_topic("jobs.default")
    broker.create_topic("jobs.default", 1)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_what_was_read_ahead_of_a_loss(broker: Broker, count: int) -> None:
    """Those who read it take none of it, and leave no lease of what was put in its place, or will be."""
    with SharedQueue(broker, "jobs") as queue, SharedQueue(broker, "jobs") as other:
        queue.put_many([b"old"] * 3)
        got(queue)
        emptied(broker)
        assert other.get(timeout=0) is None
        values = [b"%d" % each for each in range(count)]
        other.put_many(values)
        assert [message.value for message in queue.get_many(4, timeout=0)] == values
        assert other.get(timeout=0) is None
        other.put_many([b"a", b"b", b"c"])
        assert [message.value for message in queue.get_many(4, timeout=0)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_put_tells_of_a_loss(broker: Broker, count: int) -> None:
    with SharedQueue(broker, "jobs") as queue, SharedQueue(broker, "jobs") as other:
        queue.put_many([b"old"] * count)
        queue.get_many(count)
        emptied(broker)
        other.put(b"new")
        assert got(other).value == b"new"


def test_a_loss_that_is_told_before_a_lease_begins(broker: Broker) -> None:
    """The message that was chosen is gone, and the one in its place is returned."""
    now_ms = [1_700_000_000_000]
    queue, other = (SharedQueue(broker, "jobs", clock=lambda: now_ms[0]) for _ in range(2))
    queue.put_many([b"old"] * 3)
    got(queue)
    append, patch = broker.append, pytest.MonkeyPatch()

    def after_others(*args: Any, **options: Any) -> Any:
        patch.undo()
        emptied(broker)
        assert other.get(timeout=0) is None
        other.put_many([b"0", b"1"])
        return append(*args, **options)

    patch.setattr(broker, "append", after_others)
    assert [got(queue).value for _ in range(2)] == [b"0", b"1"]
    assert queue.get(timeout=0) is None


def test_an_extension_whose_event_is_deleted_before_it_is_read(broker: Broker) -> None:
    """The lease was extended, as the next checkpoint says, and `extend` raised `LeaseEnded`."""
    queue, other = SharedQueue(broker, "jobs"), SharedQueue(broker, "jobs")
    queue.put(b"mine")
    mine = got(queue)
    append, patch, appended = broker.append, pytest.MonkeyPatch(), list[int]()

    def among_others(*args: Any, **options: Any) -> Any:
        patch.undo()
        work(other, 1)
        done = append(*args, **options)
        appended.append(done.offset)
        work(other, 20)
        return done

    patch.setattr(broker, "append", among_others)
    queue.extend(mine, lease=500)
    assert starts(broker)[1] > appended[0]
    queue.ack(mine)


def test_an_end_that_comes_after_a_loss(broker: Broker) -> None:
    """It is of the message that is gone, and the one in its place is delivered."""
    with SharedQueue(broker, "jobs") as queue, SharedQueue(broker, "jobs") as other:
        queue.put(b"old")
        message = got(queue)
        emptied(broker)
        assert other.get(timeout=0) is None
        other.put(b"new")
        with pytest.raises(ValueError, match="a power cut took it"):
            queue.ack(message)
        assert got(other).value == b"new"


@pytest.mark.parametrize("before", range(15, 19))
def test_checkpoints_from_before_a_loss_let_nothing_go(broker: Broker, before: int) -> None:
    """New messages have offsets that were finished then. They were deleted while nobody had finished them."""
    with SharedQueue(broker, "jobs") as queue:
        work(queue, before)
    emptied(broker)
    with SharedQueue(broker, "jobs") as queue:
        assert queue.get(timeout=0) is None
        queue.put_many([b"%d" % number for number in range(40)])
        taken = [got(queue) for _ in range(40)]
        assert starts(broker)[0] == 0
        queue.ack_many(taken)


def test_two_that_come_after_a_loss(broker: Broker) -> None:
    """One tells of it before it puts. The other took the message for one of those that were finished."""
    with SharedQueue(broker, "jobs") as queue:
        queue.put_many([b"old"] * 3)
        queue.ack_many(queue.get_many(3))
    emptied(broker)
    one, two = SharedQueue(broker, "jobs"), SharedQueue(broker, "jobs")
    append, patch = broker.append, pytest.MonkeyPatch()

    def before_others(*args: Any, **options: Any) -> Any:
        patch.undo()
        placed = append(*args, **options)
        assert two.get(timeout=0) is None
        return placed

    patch.setattr(broker, "append", before_others)
    one.put(b"new")
    with SharedQueue(broker, "jobs") as queue:
        assert got(queue).value == b"new"


def test_a_message_at_its_last_delivery_that_a_power_cut_took(broker: Broker) -> None:
    """It becomes no dead letter, and others are delivered; each `get` failed."""
    now_ms = [1_700_000_000_000]
    queue, other = (
        SharedQueue(broker, "jobs", QueueConfig(max_deliveries=1), clock=lambda: now_ms[0]) for _ in range(2)
    )
    queue.put(b"old")
    got(queue)
    emptied(broker)
    now_ms[0] += 30_000
    assert other.get(timeout=0) is None
    other.put(b"new")
    assert got(other).value == b"new"
    assert list(other.dead_letters()) == []


@pytest.mark.parametrize("was_taken", [True, False])
def test_a_key_whose_message_a_power_cut_took(broker: Broker, was_taken: bool) -> None:
    """It is new. `put` returned the offset of a message that was gone."""
    config = QueueConfig(deduplication_window=3600)
    with SharedQueue(broker, "jobs", config) as queue:
        queue.put(b"old", key=b"key")
        if was_taken:
            got(queue)
    emptied(broker)
    with SharedQueue(broker, "jobs", config) as queue:
        assert queue.put(b"new", key=b"key") == 0
        assert got(queue).value == b"new"


def test_deleted_messages_whose_ends_a_power_cut_took(broker: Broker) -> None:
    """They were finished. Each `get` failed, as the messages that it chose were gone."""
    now_ms = [1_700_000_000_000]
    queue, other = (SharedQueue(broker, "jobs", clock=lambda: now_ms[0]) for _ in range(2))
    queue.put_many([b"0", b"1", b"2"])
    queue.get_many(2)
    broker.delete_records("jobs.default", 0, 2)
    now_ms[0] += 30_000
    assert got(other).value == b"2"
    assert other.stats().topics["default"][:4] == (0, 1, 0, 2)


def test_deleted_messages_of_which_a_power_cut_left_no_event(broker: Broker) -> None:
    with SharedQueue(broker, "jobs") as queue:
        queue.put_many([b"0", b"1", b"2"])
        broker.delete_records("jobs.default", 0, 2)
        assert got(queue).value == b"2"
        assert queue.stats().topics["default"][:4] == (0, 1, 0, 2)

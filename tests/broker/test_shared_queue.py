"""A queue on a broker: several clients, who must agree, and a process that dies with a message in hand."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from logstore.broker import BlockingClient, Broker, BrokerConfig, RequestUnanswered, SharedQueue, shared_lane
from logstore.broker.shared_lane import CHECKPOINT_EVENTS
from logstore.broker.topics import Partition
from logstore.disk.errors import InvalidTopic
from logstore.errors import InvalidConfig, RecordTooLarge
from logstore.queue import AlreadyFinished, LeaseEnded, Message, QueueClosed, QueueConfig
from logstore.queue.state import Event
from tests.queue.parts import falling_clock

LIMIT_S = 60


@pytest.fixture(scope="module", name="broker")
def one_broker() -> Iterator[Broker]:
    with Broker(BrokerConfig()) as running:
        yield running


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture(name="clock")
def still_clock() -> Clock:
    return Clock()


class Clients:
    """Several connections to one queue, named for the test."""

    def __init__(self, broker: Broker, name: str, clock: Clock) -> None:
        self._broker, self._name, self._clock = broker, name, clock
        self._clients: list[BlockingClient] = []

    def connect(self, config: QueueConfig | None = None) -> SharedQueue:
        self._clients.append(BlockingClient([self._broker.address]))
        return SharedQueue(self._clients[-1], self._name, config, clock=self._clock)

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture(name="clients")
def clients_of_the_test(broker: Broker, clock: Clock, request: pytest.FixtureRequest) -> Iterator[Clients]:
    made = Clients(broker, request.node.originalname.replace("_", "-"), clock)
    yield made
    made.close()


def got(queue: SharedQueue, *topics: str) -> Message:
    message = queue.get(topics or None, timeout=0)
    assert message is not None, queue.stats()
    return message


def test_each_message_goes_to_one_of_two(clients: Clients, clock: Clock) -> None:
    one, two = clients.connect(), clients.connect()
    assert one.put_many([b"0", (b"key", b"1"), b"2", b"3"]) == [0, 1, 2, 3]
    first, second, third = got(one), got(two), got(one)
    assert [(m.value, m.key, m.deliveries) for m in (first, second, third)] == [
        (b"0", None, 1),
        (b"1", b"key", 1),
        (b"2", None, 1),
    ]
    one.ack(first)
    two.ack(second)
    one.nack(third)
    clock.now_ms += 101
    assert [(m.value, m.deliveries) for m in (got(two), got(two))] == [(b"2", 2), (b"3", 1)]
    assert two.get(timeout=0) is None
    assert one.stats().topics["default"][:4] == two.stats().topics["default"][:4] == (0, 2, 0, 2)


def test_a_lease_that_ends_goes_to_another(clients: Clients, clock: Clock) -> None:
    one, two = clients.connect(), clients.connect()
    one.put(b"job")
    late = got(one)
    clock.now_ms += 29_999
    assert two.get(timeout=0) is None
    one.extend(late)
    clock.now_ms += 29_999
    assert two.get(timeout=0) is None
    clock.now_ms += 1
    again = got(two)
    assert again.deliveries == 2
    with pytest.raises(LeaseEnded):
        one.ack(late)
    two.ack(again)
    with pytest.raises(AlreadyFinished):
        two.ack(again)
    assert clients.connect().get(timeout=0) is None


@pytest.mark.parametrize("most", [1, 5])
def test_a_lease_that_is_extended_while_another_finds_it_over(
    clients: Clients, clock: Clock, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    config = QueueConfig(max_deliveries=most)
    one, two = clients.connect(config), clients.connect(config)
    one.put(b"job")
    message = got(one)
    assert two.get(timeout=0) is None
    lane = two._lanes["default"]
    happen = lane.happen

    def happen_late(event: Event) -> list[int]:
        monkeypatch.undo()
        one.extend(message)
        return happen(event)

    monkeypatch.setattr(lane, "happen", happen_late)
    clock.now_ms += 30_000
    assert two.get(timeout=0) is None
    one.ack(message)
    assert list(one.dead_letters()) == []


def test_who_reads_second_does_not_have_it(clients: Clients) -> None:
    """Both choose the same message; the event of one of them is first."""
    one, two = clients.connect(), clients.connect()
    one.put_many([b"0", b"1"])
    assert two.get(timeout=0) is not None
    stale = two._shared_lane("default")  # has read no event
    assert [message.value for message in stale.take(0, 1000, 1)] == [b"1"]


def test_of_many_that_two_choose_each_goes_to_one(clients: Clients) -> None:
    one, two = clients.connect(), clients.connect()
    one.put_many([b"%d" % number for number in range(50)])
    assert len(two.get_many(2, timeout=0)) == 2
    stale = two._shared_lane("default")
    assert [message.value for message in stale.take(0, 1000, 3)] == [b"2", b"3", b"4"]
    assert len(two.get_many(33, timeout=0)) == 33
    stale = two._shared_lane("default")
    assert [message.value for message in stale.take(0, 1000, 1)] == [b"38"], "all that it named were taken"


def test_many_at_once_are_one_event(clients: Clients, clock: Clock) -> None:
    """New ones next to each other, and the acknowledgements of as many deliveries."""
    one, two = clients.connect(), clients.connect()
    one.put_many([b"0", b"1"])
    one.put(b"2", delay=10)
    one.put_many([b"3", b"4"])
    found = two.get_many(10, timeout=0)
    assert [message.value for message in found] == [b"0", b"1", b"3", b"4"]
    lane = two._existing("default")
    assert lane is not None
    assert lane._position == 2
    one.nack(found[0])
    found[0] = got(two)
    assert found[0].deliveries == 2
    two.ack_many(found)
    assert lane._position == 2 + 2 + 2
    assert one.get(timeout=0) is None
    clock.now_ms += 10_000
    assert [message.value for message in one.get_many(10, timeout=0)] == [b"2"]


def test_acknowledging_many_that_are_not_leased(clients: Clients, clock: Clock) -> None:
    one, two = clients.connect(), clients.connect()
    one.put_many([b"0", b"1", b"2"])
    first, second, third = one.get_many(3, timeout=0)
    one.extend(second, lease=100)
    one.extend(third, lease=100)
    clock.now_ms += 30_000
    again = got(two)
    with pytest.raises(LeaseEnded):
        one.ack_many([second, third, first])  # one does not know yet that the first was taken
    assert two.stats().topics["default"].finished == 2
    with pytest.raises(LeaseEnded):
        one.ack_many([again, first])
    with pytest.raises(ValueError, match="twice"):
        one.ack_many([again, again])
    assert one.stats().topics["default"].finished == 2
    one.ack_many([])
    two.ack_many([again])


def test_delays_dead_letters_and_priorities(clients: Clients, clock: Clock) -> None:
    config = QueueConfig(max_deliveries=2, priorities={"urgent": 1})
    one, two = clients.connect(config), clients.connect(config)
    one.put(b"later", delay=10)
    one.put(b"poison")
    one.put(b"first", topic="urgent")
    assert [got(two).value, got(two, "default").value] == [b"first", b"poison"]
    clock.now_ms += 30_000
    message = next(m for m in (got(one) for _ in range(3)) if m.value == b"poison")
    assert message.deliveries == 2
    assert not one.nack(message, reason="bad")
    (letter,) = two.dead_letters()
    assert (letter.message, letter.reason) == (message, "bad")
    assert letter.timestamp_ms == message.timestamp_ms + 30_000
    assert one.stats().dead_letters == 1
    assert [m.value for m in two.peek()] == [b"later"]


def test_the_largest_message_becomes_a_dead_letter(clients: Clients, clock: Clock) -> None:
    """Its letter is larger than itself; where that was refused, each later get of any message failed."""
    queue = clients.connect(QueueConfig(max_deliveries=1))
    largest = b"x" * (1_048_588 - 80)
    queue.put(largest)
    got(queue)
    clock.now_ms += 30_000
    assert queue.get(timeout=0) is None
    assert [letter.message.value == largest for letter in queue.dead_letters()] == [True]


@pytest.mark.parametrize("most", [1000, 3 << 20])
def test_the_largest_messages_are_a_setting(clients: Clients, most: int) -> None:
    queue = clients.connect(QueueConfig(max_message_bytes=most))
    topic = f"up-to-{most}"
    fits = b"x" * (most - 80)
    offsets = queue.put_many([fits, fits], topic=topic)
    with pytest.raises(RecordTooLarge, match=f"above max.message.bytes = {most}"):
        queue.put_many([fits, b"x" * most], topic=topic)
    assert got(queue, topic).value == fits
    assert queue.put(fits, topic=topic) == offsets[-1] + 1


@pytest.mark.parametrize("every", [CHECKPOINT_EVENTS, 6])
@pytest.mark.parametrize("seed", range(4))
def test_a_random_life(
    clients: Clients, clock: Clock, monkeypatch: pytest.MonkeyPatch, seed: int, every: int
) -> None:
    """With checkpoints too: one client is seldom used, so that its next event is deleted."""
    monkeypatch.setattr(shared_lane, "CHECKPOINT_EVENTS", every)
    rng = random.Random(seed)
    queues = [clients.connect(QueueConfig(max_deliveries=1000)) for _ in range(3)]
    unfinished: set[bytes] = set()
    hands: list[tuple[SharedQueue, Message]] = []
    for number in range(80 if every == CHECKPOINT_EVENTS else 200):
        queue = rng.choices(queues, [10, 10, 1])[0]
        match rng.choice(["put", "get", "get", "ack", "nack", "pass"]):
            case "put":
                unfinished.add(value := b"%d-%d-%d" % (seed, every, number))
                queue.put(value, delay=rng.choice([0, 0, 5]))
            case "get":
                message = queue.get(timeout=0)
                if message is not None:
                    assert message.value in unfinished or not message.value.startswith(
                        b"%d-%d-" % (seed, every)
                    )
                    hands.append((queue, message))
            case "ack" | "nack" as what if hands:
                owner, message = hands.pop(rng.randrange(len(hands)))
                try:
                    owner.ack(message) if what == "ack" else owner.nack(message)
                    if what == "ack":
                        unfinished.discard(message.value)
                except (LeaseEnded, AlreadyFinished):
                    pass
            case "pass":
                clock.now_ms += rng.randrange(15_000)
    clock.now_ms += 100_000
    last = clients.connect(QueueConfig(max_deliveries=1000))
    found = last.get_many(1000, timeout=0)
    assert sorted(m.value for m in found) == sorted(unfinished), f"seed {seed}"
    last.ack_many(found)


def test_a_clock_that_goes_back_does_not_prolong_a_call(clients: Clients) -> None:
    queue = clients.connect()
    queue._clock = falling_clock()
    assert queue.get(timeout=0.01) is None
    queue.put(b"job", delay=1)
    assert queue.get(timeout=0.01) is None


def test_a_look_at_the_first_of_very_many(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs as much as those that are asked for."""
    queue = clients.connect()
    queue.put_many([b"0", b"1"])
    monkeypatch.setattr(Partition, "log_end_offset", 10**12)
    assert [message.value for message in queue.peek(2)] == [b"0", b"1"]
    assert queue.peek(0) == []


CHILD = """
import os, signal, sys
from logstore.broker import SharedQueue
queue = SharedQueue.connect(sys.argv[1], "killed")
queue.ack(queue.get())
print(queue.get(lease=0.2).value.decode(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_another_process_dies_with_a_message_in_hand(broker: Broker) -> None:
    """Its lease ends; a `get` that waits in this process has the message then."""
    with SharedQueue(broker, "killed") as queue:
        queue.put_many([b"0", b"1"])
        address = f"{broker.address.host}:{broker.address.port}"
        child = subprocess.run(
            [sys.executable, "-c", CHILD, address],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert child.stdout == "1\n", child.stderr
        message = queue.get(timeout=LIMIT_S)
        assert message is not None
        assert (message.value, message.deliveries) == (b"1", 2)
    with pytest.raises(QueueClosed):
        queue.put(b"2")
    for call in (queue.put_many, queue.ack_many):
        with pytest.raises(QueueClosed):
            call([])


def test_waiting_for_the_first_message_of_all(broker: Broker) -> None:
    found: list[Message | None] = []
    with SharedQueue.connect(f"{broker.address.host}:{broker.address.port}", "waiting") as queue:
        worker = threading.Thread(target=lambda: found.append(queue.get(timeout=LIMIT_S)))
        worker.start()
        SharedQueue(broker, "waiting").put(b"job", topic="mail")
        worker.join(LIMIT_S)
        assert found[0] is not None
        assert (found[0].topic, found[0].value) == ("mail", b"job")


def test_its_topics_are_synced_if_asked(broker: Broker) -> None:
    synced = QueueConfig(durability="synced")
    with SharedQueue(broker, "safe", synced) as queue:
        queue.put(b"job", topic="mail")
    for topic in ("safe.mail", "safe.mail.__events", "safe.__dead-letters"):
        assert broker.topic_settings(topic)["durability.level"] == "synced"
    with SharedQueue(broker, "safe", synced) as again:
        message = again.get(timeout=0)
    assert message is not None
    assert message.value == b"job"


@pytest.mark.parametrize("call", ["put", "get"])
def test_topics_of_another_level_are_refused(broker: Broker, call: str) -> None:
    """They are another process's, so the operator changes them."""
    name = f"unsafe-{call}"
    broker.create_topic(f"{name}.__dead-letters", 1, settings={"durability.level": "synced"})
    with SharedQueue(broker, name) as queue:
        queue.put(b"job")
    with SharedQueue(broker, name, QueueConfig(durability="synced")) as queue:
        refused = f"{name}.default has durability.level=replicated.*configs alter --topic {name}.default"
        with pytest.raises(InvalidConfig, match=refused):
            queue.put(b"job") if call == "put" else queue.get(timeout=0)
    SharedQueue(broker, f"low-{call}")
    with pytest.raises(InvalidConfig, match=r"__dead-letters has durability\.level=replicated"):
        SharedQueue(broker, f"low-{call}", QueueConfig(durability="synced"))


def test_mistakes(broker: Broker) -> None:
    with SharedQueue(broker, "mistakes") as queue:
        with pytest.raises(InvalidTopic, match="have no"):
            queue.put(b"job", topic="a.b")
        with pytest.raises(TypeError, match="encode"):
            queue.put("job")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="use put"):
            queue.put_many(b"job")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not a message"):
            queue.ack(b"job")  # type: ignore[arg-type]
        queue.put(b"job")
        message = queue.get(timeout=0)
        assert message is not None
        with pytest.raises(ValueError, match="does not exist"):
            queue.ack(message._replace(offset=99))
    with pytest.raises(ValueError, match="host:port"):
        SharedQueue.connect("localhost", "mistakes")


@pytest.mark.parametrize("topic", ["", "__events", "__dead-letters", "a/b", "a.b", "t" * 250])
def test_a_topic_that_cannot_be(broker: Broker, topic: str) -> None:
    """The names of the queue's own topics are refused: a job among the dead letters would hide them all."""
    with SharedQueue(broker, "names") as queue:
        before = broker.topics()
        with pytest.raises(InvalidTopic, match="topic name"):
            queue.put(b"job", topic=topic)
        assert broker.topics() == before
        assert list(queue.dead_letters()) == []


def test_the_longest_topic(broker: Broker) -> None:
    with SharedQueue(broker, "names") as queue:
        with pytest.raises(InvalidTopic, match=f"'{'t' * 235}' has 235 characters.* 234 at most"):
            queue.put(b"job", topic="t" * 235)
        assert queue.put(b"job", topic="t" * 234) == 0


def test_looking_for_a_topic_does_not_make_it(broker: Broker) -> None:
    with SharedQueue(broker, "looking") as queue:
        queue.put_many([b"0", b"1"])
        message = queue.get(timeout=0)
        assert message is not None
        before = broker.topics()
        assert queue.peek(5, "typo") == []
        with pytest.raises(ValueError, match="has no topic typo"):
            queue.ack(message._replace(topic="typo"))
        assert broker.topics() == before
        other = SharedQueue(broker, "looking")
        other.put(b"2", topic="new")
        assert [each.value for each in queue.peek(topic="new")] == [b"2"], "of another process"


def test_a_broker_that_is_not_there_is_named() -> None:
    with (
        BlockingClient("127.0.0.1:1", timeout_s=0.2) as client,
        pytest.raises(RequestUnanswered, match=r"no broker answers: failed to connect to 127\.0\.0\.1:1: "),
    ):
        SharedQueue(client, "nobody")


def test_wrong_arguments(broker: Broker) -> None:
    with pytest.raises(TypeError, match="config is a QueueConfig, not dict"):
        SharedQueue(broker, "mistakes", {"lease": 4})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a BlockingClient, not str; connect takes an address"):
        SharedQueue(broker.bootstrap, "mistakes")  # type: ignore[arg-type]
    with SharedQueue(broker, "wrong") as queue:
        with pytest.raises(TypeError, match="a topic is a str, not NoneType"):
            queue.put(b"job", topic=None)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="count is -1"):
            queue.peek(-1)
        with pytest.raises(TypeError, match="most is an int"):
            queue.get_many("3")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="one str or several"):
            queue.get(5)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="not a mapping"):
            queue.put_many({b"a": b"b"})
        queue.put(b"job")
        (message,) = queue.get_many(2, iter(["other", "default"]), timeout=0)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a reason is a str"):
            queue.nack(message, reason=None)  # type: ignore[arg-type]
        queue.ack(message)


def test_a_message_is_got_without_a_look_at_all_topics_of_the_cluster(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be thousands. A topic that another process has made is found nevertheless."""
    one, two = clients.connect(), clients.connect()
    monkeypatch.setattr("logstore.broker.shared_queue._LONGEST_WAIT_S", 1e9)
    looks, topics = 0, BlockingClient.topics

    def look(client: BlockingClient) -> dict[str, int]:
        nonlocal looks
        looks += 1
        return topics(client)

    monkeypatch.setattr(BlockingClient, "topics", look)
    one.put_many([b"%d" % number for number in range(20)])
    for _ in range(20):
        one.ack(got(one))
    assert looks <= 1
    two.put(b"new", topic="other")
    assert got(one).value == b"new"

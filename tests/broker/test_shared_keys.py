"""Keys of a shared queue: within the window one message is stored, whoever puts it and whoever dies."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from logstore.broker import Broker, BrokerConfig, RequestUnanswered, SharedQueue, shared_lane
from logstore.broker.shared_keys import (
    CLAIM,
    CLAIM_MS,
    ENDED,
    RELEASED,
    STORED,
    Claim,
    SharedKeys,
    claim,
    released,
    stored,
)
from logstore.broker.shared_keys import identity_of as key
from logstore.broker.shared_lane import SharedLane
from logstore.errors import InvalidRecord, RecordTooLarge
from logstore.queue import QueueConfig

WINDOW_S = 60
CONFIG = QueueConfig(deduplication_window=WINDOW_S, max_deliveries=1)
START_MS = 1_700_000_000_000
A, B, C = key(b"a"), key(b"b"), key(b"c")


# --- what the events tell -----------------------------------------------------------------------------


def told(*events: tuple[bytes, bytes]) -> SharedKeys:
    keys = SharedKeys()
    for offset, (kind, value) in enumerate(events):
        keys.apply(kind, value, offset)
    again = SharedKeys.decoded(keys.encode())
    assert again.encode() == keys.encode()
    return again


def claimed(at_ms: int, *keys: bytes, window_ms: int = 60_000) -> tuple[bytes, bytes]:
    return CLAIM, claim(keys, at_ms, window_ms)


def put(at_ms: int, window_ms: int = 60_000, **offsets: int) -> tuple[bytes, bytes]:
    return STORED, stored({key(name.encode()): offset for name, offset in offsets.items()}, at_ms, window_ms)


def owner(keys: SharedKeys, of: bytes) -> tuple[int, int | None] | None:
    found = keys.claim_of(of)
    return None if found is None else (found.number, found.since_ms)


def test_the_first_claim_holds_until_its_message_is_stored() -> None:
    keys = told(claimed(1000, A, B), claimed(1001, B, C))
    assert [owner(keys, each) for each in (A, B, C)] == [(0, None), (0, None), (1, None)]
    assert keys.is_claimed(A, 1000 + CLAIM_MS - 1)
    assert not keys.is_claimed(A, 1000 + CLAIM_MS)
    keys = told(claimed(1000, A), put(1000, a=7), claimed(1001, A))
    assert (keys.find(A), keys.claim_of(A), len(keys)) == (7, None, 1)


def test_a_claim_that_is_over_is_taken_by_the_next() -> None:
    late = 1000 + CLAIM_MS
    keys = told(claimed(1000, A), claimed(late - 1, A), claimed(late, A))
    assert owner(keys, A) == (2, 1000)
    keys = told(claimed(1000, A), (RELEASED, released(0)), claimed(1000, A))
    assert owner(keys, A) == (2, 1000)
    keys = told(*(claimed(at_ms, A, window_ms=100_000) for at_ms in (1000, late, late + CLAIM_MS)))
    assert owner(keys, A) == (2, 1000), "the first of the dead may have stored it"
    keys = told(claimed(1000, A), (RELEASED, released(5)), claimed(1001, A))
    assert owner(keys, A) == (0, None)


def test_a_claim_ends_unless_another_has_taken_it() -> None:
    keys = told(claimed(1000, A, B), claimed(1000 + CLAIM_MS, B))
    assert keys.over() == {A: Claim(0, 1000)}
    assert keys.since() == 1000
    keys.apply(ENDED, released(0), 2)
    assert (owner(keys, A), owner(keys, B), keys.since()) == (None, (1, 1000), 1000)
    keys.apply(ENDED, released(1), 3)
    assert (len(keys), keys.since()) == (0, None)


def test_a_short_window_ends_claims() -> None:
    keys = told(
        claimed(1000, A, window_ms=10), claimed(1009, A, window_ms=10), claimed(1010, A, window_ms=10)
    )
    assert owner(keys, A) == (2, None)


def test_known_keys_leave_with_the_window() -> None:
    keys = told(put(1000, a=7), claimed(60_999, A), claimed(61_000, A))
    assert (keys.find(A), owner(keys, A)) == (None, (2, None))
    keys = told(put(1000, a=7), put(2000, b=8), claimed(61_500, B))
    assert (keys.find(A), keys.find(B), len(keys)) == (None, 8, 1)
    keys.forget_from(8)
    assert len(keys) == 0


def test_claims_that_nobody_repeats_are_forgotten() -> None:
    keys = told(*(claimed(1000 + number, key(b"%d" % number)) for number in range(50)), claimed(61_040, A))
    assert len(keys) == 10


@pytest.mark.parametrize(
    ("kind", "value"), [(CLAIM, b"1"), (CLAIM, bytes(17)), (STORED, bytes(48)), (RELEASED, None)]
)
def test_damaged_events(kind: bytes, value: bytes | None) -> None:
    with pytest.raises(InvalidRecord, match=f"offset 3 is not a {kind.decode()}"):
        SharedKeys().apply(kind, value, 3)
    with pytest.raises(InvalidRecord, match="not the keys"):
        SharedKeys.decoded(b"\0" * 8 + (value or b"1"))


# --- over a broker ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(BrokerConfig()) as running:
        yield running


class Hands:
    """Several queues of one name and one clock."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker, self.name, self.now_ms = broker, name, START_MS

    def queue(self, config: QueueConfig = CONFIG) -> SharedQueue:
        return SharedQueue(self.broker, self.name, config, clock=lambda: self.now_ms)

    def values(self) -> list[bytes]:
        """The messages in the log, whether finished or not."""
        return [record.value or b"" for record in self.broker.scan(f"{self.name}.default")]


@pytest.fixture
def hands(broker: Broker, request: pytest.FixtureRequest) -> Hands:
    return Hands(broker, request.node.name.translate(str.maketrans("_[]", "---")))


def test_one_message_of_a_key_is_stored_in_the_window(hands: Hands) -> None:
    """As in `tests/queue/test_queue.py`."""
    one, two = hands.queue(), hands.queue()
    assert one.put(b"one", key=b"17") == 0
    assert two.put(b"other", key=b"18") == 1
    one.ack(one.get())
    hands.now_ms += 59_000
    assert two.put(b"again", key=b"17") == 0
    assert one.put_many([(b"17", b"again"), b"no key", (b"19", b"new"), b"no key", (b"19", b"twice")]) == [
        0,
        2,
        3,
        4,
        3,
    ]
    assert two.put(b"elsewhere", key=b"17", topic="other") == 0
    hands.now_ms += 1000
    assert two.put(b"later", key=b"17", delay=1) == 5
    assert hands.values() == [b"one", b"other", b"no key", b"new", b"no key", b"later"]
    assert hands.queue().put(b"last", key=b"17") == 5


def test_a_letter_that_is_redriven_has_its_key_from_then_on(hands: Hands) -> None:
    queue = hands.queue()
    queue.put(b"one", key=b"17")
    assert not queue.nack(queue.get())
    hands.now_ms += 59_000
    assert hands.queue().redrive() == 1
    hands.now_ms += 59_000
    assert queue.put(b"again", key=b"17") == 1
    hands.now_ms += 1000
    assert queue.put(b"later", key=b"17") == 2


class Death(BaseException):
    """No exception that a put may handle."""


@pytest.mark.parametrize("dies_after", ["claim", "message", "event"])
def test_a_process_that_dies_within_a_put(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, dies_after: str
) -> None:
    """The next put of the key waits until the claim is over, and looks for the message."""
    dying, other = hands.queue(), hands.queue()
    dying.put(b"before", key=b"1")
    lane = dying._lane("default")
    puts, tells = lane.put, lane.tell

    def put(records: Any) -> list[int]:
        if dies_after == "claim":
            raise Death
        return puts(records)

    def tell(kind: bytes, value: bytes) -> int:
        if kind == STORED and dies_after == "message":
            raise Death
        offset = tells(kind, value)
        if kind == STORED:
            raise Death
        return offset

    monkeypatch.setattr(lane, "put", put)
    monkeypatch.setattr(lane, "tell", tell)
    with pytest.raises(Death):
        dying.put_many([(b"2", b"dead"), (b"1", b"again")])
    hands.now_ms += 1000
    other.put(b"between", key=b"3")
    waited = []

    def wait(self: SharedLane) -> None:
        waited.append(hands.now_ms)
        hands.now_ms += 10_000

    monkeypatch.setattr(SharedLane, "wait_for_events", wait)
    is_lost = dies_after == "claim"
    place = 2 if is_lost else 1
    assert [each.put(b"new", key=b"2") for each in (other, hands.queue(), other)] == [place] * 3
    assert hands.values() == [b"before", b"between", b"new"] if is_lost else [b"before", b"dead", b"between"]
    assert len(waited) == (0 if dies_after == "event" else 3)


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_put_that_fails_may_be_repeated_at_once(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    queue = hands.queue()
    queue.put(b"before")
    lane = queue._lane("default")
    stores = lane.put

    def fails(records: Any) -> list[int]:
        if is_stored:
            stores(records)
        raise RequestUnanswered("no answer")

    monkeypatch.setattr(lane, "put", fails)
    with pytest.raises(RequestUnanswered):
        queue.put(b"first", key=b"1")
    monkeypatch.undo()
    assert queue.put(b"second", key=b"1") == 1
    assert hands.values() == [b"before", b"first" if is_stored else b"second"]


def test_a_message_that_is_too_large_leaves_no_claim(hands: Hands) -> None:
    queue = hands.queue()
    with pytest.raises(RecordTooLarge):
        queue.put(bytes(2 << 20), key=b"1")
    assert hands.queue().put(b"small", key=b"1") == 0


def test_the_message_of_another_process_is_waited_for(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = hands.queue(), hands.queue()
    one.put(b"before")
    stores, waits = one._lane("default").put, two._lane("default").wait_for_events
    results: list[int] = []
    second = threading.Thread(target=lambda: results.append(two.put(b"two", key=b"1")))
    waiting = threading.Event()

    def late(records: Any) -> list[int]:
        second.start()
        assert waiting.wait(60)
        return stores(records)

    def wait() -> None:
        waiting.set()
        waits()

    monkeypatch.setattr(one._lane("default"), "put", late)
    monkeypatch.setattr(two._lane("default"), "wait_for_events", wait)
    assert one.put(b"one", key=b"1") == 1
    second.join()
    assert results == [1]
    assert hands.values() == [b"before", b"one"]


@pytest.mark.parametrize("every", [3, 10_000])
def test_many_at_once(broker: Broker, hands: Hands, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """Four connections put the same keys in their own orders, one by one and together."""
    monkeypatch.setattr(shared_lane, "CHECKPOINT_EVENTS", every)
    hands.queue().put(b"first")
    address = f"{broker.address.host}:{broker.address.port}"
    offsets: list[dict[int, int]] = [{} for _ in range(4)]
    failures: list[BaseException] = []

    def puts(worker: int) -> None:
        rng = random.Random(worker)
        try:
            with SharedQueue.connect(address, hands.name, CONFIG) as queue:
                numbers = list(range(30))
                rng.shuffle(numbers)
                while numbers:
                    some = [numbers.pop() for _ in range(min(rng.randrange(1, 6), len(numbers)))]
                    found = queue.put_many([(b"%d" % each, b"%d" % each) for each in some])
                    offsets[worker] |= zip(some, found, strict=True)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=puts, args=(worker,)) for worker in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures
    assert offsets[0] == offsets[1] == offsets[2] == offsets[3]
    stored_values = hands.values()
    assert sorted(stored_values[1:]) == sorted(b"%d" % each for each in range(30))
    assert all(stored_values[offset] == b"%d" % number for number, offset in offsets[0].items())


def test_keys_are_in_the_checkpoint(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if their messages and events are deleted, for a process that begins with it."""
    monkeypatch.setattr(shared_lane, "CHECKPOINT_EVENTS", 8)
    queue = hands.queue()
    for number in range(30):
        queue.put(b"%d" % number, key=b"%d" % (number % 20))
        message = queue.get(timeout=0)
        assert (message is not None) == (number < 20)
        if message is not None:
            queue.ack(message)
    assert hands.broker.topic(f"{hands.name}.default").partition(0).log_start_offset > 5
    assert [hands.queue().put(b"again", key=b"%d" % number) for number in range(20)] == list(range(20))


@pytest.mark.parametrize("is_over", [False, True])
def test_the_message_of_a_claim_is_not_deleted_before_it_is_known(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """It was, once another process had finished it: a put that was repeated after 30 s stored it again."""
    monkeypatch.setattr(shared_lane, "CHECKPOINT_EVENTS", 8)
    dying, queue = hands.queue(), hands.queue()
    queue.put(b"before")
    lane = dying._lane("default")
    tells = lane.tell

    def tell(kind: bytes, value: bytes) -> int:
        if kind == STORED:
            raise Death
        return tells(kind, value)

    monkeypatch.setattr(lane, "tell", tell)
    with pytest.raises(Death):
        dying.put_many([(b"1", b"dead"), (b"2", b"dead, too")])
    if is_over:
        hands.now_ms += CLAIM_MS
    for number in range(30):
        queue.put(b"later", key=b"a%d" % number)
        queue.ack(queue.get())
    start = hands.broker.topic(f"{hands.name}.default").partition(0).log_start_offset
    keys = queue._lane("default").keys
    assert (start > 10, start) == (True, start) if is_over else (False, 1)
    assert (keys.find(key(b"1")), keys.claim_of(key(b"1")) is None) == (
        (1, True) if is_over else (None, False)
    )
    hands.now_ms += CLAIM_MS
    assert hands.queue().put_many([(b"1", b"again"), (b"2", b"again")]) == [1, 2]


def test_a_claim_without_a_message_ends(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_lane, "CHECKPOINT_EVENTS", 8)
    dying, queue = hands.queue(), hands.queue()
    lane = dying._lane("default")

    def put(records: Any) -> list[int]:
        raise Death

    monkeypatch.setattr(lane, "put", put)
    with pytest.raises(Death):
        dying.put(b"dead", key=b"1")
    hands.now_ms += CLAIM_MS
    for number in range(10):
        queue.put(b"later", key=b"a%d" % number)
    assert queue._lane("default").keys.claim_of(key(b"1")) is None
    assert queue.put(b"again", key=b"1") == 10


def test_a_checkpoint_of_more_than_a_batch_of_the_default_size(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = hands.queue(QueueConfig(deduplication_window=1e6))
    queue.put_many([(b"%d" % number, b"") for number in range(25_000)])
    monkeypatch.setattr(shared_lane, "CHECKPOINT_EVENTS", 1)
    monkeypatch.setattr(SharedLane, "_interval", 1)
    queue._lane("default")._due = 0
    for _ in range(3):
        queue.stats()
    assert hands.broker.topic(f"{hands.name}.default.__events").partition(0).log_start_offset > 0
    assert hands.queue().put(b"again", key=b"7") == 7


def test_messages_that_a_power_cut_took(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = hands.queue()
    queue.put(b"kept", key=b"1")
    queue.put(b"lost", key=b"2")
    lane = queue._lane("default")
    queue.get_many(2, timeout=0)
    lane._tell_of_loss(1)
    assert (lane.keys.find(key(b"1")), lane.keys.find(key(b"2"))) == (0, None)


def test_a_queue_without_a_window_stores_every_message(hands: Hands) -> None:
    queue = hands.queue(QueueConfig())
    assert [queue.put(b"1", key=b"1"), queue.put(b"1", key=b"1")] == [0, 1]

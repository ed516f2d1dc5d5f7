"""What a queue promises, with a clock that the test moves and owners that die."""

from __future__ import annotations

import random
import threading

import pytest

from logstore import Log
from logstore.disk.errors import CorruptCheckpoint
from logstore.errors import RecordTooLarge
from logstore.queue import AlreadyFinished, LeaseEnded, Queue, QueueClosed, QueueConfig, lane
from logstore.queue.checkpoint import read_checkpoint
from logstore.queue.messages import Message, dead_letter_of, dead_record
from logstore.testing.disks import MemoryDisk, RecordingDisk
from tests.queue.parts import NOW_MS, PATH, Hands

LIMIT_S = 30


def test_first_in_first_out() -> None:
    hands = Hands()
    assert [hands.queue.put(b"%d" % number) for number in range(3)] == [0, 1, 2]
    assert hands.queue.put_many([b"3", (b"key", b"4")]) == [3, 4]
    message = hands.get()
    assert (message.topic, message.offset, message.value, message.deliveries) == ("default", 0, b"0", 1)
    assert message.timestamp_ms == NOW_MS
    hands.queue.ack(message)
    assert hands.values() == [b"1", b"2", b"3", b"4"]
    assert hands.queue.get(timeout=0) is None


def test_key_and_headers_arrive() -> None:
    hands = Hands()
    hands.queue.put(b"v", key=b"k", headers=[("trace", b"17")], delay=1)
    hands.wait(1)
    for _ in range(2):
        message = hands.get()
        assert (message.key, message.headers) == (b"k", (("trace", b"17"),))
        hands.reopen()


@pytest.mark.parametrize("killed", [False, True])
def test_what_is_acknowledged_never_comes_again_and_the_rest_does(killed: bool) -> None:
    hands = Hands()
    hands.queue.put_many([b"%d" % number for number in range(6)])
    got = hands.queue.get_many(5)
    hands.queue.ack(got[1])
    hands.queue.ack_many([got[2], got[4]])
    hands.reopen(killed=killed)
    assert hands.values() == [b"0", b"3", b"5"]


def test_a_lease_that_ends_returns_the_message() -> None:
    hands = Hands(QueueConfig(lease=10))
    hands.queue.put(b"job")
    first = hands.get()
    hands.wait(9.999)
    assert hands.queue.get(timeout=0) is None
    hands.queue.extend(first)
    hands.wait(9.999)
    assert hands.queue.get(timeout=0) is None
    hands.wait(0.001)
    second = hands.get()
    assert second.deliveries == 2
    with pytest.raises(LeaseEnded, match="no longer leased for delivery 1"):
        hands.queue.ack(first)
    hands.queue.ack(second)
    with pytest.raises(AlreadyFinished, match="acknowledged before"):
        hands.queue.ack(second)


def test_a_late_acknowledgement_counts_until_somebody_looks() -> None:
    hands = Hands(QueueConfig(lease=1))
    hands.queue.put(b"job")
    message = hands.get()
    hands.wait(5)
    hands.queue.ack(message)
    assert hands.queue.get(timeout=0) is None


@pytest.mark.parametrize("killed", [False, True])
def test_delays(killed: bool) -> None:
    """Of a put and of a nack; neither holds up what is behind it, and both survive."""
    hands = Hands()
    hands.queue.put(b"later", delay=10)
    hands.queue.put(b"soon")
    message = hands.get()
    assert message.value == b"soon"
    assert hands.queue.nack(message, delay=5)
    hands.reopen(killed=killed)
    assert hands.queue.get(timeout=0) is None
    assert hands.queue.stats().topics["default"].delayed == 2
    hands.wait(5)
    assert hands.values() == [b"soon"]
    hands.wait(5)
    assert hands.values() == [b"later"]


def test_dead_letters_and_their_return() -> None:
    hands = Hands(QueueConfig(max_deliveries=2, lease=1))
    hands.queue.put(b"poison", key=b"k", topic="mail")
    hands.queue.put(b"slow", topic="mail")
    assert hands.queue.nack(hands.get("mail"))
    assert not hands.queue.nack(hands.get("mail"), reason="no such address")
    for _ in range(2):
        assert hands.get("mail").value == b"slow"
        hands.wait(1)
    assert hands.queue.get(timeout=0) is None
    dead = [(letter.message, letter.reason) for letter in hands.queue.dead_letters()]
    assert [(each.value, each.key, each.topic, each.deliveries, reason) for each, reason in dead] == [
        (b"poison", b"k", "mail", 2, "no such address"),
        (b"slow", None, "mail", 2, "its lease ended"),
    ]
    hands.reopen()
    assert hands.queue.stats().dead_letters == 2
    assert hands.queue.redrive() == 2
    assert hands.queue.redrive() == 0
    hands.reopen()
    again = hands.get()
    assert (again.value, again.key, again.deliveries) == (b"poison", b"k", 1)


def test_a_dead_letter_has_two_times() -> None:
    """Its message's is that of the put: whoever repairs what failed asks for it."""
    hands = Hands(QueueConfig(max_deliveries=1))
    hands.queue.put(b"job")
    message = hands.get()
    hands.wait(9)
    hands.queue.nack(message)
    hands.reopen()
    (letter,) = hands.queue.dead_letters()
    assert letter.message == message
    assert letter.timestamp_ms == message.timestamp_ms + 9000


def test_a_dead_letter_of_an_earlier_version_has_the_time_of_its_end() -> None:
    written = dead_record(Message("mail", 7, b"job", None, (), 1000, 2), "no such address", 9000)
    earlier = written._replace(headers=tuple(each for each in written.headers if "time" not in each[0]))
    letter = dead_letter_of(earlier)
    assert (letter.message.timestamp_ms, letter.timestamp_ms) == (9000, 9000)
    assert dead_letter_of(written).message.timestamp_ms == 1000


def test_letters_that_were_redriven_survive_a_power_cut() -> None:
    """They are messages durably before they stop being letters; perhaps beside those that they were."""
    hands = Hands(QueueConfig(max_deliveries=1))
    hands.queue.put(b"job")
    hands.queue.nack(hands.get())
    assert hands.queue.redrive() == 1
    assert isinstance(hands.disk, MemoryDisk)
    hands.disk = hands.disk.durable_image()
    hands.reopen(killed=True)
    assert hands.queue.stats().dead_letters == 0
    assert b"job" in hands.values()


def test_letters_that_were_redriven_take_no_room() -> None:
    hands = Hands(QueueConfig(max_deliveries=1))
    for number in range(3):
        hands.queue.put(b"job")
        hands.queue.nack(hands.get())
        hands.queue._dead.partition.roll()  # as after 1 GiB of them
        assert hands.queue.redrive() == 1
        hands.queue.ack(hands.get())
        assert hands.queue._dead.size == 0, number
    assert isinstance(hands.disk, MemoryDisk)
    names = [path for path in hands.disk.files() if "__dead-letters-0/" in path and path.endswith(".log")]
    assert len(names) == 1


def test_a_letter_that_is_too_large_now_does_not_repeat_those_before_it() -> None:
    hands = Hands(QueueConfig(max_deliveries=1))
    hands.queue.put_many([b"0", b"1", b"x" * 10_000, b"3"])
    for _ in range(4):
        hands.queue.nack(hands.get())
    hands.reopen(QueueConfig(max_message_bytes=1000))
    for _ in range(3):
        with pytest.raises(RecordTooLarge):
            hands.queue.redrive()
    assert [letter.message.value[:1] for letter in hands.queue.dead_letters()] == [b"x", b"3"]
    assert hands.values() == [b"0", b"1"]
    hands.reopen(QueueConfig(), killed=True)
    assert hands.queue.redrive() == 2
    assert [value[:1] for value in hands.values()] == [b"0", b"1", b"x", b"3"]


@pytest.mark.parametrize("reason", ["its worker died", "its lease ended"])
def test_a_message_above_a_limit_that_was_lowered_becomes_a_dead_letter(reason: str) -> None:
    """While the queue is opened, or later."""
    hands = Hands(QueueConfig(max_deliveries=1, lease=1))
    hands.queue.put(b"x" * 900_000)
    if reason == "its worker died":
        hands.get()
    hands.reopen(QueueConfig(max_deliveries=1, lease=1, max_message_bytes=1000))
    if reason == "its lease ended":
        hands.get()
        hands.wait(1)
        assert hands.queue.get(timeout=0) is None
    (letter,) = hands.queue.dead_letters()
    assert (letter.message.value, letter.reason) == (b"x" * 900_000, reason)


def test_a_message_that_kills_its_process_becomes_a_dead_letter() -> None:
    """The first death is not counted; from then on deliveries are written down."""
    hands = Hands(QueueConfig(max_deliveries=3))
    hands.queue.put_many([b"poison", b"innocent"])
    deaths = 0
    while hands.get().value == b"poison":
        hands.reopen(killed=True)
        deaths += 1
    assert deaths == 4
    assert [letter.message.value for letter in hands.queue.dead_letters()] == [b"poison"]


def test_an_opening_between_two_deaths_changes_nothing() -> None:
    """A look at the queue, for instance for its figures, was a clean close: no death was ever counted."""
    hands = Hands(QueueConfig(max_deliveries=3))
    hands.queue.put_many([b"poison", b"innocent"])
    deaths = 0
    while hands.get().value == b"poison":
        hands.reopen(killed=True)
        hands.reopen()
        deaths += 1
        assert deaths <= 4
    assert [letter.message.value for letter in hands.queue.dead_letters()] == [b"poison"]


def test_deliveries_are_free_again_when_all_that_a_death_leaves_is_finished() -> None:
    hands = Hands()
    hands.queue.put_many([b"a", b"b"])
    hands.reopen(killed=True)
    hands.queue.ack(hands.get())
    for is_careful in (True, False):
        hands.reopen()
        hands.queue.put(b"c")
        events = hands.queue._lanes["default"].events
        end = events.log_end_offset
        message = hands.get()
        assert (events.log_end_offset > end) is is_careful
        hands.queue.ack(message)
        while (left := hands.queue.get(timeout=0)) is not None:
            hands.queue.ack(left)


def test_priorities_and_turns() -> None:
    hands = Hands(QueueConfig(priorities={"urgent": 9, "bulk": -1}))
    for topic in ("bulk", "a", "b", "urgent"):
        hands.queue.put_many([f"{topic}{number}".encode() for number in range(2)], topic=topic)
    assert hands.get("bulk").value == b"bulk0"
    assert hands.values() == [b"urgent0", b"urgent1", b"a0", b"b0", b"a1", b"b1", b"bulk1"]


@pytest.mark.parametrize("killed", [None, False, True])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_deduplication_within_the_window(
    killed: bool | None, is_checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_checkpointed:
        monkeypatch.setattr(lane, "EVENTS_BETWEEN_CHECKPOINTS", 1)
    hands = Hands(QueueConfig(deduplication_window=60))
    assert hands.queue.put(b"one", key=b"17") == 0
    assert hands.queue.put(b"other", key=b"18") == 1
    hands.queue.ack(hands.get())
    hands.wait(59)
    if killed is not None:
        hands.reopen(killed=killed)
    assert hands.queue.put(b"again", key=b"17") == 0
    assert hands.queue.put_many([(b"17", b"again"), (b"19", b"new"), (b"19", b"twice")]) == [0, 2, 2]
    assert hands.queue.put(b"elsewhere", key=b"17", topic="other") == 0
    hands.wait(1)
    assert hands.queue.put(b"later", key=b"17") == 3
    assert sorted(hands.values()) == [b"elsewhere", b"later", b"new", b"other"]


@pytest.mark.parametrize("killed", [None, False, True])
def test_a_letter_that_is_redriven_has_its_key_from_then_on(killed: bool | None) -> None:
    """As after a kill, when the messages are read again."""
    hands = Hands(QueueConfig(deduplication_window=60, max_deliveries=1))
    hands.queue.put(b"one", key=b"17")
    assert not hands.queue.nack(hands.get())
    hands.wait(60)
    assert hands.queue.redrive() == 1
    hands.wait(59)
    if killed is not None:
        hands.reopen(killed=killed)
    assert hands.queue.put(b"again", key=b"17") == 1
    hands.wait(1)
    assert hands.queue.put(b"later", key=b"17") == 2


def test_peek_and_stats_change_nothing() -> None:
    hands = Hands()
    hands.queue.put_many([b"0", b"1", b"2", b"3"])
    hands.queue.ack(hands.get())
    hands.get()
    hands.queue.nack(hands.get(), delay=60)
    for _ in range(2):
        peeked = [(m.value, m.deliveries) for m in hands.queue.peek()]
        assert peeked == [(b"1", 1), (b"2", 1), (b"3", 0)]
        stats = hands.queue.stats().topics["default"]
        assert stats[:4] == (1, 1, 1, 1)
    assert [m.value for m in hands.queue.peek(2)] == [b"1", b"2"]
    assert hands.queue.peek(topic="unknown") == []


def test_finished_segments_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "_SEGMENT_BYTES", 1000)
    monkeypatch.setattr(lane, "_EVENTS_SEGMENT_BYTES", 1000)
    monkeypatch.setattr(lane, "_EVENT_BYTES", 500)
    monkeypatch.setattr(lane, "EVENTS_BETWEEN_CHECKPOINTS", 10)
    hands = Hands(QueueConfig(max_message_bytes=500))
    for number in range(300):
        hands.queue.put(b"%d" % number * 10)
        hands.queue.ack(hands.get())
    assert hands.queue.stats().topics["default"].stored_bytes < 6000
    hands.reopen(killed=True)
    assert hands.queue.get(timeout=0) is None
    assert hands.queue.put(b"next") == 300


@pytest.mark.parametrize("seed", range(30))
def test_a_random_life(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, nothing acknowledged comes again, whoever dies."""
    rng = random.Random(seed)
    monkeypatch.setattr(lane, "EVENTS_BETWEEN_CHECKPOINTS", rng.choice([1, 3, 20, 1 << 15]))
    monkeypatch.setattr(lane, "_AHEAD_RECORDS", rng.choice([1, 3, 1024]))
    hands = Hands(QueueConfig(max_deliveries=1000, lease=rng.choice([1, 50])))
    unfinished: set[bytes] = set()
    leased = []
    for number in range(400):
        match rng.choice(["put", "put", "many", "get", "get", "get", "ack", "ack", "nack", "pass", "end"]):
            case "put":
                unfinished.add(value := b"%d" % number)
                hands.queue.put(value, topic=rng.choice("ab"), delay=rng.choice([0, 0, 0, 3]))
            case "many":
                values = [b"%d-%d" % (number, each) for each in range(rng.randrange(5))]
                unfinished.update(values)
                hands.queue.put_many(values, topic=rng.choice("ab"))
            case "get":
                message = hands.queue.get(timeout=0)
                if message is not None:
                    assert message.value in unfinished, f"seed {seed}: {message} was acknowledged"
                    leased.append(message)
            case "ack" | "nack" as what if leased:
                message = leased.pop(rng.randrange(len(leased)))
                try:
                    if what == "ack":
                        hands.queue.ack(message)
                        unfinished.remove(message.value)
                    else:
                        hands.queue.nack(message, delay=rng.choice([0, 2]))
                except (LeaseEnded, AlreadyFinished):
                    pass
            case "pass":
                hands.wait(rng.random() * 2)
            case "end" if rng.random() < 0.3:
                hands.reopen(killed=rng.random() < 0.5)
                leased.clear()
    hands.wait(100)
    found = hands.values()
    assert sorted(found) == sorted(unfinished), f"seed {seed}"
    assert not list(hands.queue.dead_letters())


# --- threads ------------------------------------------------------------------------------------------


def test_threads_share_the_work(tmp_path: object) -> None:
    queue = Queue(f"{tmp_path}/jobs")
    done: list[bytes] = []

    def work() -> None:
        while (message := queue.get()).value != b"stop":
            queue.ack(message)
            done.append(message.value)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for number in range(500):
        queue.put(b"%d" % number)
    queue.put_many([b"stop"] * 4)
    for worker in workers:
        worker.join(LIMIT_S)
        assert not worker.is_alive()
    assert sorted(done, key=int) == [b"%d" % number for number in range(500)]
    queue.close()


def test_a_waiting_worker_learns_of_a_lease_that_ends_later(tmp_path: object) -> None:
    """It waits for ever; then another one leases a message, and never acknowledges it."""
    queue = Queue(f"{tmp_path}/jobs")
    got: list[object] = []
    worker = threading.Thread(target=lambda: got.append(queue.get("mail")), daemon=True)
    queue.put(b"job", topic="mail")
    assert queue.get(timeout=0, lease=0.05) is not None
    worker.start()
    worker.join(LIMIT_S)
    assert [message.deliveries for message in got] == [2]  # type: ignore[attr-defined]
    queue.close()


def test_a_waiting_worker_learns_of_a_lease_that_was_shortened(tmp_path: object) -> None:
    queue = Queue(f"{tmp_path}/jobs")
    queue.put(b"job")
    leased = queue.get(timeout=0, lease=600)
    assert leased is not None
    got: list[object] = []
    worker = threading.Thread(target=lambda: got.append(queue.get()), daemon=True)
    worker.start()
    while not len(queue._waiters):
        assert worker.is_alive()
    queue.extend(leased, lease=0.05)
    worker.join(LIMIT_S)
    assert [message.deliveries for message in got] == [2]  # type: ignore[attr-defined]
    queue.close()


def test_close_ends_the_waiting(tmp_path: object) -> None:
    queue = Queue(f"{tmp_path}/jobs")
    ended = threading.Event()

    def work() -> None:
        with pytest.raises(QueueClosed):
            queue.get(topics=["a", "b"])
        ended.set()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    while not len(queue._waiters):
        assert worker.is_alive()
    queue.close()
    assert ended.wait(LIMIT_S)


def test_a_closed_queue_refuses_calls_for_no_messages(tmp_path: object) -> None:
    """They returned as if they had been carried out."""
    queue = Queue(f"{tmp_path}/jobs")
    queue.close()
    for call in (queue.put_many, queue.ack_many):
        with pytest.raises(QueueClosed):
            call([])


def test_the_largest_message(tmp_path: object) -> None:
    """The format's own bytes count: some 70, as docs/queue.md says."""
    largest = QueueConfig().max_message_bytes
    with Queue(f"{tmp_path}/jobs") as queue:
        queue.put(b"x" * (largest - 80))
        with pytest.raises(RecordTooLarge):
            queue.put(b"x" * (largest - 60))


def test_timeout(tmp_path: object) -> None:
    with Queue(f"{tmp_path}/jobs") as queue:
        assert queue.get(timeout=0.001) is None
        queue.put(b"job", delay=0.01)
        message = queue.get(timeout=LIMIT_S)
        assert message is not None
        assert queue.get_many(3, timeout=0.001) == []


# --- files ----------------------------------------------------------------------------------------------


def test_messages_are_an_ordinary_log() -> None:
    disk = MemoryDisk()
    hands = Hands(disk=disk)
    hands.queue.put(b"job", key=b"k", topic="mail")
    hands.queue.close()
    with Log.open(f"{PATH}/mail-0", disk=disk) as log:
        assert [(record.key, record.value) for record in log.read()] == [(b"k", b"job")]


def test_a_damaged_checkpoint_is_named_and_nothing_is_changed() -> None:
    hands = Hands()
    hands.queue.put_many([b"0", b"1"])
    hands.queue.ack(hands.get())
    hands.queue.close()
    path = f"{PATH}/default.checkpoint"
    file = hands.disk.open(path, write=True)
    byte = file.pread(1, 70)
    file.pwrite(bytes([byte[0] ^ 1]), 70)
    for _ in range(2):
        with pytest.raises(CorruptCheckpoint, match=r"default.checkpoint is damaged .*remove it"):
            hands.open()
    file.pwrite(byte, 70)
    file.close()
    hands.queue = hands.open()
    assert hands.values() == [b"1"]


def test_synced_means_synced() -> None:
    """After each call a power cut takes nothing of it."""
    for seed in range(20):
        rng = random.Random(seed)
        disk = MemoryDisk()
        hands = Hands(QueueConfig(durability="synced"), disk)
        hands.queue.put(b"0")
        hands.queue.put_many([b"1", b"2", b"3", b"4"])
        hands.queue.ack(hands.get())
        hands.queue.nack(hands.get(), delay=60)
        hands.queue.ack_many(hands.queue.get_many(2))
        after = Hands(QueueConfig(durability="synced"), disk.power_cut(rng))
        assert after.values() == [b"4"], f"seed {seed}"
        after.wait(60)
        again = after.get()
        assert (again.value, again.deliveries) == (b"1", 2), f"seed {seed}"


def test_written_waits_for_no_sync() -> None:
    """A call that syncs costs a thousand times as much."""
    disk = RecordingDisk(MemoryDisk())
    hands = Hands(disk=disk)
    hands.queue.put_many([b"0", b"1", b"2"])
    first, second, third = (hands.get() for _ in range(3))
    hands.queue.put(b"3")
    hands.queue.ack(hands.get())  # the first event begins an epoch
    disk.operations.clear()
    hands.queue.put(b"4")
    hands.queue.ack(first)
    hands.queue.ack_many([second])
    hands.queue.nack(third)
    assert "pwrite" in {each.name for each in disk.operations}
    assert not {"sync", "sync_dir"} & {each.name for each in disk.operations}


def test_many_acknowledgements_in_one_call_count_as_many_towards_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an opening would read them all again: a million in thirty events."""
    monkeypatch.setattr(lane, "EVENTS_BETWEEN_CHECKPOINTS", 10)
    monkeypatch.setattr(lane, "OFFSETS_AN_EVENT", 5)
    hands = Hands()
    hands.queue.put_many([b"%d" % number for number in range(103)])
    hands.queue.ack_many(hands.queue.get_many(102))
    found = read_checkpoint(hands.disk, f"{PATH}/default.checkpoint")
    assert found is not None
    assert len(found.state.unfinished) <= 103 - 102 + 10 + 5
    assert hands.reopen(killed=True).stats().topics["default"].waiting == 1

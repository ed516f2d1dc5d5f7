"""The state of a topic, beside a model that keeps a line for each message."""

from __future__ import annotations

import random

import pytest

from logstore.errors import InvalidRecord
from logstore.queue.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from logstore.queue.state import (
    GIVING_UP_MS,
    Deadlines,
    Event,
    EventKind,
    QueueState,
    decode_event,
    finished,
)


@pytest.mark.parametrize("seed", range(40))
def test_the_state_agrees_with_a_line_for_each_message(seed: int) -> None:
    rng = random.Random(seed)
    state, now_ms, end = QueueState(), 1000, 0
    lines: dict[int, tuple[str, int, int]] = {}  # ready, leased or delayed; until; deliveries
    events: list[Event] = []

    def happen(event: Event) -> list[int]:
        events.append(event)
        return state.apply(event)

    for _ in range(300):
        match rng.choice(["put", "take", "take", "finish", "return", "pass"]):
            case "put":
                lines[end] = "ready", 0, 0
                end += 1
            case "take":
                for offset, (kind, until, deliveries) in lines.items():
                    if kind == "delayed" and until <= now_ms:
                        lines[offset] = "ready", 0, deliveries
                wanted = min((o for o, (kind, _, _) in lines.items() if kind == "ready"), default=None)
                assert state.candidate(end, now_ms) == wanted, f"seed {seed}"
                if wanted is not None:
                    deliveries = lines[wanted][2] + 1
                    lines[wanted] = "leased", now_ms + 500, deliveries
                    assert happen(Event(EventKind.TAKEN, (wanted,), now_ms + 500, deliveries)) == [wanted]
                    assert happen(Event(EventKind.TAKEN, (wanted,), now_ms + 900, deliveries)) == []
                    events.pop()
            case "finish" | "return" as what:
                # An acknowledgement may come after the lease's end.
                known = [o for o, (kind, _, _) in lines.items() if what == "finish" or kind == "leased"]
                if not known:
                    continue
                offset = rng.choice(known)
                deliveries = lines[offset][2]
                if what == "finish":
                    del lines[offset]
                    happen(Event(EventKind.FINISHED, (offset,)))
                else:
                    due_ms = rng.choice([0, now_ms + rng.randrange(1, 400)])
                    lines[offset] = "delayed" if due_ms else "ready", due_ms, deliveries
                    happen(Event(EventKind.RETURNED, (offset,), due_ms, deliveries))
            case "pass":
                now_ms += rng.randrange(200)
        unfinished = {o: line[2] for o, line in lines.items() if o < state.next_offset}
        assert state.unfinished == unfinished, f"seed {seed}"
        assert list(state.unfinished) == sorted(state.unfinished)
        assert state.low_mark == min(unfinished, default=state.next_offset)
        assert [o for o in range(end + 1) if state.is_finished(o)] == [
            o for o in range(end) if o not in lines
        ]
        for kind, deadlines in (("leased", state.leases), ("delayed", state.delays)):
            assert dict(deadlines.items()) == {o: line[1] for o, line in lines.items() if line[0] == kind}
    replayed = QueueState()
    for event in events:
        replayed.apply(decode_event(event.encode()))
    wanted_state = state.next_offset, state.unfinished
    assert (replayed.next_offset, replayed.unfinished) == wanted_state, f"seed {seed}"
    found = decode_checkpoint(encode_checkpoint(Checkpoint(state, 7, 8, True, b"keys")), "x.checkpoint")
    assert (found.state.next_offset, found.state.unfinished) == wanted_state
    assert (found.events_offset, found.keys_offset, found.is_clean, found.keys) == (7, 8, True, b"keys")
    assert dict(found.state.delays.items()) == dict(state.delays.items())
    assert not len(found.state.leases)
    shared = decode_checkpoint(encode_checkpoint(Checkpoint(state, 7, 8, True), is_shared=True), "offset 9")
    assert dict(shared.state.leases.items()) == dict(state.leases.items())


def test_an_event_about_an_earlier_delivery_changes_nothing() -> None:
    state = QueueState()
    state.take(0, 1, 100)
    state.give_back(0, 1, 0)
    state.take(0, 2, 200)
    assert state.apply(Event(EventKind.RETURNED, (0,), 0, 1)) == []
    assert state.apply(Event(EventKind.TAKEN, (0,), 900, 2)) == []
    assert state.apply(Event(EventKind.FINISHED, (0,), 0, 1)) == []
    assert state.apply(Event(EventKind.EXTENDED, (0,), 900, 1)) == []
    assert dict(state.leases.items()) == {0: 200}
    assert state.apply(Event(EventKind.EXTENDED, (0,), 300, 2)) == [0]
    assert dict(state.leases.items()) == {0: 300}
    assert state.apply(Event(EventKind.RETURNED, (0,), 0, 2)) == [0]
    assert state.apply(Event(EventKind.EXTENDED, (0,), 400, 2)) == []
    assert not state.leases
    assert state.apply(Event(EventKind.FINISHED, (0,), 0, 2)) == [0]


def test_the_first_free_ones_of_some_are_taken() -> None:
    state = QueueState()
    state.take(0, 1, 100)
    state.take(1, 1, 100)
    state.give_back(1, 1, 0)
    state.take(2, 1, 100)
    state.finish(2)
    some = decode_event(Event(EventKind.SOME, (2, 0, 1, 2, 3, 4, 5), 900, 1).encode())
    assert state.apply(some) == [3, 4], "0 is leased, 1 was delivered once, 2 is finished"
    assert (state.next_offset, state.unfinished) == (5, {0: 1, 1: 1, 3: 1, 4: 1})
    assert dict(state.leases.items()) == {0: 100, 3: 900, 4: 900}
    assert state.apply(some) == [5]
    assert state.apply(some) == []
    assert state.apply(Event(EventKind.SOME, (1, 6, 7), 900, 1)) == [6]


def test_a_lease_that_is_over_for_one_and_extended_by_another() -> None:
    state = QueueState()
    state.take(0, 1, 100)
    state.take(1, 1, 100)
    assert state.apply(Event(EventKind.EXTENDED, (0,), 200, 1)) == [0]
    assert state.apply(Event(EventKind.ENDED, (0, 1), 150, 1)) == [1]
    assert state.candidate(2, 150) == 1
    assert state.apply(Event(EventKind.GIVEN_UP, (0, 1), 199, 2)) == [], "one is leased, the other one ready"
    assert state.apply(Event(EventKind.GIVEN_UP, (0,), 200, 2)) == [0]
    assert state.apply(Event(EventKind.GIVEN_UP, (0,), 200, 2)) == [], "another process does that"
    assert state.leases.first() == (200 + GIVING_UP_MS, 0)


def test_those_that_are_ready_and_were_delivered_as_often() -> None:
    state = QueueState()
    for offset in range(40):
        state.take(offset, 1, 100 if offset < 30 else 900)
    assert state.ended(99) == {}
    assert state.ended(100) == {1: list(range(30))}
    rng = random.Random(7)
    for offset in rng.sample(range(30), 30):
        state.give_back(offset, 1, 0)
    state.take(3, 2, 900)
    state.finish(4)
    state.give_back(5, 1, 0)  # is in the heap twice
    state.give_back(6, 1, 2000)
    state.give_back(7, 2, 0)
    wanted = [offset for offset in range(30) if offset not in (3, 4, 6, 7)]
    assert state.ready_as(0, 99) == wanted
    assert state.ready_as(0, 5) == [0, 1, 2, 5, 8]
    assert state.ready_as(7, 5) == [7]
    assert state.candidate(40, 0) == 0, "nothing has changed"


def test_an_acknowledgement_ahead_means_that_those_before_were_delivered() -> None:
    """Deliveries are not written down, so the events tell of them only in this way."""
    state = QueueState()
    assert state.apply(decode_event(finished(3))) == [3]
    assert (state.next_offset, state.unfinished) == (4, {0: 0, 1: 0, 2: 0})
    assert state.candidate(4, 0) == 0
    assert state.apply(decode_event(finished(3))) == []


def test_what_a_power_cut_took_is_forgotten() -> None:
    state = QueueState()
    for offset in range(6):
        state.take(offset, 1, 10)
    state.clamp(1, 4)
    assert (state.next_offset, state.unfinished) == (4, {1: 1, 2: 1, 3: 1})
    state.release_all()
    assert [state.candidate(4, 0)] == [1]
    state.clamp(9, 9)
    assert (state.next_offset, state.unfinished) == (9, {})


def test_deadlines_keep_no_leftovers_for_ever() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        deadlines.set(number, number)
        deadlines.discard(number)
    assert len(deadlines) == 0
    assert len(deadlines._heap) < 100
    for number in random.Random(1).sample(range(1000), 1000):
        deadlines.set(number, number)
    for number in range(1000):
        assert deadlines.first() == (number, number)
        deadlines.set(number, 2000)
        deadlines.discard(number)
    deadlines.set(1, 5)
    deadlines.set(1, 9)
    assert deadlines.first() == (9, 1)
    deadlines.discard(1)
    assert deadlines.first() is None


def test_an_acknowledgement_is_an_event() -> None:
    assert decode_event(finished(5)) == (EventKind.FINISHED, (5,), 0, 0)


@pytest.mark.parametrize("value", [None, b"", b"\x01", finished(1)[:-1], b"\x09" + finished(1)[1:]])
def test_what_is_no_event_is_refused(value: bytes | None) -> None:
    with pytest.raises(InvalidRecord, match="not an event"):
        decode_event(value)


def test_a_loss_is_told_once() -> None:
    """A second process may tell of the same one, when other messages are at those offsets."""
    state = QueueState()
    for offset in range(6):
        state.take(offset, 1, 100)
    for offset in (0, 2, 3, 5):
        state.finish(offset)
    lost = Event(EventKind.LOST, (3,), 0, 1)
    assert decode_event(lost.encode()) == lost
    assert state.apply(lost) == [3]
    assert (state.next_offset, state.unfinished, state.cuts) == (3, {1: 1}, 1)
    state.take(3, 1, 100)
    state.finish(3)
    assert state.apply(lost) == []
    assert state.next_offset == 4
    found = decode_checkpoint(encode_checkpoint(Checkpoint(state, 7, 8, False), is_shared=True), "offset 9")
    assert found.state.cuts == 1

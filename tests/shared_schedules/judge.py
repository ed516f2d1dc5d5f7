"""The rules for the messages of a shared queue, for any order of its workers' requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from logstore.queue import Message
from tests.shared_schedules.calls import Clock

LEASE_MS: Final = 4_000
LATE_MS: Final = 1_000
"""How long a waiting `get` may overlook a message: it looks for new topics, and waits, half a second each."""
_UNSEEN_MS: Final = 100
"""How long a returned message may stay behind new ones."""

Place = tuple[str, int]


@dataclass(slots=True)
class Held:
    """A message in a worker's hands, which nobody else may get before `until_ms`."""

    message: Message
    until_ms: int
    may_be_over: bool = False
    """It was returned, or a request about it had no answer."""


@dataclass
class Judge:
    """The results of all calls so far, and the rules. No lock: one worker runs at a time.

    If the schedule is calm, all requests are answered and take no time, and time passes while all wait. Then
    it is known which messages are free, and since when: these rules are about what is delivered first.
    """

    clock: Clock
    max_deliveries: int
    priorities: Mapping[str, int]
    is_calm: bool
    redrives: bool
    """Whether dead letters may be put again: then as messages whose keys are known."""
    begun: dict[bytes, int] = field(default_factory=dict)
    """The values, and when their delays end."""
    stored: dict[Place, bytes] = field(default_factory=dict)
    held: dict[Place, Held] = field(default_factory=dict)
    given: set[tuple[str, int, int]] = field(default_factory=set)
    delayed: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """When the delays of returned messages end, by the delivery that comes next."""
    finished: dict[Place, bytes] = field(default_factory=dict)
    done: set[bytes] = field(default_factory=set)
    """The values that are finished, or may be."""
    of_key: dict[tuple[str, bytes], set[int]] = field(default_factory=lambda: defaultdict(set))
    slow_keys: set[tuple[str, bytes]] = field(default_factory=set)
    """Keys whose claim may have ended while its process went on: a second message is allowed."""
    cut_off: set[bytes] = field(default_factory=set)
    """Values from before a power cut, of whose keys nobody may know any more."""
    free: dict[Place, int] = field(default_factory=dict)
    doubtful: set[Place] = field(default_factory=set)
    """Those that may be leased and in nobody's hands."""
    passed: dict[Place, int] = field(default_factory=dict)
    """Those that should have been delivered before others were, and when these were."""

    def forget(self) -> None:
        """A power cut took any of what was not synced."""
        for each in (self.stored, self.held, self.given, self.delayed, self.finished, self.of_key):
            each.clear()
        self.cut_off = set(self.begun)

    def was_away(self) -> None:
        """A process finds its next events deleted. What it has just leased, if anything, nobody has."""
        self.doubtful |= self.free.keys()
        self.free.clear()
        self.passed.clear()

    # --- what is put and returned -------------------------------------------------------------------------

    def put(self, topic: str, offset: int, key: bytes | None, value: bytes) -> None:
        place = topic, offset
        if key is None:
            self.stored[place] = value
        else:
            self.of_key[topic, key].add(offset)
        if (*place, 1) not in self.given and place not in self.doubtful:
            self.free.setdefault(place, max(self.clock.now_ms, self.begun[value]))

    def returned(self, held: Held, due_ms: int) -> None:
        """A worker has returned a message, whose lease was not over, and which is not given up."""
        message = held.message
        following = message.topic, message.offset, message.deliveries + 1
        self.delayed[following] = due_ms
        if following not in self.given:
            self.free[following[:2]] = max(due_ms, self.clock.now_ms)

    def finish(self, messages: Iterable[Message]) -> None:
        for each in messages:
            self.finished[each.topic, each.offset] = each.value
            self.free.pop((each.topic, each.offset), None)
        self.done |= {each.value for each in messages}

    def lost_lease(self, held: Held) -> None:
        """A worker was told that its lease is over."""
        assert held.may_be_over or held.until_ms <= self.clock.now_ms, (
            f"the lease of {held.message.value.decode()} ended early"
        )

    # --- what is delivered --------------------------------------------------------------------------------

    def got(self, message: Message, began_ms: int) -> Held:
        place, delivery, now_ms = (message.topic, message.offset), message.deliveries, self.clock.now_ms
        what = f"{message.value.decode()}, message {message.offset} of {message.topic}, delivery {delivery}"
        assert message.value in self.begun, f"invented: {what}"
        assert self.stored.get(place, message.value) == message.value, f"another value: {what}"
        assert (*place, delivery) not in self.given, f"given twice: {what}"
        assert delivery <= self.max_deliveries, f"given too often: {what}"
        due_ms = max(self.begun[message.value], self.delayed.get((*place, delivery), 0))
        assert due_ms <= now_ms, f"{due_ms - now_ms} ms before the end of its delay: {what}"
        assert self.passed.pop(place, began_ms) >= began_ms, f"after those that came later: {what}"
        self.given.add((*place, delivery))
        self.free.pop(place, None)
        if message.key is not None and message.value not in self.cut_off:
            self.of_key[message.topic, message.key].add(message.offset)
        taken_ms = now_ms if self.is_calm else began_ms
        before, now = self.held.get(place), Held(message, taken_ms + LEASE_MS)
        if before and before.message.deliveries > delivery:  # a call that took longer than the lease
            assert now.until_ms <= now_ms, f"out of order: {what}"
            return now
        assert place not in self.finished, f"after its acknowledgement: {what}"
        is_over = before is None or before.may_be_over or before.until_ms <= now_ms
        assert is_over, f"within the lease of another: {what}"
        self.held[place] = now
        return now

    def waited(
        self, found: Sequence[Message], wanted: Collection[str] | None, began_ms: int, timeout_ms: int
    ) -> None:
        """Check what a `get` found by now, before `got` of it."""
        now_ms = self.clock.now_ms
        assert wanted is None or all(each.topic in wanted for each in found), f"not of {wanted}"
        assert found or now_ms >= began_ms + timeout_ms, "a get ended early"
        if not self.is_calm:
            return
        assert now_ms <= began_ms + timeout_ms + 1, "a get ended late"
        of_found = {(each.topic, each.offset) for each in found}
        for place, since_ms in self._free():
            if wanted is not None and place[0] not in wanted:
                continue
            if place in of_found or not found:
                late_ms = now_ms - max(since_ms, began_ms)
                assert late_ms <= LATE_MS * (timeout_ms > 0), f"slept {late_ms} ms past {place}"
            elif any(self._is_before(place, since_ms, each, began_ms) for each in found):
                self.passed.setdefault(place, now_ms)

    def _free(self) -> Iterator[tuple[Place, int]]:
        """Yield the messages that are free, and since when."""
        for place, since_ms in self.free.items():
            if since_ms <= self.clock.now_ms:
                yield place, since_ms
        for place, held in self.held.items():
            is_given_up = held.message.deliveries >= self.max_deliveries
            is_over = held.until_ms <= self.clock.now_ms and not held.may_be_over
            if is_over and not is_given_up and place not in self.finished and place not in self.free:
                yield place, held.until_ms

    def _is_before(self, place: Place, since_ms: int, found: Message, began_ms: int) -> bool:
        """Whether a call that began at a time should have found the message at `place` first."""
        first, second = (self.priorities.get(topic, 0) for topic in (place[0], found.topic))
        if place[0] != found.topic:
            return first > second and since_ms < began_ms - LATE_MS
        was_delayed = self.begun[found.value] > found.timestamp_ms
        if found.deliveries > 1 or was_delayed or place[1] > found.offset:
            return False  # of those, as many as were delivered as often come together
        return since_ms < (began_ms if (*place, 1) not in self.given else began_ms - _UNSEEN_MS)

    def check_end(self, drained: set[bytes], dead: set[bytes]) -> None:
        """Check what is left when every message was taken."""
        for value in self.stored.values():
            assert value in self.done | drained | dead, f"lost: {value.decode()}"
        for key, offsets in self.of_key.items():
            is_allowed = self.redrives or key in self.slow_keys
            assert len(offsets) < 2 or is_allowed, f"stored twice: {key} at {sorted(offsets)}"

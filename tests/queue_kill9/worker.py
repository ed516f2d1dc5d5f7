"""A worker that is going to be killed: leases, acknowledges, returns and puts at random, and notes it down.

It prints how long the queue took to open and what it holds, then every violation that it sees; what it has
not printed when it is killed, the next one sees.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from logstore.queue import Message, Queue, QueueConfig
from logstore.queue.lane import Lane
from logstore.queue.queue import DEFAULT_TOPIC
from tests.queue_kill9.judge import BEGUN, RETURNED, Ledger, violations

CONFIG = QueueConfig(max_deliveries=1_000_000_000, lease=3600)
CHUNK = 10_000


class Worker:
    def __init__(self, home: Path, seed: int) -> None:
        self.ledger, self.rng = Ledger(home), random.Random(seed)
        begun_s = time.perf_counter()
        self.queue = Queue(home / "jobs", CONFIG)
        open_s = time.perf_counter() - begun_s
        stats = self.queue.stats().topics.get(DEFAULT_TOPIC)
        print(f"{open_s:.4f} {stats}", flush=True)
        if stats is not None:
            topic = self.queue._lanes[DEFAULT_TOPIC]
            unfinished = np.fromiter(topic.state.unfinished, np.int64)
            end_offset = topic.messages.log_end_offset
            self.complain(violations(unfinished, topic.state.next_offset, end_offset, self.ledger))
        self.hand: list[Message] = []

    def complain(self, found: list[str]) -> None:
        for each in found:
            print(each, flush=True)
        if found:
            raise SystemExit

    # --- what it does ---------------------------------------------------------------------------

    def put(self, count: int) -> None:
        # A put that was killed may have stored its messages: numbers follow the log, not the ledger.
        topic = self.queue._lanes.get(DEFAULT_TOPIC)
        first = topic.messages.log_end_offset if topic is not None else 0
        if first + count <= len(self.ledger.acks):
            offsets = self.queue.put_many([b"%d" % number for number in range(first, first + count)])
            assert offsets == list(range(first, first + count))
            self.ledger.put[0] = first + count

    def get(self, count: int) -> None:
        got = self.queue.get_many(count, timeout=0)
        for message in got:
            if int(message.value) != message.offset:
                self.complain([f"message {message.offset} has the value of {message.value!r}"])
            if self.ledger.acks[message.offset] == RETURNED:
                self.complain([f"new again: message {message.offset} was delivered"])
        self.hand += got

    def finish(self, count: int, *, together: bool) -> None:
        done = [self._pick() for _ in range(min(count, len(self.hand)))]
        for some in [done] if together else [[message] for message in done]:
            offsets = [message.offset for message in some]
            self.ledger.acks[offsets] = BEGUN
            self.queue.ack_many(some) if together else self.queue.ack(some[0])
            self.ledger.acks[offsets] = RETURNED

    def give_back(self) -> None:
        if self.hand:
            self.queue.nack(self._pick(), delay=self.rng.choice([0, 0.01]))

    def _pick(self) -> Message:
        place = self.rng.randrange(len(self.hand))
        self.hand[place], self.hand[-1] = self.hand[-1], self.hand[place]
        return self.hand.pop()

    # --- its tasks --------------------------------------------------------------------------------

    def fill(self, messages: int, leased: int) -> None:
        """Put everything, lease twice `leased`, acknowledge half of it at random, and die."""
        while self.ledger.put[0] < messages:
            self.put(min(CHUNK, messages - int(self.ledger.put[0])))
        while len(self.hand) < min(2 * leased, messages):
            self.get(min(CHUNK, 2 * leased - len(self.hand)))
        while len(self.hand) > leased:
            self.finish(min(CHUNK, len(self.hand) - leased), together=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def work(self) -> None:
        while True:
            match self.rng.randrange(8):
                case 0 | 1 | 2:
                    self.get(self.rng.randrange(1, 100))
                case 3 | 4:
                    self.finish(self.rng.randrange(1, 40), together=False)
                case 5:
                    self.finish(self.rng.randrange(1, 400), together=True)
                case 6:
                    self.give_back()
                case 7:
                    self.put(self.rng.randrange(1, 400))

    def drain(self) -> None:
        """Close and open the queue in order, and take some of what is left."""
        self.queue.close()
        self.queue = Queue(self.queue._directory, CONFIG)
        for _ in range(10):
            self.get(CHUNK)
        self.queue.close()


# --- faults that the judge must see ---------------------------------------------------------------------


def _late_acks() -> None:
    """Write an acknowledgement with the next one: it has returned before it is in the log."""
    finish, held = Lane.finish, list[tuple[Message, int]]()

    def late(self: Lane, message: Message, now_ms: int) -> None:
        held.append((message, now_ms))
        if len(held) > 1:
            finish(self, *held.pop(0))

    Lane.finish = late  # type: ignore[method-assign]


def _lost_events() -> None:
    """Forget the last events when a queue is opened."""
    recover = Lane._recover

    def forgetful(self: Lane, now_ms: int) -> None:
        self.events.truncate_to(max(self.events.log_end_offset - 3, self.events.log_start_offset))
        recover(self, now_ms)

    Lane._recover = forgetful  # type: ignore[method-assign]


def _skipped_message() -> None:
    """Take the message behind the last one that was leased for finished, too."""
    recover = Lane._recover

    def skipping(self: Lane, now_ms: int) -> None:
        recover(self, now_ms)
        if self.state.next_offset < self.messages.log_end_offset:
            self.state.next_offset += 1

    Lane._recover = skipping  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {
    "late-acks": _late_acks,
    "lost-events": _lost_events,
    "skipped-message": _skipped_message,
}


def main(arguments: list[str]) -> None:
    home, seed, plant, task, *numbers = arguments
    if plant != "none":
        PLANTS[plant]()
    worker = Worker(Path(home), int(seed))
    getattr(worker, task)(*map(int, numbers))


if __name__ == "__main__":
    main(sys.argv[1:])

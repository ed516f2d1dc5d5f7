"""A process of a shared queue that is going to be killed: puts keys that others put too, takes, acknowledges.

It is told home, address, name, seed, began, plant and task as a JSON object. The keys are numbers that grow
with the time since the campaign began. Most are new, the others were put up to 20 seconds ago.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from logstore.broker import SharedQueue, shared_keys, shared_lane, shared_puts
from logstore.broker.shared_lane import SharedLane
from logstore.disk.errors import EngineError
from logstore.queue import AlreadyFinished, LeaseEnded, Message, QueueConfig
from tests.shared_kill9.judge import Notes

CLAIM_MS: Final = 12_000
"""Longer than a broker is away."""
DEATHS: Final = 0.005
KEYS_A_SECOND: Final = 200
CHECKPOINT_EVENTS: Final = 200
CONFIG: Final = QueueConfig(deduplication_window=1e6, lease=3, max_deliveries=1_000_000)
DRAINED_S: Final = 4.0
"""Nothing comes for so long, which is longer than a lease."""


class Worker:
    def __init__(self, home: Path, address: str, name: str, seed: int, began: float) -> None:
        self.notes, self.rng, self.began = Notes(home, name), random.Random(seed), began
        self.queue = SharedQueue.connect(address, "jobs", CONFIG)

    def key(self) -> int:
        newest = int((time.monotonic() - self.began) * KEYS_A_SECOND)
        back_s = 0.5 if self.rng.random() < 0.7 else 20
        return max(newest - self.rng.randrange(int(back_s * KEYS_A_SECOND)), 0)

    def put(self) -> None:
        keys = [self.key() for _ in range(self.rng.choice([1, 1, 2, 20]))]
        if len(keys) == 1:
            offsets = [self.queue.put(b"%d" % keys[0], key=b"%d" % keys[0])]
        else:
            offsets = self.queue.put_many([(b"%d" % each, b"%d" % each) for each in keys])
        self.notes.write("stored", keys, offsets)

    def get(self, most: int, timeout: float) -> list[Message]:
        began = time.monotonic()
        found = self.queue.get_many(most, timeout=timeout)
        self.notes.write("got", [int(each.value) for each in found], [each.offset for each in found], began)
        return found

    def finish(self, messages: list[Message]) -> None:
        for each in messages:
            try:
                self.queue.ack(each)
            except (LeaseEnded, AlreadyFinished):
                continue
            self.notes.write("acked", [int(each.value)])

    def work(self) -> None:
        """Put, take and acknowledge for ever; die sometimes between a message and the event about its key."""
        tell = SharedLane.tell

        def tell_or_die(lane: SharedLane, kind: bytes, value: bytes) -> int:
            if kind == shared_keys.STORED and self.rng.random() < DEATHS:
                os.kill(os.getpid(), signal.SIGKILL)
            return tell(lane, kind, value)

        SharedLane.tell = tell_or_die  # type: ignore[method-assign, assignment]
        while True:
            try:
                self.put()
                found = self.get(self.rng.choice([1, 5]), timeout=0)
                if found and self.rng.random() < 0.1:
                    self.queue.nack(found.pop(), delay=0.2)
                self.finish(found)
            except EngineError:  # the broker is being killed or started
                time.sleep(0.05)

    def drain(self) -> None:
        """Take what is left, until nothing comes, or the same messages for the third time."""
        times = Counter[int]()
        while found := self.get(1000, timeout=DRAINED_S):
            times.update(each.offset for each in found)
            if min(times[each.offset] for each in found) > 2:
                return
            self.queue.ack_many(found)
            self.notes.write("acked", [int(each.value) for each in found])


# --- faults that the judge must see ---------------------------------------------------------------------


def _no_look() -> None:
    """Do not look for the message of a claim that is over."""
    for each in (shared_lane, shared_puts):
        each.messages_of = lambda messages, since_ms: {}  # type: ignore[attr-defined]


def _no_claims() -> None:
    """Give a key to everybody who claims it until its message is known."""
    shared_keys.SharedKeys.is_claimed = lambda self, key, now_ms: False  # type: ignore[method-assign]


def _forgetful_checkpoints() -> None:
    """Leave the keys out of checkpoints."""
    shared_keys.SharedKeys.encode = lambda self: b""  # type: ignore[method-assign]


def _late_acks() -> None:
    """Write an acknowledgement with the next one."""
    finish, held = SharedLane.finish, list[list[Message]]()

    def late(self: SharedLane, messages: list[Message]) -> None:
        held.append(messages)
        if len(held) > 1:
            finish(self, held.pop(0))

    SharedLane.finish = late  # type: ignore[method-assign]


PLANTS: Final[dict[str, Callable[[], None]]] = {
    "no-look": _no_look,
    "no-claims": _no_claims,
    "forgetful-checkpoints": _forgetful_checkpoints,
    "late-acks": _late_acks,
}


def main(arguments: list[str]) -> None:
    told = json.loads(arguments[0])
    shared_keys.CLAIM_MS = CLAIM_MS  # type: ignore[misc]
    shared_lane.CHECKPOINT_EVENTS = CHECKPOINT_EVENTS  # type: ignore[misc]
    if told["plant"]:
        PLANTS[told["plant"]]()
    worker = Worker(Path(told["home"]), told["address"], told["name"], told["seed"], told["began"])
    print("ready", flush=True)
    getattr(worker, told["task"])()


if __name__ == "__main__":
    main(sys.argv[1:])

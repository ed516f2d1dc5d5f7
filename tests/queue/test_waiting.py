"""The wake-ups when a waiter leaves."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial

from logstore.queue.queue import Wait
from tests.queue.parts import Hands


class Waiting:
    """Waiters of one queue that count their rings and look at each of them."""

    def __init__(self, hands: Hands, stack: ExitStack) -> None:
        self._hands, self._stack = hands, stack
        self.rings: Counter[int] = Counter()

    def begin(self, timeout: float | None = None) -> Wait:
        """Return one more waiter, which has looked in vain."""
        number = len(self._hands.queue._waiters)
        ring = partial(self.rings.update, [number])
        wait = self._stack.enter_context(self._hands.queue.waiting(ring, lambda: False, None, timeout, None))
        assert wait.look()[0] is None
        return wait


def test_one_that_leaves_without_a_ring_wakes_nobody() -> None:
    """Its time was over. Hundreds of workers with a short timeout would wake each other all the time."""
    hands = Hands()
    with ExitStack() as stack:
        waiting = Waiting(hands, stack)
        first = waiting.begin()
        for _ in range(100):
            waiting.begin()
        first.__exit__()
        assert not waiting.rings


def test_one_that_would_have_seen_the_end_of_a_lease_wakes_one_other() -> None:
    """The others came before the lease, and would look for it too late."""
    hands = Hands()
    with ExitStack() as stack:
        waiting = Waiting(hands, stack)
        worker = waiting.begin()
        for _ in range(100):
            waiting.begin()
        first = waiting.begin(timeout=5)
        hands.queue.put(b"job")
        message, _ = worker.look()
        assert message is not None
        worker.__exit__()
        assert waiting.rings == {0: 1}
        first.__exit__()
        assert waiting.rings == {0: 1, 1: 1}


def test_one_that_was_rung_passes_the_ring_on() -> None:
    hands = Hands()
    with ExitStack() as stack:
        waiting = Waiting(hands, stack)
        first, _ = waiting.begin(), waiting.begin()
        hands.queue.put(b"job")
        assert waiting.rings == {0: 1}
        first.__exit__()
        assert waiting.rings == {0: 1, 1: 1}

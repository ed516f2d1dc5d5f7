"""Delayed operations: each is answered exactly once (I14, S39, S40)."""

from __future__ import annotations

from collections.abc import Callable

from logstore.replication.delayed import DelayedOperation, Purgatory


class Waiting(DelayedOperation):
    """Ready once the flag is set; `looked` counts the checks, `answers` the answers."""

    __slots__ = ("answers", "looked", "on_look", "ready")

    def __init__(self, deadline_ms: int = 1000, on_look: Callable[[Waiting], None] | None = None) -> None:
        super().__init__(deadline_ms)
        self.ready = False
        self.looked = 0
        self.answers: list[int] = []
        self.on_look = on_look

    def is_ready(self, now_ms: int) -> bool:
        self.looked += 1
        was_ready = self.ready
        if self.on_look is not None:
            self.on_look(self)
        return was_ready

    def on_complete(self, now_ms: int) -> None:
        self.answers.append(now_ms)


def test_completed_by_its_key_once() -> None:
    """6.8: unsatisfied then checked: 0; satisfied then checked: 1; never counted twice."""
    purgatory: Purgatory[str, Waiting] = Purgatory()
    operation = Waiting()
    assert not purgatory.try_complete_else_watch(operation, ["p"], 0)
    assert purgatory.check("p", 1) == 0
    operation.ready = True
    assert purgatory.check("p", 2) == 1
    assert purgatory.check("p", 3) == 0
    assert operation.answers == [2]
    assert purgatory.watched == purgatory.delayed == 0


def test_ready_at_once_is_never_watched() -> None:
    purgatory: Purgatory[str, Waiting] = Purgatory()
    operation = Waiting()
    operation.ready = True
    assert purgatory.try_complete_else_watch(operation, ["p"], 5)
    assert operation.answers == [5]
    assert purgatory.watched == 0


def test_s39_what_becomes_ready_between_the_first_look_and_the_listing_is_not_lost() -> None:
    """S39: the wake-up comes before the operation is listed; the second check finds it."""

    def becomes_ready(operation: Waiting) -> None:
        operation.ready = True

    purgatory: Purgatory[str, Waiting] = Purgatory()
    operation = Waiting(on_look=becomes_ready)
    assert purgatory.try_complete_else_watch(operation, ["p"], 0)
    assert operation.looked == 2
    assert operation.answers == [0]
    assert purgatory.deadline_ms is None


def test_s40_timer_key_and_force_together_answer_once() -> None:
    """S40: the deadline, the high watermark and a change of role in one moment."""
    purgatory: Purgatory[str, Waiting] = Purgatory()
    operation = Waiting(deadline_ms=10)
    purgatory.try_complete_else_watch(operation, ["p", "q"], 0)
    operation.ready = True
    assert purgatory.expire(10) == 1
    assert purgatory.check("p", 10) == purgatory.check("q", 10) == 0
    assert not operation.force_complete(10)
    assert purgatory.expire(11) == 0
    assert operation.answers == [10]


def test_expiry_in_order_and_on_time() -> None:
    """Nothing before its deadline; the next deadline is always known."""
    purgatory: Purgatory[str, Waiting] = Purgatory()
    late, early = Waiting(deadline_ms=20), Waiting(deadline_ms=10)
    purgatory.try_complete_else_watch(late, ["p"], 0)
    purgatory.try_complete_else_watch(early, ["p"], 0)
    assert purgatory.deadline_ms == 10
    assert purgatory.expire(9) == 0
    assert purgatory.expire(10) == 1
    assert (early.answers, late.answers) == ([10], [])
    assert purgatory.deadline_ms == 20


def test_carcasses_are_counted_until_purged() -> None:
    """6.8: 3 operations under 2 keys each; completing two through one key leaves them under the other."""
    purgatory: Purgatory[str, Waiting] = Purgatory()
    operations = [Waiting() for _ in range(3)]
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, [f"a{number}", f"b{number}"], 0)
    assert (purgatory.delayed, purgatory.watched) == (3, 6)
    for number in (0, 1):
        operations[number].ready = True
        assert purgatory.check(f"a{number}", 1) == 1
    assert (purgatory.delayed, purgatory.watched) == (1, 4)
    assert purgatory.purge() == 2
    assert (purgatory.delayed, purgatory.watched) == (1, 2)


def test_purging_happens_by_itself() -> None:
    """Without it, keys without traffic would keep every completed request."""
    purgatory: Purgatory[str, Waiting] = Purgatory(purge_interval_requests=10)
    for number in range(50):
        operation = Waiting()
        purgatory.try_complete_else_watch(operation, ["hot", f"cold{number}"], 0)
        operation.ready = True
        purgatory.check("hot", 0)
    assert purgatory.watched <= 11


def test_an_answer_may_park_another_request_under_the_same_key() -> None:
    """A client sends its next append in the turn that answers the last one."""

    class Chained(Waiting):
        __slots__ = ()

        def on_complete(self, now_ms: int) -> None:
            super().on_complete(now_ms)
            purgatory.try_complete_else_watch(following, ["p"], now_ms)

    purgatory: Purgatory[str, Waiting] = Purgatory()
    following, first = Waiting(), Chained()
    purgatory.try_complete_else_watch(first, ["p"], 0)
    first.ready = True
    assert purgatory.check("p", 1) == 1
    assert (purgatory.delayed, purgatory.watched) == (1, 1)
    following.ready = True
    assert purgatory.check("p", 2) == 1
    assert following.answers == [2]


def test_watching_looks_no_further_until_a_key_is_checked() -> None:
    """The caller has just checked: a second check would cost as much as the first."""
    purgatory: Purgatory[str, Waiting] = Purgatory()
    operation = Waiting()
    purgatory.watch(operation, ["a", "b"])
    assert (operation.looked, purgatory.delayed, purgatory.watched) == (0, 1, 2)
    operation.ready = True
    assert purgatory.check("a", 10) == 1
    assert (operation.answers, purgatory.delayed) == ([10], 0)
    assert purgatory.expire(1000) == 0

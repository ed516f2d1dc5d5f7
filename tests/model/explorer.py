"""A small explicit-state model checker: every state that the rules allow, breadth first.

A state is a fixed number of parts (the store, each replica, …), each an immutable value that is interned:
it becomes a number, and the numbers are packed into one int.

    state    …│ replica 1 │ replica 0 │ store │      20 bits a part

An action names the parts it reads and writes, and what it may do to them. What it does is worked out once
for each combination of just those parts, as differences of packed ints; everywhere else in the state space
it is one masked look-up and one addition a step. So a step may be as slow as it likes: it calls the
engine's own functions. Invariants are memoised in the same way.

Breadth first means that the first violation found has a shortest trace. Only the predecessor of each state
is kept; the trace is told by taking its steps again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

_BITS = 20
_PART = (1 << _BITS) - 1

Parts: TypeAlias = tuple[Hashable, ...]
Steps: TypeAlias = Iterable[tuple[str, Parts]]


class Action(NamedTuple):
    """`steps(*values of parts)` gives (what happens, new values of the same parts), any number of them."""

    parts: tuple[int, ...]
    steps: Callable[..., Steps]


class Invariant(NamedTuple):
    """`violation(*values of parts)` says what is wrong, or nothing."""

    parts: tuple[int, ...]
    violation: Callable[..., str]


@dataclass(frozen=True, slots=True)
class Move:
    """One line of a trace: what happened, and the state after it."""

    label: str
    state: Parts


@dataclass(frozen=True, slots=True)
class Exploration:
    """What was found: all states if `is_exhausted`, else those up to the violation or the limit."""

    states: int
    transitions: int
    depth: int
    is_exhausted: bool
    violation: str = ""
    trace: tuple[Move, ...] = ()


class _Interned:
    """The values of one part, numbered in the order they are met."""

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.values: list[Hashable] = []
        self._numbers: dict[Hashable, int] = {}

    def pack(self, value: Hashable) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            assert number <= _PART, "a part has more values than its bits can number"
            self.values.append(value)
        return number << self.shift

    def unpack(self, state: int) -> Any:
        return self.values[state >> self.shift & _PART]


class Explorer:
    """One model: where it starts, what may happen, what must hold."""

    def __init__(self, initial: Parts, actions: Sequence[Action], invariants: Sequence[Invariant]) -> None:
        self._interned = [_Interned(slot * _BITS) for slot in range(len(initial))]
        self._initial = self._pack(initial)
        self._actions: list[tuple[int, dict[int, tuple[int, ...]], Action]] = [
            (self._mask(action.parts), {}, action) for action in actions
        ]
        self._invariants: list[tuple[int, dict[int, str], Invariant]] = [
            (self._mask(each.parts), {}, each) for each in invariants
        ]

    def _pack(self, state: Parts) -> int:
        return sum(part.pack(value) for part, value in zip(self._interned, state, strict=True))

    def _unpack(self, state: int) -> Parts:
        return tuple(part.unpack(state) for part in self._interned)

    @staticmethod
    def _mask(parts: tuple[int, ...]) -> int:
        return sum(_PART << slot * _BITS for slot in parts)

    def _steps(self, action: Action, state: int) -> list[tuple[str, int]]:
        """What the action can do in this state: labels, and what to add to the packed state."""
        parts = [self._interned[slot] for slot in action.parts]
        found = []
        for label, values in action.steps(*(part.unpack(state) for part in parts)):
            difference = sum(part.pack(value) for part, value in zip(parts, values, strict=True))
            difference -= state & self._mask(action.parts)
            if difference:
                found.append((label, difference))
        return found

    def explore(self, max_states: int = 1 << 62) -> Exploration:
        """Visit every state that can be reached, until one violates an invariant or there are too many."""
        predecessors: dict[int, int] = {self._initial: -1}
        frontier = [self._initial]
        transitions = depth = 0
        if wrong := self._violation(self._initial):
            return Exploration(1, 0, 0, False, wrong, self._trace(predecessors, self._initial))
        while frontier:
            reached: list[int] = []
            for state in frontier:
                for mask, memo, action in self._actions:
                    key = state & mask
                    differences = memo.get(key)
                    if differences is None:
                        steps = self._steps(action, state)
                        differences = memo[key] = tuple(dict.fromkeys(step for _, step in steps))
                    transitions += len(differences)
                    for difference in differences:
                        following = state + difference
                        if following in predecessors:
                            continue
                        predecessors[following] = state
                        reached.append(following)
                        for wanted, verdicts, invariant in self._invariants:
                            part = following & wanted
                            verdict = verdicts.get(part)
                            if verdict is None:
                                verdict = verdicts[part] = self._judge(invariant, following)
                            if verdict:
                                trace = self._trace(predecessors, following)
                                return Exploration(
                                    len(predecessors), transitions, depth + 1, False, verdict, trace
                                )
                if len(predecessors) >= max_states:
                    return Exploration(len(predecessors), transitions, depth, False)
            frontier = reached
            depth += bool(reached)
        return Exploration(len(predecessors), transitions, depth, True)

    def _judge(self, invariant: Invariant, state: int) -> str:
        return invariant.violation(*(self._interned[slot].unpack(state) for slot in invariant.parts))

    def _violation(self, state: int) -> str:
        return next(filter(None, (self._judge(each, state) for _, _, each in self._invariants)), "")

    def _trace(self, predecessors: dict[int, int], state: int) -> tuple[Move, ...]:
        path = [state]
        while (state := predecessors[state]) >= 0:
            path.append(state)
        path.reverse()
        moves = [Move("at first", self._unpack(path[0]))]
        for before, after in itertools.pairwise(path):
            label = next(
                label
                for _, _, action in self._actions
                for label, difference in self._steps(action, before)
                if before + difference == after
            )
            moves.append(Move(label, self._unpack(after)))
        return tuple(moves)

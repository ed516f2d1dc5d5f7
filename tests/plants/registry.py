"""What a planted mistake is, and how a rule is replaced from outside.

A plant is a function that swaps attributes of the engine for a while: it gets an `ExitStack`, and what it
puts there brings the rules back. Its name is the function's, its mistake one sentence of a report that
somebody might have written. Production code knows nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from logstore.replication.controller.context import Steps
from logstore.replication.metastore.operations import Multi, Operation, Outcome
from logstore.testing.stories.rules import Patch


@dataclass(frozen=True, slots=True)
class Plant:
    """One mistake: what it is, and how to make it. A rare one has no first seed below 500 that is known."""

    name: str
    mistake: str
    patch: Patch
    is_rare: bool = False


PLANTS: dict[str, Plant] = {}


@contextmanager
def planted(name: str) -> Iterator[Plant]:
    """Make this mistake until the block ends. Raises `KeyError` for a name that is not registered."""
    found = PLANTS[name]
    with ExitStack() as stack:
        found.patch(stack)
        yield found


def plant(mistake: str, *, is_rare: bool = False) -> Callable[[Patch], Patch]:
    """Register the function below under its name, with dashes."""

    def register(patch: Patch) -> Patch:
        name = patch.__name__.replace("_", "-")
        assert name not in PLANTS, f"two plants are named {name}"
        PLANTS[name] = Plant(name, mistake, patch, is_rare)
        return patch

    return register


def swap_item(stack: ExitStack, table: Any, key: object, value: object) -> None:
    """Replace an entry of a dict until the stack unwinds."""
    before = table[key]
    table[key] = value
    stack.callback(table.__setitem__, key, before)


def rewritten(steps: Steps[Any], write: Callable[[Multi], Steps[Outcome]]) -> Steps[Any]:
    """The same procedure of a controller; a Multi that it yields alone is carried out by `write`."""
    try:
        operations: tuple[Operation, ...] = next(steps)
        while True:
            if len(operations) == 1 and isinstance(operations[0], Multi):
                outcomes: tuple[Outcome, ...] = ((yield from write(operations[0])),)
            else:
                outcomes = yield operations
            operations = steps.send(outcomes)
    except StopIteration as end:
        return end.value

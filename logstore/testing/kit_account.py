"""Describe a simulated cluster for people: its state, and the events before a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from logstore.testing.describe import describe
from logstore.testing.stored import Violation
from logstore.testing.timeline import START_MS
from logstore.testing.world import World

E = TypeVar("E", bound=Exception)


class CallRecord:
    """The calls made to a cluster, at their virtual milliseconds; added as a note to errors."""

    def __init__(self, world: World, title: str, seed: int) -> None:
        self.is_settled = False
        """A violation was found, or the final check has begun: nothing is left to check at the end."""
        self._world = world
        self._title = title
        self._seed = seed
        self._calls: list[str] = []

    @contextmanager
    def entered(self, text: str) -> Iterator[None]:
        """Record a call, and explain the violation that it brings to light."""
        self._calls.append(f"{self._world.now_ms - START_MS:>7} {text}")
        with self.explained():
            yield

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Explain a violation that is raised in this block."""
        try:
            yield
        except Violation as violation:
            self.is_settled = True
            self.explain(violation)
            raise

    def explain(self, error: E) -> E:
        """Add the account as a note, unless the error has one; return the error."""
        if not getattr(error, "__notes__", None):
            error.add_note(self.account())
        return error

    def account(self) -> str:
        """Return the seed, the calls and the last events."""
        recent = [f"{at_ms - START_MS:>7} {describe(facts)}" for at_ms, facts in self._world.time.recent]
        return "\n".join(
            [
                f"seed {self._seed}: run the same program with {self._title} to see this again",
                "calls made to the cluster, at their virtual milliseconds:",
                *(f"  {line}" for line in self._calls),
                "the last events:",
                *(f"  {line}" for line in recent),
            ]
        )


def describe_world(world: World) -> str:
    """Return a line for each node and each partition, and the links that are cut."""
    lines = [f"{world.now_ms - START_MS} ms"]
    for host in world.hosts.values():
        facts = {
            "paused": host.is_paused,
            "disk dead": host.disk_is_dead,
            "disk full": host.disk_is_full,
            "disk slow": host.sync_delay_ms > 0,
            "controller": host.node is not None and host.node.controller.is_active,
        }
        life = "down" if host.node is None else f"running, life {host.life}"
        lines.append(", ".join([f"node {host.node_id}: {life}", *(each for each in facts if facts[each])]))
    for topic_partition, checker in world.checkers.items():
        state = checker.state
        stored = "no state yet"
        if state is not None:
            stored = f"leader {state.leader} at epoch {state.leader_epoch}, ISR {list(state.isr)}"
        views = "; ".join(str(view) for _, view in sorted(checker.views.items()))
        lines.append(f"{topic_partition}: {stored}; {views}")
    if world.network.cuts:
        lines.append(f"cut: {sorted(world.network.cuts)}")
    return "\n".join(lines)

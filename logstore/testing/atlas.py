"""The fault atlas: counts of each fault by the state of its victim.

A campaign that never paused a controller has not tested that, however many seeds it ran. A fault counts
once for each state of its victim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from logstore.testing.hosts import Host
from logstore.testing.world import World

STATES = (
    "leader", "last in ISR", "follower in ISR", "out of ISR", "recovering", "controller", "being reassigned",
    "being deleted", "unregistered", "cut off", "paused", "disk trouble", "down", "cluster",
)  # fmt: skip
"""The states of a victim, which may have several at once; `cluster` is for faults of all nodes."""


def states_of(world: World, host: Host | None) -> list[str]:
    """Return the states of `host`; None: the fault is for all nodes."""
    if host is None:
        return ["cluster"]
    node_id = host.node_id
    found: set[str] = set()
    if host.node is None:
        found.add("down")
    elif host.broker_epoch < 0:
        found.add("unregistered")
    if host.node is not None and host.node.controller.is_active:
        found.add("controller")
    if host.is_paused:
        found.add("paused")
    if host.disk_is_dead or host.disk_is_full or host.sync_delay_ms:
        found.add("disk trouble")
    if any(node_id in pair for pair in world.network.cuts):
        found.add("cut off")
    for checker in world.checkers.values():
        state = checker.state
        if state is None or node_id not in checker.replicas:
            continue
        if checker.is_changing_replicas:
            found.add("being reassigned")
        if checker.is_being_deleted:
            found.add("being deleted")
        if state.leader == node_id:
            found.add("leader")
            if state.recovering:
                found.add("recovering")
        elif node_id in state.isr:
            found.add("follower in ISR")
        else:
            found.add("out of ISR")
            if host.node is not None and not host.node.logs.was_clean:
                found.add("recovering")
        if state.isr == (node_id,):
            found.add("last in ISR")
    return [state for state in STATES if state in found]


def table(atlas: Mapping[tuple[str, str], int], faults: Iterable[str]) -> str:
    """Return the counts as text: a line per fault, a column per state; a dot for zero."""
    rows = [["", *STATES]]
    for fault in faults:
        counts = [atlas.get((fault, state), 0) for state in STATES]
        rows.append([fault, *(str(count) if count else "·" for count in counts)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    hit = sum(1 for count in atlas.values() if count)
    return "\n".join([*lines, f"{hit} cells hit"])

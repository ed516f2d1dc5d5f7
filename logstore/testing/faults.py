"""The faults: what each does to the world, and what it needs to be fair. Deterministic.

A `Decision` is one fault with everything that was drawn for it: time, victim, duration, and one number for
all other choices. Carrying it out draws nothing more, and does nothing where it no longer fits (a node
that is down cannot be killed). So a list of decisions can be recorded, replayed and shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from logstore.replication.durability import Durability
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import CONTROLLER_PATH
from logstore.replication.metastore.operations import Create, Delete
from logstore.testing import disk_faults
from logstore.testing.hosts import Host
from logstore.testing.network import STORE
from logstore.testing.world import World

NOBODY = -2


@dataclass(frozen=True, slots=True)
class Decision:
    """One fault, or one command of an operator, as it was decided.

    `at_ms` counts from the end of the set-up. `other` is a second node or the store, if the fault needs
    one. `chance`, in [0, 1), chooses between the variants of a fault.
    """

    at_ms: int
    what: str
    victim: int = NOBODY
    other: int = NOBODY
    for_ms: int = 0
    chance: float = 0.0


class Takes(Enum):
    """The worst loss that a fault causes to its victim."""

    NOTHING = 0
    PROCESS = 1
    DISK = 2
    """The process and all unsynced data."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: `apply` carries a decision out, and ends its effect after `for_ms` unless `World.heal` does
    first."""

    apply: Callable[[World, Decision], None]
    takes: Takes = Takes.NOTHING
    needs_victim: bool = True
    may_be_down: bool = False


def _of_a_running(fault: Callable[[World, Decision, Host], None]) -> Callable[[World, Decision], None]:
    """Pass the victim's machine to the fault, and skip the fault if its node is down."""

    def apply(world: World, decision: Decision) -> None:
        host = world.hosts[decision.victim]
        if host.node is not None:
            fault(world, decision, host)

    return apply


def _later(world: World, decision: Decision, action: Callable[..., None], *arguments: object) -> None:
    def act() -> None:
        if not world.is_healed:
            action(*arguments)

    world.time.at(1 + decision.for_ms, act)


def _start(world: World, host: Host) -> None:
    if host.node is None:
        world.start(host)


def _forget_session(world: World, host: Host, decision: Decision) -> None:
    """Expire the session of half of the dead at once, as if most of its timeout had passed."""
    if host.session_id is not None and decision.chance < 0.5:
        world.expire_session(host)


# --- fairness --------------------------------------------------------------------------------------


def others_hold_everything(world: World, victim: Host, *, or_may_lead: bool = False) -> bool:
    """Whether each partition of `victim` has another sound ISR member: alive, with a sound disk and log.

    Its partitions are those in whose ISR it is. With `or_may_lead`, all that it has a replica of count:
    if no ISR member is sound, an operator would elect it.
    """
    for topic_partition, checker in world.checkers.items():
        state = checker.state
        if state is None:
            continue
        if victim.node_id not in (*state.isr, *(checker.replicas if or_may_lead else ())):
            continue
        others = [
            member
            for member in state.isr
            if member != victim.node_id
            and not world.hosts[member].disk_is_dead
            and (node := world.hosts[member].node) is not None
            and node.broker_epoch == state.broker_epoch_of(member)
            and topic_partition not in node.logs.damaged
        ]
        if not others:
            return False
    return True


def may_lose_power(world: World, victim: Host) -> bool:
    """Whether all acknowledged records certainly survive if this machine loses its unsynced data."""
    swarm = world.swarm
    if swarm.reckless or swarm.durability is Durability.SYNCED:
        return True
    return others_hold_everything(world, victim)


# --- processes ------------------------------------------------------------------------------------


@_of_a_running
def _kill(world: World, decision: Decision, host: Host) -> None:
    _forget_session(world, host, decision)
    world.kill(host)
    _later(world, decision, _start, world, host)


@_of_a_running
def _bounce(world: World, decision: Decision, host: Host) -> None:
    """Restart a node before its former life's session ends."""
    if decision.chance < 0.5:
        world.kill(host)
    else:
        world.stop(host, gives_session_up=decision.chance < 0.75)
    world.time.at(1 + int(10 * decision.chance), lambda: _start(world, host))


@_of_a_running
def _stop(world: World, decision: Decision, host: Host) -> None:
    if not host.is_paused:
        world.stop(host)
        _later(world, decision, _start, world, host)
        if decision.chance < 0.25:  # started and stopped once more
            _later(world, decision, _stop_again, world, decision, host, host.life + 1)


@_of_a_running
def _shut_down(world: World, decision: Decision, host: Host) -> None:
    """Shut the victim down in order: the controller moves its leaderships first."""
    if not host.is_paused:
        world.shut_down(host, lambda: _later(world, decision, _start, world, host))


def _stop_again(world: World, decision: Decision, host: Host, life: int) -> None:
    if host.life == life and host.node is not None and not host.is_paused:
        world.stop(host)
        _later(world, decision, _start, world, host)


@_of_a_running
def _pause(world: World, decision: Decision, host: Host) -> None:
    if not host.is_paused:
        world.pause(host)
        _later(world, decision, _resume, world, host, host.life)


def _resume(world: World, host: Host, life: int) -> None:
    if host.life == life:
        world.resume(host)


def _crash_in_start(world: World, decision: Decision) -> None:
    """Kill the victim, and kill it again while it recovers; then let it start."""
    host = world.hosts[decision.victim]
    loses_power = decision.chance < 0.5
    if host.node is not None:
        _forget_session(world, host, decision)
        (world.cut_power if loses_power else world.kill)(host)
    _later(world, decision, _start_and_crash, world, host, decision)


def _start_and_crash(world: World, host: Host, decision: Decision) -> None:
    if host.node is None:
        world.start(host, dies_after=1 + int(decision.chance * 1000) % 97, loses_power=decision.chance < 0.5)
        _later(world, decision, _start, world, host)


# --- power ----------------------------------------------------------------------------------------


def _cut_power(world: World, decision: Decision) -> None:
    _cut_power_of(world, decision, world.hosts[decision.victim])


def _cut_power_of(world: World, decision: Decision, host: Host) -> None:
    was_running = host.node is not None
    _forget_session(world, host, decision)
    world.cut_power(host, is_noticed=decision.chance < 0.7)
    if was_running:
        _later(world, decision, _start, world, host)


def _cut_rack(world: World, decision: Decision) -> None:
    """Cut the power of two machines at once, or of all."""
    hosts = list(world.hosts.values())
    if decision.chance < 0.5:
        first = hosts.index(world.hosts[decision.victim])
        hosts = [hosts[first], hosts[(first + 1) % len(hosts)]]
    for host in hosts:
        if may_lose_power(world, host):
            _cut_power_of(world, decision, host)


# --- disks ----------------------------------------------------------------------------------------


@_of_a_running
def _kill_disk(world: World, decision: Decision, host: Host) -> None:
    if not host.disk_is_dead:
        operation = (None, "pwrite", "sync")[int(decision.chance * 3)]
        disk_faults.fail_disk(world.time, host, operation)
        _later(world, decision, _replace, world, decision, host, host.life)


@_of_a_running
def _fail_sync(world: World, decision: Decision, host: Host) -> None:
    """Fail one sync and mark its pages as clean; all later calls succeed."""
    if not host.disk_is_dead:
        disk_faults.fail_disk(world.time, host, "sync", once=True)
        _later(world, decision, _replace, world, decision, host, host.life)


def _replace(world: World, decision: Decision, host: Host, life: int) -> None:
    if host.life == life and host.disk_is_dead:
        _forget_session(world, host, decision)
        world.cut_power(host)
        _later(world, decision, _start, world, host)


@_of_a_running
def _fill_disk(world: World, decision: Decision, host: Host) -> None:
    if not host.disk_is_dead:
        disk_faults.fill_disk(world.time, host)
        _later(world, decision, disk_faults.make_room, world.time, host)


@_of_a_running
def _slow_disk(world: World, decision: Decision, host: Host) -> None:
    disk_faults.slow_disk(world.time, host, 1 + int(decision.chance * 2 * world.swarm.session_timeout_ms))
    _later(world, decision, disk_faults.slow_disk, world.time, host, 0)


@_of_a_running
def _flush(world: World, decision: Decision, host: Host) -> None:
    """Not a fault: sync a part of the log."""
    disk_faults.flush(world.time, host, sealed_only=decision.chance < 0.5)


# --- links ----------------------------------------------------------------------------------------


def _cut(world: World, decision: Decision, pairs: list[tuple[int, int]]) -> None:
    world.network.cut(pairs, is_noticed=decision.chance < 0.7)
    _later(world, decision, world.mend, pairs)


def _both(one: int, other: int) -> list[tuple[int, int]]:
    return [(one, other), (other, one)]


def _isolate(world: World, decision: Decision) -> None:
    others = [other for other in world.hosts if other != decision.victim]
    if decision.other == STORE:
        others.append(STORE)
    _cut(world, decision, [pair for other in others for pair in _both(decision.victim, other)])


def _cut_link(world: World, decision: Decision) -> None:
    _cut(world, decision, _both(decision.victim, decision.other))


def _cut_one_way(world: World, decision: Decision) -> None:
    _cut(world, decision, [_both(decision.victim, decision.other)[int(decision.chance * 1000) % 2]])


def _cut_store(world: World, decision: Decision) -> None:
    _cut(world, decision, _both(decision.victim, STORE))


def _slow_link(world: World, decision: Decision) -> None:
    pairs = _both(decision.victim, decision.other)
    world.network.slow(pairs, 1 + int(decision.chance * world.swarm.request_timeout_ms))
    _later(world, decision, world.network.slow, pairs, 0)


# --- the store ------------------------------------------------------------------------------------


@_of_a_running
def _expire(world: World, decision: Decision, host: Host) -> None:
    if host.session_id is not None:
        world.expire_session(host)


def _depose(world: World, decision: Decision) -> None:
    """Remove `/controller`: its holder is alive, but another node takes over."""
    world.time.note("the operator removes the controller")
    world.tally.depositions += 1
    world.store_link.write_as_operator(Delete(CONTROLLER_PATH))


def _store_outage(world: World, decision: Decision) -> None:
    """Make the store unreachable, as while it elects its own leader; no session expires meanwhile."""
    if not world.store_link.is_down:
        world.store_link.go_down()
        _later(world, decision, world.store_link.come_back)


def _leave_notice(world: World, decision: Decision) -> None:
    """Not a fault: leave a request for preferred leaders or an ISR notice in the store; some make no
    sense."""
    listed = layout.encode_partitions(sorted(world.checkers)) if decision.chance < 0.9 else b"?"
    if int(decision.chance * 1000) % 2:
        notice = Create(layout.PREFERRED_ELECTION_PATH, listed, make_parents=True)
    else:
        notice = Create(layout.ISR_NOTIFICATION_PREFIX, listed, sequential=True, make_parents=True)
    world.store_link.write_as_operator(notice)


FAULTS: Mapping[str, Fault] = {
    "kill": Fault(_kill, Takes.PROCESS),
    "bounce": Fault(_bounce, Takes.PROCESS),
    "stop": Fault(_stop),
    "shut_down": Fault(_shut_down),
    "pause": Fault(_pause),
    "crash_in_start": Fault(_crash_in_start, Takes.DISK, may_be_down=True),
    "power_cut": Fault(_cut_power, Takes.DISK, may_be_down=True),
    "rack_power_cut": Fault(_cut_rack, may_be_down=True),
    "dead_disk": Fault(_kill_disk, Takes.DISK),
    "failed_sync": Fault(_fail_sync, Takes.DISK),
    "full_disk": Fault(_fill_disk),
    "slow_disk": Fault(_slow_disk),
    "flush": Fault(_flush),
    "isolate": Fault(_isolate, may_be_down=True),
    "cut_link": Fault(_cut_link, may_be_down=True),
    "cut_one_way": Fault(_cut_one_way, may_be_down=True),
    "cut_store": Fault(_cut_store, may_be_down=True),
    "slow_link": Fault(_slow_link, may_be_down=True),
    "expire": Fault(_expire),
    "depose": Fault(_depose, needs_victim=False),
    "store_outage": Fault(_store_outage, needs_victim=False),
    "notice": Fault(_leave_notice, needs_victim=False),
}

"""Break things: one decision after the other, each at the rate that its seed gives it.

A fault prefers leaders as victims, since that is where protocols go wrong. Unless the seed is `reckless`, no
fault takes the last ISR member that holds everything: durability `replicated` promises nothing then (the
partition waits for its operator), and a run that waits tests little. With durability `synced`, all machines
may lose their power at once.

Every decision is recorded. Given a list of decisions, the nemesis draws nothing and carries out the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from logstore.testing.atlas import states_of
from logstore.testing.by_hand import BY_HAND
from logstore.testing.faults import (
    FAULTS,
    NOBODY,
    Decision,
    Fault,
    Takes,
    may_lose_power,
    others_hold_everything,
)
from logstore.testing.hosts import Host
from logstore.testing.network import STORE
from logstore.testing.operator import COMMANDS, give, is_served
from logstore.testing.swarm import stream
from logstore.testing.world import World


class Nemesis:
    """Draw faults from the seed's own stream, or replay `script`, until the world is healed."""

    def __init__(self, world: World, script: Iterable[Decision] | None = None) -> None:
        self.world = world
        self.decisions: list[Decision] = []
        """The decisions carried out so far."""
        self._began_ms = world.now_ms
        self._script = None if script is None else iter(script)
        self._random = stream(world.swarm.seed, "nemesis")
        self._command_random = stream(world.swarm.seed, "operator's commands")
        swarm = world.swarm
        self._faults = [(name, swarm.rates[name]) for name in FAULTS if swarm.rates[name]]
        self._commands = [
            (name, swarm.command_rates[name])
            for name, command in COMMANDS.items()
            if swarm.command_rates.get(name) and is_served(command)
        ]
        self._hand_random = stream(world.swarm.seed, "hands at work")
        self._hands = [(name, rate) for name, rate in swarm.hand_rates.items() if rate]

    def run(self) -> None:
        """Start now."""
        self._began_ms = self.world.now_ms
        if self._script is not None:
            self._replay_next()
            return
        for known, act in (
            (self._faults, self._decide),
            (self._commands, self._command),
            (self._hands, self._act_by_hand),
        ):
            if known:
                self._soon(0, act)

    def _soon(self, delay_ms: int, callback: Callable[..., None], *arguments: object) -> None:
        # First in its millisecond, and without a draw from the world's streams: a replay, which draws
        # nothing, must give the same order.
        self.world.time.push(self.world.now_ms + delay_ms, -1.0, callback, arguments)

    def _chosen(self, random: Random, rates: Sequence[tuple[str, float]]) -> str | None:
        """Choose a name by its rate; None once the world is healed. The turn itself is not an event."""
        self.world.time.was_nothing()
        if self.world.is_healed:
            return None
        names, weights = zip(*rates, strict=True)
        name: str = random.choices(names, weights)[0]
        return name

    def _decide(self) -> None:
        if (name := self._chosen(self._random, self._faults)) is None:
            return
        decision = self._draw(name, FAULTS[name])
        if decision is not None:
            self._carry_out(decision)
        self._soon(_pause_ms(self._random, self.world.swarm.fault_interval_ms), self._decide)

    def _command(self) -> None:
        world, random = self.world, self._command_random
        if (name := self._chosen(random, self._commands)) is None:
            return
        at_ms = world.now_ms - self._began_ms
        node_id = random.choice(list(world.hosts))
        self._carry_out(Decision(at_ms, name, node_id, chance=random.random()))
        self._soon(_pause_ms(random, world.swarm.command_interval_ms), self._command)

    def _act_by_hand(self) -> None:
        world, random = self.world, self._hand_random
        if (name := self._chosen(random, self._hands)) is None:
            return
        at_ms = world.now_ms - self._began_ms
        for_ms = _pause_ms(random, world.swarm.session_timeout_ms)
        node_id = random.choice(list(world.hosts))
        self._carry_out(Decision(at_ms, name, node_id, for_ms=for_ms, chance=random.random()))
        self._soon(_pause_ms(random, world.swarm.command_interval_ms), self._act_by_hand)

    def _replay_next(self) -> None:
        assert self._script is not None
        for decision in self._script:
            delay_ms = max(self._began_ms + decision.at_ms - self.world.now_ms, 0)
            self._soon(delay_ms, self._replay, decision)
            return

    def _replay(self, decision: Decision) -> None:
        self.world.time.was_nothing()
        if not self.world.is_healed:
            self._carry_out(decision)
            self._replay_next()

    def _carry_out(self, decision: Decision) -> None:
        world = self.world
        self.decisions.append(decision)
        world.time.note("decision:", decision)
        if decision.what in COMMANDS:
            give(world, decision)
            return
        if decision.what in BY_HAND:
            if world.checkers:
                BY_HAND[decision.what](world, decision)
            return
        victim = world.hosts.get(decision.victim)
        for state in states_of(world, victim):
            world.atlas[decision.what, state] += 1
        FAULTS[decision.what].apply(world, decision)

    # --- drawing ------------------------------------------------------------------------------

    def _draw(self, name: str, fault: Fault) -> Decision | None:
        world, random = self.world, self._random
        at_ms = world.now_ms - self._began_ms
        for_ms, chance = self._duration_ms(), random.random()
        if not fault.needs_victim:
            return Decision(at_ms, name, for_ms=for_ms, chance=chance)
        victim = self._victim(running_only=not fault.may_be_down)
        others = [node_id for node_id in [*world.hosts, STORE] if victim and node_id != victim.node_id]
        draw = random.random()
        if victim is None or not self._may_take(victim, fault.takes):
            return None
        if name in ("cut_link", "slow_link"):
            others.remove(STORE)
        other = STORE if name == "isolate" and draw < 0.7 else others[int(draw * len(others))]
        needs_other = name in ("isolate", "cut_link", "cut_one_way", "slow_link")
        return Decision(at_ms, name, victim.node_id, other if needs_other else NOBODY, for_ms, chance)

    def _duration_ms(self) -> int:
        swarm = self.world.swarm
        scale = self._random.choice((swarm.backoff_ms, swarm.lag_time_max_ms, swarm.session_timeout_ms))
        return _pause_ms(self._random, scale)

    def _victim(self, *, running_only: bool) -> Host | None:
        hosts = [host for host in self.world.hosts.values() if host.node is not None or not running_only]
        leaders = [
            host
            for checker in self.world.checkers.values()
            if checker.state is not None
            for host in hosts
            if host.node_id == checker.state.leader
        ]
        draw = self._random.random()
        if leaders and draw < 0.5:
            return self._random.choice(leaders)
        return self._random.choice(hosts) if hosts else None

    def _may_take(self, victim: Host, takes: Takes) -> bool:
        """Whether another node remains that holds all committed records."""
        if takes is Takes.NOTHING:
            return True
        world = self.world
        if takes is Takes.DISK:
            return may_lose_power(world, victim)
        return world.swarm.reckless or others_hold_everything(world, victim)


def _pause_ms(random: Random, mean_ms: int) -> int:
    return 1 + int(random.expovariate(1.0 / mean_ms))

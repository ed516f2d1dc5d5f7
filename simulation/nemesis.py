"""Who breaks things: one fault after another, each mended after a while.

A fault takes a victim, more often than not the leader, since that is where protocols are wrong. Unless
the seed is `reckless`, no fault takes the last member of an ISR that holds everything: durability
`replicated` promises nothing then (reliability R2: the partition waits for its operator), and a run
that waits tests little. With `synced` durability, all may lose their power at once.
"""

from __future__ import annotations

from collections.abc import Callable

from replication.durability import Durability
from replication.metastore.layout import CONTROLLER_PATH
from replication.metastore.operations import Delete
from simulation.hosts import Host
from simulation.network import STORE
from simulation.swarm import stream
from simulation.world import World


class Nemesis:
    """Draws faults from the seed's own stream until `is_resting`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_resting = False
        self._random = stream(world.swarm.seed, "nemesis")
        features = world.swarm.features
        choices: list[tuple[bool, Callable[[], None]]] = [
            (features.kills, self._kill),
            (features.kills, self._kill),
            (features.power_cuts, self._cut_power),
            (features.power_cuts, self._cut_power),
            (features.stops, self._stop),
            (features.pauses, self._pause),
            (features.expiries, self._expire),
            (features.expiries, self._expire),
            (features.depositions, self._depose),
            (features.cuts, self._isolate),
            (features.cuts, self._cut_link),
            (features.one_way_cuts, self._cut_one_way),
            (features.store_cuts, self._cut_store),
            (features.flushes, self._flush),
            (world.swarm.dead_disks, self._fail_disk),
        ]
        self._faults = [fault for is_on, fault in choices if is_on]

    def run(self) -> None:
        """One fault, then wait."""
        if self.is_resting or not self._faults:
            return
        self._random.choice(self._faults)()
        gap_ms = 1 + int(self._random.expovariate(1.0 / self.world.swarm.fault_interval_ms))
        self.world.time.at(gap_ms, self.run)

    def heal(self) -> None:
        """Mend all links, start all machines; nothing is lost or late any more. Dead disks stay dead."""
        world = self.world
        self.is_resting = True
        world.network.is_calm = True
        world.mend(world.network.cuts)
        for host in world.hosts.values():
            if host.is_paused:
                world.resume(host)
            if host.node is not None and host.node.departure is not None:
                world.stop(host)  # whoever was about to go, goes now and comes back
            if host.node is None:
                world.start(host)

    def replace_dead_disks(self) -> None:
        """Start the machines anew whose disks are dead: what had been synced is there again."""
        for host in self.world.hosts.values():
            if host.disk_is_dead:
                self.world.cut_power(host)
                self.world.start(host)

    # --- victims ------------------------------------------------------------------------------

    def _duration_ms(self) -> int:
        swarm = self.world.swarm
        scale = self._random.choice((swarm.backoff_ms, swarm.lag_time_max_ms, swarm.session_timeout_ms))
        return 1 + int(self._random.expovariate(1.0 / scale))

    def _victim(self, *, running_only: bool = True) -> Host | None:
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

    def _may_take(self, victim: Host, *, keeps_disk: bool) -> bool:
        """Whether somebody else stays who holds all that is committed."""
        swarm = self.world.swarm
        if swarm.reckless or (swarm.durability is Durability.SYNCED and not keeps_disk):
            return True
        for checker in self.world.checkers.values():
            state = checker.state
            if state is None or victim.node_id not in state.isr:
                continue
            others = [
                member
                for member in state.isr
                if member != victim.node_id
                and not self.world.hosts[member].disk_is_dead
                and self.world.hosts[member].broker_epoch == state.broker_epoch_of(member)
            ]
            if not others:
                return False
        return True

    # --- faults -------------------------------------------------------------------------------

    def _start_later(self, host: Host) -> None:
        self.world.time.at(self._duration_ms(), self._start, host)

    def _start(self, host: Host) -> None:
        if host.node is not None:
            return
        self.world.start(host)
        if self.world.swarm.features.stops and self._random.random() < 0.25:
            # Its operator looks at it and starts it once more: nobody else may have seen this life.
            delay_ms = 1 + int(self._random.expovariate(1.0 / self.world.swarm.backoff_ms))
            self.world.time.at(delay_ms, self._stop_again, host, host.life)

    def _stop_again(self, host: Host, life: int) -> None:
        if host.life == life and host.node is not None and not host.is_paused and not self.is_resting:
            self.world.stop(host)
            self._start_later(host)

    def _kill(self) -> None:
        host = self._victim()
        if host is not None and self._may_take(host, keeps_disk=True):
            self._forget_session(host)
            self.world.kill(host)
            self._start_later(host)

    def _cut_power(self) -> None:
        host = self._victim(running_only=False)
        if host is None:
            return
        hosts = [host]
        if self._random.random() < 0.2:
            hosts = list(self.world.hosts.values())  # the whole rack
        for each in hosts:
            if self._may_take(each, keeps_disk=False):
                was_running = each.node is not None
                self._forget_session(each)
                self.world.cut_power(each)
                if was_running:
                    self._start_later(each)

    def _fail_disk(self) -> None:
        host = self._victim()
        if host is not None and not host.disk_is_dead and self._may_take(host, keeps_disk=False):
            self.world.fail_disk(host, self._random.choice((None, "pwrite", "sync")))
            self.world.time.at(self._duration_ms(), self._replace, host, host.life)

    def _replace(self, host: Host, life: int) -> None:
        if host.life == life and host.disk_is_dead and not self.is_resting:
            self._forget_session(host)
            self.world.cut_power(host)
            self._start_later(host)

    def _stop(self) -> None:
        host = self._victim()
        if host is None or host.is_paused:
            return
        if self._random.random() < 0.5:
            self.world.shut_down(host, lambda: self._start_later(host))
        else:
            self.world.stop(host)
            self._start_later(host)

    def _expire(self) -> None:
        host = self._victim()
        if host is not None and host.session_id is not None:
            self.world.store_link.expire(host.session_id)

    def _depose(self) -> None:
        self.world.time.note("the operator removes the controller")
        self.world.tally.depositions += 1
        self.world.store_link.write_as_operator(Delete(CONTROLLER_PATH))

    def _forget_session(self, host: Host) -> None:
        """Half of the dead are given up at once: most of their time had run out, so to say."""
        if host.session_id is not None and self._random.random() < 0.5:
            self.world.store_link.expire(host.session_id)

    def _pause(self) -> None:
        host = self._victim()
        if host is not None and not host.is_paused:
            self.world.pause(host)
            self.world.time.at(self._duration_ms(), self._resume, host, host.life)

    def _resume(self, host: Host, life: int) -> None:
        if host.life == life:
            self.world.resume(host)

    def _flush(self) -> None:
        host = self._victim()
        if host is not None:
            self.world.flush(host, sealed_only=self._random.random() < 0.5)

    def _cut(self, pairs: list[tuple[int, int]]) -> None:
        self.world.network.cut(pairs)
        self.world.time.at(self._duration_ms(), self._mend, pairs)

    def _mend(self, pairs: list[tuple[int, int]]) -> None:
        if not self.is_resting:
            self.world.mend(pairs)

    def _isolate(self) -> None:
        host = self._victim()
        if host is not None:
            others = [other for other in self.world.hosts if other != host.node_id]
            if self._random.random() < 0.7:
                others.append(STORE)
            self._cut([pair for other in others for pair in ((host.node_id, other), (other, host.node_id))])

    def _cut_link(self) -> None:
        host = self._victim()
        if host is not None:
            other = self._random.choice([each for each in self.world.hosts if each != host.node_id])
            self._cut([(host.node_id, other), (other, host.node_id)])

    def _cut_one_way(self) -> None:
        host = self._victim()
        if host is not None:
            other = self._random.choice([each for each in [*self.world.hosts, STORE] if each != host.node_id])
            pair = (host.node_id, other)
            self._cut([pair if self._random.random() < 0.5 else (other, host.node_id)])

    def _cut_store(self) -> None:
        host = self._victim()
        if host is not None:
            self._cut([(host.node_id, STORE), (STORE, host.node_id)])

"""Simulate one cluster under one seed: production nodes and logs, in an environment that can fail.

    Timeline ─▶ one callback at a time, at its virtual millisecond
        │
        ├─ Network       delays, losses, duplicates, reordering, cuts in one or both directions
        ├─ StoreLink     the metadata store behind a network of the same kind; sessions in virtual time
        ├─ ClientLink    requests of clients
        ├─ hosts         a disk, and the processes that run on it: killed, without power, paused, stopped
        └─ Observation   all events that the checkers get

Nodes, logs, controller and store are the production code, unchanged; only the disk is in memory. After each
turn of a node, its replicas are handed to the checkers before any other node can receive its messages. The
seed is the only source of randomness, so the same seed gives the same run and the same `trace_hash`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogDirOffline
from logstore.log.manager import LogManager
from logstore.log.manager_config import LogManagerConfig
from logstore.replication.carrying import Outlets, carry_out, flush
from logstore.replication.effects import (
    Disconnected,
    Effect,
    Event,
    Request,
    Respond,
    Response,
    SessionExpired,
    Sync,
)
from logstore.replication.messages import RequestBody
from logstore.replication.node import Node
from logstore.replication.opening_configs import config_reads, configs_in
from logstore.testing import disk_faults
from logstore.testing.checkers import PartitionChecker
from logstore.testing.client_link import ClientLink
from logstore.testing.disks.faulty import Fault, FaultyDisk
from logstore.testing.hosts import Host, node_config
from logstore.testing.network import Network
from logstore.testing.observation import Observation
from logstore.testing.store_link import StoreLink
from logstore.testing.stored import Violation
from logstore.testing.swarm import Swarm, stream
from logstore.testing.timeline import Tally, Timeline

TOPIC = "t"
LOG_DIR = "data"


class _Died(BaseException):
    """The process ends here. No code may handle this as an error."""


class _DyingDisk(FaultyDisk):
    """A disk whose process dies before call number `dies_after`; None: it does not die."""

    def __init__(self, inner: Disk, dies_after: int | None) -> None:
        super().__init__(inner)
        self.dies_after = dies_after

    def due(self, operation: str, path: str) -> Fault | None:
        if self.dies_after is not None and self.calls >= self.dies_after:
            raise _Died
        return super().due(operation, path)


class World:
    """One seed's cluster. Start the hosts, then call `step` while there is something to do."""

    def __init__(self, swarm: Swarm, *, trace: Callable[[str], None] | None = None) -> None:
        self.swarm = swarm
        self.time = Timeline(swarm.seed, trace=trace)
        self.disk_random = stream(swarm.seed, "disks")
        self._lives = stream(swarm.seed, "lives")
        self._at_healing: list[Callable[[], object]] = []
        self.is_healed = False
        """Faults have ended."""
        self.atlas: Counter[tuple[str, str]] = Counter()
        """Count of each fault by the state of its victim; see `atlas`."""
        self.log_config = LogConfig(
            segment_bytes=swarm.segment_bytes,
            segment_index_bytes=512,
            index_interval_bytes=300,
            retention_bytes=swarm.retention_bytes,
            retention_ms=-1,
            file_delete_delay_ms=2 * swarm.retention_check_interval_ms,
        )
        self.log_settings = LogManagerConfig(
            topic_defaults=self.log_config,
            log_retention_check_interval_ms=swarm.retention_check_interval_ms,
            log_initial_task_delay_ms=swarm.retention_check_interval_ms,
        )
        self.hosts = {
            node_id: Host(node_id, node_config(swarm, node_id), MemoryDisk(clock=lambda: self.now_ms))
            for node_id in range(swarm.nodes)
        }
        self.network = Network(self.time, swarm, self.hosts, self.receive)
        self.observation = Observation(self.time, swarm, self.hosts)
        self.store_link = StoreLink(
            self.time, self.network, swarm, self.hosts, self.receive, self.observation.written
        )
        self.observation.store = self.store_link
        self.client_link = ClientLink(
            self.time, self.network, self.hosts, self.receive, self.observation.answered
        )
        self._outlets = _outlets_of(self)

    @property
    def now_ms(self) -> int:
        """Return the virtual time in milliseconds."""
        return self.time.now_ms

    @property
    def tally(self) -> Tally:
        """Return how often each kind of event happened."""
        return self.time.tally

    @property
    def checkers(self) -> dict[TopicPartition, PartitionChecker]:
        """Return the checker of each partition."""
        return self.observation.checkers

    def mend(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Mend these directions. Nodes that could not receive from the store get its events now."""
        self.network.mend(pairs)
        for host in self.hosts.values():
            if host.unheard:
                self.store_link.hear(host)

    def trace_hash(self) -> str:
        """Return the digest of all events so far, and of the content of the disks and the store."""
        digest = self.time.digest.copy()
        for host in self.hosts.values():
            for path, content in host.disk.files().items():
                digest.update(f"{host.node_id}{path}{len(content)}".encode())
                digest.update(content)
        for path, node in self.store_link.store.tree.nodes():
            digest.update(f"{path}{node.version}".encode())
            digest.update(node.data)
        return digest.hexdigest()

    def until_healed(self, delay_ms: int, action: Callable[[], object]) -> None:
        """Run `action` in `delay_ms`, or when everything heals, if that is earlier."""
        self._at_healing.append(action)

        def act() -> None:
            if action in self._at_healing:
                self._at_healing.remove(action)
                action()

        self.time.at(delay_ms, act)

    def suspend(self, for_ms: int) -> None:
        """Suspend all machines for a while; only clocks show it. No session expires."""
        self.time.note("everything is suspended")
        self.time.stamp("suspended")
        self.time.suspend(for_ms)
        self.network.suspend(for_ms)
        self.store_link.keep_sessions()

    def expire_session(self, host: Host) -> None:
        """Expire the node's session in the store; the node learns of it at its next heartbeat."""
        if host.session_id is not None:
            self.store_link.expire(host.session_id)

    # --- the end of all faults --------------------------------------------------------------------

    def heal(self) -> None:
        """Mend all links, start all machines; no message is lost or late any more. Dead disks stay dead."""
        self.is_healed = True
        due, self._at_healing = self._at_healing, []
        for action in due:
            action()
        self.mend_surroundings()
        for host in self.hosts.values():
            self.resume(host)
            if host.node is not None and host.node.departure is not None:
                self.stop(host)  # a node in controlled shutdown stops now and comes back
            if host.node is None:
                self.start(host)

    def mend_surroundings(self) -> None:
        """End faults around the nodes: links, delays, slow and full disks, the store."""
        self.network.calm()
        self.store_link.come_back()
        self.mend(list(self.network.cuts))
        for host in self.hosts.values():
            host.sync_delay_ms = 0
            disk_faults.make_room(self.time, host)

    def replace_dead_disks(self) -> None:
        """Restart the machines whose disks are dead, with everything that was synced."""
        for host in self.hosts.values():
            if host.disk_is_dead:
                self.cut_power(host)
            if host.node is None:  # the node may have halted
                self.start(host)

    # --- lives of a node --------------------------------------------------------------------------

    @property
    def running(self) -> list[Host]:
        """Return the nodes that are up."""
        return [host for host in self.hosts.values() if host.node is not None]

    def start(
        self,
        host: Host,
        *,
        dies_after: int | None = None,
        loses_power: bool = False,
        is_full: bool = False,
    ) -> None:
        """Start a node. Its logs are recovered if necessary, and the result is checked.

        With `dies_after`, the process ends before that disk call, or the machine `loses_power`; if opening
        the logs takes fewer calls, the node runs. With `is_full`, its disk has no room.
        """
        assert host.node is None, f"node {host.node_id} is running"
        host.life += 1
        self.time.note(host.node_id, "starts, life", host.life)
        self.time.stamp(f"start{host.node_id}")
        is_faulty = self.swarm.disks_may_fail or dies_after is not None
        host.faulty = _DyingDisk(host.disk, dies_after) if is_faulty else None
        if is_full:
            disk_faults.fill_disk(self.time, host)
        try:
            logs = LogManager(
                [LOG_DIR],
                disk=host.faulty if host.faulty is not None else host.disk,
                clock=lambda: self.time.now_ms,
                random=Random(self._lives.getrandbits(64)),
                configs=self._configs_of_logs(host),
                settings=self.log_settings,
                boot_id=self.boot_id(host),
            )
        except _Died:
            self._die_in_start(host, loses_power=loses_power)
            return
        except LogDirOffline:
            if not is_full:
                raise Violation("I1", f"node {host.node_id} cannot open its logs") from None
            self._die_in_start(host, loses_power=False)  # it is started again once there is room
            host.disk_is_full = False
            return
        except Exception as error:
            raise Violation("I1", f"node {host.node_id} cannot open its logs: {error!r}") from error
        if isinstance(host.faulty, _DyingDisk):
            host.faulty.dies_after = None
        self.observation.restarted(host, logs)
        host.stopped_in_order = False
        host.node = Node(
            host.config,
            logs,
            random=Random(self._lives.getrandbits(64)),
            log_config=self.log_config,
        )
        self._turn(host, host.node.start)
        self.store_link.heartbeat(host, host.life)

    def _configs_of_logs(self, host: Host) -> dict[str, LogConfig]:
        reads = config_reads(host.disk, [LOG_DIR])
        found = {topic: self.store_link.read_as_operator(each.path) for topic, each in reads.items()}
        return configs_in(found, self.log_config)

    def _die_in_start(self, host: Host, *, loses_power: bool) -> None:
        self.time.note(host.node_id, "dies while it starts")
        self.time.stamp(f"died{host.node_id}")
        self.tally.deaths_in_start += 1
        host.stopped_in_order = None
        if loses_power:
            self.observation.ended(host, cache_survives=False)
            self._lose_cache(host)
        else:
            host.disk = host.disk.survivor()

    def boot_id(self, host: Host) -> str:
        """Return what the node sees as the boot of its machine; empty if it sees none."""
        return f"boot {host.boot} of {host.node_id}" if self.swarm.boot_ids else ""

    def _lose_cache(self, host: Host) -> None:
        host.disk = host.disk.power_cut(self.disk_random)
        host.boot += 1

    def _end_life(self, host: Host, *, is_noticed: bool = True) -> None:
        host.node = None
        host.session_id = None
        host.is_paused = False
        host.backlog.clear()
        host.unheard.clear()
        outstanding, host.outstanding = host.outstanding, {}
        host.tick_at_ms = None
        host.disk_is_full = False
        for checker in self.observation.checkers.values():
            checker.replica_gone(host.node_id)
        for other in self.hosts.values():
            for correlation_id, target in list(other.outstanding.items()):
                if target == host.node_id and is_noticed:
                    self.network.break_off(other, target, correlation_id)
        if is_noticed:
            for correlation_id, target in outstanding.items():
                self.network.abandon(host, target, correlation_id)
        self.client_link.break_off(host.node_id)

    def kill(self, host: Host) -> None:
        """Kill the process: memory is lost, the page cache stays. If the disk is dead, cut the power too."""
        assert host.node is not None
        if host.disk_is_dead:
            self.cut_power(host)
            return
        self.time.note(host.node_id, "is killed")
        self.time.stamp(f"kill{host.node_id}")
        self.time.tally.kills += 1
        self.observation.ended(host, cache_survives=True)
        host.node.logs.abandon()
        self._end_life(host)

    def cut_power(self, host: Host, *, is_noticed: bool = True) -> None:
        """Cut the machine's power: of unsynced data, any part that a file system may leave survives.

        Its peers may notice broken connections (`is_noticed`) or wait for their timeouts.
        """
        self.time.note(host.node_id, "loses its power")
        self.time.stamp(f"power{host.node_id}")
        self.time.tally.power_cuts += 1
        self.observation.ended(host, cache_survives=False)
        if host.node is not None:
            host.node.logs.abandon()
        self._lose_cache(host)
        host.disk_is_dead = False
        if host.node is not None:
            self._end_life(host, is_noticed=is_noticed)

    def stop(self, host: Host, *, gives_session_up: bool = True) -> None:
        """Stop the process in order: close its session and its logs.

        Without `gives_session_up`, its request to close the session is lost.
        """
        assert host.node is not None
        if host.disk_is_dead:
            self._turn(host, host.node.stop)
            self._turn(host, host.node.leave)
            self.cut_power(host)
            return
        self.time.note(host.node_id, "is stopped")
        self.time.stamp(f"stop{host.node_id}")
        self.time.tally.stops += 1
        if not gives_session_up and host.session_id is not None:
            self.store_link.keep_session(host.session_id)
        self._turn(host, host.node.stop)
        # A log that was left damaged must be checked again at the next start: no clean marker.
        is_clean = host.node.is_clean and not host.node.logs.damaged
        host.node.logs.close(mark_clean=is_clean)
        self._turn(host, host.node.leave)
        self.observation.ended(host, cache_survives=True)
        # Without room for the clean marker it may or may not be there: both are right.
        host.stopped_in_order = None if host.disk_is_full else is_clean
        self._end_life(host)

    def shut_down(self, host: Host, then: Callable[[], None]) -> None:
        """Let the controller move this node's leaderships, then stop it and call `then`."""
        assert host.node is not None
        if host.node.departure is not None:
            return
        self.time.note(host.node_id, "is asked to stop")
        self.time.stamp(f"shut down{host.node_id}")
        self._turn(host, host.node.begin_shutdown)
        self._stop_when_ready(host, host.life, then)

    def _stop_when_ready(self, host: Host, life: int, then: Callable[[], None]) -> None:
        if host.life != life or host.node is None:
            return
        if host.is_paused or not host.node.is_ready_to_stop:
            self.time.at(host.config.request_timeout_ms // 4, self._stop_when_ready, host, life, then)
            return
        self.stop(host)
        then()

    def pause(self, host: Host) -> None:
        """Pause the process: it receives and does nothing, and does not notice."""
        self.time.note(host.node_id, "is paused")
        self.time.tally.pauses += 1
        host.is_paused = True

    def resume(self, host: Host) -> None:
        """Let a paused process continue; events that arrived meanwhile are received at once."""
        if not host.is_paused:
            return
        self.time.note(host.node_id, "continues")
        host.is_paused = False
        backlog, host.backlog = host.backlog, []
        for event in backlog:
            self.receive(host, event)
        self._tick(host, host.life, None)

    # --- a node's turn --------------------------------------------------------------------------------

    def _turn(self, host: Host, action: Callable[..., list[Effect]], *arguments: object) -> None:
        self.time.tally.turns += 1
        try:
            effects = action(*arguments, self.time.now_ms)
        except Exception as error:
            raise Violation("A1", f"node {host.node_id} raised {type(error).__name__}: {error}") from error
        self.observation.look(host)
        if effects:
            carry_out(effects, host, self._outlets)
        if host.node is not None:
            self._schedule_tick(host)

    def receive(self, host: Host, event: Event) -> None:
        """Hand an event to a node, if it is up; keep it while the node is paused."""
        if host.node is None:
            return
        if host.is_paused:
            host.backlog.append(event)
            return
        self.time.note(host.node_id, "◀", event)
        self.time.stamp(f"{self.time.now_ms}{host.node_id}{type(event).__name__}")
        if isinstance(event, Response | Disconnected):
            host.outstanding.pop(event.correlation_id, None)
        elif isinstance(event, SessionExpired) and event.session_id == host.session_id:
            host.session_id = None
        self._turn(host, host.node.receive, event)

    def _schedule_tick(self, host: Host) -> None:
        assert host.node is not None
        deadline_ms = host.node.deadline_ms
        if deadline_ms is None:
            return
        at_ms = max(deadline_ms, self.time.now_ms + 1)
        if host.tick_at_ms is None or at_ms < host.tick_at_ms:
            host.tick_at_ms = at_ms
            self.time.push(at_ms, self.time.draw_tie(), self._tick, (host, host.life, at_ms))

    def _tick(self, host: Host, life: int, at_ms: int | None) -> None:
        if host.life != life or host.node is None or host.is_paused or at_ms not in (None, host.tick_at_ms):
            self.time.was_nothing()
            return
        host.tick_at_ms = None
        deadline_ms = host.node.deadline_ms
        if deadline_ms is None or deadline_ms > self.time.now_ms:
            self.time.was_nothing()
            self._schedule_tick(host)
            return
        self.time.note(host.node_id, "ticks")
        self.time.stamp(f"{self.time.now_ms}{host.node_id}tick")
        self._turn(host, host.node.tick)


def _outlets_of(world: World) -> Outlets[Host]:
    """Return the ways out of a host: a network that delays and loses, a disk that takes its time."""
    network, time = world.network, world.time

    def send(host: Host, target: int, correlation_id: int, body: RequestBody) -> None:
        host.outstanding[correlation_id] = target
        network.send(host, target, Request(host.node_id, correlation_id, body, host.life))

    def respond(host: Host, effect: Respond) -> None:
        world.observation.responded(host, effect.target, effect.body)
        network.respond(host, effect)

    def close_session(host: Host, session_id: int) -> None:
        host.session_id = None
        world.store_link.close_session_later(session_id)

    def sync(host: Host, effect: Sync) -> None:
        delay_ms = network.delay(world.disk_random)
        if host.sync_delay_ms and not world.is_healed:
            # A slow sync takes up to two session timeouts: one under way must not outlast the faults.
            ends = partial(flush_now, host, host.life, effect)
            world.until_healed(host.sync_delay_ms + delay_ms, ends)
        else:
            time.at(delay_ms, flush_now, host, host.life, effect)

    def flush_now(host: Host, life: int, effect: Sync) -> None:
        if host.life != life or host.node is None:
            return
        done = flush(host.node.logs, effect)
        assert not done.error or host.disk_is_dead, done.error
        world.receive(host, done)

    def halt(host: Host, reason: str) -> None:
        time.note(host.node_id, "halts:", reason)
        life = host.life
        world.kill(host)
        time.at(world.swarm.session_timeout_ms, start_again, host, life)

    def start_again(host: Host, life: int) -> None:
        """A supervisor restarts the process, on a working disk."""
        if host.node is None and host.life == life:
            world.start(host)

    return Outlets(
        send=send,
        respond=respond,
        reply=world.client_link.reply,
        call_store=world.store_link.call,
        open_session=world.store_link.open_session_later,
        close_session=close_session,
        sync=sync,
        halt=halt,
    )

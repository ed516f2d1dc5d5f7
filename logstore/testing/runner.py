"""Run one seed from beginning to end: set up, break, heal, read everything back.

    set-up     a calm network; the topic is created and gets leaders
    faults     until `events` events have happened; safety is checked after every turn
    healing    everything is mended; within a bound every partition has a leader, a full ISR, one log.
               Dead disks are replaced last: until then, nodes with sound disks must lead
    reading    new records are acknowledged; everything is read back from the leader and, after an
               orderly stop, from every disk

A partition whose in-sync replicas all came back with losses waits for its operator. The run then plays the
operator and allows an unclean election. Only then may records be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from random import Random

from logstore.config import LogConfig
from logstore.disk.marks import observed
from logstore.disk.topic_partition import TopicPartition
from logstore.log.manager import LogManager
from logstore.replication.controller.context import UNCLEAN_ELECTION
from logstore.replication.messages import (
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    NewTopic,
    ResponseBody,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LOST_BROKER_EPOCH
from logstore.replication.metastore.operations import Create, put
from logstore.testing.checkers import PartitionChecker
from logstore.testing.clients import Consumer, Producer
from logstore.testing.describe import describe
from logstore.testing.faults import Decision
from logstore.testing.hosts import in_turn
from logstore.testing.nemesis import Nemesis
from logstore.testing.observation import read_all
from logstore.testing.operator import COMMANDS
from logstore.testing.recovery_checks import check_bounds, check_epochs, check_producers
from logstore.testing.rotting import Rotting
from logstore.testing.rotting_disk import restore
from logstore.testing.shrink import shrink
from logstore.testing.stored import Stored, Violation, parse
from logstore.testing.swarm import Swarm, draw
from logstore.testing.timeline import START_MS, Tally
from logstore.testing.transcript import Transcript
from logstore.testing.world import LOG_DIR, TOPIC, World

SETUP_BOUND_MS = 60_000
LEADER_BOUND_MS = 2_000
"""After the last fault and the last message from before it, every partition must be led within the session
timeout plus this."""
IN_SYNC_BOUND_MS = 30_000
"""After the last fault, every ISR must be full within this."""
READING_BOUND_MS = 60_000
OPERATOR_PATIENCE_MS = 500
_REQUESTS = (layout.REASSIGNMENT_PATH, layout.PREFERRED_ELECTION_PATH)
_REQUESTS_BELOW = (
    f"{layout.DELETE_TOPICS_PATH}/",
    f"{layout.ISR_NOTIFICATIONS_PATH}/",
    f"{layout.LOG_DIR_EVENTS_PATH}/",
)
_COMMANDS = frozenset(command.kind for command in COMMANDS.values())
_SLICE = 20
_MOST_STEPS = 300_000


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one seed. `violation` is empty if all invariants held; otherwise `last_events` explain
    it."""

    swarm: Swarm
    tally: Tally
    trace_hash: str
    virtual_ms: int
    invariant: str = ""
    violation: str = ""
    last_events: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    clients: tuple[str, ...] = ()
    atlas: Mapping[tuple[str, str], int] = field(default_factory=dict)
    marks: Mapping[str, int] = field(default_factory=dict)
    """How often each coverage mark of the engine was reached."""
    led_in_ms: int = -1
    """Milliseconds from the last fault until every partition had a leader."""
    in_sync_in_ms: int = -1
    """Milliseconds from the last fault until every ISR was full."""

    def transcript(self, events: int, plant: str = "") -> Transcript:
        """Return this run as a transcript that can be replayed."""
        return Transcript(
            seed=self.swarm.seed,
            events=events,
            decisions=self.decisions,
            plant=plant,
            invariant=self.invariant,
        )

    @property
    def is_good(self) -> bool:
        """Return whether the run found no violation."""
        return not self.violation


def run(
    seed: int,
    events: int = 2000,
    *,
    trace: Callable[[str], None] | None = None,
    swarm: Swarm | None = None,
) -> Report:
    """Run `seed`, or the given `swarm`, through all phases; a violation ends the run and is reported."""
    return _run(swarm if swarm is not None else draw(seed), events, None, trace)


def replay(transcript: Transcript, *, trace: Callable[[str], None] | None = None) -> Report:
    """Run a transcript."""
    return _run(transcript.swarm, transcript.events, transcript, trace)


def shortened(report: Report, events: int, plant: str = "") -> Transcript:
    """Return the shortest transcript that fails as this run did. Its plant must be in place."""
    assert not report.is_good, "only a failed run can be shortened"

    def breaks(candidate: Transcript) -> bool:
        return replay(candidate).invariant == report.invariant

    return shrink(report.transcript(events, plant), breaks, report.clients)


def _run(swarm: Swarm, events: int, script: Transcript | None, trace: Callable[[str], None] | None) -> Report:
    world = World(swarm, trace=trace)
    this = _Run(world, script)
    invariant = violation = ""
    marks: Counter[str] = Counter()
    try:
        with observed(lambda name: marks.update((name,))):
            this.go(events)
    except Violation as found:
        invariant, violation = found.invariant, str(found)
        cause = found.__cause__
        if cause is not None:
            violation += f" ({_where(cause)})"
    recent = (
        tuple(f"{at_ms - START_MS:>7} {describe(facts)}" for at_ms, facts in world.time.recent)
        if violation
        else ()
    )
    return Report(
        swarm,
        world.tally,
        world.trace_hash(),
        world.now_ms - START_MS - world.time.suspended_ms,
        invariant,
        violation,
        recent,
        tuple(this.nemesis.decisions),
        tuple(client.name for client in (*this.producers, *this.consumers)),
        dict(world.atlas),
        dict(marks),
        this.led_in_ms,
        this.in_sync_in_ms,
    )


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return " > ".join(places[-4:])


class _Run:
    def __init__(self, world: World, script: Transcript | None) -> None:
        self.world = world
        self.script = script
        self.nemesis = Nemesis(world, script.decisions if script is not None else None)
        self.led_in_ms = self.in_sync_in_ms = -1
        self._mended_ms = 0
        """The last time when the operator did something that the cluster could not do by itself."""
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self._steps = 0
        self.rotting: Rotting | None = None

    def go(self, events: int) -> None:
        self._set_up()
        world = self.world
        world.network.is_calm = False
        world.observation.on_new_partition = self._produce_to_new
        self.nemesis.run()
        if world.swarm.rot_interval_ms:
            self.rotting = Rotting(world)
            self.rotting.start()
        self._start_clients()
        world.tally.events = 0
        while world.tally.events < events:
            stepped = world.time.step()
            assert stepped, "clients always have a next event"
        self._heal()
        self._read_back()

    def _until(self, holds: Callable[[], bool], bound_ms: int) -> bool:
        world = self.world
        end_ms = world.now_ms + bound_ms
        while not holds():
            if world.now_ms >= end_ms:
                return False
            # Void events do not count: a replay has fewer of them.
            enough = world.tally.events + _SLICE
            while world.tally.events < enough:
                if not world.time.step():
                    return holds()
            self._steps += _SLICE
            if self._steps > _MOST_STEPS:
                raise Violation("C17", f"{_MOST_STEPS} events in a calm cluster: a node never rests")
        return True

    # --- set-up -------------------------------------------------------------------------------

    def _set_up(self) -> None:
        world, swarm = self.world, self.world.swarm
        assignment = in_turn(swarm.partitions, swarm.replication_factor, swarm.nodes)
        configs = {"min.insync.replicas": str(swarm.min_insync_replicas)}
        if swarm.unclean_election:
            configs[UNCLEAN_ELECTION] = "true"
        world.observation.expect_topic(TOPIC, assignment, configs)
        for host in world.hosts.values():
            world.start(host)
        topic = NewTopic(TOPIC, assignment=assignment, configs=configs)

        def create() -> None:
            contexts = {
                host.node_id: host.node.controller.context for host in world.running if host.node is not None
            }
            active = [
                number for number, known in contexts.items() if known and len(known.brokers) == swarm.nodes
            ]
            if not active:
                world.time.at(50, create)
                return
            world.client_link.call(
                active[0],
                CreateTopicsRequest((topic,)),
                lambda body: None if _has_states(world) else world.time.at(50, create),
                timeout_ms=2000,
            )

        create()
        if not self._until(self._all_lead, SETUP_BOUND_MS):
            raise Violation("C18", "no leader was elected in a calm cluster")

    def _all_lead(self) -> bool:
        checkers = self.world.checkers.values()
        return all(each.acting_leader is not None for each in checkers if not each.is_being_deleted)

    def _start_clients(self) -> None:
        world, swarm = self.world, self.world.swarm
        partitions = list(world.checkers)
        for number in range(max(swarm.producers, len(partitions))):
            is_idempotent = swarm.features.idempotence and number % 2 == 0
            producer = Producer(
                world, number, partitions[number % len(partitions)], is_idempotent=is_idempotent
            )
            self.producers.append(producer)
            if self.script is not None:
                producer.most_sends = self.script.most_sends
            if not self._is_silent(producer.name):
                world.time.at(number, producer.run)
        for number in range(swarm.consumers):
            consumer = Consumer(world, number, partitions[number % len(partitions)])
            self.consumers.append(consumer)
            if not self._is_silent(consumer.name):
                world.time.at(number, consumer.run)

    def _produce_to_new(self, topic_partition: TopicPartition) -> None:
        """Start a producer for a topic that the operator created; its records are judged like all others."""
        producer = Producer(self.world, 100 + len(self.producers), topic_partition, is_idempotent=False)
        self.producers.append(producer)
        if self.script is not None:
            producer.most_sends = self.script.most_sends
        producer.is_finishing = self.world.is_healed
        if not self._is_silent(producer.name):
            self.world.time.at(1, producer.run)

    def _is_silent(self, client: str) -> bool:
        return self.script is not None and client in self.script.silent

    # --- healing ------------------------------------------------------------------------------

    def _heal(self) -> None:
        world = self.world
        world.time.note("everything is mended")
        world.heal()
        for producer in self.producers:
            producer.is_finishing = True
        # A call of a dead node that is still under way keeps its session.
        late_ms = max(world.network.last_arrival_ms - world.now_ms, 0)
        bound_ms = late_ms + world.swarm.session_timeout_ms + LEADER_BOUND_MS
        if not self._until(self._is_led_by_the_healthy, bound_ms):
            raise Violation("C18", f"a node with a dead disk still leads: {self._unhealed()}")
        world.replace_dead_disks()
        self._mended_ms = world.now_ms
        self._play_operator()
        if not self._until_mended(self._all_lead, bound_ms):
            raise Violation("C18", f"not led in {bound_ms} ms: {self._unhealed()}")
        self.led_in_ms = world.now_ms - self._mended_ms
        if not self._until_mended(self._is_healed, IN_SYNC_BOUND_MS):
            raise Violation("C18", f"not healed in {IN_SYNC_BOUND_MS} ms: {self._unhealed()}")
        self.in_sync_in_ms = world.now_ms - self._mended_ms
        if (rotting := self.rotting) is not None:
            rotting.scrub_now()  # the next one may come later than the bound
            if not self._until(lambda: not rotting.left, IN_SYNC_BOUND_MS):
                raise Violation("C24", f"not mended though a sound copy lives: {rotting.left}")
        # A delayed command may still create or delete a topic.
        if not self._until(lambda: not world.client_link.is_under_way(_COMMANDS), IN_SYNC_BOUND_MS):
            raise Violation("C18", "a command got no answer")
        if not self._until(self._is_healed, IN_SYNC_BOUND_MS):
            raise Violation("C18", f"not healed after the last command: {self._unhealed()}")

    def _until_mended(self, holds: Callable[[], bool], bound_ms: int) -> bool:
        """Like `_until`, but the bound starts again whenever the operator helps."""
        while not self._until(holds, self._mended_ms + bound_ms - self.world.now_ms):
            if self.world.now_ms >= self._mended_ms + bound_ms:
                return False
        return True

    def _is_led_by_the_healthy(self) -> bool:
        """While some disks are dead: every partition that has a sound ISR member is led (F2)."""
        hosts = self.world.hosts
        for checker in self.world.checkers.values():
            state = checker.state
            if state is None or not any(hosts[replica].disk_is_dead for replica in checker.replicas):
                continue
            able = [
                member
                for member in state.isr
                if hosts[member].broker_epoch == state.broker_epoch_of(member)
                and not hosts[member].disk_is_dead
            ]
            if able and checker.acting_leader is None:
                return False
        return True

    def _unhealed(self) -> str:
        texts = []
        for topic_partition, checker in self.world.checkers.items():
            views = ", ".join(str(view) for _, view in sorted(checker.views.items()))
            texts.append(f"{topic_partition}: {checker.state}; {views}")
        stuck = [producer.name for producer in self.producers if not producer.is_done]
        return "; ".join(texts) + (f"; {stuck} not answered" if stuck else "")

    def _is_healed(self) -> bool:
        return all(producer.is_done for producer in self.producers) and all(
            checker.is_in_sync for checker in self.world.checkers.values()
        )

    def _play_operator(self) -> None:
        """Allow an unclean election where it is the only remedy; repeat while the cluster heals."""
        world = self.world
        if world.observation.is_unclean_allowed:
            return
        for topic_partition, checker in world.checkers.items():
            state = checker.state
            if state is None or state.leader >= 0 or topic_partition in world.observation.unclean_allowed:
                continue
            if any(epoch != LOST_BROKER_EPOCH for epoch in state.isr_broker_epochs):
                continue  # a member kept everything: the controller must elect it without help
            world.time.note("the operator allows an unclean election of", topic_partition)
            world.tally.operator_elections += 1
            self._mended_ms = world.now_ms
            for host in world.hosts.values():
                # The election may cut the last sound copy of what rotted elsewhere.
                restore(host, world.now_ms)
            observation = world.observation
            if world.swarm.seed % 2:  # for all brokers, or for this topic only
                observation.is_unclean_allowed = True
                data = layout.encode_topic_config({UNCLEAN_ELECTION: "true"})
                for_all = Create(layout.BROKER_DEFAULTS_PATH, data, make_parents=True)
                world.store_link.write_as_operator(for_all)
                break
            topic = topic_partition.topic
            observation.unclean_allowed.update(each for each in world.checkers if each.topic == topic)
            path = layout.topic_config_path(topic_partition.topic)
            found = world.store_link.read_as_operator(path)
            settings = layout.parse_topic_config(found.data) if found.stat is not None else {}
            data = layout.encode_topic_config({**settings, UNCLEAN_ELECTION: "true"})
            world.store_link.write_as_operator(put(path, data, found.version))
        world.time.at(OPERATOR_PATIENCE_MS, self._play_operator)

    # --- reading back -------------------------------------------------------------------------

    def _read_back(self) -> None:
        world = self.world
        # A delayed command may still delete a topic.
        for number, (topic_partition, checker) in enumerate(list(world.checkers.items())):
            before = len(checker.acked)
            if checker.is_retired:
                continue
            last = Producer(world, 1000 + number, topic_partition, is_idempotent=True)
            last.is_finishing = True
            last.send_now()
            last.run()
            if not self._until(lambda last=last: last.is_done, READING_BOUND_MS):  # type: ignore[misc]
                raise Violation("C18", f"{topic_partition} accepts no records after all faults ended")
            assert topic_partition not in world.checkers or len(checker.acked) > before
        if not self._until(self._is_healed, READING_BOUND_MS):
            raise Violation("C18", f"not in sync after the last records: {self._unhealed()}")
        self._judge_rest()
        for topic_partition, checker in list(world.checkers.items()):
            batches = self._read(topic_partition, checker)
            if not checker.is_retired:
                checker.read_back(batches)
        # A command that waited in its controller's queue may have started something.
        if not self._until(self._is_healed, READING_BOUND_MS):
            raise Violation("C18", f"not in sync after reading: {self._unhealed()}")
        for host in world.hosts.values():
            world.stop(host)
            self._read_disk(host.node_id)

    def _judge_rest(self) -> None:
        """Check a cluster at rest: no requests left in the store (I17, I22), few waiting in memory."""
        world = self.world
        if not self._until(lambda: not self._left_in_store(), IN_SYNC_BOUND_MS):
            raise Violation("C18", f"left in the store: {self._left_in_store()}")
        if not self._until(lambda: not self._disagreement(), IN_SYNC_BOUND_MS):
            raise Violation("I16", self._disagreement())
        # A leader may hold a fetch per follower and partition, and the last requests of every client.
        most = (len(world.hosts) + len(self.consumers) + len(self.producers)) * max(len(world.checkers), 1)
        for host in world.running:
            assert host.node is not None
            sizes = {
                "waiting requests": host.node.replicas.waiting.count,
                "messages backed up": len(host.backlog),
            }
            limits = {"waiting requests": 2 * most, "messages backed up": 0}
            check_bounds(f"node {host.node_id}", sizes, limits)

    def _disagreement(self) -> str:
        """Describe what a node has or believes against the store: logs, settings, leaders, live brokers."""
        world = self.world
        live = {host.node_id: world.store_link.broker_epoch(host.node_id) for host in world.running}
        states = {each: checker.state for each, checker in world.checkers.items()}
        leaders = {each: state.leader for each, state in states.items() if state is not None}
        for host in world.running:
            assert host.node is not None
            replicas, name = host.node.replicas, f"node {host.node_id}"
            assigned = {each for each, checker in world.checkers.items() if host.node_id in checker.replicas}
            if (held := host.node.logs.logs().keys()) != assigned:
                return f"{name} has logs of {sorted(held)}, and {sorted(assigned)} are assigned to it"
            for each in sorted(assigned):
                read = world.store_link.read_as_operator(layout.topic_config_path(each.topic))
                settings = layout.parse_topic_config(read.data) if read.stat is not None else {}
                wanted = LogConfig.from_kafka(settings, base=world.log_config)
                if replicas.partitions[each].log.config != wanted:
                    return f"{name} has not taken over the settings of {each}: {settings}"
            metadata = replicas.metadata
            if gone := sorted(metadata.partitions.keys() - world.checkers.keys()):
                return f"{name} lists partitions of deleted topics: {gone}"
            found = {each: metadata.leader_of(each) for each in leaders}
            if found != leaders:
                return f"{name} believes in other leaders than {leaders}: {found}"
            if {broker_id: broker.epoch for broker_id, broker in metadata.brokers.items()} != live:
                return f"{name} believes that others live than {live}"
        return ""

    def _left_in_store(self) -> list[str]:
        """Return the requests in the store, and the replicas whose deletion is not confirmed."""
        left = []
        for path, node in self.world.store_link.store.tree.nodes():
            if path in _REQUESTS or path.startswith(_REQUESTS_BELOW):
                left.append(path)
            elif path.rpartition("/")[0] == layout.TOPICS_PATH:
                leaving = layout.parse_topic(node.data).leaving_replicas
                left += [f"{path}: {leaving} leave"] if leaving else []
        return left

    def _read(self, topic_partition: TopicPartition, checker: PartitionChecker) -> list[Stored]:
        """Read the whole partition from its leader, as a consumer does."""
        found: list[Stored] = []
        answers: list[ResponseBody | None] = []
        for _ in range(10_000):
            answers.clear()
            leader = checker.acting_leader
            if checker.is_retired:
                break
            if leader is None:  # preferred leaders are elected now and then
                if not self._until(
                    lambda: checker.is_retired or checker.acting_leader is not None, READING_BOUND_MS
                ):
                    raise Violation("C18", f"{topic_partition} lost its leader in a calm cluster")
                continue
            start = checker.views[leader].log_start
            if found and found[-1].end < start:
                found.clear()  # retention removed the next records: start at the log start
            position = found[-1].end if found else start
            if position >= checker.views[leader].high_watermark:
                break
            request = FetchRequest(-1, 0, 1, 1 << 16, {topic_partition: FetchPartition(position, 1 << 16)})
            self.world.client_link.call(leader, request, answers.append, timeout_ms=5000)
            if not self._until(lambda: bool(answers), 10_000):
                break
            body = answers[0]
            if isinstance(body, FetchResponse):
                found += parse(bytes(body.partitions[topic_partition].records))
        return found

    def _read_disk(self, node_id: int) -> None:
        """Check a node's files after an orderly stop: clean, complete, and equal to what was committed."""
        world = self.world
        host = world.hosts[node_id]
        with closing(
            LogManager(
                [LOG_DIR],
                disk=host.disk,
                clock=lambda: world.now_ms,
                random=Random(node_id),
                settings=world.log_settings,
            )
        ) as logs:
            for topic_partition, checker in world.checkers.items():
                if node_id not in checker.replicas:
                    continue
                log = logs.get(topic_partition)
                if log is None or not logs.was_clean:
                    raise Violation(
                        "I1", f"{topic_partition} on node {node_id} is missing after a clean stop"
                    )
                batches = read_all(log.partition)
                name = f"{topic_partition} on node {node_id}"
                check_epochs(name, batches, log.partition.epochs)
                check_producers(name, batches, log.partition.producers(), world.now_ms)
                held = [batch for batch in checker.committed if batch.end > log.log_start_offset]
                if batches[: len(held)] != held:
                    raise Violation(
                        "C3",
                        f"{topic_partition} on the disk of node {node_id} differs from what was committed",
                    )


def _has_states(world: World) -> bool:
    return all(checker.state is not None for checker in world.checkers.values())

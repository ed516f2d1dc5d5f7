"""A cluster for the tests of those who build on one: faults on call, virtual time, and a judge.

    with SimulatedCluster(nodes=3, seed=7) as cluster:
        cluster.create_topic("orders")
        cluster.produce("orders", b"placed")
        cluster.power_cut(cluster.leader("orders"))
        cluster.produce("orders", b"paid")          # by whoever leads now
                                                    # the end of the block heals everything, and judges

Nodes, logs, controller and metadata store are the production code; the disks, the network and the clock are
simulated. Nothing sleeps and no thread runs: time passes only inside `run_for`, `run_until` and the calls
that wait for an answer, as fast as the events of that time can be worked off. The seed is the only source
of chance. The same program under the same seed comes to the same, byte for byte: `trace_hash` says so.

While time passes, every checker of the simulation looks on (one leader an epoch, replicas that agree, a
high watermark that never falls, what a restart finds, …) and raises `Violation`; its notes tell the seed,
what was done to the cluster, and the last events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.record import Record
from logstore.replication.config import NodeConfig
from logstore.replication.controller.context import UNCLEAN_ELECTION
from logstore.replication.controller.controller import Controller
from logstore.replication.durability import Durability
from logstore.replication.messages import (
    AlterConfigsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ElectionType,
    ElectLeadersRequest,
    NewTopic,
    RequestBody,
    ResponseBody,
)
from logstore.testing.checkers import PartitionChecker
from logstore.testing.describe import describe
from logstore.testing.hosts import Host
from logstore.testing.kit_clients import (
    ALL,
    Acks,
    Delivery,
    Fetched,
    Ledger,
    RequestFailed,
    SimulatedConsumer,
    SimulatedProducer,
    Value,
    is_passing,
)
from logstore.testing.network import STORE
from logstore.testing.quiet import Timings, quiet_swarm
from logstore.testing.stored import Violation, find
from logstore.testing.timeline import START_MS
from logstore.testing.world import World

LIMIT_MS = 60_000
"""How long, in virtual time, the calls that wait do so unless they are told."""
_LAST = 2.0
"""A place behind everything that happens in the same millisecond: ties are drawn below 1."""
_MOST_STEPS = 200_000


class SimulatedCluster:
    """Nodes 0, 1, … under one seed; see the module for an example.

    Times are milliseconds of virtual time, `now_ms` counts from the making of the cluster. Any call may
    raise `Violation`; those that name a node raise `ValueError` for one that is not there, or is not in
    the state that the call needs. Calls that wait for virtual time to pass cannot be made inside a callback
    (`RuntimeError`): there, use `producer`, `consumer` and `at`.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        seed: int = 0,
        replication_factor: int | None = None,
        min_insync_replicas: int | None = None,
        durability: Durability | str = Durability.REPLICATED,
        timings: Timings | None = None,
        promised_acks: Acks = "all",
        configure: Callable[[NodeConfig], NodeConfig] = lambda config: config,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        """Start `nodes` nodes; topics are on 3 of them, or on all, and need 2 in sync, unless told otherwise.

        `durability` is "replicated" or "synced", for topics that do not say (`durability.level`). With
        `promised_acks=1` a send with acks=1 that is acknowledged and lost is a violation too.
        `configure` may exchange settings of each node, `trace` gets a line for everything that happens.
        """
        if nodes < 1:
            raise ValueError(f"{nodes} nodes are no cluster")
        self.seed = seed
        self.replication_factor = replication_factor or min(3, nodes)
        self.min_insync_replicas = min_insync_replicas or min(2, self.replication_factor)
        if not 1 <= self.min_insync_replicas <= self.replication_factor <= nodes:
            raise ValueError(
                f"{self.min_insync_replicas} in sync of {self.replication_factor} replicas on {nodes} nodes"
            )
        self.durability = Durability(durability)
        self.timings = timings or Timings()
        self.promised_acks = _acks(promised_acks)
        swarm = quiet_swarm(
            seed,
            nodes,
            replication_factor=self.replication_factor,
            min_insync_replicas=self.min_insync_replicas,
            durability=self.durability,
            timings=self.timings,
        )
        self._world = World(swarm, trace=trace)
        self._ledger = Ledger()
        self._clients = 0
        self._producers: dict[tuple[PartitionChecker, int, int | None], SimulatedProducer] = {}
        self._done: list[str] = []
        self._is_running = False
        self._is_judged = False
        for host in self._world.hosts.values():
            host.config = configure(host.config)
            self._world.start(host)

    def __repr__(self) -> str:
        return (
            f"SimulatedCluster(nodes={len(self._world.hosts)}, seed={self.seed}, "
            f"replication_factor={self.replication_factor}, min_insync_replicas={self.min_insync_replicas}, "
            f"durability={self.durability.value!r})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Heal and judge, unless the block failed or a violation was found before."""
        if kind is None:
            self.finish()

    # --- time -------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """Virtual time since the cluster was made. Records' timestamps are 1,000,000 ms ahead of it."""
        return self._world.now_ms - START_MS

    def run_for(self, duration_ms: int) -> None:
        """Let this much time pass."""
        self._run(lambda: False, duration_ms)

    def run_until(self, predicate: Callable[[], object], limit_ms: int = LIMIT_MS) -> int:
        """Let time pass until `predicate` holds; returns how much did. It is asked after every event.

        Raises `TimeoutError` if it does not hold within `limit_ms`.
        """
        began_ms = self.now_ms
        if not self._run(predicate, limit_ms):
            raise self._explained(TimeoutError(f"not within {limit_ms} ms of virtual time"))
        return self.now_ms - began_ms

    def at(self, delay_ms: int, callback: Callable[[], object]) -> None:
        """Call back when `delay_ms` have passed: for an actor that takes part, or a fault at its moment.

        What it raises comes out of the call that lets the time pass.
        """
        self._world.time.at(delay_ms, callback)

    def trace_hash(self) -> str:
        """A digest of all that happened, and of every byte on the disks and in the store."""
        return self._world.trace_hash()

    def _run(self, predicate: Callable[[], object], limit_ms: int) -> bool:
        if self._is_running:
            raise RuntimeError("time passes already: inside a callback nothing can wait")
        time, is_over = self._world.time, False

        def end() -> None:
            nonlocal is_over
            time.was_nothing()
            is_over = True

        time.push(time.now_ms + limit_ms, _LAST, end, ())
        steps, moved_ms = 0, time.now_ms
        self._is_running = True
        try:
            while not predicate():
                if is_over:
                    return False
                with self._judged():
                    time.step()
                    steps = steps + 1 if time.now_ms == moved_ms else 0
                    moved_ms = time.now_ms
                    if steps > _MOST_STEPS:
                        raise Violation("C17", f"{steps} events in one millisecond: somebody never rests")
        finally:
            self._is_running = False
        return True

    # --- topics -----------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        limit_ms: int = LIMIT_MS,
    ) -> None:
        """Make a topic, with replicas of partition p on nodes p, p + 1, … in turn; wait until they are there.

        `configs` are Kafka's topic settings. Raises `RequestFailed` if the controller refuses,
        `TimeoutError` if it does not get that far; `ValueError` for cleanup.policy=compact, which takes
        away what the checkers look for.
        """
        settings = {"min.insync.replicas": str(self.min_insync_replicas), **(configs or {})}
        if "compact" in settings.get("cleanup.policy", ""):
            raise ValueError("cleanup.policy=compact: the checkers count on every record being kept")
        nodes = len(self._world.hosts)
        factor = replication_factor or self.replication_factor
        assignment = tuple(
            tuple((first + offset) % nodes for offset in range(factor)) for first in range(partitions)
        )
        observation = self._world.observation
        made = [TopicPartition(topic, number) for number in range(partitions)]
        for topic_partition, replicas in zip(made, assignment, strict=True):
            if topic_partition in observation.checkers:
                raise ValueError(f"there is a topic {topic!r} already")
            observation.expect(topic_partition, replicas, min_insync=int(settings["min.insync.replicas"]))
            observation.unclean_allowed.discard(topic_partition)  # what its namesake had
            if settings.get(UNCLEAN_ELECTION) == "true":
                observation.unclean_allowed.add(topic_partition)
        request = CreateTopicsRequest((NewTopic(topic, assignment=assignment, configs=settings),))
        with self._deed(f"create_topic({topic!r}, partitions={partitions})"):
            answer = self.administer(request, limit_ms=limit_ms)
        assert isinstance(answer, CreateTopicsResponse)
        result = answer.topics[topic]
        # A controller that was asked twice, because its answer was lost, finds its own work.
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            for topic_partition in made:
                del observation.checkers[topic_partition]
            raise RequestFailed(result.error, f"{topic!r} cannot be made", result.message)
        # Led, and with a log on each node that is in sync: one that is lost before passes for an empty disk.
        self.run_until(
            lambda: (
                self.is_led(topic)
                and all(member in self._checker(*each).views for each in made for member in self.isr(*each))
            ),
            limit_ms,
        )

    def delete_topic(self, topic: str, *, limit_ms: int = LIMIT_MS) -> None:
        """Delete a topic and wait until the store knows nothing of it any more.

        Raises `RequestFailed` if the controller refuses, `TimeoutError` if it does not get that far: a
        topic waits for each of its replicas to be deleted.
        """
        self.partitions(topic)
        with self._deed(f"delete_topic({topic!r})"):
            answer = self.administer(DeleteTopicsRequest((topic,)), limit_ms=limit_ms)
        assert isinstance(answer, DeleteTopicsResponse)
        result = answer.topics[topic]
        if result.error is not ErrorCode.NONE:
            raise RequestFailed(result.error, f"{topic!r} cannot be deleted", result.message)
        self.run_until(lambda: all(each.topic != topic for each in self._world.checkers), limit_ms)

    def _take_at_its_word(self, request: RequestBody) -> None:
        """What an operator allows is allowed from the moment he asks for it."""
        allowed = self._world.observation.unclean_allowed
        if isinstance(request, ElectLeadersRequest) and request.election_type is ElectionType.UNCLEAN:
            allowed.update(self.partitions() if request.partitions is None else request.partitions)
        elif isinstance(request, AlterConfigsRequest):
            for topic_partition, checker in self._world.checkers.items():
                settings = request.topics.get(topic_partition.topic, {})
                if settings.get(UNCLEAN_ELECTION) == "true":
                    allowed.add(topic_partition)
                asked = int(settings.get("min.insync.replicas", str(checker.min_insync)) or 1)
                checker.asks_for(min(asked, checker.min_insync))

    def partitions(self, topic: str | None = None) -> list[TopicPartition]:
        """The partitions of a topic (`ValueError` if there is none), or of all topics."""
        found = [each for each in self._world.checkers if topic in (None, each.topic)]
        if topic is not None and not found:
            raise ValueError(f"there is no topic {topic!r}")
        return found

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """Whom the metadata store calls the leader, alive or not; None for nobody."""
        state = self._checker(topic, partition).state
        return state.leader if state is not None and state.leader >= 0 else None

    def isr(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """Who is in sync, as the metadata store has it."""
        state = self._checker(topic, partition).state
        return state.isr if state is not None else ()

    def claimants(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """The running nodes that take themselves for the leader: more than one while a zombie is about."""
        views = self._checker(topic, partition).views
        return tuple(sorted(node for node, view in views.items() if view.is_leader))

    def controller(self) -> int | None:
        """The node that acts as the controller and knows every node that is registered; None for nobody."""
        registered = sum(host.broker_epoch >= 0 for host in self._world.running)
        for host in self._world.running:
            assert host.node is not None
            controller: Controller = host.node.controller
            known = controller.context
            if controller.is_active and known is not None and len(known.brokers) >= registered > 0:
                return host.node_id
        return None

    def is_led(self, topic: str | None = None) -> bool:
        """Whether each partition has a leader that acts as such."""
        return all(self._checker(*each).acting_leader is not None for each in self.partitions(topic))

    def is_in_sync(self, topic: str | None = None) -> bool:
        """Whether each partition is led, with all replicas in the ISR, equal, and wholly committed."""
        return all(self._checker(*each).is_in_sync for each in self.partitions(topic))

    def describe(self) -> str:
        """The cluster as it stands, for people: a line for each node and each partition."""
        lines = [f"{self.now_ms} ms"]
        for host in self._world.hosts.values():
            trouble = [
                text
                for text, holds in (
                    ("paused", host.is_paused),
                    ("disk dead", host.disk_is_dead),
                    ("disk full", host.disk_is_full),
                    ("disk slow", host.sync_delay_ms > 0),
                    ("controller", host.node is not None and host.node.controller.is_active),
                )
                if holds
            ]
            life = "down" if host.node is None else f"runs, life {host.life}"
            lines.append(", ".join([f"node {host.node_id}: {life}", *trouble]))
        for topic_partition, checker in self._world.checkers.items():
            state = checker.state
            said = (
                "no state yet"
                if state is None
                else (f"leader {state.leader} at epoch {state.leader_epoch}, ISR {list(state.isr)}")
            )
            views = "; ".join(str(view) for _, view in sorted(checker.views.items()))
            lines.append(f"{topic_partition}: {said}; {views}")
        if self._world.network.cuts:
            lines.append(f"cut: {sorted(self._world.network.cuts)}")
        return "\n".join(lines)

    def account(self) -> str:
        """How to see this again, what was done to the cluster, and what happened last: for people."""
        recent = [f"{at_ms - START_MS:>7} {describe(facts)}" for at_ms, facts in self._world.time.recent]
        return "\n".join(
            [
                f"seed {self.seed}: the same program with {self!r} comes to the same again",
                "what was done, at its virtual millisecond:",
                *(f"  {line}" for line in self._done),
                "the last events:",
                *(f"  {line}" for line in recent),
            ]
        )

    # --- clients ----------------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        partition: int = 0,
        *,
        acks: Acks = "all",
        is_idempotent: bool | None = None,
        delivery_timeout_ms: int = 30_000,
        node: int | None = None,
    ) -> SimulatedProducer:
        """A producer for actors: its `send` returns at once, and calls back.

        It sends to whom the store calls the leader, or always to `node`. With acks=all it numbers its
        batches, unless `is_idempotent` says otherwise, and tries again until it is answered or
        `delivery_timeout_ms` is over. Without numbers it tries again only what was not appended.
        """
        self._checker(topic, partition)
        self._clients += 1
        count = _acks(acks)
        return SimulatedProducer(
            self._world,
            self._ledger,
            self._clients,
            TopicPartition(topic, partition),
            acks=count,
            is_idempotent=count == ALL if is_idempotent is None else is_idempotent,
            delivery_timeout_ms=delivery_timeout_ms,
            node=None if node is None else self._host(node).node_id,
        )

    def produce(
        self,
        topic: str,
        records: Value | Sequence[Value],
        *,
        partition: int = 0,
        acks: Acks = "all",
        node: int | None = None,
        limit_ms: int = LIMIT_MS,
    ) -> Delivery:
        """Send a record, or several as one batch, and wait until they are acknowledged.

        A record is its value, or a pair of key and value. Raises `RequestFailed` if they are refused, or
        not acknowledged within `limit_ms`: then they may be in the log or not.
        """
        key = self._checker(topic, partition), _acks(acks), node
        producer = self._producers.get(key)
        if producer is None:
            producer = self._producers[key] = self.producer(topic, partition, acks=acks, node=node)
        producer.delivery_timeout_ms = limit_ms
        delivery = producer.send(records)
        self._run(lambda: delivery.is_done, 2 * limit_ms + 2 * self.timings.request_timeout_ms)
        if not delivery.is_acknowledged:
            raise self._explained(
                RequestFailed(delivery.error, f"{delivery} and not acknowledged", delivery.message)
            )
        return delivery

    def consumer(
        self, topic: str, partition: int = 0, *, from_offset: int = 0, node: int | None = None
    ) -> SimulatedConsumer:
        """A consumer for actors: its `poll` returns at once, and calls back."""
        self._checker(topic, partition)
        return SimulatedConsumer(self._world, TopicPartition(topic, partition), from_offset, node=node)

    def consume(
        self,
        topic: str,
        from_offset: int = 0,
        *,
        partition: int = 0,
        at_least: int = 0,
        node: int | None = None,
        limit_ms: int = LIMIT_MS,
    ) -> list[Record]:
        """The committed records from `from_offset` on, as the leader (or `node`) serves them now.

        A new leader may learn only later how much is committed: `at_least` waits for so many records.
        Raises `RequestFailed` for an error that stays, OFFSET_OUT_OF_RANGE for one; `TimeoutError` if
        there are fewer than `at_least`, or nobody answers.
        """
        consumer = self.consumer(topic, partition, from_offset=from_offset, node=node)
        found: list[Record] = []
        answers: list[Fetched] = []
        end_ms = self.now_ms + limit_ms
        while self.now_ms < end_ms:
            answers.clear()
            consumer.poll(answers.append)
            self._run(lambda: bool(answers), limit_ms)
            records, high_watermark, error = answers[0] if answers else ([], -1, ErrorCode.REQUEST_TIMED_OUT)
            if error is not ErrorCode.NONE and not is_passing(error):
                raise self._explained(RequestFailed(error, f"{topic}-{partition} at {consumer.position}"))
            found += records
            if error is ErrorCode.NONE and consumer.position >= high_watermark and len(found) >= at_least:
                return found
            if not records:
                self.run_for(self.timings.retry_backoff_ms)
        raise self._explained(
            TimeoutError(f"{len(found)} records of {topic}-{partition} within {limit_ms} ms of virtual time")
        )

    def call(
        self,
        node: int,
        request: RequestBody,
        on_end: Callable[[ResponseBody | None], object],
        *,
        timeout_ms: int = 5000,
    ) -> None:
        """Send any request that is no `ProduceRequest` to a node; `on_end` hears the answer, or None."""
        self._world.client_link.call(self._host(node).node_id, request, on_end, timeout_ms=timeout_ms)

    def administer(self, request: RequestBody, *, limit_ms: int = LIMIT_MS) -> ResponseBody:
        """Ask the controller, whoever that is, until it answers: to reassign, elect, alter settings, …

        Requests are those of `logstore.replication.messages`; whether it did what was asked, the answer says.
        Raises `TimeoutError` if no controller answers within `limit_ms`. Who allows an unclean election, or
        asks for fewer in sync, is taken at his word: what may be lost by that is none of `check`'s business.
        """
        self._take_at_its_word(request)
        answers: list[ResponseBody | None] = []
        end_ms = self.now_ms + limit_ms
        while self.now_ms < end_ms:
            answers.clear()
            active = self.controller()
            if active is not None:
                self.call(active, request, answers.append, timeout_ms=self.timings.request_timeout_ms * 4)
                self._run(lambda: bool(answers), limit_ms)
                answer = answers[0] if answers else None
                if answer is not None and not _is_no_controllers(answer):
                    return answer
            self.run_for(self.timings.retry_backoff_ms)
        raise self._explained(TimeoutError(f"no controller answers within {limit_ms} ms of virtual time"))

    # --- faults -----------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """End the process: its memory is gone, what it wrote stays; its session lives until its timeout."""
        with self._deed(f"kill({node})"):
            self._world.kill(self._running(node))

    def power_cut(self, *nodes: int) -> None:
        """These machines lose their power at the same moment; without an argument, all do.

        Of what was not synced any part is left that a file system may leave; the seed chooses.
        """
        hosts = [self._host(node) for node in nodes] or list(self._world.hosts.values())
        with self._deed(f"power_cut({', '.join(map(str, nodes))})"):
            for host in hosts:
                self._world.cut_power(host)

    def restart(self, *nodes: int) -> None:
        """Start nodes that are down; without an argument, all of them. What they find is judged."""
        hosts = [self._host(node) for node in nodes]
        for host in hosts:
            if host.node is not None:
                raise ValueError(f"node {host.node_id} runs: end it first, as a kill or a stop")
        with self._deed(f"restart({', '.join(map(str, nodes))})"):
            for host in hosts or self._world.hosts.values():
                if host.node is None:
                    self._world.start(host)

    def stop(self, node: int, *, limit_ms: int = LIMIT_MS) -> None:
        """End a node in order: the controller moves what it leads first. Inside a callback: only begin to.

        Raises `TimeoutError` if it does not get there, `ValueError` for a node that is paused.
        """
        host = self._running(node)
        if host.is_paused:
            raise ValueError(f"node {node} is paused: it hears nothing of a stop")
        with self._deed(f"stop({node})"):
            self._world.shut_down(host, lambda: None)
        if not self._is_running:
            self.run_until(lambda: host.node is None, limit_ms)

    def pause(self, node: int) -> None:
        """The process stands still, as under SIGSTOP: it hears nothing and does not know it."""
        with self._deed(f"pause({node})"):
            self._world.pause(self._running(node))

    def resume(self, node: int) -> None:
        """It goes on; what was sent to it meanwhile arrives at once."""
        with self._deed(f"resume({node})"):
            self._world.resume(self._running(node))

    def partition(self, *sides: Iterable[int], one_way: bool = False) -> None:
        """No message gets from one side to another; with `one_way`, none from the first to the others.

        Sides are nodes, and `STORE` for the metadata store. Who is on no side reaches all. Clients reach
        every node in any case.
        """
        groups = [sorted(set(side)) for side in sides]
        if len(groups) < 2 or sum(map(len, groups)) != len({node for group in groups for node in group}):
            raise ValueError("a partition has two sides or more, and nobody is on two of them")
        for node in (node for group in groups for node in group if node != STORE):
            self._host(node)
        pairs = [
            (source, target)
            for number, group in enumerate(groups[:1] if one_way else groups)
            for source in group
            for other, targets in enumerate(groups)
            if other != number
            for target in targets
        ]
        shown = ", ".join("{" + ", ".join(map(str, group)) + "}" for group in groups)
        with self._deed(f"partition({shown}{', one_way=True' if one_way else ''})"):
            self._world.network.cut(pairs)

    def lossy_network(
        self, *, drop: float = 0.0, duplicate: float = 0.0, delay_ms: int = 1, reorder: bool = False
    ) -> None:
        """From now on messages are lost or doubled with these probabilities, and take `delay_ms` on average.

        With `reorder` those of one connection overtake each other. Until `heal`.
        """
        with self._deed(
            f"lossy_network(drop={drop}, duplicate={duplicate}, delay_ms={delay_ms}, reorder={reorder})"
        ):
            self._world.network.unsettle(
                drop_rate=drop, duplicate_rate=duplicate, delay_ms=delay_ms, reordering=reorder
            )

    def slow_disk(self, node: int, extra_ms: int) -> None:
        """Every sync of this node takes so much longer; 0: as long as ever."""
        with self._deed(f"slow_disk({node}, {extra_ms})"):
            self._world.slow_disk(self._host(node), extra_ms)

    def full_disk(self, node: int) -> None:
        """No file of this node can grow any more, until `heal`."""
        with self._deed(f"full_disk({node})"):
            self._world.fill_disk(self._running(node))

    def fail_disk(self, node: int, operation: str | None = None) -> None:
        """Calls to this node's disk fail from now on: all, or those named ("pwrite", "sync", …).

        Until the machine is started anew: a power cut and a restart bring the disk back, with what had
        been synced. A node that halts, no log dir being left, is started anew by itself after a while.
        """
        with self._deed(f"fail_disk({node}, {operation!r})"):
            self._world.fail_disk(self._running(node), operation)

    def expire_session(self, node: int) -> None:
        """The metadata store gives this node's session up; the node hears so at its next sign of life."""
        host = self._host(node)
        if host.session_id is None:
            raise ValueError(f"node {node} has no session")
        with self._deed(f"expire_session({node})"):
            self._world.expire_session(host)

    def stop_store(self) -> None:
        """The metadata store serves nobody, and ends no session, until `start_store`."""
        with self._deed("stop_store()"):
            self._world.store_link.go_down()

    def start_store(self) -> None:
        """It serves again; every session gets its whole timeout anew."""
        with self._deed("start_store()"):
            self._world.store_link.come_back()

    def heal(self) -> None:
        """End what is wrong around the nodes: links, delays, slow and full disks, the store.

        Nodes that are down stay down, those that are paused stay paused, dead disks stay dead.
        """
        world = self._world
        with self._deed("heal()"):
            world.network.calm()
            world.store_link.come_back()
            world.mend(list(world.network.cuts))
            for host in world.hosts.values():
                host.sync_delay_ms = 0
                world.make_room(host)

    # --- judging ----------------------------------------------------------------------------------

    @property
    def deliveries(self) -> tuple[Delivery, ...]:
        """Every send so far, in the order of the sends."""
        return tuple(self._ledger.deliveries)

    def lost(self, topic: str | None = None) -> list[Delivery]:
        """What was acknowledged, with whatever acks, and is not in the log of the leader there is now.

        Of a partition that nobody leads nothing is known; what was deleted on purpose is not lost.
        """
        return [
            delivery
            for delivery in self._ledger.deliveries
            if topic in (None, delivery.topic_partition.topic) and self._is_lost(delivery)
        ]

    def _is_lost(self, delivery: Delivery) -> bool:
        checker = delivery.checker
        leader = checker.acting_leader
        if not delivery.is_acknowledged or delivery.offset < 0 or leader is None or checker.is_retired:
            return False
        view = checker.views[leader]
        if delivery.offset < view.log_start:
            return False
        batch = find(view.batches, delivery.offset)
        return batch is None or batch.identity != delivery.identity

    def check(self) -> None:
        """Judge the promises as things stand: raises `Violation` C4 for what was acknowledged and is lost.

        That is acks=all, and acks=1 where `promised_acks` says so, but for topics that allow unclean
        elections. All other invariants are judged while time passes.
        """
        with self._judged():
            for delivery in self.lost():
                is_promised = delivery.acks == ALL or self.promised_acks == delivery.acks
                is_given_up = delivery.topic_partition in self._world.observation.unclean_allowed
                if is_promised and not is_given_up:
                    raise Violation("C4", f"{delivery} was acknowledged and is lost")

    def heal_and_check(self, limit_ms: int = LIMIT_MS) -> None:
        """End every fault, start every machine, and judge: `Violation` C18 if the cluster does not heal.

        Within `limit_ms` every partition must be led, every ISR full, every replica equal; then whatever
        was committed must be there, and `check` must hold. A partition whose in-sync replicas all came
        back with a loss waits for its operator: that is C18 too, for a program that has none.
        """
        world = self._world
        with self._deed("heal_and_check()"):
            world.heal()
            world.replace_dead_disks()
            is_healed = self._run(self.is_in_sync, limit_ms)
            world.is_healed = False  # whatever is broken from now on
            if not is_healed:
                raise Violation("C18", f"not healed within {limit_ms} ms:\n{self.describe()}")
            self.check()
            for checker in world.checkers.values():
                leader = checker.acting_leader
                assert leader is not None
                checker.read_back(checker.views[leader].batches)

    def finish(self) -> None:
        """`heal_and_check`, once: what a `with` block and the pytest fixture end with."""
        if not self._is_judged:
            self._is_judged = True
            self.heal_and_check()

    # --- inside -----------------------------------------------------------------------------------

    def _checker(self, topic: str, partition: int) -> PartitionChecker:
        checker = self._world.checkers.get(TopicPartition(topic, partition))
        if checker is None:
            raise ValueError(f"there is no partition {topic}-{partition}")
        return checker

    def _host(self, node: int) -> Host:
        if node not in self._world.hosts:
            raise ValueError(f"there is no node {node}: there are {list(self._world.hosts)}")
        return self._world.hosts[node]

    def _running(self, node: int) -> Host:
        host = self._host(node)
        if host.node is None:
            raise ValueError(f"node {node} is down")
        return host

    @contextmanager
    def _deed(self, text: str) -> Iterator[None]:
        """Something is done to the cluster: it goes on record, and what it brings to light is explained."""
        self._done.append(f"{self.now_ms:>7} {text}")
        with self._judged():
            yield

    @contextmanager
    def _judged(self) -> Iterator[None]:
        try:
            yield
        except Violation as violation:
            self._is_judged = True
            self._explained(violation)
            raise

    def _explained(self, error: Any) -> Any:
        if not getattr(error, "__notes__", None):
            error.add_note(self.account())
        return error


def _acks(acks: Acks) -> int:
    if acks not in ("all", ALL, 0, 1):
        raise ValueError(f"acks={acks!r}: it is 0, 1 or 'all'")
    return ALL if acks == "all" else acks


def _is_no_controllers(answer: ResponseBody) -> bool:
    """Whether who answered is not the controller, or no longer."""
    items: Mapping[Any, Any] = getattr(answer, "topics", {})
    errors = [getattr(answer, "error", ErrorCode.NONE), *(result.error for result in items.values())]
    return ErrorCode.NOT_CONTROLLER in errors

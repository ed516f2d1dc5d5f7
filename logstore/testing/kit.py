"""A simulated cluster for tests of programs that build on one: faults on call, virtual time, and checks.

    with SimulatedCluster(nodes=3, seed=7) as cluster:
        cluster.create_topic("orders")
        cluster.produce("orders", b"placed")
        cluster.power_cut(cluster.leader("orders"))
        cluster.produce("orders", b"paid")          # to the next leader
                                                    # the end of the block heals everything and checks

Nodes, logs, controller and metadata store are the production code; disks, network and clock are simulated.
Nothing sleeps and no thread runs. Virtual time passes only inside `run_for`, `run_until` and the calls that
wait for an answer, as fast as the events of that time can be processed. The seed is the only source of
randomness: the same program under the same seed gives the same run, byte for byte (`trace_hash`).

While time passes, the checkers observe every turn of every node (one leader per epoch, equal replicas, a
high watermark that never falls, sound recoveries, …). They raise `Violation`, with notes that give the seed,
the calls made to the cluster, and the last events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from logstore.arguments import as_callback, as_config, as_int, as_offset, as_str
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.record import Record
from logstore.replication.config import NodeConfig
from logstore.replication.durability import Durability
from logstore.replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewTopic,
    RequestBody,
    ResponseBody,
)
from logstore.testing import disk_faults
from logstore.testing import kit_engine as engine
from logstore.testing.checkers import PartitionChecker
from logstore.testing.hosts import in_turn
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
    number_of_acks,
)
from logstore.testing.kit_engine import checker_of, controller_of, host_of, running_host
from logstore.testing.network import STORE, links_between
from logstore.testing.quiet import Timings, quiet_swarm
from logstore.testing.stored import Violation
from logstore.testing.timeline import START_MS
from logstore.testing.world import World

LIMIT_MS = 60_000
"""The default limit of calls that wait, in virtual milliseconds."""


class SimulatedCluster:
    """Simulate a cluster of nodes 0, 1, … under one seed; see the module for an example.

    Times are milliseconds of virtual time; `now_ms` counts from the start of the cluster. Any call may raise
    `Violation`. Calls that name a node raise `ValueError` if it does not exist or is in the wrong state.
    Calls that wait for virtual time raise `RuntimeError` inside a callback; use `producer`, `consumer` and
    `at` there.
    """

    # More methods than a class should have: each is one call of the tables in docs/testing-kit.md.

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
        """Start `nodes` nodes. By default topics have 3 replicas (or one per node) and need 2 in sync.

        `durability` is "replicated" or "synced", the default of topics without `durability.level`. With
        `promised_acks=1`, a send with acks=1 that is acknowledged and lost is a violation too.
        `configure` may change the settings of each node; `trace` receives one line per event.
        """
        self.seed = as_offset(seed, "seed")
        self.replication_factor, self.min_insync_replicas = engine.check_sizes(
            nodes, replication_factor, min_insync_replicas
        )
        try:
            self.durability = Durability(durability)
        except ValueError:
            levels = " or ".join(each.value for each in Durability)
            raise ValueError(f"durability is {durability!r}; use {levels}") from None
        self.timings = as_config(timings, Timings, what="timings")
        self.promised_acks = number_of_acks(promised_acks)
        swarm = quiet_swarm(
            seed,
            nodes,
            replication_factor=self.replication_factor,
            min_insync_replicas=self.min_insync_replicas,
            durability=self.durability,
            timings=self.timings,
        )
        self._world = World(swarm, trace=None if trace is None else as_callback(trace, "trace"))
        self._ledger = Ledger()
        self._producers: dict[tuple[PartitionChecker, int, int | None], SimulatedProducer] = {}
        self._calls = engine.CallRecord(self._world, repr(self), seed)
        self._time = engine.VirtualTime(self._world.time, self._calls)
        for host in self._world.hosts.values():
            host.config = engine.configured(configure, host.config)
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
        """Heal and check, unless the block failed or a violation was found before."""
        if kind is None:
            self.finish()

    # --- time -------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """Virtual time since the cluster started. Timestamps of records are 1,000,000 ms ahead of it."""
        return self._world.now_ms - START_MS

    def run_for(self, duration_ms: int) -> None:
        """Let `duration_ms` pass."""
        self._time.run(lambda: False, duration_ms)

    def run_until(
        self, predicate: Callable[[], object], limit_ms: int = LIMIT_MS, *, what: str = "the condition holds"
    ) -> int:
        """Let time pass until `predicate` holds, tested after every event; return the time that passed.

        Raises `TimeoutError`, which names `what`, if it does not hold within `limit_ms`.
        """
        began_ms = self.now_ms
        if not self._time.run(predicate, limit_ms):
            raise self._calls.explain(TimeoutError(f"not within {limit_ms} ms of virtual time: {what}"))
        return self.now_ms - began_ms

    def at(self, delay_ms: int, callback: Callable[[], object]) -> None:
        """Call `callback` after `delay_ms`; its exception comes out of the call that lets time pass."""
        self._world.time.at(as_int(delay_ms, "delay_ms"), as_callback(callback))

    def trace_hash(self) -> str:
        """Return a digest of all events, and of every byte on the disks and in the store."""
        return self._world.trace_hash()

    # --- topics -----------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str | int] | None = None,
        limit_ms: int = LIMIT_MS,
    ) -> None:
        """Create a topic with the replicas of partition p on nodes p, p + 1, …; wait until they exist.

        `configs` are Kafka's topic settings. Raises `RequestFailed` if the controller refuses,
        `TimeoutError` if the topic is not ready in time, and `ValueError` for cleanup.policy=compact: the
        checkers need every record.
        """
        settings = engine.texts_of({"min.insync.replicas": self.min_insync_replicas, **(configs or {})})
        if "compact" in settings.get("cleanup.policy", ""):
            raise ValueError("cleanup.policy=compact is not supported: the checkers need every record")
        if any(each.topic == topic for each in self._world.checkers):
            raise ValueError(f"topic {topic!r} exists already")
        observation = self._world.observation
        factor = self.replication_factor if replication_factor is None else replication_factor
        engine.check_topic(topic, partitions, factor)
        assignment = in_turn(partitions, factor, len(self._world.hosts))
        made = observation.expect_topic(topic, assignment, settings)
        request = CreateTopicsRequest((NewTopic(topic, assignment=assignment, configs=settings),))
        with self._calls.entered(f"create_topic({topic!r}, partitions={partitions})"):
            answer = self.administer(request, limit_ms=limit_ms)
        assert isinstance(answer, CreateTopicsResponse)
        result = answer.topics[topic]
        # If its answer was lost, the request is repeated and finds the topic that it created.
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            for topic_partition in made:
                del observation.checkers[topic_partition]
            raise RequestFailed(result.error, f"cannot create topic {topic!r}", result.message)

        # Led, and with a log on each ISR member: a log that is lost before that would pass for an empty disk.
        def is_there(each: TopicPartition) -> bool:
            return all(member in observation.checkers[each].views for member in self.isr(*each))

        ready = f"topic {topic!r} is led, with a log on each ISR member"
        self.run_until(lambda: self.is_led(topic) and all(map(is_there, made)), limit_ms, what=ready)

    def delete_topic(self, topic: str, *, limit_ms: int = LIMIT_MS) -> None:
        """Delete a topic and wait until it is gone from the store.

        Raises `RequestFailed` if it is refused, and `TimeoutError`: deletion waits for every replica.
        """
        self.partitions(as_str(topic, "a topic"))
        with self._calls.entered(f"delete_topic({topic!r})"):
            answer = self.administer(DeleteTopicsRequest((topic,)), limit_ms=limit_ms)
        assert isinstance(answer, DeleteTopicsResponse)
        result = answer.topics[topic]
        if result.error is not ErrorCode.NONE:
            raise RequestFailed(result.error, f"cannot delete topic {topic!r}", result.message)
        gone = f"topic {topic!r} is gone from each replica"
        self.run_until(lambda: topic not in {tp.topic for tp in self._world.checkers}, limit_ms, what=gone)

    def partitions(self, topic: str | None = None) -> list[TopicPartition]:
        """Return the partitions of a topic, or of all topics. Raises `ValueError` for an unknown topic."""
        found = [each for each in self._world.checkers if topic in (None, each.topic)]
        if topic is not None and not found:
            raise ValueError(f"no topic {topic!r}")
        return found

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """Return the leader according to the metadata store, alive or not; None if there is none."""
        state = checker_of(self._world, topic, partition).state
        return state.leader if state is not None and state.leader >= 0 else None

    def isr(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """Return the ISR according to the metadata store."""
        state = checker_of(self._world, topic, partition).state
        return state.isr if state is not None else ()

    def claimants(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """Return the running nodes that act as the leader; several while a zombie leader exists."""
        views = checker_of(self._world, topic, partition).views
        return tuple(sorted(node for node, view in views.items() if view.is_leader))

    def controller(self) -> int | None:
        """Return the active controller that knows every registered node; None if there is none."""
        return controller_of(self._world)

    def is_led(self, topic: str | None = None) -> bool:
        """Whether each partition has a leader that acts as the leader."""
        checkers = self._world.checkers
        return all(checkers[each].acting_leader is not None for each in self.partitions(topic))

    def is_in_sync(self, topic: str | None = None) -> bool:
        """Whether each partition is led, and all its replicas are in the ISR, equal and fully committed."""
        return all(self._world.checkers[each].is_in_sync for each in self.partitions(topic))

    def describe(self) -> str:
        """Return the state of the cluster as text: a line for each node and each partition."""
        return engine.describe_world(self._world)

    def account(self) -> str:
        """Return the seed, the calls made to the cluster, and the last events as text."""
        return self._calls.account()

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
        """Return a producer for actors: its `send` returns at once and calls back.

        It sends to the leader according to the store, or always to `node`. With acks=all it is idempotent
        unless `is_idempotent` is False, and retries until it gets an answer or `delivery_timeout_ms`
        is over. A producer that is not idempotent retries only batches that were not appended.
        """
        checker_of(self._world, topic, partition)
        count = number_of_acks(acks)
        return SimulatedProducer(
            self._world,
            self._ledger,
            TopicPartition(topic, partition),
            acks=count,
            is_idempotent=count == ALL if is_idempotent is None else is_idempotent,
            delivery_timeout_ms=delivery_timeout_ms,
            node=node,
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
        """Send one record, or several as one batch, and wait for the acknowledgement.

        A record is its value, or a pair of key and value. Raises `RequestFailed` if they are refused or
        not acknowledged within `limit_ms`; in the second case they may be in the log.
        """
        only = None if node is None else host_of(self._world, node).node_id
        key = checker_of(self._world, topic, partition), number_of_acks(acks), only
        producer = self._producers.get(key)
        if producer is None:
            producer = self._producers[key] = self.producer(topic, partition, acks=acks, node=node)
        producer.delivery_timeout_ms = limit_ms
        delivery = producer.send(records)
        self._time.run(lambda: delivery.is_done, 2 * limit_ms + 2 * self.timings.request_timeout_ms)
        if not delivery.is_acknowledged:
            raise self._calls.explain(
                RequestFailed(delivery.error, f"{delivery} and not acknowledged", delivery.message)
            )
        return delivery

    def consumer(
        self, topic: str, partition: int = 0, *, from_offset: int = 0, node: int | None = None
    ) -> SimulatedConsumer:
        """Return a consumer for actors: its `poll` returns at once and calls back."""
        checker_of(self._world, topic, partition)
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
        """Return the committed records from `from_offset` on, as the leader (or `node`) serves them now.

        A new leader may learn only later how much is committed: `at_least` waits for that many records.
        Raises `RequestFailed` for a permanent error, such as OFFSET_OUT_OF_RANGE (1), and `TimeoutError`
        if there are fewer records than `at_least` or no node answers.
        """
        consumer = self.consumer(topic, partition, from_offset=from_offset, node=node)
        found: list[Record] = []
        answers: list[Fetched] = []
        end_ms, at_least = self.now_ms + limit_ms, as_int(at_least, "at_least")
        while self.now_ms < end_ms:
            answers.clear()
            consumer.poll(answers.append)
            self._time.run(lambda: bool(answers), limit_ms)
            records, high_watermark, error = answers[0] if answers else ([], -1, ErrorCode.REQUEST_TIMED_OUT)
            if error is not ErrorCode.NONE and not is_passing(error):
                raise self._calls.explain(RequestFailed(error, f"{topic}-{partition} at {consumer.position}"))
            found += records
            if error is ErrorCode.NONE and consumer.position >= high_watermark and len(found) >= at_least:
                return found
            if not records:
                self.run_for(self.timings.retry_backoff_ms)
        raise self._calls.explain(
            TimeoutError(
                f"not within {limit_ms} ms of virtual time: at least {at_least} committed records of "
                f"{topic}-{partition}, to the high watermark; {len(found)} were read"
            )
        )

    def call(
        self,
        node: int,
        request: RequestBody,
        on_end: Callable[[ResponseBody | None], object],
        *,
        timeout_ms: int = 5000,
    ) -> None:
        """Send a request other than `ProduceRequest` to a node; `on_end` gets the response or None."""
        self._world.client_link.call(
            host_of(self._world, node).node_id, request, on_end, timeout_ms=timeout_ms
        )

    def administer(self, request: RequestBody, *, limit_ms: int = LIMIT_MS) -> ResponseBody:
        """Send a request to the active controller until it answers: reassign, elect, alter settings, …

        Requests are those of `logstore.replication.messages`; the response has the result.
        Raises `TimeoutError` if no controller answers within `limit_ms`. A caller that allows an unclean
        election, or fewer in-sync replicas, accepts the losses: `check` does not report them.
        """
        self._world.observation.accept_risks(request)
        answers: list[ResponseBody | None] = []
        end_ms = self.now_ms + limit_ms
        while self.now_ms < end_ms:
            answers.clear()
            active = self.controller()
            if active is not None:
                self.call(active, request, answers.append, timeout_ms=self.timings.request_timeout_ms * 4)
                self._time.run(lambda: bool(answers), limit_ms)
                answer = answers[0] if answers else None
                if answer is not None and not engine.is_from_no_controller(answer):
                    return answer
            self.run_for(self.timings.retry_backoff_ms)
        raise self._calls.explain(TimeoutError(f"no controller answered within {limit_ms} virtual ms"))

    # --- faults -----------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """Kill the process: its memory is lost, its files stay; its session lives until the timeout."""
        with self._calls.entered(f"kill({node})"):
            self._world.kill(running_host(self._world, node))

    def power_cut(self, *nodes: int) -> None:
        """Cut the power of these machines at the same moment; without an argument, of all.

        Of unsynced data, any part that a file system may leave survives; the seed chooses.
        """
        hosts = [host_of(self._world, node) for node in nodes] or list(self._world.hosts.values())
        with self._calls.entered(f"power_cut({', '.join(map(str, nodes))})"):
            for host in hosts:
                self._world.cut_power(host)

    def restart(self, *nodes: int) -> None:
        """Start nodes that are down; without an argument, all of them. Their recovery is checked."""
        hosts = [host_of(self._world, node) for node in nodes]
        for host in hosts:
            if host.node is not None:
                raise ValueError(f"node {host.node_id} is running: kill or stop it first")
        with self._calls.entered(f"restart({', '.join(map(str, nodes))})"):
            for host in hosts or self._world.hosts.values():
                if host.node is None:
                    self._world.start(host)

    def stop(self, node: int, *, limit_ms: int = LIMIT_MS) -> None:
        """Shut a node down: the controller moves its leaderships first. Inside a callback, only begin.

        Raises `TimeoutError` if that takes longer than `limit_ms`, and `ValueError` for a paused node.
        """
        host = running_host(self._world, node)
        if host.is_paused:
            raise ValueError(f"node {node} is paused and cannot be stopped: resume it first")
        with self._calls.entered(f"stop({node})"):
            self._world.shut_down(host, lambda: None)
        if not self._time.is_running:
            self.run_until(lambda: host.node is None, limit_ms, what=f"node {node} has stopped")

    def pause(self, node: int) -> None:
        """Stop the process as SIGSTOP does: it receives nothing and does not notice."""
        with self._calls.entered(f"pause({node})"):
            self._world.pause(running_host(self._world, node))

    def resume(self, node: int) -> None:
        """Let a paused process continue; messages sent to it meanwhile arrive at once."""
        with self._calls.entered(f"resume({node})"):
            self._world.resume(running_host(self._world, node))

    def partition(self, *sides: Iterable[int], one_way: bool = False) -> None:
        """Drop every message between the sides; with `one_way`, only from the first side to the others.

        A side is a set of nodes; `STORE` is the metadata store. A node on no side reaches all. Clients
        always reach every node.
        """
        groups = engine.sides_of(sides)
        pairs = links_between(groups, one_way=one_way)
        for node in {node for pair in pairs for node in pair} - {STORE}:
            host_of(self._world, node)
        shown = ", ".join("{" + ", ".join(map(str, group)) + "}" for group in groups)
        with self._calls.entered(f"partition({shown}{', one_way=True' if one_way else ''})"):
            self._world.network.cut(pairs)

    def lossy_network(
        self, *, drop: float = 0.0, duplicate: float = 0.0, delay_ms: int = 1, reorder: bool = False
    ) -> None:
        """Until `heal`, lose or duplicate messages with these probabilities; delay them by about `delay_ms`.

        With `reorder`, messages of one connection overtake each other.
        """
        engine.check_loss(delay_ms, drop=drop, duplicate=duplicate)
        with self._calls.entered(
            f"lossy_network(drop={drop}, duplicate={duplicate}, delay_ms={delay_ms}, reorder={reorder})"
        ):
            self._world.network.unsettle(
                drop_rate=drop, duplicate_rate=duplicate, delay_ms=delay_ms, reordering=reorder
            )

    def slow_disk(self, node: int, extra_ms: int) -> None:
        """Make every sync of this node take `extra_ms` longer; 0 ends it."""
        extra_ms = as_int(extra_ms, "extra_ms")
        with self._calls.entered(f"slow_disk({node}, {extra_ms})"):
            disk_faults.slow_disk(self._world.time, host_of(self._world, node), extra_ms)

    def full_disk(self, node: int) -> None:
        """Fill the disk of this node until `heal`: no file can grow."""
        with self._calls.entered(f"full_disk({node})"):
            disk_faults.fill_disk(self._world.time, running_host(self._world, node))

    def fail_disk(self, node: int, operation: str | None = None) -> None:
        """Make calls to this node's disk fail from now on: all, or those named ("pwrite", "sync", …).

        A power cut and a restart replace the disk: it has everything that was synced. A node that halts
        because no log dir is left is restarted after a while.
        """
        with self._calls.entered(f"fail_disk({node}, {operation!r})"):
            disk_faults.fail_disk(self._world.time, running_host(self._world, node), operation)

    def expire_session(self, node: int) -> None:
        """Expire this node's session in the metadata store; the node learns of it at its next heartbeat."""
        host = host_of(self._world, node)
        if host.session_id is None:
            raise ValueError(f"node {node} has no session")
        with self._calls.entered(f"expire_session({node})"):
            self._world.expire_session(host)

    def stop_store(self) -> None:
        """Stop the metadata store until `start_store`: it serves no request and expires no session."""
        with self._calls.entered("stop_store()"):
            self._world.store_link.go_down()

    def start_store(self) -> None:
        """Start the metadata store again; the timeout of every session begins anew."""
        with self._calls.entered("start_store()"):
            self._world.store_link.come_back()

    def heal(self) -> None:
        """End faults around the nodes: links, delays, slow and full disks, the store.

        Nodes that are down or paused stay so; dead disks stay dead.
        """
        with self._calls.entered("heal()"):
            self._world.mend_surroundings()

    # --- judging ----------------------------------------------------------------------------------

    @property
    def deliveries(self) -> tuple[Delivery, ...]:
        """Every send so far, in order."""
        return tuple(self._ledger.deliveries)

    def lost(self, topic: str | None = None) -> list[Delivery]:
        """Return the acknowledged sends, with any acks, that are missing from the current leader's log.

        A partition without a leader adds none; deleted records are not lost.
        """
        return [
            delivery
            for delivery in self._ledger.deliveries
            if topic in (None, delivery.topic_partition.topic) and delivery.is_lost
        ]

    def check(self) -> None:
        """Check that no acknowledged record is lost now; raises `Violation` C4 otherwise.

        This covers acks=all, and acks=1 with `promised_acks=1`, except for topics that allow unclean
        elections. All other invariants are checked while time passes.
        """
        with self._calls.explained():
            for delivery in self.lost():
                is_promised = delivery.acks == ALL or self.promised_acks == delivery.acks
                is_given_up = delivery.topic_partition in self._world.observation.unclean_allowed
                if is_promised and not is_given_up:
                    raise Violation("C4", f"{delivery} was acknowledged and is lost")

    def heal_and_check(self, limit_ms: int = LIMIT_MS) -> None:
        """End every fault, start every machine, and check; raises `Violation` C18 if that does not heal it.

        Within `limit_ms` every partition must be led, every ISR full and every replica equal. Then all
        committed records must be there, and `check` must pass. A partition whose in-sync replicas all came
        back with losses waits for its operator; this is C18 too.
        """
        world = self._world
        with self._calls.entered("heal_and_check()"):
            world.heal()
            world.replace_dead_disks()
            is_healed = self._time.run(self.is_in_sync, limit_ms)
            world.is_healed = False  # faults are possible again
            if not is_healed:
                raise Violation("C18", f"not healed within {limit_ms} ms:\n{self.describe()}")
            self.check()
            for checker in world.checkers.values():
                leader = checker.acting_leader
                assert leader is not None
                checker.read_back(checker.views[leader].batches)

    def finish(self) -> None:
        """Call `heal_and_check` once; a `with` block and the pytest fixture end with this."""
        if not self._calls.is_settled:
            self._calls.is_settled = True
            self.heal_and_check()

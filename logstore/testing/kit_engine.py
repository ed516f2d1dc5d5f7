"""The engine behind the calls of a simulated cluster: virtual time, the account of a failure, lookups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from logstore.arguments import as_callback, as_int, as_offset, as_str
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from logstore.replication.messages import ResponseBody
from logstore.testing.checkers import PartitionChecker
from logstore.testing.describe import describe
from logstore.testing.hosts import Host
from logstore.testing.stored import Violation
from logstore.testing.timeline import START_MS, Timeline
from logstore.testing.world import World

E = TypeVar("E", bound=Exception)

_LAST = 2.0
"""Orders an event behind all others of its millisecond: their ties are drawn below 1."""
_MOST_STEPS = 200_000
MOST_NODES = 1000


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


def check_sizes(
    nodes: object, replication_factor: object | None, min_insync_replicas: object | None
) -> tuple[int, int]:
    """Return the replicas of a topic, and how many of them must be in sync; by default 3 and 2, or all.

    Raises `TypeError`, and `ValueError` for too many nodes, for more replicas than nodes, or more in sync
    than replicas.
    """
    count = as_int(nodes, "nodes", least=1)
    if count > MOST_NODES:
        raise ValueError(f"nodes is {count}; a simulated cluster has {MOST_NODES} at most")
    factor = min(3, count) if replication_factor is None else replication_factor
    factor = as_int(factor, "replication_factor", least=1)
    if factor > count:
        raise ValueError(f"replication_factor is {factor}, but nodes is {count}: a node has one replica")
    in_sync = min(2, factor) if min_insync_replicas is None else min_insync_replicas
    in_sync = as_int(in_sync, "min_insync_replicas", least=1)
    if in_sync > factor:
        raise ValueError(f"min_insync_replicas is {in_sync}, but replication_factor is {factor}")
    return factor, in_sync


def configured(configure: Callable[[NodeConfig], NodeConfig], config: NodeConfig) -> NodeConfig:
    """Return what `configure` makes of a node's settings. Raises `TypeError` if it returns none."""
    made = as_callback(configure, "configure")(config)
    if not isinstance(made, NodeConfig):
        raise TypeError(f"configure returned {made!r:.100}; it must return a NodeConfig")
    return made


def sides_of(sides: Iterable[Iterable[int]]) -> list[list[int]]:
    """Return the nodes on each side of a network partition. Raises `TypeError`."""
    for side in sides:
        if not isinstance(side, Iterable):
            raise TypeError(f"a side is a set of nodes, such as {{0, 1}}, not {side!r:.100}")
    return [sorted({as_offset(node, "a node") for node in side}) for side in sides]


def texts_of(configs: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of a topic as the controller stores them. Raises `TypeError`."""
    for name, value in configs.items():
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise TypeError(f"{name} is a str or an int, not {type(value).__name__} ({value!r:.100})")
    return {as_str(name, "the name of a setting"): str(value) for name, value in configs.items()}


def check_topic(name: object, partitions: object, replication_factor: object) -> None:
    """Raise `TypeError` or `ValueError` unless this describes a topic."""
    as_str(name, "a topic's name")
    as_int(partitions, "partitions", least=1)
    as_int(replication_factor, "replication_factor", least=1)


def check_loss(delay_ms: int, **rates: float) -> None:
    """Raise `TypeError` or `ValueError` unless each rate is a probability, and the delay at least 1 ms."""
    as_int(delay_ms, "delay_ms", least=1)
    for name, rate in rates.items():
        if not isinstance(rate, int | float):
            raise TypeError(f"{name} is a probability, not {type(rate).__name__} ({rate!r:.100})")
        if not 0 <= rate <= 1:
            raise ValueError(f"{name} is {rate}; a probability is 0 to 1")


class VirtualTime:
    """Let virtual time pass, event by event, while no other call does."""

    def __init__(self, time: Timeline, calls: CallRecord) -> None:
        self.is_running = False
        self._time = time
        self._calls = calls

    def run(self, predicate: Callable[[], object], limit_ms: int) -> bool:
        """Process events until `predicate` holds (True) or `limit_ms` have passed (False)."""
        limit_ms = as_int(limit_ms, "the time to wait")
        if self.is_running:
            raise RuntimeError("no call can wait inside a callback: time is passing already")
        as_callback(predicate, "the condition")
        time, is_over = self._time, False

        def end() -> None:
            nonlocal is_over
            time.was_nothing()
            is_over = True

        time.push(time.now_ms + limit_ms, _LAST, end, ())
        steps, moved_ms = 0, time.now_ms
        self.is_running = True
        try:
            while not predicate():
                if is_over:
                    return False
                with self._calls.explained():
                    time.step()
                    steps = steps + 1 if time.now_ms == moved_ms else 0
                    moved_ms = time.now_ms
                    if steps > _MOST_STEPS:
                        raise Violation("C17", f"{steps} events in one millisecond: a node never rests")
        finally:
            self.is_running = False
        return True


def checker_of(world: World, topic: str, partition: int) -> PartitionChecker:
    """Return the checker of a partition. Raises `ValueError` if there is no such partition."""
    as_str(topic, "a topic")
    checker = world.checkers.get(TopicPartition(topic, as_offset(partition, "a partition")))
    if checker is None:
        raise ValueError(f"no partition {topic}-{partition}; create_topic makes one")
    return checker


def host_of(world: World, node: int) -> Host:
    """Return the machine of a node. Raises `ValueError` if there is no such node."""
    if as_offset(node, "a node") not in world.hosts:
        raise ValueError(f"no node {node}; the nodes are {list(world.hosts)}")
    return world.hosts[node]


def running_host(world: World, node: int) -> Host:
    """Return the machine of a node. Raises `ValueError` if there is none or the node is down."""
    host = host_of(world, node)
    if host.node is None:
        raise ValueError(f"node {node} is down")
    return host


def controller_of(world: World) -> int | None:
    """Return the active controller that knows every registered node; None if there is none."""
    registered = sum(host.broker_epoch >= 0 for host in world.running)
    for host in world.running:
        assert host.node is not None
        known = host.node.controller.context
        if host.node.controller.is_active and known is not None and len(known.brokers) >= registered > 0:
            return host.node_id
    return None


def is_from_no_controller(answer: ResponseBody) -> bool:
    """Whether the answer came from a node that is not the controller, or no longer."""
    items: Mapping[Any, Any] = getattr(answer, "topics", {})
    errors = [getattr(answer, "error", ErrorCode.NONE), *(result.error for result in items.values())]
    return ErrorCode.NOT_CONTROLLER in errors


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

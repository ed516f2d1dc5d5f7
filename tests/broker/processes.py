"""Three nodes in three processes around a real ZooKeeper server, clients at work, and what may befall them.

Each node reaches the server through a proxy of its own, so that its session can be ended alone. While
producers write (idempotent, acks=all, `min.insync.replicas` 2) and consumers read, `Faults` stop, kill and
pause; `judge` then holds against each other what was acknowledged, what was read, what the replicas' files
hold, and what every node says it decided.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from logstore.broker.client import Client
from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.broker.limits import Address, Limits
from logstore.broker.producing import Producer
from logstore.disk.errors import ErrorCode
from logstore.disk.files import wall_clock_ms
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch, walk
from logstore.format.record import Record
from logstore.log.reader import LogReader
from logstore.replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    MetadataRequest,
    MetadataResponse,
    NewTopic,
    ProduceRequest,
    ProduceResponse,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Get
from logstore.replication.state_change import Side, StateChange, parse_line
from tests.zookeeper import Client as StoreProbe
from tests.zookeeper import Proxy, ZooKeeperServer

ROOT = Path(__file__).parent.parent.parent
NODES = (1, 2, 3)
PARTITIONS = tuple(TopicPartition("orders", number) for number in range(3))
LIMITS = Limits(request_timeout_ms=3_000, reconnect_backoff_max_ms=200)
CHROOT = "/cluster"


class NodeProcess:
    """One node's process."""

    def __init__(self, node_id: int, directory: Path, url: str, session_ms: int) -> None:
        self.node_id = node_id
        self.log_dir = directory / f"node-{node_id}"
        self.state_changes = directory / f"state-change-{node_id}.log"
        self._stderr = directory / f"node-{node_id}.err"
        self._process: asyncio.subprocess.Process | None = None
        self.address: Address | None = None
        settings = {
            "zookeeper.session.timeout.ms": session_ms,
            "min.insync.replicas": 2,
            "replica.lag.time.max.ms": 4_000,
            "request.timeout.ms": 3_000,
            "replica.fetch.backoff.ms": 100,
            "controlled.shutdown.retry.backoff.ms": 100,
        }
        self._command = [
            *([keeper, "--pdeathsig", "KILL"] if (keeper := shutil.which("setpriv")) else []),
            *(sys.executable, "-m", "logstore.cli.main", "serve"),
            *("--node-id", str(node_id), "--listen", "127.0.0.1:0"),
            *("--log-dirs", str(self.log_dir), "--metadata", url + CHROOT),
            *("--state-change-log", str(self.state_changes)),
            *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
        ]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start, and wait until it says that it is registered."""
        assert not self.is_running, f"node {self.node_id} runs"
        with self._stderr.open("ab") as stderr:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=asyncio.subprocess.PIPE, stderr=stderr, cwd=ROOT
            )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        assert line, self.errors[-2000:]
        ready = json.loads(line)
        self.address = Address(ready["host"], ready["port"])

    @property
    def errors(self) -> str:
        return self._stderr.read_text()

    def tell(self, number: signal.Signals) -> None:
        assert self._process is not None, "started"
        self._process.send_signal(number)

    async def end(self, number: signal.Signals) -> int:
        """Send the signal, wait for the end, and give its code."""
        if not self.is_running:
            return 0
        self.tell(number)
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), 60)

    def decisions(self) -> list[StateChange]:
        """The state-change log; a killed process may have torn its last line."""
        lines = self.state_changes.read_text().splitlines()
        return [change for line in lines if (change := parse_line(line)) is not None]


# --- the workload -----------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """What clients saw of one partition."""

    acked: list[tuple[int, list[bytes]]] = field(default_factory=list)
    """base offset, values"""
    read: list[bytes | None] = field(default_factory=list)
    """by offset"""
    violations: list[str] = field(default_factory=list)
    longest_wait_s: float = 0.0


async def produce(client: Client, topic_partition: TopicPartition, tally: Tally, stop: asyncio.Event) -> None:
    """Write numbered values, a few at a time, until told to stop; the last batch is waited for."""
    producer = Producer(client, topic_partition, producer_id=1000 + topic_partition.partition)
    number = 0
    while not stop.is_set():
        values = [b"%d-%d" % (topic_partition.partition, number + k) for k in range(1 + number % 4)]
        began = time.monotonic()
        try:
            offset = await producer.send(values)
        except (RequestRefused, RequestUnanswered) as error:
            tally.violations.append(f"a producer gave up at {values[0]!r}: {error}")
            return
        tally.longest_wait_s = max(tally.longest_wait_s, time.monotonic() - began)
        tally.acked.append((offset, values))
        number += len(values)
        await asyncio.sleep(0.002)


async def consume(client: Client, topic_partition: TopicPartition, tally: Tally, stop: asyncio.Event) -> None:
    """Read on and on, from offset 0; each record must be the next."""
    while not stop.is_set():
        try:
            result = await client.fetch(topic_partition, len(tally.read), max_wait_ms=200)
        except RequestUnanswered:
            continue
        except RequestRefused as error:
            if error.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                tally.violations.append(f"offset {len(tally.read)} was read up to, and is gone: {error}")
                return
            continue
        _take(result.records, tally.read, tally.violations)


def _take(data: bytes | memoryview, read: list[bytes | None], violations: list[str]) -> None:
    begun_at = len(read)
    for batch in walk(data):
        for record in batch.records():
            if record.offset < begun_at:
                continue  # a batch is sent whole, whatever offset inside it was asked for
            if record.offset != len(read):
                violations.append(f"offset {record.offset} came where {len(read)} was next")
            read.append(record.value)


# --- the cluster ------------------------------------------------------------------------------


class Cluster:
    """The server, its proxies, the nodes, the clients. Use it with `async with`."""

    def __init__(self, directory: Path, *, session_ms: int) -> None:
        self.session_ms = session_ms
        self.server = ZooKeeperServer(directory / "zookeeper")
        self._directory = directory
        self._stack = AsyncExitStack()
        self._controllers = 0
        self.tallies = {each: Tally() for each in PARTITIONS}
        self.nodes: dict[int, NodeProcess] = {}
        self.proxies: dict[int, Proxy] = {}

    async def __aenter__(self) -> Cluster:
        await self._in_thread(self.server.start)
        self._stack.push_async_callback(self._in_thread, self.server.stop)
        for node_id in NODES:
            self.proxies[node_id] = self._stack.enter_context(Proxy(self.server.port))
            self.nodes[node_id] = NodeProcess(
                node_id, self._directory, self.proxies[node_id].url, self.session_ms
            )
        self._stack.push_async_callback(self._kill_all)
        await asyncio.gather(*(node.start() for node in self.nodes.values()))
        addresses = [node.address for node in self.nodes.values() if node.address is not None]
        self.client = await self._stack.enter_async_context(Client(addresses, limits=LIMITS, timeout_s=120))
        topic = NewTopic("orders", assignment=((1, 2, 3), (2, 3, 1), (3, 1, 2)))
        answer = await self.client.of_controller(CreateTopicsRequest((topic,)))
        assert isinstance(answer, CreateTopicsResponse)
        assert answer.topics["orders"].error is ErrorCode.NONE, answer
        await self.healed()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @staticmethod
    async def _in_thread(work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(None, work)

    async def _kill_all(self) -> None:
        for node in self.nodes.values():
            await node.end(signal.SIGKILL)

    async def healed(self, limit_s: float = 60.0) -> float:
        """Wait until every node says the same of all: they live, every ISR is full. How long it took."""
        began = time.monotonic()
        while True:
            told = await asyncio.gather(*map(self._metadata_of, self.nodes.values()))
            if all(each is not None and self._is_whole(each) for each in told) and all(
                each == told[0] for each in told
            ):
                return time.monotonic() - began
            assert time.monotonic() - began < limit_s, f"not healed: {told}"
            await asyncio.sleep(0.05)

    async def _metadata_of(self, node: NodeProcess) -> MetadataResponse | None:
        assert node.address is not None, "started"
        try:
            async with asyncio.timeout(1):
                answer = await self.client.ask(node.address, MetadataRequest())
        except (RequestUnanswered, TimeoutError):
            return None
        assert isinstance(answer, MetadataResponse)
        return answer

    @staticmethod
    def _is_whole(metadata: MetadataResponse) -> bool:
        states = [metadata.partitions.get(each) for each in PARTITIONS]
        return {broker.broker_id for broker in metadata.brokers} == set(NODES) and all(
            state is not None and set(state.isr) == set(NODES) and state.leader in NODES for state in states
        )

    async def controller(self) -> int:
        return (await self.client.metadata()).controller_id

    async def leader(self, topic_partition: TopicPartition) -> int:
        return (await self.client.metadata()).partitions[topic_partition].leader

    # --- faults -------------------------------------------------------------------------------

    async def server_stopped(self, seconds: float) -> str:
        """Nobody elects, nobody expires; clients may go on, and do."""
        before = sum(len(tally.acked) for tally in self.tallies.values())
        await self._in_thread(self.server.stop)
        await asyncio.sleep(seconds)
        acked = sum(len(tally.acked) for tally in self.tallies.values()) - before
        await self._in_thread(self.server.start)
        return f"server down for {seconds:.0f} s; {acked} batches acknowledged meanwhile"

    async def session_ended(self, node_id: int) -> str:
        """As the server ends one that ran out; the node hears of it when it is back."""

        def end() -> None:
            with StoreProbe(self.server.url + CHROOT) as probe:
                while (outcome := probe.call(Get(layout.broker_path(node_id)))).stat is None:
                    time.sleep(0.05)  # it lost its session by itself, and is about to have another
                ended = outcome.stat.ephemeral_owner
                self.proxies[node_id].end_session(ended)
                while (stat := probe.call(Get(layout.broker_path(node_id))).stat) is None or (
                    stat.ephemeral_owner == ended
                ):
                    time.sleep(0.05)

        await self._in_thread(end)
        return f"session of node {node_id} ended"

    async def killed(self, node_id: int) -> str:
        """kill -9, and started again when others have taken over."""
        await self.nodes[node_id].end(signal.SIGKILL)
        await asyncio.sleep(1.2 * self.session_ms / 1000)
        await self.nodes[node_id].start()
        return f"node {node_id} killed"

    async def paused(self, node_id: int) -> str:
        """SIGSTOP until its session is over and others have taken over; then it goes on as a zombie.

        Meanwhile its socket gets a produce with acks=1 to each partition: a leader that woke and did not
        know would acknowledge those of the partitions it led (R7), and the others would cut them off.
        """
        pause_s = 1.6 * self.session_ms / 1000
        node = self.nodes[node_id]
        assert node.address is not None, "started"
        record = Record(0, wall_clock_ms(), None, b"stray")
        stray = ProduceRequest(dict.fromkeys(PARTITIONS, encode_batch([record])), 1, 1_000)
        async with Client([node.address], limits=Limits()) as client:
            node.tell(signal.SIGSTOP)
            began = time.monotonic()
            try:
                waiting = asyncio.create_task(client.ask(node.address, stray))
                await asyncio.sleep(pause_s)
                while await self._is_somebody(node_id):
                    await asyncio.sleep(0.05)
                stood_s = time.monotonic() - began
            finally:
                node.tell(signal.SIGCONT)
            answer = await waiting
        assert isinstance(answer, ProduceResponse)
        for topic_partition, result in answer.partitions.items():
            if result.error is ErrorCode.NONE:
                self.tallies[topic_partition].violations.append(f"node {node_id} took a record as a zombie")
        return f"node {node_id} stood still for {stood_s:.1f} s"

    async def _is_somebody(self, node_id: int) -> bool:
        """Whether the others still take it for the controller, or for a leader."""
        metadata = await self.client.metadata()
        leaders = {metadata.partitions[each].leader for each in PARTITIONS}
        return node_id in leaders or node_id == metadata.controller_id

    # --- the whole ----------------------------------------------------------------------------

    async def under_load(self, faults: Sequence[Callable[[Cluster], Awaitable[str]]]) -> list[str]:
        """Run `faults` one after the other, each healed, while clients work. What happened, line by line."""
        stop_writing, stop_reading = asyncio.Event(), asyncio.Event()
        producers = [
            asyncio.create_task(produce(self.client, each, tally, stop_writing))
            for each, tally in self.tallies.items()
        ]
        consumers = [
            asyncio.create_task(consume(self.client, each, tally, stop_reading))
            for each, tally in self.tallies.items()
        ]
        lines = []
        for fault in faults:
            what = await fault(self)
            lines.append(f"{what}; healed in {await self.healed():.1f} s")
        stop_writing.set()
        await asyncio.gather(*producers)
        ends = {each: _end(tally) for each, tally in self.tallies.items()}
        while any(len(each.read) < ends[tp] and not each.violations for tp, each in self.tallies.items()):
            await asyncio.sleep(0.02)
        stop_reading.set()
        await asyncio.gather(*consumers)
        await self.healed()
        return lines

    async def stopped(self) -> None:
        """Every node ends in order, each with code 0."""

        def ask() -> None:
            with StoreProbe(self.server.url + CHROOT) as probe:
                epoch = probe.call(Get(layout.CONTROLLER_EPOCH_PATH)).data
                self._controllers = layout.parse_controller_epoch(epoch)

        await self._in_thread(ask)
        for node in self.nodes.values():
            code = await node.end(signal.SIGTERM)
            assert code == 0, node.errors[-3000:]

    def judge(self) -> Verdict:
        """What is wrong, if anything, now that the nodes have stopped."""
        verdict = Verdict()
        decisions = [change for node in self.nodes.values() for change in node.decisions()]
        verdict.violations += judge_epochs(decisions)
        verdict.elections = len({(each.topic_partition, each.leader_epoch) for each in decisions})
        verdict.controllers = self._controllers
        for topic_partition, tally in self.tallies.items():
            verdict.acked += sum(len(values) for _, values in tally.acked)
            verdict.read += len(tally.read)
            verdict.longest_wait_s = max(verdict.longest_wait_s, tally.longest_wait_s)
            files = {
                node_id: (node.log_dir / topic_partition.directory_name)
                for node_id, node in self.nodes.items()
            }
            verdict.violations += [
                f"{topic_partition}: {each}" for each in judge_partition(tally, _contents(files))
            ]
        return verdict


@dataclass(slots=True)
class Verdict:
    """What a campaign came to; `controllers` is how many were elected, `elections` how many leader epochs."""

    violations: list[str] = field(default_factory=list)
    acked: int = 0
    read: int = 0
    elections: int = 0
    controllers: int = 0
    longest_wait_s: float = 0.0


def _end(tally: Tally) -> int:
    return max((offset + len(values) for offset, values in tally.acked), default=0)


def _contents(directories: Mapping[int, Path]) -> dict[int, list[bytes | None]]:
    """The values in each replica's files, by offset."""
    found = {}
    for node_id, directory in directories.items():
        found[node_id] = [record.value for record in LogReader(str(directory)).records()]
    return found


def judge_epochs(decisions: list[StateChange]) -> list[str]:
    """One leader an epoch, as every node tells it; one controller an epoch."""
    leaders: defaultdict[tuple[TopicPartition, int], set[int]] = defaultdict(set)
    controllers: defaultdict[int, set[int]] = defaultdict(set)
    for change in decisions:
        if change.side is Side.CONTROLLER:
            controllers[change.controller_epoch].add(change.node_id)
        if change.leader >= 0 and change.reason not in ("STALE_CONTROLLER_EPOCH", "STALE_BROKER_EPOCH"):
            leaders[change.topic_partition, change.leader_epoch].add(change.leader)
        if change.side is Side.BROKER and change.change == "becomes leader":
            leaders[change.topic_partition, change.leader_epoch].add(change.node_id)
    return [
        *(
            f"epoch {epoch} of {topic_partition} has leaders {sorted(named)}"
            for (topic_partition, epoch), named in leaders.items()
            if len(named) > 1
        ),
        *(
            f"controller epoch {epoch} has {sorted(named)}"
            for epoch, named in controllers.items()
            if len(named) > 1
        ),
    ]


def judge_partition(tally: Tally, replicas: Mapping[int, list[bytes | None]]) -> list[str]:
    """Nothing acknowledged lost or moved, nothing twice, nothing out of order, replicas alike."""
    violations = list(tally.violations)
    longest = max(replicas.values(), key=len)
    for offset, values in tally.acked:
        found = longest[offset : offset + len(values)]
        if found != values:
            violations.append(f"{values} was acknowledged at {offset}, where {found} is")
    numbers = [int(value.split(b"-")[1]) for value in longest if value is not None]
    if numbers != list(range(len(longest))):
        wrong = next(at for at, number in enumerate([*numbers, -1]) if number != at)
        violations.append(f"offset {wrong} holds {longest[wrong : wrong + 1]}: lost, doubled or out of order")
    if tally.read != longest[: len(tally.read)]:
        violations.append("a consumer read what is not in the log")
    for node_id, held in replicas.items():
        if held != longest[: len(held)] or len(held) < _end(tally):
            violations.append(f"node {node_id} has {len(held)} records, or others than the rest")
    return violations


def table(lines: list[str], verdict: Verdict, seconds: float) -> str:
    """The campaign in text."""
    facts = {
        "records acknowledged": verdict.acked,
        "records read": verdict.read,
        "leader epochs": verdict.elections,
        "controller epochs": verdict.controllers,
        "longest wait for an ack, s": round(verdict.longest_wait_s, 1),
        "seconds": round(seconds),
        "violations": len(verdict.violations),
    }
    return "\n".join(
        [*lines, *(f"{name:>28}  {value:,}" for name, value in facts.items()), *verdict.violations]
    )

"""Rounds of network partitions around three brokers in three processes, with clients at work all the while.

Brokers and the store are reached through a `Network`. A round begins with all replicas in sync; the network
is cut (`faults.py`), and healed when what has to happen has happened. Then all replicas have to be in sync
again, by themselves, and clients have to go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from logstore.cli.cluster_file import LocalCluster, Member, write
from logstore.cli.local_cluster import start, stop
from tests.access import access_to
from tests.kill9.campaign import (
    NODES,
    PARTITIONS,
    PATIENCE_S,
    SESSION_MS,
    SETTINGS,
    Campaign,
    Outcome,
    View,
    create_topic,
    judged,
    wait_for_clients,
)
from tests.kill9.workload import Workload
from tests.metadata_server import StoreProcess
from tests.partitions.faults import KINDS, STORE, Expected, flows_of
from tests.partitions.network import Flow, NetworkProcess, Party
from tests.zookeeper import ZooKeeperServer, free_port

HOLD_S = 3.0 * SESSION_MS / 1000
"""How long a cut lasts that has no visible end."""
MORE = range(1, 64)
"""Bytes that each connection carries after a cut in the middle of a frame."""
SLOW = 32 << 10
"""Bytes a second of each connection of a slow broker."""


@dataclass(frozen=True, slots=True)
class Round:
    """The result of a round. `led_after_s`: until others led, None if nothing was expected.

    `going_on_after_s` is how long a partition was without an acknowledgement, from the cut on, if clients had
    to go on during it.
    """

    number: int
    kind: str
    victim: int
    healed_by: str
    led_after_s: float | None
    going_on_after_s: float | None
    whole_again_s: float
    acknowledged: int
    """While the network was cut."""
    connections: int
    """That were opened from the cut on: a party that connects again and again without a pause shows here."""


class Partitioned(Campaign):
    """The cluster of the kill -9 campaign on a network that can be cut."""

    def __init__(self, directory: Path, *, store: str, is_secured: bool, seed: int) -> None:
        self.directory = directory
        self._down: set[int] = set()
        with ExitStack() as stack:
            server = ZooKeeperServer(directory / "zookeeper") if store == "zookeeper" else None
            keeper = server or StoreProcess(directory / "metadata", log_file=directory / "metadata.log")
            keeper.start()
            stack.callback(keeper.stop)
            self.network = stack.enter_context(NetworkProcess(partial(pids_in, directory), seed))
            url = f"zookeeper://127.0.0.1:{self.network.gate(STORE, keeper.port)}"
            nodes = [self._planned(number, is_secured) for number in range(1, NODES + 1)]
            write(directory, LocalCluster(url, None, tuple(member for member, _ in nodes)))
            self.cluster = start(directory, NODES, SETTINGS, patience_s=PATIENCE_S)
            stack.callback(stop, directory, patience_s=30.0)
            bootstrap = ",".join(f"127.0.0.1:{gate}" for _, gate in nodes)
            self.access = access_to(self.cluster, directory)
            self.bypassing, self.access = self.access, self.access._replace(bootstrap=bootstrap)
            self._stack = stack.pop_all()

    def close(self) -> None:
        self.network.heal()
        self._stack.close()

    def _planned(self, number: int, is_secured: bool) -> tuple[Member, int]:
        """Return a broker that tells others the addresses of its gates, and the gate of clients."""
        party, port, brokers_port = str(number), free_port(), free_port() if is_secured else 0
        gate = self.network.gate(party, port)
        told = f"PLAINTEXT://127.0.0.1:{gate}"
        if is_secured:
            brokers_gate = self.network.gate(party, brokers_port)
            told = f"CLIENTS://127.0.0.1:{gate},BROKERS://127.0.0.1:{brokers_gate}"
        settings = {"advertised.listeners": told}
        return Member(f"node-{number}", port, free_port(), brokers_port=brokers_port, settings=settings), gate

    def wait_until_whole(self) -> None:
        """Until all brokers tell the same, and all are in sync: one that was cut off knows old things."""

        def is_agreed(_: View) -> bool:
            views = [self._view_of(number) for number in range(1, NODES + 1)]
            return all(view is not None and self.is_whole(view) and view == views[0] for view in views)

        self.wait_for("all replicas in sync", is_agreed)

    # --- rounds -------------------------------------------------------------------------------

    def partition(self, number: int, kind: str, workload: Workload, random: Random) -> Round:
        """Cut the network, wait for what has to happen, heal it, and wait until all are in sync."""
        view = self.view()
        assert view is not None
        victim = view.controller if kind == "controller" else view.leaders[0]
        others = [str(each) for each in range(1, NODES + 1) if each != victim]
        flows = flows_of(kind, str(victim), (*others,))
        before, opened = count(workload), self.network.connections()
        led_after_s, going_on_after_s = self._cut(kind, victim, flows, workload, random)
        acknowledged = sum(count(workload)) - sum(before)
        is_reset = random.random() < 0.5
        self.network.heal(is_reset=is_reset)
        self._down.clear()
        began_s = time.monotonic()
        self.wait_until_whole()
        whole_again_s = time.monotonic() - began_s
        wait_for_acknowledgements(workload, "after the network was healed")
        return Round(
            number,
            kind,
            victim,
            "reset" if is_reset else "late",
            led_after_s,
            going_on_after_s,
            whole_again_s,
            acknowledged,
            self.network.connections() - opened,
        )

    def _cut(
        self, kind: str, victim: int, flows: frozenset[Flow], workload: Workload, random: Random
    ) -> tuple[float | None, float | None]:
        """Return after how many seconds others led, and clients went on, if they had to."""
        if kind == "flap":
            for _ in range(4):
                self.network.cut(flows)
                time.sleep(random.uniform(0.2, 0.8) * SESSION_MS / 1000)
                self.network.heal(is_reset=random.random() < 0.5)
                time.sleep(random.uniform(0.0, 0.5))
            return None, None
        began_s = time.monotonic()
        if kind == "slow":
            self.network.slow(flows, SLOW)
        elif kind == "stall":
            self.network.cut(flows, after=MORE)
        else:
            self.network.cut(flows)
        led_after_s = going_on_after_s = None
        expected = KINDS[kind].expected
        if expected is Expected.LEADERS:
            self._down.add(victim)
            led_after_s = self.wait_for(
                "another leader and controller",
                lambda view: self.is_led_elsewhere(view) and view.controller not in self._down,
            )
        else:
            time.sleep(HOLD_S)
        if expected is not Expected.NOTHING:
            wait_for_acknowledgements(workload, f"during {kind}")
            going_on_after_s = time.monotonic() - began_s
        return led_after_s, going_on_after_s


def pids_in(directory: Path) -> Mapping[Party, int]:
    """Return the processes of the brokers of a local cluster.

    By their command lines: a broker may connect to the store before its process is in the cluster's file.
    """
    parties = {f"{directory.resolve()}/node-{number}.log": str(number) for number in range(1, NODES + 1)}
    found = dict[Party, int]()
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            log_file = command.read_bytes().decode(errors="replace").rstrip("\0").rpartition("\0")[2]
            if log_file in parties:
                found[parties[log_file]] = int(command.parent.name)
    return found


def count(workload: Workload) -> list[int]:
    """Return how many records are acknowledged, by partition."""
    return [len(workload.seen.acknowledged.get(number, ())) for number in range(PARTITIONS)]


def wait_for_acknowledgements(workload: Workload, when: str) -> None:
    """Until records of each partition are acknowledged that were not yet."""
    before, began_s = count(workload), time.monotonic()
    while any(now <= then for now, then in zip(count(workload), before, strict=True)):
        assert time.monotonic() - began_s < PATIENCE_S, f"partitions without acknowledgements {when}"
        time.sleep(0.02)


def run(
    directory: Path,
    kinds: Sequence[str],
    *,
    store: str = "embedded",
    is_secured: bool = False,
    seed: int = 1,
    acks: str = "all",
    tell_of: Callable[[Round], None] = lambda each: None,
) -> Outcome:
    """Cut the network in these ways, one a round, and judge."""
    random = Random(seed)
    directory.mkdir(parents=True)
    running = Partitioned(directory, store=store, is_secured=is_secured, seed=seed)
    try:
        create_topic(running.access)
        running.wait_until_whole()
        workload = Workload(running.access, PARTITIONS, acks=acks)
        wait_for_clients(workload)
        for number, kind in enumerate(kinds, 1):
            tell_of(running.partition(number, kind, workload, random))
        return judged(workload, running.access)
    finally:
        running.close()

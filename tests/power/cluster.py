"""Power cuts of a cluster: `python -m tests.power.cluster [--kinds ext4,xfs] [--cuts N] [--seed N]`.

Three brokers and their metadata store are processes, each on a file system and a block device of its own. A
power cut leaves what was flushed to a device, and any part of the rest; the processes are started on that.

    everywhere  While clients work, brokers are killed, and topics come and go, samples are taken: the
                promises so far, and the position of each device. Afterwards the power is cut at some of the
                samples. At the level `synced` every promise must be kept.
    one by one  Power cuts of single members, while clients work. At the level `replicated` nothing that was
                acknowledged may be lost, as long as the others have power.

Needs root, FUSE and loop devices.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from unittest import mock

from bench.kafka.jars import Missing
from logstore.broker import BlockingClient, SharedQueue, shared_lane
from logstore.cli.cluster_file import STORE
from logstore.cli.local_cluster import launch, send_signal
from logstore.disk.errors import EngineError
from logstore.disk.running import RUNNING_FILE
from logstore.disk.topic_partition import TopicPartition
from logstore.queue import QueueConfig
from logstore.replication.messages import EARLIEST_TIMESTAMP
from tests.kill9.campaign import (
    NODES,
    PARTITIONS,
    PATIENCE_S,
    Campaign,
    create_topic,
    judged,
    read_all,
    wait_for_clients,
)
from tests.kill9.verdict import lost, misread, out_of_order
from tests.kill9.workload import TOPIC, Seen, Workload
from tests.power.block_device import KINDS, Device, Devices, in_memory
from tests.power.crash_images import after_a_power_cut

MEMBERS: Final = (STORE, *(f"node-{number}" for number in range(1, NODES + 1)))
EMPTIED: Final = TopicPartition("emptied", 0)
"""Records of it are deleted."""
GROUP: Final = "promised"
_CHECKPOINT_EVENTS: Final = 4
"""Between checkpoints of the queue, whose events and messages are deleted below them."""
_SAMPLE_S: Final = 0.02
_LEASE_S: Final = 1.0


class Sample(NamedTuple):
    """The promises that had been made when the devices reached these positions."""

    acknowledged: Mapping[int, int]
    """By partition, how many messages."""
    consumed: Mapping[str, int]
    """By consumer, how many messages."""
    committed: int
    deleted_below: int
    removed: frozenset[str]
    finished: frozenset[bytes]
    positions: Mapping[str, int]
    made: frozenset[str]
    waiting: frozenset[bytes]


@dataclass
class Promises:
    """The answers to administrative requests. Only one thread writes them."""

    committed: int = 0
    """The next offset that a group has committed."""
    deleted_below: int = 0
    made: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    waiting: frozenset[bytes] = frozenset()
    """Messages of a queue that no worker has finished, or tried to."""
    finished: frozenset[bytes] = frozenset()
    refused: list[str] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)


class PoweredCluster(Campaign):
    """The cluster of the kill -9 campaign; the directory of each member is the mount of a device."""

    def __init__(self, directory: Path, devices: Devices, level: str) -> None:
        self._mounts = devices
        self.devices = {member: devices.mount(devices.blank, [], directory / member) for member in MEMBERS}
        self.recorded = dict(self.devices)
        """Those on which the clients' work was recorded."""
        super().__init__(directory, settings={"durability": level})

    def client(self) -> BlockingClient:
        return BlockingClient(self.access.bootstrap, timeout_s=PATIENCE_S)

    def queue(self) -> SharedQueue:
        """Connect to a queue. Leases are short: a power cut may leave one."""
        config = QueueConfig(durability="synced", lease=_LEASE_S)
        return SharedQueue.connect(self.access.bootstrap.partition(",")[0], "jobs", config)

    def cut_at(self, sample: Sample, random: Random) -> None:
        """Kill every process, and mount what a power cut at this sample may leave of each device."""
        self.kill()
        self._cut(self.recorded, sample.positions, random)

    def cut_now(self, members: Sequence[str], random: Random) -> None:
        """Cut the power of some members now."""
        self.kill(members)
        self._cut(self.devices, {each: self.devices[each].position for each in members}, random)

    def _cut(self, of: Mapping[str, Device], positions: Mapping[str, int], random: Random) -> None:
        for member, position in positions.items():
            changes = [change for at, change in of[member].changes() if at <= position]
            left, before = after_a_power_cut(changes, random), self.devices[member]
            before.unmount()
            self.devices[member] = self._mounts.mount(before.base, left, self.directory / member)
            if before is not self.recorded[member]:
                before.forget()
            marker = self.directory / member / RUNNING_FILE
            if marker.exists():  # the machine has been down: this boot is another one
                marker.write_text(json.dumps({"boot": "the one before"}))

    def lose_one(self, number: int, random: Random) -> None:
        """Cut the power of one member, the store for 0; wait for other leaders, and for its return."""
        member = MEMBERS[number]
        self.cut_now([member], random)
        if number:
            self._down.add(number)
            self.wait_for("another leader", self.is_led_elsewhere)
            self._down.remove(number)
        self.started([member])

    def kill(self, members: Sequence[str] = MEMBERS) -> None:
        for member in members:
            send_signal(self.directory, member, signal.SIGKILL)

    def started(self, members: Sequence[str] = MEMBERS) -> None:
        """Start these processes, and wait until all replicas are in sync."""
        self.cluster = launch(self.directory, members, patience_s=PATIENCE_S)
        self.wait_until_whole()


def _administer(cluster: PoweredCluster, promises: Promises, no_more: threading.Event) -> None:
    """Commit offsets, make and delete topics, and delete records. A failed request promises nothing."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin, number = AdminClient({**cluster.access.librdkafka, "log_level": 0}), 0
    while not no_more.is_set():
        number += 1
        try:
            _administer_once(cluster, admin, promises, number)
        except (KafkaException, EngineError) as error:
            promises.refused.append(f"{error}")


def _administer_once(cluster: PoweredCluster, admin: Any, promises: Promises, number: int) -> None:
    from confluent_kafka import TopicPartition as Place
    from confluent_kafka.cimpl import NewTopic

    with cluster.client() as client:
        client.commit(GROUP, {TopicPartition(TOPIC, 0): number})
        promises.committed = number
        appended = client.append(EMPTIED.topic, [b"deleted"] * 10, partition=0)
    with cluster.queue() as queue:
        queue.put(job := b"job %d" % number)
        promises.waiting |= {job}
        if number % 3 and (message := queue.get(timeout=0)) is not None:
            promises.waiting -= {message.value}
            queue.ack(message)
            promises.finished |= {message.value}
    place = Place(EMPTIED.topic, EMPTIED.partition, appended[-1].offset)
    admin.delete_records([place], operation_timeout=30)[place].result(60)
    promises.deleted_below = place.offset
    name = f"made-{number}"
    admin.create_topics([NewTopic(name, 1, 2)], operation_timeout=30)[name].result(60)
    promises.made |= {name}
    if number % 2:
        promises.made -= {name}
        admin.delete_topics([name], operation_timeout=30)[name].result(60)
        promises.removed |= {name}


def _sampled(
    cluster: PoweredCluster, seen: Seen, promises: Promises, samples: list[Sample], no_more: threading.Event
) -> None:
    while not no_more.wait(_SAMPLE_S):
        made, waiting = promises.made, promises.waiting
        samples.append(
            Sample(
                {partition: len(each) for partition, each in list(seen.acknowledged.items())},
                {name: len(each) for name, each in list(seen.consumed.items())},
                promises.committed,
                promises.deleted_below,
                promises.removed,
                promises.finished,
                positions={member: device.position for member, device in cluster.devices.items()},
                # A topic or message whose removal has not begun by now existed at these positions.
                made=made & promises.made,
                waiting=waiting & promises.waiting,
            )
        )


def _guarded(failures: list[BaseException], work: Callable[..., None], *arguments: Any) -> threading.Thread:
    def guarded() -> None:
        try:
            work(*arguments)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded, name=work.__name__, daemon=True)
    thread.start()
    return thread


def _working(cluster: PoweredCluster) -> Workload:
    """Return clients at work on a new cluster."""
    create_topic(cluster.access)
    cluster.wait_until_whole()
    workload = Workload(cluster.access, PARTITIONS)
    wait_for_clients(workload)
    return workload


def recorded(cluster: PoweredCluster) -> tuple[Seen, list[Sample]]:
    """Let clients work while brokers are killed; return what they saw, and the samples."""
    with cluster.client() as client:
        client.create_topic(EMPTIED.topic, 1, replication_factor=NODES)
    with cluster.queue() as queue:
        queue.put(b"job 0")
    workload, promises, samples = _working(cluster), Promises(), list[Sample]()
    no_more = threading.Event()
    threads = [
        _guarded(promises.failures, _sampled, cluster, workload.seen, promises, samples, no_more),
        _guarded(promises.failures, _administer, cluster, promises, no_more),
    ]
    for number, fault in enumerate(("leader", "controller")):
        cluster.round(number, fault)
    no_more.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"{thread.name} does not end"
    workload.stop_producing(PATIENCE_S)
    workload.stop_consuming(PATIENCE_S)
    for error in (*promises.failures, *workload.seen.failures):
        raise error
    assert all((promises.made, promises.removed, promises.finished)), Counter(promises.refused)
    return workload.seen, samples


def broken(cluster: PoweredCluster, seen: Seen, sample: Sample) -> list[str]:
    """Return the promises of a sample that the started cluster does not hold."""
    acknowledged = {
        number: seen.acknowledged[number][:count] for number, count in sample.acknowledged.items()
    }
    consumed = {name: seen.consumed[name][:count] for name, count in sample.consumed.items()}
    known = Seen(acknowledged=acknowledged, consumed=consumed)
    log = read_all(cluster.access)
    place = TopicPartition(TOPIC, 0)
    with cluster.client() as client:
        committed = client.committed(GROUP, [place]).get(place, 0)
        start = client.offset(EMPTIED, EARLIEST_TIMESTAMP)
        topics = client.topics().keys()
    found = [*lost(known, log), *misread(known, log), *out_of_order(log)]
    if committed < sample.committed:
        found.append(f"offset {sample.committed} was committed, {committed} is there")
    if start < sample.deleted_below:
        found.append(f"records below {sample.deleted_below} were deleted, the log starts at {start}")
    jobs = set(_drained(cluster))
    found += [f"{job!r} was put into a queue, and is gone" for job in sorted(sample.waiting - jobs)]
    found += [f"{job!r} was finished, and is there" for job in sorted(sample.finished & jobs)]
    found += [f"topic {name} was created, and is gone" for name in sorted(sample.made - topics)]
    found += [f"topic {name} was deleted, and is there" for name in sorted(sample.removed & topics)]
    return found


def _drained(cluster: PoweredCluster) -> Iterator[bytes]:
    with cluster.queue() as queue:
        while (message := queue.get(timeout=2 * _LEASE_S)) is not None:
            yield message.value
            queue.ack(message)


@contextmanager
def powered(kind: str, level: str) -> Iterator[PoweredCluster]:
    """Run a cluster on file systems of this kind. Raises `Missing`."""
    often = mock.patch.object(shared_lane, "CHECKPOINT_EVENTS", _CHECKPOINT_EVENTS)
    with often, in_memory() as folder:
        devices = Devices(folder / "devices", KINDS[kind])
        try:
            cluster = PoweredCluster(folder / "cluster", devices, level)
            try:
                yield cluster
            finally:
                cluster.kill()
        finally:
            for mount in (folder / "cluster" / member for member in MEMBERS):
                subprocess.run(["umount", "--lazy", "--quiet", str(mount)], check=False)
            devices.end()


def everywhere(kind: str, cuts: int, random: Random) -> list[str]:
    """Record a cluster, cut its power `cuts` times; return broken promises."""
    violations = list[str]()
    with powered(kind, "synced") as cluster:
        seen, samples = recorded(cluster)
        total, last = sum(map(len, seen.acknowledged.values())), samples[-1]
        print(
            f"{kind}: {len(samples)} samples, {total} messages acknowledged, {last.committed} offsets "
            f"committed, {len(last.made)} topics made, {len(last.removed)} deleted",
            flush=True,
        )
        for number in sorted(random.sample(range(len(samples)), min(cuts, len(samples)))):
            began_s = time.monotonic()
            problems = _problems(cluster, seen, samples[number], random)
            took_s = time.monotonic() - began_s
            print(f"  sample {number}: {len(problems)} wrong, {took_s:.1f} s", flush=True)
            violations += [f"{kind}, sample {number}: {each}" for each in problems]
    return violations


def one_by_one(kind: str, cuts: int, random: Random) -> list[str]:
    """Cut the power of single members while clients work; return what the clients' verdict is."""
    with powered(kind, "replicated") as cluster:
        workload = _working(cluster)
        for _ in range(cuts):
            cluster.lose_one(random.randrange(len(MEMBERS)), random)
        outcome = judged(workload, cluster.access)
        print(f"{kind}: {cuts} members lost power, {outcome.acknowledged} messages acknowledged", flush=True)
        return [f"{kind}: {each}" for each in outcome.violations]


def _problems(cluster: PoweredCluster, seen: Seen, sample: Sample, random: Random) -> list[str]:
    """Cut the power at a sample, sometimes once more during the start, and look."""
    try:
        cluster.cut_at(sample, random)
        if random.random() < 0.3:
            launch(cluster.directory, MEMBERS, patience_s=PATIENCE_S)
            cluster.cut_now(MEMBERS, random)
        cluster.started()
        return broken(cluster, seen, sample)
    except (EngineError, AssertionError, TimeoutError) as error:
        return [f"{type(error).__name__}: {error}"]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.power.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kinds", default="ext4,xfs,btrfs", help="file systems, separated by commas")
    parser.add_argument("--cuts", type=int, default=10, help="power cuts of each, everywhere and one by one")
    parser.add_argument("--seed", type=int, default=0, help="draws the moments, and what is left")
    given = parser.parse_args(arguments)
    violations: list[str] = []
    for kind in given.kinds.split(","):
        try:
            for explore in (everywhere, one_by_one):
                violations += explore(kind, given.cuts, Random(f"{given.seed} {kind}"))
        except Missing as error:
            print(f"not run: {error}", file=sys.stderr)
            return 2
    print(*violations[:50], f"{len(violations)} violations", sep="\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

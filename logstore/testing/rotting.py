"""Bit rot: bytes of sealed segments change on the disks of a simulated cluster, and are found and mended.

    a bit flips            anywhere in a sealed segment of a machine that is down; in records, if it runs
    a block is misplaced   512 bytes of another place instead of its own, while the machine is down

A process checks each byte of a sealed segment once, when it first reads it, as a real one has it in the page
cache from then on. So what changes later, outside of any checksum, is found by a scrub and not by a read;
the simulation leaves that out. Only a segment below the recovery point on the disk is changed, whose records
another sound member of the ISR has synced, and of a partition only one replica at a time: a sound copy lives.
The checkers look at a log as it was written (`as_written`): what rots is no truncation.

Everything is drawn from a stream of its own: seeds without rot run as if this module did not exist.
"""

from __future__ import annotations

from itertools import pairwise

from logstore.checkpoint.entry_files import RECOVERY_POINT_CHECKPOINT, parse_offset_checkpoint
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogClosed, LogDirOffline, OutOfResources
from logstore.log.scrub import scrub
from logstore.replication.effects import DamageFound
from logstore.testing.checkers import PartitionChecker
from logstore.testing.hosts import Host
from logstore.testing.rotting_disk import Rot
from logstore.testing.stored import parse
from logstore.testing.swarm import stream
from logstore.testing.world import LOG_DIR, World

_RECORDS_AT = 61
_BLOCK = 512


class Rotting:
    """Lets bytes rot, and scrubs every log now and then, until the world is healed and nothing is left."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = stream(world.swarm.seed, "bit rot at work")

    def start(self) -> None:
        """Start now."""
        interval_ms = self._world.swarm.rot_interval_ms
        self._soon(interval_ms, self._spoil)
        self._soon(interval_ms, self._scrub)

    def _soon(self, mean_ms: int, callback: object) -> None:
        # Without a draw from the world's streams.
        time, delay_ms = self._world.time, 1 + int(self._random.expovariate(1.0 / mean_ms))
        time.push(time.now_ms + delay_ms, self._random.random(), callback, ())  # type: ignore[arg-type]

    @property
    def left(self) -> list[str]:
        """The changed bytes that are still in place."""
        hosts = self._world.hosts.values()
        found = [(host, rot) for host in hosts for rot in host.rots if self._is_left(host, rot)]
        return [f"{rot.path} of node {host.node_id} at byte {rot.position}" for host, rot in found]

    def _is_left(self, host: Host, rot: Rot) -> bool:
        log = host.node.logs.logs().get(rot.topic_partition) if host.node is not None else None
        is_deleted = log is not None and log.log_start_offset >= rot.end_offset
        return not is_deleted and rot.is_in_place(host)

    # --- rot --------------------------------------------------------------------------------------

    def _spoil(self) -> None:
        world = self._world
        if world.is_healed:
            return
        host = self._random.choice(list(world.hosts.values()))
        which, where, how = (self._random.random() for _ in range(3))
        sealed = [] if host.disk_is_dead or host.disk_is_full else self._sealed(host)
        if sealed:
            self._spoil_one(host, *sealed[int(which * len(sealed))], where, how)
        self._soon(world.swarm.rot_interval_ms, self._spoil)

    def _sealed(self, host: Host) -> list[tuple[TopicPartition, str]]:
        """Return the sealed segments of a machine that may change."""
        files = host.disk.files()
        checkpoint = files.get(f"/{LOG_DIR}/{RECOVERY_POINT_CHECKPOINT}", b"")
        synced = parse_offset_checkpoint(bytes(checkpoint)) if checkpoint else {}
        found = []
        for topic_partition, checker in self._world.checkers.items():
            others = [other for other in self._world.hosts.values() if other is not host]
            if any(rot.topic_partition == topic_partition for other in others for rot in other.rots):
                continue
            directory = f"/{LOG_DIR}/{topic_partition}/"
            logs = sorted(path for path in files if path.startswith(directory) and path.endswith(".log"))
            logs = [path for path in logs if path.count("/") == directory.count("/")]
            for path, following in pairwise(logs):
                end_offset = int(following.rpartition("/")[2].removesuffix(".log"))
                # An unclean start takes what no durable point covers for a torn tail.
                is_durable = synced.get(topic_partition, 0) >= end_offset
                if is_durable and files[path] and self._is_held(checker, topic_partition, end_offset, host):
                    found.append((topic_partition, path))
        return found

    def _is_held(
        self, checker: PartitionChecker, topic_partition: TopicPartition, end_offset: int, host: Host
    ) -> bool:
        """Whether another member of the ISR has synced everything below `end_offset`."""
        state = checker.state
        for member in state.isr if state is not None else ():
            other = self._world.hosts[member]
            if other is host or other.node is None or other.disk_is_dead:
                continue
            partition = other.node.replicas.partitions.get(topic_partition)
            is_member = state is not None and other.broker_epoch == state.broker_epoch_of(member)
            if is_member and partition is not None and partition.log.recovery_point >= end_offset:
                return True
        return False

    def _spoil_one(
        self, host: Host, topic_partition: TopicPartition, path: str, where: float, how: float
    ) -> None:
        world, data = self._world, bytes(host.disk.files()[path])
        if any(rot.path == path for rot in host.rots):
            return
        batches = parse(data)
        batch = batches[int(where * len(batches))]
        start = sum(len(each.data) for each in batches if each.base < batch.base)
        # Of a machine that is down half of the bits are in headers, where no checksum covers all of them.
        first, end = (0, _RECORDS_AT) if host.node is None and how < 0.5 else (_RECORDS_AT, len(batch.data))
        position = start + first + int(how * 997 % 1 * (end - first))
        rotten = bytes((data[position] ^ 1 << int(how * 8),))
        if host.node is None and how > 0.8 and len(data) >= 2 * _BLOCK:
            position = int(where * (len(data) // _BLOCK)) * _BLOCK
            source = (position + _BLOCK) % (len(data) - len(data) % _BLOCK)
            rotten = data[source : source + _BLOCK]
        end_offset, at = 0, 0
        for each in batches:
            if at < position + len(rotten):
                end_offset = each.end
            at += len(each.data)
        sound = data[position : position + len(rotten)]
        rot = Rot(topic_partition, path, position, sound, rotten, end_offset)
        if rot.rotten == rot.sound:
            return
        world.time.note(host.node_id, "has", len(rotten), "bytes changed in", path, "at", position)
        world.time.stamp(f"rot{path}{position}")
        world.tally.rotten_bits += 1
        rot.write(host, rotten)
        host.rots.append(rot)

    # --- scrub ------------------------------------------------------------------------------------

    def _scrub(self) -> None:
        self.scrub_now()
        self._soon(4 * self._world.swarm.rot_interval_ms, self._scrub)

    def scrub_now(self) -> None:
        """Scrub every log of the machines that run."""
        world = self._world
        for host in world.running:
            if host.is_paused or host.disk_is_dead or host.node is None:
                continue
            for topic_partition, log in list(host.node.logs.logs().items()):
                try:
                    steps = list(scrub(log.partition))
                except (LogClosed, LogDirOffline, OutOfResources):
                    continue  # there was no room to rebuild a file, or its disk failed
                damages = tuple(damage for step in steps for damage in step.damages)
                rebuilt = tuple(damage for step in steps for damage in step.rebuilt)
                if (damages or rebuilt) and host.node is not None:
                    world.receive(host, DamageFound(topic_partition, damages, rebuilt))

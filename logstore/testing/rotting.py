"""Bit rot: bytes of files change on the disks of a simulated cluster, and are found and mended.

    a bit flips            anywhere in a segment of a machine that is down; in records, if it runs; also in a
                           derived file: index, time index, aborted transactions, seal, epochs, producers
    a block is misplaced   512 bytes of another place instead of its own, while the machine is down
    an epoch file lies     a bit flips, and the file still parses, while the machine is down (unclean stop)
    a tail is bad          a bit flips past the recovery point, and the process is killed (with boot ids)

A process checks each byte of a sealed segment once, when it first reads it, as a real one has it in the page
cache from then on. So what changes later, outside of any checksum, is found by a scrub and not by a read;
the simulation leaves that out. Only batches are changed which another sound member of the ISR has synced, and
of a partition only one replica at a time: a sound copy lives. They lie below the recovery point on the disk,
or the process is killed and its machine goes on: after a power cut a bad tail is taken for a torn one, and
with `synced` the replica then counts as whole. The indexes of an active segment rot under a
running process, and may be sealed like that. After a change of an epoch file under a running process a
scrub comes at once: its next write of the file would mend it. While the machine is down it changes only so
that a batch is of another epoch than the file says. No batch of that log rots beside it: neither of
two damages would prove the other. The checkers look at a log as it was written (`as_written`): what
rots is no truncation. If no replica has a sound copy any more, because a deletion reached the others
only, the original bytes are put back by a mending (`put_back`).

Everything is drawn from a stream of its own: seeds without rot run as if this module did not exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from logstore.checkpoint.entry_files import (
    LEADER_EPOCH_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    format_leader_epoch_checkpoint,
    parse_leader_epoch_checkpoint,
    parse_offset_checkpoint,
)
from logstore.config import MAX_LONG
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import Buffer
from logstore.disk.running import has_run_on
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogClosed, LogDirOffline, OutOfResources
from logstore.log.scrub import scrub
from logstore.replication.durability import Durability
from logstore.replication.effects import DamageFound
from logstore.segment.epochs import LeaderEpochCache
from logstore.testing.faults import others_hold_everything
from logstore.testing.hosts import Host
from logstore.testing.rotting_disk import Rot, cannot_be_told, put_back
from logstore.testing.stored import HEADER_BYTES, Stored, name_of, parse_whole
from logstore.testing.swarm import stream
from logstore.testing.world import LOG_DIR, World

_BLOCK = 512
_UNCHECKED = 16
"""A batch's offset, length and most of its epoch lie before this byte."""
_WRITTEN = (".index", ".timeindex")
_DERIVED = (*_WRITTEN, ".txnindex", ".seal", ".snapshot")


class _Batches(NamedTuple):
    """The batches of a segment that may change: from offset `start` on, up to `end`."""

    topic_partition: TopicPartition
    path: str
    start: int
    end: int


def _logs_among(files: Mapping[str, object], topic_partition: TopicPartition) -> list[str]:
    """Return the paths of a partition's segments, in offset order."""
    directory = f"/{LOG_DIR}/{topic_partition}/"
    logs = sorted(path for path in files if path.startswith(directory) and path.endswith(".log"))
    return [path for path in logs if path.count("/") == directory.count("/")]


def lastparse_whole(
    files: Mapping[str, Buffer], topic_partition: TopicPartition, end_offset: int
) -> tuple[int, int] | None:
    """Return the name of a log's last batch below `end_offset`; None if the log has none.

    Two logs with the same batch have the same batches before it.
    """
    for path in reversed(_logs_among(files, topic_partition)):
        if found := parse_whole(bytes(files[path]), end_offset):
            return name_of(found[-1])
    return None


def held_on(files: Mapping[str, Buffer], topic_partition: TopicPartition) -> set[tuple[int, int] | None]:
    """Return the names of all whole batches of a partition on a disk."""
    logs = _logs_among(files, topic_partition)
    return {name_of(batch) for path in logs for batch in parse_whole(bytes(files[path]))}


def lies_about(content: bytes, batches: Sequence[Stored]) -> list[bytes]:
    """Return each change of one bit after which an epoch file parses and gives a batch another epoch."""

    def epochs_by(data: bytes) -> list[int]:
        cache = LeaderEpochCache(parse_leader_epoch_checkpoint(data))
        return [cache.epoch_for_offset(batch.base) for batch in batches]

    if epochs_by(content) != [batch.epoch for batch in batches]:
        return []  # older than the batches, or begins behind them
    found = []
    for position, byte in enumerate(content):
        for bit in range(8):
            changed = content[:position] + bytes([byte ^ 1 << bit]) + content[position + 1 :]
            with suppress(CorruptCheckpoint):
                if epochs_by(changed) != epochs_by(content):
                    found.append(changed)
    return found


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
        is_deleted = log is not None and log.log_start_offset >= rot.end_in(log.partition)
        return not is_deleted and rot.is_in_place(host)

    # --- rot --------------------------------------------------------------------------------------

    def _spoil(self) -> None:
        world = self._world
        if world.is_healed:
            return
        host = self._random.choice(list(world.hosts.values()))
        kind, which, where, how = (self._random.random() for _ in range(4))
        if not (host.disk_is_dead or host.disk_is_full):
            is_down = host.node is None and not host.stopped_in_order
            if kind < 0.5 and is_down and self._spoil_epochs(host, which):
                pass
            elif kind < 0.3:
                self._spoil_derived(host, which, where, how)
            elif kind < 0.45 and self._may_spoil_tail(host):
                self._spoil_tail(host, which, where, how)
            elif found := self._durable(host):
                self._spoil_batch(host, found[int(which * len(found))], where, how)
        self._soon(world.swarm.rot_interval_ms, self._spoil)

    def _segments(self, host: Host) -> list[_Batches]:
        """Return the segments of partitions that rot nowhere else."""
        found, files = [], host.disk.files()
        for topic_partition in self._world.checkers:
            others = [other for other in self._world.hosts.values() if other is not host]
            if any(rot.topic_partition == topic_partition for other in others for rot in other.rots):
                continue
            if any(rot.topic_partition == topic_partition and rot.is_of_epochs for rot in host.rots):
                continue
            logs = _logs_among(files, topic_partition)
            bases = [int(path.rpartition("/")[2].removesuffix(".log")) for path in logs]
            found += [
                _Batches(topic_partition, path, start, end)
                for path, start, end in zip(logs, bases, [*bases[1:], MAX_LONG], strict=False)
                if files[path]
            ]
        return found

    def _durable(self, host: Host) -> list[_Batches]:
        """Return the batches of a machine below the recovery points on its disk, which others hold."""
        checkpoint = host.disk.files().get(f"/{LOG_DIR}/{RECOVERY_POINT_CHECKPOINT}", b"")
        synced = parse_offset_checkpoint(bytes(checkpoint)) if checkpoint else {}
        found = []
        for each in self._segments(host):
            # An unclean start takes what no durable point covers for a torn tail.
            end = min(each.end, synced.get(each.topic_partition, 0))
            if end > each.start and self._is_held(each.topic_partition, end, host):
                found.append(each._replace(end=end))
        return found

    def _may_spoil_tail(self, host: Host) -> bool:
        swarm = self._world.swarm
        return (
            # Until its loss of power is on record, the next one counts every end of it as another.
            has_run_on(host.disk, LOG_DIR, self._world.boot_id(host))
            and swarm.durability is Durability.REPLICATED
            and host.node is not None
            and host.node.departure is None
            and not host.is_paused
            and others_hold_everything(self._world, host)
        )

    def _spoil_tail(self, host: Host, which: float, where: float, how: float) -> None:
        """Change a batch past the recovery point, and kill the process: its next one finds it."""
        assert host.node is not None
        found, world, logs = [], self._world, host.node.logs.logs()
        for each in self._segments(host):
            log = logs.get(each.topic_partition)
            if log is None or each.end != MAX_LONG:
                continue
            point = log.partition.recovery_point
            if self._is_held(each.topic_partition, log.log_end_offset, host) and point < log.log_end_offset:
                found.append(each._replace(start=max(point, each.start), end=log.log_end_offset))
        if not found:
            return
        self._spoil_batch(host, found[int(which * len(found))], where, how, first=_UNCHECKED)
        world.kill(host)
        again = 1 + int(how * world.swarm.session_timeout_ms)
        world.until_healed(again, lambda: world.start(host) if host.node is None else None)

    def _spoil_derived(self, host: Host, which: float, where: float, how: float) -> None:
        """Change a bit of a file that follows from the log.

        An open segment's indexes are still written, and a bit that rots then may be there when it is sealed.
        Under a process only: no later one can tell what had been written, if the entry still leads a search
        to the right place.
        """
        files, paths = host.disk.files(), []
        logs = host.node.logs.logs() if host.node is not None and not host.is_paused else {}
        for each in self._segments(host):
            stem = each.path.removesuffix(".log")
            log = logs.get(each.topic_partition)
            suffixes: tuple[str, ...] = _DERIVED if f"{stem}.seal" in files else ()
            if log is not None and each.end == MAX_LONG and log.partition.segments.active.indexes.are_open:
                suffixes = _WRITTEN
            names = [f"{stem}{suffix}" for suffix in suffixes]
            paths += [(each, path) for path in names if files.get(path)]
            epochs = f"{stem.rpartition('/')[0]}/{LEADER_EPOCH_CHECKPOINT}"
            # Entries that were cut leave the file later: a change could bring it in step with the log.
            if log is not None and files.get(epochs) == format_leader_epoch_checkpoint(log.partition.epochs):
                paths.append((each, epochs))
        if paths:
            each, path = paths[int(which * len(paths))]
            content = bytes(files[path])
            position = int(where * len(content))
            sound, behind = content[position : position + 1], content[position + 1 :]
            rotten = bytes((sound[0] ^ 1 << int(how * 8),))
            changed = content[:position] + rotten + behind
            life = host.life if path.endswith(_WRITTEN) else -1
            of = each.topic_partition, path, position
            self._put(host, Rot(*of, sound, rotten, MAX_LONG, each.end, changed, life=life))
            if path.endswith(LEADER_EPOCH_CHECKPOINT):
                self._scrub_one(host)
                self._forget_mended(host)

    def _spoil_epochs(self, host: Host, which: float) -> bool:
        """Change a bit of an epoch file that still parses then, and contradicts a batch; False if none."""
        files, written = host.disk.files(), dict[TopicPartition, list[Stored]]()
        for each in self._segments(host):
            written.setdefault(each.topic_partition, []).extend(
                parse_whole(bytes(files[each.path]), each.end)
            )
        lies = []
        for topic_partition, batches in sorted(written.items()):
            path = f"/{LOG_DIR}/{topic_partition}/{LEADER_EPOCH_CHECKPOINT}"
            is_alone = not any(rot.topic_partition == topic_partition for rot in host.rots)
            if (
                path in files
                and batches
                and is_alone
                and self._is_held(topic_partition, batches[-1].end, host)
            ):
                lies += [
                    (topic_partition, path, changed, batches[-1].end)
                    for changed in lies_about(bytes(files[path]), batches)
                ]
        if lies:
            topic_partition, path, changed, end = lies[int(which * len(lies))]
            content = bytes(files[path])
            position = next(at for at, byte in enumerate(content) if changed[at] != byte)
            sound, rotten = content[position : position + 1], changed[position : position + 1]
            self._put(host, Rot(topic_partition, path, position, sound, rotten, MAX_LONG, end, changed))
        return bool(lies)

    def _is_held(self, topic_partition: TopicPartition, end_offset: int, host: Host) -> bool:
        """Whether another member of the ISR has synced everything that `host` has below `end_offset`.

        Where their histories differ it holds other records: an unclean election may prefer those of `host`.
        """
        last = lastparse_whole(host.disk.files(), topic_partition, end_offset)
        state = self._world.checkers[topic_partition].state
        for member in state.isr if state is not None else ():
            other = self._world.hosts[member]
            if other is host or other.node is None or other.disk_is_dead:
                continue
            partition = other.node.replicas.partitions.get(topic_partition)
            is_member = state is not None and other.broker_epoch == state.broker_epoch_of(member)
            if not is_member or partition is None or partition.log.recovery_point < end_offset:
                continue
            if last is not None and lastparse_whole(other.disk.files(), topic_partition, end_offset) == last:
                return True
        return False

    def _spoil_batch(
        self, host: Host, batches: _Batches, where: float, how: float, first: int = HEADER_BYTES
    ) -> None:
        """Change a bit of a batch, from its byte `first` on, or a block."""
        data = bytes(host.disk.files()[batches.path])
        parsed = parse_whole(data, batches.end)
        mutable = [each for each in parsed if batches.start <= each.base]
        if not mutable:
            return
        batch = mutable[int(where * len(mutable))]
        start = sum(len(each.data) for each in parsed if each.base < batch.base)
        size = sum(len(each.data) for each in parsed)
        # Of a machine that is down half of the bits are in headers, where no checksum covers all of them.
        first, end = (0, first) if host.node is None and how < 0.5 else (first, len(batch.data))
        position = start + first + int(how * 997 % 1 * (end - first))
        rotten = bytes((data[position] ^ 1 << int(how * 8),))
        if host.node is None and how > 0.8 and size >= 2 * _BLOCK:
            position = int(where * (size // _BLOCK)) * _BLOCK
            source = (position + _BLOCK) % (size - size % _BLOCK)
            rotten = data[source : source + _BLOCK]
        changed, at, behind = [], 0, position + len(rotten)
        for each in parsed:
            if at < position + len(rotten) and position < at + len(each.data):
                changed.append(each)
                behind = at + len(each.data)
            at += len(each.data)
        sound = data[position : position + len(rotten)]
        offsets = changed[0].base, changed[-1].end
        content = data[:position] + rotten + data[position + len(rotten) : behind]
        of = batches.topic_partition, batches.path, position
        self._put(host, Rot(*of, sound, rotten, *offsets, content, tuple(changed)))

    def _put(self, host: Host, rot: Rot) -> None:
        world = self._world
        if rot.rotten == rot.sound or any(each.path == rot.path for each in host.rots):
            return
        world.time.note(
            host.node_id, "has", len(rot.rotten), "bytes changed in", rot.path, "at", rot.position
        )
        world.time.stamp(f"rot{rot.path}{rot.position}")
        world.tally.rotten_bits += 1
        rot.write(host, rot.rotten)
        host.rots.append(rot)

    # --- scrub ------------------------------------------------------------------------------------

    def _scrub(self) -> None:
        self.scrub_now()
        self._soon(4 * self._world.swarm.rot_interval_ms, self._scrub)

    def scrub_now(self) -> None:
        """Scrub every log of the machines that run."""
        for host in self._world.running:
            self._scrub_one(host)
        for host in self._world.hosts.values():
            for rot in host.rots:
                if rot.is_in_place(host) and not self._may_be_sent(host, rot):
                    put_back(host, rot, self._world.now_ms)
            self._forget_mended(host)

    def _forget_mended(self, host: Host) -> None:
        # A file that is written anew may have such a byte again.
        host.rots = [rot for rot in host.rots if rot.is_in_place(host) and not cannot_be_told(host, rot)]

    def _may_be_sent(self, host: Host, rot: Rot) -> bool:
        """Whether another replica may have a sound copy. An election takes that of uncommitted records."""
        wanted = {name_of(each) for each in rot.batches}
        disks = (other.disk.files() for other in self._world.hosts.values() if other is not host)
        is_held = any(wanted <= held_on(files, rot.topic_partition) for files in disks)
        return is_held and not self._is_deleted_elsewhere(host, rot)

    def _is_deleted_elsewhere(self, host: Host, rot: Rot) -> bool:
        """Whether another replica has deleted some of the records, so that it has no sound copy to send.

        A deletion may reach some replicas only, if their leader changes.
        """
        others = [other.node for other in self._world.running if other is not host]
        logs = (node.logs.logs().get(rot.topic_partition) for node in others if node is not None)
        return any(log is not None and log.log_start_offset > rot.start_offset for log in logs)

    def _scrub_one(self, host: Host) -> None:
        world = self._world
        if not (host.is_paused or host.disk_is_dead or host.node is None):
            for topic_partition, log in list(host.node.logs.logs().items()):
                try:
                    steps = list(scrub(log.partition))
                except (LogClosed, LogDirOffline, OutOfResources):
                    continue  # there was no room to rebuild a file, or its disk failed
                damages = tuple(damage for step in steps for damage in step.damages)
                rebuilt = tuple(damage for step in steps for damage in step.rebuilt)
                if (damages or rebuilt) and host.node is not None:
                    world.receive(host, DamageFound(topic_partition, damages, rebuilt))

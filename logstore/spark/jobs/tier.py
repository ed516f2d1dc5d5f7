"""`tier`: copy sealed segments to an object store, each once; the source reads them with the live log.

    plan      sealed segments below recovery point, high watermark and open transactions, past the tier's end
    task      read and check a segment's batches ─ write the object ─ read it back and compare its digest
    driver    replace the partition's manifest, object by object in offset order

A run that ends midway has written objects that no manifest names: the next run writes them again, under other
names. Logs are only read. One job at a time may write to a tier.
"""

from __future__ import annotations

import hashlib
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Final

from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_leader_epoch_checkpoint,
)
from logstore.checkpoint.identity import META_PROPERTIES, read_partition_metadata
from logstore.disk.files import Disk, OsDisk, read_small_file
from logstore.disk.ids import new_id
from logstore.disk.topic_partition import TopicPartition
from logstore.loggers import logger_of
from logstore.spark.errors import DataLoss
from logstore.spark.jobs.job import Answer, BadUsage, absolute
from logstore.spark.jobs.work import Workers, WorkFailed, in_bytes
from logstore.spark.logs import Bounds, Missing, OffsetRange, raise_on_loss
from logstore.spark.read_options import Isolation, Selection
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.spark.tier import Manifest, Tier, Tiered

_log = logger_of(__name__)

HELP: Final = "copy sealed segments to an object store, which the source reads together with the live log"


def arguments(parser: ArgumentParser) -> None:
    source = parser.add_argument_group("input")
    source.add_argument("paths", metavar="DIR", nargs="+", help="log dirs, or directories of partitions")
    which = source.add_mutually_exclusive_group()
    which.add_argument("--topics", metavar="A,B", help="these topics (default: all but internal ones)")
    which.add_argument("--topic-pattern", metavar="REGEX", help="topics that match")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--to", metavar="URL", required=True,
        help="folder of the tier: a URL of fsspec, such as s3://bucket/logs or file:///mnt/logs",
    )  # fmt: skip
    output.add_argument(
        "--allow-holes", action="store_true",
        help="continue although retention removed segments that were not in the tier yet",
    )  # fmt: skip


def prepare(options: Namespace) -> Tiering:
    """Check the options. Raises `BadUsage` and `InvalidOption`."""
    topics = tuple(each.strip() for each in (options.topics or "").split(",") if each.strip())
    selection = Selection(topics=topics) if topics else Selection(pattern=options.topic_pattern or ".*")
    if options.to.startswith("file://") and not options.to.startswith("file:///"):
        raise BadUsage(f"--to {options.to} is relative, and executors work elsewhere: write file:///…")
    if "://" not in options.to:
        raise BadUsage(f"--to {options.to} is not a URL; a directory is file://{absolute(options.to)}")
    paths = tuple(absolute(path) for path in options.paths)
    return Tiering(paths, selection, options.to, options.allow_holes)


@dataclass(frozen=True, slots=True)
class Segment:
    """The work of a task: the batches of one segment with these offsets."""

    paths: tuple[str, ...]
    directory: str
    wanted: OffsetRange
    bytes: int
    url: str

    def __str__(self) -> str:
        return str(self.wanted)


def sealed(sizes: Sequence[tuple[int, int]], below: int, tiered: Bounds) -> list[tuple[int, int, int]]:
    """Return start, end and size of the segments to copy: sealed, whole below an offset, not tiered yet.

    `sizes` are base offsets and sizes of all segments. A segment of which a part is tiered starts after it.
    """
    found = []
    for (base, size), (next_base, _) in pairwise(sizes):
        start = max(base, tiered.end_offset)
        if start < next_base <= below:
            found.append((start, next_base, size))
    return found


def settled_offset(disk: Disk, directory: str, readable: Bounds) -> int:
    """Return the offset below which nothing changes: synced, committed, and without open transactions.

    `readable` are the bounds of committed reading. A checkpoint that an owned log lacks counts as 0.
    """
    from logstore.checkpoint.entry_files import find_checkpointed_offset
    from logstore.log.reader import has_owner

    below = readable.end_offset
    synced = find_checkpointed_offset(disk, directory, RECOVERY_POINT_CHECKPOINT)
    if synced is not None or has_owner(disk, directory):
        below = min(below, synced or 0)
    is_brokers = read_small_file(disk, f"{directory.rpartition('/')[0]}/{META_PROPERTIES}") is not None
    if is_brokers:
        below = min(below, find_checkpointed_offset(disk, directory, HIGH_WATERMARK_CHECKPOINT) or 0)
    return below


@dataclass(frozen=True, slots=True)
class Tiering:
    """A prepared job."""

    paths: tuple[str, ...]
    selection: Selection
    url: str
    allows_holes: bool

    def plan(self) -> Answer:
        from logstore.spark.tier import Tier

        work, manifests = self._planned(Tier(self.url))
        total = sum(each.bytes for each in work)
        facts = {
            "job": "tier",
            "to": self.url,
            "segments": len(work),
            "bytes": total,
            "partitions": [
                {**each._asdict(), "tiered_to": manifest.bounds.end_offset, "segments": segments}
                for each, manifest in sorted(manifests.items())
                if (segments := sum(one.wanted.topic_partition == each for one in work)) or manifest.objects
            ],
        }
        lines = [f"{each}  {in_bytes(each.bytes)}" for each in work]
        return Answer(
            facts, [*lines, f"would copy {counted(len(work), 'segment')}, {in_bytes(total)}, to {self.url}"]
        )

    def _planned(self, tier: Tier) -> tuple[list[Segment], dict[TopicPartition, Manifest]]:
        """Return the segments to copy and all manifests. Raises `DataLoss` for a hole."""
        from logstore.spark.directory_files import SegmentFiles
        from logstore.spark.directory_logs import DirectoryLogs

        disk = OsDisk()
        work, manifests = [], {}
        with closing(DirectoryLogs(self.paths, isolation=Isolation.READ_COMMITTED)) as logs:
            available = logs.partitions()
            self.selection.check(available, ", ".join(self.paths))
            chosen = self.selection.choose(available)
            for partition, readable in logs.bounds(chosen).items():
                directory = logs.directory(partition)
                manifest = manifests[partition] = _checked(disk, directory, partition, tier)
                tiered = manifest.bounds
                if manifest.objects and tiered.end_offset < readable.start_offset and not self.allows_holes:
                    raise DataLoss(
                        f"{partition}: offsets {tiered.end_offset} to {readable.start_offset - 1} were "
                        "deleted before they were in the tier. --allow-holes continues without them"
                    )
                below = settled_offset(disk, directory, readable)
                for start, end, size in sealed(SegmentFiles(disk, directory).segments(), below, tiered):
                    start = max(start, readable.start_offset)
                    if start < end:
                        wanted = OffsetRange(*partition, start, end)
                        work.append(Segment(self.paths, directory, wanted, size, self.url))
        return work, manifests

    def run(self, workers: Workers) -> Answer:
        """Do the job. Raises `EngineError` and `OSError`."""
        from logstore.spark.tier import Manifest, Tier

        tier = Tier(self.url)
        work, manifests = self._planned(tier)
        left: dict[TopicPartition, list[Segment]] = {}
        for each in work:
            left.setdefault(each.wanted.topic_partition, []).append(each)
        done: dict[Segment, Tiered] = {}
        copied = 0
        for segment, tiered in workers.followed("tier", "bytes", work, copy, lambda each: each.bytes):
            done[segment] = tiered
            partition = segment.wanted.topic_partition
            waiting, ready = left[partition], []
            while waiting and waiting[0] in done:
                ready.append(done[waiting.pop(0)])
            if ready:
                before = manifests[partition]
                topic_id = before.topic_id or _topic_id(OsDisk(), segment.directory)
                manifests[partition] = Manifest(topic_id, (*before.objects, *ready))
                tier.put_manifest(partition, manifests[partition])
                copied += sum(each.bytes for each in ready)
        facts = {
            "job": "tier",
            "to": self.url,
            "segments": len(work),
            "bytes": copied,
            "partitions": [
                {**each._asdict(), "tiered_to": manifest.bounds.end_offset, "objects": len(manifest.objects)}
                for each, manifest in sorted(manifests.items())
                if manifest.objects
            ],
        }
        copies = f"{counted(len(work), 'segment')}, {in_bytes(copied)}, to {self.url}"
        said = copies if work else "nothing new to copy"
        return Answer(facts, [said])


def _topic_id(disk: Disk, directory: str) -> str:
    return read_partition_metadata(disk, directory) or ""


def _checked(disk: Disk, directory: str, partition: TopicPartition, tier: Tier) -> Manifest:
    """Return the manifest of a partition. Raises `CorruptTier` if it is of another log."""
    from logstore.spark.tier import check_epochs, check_topic_id

    manifest = tier.manifest(partition)
    check_topic_id(partition, manifest, _topic_id(disk, directory))
    check_epochs(partition, manifest, read_leader_epoch_checkpoint(disk, directory))
    return manifest


# --- tasks --------------------------------------------------------------------------------------------------


def copy(segment: Segment) -> Tiered:
    """Write a segment's batches as an object, read it back, and return its entry.

    Each attempt writes an object of its own: a late one, which Spark or a killed driver left running, must
    not touch the object that a manifest names. The segment may have been compacted or deleted meanwhile.

    Raises `DataLoss` for a damaged segment, `WorkFailed` for an object that is not what was written, and
    `OSError`.
    """
    from logstore.spark.directory_files import DirectoryTransactions
    from logstore.spark.directory_logs import DirectoryLogs
    from logstore.spark.tier import CHUNK_BYTES, Tier, Tiered

    wanted = segment.wanted
    tier = Tier(segment.url)
    name = f"{wanted.start_offset:020d}-{wanted.end_offset:020d}-{new_id(Random())}.log"
    path = tier.path(wanted.topic_partition, name)
    tier.make_place(wanted.topic_partition)
    digest = hashlib.sha256()
    position, latest_ms, last_offset = 0, -1, -1
    epochs: list[int] = []
    index: list[tuple[int, int]] = []
    missing: list[Missing] = []
    # Before the batches: compaction meanwhile removes aborted batches first, and what is known of them later.
    transactions = DirectoryTransactions(OsDisk(), segment.directory)
    aborted = transactions.aborted(wanted.start_offset, wanted.end_offset)
    try:
        with closing(DirectoryLogs([segment.directory])) as logs, tier.files.open(path, "wb") as file:
            for stretch in logs.stretches(wanted, missing):
                if not index or position - index[-1][1] >= CHUNK_BYTES:
                    index.append((int(stretch.headers["base_offset"][0]), position))
                data = bytes(stretch.data)
                file.write(data)
                digest.update(data)
                position += len(data)
                epochs += [int(stretch.headers["leader_epoch"][0]), int(stretch.headers["leader_epoch"][-1])]
                latest_ms = max(latest_ms, int(stretch.headers["max_timestamp"].max()))
                last_offset = stretch.next_offset - 1
            raise_on_loss(missing)
        tier.sync(path)
        _compare(tier, path, position, digest.hexdigest())
    except BaseException:
        _discard(tier, path)
        raise
    first, last = (epochs[0], epochs[-1]) if epochs else (-1, -1)
    return Tiered(
        name, wanted.start_offset, wanted.end_offset, position, digest.hexdigest(), first, last, latest_ms,
        tuple(index), tuple(aborted), last_offset,
    )  # fmt: skip


def _discard(tier: Tier, path: str) -> None:
    """Remove what an attempt wrote. If that fails, the object stays: no manifest names it."""
    try:
        tier.files.rm_file(path)
    except OSError as error:
        _log.warning("%s stays, and nothing refers to it: %s", path, error)


def _compare(tier: Tier, path: str, size: int, digest: str) -> None:
    """Read an object back. Raises `WorkFailed` if it differs."""
    from logstore.spark.tier import CHUNK_BYTES

    found, read = hashlib.sha256(), 0
    with tier.files.open(path, "rb", block_size=CHUNK_BYTES) as file:
        while data := file.read(CHUNK_BYTES):
            found.update(data)
            read += len(data)
    if (read, found.hexdigest()) != (size, digest):
        raise WorkFailed(f"{path} has {read} bytes that are not the {size} written; run the job again")

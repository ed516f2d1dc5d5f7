"""Trees of replicas on disk, and ways to damage them: for the tests of `verify` and its campaign.

Three nodes, some partitions; every node rolls its segments where it likes, as followers do. A `Plant` changes
one replica in one place and says where; `unmatched` holds the findings against all that was planted.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    write_leader_epoch_checkpoint,
    write_offset_checkpoint,
)
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.segment.seal import make_seal, seal_path, write_seal

NODES: Final = ("a", "b", "c")
EPOCHS: Final = 4


@dataclass(slots=True)
class Stored:
    """One batch of one replica: where it lies."""

    offset: int
    end_offset: int
    epoch: int
    segment: int
    position: int
    size: int


@dataclass(slots=True)
class Tree:
    """What was written: `batches` by node and partition; `ends` are the partitions' high watermarks."""

    root: Path
    partitions: list[TopicPartition]
    batches: dict[tuple[str, TopicPartition], list[Stored]] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    def directory(self, node: str, name: TopicPartition) -> Path:
        return self.root / node / name.directory_name

    def log(self, node: str, name: TopicPartition, segment: int) -> Path:
        return self.directory(node, name) / f"{segment:020d}.log"

    def nodes(self) -> list[str]:
        """As the command line wants them."""
        return [f"--node={node}={self.root / node}" for node in NODES]

    def write_watermarks(self) -> None:
        for node in NODES:
            write_offset_checkpoint(OsDisk(), str(self.root / node), HIGH_WATERMARK_CHECKPOINT, self.ends)


def make_tree(
    root: Path,
    seed: int,
    *,
    partitions: int = 4,
    partition_bytes: int = 200_000,
    batch_bytes: int = 2_000,
    segment_bytes: int = 60_000,
    sealed: bool = False,
    keys: int = 0,
) -> Tree:
    """Three equal trees. Every second partition has epoch checkpoints; `keys`: so many different ones."""
    draw = random.Random(seed)
    names = [TopicPartition(f"topic-{number % 3}", number) for number in range(partitions)]
    tree = Tree(root, names)
    noise = draw.randbytes(batch_bytes + 1024)
    for name in names:
        made: list[tuple[bytes, int, int, int]] = []
        offset = size = 0
        history: list[tuple[int, int]] = []
        while size < partition_bytes:
            epoch = min(EPOCHS - 1, EPOCHS * size // partition_bytes) * 2
            if not history or history[-1][0] != epoch:
                history.append((epoch, offset))
            count = draw.randint(1, 5)
            value_bytes = max(batch_bytes // count - 20, 1)
            records = []
            for number in range(offset, offset + count):
                cut = draw.randrange(1024)
                key = b"key-%d" % draw.randrange(keys) if keys else None
                records.append(Record(number, 1_000 + number, key, noise[cut : cut + value_bytes]))
            data = bytes(encode_batch(records, base_offset=offset, leader_epoch=epoch))
            made.append((data, offset, offset + count, epoch))
            offset, size = offset + count, size + len(data)
        tree.ends[name] = offset
        for node in NODES:
            _write_replica(tree, node, name, made, int(segment_bytes * draw.uniform(0.6, 1.4)), sealed)
            if name.partition % 2:
                write_leader_epoch_checkpoint(OsDisk(), str(tree.directory(node, name)), history)
    tree.write_watermarks()
    return tree


def _write_replica(
    tree: Tree,
    node: str,
    name: TopicPartition,
    made: Sequence[tuple[bytes, int, int, int]],
    segment_bytes: int,
    sealed: bool,
) -> None:
    directory = tree.directory(node, name)
    directory.mkdir(parents=True)
    stored = tree.batches[node, name] = []
    bases: list[tuple[int, int]] = []
    at = 0
    while at < len(made):
        base, position = made[at][1], 0
        parts: list[bytes] = []
        while at < len(made) and (not parts or position < segment_bytes):
            data, offset, end_offset, epoch = made[at]
            stored.append(Stored(offset, end_offset, epoch, base, position, len(data)))
            parts.append(data)
            position += len(data)
            at += 1
        tree.log(node, name, base).write_bytes(b"".join(parts))
        bases.append((base, stored[-1].end_offset))
    for (base, end), (successor, _) in pairwise(bases) if sealed else ():
        file = OsDisk().open(str(tree.log(node, name, base)))
        try:
            seal = make_seal(file, file.size(), base_offset=base, end_offset=end, successor=successor)
        finally:
            file.close()
        write_seal(OsDisk(), seal_path(str(directory), base), seal)


# --- damage -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plant:
    """What was changed, on which nodes, in which offsets."""

    what: str
    nodes: tuple[str, ...]
    partition: TopicPartition
    offset: int
    end_offset: int


def flip(tree: Tree, draw: random.Random, node: str, name: TopicPartition, batch: Stored) -> Plant:
    """One bit anywhere in a batch."""
    at = draw.randrange(batch.size if draw.random() < 0.7 else 61)
    _patch(
        tree.log(node, name, batch.segment),
        batch.position + at,
        lambda old: bytes([old[0] ^ 1 << draw.randrange(8)]),
    )
    return Plant(f"flip at {at}", (node,), name, batch.offset, batch.end_offset)


def other_epoch(tree: Tree, draw: random.Random, node: str, name: TopicPartition, batch: Stored) -> Plant:
    """Another leader epoch, which the checksum does not cover."""
    epoch = draw.choice([each for each in range(EPOCHS * 2 + 1) if each != batch.epoch])
    _patch(tree.log(node, name, batch.segment), batch.position + 12, lambda _: epoch.to_bytes(4, "big"), 4)
    return Plant(f"epoch {epoch} for {batch.epoch}", (node,), name, batch.offset, batch.end_offset)


def missing(tree: Tree, draw: random.Random, node: str, name: TopicPartition, batch: Stored) -> Plant:
    """A batch that is cut out of its segment."""
    path = tree.log(node, name, batch.segment)
    data = path.read_bytes()
    path.write_bytes(data[: batch.position] + data[batch.position + batch.size :])
    for other in tree.batches[node, name]:
        if other.segment == batch.segment and other.position > batch.position:
            other.position -= batch.size
    return Plant("missing", (node,), name, batch.offset, batch.end_offset)


def longer_tail(tree: Tree, draw: random.Random, node: str, name: TopicPartition) -> Plant:
    """Batches that one replica alone has, and that a high watermark says were committed."""
    start = offset = tree.ends[name]
    last = tree.batches[node, name][-1]
    with tree.log(node, name, last.segment).open("ab") as log:
        for _ in range(draw.randint(1, 3)):
            record = Record(offset, 9_000_000, None, b"more of it")
            log.write(encode_batch([record], base_offset=offset, leader_epoch=last.epoch))
            offset += 1
    tree.ends[name] = offset
    tree.write_watermarks()
    others = tuple(other for other in NODES if other != node)
    return Plant("longer tail", others, name, start, offset)


def plant(tree: Tree, seed: int, count: int) -> list[Plant]:
    """So many differences, no two of them near each other; tails in a tenth, one a partition."""
    draw = random.Random(seed)
    free = [
        (name, number)
        for name in tree.partitions
        # The last batches stay, so that a tail is a tail.
        for number in range(1, len(tree.batches[NODES[0], name]) - 3, 3)
    ]
    chosen = draw.sample(free, count)
    tails = max(1, min(count // 10, len(tree.partitions)))
    planted = []
    for number, (name, batch_number) in enumerate(chosen[tails:]):
        node = draw.choice(NODES)
        change = (flip, missing, other_epoch)[number % 3]
        planted.append(change(tree, draw, node, name, tree.batches[node, name][batch_number]))
    for name in draw.sample(tree.partitions, tails):
        planted.append(longer_tail(tree, draw, draw.choice(NODES), name))
    return planted


def _patch(path: Path, position: int, change: Any, size: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        old = file.read(size)
        file.seek(position)
        file.write(change(old))


def unmatched(planted: Sequence[Plant], findings: Iterable[Any]) -> tuple[list[Plant], list[Any]]:
    """Plants that no finding names, with place and nodes; findings that name no plant, or one again."""
    left = list(planted)
    strange = []
    for finding in findings:
        if finding["note"]:
            continue
        mine = [
            each
            for each in left
            if (finding["topic"], finding["partition"]) == each.partition
            and set(finding["nodes"]) == set(each.nodes)
            and finding["offset"] < each.end_offset
            and (finding["end_offset"] == -1 or each.offset < finding["end_offset"])
        ]
        if len(mine) == 1:
            left.remove(mine[0])
        else:
            strange.append(finding)
    return left, strange

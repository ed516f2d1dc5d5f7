"""`logstore adopt`: create a metadata store for the directories of a Kafka cluster.

    KRaft        topics, ids, partitions, ISR and settings come from `__cluster_metadata` in one of the dirs
    ZooKeeper    topics, ids and partitions come from the directories; settings have to be set again

Nothing in Kafka's directories is changed: `--apply` writes the store beside the first one, and nothing else.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import Json
from logstore.cli.terminal import print_json

if TYPE_CHECKING:
    from logstore.checkpoint.identity import MetaProperties
    from logstore.disk.files import Disk
    from logstore.format.state_records import Decoded
    from logstore.log.producer_state import ProducerState
    from logstore.replication.adoption import Directory, Image

_METADATA_DIRECTORY = "__cluster_metadata-0"


def adopt(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG_DIR...",
            help="Log dirs of Kafka brokers that have stopped.",
            exists=True,
            file_okay=False,
        ),
    ],
    metadata: Annotated[
        str | None,
        typer.Option("--metadata", metavar="DIR", help="The new store; default: LOG_DIR.metadata."),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the metadata store; without it, only print the plan.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Plan, and with --apply write, a metadata store for the log dirs of a stopped Kafka cluster.

    Start a broker on each log dir afterwards. The leaders are elected from the ISR.
    """
    from logstore.disk.files import OsDisk
    from logstore.replication.adoption import (
        image_of_directories,
        image_of_records,
        leave_out_lost,
        nodes_of,
        raise_numbers,
    )

    disk = OsDisk()
    paths = [str(path.absolute()) for path in directories]
    owners = {path: _owner(disk, path, is_plan=not apply) for path in paths}
    clusters = {owner.cluster_id for owner in owners.values()}
    if len(clusters) != 1 or None in clusters:
        named = "; ".join(f"{path} names {owner.cluster_id or 'none'}" for path, owner in owners.items())
        raise typer.BadParameter(f"every log dir must name its cluster, and all the same one: {named}")
    (cluster_id,) = clusters
    found = [each for path in paths for each in _partitions(disk, path, owners[path].node_id)]
    kraft = [path for each in paths if (path := Path(each, _METADATA_DIRECTORY)).is_dir()]
    if kraft:
        # Brokers stop one after the other: the first one does not know who left an ISR after it.
        ends = {path: _end_of(disk, str(path)) for path in kraft}
        newest = max(kraft, key=ends.__getitem__)
        image = image_of_records(str(cluster_id), _metadata_records(disk, str(newest)))
        image.notes += [
            f"{path} ends before {newest}, which counts" for path in kraft if ends[path] < ends[newest]
        ]
    else:
        image = image_of_directories(str(cluster_id), found)
    raise_numbers(image, found)
    brokers = {owner.node_id for owner in owners.values()}
    leave_out_lost(image, found, brokers)
    _compare(image, found, brokers)
    if metadata is not None and re.match("embedded:|[a-z]+://", metadata):
        raise typer.BadParameter(
            f"{metadata} is not a directory: --metadata takes the directory of the new store"
        )
    store = os.path.abspath(metadata) if metadata is not None else f"{paths[0]}.metadata"
    if Path(store).exists():
        raise typer.BadParameter(
            f"{store} exists: a store is written to a new directory only; name one with --metadata"
        )
    nodes = nodes_of(image)
    if apply:
        _write(disk, store, nodes)
    _print(image, brokers, store, is_done=apply, as_json=as_json)
    return 0


def _owner(disk: Disk, directory: str, *, is_plan: bool) -> MetaProperties:
    from logstore.checkpoint.identity import read_meta_properties
    from logstore.log.stand_alone import check_not_locked

    try:
        check_not_locked(disk, directory)
    except OSError as error:
        if not (is_plan and error.errno == errno.EROFS):  # a plan only reads
            raise
    found = read_meta_properties(disk, directory)
    if found is None:
        raise typer.BadParameter(f"{directory} has no meta.properties: it is not a log dir of a Kafka broker")
    return found


def _partitions(disk: Disk, directory: str, broker_id: int) -> Iterator[Directory]:
    from logstore.checkpoint.identity import read_partition_metadata
    from logstore.log.log_dir_snapshot import partitions_in
    from logstore.replication.adoption import Directory

    for topic_partition, name in partitions_in(disk, directory).items():
        if name != _METADATA_DIRECTORY:
            path = f"{directory}/{name}"
            producers = _producers(disk, path)
            yield Directory(
                broker_id,
                topic_partition,
                read_partition_metadata(disk, path),
                *_end_of(disk, path),
                max((each.producer_id for each in producers), default=-1),
                producers.first_undecided_offset,
            )


def _end_of(disk: Disk, directory: str) -> tuple[int, int]:
    """Return the newest leader epoch of a log (-1 for none) and its end offset: the larger one is newer."""
    from logstore.checkpoint.entry_files import read_leader_epoch_checkpoint
    from logstore.log.snapshot import log_end_of

    epochs = read_leader_epoch_checkpoint(disk, directory)
    return epochs[-1][0] if epochs else -1, log_end_of(disk, directory)


def _producers(disk: Disk, directory: str) -> ProducerState:
    """Return the producers by the newest sound snapshot and the batches behind it."""
    from logstore.config import MAX_LONG
    from logstore.disk.files import read_small_file
    from logstore.errors import CorruptBatch, CorruptSnapshot
    from logstore.format.batch import LOG_OVERHEAD, Batch
    from logstore.log.producer_state import ProducerState, decode_snapshot
    from logstore.segment.damage import swept
    from logstore.segment.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX

    names = [Path(entry.name) for entry in disk.scan(directory)]
    state = ProducerState()
    for offset in sorted((int(each.stem) for each in names if each.suffix == SNAPSHOT_SUFFIX), reverse=True):
        data = read_small_file(disk, f"{directory}/{offset:020d}{SNAPSHOT_SUFFIX}", limit=1 << 30)
        try:
            state = ProducerState.load(decode_snapshot(data or b""), end_offset=offset)
        except CorruptSnapshot:
            continue  # an older one knows less, and more batches are read
        break
    bases = sorted(int(each.stem) for each in names if each.suffix == LOG_SUFFIX)
    for base, following in pairwise([*bases, MAX_LONG]):
        if following <= state.end_offset:
            continue
        with closing(disk.open(f"{directory}/{base:020d}{LOG_SUFFIX}")) as file:
            for found in swept(file, file.size()):
                is_new = (found.headers["producer_id"] >= 0) & (found.bases >= state.end_offset)
                for slot in is_new.nonzero()[0].tolist():
                    size = int(found.headers["batch_length"][slot]) + LOG_OVERHEAD
                    batch = Batch(file.pread(size, int(found.positions[slot])))
                    try:
                        batch.check_crc()
                    except CorruptBatch:
                        continue
                    state.replay(batch)
    return state


def _metadata_records(disk: Disk, directory: str) -> Iterator[Decoded]:
    """Yield the records of the newest snapshot, if the log starts behind one, and of the log."""
    from logstore.disk.files import read_small_file
    from logstore.format.batch import walk
    from logstore.format.state_records import decode_metadata
    from logstore.log.reader import LogReader

    names = [entry.name for entry in disk.scan(directory)]
    start = int(min(name for name in names if name.endswith(".log")).removesuffix(".log"))
    if start:
        snapshots = [name for name in names if name.endswith(".checkpoint")]
        if not snapshots:
            raise typer.BadParameter(f"{directory} starts at offset {start} without a snapshot below it")
        newest = max(snapshots)
        start = int(newest.split("-")[0])
        for batch in walk(read_small_file(disk, f"{directory}/{newest}") or b""):
            if not batch.is_control:
                yield from (decode_metadata(record.value) for record in batch.records())
    for record in LogReader(directory, start_offset=start, disk=disk).records():
        yield decode_metadata(record.value)


def _compare(image: Image, found: list[Directory], brokers: set[int]) -> None:
    """Note what the directories and the metadata do not agree on."""
    there = {(each.broker_id, each.topic_partition) for each in found}
    undecided = {
        each.topic_partition: each.undecided_since for each in found if each.undecided_since is not None
    }
    for topic_partition, offset in sorted(undecided.items()):
        image.notes.append(
            f"{topic_partition} has a transaction that has been open since offset {offset}, and nothing will "
            "end it by itself: consumers with isolation.level=read_committed stop there. Before you adopt "
            "them, run Kafka until transaction.timeout.ms has passed: its coordinator ends it as decided. "
            "If that is not possible, abort it once the brokers run: "
            f"logstore transactions abort {topic_partition} --start-offset {offset} --bootstrap HOST:PORT"
        )
    known = set()
    for name, topic in sorted(image.topics.items()):
        for number, partition in sorted(topic.partitions.items()):
            wanted = {(each, (name, number)) for each in partition.replicas if each in brokers}
            known |= {(each, (name, number)) for each in partition.replicas}
            if missing := sorted(broker for broker, _ in wanted - there):
                image.notes.append(f"{name}-{number} has no directory on broker {missing}")
            if not set(partition.isr) & brokers:
                image.notes.append(
                    f"{name}-{number} stays without a leader: in sync were brokers {list(partition.isr)}, "
                    "which are not among these log dirs"
                )
    for broker, (name, number) in sorted(there - known):
        image.notes.append(f"{name}-{number} on broker {broker} belongs to no topic: it will be set aside")


def _write(disk: Disk, directory: str, nodes: dict[str, bytes]) -> None:
    """Write the store under another name first: after a crash it is there as a whole, or not at all."""
    from logstore.disk.copying import remove_tree
    from logstore.disk.files import wall_clock_ms
    from logstore.disk.host_files import make_private_dir
    from logstore.replication.metastore.embedded import EmbeddedStore
    from logstore.replication.metastore.operations import Create, Multi

    unfinished = f"{directory}.unfinished"
    if Path(unfinished).exists():
        remove_tree(disk, unfinished)
    make_private_dir(unfinished)
    with EmbeddedStore(unfinished, disk=disk) as store:
        now_ms = wall_clock_ms()
        session = store.open_session(60_000, now_ms)
        creates = tuple(Create(path, data, make_parents=True) for path, data in nodes.items())
        outcome, _ = store.call(session, Multi(creates), now_ms)
        if outcome.error is not None:
            raise typer.BadParameter(f"{unfinished}: the store refused the metadata: {outcome.error.value}")
        store.close_session(session)
    disk.rename(unfinished, directory)
    disk.sync_dir(str(Path(directory).parent))


def _print(image: Image, brokers: set[int], store: str, *, is_done: bool, as_json: bool) -> None:
    partitions = {
        f"{name}-{number}": partition
        for name, topic in sorted(image.topics.items())
        for number, partition in sorted(topic.partitions.items())
    }
    if as_json:
        print_json(
            {
                "cluster_id": image.cluster_id,
                "brokers": sorted(brokers),
                "metadata": store,
                "written": is_done,
                "topics": {
                    name: {"topic_id": topic.topic_id, "settings": topic.settings}
                    for name, topic in sorted(image.topics.items())
                },
                "partitions": {
                    name: {"replicas": each.replicas, "isr": each.isr, "leader_epoch": each.leader_epoch}
                    for name, each in partitions.items()
                },
                "notes": image.notes,
            }
        )
        return
    print(f"cluster {image.cluster_id}, brokers {sorted(brokers)}")
    for name, each in partitions.items():
        epoch = each.leader_epoch
        print(f"{name}: replicas {list(each.replicas)}, in sync {list(each.isr)}, leader epoch {epoch}")
    for name, topic in sorted(image.topics.items()):
        if topic.settings:
            print(f"{name}: " + ", ".join(f"{key}={value}" for key, value in sorted(topic.settings.items())))
    for note in image.notes:
        print(f"note: {note}")
    print(f"{store}: written" if is_done else f"plan only; --apply writes {store} and changes nothing else")

"""`diff` and `compare-replicas` pair the records of a transaction with its marker across both copies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    write_offset_checkpoint,
)
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import ControlType, EndTransactionMarker, Record
from tests.cli.conftest import Outcome, write_files

Command = Callable[..., Outcome]
PRODUCER: Final = 7
NAME: Final = "orders-0"


def plain(offset: int, key: bytes) -> bytes:
    return encode_batch([Record(offset, 1000, key, b"%d" % offset)], base_offset=offset, leader_epoch=0)


def data(offset: int, key: bytes) -> bytes:
    return encode_batch(
        [Record(offset, 1000, key, b"%d" % offset)],
        base_offset=offset,
        leader_epoch=0,
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=offset,
        is_transactional=True,
    )


def marker(offset: int, kind: ControlType) -> bytes:
    return encode_batch(
        [EndTransactionMarker(kind, 0).record(offset, 1000)],
        base_offset=offset,
        leader_epoch=0,
        producer_id=PRODUCER,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
    )


def copy_of(
    directory: Path, batches: dict[int, bytes], *, rolled_at: int, end: int, is_cleaned: bool = False
) -> Path:
    """A copy in two segments; only the first one may have been compacted."""
    segments = {
        f"{0:020d}.log": b"".join(each for offset, each in batches.items() if offset < rolled_at),
        f"{rolled_at:020d}.log": b"".join(each for offset, each in batches.items() if offset >= rolled_at),
    }
    path = write_files(directory / NAME, segments)
    partition = TopicPartition("orders", 0)
    write_offset_checkpoint(OsDisk(), str(directory), HIGH_WATERMARK_CHECKPOINT, {partition: end})
    if is_cleaned:
        write_offset_checkpoint(OsDisk(), str(directory), CLEANER_OFFSET_CHECKPOINT, {partition: rolled_at})
    return path


def found(command: Command, a: Path, b: Path) -> list[tuple[str, int, int]]:
    *each, _ = map(json.loads, command("diff", a, b, "--json").out.splitlines())
    return [(one["kind"], one["first_offset"], one["last_offset"]) for one in each]


def test_the_marker_is_only_in_the_other_copy(command: Command, tmp_path: Path) -> None:
    """A lost the marker; B was compacted, so it has the marker and not the records."""
    rest = {3: plain(3, b"c"), 4: plain(4, b"d")}
    aborted = {0: data(0, b"a"), 1: data(1, b"b")}
    ended = {2: marker(2, ControlType.ABORT)}
    a = copy_of(tmp_path / "a", aborted | rest, rolled_at=4, end=5)
    b = copy_of(tmp_path / "b", ended | rest, rolled_at=4, end=5, is_cleaned=True)
    assert found(command, a, b) == [("only in B", 2, 2)]
    assert found(command, b, a) == [("only in A", 2, 2)]


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
def test_the_marker_lies_behind_what_was_compacted(
    command: Command, tmp_path: Path, kind: ControlType
) -> None:
    """The cleaner knows how a transaction ended also where its marker is in a later segment."""
    batches = {0: plain(0, b"a"), 1: data(1, b"a"), 2: plain(2, b"b"), 3: marker(3, kind)}
    gone = 1 if kind is ControlType.ABORT else 0
    rest = {offset: each for offset, each in batches.items() if offset != gone}
    whole = copy_of(tmp_path / "a", batches, rolled_at=3, end=4)
    cleaned = copy_of(tmp_path / "b", rest, rolled_at=3, end=4, is_cleaned=True)
    assert found(command, whole, cleaned) == []
    assert command("compare-replicas", tmp_path / "a", tmp_path / "b").code == 0
    kept = {offset: each for offset, each in batches.items() if offset != 1 - gone}
    other = copy_of(tmp_path / "c", kept, rolled_at=3, end=4, is_cleaned=True)
    assert found(command, whole, other) == [("only in A", 1 - gone, 1 - gone)]
    assert command("compare-replicas", tmp_path / "a", tmp_path / "c").code == 1


def test_a_replica_that_ends_before_the_marker(command: Command, tmp_path: Path) -> None:
    """Only what both replicas have is compared, but the longer one knows how the transaction ended."""
    batches = {0: data(0, b"a"), 1: plain(1, b"b"), 2: plain(2, b"c"), 3: marker(3, ControlType.ABORT)}
    copy_of(tmp_path / "a", batches, rolled_at=2, end=4)
    copy_of(tmp_path / "b", {1: batches[1], 2: batches[2]}, rolled_at=2, end=3, is_cleaned=True)
    assert command("compare-replicas", tmp_path / "a", tmp_path / "b").code == 0


def test_a_later_key_counts_only_where_that_copy_was_compacted(command: Command, tmp_path: Path) -> None:
    """A was compacted further than B: a key that is repeated in between explains nothing in B."""
    batches = {0: plain(0, b"a"), 1: plain(1, b"b"), 2: plain(2, b"a"), 3: plain(3, b"c")}
    a = copy_of(tmp_path / "a", batches, rolled_at=3, end=4, is_cleaned=True)
    b = copy_of(
        tmp_path / "b", {1: batches[1], 2: batches[2], 3: batches[3]}, rolled_at=2, end=4, is_cleaned=True
    )
    assert found(command, a, b) == [("only in A", 0, 0)]

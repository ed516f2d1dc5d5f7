"""`logstore compare-replicas`: replicas side by side, below the high watermark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.checkpoint.entry_files import HIGH_WATERMARK_CHECKPOINT, write_offset_checkpoint
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from tests.cli.conftest import Outcome, snapshot, write_files

Command = Callable[..., Outcome]
PARTITION = TopicPartition("orders", 0)
BATCHES = 6


def batch(offset: int, *, epoch: int = 0, value: bytes = b"") -> bytes:
    record = Record(offset, 1000 + offset, None, value or b"value-%d" % offset)
    return encode_batch([record], base_offset=offset, leader_epoch=epoch)


def node(
    directory: Path,
    batches: list[bytes],
    *,
    high_watermark: int,
    first_offset: int = 0,
    name: str = "orders-0",
) -> Path:
    write_files(directory / name, {f"{first_offset:020d}.log": b"".join(batches)})
    write_offset_checkpoint(OsDisk(), str(directory), HIGH_WATERMARK_CHECKPOINT, {PARTITION: high_watermark})
    return directory


def good(first: int = 0, last: int = BATCHES) -> list[bytes]:
    return [batch(offset) for offset in range(first, last)]


def test_equal_replicas(command: Command, tmp_path: Path) -> None:
    """Nothing is written; a partition that only one node has is no matter."""
    one, two, three = (node(tmp_path / name, good(), high_watermark=BATCHES) for name in "abc")
    node(three, good(), high_watermark=0, name="lonely-0")
    before = snapshot(tmp_path)
    outcome = command("compare-replicas", one, two, three)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "1 partitions compared, 0 differ, the largest lag is 0\n"
    assert snapshot(tmp_path) == before


def test_a_shorter_replica_lags(command: Command, tmp_path: Path) -> None:
    one = node(tmp_path / "a", good(), high_watermark=BATCHES)
    two = node(tmp_path / "b", good(last=4), high_watermark=4)
    outcome = command("compare-replicas", one, two, "--json")
    assert outcome.code == 0
    report, total = map(json.loads, outcome.out.splitlines())
    assert (report["lag"], report["difference"]) == (2, None)
    assert total == {"total": {"partitions": 1, "differing": 0, "max_lag": 2}}


def test_behind_the_high_watermark_they_may_differ(command: Command, tmp_path: Path) -> None:
    one = node(tmp_path / "a", good(), high_watermark=4)
    two = node(tmp_path / "b", [*good(last=4), batch(4, epoch=1)], high_watermark=3)
    assert command("compare-replicas", one, two).code == 0


def test_an_earlier_start_is_no_difference(command: Command, tmp_path: Path) -> None:
    one = node(tmp_path / "a", good(), high_watermark=BATCHES)
    two = node(tmp_path / "b", good(first=2), high_watermark=BATCHES, first_offset=2)
    assert command("compare-replicas", one, two).code == 0


@pytest.mark.parametrize(
    ("changed", "offset", "what"),
    [
        ([*good(last=3), batch(3, value=b"VALUE-3"), *good(4)], 3, "different value"),
        ([*good(last=3), *(batch(each, epoch=1) for each in range(3, BATCHES))], 3, "leader epoch 1, not 0"),
        (
            [
                encode_batch(
                    [Record(0, 1000, None, b"value-0"), Record(1, 1001, None, b"value-1")], leader_epoch=0
                ),
                *good(2),
            ],
            0,
            "batches of offsets 0 to 1, not 0 to 0 and 1 to 1",
        ),
    ],
    ids=["bytes", "epoch", "offsets"],
)
def test_the_first_difference_is_named(
    command: Command, tmp_path: Path, changed: list[bytes], offset: int, what: str
) -> None:
    """One replica's high watermark is enough: what it covers was committed."""
    one = node(tmp_path / "a", good(), high_watermark=BATCHES)
    two = node(tmp_path / "b", changed, high_watermark=0)
    outcome = command("compare-replicas", one, two, "--json")
    assert outcome.code == 1
    report, total = map(json.loads, outcome.out.splitlines())
    assert (report["difference"]["offset"], report["difference"]["what"]) == (offset, what)
    assert report["difference"]["replica"] == str(two / "orders-0")
    assert total["total"]["differing"] == 1
    assert f"orders-0  at offset {offset}: " in command("compare-replicas", one, two).out


def test_damage_is_told_and_the_others_are_compared(command: Command, tmp_path: Path) -> None:
    one = node(tmp_path / "a", good(), high_watermark=BATCHES)
    two = node(tmp_path / "b", good(), high_watermark=BATCHES)
    log = two / "orders-0" / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    for directory in (one, two):
        node(directory, good(), high_watermark=BATCHES, name="other-0")
    outcome = command("compare-replicas", one, two)
    assert outcome.code == 1
    assert "orders-0" in outcome.err
    assert outcome.out.startswith("2 partitions compared, 1 differ")
    assert command("compare-replicas", one, two, "--topics", "other").code == 0


def test_nothing_to_compare_is_no_success(command: Command, tmp_path: Path) -> None:
    one = node(tmp_path / "a", good(), high_watermark=BATCHES)
    outcome = command("compare-replicas", one)
    assert outcome.code == 1
    assert "no partition is in two or more of these" in outcome.err
    assert command("compare-replicas", one, "--topics", "(").code == 2

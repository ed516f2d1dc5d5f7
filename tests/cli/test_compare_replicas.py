"""`logstore compare-replicas`: replicas side by side, below the high watermark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    write_offset_checkpoint,
)
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
    assert outcome.out == "1 partition compared, 0 differ, the largest lag is 0\n"
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


def test_damage_as_json(command: Command, tmp_path: Path) -> None:
    """An object for each damaged replica, as `verify --json` prints it, with the partition."""
    nodes = [node(tmp_path / name, good(), high_watermark=BATCHES) for name in "abc"]
    places = [each / "orders-0" / f"{0:020d}.log" for each in nodes[1:]]
    size = len(batch(0))
    for path, number in zip(places, (1, 3), strict=True):
        content = bytearray(path.read_bytes())
        content[number * size + 61] ^= 1
        path.write_bytes(content)
    outcome = command("compare-replicas", *nodes, "--json")
    assert outcome.code == 1
    *found, total = map(json.loads, outcome.out.splitlines())
    assert found == [
        {
            "partition": "orders-0",
            "path": str(path),
            "position": number * size,
            "text": "a batch whose checksum does not match",
            "is_damage": True,
        }
        for path, number in zip(places, (1, 3), strict=True)
    ]
    assert total["total"]["differing"] == 1
    (verified, _) = map(json.loads, command("verify", nodes[1] / "orders-0", "--json").out.splitlines())
    assert found[0].items() >= verified.items()


@pytest.mark.parametrize(
    "option", [("--time", "latest"), ("--interval", 1), ("--count", 1), ("--fetch-size", 9)], ids=str
)
def test_options_for_brokers_are_refused(
    command: Command, tmp_path: Path, option: tuple[str, object]
) -> None:
    one, two = (node(tmp_path / name, good(), high_watermark=BATCHES) for name in "ab")
    outcome = command("compare-replicas", one, two, *option)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{option[0]} has no effect on directories" in outcome.err
    config = tmp_path / "client.properties"
    config.write_text("")
    assert command("compare-replicas", one, two, "--command-config", config).code == 2


def keyed(*records: tuple[int, bytes, bytes | None]) -> list[bytes]:
    return [
        encode_batch([Record(offset, 1000, key, value)], base_offset=offset, leader_epoch=0)
        for offset, key, value in records
    ]


ALL = keyed(
    (0, b"a", b"1"), (1, b"b", b"2"), (2, b"a", b"3"), (3, b"c", None), (4, b"b", b"4"), (5, b"d", b"5")
)


def compacted(directory: Path, *kept: int, changed: dict[int, bytes] | None = None) -> Path:
    """A replica of which only some records are left; the last segment begins at offset 5."""
    batches = {number: (changed or {}).get(number, ALL[number]) for number in kept}
    name = "orders-0"
    write_files(
        directory / name,
        {
            f"{0:020d}.log": b"".join(each for number, each in batches.items() if number < 5),
            f"{5:020d}.log": ALL[5],
        },
    )
    disk, path = OsDisk(), str(directory)
    write_offset_checkpoint(disk, path, HIGH_WATERMARK_CHECKPOINT, {PARTITION: 6})
    if len(kept) < 5:
        write_offset_checkpoint(disk, path, CLEANER_OFFSET_CHECKPOINT, {PARTITION: 5})
    return directory


def test_each_replica_compacts_alone(command: Command, tmp_path: Path) -> None:
    """Offsets 0 and 1 have later keys, 3 is a tombstone: a replica may have them, or not."""
    whole = compacted(tmp_path / "whole", 0, 1, 2, 3, 4)
    one, two = compacted(tmp_path / "one", 1, 2, 4), compacted(tmp_path / "two", 0, 2, 3, 4)
    outcome = command("compare-replicas", whole, one, two)
    assert (outcome.code, outcome.err) == (0, "")
    assert command("diff", whole / "orders-0", one / "orders-0").code == 0
    assert command("diff", one / "orders-0", two / "orders-0").code == 0


@pytest.mark.parametrize(
    ("kept", "changed", "what"),
    [
        ((0, 1, 4), {}, "the record is missing"),  # 2 is the last of its key
        ((1, 2, 4), {2: keyed((2, b"a", b"other"))[0]}, "different value"),
    ],
    ids=["the last of its key", "a value"],
)
def test_what_compaction_does_not_do_is_a_difference(
    command: Command, tmp_path: Path, kept: tuple[int, ...], changed: dict[int, bytes], what: str
) -> None:
    whole = compacted(tmp_path / "whole", 0, 1, 2, 3, 4)
    other = compacted(tmp_path / "other", *kept, changed=changed)
    outcome = command("compare-replicas", whole, other, "--json")
    report, _ = map(json.loads, outcome.out.splitlines())
    assert outcome.code == 1
    assert (report["difference"]["offset"], report["difference"]["what"]) == (2, what)


def test_a_log_that_was_never_compacted_lacks_nothing(command: Command, tmp_path: Path) -> None:
    """Without the cleaner's checkpoint a missing batch is one; `diff --compacted` knows better."""
    whole, other = (compacted(tmp_path / name, 0, 1, 2, 3, 4) for name in ("whole", "other"))
    (other / "orders-0" / f"{0:020d}.log").write_bytes(b"".join(ALL[1:5]))
    assert command("compare-replicas", whole, other).code == 1
    paths = [each / "orders-0" for each in (whole, other)]
    assert command("diff", *paths).code == 1
    assert command("diff", *paths, "--compacted").code == 0

"""`logstore verify`: what is sound passes, what is not is named, and nothing is written."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.broker import BrokerCluster
from logstore.config import LogConfig
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.queue import Queue
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]
NOW_MS = 1_700_000_000_000


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log dir that was closed in order; `orders-0` has three sealed segments and an active one."""
    manager = LogManager(
        [str(tmp_path / "data")],
        disk=OsDisk(),
        clock=lambda: NOW_MS,
        random=random.Random(1),
        config=LogConfig(segment_bytes=1000, index_interval_bytes=100),
    )
    for partition in range(2):
        log = manager.get_or_create(TopicPartition("orders", partition), topic_id="AAECAwQFBgcICQoLDA0ODw")
        for number in range(40):
            data = encode_batch([Record(0, NOW_MS + number, b"k", b"value %d" % number)])
            append_as_leader(log.partition, data, leader_epoch=number // 15, now_ms=NOW_MS)
    manager.close()
    return tmp_path / "data"


def findings(command: Command, path: Path, code: int) -> list[tuple[str, str]]:
    outcome = command("verify", path, "--json")
    assert outcome.code == code, outcome.out
    *found, last = [json.loads(line) for line in outcome.out.splitlines()]
    assert (last["total"]["damaged"], last["total"]["notes"]) == (
        sum(each["is_damage"] for each in found),
        sum(not each["is_damage"] for each in found),
    )
    return [(Path(each["path"]).name, each["text"]) for each in found if each["is_damage"] or code == 0]


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def test_what_is_sound_passes_and_nothing_is_written(command: Command, log_dir: Path) -> None:
    before = contents(log_dir)
    assert findings(command, log_dir, 0) == []
    assert findings(command, log_dir / "orders-0", 0) == []
    assert contents(log_dir) == before


def test_without_seals_the_batches_are_walked(command: Command, log_dir: Path) -> None:
    for seal in log_dir.rglob("*.seal"):
        seal.unlink()
    assert findings(command, log_dir, 0) == []
    first = sorted((log_dir / "orders-0").glob("*.log"))[0]
    flip(first, 100)
    assert findings(command, log_dir, 1) == [(first.name, "a batch whose checksum does not match")]


def test_a_sealed_segment_of_several_epochs(command: Command, tmp_path: Path) -> None:
    """It has no index entry, or one in its first part: no batch counts twice, as one before itself."""
    with Log.open(tmp_path / "orders-0", LogConfig(index_interval_bytes=300)) as log:
        for segment in range(2):
            for epoch in range(3):
                for _ in range(1 + 3 * segment):
                    data = encode_batch([Record(0, NOW_MS, b"k", b"v")])
                    append_as_leader(log.partition, data, leader_epoch=3 * segment + epoch, now_ms=NOW_MS)
            log.partition.roll()
    assert findings(command, tmp_path / "orders-0", 0) == []


def test_a_broken_block_is_located(command: Command, log_dir: Path) -> None:
    first = sorted((log_dir / "orders-0").glob("*.log"))[0]
    flip(first, 3)  # outside of the batch's own checksum
    found = findings(command, log_dir, 1)
    assert (first.name, f"bytes to {first.stat().st_size} differ from the sealed content") in found


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "orders-0/partition.metadata",
        "orders-0/leader-epoch-checkpoint",
    ],
)
def test_small_files_are_held_against_the_mark(command: Command, log_dir: Path, name: str) -> None:
    path = log_dir / name
    data = path.read_bytes()
    path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    assert Path(name).name in [found for found, _ in findings(command, log_dir, 1)]


def test_a_segment_gone_is_named(command: Command, log_dir: Path) -> None:
    second = sorted((log_dir / "orders-0").glob("*.log"))[1]
    second.unlink()
    found = dict(findings(command, log_dir, 1))
    assert found[second.name].startswith("segment gone")


def test_a_first_segment_gone_is_named(command: Command, log_dir: Path) -> None:
    for path in (log_dir / "orders-0").glob(f"{0:020d}.*"):
        path.unlink()
    (found,) = findings(command, log_dir, 1)
    assert found[1] == "segment gone: the log began at or below offset 0 when it was last in use"
    with Log.open(log_dir.parent / "orders-1", LogConfig(segment_bytes=300)) as log:
        for number in range(20):
            log.append(b"%d" % number * 30)
    min((log_dir.parent / "orders-1").glob("*.log")).unlink()
    assert "segment gone" in str(findings(command, log_dir.parent / "orders-1", 1))


def test_a_first_segment_gone_after_a_kill(command: Command, tmp_path: Path) -> None:
    """`recover` with the loss accepted makes it a log that begins later."""
    directory, config = tmp_path / "orders-1", LogConfig(segment_bytes=300)
    log = Log.open(directory, config)
    for number in range(20):
        log.append(b"%d" % number * 30)
    second = log.partition.segments[1].base_offset
    log.partition.abandon()
    min(directory.glob("*.log")).unlink()
    assert "segment gone" in str(findings(command, directory, 1))
    refused = command("recover", str(directory))
    assert refused.code != 0
    assert "segment gone" in refused.err
    recovered = command("recover", "--accept-loss", str(directory))
    assert recovered.code == 0
    assert f"offsets {second} to 20" in recovered.out
    with Log.open(directory, config) as log:
        assert log.log_start_offset == second


def test_part_of_an_entry(command: Command, log_dir: Path) -> None:
    (log_dir / "orders-0" / f"{0:020d}.txnindex").write_bytes(bytes(10))
    assert "incomplete entry" in [text for _, text in findings(command, log_dir, 1)]


def test_strays_are_listed(command: Command, log_dir: Path) -> None:
    (log_dir / "orders-0" / "notes.txt").write_text("mine")
    assert [name for name, _ in findings(command, log_dir, 0)] == ["notes.txt"]


def test_reseal_takes_sound_segments_for_right(command: Command, log_dir: Path) -> None:
    """Somebody rewrote a segment, soundly: a note, and damage only if nothing was left out of it."""
    first = sorted((log_dir / "orders-0").glob("*.log"))[0]
    data = first.read_bytes()
    batch = int.from_bytes(data[8:12]) + 12
    first.write_bytes(data[batch:])  # as a compaction without seals would
    for suffix in (".index", ".timeindex"):
        first.with_suffix(suffix).write_bytes(b"")
    assert "rewritten since it was sealed" in dict(reversed(findings(command, log_dir, 0)))[first.name]
    assert command("verify", log_dir, "--reseal").code == 0


def test_an_orphan_seal_is_a_note(command: Command, log_dir: Path) -> None:
    """Kafka takes our mark of a clean stop, deletes old segments and leaves our seals of them."""
    (log_dir / ".kafka_cleanshutdown").unlink()
    first = sorted((log_dir / "orders-0").glob("*.log"))[0]
    for suffix in (".log", ".index", ".timeindex"):
        first.with_suffix(suffix).unlink()
    ((name, text),) = findings(command, log_dir, 0)
    assert name == first.with_suffix(".seal").name
    assert "segment that is gone" in text


def test_recover_says_what_verify_says_and_has_a_way_past(command: Command, log_dir: Path) -> None:
    """Damage in a sealed segment, below everything that recovery must read."""
    first, second = sorted((log_dir / "orders-0").glob("*.log"))[:2]
    flip(first, first.stat().st_size - 3)
    assert first.name in dict(findings(command, log_dir, 1))
    content = first.read_bytes()
    for options in (["--plan"], []):
        outcome = command("recover", log_dir / "orders-0", *options)
        assert outcome.code == 1
        assert first.name in outcome.err
        assert "--accept-loss" in outcome.err
    assert first.read_bytes() == content
    outcome = command("recover", log_dir / "orders-0", "--accept-loss", "--json")
    assert outcome.code == 0
    facts = json.loads(outcome.out)
    assert facts["lost_records"] == 40 - facts["log_end_offset"] - 1
    assert facts["damage"][0]["file"] == first.name
    assert not second.exists()
    assert findings(command, log_dir, 0) == []
    with Log.open(log_dir / "orders-0") as log:
        assert len(list(log.read())) == facts["log_end_offset"]


def test_reseal_takes_no_damage_for_right(command: Command, log_dir: Path) -> None:
    first = sorted((log_dir / "orders-0").glob("*.log"))[0]
    flip(first, 90)
    outcome = command("verify", log_dir, "--reseal")
    assert outcome.code == 1
    assert "is damaged" in outcome.err


def test_in_words(command: Command, log_dir: Path) -> None:
    outcome = command("verify", log_dir)
    assert outcome.code == 0
    assert outcome.out.endswith("0 damaged, 0 notes\n")


def test_a_place_without_a_log_is_no_answer(command: Command, tmp_path: Path) -> None:
    """A mistyped path must not look like a sound log."""
    (tmp_path / "etc" / "below").mkdir(parents=True)
    (tmp_path / "etc" / "passwd").write_text("root")
    assert command("verify", tmp_path / "etc").code == 2


def test_our_own_files_are_no_notes(command: Command, tmp_path: Path) -> None:
    """A cluster's directory: log dirs with their marks, and the metadata store beside them; and a queue's."""
    with BrokerCluster(1, directory=str(tmp_path)) as cluster:
        cluster.create_topic("orders")
    with Queue(tmp_path / "jobs") as queue:
        queue.put(b"job")
    assert findings(command, tmp_path, 0) == []


@pytest.mark.parametrize("left", [b"", bytes(58)], ids=["empty", "zeros"])
def test_a_seal_that_a_kill_left_without_content_is_no_damage(
    command: Command, log_dir: Path, left: bytes
) -> None:
    """It is created, then written. Anything else that is no seal is damage."""
    seal = sorted((log_dir / "orders-0").glob("*.seal"))[-1]
    content = seal.read_bytes()
    seal.write_bytes(left)
    base_offset = int(seal.stem)
    text = f"seal {base_offset}: a crash left it without content; opening the log removes it"
    assert findings(command, log_dir, 0) == [(seal.name, text)]
    seal.write_bytes(content[:40])
    assert (seal.name, f"seal {base_offset}: 40 bytes are too few") in findings(command, log_dir, 1)


@pytest.mark.parametrize("left", [b"", bytes(40)], ids=["empty", "zeros"])
def test_a_producer_snapshot_that_a_kill_left_without_content_is_no_damage(
    command: Command, log_dir: Path, left: bytes
) -> None:
    """Kafka creates it, then writes it. Opening the log does without it."""
    (log_dir / ".kafka_cleanshutdown").unlink()
    snapshot = sorted((log_dir / "orders-0").glob("*.snapshot"))[-1]
    content = snapshot.read_bytes()
    snapshot.write_bytes(left)
    text = "a crash left it without content; the log rebuilds it"
    assert findings(command, log_dir, 0) == [(snapshot.name, text)]
    snapshot.write_bytes(content[:9])
    assert (snapshot.name, "producer snapshot: 9 bytes are fewer than its header") in findings(
        command, log_dir, 1
    )


def test_preallocated_zeros_in_quarantine_are_no_damage(command: Command, tmp_path: Path) -> None:
    """A truncation moves the active segment whole, with the zeros behind its batches."""
    with Log.open(tmp_path / "t-0", LogConfig(segment_bytes=2000, preallocate=True)) as log:
        for number in range(30):
            log.append(b"%100d" % number)
        active = log.partition.segments.active.base_offset
        log.truncate_to(active - 3)
        log.append(b"anew")
    kept = max((tmp_path / "t-0" / "lost").rglob("*.log"))
    assert kept.read_bytes().endswith(bytes(100))
    assert findings(command, tmp_path / "t-0", 0) == []
    flip(kept, 80)
    assert (kept.name, "a batch whose checksum does not match") in findings(command, tmp_path / "t-0", 1)

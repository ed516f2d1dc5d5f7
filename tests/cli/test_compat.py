"""`logstore compat`: each planted fact is found for the versions that mind it, and nothing else."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.format.state_records import CLUSTER_METADATA
from logstore.log.log import Log
from tests.cli.conftest import FIRST, SEGMENT_0, SEGMENT_4, Outcome, snapshot, write_files
from tests.golden.kafka_directories import unpack

Command = Callable[..., Outcome]
VERSIONS = ("kafka-3.9", "kafka-4", "0.1.0")
SERIOUS = ("refuses", "cuts", "removes", "differs")
LOG_0, LOG_4 = f"orders-0/{SEGMENT_0}.log", f"orders-0/{SEGMENT_4}.log"


@pytest.fixture
def log_dir(partition: Path) -> Path:
    """A sound log dir of a broker, after a kill."""
    identity = b"version=1\nnode.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n"
    write_files(partition.parent, {"meta.properties": identity})
    return partition.parent


def found(command: Command, directory: Path, version: str) -> list[tuple[str, str]]:
    """Effect and path of each finding that is more than a note."""
    outcome = command("compat", directory, "--with", version, "--json")
    *rows, last = [json.loads(line) for line in outcome.out.splitlines()]
    serious = [row for row in rows if row["effect"] in SERIOUS]
    assert last == {"total": {"findings": len(serious), "notes": len(rows) - len(serious)}}
    assert outcome.code == (1 if serious else 0)
    return [(row["effect"], str(Path(row["path"]).relative_to(directory))) for row in serious]


def test_sound_directories_of_both_owners(command: Command, log_dir: Path, tmp_path: Path) -> None:
    with Log.open(tmp_path / "ours-0") as log:
        log.append(b"x")
    for version in VERSIONS:
        assert found(command, log_dir, version) == []
    assert found(command, unpack("kraft-dir", tmp_path), "kafka-3.9") == []
    assert found(command, tmp_path / "kraft-dir", "kafka-4") == []
    assert found(command, tmp_path / "kraft-dir", "0.1.0") == [("differs", "__cluster_metadata-0")]
    # A log of our own has no topic id.
    assert found(command, tmp_path / "ours-0", "kafka-4") == [("removes", "partition.metadata")]
    assert found(command, tmp_path / "ours-0", "0.1.0") == []


class Plant(NamedTuple):
    """Files to write (None: to remove), and what is found, by version."""

    files: dict[str, bytes | None]
    kafka_39: list[tuple[str, str]]
    kafka_4: list[tuple[str, str]]
    ours: list[tuple[str, str]]


def both(*each: tuple[str, str]) -> tuple[list[tuple[str, str]], ...]:
    return list(each), list(each), []


BAD = bytearray(FIRST)
BAD[80] ^= 1
MESSAGE = struct.pack(">bbqii", 1, 0, 1000, -1, 3) + b"old"
OLD = struct.pack(">qiI", 0, 4 + len(MESSAGE), zlib.crc32(MESSAGE)) + MESSAGE
NOTHING: tuple[list[tuple[str, str]], ...] = ([], [], [])
TOPIC_ID, EPOCHS = "orders-0/partition.metadata", "orders-0/leader-epoch-checkpoint"
BEHIND = encode_batch([Record(3, 1, None, b"behind")], base_offset=3)
PLANTS: dict[str, Plant] = {
    "a directory of another name": Plant({"lost-found/x": b""}, *both(("refuses", "lost-found"))),
    "the root of an ext4": Plant({"lost+found/x": b""}, *[[("refuses", "lost+found")]] * 3),
    "a stray and a cache": Plant({f"a-0.{'0' * 32}-stray/x": b"", "remote-log-index-cache/x": b""}, *NOTHING),
    "no meta.properties": Plant({"meta.properties": None}, *both(("refuses", "meta.properties"))),
    "of ZooKeeper mode": Plant(
        {"meta.properties": b"version=0\nbroker.id=1\n"}, [], [("differs", "meta.properties")], []
    ),
    "high watermarks that do not parse": Plant(
        {"replication-offset-checkpoint": b"0\n9\n"}, *both(("refuses", "replication-offset-checkpoint"))
    ),
    "log starts that do not parse": Plant(
        {"log-start-offset-checkpoint": b"1\n0\n"}, *both(("differs", "log-start-offset-checkpoint"))
    ),
    "a name without a number": Plant({"orders-0/note.swap": b""}, *both(("refuses", "orders-0/note.swap"))),
    "names that are kept": Plant(
        {f"orders-0/{name}": b"" for name in ("x.txt", ".hidden", "a.log.bak", "1-note.txt", "lost/y")},
        *NOTHING,
    ),
    "a compaction that a kill interrupted, which is undone or completed": Plant(
        {f"orders-0/{SEGMENT_0}.seal.{state}": b"" for state in ("cleaned", "swap")}, *NOTHING
    ),
    "an index without its log": Plant(
        {f"orders-0/{9:020d}.index": b""}, *both(("removes", f"orders-0/{9:020d}.index"))
    ),
    "epochs that do not parse": Plant(
        {EPOCHS: b"0\n1\n"}, *both(("refuses", EPOCHS))
    ),
    "no topic id": Plant({TOPIC_ID: None}, *both(("removes", TOPIC_ID))),
    "damage before sound batches, killed": Plant({LOG_0: bytes(BAD) + BEHIND}, *both(("cuts", LOG_0))),
    "damage below the recovery point, killed": Plant(
        {LOG_0: bytes(BAD), "recovery-point-offset-checkpoint": b"0\n1\norders 0 5\n"}, [], [], []
    ),
    "a torn tail, killed": Plant({LOG_4: FIRST[:50]}, [], [], []),
    "zeros behind the end, closed": Plant(
        {".kafka_cleanshutdown": b"{}", LOG_4: bytes(40)}, *both(("refuses", LOG_4))
    ),
    "an old message format": Plant(
        {LOG_4: OLD}, [], [("differs", LOG_4)], [("refuses", LOG_4)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS.values(), ids=list(PLANTS))
def test_each_fact_and_nothing_else(command: Command, log_dir: Path, plant: Plant) -> None:
    for name, content in plant.files.items():
        path = log_dir / name
        path.parent.mkdir(exist_ok=True)
        path.unlink() if content is None else path.write_bytes(content)
    before = snapshot(log_dir)
    for version, expected in zip(VERSIONS, (plant.kafka_39, plant.kafka_4, plant.ours), strict=True):
        assert found(command, log_dir, version) == expected, version
    assert snapshot(log_dir) == before


@pytest.mark.parametrize(
    ("level", "refusing"),
    [(1, ["kafka-4"]), (7, []), (21, []), (25, ["kafka-3.9"]), (99, ["kafka-3.9", "kafka-4"])],
)
def test_the_version_of_the_metadata(
    command: Command, log_dir: Path, level: int, refusing: list[str]
) -> None:
    """The last record counts: the version was raised from 20."""
    values = [b"\1\x0c\0\x11metadata.version" + struct.pack(">h", each) + b"\0" for each in (20, level)]
    records = [Record(offset, 1, None, value) for offset, value in enumerate(values)]
    identity = {"partition.metadata": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"}
    write_files(
        log_dir / f"{CLUSTER_METADATA}-0",
        {f"{SEGMENT_0}.log": encode_batch(records, leader_epoch=1), **identity},
    )
    for version in ("kafka-3.9", "kafka-4"):
        expected = [("refuses", f"{CLUSTER_METADATA}-0")] if version in refusing else []
        assert found(command, log_dir, version) == expected


def test_our_own_files_are_notes(command: Command, tmp_path: Path) -> None:
    """Seals and quarantine stay, whoever opens the directory."""
    directory = tmp_path / "orders-0"
    with Log.open(directory) as log:
        log.append([b"one", b"two"])
        log.append(b"three")
        log.truncate_to(2)
    write_files(directory, {f"{SEGMENT_0}.seal": b""})
    outcome = command("compat", directory, "--with", "kafka-4")
    assert "1 seals are ignored and kept" in outcome.out
    assert "quarantine is ignored and kept" in outcome.out


def test_wrong_use_is_exit_2(command: Command, partition: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert command("compat", tmp_path / "empty", "--with", "kafka-4").code == 2
    assert command("compat", partition, "--with", "kafka-2").code == 2
    assert command("compat", partition).code == 2

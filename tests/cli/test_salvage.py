"""`logstore salvage`: from the command line, on log dirs that Kafka wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from logstore.log.log import Log
from tests.cli.conftest import FIRST, SECOND, SEGMENT_0, SEGMENT_4, Outcome, snapshot
from tests.golden.kafka_directories import unpack

Command = Callable[..., Outcome]


def test_a_whole_log_dir_of_kafka(command: Command, tmp_path: Path) -> None:
    """Every partition comes back; deleted ones are named; the source is untouched."""
    source, target = unpack("kraft-dir", tmp_path), tmp_path / "saved"
    before = snapshot(source)
    outcome = command("salvage", source, "--to", target, "--json")
    assert outcome.code == 0
    assert snapshot(source) == before
    reports = {Path(each["source"]).name: each for each in map(json.loads, outcome.out.splitlines())}
    records = {"__cluster_metadata-0": 155, "moved-0": 50, "orders-0": 62, "orders-1": 29, "orders-2": 0}
    assert {name: reports[name]["records"] for name in records} == records
    assert all(each["gaps"] == [] for each in reports.values())
    assert "gone-0.8e517e92b5e141ad988a49ec7bb12cb9-delete is no partition's directory" in outcome.err
    with Log.open(target / "orders-0") as log:
        # The other one is the marker of a transaction.
        assert (log.log_end_offset, sum(1 for _ in log.read())) == (62, 61)
    names = ["meta.properties", "bootstrap.checkpoint", "__cluster_metadata-0/quorum-state"]
    names += [str(path.relative_to(source)) for path in source.glob("__cluster_metadata-0/*.checkpoint")]
    assert len(names) == 10
    for name in names:
        assert (target / name).read_bytes() == (source / name).read_bytes()


def test_one_partition_with_damage_is_exit_1(command: Command, partition: Path, tmp_path: Path) -> None:
    log = partition / f"{SEGMENT_0}.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    before = snapshot(partition)
    target = tmp_path / "saved" / "orders-0"
    outcome = command("salvage", partition, "--to", target)
    assert (outcome.code, outcome.err) == (1, "")
    assert snapshot(partition) == before
    assert outcome.out.splitlines() == [
        f"{partition}: 5 records in 2 batches, offsets 0 to 5, are in {target}",
        "  offset 3 is missing: a batch whose checksum does not match "
        f"({len(SECOND)} bytes of {SEGMENT_0}.log at byte {len(FIRST)})",
    ]
    assert command("verify", target).code == 0
    assert (target / f"{SEGMENT_4}.log").read_bytes() == (partition / f"{SEGMENT_4}.log").read_bytes()


def test_refusals_are_exit_2(command: Command, partition: Path, tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full-0"
    empty.mkdir()
    full.mkdir()
    (full / "note.txt").write_text("mine")
    before = snapshot(tmp_path)
    for source, target, text in (
        (empty, tmp_path / "new-0", "no log is here"),
        (partition, full, "it is not empty"),
        (partition, partition / "new-0", "it must lie outside"),
        (partition, tmp_path / "no-number-x", "is not named <topic>-<partition>"),
    ):
        outcome = command("salvage", source, "--to", target)
        assert outcome.code == 2, outcome
        assert text in outcome.err
    assert snapshot(tmp_path) == before

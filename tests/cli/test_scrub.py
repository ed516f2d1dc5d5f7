"""`logstore scrub`: on a log of a program; refusals of other directories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from logstore.config import LogConfig
from logstore.log.log import Log
from tests.cli.conftest import Outcome, snapshot

Command = Callable[..., Outcome]
CONFIG = LogConfig(segment_bytes=20_000)


def made(tmp_path: Path) -> Path:
    with Log.open(tmp_path / "orders-0", CONFIG) as log:
        for number in range(60):
            log.append(b"%d" % number * 500)
    return tmp_path / "orders-0"


def flip(path: Path, position: int) -> bytes:
    before = path.read_bytes()
    path.write_bytes(before[:position] + bytes([before[position] ^ 1]) + before[position + 1 :])
    return before


def test_a_sound_log(command: Command, tmp_path: Path) -> None:
    directory = made(tmp_path)
    size = sum(path.stat().st_size for path in directory.glob("*.log"))
    outcome = command("scrub", directory)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{size} bytes of batches: 0 damaged, 0 derived files rebuilt\n"


def test_an_index_is_rebuilt_and_a_batch_is_named(command: Command, tmp_path: Path) -> None:
    directory = made(tmp_path)
    indexes = sorted(directory.glob("*.index"))
    right = flip(indexes[1], 5)
    flip(sorted(directory.glob("*.log"))[0], 300)
    outcome = command("scrub", directory, "--json")
    assert outcome.code == 1
    damage, rebuilt, last = map(json.loads, outcome.out.splitlines())
    total = last["total"]
    assert (total["damaged"], total["rebuilt"], total["left_out"]) == (1, 1, 0)
    assert (damage["file"], damage["rebuilt"], damage["kind"]) == (f"{0:020d}.log", False, "bad batch")
    assert (rebuilt["file"], rebuilt["rebuilt"]) == (indexes[1].name, True)
    assert indexes[1].read_bytes() == right
    again = command("scrub", directory)
    assert again.code == 1
    assert again.out.endswith(" 1 damaged, 0 derived files rebuilt\n")


def test_the_bytes_of_a_damaged_segment_count_once(command: Command, tmp_path: Path) -> None:
    """It is read twice, against its seal and batch by batch. Figure and progress are of the log's size."""
    directory = made(tmp_path)
    logs = sorted(directory.glob("*.log"))
    flip(logs[1], 300)
    outcome = command("scrub", directory, "--json")
    assert outcome.code == 1
    total = json.loads(outcome.out.splitlines()[-1])["total"]
    assert (total["bytes"], total["damaged"]) == (sum(path.stat().st_size for path in logs), 1)


def test_refusals_are_exit_2_and_change_nothing(command: Command, tmp_path: Path) -> None:
    directory = made(tmp_path)
    assert command("scrub", tmp_path).code == 2
    (tmp_path / "meta.properties").write_text("version=1\n")
    before = snapshot(tmp_path)
    outcome = command("scrub", directory)
    assert outcome.code == 2
    assert "belongs to a broker" in outcome.err
    assert snapshot(tmp_path) == before


def test_of_a_log_dir_a_partition_is_named(command: Command, tmp_path: Path) -> None:
    """As `cat` and `diff` do, which take one partition as well."""
    directory = made(tmp_path)
    outcome = command("scrub", tmp_path)
    assert outcome.code == 2
    assert f"name one of its partitions, such as {directory}" in outcome.err


def test_a_log_in_use_is_exit_1(command: Command, tmp_path: Path) -> None:
    directory = made(tmp_path)
    with Log.open(directory, CONFIG):
        assert command("scrub", directory).code == 1

"""One process writes, cuts, deletes, compacts; another reads: no signal, no wrong record, none skipped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from logstore import Log, LogReader
from logstore.disk.files import OsDisk
from tests.reader.owner import CONFIG, doubled, maintain, offset_of, one_step, value_at

ROOT = Path(__file__).parents[2]


def started(module: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"tests.reader.{module}", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def run_beside_each_other(directory: Path, seed: int, operations: int, seconds: float) -> dict[str, int]:
    """Let both do their work; returns what the reader saw."""
    owner = started("owner", directory, seed, operations, seconds)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n", owner.communicate()
        reader = started("reading", directory, seed)
        try:
            told, complaint = owner.communicate()
            assert owner.returncode == 0, complaint
            steps, _, compactions, replaced = map(int, told.split())
            assert steps >= operations
            assert replaced > compactions > 0, "nothing was compacted under the reader"
            told, complaint = reader.communicate("stop\n")
            assert reader.returncode == 0, complaint  # negative for a signal
            seen: dict[str, int] = json.loads(told)
            return {**seen, "compactions": compactions, "replaced": replaced}
        finally:
            reader.kill()
            reader.wait()
    finally:
        owner.kill()
        owner.wait()


@pytest.mark.parametrize("seed", [1, 2])
def test_reader_in_another_process(seed: int, tmp_path: Path) -> None:
    """Some thousand operations; what is left in the end is read by both sides alike."""
    directory = tmp_path / "busy-0"
    seen = run_beside_each_other(directory, seed, operations=2500, seconds=0)
    assert seen["readings"] > 0
    assert seen["records"] > 0
    read = [(record.offset, record.value) for record in LogReader(directory).records()]
    with Log.open(directory, CONFIG) as log:
        assert read == [(record.offset, record.value) for record in log.read()]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [3])
def test_reader_in_another_process_for_a_minute(seed: int, tmp_path: Path) -> None:
    """Sixty seconds of it: `make reader`."""
    seen = run_beside_each_other(tmp_path / "busy-0", seed, operations=0, seconds=60)
    print(seen)
    assert seen["out of range"] > 0, "nothing was ever cut or deleted under the reader"


def test_reader_notices_records_that_were_not_written() -> None:
    """A value that is not whole, and one at another offset, are found."""
    assert offset_of(value_at(17, 3)) == 17
    with pytest.raises(AssertionError, match="nobody wrote"):
        offset_of(value_at(17, 3)[:-1] + b"x")


def test_owner_performs_every_kind_of_operation(tmp_path: Path) -> None:
    """Segments go, histories change, keys are replaced, and what no compaction may take is there."""
    random, bases, generation, done = Random(5), list[int](), 0, Counter[str]()
    with Log.open(tmp_path / "busy-0", CONFIG, disk=OsDisk()) as log:
        for _ in range(1500):
            generation = one_step(log, random, bases, generation, done)
        assert generation > 10
        assert done["compactions"] > 20
        assert done["replaced"] > 500
        maintain(log)
        assert doubled(log) == []
        assert log.partition.first_dirty_offset > log.log_start_offset
        assert log.log_start_offset > 0
        assert len(log.partition.segments) > 2
        offsets = {record.offset for record in log.read()}
        start = log.log_start_offset
        assert {offset for offset in range(start, log.log_end_offset) if offset % 5 == 0} <= offsets

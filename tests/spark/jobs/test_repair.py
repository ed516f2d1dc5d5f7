"""`repair`: from damaged replicas to a copy that is as they were; the replicas stay as they are."""

from __future__ import annotations

import argparse
import errno
import json
import random
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from logstore.disk.files import OsDisk
from logstore.log.log import Log
from logstore.log.reader import LogReader
from logstore.spark.jobs import repair, verify
from logstore.spark.jobs.job import Answer
from logstore.spark.verification import repair_copy
from logstore.spark.verification.repair_copy import Repaired, Work, copy
from logstore.testing.disks import Operation, RecordingDisk
from tests.spark.jobs.conftest import Command
from tests.spark.jobs.in_process import InProcess
from tests.spark.jobs.replica_trees import NODES, Tree, flip, make_tree, missing, plant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parsed(module: Any, *arguments: object) -> Any:
    parser = argparse.ArgumentParser()
    module.arguments(parser)
    parser.add_argument("--plan", action="store_true")
    return module.prepare(parser.parse_args([str(each) for each in arguments]))


def run(*arguments: object) -> Answer:
    answer: Answer = parsed(repair, *arguments).run(InProcess())
    return answer


def contents(directory: Path) -> list[tuple[int, int, bytes | None]]:
    return [(record.offset, record.timestamp_ms, record.value) for record in LogReader(directory).records()]


def sums(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in files}


def small_tree(root: Path, seed: int, *, sealed: bool = False) -> Tree:
    return make_tree(root, seed, partitions=3, partition_bytes=60_000, segment_bytes=15_000, sealed=sealed)


def test_nothing_to_repair(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree", 1)
    answer = run(*tree.nodes(), "--output", tmp_path / "out")
    assert (answer.is_yes, answer.lines) == (True, ["nothing to repair"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", range(4))
def test_what_one_replica_has_sound_is_in_the_copy(tmp_path: Path, seed: int) -> None:
    """Damage everywhere, never of one batch on all nodes: the copy has all records, as they were."""
    tree = small_tree(tmp_path / "tree", seed, sealed=bool(seed % 2))
    original = {name: contents(tree.directory("a", name)) for name in tree.partitions}
    plants = plant(tree, seed, 12)
    before = sums(tree.root)
    answer = run(*tree.nodes(), "--output", tmp_path / "out", "--segment-megabytes", 1)
    damaged = {each.partition for each in plants}
    for name in damaged:
        copied = contents(tmp_path / "out" / name.directory_name)
        assert copied[: len(original[name])] == original[name]
        assert [offset for offset, _, _ in copied] == list(range(tree.ends[name]))
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {
        name.directory_name for name in damaged
    }
    assert sums(tree.root) == before, "a replica was changed"
    assert answer.is_yes, answer.lines
    assert answer.facts["lost"] == 0
    # Each replica replaced by the copy: nothing is wrong any more, and every log opens.
    for name in damaged:
        with Log.open(tmp_path / "out" / name.directory_name) as log:
            assert log.log_end_offset == tree.ends[name]


def test_what_all_lost_is_named(tmp_path: Path) -> None:
    """The same batch is bad on two nodes and missing on the third: exactly that is lost."""
    tree = small_tree(tmp_path / "tree", 3)
    name, draw = tree.partitions[0], random.Random(3)
    original = contents(tree.directory("a", name))
    planted = missing(tree, draw, "c", name, tree.batches["c", name][4])
    for node in ("a", "b"):
        flip(tree, draw, node, name, tree.batches[node, name][4])
    answer = run(*tree.nodes(), "--output", tmp_path / "out")
    gone = range(planted.offset, planted.end_offset)
    assert answer.facts["lost"] == len(gone)
    assert answer.facts["partitions"][0]["lost"] == [{"start_offset": gone.start, "end_offset": gone.stop}]
    assert not answer.is_yes
    assert contents(tmp_path / "out" / name.directory_name) == [
        each for each in original if each[0] not in gone
    ]


def test_what_nobody_is_trusted_for_is_taken_and_named(tmp_path: Path) -> None:
    """A batch with a wrong epoch is the only one left: better than nothing, and said."""
    tree = small_tree(tmp_path / "tree", 4)
    name, draw = tree.partitions[0], random.Random(4)
    missing(tree, draw, "b", name, tree.batches["b", name][4])
    planted = missing(tree, draw, "c", name, tree.batches["c", name][4])
    batch = tree.batches["a", name][4]
    path = tree.log("a", name, batch.segment)
    data = bytearray(path.read_bytes())
    data[batch.position + 12 : batch.position + 16] = (99).to_bytes(4, "big")
    path.write_bytes(data)
    answer = run(*tree.nodes(), "--output", tmp_path / "out")
    facts = answer.facts["partitions"][0]
    assert facts["lost"] == []
    assert facts["doubtful"] == [
        {"start_offset": planted.offset, "end_offset": planted.end_offset, "node": "a"}
    ]
    assert not answer.is_yes
    assert len(contents(tmp_path / "out" / name.directory_name)) == tree.ends[name]


@pytest.fixture
def findings(tmp_path: Path) -> tuple[Tree, Path]:
    tree = small_tree(tmp_path / "tree", 5)
    plant(tree, 5, 6)
    facts = parsed(verify, *tree.nodes()).run(InProcess()).facts
    (tmp_path / "findings.json").write_text(json.dumps(facts))
    return tree, tmp_path / "findings.json"


def test_a_plan_from_findings(findings: tuple[Tree, Path], command: Command, tmp_path: Path) -> None:
    """It says what would be taken from whom, and starts nothing."""
    tree, path = findings
    outcome = command("repair", "--findings", path, "--plan", "--json")
    plans = [each["parts"] for each in outcome.facts["partitions"]]
    assert {part["node"] for parts in plans for part in parts} <= set(NODES)
    assert max(map(len, plans)) > 1
    for name, arguments in (("one", ("--findings", path)), ("two", tree.nodes())):
        facts = run(*arguments, "--output", tmp_path / name).facts
        assert [each["parts"] for each in facts["partitions"]] == plans
    trees = [sums(tmp_path / each) for each in ("one", "two")]
    assert list(trees[0].values()) == list(trees[1].values())


class _LastFirst(InProcess):
    """Tasks end in the opposite order, as they may on a cluster."""

    def reports(self, items: Sequence[Any], function: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
        return super().reports(items[::-1], function)


def test_the_order_in_which_tasks_end_does_not_show(findings: tuple[Tree, Path], tmp_path: Path) -> None:
    """Two repairs by the same plan are equal, byte for byte."""
    for name, workers in (("one", InProcess()), ("two", _LastFirst())):
        parsed(repair, "--findings", findings[1], "--output", tmp_path / name).run(workers)
    one, two = (sums(tmp_path / name) for name in ("one", "two"))
    assert list(one.values()) == list(two.values())


def test_an_attempt_that_failed_leaves_nothing(
    findings: tuple[Tree, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker does not start on a log dir that holds other directories than those of partitions."""

    class Retries(InProcess):
        """The first task fails at its end, and runs again."""

        def reports(self, items: Sequence[Any], function: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
            with monkeypatch.context() as patch:
                patch.setattr(repair_copy, "_check", Mock(side_effect=OSError(errno.EIO, "read back")))
                with pytest.raises(OSError, match="read back"):
                    function(items[0])
            return super().reports(items, function)

    answer = parsed(repair, "--findings", findings[1], "--output", tmp_path / "out").run(Retries())
    found = {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()}
    assert found == {f"{each['topic']}-{each['partition']}" for each in answer.facts["partitions"]}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--output", "OUT"], "either the directories of all nodes, or --findings"),
        (["TREE/a", "--findings", "FILE", "--output", "OUT"], "either the directories"),
        (["TREE/a"], "give --output"),
        (["TREE/a", "--plan"], "--plan needs --findings"),
        (["--findings", "FILE", "--output", "TREE/a/topic-0-0/copy"], "contain each other"),
        (["--findings", "FILE", "--output", "TREE"], "contain each other"),
        (["--findings", "FILE", "--prefer", "d", "--plan"], "no such node"),
        (["--findings", "NONSENSE", "--plan"], "is not the output of verify"),
        (["--findings", "FILE", "--output", "TREE.new", "--segment-megabytes", "0"], "must be 1 or more"),
    ],
)
def test_bad_usage(
    command: Command, findings: tuple[Tree, Path], tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    tree, path = findings
    (tmp_path / "nonsense").write_text("[]")
    names = {"FILE": path, "NONSENSE": tmp_path / "nonsense", "OUT": tmp_path / "out", "TREE": tree.root}
    given = []
    for each in arguments:
        for name, value in names.items():
            each = each.replace(name, str(value))
        given.append(each)
    outcome = command("repair", *given)
    assert outcome.code == 2, outcome
    assert complaint in outcome.err
    assert outcome.err.count("\n") == 1


def test_replicas_that_changed_meanwhile(findings: tuple[Tree, Path], command: Command) -> None:
    tree, path = findings
    for node in NODES:
        name = tree.partitions[0]
        with tree.log(node, name, tree.batches[node, name][-1].segment).open("ab") as log:
            log.write(b"more")
    assert "has changed since it was verified" in command("repair", "--findings", path, "--plan").err


def test_an_output_that_exists(findings: tuple[Tree, Path], command: Command, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert (
        "name a new directory"
        in command("repair", "--findings", findings[1], "--output", tmp_path / "out").err
    )


# --- faults -------------------------------------------------------------------------------------------------


class _Killed(BaseException):
    pass


def broken_off(path: Path, output: Path, nth: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Repair, and die ahead of call `nth` to the disk, of driver or task; whether there was such a call."""
    calls = count()

    def before(operation: Operation) -> None:
        if next(calls) == nth:
            raise _Killed

    disk: Any = RecordingDisk(OsDisk(), before=before)
    attempts = count(nth * 100)

    def task(work: Work) -> Repaired:
        return copy(disk, work, f"{next(attempts)}")

    monkeypatch.setattr(repair, "copy_task", task)
    job = parsed(repair, "--findings", path, "--output", output)
    object.__setattr__(job, "disk", disk)
    try:
        job.run(InProcess())
    except _Killed:
        return True
    return False


def test_a_repair_that_is_broken_off_anywhere_goes_on(
    findings: tuple[Tree, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every seventeenth call, from there again further on, then to the end."""
    tree, path = findings
    run("--findings", path, "--output", tmp_path / "whole")
    whole = {
        Path(name).relative_to(tmp_path / "whole"): each for name, each in sums(tmp_path / "whole").items()
    }
    before = sums(tree.root)
    nth = 0
    while broken_off(path, output := tmp_path / f"out-{nth}", nth, monkeypatch):
        broken_off(path, output, nth // 2, monkeypatch)
        if not output.exists():
            assert not broken_off(path, output, -1, monkeypatch)
        assert {Path(name).relative_to(output): each for name, each in sums(output).items()} == whole
        assert not output.with_name(output.name + repair.UNFINISHED).exists()
        nth += 17
    assert nth > 60
    assert sums(tree.root) == before


# --- on Spark -----------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_on_spark(spark: SparkSession, command: Command, tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree", 6)
    original = {name: contents(tree.directory("a", name)) for name in tree.partitions}
    plant(tree, 6, 9)
    outcome = command("repair", *tree.nodes(), "--output", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome
    for each in outcome.facts["partitions"]:
        directory = f"{each['topic']}-{each['partition']}"
        name = next(name for name in tree.partitions if name.directory_name == directory)
        assert contents(tmp_path / "out" / directory)[: len(original[name])] == original[name]

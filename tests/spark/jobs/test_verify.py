"""`verify`: every planted difference is found, named with its node and offset, and nothing else is told."""

from __future__ import annotations

import errno
import json
import random
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from logstore.broker import BrokerCluster
from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    write_leader_epoch_checkpoint,
    write_offset_checkpoint,
)
from logstore.checkpoint.identity import MetaProperties, write_meta_properties, write_partition_metadata
from logstore.cli.whole_trees import verify_tree
from logstore.config import LogConfig
from logstore.disk.files import OsDisk, OsFile
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.log import Log
from logstore.spark.jobs import verify
from logstore.spark.jobs.command import main
from logstore.spark.jobs.job import Answer, BadUsage
from logstore.spark.verification.compare import UNDECIDED, odd_ones
from tests.spark.jobs.in_process import InProcess
from tests.spark.jobs.replica_trees import NODES, Plant, Tree, flip, make_tree, plant, unmatched

NAME = TopicPartition("orders", 0)


def prepared(*arguments: str | Path) -> verify.Verify:
    parser = ArgumentParser()
    verify.arguments(parser)
    return verify.prepare(parser.parse_args([str(each) for each in arguments]))


def run(*arguments: str | Path) -> Answer:
    return prepared(*arguments).run(InProcess())


def wrong(answer: Answer) -> list[dict[str, Any]]:
    return [finding for finding in answer.facts["findings"] if not finding["note"]]


# --- whole trees --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_everything_planted_is_found_and_nothing_else(tmp_path: Path, seed: int) -> None:
    """Seals in every second tree; the campaign (`make verify-replicas`) does this in gigabytes."""
    tree = make_tree(tmp_path, seed, sealed=seed % 2 == 1)
    clean = run(*tree.nodes())
    assert (clean.is_yes, clean.facts["findings"]) == (True, [])
    assert (clean.facts["partitions"], clean.facts["replicas"]) == (4, 12)
    planted = plant(tree, seed, 20)
    answer = run(*tree.nodes())
    assert not answer.is_yes
    assert unmatched(planted, answer.facts["findings"]) == ([], [])


def test_small_runs_see_over_their_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment a run: what a batch is held against may lie in the next one."""
    monkeypatch.setattr("logstore.spark.verification.planning.RUN_BYTES", 1)
    monkeypatch.setattr("logstore.spark.verification.planning.STRETCH_BYTES", 9_000)
    tree = make_tree(tmp_path, 11, segment_bytes=8_000)
    assert run(*tree.nodes()).facts["findings"] == []
    planted = plant(tree, 11, 30)
    assert unmatched(planted, run(*tree.nodes()).facts["findings"]) == ([], [])


def test_one_node_alone(tmp_path: Path) -> None:
    """What a checksum covers needs no second replica."""
    tree = make_tree(tmp_path, 2)
    batch = tree.batches["a", tree.partitions[0]][10]
    planted = flip(tree, random.Random(1), "a", tree.partitions[0], batch)
    (finding,) = wrong(run(f"--node=a={tree.root}/a"))
    assert unmatched([planted], [finding]) == ([], [])


def test_nothing_is_written(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, 3, partitions=1, partition_bytes=20_000)
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()
    }
    run(*tree.nodes())
    prepared(*tree.nodes()).plan()
    assert before == {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()
    }


# --- single cases -------------------------------------------------------------------------------------------


def batch(offset: int, *, epoch: int = 0, value: bytes = b"", count: int = 1) -> bytes:
    records = [
        Record(number, 1000 + number, None, value or b"value-%d" % number)
        for number in range(offset, offset + count)
    ]
    return bytes(encode_batch(records, base_offset=offset, leader_epoch=epoch))


def node(
    root: Path,
    name: str,
    batches: Sequence[bytes],
    *,
    high_watermark: int | None = 6,
    first_offset: int = 0,
    history: Sequence[tuple[int, int]] = (),
) -> str:
    directory = root / name / NAME.directory_name
    directory.mkdir(parents=True)
    (directory / f"{first_offset:020d}.log").write_bytes(b"".join(batches))
    if high_watermark is not None:
        marks = {NAME: high_watermark}
        write_offset_checkpoint(OsDisk(), str(root / name), HIGH_WATERMARK_CHECKPOINT, marks)
    if history:
        write_leader_epoch_checkpoint(OsDisk(), str(directory), history)
    return f"--node={name}={root / name}"


def good(first: int = 0, last: int = 6, **more: Any) -> list[bytes]:
    return [batch(offset, **more) for offset in range(first, last)]


def test_behind_the_high_watermark_they_may_differ(tmp_path: Path) -> None:
    nodes = [
        node(tmp_path, "a", good(), high_watermark=4),
        node(tmp_path, "b", [*good(last=4), batch(4, epoch=1)], high_watermark=3),
    ]
    assert wrong(run(*nodes)) == []


def test_of_two_that_differ_nobody_can_tell(tmp_path: Path) -> None:
    nodes = [
        node(tmp_path, "a", good()),
        node(tmp_path, "b", [*good(last=3), batch(3, value=b"VALUE-3"), *good(4)]),
    ]
    (finding,) = wrong(run(*nodes))
    assert (finding["kind"], finding["offset"], finding["end_offset"]) == ("bytes", 3, 4)
    assert (finding["node"], finding["nodes"]) == (None, [])
    assert UNDECIDED in finding["text"]
    assert [each["node"] for each in finding["replicas"]] == ["a", "b"]


def test_of_two_epochs_the_newer_one_wrote_last(tmp_path: Path) -> None:
    """A follower that did not truncate: all that it holds of the old leader is one finding, by its start."""
    old = [(0, 0)]
    new = [(0, 0), (2, 3)]
    nodes = [
        node(tmp_path, "a", [*good(last=3), *good(3, epoch=2)], history=new),
        node(tmp_path, "b", good(), history=old),
        node(tmp_path, "c", good(), history=old),
    ]
    (finding,) = wrong(run(*nodes))
    assert (finding["kind"], finding["offset"], finding["end_offset"]) == ("leader-epoch", 3, 6)
    assert (finding["nodes"], finding["epoch"]) == (["b", "c"], 0)
    assert "epoch 2 wrote the offset last" in finding["text"]


def test_an_epoch_that_its_own_checkpoint_denies(tmp_path: Path) -> None:
    """Not a matter of comparing: the replica contradicts itself."""
    nodes = [
        node(tmp_path, "a", [*good(last=5), batch(5, epoch=3)], history=[(0, 0)]),
        node(tmp_path, "b", good(), history=[(0, 0)]),
    ]
    (finding,) = wrong(run(*nodes))
    assert (finding["kind"], finding["node"], finding["offset"], finding["epoch"]) == ("epoch", "a", 5, 3)


def test_other_boundaries(tmp_path: Path) -> None:
    nodes = [
        node(tmp_path, "a", good()),
        node(tmp_path, "b", good()),
        node(tmp_path, "c", [*good(last=2), batch(2, count=3), batch(5)]),
    ]
    (finding,) = wrong(run(*nodes))
    assert (finding["kind"], finding["nodes"], finding["offset"]) == ("boundaries", ["c"], 2)


def test_a_replica_that_lags(tmp_path: Path) -> None:
    """Below the high watermark that others know it lacks something; it may never have had it."""
    nodes = [node(tmp_path, "a", good()), node(tmp_path, "b", good(last=4), high_watermark=4)]
    (finding,) = wrong(run(*nodes))
    assert (finding["kind"], finding["nodes"]) == ("behind", ["b"])
    assert (finding["offset"], finding["end_offset"]) == (4, 6)
    allowed = run(*nodes, "--allow-lag")
    assert (allowed.is_yes, allowed.facts["notes"]) == (True, 1)


def test_a_replica_that_lost_its_end(tmp_path: Path) -> None:
    """Its own checkpoint says that it held more: no lag explains that."""
    nodes = [node(tmp_path, "a", good()), node(tmp_path, "b", good(last=4))]
    assert [each["kind"] for each in wrong(run(*nodes, "--allow-lag"))] == ["behind"]


def test_an_earlier_start_is_no_difference(tmp_path: Path) -> None:
    nodes = [node(tmp_path, "a", good()), node(tmp_path, "b", good(first=2), first_offset=2)]
    assert run(*nodes).facts["findings"] == []


def test_without_a_high_watermark_as_far_as_all_reach(tmp_path: Path) -> None:
    nodes = [
        node(tmp_path, "a", good(), high_watermark=None),
        node(tmp_path, "b", good(last=4), high_watermark=None),
    ]
    assert run(*nodes).facts["findings"] == []
    with (tmp_path / "b" / NAME.directory_name / f"{0:020d}.log").open("r+b") as log:
        log.seek(12)
        log.write((7).to_bytes(4, "big"))
    assert [each["offset"] for each in wrong(run(*nodes))] == [0]


def test_a_torn_end_is_a_note(tmp_path: Path) -> None:
    nodes = [node(tmp_path, "a", [*good(), batch(6)[:70]]), node(tmp_path, "b", good())]
    answer = run(*nodes)
    assert answer.is_yes
    assert [each["kind"] for each in answer.facts["findings"]] == ["tail"]


def test_zeros_at_the_end_are_a_note(tmp_path: Path) -> None:
    """A crash leaves them, and Kafka on Windows; `logstore verify` has a note, too."""
    nodes = [node(tmp_path, "a", [*good(), bytes(500)]), node(tmp_path, "b", good())]
    answer = run(*nodes)
    assert answer.is_yes
    assert [each["kind"] for each in answer.facts["findings"]] == ["tail"]
    nodes = [node(tmp_path, "c", [*good(last=4), bytes(500)]), *nodes]
    assert [(each["kind"], each["node"], each["offset"]) for each in wrong(run(*nodes))] == [
        ("behind", "c", 4)
    ]


@pytest.mark.parametrize(
    ("which", "offset", "end_offset"), [(slice(0), 0, 0), (slice(1), 0, 10), (slice(-1, None), 10, 20)]
)
def test_segments_that_are_gone_since_the_last_use(
    tmp_path: Path, which: slice, offset: int, end_offset: int
) -> None:
    """Of one replica alone, as `logstore verify` reports them: no other one has to show what was there."""
    directory = tmp_path / NAME.directory_name
    with Log.open(directory, LogConfig(segment_bytes=2000)) as log:
        for _ in range(2):
            log.append([b"x" * 100] * 10)
    for file in sorted(directory.glob("*.log"))[which]:
        file.unlink()
    found = wrong(run(directory))
    assert [(each["kind"], each["offset"], each["end_offset"]) for each in found] == (
        [("gap", offset, end_offset)] if end_offset else []
    )
    damage = [each for each in verify_tree(OsDisk(), str(directory), lambda _: None) if each.is_damage]
    assert bool(damage) == bool(found)


def test_a_truncation_meanwhile_is_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner cuts behind the recovery point that was read first, and lowers it."""
    directory = tmp_path / NAME.directory_name
    with Log.open(directory) as log:
        log.append([b"x"] * 9, sync=True)
    planned = verify.Verify._planned

    def cut_behind(self: verify.Verify) -> Any:
        found = planned(self)
        with Log.open(directory) as log:
            log.truncate_to(0, why="a leader said so")
        return found

    monkeypatch.setattr(verify.Verify, "_planned", cut_behind)
    assert run(directory).is_yes


def test_a_gap_that_all_have_is_told_once_for_each(tmp_path: Path) -> None:
    """Transactions leave no gaps, only compaction does."""
    nodes = [node(tmp_path, name, [*good(last=2), *good(first=4)]) for name in "ab"]
    found = wrong(run(*nodes))
    assert [(each["kind"], each["node"], each["offset"], each["end_offset"]) for each in found] == [
        ("gap", "a", 2, 4),
        ("gap", "b", 2, 4),
    ]
    assert wrong(run(*nodes, "--compacted=orders")) == []


class Broken(OsDisk):
    """A disk that gives no byte of one file."""

    def open(self, path: str, **how: bool) -> OsFile:
        if path.endswith(f"a/{NAME.directory_name}/{0:020d}.log"):
            raise OSError(errno.EIO, "input/output error", path)
        return super().open(path, **how)


def test_a_file_that_cannot_be_read_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more than one: all that it held is not told as missing."""
    nodes = [node(tmp_path, name, good()) for name in "abc"]
    monkeypatch.setattr(verify, "OsDisk", Broken)
    (finding,) = wrong(run(*nodes))
    assert (finding["kind"], finding["node"], finding["offset"]) == ("unreadable", "a", 0)


def test_a_replica_without_a_byte(tmp_path: Path) -> None:
    """Just made, or all of it lost: it is behind from the start."""
    nodes = [node(tmp_path, name, good()) for name in "abc"]
    for path in (tmp_path / "c" / NAME.directory_name).iterdir():
        path.unlink()
    (finding,) = wrong(run(*nodes))
    assert (finding["kind"], finding["nodes"]) == ("behind", ["c"])
    assert (finding["offset"], finding["end_offset"]) == (0, 6)


def test_a_replica_of_another_topic_of_that_name(tmp_path: Path) -> None:
    """Left over from one that was deleted: told once, not batch by batch; its own checksums still count."""
    nodes = [node(tmp_path, name, good(value=b"old") if name == "c" else good()) for name in "abc"]
    for name, topic_id in zip(
        "abc", ("AAECAwQFBgcICQoLDA0ODw",) * 2 + ("AQECAwQFBgcICQoLDA0ODw",), strict=True
    ):
        write_partition_metadata(OsDisk(), str(tmp_path / name / NAME.directory_name), topic_id)
    (finding,) = wrong(run(*nodes))
    assert (finding["kind"], finding["nodes"]) == ("topic", ["c"])


class Meanwhile(InProcess):
    """Workers beside whom an owner goes on: `happens` before the given stage."""

    def __init__(self, stage: int, happens: Callable[[], object]) -> None:
        super().__init__()
        self._stage, self._happens = stage, happens

    def reports(self, items: Sequence[Any], function: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
        self._stage -= 1
        if self._stage == 0:
            self._happens()
        yield from super().reports(items, function)


def test_segments_that_retention_takes_meanwhile(tmp_path: Path) -> None:
    """Neither a gap nor missing: the log starts later now."""
    tree = make_tree(tmp_path, 21, partitions=1)
    first, second, *_ = sorted(tree.directory("b", tree.partitions[0]).glob("*.log"))

    def delete() -> None:
        first.unlink()
        second.unlink()

    answer = prepared(*tree.nodes()).run(Meanwhile(1, delete))
    assert answer.facts["findings"] == []


def test_what_is_mended_before_the_second_look(tmp_path: Path) -> None:
    """Marks of the first look mislead then; of what is compared counts what lies there now."""
    tree = make_tree(tmp_path, 22, partitions=1, partition_bytes=2_000_000, segment_bytes=1 << 20)
    name = tree.partitions[0]
    path = tree.log("c", name, 0)
    right = path.read_bytes()
    last = max(batch.position for batch in tree.batches["c", name] if batch.segment == 0)
    path.write_bytes(right[:12] + b"\0\0\0\7" + right[16:last])
    answer = prepared(*tree.nodes()).run(Meanwhile(2, lambda: path.write_bytes(right)))
    assert [each["kind"] for each in wrong(answer)] == ["epoch", "gap"], "as the first look saw it"


def test_brokers_that_write_meanwhile(tmp_path: Path) -> None:
    """Below the high watermark nothing changes any more, whatever is appended, rolled and checkpointed."""
    settings = {"replica.high.watermark.checkpoint.interval.ms": "100", "log.segment.bytes": "20000"}
    with BrokerCluster(3, directory=str(tmp_path), settings=settings) as cluster:
        cluster.create_topic("orders", 2)
        for _ in range(5):
            for number in range(20):
                cluster.append("orders", [b"%d" % number * 50] * 10)
            nodes = [path for path in tmp_path.iterdir() if path.name != "metadata"]
            answer = run(*nodes, "--topics=orders", "--allow-lag")
            assert wrong(answer) == []
            assert answer.facts["replicas"] == 6


@pytest.mark.parametrize(
    ("variants", "epochs", "histories", "expected"),
    [
        ({0: b"x", 1: b"x", 2: b"y"}, {0: 1, 1: 1, 2: 1}, {}, [2]),
        ({0: b"x", 1: b"y"}, {0: 1, 1: 1}, {}, []),
        ({0: b"x", 1: b"y"}, {0: 1, 1: 2}, {}, [0]),
        ({0: b"x", 1: b"y"}, {0: -1, 1: 2}, {}, []),
        ({0: b"x", 1: b"x", 2: b"y"}, {0: 1, 1: 1, 2: 2}, {}, [2]),
        ({0: b"x", 1: b"x", 2: b"y"}, {0: 1, 1: 1, 2: 2}, {0: True, 1: True, 2: True}, [0, 1]),
        ({0: b"x", 1: b"y", 2: b"z"}, {0: 1, 1: 1, 2: 1}, {}, []),
        ({0: b"x", 1: b"x", 2: b"y", 3: b"y"}, {0: 1, 1: 1, 2: 1, 3: 1}, {}, []),
    ],
)
def test_the_odd_ones(
    variants: dict[int, bytes], epochs: dict[int, int], histories: dict[int, bool], expected: list[int]
) -> None:
    """Newest epoch where epoch checkpoints bear it out, then the majority, then the newest epoch of two."""
    has_history = {number: histories.get(number, False) for number in variants}
    assert odd_ones(variants, epochs, has_history)[0] == expected


# --- compaction ---------------------------------------------------------------------------------------------


def compact(tree: Tree, node: str, name: TopicPartition) -> int:
    """Compact one replica; how many records went."""
    config = LogConfig(cleanup_policy="compact", segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.0)
    with Log.open(tree.directory(node, name), config, clock=lambda: 2_000_000) as log:
        reports = log.compact()
    return sum(each.stats.records_read - each.stats.records_written for each in reports)


@pytest.fixture
def compacted(tmp_path: Path) -> Tree:
    """Replica `a` of every partition was cleaned, the others not yet."""
    tree = make_tree(tmp_path, 8, partitions=2, partition_bytes=100_000, batch_bytes=600, keys=30)
    for name in tree.partitions:
        assert compact(tree, "a", name) > 100, "or the test shows nothing"
    return tree


def test_compaction_of_one_replica_is_no_difference(compacted: Tree) -> None:
    assert run(*compacted.nodes()).facts["findings"] == []


def test_compaction_of_all_of_them(compacted: Tree) -> None:
    for node in NODES[1:]:
        compact(compacted, node, compacted.partitions[0])
    assert run(*compacted.nodes()).facts["findings"] == []


def test_what_an_aborted_transaction_wrote_may_go(tmp_path: Path) -> None:
    """Its records are the last of their keys, and compaction takes them all the same."""
    config = LogConfig(cleanup_policy="compact", segment_bytes=2_000, min_cleanable_dirty_ratio=0.0)
    for name in "ab":
        directory = tmp_path / name / NAME.directory_name
        with Log.open(directory, config, clock=lambda: 2_000_000) as log:
            for number in range(20):
                key = b"aborted-%d" % number
                record = Record(0, 1_000, key, b"x" * 100)
                log.append_batches(
                    encode_batch(
                        [record], producer_id=7, producer_epoch=0, base_sequence=number, is_transactional=True
                    )
                )
                log.append(b"y" * 100, key=b"k%d" % (number % 3))
            log.end_transaction(7, 0, commit=False)
            for number in range(30):
                log.append(b"z" * 100, key=b"k%d" % (number % 3))
            end = log.log_end_offset
            if name == "a":
                log.compact()
                assert not [each for each in log.read() if (each.key or b"").startswith(b"aborted")]
        marks = {NAME: end}
        write_offset_checkpoint(OsDisk(), str(tmp_path / name), HIGH_WATERMARK_CHECKPOINT, marks)
    answer = run(*(f"--node={name}={tmp_path / name}" for name in "ab"))
    assert answer.facts["findings"] == []


def test_a_record_that_compaction_may_not_take(compacted: Tree) -> None:
    """The last record of a key below the cleaner's point, gone from the replica that was cleaned."""
    name = compacted.partitions[0]
    directory = compacted.directory("a", name)
    kept = [
        (path, position, size)
        for path in sorted(directory.glob("*.log"))[:1]
        for position, size in _batches(path.read_bytes())
    ]
    path, position, size = kept[0]
    data = path.read_bytes()
    first = int.from_bytes(data[position : position + 8], "big")
    path.write_bytes(data[:position] + data[position + size :])
    for seal in directory.glob("*.seal"):
        seal.unlink()
    found = wrong(run(*compacted.nodes()))
    assert found
    assert {(each["kind"], *each["nodes"]) for each in found} == {("missing", "a")}
    assert found[0]["offset"] >= first


def test_a_seal_that_a_kill_left_without_content_is_no_damage(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, 1, sealed=True)
    seal = next(tmp_path.rglob("*.seal"))
    content = seal.read_bytes()
    seal.write_bytes(b"")
    assert run(*tree.nodes()).facts["findings"] == []
    seal.write_bytes(content[:-1])
    assert [each["kind"] for each in wrong(run(*tree.nodes()))] == ["seal"]


def test_a_changed_record_in_what_was_compacted(compacted: Tree) -> None:
    """Where batches cannot be compared, records are."""
    name = compacted.partitions[1]
    path = sorted(compacted.directory("b", name).glob("*.log"))[0]
    data = bytearray(path.read_bytes())
    positions = list(_batches(bytes(data)))
    last_position, _ = positions[-1]
    base = int.from_bytes(data[last_position : last_position + 8], "big")
    data[last_position + 12 : last_position + 16] = (9).to_bytes(4, "big")
    path.write_bytes(data)
    found = wrong(run(*compacted.nodes()))
    assert [each["node"] for each in found] == ["b"]
    assert found[0]["offset"] == base


def _batches(data: bytes) -> Iterator[tuple[int, int]]:
    position = 0
    while position < len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        yield position, size
        position += size


# --- the command --------------------------------------------------------------------------------------------


def test_nodes_are_called_as_their_properties_say(tmp_path: Path) -> None:
    for number, name in enumerate("ab", 7):
        node(tmp_path, name, good())
        write_meta_properties(OsDisk(), str(tmp_path / name), MetaProperties(node_id=number))
    job = prepared(tmp_path / "a", tmp_path / "b" / NAME.directory_name)
    assert list(job.nodes) == ["7", "8"]
    facts = job.plan().facts
    assert (facts["partitions"], facts["replicas"], facts["runs"]) == (1, 2, 2)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "give the directories"),
        (["--node", "a"], "--node 'a'"),
        (["--node", "a=x,"], "--node 'a=x,'"),
        (["--topics", "(", "."], "--topics"),
        (["--compacted", "(", "."], "--compacted"),
    ],
)
def test_bad_usage(arguments: list[str], complaint: str) -> None:
    with pytest.raises(BadUsage, match="^" + complaint.replace("(", r"\(")):
        prepared(*arguments)


def test_no_such_topic_is_bad_usage(tmp_path: Path) -> None:
    asked = node(tmp_path, "a", good())
    assert main(["verify", asked, "--topics", "payments", "--plan"]) == 2
    assert main(["verify", f"--node=a={tmp_path}/nowhere", "--plan"]) == 1


@pytest.mark.spark
def test_on_spark(tmp_path: Path, spark: object, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command: two stages of tasks, one JSON object, exit code 1."""
    tree = make_tree(tmp_path, 4, partitions=2)
    planted: list[Plant] = plant(tree, 4, 6)
    code = main(["verify", "--json", *tree.nodes()])
    facts = json.loads(capsys.readouterr().out)
    assert code == 1
    assert unmatched(planted, facts["findings"]) == ([], [])
    assert facts["wrong"] == 6
